#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for boxes that are cut off to be missed
"""Racks in network namespaces: one is cut off from the others in mid-run, or a box dies. Real boxes, real workers."""
import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import rig
import test_roots
from rig import check, say
from test_racks import PHUB, bad, flat, until

sys.path.insert(0, str(rig.ROOT / "tests/bench"))
import rack as namespaces  # noqa: E402
import racks_net  # noqa: E402


KEEPS = {"checkpoint_every": 10}
TRAINS = {"optimizer": "adam", "reduce": "mean", "reproducible": True}


class Apart:
    """Three racks in network namespaces: the root with one worker, and two boxes below it with two each."""

    def __init__(self, racks, hierarchy=None, rack_file=None, keeps=None):
        """`keeps`: the checkpoint target of the first two, of which the second may be promoted."""
        def box(number, **more):
            more = {**more, **({"racks": rack_file} if rack_file else {}), **(KEEPS if keeps else {})}
            if keeps and number < 2:
                more["checkpoint_targets"] = keeps
            return rig.Box(name=f"box{number}", prefix=racks.enter(racks.worker(number, "box")), env=racks_net.SECRET, create="secret",
                           create_secret_env="RACKS_SECRET", admin_secret_env="RACKS_SECRET", transports="tcp", cores=1, lost_ms=3000,
                           warn_ms=1500,
                           listen=f"{racks_net.address(number)}:{racks_net.PORT}", **more)

        self.racks, self.places = racks, racks.shape.places()
        self.root = box(0, **({"hierarchy": hierarchy} if hierarchy else {}))
        self.boxes = [self.root] + [box(number, **({} if rack_file else {"uplink": self.root.address + (f",{other}" if keeps else "")}))
                                    for number, other in ((1, f"{racks_net.address(2)}:{racks_net.PORT}"),
                                                          (2, f"{racks_net.address(1)}:{racks_net.PORT}"))]

    def census(self, lost):
        """As census(), of workers in their racks. They tell every round."""
        def begin(rank, **more):
            number, local = self.places[rank]
            return rig.Worker(self.boxes[number].url("apart"), rank=rank, world=len(self.places), env=racks_net.SECRET, keys="a:5000,b:700",
                              prefix=self.racks.enter(self.racks.worker(number, local)), transport="tcp", census=True, lost=lost,
                              rounds="until-told", report_ms=1, pause_us=3000, wait_ms=60000, **more)
        return begin

    def run(self, lost, **more):
        """Five workers, of which each has had ten rounds."""
        begin = self.census(lost)
        workers = [begin(rank, **more) for rank in range(5)]
        for worker in workers:
            while worker.event("progress")["round"] < 10:
                pass
        return workers

    def ask(self, *words):
        """What `phub` says to an operator on a host of the second rack."""
        done = subprocess.run([*self.racks.enter(self.racks.worker(1, 0)), PHUB, *words], capture_output=True, text=True, check=False,
                              timeout=rig.DEADLINE_S, env={**racks_net.SECRET, "PHUB_ADMIN_SECRET": racks_net.SECRET["PHUB_SECRET"]})
        check(done.returncode == 0, f"{words}: {done}")
        return done.stdout

    def uplink(self, number, state):
        """Of a rack: down, nothing passes, and nobody is told."""
        subprocess.run(["ip", "-n", self.racks.switch, "link", "set", f"port{number}", state], check=True, timeout=rig.DEADLINE_S)

    def deafen(self, number):
        """What goes to a rack is lost, and what comes from it passes."""
        tbf = ("tbf", "rate", "1kbit", "burst", "40", "latency", "1ms")  # larger packets are dropped
        subprocess.run(["tc", "-n", self.racks.switch, "qdisc", "replace", "dev", f"port{number}", "root", *tbf], check=True,
                       timeout=rig.DEADLINE_S)

    def names(self, *numbers):
        return "|".join(self.boxes[number].address.replace(".", r"\.") for number in numbers)

    def stop(self):
        for box in reversed(self.boxes):
            box.stop()


@contextlib.contextmanager
def three(tag):
    reason = namespaces.why_not()
    if reason:
        raise rig.Skip(reason)
    with racks_net.racks_of(racks_net.Shape(workers=(1, 2, 2), mbit=1000), tag) as racks:
        yield racks


def same_rounds(workers, at_least):
    """Whoever got a result of a round got the same."""
    got = {}
    for worker in workers:
        for line in map(json.loads, list(worker.out.lines)):
            if line["event"] == "progress":
                got.setdefault(line["round"], set()).add(line["got"])
    check(len(got) >= at_least and all(len(digests) == 1 for digests in got.values()),
          f"{ {r: d for r, d in got.items() if len(d) > 1} } of {len(got)} rounds")


def partition():
    """a rack's uplink is cut: both sides name the box that is not there, no round has two results, and healed, its workers may come again"""
    for lost in ("fail", "shrink"):
        with three(lost) as racks:
            apart = Apart(racks)
            begin, workers = apart.census(lost), apart.run(lost)
            apart.uplink(1, "down")
            for rank in (1, 2):
                bad(workers[rank], rf"box above \(uplink {apart.root.address}\) was lost: ")
            if lost == "fail":
                for rank in (0, 3, 4):
                    bad(workers[rank], rf"box {apart.boxes[1].address} \(ranks 1, 2\) was lost: it was silent for 3")
            else:
                for rank in (0, 3, 4):
                    until(workers[rank], 0b11001)
            everyone = list(workers)
            apart.uplink(1, "up")
            if lost == "shrink":
                for rank in (1, 2):
                    workers[rank] = begin(rank)
                for worker in workers:
                    until(worker, 31)
                workers[0].tell()
                for worker in workers:
                    worker.good()
            same_rounds(everyone + workers[1:3], 10)
            apart.stop()


def struck(hierarchy, strike, alive=True, heard=r"({}).* was lost"):
    """A rack is struck: the job ends at all, each names a box on the other side, and no round has two results. `alive`: that rack, too.
    `heard`: of its box, by the others."""
    with three(hierarchy) as racks:
        apart = Apart(racks, hierarchy)
        this, others = apart.names(1), apart.names(0, 2)
        workers = apart.run("fail")
        strike(apart)
        for rank in (0, 3, 4):
            bad(workers[rank], heard.format(this))
        for rank in (1, 2) if alive else ():
            bad(workers[rank], rf"({others}).* was lost")
        same_rounds(workers, 10)
        apart.stop()


def one_way():
    """what goes to a rack is lost on its uplink, what comes from it passes: within lost_ms all are told which box it is about"""
    for hierarchy in ("tree", "sharded"):
        # It may be the deaf one that first misses another, and says so to all: then it stands there as who told it.
        struck(hierarchy, lambda apart: apart.deafen(1), heard="({})")


def exchanged():
    """boxes exchange, and a rack's uplink is cut: the job ends at all, each names a box on the other side, and no round has two results"""
    for hierarchy in ("sharded", "chain"):
        struck(hierarchy, lambda apart: apart.uplink(1, "down"))


def home_lost():
    """the box that is the home of some chunks is killed: the job ends at the others with its name"""
    for hierarchy in ("sharded", "chain"):
        struck(hierarchy, lambda apart: apart.boxes.pop(1).kill(), alive=False)


def stalled():
    """a box stands still, in the middle, at the top, as a home: within lost_ms all are told its name; when it goes on, what it says matters to nobody"""
    for hierarchy, number in (("tree", 1), ("tree", 0), ("chain", 1)):
        with three(f"stalled-{hierarchy}-{number}") as racks:
            apart = Apart(racks, hierarchy)
            workers = apart.run("fail")
            box = apart.boxes[number]
            box.kill(signal.SIGSTOP)
            for rank, (rack, _) in enumerate(apart.places):
                said = rf"box {box.address} has been silent for 3" if rack == number else rf"{apart.names(number)}.* was lost"
                bad(workers[rank], said)
            box.kill(signal.SIGCONT)
            same_rounds(workers, 10)
            workers = apart.run("fail")  # the job anew, by all of them
            workers[0].tell()
            for worker in workers:
                worker.good()
            apart.stop()


def write_rack_file(path, uplinks, siblings=()):
    """Of the three racks, with these rates of their uplinks."""
    path.write_text("racks:\n" + "".join(
        f"  - name: r{n}\n    uplink: {uplink}\n    boxes:\n      - {{name: b{n}, address: '{racks_net.address(n)}:{racks_net.PORT}', rate: 1Gbit"
        f"{f', sibling: {siblings[n]}' if n in siblings else ''}}}\n" for n, uplink in enumerate(uplinks)))


def degraded():
    """a rack's uplink gets slow, and the rack file says so: `phub jobs rebalance` takes homes away from there, less crosses it, and weights stay right"""
    keys = "a:50000,b:70000"
    with three("degraded") as racks, tempfile.TemporaryDirectory() as where:
        path = pathlib.Path(where) / "racks.yaml"
        write_rack_file(path, ["1Gbit"] * 3)
        apart = Apart(racks, "sharded", rack_file=path)
        workers = [rig.Worker(apart.boxes[number].url("apart"), rank=rank, world=5, env=racks_net.SECRET, keys=keys, transport="tcp",
                              optimizer="adam",
                              prefix=racks.enter(racks.worker(number, local)), rounds="until-told", report_ms=1, pause_us=20000,
                              wait_ms=60000)
                   for rank, (number, local) in enumerate(apart.places)]

        def reached(round_):
            """The round that is over by now, when this one is."""
            deadline = time.monotonic() + rig.DEADLINE_S
            while (now := json.loads(workers[3].out.lines[-1])["round"]) < round_:
                check(time.monotonic() < deadline, f"round {now} in {rig.DEADLINE_S} s")
                time.sleep(0.01)
            return now

        def crossed(round_):
            """What went up and down the third rack's uplink until a round after this one, and that round: rounds go on while it is read."""
            before = reached(round_)
            total = sum(racks.counters()[2])
            return total, (before + reached(0)) / 2

        def models_a_round():
            first, before = crossed(reached(0) + 10)
            last, after = crossed(before + 50)
            return (last - first) / (after - before) / (120000 * 4)

        workers[3].event("progress")
        even = models_a_round()
        racks.degrade(2, 50)
        write_rack_file(path, ["1Gbit", "1Gbit", "50Mbit"])
        apart.root.kill(signal.SIGHUP)
        apart.root.logged("the rack file is read anew")
        said = apart.ask("jobs", "rebalance", "apart", apart.root.address)
        check("chunks have moved" in said, said)
        less = models_a_round()
        # 2 (K-1)/K models each way where homes are even, one each way where none is there.
        say(f"{even:.2f} models crossed its uplink in a round, then {less:.2f}")
        check(2.5 < even < 3.2 and 1.9 < less < 2.3, f"{even:.2f} models crossed its uplink in a round, then {less:.2f}")
        workers[0].tell()
        results = [worker.good() for worker in workers]
        check({r["digest"] for r in results} == {flat(5, keys=keys, optimizer="adam", rounds=results[0]["rounds"])},
              "other weights than of one box")
        apart.stop()


def sibling():
    """a rack's box is killed: its workers go to its sibling in another rack, as the rack file says, and all go on"""
    with three("sibling") as racks, tempfile.TemporaryDirectory() as where:
        path = pathlib.Path(where) / "racks.yaml"
        write_rack_file(path, ["1Gbit"] * 3, {1: "b2"})
        apart = Apart(racks, rack_file=path)
        workers = apart.run("shrink", resume_ms=30000)
        apart.boxes[1].kill()
        for rank in (1, 2):
            workers[rank].event("stale")
        for worker in workers:
            until(worker, 31)
        workers[0].tell()
        for worker in workers:
            worker.good()
        same_rounds(workers, 10)
        for box in (apart.boxes[2], apart.root):
            box.stop()


def promoted():
    """the root is killed, and an operator in another rack promotes the box there: the jobs go on to the bits of a run without that"""
    with three("promoted") as racks, tempfile.TemporaryDirectory() as folder:
        apart = Apart(racks, keeps=folder)
        workers = []
        for rank, (number, local) in enumerate(((1, 0), (1, 1), (2, 0))):
            workers.append(rig.Worker(apart.boxes[number].url("spread"), rank=rank, world=3,
                                      prefix=racks.enter(racks.worker(number, local)),
                                      env=racks_net.SECRET, keys=test_roots.KEYS, rounds="until-told", report_ms=20, settle=True,
                                      transport="tcp", pause_us=5000, resume_ms=60000, timeout_ms=60000, **TRAINS))
        apart.root.logged("checkpoint before round")
        apart.root.kill()
        apart.root.wait()
        said = apart.ask("promote", "--json", apart.boxes[1].address)
        check(json.loads(said)["state"] == "promoted", said)
        apart.boxes[2].logged(f"the root is the box at {apart.boxes[1].address} now, of epoch 2")
        apart.boxes[1].logged("goes on from its checkpoint before round")
        test_roots.settled(workers, **TRAINS, association=test_roots.ASSOCIATION)
        for box in (apart.boxes[2], apart.boxes[1]):
            box.stop()


CASES = [partition, one_way, exchanged, home_lost, stalled, degraded, sibling, promoted]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() else f"{PHUB} is not there (make)")
