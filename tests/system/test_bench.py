#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench` in small: that tests/bench/run.py measures phub beside its peers, fails when one of them sums wrongly, goes on
without one that is not installed, and leaves nothing behind."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import rig
from rig import Skip, check

RUN = rig.ROOT / "tests/bench/run.py"
SYSTEM_PYTHON = "/usr/bin/python3"
# Stands in for mpirun: answers every order as peer_mpi does, and says that so many sums were wrong.
FAKE_MPIRUN = """#!/bin/sh
while read -r algorithm segment bytes warmup rounds; do
	echo "{\\"workers\\":2,\\"bytes\\":$bytes,\\"rounds\\":$rounds,\\"rounds_per_s\\":1,\\"p50_ms\\":1,\\"p99_ms\\":1,\
\\"cpu_s_per_gb\\":1,\\"errors\\":WRONG}"
done
"""


def start(out, path=None, python="/nonexistent"):
    """The smallest set, into the folder `out`."""
    environment = {**rig.QUIET, "ROWS": "smoke", "RUNS": "1", "BUILD": str(rig.BUILD), "OUT": out, "PYTHON": python}
    if path:
        environment["PATH"] = path
    return subprocess.Popen([SYSTEM_PYTHON, RUN], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def run(out, path=None, python="/nonexistent", status=0):
    """Returns its stderr and the systems that it measured."""
    process = start(out, path, python)
    _, err = process.communicate(timeout=rig.DEADLINE_S)
    check(process.returncode == status, f"exit code {process.returncode}, not {status}: {err[-1500:]}")
    lines = [json.loads(line) for line in (pathlib.Path(out) / "bench.jsonl").read_text().splitlines()]
    check(not namespace(process.pid), f"{namespace(process.pid)} is still there")
    return err, [line["system"] for line in lines if "system" in line]


def namespace(pid):
    path = pathlib.Path(f"/run/netns/phub-bench-{pid}")
    return path if path.exists() else None


def fake_mpi(folder, wrong):
    """A PATH on which mpirun is ours, and mpicc makes an empty file."""
    for name, text in (("mpirun", FAKE_MPIRUN.replace("WRONG", str(wrong))), ("mpicc", "#!/bin/sh\n: >${OUT}/bench/peer_mpi\n")):
        path = pathlib.Path(folder) / name
        path.write_text(text)
        path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def beside_peers():
    """phub, Open MPI and Gloo in one run, with all sums checked"""
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        raise Skip("no Open MPI (deploy/deps.sh bench)")
    with tempfile.TemporaryDirectory() as out:
        err, systems = run(out, python=SYSTEM_PYTHON)
        wanted = {"phub shm zero-copy", "phub shm copy", "phub tcp zero-copy", "phub tcp copy", "Open MPI shm", "Open MPI tcp"}
        wanted |= set() if "Gloo is left out" in err else {"Gloo tcp"}
        check(set(systems) == wanted and len(systems) == 2 * len(wanted), f"measured: {systems}: {err}")
        text = (pathlib.Path(out) / "bench.md").read_text()
        check("| 2 workers, 1 MB | Open MPI tcp |" in text and "beside the faster peer" in text, f"bench.md: {text}")


def wrong_sums():
    """a peer whose sums are wrong fails the run, which measures the others"""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as folder:
        err, systems = run(out, path=fake_mpi(folder, 3), status=1)
        check("Open MPI shm, 2 workers" in err and "3 wrong sums" in err, err)
        check("Gloo is left out" in err, err)
        check("phub tcp copy" in systems and "Open MPI shm" not in systems, f"measured: {systems}")


def no_peers():
    """without mpirun and torch their columns are left out"""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as folder:
        for program in ("sh", "ip", "nsenter", "cat", "git"):
            if shutil.which(program):
                os.symlink(shutil.which(program), pathlib.Path(folder) / program)
        err, systems = run(out, path=folder)
        check("Open MPI is left out: no mpirun" in err and "Gloo is left out: no /nonexistent" in err, err)
        check(len(systems) == 8, f"measured: {systems}")


def interrupted():
    """Ctrl-C and SIGKILL leave neither namespace nor processes"""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as folder:
            process = start(out, path=fake_mpi(folder, 0))
            lines = rig.Lines(process.stderr)
            check(lines.find(lambda line: "2 workers, 4 KB" in line), "it did not begin")
            time.sleep(0.3)
            process.send_signal(number)
            check(process.wait(timeout=rig.DEADLINE_S) == code, f"exit code {process.returncode}, not {code}")
            until = time.monotonic() + rig.DEADLINE_S
            while namespace(process.pid) and time.monotonic() < until:
                time.sleep(0.05)
            check(not namespace(process.pid), f"{namespace(process.pid)} is still there")


if __name__ == "__main__":
    reason = None
    if any(name in rig.PHUBD.read_bytes() for name in (b"__asan_", b"__tsan_", b"__ubsan_")) if rig.PHUBD.exists() else False:
        reason = "a sanitizer's build: nothing to measure"
    rig.run([beside_peers, wrong_sums, no_peers, interrupted], reason)
