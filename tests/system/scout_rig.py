# SPDX-License-Identifier: Apache-2.0
"""What tests of `phub scout` share: the command in a folder of its own, logs of real runs, its lines of JSON, and what is in its
pictures."""
import contextlib
import functools
import json
import os
import pathlib
import subprocess
import tempfile
import xml.etree.ElementTree

import rig
from rig import check

PHUB = rig.BUILD / "phub"
STUDY = rig.BUILD / "tests/bench/skew_study"
SKEWED = rig.BUILD / "tests/system/skewed"
SHORT = ["--steps", "160", "--batch", "10", "--train", "1500", "--valid", "500", "--sites", "3", "--skew", "80"]
folder = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(folder.name)


def phub(*words, status=0, given=None, prefix=(), **environment):
    done = subprocess.run([*prefix, PHUB, "scout", *map(str, words)], input=given, stdin=None if given else subprocess.DEVNULL,
                          capture_output=True,
                          text=True, timeout=rig.DEADLINE_S * 4, env={**rig.QUIET, **environment}, cwd=FOLDER)
    check(done.returncode == status, f"phub scout {words}: exit code {done.returncode}, not {status}: {done.stderr[-1500:]}")
    return done.stdout, done.stderr


def small_disk(name, size):
    """A tmpfs that ends with the test, in a namespace of its own: words to enter it, the folder there, and how it is seen from here."""
    if os.geteuid() != 0:
        raise rig.Skip("needs root, for a file system of its own")
    folder = FOLDER / name
    folder.mkdir()
    holder = rig.Process("disk", ["unshare", "--mount", "sh", "-c",
                                  f"mount -t tmpfs -o size={size} tmpfs {folder} && echo ready && exec cat"])
    if not holder.out.find(lambda line: line == "ready"):
        raise rig.Skip(f"no tmpfs here: {holder.err.text()}")
    return ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"], folder, pathlib.Path(f"/proc/{holder.pid}/root{folder}")


def fill(folder, left):
    """Of a small disk all but so many bytes."""
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    os.truncate(folder / "filler", (folder / "filler").stat().st_size - left)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def panel(path, title):
    """Of a picture's panel: its texts, and its lines as (colour, x1, y1, x2, y2)."""
    root = list(xml.etree.ElementTree.parse(FOLDER / path).getroot())
    heads = [float(e.get("y")) for e in root if e.get("class") == "title"] + [1e9]
    top = next(float(e.get("y")) for e in root if e.get("class") == "title" and e.text.startswith(title))
    inside = [e for e in root if top <= float(e.get("y") or e.get("y1") or e.get("cy") or -1) < heads[heads.index(top) + 1]]
    return [e.text for e in inside if e.text and e.text.strip()], [
        (e.get("stroke"), *(float(e.get(k)) for k in ("x1", "y1", "x2", "y2"))) for e in inside if e.tag.endswith("line")]


@functools.cache
def log_of(name, *words):
    """The log of a real run."""
    path = FOLDER / f"{name}.jsonl"
    done = subprocess.run([STUDY, *SHORT, *words, "--log", path], capture_output=True, text=True, timeout=rig.DEADLINE_S * 8)
    if "fashion-mnist" in done.stderr:
        raise rig.Skip(done.stderr.strip())
    check(done.returncode == 0, done.stderr)
    return path


def hill():
    return log_of("hill", "--algorithm", "local", "--policy", "hill", "--thetas", "1,2,5,10,20", "--theta", "10", "--period", "20",
                  "--shadow", "1,10,20")


def bsp():
    return log_of("bsp", "--algorithm", "bsp")


def changed(path, name, change):
    """A copy of a log, with its lines as `change` makes them."""
    out = FOLDER / f"{name}.jsonl"
    out.write_text("".join(change(path.read_text().splitlines(True))))
    return out


def skewed(name, *words, steps=300, sites=2):
    """The log of a run of sites of libphub."""
    path = FOLDER / f"{name}.jsonl"
    phub("run", "--sites", sites, *words, "--period", 10, "--out", path, "--", "sh", "-c",
         f'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE steps={steps} >/dev/null', SKEWED)
    return path
