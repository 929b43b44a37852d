#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench` in small: that tests/bench/run.py measures phub beside its peers, fails when one of them sums wrongly, goes on
without one that is not installed, and leaves nothing behind; and rack.py, in its network namespaces, too."""
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
RACK = rig.ROOT / "tests/bench/rack.py"
SYSTEM_PYTHON = "/usr/bin/python3"
# Stands in for mpirun: answers every order as peer_mpi does, and says that so many sums were wrong.
FAKE_MPIRUN = """#!/bin/sh
while read -r algorithm segment bytes warmup rounds; do
	echo "{\\"workers\\":2,\\"bytes\\":$bytes,\\"rounds\\":$rounds,\\"rounds_per_s\\":1,\\"p50_ms\\":1,\\"p99_ms\\":1,\
\\"cpu_s_per_gb\\":1,\\"errors\\":WRONG}"
done
"""


def start(out, path=None, python="/nonexistent", program=RUN, **more):
    """The smallest set, into the folder `out`."""
    environment = {**rig.QUIET, "ROWS": "smoke", "RUNS": "1", "BUILD": str(rig.BUILD), "OUT": out, "PYTHON": python, **more}
    if path:
        environment["PATH"] = path
    return subprocess.Popen([SYSTEM_PYTHON, program], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
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


def rack_namespaces(pid):
    return list(pathlib.Path("/run/netns").glob(f"phub-rack-{pid}-*"))


def rack_or_skip(err):
    if "skipped" in err:
        check(len(err.splitlines()) == 1, f"it skips in more than one line: {err}")
        raise Skip(err.strip())


def rack():
    """phub and its peers on shaped links: what every run moved took them, and nothing is left"""
    with tempfile.TemporaryDirectory() as out:
        process = start(out, python=SYSTEM_PYTHON, program=RACK, RATE="200")
        _, err = process.communicate(timeout=2 * rig.DEADLINE_S)
        check(process.returncode == 0, f"exit code {process.returncode}: {err[-1500:]}")
        rack_or_skip(err)
        check(not rack_namespaces(process.pid), f"still there: {rack_namespaces(process.pid)}")
        lines = [json.loads(line) for line in (pathlib.Path(out) / "rack.jsonl").read_text().splitlines()]
        runs = {line["system"]: line for line in lines if "system" in line}
        wanted = {"phub tcp f32", "phub tcp f16", "phub tcp bf16"}
        wanted |= {name for name, word in (("Open MPI tcp", "Open MPI"), ("Gloo tcp", "Gloo")) if f"{word} is left out" not in err}
        check(set(runs) == wanted, f"measured: {set(runs)}: {err}")
        for name, line in runs.items():
            # A link of so many Mbit/s, and the burst that it lets through after a rest.
            check(all(line[f"{way}_link_bytes"] >= line["bytes"] and 0 < line[f"{way}_share"] < 1.2 for way in ("up", "down")),
                  f"{name}: {line}")
        text = (pathlib.Path(out) / "rack.md").read_text()
        check("| 2 | phub tcp f32 |" in text and "share of line rate up" in text, f"rack.md: {text}")


def rack_killed():
    """SIGKILL leaves neither namespaces nor what ran in them"""
    with tempfile.TemporaryDirectory() as out:
        for when in ("2 workers (", "2 workers: as many"):  # while links are made; while phub exchanges
            process = start(out, program=RACK)
            lines = rig.Lines(process.stderr)
            if not lines.find(lambda line, when=when: when in line):
                rack_or_skip(lines.text())
                check(False, f"it did not begin: {lines.text()}")
            time.sleep(0.3)
            inside = [pid for path in rack_namespaces(process.pid) for pid in
                      subprocess.run(["ip", "netns", "pids", path.name], capture_output=True, text=True, check=False).stdout.split()]
            process.kill()
            process.wait()
            until = time.monotonic() + rig.DEADLINE_S
            while (rack_namespaces(process.pid) or any(pathlib.Path(f"/proc/{pid}").exists() for pid in inside)) \
                    and time.monotonic() < until:
                time.sleep(0.05)
            check(not rack_namespaces(process.pid), f"still there: {rack_namespaces(process.pid)}")
            check(not any(pathlib.Path(f"/proc/{pid}").exists() for pid in inside), f"still running: {inside}")


if __name__ == "__main__":
    reason = None
    if any(name in rig.PHUBD.read_bytes() for name in (b"__asan_", b"__tsan_", b"__ubsan_")) if rig.PHUBD.exists() else False:
        reason = "a sanitizer's build: nothing to measure"
    rig.run([beside_peers, wrong_sums, no_peers, interrupted, rack, rack_killed], reason)
