#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for boxes that are gone to be missed
"""
phub promote: the root of boxes without etcd is killed, and an operator makes another the root. Real boxes, real workers; what they
end with is what a run ends with that nobody disturbed.
"""
import json
import pathlib
import signal
import subprocess
import tempfile

import rig
from rig import Box, check, holds
from test_racks import rack_file
from test_roots import ASSOCIATION, FAST, begin, settled

PHUB = rig.BUILD / "phub"
MORE = {"optimizer": "adam", "reduce": "mean"}


def promote(box, *words, status=0):
    """What `phub promote` says: its line of JSON where it does it, the error where it does not."""
    address = box if isinstance(box, str) else box.address
    done = subprocess.run([PHUB, "promote", *words, address], capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET)
    check(done.returncode == status, f"phub promote {words} {address}: {done}")
    return done.stdout if status == 0 else done.stderr


def says(folder):
    """What the targets say of the root, by name."""
    text = (pathlib.Path(folder) / ".phub.root").read_text()
    return dict(line.split(" ", 1) for line in text.splitlines())


def write(folder, epoch, address):
    """As a box writes it (phub/control/root_file.h)."""
    text = f"phub root 1\nepoch {epoch}\naddress {address}\ntls 0\nbox \nby a test\nwritten_ms 1\n"
    crc = 0xffffffff
    for byte in text.encode():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    (pathlib.Path(folder) / ".phub.root").write_text(f"{text}crc {crc ^ 0xffffffff:08x}\n")


def starts_not(*options):
    """What it says then."""
    words = [rig.PHUBD, "-o", "listen=127.0.0.1:0", *(word for option in options for word in ("-o", option))]
    done = subprocess.run(words, capture_output=True, text=True, env=rig.QUIET, timeout=rig.DEADLINE_S)
    check(done.returncode == 1, f"{done}")
    return done.stderr


class Racks:
    """A root, a second box that may take its place, and one that only knows where both are."""

    def __init__(self, folder, **options):
        self.ports = [rig.free_port() for _ in range(3)]
        self.places = [f"127.0.0.{i + 1}:{port}" for i, port in enumerate(self.ports)]
        self.keeps = {"checkpoint_targets": folder, "checkpoint_every": 10}
        self.options = {**FAST, **options}
        self.one = self.start(0)
        self.two = self.start(1)
        self.a = self.start(2)

    def start(self, number, **more):
        ups = [None, self.places[0], ",".join(self.places)][number]
        keeps = self.keeps if number < 2 else {}
        return Box(name=("one", "two", "a")[number], listen=self.places[number], uplink=ups, **{**keeps, **self.options, **more})

    def lose(self):
        self.one.kill()
        self.one.wait()

    def stop(self, *without):
        for box in (self.a, self.two, self.one):
            if box not in without:
                box.stop()


def root_dies():
    """The root is killed and another promoted: jobs go on there from the checkpoint, to the bits of a run without that; the old one
    comes again, and is below the new one"""
    more = {**MORE, "reproducible": True}
    for lost in ("fail", "shrink"):
        with tempfile.TemporaryDirectory() as folder:
            racks = Racks(folder)
            workers = begin([racks.two, racks.two, racks.a], **more, lost=lost)
            racks.one.logged("checkpoint before round")
            racks.lose()
            told = json.loads(promote(racks.two, "--json"))
            check(told["state"] == "promoted" and told["epoch"] == 2 and told["address"] == racks.two.address, f"{told}")
            holds(racks.two.logged("this box is the root now, of epoch 2"), r"promoted by \S+@\S+ \(127")
            racks.two.logged("goes on from its checkpoint before round")
            settled(workers, **more, association=ASSOCIATION)
            racks.a.logged(f"the root is the box at {racks.two.address} now, of epoch 2")
            check(says(folder)["address"] == racks.two.address, f"{says(folder)}")
            again = racks.start(0)
            holds(again.logged("as checkpoint_targets say"), racks.two.address, "of epoch 2")
            settled(begin([again, racks.a, racks.two], job="three", **more), **more, association="[[0],[1],[2]]")
            holds(promote(racks.two), "is the root already, of epoch 2")
            again.stop()
            racks.stop(racks.one)


def lives():
    """While the root lives, or hangs, no other is promoted; who is the root already says so; jobs do not notice"""
    with tempfile.TemporaryDirectory() as folder:
        racks = Racks(folder)
        holds(promote(racks.two, status=1), f"the box at {racks.one.address} has the locks .*it lives, or hangs")
        holds(promote(racks.one), "is the root already, of epoch 1$")
        workers = begin([racks.two, racks.two, racks.a], **MORE)
        for worker in workers:
            worker.event("progress")
        holds(promote(racks.two, status=1), f"the box above, {racks.one.address}, is up: job 'spread' is with it")
        racks.one.kill(signal.SIGSTOP)
        try:
            holds(promote(racks.two, status=1), f"{racks.one.address}")
        finally:
            racks.one.kill(signal.SIGCONT)
        check(all(result["resumed"] == 0 for result in settled(workers, **MORE)), "it was lost")
        check(not (pathlib.Path(folder) / ".phub.root").exists(), "nobody was promoted")
        racks.stop()


def comes_again():
    """A root that was promoted is that when it is started again, whatever its uplink says; the old one is promoted back when that dies"""
    with tempfile.TemporaryDirectory() as folder:
        racks = Racks(folder)
        racks.lose()
        promote(racks.two)
        racks.two.kill()
        racks.two.wait()
        racks.two = racks.start(1)
        holds(racks.two.logged("this box is the root, of epoch 2, as checkpoint_targets say, and not below its uplink"),
              r"promoted by \S+@\S+")
        racks.one = racks.start(0)
        workers = begin([racks.one, racks.two, racks.a], **MORE)
        racks.two.logged("checkpoint before round")
        racks.two.kill()
        racks.two.wait()
        check(json.loads(promote(racks.one, "--json"))["epoch"] == 3, "its epoch")
        racks.a.logged(f"the root is the box at {racks.one.address} now, of epoch 3")
        racks.two = racks.start(1)
        holds(racks.two.logged("as checkpoint_targets say: this one is below it"), f"{racks.one.address} now, of epoch 3")
        settled(workers, **MORE)
        text = subprocess.run([PHUB, "jobs", racks.one.address], check=True, capture_output=True, text=True, env=rig.QUIET).stdout
        holds(text, f"it is the root, of epoch 3, at {racks.one.address}: promoted by ")
        racks.stop()


def deposed():
    """A root that lives, and has lost its locks without knowing, ends its jobs when it sees who is the root, and itself; one with a way up
    goes below that"""
    with tempfile.TemporaryDirectory() as folder:
        racks = Racks(folder)
        workers = begin([racks.one, racks.one, racks.one], job="alone", **MORE, resume_ms=0)
        racks.one.logged("checkpoint before round")
        (pathlib.Path(folder) / ".phub.lock").unlink()
        promote(racks.two)
        for worker in workers:
            worker.failed(("EOWNERDEAD", "ESTALE"), "its box is the root no more .*an operator has promoted another",
                          f"the box at {racks.two.address} is, of epoch 2")
        check(racks.one.wait() == 1, "its exit status")
        holds(racks.one.err.text(),
              f"an operator has promoted the box at {racks.two.address}, of epoch 2, .* when it is started again it is below that")
        racks.one = racks.start(0)
        (pathlib.Path(folder) / ".phub.lock").unlink()
        promote(racks.one)
        racks.two.logged("this box is the root no more")
        settled(begin([racks.one, racks.two, racks.a], **MORE), **MORE)
        racks.stop()


def strays():
    """A root of a lower epoch is not followed: one that was started with other checkpoint_targets"""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        racks = Racks(folder)
        racks.lose()
        promote(racks.two)
        settled(begin([racks.two, racks.a, racks.a], job="first", **MORE), **MORE)
        racks.two.stop()
        racks.one = racks.start(0, checkpoint_targets=other)
        workers = begin([racks.a, racks.a, racks.a], **MORE)
        holds(racks.a.logged("waits for the box above"), "")
        racks.one.logged("the root of epoch 2 or a later one is looked for, and this one is of epoch 1")
        racks.two = racks.start(1)
        settled(workers, **MORE)
        racks.stop()


def rack_file_finds_it():
    """By a rack file boxes find the one that was promoted, in whatever place it stands there"""
    with tempfile.TemporaryDirectory() as folder:
        path, ports = pathlib.Path(folder) / "racks.yaml", [rig.free_port() for _ in range(4)]
        rack_file(path, ports, ["10Gbit"] * 4)

        def start(i):
            keeps = {"checkpoint_targets": folder, "checkpoint_every": 10} if i != 2 else {}
            return Box(name=f"b{i}", racks=path, listen=f"127.0.0.{i + 1}:{ports[i]}", **keeps, **FAST)

        boxes = [start(i) for i in range(4)]
        workers = begin(boxes[1:], **MORE)
        boxes[0].logged("checkpoint before round")
        boxes[0].kill()
        boxes[0].wait()
        promote(boxes[3])
        settled(workers, **MORE)
        check(says(folder)["box"] == "b3", f"{says(folder)}")
        boxes[2].logged(f"the root is the box at {boxes[3].address} now, of epoch 2")
        boxes[0] = start(0)
        holds(boxes[0].logged("as checkpoint_targets say"), "the root is box 'b3'")
        for box in boxes:
            box.stop()


def told():
    """An operator hears of the root's death what to type, and at which boxes: by the log of those that wait, by phub jobs and phub boxes,
    and by what workers hear; and boxes do not take each other for strangers, nor for the root"""
    with tempfile.TemporaryDirectory() as folder:
        path, ports = pathlib.Path(folder) / "racks.yaml", [rig.free_port() for _ in range(4)]
        rack_file(path, ports, ["10Gbit"] * 4)

        def start(i):
            keeps = {"checkpoint_targets": folder, "checkpoint_every": 10} if i != 2 else {}
            return Box(name=f"b{i}", racks=path, listen=f"127.0.0.{i + 1}:{ports[i]}", **keeps, **FAST)

        def looks(*words, status=0):
            done = subprocess.run([PHUB, *words], capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET)
            check(done.returncode == status, f"{done}")
            return done.stdout

        boxes = [start(i) for i in range(4)]
        check("promote" not in looks("boxes", "--racks", path), "all of them are up")
        workers = begin(boxes[1:], **MORE, resume_ms=6000)
        boxes[0].logged("checkpoint before round")
        boxes[0].kill()
        boxes[0].wait()
        one, two, three = (box.address for box in boxes[1:])
        holds(boxes[1].logged("jobs here wait for the root"),
              f"if the root is dead, `phub promote {one}` \\(or {three}\\) makes another box the root")
        holds(boxes[2].logged("jobs here wait for the root"), f"`phub promote {one}` \\(or {three}\\)")
        holds(boxes[3].logged("jobs here wait for the root"), f"`phub promote {three}` \\(or {one}\\)")
        holds(looks("jobs", two), f"spread: WAITS for the root: if the root is dead, `phub promote {one}`")
        holds(looks("jobs", "--json", two), '"advice": ?"if the root is dead', '"strangers_refused": ?0')
        holds(looks("boxes", "--racks", path, status=1), "b0 .* NOT UP",
              f"\nno box that is up is the root; if it is dead, `phub promote {one}` \\(or {three}\\)")
        seen = [json.loads(line) for line in looks("boxes", "--racks", path, "--json", status=1).splitlines()]
        check([(box["root"], box["promotable"]) for box in seen] == [(False, False), (False, True), (False, False), (False, True)],
              f"{seen}")
        for worker in workers:
            worker.failed("EOWNERDEAD", f"if the root is dead, `phub promote ({one}|{three})` .* makes another box the root")
        for box in boxes[1:]:
            text = box.err.text()
            check("stranger" not in text and "above it is" not in text, text)
        promote(boxes[3])
        check(f"promote" not in looks("boxes", "--racks", path, status=1), "there is a root")
        for box in boxes[1:]:
            box.stop()


def refused():
    """What cannot be promoted says why, and what to do; with exit code 1, and 2 for wrong usage"""
    with tempfile.TemporaryDirectory() as folder:
        etcd = {"etcd": "http://127.0.0.1:1", "box": "me"}
        nowhere, secret = f"127.0.0.1:{rig.free_port()}", pathlib.Path(folder) / "secret"
        secret.write_text("0123456789abcdef")
        secret.chmod(0o600)
        for options, said in (({"uplink": nowhere}, "it has no checkpoint_targets: jobs would begin anew"),
                              ({"root": "top", **etcd}, "the lease in etcd decides which box is the root 'top'"),
                              ({"uplink": "etcd:top", **etcd}, "which etcd knows as 'top'; set root there and here"),
                              ({"uplink": nowhere, "checkpoint_targets": folder, "listen": "0.0.0.0:0", "create": "secret",
                                "create_secret_file": secret}, "listens at all addresses; name it by")):
            box = Box(**options)
            holds(promote(box if "listen" not in options else f"127.0.0.1:{box.port}", status=1), said)
            box.stop()
        holds(promote(nowhere, status=1), "no box listens at")
        done = subprocess.run([PHUB, "promote"], capture_output=True, text=True, env=rig.QUIET)
        check(done.returncode == 2, f"{done}")
        holds(done.stderr, "which box")
        holds(promote("a/b", status=2), "is no address of a box")


def damaged():
    """A file that is not whole is taken for none by nobody: a box does not start, and is not promoted, until it is removed"""
    with tempfile.TemporaryDirectory() as folder:
        racks = Racks(folder)
        racks.lose()
        file = pathlib.Path(folder) / ".phub.root"
        file.write_text("phub root 1\nepoch 9\n")
        holds(promote(racks.two, status=1), f"{file} is damaged")
        keeps = f"checkpoint_targets={folder}"
        holds(starts_not(keeps), f"{file} is damaged, which says which box is the root; .* remove it")
        file.unlink()
        promote(racks.two)
        # Who has the locks, and is not named there: another box's directory by mistake.
        file.unlink()
        holds(starts_not(keeps), "is another phubd's, which runs")
        racks.stop(racks.one)
        # Another is the root, and nothing says where; or this one cannot be below it.
        write(folder, 5, "-")
        holds(starts_not(keeps), "another box is the root, of epoch 5, and not where; set uplink to that one")
        box = Box(checkpoint_targets=folder, uplink=f"127.0.0.1:{rig.free_port()}")
        box.logged("and not where; set uplink to that one; it may be there")
        write(folder, 6, "127.0.0.1:9")
        box.logged("the root is the box at 127.0.0.1:9 now, of epoch 6, as checkpoint_targets say")
        box.stop()
        holds(starts_not(keeps, "standby=127.0.0.1:9"), "which a box with a standby cannot be: take standby away")


def unlocked():
    """Where targets cannot be locked a first root starts with a warning, and one that was promoted only with the locks that promotion
    asks for; a box whose uplink is in etcd needs none"""
    with tempfile.TemporaryDirectory() as folder:
        targets = [pathlib.Path(folder) / str(i) for i in range(3)]
        for target in targets:
            target.mkdir()
        for target in targets[:2]:
            (target / ".phub.lock").mkdir()
        place = f"127.0.0.1:{rig.free_port()}"
        keeps = {"checkpoint_targets": ",".join(map(str, targets)), "checkpoint_parity": 1, "listen": place}
        box = Box(**keeps)
        box.logged("see that no other box has its checkpoints there")
        box.stop()
        for target in targets:
            write(target, 3, place)
        holds(starts_not(*(f"{key}={value}" for key, value in keeps.items())), "2 of 3 checkpoint_targets cannot be locked")
        (targets[0] / ".phub.lock").rmdir()
        box = Box(**keeps)
        box.logged("this box is the root, of epoch 3")
        box.stop()
        (targets[2] / ".phub.root").unlink()
        root = Box(checkpoint_targets=targets[2])
        below = Box(box="below", etcd="http://127.0.0.1:1", uplink="etcd:top", checkpoint_targets=targets[2])
        holds(starts_not(f"checkpoint_targets={targets[2]}"), "is another phubd's, which runs")
        below.stop()
        root.stop()


CASES = [root_dies, lives, comes_again, deposed, strays, rack_file_finds_it, told, refused, damaged, unlocked]

if __name__ == "__main__":
    rig.run(CASES)
