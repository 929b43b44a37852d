#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Several racks in network namespaces (racks_net.py): what crosses a rack's uplink in a round and how long that takes, where all
workers come to one box (flat), and over boxes in a tree, sharded and in a chain; beside Gloo's and Open MPI's all-reduce on the
same links; with uplinks that carry what their workers' links do together, and a 4th and an 8th of that. And PHub's experiment: a
training step on several racks beside one (racks_train.py).

Usage: racks.py            measures; writes $OUT/racks.md, racks-speed.png, racks-train.png, and racks.jsonl with one line for every run
       racks.py --report   writes them anew from racks.jsonl
       racks.py --readme   puts the tables into README.md, between their marks

Environment: BUILD   where phub is (build)
             OUT     where results go (BUILD)
             RUNS    runs of each point, taking turns (5)
             ROWS    quick (a quarter of an hour), full (2, 4 and 8 racks, each oversubscribed 1:1, 4:1 and 8:1; steps on 1 to 8 racks, also
                     with 4:1 and with whole tensors: three quarters of an hour), or smoke (3 racks, seconds)
             RATE    of a worker's link each way, Mbit/s (100); of the experiment's links: racks_train.py
             RESUME  1: keeps what racks.jsonl has of the same commit and settings, and measures what lacks

Every sum is checked. Needs root. A run that fails is tried once more.
"""
import json
import math
import os
import re
import select
import sys
import time

import rack
import racks_report
import racks_train
import report
from racks_net import PORT, Crew, Racks, Shape, address, racks_of
from racks_report import WAYS, models
from run import Row, commit
from systems import BUILD, CPUS, OUT, Failure, Place, asked, busy_since, cpu_ticks, cpus_busy, forget, make_ready, run_program

WORKERS = 2  # of each rack
# (racks, oversubscribed)
SHAPES = {"smoke": [(3, 1), (2, 4)], "quick": [(2, 1), (4, 1), (4, 4), (4, 8)],
          "full": [(racks, over) for racks in (2, 4, 8) for over in (1, 4, 8)]}
BYTES = {"smoke": 500_000, "quick": 2_000_000, "full": 2_000_000}
RUN_S, ROUNDS_MAX = {"smoke": 0.2, "quick": 1.0, "full": 1.5}, 8  # measured rounds of a run
LONG_S = 2
TRIAL_PART, FINALISTS = 2, 3  # an eighth of so few bytes would choose what suits small ones
DEADLINE_S = 180
WORKER = BUILD / "tests/system/worker"
# Headers: a segment of 1448 bytes takes 1514 on a link; and acknowledgements of what comes the other way. Where many streams meet at
# an uplink that cannot carry them, what its queue drops is sent again: more than MOST may cross it.
LEAST, MOST = 1.0, 1.12
FASTEST = 0.8  # beside what links allow: a burst passes at once


def say(text):
    print(f"racks: {text}", file=sys.stderr, flush=True)


# ---- phub ----

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
    """One run of a model of `size` bytes: bytes of each uplink in a round, with its headers; and the median over all workers' rounds
    but the first of the time from a worker's push to its last result. `words` go to the workers."""
    shape = racks.shape
    with Crew(racks) as crew:
        boxes = crew.boxes(way)
        before = racks.counters()
        workers = [crew.start(racks.worker(number, local), WORKER, f"url=phub://{address(boxes[number])}:{PORT}/racks", f"rank={rank}",
                              f"world={shape.world}", f"keys=a:{size // 4}", f"rounds={rounds}", "transport=tcp", "optimizer=none",
                              "report_ms=1", *words)
                   for rank, (number, local) in enumerate(shape.places())]
        ticks = cpu_ticks()
        ends, took_us = zip(*[read_events(worker, "end") for worker in workers])
        busy, after = busy_since(ticks), racks.counters()
    if any(event["wrong"] or event["rounds"] != rounds for event in ends):
        raise Failure(f"{way}: wrong sums, or not all rounds: {ends}")
    crossed = [[(now - then) / rounds for now, then in zip(*both)] for both in zip(after, before)]
    return {"round_ms": report.spread(us for one in took_us for us in one[1:]).median / 1e3, "rounds": rounds, "bytes": size,
            "busy": round(busy, 2), "out": [out for out, _ in crossed], "in": [came for _, came in crossed]}


def check(way, shape, run):
    """What crossed is what must, with headers and acknowledgements; and not faster than links allow."""
    floor = racks_report.floor_ms(way, shape.count, WORKERS, shape.mbit, shape.oversubscribed, run["bytes"])
    if run["round_ms"] < FASTEST * floor:
        raise Failure(f"{way}, {shape.count} racks: {run['round_ms']:.0f} ms a round, and links allow no less than {floor:.0f}: it found another way")
    for number, (out, came) in enumerate(zip(run["out"], run["in"])):
        for name, found in (("out of", out), ("into", came)):
            want = models(way, shape.count, WORKERS, number) * run["bytes"]
            if found / want < LEAST or (found / want > MOST and shape.oversubscribed == 1):
                raise Failure(f"{way}, {shape.count} racks: {found:.0f} bytes {name} rack {number} in a round, not {want:.0f} and headers")


class PhubWay:
    """phub, one of its ways."""
    is_peer = False

    def __init__(self, racks, way):
        self.racks, self.name = racks, way

    def choose(self, _size):
        pass

    def run(self, size, rounds):
        found = measure(self.racks, self.name, size, 1 + rounds)
        check(self.name, self.racks.shape, found)
        return {**found, "how": f"hierarchy: {self.name}" if self.name != "flat" else "one box"}

    def close(self):
        pass


# ---- peers ----

class RacksMpi(rack.RackMpi):
    """mpirun stands beside the box of rack 0."""
    shown = "10.99.0.1:1,10.99.0.2:1,10.99.1.1:1,...", "'tests/bench/racks.py --enter phub-racks-PID-0'"
    agent = os.path.abspath(__file__)

    def __init__(self, racks):
        self.rack, self.workers, self.open = racks, 0, {}
        self.place, self.transport, self.name = Place(racks.enter(racks.worker(0, "box")), "cubic"), "tcp", "Open MPI"

    def _addresses(self, workers):
        return [address(*place) for place in self.rack.shape.places()]


class RacksGloo(rack.RackGloo):
    recipe = "`tests/bench/peer_gloo.py WORKERS uplink 10.99.0.1 9999 phub-racks-PID-0-rack0-worker0,...`"
    name = "Gloo"

    def _start(self, row, start):
        (*words, _), environment = super()._start(row, start)
        return [*words[:-2], address(0, 0), words[-1],
                ",".join(self.rack.worker(*place) for place in self.rack.shape.places())], environment


def enter(names, host, *command):
    """What mpirun starts instead of ssh."""
    number, last = map(int, host.split(".")[2:])
    rack.enter_namespace(Racks(names, None).worker(number, last - 1), command)


class PeerBeside:
    """Gloo or Open MPI, with the best of its settings: found in a trial, when it is first measured."""
    is_peer = True

    def __init__(self, racks, system, smoke):
        self.racks, self.system, self.name, self.smoke, self.choice = racks, system, system.name, smoke, None

    def _row(self, size):
        return Row(self.racks.shape.world, f"{size / 1e6:g} MB", size)

    def choose(self, size):
        if self.choice is None:
            row = self._row(size)
            self.choice = self.system.choices(row)[0] if self.smoke else rack.choose(self.system, row, TRIAL_PART, FINALISTS)[0]

    def run(self, size, rounds):
        row, before, ticks = self._row(size), self.racks.counters(), cpu_ticks()
        answer = self.system.measure(row, self.choice, rounds, warmup=1)
        busy, after, all_rounds = busy_since(ticks), self.racks.counters(), rounds + self.system.extra_rounds
        crossed = [[(now - then) / all_rounds for now, then in zip(*both)] for both in zip(after, before)]
        if min(map(min, crossed)) < size:  # every uplink is crossed by something of every gradient, and of every sum
            raise Failure(f"{self.name}: only {min(map(min, crossed)):.0f} bytes took an uplink in a round: it found another way")
        return {"round_ms": answer["p50_ms"], "rounds": rounds, "bytes": size, "busy": round(busy, 2), "out": [out for out, _ in crossed],
                "in": [came for _, came in crossed], "how": self.system.how(row, self.choice, rounds), "recipe": self.system.recipe}

    def close(self):
        self.system.close()


def systems_of(racks, smoke):
    systems = [PhubWay(racks, way) for way in WAYS]
    if smoke and racks.shape.oversubscribed > 1:
        return systems
    for kind, title in ((RacksGloo, "Gloo"), (RacksMpi, "Open MPI")):
        reason = kind.missing()
        if reason:
            say(f"{title} is left out: {reason} (deploy/deps.sh bench)")
        else:
            systems.append(PeerBeside(racks, kind(racks), smoke))
    return systems


# ---- measuring ----

class Log:
    """racks.jsonl: what it has need not be measured again."""

    def __init__(self, path, conditions, resume):
        self.trouble, self.seconds, old = 0, 0, []
        if resume and path.exists():
            old = [json.loads(line) for line in path.read_text().splitlines()]
            same = all(old[0][key] == conditions[key] for key in ("commit", "rows", "runs", "mbit")) if old else False
            if not same:
                say(f"{path} is of another commit or other settings: everything is measured anew")
                old = []
        self.seconds = sum(line["seconds"] for line in old if line.get("section") == "end")
        self.done = {self._key(line) for line in old if "run" in line}
        self.file = open(path, "w")
        for line in [line for line in old if line.get("section") != "end"] or [conditions]:
            self.note(**line)

    @staticmethod
    def _key(line):
        return tuple(str(line.get(key)) for key in ("section", "run", "racks", "oversubscribed", "system", "model", "chunk"))

    def lacks(self, **label):
        return self._key(label) not in self.done

    def note(self, **record):
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def tried(self, measured, **label):
        """What measured() returns, noted; None where it failed twice."""
        for again in (True, False):
            try:
                found = measured()
                self.note(**label, **found)
                return found
            except (Failure, OSError, ValueError) as failure:
                say(f"{'once more, for it failed' if again else 'FAILED'}: {failure}")
        self.trouble += 1
        return None


def rounds_of(which, shape, system, size):
    """So many that they take RUN_S where links limit, but two at least; one where it takes so long."""
    floor_s = racks_report.floor_ms(system.name, shape.count, WORKERS, shape.mbit, shape.oversubscribed, size) / 1e3
    return min(ROUNDS_MAX, max(1 if floor_s > LONG_S else 2, math.ceil(RUN_S[which] / floor_s)))


def measure_shape(log, which, runs, shape):
    label = {"section": "exchange", "racks": shape.count, "oversubscribed": shape.oversubscribed}
    size = BYTES[which]
    with racks_of(shape) as racks:
        systems = systems_of(racks, which == "smoke")
        try:
            for run in range(runs):
                for system in systems:
                    if not log.lacks(**label, system=system.name, run=run):
                        continue
                    def once(system=system):
                        system.choose(size)
                        return system.run(size, rounds_of(which, shape, system, size))
                    found = log.tried(once, **label, system=system.name, run=run, is_peer=system.is_peer)
                    if found:
                        say(f"{shape.count} racks, {shape.oversubscribed}:1, {system.name}: {found['round_ms']:.0f} ms a round, {found['busy']:.2f} CPUs busy")
        finally:
            for system in systems:
                system.close()


def measure_all(which, runs, mbit, resume):
    began = time.monotonic()
    os.makedirs(OUT / "bench", exist_ok=True)
    log = Log(OUT / "racks.jsonl",
              {"section": "conditions", "runs": runs, "rows": which, "mbit": mbit, "workers": WORKERS, "bytes": BYTES[which],
                                    "busy": cpus_busy(), "load": os.getloadavg()[0], "cpus": CPUS, "cpu": report.cpu_name(),
                                    "kernel": os.uname().release, "commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())},
              resume)
    for racks, over in SHAPES[which]:
        measure_shape(log, which, runs, Shape((WORKERS,) * racks, mbit, over))
    racks_train.measure(log, which, runs, say)
    seconds = log.seconds + round(time.monotonic() - began)
    log.note(section="end", seconds=seconds, failures=log.trouble)
    say(f"{seconds} s, {log.trouble} failures")
    return log.trouble


def main():
    words, wanted, mbit = sys.argv[1:], asked(SHAPES), os.environ.get("RATE") or "100"
    if words[:1] == ["--enter"]:
        return enter(*words[1:])
    resume = os.environ.get("RESUME") or "0"
    if (words not in ([], ["--report"], ["--readme"]) or not wanted or not re.fullmatch(r"[0-9]{1,5}", mbit) or int(mbit) < 10 or
            resume not in ("0", "1")):
        print(f"usage: [RUNS=N] [ROWS={'|'.join(SHAPES)}] [RATE=MBIT] [RESUME=1] racks.py [--report | --readme]", file=sys.stderr)
        return 2
    if words == ["--readme"]:
        return report.put_into_readme(racks_report.parts(), say)
    if words == ["--report"]:
        return racks_report.write(say)
    if not make_ready(say):
        return 1
    if not os.access(WORKER, os.X_OK):
        say(f"no {WORKER}: run make test-programs")
        return 1
    forget("racks.md", "racks-*.png", *(["racks.jsonl"] if resume == "0" else []))
    reason = rack.why_not()
    if reason:
        say(f"skipped: {reason}")
        return 0
    trouble = measure_all(*wanted, int(mbit), resume == "1")
    return racks_report.write(say) or (1 if trouble else 0)


if __name__ == "__main__":
    run_program(main, say)
