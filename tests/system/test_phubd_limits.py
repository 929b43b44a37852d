#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phubd at the bounds of its process: descriptors, CPUs, and what jobs that come and go leave behind; and that the example
config is what it says.

Usage: test_phubd_limits.py [WORD...]    only the cases whose names hold one of the words
"""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import BUILD, PHUBD, QUIET, ROOT, Box, check, holds, job, run  # noqa: E402

SANITIZED = PHUBD.exists() and re.search(rb"__(asan|tsan)_init", PHUBD.read_bytes()) is not None


def phubd(*words, env=None):
    """Runs it to its end: exit status, stdout, stderr."""
    done = subprocess.run([PHUBD, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env={**QUIET, **(env or {})}, check=False)
    return done.returncode, done.stdout, done.stderr


def refused(status, words, *patterns, env=None):
    """It does not start, with one line that says why and what to do."""
    got, out, error = phubd(*words, env=env)
    check(got == status, f"{words}: exit status {got}: {out}{error}")
    check(out == "" and error.count("\n") == 1 and error.startswith("phubd: "), f"{words}: not one line: {out}{error}")
    holds(error, *patterns)


def wait_until(condition, text, deadline_s=30):
    until = time.monotonic() + deadline_s
    while not condition():
        check(time.monotonic() < until, text)
        time.sleep(0.05)


def example():
    """deploy/phubd.yaml holds every option at its default"""
    file = ROOT / "deploy/phubd.yaml"
    defaults = phubd("--dump-config")
    check(defaults[0] == 0 and phubd("--config", file, "--dump-config") == defaults, "it does not hold the defaults")
    names = set(re.findall(r"(?m)^([a-z_]+):", defaults[1]))
    lacks = names - set(re.findall(r"(?m)^([a-z_]+):", file.read_text()))
    check(not lacks, f"it lacks {lacks}")


def words():
    """the command line: what is wrong is told in one line, and the file is read before it wherever it stands"""
    refused(2, ["--config"], "needs a file")
    refused(2, ["-o"], "needs KEY=VALUE")
    refused(2, ["-o", "window"], "is not key=value")
    refused(2, ["-x"], "'-x' is no option; see --help")
    refused(2, ["--fast"], "unknown key 'fast'; .*phubd --dump-config says all")
    refused(2, ["--window"], "--window needs a value; see --help")
    refused(1, ["--listen", "nosuch.invalid:0"], "listen: 'nosuch.invalid' does not resolve to an address; write")
    refused(1, ["--config", "/"], "cannot be read")
    refused(1, ["--listen", "127.0.0.1:0"], "^phubd: PHUB_ISA: \"z80\"", env={"PHUB_ISA": "z80"})
    refused(1, ["--listen", "127.0.0.1:0"], "loud", env={"PHUB_LOG": "loud"})
    status, out, error = phubd("--data-ports=any", "--window", "7", "--config", ROOT / "deploy/phubd.yaml", "--dump-config")
    check(status == 0, error)
    holds(out, r"(?m)^window: 7$", r"(?m)^data_ports: any$")


def above_unknown():
    """a box above whose name has no address is warned of by --check-config and when the box starts: it may get one later"""
    options = ["--listen", "127.0.0.1:0", "--uplink", "nosuch.invalid:7077"]
    words_ = "uplink: 'nosuch.invalid' does not resolve to an address: jobs wait for the box above until it does"
    status, out, error = phubd(*options, "--check-config")
    check(status == 0, error)
    holds(error, f"warn .*{words_}")
    holds(out, "the options are good")
    box = Box(uplink="nosuch.invalid:7077")
    box.logged(f"warn .*{words_}")
    box.stop()
    status, out, error = phubd("--listen", "127.0.0.1:0", "--uplink", "127.0.0.1:1", "--check-config")
    check(status == 0 and "uplink" not in error, error)


def full():
    """what cannot be printed is told, and ends with 1: the start line too, or nobody would know the port"""
    for words_ in (["--help"], ["--version"], ["--dump-config"], ["--check-config"], ["--listen", "127.0.0.1:0"]):
        with open("/dev/full", "w", encoding="ascii") as nowhere:
            done = subprocess.run([PHUBD, *words_], stdin=subprocess.DEVNULL, stdout=nowhere, stderr=subprocess.PIPE,
                                  text=True, timeout=60, env={**QUIET, "PHUB_LOG": "error"}, check=False)
        check(done.returncode == 1, f"{words_}: exit status {done.returncode}: {done.stderr}")
        check(done.stderr.count("\n") == 1, f"{words_}: not one line: {done.stderr}")
        holds(done.stderr, "^phubd: cannot write to standard output: .*; send it elsewhere")


def descriptors():
    """out of descriptors: it says so once in a while, does not spin, and goes on when there are some again"""
    box = Box(prefix=["prlimit", "--nofile=48:48"], cores=1)
    strangers = [socket.create_connection(("127.0.0.1", box.port), timeout=30) for _ in range(100)]
    box.logged("cannot accept a control session: .*; raise `ulimit -n`")
    if not SANITIZED:
        before = box.cpu_s()
        time.sleep(2)
        check(box.cpu_s() - before < 0.5, f"it spins: {box.cpu_s() - before:.2f} s of CPU in 2 s")
    for sock in strangers:
        sock.close()
    for worker in job(box.url("demo"), 2, transport="tcp"):
        worker.good()
    box.stop()


def pinned():
    """cores as a list of CPUs: a thread runs there, and CPUs that are not there are refused"""
    cpu = min(os.sched_getaffinity(0))
    box = Box(cores=f"[{cpu}]")

    def threads():
        return [os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{box.pid}/task")]

    wait_until(lambda: {cpu} in threads(), f"no thread is pinned to CPU {cpu}: {threads()}")
    for worker in job(box.url("demo"), 2):
        worker.good()
    box.stop()
    refused(1, ["--listen", "127.0.0.1:0", "--cores", "[4095]"], "CPU 4095 is not there, or this process may not use it")


def leaks():
    """jobs that come and go leave no descriptor and no mapping behind"""
    box = Box(cores=2)

    def count():
        maps = pathlib.Path(f"/proc/{box.pid}/maps").read_text().count("\n")
        return len(os.listdir(f"/proc/{box.pid}/fd")), maps

    before = (0, 0)
    for number in range(12):
        for worker in job(box.url("demo"), 2, transport=("tcp", "shm")[number % 2], keys="a:100000,b:5"):
            worker.good()
        if number == 3:
            time.sleep(0.5)
            before = count()
    wait_until(lambda: count()[0] <= before[0], f"descriptors: {before[0]} after 4 jobs, {count()[0]} after 12")
    if not SANITIZED:
        wait_until(lambda: count()[1] <= before[1] + 8, f"mappings: {before[1]} after 4 jobs, {count()[1]} after 12")
    box.stop()


def build_leaking(folder):
    """A phubd as this one, but that loses a slot of every job: there is no switch for that in the program itself."""
    flags = (BUILD / ".flags").read_text().split()
    archives = [BUILD / f"lib{layer}.a" for layer in ("client", "control", "box", "transport", "topology", "aggregation", "base")]
    names = ["libssl", "libcrypto", "libprotobuf-c", "yaml-0.1", "jansson", "libcap-ng"]
    if "-DPHUB_VERBS" in flags:
        names.append("libibverbs")
    if "-DPHUB_ISAL" in flags:
        names.append("libisal")
    libraries = subprocess.run(["pkg-config", "--libs", *names], capture_output=True, text=True, check=True).stdout.split()
    if "-DPHUB_IPSEC_MB" in flags:
        libraries.append("-lIPSec_MB")
    program = pathlib.Path(folder, "phubd")
    built = subprocess.run([*flags, "-DMAIN_PLANT_LEAK=true", "-o", program, "phub/main.c", "-Wl,--start-group",
                            *archives, "-Wl,--end-group", *libraries, "-lm"], cwd=ROOT, capture_output=True, text=True)
    check(built.returncode == 0, built.stderr)
    return program


def books():
    """a slot that is lost on purpose: the log says whose, and phubd does not exit 0; no environment makes phubd do that"""
    with tempfile.TemporaryDirectory(prefix="phub-test-") as folder:
        box = Box(cores=1, program=build_leaking(folder))
        for worker in job(box.url("demo"), 2):
            worker.good()
        box.logged("demo.*1 slots kept, 0 released|demo.*balance")
        box.kill(signal.SIGTERM)
        check(box.wait() == 1, "phubd exits 0 although its books do not balance")
        holds(box.err.text(), "did not balance")
    box = Box(cores=1, env={"PHUBD_PLANT_LEAK": "1"})
    for worker in job(box.url("demo"), 2):
        worker.good()
    box.stop()


run([example, words, above_unknown, full, descriptors, pinned, leaks, books])
