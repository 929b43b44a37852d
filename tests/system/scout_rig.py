# SPDX-License-Identifier: Apache-2.0
"""What tests of `phub scout` share: the command in a folder of its own, and its lines of JSON."""
import json
import pathlib
import subprocess
import tempfile

import rig
from rig import check

PHUB = rig.BUILD / "phub"
folder = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(folder.name)


def phub(*words, status=0, given=None, prefix=(), **environment):
    done = subprocess.run([*prefix, PHUB, "scout", *map(str, words)], input=given, stdin=None if given else subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=rig.DEADLINE_S * 4, env={**rig.QUIET, **environment}, cwd=FOLDER)
    check(done.returncode == status, f"phub scout {words}: exit code {done.returncode}, not {status}: {done.stderr[-1500:]}")
    return done.stdout, done.stderr


def lines(text):
    return [json.loads(line) for line in text.splitlines()]
