#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PHub's own experiments (SoCC'18), run here, each beside the paper's curve.

Usage: paper.py [EXPERIMENT...]    measures; writes $OUT/paper.md, paper-EXPERIMENT.png, and paper.jsonl with every run
       paper.py --report           writes paper.md and the pictures anew from paper.jsonl
       paper.py --readme           puts the table of paper.md into README.md, between its two marks

Experiments (all): scaling   exchanges a second without compute, 1 to 8 workers, each model
                   chunks    chunk sizes from 4 KiB to 2 MiB
                   wide      tall against wide aggregation, by size of key
                   fused     fused against separate optimizer; cached stores against weights and state copied out past the caches
                   jobs      1 to 8 jobs at once on one box

Environment: BUILD, OUT   as for run.py
             RUNS         runs of each point, taking turns; medians are compared (5)
             ROWS         quick (100 seconds on two idle CPUs), full (more models, needs memory), or smoke (seconds)

The points of an experiment take turns, run by run. Every run checks its sums; one that fails exits with 1.
"""
import dataclasses
import json
import os
import sys
import time

import paper_report
import report
from run import MODELS, commit, memory_available
from systems import BUILD, CPUS, OUT, Failure, asked, cpus_busy, forget, make_ready, run_and_wait, run_program

EXPERIMENTS = ["scaling", "chunks", "wide", "fused", "jobs"]
SIZES = ["quick", "full", "smoke"]
# What an exchange takes on one CPU, box and workers, in seconds per GB of gradients: to choose a number of rounds.
GUESS_S_PER_GB = {"shm": 0.1, "tcp": 0.7}
RUN_S = {"quick": 0.1, "full": 0.5, "smoke": 0.01}
MODEL_BYTES = {**MODELS, "alexnet": 244403360, "vgg-11": 531453344, "googlenet-noaux": 26499616, "inception-v3-noaux": 95338272,
               "resnet-18": 46758048}


def say(text):
    print(f"paper: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Point:
    """One command of an experiment. `label` goes with each of its lines."""
    words: tuple
    label: dict
    memory: int


def words_of(*words):
    return tuple(map(str, words))


def exchange(rows, transport, workers, nbytes, jobs=1, model="", more=(), **label):
    rounds = max(4, min(400, round(RUN_S[rows] * CPUS / (GUESS_S_PER_GB[transport] * nbytes * workers * jobs / 1e9))))
    what = ("--model", model) if model else ("--bytes", nbytes)
    several = ("--jobs", jobs) if jobs > 1 else ()
    words = words_of("exchange", "--transport", transport, "--workers", workers, *several, *what, "--rounds", rounds, *more)
    return Point(words, {"what": model or f"{nbytes / 1e6:g} MB", "transport": transport, "workers": workers, "jobs": jobs, **label},
                 4 * nbytes * workers * jobs + (256 << 20))


def aggregation(workers, nbytes, *more, what, keys=0, **label):
    source = ("--bytes", nbytes, "--keys", keys) if keys else ("--model", what)
    words = words_of("aggregation", "--workers", workers, *source, *more)
    return Point(words, {"what": what, **label}, (workers + 7) * nbytes + (256 << 20))


# ---- the experiments: lists of points ----

def scaling(rows):
    models = {"smoke": [], "quick": ["resnet-18"], "full": list(MODEL_BYTES)}[rows]
    sized = [("", 200_000)] if rows == "smoke" else [(model, MODEL_BYTES[model]) for model in models]
    return [exchange(rows, transport, workers, nbytes, model=model)
            for model, nbytes in sized for transport in ("shm", "tcp")
            for workers in ((1, 8) if rows == "smoke" else (1, 2, 4, 8) if rows == "quick" else (1, 2, 3, 4, 5, 6, 7, 8))]


def chunks(rows):
    """The payload is a whole number of the largest chunks, so that none is cut."""
    workers, nbytes = {"smoke": (2, 4 << 20), "quick": (4, 16 << 20), "full": (8, 64 << 20)}[rows]
    powers = {"smoke": (12, 15, 17), "quick": (12, 14, 15, 16, 17, 18, 19, 21), "full": range(12, 22)}[rows]
    return [exchange(rows, transport, workers, nbytes, more=("--chunk", 1 << power), chunk=1 << power)
            for transport in ("shm", "tcp") for power in powers]


def wide(rows):
    nbytes = (1 if rows == "smoke" else 8 if rows == "quick" else 64) << 20
    powers = {"smoke": (14, 20), "quick": (12, 16, 20, 23), "full": (12, 14, 16, 18, 20, 23)}[rows]
    turns = ("--how", "all", "--adds", "all", "--rounds", 5 if rows == "full" else 3)
    found = [aggregation(8, nbytes, *turns, what="keys", keys=nbytes >> power, key=1 << power) for power in powers]
    models = {"smoke": [], "quick": ["resnet-18"], "full": ["resnet-18", "resnet-50", "inception-v3-noaux", "alexnet"]}[rows]
    return found + [aggregation(8, MODEL_BYTES[model], *turns, what=model, key=0) for model in models]


def fused(rows):
    turns = ("--how", "tall", "--rounds", 9 if rows == "full" else 5)
    ways = ("--fused", "--separate", "--stores", "all" if report_has_streams() else "cached")
    optimizers = ["nesterov"] if rows != "full" else ["sgd", "nesterov", "adam"]
    models = {"smoke": [], "quick": ["resnet-18"], "full": ["resnet-18", "resnet-50", "vgg-19"]}[rows]
    if not models:
        return [aggregation(8, 4 << 20, *turns, *ways, what="keys", keys=4)]
    return [aggregation(8, MODEL_BYTES[model], *turns, *ways, "--optimizer", optimizer, what=model)
            for model in models for optimizer in optimizers]


def report_has_streams():
    """Non-temporal stores are x86's."""
    return os.uname().machine == "x86_64"


def jobs(rows):
    sized = {"smoke": [("", 200_000)], "quick": [("", 8_000_000)],
             "full": [("", 16_000_000), ("resnet-50", MODEL_BYTES["resnet-50"]), ("alexnet", MODEL_BYTES["alexnet"])]}[rows]
    return [exchange(rows, transport, 2, nbytes, jobs=count, model=model)
            for model, nbytes in sized for transport in ("shm", "tcp")
            for count in {"smoke": (1, 4), "quick": (1, 4, 8), "full": (1, 2, 4, 8)}[rows]]


# ---- measuring ----

class Run:
    def __init__(self, lines, runs, rows):
        self.lines, self.runs, self.rows = lines, runs, rows
        self.failures = 0

    def note(self, **record):
        self.lines.write(json.dumps(record) + "\n")
        self.lines.flush()

    def experiment(self, name):
        began = time.monotonic()
        points = [point for point in globals()[name](self.rows) if self._fits(name, point)]
        for run in range(self.runs):
            for point in list(points):
                try:
                    answers = measure(point)
                except Failure as failure:
                    say(f"FAILED: {failure}")
                    self.failures += 1
                    points.remove(point)
                    continue
                for answer in answers:
                    self.note(experiment=name, run=run, command=f"phub bench {' '.join(point.words)}", **{**answer, **point.label})
        say(f"{name}: {time.monotonic() - began:.0f} s")

    @staticmethod
    def _fits(name, point):
        if point.memory <= memory_available():
            return True
        say(f"{name}: left out, for it needs {point.memory / 1e9:.1f} GB of memory: phub bench {' '.join(point.words)}")
        return False


def measure(point):
    """The JSON lines of one run."""
    done = run_and_wait([BUILD / "phub", "bench", *point.words, "--json"])
    try:
        answers = [json.loads(line) for line in done.stdout.splitlines()]
    except json.JSONDecodeError:
        answers = []
    if done.returncode or not answers or any(answer["errors"] for answer in answers):
        raise Failure(f"phub bench {' '.join(point.words)}: {done.stderr.strip() or 'no answer'}")
    return answers


def measure_all(names, rows, runs):
    began = time.time()
    forget("paper.jsonl", "paper.md", "paper-*.png")
    os.makedirs(OUT, exist_ok=True)
    with open(OUT / "paper.jsonl", "w") as lines:
        run = Run(lines, runs, rows)
        run.note(experiment="conditions", runs=runs, rows=rows, cpus=CPUS, cpu=report.cpu_name(), kernel=os.uname().release,
                 load=os.getloadavg()[0], busy=cpus_busy(), commit=commit(), date=time.strftime("%Y-%m-%d", time.gmtime(began)))
        for name in names:
            run.experiment(name)
        run.note(experiment="end", seconds=round(time.time() - began), failures=run.failures,
                 complete=names == EXPERIMENTS)
    say(f"{time.time() - began:.0f} s")
    return run.failures


def usage():
    print(f"usage: [RUNS=N] [ROWS={'|'.join(SIZES)}] paper.py [--report | --readme | {' | '.join(EXPERIMENTS)} ...]",
          file=sys.stderr)
    return 2


def main():
    words, wanted = sys.argv[1:], asked(SIZES)
    if not wanted:
        return usage()
    if words in (["--report"], ["--readme"]):
        return report.put_into_readme([paper_report.part], say) if words == ["--readme"] else paper_report.write(say)
    if set(words) - set(EXPERIMENTS):
        return usage()
    if not make_ready(say):
        return 1
    failures = measure_all([name for name in EXPERIMENTS if name in words or not words], *wanted)
    paper_report.write(say)
    return 1 if failures else 0


if __name__ == "__main__":
    run_program(main, say)
