#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Several racks in network namespaces (racks_net.py): what crosses a rack's uplink in a round, and how long that takes, where all
workers come to one box (flat), and over boxes in a tree, sharded and in a chain.

Usage: racks.py            measures; writes $OUT/racks.md, and racks.jsonl with one line for every run
       racks.py --report   writes racks.md anew from racks.jsonl
       racks.py --readme   puts its table into README.md, between its marks

Environment: BUILD   where phub is (build)
             OUT     where results go (BUILD)
             RUNS    runs of each way, taking turns (5)
             ROWS    quick (2 and 4 racks), full (2, 4 and 8), or smoke (3 racks, seconds)
             RATE    of a worker's link each way, Mbit/s (50)

A model of 4 MB, all-reduced as fp32; every sum of every round is checked. Needs root.
"""
import collections
import json
import os
import re
import select
import sys
import time

import rack
import report
from racks_net import PORT, Crew, Shape, address, racks_of
from run import commit
from systems import BUILD, CPUS, OUT, Failure, asked, cpus_busy, forget, make_ready, run_program

MARKS = ("<!-- racks: from here on made by `tests/bench/racks.py --readme` -->", "<!-- racks: to here -->")
WAYS = ("flat", "tree", "sharded", "chain")
RACKS = {"smoke": [3], "quick": [2, 4], "full": [2, 4, 8]}
WORKERS = 2  # of each rack
BYTES, ROUNDS = {"smoke": 1_000_000, "quick": 4_000_000, "full": 4_000_000}, {"smoke": 4, "quick": 12, "full": 12}
DEADLINE_S = 120
WORKER = BUILD / "tests/system/worker"
# Headers: a segment of 1448 bytes takes 1514 on a link; and acknowledgements of what comes the other way.
LEAST, MOST = 1.0, 1.12


def say(text):
    print(f"racks: {text}", file=sys.stderr, flush=True)


def read_events(worker, wanted):
    """Its lines up to this event: of those before it, how long exchanges took."""
    deadline, took_us = time.monotonic() + DEADLINE_S, []
    while select.select([worker.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
        line = worker.stdout.readline()
        if not line:
            break
        event = json.loads(line)
        if event["event"] == "end" and event.get("errno"):
            raise Failure(f"a worker: {event['error']}")
        if event["event"] == wanted:
            return event, took_us
        if event["event"] == "progress":
            took_us.append(event["exchange_us"])
    raise Failure(f"a worker has not {wanted} in {DEADLINE_S} s")


def measure(racks, way, size, rounds, *words):
    """One run of a model of `size` bytes: bytes of each uplink in a round, and the median round of all workers but for the first
    rounds. `words` go to the workers."""
    shape = racks.shape
    with Crew(racks) as crew:
        boxes = crew.boxes(way)
        before = racks.counters()
        workers = [crew.start(racks.worker(number, local), WORKER, f"url=phub://{address(boxes[number])}:{PORT}/racks", f"rank={rank}",
                              f"world={shape.world}", f"keys=a:{size // 4}", f"rounds={rounds}", "transport=tcp", "optimizer=none",
                              "report_ms=1", *words)
                   for rank, (number, local) in enumerate(shape.places())]
        ends, took_us = zip(*[read_events(worker, "end") for worker in workers])
        after = racks.counters()
    if any(event["wrong"] or event["rounds"] != rounds for event in ends):
        raise Failure(f"{way}: wrong sums, or not all rounds: {ends}")
    crossed = [[(now - then) / rounds for now, then in zip(*both)] for both in zip(after, before)]
    return {"way": way, "racks": shape.count, "workers": shape.workers, "mbit": shape.mbit, "oversubscribed": shape.oversubscribed,
            "bytes": size, "rounds": rounds, "round_ms": report.spread(us for one in took_us for us in one[1:]).median / 1e3,
            "out": [out for out, _ in crossed], "in": [came for _, came in crossed]}


def models(way, racks, number):
    """What PHub's section 3.4 says that a rack's uplink carries in a round, each way, in models."""
    if way == "flat":
        return (racks - 1) * WORKERS if number == 0 else WORKERS
    if way == "tree":
        return racks - 1 if number == 0 else 1
    return 2 * (racks - 1) / racks


def check(run):
    """What crossed is what must, with headers and acknowledgements."""
    for number, (out, came) in enumerate(zip(run["out"], run["in"])):
        for name, found in (("out of", out), ("into", came)):
            want = models(run["way"], run["racks"], number) * run["bytes"]
            if not LEAST <= found / want <= MOST:
                raise Failure(f"{run['way']}, {run['racks']} racks: {found:.0f} bytes {name} rack {number} in a round, not {want:.0f} and headers")


# ---- the report ----

def read():
    lines = [json.loads(line) for line in (OUT / "racks.jsonl").read_text().splitlines()]
    conditions = next(line for line in lines if line.get("bench") == "conditions")
    runs = collections.defaultdict(list)
    for line in lines:
        if "way" in line:
            runs[line["racks"], line["way"]].append(line)
    return conditions, runs


def row(racks, way, runs, flat_ms):
    ms = report.spread(run["round_ms"] for run in runs)
    most = [report.spread(max(side) / run["bytes"] for run in runs for side in (run["out"][pick], run["in"][pick])).median
            for pick in (slice(0, 1), slice(1, None))]
    want = [models(way, racks, number) for number in (0, 1)]
    return (f"| {racks} | {way} | {most[0]:.2f} ({want[0]:.3g}) | {most[1]:.2f} ({want[1]:.3g}) | {ms.median:.0f} ({ms.min:.0f} to {ms.max:.0f}) |"
            f" {flat_ms / ms.median:.2f} |")


def table(conditions, runs):
    text = [f"`tests/bench/racks.py`, commit {conditions['commit']}, {conditions['date']}, {CPUS} CPUs, workers' links of {conditions['mbit']} Mbit/s "
            f"each way; a model of {conditions['bytes'] / 1e6:g} MB, {WORKERS} workers in each rack, boxes of one core. Medians of "
            f"{conditions['runs']} runs that took turns.", "",
            "| racks | way | uplink of the root's rack, models a round (as it must be) | of the others | ms a round | times as fast as flat |",
            "|---|---|---|---|---|---|"]
    for racks in sorted({racks for racks, _ in runs}):
        flat_ms = report.spread(run["round_ms"] for run in runs[racks, "flat"]).median
        text += [row(racks, way, runs[racks, way], flat_ms) for way in WAYS]
    return text


def write():
    (OUT / "racks.md").write_text("\n".join(["# Several racks in network namespaces", "", MARKS[0], "", *table(*read()), "", MARKS[1], ""]))
    say(f"written to {OUT / 'racks.md'}")
    return 0


def part():
    return MARKS, "\n\n" + "\n".join(table(*read())) + "\n\n"


# ---- measuring ----

def measure_all(which, runs, mbit):
    trouble = 0
    os.makedirs(OUT, exist_ok=True)
    with open(OUT / "racks.jsonl", "w") as lines:
        def note(**record):
            lines.write(json.dumps(record) + "\n")
            lines.flush()

        note(bench="conditions", runs=runs, rows=which, mbit=mbit, bytes=BYTES[which], busy=cpus_busy(), cpu=report.cpu_name(), commit=commit(),
             date=time.strftime("%Y-%m-%d", time.gmtime()))
        for count in RACKS[which]:
            with racks_of(Shape((WORKERS,) * count, mbit)) as racks:
                for run in range(runs):
                    for way in WAYS:
                        try:
                            found = measure(racks, way, BYTES[which], ROUNDS[which])
                            note(run=run, **found)
                            check(found)
                            say(f"{count} racks, {way}: {found['round_ms']:.0f} ms a round")
                        except Failure as failure:
                            say(f"FAILED: {failure}")
                            trouble += 1
    return trouble


def main():
    words, wanted, mbit = sys.argv[1:], asked(RACKS), os.environ.get("RATE") or "50"
    if words not in ([], ["--report"], ["--readme"]) or not wanted or not re.fullmatch(r"[0-9]{1,5}", mbit) or int(mbit) < 10:
        print(f"usage: [RUNS=N] [ROWS={'|'.join(RACKS)}] [RATE=MBIT] racks.py [--report | --readme]", file=sys.stderr)
        return 2
    if words == ["--readme"]:
        return report.put_into_readme([part], say)
    if words == ["--report"]:
        return write()
    if not make_ready(say):
        return 1
    forget("racks.jsonl", "racks.md")
    reason = rack.why_not()
    if reason:
        say(f"skipped: {reason}")
        return 0
    trouble = measure_all(*wanted, int(mbit))
    return 1 if trouble else write()


if __name__ == "__main__":
    run_program(main, say)
