#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub.torch.Site from a checkpoint of torch's: killed by kill -9 and begun again it goes on bit for bit, and so does the example.

This process only forks, as in test_sites_python.py, and workers compute."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import python_rig as rig
from python_rig import raises
from test_sites_example import example as script, no_data
from test_sites_python import WORLD, batch, bytes_of, connect, data_of, make_net, numpy, phub, replace, torch, workers

STEPS = 50
RUNS = {"local": {"theta": 7}, "gaia": {"algorithm": "gaia", "theta": 0.1}, "dgc": {"algorithm": "dgc", "theta": 0.05},
        "diloco": {"theta": 6, "outer": "nesterov"},
        "hill": {"scout": {"policy": "hill", "thetas": [1, 2, 5, 10], "first": 5, "period": 10}},
        "plus": {"scout": {"policy": "scout+", "thetas": [1, 2, 5, 10], "period": 10}}}  # fmt: skip


def trained(rank, url, name, folder, save=None, go_on=False):
    """From the start, or from what was saved; killed three steps after it has saved."""
    net, data = make_net(rank), data_of(rank)
    saved = torch.load(f"{folder}/{name}.{rank}") if go_on else {"site": None}
    options = dict(RUNS[name])
    if go_on:
        net.load_state_dict(saved["model"])
    if "scout" in options:
        options["evaluate"] = phub.torch.classification(*data)
    site = phub.torch.Site(net, url, rank=rank, world=WORLD, reproducible=True, state=saved["site"] if rank else None, start=rank > 0,
                           **options)
    if rank == 0:  # the other way to say it
        with raises(ValueError, "has not started"):
            site.state_dict()
        if go_on:
            site.load_state_dict(saved["site"])
        site.start()
        with raises(ValueError, "has started"):
            site.load_state_dict({})
    begin = site.state["steps"]
    for step in range(begin, STEPS):
        x, y = batch(data, step)
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        site.lost(loss.item(), len(y))
        site.step(0.05)
        if step + 1 == save:
            torch.save({"model": net.state_dict(), "site": site.state_dict()}, f"{folder}/{name}.{rank}")
        if save and step + 1 == save + 3:
            os.kill(os.getpid(), signal.SIGKILL)
    state = site.state
    site.close()
    return begin, bytes_of(net), state["theta"], state["windows"], state["bytes"], state["bytes_travel"]


def killed(world, function, *arguments):
    there = [rig.fork.Process(target=function, args=(rank, *arguments)) for rank in range(world)]
    for process in there:
        process.start()
    for process in there:
        process.join(rig.RESULT_S)
    assert any(process.exitcode == -signal.SIGKILL for process in there), [process.exitcode for process in there]


def test_goes_on(box):
    """Killed after a step in the middle of an interval, and begun again by other processes from their files."""
    with tempfile.TemporaryDirectory() as folder:
        for at, name in enumerate(RUNS, 31):
            whole = workers(WORLD, trained, box.url(name), name, folder)
            killed(WORLD, trained, box.url(f"{name}-killed"), name, folder, at)
            ended = workers(WORLD, trained, box.url(f"{name}-again"), name, folder, None, True)
            assert [end[0] for end in ended] == [at] * WORLD, [end[0] for end in ended]
            assert [end[1:] for end in ended] == [end[1:] for end in whole], (name, [end[2:] for end in ended], [end[2:] for end in whole])


def racked(rank, box, job, folder, save=None, go_on=False):
    """Two racks of two, each site with one within; a scout sets theta across."""
    net, data = make_net(rank, False), data_of(rank)
    saved = torch.load(f"{folder}/rack.{rank}") if go_on else {"site": None}
    if go_on:
        net.load_state_dict(saved["model"])
    within = {"url": box.url(f"{job}-rack{rank // 2}"), "rank": rank % 2, "world": 2, "algorithm": "gaia", "theta": 0.05,
              "reproducible": True, "link": "rack"}
    site = phub.torch.Site(net, box.url(job), rank=rank, world=4, reproducible=True, link="across", within=within, state=saved["site"],
                           scout={"policy": "hill", "thetas": [1, 2, 4], "first": 4, "period": 8},
                           evaluate=phub.torch.classification(*data))  # fmt: skip
    begin = site.state["steps"]
    assert begin == site.inner.state["steps"]
    for step in range(begin, 40):
        x, y = batch(data, step)
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        site.step(0.05)
        if step + 1 == save:
            torch.save({"model": net.state_dict(), "site": site.state_dict()}, f"{folder}/rack.{rank}")
            os.kill(os.getpid(), signal.SIGKILL)
    state = site.state
    site.close()
    return begin, bytes_of(net), *(state[name] for name in ("theta", "windows", "bytes", "bytes_travel", "bytes_within"))


def test_racks(box):
    """Sites in sites: each of the two goes on."""
    with tempfile.TemporaryDirectory() as folder:
        whole = workers(4, racked, box, "whole", folder)
        killed(4, racked, box, "killed", folder, 14)
        ended = workers(4, racked, box, "again", folder, None, True)
        assert [end[0] for end in ended] == [14] * 4
        assert [end[1:] for end in ended] == [end[1:] for end in whole], ([end[2:] for end in ended], [end[2:] for end in whole])


def refused(rank, box, told):
    """When there is nothing to save, and when it is too late to load."""
    with connect(box, "refused", rank) as worker:
        weights = numpy.zeros(50, numpy.float32)
        site = phub.Site(worker, "bsp")
        site.tensor("w", weights.ctypes.data, 50)
        with raises(phub.Error, "phub_site_start() has not been completed"):
            site.save()
        site.start()
        state = site.save()
        with raises(phub.Error, "a state is loaded before phub_site_start()"):
            site.load(state)
        if rank == 0:
            with raises(phub.TimeoutError):
                site.step([weights.ctypes.data], 0.1, 0)
            with raises(phub.Error, "an exchange is on its way"):
                site.save()
            told.set()
            site.wait()
        else:
            assert told.wait(rig.RESULT_S)
            site.step([weights.ctypes.data], 0.1)
        site.close()


def test_refused(box):
    workers(WORLD, refused, box, rig.fork.Event())


def by_hand(rank, box):
    """phub.Site; the residual of Gaia at this site is what differs from the others."""
    for begin, end in ((0, 11), (11, 20)):
        with connect(box, f"hand{begin}", rank) as worker:
            weights = numpy.full(50, rank, numpy.float32) if begin == 0 else kept[0].copy()
            site = phub.Site(worker, "gaia", 0.3)
            site.tensor("w", weights.ctypes.data, 50)
            if begin:
                with raises(phub.Error, "no state of a site"):
                    site.load(b"nothing")
                with raises(phub.Error, "tensor 'late' comes after phub_site_start() or phub_site_load()"):
                    site.tensor("late", weights.ctypes.data, 50)
                with raises(phub.Error, "tensor 'late' comes after phub_site_start() or phub_site_load()"):
                    site.frozen("late", weights.ctypes.data, 50)
                weights[0] += 1
                with raises(phub.Error, "the weights of tensor 'w' are not those"):
                    site.load(kept[1])
                weights[0] -= 1
                weights[:] = kept[0]
                site.load(kept[1])
            site.start()
            assert site.state["steps"] == begin
            for step in range(begin, end):
                gradient = (weights - rank + 0.1 * step).astype(numpy.float32)
                site.step([gradient.ctypes.data], 0.1)
            kept = weights.copy(), site.save()
            site.close()
            worker.leave()
    return kept[0].tobytes()


def at_once(rank, box):
    with connect(box, "once", rank) as worker:
        weights = numpy.full(50, rank, numpy.float32)
        site = phub.Site(worker, "gaia", 0.3)
        site.tensor("w", weights.ctypes.data, 50)
        site.start()
        for step in range(20):
            gradient = (weights - rank + 0.1 * step).astype(numpy.float32)
            site.step([gradient.ctypes.data], 0.1)
        site.close()
    return weights.tobytes()


def test_addresses(box):
    assert workers(WORLD, by_hand, box) == workers(WORLD, at_once, box)


LARGE = 1 << 22  # the buffers of a socket do not hold so many


def stand(pid, url):
    """Stops that process when all is said that is its part of the first round."""
    pushed, before = 0, -1
    while pushed < LARGE * 4 or pushed > before:
        time.sleep(0.1)
        out = subprocess.run([rig.BUILD / "phub", "jobs", "--json", url.split("/")[2]], capture_output=True, text=True, check=True).stdout
        pushed, before = max(job.get("pushed_bytes", 0) for job in map(json.loads, out.splitlines())), pushed
    os.kill(pid, signal.SIGSTOP)


def halved(rank, url, folder, began, part):
    """They save after step 5; then they go on from there, in one part but rank 0: the box is lost when rank 1 has the first sum, and rank 0 has not."""
    breaks, loads = part in ("again", "other", "bare"), part in ("again", "other") or (part == "bare" and rank == 1)
    with phub.connect(url, rank=rank, world=2, transport="tcp", resume=60) as worker:
        weights = numpy.load(f"{folder}/{rank}.npy") if loads else numpy.full(LARGE, rank, numpy.float32)
        gradient = numpy.empty_like(weights)
        site = phub.Site(worker, "local", 4, outer="nesterov", log=f"{folder}/log" if rank == (part == "other") else None)
        site.tensor("w", weights.ctypes.data, LARGE)
        if loads:
            site.load(pathlib.Path(folder, f"{rank}.state").read_bytes())
        if breaks and rank == 0:
            began[0] = os.getpid()
        elif breaks:
            with raises(phub.TimeoutError):
                site.start(0)
            while not began[0]:
                time.sleep(0.01)
            stand(began[0], url)
            began[1] = part == "bare"
        call, starts, lost = site.start, None, 0
        while True:
            try:
                call()
            except phub.StaleError:
                lost += 1
                os.kill(began[0], signal.SIGCONT)
                call = site.resume
                continue
            began[1] = 1
            step = site.state["steps"]
            starts = step if starts is None else starts
            if step == (9 if part == "saved" else 12):
                break
            if step == 5 and part == "saved":
                numpy.save(f"{folder}/{rank}.npy", weights)
                pathlib.Path(folder, f"{rank}.state").write_bytes(site.save())
            numpy.subtract(weights, numpy.float32(rank - 0.1 * step), out=gradient)  # new pages would cost more than all else
            call = lambda: site.step([gradient.ctypes.data], 0.1)  # noqa: B023, E731
        site.close()
    return weights.tobytes(), starts, lost


def test_box_lost_as_it_goes_on(_):
    """A box that is killed when one of two sites has gone on from what it saved, and the other not yet, or has nothing: both do, and the log says so."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"127.0.0.1:{rig.free_port()}"
        command = [str(rig.PHUBD), "--listen", address, "-o", "data_ports=any"]
        ended, log = {}, pathlib.Path(folder, "log")
        for part in ("whole", "saved", "again", "other", "bare"):
            began = rig.fork.Array("i", 2)
            box = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert "listening" in box.stdout.readline()
            other = rig.fork.Process(target=replace, args=(box.pid, command, began))
            other.start()
            try:
                if part in ("whole", "saved"):
                    other.kill()
                ended[part] = workers(2, halved, f"phub://{address}/halved", folder, began, part)
            finally:
                box.kill()
                box.wait()
                box.stdout.close()
                other.kill()
                other.join()
            if part == "saved":
                before = log.read_text()
            if part in ("whole", "saved"):
                continue
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            assert [(line["t"], line["rank"], line["action"]) for line in lines
                    if line["scout"] == "site"] == [(5, int(part == "other"), "restarted")], (part, lines)
            reasons = [line["reason"] for line in lines if line["scout"] == "site"]
            assert ("but rank 0, which has saved nothing" in reasons[0]) == (part == "bare"), reasons
            assert [end[1:] for end in ended[part]] == [(5, 1)] * 2, (part, [end[1:] for end in ended[part]])
            assert part == "bare" or [end[0] for end in ended[part]] == [end[0] for end in ended["whole"]], "not bit for bit"
            log.write_text(before)


def example(folder, name, *words):
    command = [rig.BUILD / "phub", "scout", "run", "--sites", "2", "--policy", "scout+", "--out", f"{folder}/{name}.jsonl", "--", script(),
               "--period", "10",
               "--drift", "20:100", "--steps", "70", *words]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                            process_group=0)


def end_of(process):
    text = process.communicate(timeout=rig.RESULT_S)[0]
    assert process.returncode == 0, text
    return text, re.search("accuracy.*", text)[0]


def test_example(_):
    """deploy/demo/sites.py --checkpoint, all of it killed and started again; the log goes on."""
    if no_data():
        return no_data()
    with tempfile.TemporaryDirectory() as folder:
        _, whole = end_of(example(folder, "whole"))
        first = example(folder, "broken", "--checkpoint", f"{folder}/kept", "--every", "15")
        for line in first.stdout:
            if "step 40:" in line:
                break
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        text, ended = end_of(example(folder, "broken", "--checkpoint", f"{folder}/kept", "--every", "15"))
        assert re.search("goes on from step (30|45|60)", text), text
        assert ended == whole, (ended, whole)
        log = pathlib.Path(folder, "broken.jsonl")
        log.write_text(pathlib.Path(f"{log}.before").read_text() + log.read_text())
        logs = [f"{folder}/whole.jsonl", log]
        compared = subprocess.run([rig.BUILD / "phub", "scout", "compare", "--json", *logs], capture_output=True, text=True, check=True)
        wanted, found = map(json.loads, compared.stdout.splitlines())
        assert all(wanted[name] == found[name] for name in ("bytes", "bytes_travel", "theta", "accuracy", "saving")
                   if name in wanted), compared.stdout
        lines = [json.loads(line) for line in pathlib.Path(folder, "broken.jsonl").read_text().splitlines()]
        assert [line["action"] for line in lines if line["scout"] == "site"].count("restarted") == 1, lines
        assert len(list(pathlib.Path(folder).glob("kept.*"))) == 4, list(pathlib.Path(folder).iterdir())


if __name__ == "__main__":
    sys.stdout.flush()
    rig.run([test_goes_on, test_racks, test_refused, test_addresses, test_box_lost_as_it_goes_on, test_example], rig.Box())
