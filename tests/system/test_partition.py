#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for boxes that are cut off to be missed
"""A rack that is cut off from the others in mid-run, in network namespaces. Real boxes, real workers."""
import json
import subprocess
import sys

import rig
from rig import check
from test_racks import PHUB, bad, until

sys.path.insert(0, str(rig.ROOT / "tests/bench"))
import rack as namespaces  # noqa: E402
import racks_net  # noqa: E402


class Apart:
    """Three racks in network namespaces: the root with one worker, and two boxes below it with two each."""

    def __init__(self, racks):
        def box(number, **more):
            return rig.Box(name=f"box{number}", prefix=racks.enter(racks.worker(number, "box")), env=racks_net.SECRET, create="secret",
                           create_secret_env="RACKS_SECRET", transports="tcp", cores=1, lost_ms=3000, warn_ms=1500,
                           listen=f"{racks_net.address(number)}:{racks_net.PORT}", **more)

        self.racks, self.places = racks, racks.shape.places()
        self.root = box(0)
        self.boxes = [self.root] + [box(number, uplink=self.root.address) for number in (1, 2)]

    def census(self, lost):
        """As census(), of workers in their racks. They tell every round."""
        def begin(rank):
            number, local = self.places[rank]
            return rig.Worker(self.boxes[number].url("apart"), rank=rank, world=len(self.places), env=racks_net.SECRET, keys="a:5000,b:700",
                              prefix=self.racks.enter(self.racks.worker(number, local)), transport="tcp", census=True, lost=lost,
                              rounds="until-told", report_ms=1, pause_us=3000, wait_ms=60000)
        return begin

    def uplink(self, number, state):
        """Of a rack: down, nothing passes, and nobody is told."""
        subprocess.run(["ip", "-n", self.racks.switch, "link", "set", f"port{number}", state], check=True, timeout=rig.DEADLINE_S)

    def stop(self):
        for box in reversed(self.boxes):
            box.stop()


def same_rounds(workers, at_least):
    """Whoever got a result of a round got the same."""
    got = {}
    for worker in workers:
        for line in map(json.loads, list(worker.out.lines)):
            if line["event"] == "progress":
                got.setdefault(line["round"], set()).add(line["got"])
    check(len(got) >= at_least and all(len(digests) == 1 for digests in got.values()), f"{ {r: d for r, d in got.items() if len(d) > 1} } of {len(got)} rounds")


def partition():
    """a rack's uplink is cut: both sides name the box that is not there, no round has two results, and healed, its workers may come again"""
    reason = namespaces.why_not()
    if reason:
        raise rig.Skip(reason)
    for lost in ("fail", "shrink"):
        with racks_net.racks_of(racks_net.Shape(workers=(1, 2, 2), mbit=1000), lost) as racks:
            apart = Apart(racks)
            begin = apart.census(lost)
            workers = [begin(rank) for rank in range(5)]
            for worker in workers:
                while worker.event("progress")["round"] < 10:
                    pass
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


CASES = [partition]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() else f"{PHUB} is not there (make)")
