#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The cost model beside measurement: racks in network namespaces, of which `phub topo --racks FILE --model M` predicts the time of a
round in each way, before it is measured. Passes when each prediction is within 20 %, and the way that the model chooses (tree,
sharded or chain), which a box with hierarchy: auto takes as well, within 10 % of the best measured one.

The racks are those of racks_net.py, a worker on each host, with boxes' links of a rate of their own, each way.

Usage: model_check.py            measures; writes $OUT/model.md, and model.jsonl with one line for every run
       model_check.py --report   writes model.md anew from model.jsonl
       model_check.py --readme   puts its table into README.md, between its marks

Environment: BUILD   where phub is (build)
             OUT     where results go (BUILD)
             RUNS    runs of each way, taking turns (3)
             ROWS    full (six emulations that nothing was fitted on), fit (those that COST_LAG was fitted on), or smoke (one, seconds)

All-reduce as fp32; every sum of every round is checked. Needs root.
"""
import collections
import json
import math
import os
import re
import subprocess
import sys
import time

import rack
import report
from rack import told
from racks import read_events
from racks_net import PORT, Crew, Shape, address, racks_of
from run import commit
from systems import BUILD, CPUS, OUT, Failure, asked, cpus_busy, forget, make_ready, run_program

MARKS = ("<!-- model: from here on made by `tests/bench/model_check.py --readme` -->", "<!-- model: to here -->")
WAYS = ("flat", "tree", "sharded", "chain")
BURST = 32 << 10
NEAR, GOOD = 0.20, 0.10  # a prediction is right within this, and a choice
RUN_S, ROUNDS = 2.0, (4, 20)  # of a run, by the prediction
WORKER = BUILD / "tests/system/worker"
RACK_FILE = (OUT / "model.racks.yaml").absolute()

# workers: of each rack. host, box: Mbit/s of their links. over: of all of a rack's links, to its uplink.
Case = collections.namedtuple("Case", "name workers host box over bytes")
CASES = {
    "full": [
        Case("2 racks, 4:1", (1, 3), 60, 120, 4, 3_000_000),
        Case("3 racks, 1:1", (2, 1, 2), 40, 80, 1, 2_500_000),
        Case("4 racks, 4:1", (1, 2, 1, 2), 80, 160, 4, 2_000_000),
        Case("6 racks, 8:1", (1, 1, 2, 1, 1, 1), 120, 240, 8, 1_500_000),
        Case("8 racks, 1:1", (1, 1, 1, 1, 1, 2, 1, 1), 40, 80, 1, 1_500_000),
        Case("8 racks, 4:1", (1, 1, 1, 1, 1, 1, 1, 1), 60, 120, 4, 1_500_000),
    ],
    "fit": [
        Case("2 racks, 1:1", (2, 2), 50, 100, 1, 4_000_000),
        Case("2 racks, 2:1", (2, 2), 60, 80, 2, 3_000_000),
        Case("3 racks, 4:1", (1, 2, 3), 50, 100, 4, 2_000_000),
        Case("3 racks, 8:1", (2, 2, 2), 80, 160, 8, 2_000_000),
        Case("4 racks, 4:1", (2, 2, 2, 2), 60, 120, 4, 2_000_000),
        Case("4 racks, 8:1", (3, 1, 2, 2), 80, 160, 8, 2_000_000),
        Case("5 racks, 6:1", (1, 1, 1, 1, 1), 100, 200, 6, 2_000_000),
        Case("6 racks, 1:1", (1, 2, 1, 1, 2, 1), 50, 100, 1, 2_000_000),
        Case("6 racks, 4:1", (2, 1, 2, 1, 1, 1), 60, 120, 4, 2_000_000),
        Case("7 racks, 5:1", (1, 1, 1, 1, 1, 1, 1), 100, 150, 5, 1_500_000),
        Case("8 racks, 8:1", (1, 1, 2, 1, 1, 1, 1, 1), 100, 200, 8, 1_500_000),
    ],
    "smoke": [Case("3 racks, 4:1", (1, 1, 2), 80, 160, 4, 2_000_000)],
}


def say(text):
    print(f"model: {text}", file=sys.stderr, flush=True)


# ---- the racks ----

def shape(case):
    uplinks = tuple((case.box + case.host * workers) / case.over for workers in case.workers)
    return Shape(case.workers, case.host, uplinks=uplinks, box=case.box, burst=BURST)


def describe_racks(case):
    """The rack file."""
    text, racks = "racks:\n", shape(case)
    for number, workers in enumerate(case.workers):
        text += f"  - name: r{number}\n    uplink: {round(racks.uplink_mbit(number) * 1e3)}Kbit\n    boxes:\n"
        text += f"      - {{name: b{number}, address: '{address(number)}:{PORT}', rate: {case.box}Mbit}}\n    hosts:\n"
        text += "".join(f"      - {{name: r{number}h{local}, rate: {case.host}Mbit}}\n" for local in range(workers))
    return text


# ---- one run ----

def measure(racks, case, way, rounds):
    """How long a round takes, in ms, and what the top box has logged."""
    with Crew(racks) as crew:
        if way == "auto":  # as the rack file says
            for number in range(racks.shape.count):
                crew.box(number, "-o", f"racks={RACK_FILE}", *([] if number else ["-o", "hierarchy=auto"]))
            homes = range(racks.shape.count)
        else:
            homes = crew.boxes(way)
        workers = [crew.start(racks.worker(number, local), WORKER, f"url=phub://{address(homes[number])}:{PORT}/model", f"rank={rank}",
                              f"world={racks.shape.world}", f"keys=a:{case.bytes // 4}", f"rounds={rounds}", "transport=tcp",
                              "optimizer=none")
                   for rank, (number, local) in enumerate(racks.shape.places())]
        for worker in workers:
            read_events(worker, "started")
        began = time.monotonic()
        ends = [read_events(worker, "end")[0] for worker in workers]
        took = time.monotonic() - began
    if any(event["wrong"] or event["rounds"] != rounds for event in ends):
        raise Failure(f"{way}: wrong sums, or not all rounds: {ends}")
    return took / rounds * 1e3, crew.processes[0].stderr.read().decode()


def check_choice(racks, case, choice):
    """Does a box with hierarchy: auto take what phub topo says?"""
    log = measure(racks, case, "auto", ROUNDS[0])[1]
    found = re.search(r"hierarchy auto takes (\w+): .*", log)
    if not found or found[1] != choice:
        raise Failure(f"phub topo chooses {choice}, and the box {found[0] if found else log}")
    say(f"{case.name}, {found[0]}")


def predict(case):
    """{way: what phub topo says of it}"""
    model = OUT / "model.csv"
    RACK_FILE.write_text(describe_racks(case))
    model.write_text(f"name,shape\na,{case.bytes // 4}\n")
    lines = told(BUILD / "phub", "topo", "--racks", RACK_FILE, "--model", model, "--json").splitlines()
    found = [line for line in map(json.loads, lines) if line.get("topo") == "prediction"]
    return {line["way"]: line for line in found}


def measure_case(racks, case, predicted, runs, note):
    trouble = 0
    for run in range(runs):
        for way in WAYS:
            rounds = max(ROUNDS[0], min(ROUNDS[1], round(RUN_S * 1e3 / predicted[way]["predicted_ms"])))
            try:
                ms, _ = measure(racks, case, way, rounds)
                note(case=case.name, run=run, measured=way, round_ms=ms, rounds=rounds)
                say(f"{case.name}, {way}: {ms:.0f} ms a round, predicted {predicted[way]['predicted_ms']:.0f}")
            except Failure as failure:
                say(f"FAILED: {failure}")
                trouble += 1
    try:
        check_choice(racks, case, next(way for way in WAYS if predicted[way]["choice"]))
    except Failure as failure:
        say(f"FAILED: {failure}")
        trouble += 1
    return trouble


def measure_all(which, runs):
    """Returns how many runs failed."""
    trouble = 0
    with open(OUT / "model.jsonl", "w") as lines:
        def note(**record):
            lines.write(json.dumps(record) + "\n")
            lines.flush()

        note(bench="conditions", runs=runs, rows=which, busy=cpus_busy(), cpu=report.cpu_name(), commit=commit(),
             date=time.strftime("%Y-%m-%d", time.gmtime()))
        for case in CASES[which]:
            predicted = predict(case)
            for way, line in predicted.items():
                note(case=case.name, predicted=way, **line)
            with racks_of(shape(case), "model") as racks:
                trouble += measure_case(racks, case, predicted, runs, note)
    return trouble


# ---- the report ----

def read():
    lines = [json.loads(line) for line in (OUT / "model.jsonl").read_text().splitlines()]
    conditions = next(line for line in lines if line.get("bench") == "conditions")
    predicted, measured = collections.defaultdict(dict), collections.defaultdict(lambda: collections.defaultdict(list))
    for line in lines:
        if "predicted" in line:
            predicted[line["case"]][line["predicted"]] = line
        elif "measured" in line:
            measured[line["case"]][line["measured"]].append(line["round_ms"])
    return conditions, predicted, measured


def judge(predicted, measured):
    """Of one case: {way: (predicted, Spread, by how much it is off)}, the choice, by how much that is slower than the best, passes."""
    ways = {}
    for way in WAYS:
        ms, said = report.spread(measured[way]), predicted[way]["predicted_ms"]
        ways[way] = (said, ms, said / ms.median - 1)
    choice = next(way for way in WAYS if predicted[way]["choice"])
    loss = ways[choice][1].median / min(ways[way][1].median for way in WAYS if way != "flat") - 1
    return ways, choice, loss, loss <= GOOD and all(abs(off) <= NEAR for _, _, off in ways.values())


def describe(case):
    hosts = ", ".join(map(str, case.workers))
    return f"{case.name}; {hosts} workers of {case.host} Mbit/s, boxes of {case.box}; {case.bytes / 1e6:g} MB"


def table(conditions, predicted, measured):
    cases = {case.name: case for case in CASES[conditions["rows"]]}
    text = [f"`tests/bench/model_check.py`, commit {conditions['commit']}, {conditions['date']}, {CPUS} CPUs, of which others kept "
            f"{conditions['busy']:.1f} busy when it began. Medians of {conditions['runs']} runs that took turns; ms a round as predicted / as measured.", "",
            "| racks | flat | tree | sharded | chain | auto takes | beside the best | |", "|---|---|---|---|---|---|---|---|"]
    for name, case in cases.items():
        ways, choice, loss, good = judge(predicted[name], measured[name])
        cells = " | ".join(f"{said:.0f} / {ms.median:.0f} ({off:+.0%})" for said, ms, off in ways.values())
        text.append(f"| {describe(case)} | {cells} | {choice} | {loss:+.0%} | {'PASS' if good else 'FAIL'} |")
    offs = sorted((abs(off), name, way) for name in cases for way, (_, _, off) in judge(predicted[name], measured[name])[0].items())
    text += ["", f"Off by {offs[-1][0]:.0%} at most ({offs[-1][1]}, {offs[-1][2]}), {offs[len(offs) // 2][0]:.0%} in the middle."]
    return text


def fit(predicted, measured):
    """By what the lag would have to be multiplied to be nearest to all measured rounds, by least squares of the logarithm."""
    def distance(factor):
        return sum(math.log((said["busy_ms"] + said["fill_ms"] + factor * said["lag_ms"]) / report.spread(measured[case][way]).median) ** 2
                   for case, ways in predicted.items() for way, said in ways.items())
    return min((number / 100 for number in range(300)), key=distance)


def write():
    """Returns 1 when the model fails."""
    found = read()
    if found[0]["rows"] == "fit":
        say(f"COST_LAG would fit these racks best if it were {fit(*found[1:]):.2f} of what it is")
    (OUT / "model.md").write_text("\n".join(["# The cost model beside measurement", "", MARKS[0], "", *table(*found), "", MARKS[1], ""]))
    failed = [name for name in found[1] if not judge(found[1][name], found[2][name])[3]]
    say(f"{len(found[1]) - len(failed)} of {len(found[1])} pass{''.join(f'; FAILED: {name}' for name in failed)}; written to {OUT / 'model.md'}")
    return 1 if failed else 0


def part():
    return MARKS, "\n\n" + "\n".join(table(*read())) + "\n\n"


def main():
    os.environ["RUNS"] = os.environ.get("RUNS") or "3"
    words, wanted = sys.argv[1:], asked(CASES, default="full")
    if words not in ([], ["--report"], ["--readme"]) or not wanted:
        print(f"usage: [RUNS=N] [ROWS={'|'.join(CASES)}] model_check.py [--report | --readme]", file=sys.stderr)
        return 2
    if words == ["--readme"]:
        return report.put_into_readme([part], say)
    if words == ["--report"]:
        return write()
    if not make_ready(say):
        return 1
    forget("model.jsonl", "model.md")
    reason = rack.why_not()
    if reason:
        say(f"skipped: {reason}")
        return 0
    trouble = measure_all(*wanted)
    return 1 if trouble else write()


if __name__ == "__main__":
    run_program(main, say)
