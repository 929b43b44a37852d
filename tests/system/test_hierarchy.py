#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""hierarchy: auto: which way a job takes by the rack file, and which homes its chunks have by that. Real boxes, real workers."""
import pathlib
import re
import signal
import subprocess
import tempfile

import rig
from rig import check, holds
from test_racks import KEYS, PHUB, ROUNDS, flat, jobs, rack_file


def auto():
    """hierarchy: auto, by the rack file, which also says what is above; another file at SIGHUP, and the next job has other homes"""
    with tempfile.TemporaryDirectory() as where:
        path, ports = pathlib.Path(where) / "racks.yaml", [rig.free_port() for _ in range(4)]
        rack_file(path, ports, ["100Mbit"] * 3)
        boxes = [rig.Box(name=f"b{i}", cores=1, racks=path, listen=f"127.0.0.{i + 1}:{ports[i]}", hierarchy=None if i else "auto",
                         config=None if i else "jobs:\n  - {name: sharded, hierarchy: sharded}\n") for i in range(3)]
        boxes[2].logged(rf"box b2 of rack r2 in {path}; the box above is 127.0.0.1:{ports[0]}, the first of the file")

        def run(job, at=boxes, **given):
            crew = [rig.Worker(box.url(job), rank=rank, world=len(at), keys=KEYS, transport="tcp", optimizer="adam", **given)
                    for rank, box in enumerate(at)]
            if "report_ms" not in given:
                check({worker.good()["digest"] for worker in crew} == {flat(len(crew), optimizer="adam")},
                      f"{job}: other sums than of one box")
                return None
            crew[0].event("progress")
            found = jobs(boxes[0], job)
            text = subprocess.run([PHUB, "jobs", boxes[0].address], check=True, capture_output=True, text=True, env=rig.QUIET).stdout
            check(f"{job}: hierarchy auto took {found.get('hierarchy_why')}\n" in text or job == "sharded", text)
            listed = subprocess.run([PHUB, "boxes", "--racks", path], capture_output=True, text=True, env=rig.QUIET).stdout
            holds(listed, *(rf"(?m)^b{i} .* {job} {len(at)}/{len(at)} \(1 here\)(, |$)" for i, box in enumerate(boxes) if box in at
                            and f"b{i}," in path.read_text()))
            for worker in crew:
                worker.kill()
            return found

        def homes(found):
            return [beside["homes"] for beside in found["beside"]]

        def reload(pattern):
            seen = len(boxes[0].err.lines)
            boxes[0].kill(signal.SIGHUP)
            check(boxes[0].err.find(lambda line: re.search("SIGHUP: .*" + pattern, line), seen), f"the box does not log {pattern}")

        forever = {"rounds": 1000000, "report_ms": 100}
        found = run("even", **forever)
        check(found["hierarchy"] in ("sharded", "chain") and max(homes(found)) - min(homes(found)) <= 2, f"{found}")
        holds(found["hierarchy_why"], f"^{found['hierarchy']}: .* ms a round beside tree .*; the uplink of r. limits$")
        run("sums", rounds=ROUNDS)

        rack_file(path, ports, ["100Mbit", "100Mbit", "20Mbit"])
        reload("read anew: 3 racks, 3 boxes")
        found = run("sharded", **forever)
        count = found["chunks"]
        check(homes(found)[2] <= count / 5 and homes(found)[0] >= count / 3, f"{found}")
        found = run("slower", **forever)  # what others lift to the slow one, and what it lifts, is more than the tree's one model
        check(found.get("hierarchy") is None and found["hierarchy_why"].startswith("tree: "), f"{found}")
        run("sharded", rounds=ROUNDS)

        # One that runs goes by the file with its next key table.
        crew = [rig.Worker(box.url("sharded"), rank=rank, world=3, keys=KEYS, transport="tcp", rounds=20, tables=2, pause_us=100000)
                for rank, box in enumerate(boxes)]
        for worker in crew:
            worker.event("started")
        slow = homes(jobs(boxes[0], "sharded"))
        rack_file(path, ports, ["20Mbit", "100Mbit", "100Mbit"])
        reload("read anew: 3 racks, 3 boxes")
        check(homes(jobs(boxes[0], "sharded")) == slow, f"{slow}")
        for worker in crew:
            worker.event("started")
        anew = homes(jobs(boxes[0], "sharded"))
        check(slow[2] <= count / 5 and anew[0] <= count / 5 < anew[2], f"{slow}, then {anew}")
        check({worker.good()["digest"] for worker in crew} == {flat(3, tables=2, rounds=20)}, "other sums than of one box")

        path.write_text("racks: nonsense\n")
        reload(r"racks.yaml:1: racks is no list; the rack file that was read before stays")
        rack_file(path, [ports[3], *ports[1:3]], ["10Gbit"] * 3)
        reload(f"has box 'b0', which this one is, at 127.0.0.1:{ports[3]}, where it does not listen; what was read before stays")
        # A box that is not in the file: as if in a rack of its own, with an uplink like the top box's.
        rack_file(path, ports[:2], ["100Mbit"] * 2)
        reload("read anew: 2 racks, 2 boxes")
        stranger = rig.Box(name="stranger", cores=1, uplink=boxes[0].address, listen=f"127.0.0.4:{ports[3]}")
        for job, at in (("four", [*boxes, stranger]), ("pair", [boxes[0], stranger])):
            found = run(job, at, **forever)
            holds(found["hierarchy_why"], r"; the uplink of (r\d|box 127\.0\.0\.[34]:\d+ \(not in the rack file\)) limits$")
            boxes[0].logged(rf"job '{job}': box 127.0.0.4:{ports[3]} has no entry in ")
        holds(found["hierarchy_why"], r"^tree: .*; the uplink of r0 limits$")
        for box in (stranger, *boxes[::-1]):
            box.stop()


def auto_blind():
    """hierarchy: auto without a rack file: all links count as equal, which is said; by a job's entry"""
    root = rig.Box(name="root", cores=1, config="jobs:\n  - {name: chosen, hierarchy: auto}\n")
    below = [rig.Box(name=f"below{i}", cores=1, uplink=root.address, listen=f"127.0.0.{i + 2}:0") for i in range(2)]
    crew = [rig.Worker(box.url("chosen"), rank=rank, world=3, keys=KEYS, rounds=1000000, report_ms=100, transport="tcp")
            for rank, box in enumerate((root, *below))]
    crew[0].event("progress")
    holds(jobs(root, "chosen")["hierarchy_why"],
          r"; the link of (this box|box 127\.0\.0\.[23]:[0-9]+) limits \(without a rack file all links are taken to have 10 Gbit/s\)$")
    for process in (*crew, *below, root):
        process.kill()


def auto_keeps():
    """a job that has checkpoints is a tree by hierarchy: auto, which says why; one that is told to be sharded has none, which the log says"""
    with tempfile.TemporaryDirectory() as where:
        root = rig.Box(name="root", cores=1, hierarchy="auto", checkpoint_targets=where,
                       config="jobs:\n  - {name: told, hierarchy: sharded}\n")
        below = [rig.Box(name=f"below{i}", cores=1, uplink=root.address, listen=f"127.0.0.{i + 2}:0") for i in range(2)]
        for job, optimizer, hierarchy, why in (("keeps", "adam", None,
                                                "^tree, for its checkpoints: .*; else (sharded|chain): .* ms a round beside tree "),
                                               ("sums", "none", ("sharded", "chain"), "^(sharded|chain): "),
                                               ("told", "adam", ("sharded",), "^$")):
            crew = [rig.Worker(box.url(job), rank=rank, world=3, keys=KEYS, rounds=1000000, report_ms=100, transport="tcp",
                               optimizer=optimizer)
                    for rank, box in enumerate((root, *below))]
            crew[0].event("progress")
            found = jobs(root, job)
            check(found.get("hierarchy") in (hierarchy or (None,)), f"{found}")
            holds(found.get("hierarchy_why") or "", why)
            for process in crew:
                process.kill()
        root.logged("job 'told' has no checkpoints: its weights are at 3 boxes")
        check("'sums' has no checkpoints" not in root.err.text(), root.err.text())
        for process in (*below, root):
            process.kill()


CASES = [auto, auto_blind, auto_keeps]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() else f"{PHUB} is not there (make)")
