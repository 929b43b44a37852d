#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench-paper` in small: that tests/bench/paper.py runs every experiment, draws it, judges it by what was measured, and
fails when a run does."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import rig
from rig import Skip, check

sys.path.insert(0, str(rig.ROOT / "tests/bench"))
import paper  # noqa: E402
import paper_report  # noqa: E402

PAPER = rig.ROOT / "tests/bench/paper.py"
SYSTEM_PYTHON = "/usr/bin/python3"
# Stands in for phub: an answer with wrong sums.
FAKE_PHUB = """#!/bin/sh
echo '{"bench":"exchange","rounds_per_s":1,"errors":3}'
"""


def start(out, *words, **environment):
    environment = {**rig.QUIET, "ROWS": "smoke", "RUNS": "1", "BUILD": str(rig.BUILD), "OUT": str(out), **environment}
    return subprocess.Popen([SYSTEM_PYTHON, PAPER, *words], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def run(out, *words, status=0, **environment):
    """Returns its stderr and the lines of paper.jsonl."""
    process = start(out, *words, **environment)
    _, err = process.communicate(timeout=2 * rig.DEADLINE_S)
    check(process.returncode == status, f"exit code {process.returncode}, not {status}: {err[-1500:]}")
    found = pathlib.Path(out) / "paper.jsonl"
    return err, [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []


def every_experiment():
    """all experiments, in seconds: lines of every run, a table and a picture each"""
    with tempfile.TemporaryDirectory() as out:
        err, lines = run(out)
        experiments = [line["experiment"] for line in lines]
        for name, points in (("scaling", 4), ("chunks", 6), ("wide", 2 * 4), ("fused", 3), ("jobs", 2 + 2 * 5)):
            check(experiments.count(name) == points, f"{name}: {experiments.count(name)} lines, not {points}")
        check(lines[-1]["complete"] and lines[-1]["failures"] == 0, f"{lines[-1]}")
        text = (pathlib.Path(out) / "paper.md").read_text()
        check("| weights and state stored cached beside copied out past the caches, keys, nesterov | 1.77x |" in text, text)
        for name in ("scaling", "chunks", "wide", "fused", "jobs"):
            picture = pathlib.Path(out) / f"paper-{name}.png"
            check("no matplotlib" in err or picture.read_bytes().startswith(b"\x89PNG"), f"{picture} is no picture")
        err, _ = run(out, "--readme", status=1)
        check("takes no smoke test" in err, err)


def wrong_sums():
    """a command that fails or sums wrongly fails the run"""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as build:
        for name in ("phub", "phubd"):
            path = pathlib.Path(build) / name
            path.write_text(FAKE_PHUB)
            path.chmod(0o755)
        err, lines = run(out, "chunks", status=1, BUILD=build)
        check("FAILED: phub bench exchange" in err and [line["experiment"] for line in lines] == ["conditions", "end"], err)
        check(lines[-1]["failures"] == 6 and not lines[-1]["complete"], f"{lines[-1]}")


def usage():
    """what is not an experiment ends with 2"""
    with tempfile.TemporaryDirectory() as out:
        for words, environment in ((["chunk"], {}), (["--report", "jobs"], {}), ([], {"RUNS": "0"}), ([], {"ROWS": "some"})):
            err, _ = run(out, *words, status=2, **environment)
            check(err.startswith("usage: ") and "chunks" in err, err)


def interrupted():
    """Ctrl-C ends it, and the box and workers of its run"""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as build:
        os.symlink(shutil.which("sleep"), pathlib.Path(build) / "phubd")
        slow = pathlib.Path(build) / "phub"
        slow.write_text(f"#!/bin/sh\necho $$ >{out}/pid\nexec sleep 60\n")
        slow.chmod(0o755)
        process = start(out, "jobs", BUILD=build)
        until = time.monotonic() + rig.DEADLINE_S
        while not (pathlib.Path(out) / "pid").exists() and time.monotonic() < until:
            time.sleep(0.05)
        pid = int((pathlib.Path(out) / "pid").read_text())
        process.send_signal(signal.SIGINT)
        check(process.wait(timeout=rig.DEADLINE_S) == 130, f"exit code {process.returncode}")
        process.stderr.close()
        until = time.monotonic() + rig.DEADLINE_S  # it was killed, and whoever has it now has yet to reap it
        while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < until:
            time.sleep(0.05)
        check(not pathlib.Path(f"/proc/{pid}").exists(), "its command still runs")


# ---- the verdicts, from made-up numbers ----

def claims(make, *lines):
    """{claim: (paper, here, verdict)}"""
    conditions = {"experiment": "conditions", "cpus": 2}
    return {row[0]: row[1:] for row in make(paper_report.Records([conditions, *lines])).claims()}


def verdicts():
    """a ratio is judged by its distance from the paper's and its side of 1"""
    for ours, paper, said in ((7.0, 7.5, "as in the paper"), (6.0, 7.5, "as in the paper"), (3.0, 7.5, "same direction, weaker"),
                              (10.0, 7.5, "same direction, stronger"), (0.9, 7.5, "differs"), (0.8, 0.35, "same direction, weaker"),
                              (0.2, 0.35, "same direction, stronger"), (1.2, 0.35, "differs")):
        check(paper_report.verdict(ours, paper) == said, f"{ours} beside {paper}: {paper_report.verdict(ours, paper)}")


def verdict_of_chunks():
    """the paper's own curve agrees with the paper, and its mirror image does not: at the sizes of the quick set too"""
    quick = {point.label["chunk"] >> 10 for point in paper.chunks("quick")}
    verdict_of_curve(paper_report.PAPER_CHUNKS)
    verdict_of_curve({size: value for size, value in paper_report.PAPER_CHUNKS.items() if size in quick})


def verdict_of_curve(curve):
    for scale, mirrored in ((3.0, False), (1.0, True)):
        values = list(curve.values())[::-1] if mirrored else list(curve.values())
        lines = [{"experiment": "chunks", "run": 0, "transport": "tcp", "chunk": size << 10, "rounds_per_s": scale * value,
                  "cpu_s_per_gb": 1 / value}
                 for size, value in zip(curve, values)]
        said = claims(paper_report.Chunks, *lines)
        check(len(said) == 4, f"{said}")
        agree = [row[2].startswith("as in the paper") for row in said.values()]
        check(agree == [not mirrored] * 4, f"{said}")


def verdict_of_jobs():
    """what 8 jobs do together, beside one, and how evenly"""
    one = {"experiment": "jobs", "run": 0, "what": "alexnet", "transport": "tcp", "jobs": 1, "bench": "exchange",
           "rounds_per_s": 100.0, "box_cpu_s_per_gb": 0.1}
    for rate, low, high, kept, even in ((96.0, 0.97, 1.04, "as in the paper", "within"), (60.0, 0.9, 1.04, "less", "not within")):
        eight = {**one, "jobs": 8, "bench": "exchange jobs", "rounds_per_s": rate, "share_min": low, "share_max": high}
        work, shares = claims(paper_report.Jobs, one, eight).values()
        check(work[0] == "95%" and work[1] == f"{rate:.0f}%" and work[2].startswith(kept), f"{work}")
        check(shares[2].startswith(f"{even} 5 %"), f"{shares}")


def verdict_of_ways():
    """ratios are of the same run: another run's load does not change them"""
    line = {"experiment": "fused", "what": "x", "optimizer": "sgd"}
    lines = [{**line, "run": run, "pass": passes, "stores": stores, "gb_per_s": speed / (1 + 9 * run)} for run in range(3)
             for passes, stores, speed in (("fused", "cached", 177), ("fused", "streamed", 100), ("separate", "cached", 150))]
    said = list(claims(paper_report.Fused, *lines).values())
    check([row[1] for row in said] == ["1.77x", "1.18x"], f"{said}")
    check(all(row[2].startswith("as in the paper") for row in said), f"{said}")


if __name__ == "__main__":
    reason = None
    if any(name in rig.PHUBD.read_bytes() for name in (b"__asan_", b"__tsan_", b"__ubsan_")) if rig.PHUBD.exists() else False:
        reason = "a sanitizer's build: nothing to measure"
    rig.run([every_experiment, wrong_sums, usage, interrupted, verdicts, verdict_of_chunks, verdict_of_jobs, verdict_of_ways], reason)
