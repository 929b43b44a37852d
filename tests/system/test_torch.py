#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub.torch against torch itself: DistributedDataParallel through the box, the optimizer in the box, broadcasts.

This process only forks: whatever computes runs in workers, so that no thread of torch is lost at a fork.
"""

import itertools
import os
import signal
import subprocess
import sys
import tempfile

import python_rig as rig
from python_rig import raises, workers

try:
    import torch
except ImportError as e:
    rig.skip(f"{e} (Debian: apt install python3-torch, and run /usr/bin/python3)")
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import phub
import phub._record
import phub.torch

torch.set_num_threads(1)
BATCH = 4  # images of a worker's step


def make_net(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.GroupNorm(2, 16),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 9, 200),
        torch.nn.ReLU(),
        torch.nn.Linear(200, 10),
    )


def batch_of(step, world):
    """The images and labels of all workers together, the same in each."""
    torch.manual_seed(1000 + step)
    images = torch.randn(BATCH * world, 1, 8, 8)
    return images, (images[:, 0, :3, :3].sum((1, 2)) * 2 % 10).long()


def mine(tensors, rank):
    return [t[rank * BATCH : (rank + 1) * BATCH] for t in tensors]


def weights_of(model):
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def assert_close(got, want, tolerance=2e-6):
    for (name, a), (_, b) in zip(got.named_parameters(), want.named_parameters()):
        assert torch.allclose(a, b, rtol=0, atol=tolerance), f"{name}: {(a - b).abs().max()}"


# ---- the optimizer in the box: 4 workers are one process with four times the batch ----

OPTIMIZERS = {
    "nesterov": (dict(lr=0.05, momentum=0.9), torch.optim.SGD, dict(nesterov=True)),
    "adam": (dict(lr=0.003), torch.optim.Adam, {}),
}
STEPS = 50


def train(model, optimizer, steps, batch):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def train_together(rank, url, kind, steps, options):
    model = make_net(rank)  # rank 0's weights count
    hypers = OPTIMIZERS[kind][0]
    optimizer = phub.torch.DistributedOptimizer(model, kind, url, rank=rank, world=4, **hypers, **options)
    losses = train(model, optimizer, steps, lambda step: mine(batch_of(step, 4), rank))
    optimizer.close()
    return losses, weights_of(model)


def train_alone(rank, kind):
    model = make_net(0)
    hypers, optimizer, more = OPTIMIZERS[kind]
    return train(model, optimizer(model.parameters(), **hypers, **more), STEPS, lambda step: batch_of(step, 4))


def check_equal(box, kind):
    alone = workers(1, train_alone, kind)[0]
    assert alone[-1] < alone[0], alone
    for transport in ("shm", "tcp"):
        answers = workers(4, train_together, box.url(kind + transport), kind, STEPS, dict(transport=transport))
        together = [sum(losses) / 4 for losses in zip(*(a[0] for a in answers))]
        most = max(abs(a - b) for a, b in zip(alone, together))
        print(f"# {kind} over {transport}: losses of {STEPS} steps differ by at most {most:.1e}")
        assert most < 1e-3, (alone, together)
        assert len({a[1] for a in answers}) == 1, "workers have different weights"


def test_nesterov_equals_one_process(box):
    check_equal(box, "nesterov")


def test_adam_equals_one_process(box):
    check_equal(box, "adam")


def test_reproducible_runs_are_bit_identical(box):
    runs = []
    for transport in ("shm", "shm", "tcp", "tcp"):
        options = dict(transport=transport, reproducible=True)
        answers = workers(4, train_together, box.url(f"same{len(runs)}"), "nesterov", 20, options)
        runs.append(answers[0][1])
    assert len(set(runs)) == 1


# ---- the optimizer in the box: what torch.optim's users do ----


class Branches(torch.nn.Module):
    """Three layers, of which the caller picks; one is frozen, one parameter is not laid out in order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(3)])
        self.frozen = torch.nn.Parameter(torch.ones(6), requires_grad=False)
        self.conv = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.empty = torch.nn.Parameter(torch.zeros(0))

    def forward(self, x, used):
        y = x * self.frozen
        for layer in used:
            y = torch.tanh(self.layers[layer](y))
        return y.square().mean() + self.conv(x.reshape(-1, 2, 3, 3)).square().mean()


def branch_data(step, rank):
    torch.manual_seed(77 + 10 * step + rank)
    return torch.randn(12, 6)


def branches_used(step, rank):
    """Layer 1 only by rank 1; layer 2 by both, then by none."""
    return [0] + ([1] if rank == 1 else []) + ([2] if step < 3 else [])


def groups_of(model):
    return [
        {"params": [p for layer in model.layers for p in layer.parameters()], "lr": 0.1, "weight_decay": 0.1},
        {"params": [model.frozen, model.empty, *model.conv.parameters()], "momentum": 0.5},
    ]


def branches(rank, url, transport, find_unused):
    """Two groups, a schedule, accumulation, None gradients, frozen and empty parameters, channels_last."""
    ours, theirs = Branches(), Branches()
    box = phub.torch.DistributedOptimizer(
        groups_of(ours), "momentum", url, lr=0.05, rank=rank, world=2, transport=transport,
        find_unused_parameters=find_unused,
    )
    optim = torch.optim.SGD(groups_of(theirs), lr=0.05, momentum=0.9)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (box, optim)]
    for step in range(6):
        box.zero_grad(set_to_none=True)
        optim.zero_grad(set_to_none=True)
        for part in range(2):
            ours(branch_data(2 * step + part, rank), branches_used(step, rank)).backward()
            for r in range(2):
                (theirs(branch_data(2 * step + part, r), branches_used(step, r)) / 2).backward()
        if not find_unused:
            for p in theirs.parameters():
                p.grad = torch.zeros_like(p) if p.requires_grad and p.grad is None else p.grad
        for o in (box, optim):
            o.step()
        for schedule in schedules:
            schedule.step()
        assert_close(ours, theirs)
    assert (ours.frozen == 1).all() and ours.conv.weight.is_contiguous(memory_format=torch.channels_last)
    if find_unused:
        assert ours.layers[2].weight.grad is None
    stats = box.worker.stats()
    box.close()
    return stats["copied_bytes"] / stats["pushed_bytes"]


def test_groups_schedules_none_gradients(box):
    for transport in ("shm", "tcp"):
        workers(2, branches, box.url("zero" + transport), transport, False)


def test_unused_parameters_are_left_alone(box):
    for transport in ("shm", "tcp"):
        workers(2, branches, box.url("unused" + transport), transport, True)


def small_types(rank, url):
    for dtype in (torch.bfloat16, torch.float16):
        model = torch.nn.Linear(40, 30).to(dtype)
        optimizer = phub.torch.DistributedOptimizer(model, "sgd", f"{url}{dtype}", lr=0.5, rank=rank, world=2)
        before = model.weight.detach().clone()
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.25 * (rank + 1))
        optimizer.step()
        assert model.weight.dtype == dtype
        assert torch.equal(model.weight, (before.float() - 0.5 * 0.375).to(dtype))
        optimizer.close()


def test_half_precision(box):
    workers(2, small_types, box.url("small"))


def optimizer_manners(rank, url):
    model = torch.nn.Linear(3, 2)
    optimizer = phub.torch.DistributedOptimizer(model, "adam", url, rank=rank, world=2, lr=0.1, betas=(0.8, 0.9))
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    with raises(phub.Error, "parameter groups"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    loss = model(torch.ones(1, 3, requires_grad=True)).square().sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()
    saved = optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.close()
    optimizer.close()
    assert model(torch.ones(1, 3)).isfinite().all()


def optimizer_errors(rank, url):
    model = torch.nn.Linear(3, 2)
    with raises(TypeError, "'momentum'", "nesterov"):
        phub.torch.DistributedOptimizer(model, "sgd", url, momentum=0.9)
    with raises(TypeError, "'wieght_decay'"):
        phub.torch.DistributedOptimizer(model, "adam", url, wieght_decay=0.9)
    with raises(ValueError, "'lion'", "adamw"):
        phub.torch.DistributedOptimizer(model, "lion", url)
    with raises(ValueError, "bsp"):
        phub.torch.DistributedOptimizer(model, "sgd", url, sync="async", find_unused_parameters=True)
    with raises(phub.Error, "float64", "group0.0"):
        phub.torch.DistributedOptimizer([torch.nn.Parameter(torch.ones(2).double())], "sgd", f"{url}double{rank}")
    optimizer = phub.torch.DistributedOptimizer(model, "sgd", url, rank=rank, world=2, lr=0.1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.2 * (rank + 1)
    with raises(phub.Error, "lr", "rank"):
        optimizer.step()


def stale(rank, url):
    """Policies under which workers do not wait for each other: only that it learns is sure."""
    for sync, staleness in (("async", 0), ("ssp", 2)):
        model = make_net(rank)
        optimizer = phub.torch.DistributedOptimizer(
            model, "sgd", url + sync, rank=rank, world=2, lr=0.02, sync=sync, staleness=staleness
        )
        images, labels = mine(batch_of(0, 2), rank)
        losses = train(model, optimizer, 30, lambda step: (images, labels))
        assert losses[-1] < losses[0] / 2, losses
        optimizer.worker.barrier()
        optimizer.close()


def test_async_and_ssp_learn(box):
    workers(2, stale, box.url("stale"))


def test_optimizer_manners(box):
    workers(2, optimizer_manners, box.url("manners"))


def test_optimizer_errors(box):
    workers(2, optimizer_errors, box.url("errors"))


# ---- DistributedDataParallel ----


def in_group(rank, world, store, function, *arguments):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    answer = function(rank, world, *arguments)
    torch.distributed.destroy_process_group()
    return answer


def ddp_workers(world, function, *arguments):
    with tempfile.TemporaryDirectory(prefix="phub-test-") as folder:
        return workers(world, in_group, world, os.path.join(folder, "store"), function, *arguments)


torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 4000  # several buckets of a small model


def ddp_pair(url, make, transport, **options):
    """(model through the box, the same by gloo alone, with their optimizers, connection)"""
    ours = DistributedDataParallel(make(), bucket_cap_mb=0.01, **options)
    theirs = DistributedDataParallel(make(), bucket_cap_mb=0.01, **options)
    worker = phub.torch.attach(ours, url, transport=transport)
    return [(m, torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)) for m in (ours, theirs)], worker


def ddp_plain(rank, world, url, transport, options):
    pair, worker = ddp_pair(url, lambda: make_net(3), transport, **options)
    for step in range(5):
        images, labels = mine(batch_of(step, world), rank)
        for model, optimizer in pair:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        assert_close(pair[0][0], pair[1][0])
    hook = phub.torch._hooks[pair[0][0]]
    assert len(hook.layout) > 2, hook.layout
    assert hook.rekeys == 2, hook.rekeys  # the first pass, and the buckets rebuilt after it
    stats = worker.stats()
    phub.torch.detach(pair[0][0])
    for model, _ in pair:
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()  # by gloo again
    for a, b in zip(pair[0][0].parameters(), pair[1][0].parameters()):
        assert (a.grad - b.grad).abs().max() < 1e-6
    return stats["copied_bytes"] / stats["pushed_bytes"]


def test_ddp_equals_gloo(box):
    for transport, copies in (("shm", 1), ("tcp", 0)):
        assert ddp_workers(2, ddp_plain, box.url("ddp" + transport), transport, {}) == [copies] * 2


def test_ddp_gradient_as_bucket_view(box):
    ddp_workers(2, ddp_plain, box.url("view"), "shm", dict(gradient_as_bucket_view=True))


def test_ddp_static_graph(box):
    ddp_workers(2, ddp_plain, box.url("static"), "tcp", dict(static_graph=True))


def ddp_branches(rank, world, url):
    """Parameters that one rank or none uses, frozen ones, and accumulation under no_sync()."""

    def make():
        model = Branches()
        del model.empty
        return model

    pair, worker = ddp_pair(url, make, "shm", find_unused_parameters=True)
    for step in range(6):
        for model, optimizer in pair:
            optimizer.zero_grad(set_to_none=True)
            used = branches_used(step, rank)
            with model.no_sync():
                model(branch_data(2 * step, rank), used).backward()
            model(branch_data(2 * step + 1, rank), used).backward()
            optimizer.step()
        for a, b in zip(pair[0][0].parameters(), pair[1][0].parameters()):
            assert (a.grad is None) == (b.grad is None)
        assert_close(pair[0][0], pair[1][0])
    assert pair[0][0].module.layers[2].weight.grad is None
    phub.torch.detach(pair[0][0])


def test_ddp_unused_frozen_and_accumulation(box):
    ddp_workers(2, ddp_branches, box.url("branches"))


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((1, 8, 8), float(index)), index % 10


def ddp_loader(rank, world, url, transport):
    """DataLoader's workers are forked while the box is attached, once an epoch."""
    model = DistributedDataParallel(make_net(3))
    worker = phub.torch.attach(model, url, transport=transport)
    seen = 0
    for _ in range(3):
        for images, labels in torch.utils.data.DataLoader(Squares(), 8, num_workers=2, multiprocessing_context="fork"):
            F.cross_entropy(model(images), labels).backward()
            seen += len(labels)
    assert seen == 96
    assert worker.stats()["rounds"] >= 12
    phub.torch.detach(model)


def test_dataloader_workers(box):
    for transport in ("shm", "tcp"):
        ddp_workers(2, ddp_loader, box.url("loader" + transport), transport)


# ---- traces: what `phub bench train` replays ----


class Layered(torch.nn.Module):
    """A layer that is used twice, one that is not used, one that is frozen, and operations between layers."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.again = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.frozen = torch.nn.Conv2d(8, 8, 1)
        self.frozen.requires_grad_(False)
        self.unused = torch.nn.Linear(5, 5)
        self.relu = torch.nn.ReLU(inplace=True)
        self.head = torch.nn.Linear(8, 10).to(torch.float32)

    def forward(self, x):
        x = self.relu(self.conv(x))
        x = x + self.again(self.again(x))
        return self.head(self.frozen(x).mean((2, 3)))


def rows_of(lines):
    return [line.split(",") for line in lines if line and not line.startswith("#")]


def record_layered(rank):
    """What a trace holds: its comments, its rows, what record_trace() returned, and the model's own hooks behind it."""
    model = Layered()
    images, labels = torch.randn(16, 1, 24, 24), torch.zeros(16, dtype=torch.int64)

    def step():
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.csv")
        took = phub.torch.record_trace(model, step, path, steps=5, warmup=1, note="two\nlines")
        words = [rig.BUILD / "phub", "bench", "train", "--trace", path, "--rounds", "2", "--schedule", "priority"]
        replayed = subprocess.run(words, capture_output=True, text=True, check=False)
        with open(path, encoding="ascii") as file:
            lines = file.read().split("\n")
        with raises(ValueError, "forward and backward"):
            phub.torch.record_trace(model, lambda: model(images), path, steps=1)
        with raises(ValueError, "'wall' or 'cpu'"):
            phub.torch.record_trace(model, step, path, clock="moon")
        with raises(ValueError, "nothing to exchange"):
            relu = torch.nn.ReLU()
            phub.torch.record_trace(relu, lambda: relu(torch.ones(1, requires_grad=True)).sum().backward(), path, steps=1)
    phub._record.CLOCKS["cpu"] = itertools.count(step=1e-3).__next__  # each look at it takes a millisecond
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as counted:
        phub.torch.record_trace(model, step, counted.name, steps=1, clock="cpu")
        forward = {row[0]: float(row[1]) for row in rows_of(counted.read().split("\n"))[1:]}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return took, lines, forward, hooks, (replayed.returncode, replayed.stdout, replayed.stderr)


def test_record_trace(box):
    took, lines, forward, hooks, (status, out, err) = workers(1, record_layered)[0]
    assert lines[:2] == ["# two", "# lines"] and "5 steps" in lines[3], lines
    rows = rows_of(lines)
    assert rows[0] == ["name", "forward_ms", "backward_ms", "elements", "dtype"], rows
    names = [row[0] for row in rows[1:]]
    assert names == ["(input)", "conv", "relu", "again", "frozen", "head", "(loss)"], names
    elements = {row[0]: int(row[3] or 0) for row in rows[1:]}
    model = Layered()
    want = {name: sum(p.numel() for p in getattr(model, name).parameters()) for name in ("conv", "again", "head")}
    want["frozen"] = want.pop("unused", 0) + sum(p.numel() for p in model.unused.parameters())  # the layer before it
    assert {name: count for name, count in elements.items() if count} == want, elements
    total = sum(float(row[1]) + float(row[2]) for row in rows[1:])
    assert abs(total - took) < 0.01 * took, (total, took)
    times = {row[0]: (float(row[1]), float(row[2])) for row in rows[1:]}
    assert all(times[name][0] > 0 for name in ("conv", "relu", "again", "head")), times
    assert all(times[name][1] > 0 for name in ("conv", "again", "frozen", "head", "(loss)")), times
    assert forward["frozen"] > 0 and abs(forward["again"] - 2 * forward["frozen"]) < 1e-5, forward  # both of its uses
    assert not any(hooks), hooks
    assert status == 0 and "layers 7, keys 4" in out, out + err


def ddp_errors(rank, world, url):
    with raises(TypeError, "DistributedDataParallel", "Linear"):
        phub.torch.attach(torch.nn.Linear(2, 2), url)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    with raises(TypeError, "DistributedDataParallel", "plain module"):
        phub.torch.DistributedOptimizer(model, "sgd", url)
    with raises(ValueError, "not attached"):
        phub.torch.detach(model)
    model.register_comm_hook(None, lambda state, bucket: None)
    with raises(RuntimeError):
        phub.torch.attach(model, url + "second")
    model = DistributedDataParallel(torch.nn.Linear(2, 2).double())
    phub.torch.attach(model, url)
    with raises(Exception, "float64"):
        model(torch.ones(1, 2).double()).sum().backward()
    phub.torch.detach(model)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    phub.torch.attach(model, url + "gone", timeout=1.6)
    if rank == 0:
        with raises(Exception, "rank 1"):  # it never comes
            model(torch.ones(1, 2)).sum().backward()
    torch.distributed.barrier()


def test_ddp_errors(box):
    ddp_workers(2, ddp_errors, box.url("ddperrors"))


class FakeBucket:
    def __init__(self, index, tensor, last):
        self.index, self.buffer, self.is_last = lambda: index, lambda: tensor, lambda: last


def rebuild(rank, url, transport, count):
    """Buckets of other sizes every second pass, at new places each time."""
    from phub._ddp import Hook, run

    hook = Hook(phub.connect(url, rank=rank, world=2, reduce="mean", transport=transport))
    for turn in range(2 * count):
        sizes = [9000, 20000 - turn // 2, 30 + turn // 2]
        tensors = [torch.full((n,), float(i + rank)) for i, n in enumerate(sizes)]
        futures = [run(hook, FakeBucket(i, t, i == 2)) for i, t in enumerate(tensors)]
        for i, future in enumerate(futures):
            result = future.value()
            assert len(result) == sizes[i] and (result == i + 0.5).all(), (turn, i)
        if turn == count // 2:
            first = rig.footprint(os.getpid())
    assert hook.rekeys == count
    hook.detach()
    return first, rig.footprint(os.getpid())


def test_rebuilt_buckets_leak_nothing(box):
    for transport in ("shm", "tcp"):
        for first, last in workers(2, rebuild, box.url("rebuild" + transport), transport, 500):
            print(f"# {transport}: {first[0] >> 10} -> {last[0] >> 10} KiB, {first[1]} -> {last[1]} files")
            assert last[0] - first[0] < 1 << 20 and last[1] <= first[1], (first, last)


# ---- broadcasts ----


def broadcast(rank, url):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    state = dict(model.state_dict())
    state["int64"] = torch.randint(-(2**62), 2**62, (3, 5))
    state["bool"] = torch.rand(7) > 0.5
    state["float64"] = torch.randn(3, dtype=torch.float64).t()
    state["bfloat16"] = torch.randn(5).bfloat16()
    state["float16"] = torch.randn(5).half()
    state["nan bits"] = torch.tensor([-8388607 - rank, 2141192192 + rank], dtype=torch.int32)
    state["scalar"] = torch.tensor(rank)
    state["turned"] = torch.randn(3, 4).t()
    state["empty"] = torch.zeros(0)
    state["no tensor"] = 5
    for root in (0, 2):
        phub.torch.broadcast_parameters(state, url, root, rank=rank, world=3)
        if root == 0:
            first = {k: v.tolist() for k, v in state.items() if k != "no tensor"}
            state["scalar"].fill_(rank)
    assert state["scalar"].item() == 2 and model[1].num_batches_tracked.item() == 0
    return str(first)


def test_broadcast_parameters(box):
    answers = workers(3, broadcast, box.url("broadcast"))
    assert answers[0] == answers[1] == answers[2], answers


# ---- jobs beside the job ----


def guarded(rank, url):
    """All that has a job beside the job, in one whose box wants a secret and encryption."""
    options = {"rank": rank, "world": 2, "secret": "a secret of the tests", "encrypt": True, "transport": "tcp"}
    model = torch.nn.Linear(3, 2)
    phub.torch.broadcast_parameters(model.state_dict(), url, **options)
    optimizer = phub.torch.DistributedOptimizer(model, "sgd", url, lr=0.5, find_unused_parameters=True, **options)
    for _ in phub.torch.steps(optimizer, 2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    optimizer.close()
    return model.weight.tolist()


def check_guarded(*options):
    os.environ["PHUB_TEST_SECRET"] = "a secret of the tests"
    box = rig.Box("-o", "data_encryption=require", *options)
    try:
        answers = workers(2, guarded, box.url("guarded"))
        assert answers[0] == answers[1], answers
        for job in ("guarded", "guarded.used", "guarded.broadcast0"):
            assert f"job '{job}' forms" in box.log.read_text(), job
    finally:
        assert box.stop()
        del os.environ["PHUB_TEST_SECRET"]


def test_jobs_beside_the_job_are_as_safe(_):
    check_guarded("-o", "create=secret", "-o", "create_secret_env=PHUB_TEST_SECRET")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("create: never\njobs:\n  - {name: guarded, secret_env: PHUB_TEST_SECRET}\n")
        config.flush()
        check_guarded("--config", config.name)


# ---- the demo's program under its launcher ----


TRAIN = rig.ROOT / "deploy" / "demo" / "train.py"
LAUNCHER = "from torch.distributed.run import main\nmain()\n"


def torchrun(launcher, url, mode, *script):
    """Torch 1.13's launcher fails under Python 3.11 unless told where output goes."""
    command = [*launcher, "--redirects=1", "--tee=1", "--monitor_interval=0.2", "--nproc_per_node=2", f"--master_port={rig.free_port()}",
               *script, "--mode", mode, "--steps", "20"]
    run = subprocess.Popen(command, env={**os.environ, "PHUB_URL": url}, text=True, process_group=0,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        return run.communicate(timeout=150)[0], run.returncode
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def test_torchrun(box):
    """As its users start it; and the other mode without the imports."""
    data = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
    if not os.path.exists(os.path.join(data, "train-images-idx3-ubyte.gz")):
        return "no data (Debian: apt install dataset-fashion-mnist)"
    preloaded = rig.Preloaded()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as launcher:
        launcher.write(LAUNCHER)
        launcher.flush()
        for mode, *words in (("box", [sys.executable, "-m", "torch.distributed.run"], TRAIN),
                             ("ddp", [preloaded.command(launcher.name)], "--no_python", preloaded.command(TRAIN))):
            out, code = torchrun(words[0], box.url("run" + mode), mode, *words[1:])
            assert code == 0 and "step 20" in out and "accuracy" in out, out
    return None


if __name__ == "__main__":
    rig.run([test for name, test in list(globals().items()) if name.startswith("test_")], rig.Box())
