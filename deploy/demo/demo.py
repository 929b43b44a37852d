#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The demo: a CNN on Fashion-MNIST by four workers through a box, beside the same job on one process.

It starts a phubd on a free port of loopback, runs deploy/demo/train.py, compares, and draws the learning curves.
Exit status: 0 when all claims hold, 1 when one does not or something failed, 130 after Ctrl-C.

Claims: both reach 88 % test accuracy; the losses of four workers with a quarter of the batch each and of one process
differ by at most 1e-3 over the first 50 steps; two runs in reproducible mode end with the same bits; the box ends in
balance.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
OUT = BUILD / "demo"
WORKERS = 4
ACCURACY_MIN = 0.88
LOSS_STEPS = 50
LOSS_DIFFERENCE_MAX = 1e-3
SAME_STEPS = 20
QUICK_STEPS = 60
BAR = 30
PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """The demo cannot go on; the text says why and what to do."""


def die_with_parent():
    """In a child: it ends when this program is gone, however that ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_space():
    place = next(p for p in (OUT, *OUT.parents) if p.exists())
    return f"{shutil.disk_usage(place).free >> 20} MiB are free on the disk of {place}"


def tail(path, lines=15):
    text = path.read_text(errors="replace").strip().splitlines()
    if not text:
        return f" empty ({free_space()})"
    return "".join(f"\n    {line}" for line in text[-lines:])


class Processes:
    """What this program started; ended with it."""

    def __init__(self):
        self.all = []

    def start(self, command, log, **more):
        process = subprocess.Popen(command, stderr=log.open("w"), preexec_fn=die_with_parent, **more)
        self.all.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.all):
            if process.poll() is None:
                process.terminate()
        for process in self.all:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_box(processes):
    """(process, address)"""
    log = OUT / "phubd.log"
    command = [BUILD / "phubd", "--listen", "127.0.0.1:0", "-o", "data_ports=any"]
    box = processes.start(command, log, stdout=subprocess.PIPE, text=True)
    line = box.stdout.readline()
    found = re.search(r"listening on (127\.0\.0\.1:\d+)", line)
    if not found:
        box.wait(5)
        raise Failure(f"phubd did not start (exit status {box.returncode}). Its log {log} ends:{tail(log)}")
    print(line.strip().replace("phubd: ", "box: "))
    return box, found.group(1)


# ---- a run of train.py ----


class Progress:
    """A bar on a terminal, a line every quarter elsewhere."""

    def __init__(self, name):
        self.name = name
        self.bar = sys.stdout.isatty()
        self.next = 0.25
        self.begun = time.monotonic()
        self.show(f"{name}: starting", 0.0)

    def show(self, text, share):
        if self.bar:
            done = int(BAR * share)
            print(f"\r\x1b[K{'█' * done}{'░' * (BAR - done)} {text}", end="", flush=True)

    def step(self, report):
        share = report["step"] / report["steps"]
        text = f"{self.name}: step {report['step']} of {report['steps']}, loss {report['loss']:.3f}"
        self.show(text, share)
        if not self.bar and share >= self.next:
            print(f"  {text}, {time.monotonic() - self.begun:.0f} s", flush=True)
            self.next = share + 0.25

    def end(self):
        if self.bar:
            print("\r\x1b[K", end="", flush=True)


class Run:
    """One job: its workers, and what they report."""

    def __init__(self, processes, name, world, arguments, url=None):
        self.name = name
        self.world = world
        self.report = OUT / name
        self.logs = [OUT / f"{name}.{rank}.log" for rank in range(world)]
        for rank in range(world):
            self.path(rank).unlink(missing_ok=True)
        self.workers = [self.start(processes, rank, arguments, url) for rank in range(world)]

    def path(self, rank):
        return pathlib.Path(f"{self.report}.{rank}")

    def start(self, processes, rank, arguments, url):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(self.world), "OMP_WAIT_POLICY": "passive"}
        env["PHUB_LIBRARY"] = str(BUILD / "libphub.so.0")
        if url:
            env["PHUB_URL"] = url
        command = [sys.executable, ROOT / "deploy/demo/train.py", "--report", self.report]
        return processes.start([*command, *arguments], self.logs[rank], env=env)

    def check(self):
        """False while workers run; Failure when one has failed."""
        codes = [worker.poll() for worker in self.workers]
        for rank, code in enumerate(codes):
            if code not in (None, 0):
                log = self.logs[rank]
                raise Failure(f"{self.name}: worker {rank} failed (exit status {code}). Its log {log} ends:{tail(log)}")
        return all(code == 0 for code in codes)

    def lines(self, rank):
        return [json.loads(line) for line in self.path(rank).read_text().splitlines()]

    def follow(self, title):
        """Waits for the end, with progress."""
        progress, seen, rest = Progress(title), None, ""
        try:
            while not self.check():
                time.sleep(0.2)
                if seen is None and self.path(0).exists():
                    seen = self.path(0).open()
                rest += seen.read() if seen else ""
                *lines, rest = rest.split("\n")
                steps = [line for line in map(json.loads, lines) if "step" in line]
                if steps:
                    progress.step(steps[-1])
        finally:
            progress.end()
        return self

    def losses(self):
        """{step: loss of all workers' images together}"""
        reports = [[line for line in self.lines(rank) if "step" in line] for rank in range(self.world)]
        return {lines[0]["step"]: sum(line["loss"] for line in lines) / self.world for lines in zip(*reports)}

    def result(self, name):
        """What rank 0 said at the end."""
        return self.lines(0)[-1][name]

    def mean(self, name):
        return sum(self.lines(rank)[-1][name] for rank in range(self.world)) / self.world


# ---- what comes out ----


def draw(box, alone, path):
    """The learning curves, and how far they are apart at first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for run, style, label in ((alone, dict(color="tab:orange", lw=3, alpha=0.6), "one process"),
                              (box, dict(color="tab:blue", lw=1), f"{WORKERS} workers and a box")):
        losses = run.losses()
        left.plot(list(losses), list(losses.values()), label=f"{label}: {run.result('accuracy'):.2%} right", **style)
    left.set(xlabel="step", ylabel="training loss", title="Fashion-MNIST")
    left.legend(loc="upper right")
    left.grid(alpha=0.3)
    apart = differences(box, alone)
    right.semilogy(list(apart), [max(d, 1e-9) for d in apart.values()], ".-", color="tab:blue")
    right.axhline(LOSS_DIFFERENCE_MAX, color="tab:red", ls="--", label="allowed")
    right.set(xlabel="step", ylabel="difference of the losses", title="The same job in both ways")
    right.legend(loc="center right")
    right.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def differences(box, alone):
    """{step: how far the losses are apart} of the first steps"""
    a, b = box.losses(), alone.losses()
    return {step: abs(a[step] - b[step]) for step in range(1, LOSS_STEPS + 1)}


def print_results(box, alone):
    def row(name, *values):
        print(f"  {name:<28}" + "".join(f"{v:>18}" for v in values))

    print()
    row("", f"{WORKERS} workers, box", "one process")
    row("test accuracy", *(f"{run.result('accuracy'):.2%}" for run in (box, alone)))
    row("images/s", *(f"{run.result('images_per_s'):.0f}" for run in (box, alone)))
    row("time in exchange", f"{box.mean('exchange_share'):.1%}", "-")
    row("an exchange by itself", f"{box.mean('exchange_ms'):.2f} ms", "-")
    row("bytes copied/gradient byte", f"{box.mean('copies_per_gradient_byte'):.2f}", "-")
    print("  (time in exchange holds waiting for the slowest worker; an exchange by itself does not)\n")


def check_claims(box, alone, same, quick):
    """Prints each claim and whether it holds. Are all true?"""
    accuracy = min(run.result("accuracy") for run in (box, alone))
    apart = max(differences(box, alone).values())
    hashes = [run.result("weights_sha256")[:16] for run in same]
    claims = [
        (f"losses of {LOSS_STEPS} steps differ by at most {apart:.1e} (allowed {LOSS_DIFFERENCE_MAX:.0e})",
         apart <= LOSS_DIFFERENCE_MAX),
        (f"two reproducible runs end with the same weights: {' and '.join(hashes)}", len(set(hashes)) == 1),
    ]
    if not quick:
        claims.insert(0, (f"both accuracies at least {ACCURACY_MIN:.0%}", accuracy >= ACCURACY_MIN))
    for text, holds in claims:
        print(f"  {'ok  ' if holds else 'FAIL'} {text}")
    return all(holds for _, holds in claims)


def end_box(box):
    box.terminate()
    if box.wait(10) != 0:
        log = OUT / "phubd.log"
        raise Failure(f"phubd ended with exit status {box.returncode}. Its log {log} ends:{tail(log)}")


def demo(quick):
    steps = ["--steps", str(QUICK_STEPS)] if quick else []
    short = ["--steps", str(SAME_STEPS), "--reproducible"]
    with Processes() as processes:
        box, address = start_box(processes)
        url = f"phub://{address}/"
        together = Run(processes, "box", WORKERS, steps, url + "fashion-mnist").follow(f"{WORKERS} workers")
        alone = Run(processes, "single", 1, ["--mode", "single", *steps]).follow("one process")
        same = [Run(processes, f"same{i}", WORKERS, short, url + f"same{i}").follow(f"run {i} of the same")
                for i in (1, 2)]
        end_box(box)
    print_results(together, alone)
    holds = check_claims(together, alone, same, quick)
    draw(together, alone, OUT / "curves.png")
    print(f"  learning curves: {OUT / 'curves.png'}")
    return holds


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps, and no claim about accuracy")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    begun = time.monotonic()
    try:
        OUT.mkdir(parents=True, exist_ok=True)
        holds = demo(a.quick)
    except Failure as e:
        sys.exit(f"demo: {e}")
    except OSError as e:
        sys.exit(f"demo: {e.filename or OUT}: {e.strerror or e}; {free_space()}: it must be there, be writable, and "
                 "have room")
    except KeyboardInterrupt:
        print("\ndemo: interrupted; all that it started is ended", file=sys.stderr)
        sys.exit(130)
    print(f"demo: {'all is well' if holds else 'a claim does not hold'}, {time.monotonic() - begun:.0f} s")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
