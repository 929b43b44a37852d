#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training that outlives its workers and its box: processes are killed in mid-epoch, others take their place.

This process only forks: whatever computes runs in workers, so that no thread of torch is lost at a fork.
"""

import functools
import hashlib
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

import python_rig as rig

try:
    import torch
except ImportError as e:
    rig.skip(f"{e} (Debian: apt install python3-torch, and run /usr/bin/python3)")

import warnings

import numpy

import phub
import phub.torch

torch.set_num_threads(1)
warnings.simplefilter("ignore")
WORLD = 3
STEPS = 60
PAUSE_S = 0.01
DEADLINE_S = 120
KILLS = int(os.environ.get("KILLS") or 3)


def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 64), torch.nn.ReLU(),
                               torch.nn.Linear(64, 10))


def batch_of(step, rank):
    """What this rank sees in this step, whoever it is and whatever came before."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    images = torch.randn(8, 64, generator=generator)
    return images, (images[:, :9].sum(1).abs() * 3 % 10).long()


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def train(rank, url, at, pipe, options, total):
    """One worker: (first step, steps done, digest of the weights). `at[rank]` tells how far it is."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        net = make_net()
        optimizer = phub.torch.DistributedOptimizer(net, "momentum", url, rank=rank, world=WORLD, lr=0.05, momentum=0.9,
                                                    timeout=20, **options)
        first, count = optimizer.steps, 0
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)  # each rate follows from the last one
        for step in phub.torch.steps(optimizer, total, seed=3, scheduler=schedule):
            images, labels = batch_of(step, rank)
            torch.nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            count += 1
            at[rank] = optimizer.steps
            time.sleep(PAUSE_S)
        pipe.send_bytes(pickle.dumps((first, count, digest(net))))
        optimizer.close()
    except BaseException as e:  # noqa: B902 - told to the test
        pipe.send_bytes(pickle.dumps(e if isinstance(e, Exception) else RuntimeError(repr(e))))
    finally:
        pipe.close()


class Job:
    """Workers of one job, each a process."""

    def __init__(self, url, total=STEPS, **options):
        self.url, self.total, self.options = url, total, options
        self.at = rig.fork.Array("q", WORLD)
        self.running = {}
        self.ended = []
        for rank in range(WORLD):
            self.start(rank)

    def start(self, rank):
        ours, theirs = rig.fork.Pipe(duplex=False)
        process = rig.fork.Process(target=train, args=(rank, self.url, self.at, theirs, self.options, self.total))
        process.start()
        theirs.close()
        self.running[rank] = (process, ours)

    def kill(self, rank):
        process, pipe = self.running.pop(rank)
        process.kill()
        process.join()
        pipe.close()

    def until(self, rank, step):
        """Waits until the rank has done so many steps."""
        deadline = time.monotonic() + DEADLINE_S
        while self.at[rank] < step:
            assert time.monotonic() < deadline, f"rank {rank} is at step {self.at[rank]}, not {step}"
            time.sleep(0.005)

    def results(self):
        """What each worker returned, by rank."""
        deadline = time.monotonic() + DEADLINE_S
        results = {}
        for rank, (process, pipe) in self.running.items():
            assert pipe.poll(max(0, deadline - time.monotonic())), f"rank {rank} does not end; steps {list(self.at)}"
            results[rank] = pickle.loads(pipe.recv_bytes())
            pipe.close()
            process.join(10)
            if isinstance(results[rank], Exception):
                raise AssertionError(f"rank {rank}: {results[rank]}")
        return results

    def end(self):
        for process, _ in self.running.values():
            process.kill()
            process.join()


def outlives(box, name, lost, transport, victim):
    """One worker is killed in mid-epoch, and another takes its place some steps (shrink) or some time (wait) later."""
    job = Job(box.url(name), lost=lost, wait=30, transport=transport)
    try:
        job.until(victim, 15)
        job.kill(victim)
        others = [rank for rank in range(WORLD) if rank != victim]
        if lost == "shrink":
            job.until(others[0], 30)
        else:
            time.sleep(0.5)
            assert job.at[others[0]] < 30, "the job did not wait"
        job.start(victim)
        results = job.results()
    finally:
        job.end()
    first, count, _ = results[victim]
    assert 14 <= first < STEPS and count == STEPS - first, f"the new one began at step {first} and did {count}"
    assert all(results[rank][:2] == (0, STEPS) for rank in others), results
    assert len({weights for _, _, weights in results.values()}) == 1, f"the weights differ: {results}"


def test_shrink_shm(box):
    outlives(box, "shrink-shm", "shrink", "shm", 1)


def test_shrink_udp(box):
    outlives(box, "shrink-udp", "shrink", "udp", 2)


def test_shrink_loses_rank_0(box):
    outlives(box, "shrink-0", "shrink", "tcp", 0)


def test_wait_shm_loses_rank_0(box):
    outlives(box, "wait-0", "wait", "shm", 0)


def steps_on(box, lost, sync, transport, victim, staleness=0):
    """The same where each push is a step: what a worker has in the end depends on who came when, and is near the others'."""
    job = Job(box.url(f"{sync}-{lost}"), lost=lost, wait=30, transport=transport, sync=sync, staleness=staleness)
    others = [rank for rank in range(WORLD) if rank != victim]
    try:
        job.until(victim, 15)
        job.kill(victim)
        was = job.at[victim]
        if lost == "shrink" or sync == "async":
            for rank in others:
                job.until(rank, 35)
        else:
            time.sleep(0.5)
            assert max(job.at[rank] for rank in others) <= was + staleness + 2, f"the job did not wait: {list(job.at)}, {was}"
        job.start(victim)
        results = job.results()
    finally:
        job.end()
    first, count, _ = results[victim]
    assert count == STEPS - first, f"the new one began at step {first} and did {count}"
    assert (30 if lost == "shrink" else 0) <= first <= (STEPS if lost == "shrink" else was + 1), f"it began at step {first}"
    assert all(results[rank][:2] == (0, STEPS) for rank in others), results


def test_shrink_ssp(box):
    steps_on(box, "shrink", "ssp", "tcp", 1, staleness=2)


def test_wait_ssp_loses_rank_0(box):
    steps_on(box, "wait", "ssp", "shm", 0, staleness=2)


def test_shrink_async_udp(box):
    steps_on(box, "shrink", "async", "udp", 2)


def test_wait_async(box):
    steps_on(box, "wait", "async", "tcp", 1)


def test_two_at_once(box):
    job = Job(box.url("two"), lost="shrink")
    try:
        job.until(2, 10)
        job.kill(0)
        job.kill(2)
        job.until(1, 25)
        job.start(2)
        job.start(0)
        results = job.results()
    finally:
        job.end()
    assert len({weights for _, _, weights in results.values()}) == 1, f"the weights differ: {results}"


def test_nobody_takes_its_place(box):
    job = Job(box.url("alone"), lost="wait", wait=1)
    try:
        job.until(2, 10)
        job.kill(2)
        begun = time.monotonic()
        for rank, (process, pipe) in job.running.items():
            assert pipe.poll(15), "it hangs"
            error = pickle.loads(pipe.recv_bytes())
            assert isinstance(error, phub.Error) and "rank 2" in str(error) and "no other took its place" in str(error), error
            process.join(10)
        assert time.monotonic() - begun < 8
    finally:
        job.end()


def test_fail_is_the_default(box):
    job = Job(box.url("default"))
    try:
        job.until(2, 10)
        job.kill(2)
        for process, pipe in job.running.values():
            assert pipe.poll(15), "it hangs"
            error = pickle.loads(pipe.recv_bytes())
            assert isinstance(error, phub.Error) and "rank 2" in str(error), error
            process.join(10)
    finally:
        job.end()


# ---- what the operator sees, and does ----

def phub_jobs(address, *words, status=0):
    done = subprocess.run([rig.BUILD / "phub", "jobs", *words, "--json", address], capture_output=True, text=True,
                          timeout=DEADLINE_S, check=False)
    assert done.returncode == status, f"phub jobs {words}: {done.returncode}: {done.stderr}"
    return done.stderr if status else [json.loads(line) for line in done.stdout.splitlines()]


def seen(url, name, what):
    """The job's line when it is as wanted, which it must come to be."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = [line for line in phub_jobs(url.split("/")[2]) if line.get("job") == name]
        if found and what(found[0]):
            return found[0]
        assert time.monotonic() < deadline, f"never as wanted: {found}"
        time.sleep(0.1)


def drained(box, name, pause):
    """A job that waits for another in place of a worker is drained: it ends, and does not wait for that."""
    job = Job(box.url(name), lost="wait", wait=60, total=100000)
    address = box.url(name).split("/")[2]
    try:
        job.until(2, 10)
        job.kill(2)
        info = seen(box.url(name), name, lambda i: i["lost"])
        assert info["policy"] == "wait" and info["losses"] == 1 and info["joins"] == 0, info
        assert [lost["rank"] for lost in info["lost"]] == [2] and info["lost"][0]["since_ms"] < 1000 * DEADLINE_S, info
        if pause:
            phub_jobs(address, "pause", name, "--reason", "new disks")
            waiting = seen(box.url(name), name, lambda i: i["state"] == "paused")["waiting"]
            assert "paused it: new disks; rank 2 is lost, and the job ends in " in waiting, waiting
            assert "resume it first" in phub_jobs(address, "drain", name, status=1)
            phub_jobs(address, "resume", name)
        phub_jobs(address, "drain", name, "--reason", "new disks")
        for process, pipe in job.running.values():
            assert pipe.poll(15), f"it does not end: {seen(box.url(name), name, lambda i: True)}"
            error = pickle.loads(pipe.recv_bytes())
            assert isinstance(error, phub.Error) and "operator drained it: new disks" in str(error), error
            assert "but for those that wait for a worker that was lost" in str(error), error
            process.join(10)
    finally:
        job.end()


def test_drained_while_it_waits(box):
    drained(box, "drain-wait", False)


def test_drained_after_a_pause(box):
    drained(box, "drain-pause", True)


def test_operator_sees_who_comes_and_goes(box):
    job = Job(box.url("seen"), lost="shrink", quorum=2, total=100000)
    try:
        job.until(2, 10)
        job.kill(2)
        info = seen(box.url("seen"), "seen", lambda i: i["lost"])
        assert (info["policy"], info["quorum"], info["losses"], info["joins"]) == ("shrink", 2, 1, 0), info
        assert info["lost"][0]["rank"] == 2 and not info["lost"][0]["left"] and info["missing"] == [2], info
        assert info["checkpoint"] is None, info
        job.start(2)
        info = seen(box.url("seen"), "seen", lambda i: i["joins"] == 1)
        assert info["lost"] == [] and info["losses"] == 1, info
        info = seen(box.url("seen"), "seen", lambda i: i["late"] > 0)
        text = subprocess.run([rig.BUILD / "phub", "jobs", box.url("seen").split("/")[2]], capture_output=True, text=True,
                              timeout=DEADLINE_S, check=True).stdout
        assert "shrink, 2 of 3" in text and "seen: so far 1 lost, 1 came" in text and "late pushes were dropped" in text, text
    finally:
        job.end()


def test_operator_sees_checkpoints(box):
    with tempfile.TemporaryDirectory() as folder:
        mortal = Box(folder)
        url = f"phub://127.0.0.1:{mortal.port}/kept"
        job = Job(url, resume=30, total=100000)
        try:
            c = seen(url, "kept", lambda i: i["checkpoint"] and i["checkpoint"]["done"] > 1)["checkpoint"]
            assert c["wanted"] == 7 and c["interval"] >= 7 and c["due"] <= c["interval"], c
            assert c["fixed"] and c["allowed"] == 0.035 and c["error"] == "", c
            files = list(pathlib.Path(folder, "kept").glob("*.phub"))
            assert c["last"]["bytes"] == files[0].stat().st_size and c["last"]["round"] > 7, (c, files)
            assert c["last"]["age_ms"] < 20000 and c["last"]["took_ms"] < 20000, c
            for process, _ in job.running.values():
                os.kill(process.pid, signal.SIGSTOP)
            mortal.kill()
            mortal.start()
            for process, _ in job.running.values():
                os.kill(process.pid, signal.SIGCONT)
            again = seen(url, "kept", lambda i: i["checkpoint"] and i["checkpoint"]["last"])["checkpoint"]
            assert again["last"]["round"] >= c["last"]["round"], (c, again)
            shutil.rmtree(pathlib.Path(folder))
            failed = seen(url, "kept", lambda i: i["checkpoint"] and i["checkpoint"]["error"])["checkpoint"]
            assert folder in failed["error"] and failed["error_ms"] < 20000, failed
            found = subprocess.run([rig.BUILD / "phub", "doctor", f"127.0.0.1:{mortal.port}"], capture_output=True, text=True,
                                   timeout=DEADLINE_S, check=False).stdout
            assert "job kept: the last checkpoint failed " in found and folder in found, found
            os.mkdir(folder)
            text = subprocess.run([rig.BUILD / "phub", "jobs", f"127.0.0.1:{mortal.port}"], capture_output=True, text=True,
                                  timeout=DEADLINE_S, check=True).stdout
            assert "kept checkpoints: last before round " in text and "one in 7 (checkpoint_every)" in text, text
            assert "kept: a checkpoint failed " in text, text
        finally:
            job.end()
            mortal.kill()


# ---- a box that is killed ----

def test_a_key_that_is_exchanged_no_more(box):
    """Quick rounds are planned ahead: a key that stands still would never come to such a round."""
    with tempfile.TemporaryDirectory() as folder:
        mortal = Box(folder)
        try:
            with phub.Worker(f"phub://127.0.0.1:{mortal.port}/still", rank=0, world=1, optimizer="sgd", timeout=DEADLINE_S) as worker:
                keys = [worker.key(name, 1000, alone=True) for name in ("moves", "stands")]
                worker.start()
                values = numpy.zeros((2, 1000), numpy.float32)
                for key in keys:
                    worker.broadcast(key, values[key].ctypes.data)
                worker.wait()
                deadline, numbers = time.monotonic() + 4, []
                while time.monotonic() < deadline:
                    for _ in range(200):
                        worker.push(keys[0], values[0].ctypes.data)
                        worker.pull(keys[0], values[0].ctypes.data)
                    numbers.append(worker.round(keys[0]))
                written = [int(n) for n in re.findall(r"'still': checkpoint before round (\d+) written", mortal.text())]
                assert len(written) > 5 and written[-1] > numbers[-1] // 2, (written[-3:], numbers[-1])
        finally:
            mortal.kill()


class Box:
    """One that comes back at the same port, with the same checkpoints."""

    def __init__(self, folder, *options):
        self.port = rig.free_port()
        self.command = [rig.PHUBD, "--listen", f"127.0.0.1:{self.port}", "-o", "data_ports=any", "-o", "cores=2", "-o",
                        f"checkpoint_targets={folder}", "-o", "checkpoint_every=7", *options]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as this
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert "listening" in self.process.stdout.readline(), "phubd does not start"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def until(self, text):
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.text():
            assert time.monotonic() < deadline, f"the box never said {text!r}"
            time.sleep(0.02)

    def text(self):
        self.log.seek(0)
        return self.log.read()


def weights_of(url, **options):
    job = Job(url, reproducible=True, resume=30, transport="tcp", **options)
    try:
        results = job.results()
    finally:
        job.end()
    weights = {weights for _, _, weights in results.values()}
    assert len(weights) == 1, f"the weights differ: {results}"
    return weights.pop()


@functools.cache
def undisturbed(box, total=STEPS):
    """The weights after so many steps at a box that lives."""
    return weights_of(box.url(f"undisturbed-{total}"), total=total)


def survives(box, name, kills, folder, transport, *options):
    """The box is killed again and again: the weights are those of a run without that, bit by bit."""
    total = (2 if kills < 10 else 10) * STEPS
    mortal = Box(folder, *options)
    job = Job(f"phub://127.0.0.1:{mortal.port}/{name}", reproducible=True, resume=30, transport=transport, total=total)
    try:
        mortal.until("checkpoint before round")
        for _ in range(kills):
            time.sleep(random.uniform(0.1, 0.6))
            mortal.kill()
            mortal.start()
        results = job.results()
        assert {weights for _, _, weights in results.values()} == {undisturbed(box, total)}, f"other weights: {results}\n{mortal.text()}"
        resumed = mortal.text().count("goes on from its checkpoint")
        assert resumed >= kills // 2, f"it went on only {resumed} times from a checkpoint: {mortal.text()}"
    finally:
        job.end()
        mortal.kill()
    return f"killed {kills} times, went on {resumed} times"


def test_box_killed_tcp(box):
    with tempfile.TemporaryDirectory() as folder:
        survives(box, "killed-tcp", KILLS, folder, "tcp")


def test_box_killed_shm(box):
    with tempfile.TemporaryDirectory() as folder:
        survives(box, "killed-shm", 2, folder, "shm")


def test_box_killed_ssp(box):
    """Each push is a step, and a checkpoint may have some of later rounds than it says: it still says how far it is."""
    with tempfile.TemporaryDirectory() as folder:
        mortal = Box(folder)
        job = Job(f"phub://127.0.0.1:{mortal.port}/killed-ssp", sync="ssp", staleness=2, lost="shrink", resume=30)
        try:
            for _ in range(2):
                mortal.until("checkpoint before round")
                time.sleep(random.uniform(0.1, 0.3))
                mortal.kill()
                mortal.start()
            results = job.results()
            assert all(count >= STEPS - first for first, count, _ in results.values()), results
            assert "goes on from its checkpoint" in mortal.text(), mortal.text()
            rounds = [int(line.split("before round ")[1].split()[0]) for line in mortal.text().split("\n") if "written:" in line]
            assert min(rounds) > 1, f"checkpoints do not say how far they are: {rounds}"
        finally:
            job.end()
            mortal.kill()


def test_box_killed_parity(box):
    """Checkpoints over three directories, of which one is lost while the box is down."""
    with tempfile.TemporaryDirectory() as folder:
        targets = [pathlib.Path(folder, name) for name in "abc"]
        for target in targets:
            target.mkdir()
        mortal = Box(",".join(map(str, targets)), "-o", "checkpoint_parity=1")
        job = Job(f"phub://127.0.0.1:{mortal.port}/parity", reproducible=True, resume=30, transport="tcp")
        try:
            mortal.until("checkpoint before round")
            mortal.kill()
            shutil.rmtree(targets[1])
            targets[1].mkdir()
            mortal.start()
            results = job.results()
            assert {weights for _, _, weights in results.values()} == {undisturbed(box)}, f"other weights: {results}"
            assert "parity made up for losses" in mortal.text(), mortal.text()
        finally:
            job.end()
            mortal.kill()


def test_box_killed_newest_rotten(box):
    """The newest checkpoint has a flipped byte: the job goes on from the one before."""
    with tempfile.TemporaryDirectory() as folder:
        mortal = Box(folder)
        job = Job(f"phub://127.0.0.1:{mortal.port}/rotten", reproducible=True, resume=30, transport="tcp")
        try:
            deadline = time.monotonic() + DEADLINE_S
            while mortal.text().count("checkpoint before round") < 2:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            mortal.kill()
            newest = max(pathlib.Path(folder, "rotten").glob("*.phub"), key=lambda f: int(f.name.split(".")[0]))
            data = bytearray(newest.read_bytes())
            data[-5000] ^= 1
            newest.write_bytes(data)
            mortal.start()
            results = job.results()
            assert {weights for _, _, weights in results.values()} == {undisturbed(box)}, f"other weights: {results}"
            assert "cannot be read" in mortal.text() and "goes on from its checkpoint" in mortal.text(), mortal.text()
        finally:
            job.end()
            mortal.kill()


def test_a_job_that_ended_well_begins_anew(box):
    with tempfile.TemporaryDirectory() as folder:
        mortal = Box(folder)
        url = f"phub://127.0.0.1:{mortal.port}/again"
        try:
            assert weights_of(url) == weights_of(url) == undisturbed(box)
            assert "begins anew: the one before ended in good order" in mortal.text(), mortal.text()
        finally:
            mortal.kill()


def finish(url, transport, lost, begun, pipe):
    """All steps of one worker; then the box dies, and it ends all the same: how long that took."""
    try:
        net = make_net()
        optimizer = phub.torch.DistributedOptimizer(net, "momentum", url, rank=0, world=1, lr=0.05, timeout=20, resume=60,
                                                    transport=transport)
        for step in phub.torch.steps(optimizer, 5):
            images, labels = batch_of(step, 0)
            torch.nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            if step == 4:
                begun.set()
                assert lost.wait(20)
                time.sleep(0.5)
        began = time.monotonic()
        optimizer.close()
        pipe.send_bytes(pickle.dumps(time.monotonic() - began))
    except BaseException as e:  # noqa: B902 - told to the test
        pipe.send_bytes(pickle.dumps(RuntimeError(repr(e))))


def test_who_is_done_leaves_a_box_that_is_lost(_):
    for transport in ("tcp", "shm"):
        with tempfile.TemporaryDirectory() as folder:
            mortal = Box(folder)
            ours, theirs = rig.fork.Pipe(duplex=False)
            lost, begun = rig.fork.Event(), rig.fork.Event()
            worker = rig.fork.Process(target=finish, args=(f"phub://127.0.0.1:{mortal.port}/done", transport, lost, begun, theirs))
            worker.start()
            try:
                assert begun.wait(DEADLINE_S)
                mortal.kill()
                lost.set()
                assert ours.poll(30), "it waits for the box"
                took = pickle.loads(ours.recv_bytes())
                assert not isinstance(took, Exception), took
                assert took < 5, took
            finally:
                worker.kill()
                worker.join()
                mortal.kill()


if __name__ == "__main__":
    rig.run([t for name, t in sorted(globals().items()) if name.startswith("test_")],
            rig.Box("-o", "cores=2", "-o", "transports=tcp,shm,udp"))
