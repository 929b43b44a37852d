#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What exchanging from and to a GPU's memory takes beside the host's: the same rounds, on one host, taking turns.

Usage: gpu.py [--check]    measures, and prints a table; with --check of small sums, and of host memory where there is no GPU

Environment: BUILD    where phub is (build)
             RUNS     runs of each, taking turns (5): the table has medians, and the least and most
             ROUNDS   measured rounds of a run (20)

A round is an all-reduce of 100 MB of float32 in keys of 4 MB, from its first push to the end of its wait, in the slowest
worker; all workers are processes on the same GPU, the box is phubd with its defaults. Rows:

  host       memory of the process's own
  library    what phub_alloc() gives: no copy in the worker
  gpu        the GPU's memory, in place: what libphub makes of it
  by hand    the same, copied by the caller: to pinned memory, all-reduced there, and back when all is there

Sums are checked after each run, bit by bit. "copies" is what the GPU takes for that much to pinned memory and back, one after
the other, and nothing else.
"""
import multiprocessing
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
RUNS = int(os.environ.get("RUNS", "5"))
ROUNDS = int(os.environ.get("ROUNDS", "20"))
CHECK = "--check" in sys.argv[1:]
KEYS, ELEMENTS = (5, 10_000) if CHECK else (25, 1_000_000)
WARM = 3
KINDS = ("host", "library", "gpu", "by hand")

os.environ["PHUB_LIBRARY"] = str(BUILD / "libphub.so.0")
sys.path.insert(0, str(ROOT / "client" / "python"))


class Memory:
    """What a worker exchanges: in `source`, and after a round in `target`; the wire reads and writes `addresses`."""

    def __init__(self, kind, worker, torch):
        from phub._tensors import view

        self.by_hand = kind == "by hand"
        indexes = [worker.key(f"key{k}", ELEMENTS, alone=True) for k in range(KEYS)]
        worker.start()
        if kind == "library":
            places = [worker.alloc(index) for index in indexes]
            self.source = [view(push, ELEMENTS, torch.float32) for push, _ in places]
            self.target = [view(result, ELEMENTS, torch.float32) for _, result in places]
            self.addresses = [(push, None) for push, _ in places]
            return
        self.source = [torch.empty(ELEMENTS, device="cpu" if kind == "host" else "cuda") for _ in indexes]
        self.target = self.source
        self.pinned = [torch.empty(ELEMENTS, pin_memory=True) for _ in indexes] if self.by_hand else self.source
        self.addresses = [(t.data_ptr(), t.data_ptr()) for t in self.pinned]

    def round(self, worker, torch):
        """Seconds."""
        begun = time.perf_counter()
        if self.by_hand:
            for host, source in zip(self.pinned, self.source):
                host.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
        for key, (push, result) in enumerate(self.addresses):
            worker.begin(key, push, result)
        worker.wait()
        if self.by_hand:
            for host, target in zip(self.pinned, self.target):
                target.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
        return time.perf_counter() - begun


def values(rank, key, turn, torch, base={}):
    """What this rank pushes then."""
    if turn not in base:
        torch.manual_seed(turn)
        base[turn] = torch.rand(ELEMENTS)
    return base[turn] * (1 + key + KEYS * rank)


def fill(memory, rank, turn, torch):
    for key, tensor in enumerate(memory.source):
        tensor.copy_(values(rank, key, turn, torch))


def wrong(memory, world, turn, torch):
    for key, tensor in enumerate(memory.target):
        if not torch.equal(tensor.cpu(), sum(values(rank, key, turn, torch) for rank in range(world))):
            return f"the sum of key {key} is wrong"
    return None


def one_run(url, rank, world, transport, kind, torch):
    """(seconds of each round, what is wrong)"""
    import phub

    with phub.connect(url, rank=rank, world=world, transport=transport) as worker:
        memory = Memory(kind, worker, torch)
        took = []
        for turn, rounds in enumerate((WARM + ROUNDS, 1)):
            fill(memory, rank, turn, torch)
            if memory.source[0].is_cuda:
                torch.cuda.synchronize()
            took += [memory.round(worker, torch) for _ in range(rounds)]
        if worker.transport != transport:
            return took, f"over {worker.transport}"
        return took[WARM : WARM + ROUNDS], wrong(memory, world, 1, torch)


def work(url, rank, world, transport, kinds, pipe):
    import torch

    torch.set_num_threads(1)
    for turn in range(RUNS):
        for kind in kinds:
            pipe.send((kind, *one_run(f"{url}{kind[0]}{turn}", rank, world, transport, kind, torch)))


def run(url, world, transport, kinds):
    """Milliseconds of a round in each run, by kinds: medians of those of the slowest worker."""
    fork = multiprocessing.get_context("fork")
    pipes, crew = [], []
    for rank in range(world):
        ours, theirs = fork.Pipe(False)
        crew.append(fork.Process(target=work, args=(url, rank, world, transport, kinds, theirs), daemon=True))
        crew[-1].start()
        theirs.close()
        pipes.append(ours)
    times = {kind: [] for kind in kinds}
    for _ in range(RUNS * len(kinds)):
        answers = [pipe.recv() if pipe.poll(120) else sys.exit("gpu: a worker does not come back") for pipe in pipes]
        kind = answers[0][0]
        for _, _, failure in answers:
            if failure:
                sys.exit(f"gpu: {kind} over {transport}: {failure}")
        times[kind].append(statistics.median(max(each) for each in zip(*(took for _, took, _ in answers))) * 1e3)
    for process in crew:
        process.join(30)
    return times


def copies(pipe):
    """Milliseconds of the GPU's copies alone, to pinned memory and back; None: no GPU."""
    import torch

    if not torch.cuda.is_available():
        pipe.send((None, "no GPU"))
        return
    there = [torch.empty(ELEMENTS, device="cuda") for _ in range(KEYS)]
    host = [torch.empty(ELEMENTS, pin_memory=True) for _ in there]
    took = []
    for _ in range(WARM + ROUNDS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for a, b in ((a, b) for pair in (zip(host, there), zip(there, host)) for a, b in pair):
            a.copy_(b, non_blocking=True)
        torch.cuda.synchronize()
        took.append((time.perf_counter() - begun) * 1e3)
    pipe.send((statistics.median(took[WARM:]), torch.cuda.get_device_name()))


def gpu():
    """In a process of its own, as one that has asked CUDA forks no workers that can use it."""
    ours, theirs = multiprocessing.get_context("fork").Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=copies, args=(theirs,))
    process.start()
    answer = ours.recv()
    process.join()
    return answer


def main():
    import torch  # noqa: F401 - once, for all that are forked; it asks for no GPU yet

    alone, name = gpu()
    if alone is None and not CHECK:
        print("skipped: no GPU here that CUDA knows")
        return 77
    kinds = KINDS if alone is not None else KINDS[:2]
    print(f"{KEYS} keys of {ELEMENTS * 4 / 1e6:g} MB, medians of {RUNS} runs of {ROUNDS} rounds, {os.cpu_count()} CPUs, {name}")
    if alone is not None:
        print(f"copies: {alone:.2f} ms")
    box = subprocess.Popen([BUILD / "phubd", "--listen", "127.0.0.1:0", "-o", "data_ports=any"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True)
    try:
        port = re.search(r"127\.0\.0\.1:(\d+)", box.stdout.readline()).group(1)
        for transport in ("shm", "tcp"):
            for world in (1, 2):
                times = run(f"phub://127.0.0.1:{port}/{transport}{world}", world, transport, kinds)
                for kind in kinds:
                    ms = statistics.median(times[kind])
                    print(f"{transport}, {world} worker{'s' * (world > 1)}, {kind:8}: {ms:8.2f} ms ({min(times[kind]):.2f} to "
                          f"{max(times[kind]):.2f}), {KEYS * ELEMENTS * 4 / ms / 1e6:6.2f} GB/s each way", flush=True)
    finally:
        box.terminate()
        box.wait(20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
