#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rates and times that tests only see happen, judged here, where other programs may be kept away: what overlap gains, what rates
phub topo probe finds, how soon an urgent key is back on a slow link, what a flood of datagrams costs, how soon a box ends, and how
many seeds are simulated a second.

Usage: rates.py           measures; writes $OUT/rates.md

Environment: BUILD  where phub and the test programs are (build)
             OUT    where results go (BUILD)
             RUNS   runs of each (3); the medians are judged

Exit status: 0; 1: something is not as it should be.
"""
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import report
from systems import BUILD, OUT, make_ready, run_program

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import rig  # noqa: E402
import test_datagrams  # noqa: E402
import test_priority  # noqa: E402
import test_probe  # noqa: E402
import test_train  # noqa: E402

RUNS = int(os.environ.get("RUNS") or 3)
SEEDS = 50


def say(text):
    print(f"rates: {text}", file=sys.stderr, flush=True)


class Table(report.ClaimTable):
    def runs(self, claim, measure, **limit):
        """Each run gives a number, or several by name."""
        found = [measure() for _ in range(RUNS)]
        found = [one if isinstance(one, dict) else {"": one} for one in found]
        for name in found[0]:
            values = [one[name] for one in found]
            self.judge(f"{claim}{name}", report.Spread(statistics.median(values), min(values), max(values)), form=str_of, **limit)


def str_of(value):
    return f"{value:.3g}"


def overlap(transport, optimizer, mode):
    """What part of the exchange each schedule hides of what it could. The first layer has no key and a backward longer than all else,
    so that overlap hides all of it. Shortest iterations are compared: other programs only make them longer."""
    with test_train.File(test_train.HEADING + "front,2,50,\nmiddle,2,1,50000\nlast,2,1,4000000\n") as trace:
        found, _ = test_train.replay("--trace", trace, "--transport", transport, "--optimizer", optimizer, "--mode", mode, "--rounds", 12)
    shortest = {name: line["min_ms"] for name, line in found.items()}
    return {f"{name}": (shortest["serial"] - shortest[name]) / (shortest["serial"] - shortest["compute"])
            for name in ("backward", "fifo", "priority")}


def probe():
    """How far the found rates are from what tbf lets through: of a frame it counts 24 bytes less than the wire has."""
    net = test_probe.Net()
    net.serve()
    with tempfile.TemporaryDirectory() as where:
        path = pathlib.Path(where) / "racks.yaml"
        net.probe("--boxes", test_probe.boxes(), "--hosts", test_probe.hosts(), "--out", path)
        told = subprocess.run([test_probe.PHUB, "topo", "--racks", path, "--json"], check=True, capture_output=True, text=True)
    rig.end_processes()
    lines = test_probe.lines(told.stdout)
    rates = {"uplinks": [line["uplink_bytes_per_s"] / test_probe.UPLINK for line in lines if line["topo"] == "rack"],
             "links": [line["rate_bytes_per_s"] / test_probe.LINK for line in lines if line["topo"] in ("box", "rack_host")]}
    return {name: max(abs(8e-6 * rate * 1514 / 1538 - 1) for rate in found) for name, found in rates.items()}


def urgent():
    """How long a key takes that is pushed behind a large one, in parts of what that one takes."""
    return test_priority.front_first()


def box_ends():
    """Seconds from SIGTERM to exit, with jobs in full run."""
    box = rig.Box(cores=2)
    workers = rig.job(box.url("cut"), 2, transport=lambda rank: ("tcp", "shm")[rank], rounds="until-told", report_ms=20, pause_us=0)
    for worker in workers:
        worker.event("progress")
    began = time.monotonic()
    box.kill(signal.SIGTERM)
    box.wait()
    took = time.monotonic() - began
    rig.end_processes()
    return took


def seeds():
    """Each by itself: a run of several looks for planted bugs besides."""
    began = os.times()
    for seed in range(1, 1 + SEEDS):
        subprocess.run([BUILD / "sim", "--seed", str(seed)], stdout=subprocess.DEVNULL, check=True)
    ended = os.times()
    return SEEDS / (ended.children_user + ended.children_system - began.children_user - began.children_system)


def main():
    if sys.argv[1:]:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    if not make_ready(say):
        return 1
    table = Table()
    for how in (("tcp", "none", "zero-copy"), ("shm", "nesterov", "copy")):
        table.runs(f"phub bench train, {how[0]}: part of an exchange that is hidden, schedule ", lambda how=how: overlap(*how), least=0.5)
    table.runs("seeds simulated in a second of CPU: below that nobody runs many", seeds, least=25)
    table.runs("a box with jobs in full run: seconds from SIGTERM to exit", box_ends, most=1)
    why = rig.why_no(test_probe.Net)
    if why:
        say(f"slow links are left out: {why}")
    else:
        table.runs("phub topo probe: how far a rate is off, in parts of the true one, the worst of ", probe, most=0.15)
        table.runs("100,000 datagrams a second that are nobody's: rounds of a job, in parts of those without", lambda: test_datagrams.flood(7), least=0.5)
        table.runs("an urgent key behind a large one on a slow link: its time, in parts of the large one's", urgent, most=0.2)
    (OUT / "rates.md").write_text("\n".join(table.table()) + "\n")
    table.say(say)
    return 1 if any(row[3].startswith("not reached") for row in table.rows) else 0


if __name__ == "__main__":
    run_program(main, say)
