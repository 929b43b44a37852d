#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One worker of the demo: a small CNN on Fashion-MNIST, its gradients summed and optimized by a box.

    build/phubd &
    torchrun --nproc_per_node 4 deploy/demo/train.py

(Without the name torchrun: python3 -m torch.distributed.run.) `--mode` says who does what:

    box     the box sums and optimizes: phub.torch.DistributedOptimizer (default)
    ddp     the box sums, torch optimizes: DistributedDataParallel and phub.torch.attach
    single  no box, one process: the reference

`--trace FILE` trains nothing: it writes down how long each layer computes for one of --batch images, for

    build/phub bench train --trace FILE

Rank and world come from the launcher: torchrun, mpirun or srun. Workers share each batch of --batch images, so that
any number of them does the same arithmetic. Rank 0 prints a line every 100 steps; with --report FILE every rank writes
JSON lines to FILE.RANK instead.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

try:
    import torch
    import torch.nn.functional as F
except ImportError as e:
    sys.exit(f"train.py: {e}: run `deploy/deps.sh demo` (package python3-torch) and use /usr/bin/python3")

DATA = pathlib.Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
SPARE_ROUNDS = 20  # to measure the exchange alone


def read_idx(name):
    """An idx file as a tensor of bytes of its dimensions."""
    path = DATA / f"{name}.gz"
    if not path.exists():
        sys.exit(f"train.py: {path} is missing: run `deploy/deps.sh demo` (package dataset-fashion-mnist)")
    with gzip.open(path) as file:
        raw = bytearray(file.read())
    dims = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * len(dims)).view(dims)


def load(part):
    """(images [n, 1, 28, 28] of bytes, labels [n] of int64)"""
    return read_idx(f"{part}-images-idx3-ubyte").unsqueeze(1), read_idx(f"{part}-labels-idx1-ubyte").long()


def scaled(images):
    """As floats of mean 0 and deviation 1 over the training set."""
    return (images.float() - 72.94) / 90.02


def make_model(seed):
    """A small CNN whose training does not hang on the order of sums: GroupNorm looks at each image alone, and GELU has
    no edge, where ReLU turns a difference in the last bit into another gradient once in some steps."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, padding=2, stride=2),
        torch.nn.GroupNorm(4, 16),
        torch.nn.GELU(),
        torch.nn.Conv2d(16, 32, 5, padding=2, stride=2),
        torch.nn.GroupNorm(4, 32),
        torch.nn.GELU(),
        # Fully connected layers, written as convolutions: Debian's torch multiplies matrices with a plain BLAS.
        torch.nn.Conv2d(32, 128, 7),
        torch.nn.GELU(),
        torch.nn.Conv2d(128, 10, 1),
        torch.nn.Flatten(),
    )


def accuracy(model, images, labels):
    """The share of images that the model names rightly."""
    model.eval()
    with torch.no_grad():
        pairs = zip(images.split(1000), labels.split(1000))
        right = sum((model(scaled(x)).argmax(1) == y).sum().item() for x, y in pairs)
    model.train()
    return right / len(labels)


def give_up(path, error):
    """Ends the program: nothing can be written there."""
    if path is None:  # else Python says it once more when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    reason = error.strerror or error
    sys.exit(f"train.py: cannot write {path or 'standard output'}: {reason}; free space or name another place")


def write(path, mode, content=b""):
    try:
        with open(path, mode) as file:
            file.write(content)
    except OSError as e:
        give_up(path, e)


class Reporter:
    """Says how it goes: JSON lines to a file of this rank, or some lines of text from rank 0."""

    def __init__(self, path, rank):
        self.path = f"{path}.{rank}" if path else None
        self.rank = rank
        try:
            self.file = open(self.path, "w", buffering=1) if path else None
        except OSError as e:
            give_up(self.path, e)

    def say(self, **what):
        try:
            self.write(what)
        except OSError as e:
            give_up(self.path, e)

    def write(self, what):
        if self.file:
            self.file.write(json.dumps(what) + "\n")
        elif self.rank == 0 and (what.get("step", 0) % 100 == 0 or what.get("step") == what.get("steps")):
            words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in what.items())
            print("  ".join(words), flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", choices=("box", "ddp", "single"), default="box")
    p.add_argument("--url", default=os.environ.get("PHUB_URL", "phub://127.0.0.1/fashion-mnist"))
    p.add_argument("--transport", default=None, help="auto, shm or tcp")
    p.add_argument("--epochs", type=float, default=2.0)
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    p.add_argument("--batch", type=int, default=128, help="images a step, of all workers together")
    p.add_argument("--lr", type=float, default=0.05, help="highest learning rate; it falls to 0 along a cosine")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--reproducible", action="store_true", help="sums in rank order: two runs give the same bits")
    p.add_argument("--report", default=None, help="JSON lines go to REPORT.RANK")
    p.add_argument("--weights", default=None, help="file for rank 0's weights at the end")
    p.add_argument("--trace", default=None, help="file for the times of the layers, then stop")
    return p.parse_args()


def launched():
    """(rank, world) by the launcher's environment."""
    import phub

    try:
        return phub.launched()
    except phub.Error as e:
        sys.exit(f"train.py: {e}")


def make_optimizer(a, model):
    """(what to call, its optimizer, the connection to the box or None)"""
    options = dict(transport=a.transport, reproducible=a.reproducible)
    if a.mode == "box":
        import phub.torch

        optimizer = phub.torch.DistributedOptimizer(model, "nesterov", a.url, lr=a.lr, momentum=0.9, **options)
        return model, optimizer, optimizer.worker
    optimizer = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9, nesterov=True)
    if a.mode == "single":
        return model, optimizer, None
    import phub.torch

    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    return model, optimizer, phub.torch.attach(model, a.url, **options)


def batches(a, count, steps, rank, world):
    """This rank's part of each step's images, as indexes. All ranks draw the same order."""
    order = torch.Generator().manual_seed(a.seed)
    indexes = torch.empty(0, dtype=torch.int64)
    share = a.batch // world
    for _ in range(steps):
        if len(indexes) < a.batch:
            indexes = torch.randperm(count, generator=order)
        batch, indexes = indexes[: a.batch], indexes[a.batch :]
        yield batch[rank * share : (rank + 1) * share]


def train(a, model, optimizer, rank, world, report):
    """Returns steps, seconds of all, seconds in optimizer.step()."""
    images, labels = load("train")
    total = max(1, int(a.epochs * len(labels) / a.batch), a.steps)
    steps = a.steps or total
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    stepping, begun = 0.0, time.monotonic()
    for step, mine in enumerate(batches(a, len(labels), steps, rank, world), 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(scaled(images[mine])), labels[mine])
        loss.backward()
        before = time.monotonic()
        optimizer.step()
        stepping += time.monotonic() - before
        schedule.step()
        if step <= 50 or step % 10 == 0 or step == steps:
            report.say(step=step, steps=steps, loss=loss.item())
    return steps, time.monotonic() - begun, stepping


def record(a):
    """Times of the layers of one worker's step, in CPU time: other programs that run here do not count."""
    import phub.torch

    torch.set_num_threads(1)
    model = make_model(a.seed)
    images, labels = load("train")
    drawn = batches(a, len(labels), 1000, 0, 1)

    def step():
        mine = next(drawn)
        model.zero_grad()
        F.cross_entropy(model(scaled(images[mine])), labels[mine]).backward()

    note = f"deploy/demo/train.py --trace: a small CNN on Fashion-MNIST, {a.batch} images a step"
    write(a.trace, "ab")
    took = phub.torch.record_trace(model, step, a.trace, steps=100, clock="cpu", note=note)
    print(f"a step of {a.batch} images takes {took:.3f} ms; now: phub bench train --trace {a.trace} --compute spin")


def exchange_alone(optimizer, worker):
    """Milliseconds of a step in which no worker waits for another's gradients. The weights stay."""
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    worker.barrier()
    begun = time.monotonic()
    for _ in range(SPARE_ROUNDS):
        optimizer.step()
    return (time.monotonic() - begun) / SPARE_ROUNDS * 1e3


def main():
    a = arguments()
    if a.trace:
        record(a)
        return
    rank, world = launched() if a.mode != "single" else (0, 1)
    if a.batch < world or a.batch % world:
        sys.exit(f"train.py: --batch {a.batch} cannot be shared by {world} workers: use a multiple")
    torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) // world)))
    report = Reporter(a.report, rank)
    if a.weights and rank == 0:
        write(a.weights, "ab")  # it fails now, not after the training
    model, optimizer, worker = make_optimizer(a, make_model(a.seed + rank))  # all take rank 0's weights
    steps, seconds, stepping = train(a, model, optimizer, rank, world, report)
    result = {"images_per_s": steps * a.batch / seconds, "seconds": seconds}
    if worker:
        stats = worker.stats()
        waited = stepping if a.mode == "box" else stats["wait_ns"] / 1e9
        result["exchange_share"] = waited / seconds
        result["copies_per_gradient_byte"] = stats["copied_bytes"] / max(1, stats["pushed_bytes"])
        result["transport"] = worker.transport
    if a.mode == "box":
        result["exchange_ms"] = exchange_alone(optimizer, worker)
    if rank == 0:
        result["accuracy"] = accuracy(model, *load("t10k"))
        parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        result["weights_sha256"] = hashlib.sha256(parameters).hexdigest()
        if a.weights:
            content = io.BytesIO()
            torch.save(model.state_dict(), content)
            write(a.weights, "wb", content.getvalue())
    report.say(**result)
    if worker:
        worker.leave()


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, ImportError, OSError, KeyboardInterrupt) as e:
        sys.exit(f"train.py: {str(e) or ('interrupted' if isinstance(e, KeyboardInterrupt) else type(e).__name__)}")
