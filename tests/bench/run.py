#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub beside what people would use instead: all-reduce through phub, Open MPI and Gloo, in the same run, on the same work.

Usage: run.py             measures; writes $OUT/bench.md, bench.png, and bench.jsonl with one line for every run
       run.py --report    writes bench.md and bench.png anew from bench.jsonl
       run.py --readme    puts the tables of bench.md, rack.md and paper.md into README.md, each between its two marks

Environment: BUILD   where phub is (build)
             OUT     where results go (BUILD)
             RUNS    runs of each system in each row, taking turns; the tables show medians (5)
             ROWS    quick (five minutes on two idle CPUs), full, or smoke (seconds; shows that everything works)

Before a row, a short trial picks each system's best settings: Open MPI's algorithm, segment size and way of waiting, phub's
number of cores. When root, everything runs in a network namespace of its own, where all sockets use cubic; one set of rows
is repeated under the host's own congestion control. A wrong sum in any system, or one that fails, exits with 1.
"""
import dataclasses
import json
import math
import os
import subprocess
import sys
import time

import paper_report
import rack_report
import report
from systems import (BUILD, CPUS, OUT, ROOT, Failure, Phub, asked, cpus_busy, forget, host_place, make_peers, make_ready,
                     namespace_place, run_and_wait, run_program)

TRIAL_BYTES_MAX = 16_000_000  # larger rows take the best of this size, and of Open MPI's the best few again at theirs
FINALISTS = 2
RUN_S, SMOKE_S, TRIAL_S = 0.3, 0.05, 0.05  # of measured rounds
ROUNDS_MAX = 20000
MODELS = {"resnet-50": 102228128, "vgg-19": 574668960, "bert-large": 1340567552}
SIZES = {"4 KB": 4000, "64 KB": 64000, "1 MB": 1_000_000, "16 MB": 16_000_000, "100 MB": 100_000_000}


@dataclasses.dataclass(frozen=True)
class Row:
    workers: int
    what: str  # a size or a model
    bytes: int
    model: str = ""
    kind: str = "exchange"  # or "host": under the host's congestion control; "keys": phub's own, many keys beside one
    without: tuple = ()  # the systems that are left out, for time

    @property
    def name(self):
        tail = {"exchange": "", "host": ", host's congestion control", "keys": ""}[self.kind]
        return f"{self.workers} workers, {self.what}{tail}"


def sized(workers, *whats, without=()):
    return [Row(workers, what, SIZES[what], without=without) for what in whats]


def modelled(workers, *models, without=()):
    return [Row(workers, model, MODELS[model], model, without=without) for model in models]


def at_host(what):
    return Row(4, what, SIZES[what], kind="host")


# Rows with as many workers stand together: peers are started anew for another number.
KEYS = Row(4, "10.24 MB as keys", 10_240_000, kind="keys")
# What quick has no time for. Over tcp, memory of either kind takes the same path in phub but for its first use.
COPIES = ("phub shm copy", "phub tcp copy")
SHM = ("phub shm zero-copy", "phub shm copy", "Open MPI shm")
ROW_SETS = {
    "smoke": sized(2, "4 KB", "1 MB"),
    "quick": [*sized(4, "4 KB", "64 KB", "1 MB", "16 MB", without=COPIES), *sized(4, "100 MB"),
              *modelled(4, "resnet-50", without=COPIES), KEYS, dataclasses.replace(at_host("16 MB"), without=COPIES),
              *sized(2, "4 KB", "64 KB", without=COPIES), *sized(2, "100 MB", without=("phub shm copy",)),
              *sized(8, "4 KB", "64 KB", without=COPIES), *sized(8, "100 MB", without=SHM)],
    "full": [*sized(4, *SIZES), *modelled(4, *MODELS), KEYS, at_host("100 MB"), *sized(2, *SIZES), *modelled(2, *MODELS),
             *sized(8, *SIZES), *modelled(8, *MODELS)],
}


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def memory_needed(row):
    """Of the hungriest, Open MPI: gradient, sum, and what an algorithm keeps, in every rank; and a reserve."""
    return int(3.5 * row.bytes * row.workers) + (256 << 20)


def memory_available():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


class Eta:
    """Guesses from the rows behind us what those before us will take."""

    def __init__(self, rows, runs, systems):
        self.begin = time.monotonic()
        self.weights = {row: (6 if row.kind == "keys" else systems) * (runs + 2) * self._seconds(row) for row in rows}
        self.done = 0.0

    @staticmethod
    def _seconds(row):
        return 0.5 + 0.4 * row.bytes * row.workers / 4e8

    def say(self, row):
        left = sum(self.weights.values()) - self.done
        spent = time.monotonic() - self.begin
        pace = spent / self.done if self.done else 1.0
        say(f"{row.name} ({spent:.0f} s so far, about {left * pace:.0f} s left)")
        self.done += self.weights[row]


class Bench:
    """One run of everything: results go to `lines`, one JSON object for every measured run."""

    def __init__(self, lines, runs, smoke):
        self.lines, self.runs, self.smoke = lines, runs, smoke
        self.best = {}  # (system, workers, bytes): what a trial found
        self.trouble = 0

    def fail(self, text):
        """A box that refuses a job for want of memory says so by that option's name: no failure of ours."""
        if "memory_max" in text:
            say(f"left out: {text}")
        else:
            say(f"FAILED: {text}")
            self.trouble += 1

    def note(self, **record):
        self.lines.write(json.dumps(record) + "\n")
        self.lines.flush()

    def row(self, row, systems):
        """Trials, then RUNS runs of each system in turn."""
        plans = {}
        for system in systems:
            try:
                choice, round_ms = self._choose(system, row)
            except Failure as failure:
                self.fail(str(failure))
                continue
            plans[system] = choice, self._rounds(round_ms, SMOKE_S if self.smoke else RUN_S)
        for run in range(self.runs):
            for system, (choice, rounds) in list(plans.items()):
                began = time.monotonic()
                try:
                    answer = system.measure(row, choice, rounds)
                except Failure as failure:
                    self.fail(str(failure))
                    del plans[system]
                    continue
                self.note(row=dataclasses.asdict(row), name=row.name, system=system.name, is_peer=system.is_peer,
                          through=system.transport, how=system.how(row, choice, rounds), recipe=system.recipe, run=run,
                          took_s=round(time.monotonic() - began, 2), **answer)

    @staticmethod
    def _rounds(round_ms, wanted_s):
        return max(2, min(ROUNDS_MAX, round(wanted_s * 1e3 / max(round_ms, 1e-3))))

    def _choose(self, system, row):
        """The best choice, and the time of a round (the mean: it may be far from the p50)."""
        small = dataclasses.replace(row, what="trial", bytes=min(row.bytes, TRIAL_BYTES_MAX), model="")
        key = system, row.workers, small.bytes
        if key not in self.best:
            self.best[key] = self._trial(system, small, system.choices(row))
        ranked = self.best[key]
        if row.bytes == small.bytes:
            return ranked[0][1:]
        if system.is_peer and len(ranked) > 1:
            key = system, row.workers, f"about 2^{round(2 * math.log2(row.bytes)) / 2}"
            finalists = [choice for _, choice, _ in ranked[:FINALISTS]]
            self.best[key] = ranked = self.best.get(key) or self._trial(system, row, finalists, rounds=1)
            return ranked[0][1:]
        return ranked[0][1], ranked[0][2] * row.bytes / small.bytes

    def _trial(self, system, row, choices, rounds=0):
        """(p50, choice, mean of a round), the best first."""
        found = []

        def note(choice, answer):
            found.append((answer["p50_ms"], choice, 1e3 / answer["rounds_per_s"]))

        if self.smoke:
            choices, rounds = choices[:1], 10
        for choice in choices:
            if not rounds:
                probe = system.measure(row, choice, 3, warmup=1)
                rounds = min(self._rounds(probe["p50_ms"], TRIAL_S), 500)
                if rounds <= 3:  # that was a trial already
                    note(choice, probe)
                    continue
            note(choice, system.measure(row, choice, rounds, warmup=1))
        return sorted(found)


def kernels(bench):
    say("kernels")
    done = run_and_wait([BUILD / "phub", "bench", "kernels", "--quick", "--json"])
    for line in done.stdout.splitlines():
        bench.note(**json.loads(line))
    if done.returncode:
        bench.fail(f"phub bench kernels: {done.stderr.strip()}")


def systems_of(row, phubs, peers, host_peers):
    if row.kind == "keys":
        place = phubs[0].place
        return [Phub(place, "shm", "zero-copy"), Phub(place, "shm", "zero-copy", keys=10000)]
    if row.kind == "host":
        place = host_place()
        host_peers += [peer for peer in make_peers(place, lambda text: None) if peer.transport == "tcp"]
        found = [Phub(place, "tcp", "zero-copy"), Phub(place, "tcp", "copy"), *host_peers]
    else:
        found = [*phubs, *peers]
    return [system for system in found if system.name not in row.without]


def measure_rows(bench, rows, place):
    phubs = [Phub(place, transport, mode) for transport in ("shm", "tcp") for mode in ("zero-copy", "copy")]
    peers, host_peers = make_peers(place, say), []
    eta = Eta(rows, bench.runs, len(phubs) + len(peers))
    try:
        for row in rows:
            eta.say(row)
            if memory_needed(row) > memory_available():
                say(f"{row.name} is left out: needs {memory_needed(row) / 1e9:.1f} GB of memory, "
                    f"{memory_available() / 1e9:.1f} GB are free")
                continue
            bench.row(row, systems_of(row, phubs, peers, host_peers))
            while host_peers:
                host_peers.pop().close()
    finally:
        for peer in peers + host_peers:
            peer.close()


def measure(which, runs):
    rows = ROW_SETS[which]
    began = time.time()
    forget("bench.jsonl", "bench.md", "bench.png")
    os.makedirs(OUT / "bench", exist_ok=True)
    with open(OUT / "bench.jsonl", "w") as lines, namespace_place(say) as place:
        bench = Bench(lines, runs, which == "smoke")
        bench.note(bench="conditions", runs=runs, rows=which, cpus=CPUS, cpu=report.cpu_name(), kernel=os.uname().release,
                   load=os.getloadavg()[0], busy=cpus_busy(), congestion_control=place.congestion_control,
                   host_congestion_control=host_place().congestion_control, namespace=bool(place.prefix),
                   commit=commit(), date=time.strftime("%Y-%m-%d", time.gmtime(began)))
        if not place.prefix:
            rows = [row for row in rows if row.kind != "host"]  # it would be the same again
        if which != "smoke":
            kernels(bench)
        measure_rows(bench, rows, place)
        bench.note(bench="end", seconds=round(time.time() - began), failures=bench.trouble)
    say(f"{time.time() - began:.0f} s")
    return bench.trouble


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() or "unknown"


def main():
    words, wanted = sys.argv[1:], asked(ROW_SETS)
    if words not in ([], ["--report"], ["--readme"]) or not wanted:
        print(f"usage: [RUNS=N] [ROWS={'|'.join(ROW_SETS)}] run.py [--report | --readme]", file=sys.stderr)
        return 2
    if words == ["--readme"]:
        return report.put_into_readme([report.part, rack_report.part, paper_report.part], say)
    if not make_ready(say):
        return 1
    trouble = 0 if words else measure(*wanted)
    report.write(say)
    return 1 if trouble else 0


if __name__ == "__main__":
    run_program(main, say)
