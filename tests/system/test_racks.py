#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers are at several boxes: each sums what is below it and takes part above. Real boxes, real workers."""
import functools
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import rig
from rig import check, holds

PHUB = rig.BUILD / "phub"
KEYS = "a:50000,b:70000,c:100"
ROUNDS = 8


class Rack:
    """Three boxes in a tree of three levels: the root; a below it; b below a, with one core where the others have two."""

    def __init__(self, root=(), **options):
        self.root = rig.Box(name="root", **{"cores": 2, **options, **dict(root)})
        self.a = rig.Box(name="a", uplink=self.root.address, **{"cores": 2, **options})
        self.b = rig.Box(name="b", uplink="phub://" + self.a.address, **{"cores": 1, **options})
        self.boxes = [self.a, self.a, self.b, self.root, self.b]  # of each rank

    def workers(self, job="spread", **more):
        given = {"keys": KEYS, "rounds": ROUNDS, "transport": "tcp", **more}
        return [rig.Worker(box.url(job), rank=rank, world=len(self.boxes), **given) for rank, box in enumerate(self.boxes)]

    def training(self, **more):
        """Workers that are in the midst of it."""
        workers = self.workers(rounds=1000000, report_ms=100, **more)
        for worker in workers:
            worker.event("progress")
        return workers

    def stop(self):
        for box in (self.b, self.a, self.root):
            box.stop()


class Beside(Rack):
    """Three boxes that exchange, each at an address of its own, and a fourth one below one of them."""

    def __init__(self, hierarchy, root=(), **options):
        self.root = rig.Box(name="root", hierarchy=hierarchy, **{"cores": 2, **options, **dict(root)})
        self.a = rig.Box(name="a", uplink=self.root.address, **{"cores": 3, "listen": "127.0.0.2:0", **options})
        self.b = rig.Box(name="b", uplink=self.root.address, **{"cores": 2, "listen": "127.0.0.3:0", **options})
        self.c = rig.Box(name="c", uplink=self.b.address, **{"cores": 1, **options})
        self.boxes = [self.a, self.a, self.b, self.root, self.c, self.b]  # of each rank

    def stop(self):
        for box in (self.c, self.b, self.a, self.root):
            box.stop()


@functools.cache
def flat(world, **more):
    """The digest that so many workers at one box end with."""
    box = rig.Box(cores=2)
    given = {"keys": KEYS, "rounds": ROUNDS, "transport": "tcp", **more}
    workers = [rig.Worker(box.url("flat"), rank=rank, world=world, **given) for rank in range(world)]
    digests = {worker.good()["settled" if "settle" in more else "digest"] for worker in workers}
    box.stop()
    check(len(digests) == 1, f"{digests}")
    return digests.pop()


def bad(worker, *patterns):
    result = worker.result()
    check(worker.wait() == 1, f"it ended well: {result}")
    holds(json.dumps(result), *patterns)


def jobs(box, name):
    out = subprocess.run([PHUB, "jobs", "--json", box.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET).stdout
    return next(job for job in map(json.loads, out.splitlines()) if job.get("job") == name)


def summed():
    """sums and means of five workers at three boxes, and weights of optimizers: those of one box for all, bit by bit"""
    rack = Rack()
    for job, more in [("sum", {"optimizer": "none"}), ("mean", {"optimizer": "none", "reduce": "mean"}),
                      ("half", {"optimizer": "none", "dtype": "bf16"}), ("sgd", {"optimizer": "momentum", "lr": 0.125}),
                      ("adam", {"optimizer": "adam", "reduce": "mean"})]:
        digests = {worker.good()["digest"] for worker in rack.workers(job, **more)}
        check(digests == {flat(5, **more)}, f"{job}: {digests}")
    rack.stop()


def half():
    """sums go up as bf16: half of the bytes, and exact where bf16 is; all boxes must say so"""
    rack = Rack(uplink_type="bf16")
    digests = {worker.good()["digest"] for worker in rack.workers("exact", optimizer="none")}
    check(digests == {flat(5, optimizer="none")}, f"{digests}")
    workers = rack.training(job="bytes", optimizer="none", pause_us=20000)
    found = jobs(rack.a, "bytes")
    while found["rounds"] < 30:  # some are on their way
        found = jobs(rack.a, "bytes")
    sent = found["above"]["bytes"] / found["rounds"]
    check(0.45 < sent / found["bytes"] < 0.6, f"{sent:.0f} bytes a round, of {found['bytes']}")
    for worker in workers:
        worker.kill()
    other = rig.Box(name="other", cores=1, uplink=rack.root.address)
    workers = [rig.Worker(box.url("mixed"), rank=rank, world=2, keys=KEYS, rounds=5, transport="tcp") for rank, box in enumerate((rack.a, other))]
    for worker in workers:
        bad(worker, rf"box ({rack.a.address} sends its sums as bf16, and box {other.address} as f32|{other.address} sends its sums as f32, and box "
                    rf"{rack.a.address} as bf16); set uplink_type alike")
    other.stop()
    other = rig.Box(name="other", cores=1, uplink=rack.root.address, chunk_bytes="64KiB")
    pair = (rack.root, other)
    for worker in [rig.Worker(box.url("sizes"), rank=rank, world=2, keys=KEYS, rounds=5, transport="tcp") for rank, box in enumerate(pair)]:
        one, two = rf"box {rack.root.address} has 32768 \(rank 0 names none\)", rf"box {other.address} has 65536 \(rank 1 names none\)"
        bad(worker, rf"chunk_bytes differs: ({one}, {two}|{two}, {one}); set it alike at the boxes, or let all workers name one", "EBADMSG")
    for worker in [rig.Worker(box.url("sizes"), rank=rank, world=2, keys=KEYS, rounds=5, transport="tcp", chunk_bytes=16384)
                   for rank, box in enumerate(pair)]:
        worker.good()
    other.stop()
    rack.stop()


def shared_memory():
    """workers of a box's own host come by shared memory, and their sum goes up by tcp"""
    rack = Rack()
    for worker in rack.workers(transport="shm", optimizer="adam"):
        worker.good()
    rack.stop()


def together():
    """barriers, learning rates that change, and new key tables go through all boxes"""
    rack = Rack()
    for worker in rack.workers(optimizer="momentum", barrier=True, schedule=3, tables=2):
        worker.good()
    rack.stop()


def jobs_beside():
    """two jobs at once, and again by the same names"""
    rack = Rack()
    for _ in range(2):
        for worker in rack.workers("one", optimizer="adam") + rack.workers("two", optimizer="none"):
            worker.good()
    rack.stop()


def later():
    """boxes and workers come in any order: who waits is told for what"""
    port = rig.free_port()
    below = rig.Box(name="below", cores=1, uplink=f"127.0.0.1:{port}")
    first = rig.Worker(below.url("late"), rank=1, world=2, keys=KEYS, rounds=5, transport="tcp")
    below.logged(rf"'late' waits for the box above \(uplink 127.0.0.1:{port}\): .*refused")
    bad(rig.Worker(below.url("short"), rank=1, world=2, keys=KEYS, rounds=5, transport="tcp", wait_ms=3000),
        r"waits for rank 0 of 2.*the box above \(uplink\) is not there: .*refused")
    done = subprocess.run([PHUB, "doctor", below.address], capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET, check=False)
    holds(done.stdout, rf"warn .*job late: box 127.0.0.1:{port} above \(uplink\) cannot be reached: .*refused")
    root = rig.Box(name="root", cores=2, listen=f"127.0.0.1:{port}")
    root.logged(rf"job 'late': box {below.address} \(rank 1\) takes part")
    second = rig.Worker(root.url("late"), rank=0, world=2, keys=KEYS, rounds=5, transport="tcp")
    first.good()
    second.good()
    below.stop()
    root.stop()


def lost_worker():
    """a worker is killed: those at all boxes are told which one"""
    rack = Rack(lost_ms=3000, warn_ms=1500)
    workers = rack.training(optimizer="adam")
    workers[4].kill()
    for worker in workers[:4]:
        bad(worker, r"rank 4 \(.*was lost")
    rack.stop()


def lost_box():
    """the box in the middle is killed: all others are told which one"""
    rack = Rack(lost_ms=3000, warn_ms=1500)
    workers = rack.training(optimizer="adam")
    rack.a.kill()
    bad(workers[3], rf"box {rack.a.address} \(ranks 0-2, 4\) was lost: [^.]*\. The job ends here; look at that box, then start the job again\"")
    for worker in (workers[2], workers[4]):
        bad(worker, rf"box above \(uplink {rack.a.address}\) was lost: .*look at that box, then start the job again\"")
    rack.b.stop()
    rack.root.stop()
    rack = Rack(lost_ms=3000, warn_ms=1500)  # or they resume, and are not told to do both
    workers = rack.training(optimizer="adam", resume_ms=60000)
    rack.a.kill()
    said = workers[3].event("stale")["error"]
    holds(said, rf"the job was lost: box {rack.root.address}: box {rack.a.address} \(ranks 0-2, 4\) was lost: [^.]*\. The job ends here; look at that box\. "
                r"Reconnecting; phub_resume\(\) waits for it")
    for worker in workers:
        worker.kill()
    rack.b.stop()
    rack.root.stop()


def until(worker, ranks):
    """It is in a round whose sums, all of them, are of these ranks (bits)."""
    with worker.out.changed:
        worker.seen = len(worker.out.lines)
    deadline = time.monotonic() + rig.DEADLINE_S / 3
    while (found := worker.event("progress")["ranks"]) != ranks:
        check(time.monotonic() < deadline, f"{worker.name}: its sums are of {found:b}, and not of {ranks:b}")


def census(rack, lost, job="live"):
    """Begins workers whose sums say who is in them: a function from a rank to its worker."""
    def begin(rank, **more):
        given = {"keys": KEYS, "transport": "tcp", "census": True, "lost": lost, "rounds": "until-told", "report_ms": 1, "wait_ms": 60000, **more}
        return rig.Worker(rack.boxes[rank].url(job), rank=rank, world=len(rack.boxes), **given)
    return begin


def outlives_workers():
    """a worker at any box is killed, and another takes its place: with shrink the others go on meanwhile, with wait they wait"""
    for lost, victim in (("shrink", 4), ("wait", 3)):  # beside another at its box, and alone
        rack = Rack(lost_ms=3000, warn_ms=1500)
        rig.outlives(census(rack, lost), lost, victim=victim, world=5)
        rack.stop()
    for lost, hierarchy in (("shrink", "sharded"), ("wait", "chain")):
        rack = Beside(hierarchy, lost_ms=3000, warn_ms=1500)
        rig.outlives(census(rack, lost), lost, victim=1, world=6)
        rack.stop()


def outlives_box():
    """a box is killed: the others go on without its workers, or wait for them; it comes again, and others in their places take part"""
    for lost in ("shrink", "wait"):
        rack = Rack(lost_ms=3000, warn_ms=1500)
        begin = census(rack, lost)
        workers = [begin(rank) for rank in range(5)]
        for worker in workers:
            until(worker, 31)
        old = rack.b
        old.kill()
        for rank in (2, 4):
            bad(workers[rank], rf"box {old.address} ended the session", "or of a tree the one at its top .* sharded or a chain has none")
        for rank in (0, 1, 3) if lost == "shrink" else ():
            until(workers[rank], 0b01011)
        rack.b = rig.Box(name="b", uplink=rack.a.address, cores=1, lost_ms=3000, warn_ms=1500)
        rack.boxes = [rack.b if box is old else box for box in rack.boxes]
        workers[2] = begin(2)
        if lost == "wait":
            time.sleep(1)
            check(not any(json.loads(line)["event"] == "progress" for line in workers[2].out.lines), "it did not wait for rank 4")
        workers[4] = begin(4)
        for worker in workers:
            until(worker, 31)
        workers[0].tell()
        for worker in workers:
            worker.good()
        rack.stop()


def moves():
    """a box is killed for good: other workers with the ranks that were there come to other boxes"""
    for lost in ("shrink", "wait"):
        rack = Rack(lost_ms=3000, warn_ms=1500)
        begin = census(rack, lost)
        workers = [begin(rank) for rank in range(5)]
        for worker in workers:
            until(worker, 31)
        rack.b.kill()
        for rank in (2, 4):
            bad(workers[rank], "ended the session")
        rack.a.logged(r"box .* \(ranks 2, 4\) was lost")
        rack.root.logged(r"'live'")
        rack.boxes[2], rack.boxes[4] = rack.root, rack.a
        for rank in (2, 4):
            workers[rank] = admitted(lambda rank=rank: begin(rank))
        for worker in workers:
            until(worker, 31)
        # One that comes again has nobody to bring: it is told so, and nobody waits for it.
        rack.b = rig.Box(name="b", uplink=rack.a.address, cores=1, lost_ms=3000, warn_ms=1500)
        rack.boxes[2] = rack.b
        again = begin(2)
        bad(again, "rank 2 is at ")
        time.sleep(0.5)
        for worker in workers:
            until(worker, 31)
        workers[0].tell()
        for worker in workers:
            worker.good()
        rack.b.stop()
        rack.a.stop()
        rack.root.stop()


def stopped():
    """a box below is stopped in good order; one that comes has other keys: the others go on all the same"""
    rack = Rack(lost_ms=3000, warn_ms=1500)
    begin = census(rack, "shrink")
    workers = [begin(rank) for rank in range(5)]
    for worker in workers:
        until(worker, 31)
    rack.b.stop()
    for rank in (2, 4):
        bad(workers[rank], "is going down")
    for rank in (0, 1, 3):
        until(workers[rank], 0b01011)
    rack.b = rig.Box(name="b", uplink=rack.a.address, cores=1, lost_ms=3000, warn_ms=1500)
    rack.boxes[4] = rack.b
    bad(begin(4, keys="a:5"), "key 'a' .* differs")
    for rank in (0, 1, 3):
        until(workers[rank], 0b01011)
    workers[0].tell()
    for rank in (0, 1, 3):
        workers[rank].good()
    rack.stop()


def root_comes_again():
    """the root is killed, and goes on from its checkpoint: workers at all boxes come again by themselves, with the weights of a run without that"""
    for lost in ("fail", "shrink"):
        more = {"optimizer": "adam", "reduce": "mean", "rounds": 100, "settle": True}
        with tempfile.TemporaryDirectory() as folder:
            options = {"checkpoint_targets": folder, "checkpoint_every": 10, "listen": f"127.0.0.1:{rig.free_port()}"}
            rack = Rack(root=options, lost_ms=3000, warn_ms=1500)
            workers = rack.workers(**more, lost=lost, resume_ms=60000, pause_us=10000)
            rack.root.logged("checkpoint before round")
            rack.root.kill()
            rack.root.wait()
            rack.root = rig.Box(name="root again", cores=2, lost_ms=3000, warn_ms=1500, **options)
            digests = {worker.good()["settled"] for worker in workers}
            rack.root.logged("goes on from its checkpoint before round")
            rack.stop()
        check(digests == {flat(5, **more)}, f"{digests}")


class Siblings:
    """A root and two boxes below it, of which each is the other's sibling, as a rack file says."""

    def __init__(self, sibling, **options):
        ports = [rig.free_port() for _ in range(3)]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            file.write("racks:\n" + "".join(f"  - name: r{i}\n    uplink: 1Gbit\n    boxes:\n      - "
                                            f"{{name: {name}, address: '127.0.0.1:{port}', rate: 1Gbit{more}}}\n"
                                            for i, (name, port, more) in enumerate(zip(("root", "a", "b"), ports,
                                                                                       ("", f", sibling: {sibling}", ", sibling: a")))))
        self.root, self.a, self.b = (rig.Box(name=name, racks=file.name, box=name, listen=f"127.0.0.1:{port}", cores=2, **options)
                                     for name, port in zip(("root", "a", "b"), ports))
        pathlib.Path(file.name).unlink()
        self.boxes = [self.root, self.a, self.a, self.b]  # of each rank


def siblings():
    """a box dies: its workers go to its sibling by themselves, as the same ranks of the same job; where that has none of it yet, too"""
    for lost, sibling in (("shrink", "b"), ("wait", "root")):
        rack = Siblings(sibling, lost_ms=3000, warn_ms=1500)
        begin = census(rack, lost)
        if sibling == "b":
            rack.boxes[3] = rack.root  # b has nobody of the job before
        workers = [begin(rank, resume_ms=30000, optimizer="none") for rank in range(4)]
        for worker in workers:
            until(worker, 15)
        rack.root.logged(rf"job 'live': box 'a' at {rack.a.address} \(rank.* takes part")
        text = subprocess.run([PHUB, "jobs", rack.root.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET).stdout
        holds(text, rf"live: box 'a' at {rack.a.address} is below, with ranks 1, 2")
        text = subprocess.run([PHUB, "jobs", rack.a.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET).stdout
        holds(text, rf"live: box 'root' at {rack.root.address} is above \(uplink\), lifting")
        check([(b["name"], b["peer"]) for b in jobs(rack.root, "live")["below"]][:1] == [("a", rack.a.address)], "names and addresses, for scripts")
        rack.a.kill()
        rack.root.logged(rf"box 'a' at {rack.a.address} \(ranks 1, 2\) was lost: ")
        for rank in (1, 2):
            holds(workers[rank].event("stale")["error"], rf"the box was lost: box {rack.a.address} ended the session")
        for worker in workers:
            until(worker, 15)
        check({int(rank) for rank in (w["rank"] for w in jobs({"b": rack.b, "root": rack.root}[sibling], "live")["workers"])} >= {1, 2}, "they are elsewhere")
        workers[0].tell()
        for worker in workers:
            worker.good()
        rack.b.stop()
        rack.root.stop()


def sibling_of_above():
    """a box between two others dies: the one below it, whose workers are well, goes to its sibling, with them as the same ranks"""
    for lost in ("shrink", "wait"):
        rack = Siblings("b", lost_ms=3000, warn_ms=1500)
        host = rig.Box(name="host", cores=1, uplink=rack.a.address, lost_ms=3000, warn_ms=1500)
        rack.boxes = [rack.root, host, host, rack.b if lost == "wait" else rack.root]  # or b has nobody of the job before
        begin = census(rack, lost)
        workers = [begin(rank, resume_ms=30000, optimizer="none") for rank in range(4)]
        for worker in workers:
            until(worker, 15)
        rack.a.kill()
        for worker in workers:
            until(worker, 15)
        host.logged(rf"job 'live' takes part at {rack.b.address}, the sibling of the box above, which does not answer")
        workers[0].tell()
        for worker in workers:
            worker.good()
        for box in (host, rack.b, rack.root):
            box.stop()


def admitted(begin):
    """Until boxes know that its rank is lost, a worker is told that it is at another box, and asks again by itself."""
    worker = begin()
    worker.event("connected")
    return worker


def asks_again():
    """a rank that comes to another box while it is at its own asks until it is lost there, or its time is over: then it is told why"""
    rack = Rack(lost_ms=3000, warn_ms=1500)
    begin = census(rack, "shrink")
    workers = [begin(rank) for rank in range(5)]
    for worker in workers:
        until(worker, 31)
    rack.boxes[2] = rack.root
    begin(2, timeout_ms=1500).failed("ETIMEDOUT", "did not let it in: rank 2 .*is at another box, and not lost there")
    came = begin(2)
    time.sleep(1)
    check(not came.out.lines, f"{came.out.text()}")
    workers[2].kill()
    workers[2] = came
    for worker in workers:
        until(worker, 31)
    workers[0].tell()
    for worker in workers:
        worker.good()
    rack.stop()


def stalls():
    """a box above is stopped: those below notice within lost_ms, and name it; the job goes on at the one side alone, or ends"""
    for lost in ("fail", "shrink"):
        rack = Rack(lost_ms=3000, warn_ms=1500)
        begin = census(rack, lost)
        workers = [begin(rank) for rank in range(5)]
        for worker in workers:
            until(worker, 31)
        rack.a.kill(signal.SIGSTOP)
        since = time.monotonic()
        if lost == "shrink":  # the root goes on with its own
            until(workers[3], 0b01000)
        else:
            bad(workers[3], r"box .* \(ranks 0-2, 4\) was lost: it was silent for 3")
        for rank in (2, 4):
            bad(workers[rank], rf"box above \(uplink {rack.a.address}\) was lost: .*silent for 3")
        check(time.monotonic() - since < 8, f"{time.monotonic() - since:.1f} s")
        for rank in (0, 1):
            bad(workers[rank], rf"box {rack.a.address} has been silent for 3")
        rack.a.kill(signal.SIGCONT)  # it finds that its job is over, and nothing that it says matters
        if lost == "shrink":
            for _ in range(3):
                until(workers[3], 0b01000)
            workers[3].tell()
            workers[3].good()
        rack.stop()


def waiting(box, job, *patterns):
    """Until `phub jobs` says there what the job waits for, by all of these."""
    deadline = time.monotonic() + rig.DEADLINE_S
    while not all(re.search(pattern, said := jobs(box, job)["waiting"]) for pattern in patterns):
        check(time.monotonic() < deadline, f"{box.name}: {said}")
        time.sleep(0.05)


def awaited():
    """a worker stands still: each box says where it is; its job is paused at one box: those above say where, and by whom, and that it goes on"""
    rack = Rack(lost_ms=60000, warn_ms=1500)
    workers = rack.training(job="still", optimizer="adam", wait_ms=60000)
    workers[4].kill(signal.SIGSTOP)
    waiting(rack.root, "still", rf"^round \d+ of key .* waits for ranks 0-2, 4 \(at box {rack.a.address}, heard of \d+\.\d s ago\)$")
    waiting(rack.b, "still", r"waits for rank 4 \(127.0.0.1:\d+, heard of \d+\.\d s ago\)$")
    workers[4].kill(signal.SIGCONT)
    for worker in workers:
        worker.kill()
    workers = [rig.Worker(box.url("pair"), rank=rank, world=2, keys=KEYS, transport="tcp", rounds="until-told", report_ms=20, wait_ms=60000)
               for rank, box in enumerate((rack.root, rack.a))]
    for worker in workers:
        worker.event("progress")
    workers[1].kill(signal.SIGSTOP)  # nothing is open at its own box
    waiting(rack.root, "pair", rf"waits for rank 1 \(at box {rack.a.address}, heard of ")
    waiting(rack.a, "pair", r"waits for rank 1 \(127.0.0.1:\d+, heard of ")
    workers[1].kill(signal.SIGCONT)
    subprocess.run([PHUB, "jobs", "pause", "pair", rack.a.address, "--reason", "a new switch"], check=True, capture_output=True, env=rig.QUIET)
    said = "the box's operator paused it: a new switch"
    rack.root.logged(rf"job 'pair': at box {rack.a.address} \(rank 1\) {said}")
    waiting(rack.root, "pair", rf"^round .* waits for rank 1 \(at box {rack.a.address}, heard of .* s ago; there {said}\)$")
    subprocess.run([PHUB, "jobs", "resume", "pair", rack.a.address], check=True, capture_output=True, env=rig.QUIET)
    rack.root.logged(rf"job 'pair': at box {rack.a.address} \(rank 1\) it goes on")
    for worker in workers:
        worker.seen = len(worker.out.lines)
        worker.event("progress")
    workers[0].tell()
    for worker in workers:
        worker.good()
    rack.stop()


def refused():
    """what is not done over several boxes yet ends with what that is; so do two workers of one rank, and tables that differ"""
    rack = Rack(lost_ms=3000, warn_ms=1500)
    for job, pattern, more in [("ssp", "sync ssp and async: not yet", {"sync": "ssp", "optimizer": "sgd"}),
                               ("quorum", "a quorum: not yet", {"quorum": 4, "optimizer": "sgd"})]:
        for worker in rack.workers(job, **more):
            bad(worker, pattern)
    first = rig.Worker(rack.root.url("twice"), rank=0, world=2, keys=KEYS, rounds=5, transport="tcp")
    first.event("connected")  # the other way round the second one alone is turned away
    for worker in (first, rig.Worker(rack.a.url("twice"), rank=0, world=2, keys=KEYS, rounds=5, transport="tcp")):
        bad(worker, "rank 0 is at box .* and at 127.0.0.1:")
    first = rig.Worker(rack.a.url("second"), rank=0, world=2, keys=KEYS, rounds=5, transport="tcp")
    rack.root.logged("job 'second': box .* takes part")
    while not any(b["ranks"] == [0] for b in jobs(rack.root, "second").get("below", [])):
        pass
    bad(rig.Worker(rack.root.url("second"), rank=0, world=2, keys=KEYS, rounds=5, transport="tcp"), "rank 0 of job 'second' is at another box")
    first.kill()
    workers = [rig.Worker(box.url("differ"), rank=rank, world=2, keys=keys, rounds=5, transport="tcp")
               for rank, (box, keys) in enumerate([(rack.root, "a:100"), (rack.a, "a:101")])]
    for worker in workers:
        bad(worker, "key 'a'.*10[01]")
    rack.stop()
    ports = [rig.free_port() for _ in range(3)]
    circle = [rig.Box(name=f"circle{i}", cores=1, listen=f"127.0.0.1:{port}", uplink=f"127.0.0.1:{ports[i - 1]}") for i, port in enumerate(ports)]
    bad(rig.Worker(circle[0].url("round"), rank=0, world=2, keys=KEYS, rounds=5, transport="tcp"), "rank 0 is at box .* own rank, or, if "
                                                                                                   "uplinks lead from box to box in a circle")
    for box in circle:
        box.stop()


def here():
    """jobs that are their box's alone: one name at three boxes, sums of each one's workers, nothing goes up; also what is not done over several"""
    rack = Rack()
    want = {world: flat(world, optimizer="none") for world in (1, 2)}
    crews = {box: [rig.Worker(box.url("own"), rank=rank, world=world, here=1, keys=KEYS, rounds=ROUNDS, transport="tcp", optimizer="none")
                   for rank in range(world)]
             for box, world in ((rack.root, 1), (rack.a, 2), (rack.b, 2))}
    for crew in crews.values():
        for worker in crew:
            check(worker.good()["digest"] == want[len(crew)], f"{worker.name}")
    worker = rig.Worker(rack.b.url("runs"), rank=0, world=1, here=1, keys=KEYS, rounds=1000000, report_ms=100, transport="tcp")
    worker.event("progress")
    found = jobs(rack.b, "runs")
    check("above" not in found and found["state"] == "running", f"{found}")
    worker.kill()
    for worker in [rig.Worker(rack.b.url("ssp"), rank=rank, world=2, here=1, keys=KEYS, rounds=ROUNDS, transport="tcp", sync="ssp", staleness=1,
                              optimizer="sgd", check=0)
                   for rank in range(2)]:
        worker.good()
    workers = [rig.Worker(rack.b.url("both"), rank=rank, world=2, here=rank, keys=KEYS, rounds=5, transport="tcp") for rank in range(2)]
    for worker in workers:
        bad(worker, "here differs: rank . says (true|false), rank . says (true|false)")
    workers = [rig.Worker(box.url("twice"), rank=rank, world=2, here=1, keys=KEYS, rounds=5, transport="tcp") for rank, box in enumerate((rack.a, rack.b))]
    for worker in workers:
        worker.event("connected")
    for rank, box in enumerate((rack.a, rack.b)):
        check(jobs(box, "twice")["missing"] == [1 - rank], f"{jobs(box, 'twice')}")
    for worker in workers:
        worker.kill()
    rack.stop()


def seen():
    """phub jobs says which boxes are above and below, and whom they have"""
    rack = Rack()
    workers = rack.training(optimizer="none")

    def ask(box):
        return subprocess.run([PHUB, "jobs", box.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET).stdout

    holds(ask(rack.root), r"spread: box 127.0.0.1:\d+ is below, with ranks 0-2, 4\n", "spread +running +5/5, 1 here ")
    holds(ask(rack.b), "spread +running +5/5, 2 here ")
    holds(ask(rack.a), rf"box {rack.root.address} is above \(uplink\), lifting by tcp, [\d.]+ .B sent", r"is below, with ranks 2, 4\n")
    found = jobs(rack.a, "spread")
    check(found["below"][0]["ranks"] == [2, 4] and found["above"]["state"] == "lifting" and found["missing"] == [] and found["lost"] == [], f"{found}")
    forming = rig.Worker(rack.b.url("forms"), rank=1, world=3, keys=KEYS, transport="tcp")
    forming.event("connected")
    holds(ask(rack.b), "forms +forming +1 of 3 here ")
    for worker in (*workers, forming):
        worker.kill()
    for box in (rack.b, rack.a, rack.root):
        box.kill()
    rack = Beside("sharded")
    workers = rack.training(optimizer="none")
    for box, here in ((rack.root, 1), (rack.a, 2), (rack.b, 2), (rack.c, 1)):
        holds(ask(box), f"spread +running +6/6, {here} here ")
        check(jobs(box, "spread")["lost"] == [], "nobody is lost")
    for worker in workers:
        worker.kill()
    for box in (rack.c, rack.b, rack.a, rack.root):
        box.kill()


def exchanged():
    """sharded and chain: sums, means, weights of optimizers, barriers, rates that change and new tables, as of one box for all"""
    for hierarchy in ("sharded", "chain"):
        rack = Beside(hierarchy)
        for job, more in [("sum", {"optimizer": "none"}), ("half", {"optimizer": "none", "dtype": "bf16"}),
                          ("adam", {"optimizer": "adam", "reduce": "mean"}), ("same", {"optimizer": "momentum", "reproducible": True})]:
            digests = {worker.good()["digest"] for worker in rack.workers(job, **more)}
            check(digests == {flat(6, **more)}, f"{hierarchy}, {job}: {digests}")
        for worker in rack.workers("together", optimizer="momentum", barrier=True, schedule=3, tables=2):
            worker.good()
        for box in rack.boxes:  # boxes start at the same time, and which of them calls before another is ready is nobody's fault
            check(not re.search("warn .* refused", box.err.text()), box.err.text())
        rack.stop()


def only_sums():
    """a top box without workers of its own, and one box whose workers alone there are: nobody waits for who has no sum"""
    for hierarchy in ("sharded", "chain"):
        rack = Beside(hierarchy)
        for boxes in ([rack.a, rack.b, rack.b], [rack.c, rack.a], [rack.c, rack.c]):
            rack.boxes = boxes
            digests = {worker.good()["digest"] for worker in rack.workers(optimizer="adam")}
            check(digests == {flat(len(boxes), optimizer="adam")}, f"{hierarchy}: {digests}")
        rack.stop()


def shares():
    """each box is the home of its share of the chunks, and sends the others' to their homes, or to the next box; phub jobs shows it"""
    for hierarchy, others in (("sharded", 2), ("chain", 1)):
        rack = Beside(hierarchy)
        workers = rack.training(job="shares", optimizer="none", pause_us=20000)
        for box in (rack.root, rack.a, rack.b):
            while (found := jobs(box, "shares"))["rounds"] < 30 or any(b["state"] in ("dialling", "waiting", "connecting") for b in found["beside"]):
                pass
            homes = [b["homes"] for b in found["beside"]]
            check(sum(homes) == found["chunks"] and max(homes) - min(homes) <= 2 and found["hierarchy"] == hierarchy, f"{found}")
            lifting = [b for b in found["beside"] if b["state"] == "lifting"]
            check(len(lifting) == others and sum(b["lifts"] for b in found["beside"]) == others, f"{found}")
            sent = sum(b["bytes"] for b in lifting) / found["rounds"] / found["bytes"]
            check(0.55 < sent < 0.8, f"{hierarchy}: {sent:.2f} of the model a round; each box lifts what ends elsewhere, two thirds")
            text = subprocess.run([PHUB, "jobs", box.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET).stdout
            check(found["lost"] == [], f"{found['lost']}")
            holds(text, rf"shares: {hierarchy}, 3 boxes: \d+ of {found['chunks']} chunks end at this one\n",
                  r"is beside, where \d+ chunks end: lifting by tcp, .* sent")
        for worker in workers:
            worker.kill()
        for box in (rack.c, rack.b, rack.a, rack.root):
            box.kill()


def same_bits():
    """reproducible sums of numbers that round: the same bits in each run, in whatever order boxes and workers come"""
    for hierarchy in ("tree", "sharded", "chain"):
        digests = set()
        for order in (1, -1):
            rack = Beside(hierarchy)
            ranks = list(enumerate(rack.boxes))[::order]
            workers = []
            for rank, box in ranks:
                workers.append(rig.Worker(box.url("same"), rank=rank, world=len(ranks), keys=KEYS, rounds=10, transport="tcp", normals=True, check=False,
                                          reproducible=True, optimizer="adam"))  # a flat box would add in another order
                workers[-1].event("connected")
            digests |= {worker.good()["digest"] for worker in workers}
            rack.stop()
        check(len(digests) == 1 and "cbf29ce484222325" not in digests, f"{hierarchy}: {digests}")  # that of nothing


def same_bits_flat():
    """reproducible sums of numbers that round: one box that is told the tree's association makes its bits, in each type"""
    for dtype in ("f32", "f16", "bf16"):
        rack = Rack()
        given = {"normals": True, "check": False, "reproducible": True, "optimizer": "adam", "dtype": dtype}
        digests = {worker.good()["digest"] for worker in rack.workers(**given)}
        rack.stop()
        check(digests == {flat(5, association="[3,[0-1,[2,4]]]", **given)}, f"{dtype}: the tree made other bits")
        if dtype == "f32":  # few numbers of 16 bits have exact sums in f32
            check(digests != {flat(5, **given)}, "these numbers have the same sum in the order of ranks")


def association_told():
    """the association of a tree that `phub jobs` tells is that of its sums; one that cannot be is refused, by name"""
    root = rig.Box(name="root", cores=1)
    below = rig.Box(name="below", cores=1, uplink=root.address)
    given = {"keys": KEYS, "transport": "tcp", "normals": True, "check": False, "reproducible": True}
    crew = [rig.Worker(box.url("told"), rank=rank, world=4, rounds="until-told", report_ms=50, **given)
            for rank, box in enumerate((below, root, below, root))]
    crew[0].event("progress")
    check(jobs(root, "told").get("association") == "[1,3,[0,2]]", f"{jobs(root, 'told')}")
    check("association" not in jobs(below, "told"), f"{jobs(below, 'told')}")
    holds(subprocess.run([PHUB, "jobs", root.address], capture_output=True, text=True, check=True).stdout, r"told: sums are made as \[1,3,\[0,2\]\]")
    crew[0].tell()
    for worker in crew:
        worker.good()
    for worker in [rig.Worker(box.url("given"), rank=rank, world=2, association="[0,1]", rounds=1, **given) for rank, box in enumerate((root, below))]:
        worker.failed("EOPNOTSUPP", r"an association \(sums follow from which box a worker is at\): not yet")
    for association, words in (("[0,2]", "rank 2 of a world of 2"), ("[[1],0,1]", "rank 1 is in it twice")):
        rig.Worker(root.url("wrong"), rank=0, world=2, association=association, rounds=1, **given).failed("EOPNOTSUPP", words)
    crew = [rig.Worker(root.url("differ"), rank=rank, world=2, association=("[0,1]", "[1,0]")[rank], rounds=1, **given) for rank in range(2)]
    for worker in crew:
        worker.failed("EBADMSG", r"association differs: (rank 0 says \[0,1\], rank 1 says \[1,0\]|rank 1 says \[1,0\], rank 0 says \[0,1\])")
    below.stop()
    root.stop()


def by_job():
    """a job whose entry at the top box says chain, beside one of that box's own way, a tree"""
    root = rig.Box(name="root", cores=1, config="jobs:\n  - {name: chained, hierarchy: chain}\n")
    below = rig.Box(name="below", cores=1, uplink=root.address)
    crews = {job: [rig.Worker(box.url(job), rank=rank, world=2, keys=KEYS, rounds=1000000, report_ms=100, transport="tcp")
                   for rank, box in enumerate((root, below))] for job in ("chained", "plain")}
    for job, crew in crews.items():
        crew[0].event("progress")
        check(jobs(root, job).get("hierarchy") == {"chained": "chain", "plain": None}[job], f"{jobs(root, job)}")
        for worker in crew:
            worker.kill()
    below.kill()
    root.kill()


def rack_file(path, ports, uplinks):
    """Racks of a box each, at 127.0.0.1, .2 and so on."""
    path.write_text("racks:\n" + "".join(
        f"  - {{name: r{i}, uplink: {uplink}, boxes: [{{name: b{i}, address: '127.0.0.{i + 1}:{port}', rate: 10Gbit}}]}}\n"
        for i, (port, uplink) in enumerate(zip(ports, uplinks))))


def lost_beside():
    """of boxes that exchange one is killed, or a worker: all are told which one"""
    for hierarchy in ("sharded", "chain"):
        rack = Beside(hierarchy, lost_ms=3000, warn_ms=1500)
        workers = rack.training(optimizer="adam")
        workers[4].kill()
        for rank in (0, 1, 2, 3, 5):
            bad(workers[rank], r"rank 4 \(.*was lost")
        workers = rack.training(job="again", optimizer="adam")
        rack.b.kill()
        for rank in (0, 1, 3):
            bad(workers[rank], rf"box {rack.b.address}( \(ranks 2, 4, 5\)|, to which chunks of it are lifted,)? was lost")
        bad(workers[4], rf"box above \(uplink {rack.b.address}\) was lost")
        rack.c.stop()
        rack.a.stop()
        rack.root.stop()


def unreachable():
    """a box that others cannot reach where it says it is: the job ends, naming it and what to set"""
    root = rig.Box(name="top", cores=1, hierarchy="sharded", lost_ms=3000, warn_ms=1500)
    below = rig.Box(name="hidden", cores=1, uplink=root.address, advertise=f"127.0.0.1:{rig.free_port()}", lost_ms=3000, warn_ms=1500)
    for worker in [rig.Worker(box.url("far"), rank=rank, world=2, keys=KEYS, rounds=5, transport="tcp") for rank, box in enumerate((root, below))]:
        bad(worker, r"box 127.0.0.1:\d+, to which chunks of it are lifted, cannot be reached from here: .*refused.*advertise")
    below.stop()
    root.stop()


CASES = [summed, half, shared_memory, together, jobs_beside, later, lost_worker, lost_box, outlives_workers, outlives_box, moves, stopped, root_comes_again,
         siblings, sibling_of_above, asks_again, stalls, awaited, refused, here, seen, exchanged, only_sums, shares, same_bits, same_bits_flat,
         association_told, by_job, lost_beside, unreachable]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() else f"{PHUB} is not there (make)")
