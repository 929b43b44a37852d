#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`phub plan` beside measurement: calibrates on some exchanges, predicts others that were not used, measures them.

Usage: plan_check.py             writes $OUT/plan.md and plan.jsonl, one line for every run
       plan_check.py --readme    puts the table of plan.md into README.md, between its two marks

Environment: BUILD   where phub is (build)
             OUT     where results go (BUILD)
             RUNS    runs of calibration and of each point, taking turns; medians count (5)
             POINTS  full (minutes), or smoke (seconds; shows that everything works, judges nothing)
             JUDGE   rate (exchanges a second), or cpu (CPU seconds per GB of what limits: for a busy machine)

Calibrated on: 4 workers, all-reduce, 64 MiB in chunks of 32 KiB, of 4 KiB and as 4096 keys, and 4 KiB, over shm and tcp, with as
many box cores as CPUs. Predicted: other workers, sizes, models, optimizers, types, chunks and box cores; and, as root, workers
behind shaped links, in the rack of rack.py.

A prediction is right within 15 % of the exchanges a second that were measured. Processes of others on this machine slow the
measured side alone: run it on an idle one, or judge CPU seconds. Exits with 1 when a prediction is wrong, or a sum.
"""
import dataclasses
import functools
import json
import math
import os
import statistics
import sys
import time

import rack
import report
from run import commit
from systems import BUILD, CPUS, OUT, Failure, asked, make_ready, run_and_wait, run_program

WITHIN = 0.15
WIRE_MBIT = 200  # of a worker's link; the box has as much as all of them
MARKS = ("<!-- plan: from here on made by `tests/bench/plan_check.py --readme` -->", "<!-- plan: to here -->")
RUN_S = 0.6  # of measured rounds

# Read off the authors' posters: exchanges a second of all workers together, a model of about ResNet-18's size, on a box with
# ten NICs of 56 Gbit/s (data rate 54.3) and 28 cores; 1,370 M cache lines a second at the plateau.
POSTER = {1: 105, 2: 212, 4: 425, 8: 790}
POSTER_BOX = ["--transport", "verbs", "--mtu", "4200", "--nics", "10", "--link", "54.3Gbit", "--pcie", "3x8", "--cores", "28",
              "--cache-lines", "1370M", "--model", "resnet-18", "--optimizer", "nesterov"]


def seen(point, answer):
    """What bench exchange measured, in the plan's words."""
    if answer["errors"]:
        raise Failure(f"{point.name}: {answer['errors']} wrong sums")
    return {"exchanges_per_s": answer["rounds_per_s"], "box_cpu_s_per_gb": answer["box_cpu_s_per_gb"],
            "cpu_s_per_gb": answer["cpu_s_per_gb"]}


@dataclasses.dataclass(frozen=True)
class Point:
    """One exchange on this machine: box and workers share its CPUs."""
    transport: str
    workers: int
    cores: int
    what: tuple = ("--bytes", "100MB")
    more: tuple = ()

    @property
    def name(self):
        return " ".join([f"{self.transport}, {self.workers} workers, cores {self.cores},", *self.what[1:], *self.more])

    def words(self):
        return ["--transport", self.transport, "--workers", str(self.workers), "--cores", str(self.cores), *self.what, *self.more]

    def predict(self, costs):
        here = ["--here"] if self.transport != "shm" else []
        return plan("--costs", str(costs), *here, *self.words())

    def measure(self, predicted):
        rounds = max(2, round(RUN_S * predicted["exchanges_per_s"]))
        answer = phub("bench", "exchange", *self.words(), "--rounds", str(rounds))[-1]
        return seen(self, answer)


@dataclasses.dataclass(frozen=True)
class WirePoint:
    """Workers behind shaped links, in network namespaces."""
    workers: int
    bytes: int

    @property
    def name(self):
        return f"tcp, {self.workers} workers on links of {WIRE_MBIT} Mbit/s, {self.bytes / 1e6:g} MB"

    def predict(self, costs):
        # tc counts the 14 bytes of a frame's header.
        return plan("--costs", str(costs), "--here", "--transport", "tcp", "--link", f"{WIRE_MBIT * self.workers}Mbit", "--nics", "1",
                    "--worker-link", f"{WIRE_MBIT}Mbit", "--frame", "14", "--workers", str(self.workers), "--bytes", str(self.bytes))

    def measure(self, predicted):
        rounds = max(3, round(3 * RUN_S * predicted["exchanges_per_s"]))
        with rack.rack_of(self.workers) as wires:
            wires.set_rate(WIRE_MBIT)
            answer = phub("bench", "exchange", "--transport", "tcp", "--listen", rack.BOX, "--worker-netns", f"{wires.names}-worker{{}}",
                          "--workers", str(self.workers), "--bytes", str(self.bytes), "--rounds", str(rounds), enter=wires.box.prefix)[-1]
        return {"exchanges_per_s": seen(self, answer)["exchanges_per_s"]}  # links limit, whatever CPUs do meanwhile


@functools.cache
def why_no_wire():
    return rack.why_not()


def points(which):
    most = min(CPUS, 2)
    if which == "smoke":
        return [Point("shm", 2, 1, ("--bytes", "1MB")), Point("tcp", 2, 1, ("--bytes", "1MB")),
                *([] if why_no_wire() else [WirePoint(2, 500_000)])]
    return [
        Point("shm", 2, most), Point("shm", 8, most), Point("shm", 4, 1),
        Point("shm", 4, most, ("--model", "resnet-50"), ("--optimizer", "nesterov")),
        Point("shm", 2, 1, ("--model", "resnet-18"), ("--optimizer", "adam")),
        Point("shm", 4, most, ("--model", "resnet-50"), ("--dtype", "bf16")),
        Point("shm", 4, 1, ("--bytes", "100MB"), ("--chunk", "128KiB")),
        Point("tcp", 2, most), Point("tcp", 8, most), Point("tcp", 4, 1),
        Point("tcp", 4, most, ("--model", "resnet-50"), ("--optimizer", "sgd")),
        Point("tcp", 2, most, ("--model", "resnet-18"), ("--optimizer", "adam")),
        Point("tcp", 4, most, ("--bytes", "100MB"), ("--chunk", "16KiB")),
        *([] if why_no_wire() else [WirePoint(2, 4_000_000), WirePoint(4, 8_000_000)]),
    ]


def say(text):
    print(f"plan_check: {text}", file=sys.stderr, flush=True)


def phub(*words, enter=()):
    done = run_and_wait([*enter, str(BUILD / "phub"), *words, *([] if "--calibrate" in words else ["--json"])])
    if done.returncode:
        raise Failure(f"phub {' '.join(words)}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def plan(*words):
    return phub("plan", *words)[-1]


# ---- the run ----

def merge(calibrations):
    """Medians of the costs of all calibrations, in the form of one; rates of kernels and memory too."""
    lines = []
    for same in zip(*calibrations):
        line = dict(same[0])
        for key, value in line.items():
            if isinstance(value, float):
                line[key] = statistics.median(other[key] for other in same)
        lines.append(line)
    return lines


def write_costs(lines, path):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def measure(which, runs, note):
    """Calibrations and points take turns; the median calibration predicts."""
    folder = OUT / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    calibrations, measured, wanted = [], {}, points(which)
    if why_no_wire():
        say(f"shaped links are left out: {why_no_wire()}")
    for run in range(runs):
        say(f"run {run + 1} of {runs}: calibration")
        kernels = ["--kernels", str(folder / "plan_first.jsonl")] if calibrations else []
        calibrations.append(phub("plan", "--calibrate", "--runs", "1", *(["--quick"] if which == "smoke" else []), *kernels))
        first = write_costs(calibrations[0], folder / "plan_first.jsonl")
        for point in wanted:
            answer = point.measure(point.predict(first))
            measured.setdefault(point, []).append(answer)
            note(plan="measured", name=point.name, run=run, **answer)
    costs = merge(calibrations)
    for line in costs:
        note(**line)
    path = write_costs(costs, folder / "plan_costs.jsonl")
    return [(point, point.predict(path), measured[point]) for point in wanted]


def ratio_of(predicted, measured, key):
    """Planned to the median of what was measured; nan where that was not."""
    values = [answer[key] for answer in measured if key in answer]
    return predicted[key] / statistics.median(values) if values else math.nan


def rows(results, judge):
    """The table, and how many predictions are wrong by what `judge` looks at."""
    table, wrong = [], 0
    for point, predicted, measured in results:
        rates = report.spread(answer["exchanges_per_s"] for answer in measured)
        cpu_key = "box_cpu_s_per_gb" if predicted["limit"] == "cores" else "cpu_s_per_gb"
        rate, cpu = ratio_of(predicted, measured, "exchanges_per_s"), ratio_of(predicted, measured, cpu_key)
        judged = {"rate": rate, "cpu": cpu}[judge]
        verdict = "not judged" if math.isnan(judged) else "within 15 %" if abs(judged - 1) <= WITHIN else "wrong"
        wrong += verdict == "wrong"
        table.append([point.name, predicted["limit"], report.number(predicted["exchanges_per_s"]),
                      report.span(rates), f"{rate:.2f}", "-" if math.isnan(cpu) else f"{cpu:.2f}", verdict])
    return table, wrong


def poster_rows(costs):
    """The paper's box on paper: nobody here has one, so nothing is judged."""
    table = []
    for workers, seen in POSTER.items():
        ours = plan("--costs", str(costs), "--memory-bandwidth", "120", *POSTER_BOX, "--workers", str(workers))
        table.append([str(workers), ours["limit"], report.number(ours["all_per_s"]), str(seen), f"{ours['all_per_s'] / seen:.2f}"])
    return table


def write(results, which, judge, runs, seconds):
    table, wrong = rows(results, judge)
    kind = f"judged by {judge}" if which == "full" else "a smoke test"
    text = [MARKS[0],
            f"{CPUS} CPUs ({report.cpu_name()}), commit {commit()}; `tests/bench/plan_check.py`, {seconds:.0f} s, medians of "
            f"{runs} runs, points and calibrations taking turns, {kind}; (smallest to largest). CPU: seconds per GB, of the box where its "
            "cores limit, else of box and workers.", "",
            *report.as_table(["exchange", "limit", "planned /s", "measured /s", "planned / measured", "CPU, the same", "verdict"],
                             "llrrrrl", table), "",
            "The paper's box, all workers together (from posters, read by eye, a model of about ResNet-18's size; planned: what its "
            "hardware allows, with this machine's cores and no cost of verbs):", "",
            *report.as_table(["workers", "limit", "planned /s", "poster /s", "planned / poster"], "rlrrr",
                             poster_rows(OUT / "bench/plan_costs.jsonl")),
            MARKS[1]]
    (OUT / "plan.md").write_text("\n".join(text) + "\n")
    for row in table:
        say(f"{row[6]}: {row[0]}: planned {row[2]}, measured {row[3]}, ratio {row[4]}, CPU {row[5]}, limit {row[1]}")
    say(f"written to {OUT / 'plan.md'}")
    return wrong


def part():
    path = OUT / "plan.md"
    new = path.read_text()
    if "| wrong |" in new or "judged by rate" not in new:
        raise ValueError("a prediction was wrong, or rates were not judged: a smoke test, or CPU seconds")
    return MARKS, report.between_marks(new, path, MARKS)[1]


def main():
    words, wanted, judge = sys.argv[1:], asked(("full", "smoke"), "POINTS", "full"), os.environ.get("JUDGE") or "rate"
    if words not in ([], ["--readme"]) or not wanted or judge not in ("rate", "cpu"):
        print("usage: [RUNS=N] [POINTS=full|smoke] [JUDGE=rate|cpu] plan_check.py [--readme]", file=sys.stderr)
        return 2
    if words:
        return report.put_into_readme([part], say)
    if not make_ready(say):
        return 1
    which, runs = wanted
    began = time.monotonic()
    try:
        with open(OUT / "plan.jsonl", "w") as lines:
            results = measure(which, runs, lambda **record: lines.write(json.dumps(record) + "\n"))
        wrong = write(results, which, judge, runs, time.monotonic() - began)
    except Failure as failure:
        say(f"FAILED: {failure}")
        return 1
    return 1 if wrong and which != "smoke" else 0


if __name__ == "__main__":
    run_program(main, say)
