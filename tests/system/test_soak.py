#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A soak in short (`make soak` is the long one), so that it cannot rot; and that it finds what it is there to find.

Usage: test_soak.py [WORD...]    only the cases whose names hold one of the words
"""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import soak_watch  # noqa: E402
from rig import BUILD, QUIET, Box, Process, Worker, check, holds, job, run, say  # noqa: E402

SOAK = pathlib.Path(__file__).resolve().parent / "soak.py"


def soaked(name, *words, meanwhile=None, status=0):
    """The last lines of a soak of its own, which must end like this; into a folder of its own."""
    out = BUILD / "test-soak" / name
    one = Process("soak", [sys.executable, SOAK, "--out", out, "--slots", 3, *words])
    if meanwhile:
        meanwhile(one)
    got = one.wait(240)
    text = one.err.text()
    check(got == status, f"exit status {got}: {text[-6000:]}")
    for line in one.out.text().split("\n"):
        say(line[:300])
    return text


def short():
    """changing jobs, faults and strangers: clean"""
    holds(soaked("short", "--minutes", "0.2"), "soak: clean")


def short_with_kills():
    """the same with a box that is killed again and again"""
    holds(soaked("kills", "--minutes", "0.15", "--kill-box"), "soak: clean")


def finds_a_dead_box():
    """a box that dies is told at once, and fails the soak"""
    def kill(one):
        found = one.err.find(lambda line: "box at" in line and line)
        check(found, "it never began")
        pid = int(found[1].rsplit("pid ", 1)[1])
        time.sleep(1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    holds(soaked("dead", "--minutes", "5", meanwhile=kill, status=1), "BROKEN", "the box ended with -9|steady tenant")


def finds_a_lost_tenant():
    """an operator who evicts the steady tenant is found out"""
    def evict(one):
        found = one.err.find(lambda line: "box at" in line and line)
        address = found[1].split("box at ")[1].split(",")[0]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            done = subprocess.run([BUILD / "phub", "jobs", "evict", "steady", "--reason", "a test", address], capture_output=True,
                                  env=QUIET, check=False)
            if done.returncode == 0:
                return
            time.sleep(0.2)

    holds(soaked("evicted", "--minutes", "5", meanwhile=evict, status=1), "BROKEN", "steady tenant.*ECANCELED")


def finds_growth():
    """samples that grow are found, those that wander are not"""
    def points(grows):
        return [{"at_s": 40.0 * i, "anon": 20e6 + (i % 3) * 3e5 + grows.get("anon", 0) * i, "fds": 40 + grows.get("fds", 0) * (i // 10),
                 "threads": 3, "memfds": 4, "sockets": 12, "shared": 1e6} for i in range(30)]

    check(soak_watch.leaks(points({})) == [], "found what is not there")
    holds(" ".join(soak_watch.leaks(points({"anon": 5e5}))), "^anon grows")
    holds(" ".join(soak_watch.leaks(points({"fds": 1}))), "^fds grows")
    stays = points({})
    stays[-1]["memfds"] = 5
    holds(" ".join(soak_watch.leaks(stays)), "^memfds is 5")
    check(soak_watch.leaks(points({})[:3]) == [], "found what is not there, in three")


def worker_finds_wrong_sums():
    """the checks of jobs that lose ranks: a planted stale, swapped or doubled chunk"""
    box = Box(cores=1)
    for plant in ("stale", "swapped", "doubled"):
        for optimizer in ("none", "sgd"):
            worker = Worker(box.url(f"{plant}-{optimizer}"), keys="a:40000", optimizer=optimizer, lr=1, some=1, rounds=4, plant=plant,
                            transport="tcp")
            result = worker.result()
            check(result["rc"] == 0 and result["wrong"] > 0, f"{plant}: {result}")
    workers = job(box.url("right"), 3, keys="a:40000,b:7", optimizer="sgd", lr=1, some=1, rounds=4, settle=1)
    check(len({worker.good()["settled"] for worker in workers}) == 1, "the last weights differ")
    box.stop()


run([worker_finds_wrong_sums, finds_growth, short, short_with_kills, finds_a_dead_box, finds_a_lost_tenant])
