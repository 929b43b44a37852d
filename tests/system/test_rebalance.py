#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub jobs rebalance: chunks of a sharded or chained job that runs get other homes. Real boxes, real workers.
vm: -m 2048 -- verbs
"""
import json
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time

import rig
from rig import check, holds
from test_racks import KEYS, PHUB, bad, flat, jobs, rack_file, until
from test_uplinks import PATIENT, over, rdma_packets


def run(box, job, *words):
    """The command; again where the job has only just begun at some box."""
    deadline = time.monotonic() + rig.DEADLINE_S
    while True:
        ran = _run(box, job, *words)
        if "yet; try again in a moment" not in ran.stderr or time.monotonic() > deadline:
            return ran
        time.sleep(0.02)


def _run(box, job, *words):
    return subprocess.run([PHUB, "jobs", "rebalance", job, box.address, *words], capture_output=True, text=True, timeout=rig.DEADLINE_S,
                          env=rig.QUIET)


def rebalance(box, job, *patterns, status=0):
    """What `phub jobs rebalance` says, which waits until the job goes on."""
    ran = run(box, job)
    check(ran.returncode == status, f"{ran}")
    holds(ran.stdout if status == 0 else ran.stderr, *patterns)
    check(status != 0 or jobs(box, job)["state"] == "running", f"{job}: it is rebalancing still")


def told(box, job, status=0):
    """What it says to scripts."""
    ran = run(box, job, "--json")
    check(ran.returncode == status, f"{ran}")
    said = json.loads(ran.stdout)
    check((said["job"], said["command"], said["box"]) == (job, "rebalance", box.address), f"{said}")
    return said["rebalance"]


def await_running(box, job):
    deadline = time.monotonic() + rig.DEADLINE_S
    while jobs(box, job)["state"] != "running":
        check(time.monotonic() < deadline, f"{job}: it is rebalancing still")
        time.sleep(0.02)


class Shards:
    """Boxes of a rack each, with a rack file that the top one reads again."""

    def __init__(self, where, config=None, **options):
        self.path, self.ports = pathlib.Path(where) / "racks.yaml", [rig.free_port() for _ in range(3)]
        rack_file(self.path, self.ports, ["100Mbit"] * 3)
        self.boxes = [rig.Box(name=f"b{i}", cores=2, racks=self.path, listen=f"127.0.0.{i + 1}:{self.ports[i]}",
                              hierarchy=None if i else "sharded",
                              config=None if i else config, **options) for i in range(3)]

    def rates(self, *uplinks):
        rack_file(self.path, self.ports, uplinks)
        seen = len(self.boxes[0].err.lines)
        self.boxes[0].kill(signal.SIGHUP)
        check(self.boxes[0].err.find(lambda line: "the rack file is read anew" in line, seen), "the rack file is not read anew")

    def crew(self, job, at=(0, 1, 2), **more):
        """Workers at these boxes, in the midst of it."""
        given = {"keys": KEYS, "transport": "tcp", "rounds": "until-told", "report_ms": 20, **more}
        crew = [rig.Worker(self.boxes[i].url(job), rank=rank, world=len(at), **given) for rank, i in enumerate(at)]
        for worker in crew:
            worker.event("progress")
        return crew

    def stop(self):
        for box in self.boxes[::-1]:
            box.stop()


def lifted(box, job):
    """Of all bytes of a round, what share this box lifts to others."""
    first, deadline = jobs(box, job), time.monotonic() + rig.DEADLINE_S
    while (last := jobs(box, job))["rounds"] < first["rounds"] + 40:
        check(time.monotonic() < deadline, f"{job}: no 40 rounds in {rig.DEADLINE_S} s")
        time.sleep(0.02)
    sent = sum(b["bytes"] for b in last["beside"]) - sum(b["bytes"] for b in first["beside"])
    return sent / (last["rounds"] - first["rounds"]) / last["bytes"]


def moved():
    """a link is slower in mid-run: at SIGHUP and `phub jobs rebalance` homes move with all that they have; weights are those of one box for all"""
    with tempfile.TemporaryDirectory() as where:
        lines = ("line-adam", "line-half", "line-empty")
        shards = Shards(where, config="jobs:\n" + "".join(f"  - {{name: {name}, hierarchy: chain}}\n" for name in lines))
        top = shards.boxes[0]
        for job, more in (("adam", {"optimizer": "adam"}), ("half", {"optimizer": "adam", "dtype": "bf16"}),
                          ("sums", {"optimizer": "none"}),
                          ("large", {"optimizer": "momentum", "keys": "a:500000,b:700000,c:100", "chunk_bytes": 1 << 20, "reduce": "mean"}),
                          ("empty", {"optimizer": "adam", "at": (1, 2, 1)}), ("idle", {"optimizer": "adam", "dtype": "bf16", "at": (1, 2)}),
                          ("line-adam", {"optimizer": "adam"}), ("line-half", {"optimizer": "adam", "dtype": "bf16"}),
                          ("line-empty", {"optimizer": "adam", "at": (1, 2, 1)})):
            shards.rates(*["100Mbit"] * 3)
            crew = shards.crew(job, pause_us=8000, **more)
            rebalance(top, job, r"^%s: nothing to do: by the rack file each of its \d+ chunks has its home$" % job)
            before = jobs(top, job)["beside"]
            for uplinks in (["100Mbit", "100Mbit", "20Mbit"], ["20Mbit", "100Mbit", "100Mbit"], ["100Mbit"] * 3):
                shards.rates(*uplinks)
                rebalance(top, job, rf"(?m)^{job}: \d+ of \d+ chunks, \d+ of \d+ bytes, (get other homes|gets another home)$",
                          r"(?m) chunks?, .*B, from (the top box|box|1)",
                          rf"(?m)^{job}: (1 chunk has|\d+ chunks have) moved, with .*B of weights and state; its workers waited for \d+ ms at most$")
                for worker in crew:
                    worker.event("progress")
                found = [jobs(box, job) for box in shards.boxes]
                check(all([b["homes"] for b in one["beside"]] == [b["homes"] for b in found[0]["beside"]] for one in found), f"{found}")
                check(sum(b["home_bytes"] for b in found[0]["beside"]) == found[0]["bytes"], f"{found[0]}")
                check(found[0]["hierarchy"] == ("chain" if job in lines else "sharded"), f"{found[0]}")
                if "20Mbit" in uplinks and "large" not in job:
                    check(found[0]["beside"][uplinks.index("20Mbit")]["home_bytes"] < found[0]["bytes"] / 5, f"{found[0]}")
                    if job == "adam":
                        share = 1 - found[0]["beside"][2]["home_bytes"] / found[0]["bytes"]
                        check(abs(lifted(shards.boxes[2], job) - share) < 0.15, f"box 2 lifts another share than {share:.2f} of each round")
            check(all(abs(b["home_bytes"] - was["home_bytes"]) <= (1 << 20 if "large" in job else 32 << 10)
                      for b, was in zip(jobs(top, job)["beside"], before)),
                  "other shares by the same file")
            crew[0].tell()
            results = [worker.good() for worker in crew]
            given = {key: value for key, value in more.items() if key != "at"}
            check({r["digest"] for r in results} == {flat(len(crew), **{**given, "rounds": results[0]["rounds"]})},
                  f"{job}: other sums than of one box")
        shards.stop()


def again():
    """one rebalance right after the other, as soon as the top box takes it: no box is still at the one before, and weights stay those of one box"""
    with tempfile.TemporaryDirectory() as where:
        shards = Shards(where)
        crew = shards.crew("again", optimizer="adam")
        for turn in range(12):
            shards.rates("100Mbit", "100Mbit", "100Mbit" if turn % 2 else "20Mbit")
            rebalance(shards.boxes[0], "again", r"chunks have moved")
        crew[0].tell()
        results = [worker.good() for worker in crew]
        check({r["digest"] for r in results} == {flat(3, optimizer="adam", rounds=results[0]["rounds"])}, "other sums than of one box")
        shards.stop()


def verbs():
    """boxes speak verbs with each other: sums go from where they lay before, sharded and chained, with the weights of one box for all"""
    rdma_packets()
    with tempfile.TemporaryDirectory() as where:
        shards = Shards(where, config="jobs:\n  - {name: line, hierarchy: chain}\n", **over("verbs"), **PATIENT)
        top = shards.boxes[0]
        for job, more in (("adam", {"optimizer": "adam"}), ("line", {"optimizer": "adam", "dtype": "bf16"})):
            shards.rates(*["100Mbit"] * 3)
            crew = shards.crew(job, wait_ms=60000, **more)
            for uplinks in (["100Mbit", "100Mbit", "20Mbit"], ["20Mbit", "100Mbit", "100Mbit"]):
                shards.rates(*uplinks)
                before = rdma_packets()
                rebalance(top, job, "chunks have moved")
                for worker in crew:
                    worker.event("progress")
                    worker.event("progress")
                sent = rdma_packets()
                check(sent is None or sent > before, "its boxes do not speak verbs")
            crew[0].tell()
            results = [worker.good() for worker in crew]
            check({r["digest"] for r in results} == {flat(3, **{**more, "rounds": results[0]["rounds"]})},
                  f"{job}: other sums than of one box")
        shards.stop()


def refused():
    """rebalance where no homes can move, at a box that is not the top one, or not now: refused, by name, and the job goes on"""
    with tempfile.TemporaryDirectory() as where:
        shards = Shards(where, config="jobs:\n  - {name: tree, hierarchy: tree}\n")
        top = shards.boxes[0]
        crews = {"tree": shards.crew("tree"), "flat": shards.crew("flat", at=(0, 0)), "shards": shards.crew("shards")}
        shards.rates("100Mbit", "100Mbit", "20Mbit")
        rebalance(top, "none", r"no job 'none' is here", status=1)
        rebalance(top, "tree", r"job 'tree' has a tree of boxes: only a sharded or chained one", status=1)
        rebalance(top, "flat", r"job 'flat' has all of its workers at this box: only a sharded or chained one", status=1)
        rebalance(shards.boxes[1], "shards",
                  rf"the homes of job 'shards' are its top box's to choose, which has the rack file: ask box 'b0' at {top.address}",
                  status=1)
        subprocess.run([PHUB, "jobs", "pause", "shards", top.address], check=True, capture_output=True, env=rig.QUIET)
        rebalance(top, "shards", r"job 'shards' is paused; resume it first", status=1)
        subprocess.run([PHUB, "jobs", "resume", "shards", top.address], check=True, capture_output=True, env=rig.QUIET)
        for crew in crews.values():
            crew[0].tell()
            for worker in crew:
                worker.good()
        shards.stop()


def outcome():
    """how it ended, for people and scripts: what went from where to where; a box that does not stop in time is named, and all go on; or the job is over"""
    with tempfile.TemporaryDirectory() as where:
        shards = Shards(where, lost_ms=16000)
        top = shards.boxes[0]
        crew = shards.crew("told", optimizer="adam", wait_ms=60000)
        shards.rates("100Mbit", "100Mbit", "20Mbit")
        before = jobs(top, "told")["beside"]
        found = told(top, "told")
        after = jobs(top, "told")["beside"]
        check(found["stage"] == "moved" and found["number"] == 1 and found["done"] == found["boxes"] == 3
              and not found["why"] + found["waits_for"], f"{found}")
        check(sum(f["chunks"] for f in found["flows"]) == found["chunks"] and sum(f["bytes"] for f in found["flows"]) == found["bytes"] > 0,
              f"{found}")
        check(found["carried"] == 2 * found["bytes"], f"{found}: not Adam's two arrays")
        check({f["from"] for f in found["flows"]} == {shards.boxes[2].address}, f"{found}: also between boxes whose links are as before")
        for i, box in enumerate(shards.boxes):
            name = box.address if i else ""
            came = sum(f["bytes"] * ((f["to"] == name) - (f["from"] == name)) for f in found["flows"])
            check(after[i]["home_bytes"] - before[i]["home_bytes"] == came, f"box {i}: {found}")
        said = json.loads(run(top, "told", "--json").stdout)
        check("nothing to do" in said["said"] and "rebalance" not in said, f"{said}")
        shards.rates(*["100Mbit"] * 3)
        shards.boxes[2].kill(signal.SIGSTOP)
        rebalance(top, "told", rf"goes on, and its chunks keep their homes: box 'b2' at {shards.boxes[2].address} has not held its rounds "
                               r"within 5.0 s", status=1)
        rebalance(top, "told", r"job 'told' is being rebalanced", status=1)
        shards.boxes[2].kill(signal.SIGCONT)
        await_running(top, "told")
        check([b["homes"] for b in jobs(top, "told")["beside"]] == [b["homes"] for b in after], "homes moved")
        rebalance(top, "told", "chunks have moved")
        for worker in crew:
            worker.event("progress")
        shards.rates("20Mbit", "100Mbit", "100Mbit")
        shards.boxes[1].kill(signal.SIGSTOP)
        waits = rig.Process("rebalance", [PHUB, "jobs", "rebalance", "told", top.address])
        waits.out.find(lambda line: "get other homes" in line)
        text = subprocess.run([PHUB, "jobs", top.address], check=True, capture_output=True, text=True, env=rig.QUIET).stdout
        check("told: is rebalanced: holding, " in text or "its chunks keep their homes" in top.err.text(), text)
        subprocess.run([PHUB, "jobs", "evict", "told", top.address, "--reason", "it is over"], check=True, capture_output=True,
                       env=rig.QUIET)
        shards.boxes[1].kill(signal.SIGCONT)
        check(waits.wait() == 1, f"{waits.out.text()}")
        holds(waits.err.text(), r"job 'told' ended while its chunks were to get other homes|its chunks keep their homes")
        for worker in crew:
            bad(worker, "it is over")
        shards.stop()


def no_room():
    """a box has no memory to have its chunks twice: it says so at both boxes, and the job goes on with the homes that it had"""
    with tempfile.TemporaryDirectory() as where:
        path, ports = pathlib.Path(where) / "racks.yaml", [rig.free_port() for _ in range(2)]
        rack_file(path, ports, ["100Mbit", "20Mbit"])
        boxes = [rig.Box(name=f"b{i}", cores=1, racks=path, listen=f"127.0.0.{i + 1}:{ports[i]}", hierarchy=None if i else "sharded",
                         memory_max=None if i == 0 else 32 << 20) for i in range(2)]
        given = {"keys": "a:1000000,b:1000000", "transport": "tcp", "optimizer": "adam", "rounds": "until-told", "report_ms": 20}
        crew = [rig.Worker(box.url("tight"), rank=rank, world=2, **given) for rank, box in enumerate(boxes)]
        for worker in crew:
            worker.event("progress")
        before = [b["homes"] for b in jobs(boxes[0], "tight")["beside"]]
        rack_file(path, ports, ["20Mbit", "100Mbit"])
        boxes[0].kill(signal.SIGHUP)
        boxes[0].logged("the rack file is read anew")
        why = rf"box 'b1' at {boxes[1].address} cannot have others: it needs \d+ bytes more while its chunks get other homes, and \d+ are available"
        rebalance(boxes[0], "tight", rf"job 'tight' goes on, and its chunks keep their homes: {why}", status=1)
        boxes[0].logged(rf"job 'tight': its chunks keep their homes: {why}")
        found = told(boxes[0], "tight", status=1)
        check(found["stage"] == "kept" and re.match(why, found["why"]) and found["number"] == 2, f"{found}")
        boxes[1].logged(r"job 'tight': its chunks keep their homes: it needs \d+ bytes more while its chunks get other homes, and \d+ are "
                        r"available \(memory_max\)")
        for worker in crew:
            worker.event("progress")
        check([b["homes"] for b in jobs(boxes[0], "tight")["beside"]] == before, "homes moved")
        crew[0].tell()
        results = [worker.good() for worker in crew]
        check({r["digest"] for r in results} == {flat(2, **{**given, "rounds": results[0]["rounds"]})}, "other sums than of one box")
        for box in boxes[::-1]:
            box.stop()


def broken():
    """a box is stopped, and then killed, while homes move: nothing goes on before, and all workers hear which box it was"""
    with tempfile.TemporaryDirectory() as where:
        shards = Shards(where, lost_ms=20000)
        crew = shards.crew("broken", optimizer="adam", wait_ms=60000)
        shards.rates("100Mbit", "20Mbit", "100Mbit")
        shards.boxes[2].kill(signal.SIGSTOP)
        ran = run(shards.boxes[0], "broken", "--no-wait")
        check(ran.returncode == 0 and ran.stdout.endswith("get other homes\n"), f"{ran}")
        check(jobs(shards.boxes[0], "broken")["state"] == "rebalancing", "it goes on without box 2")
        for verb in ("rebalance", "pause", "drain"):
            ran = subprocess.run([PHUB, "jobs", verb, "broken", shards.boxes[0].address], capture_output=True, text=True, env=rig.QUIET)
            check(ran.returncode == 1 and "is being rebalanced" in ran.stderr, f"{ran}")
        found = jobs(shards.boxes[0], "broken")["rebalance"]
        check(found["number"] == 1 and found["stage"] in ("holding", "kept") and found["boxes"] == 3, f"{found}")
        shards.boxes[2].kill(signal.SIGKILL)
        for worker in crew[:2]:
            bad(worker, rf"box 'b2' at {shards.boxes[2].address}( \(rank 2\)|, to which chunks of it are lifted,)? was lost")
        shards.boxes[1].stop()
        shards.boxes[0].stop()


def begun(box, job):
    """The command, as soon as it has said what is begun."""
    command = rig.Process("rebalance", [PHUB, "jobs", "rebalance", job, box.address])
    check(command.out.find(lambda line: "get other homes" in line), f"{command.out.text()} {command.err.text()}")
    return command


def killed():
    """a box is killed, at whatever stage homes are: all others hear which it was, and nobody ever had other weights of a round than those of one box"""
    seed = random.SystemRandom().randrange(1 << 32)
    rig.say(f"seed {seed}")
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as where:
        for turn in range(9):
            shards = Shards(where, config="jobs:\n  - {name: line, hierarchy: chain}\n", lost_ms=20000)
            job, more = dice.choice(("line", "shards")), {"optimizer": "adam", "keys": "a:300000,b:300000", "wait_ms": 60000}
            victim, other = shards.boxes[turn % 3], shards.boxes[(turn + 1) % 3]
            crew = shards.crew(job, **more)
            shards.rates("100Mbit", "20Mbit", "100Mbit")
            if turn % 4 == 0 and other is not shards.boxes[0]:  # then nothing goes on before it does
                other.kill(signal.SIGSTOP)
            command = begun(shards.boxes[0], job)
            time.sleep(dice.uniform(0, 0.05))
            victim.kill(signal.SIGKILL)
            other.kill(signal.SIGCONT)
            results = [worker.result() for worker in crew]
            for worker, result in zip(crew, results):
                check(worker.wait() == 1 and result["wrong"] == 0, f"{result}")
                if worker is not crew[turn % 3]:
                    holds(json.dumps(result), re.escape(victim.address))
                rounds = result["rounds"]
                if rounds > 0:
                    check(result["digest"] == flat(3, **more, rounds=rounds), f"rank {result['rank']} had other weights than one box, after {rounds} rounds")
            check(command.wait() in (0, 1), f"{command.err.text()}")
            for box in shards.boxes[::-1]:
                if box is not victim:
                    box.stop()


def bereaved():
    """a worker is killed while homes move: with each policy the job does what it does otherwise, and the homes are everywhere the same"""
    with tempfile.TemporaryDirectory() as where:
        for turn, lost in enumerate(("fail", "shrink", "wait") * 2):
            shards = Shards(where, config="jobs:\n  - {name: line, hierarchy: chain}\n", lost_ms=20000)
            top, job, at = shards.boxes[0], "line" if turn % 2 else "shards", (0, 1, 1, 2)
            more = {"census": True, "lost": lost, "report_ms": 1, "wait_ms": 60000}
            crew = shards.crew(job, at, **more)
            shards.rates("100Mbit", "20Mbit", "100Mbit")
            if turn < 3:
                shards.boxes[2].kill(signal.SIGSTOP)
            command = begun(top, job)
            crew[2].kill()
            crew[2].wait()
            shards.boxes[2].kill(signal.SIGCONT)
            if lost == "fail":
                for rank in (0, 1, 3):
                    bad(crew[rank], "rank 2")
                check(command.wait() in (0, 1), f"{command.err.text()}")
            else:
                if lost == "wait":
                    crew[2] = rig.Worker(shards.boxes[1].url(job), rank=2, world=4,
                                         **{"keys": KEYS, "transport": "tcp", "rounds": "until-told", **more})
                check(command.wait() in (0, 1), f"{command.err.text()}")
                whole = 0b1111 if lost == "wait" else 0b1011
                for rank in range(4):
                    if whole >> rank & 1:
                        until(crew[rank], whole)
                found = [[b["homes"] for b in jobs(box, job)["beside"]] for box in shards.boxes]
                check(found[0] == found[1] == found[2], f"{found}")
                crew[0].tell()
                for rank in range(4):
                    if whole >> rank & 1:
                        crew[rank].good()
            for box in shards.boxes[::-1]:
                box.stop()


CASES = [moved, again, outcome, verbs, refused, no_room, broken, killed, bereaved]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() else f"{PHUB} is not there (make)")
