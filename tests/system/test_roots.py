#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for leases that run out
"""
Boxes that stand for a root in a real etcd of this test's own: one of them is it, and when that is killed, stopped or cut off from etcd,
another is promoted. Real boxes, real workers; what they end with is what a run ends with that nobody disturbed.
"""
import base64
import contextlib
import json
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import raw
import rig
from rig import Box, Process, Worker, check, holds
from test_etcd import ETCD, PHUB, Etcd, announced, boxes, phub as phub_boxes, roots, until

SLOW, SUSPENDED = (rig.BUILD / "tests/system" / name for name in ("slow_disk.so", "suspended.so"))
KEYS = "a:20000,b:30000,c:100"
ASSOCIATION = "[[0,1],[2]]"
FAST = {"lost_ms": 3000, "warn_ms": 1500}


def flat(rounds, **more):
    """The weights that three workers at one box end with after so many rounds."""
    box = Box(cores=2)
    workers = rig.job(box.url("flat"), 3, keys=KEYS, rounds=rounds, settle=True, transport="tcp", **more)
    digests = {worker.good()["settled"] for worker in workers}
    box.stop()
    check(len(digests) == 1, f"{digests}")
    return digests.pop()


def begin(boxes_of_ranks, job="spread", **more):
    """Three workers that go on with the box, at these boxes, until they are told to end."""
    given = {"keys": KEYS, "rounds": "until-told", "report_ms": 20, "settle": True, "transport": "tcp", "pause_us": 10000, "resume_ms": 120000,
             "timeout_ms": 120000, **more}
    return [Worker(box.url(job), rank, 3, **given) for rank, box in enumerate(boxes_of_ranks)]


def settled(workers, **more):
    """They end some rounds later, with the weights that as many rounds give where nothing goes wrong. Their results."""
    for worker in workers:
        with worker.out.changed:
            worker.seen = len(worker.out.lines)
        began = worker.event("progress")["round"]
        while worker.event("progress")["round"] < began + 5:
            pass
    workers[0].tell()
    results = [worker.good() for worker in workers]
    found, rounds = {result["settled"] for result in results}, results[0]["rounds"]
    check(found == {flat(rounds, **more)}, f"{found} after {rounds} rounds, which one box does not end with")
    return results


class Racks:
    """Two boxes that stand for the root 'top', of which the first is it, and two below whoever that is; the first may have its own
    way to etcd."""

    def __init__(self, etcd, folder=None, wire=None, **options):
        keeps = {"checkpoint_targets": folder, "checkpoint_every": 10} if folder else {}
        options = {**FAST, **options}
        self.one = announced("one", wire or etcd, root="top", **keeps, **options)
        self.epochs = [self.promoted(self.one)]
        self.two = announced("two", etcd, root="top", **keeps, **options)
        self.a, self.b = (announced(name, etcd, uplink="etcd:top", **options) for name in ("a", "b"))

    @staticmethod
    def promoted(box):
        """Its epoch."""
        return int(re.search(r"of epoch (\d+)", box.logged("this box is the root 'top' now"))[1])

    def moved(self, *below):
        """The second one is the root, and they know it."""
        self.epochs.append(self.promoted(self.two))
        check(self.epochs[1] > self.epochs[0], f"epochs: {self.epochs}")
        for box in below:
            holds(box.logged(f"the root 'top' is box 'two' at {self.two.address} now"), f"of epoch {self.epochs[1]}")

    def stop(self, *without):
        for box in (self.a, self.b, self.one, self.two):
            if box not in without:
                box.stop()


def root_dies():
    """The root is killed: another is promoted, and the job goes on there from the checkpoint, to the bits of a run without that"""
    etcd = Etcd()
    more = {"optimizer": "adam", "reduce": "mean", "reproducible": True}
    for lost in ("fail", "shrink"):
        with tempfile.TemporaryDirectory() as folder:
            racks = Racks(etcd, folder)
            until(lambda: boxes(etcd)["one"]["uplink"] == "", "the root has nothing above it")
            check(boxes(etcd)["two"]["uplink"] == "etcd:top", "who stands for it has it above it")
            workers = begin([racks.a, racks.a, racks.b], **more, lost=lost)
            racks.one.logged("checkpoint before round")
            racks.one.kill()
            racks.one.wait()
            racks.moved(racks.a, racks.b)
            racks.two.logged("goes on from its checkpoint before round")
            settled(workers, **more, association=ASSOCIATION)
            racks.stop(racks.one)


def root_ends():
    """A root that ends in good order leaves its place at once, and is below the new one when it comes again"""
    etcd = Etcd()
    more = {"optimizer": "adam", "reduce": "mean"}
    with tempfile.TemporaryDirectory() as folder:
        racks = Racks(etcd, folder, etcd_ttl_ms=60000)  # nobody waits for the lease to run out
        workers = begin([racks.a, racks.b, racks.b], **more)
        racks.one.logged("checkpoint before round")
        racks.one.stop()
        racks.moved(racks.a, racks.b)
        again = announced("one", etcd, root="top", checkpoint_targets=folder, **FAST)
        again.logged(f"the root 'top' is box 'two' at {racks.two.address} now")
        settled(workers, **more)
        # It serves as any box below: workers may come to it.
        settled(begin([again, racks.a, racks.two], job="three", **more), **more)
        again.stop()
        racks.stop(racks.one)


class Wire:
    """A way to etcd that can be cut: nothing gets through any more, either way, and nobody is told."""

    def __init__(self, port):
        self.port, self.cut, self.pairs = port, False, []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.carry, daemon=True).start()

    def carry(self):
        ways = {}
        while True:
            if self.cut:
                select.select([], [], [], 0.05)
                continue
            for ready in select.select([self.server, *ways], [], [], 0.05)[0]:
                if self.cut:
                    break
                if ready is not self.server and ready not in ways:
                    continue  # the other end of its pair was at its end
                if ready is self.server:
                    near, far = self.server.accept()[0], socket.create_connection(("127.0.0.1", self.port))
                    ways[near], ways[far] = far, near
                    continue
                data = b""
                with contextlib.suppress(OSError):
                    data = ready.recv(65536)
                    ways[ready].sendall(data)
                if not data:
                    other = ways.pop(ready)
                    ways.pop(other, None)
                    ready.close()
                    other.close()


def round_of(worker):
    """That of the last word of it."""
    with worker.out.changed:
        told = [json.loads(line) for line in worker.out.lines]
    return [event["round"] for event in told if event["event"] == "progress"][-1]


def cut_off():
    """A root that is cut off from etcd holds its jobs before another is promoted, and they end with the name of that one"""
    etcd = Etcd()
    more = {"optimizer": "adam", "reduce": "mean", "lost": "shrink"}
    wire = Wire(etcd.port)
    racks = Racks(etcd, wire=wire, etcd_ttl_ms=6000)  # a quarter of that, or more, is between the two
    workers = begin([racks.one, racks.a, racks.b], **more)
    for worker in workers:
        worker.event("progress")
    wire.cut = True
    racks.one.logged("another may be the root 'top' soon: its jobs are held until it is known")
    racks.moved(racks.a, racks.b)
    for worker in workers:
        stale = worker.event("stale")
        holds(stale["error"], "the root 'top'", f"box 'two' at {racks.two.address}")
        check(stale["exchange_us"] > 500000, f"rounds were committed until another was the root: {stale}")
    wire.cut = False
    racks.one.logged(f"this box is the root 'top' no more .*box 'two' at {racks.two.address} is, of epoch {racks.epochs[1]}")
    settled(workers, **more)
    racks.stop()


def comes_back():
    """A root whose lease ran out while it was cut off, and that finds that nobody was the root since, goes on: no worker notices"""
    etcd = Etcd()
    wire = Wire(etcd.port)
    watch = Process("watch", [PHUB, "boxes", "--etcd", etcd.url, "--watch", "--json"])
    with tempfile.TemporaryDirectory() as folder:
        one = announced("one", wire, root="top", checkpoint_targets=folder, etcd_ttl_ms=6000, **FAST)
        epoch = Racks.promoted(one)
        below = announced("a", etcd, uplink="etcd:top", **FAST)
        workers = begin([one, below, below], optimizer="adam", reduce="mean", pause_us=50000)
        for worker in workers:
            worker.event("progress")
        for _ in range(2):
            seen, watched = len(one.err.lines), len(watch.out.lines)
            wire.cut = True
            check(one.err.find(lambda line: "its jobs are held until it is known" in line, seen), "its jobs are not held")
            check(watch.out.find(lambda line: '"root":"top","at":""' in line, watched), "its key is never gone")
            held = round_of(workers[0])
            wire.cut = False
            check(one.err.find(lambda line: f"the root 'top' still, of epoch {epoch}: its jobs go on" in line, seen), "it never went on")
            until(lambda: round_of(workers[0]) > held + 1, "rounds go on")
            check(roots(etcd)["top"]["epoch"] == epoch, "others see another epoch")
        later = announced("later", etcd, uplink="etcd:top", **FAST)  # who comes now finds it likewise
        for worker in begin([later, below, one], job="other", rounds=5):
            worker.good()
        workers[0].tell()
        for worker in workers:
            check(worker.good()["resumed"] == 0, "it was lost")
        watch.kill()
        for box in (later, below, one):
            box.stop()


def stopped():
    """A root that stood still for longer than its lease is none when it goes on, whatever it has in its hands: with its checkpoints
    locked by it nobody goes on from them before, and then all do"""
    etcd = Etcd()
    more = {"optimizer": "adam", "reduce": "mean", "reproducible": True}
    for keeps in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            racks = Racks(etcd, folder if keeps else None)
            workers = begin([racks.a, racks.a, racks.b], **more, lost="shrink")
            for worker in workers:
                worker.event("progress")
            if keeps:
                racks.one.logged("checkpoint before round")
            racks.one.kill(signal.SIGSTOP)
            try:
                if keeps:
                    line = racks.two.logged("to be the root 'top', and waits for its checkpoints: .*is another phubd's")
                    holds(line, rf"the box at {racks.one.address}, process {racks.one.pid} has locked .*stop it, by kill -9 where it hangs")
                    seen = phub_boxes("--etcd", etcd.url)[0]
                    holds(seen, rf"top +two \(waits\) +{racks.two.address} ", "two has the key of root top, and waits for its checkpoints")
                    check(not roots(etcd)["top"]["serves"], "it waits")
                else:
                    racks.moved(racks.a, racks.b)
                    racks.two.logged("job 'spread' starts")
            finally:
                racks.one.kill(signal.SIGCONT)
            racks.one.logged("this box is the root 'top' no more")
            if keeps:
                racks.moved(racks.a, racks.b)
            racks.one.logged(f"the root 'top' is box 'two' at {racks.two.address} now")
            settled(workers, **more, association=ASSOCIATION)
            if keeps:
                racks.two.logged("goes on from its checkpoint before round")
            racks.stop()


def etcd_away():
    """Without etcd for longer than the lease, and with nobody promoted meanwhile, jobs are held and go on: no worker notices"""
    etcd = Etcd()
    racks = Racks(etcd, etcd_ttl_ms=8000)
    racks.one.logged("root: 'top' without checkpoint_targets: when the root dies, its jobs begin anew")
    workers = begin([racks.one, racks.a, racks.b], optimizer="adam", reduce="mean")
    for worker in workers:
        worker.event("progress")
    etcd.kill()
    holds(racks.one.logged("this box is not announced"),
          r"its jobs (go on for [\d.]+ s, for which its lease as the root lasts, and are held then|are held)")
    racks.one.logged("its jobs are held until it is known")
    held = round_of(workers[0])
    etcd.start()
    racks.one.logged("this box is the root 'top' still, of epoch [0-9]+: its jobs go on")
    until(lambda: round_of(workers[0]) > held + 1, "rounds go on")
    workers[0].tell()
    for worker in workers:
        check(worker.good()["resumed"] == 0, "it was lost")
    racks.stop()


def suspended():
    """A root whose machine was suspended for longer than its lease holds its jobs as soon as it goes on, and until etcd has said that
    it is the root still"""
    etcd = Etcd()
    wire = Wire(etcd.port)
    with tempfile.TemporaryDirectory() as folder:
        slept = pathlib.Path(folder) / "slept"  # then its clock has gone on, by more than the lease
        box = announced("one", wire, root="top", etcd_ttl_ms=600000, env={"LD_PRELOAD": SUSPENDED, "PHUB_TEST_SUSPENDED": slept}, **FAST)
        Racks.promoted(box)
        workers = begin([box] * 3)
        for worker in workers:
            worker.event("progress")
        wire.cut = True
        slept.touch()
        box.logged("its jobs are held until it is known")
        time.sleep(0.5)  # what was on its way has come
        held = round_of(workers[0])
        time.sleep(0.5)
        check(round_of(workers[0]) == held, "rounds are committed")
        wire.cut = False
        box.logged("this box is the root 'top' still, of epoch [0-9]+: its jobs go on")
        until(lambda: round_of(workers[0]) > held + 1, "rounds go on")
        workers[0].tell()
        for worker in workers:
            check(worker.good()["resumed"] == 0, "it was lost")
        box.stop()


def hung_target():
    """A box that is to be the root and whose checkpoint target does not answer goes on with all else, and gives its place to another"""
    etcd = Etcd()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as disk:
        shut = pathlib.Path(folder) / "shut"
        shut.touch()
        keeps = {"checkpoint_targets": disk, "checkpoint_every": 10, **FAST}
        two = announced("two", etcd, root="top", env={"LD_PRELOAD": SLOW, "PHUB_TEST_SLOW_LOCK": shut}, **keeps)
        two.logged("slow disk: a lock waits")
        two.logged(f"to be the root 'top', and waits for its checkpoints: of checkpoint_targets {disk} has not answered for ")
        subprocess.run([PHUB, "jobs", two.address], check=True, capture_output=True, timeout=rig.DEADLINE_S, env=rig.QUIET)
        three = announced("three", etcd, root="top", **keeps)
        two.logged(f"does not become the root 'top', .*: of checkpoint_targets {disk} has not answered for [0-9.]+ s: see that")
        Racks.promoted(three)
        two.logged(f"the root 'top' is box 'three' at {three.address} now")
        for worker in begin([two, three, three], job="below", rounds=20):
            worker.good()
        shut.unlink()  # the lock comes, which nobody wants any more
        three.kill()
        three.wait()
        Racks.promoted(two)
        for worker in begin([two] * 3, job="after", rounds=20):
            worker.good()
        two.stop()


def findings(box, status=0):
    """Of phub doctor about it: state and text of each check."""
    done = subprocess.run([PHUB, "doctor", box.address, "--json"], capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET)
    check(status in (None, done.returncode), f"phub doctor: {done.returncode} instead of {status}: {done.stdout} {done.stderr}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["check"]: (one["state"], one["text"]) for one in found if one["check"] in ("etcd", "root", "targets")}


def told():
    """phub boxes says who is the root and who stands for it, and phub doctor how it is with a box that does"""
    etcd = Etcd()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as other:
        shut = pathlib.Path(folder) / "shut"
        hangs = {"LD_PRELOAD": SLOW, "PHUB_TEST_SLOW_LOCK": shut}
        began = time.time()
        one = announced("one", etcd, root="top", checkpoint_targets=disk, **FAST)
        epoch = Racks.promoted(one)
        two = announced("two", etcd, root="top", checkpoint_targets=disk, env=hangs, **FAST)
        three = announced("three", etcd, root="top", checkpoint_targets=other, **FAST)
        told = until(lambda: len((r := roots(etcd)["top"])["stands"]) == 3 and r, "who stands for it")
        check((told["at"], told["address"], told["epoch"]) == ("one", one.address, epoch), f"{told}")
        check(began - 600 < told["since"] < time.time() + 600 and told["stands"] == ["one", "three", "two"], f"{told}")
        out, _ = phub_boxes("--etcd", etcd.url)
        holds(out, r"root +box +address +root since +epoch +stand for it", rf"top +one +{one.address} +20\S+ \S+ +{epoch} +one, three, two")
        two.logged("the root 'top' is box 'one'")
        three.logged("the root 'top' is box 'one'")

        seen = findings(one)
        check([seen[what][0] for what in ("etcd", "root", "targets")] == ["ok"] * 3, f"{seen}")
        holds(seen["root"][1], f"the box is the root 'top', of epoch {epoch}")
        holds(seen["targets"][1], "1 of 1 checkpoint_targets are its own")
        seen = findings(two)
        check(seen["root"] == ("ok", f"the box stands for the root 'top', which is box 'one' at {one.address}"), f"{seen}")
        holds(seen["targets"][1], "can lock its 1 checkpoint_targets, of which another, the root, has 1 now")
        check(findings(three)["targets"][0] == "warn", "three has other targets")
        shut.touch()
        time.sleep(5)  # what was seen before is true for so long
        seen = findings(two, status=1)
        check(seen["targets"] == ("fail", f"1 of 1 checkpoint_targets cannot be locked by the box, which can be no root without: "
                                  f"{disk}: it does not answer"), f"{seen}")
        shut.unlink()

        watch = Process("watch", [PHUB, "boxes", "--etcd", etcd.url, "--watch", "--json"])
        watch.out.find(lambda line: '"root":"top","at":"one"' in line)
        for box in (three, one):
            box.kill()
            box.wait()
        check(watch.out.find(lambda line: '"root":"top","at":""' in line), "the watch says that no box is it")
        check(watch.out.find(lambda line: '"root":"top","at":"two"' in line), "the watch says that another is it")
        watch.kill()
        Racks.promoted(two)
        etcd.kill()
        two.logged("its jobs are held until it is known")
        until(lambda: (seen := findings(two, status=None))["etcd"][0] == "fail" and seen["root"][0] == "warn", "doctor says so")
        etcd.start()
        two.logged("the root 'top' still")
        two.stop()
        until(lambda: roots(etcd) == {}, "the root is gone with its box")


def wrong_root():
    """A box answers to the root's epoch alone that it is of"""
    etcd = Etcd()
    racks = Racks(etcd)
    for box, asked, said in ((racks.one, racks.epochs[0] - 1,
                              f"the root of epoch {racks.epochs[0] - 1} is looked for, and this one is of epoch {racks.epochs[0]}"),
                             (racks.two, racks.epochs[0], f"it is no root, and is below {racks.one.address} by etcd")):
        holds(box.logged("the root 'top'"), "")
        control = raw.Control(box.address, "raw", 0, 2)
        epoch = struct.unpack("<d", struct.pack("<Q", asked))[0]  # a fixed64, as raw.encode() writes them
        control.send(raw.HELLO, (1, 1), (2, 1), (3, "raw bytes"), (4, "raw"), (6, 2), (7, control.nonce), (13, True), (16, epoch))
        control.prove()
        error = control.expect(raw.ERROR)
        holds(error[2][0].decode(), said)
    racks.stop()


def strange_key():
    """A root's key that no box wrote is told as that, and once it is removed one of the boxes is the root"""
    etcd = Etcd()

    def text(word):
        return base64.b64encode(word.encode()).decode()

    etcd.call("kv/put", key=text("/phub/roots/top"), value=text("me"))
    box, below = announced("one", etcd, root="top"), announced("a", etcd, uplink="etcd:top")
    workers = begin([box, below, below], rounds=1)
    for where in (box, below):
        where.logged(r"waits for the box above .*the key of the root 'top' in etcd is of no box, .*etcdctl del /phub/roots/top\)")
    etcd.call("kv/deleterange", key=text("/phub/roots/top"))
    Racks.promoted(box)
    for worker in workers:
        worker.good()
    below.stop()
    box.stop()


def wrong_options():
    """What cannot be meant is said, with what to do"""
    for options, said in ((("root=top",), "root: 'top' without etcd; set etcd to its URLs$"),
                          (("root=top", "uplink=10.0.0.1:7077", "etcd=h"), "root: 'top' is above this box .* uplink is '10.0.0.1:7077'"),
                          (("root=top", "box=top", "etcd=h"), "a root has another name than its boxes"),
                          (("root=a/b", "etcd=h"), "root: 'a/b'; allowed: NAME, of 1 to 63"),
                          (("root=top", "etcd=h", "hierarchy=sharded"),
                           "hierarchy: jobs of a root .* are trees; leave hierarchy, or root, away")):
        words = [word for option in options for word in ("-o", option)]
        done = subprocess.run([rig.PHUBD, *words, "--check-config"], capture_output=True, text=True, env=rig.QUIET)
        check(done.returncode == 1, f"{options}: {done.returncode}")
        holds(done.stderr, said)


CASES = [root_dies, root_ends, cut_off, comes_back, stopped, etcd_away, suspended, hung_target, told, wrong_root, strange_key,
         wrong_options]

if __name__ == "__main__":
    rig.run(CASES, None if ETCD else "etcd is not there (apt install etcd-server)")
