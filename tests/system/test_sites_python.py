#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub.Scout, phub.Site and phub.torch.Site: as torch itself where that can do it, errors, and a scout that travels.

This process only forks: whatever computes runs in workers, so that no thread of torch is lost at a fork.
"""
import errno
import json
import linecache
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import python_rig as rig
from python_rig import raises, workers

try:
    import torch
except ImportError as e:
    rig.skip(f"{e} (Debian: apt install python3-torch, and run /usr/bin/python3)")

import numpy

import phub
import phub.torch

torch.set_num_threads(1)
WORLD = 3
GRID = [1, 2, 5, 10]


def connect(box, job, rank, world=WORLD, **options):
    return phub.connect(box.url(job), rank=rank, world=world, reproducible=True, **options)


# ---- scouts ----


def test_scout(box):
    scout = phub.Scout(GRID, model_bytes=1000, first=5, seed=3)
    assert scout.theta == 5 and scout.host(0, 2) == 1 and scout.host(2, 7) not in (2, 7)
    with raises(phub.Error, "phub_scout_observe()"):
        scout.decide()
    with raises(phub.Error, "phub_scout_decide()"):
        scout.apply()
    scout.observe([phub.Report(0.9, 0.5, 100, 100000)] * 3)
    decision = scout.decide()
    assert (decision.theta, decision.action, decision.believed) == (2, "tightens", 3) and abs(decision.loss - 0.4) < 1e-12
    assert scout.theta == 5
    scout.apply()
    assert scout.theta == 2
    later = phub.Scout(GRID, model_bytes=1000, first=5, seed=3)
    later.load(scout.save())
    for report in ((0.9, 0.9, 100, 1), (float("nan"), 0.9, 100, 1), (0.9, 0.1, 0, 1)):
        for each in (scout, later):
            each.observe([report] * 3)
            last = each.decide()
            each.apply()
        assert scout.theta == later.theta
    assert last.action == "falls back" and last.loss != last.loss and "0 have said" in last.reason
    for trim, loss in ((0, 0.24), (0.2, 0.05)):
        robust = phub.Scout(GRID, model_bytes=1000, trim=trim, seed=2)
        shift = robust.host(0, 5)
        told = [phub.Report(1 if k == 4 else 0.9, 0 if (k + shift) % 5 == 4 else 0.85, 100, 1) for k in range(5)]
        robust.observe(told)
        decision = robust.decide()
        assert abs(decision.loss - loss) < 1e-9 and "site 4 stands out" in decision.reason, decision
    with raises(phub.Error, "trim is 0.5"):
        phub.Scout(GRID, model_bytes=1000, trim=0.5)
    slow = phub.Scout(GRID, model_bytes=1000, policy="fixed", unit="seconds", rate=1e6, latency=0.01, latency_within=0.001)
    slow.observe([phub.Report(0.9, 0.9, 100, 25000, exchanges=25, exchanges_within=500)] * 3)
    assert abs(slow.decide().spent - (25 * 0.01 + 25000 / 1e6 + 500 * 0.001) / 500) < 1e-12
    with raises(phub.Error, "costs in seconds want the link's rate"):
        phub.Scout(GRID, model_bytes=1000, unit="seconds")
    with raises(phub.Error, "numbers of at least 0"):
        phub.Scout(GRID, model_bytes=1000, rate=float("nan"))
    with raises(ValueError, "unit"):
        phub.Scout(GRID, model_bytes=1000, unit="hours")
    with raises(phub.Error, "worth needs to be a number from 0 on"):
        phub.Scout(GRID, model_bytes=1000, policy="scout+", worth=-1.0)
    dear = phub.Scout([0, 0.1], model_bytes=1000, policy="scout+", algorithm="gaia", worth=2.5, unit="seconds", rate=1e9, latency=1)
    for _ in range(8):
        for _ in range(10):
            dear.hear(1, 0.2, 0.2, 0.1)
        dear.observe([phub.Report(math.nan, math.nan, 0, 10000, exchanges=10)] * 5)
        decision = dear.decide()
        dear.apply()
    assert decision.theta == 0 and "no looser one is cheaper by 3 %" in decision.reason and math.isnan(decision.extra)
    with raises(phub.Error, "not whole"):
        later.load(b"nothing")
    with raises(phub.Error, "in the grid twice"):
        phub.Scout([1, 1], model_bytes=1)
    for thetas, options in (([2, 1], {}), ([1, 5, 2], {}), ([2, 1], {"policy": "scout+"}), ([0.1, 0.01, 1], {"algorithm": "gaia"}),
                            ([0.1, 1], {"algorithm": "dgc", "policy": "fixed"})):
        algorithm = options.get("algorithm", "local")
        right = sorted(thetas, reverse=algorithm == "dgc")
        with raises(ValueError, f"thetas: {thetas} is no grid with the tightest first, of {algorithm} the", f": {right}"):
            phub.Scout(thetas, model_bytes=1, **options)
    phub.Scout([0.1, 0.01], model_bytes=1, algorithm="dgc", policy="fixed")
    with raises(phub.Error, "grid of local begins with 1"):
        phub.Scout([2, 5], model_bytes=1, policy="scout+")
    with raises(ValueError, "not in the grid"):
        phub.Scout(GRID, model_bytes=1, first=3)
    with raises(ValueError, "replay"):
        phub.Scout(GRID, model_bytes=1, policy="best")
    with raises(TypeError, "nonsense"):
        phub.Scout(GRID, model_bytes=1, nonsense=1)


# ---- sites over addresses ----


def gradient_of(weights, rank, step):
    return (weights - (rank + 1) + 0.1 * step).astype(numpy.float32)


def average(rank, box):
    """Local SGD by numpy's own hand, of all ranks at once; and this one at the box."""
    reference = [numpy.zeros(50, numpy.float32) for _ in range(WORLD)]
    weights, momentum = numpy.full(50, rank, numpy.float32), [0] * WORLD
    with connect(box, "average", rank) as worker:
        site = phub.Site(worker, "local", 4, momentum=0.5)
        site.tensor("w", weights.ctypes.data, 50)
        site.start()
        for step in range(20):
            gradient = gradient_of(weights, rank, step)
            site.step([gradient.ctypes.data], 0.1)
            for k in range(WORLD):
                momentum[k] = 0.5 * momentum[k] + gradient_of(reference[k], k, step)
                reference[k] = reference[k] - 0.1 * momentum[k]
            if step % 4 == 3:
                reference = [sum(reference) / WORLD] * WORLD
        state = site.state
        site.close()
        site.close()
    assert numpy.abs(weights - reference[rank]).max() < 1e-5, (weights, reference)
    assert (state["steps"], state["exchanges"], state["bytes"], state["sites"]) == (20, 5, 5 * 200, WORLD), state
    assert abs(state["share"] - 1 / 3) < 1e-12
    return weights.tobytes()


def test_average(box):
    assert len(set(workers(WORLD, average, box))) == 1


PLUS = {"thetas": [1, 5], "policy": "scout+"}
UNLIKE = (  # of rank 0, of the others, and what the box says of each
    ({"algorithm": "gaia", "theta": 0.1}, {"algorithm": "dgc", "theta": 0.1}, "gaia", "dgc"),
    ({"algorithm": "gaia", "theta": 0.1}, {}, "gaia", "local"),
    ({"algorithm": "bsp"}, {}, "bsp", "local"),
    ({"scout": PLUS}, {}, "local with a scout", "local"),
)
HILL = {"thetas": [1, 5], "policy": "hill"}
PRICED = {**HILL, "unit": "seconds", "rate": 1e6}
LONG = {"thetas": [100_000_000 + i for i in range(64)], "policy": "fixed"}
HEAVY = {"algorithm": "bsp", "momentum": 0.9}
MIXED = (  # likewise, of options behind the algorithm
    (HEAVY, {**HEAVY, "momentum": 0}, "momentum", "0.9", "0"),
    ({}, {"momentum": 0.1 + 0.2}, "momentum", "0.9", "0.30000000000000004"),
    ({}, {"weight_decay": 1e-4}, "weight_decay", "0", "0.0001"),
    ({"algorithm": "gaia", "rate_first": 0.05}, {"algorithm": "gaia"}, "rate_first", "0.05", "0.1"),
    ({"algorithm": "dgc", "clip": 2}, {"algorithm": "dgc"}, "clip", "2", "0"),
    ({"algorithm": "dgc"}, {"algorithm": "dgc", "warmup": 10}, "warmup", "0", "10"),
    ({"outer": "momentum"}, {"outer": "nesterov"}, "outer", "momentum", "nesterov"),
    ({"outer": "adam"}, {"outer": "adam", "outer_rate": 0.2}, "outer_rate", "0.1", "0.2"),
    ({"outer": "yogi", "outer_tau": 0.01}, {"outer": "yogi"}, "outer_tau", "0.01", "0.001"),
    ({"weighted": True}, {}, "weighted", "yes", "no"),
    ({"scout": PLUS}, {"scout": {"thetas": [1, 5], "policy": "fixed"}}, "policy", "scout+", "fixed"),
    ({"scout": PLUS}, {"scout": {**PLUS, "seed": 2**64 - 1}}, "seed", "0", "18446744073709551615"),
    ({"scout": PLUS}, {"scout": {**PLUS, "thetas": [1, 4]}}, "thetas", "1,5", "1,4"),
    ({"scout": LONG}, {"scout": {**LONG, "thetas": [*LONG["thetas"][:-1], 1_000_000_000]}}, "thetas", "64 numbers (", "64 numbers ("),
    ({"scout": PLUS}, {"scout": {**PLUS, "period": 51}}, "period", "50", "51"),
    ({"scout": PLUS}, {"scout": {**PLUS, "gain": 0.03}}, "gain", "0.02", "0.03"),
    ({"scout": PLUS}, {"scout": {**PLUS, "trim": 0.2}}, "trim", "0", "0.2"),
    ({"scout": PLUS}, {"scout": {**PLUS, "model_bytes": 7}}, "model_bytes", "0", "7"),
    ({"scout": PRICED}, {"scout": {**PRICED, "latency": 0.1}}, "latency", "0", "0.1"),
    ({"scout": HILL}, {"scout": {**HILL, "first": 5}}, "first", "1", "5"),
    ({"scout": HILL}, {"scout": {**HILL, "sigma": 0.04}}, "sigma", "0.05", "0.04"),
    ({"scout": {**HILL, "policy": "replay", "schedule": [5, 1]}}, {"scout": {**HILL, "policy": "replay", "schedule": [5]}}, "schedule", "5,1", "5"),
)
# What local does not look at, or each has for itself; and what a site is given stays, or it writes to what others have then.
SAME, HELD = {"rate_first": 0.3, "clip": 1, "warmup": 5, "samples": 7}, numpy.zeros(50, numpy.float32)
def disagree(rank, box):
    for number, (first, others, *said) in enumerate(UNLIKE):
        with raises(phub.Error, "algorithm of sites differs", f"rank 0 says {said[0]}", f" says {said[1]}"), connect(box, f"unlike{number}", rank) as worker:
            site = phub.Site(worker, **{"algorithm": "local", **(others if rank else first)})
            site.tensor("w", HELD.ctypes.data, 50)
            site.start()
    for number, (first, others, option, *said) in enumerate(MIXED):
        words = [f"{option} of sites differs", f"rank 0 says {said[0]}", f" says {said[1]}"]
        with raises(phub.Error, *words), connect(box, f"mixed{number}", rank) as worker:
            site = phub.Site(worker, **{"algorithm": "local", **(others if rank else first)})
            site.tensor("w", HELD.ctypes.data, 50)
            site.start()
    with raises(phub.Error, "trained tensors of sites differs", "rank 0 says 1 ("), connect(box, "untrained", rank) as worker:
        site = phub.Site(worker)
        site.tensor("w", HELD.ctypes.data, 50, trained=not rank)
        site.start()
    with connect(box, "same", rank) as worker:
        site = phub.Site(worker, **(SAME if rank else {}))
        site.tensor("w", HELD.ctypes.data, 50)
        site.start()
        site.close()


def test_disagree(box):
    """Sites whose options differ are told at the start which, and by whom."""
    workers(WORLD, disagree, box)


def newcomer_trains(rank, box, done, outer):
    weights, gradient = numpy.zeros(50, numpy.float32), numpy.ones(50, numpy.float32)
    with connect(box, "newcomer", rank, lost="shrink") as worker:
        site = phub.Site(worker, "local", 2, outer=outer)
        site.tensor("w", weights.ctypes.data, 50)
        site.start()
        while site.state["exchanges"] < 2 or rank != 2 and not done.exists():
            site.step([gradient.ctypes.data], 0.1)
            time.sleep(0.01)
        if rank == 2:
            site.step([gradient.ctypes.data], 0.1)
        site.close()


def newcomer(rank, box, done):
    """A site that comes later with other options is refused by itself, and the others go on: until it has come with theirs."""
    if rank == 2:
        newcomer_trains(rank, box, done, "average")
        with raises(phub.Error, "outer of sites differs: rank 0 says average, rank 2 says adam; the job runs, and who comes must fit it"):
            newcomer_trains(rank, box, done, "adam")
    newcomer_trains(rank, box, done, "average")
    done.touch()


def test_newcomer(box):
    with tempfile.TemporaryDirectory() as folder:
        workers(WORLD, newcomer, box, pathlib.Path(folder, "done"))


def errors(rank, box, told):
    weights, gradient = numpy.zeros(8, numpy.float32), numpy.ones(8, numpy.float32)
    with connect(box, "errors", rank, 2) as worker:
        site = phub.Site(worker, "gaia", scout={"thetas": [0.1], "policy": "fixed"})
        site.tensor("w", weights.ctypes.data, 8)
        with raises(phub.Error, "has not been completed"):
            site.step([gradient.ctypes.data], 0.1)
        site.start()
        with raises(phub.Error, "the scout sets theta"):
            site.set_theta(0.2)
        with raises(phub.Error, "rate of -1"):
            site.step([gradient.ctypes.data], -1)
        with raises(phub.Error, "a gradient for each"):
            site.step([None], 0.1)
        with raises(ValueError, "2 gradients for 1"):
            site.step([None, None], 0.1)
        assert site.decision is None
        if rank == 1:
            assert told.wait(rig.RESULT_S)
        else:
            try:
                site.step([gradient.ctypes.data], 0.1, timeout=0.3)
                raise AssertionError("rank 1 was not waited for")
            except phub.TimeoutError as e:
                assert "rank" in str(e) and "after 0.3 s" in str(e), e
            for call in (lambda: site.step([gradient.ctypes.data], 0.1), site.flush, lambda: site.set_samples(3)):
                try:
                    call()
                    raise AssertionError("it was taken while an exchange was on its way")
                except phub.Error as e:
                    assert e.code == errno.EBUSY, e
            told.set()
            site.wait()
        if rank == 1:
            site.step([gradient.ctypes.data], 0.1)
        assert numpy.all(weights < -0.09), weights
        assert site.state["steps"] == 1
        for score in ((0,), (0, 0, 0), (3, 4)):
            with raises(phub.Error, "a score is of samples"):
                site.score(*score)
        site.score(3, 3, 0.5)
        site.close()
        with raises(ValueError, "closed"):
            site.wait()
    with connect(box, f"bad{rank}", 0, 1) as worker:
        with raises(phub.Error, "cannot have a theta of 0.5"):
            phub.Site(worker, "local", 0.5)
        with raises(TypeError, "speed"):
            phub.Site(worker, speed=3)
        with raises(ValueError, "outer"):
            phub.Site(worker, outer="space")
        site = phub.Site(worker, outer="adam", outer_tau=0)
        site.tensor("w", weights.ctypes.data, 8)
        with raises(phub.Error, "outer optimizer adam with rate 0.1,", "tau 0; allowed: rate and tau above 0, beta1 and beta2 from 0 to below 1"):
            site.start()
        site.close()


def test_errors(box):
    workers(2, errors, box, rig.fork.Event())


def logs(rank, box, path):
    """A log that cannot be written is warned of once, and training goes on."""
    weights, gradient = numpy.zeros(8, numpy.float32), numpy.ones(8, numpy.float32)
    for name, given, wanted in (("/dev/full", "/dev/full", 1), ("/dev/full", None, 1), (path, None, 0)):
        os.environ["PHUB_SCOUT_LOG"] = str(name)
        with connect(box, f"logs-{wanted}{given is None}", 0, 1) as worker, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            site = phub.Site(worker, theta=1, momentum=0, log=given)
            site.tensor("w", weights.ctypes.data, 8)
            site.start()
            for _ in range(3):
                site.step([gradient.ctypes.data], 1)
            site.close()
        texts = [str(one.message) for one in warned]
        check_lines(warned)
        assert len(texts) == wanted and all("/dev/full is not written any more, and training goes on: No space left" in text for text in texts), texts
    assert numpy.all(weights == -9) and '"end"' in path.read_text(), weights


def test_logs(box):
    with tempfile.TemporaryDirectory() as folder:
        workers(1, logs, box, pathlib.Path(folder, "log"))


def leaves(rank, box, told):
    """With an exchange on its way: memory is the caller's again, and the others are told."""
    weights = numpy.zeros(100000, numpy.float32)
    worker = connect(box, "leaves", rank, 2)
    site = phub.Site(worker, "bsp")
    site.tensor("w", weights.ctypes.data, 100000)
    site.start()
    if rank == 0:
        with raises(phub.TimeoutError):
            site.step([weights.ctypes.data], 0.1, timeout=0.1)
    else:
        assert told.wait(rig.RESULT_S)
        with raises(phub.Error, "rank 0"):
            for _ in range(3):
                site.step([weights.ctypes.data], 0.1, timeout=5)
    site.close()
    told.set()
    worker.close()


def test_leaves(box):
    workers(2, leaves, box, rig.fork.Event())


# ---- models ----


def nested(rank, box):
    """Racks of one site each, and theta 3 across them; a mistake is refused, and says what to do."""
    weights, gradient = numpy.full(8, rank, numpy.float32), numpy.full(8, rank + 1, numpy.float32)
    with connect(box, "nested", rank, 2) as across, connect(box, f"rack{rank}", 0, 1, here=True) as rack, connect(box, f"third{rank}", 0, 1) as third:
        inner = phub.Site(rack, "local", 1, momentum=0, link="rack")
        inner.tensor("w", weights.ctypes.data, 8)
        with raises(phub.Error, "has not been completed"):
            phub.Site(across, theta=3, within=inner)
        inner.start()
        for algorithm in ("gaia", "bsp", "dgc"):
            with raises(phub.Error, "PHUB_SITE_LOCAL alone says what sites within have moved"):
                phub.Site(across, algorithm, within=inner)
        with raises(phub.Error, "link='Rack'; allowed: 1 to 16 of a-z and 0-9"):
            phub.Site(across, within=inner, link="Rack")
        for link in ("", "a" * 17, "ra ck"):
            with raises(phub.Error, "allowed: 1 to 16"):
                phub.Site(across, within=inner, link=link)
        site = phub.Site(across, theta=3, within=inner, link="across")
        with raises(phub.Error, "has one around it already"):
            phub.Site(third, within=inner)
        with raises(phub.Error, "the site around it steps"):
            inner.step([gradient.ctypes.data], 1)
        with raises(phub.Error, "its tensors are those of the site within it; leave 'v' away"):
            site.tensor("v", weights.ctypes.data, 8)
        site.start()
        with raises(phub.Error, "has one within itself; there are two classes"):
            phub.Site(third, within=site)
        assert numpy.all(weights == 0), weights  # rank 0's
        with raises(phub.Error, "rate of -1"):
            site.step([gradient.ctypes.data], -1)
        for _ in range(6):
            site.step([gradient.ctypes.data], 1)
        assert numpy.all(weights == -9), weights  # 6 steps of 1.5 in the mean
        state = site.state
        assert (state["exchanges"], state["bytes"], state["bytes_within"], inner.state["bytes"]) == (2, 64, 192, 192), state
        site.step([gradient.ctypes.data], 1)
        site.flush()
        assert numpy.all(weights == -9 - gradient), weights  # on top of what they have in common
        inner.close()
        for call in (site.wait, lambda: site.step([gradient.ctypes.data], 1), site.flush, lambda: site.set_theta(2)):
            with raises(phub.Error, "the site within it was closed; close this one first, then that"):
                call()
        site.close()
    for options, inside, why in (({"resume": 1}, {}, "one of the two jobs resumes, and the other does not"), ({}, {"resume": 1}, "one of the two jobs resumes"),
                                 ({"resume": 1, "lost": "shrink"}, {"resume": 1}, "jobs that resume do so with all their racks"),
                                 ({"lost": "wait"}, {}, "nobody comes to them later"), ({}, {"lost": "shrink"}, "nobody comes to them later")):
        with connect(box, f"refused{rank}", 0, 1, **options) as across, connect(box, f"inside{rank}", 0, 1, **inside) as rack:
            inner = phub.Site(rack, "local", 1)
            inner.tensor("w", weights.ctypes.data, 8)
            inner.start()
            with raises(phub.Error, why):
                phub.Site(across, within=inner)
            inner.close()
    box_options = {"optimizer": "nesterov", "reduce": "mean"}
    with connect(box, f"refused{rank}", 0, 1, **box_options) as across, connect(box, f"inside{rank}", 0, 1) as rack:
        inner = phub.Site(rack, "local", 1)
        inner.tensor("w", weights.ctypes.data, 8)
        inner.start()
        with raises(phub.Error, "with PHUB_OUTER_BOX weights are the box's; take PHUB_OUTER_NESTEROV"):
            phub.Site(across, outer="box", within=inner)
        inner.close()


def test_nested(box):
    workers(2, nested, box)


def make_net(seed, norm=True):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(9, 32), torch.nn.BatchNorm1d(32) if norm else torch.nn.Identity(), torch.nn.ReLU(), torch.nn.Linear(32, 3)]
    return torch.nn.Sequential(*layers)


def data_of(rank, count=300):
    """Mostly of one class."""
    generator = torch.Generator().manual_seed(rank)
    labels = torch.where(torch.rand(count, generator=generator) < 0.8, torch.tensor(rank % 3), torch.randint(3, (count,), generator=generator))
    inputs = torch.randn(count, 9, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 3).repeat(1, 3).float()
    return inputs, labels


def batch(data, step, size=10):
    return tuple(part[step * size % 300 :][:size] for part in data)


def bytes_of(model):
    return b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())


def as_sgd(rank, box):
    """BSP without norms is torch.optim.SGD on the mean gradient."""
    net, reference = make_net(rank, False), make_net(0, False)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=0.001)
    site = phub.torch.Site(net, box.url("sgd"), algorithm="bsp", weight_decay=0.001, rank=rank, world=WORLD)
    for step in range(20):
        x, y = batch(data_of(rank), step)
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        site.step(0.1)
        optimizer.zero_grad()
        sum(torch.nn.functional.cross_entropy(reference(x), y) for x, y in (batch(data_of(k), step) for k in range(WORLD))).div(WORLD).backward()
        optimizer.step()
    site.close()
    site.close()
    for ours, theirs in zip(net.parameters(), reference.parameters()):
        assert torch.allclose(ours, theirs, atol=1e-5), (ours - theirs).abs().max()
    return bytes_of(net)


def test_as_sgd(box):
    assert len(set(workers(WORLD, as_sgd, box))) == 1


def in_racks(rank, box):
    """Two racks of two: tight inside, loose across; torch computes the same."""
    net, nets = make_net(rank, False), [make_net(0, False) for _ in range(4)]
    site = phub.torch.Site(net, box.url("racks"), theta=4, rank=rank, world=4, link="across",
                           within={"url": box.url(f"torch-rack{rank // 2}"), "rank": rank % 2, "world": 2, "theta": 1, "momentum": 0.5, "link": "rack"})
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.5) for n in nets]
    for step in range(8):
        x, y = batch(data_of(rank), step)
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        site.step(0.1)
        for k in range(4):
            x, y = batch(data_of(k), step)
            optimizers[k].zero_grad()
            torch.nn.functional.cross_entropy(nets[k](x), y).backward()
            optimizers[k].step()
        with torch.no_grad():
            for group in ([0, 1], [2, 3], *([[0, 1, 2, 3]] if step % 4 == 3 else [])):
                for parameters in zip(*(nets[k].parameters() for k in group)):
                    mean = sum(parameters) / len(group)
                    for p in parameters:
                        p.copy_(mean)
    assert site.state["exchanges"] == 2 and site.inner.state["exchanges"] == 8
    site.close()
    for ours, theirs in zip(net.parameters(), nets[rank].parameters()):
        assert torch.allclose(ours, theirs, atol=1e-5), (ours - theirs).abs().max()
    return bytes_of(net)


def test_in_racks(box):
    assert len(set(workers(4, in_racks, box))) == 1


def unheard(rank, box):
    """scout+ that could try models, and hears no loss of training, says so once; one that hears it, or has none to try, does not."""
    for number, (tells, options) in enumerate(((False, {"policy": "scout+"}), (True, {"policy": "scout+"}), (False, {"policy": "fixed"}))):
        net = torch.nn.Linear(2, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            site = phub.torch.Site(net, box.url(f"unheard{number}"), scout=dict(thetas=[1, 5], **options), rank=rank, world=WORLD,
                                   evaluate=lambda model, draw, samples: (10, 5, 1.0))
            for _ in range(110):
                if tells:
                    site.lost(0.5, 1)
                site.step(0.05)
            site.close()
        told = [str(w.message) for w in caught]
        assert len(told) == (number == 0) and all("50 steps without site.lost(loss, samples)" in text for text in told), told


def test_unheard(box):
    workers(WORLD, unheard, box)


def scouted(rank, box, algorithm, thetas, log):
    net = make_net(rank)
    data = data_of(rank)
    tried = []

    def evaluate(model, draw, samples):
        assert not model.training and not torch.is_grad_enabled() and samples == 0
        tried.append((draw, bytes_of(model), theta))
        return phub.torch.classification(*data, count=50)(model, draw, samples)

    site = phub.torch.Site(net, box.url(f"scout-{algorithm}"), algorithm=algorithm, scout=dict(thetas=thetas, first=thetas[2], period=10, seed=4),
                           evaluate=evaluate, log=log, rank=rank, world=WORLD)
    for step in range(60):
        x, y = batch(data, step)
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        site.lost(loss, len(y))
        assert step > 0 or site.alignment == {}
        theta = site.state["theta"]
        site.step(0.05)
        assert net.training
    state, decision, aligned = site.state, site.decision, site.alignment
    site.score(50, 40, 25.0 if algorithm == "gaia" else None)
    if algorithm == "gaia":
        site.flush()
    site.close()
    assert state["windows"] >= 5 and len(tried) == 2 * state["windows"], (state, len(tried))
    for home, guest in zip(tried[::2], tried[1::2]):  # where sites talk at each step all models are one
        assert home[0] == guest[0] and (home[1] == guest[1]) == (home[2] == 1), (home[0], guest[0], home[2])
    assert state["bytes_travel"] == state["windows"] * 4 * sum(t.numel() for t in net.state_dict().values() if t.is_floating_point())
    assert decision.train > 0 and (decision.radius == 0) == (tried[-2][2] == 1) and 0 < decision.r <= 1
    return state["theta"], state["windows"], (decision, aligned), [guest[1] for guest in tried[1::2]], [home[1] for home in tried[::2]]


def test_scouted(box):
    for algorithm, thetas in (("local", GRID), ("gaia", [0.02, 0.05, 0.1, 0.2])):
        with tempfile.TemporaryDirectory() as folder:
            log = f"{folder}/log"
            ended = workers(WORLD, scouted, box, algorithm, thetas, log)
            lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
        assert len({repr(end[:3]) for end in ended}) == 1, ended
        assert [line["scout"] for line in lines] == ["run"] + ["decision"] * ended[0][1] + ["end"], lines
        end = lines[-1]
        assert (end["accuracy"], end["loss"]) == (0.8, 0.5 if algorithm == "gaia" else None) and end["seconds"] > 0, end
        decision, aligned = ended[0][2]
        assert list(aligned) == lines[0]["tensors"] and [None if math.isnan(r) else r for r in aligned.values()] == lines[-2]["r"], (aligned, lines[-2])
        assert (decision.train, decision.r) == (lines[-2]["train_loss"], lines[-2]["r_all"]), (decision, lines[-2])
        for window in range(ended[0][1]):  # each model has been somewhere else
            assert sorted(end[3][window] for end in ended) == sorted(end[4][window] for end in ended), f"window {window}"


def failing(box, job, rank, evaluate, steps):
    """A net, and a site that tries models by this."""
    net = make_net(0)
    site = phub.torch.Site(net, box.url(job), scout=dict(thetas=[2], policy="hill", period=2), evaluate=evaluate, rank=rank, world=WORLD)
    for step in range(steps):
        x, y = batch(data_of(rank), step)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        yield site
    site.close()


def check_lines(caught):
    """What a warning shows of the code is the call of the one who is warned, and no line of the library."""
    for one in caught:
        if one.category is RuntimeWarning:
            shown = linecache.getline(one.filename, one.lineno).strip()
            assert one.filename == __file__ and shown.startswith(("site.start(", "site.step(")), (one.filename, one.lineno, shown)


def fails(rank, box):
    """An evaluate() that fails says nothing, of this site's model and of its guest's; a warning does once, and all train on."""
    calls = []

    def evaluate(model, draw, samples):
        calls.append(draw)
        if rank == 1 and len(calls) % 2:
            raise KeyError("lost the data")
        return (10, -1, 1.0) if rank == 1 else (10, 5, 1.0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for site in failing(box, "fails", rank, evaluate, 8):
            site.step(0.05)
            decision = site.decision
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    check_lines(caught)
    assert len(told) == (rank == 1) and all("evaluate() failed" in t and "Traceback" in t and "KeyError: 'lost the data'" in t for t in told), told
    assert len(calls) == 8 and decision.believed == WORLD - 1 and decision.loss == 0 and decision.action == "stays", decision


def test_fails(box):
    workers(WORLD, fails, box)


def strict(rank, box):
    """Where warnings are errors, and of what is no Exception, it comes out of the step after the exchange; the next ones go on."""
    calls = []

    def evaluate(model, draw, samples):
        calls.append(draw)
        if rank and len(calls) == 1:
            raise KeyError("lost the data") if rank == 1 else KeyboardInterrupt
        return 10, 5, 1.0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step, site in enumerate(failing(box, "strict", rank, evaluate, 4)):
            if step == 1 and rank:
                with raises(RuntimeWarning if rank == 1 else KeyboardInterrupt, "lost the data" if rank == 1 else ""):
                    site.step(0.05)
            else:
                site.step(0.05)
            decision = site.decision
    assert decision.window == 1 and decision.believed == WORLD and decision.loss == 0, decision


def test_strict(box):
    workers(WORLD, strict, box)


def not_finite(rank, box):
    """A model whose loss is no number has been tried, whatever it gets right by chance: nobody believes that."""
    net = make_net(0)
    site = phub.torch.Site(net, box.url("nan"), scout=dict(thetas=[1, 2], first=2, period=2), evaluate=lambda model, draw, samples: (10, 5, math.nan),
                           rank=rank, world=WORLD)
    for step in range(8):
        x, y = batch(data_of(rank), step)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        site.step(0.05)
    decision, theta = site.decision, site.state["theta"]
    site.close()
    assert decision.believed == 0 and math.isnan(decision.loss) and theta == 1, (decision, theta)


def test_not_finite(box):
    workers(WORLD, not_finite, box)


def warned(rank, box):
    """A gradient that is no number is a warning at all sites, once, without a scout too; where it counts as zero all train on."""
    net = make_net(0, False)
    site = phub.torch.Site(net, box.url("warned"), theta=2, nan="zero", rank=rank, world=WORLD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(10):
            x, y = batch(data_of(rank), step)
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            if rank == 1 and step == 4:
                next(net.parameters()).grad[:] = math.nan
            site.step(0.05)
    site.close()
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    check_lines(caught)
    assert len(told) == 1 and "rank 1 has said what is no number, of tensor '" in told[0] and "after steps 5 to 6" in told[0], told
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_warned(box):
    workers(WORLD, warned, box)


def without_samples(rank, box):
    net = make_net(rank, False)
    site = phub.torch.Site(net, box.url("without"), theta=5, samples=0 if rank == 2 else 7, weighted=True, rank=rank, world=WORLD)
    for step in range(10):
        net.zero_grad(set_to_none=True)
        if rank != 2:
            x, y = batch(data_of(rank), step)
            torch.nn.functional.cross_entropy(net(x), y).backward()
        site.step(0.05)
    share = site.state["share"]
    site.close()
    return share, bytes_of(net)


def test_without_samples(box):
    ended = workers(WORLD, without_samples, box)
    assert [share for share, _ in ended] == [0.5, 0.5, 0] and len({weights for _, weights in ended}) == 1


def elsewhere(rank, norm, url):
    """Its evaluate() is of data that are nowhere trained on."""
    data = data_of(rank)
    net = make_net(0, norm)
    site = phub.torch.Site(net, url, algorithm="bsp", rank=rank, world=2, reproducible=True, scout={"policy": "scout+", "thetas": [1], "period": 10},
                           evaluate=lambda model, draw, samples: (samples or 20, 0, 9.0 * (samples or 20)))  # fmt: skip
    reasons = []
    for step in range(120):
        x, y = batch(data, step)
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        site.lost(loss.item(), len(y))
        site.step(0.05)
        reasons.append(site.decision.reason if site.decision and site.decision.action == "cannot" else "")
    site.close()
    return set(reasons)


def test_statistics(box):
    """What is tried on other data is taken for batch normalization where the model has some alone."""
    for norm in (False, True):
        told = " ".join(workers(2, elsewhere, norm, box.url(f"elsewhere{norm:d}"))[0])
        assert "even where they talk at each step" in told and ("batch normalization" in told) == norm, told
        assert ("nothing of it is untrained: evaluate() tries other data" in told) != norm, told


def test_refused(box):
    def halves(rank):
        with raises(phub.Error, "contiguous and float32"):
            phub.torch.Site(make_net(0).half(), box.url("half"), rank=0, world=1)

    workers(1, halves)


def resumed(rank, url, began):
    net = make_net(rank)
    site = phub.torch.Site(net, url, theta=3, rank=rank, world=WORLD, resume=30, reproducible=True)
    began[rank] = 1
    for step in range(90):
        x, y = batch(data_of(rank), step)
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        site.step(0.05)
        time.sleep(0.01)
    steps = site.state["steps"]
    site.close()
    return steps, bytes_of(net)


def replace(pid, command, began):
    """Kills the box when all are at it, and becomes another at the same address."""
    while not all(began):
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    while pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.01)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.execv(command[0], command)


def test_resumed(_):
    """A box that is killed and started again is not seen in the weights."""
    ends = []
    for kills in (False, True):
        port = rig.free_port()
        command = [str(rig.PHUBD), "--listen", f"127.0.0.1:{port}", "-o", "data_ports=any"]
        began = rig.fork.Array("i", WORLD)
        box = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert "listening" in box.stdout.readline()
        other = rig.fork.Process(target=replace, args=(box.pid, command, began))
        if kills:
            other.start()
        try:
            ends.append(workers(WORLD, resumed, f"phub://127.0.0.1:{port}/resumed", began))
        finally:
            box.kill()
            box.wait()
            box.stdout.close()
            if kills:
                other.terminate()
                other.join()
    assert ends[0] == ends[1], [[end[0] for end in run] for run in ends]


if __name__ == "__main__":
    sys.stdout.flush()
    rig.run([test_scout, test_average, test_disagree, test_newcomer, test_unheard, test_errors, test_logs, test_nested, test_leaves, test_as_sgd,
             test_in_racks, test_scouted, test_fails, test_strict, test_not_finite, test_warned, test_without_samples, test_statistics, test_refused,
             test_resumed], rig.Box())
