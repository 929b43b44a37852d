#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a standby costs, and how long a job stands still when its box dies.

Usage: standby.py           measures; writes $OUT/standby.md, and standby.jsonl with one line for every run
       standby.py --readme  puts what standby.md has into README.md, between its two marks

Environment: BUILD  where phub is (build)
             OUT    where results go (BUILD)
             RUNS   runs of each (5), taking turns; medians count
             QUICK  1: few rounds, to see that all of it works

The cost: the same exchange with and without a standby, all on this machine over tcp, so that the second box takes its CPU time
from the same CPUs; its seconds per GB of the workers' gradients stand beside those of the first.

The death: of a box that is killed (kill -9), whose sockets the kernel closes, and of one that is stopped (SIGSTOP), which falls
silent as a machine without power does; lost_ms says how long a silence is believed. `noticed` is from the blow until the first
worker is at the standby, `moved` until a round ends there. Workers check every sum.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import report
from run import commit
from systems import BUILD, OUT, Failure, cpus_busy, make_ready, run_program

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import rig  # noqa: E402

QUICK = os.environ.get("QUICK") == "1"
RUNS = int(os.environ.get("RUNS") or 5)
WORKERS, ROUNDS = 2, 10 if QUICK else 60
SIZES = {"1 MB": 1000000, "25 MB": 25000000}
OPTIMIZERS = ("none", "adam")
LOST_MS = 1000
CPUS = sorted(os.sched_getaffinity(0))
TIMES = {"heartbeat_ms": 100, "warn_ms": 300, "lost_ms": LOST_MS}


def say(text):
    print(f"standby: {text}", file=sys.stderr, flush=True)


# ---- the cost ----

def exchange(size, optimizer, standby):
    words = [BUILD / "phub", "bench", "exchange", "--transport", "tcp", "--workers", WORKERS, "--bytes", size, "--rounds", ROUNDS,
             "--optimizer", optimizer, "--cores", 1, "--json"]
    there = rig.Box(name="standby", cores=1, log_level="error") if standby else None
    began = there.cpu_s() if there else 0
    if there:
        words += ["--set", f"standby={there.address}"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Failure(f"phub bench exchange: {done.stderr.strip()[-500:]}")
    line = json.loads(done.stdout)
    gigabytes = (ROUNDS + 2) * WORKERS * size / 1e9
    found = {"rounds_per_s": line["rounds_per_s"], "p50_ms": line["p50_ms"], "box_cpu_s_per_gb": line["box_cpu_s_per_gb"]}
    if there:
        found["there_cpu_s_per_gb"] = (there.cpu_s() - began) / gigabytes
        there.stop()
    return found


# ---- the death ----

def whole(box):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        done = subprocess.run([BUILD / "phub", "jobs", "--json", box.address], capture_output=True, text=True)
        if any(json.loads(line).get("standby", {}).get("state") == "whole" for line in done.stdout.splitlines()):
            return
        time.sleep(0.05)
    raise Failure("the job was never whole at the standby")


def blow(how):
    standby = rig.Box(name="standby", cores=1, **TIMES)
    box = rig.Box(cores=1, standby=standby.address, **TIMES)
    workers = rig.job(box.url("demo"), WORKERS, rounds="until-told", keys="a:250000", transport="tcp", optimizer="sgd", report_ms=1, pause_us=0)
    workers[0].event("progress")
    whole(box)
    time.sleep(0.3)
    at_ms = time.monotonic() * 1e3
    box.kill(how)
    standby.logged("its workers come from box", 60)
    noticed_ms = time.monotonic() * 1e3
    while True:
        event = workers[0].event("progress")
        if event["ms"] > noticed_ms:
            break
        before = event["round"]
    box.kill()
    workers[0].tell()
    for worker in workers:
        worker.good()
    standby.stop()
    return {"noticed_ms": noticed_ms - at_ms, "moved_ms": event["ms"] - at_ms, "lost": max(0, before + 1 - event["round"])}


MEASURED = [
    *((f"{name} {optimizer}", what, lambda size=size, optimizer=optimizer, what=what: exchange(size, optimizer, what == "with"))
      for name, size in SIZES.items() for optimizer in OPTIMIZERS for what in ("without", "with")),
    ("death", "killed", lambda: blow(signal.SIGKILL)),
    ("death", "silent", lambda: blow(signal.SIGSTOP)),
]


def measure():
    lines = []
    for run in range(RUNS):
        for part_name, what, how in MEASURED:
            lines.append({"part": part_name, "what": what, "run": run, **how()})
            say(json.dumps(lines[-1]))
    return lines


# ---- what is told of it ----

def values(lines, part_name, what, key):
    return sorted(line[key] for line in lines if line["part"] == part_name and line["what"] == what)


def median(lines, part_name, what, key):
    found = values(lines, part_name, what, key)
    return found[len(found) // 2]


def told(lines, part_name, what, key, form):
    found = values(lines, part_name, what, key)
    return f"{form.format(found[len(found) // 2])} ({form.format(found[0])} - {form.format(found[-1])})"


def cost_rows(lines):
    for name in SIZES:
        for optimizer in OPTIMIZERS:
            key = f"{name} {optimizer}"
            share = median(lines, key, "with", "rounds_per_s") / median(lines, key, "without", "rounds_per_s")
            yield [name, optimizer, told(lines, key, "without", "rounds_per_s", "{:.1f}"),
                   told(lines, key, "with", "rounds_per_s", "{:.1f}"),
                   f"{100 * share:.0f} %", told(lines, key, "without", "box_cpu_s_per_gb", "{:.2f}"),
                   told(lines, key, "with", "box_cpu_s_per_gb", "{:.2f}"), told(lines, key, "with", "there_cpu_s_per_gb", "{:.2f}")]


def tables(lines, c):
    busy = " **Other programs kept the CPUs busy meanwhile: these numbers say little.**" if c["busy"] > len(CPUS) / 4 else ""
    quick = " **QUICK=1: these numbers say nothing.**" if c["quick"] else ""
    deaths = [[f"{what}" + (f" (lost_ms {LOST_MS})" if what == "silent" else ""), told(lines, "death", what, "noticed_ms", "{:.0f} ms"),
               told(lines, "death", what, "moved_ms", "{:.0f} ms"), str(max(values(lines, "death", what, "lost")))]
              for what in ("killed", "silent")]
    return "\n".join([
        report.fill(f"{len(CPUS)} CPUs ({report.cpu_name()}), commit {c['commit']}, {c['date']}; {WORKERS} workers over tcp, boxes of one "
                    f"core, all on one machine; medians of {c['runs']} runs that took turns (smallest - largest); {c['busy']:.2f} CPUs "
                    f"busy before the start.{busy}{quick}"), "",
        *report.as_table(["a round", "optimizer", "rounds/s without", "with a standby", "share", "box CPU s/GB without", "with",
                          "standby's CPU s/GB"], "llrrrrrr", cost_rows(lines)), "",
        *report.as_table(["the box is", "noticed after", "a round ends at the standby after", "rounds lost"], "lrrr", deaths), ""])


def main():
    page = report.Page("standby", say)
    code = page.answered(sys.argv[1:], __doc__)
    if code is not None:
        return code
    if not make_ready(say) or not rig.WORKER.exists():
        say(f"not built: make all {rig.WORKER}")
        return 1
    conditions = {"runs": RUNS, "quick": QUICK, "commit": commit(), "date": time.strftime("%Y-%m-%d"), "busy": cpus_busy()}
    try:
        lines = measure()
    except (Failure, AssertionError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    finally:
        for process in rig._processes:
            process.kill()
    page.write(tables(lines, conditions), conditions, lines)
    return 0


if __name__ == "__main__":
    run_program(main, say)
