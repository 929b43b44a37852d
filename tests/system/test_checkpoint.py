#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for disks that are slow on purpose
"""phub checkpoint over files that a unit test's writer made: what is there, what is whole, repaired copies, and exports
that NumPy loads."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import struct
import subprocess
import tempfile
import time

import rig
from rig import check, holds

PHUB = rig.BUILD / "phub"
SLOW = rig.BUILD / "tests/system/slow_disk.so"
WRITER = rig.BUILD / "tests/units"
ISAL = b"libisal" in PHUB.read_bytes() if PHUB.exists() else False
# As checkpoint_rig_job() has them: element i of array a of key k is (k * 3 + a) * 65536 + i.
KEYS = [("embed.weight", 5000), ("layers/0.weight", 20000), ("layers/0.bias", 10), ("one", 1),
        ('half "quoted" \u00e4', 300), ("last", 17000)]


def phub(*words, status=0):
    done = subprocess.run([PHUB, "checkpoint", *(str(word) for word in words)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET, check=False)
    check(done.returncode == status, f"phub checkpoint {words}: exit code {done.returncode}, not {status}: {done.stderr}")
    return done.stdout, done.stderr


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def folders(count):
    with tempfile.TemporaryDirectory(prefix="phub-checkpoint-") as root:
        made = [pathlib.Path(root) / f"d{i}" for i in range(count)]
        for folder in made:
            folder.mkdir()
        yield made


def write(job, before, parity, where):
    subprocess.run([WRITER, "test_checkpoint_files", job, str(before), str(parity), *where], check=True)


def the_file(folder, job="mnist"):
    found = sorted((folder / job).glob("*.phub"))
    check(len(found) == 1, f"{folder}: {found}")
    return found[0]


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def need_parity():
    if not ISAL:
        raise rig.Skip("this build has no ISA-L, and so no parity")


def empty():
    """nothing there: ls says so, all else fails; folders that are not there"""
    with folders(1) as where:
        check(phub("ls", *where)[0] == "no checkpoints\n", "ls")
        check(phub("ls", "--json", *where)[0] == "", "ls --json")
        holds(phub("verify", *where, status=1)[1], "no checkpoint")
        holds(phub("export", "--to", where[0] / "x.npz", *where, status=1)[1], "no checkpoint")
        holds(phub("export", "--to", where[0] / "x.npz", "--job", "x", *where, status=1)[1], "'x' has no checkpoint")
        holds(phub("ls", where[0] / "none", status=1)[1], "No such file")
        holds(phub("ls", where[0] / "none", where[0])[1], "No such file")


def usage():
    """what is not understood ends with 2"""
    for words, answer in [(["ls"], "which directory"), (["export", "/tmp"], "--to FILE"), ([], "which command"),
                          (["export", "--to", "x.zip", "/tmp"], r"\.safetensors"), (["restore", "/tmp"], "--to"),
                          (["list"], "phub checkpoint ls"), (["restore", "--parity", "32", "--to", "a", "/tmp"], "0 to 31")]:
        holds(phub(*words, status=2)[1], answer)


def listed():
    """several jobs and rounds, the last written first; --job and --round"""
    with folders(1) as where:
        for before in (10, 20):
            write("a b", before, 0, where)
        write("mnist", 7, 0, where)
        out, _ = phub("ls", *where)
        holds(out, "job +round +written", r"a b +20 .*\n.*a b +10 .*1 of 1\+0  whole\n.*mnist +7 ")
        found = lines(phub("ls", "--json", *where)[0])
        check([(f["job"], f["round"]) for f in found] == [("a b", 20), ("a b", 10), ("mnist", 7)], f"{found}")
        check(list(found[0]) == ["job", "round", "id", "written_s", "bytes", "pieces", "k", "m", "state"], f"{found[0]}")
        check(abs(found[2]["written_s"] - time.time()) < 100 and found[0]["bytes"] == sum(
            f.stat().st_size for f in (where[0] / "a%20b").glob("20.*")), f"{found}")
        check(len(lines(phub("ls", "--json", "--job", "a b", "--round", 10, *where)[0])) == 1, "--job, --round")
        check([v["verdict"] for v in lines(phub("verify", "--json", *where)[0])] == ["good"] * 3, "verify")
        holds(phub("export", "--to", where[0] / "x.npz", *where, status=1)[1], "'a b' and 'mnist'.*--job")
        cut = next((where[0] / "a%20b").glob("20.*"))
        cut.write_bytes(cut.read_bytes()[:-1])
        found = lines(phub("ls", "--json", "--job", "a b", *where)[0])
        check([(f["round"], f["state"]) for f in found] == [(20, "torn"), (10, "whole")] or
              [(f["round"], f["state"]) for f in found] == [(10, "whole"), (20, "torn")], f"{found}")
        out, err = phub("verify", "--job", "a b", *where, status=1)
        holds(out, "a b +20 .*lost", "a b +10 .*good")
        holds(err, "round 20: .*bytes instead of")
        # What is torn is passed over.
        holds(phub("export", "--job", "a b", "--to", where[0] / "x.npz", *where)[0], "'a b' round 10")


def removed():
    """rm takes the job's checkpoints, marks and directories, and nobody else's; not without a word"""
    with folders(2) as (first, second):
        for before in (10, 20):
            write("a b", before, 0, [first])
        write("mnist", 7, 0, [first])
        holds(phub("rm", first, status=2)[1], "--job")
        holds(phub("rm", "--job", "none", "--yes", first, status=1)[1], "'none' has no such checkpoint")
        holds(phub("rm", "--job", "a b", first, status=1)[1], "nothing was removed: .*--yes")
        check(len(lines(phub("ls", "--json", first)[0])) == 3, "removed without --yes")
        holds(phub("rm", "--job", "a b", "--round", 20, "--yes", first)[0], "a b +20 ")
        check([(f["job"], f["round"]) for f in lines(phub("ls", "--json", first)[0])] == [("a b", 10), ("mnist", 7)], "--round")
        (first / "a%20b/finished").write_text("x")
        (first / "a%20b/30.00000000000000ab.0.phub.part").write_text("x")
        holds(phub("rm", "--job", "a b", "--yes", first, second / "away", status=1)[1], "1 of the directories cannot be looked into")
        check([f.name for f in first.iterdir()] == ["mnist"], f"{list(first.iterdir())}")


def rotten():
    """a bit that fell over is found, and named"""
    with folders(1) as where:
        write("mnist", 7, 0, where)
        flip(the_file(where[0]), 50000)
        check(lines(phub("ls", "--json", *where)[0])[0]["state"] == "whole", "ls looks at headers alone")
        out, err = phub("verify", "--json", *where, status=1)
        verdict = lines(out)[0]
        check(list(verdict) == ["job", "round", "verdict", "chunks", "chunks_lost", "stripes", "stripes_bad",
                                "files_missing", "tables_bad", "targets"], f"{verdict}")
        check(verdict["verdict"] == "lost" and verdict["chunks_lost"] == 1 and verdict["stripes_bad"] == 1, f"{verdict}")
        holds(err, "chunk [0-9]+ is lost: 0 of its 1 stripes")
        holds(phub("export", "--to", where[0] / "x.npz", *where, status=1)[1], "chunk [0-9]+ is lost")
        check([p.name for p in where[0].iterdir()] == ["mnist"], "something is left of the export")


def mended():
    """2+2: a disk gone and another rotten; a repaired copy in another shape"""
    need_parity()
    with folders(7) as where:
        old, new = where[:4], where[4:]
        write("mnist", 7, 2, old)
        shutil.rmtree(old[0])
        flip(the_file(old[1]), 20000)
        holds(phub("ls", *old)[0], r"3 of 2\+2  short")
        out, err = phub("verify", "--json", *old, status=1)
        holds(err, f"'mnist' round 7 is damaged: {old[0]} has no whole file of it, {old[1]} has bad stripes \\(1\\) "
              "\\([0-9]+ of its [0-9]+ stripes are bad, 1 files are missing, 0 tables",
              f"restore --job 'mnist' --round 7 --parity 2 --to DIR1 --to DIR2 --to DIR3 --to DIR4 '{old[0]}' .*'{old[3]}'`")
        verdict = lines(out)[0]
        check([(t["has_file"], t["stripes_bad"]) for t in verdict["targets"]] == [(False, 0), (True, 1), (True, 0), (True, 0)],
              f"{verdict}")
        check(verdict["verdict"] == "damaged" and verdict["stripes_bad"] == verdict["chunks"] + 1, f"{verdict}")
        holds(phub("restore", "--parity", 1, "--to", new[0], "--to", new[1], "--to", new[2], *old)[0],
              f"round 7: {verdict['chunks']} chunks, {verdict['chunks'] + 1} stripes repaired, in 3 files")
        check(lines(phub("verify", "--json", *new)[0])[0]["verdict"] == "good", "the copy")
        # In place: one more, and the newest.
        old[0].mkdir()
        phub("restore", "--parity", 2, *(w for d in old for w in ("--to", d)), *old)
        found = lines(phub("ls", "--json", *old)[0])
        check([f["state"] for f in found] == ["whole", "short"], f"{found}")
        # One target that cannot be written is made up for, but told.
        out, err = phub("restore", "--parity", 1, "--to", new[0], "--to", where[0] / "none", *old, status=1)
        holds(err, "none: No such file")
        holds(out, "in 1 files")
        # One more loss than there is parity for.
        shutil.rmtree(new[0])
        shutil.rmtree(new[1])
        check(lines(phub("ls", "--json", *new)[0])[0]["state"] == "torn", "torn")
        holds(phub("restore", "--to", old[0], *new, status=1)[1],
              "no checkpoint here that can be read: .* 1 of 3 files are here, and 2 are needed")


def stopped():
    """Ctrl-C in the middle of a copy leaves nothing of it"""
    with folders(2) as (old, new):
        write("mnist", 7, 0, [old])
        command = rig.Process("restore", [PHUB, "checkpoint", "restore", "--rate", "1000", "--to", new, old])
        until = time.monotonic() + rig.DEADLINE_S
        while not list(new.glob("*/*.part")) and time.monotonic() < until:
            time.sleep(0.02)
        check(list(new.glob("*/*.part")), "it never began")
        command.kill(signal.SIGINT)
        check(command.wait() == 1, "exit code")
        holds(command.err.text(), "stopped")
        check(not list(new.iterdir()), f"left: {list(new.rglob('*'))}")


def read_safetensors(path):
    """{name: (elements, floats)} by the format's own rules."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    check(size % 8 == 0, "the header is not padded")
    head = json.loads(data[8:8 + size])
    meta = head.pop("__metadata__")
    check(meta == {"format": "pt", "job": "mnist", "round": "7"}, f"{meta}")
    found, end = {}, 0
    for name, entry in head.items():
        first, last = entry["data_offsets"]
        check(entry["dtype"] == "F32" and first == end and last - first == 4 * entry["shape"][0], f"{name}: {entry}")
        found[name] = struct.unpack(f"<{entry['shape'][0]}f", data[8 + size + first:8 + size + last])
        end = last
    check(end == len(data) - 8 - size, "bytes behind the arrays")
    return found


def check_arrays(found, arrays):
    wanted = [name + (f".state{a - 1}" if a else "") for name, _ in KEYS for a in range(arrays)]
    check(list(found) == wanted, f"{list(found)}")
    for k, (name, elements) in enumerate(KEYS):
        for a in range(arrays):
            array = found[name + (f".state{a - 1}" if a else "")]
            first = (k * 3 + a) * 65536
            check(len(array) == elements and all(v == first + i for i, v in enumerate(array)), f"{name} {a}")


def exported():
    """every element of weights and state, from a checkpoint that has lost a file"""
    with folders(3 if ISAL else 1) as where:
        write("mnist", 7, 1 if ISAL else 0, where)
        if ISAL:
            shutil.rmtree(where[0])
        to = where[-1] / "x.safetensors"
        holds(phub("export", "--to", to, *where)[0], "6 keys, 3 arrays each")
        check_arrays(read_safetensors(to), 3)
        phub("export", "--weights", "--to", to, *where)
        check_arrays(read_safetensors(to), 1)
        check(not list(where[-1].glob("*.part")), "a part is left")
        holds(phub("export", "--to", where[-1] / "none" / "x.npz", *where, status=1)[1], "No such file")


def exported_to_numpy():
    """the same as .npz, by numpy and by zipfile's own check"""
    try:
        import numpy
    except ImportError:
        raise rig.Skip("no python3-numpy") from None
    with folders(1) as where:
        write("mnist", 7, 0, where)
        to = where[0] / "x.npz"
        for words, arrays in (([], 3), (["--weights"], 1)):
            phub("export", *words, "--to", to, *where)
            with numpy.load(to) as loaded:
                found = {name: loaded[name] for name in loaded}
            check(all(a.dtype == numpy.float32 and a.ndim == 1 for a in found.values()), "dtypes")
            check_arrays(found, arrays)
            out = subprocess.run(["/usr/bin/python3", "-m", "zipfile", "-t", to], capture_output=True, text=True, check=True)
            check(not re.search("bad|corrupt", out.stdout, re.I), out.stdout)


def exported_to_a_model():
    """what phub(1) says to give flat arrays the shapes of a model's parameters"""
    try:
        import numpy
        import torch
    except ImportError as e:
        raise rig.Skip(f"{e} (Debian: apt install python3-torch, and run /usr/bin/python3)") from None
    with folders(1) as where:
        write("mnist", 7, 0, where)
        to = where[0] / "model.npz"
        phub("export", "--weights", "--to", to, *where)
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(50, 100), "norm": torch.nn.BatchNorm1d(3, affine=False)})
        manual = (rig.ROOT / "deploy/man/phub.1").read_text()
        told = [line.removeprefix(".Dl ").replace("\\ ", " ") for line in manual.splitlines()
                if re.match(r"\.Dl (arrays|state|model)\b", line)]
        check(len(told) == 3, f"phub.1 says {told}")
        exec("\n".join(told).replace('"model.npz"', "to"), {"numpy": numpy, "torch": torch, "model": model, "to": to})
        flat = numpy.load(to)["embed.weight"]
        check(flat.shape == (5000,) and (model["embed"].weight.detach().numpy().ravel() == flat).all(), "the model has other weights")


class Slow:
    """A box whose disk does not answer while `shut` is there, and jobs that it keeps."""

    def __init__(self, folder):
        self.shut = folder / "shut"
        self.targets = folder / "targets"
        self.targets.mkdir()
        env = {**rig.QUIET, "LD_PRELOAD": str(SLOW), "PHUB_TEST_SLOW_DISK": str(self.shut),
               "ASAN_OPTIONS": "verify_asan_link_order=0"}
        self.box = rig.Box(cores=2, checkpoint_targets=self.targets, checkpoint_every=20, env=env)

    def worker(self, name, rounds, **more):
        return rig.Worker(self.box.url(name), keys="a:50000", rounds=rounds, report_ms=100, pause_us=2000, transport="tcp",
                          **more)

    def close_disk(self):
        """And a checkpoint is being written to it."""
        self.shut.touch()
        self.box.logged("slow disk")


def slow_disk():
    """a disk that does not answer: other jobs, newcomers and operators do not notice, and the next job of that name waits"""
    with folders(1) as (folder,):
        slow = Slow(folder)
        tenant = slow.worker("tenant", "until-told", optimizer="none")
        first = slow.worker("kept", "until-told", optimizer="adam")
        tenant.event("progress")
        slow.box.logged("'kept': checkpoint before round")
        slow.close_disk()
        first.kill()
        slow.box.logged("job 'kept' ended")
        second = slow.worker("kept", "until-told", optimizer="adam")
        slow.box.logged("'kept' waits for the disk")
        subprocess.run([PHUB, "jobs", slow.box.address], check=True, capture_output=True, timeout=rig.DEADLINE_S, env=rig.QUIET)
        slow.worker("newcomer", 3, optimizer="none").good()
        time.sleep(12)  # more than workers wait for a box that is silent
        with tenant.out.changed:
            tenant.seen = len(tenant.out.lines)
        for _ in range(3):
            tenant.event("progress")  # all of this while the disk does not answer
        slow.box.logged("'kept' has ended, and a disk is still at its last checkpoint")
        check(second.running() and not re.search("progress", "".join(second.out.lines)), "it began over the one before")
        slow.shut.unlink()
        second.event("progress")
        second.tell()
        second.good()
        holds(slow.box.err.text(), "'kept' goes on from its checkpoint")
        tenant.tell()
        tenant.good()
        slow.box.stop()


def slow_end():
    """a box that goes down does not wait for such a disk for ever, and says so"""
    with folders(1) as (folder,):
        slow = Slow(folder)
        worker = slow.worker("kept", "until-told", optimizer="adam")
        worker.event("progress")
        slow.close_disk()
        slow.box.stop()
        holds(slow.box.err.text(), "'kept': a disk did not answer for 10 s: its last checkpoint is not whole")
        worker.kill()


def full_disk():
    """a disk that has no room: said at once, not when the slow round that is being copied has come to its end"""
    with folders(1) as (folder,):
        (folder / "targets").mkdir()
        box = rig.Box(config="jobs:\n  - {name: slow, bandwidth: 1MiB}\n", cores=2, checkpoint_targets=folder / "targets",
                      checkpoint_every=1,
                      env={**rig.QUIET, "LD_PRELOAD": str(SLOW), "PHUB_TEST_FULL_DISK": str(folder / "full"),
                           "ASAN_OPTIONS": "verify_asan_link_order=0"})
        (folder / "full").touch()
        worker = rig.Worker(box.url("slow"), keys="a:4000000", optimizer="adam", rounds=1000000, transport="tcp")
        box.logged("full disk")
        box.logged("'slow': no checkpoint: .*No space left on device; the job goes on", deadline_s=10)  # the round takes 15 s
        worker.kill()
        box.stop()


def full_at_start():
    """a disk that is full when the box starts, of which a name can be made and no byte: told, and by --check-config refused"""
    with folders(1) as (folder,):
        (folder / "full").touch()
        (folder / "targets").mkdir()
        env = {**rig.QUIET, "LD_PRELOAD": str(SLOW), "PHUB_TEST_FULL_DISK": str(folder / "full"),
               "ASAN_OPTIONS": "verify_asan_link_order=0"}
        words = f"no checkpoint can be written to {folder / 'targets'}: No space left on device; make room there"
        done = subprocess.run([rig.PHUBD, "--check-config", f"--checkpoint_targets={folder / 'targets'}"], capture_output=True, text=True,
                              timeout=rig.DEADLINE_S, env=env, check=False)
        check(done.returncode == 1, f"{done.stdout}")
        holds(done.stderr, words)
        box = rig.Box(checkpoint_targets=folder / "targets", env=env)
        box.logged(f"warn .*{words}. Jobs go on from what is there")
        box.stop()


def lacking():
    """a target that is lost while a job runs: phub jobs and phub doctor say which, and how many more may be; and rm of a job that runs does nothing"""
    need_parity()

    def ask(*words):
        return subprocess.run([PHUB, *words, box.address], capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET,
                              check=False).stdout

    def wait_for(count):
        while True:
            found = next(job for job in lines(ask("jobs", "--json")) if job.get("job") == "kept")["checkpoint"]
            if found and found["done"] > 0 and found["lacking"] == count:
                return found
            time.sleep(0.05)

    with folders(3) as where:
        box = rig.Box(cores=1, checkpoint_targets=",".join(map(str, where)), checkpoint_parity=1, checkpoint_every=5)
        worker = rig.Worker(box.url("kept"), keys="a:20000", optimizer="adam", rounds=1000000, pause_us=20000, transport="tcp")
        worker.event("started")
        wait_for(0)
        where[2].rename(where[2].with_name("away"))  # at once: one is being written there
        found = wait_for(1)
        check(found["targets"] == 3 and found["parity"] == 1 and str(where[2]) in found["lacking_why"], f"{found}")
        holds(ask("jobs"), rf"kept: its checkpoints LACK 1 of 3 targets since [\d.]+ s, and may lack 1: .*{where[2]}: No such file")
        holds(ask("doctor"), "warn .*job kept: its checkpoints lack 1 of 3 targets since")
        box.logged(f"1 of 3 targets could not be written: .*{where[2]}.*parity makes up for it, but not for one more")
        holds(phub("rm", "--job", "kept", "--yes", *where[:2], status=1)[1], f"nothing was removed: job 'kept' runs at box {box.address}")
        where[2].mkdir()
        wait_for(0)
        box.logged("its checkpoints are in all 3 targets again")
        worker.kill()
        box.stop()


def as_they_come():
    """quick rounds: jobs and the log say what is, not what is wanted; and count rounds as the checkpoints do, after a restart too"""
    def ask():
        return next(job for job in lines(subprocess.run([PHUB, "jobs", "--json", box.address], check=True, capture_output=True, text=True,
                                                        timeout=rig.DEADLINE_S, env=rig.QUIET).stdout) if "job" in job)

    with folders(1) as (folder,):
        options = {"cores": 1, "checkpoint_targets": folder, "checkpoint_every": 2}
        job = {"keys": "a:3000", "optimizer": "adam", "transport": "tcp", "pause_us": 2000, "rounds": 1000000}
        box = rig.Box(**options)
        worker = rig.Worker(box.url("train"), **job)
        while len(re.findall("checkpoint before round", box.err.text())) < 6:
            time.sleep(0.05)
        asked = []
        for _ in range(7):  # one of them may be told when a single interval was odd
            asked.append(ask()["checkpoint"])
            time.sleep(0.25)
        found = asked[-1]
        text = subprocess.run([PHUB, "jobs", box.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S,
                              env=rig.QUIET).stdout
        while len(re.findall("checkpoint before round",
                             box.err.text())) < found["done"] + 2:  # jobs told of one that was still written, too
            time.sleep(0.05)
        at = [int(number) for number in re.findall(r"checkpoint before round (\d+) written", box.err.text())]
        told = statistics.median(one["interval"] for one in asked if one["interval"])
        apart = statistics.median(b - a for a, b in zip(at, at[1:]))
        check(found["wanted"] == 2 and told > 2 and found["fixed"], f"{asked}")
        check(apart / 2 < told < 2 * apart, f"{at} {asked}")
        holds(text, rf"one in \d+ as they come \(checkpoint_every is 2\)", r"KiB in \d+ ms")
        took = [float(ms) for ms in re.findall(r"written: [\d.]+ KiB in ([\d.]+) ms", box.err.text())]
        check(len(took) >= 6 and len(set(took)) > 1 and min(took) < 90, f"only the timer's tick is told: {took}")
        box.kill()
        box.wait()
        worker.kill()
        box = rig.Box(**options)
        rig.Worker(box.url("train"), **job)
        box.logged("checkpoint before round .* written")
        found = ask()
        check(abs(found["rounds"] - found["checkpoint"]["last"]["round"]) < 200 and found["rounds"] > at[-1],
              f"two counts of rounds: {found['rounds']}, {found['checkpoint']['last']}, {at}")
        box.stop()


def came_back():
    """a target that was away brings the mark of a job that ended long ago: newer checkpoints are gone on from"""
    need_parity()
    with folders(3) as where:
        options = {"cores": 2, "checkpoint_targets": ",".join(map(str, where)), "checkpoint_parity": 1, "checkpoint_every": 20}
        job = {"keys": "a:50000", "optimizer": "adam", "transport": "tcp", "pause_us": 2000}
        box = rig.Box(**options)
        rig.Worker(box.url("train"), rounds=100, **job).good()
        box.stop()
        check(all((folder / "train/finished").exists() for folder in where), "no mark")
        where[2].rename(where[2].with_suffix(".away"))
        box = rig.Box(**options)
        worker = rig.Worker(box.url("train"), rounds=1000000, **job)
        box.logged("'train' begins anew")
        box.logged("1 of 3 targets could not be written.*parity makes up for it")
        while box.err.text().count("checkpoint before round") < 4:
            time.sleep(0.05)
        check(box.err.text().count("could not be written") == 1, "said again and again")
        box.kill()
        box.wait()
        worker.kill()
        where[2].with_suffix(".away").rename(where[2])
        box = rig.Box(**options)
        rig.Worker(box.url("train"), rounds=20, **job)
        box.logged("train' (goes on|begins anew)")
        holds(box.err.text(), "'train' goes on from its checkpoint before round")
        box.stop()


def refused(*options, only_check=False):
    """What phubd says to these: the same at a start and by --check-config."""
    said = set()
    for words in ([["--check-config"]] if only_check else [["--check-config"], []]):
        done = subprocess.run([rig.PHUBD, "--listen", "127.0.0.1:0", *words, *options], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=rig.DEADLINE_S, env=rig.QUIET, check=False)
        check(done.returncode == 1, f"{words} {options}: exit code {done.returncode}: {done.stdout} {done.stderr}")
        said.add(done.stderr.splitlines()[-1])
    check(len(said) == 1, f"{options}: {said}")
    return said.pop()


def targets_are_tried():
    """phubd and --check-config refuse targets that cannot bear a checkpoint, and leave nothing in those that can"""
    with folders(3) as (first, second, third):
        file = third / "file"
        file.touch()
        for targets, words in (("/nonexistent", "/nonexistent: No such file or directory; make that directory"),
                               ("/proc", "no checkpoint can be written to /proc"), (file, "Not a directory; name a directory"),
                               ("relative/x", "'relative/x' is no path from the root"),
                               (f"{first},{second}", "2 directories without parity")):
            holds(refused(f"--checkpoint_targets={targets}"), f"checkpoint_targets: .*{words}")
        link = third / "link"
        link.symlink_to(first)
        if ISAL:
            for targets, words in ((f"{first},{first}", "given twice"), (f"{first},{link}", "are the same directory"),
                                   ("/proc,/sys", "no checkpoint can be written to /proc")):
                holds(refused(f"--checkpoint_targets={targets}", "--checkpoint_parity=1"), words)
        holds(refused(f"--checkpoint_targets={first}", "--checkpoint_parity=1"), "a parity of 1 in 1 directory")
        holds(refused("--checkpoint_parity=1"), "checkpoint_parity: 1 without checkpoint_targets")
        done = subprocess.run([rig.PHUBD, "--check-config", f"--checkpoint_targets={first}"], capture_output=True, text=True,
                              timeout=rig.DEADLINE_S, env=rig.QUIET, check=False)
        check(done.returncode == 0 and not list(first.iterdir()), f"{done.stderr} {list(first.iterdir())}")
        if ISAL:  # a disk that died must not keep the box from what parity saves
            options = {"checkpoint_targets": f"{first},/nonexistent,{second}", "checkpoint_parity": 1}
            holds(refused(*(f"--{name}={value}" for name, value in options.items()), only_check=True), "to /nonexistent")
            box = rig.Box(**options)
            box.logged("warn .*to /nonexistent: .*Parity makes up for it")
            check("cannot be locked" not in box.err.text(), "advice about a lock, of a directory that is not there")
            box.stop()


def targets_of_one_box():
    """a second box does not start where another has its checkpoints; --check-config may be asked; a box that died leaves no lock"""
    with folders(2) as (first, second):
        box = rig.Box(checkpoint_targets=first)
        link = second / "link"
        link.symlink_to(first)
        for name in (first, link):
            done = subprocess.run([rig.PHUBD, "--listen", "127.0.0.1:0", f"--checkpoint_targets={name}"], capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=rig.DEADLINE_S, env=rig.QUIET, check=False)
            check(done.returncode == 1, f"a second box starts: {done.stderr}")
            holds(done.stderr, f"checkpoint_targets: {name} is another phubd's, which runs .*directories of its own, or stop the other")
        done = subprocess.run([rig.PHUBD, "--check-config", f"--checkpoint_targets={first}"], capture_output=True, text=True,
                              timeout=rig.DEADLINE_S, env=rig.QUIET, check=False)
        check(done.returncode == 0, f"--check-config beside a box: {done.stderr}")
        other = rig.Box(checkpoint_targets=second)
        other.stop()
        box.kill()
        box.wait()
        box = rig.Box(checkpoint_targets=first)
        box.stop()


def targets_of_the_user():
    """root's phubd tries the targets as the user that it becomes"""
    if os.geteuid() != 0:
        raise rig.Skip("needs root, to become another user")
    with folders(1) as (folder,):
        folder.parent.chmod(0o755)
        options = [f"--checkpoint_targets={folder}", "--user=nobody"]
        holds(refused(*options), "Permission denied; give it to the user that phubd runs as")
        shutil.chown(folder, "nobody")
        done = subprocess.run([rig.PHUBD, "--check-config", *options], capture_output=True, text=True, timeout=rig.DEADLINE_S,
                              env=rig.QUIET, check=False)
        check(done.returncode == 0, done.stderr)


CASES = [
    slow_disk, slow_end, full_disk, full_at_start, lacking, as_they_come, came_back, targets_are_tried, targets_of_one_box,
    targets_of_the_user, empty, usage, listed, removed, rotten, mended, stopped, exported,
    exported_to_numpy, exported_to_a_model,
]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() and WRITER.exists() else f"{PHUB} or {WRITER} is not there (make)")
