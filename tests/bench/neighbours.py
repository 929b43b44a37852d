#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a job on the same core costs another: one that floods the core, and one whose workers have stopped in mid-round.

Usage: neighbours.py           measures; writes $OUT/neighbours.md, and neighbours.jsonl with one line for every run
       neighbours.py --readme  puts what neighbours.md has into README.md, between its two marks

Environment: BUILD  where phub is (build)
             OUT    where results go (BUILD)
             RUNS   runs of each (5), taking turns; medians count
             QUICK  1: short ones, to see that all of it works

A box has one core, alone on a CPU, which polls all the time. The job that is watched exchanges 400 kB, rests 2 ms, and so on, as
training does. Its rounds a second are counted beside the neighbour, and just before and after that without it. All workers share
the other CPUs, so neighbours run there only when nobody else wants to (SCHED_IDLE), and do not check what they get: what is measured
is the box, and little of the machine's scheduler.
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
SPAN_S = 0.5 if QUICK else 3
CPUS = sorted(os.sched_getaffinity(0))
TRANSPORTS = ("shm", "tcp")
WATCHED = {"keys": "a:60000,b:40000", "pause_us": 2000, "rounds": "until-told", "report_ms": 10}
WATCHED_BYTES = 4 * (60000 + 40000)
LEAST_FLOOD = 1  # of what the watched job moves: less says nothing
KINDS = {
    "floods": "pushes 16 MB again and again, without a pause",
    "floods, 4 jobs": "four such jobs, each of 4 MB",
    "has stopped": "two workers; one of them was stopped (SIGSTOP) in mid-round",
}


def say(text):
    print(f"neighbours: {text}", file=sys.stderr, flush=True)


def newest(worker):
    with worker.out.changed:
        line = json.loads(worker.out.lines[-1])
    if line["event"] != "progress":
        raise Failure(f"{worker.name} ended: {line}")
    return line


def waited_s(worker):
    """Seconds that its threads have been ready to run and had no CPU: the second number of /proc/PID/task/TID/schedstat."""
    return sum(int((task / "schedstat").read_text().split()[1]) for task in pathlib.Path(f"/proc/{worker.pid}/task").iterdir()) / 1e9


def rates(workers):
    """The first's seconds a round without a CPU, from now on, over SPAN_S; and rounds a second of each."""
    first, waited = [newest(worker) for worker in workers], waited_s(workers[0])
    time.sleep(SPAN_S)
    last, waited = [newest(worker) for worker in workers], waited_s(workers[0]) - waited
    return [waited / max(1, last[0]["round"] - first[0]["round"]),
            *(1e3 * (b["round"] - a["round"]) / max(1, b["ms"] - a["ms"]) for a, b in zip(first, last))]


def gently():
    """What a neighbour is started with."""
    return ["chrt", "--idle", "0"]


def begin(box, kind, transport):
    """The neighbours, which have exchanged something, and the bytes of a round of those that go on."""
    common = {"rounds": "until-told", "report_ms": 10, "pause_us": 0, "check": False, "transport": transport, "prefix": gently()}
    if kind == "has stopped":
        workers = rig.job(box.url("neighbour"), 2, keys="a:1000000", **common)
        size = 0
    else:
        count, elements = (4, 1000000) if "4" in kind else (1, 4000000)
        workers = [rig.Worker(box.url(f"neighbour{i}"), keys=f"a:{elements}", **common) for i in range(count)]
        size = 4 * elements
    for worker in workers:
        worker.event("progress")
    if kind == "has stopped":
        workers[0].kill(signal.SIGSTOP)
    time.sleep(0.2)
    return workers, size


def end(workers, kind):
    if kind == "has stopped":
        workers[0].kill(signal.SIGCONT)
        workers[0].tell()
    for worker in workers if size_of(kind) else ():
        worker.tell()
    for worker in workers:
        worker.good()


def size_of(kind):
    return kind != "has stopped"


def beside(kind, transport):
    """One run: the watched job's rate alone, beside the neighbour, and alone again."""
    box = rig.Box(prefix=["taskset", "-c", ",".join(map(str, CPUS))], cores=f"[{CPUS[-1]}]", poll="busy", lost_ms=60000)
    watched = rig.Worker(box.url("watched"), transport=transport, **WATCHED)
    watched.event("progress")
    time.sleep(0.5)
    waits_before, before = rates([watched])
    neighbours, size = begin(box, kind, transport)
    running = neighbours if size else []
    waits_between, between, *theirs = rates([watched, *running])
    end(neighbours, kind)
    time.sleep(0.2)
    waits_after, after = rates([watched])
    watched.tell()
    watched.good()
    box.stop()
    flood = sum(theirs) * size
    if running and flood < LEAST_FLOOD * between * WATCHED_BYTES:
        raise Failure(f"{kind}, over {transport}: the neighbours moved {flood / 1e6:.1f} MB/s, which is no flood: other programs took their "
                      "CPUs; run it when the machine is idle")
    waits = waits_between - (waits_before + waits_after) / 2
    return {"alone": (before + after) / 2, "beside": between, "kept": 2 * between / (before + after), "waits_us": 1e6 * waits,
            "kept_else": 2 / (1 / between - waits) / (before + after), "drift": after / before, "neighbours_gb_per_s": flood / 1e9}


def measure():
    lines = []
    for run in range(RUNS):
        for transport in TRANSPORTS:
            for kind in KINDS:
                lines.append({"transport": transport, "kind": kind, "run": run, **beside(kind, transport)})
                say(json.dumps(lines[-1]))
    return lines


# ---- what is told of it ----

def told(lines, key, form):
    found = sorted(line[key] for line in lines)
    return f"{form.format(found[len(found) // 2])} ({form.format(found[0])} - {form.format(found[-1])})"


def rows(lines):
    for transport in TRANSPORTS:
        for kind in KINDS:
            mine = [line for line in lines if (line["transport"], line["kind"]) == (transport, kind)]
            yield [transport, kind, told(mine, "alone", "{:.0f}"), told(mine, "beside", "{:.0f}"), told(mine, "kept", "{:.3f}"),
                   told(mine, "waits_us", "{:.0f}"), told(mine, "kept_else", "{:.3f}"),
                   told(mine, "neighbours_gb_per_s", "{:.1f}") if size_of(kind) else "-"]


def table(lines, c):
    busy = " **Other programs kept the CPUs busy meanwhile: these numbers say little.**" if c["busy"] > len(CPUS) / 4 else ""
    quick = " **QUICK=1: these numbers say nothing.**" if c["quick"] else ""
    kinds = "; ".join(f"*{name}*: {what}" for name, what in KINDS.items())
    return "\n".join([
        report.fill(f"{len(CPUS)} CPUs ({report.cpu_name()}), commit {c['commit']}, {c['date']}; a box of one core, pinned; medians of "
                    f"{c['runs']} runs that took turns (smallest - largest); the watched job rests 2 ms after each round of 400 kB, "
                    f"its neighbour {kinds}. *Without a CPU*: how much longer in each round the watched worker was ready to run while another "
                    f"process had the CPU that all workers share (schedstat), which on a machine of its own it is not. {c['busy']:.2f} "
                    f"CPUs busy before the start.{busy}{quick}"), "",
        *report.as_table(["over", "the neighbour", "rounds/s alone", "beside it", "kept", "µs without a CPU", "kept but for that",
                           "the neighbour's GB/s"], "llrrrrrr", rows(lines)), ""])


def main():
    page = report.Page("neighbours", say)
    code = page.answered(sys.argv[1:], __doc__)
    if code is not None:
        return code
    if not make_ready(say) or not rig.WORKER.exists():
        say(f"not built: make all {rig.WORKER}")
        return 1
    if len(CPUS) < 2:
        say("two CPUs at least: one for the box's core, and one for workers")
        return 1
    conditions = {"runs": RUNS, "quick": QUICK, "commit": commit(), "date": time.strftime("%Y-%m-%d"), "busy": cpus_busy()}
    os.sched_setaffinity(0, CPUS[:-1])  # workers; the box's core is pinned by its option
    try:
        lines = measure()
    except (Failure, AssertionError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    finally:
        rig.end_processes()
    page.write(table(lines, conditions), conditions, lines)
    return 0


if __name__ == "__main__":
    run_program(main, say)
