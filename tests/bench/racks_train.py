# SPDX-License-Identifier: Apache-2.0
"""PHub's experiment with several racks, for racks.py: a training step's time on K racks beside that on one, compute included.

`phub bench train` computes as long as a batch of 32 takes in the paper, tensor by tensor, and exchanges for real. Everything is
to scale: links have 1/SLOWER of the 10 Gbit/s that are assumed for the paper's workers, tensors 1/CUT of their elements, and
compute takes SLOWER / CUT times as long, so that compute and wire are to each other as at full size.
"""
import contextlib
import dataclasses
import json
import math
import subprocess
import time

import report
from racks_net import PORT, Crew, Shape, address, racks_of
from systems import BUILD, Failure, OUT, busy_since, cpu_ticks

FULL_MBIT, MBIT, CUT = 10_000, 50, 100
SLOWER = FULL_MBIT // MBIT
WORKERS, UPLINK_WORKERS = 2, 8  # of a rack here; and the links that its uplink is worth: a rack of the paper has eight workers
COMPUTE_MS = {"alexnet": 16, "resnet-50": 161}
WHOLE = 2 << 20  # a chunk so large that it holds any of the tensors
DEADLINE_S = 180
ROUNDS = {"smoke": 1, "quick": 2, "full": 3}


@dataclasses.dataclass(frozen=True)
class Point:
    model: str
    racks: int
    oversubscribed: int = 1
    chunk: int = 0  # the box's

    @property
    def label(self):
        return {"section": "train", **dataclasses.asdict(self)}

    @property
    def net(self):
        return self.racks, self.oversubscribed if self.racks > 1 else 1


def points(rows):
    if rows == "smoke":
        return [Point("resnet-50", racks) for racks in (1, 2)]
    many = (1, 2, 4, 8) if rows == "quick" else range(1, 9)
    found = [Point(model, racks) for model in COMPUTE_MS for racks in many]
    if rows == "full":
        found += [Point(model, racks, 4) for model in COMPUTE_MS for racks in many if racks > 1]
        found += [Point("alexnet", racks, 1, WHOLE) for racks in (1, 2, 4, 8)]
    return found


def write_trace(model):
    """Layers with their times, as `phub bench train --model` guesses them, and elements that are cut."""
    path = OUT / f"racks-{model}.csv"
    listed = subprocess.run([BUILD / "phub", "models", "--json", model], check=True, capture_output=True, text=True).stdout
    tensors = json.loads(listed)["tensors"]
    share_ms = COMPUTE_MS[model] * SLOWER / CUT / sum(len(one["shape"]) > 1 for one in tensors)
    lines = ["name,forward_ms,backward_ms,elements"]
    for one in tensors:
        ms = share_ms if len(one["shape"]) > 1 else 0
        lines.append(f"{one['name']},{ms / 3:.6f},{ms * 2 / 3:.6f},{max(1, math.prod(one['shape']) // CUT)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def iteration(racks, point, trace, rounds):
    """One run: medians over the workers of their median iteration, exchange alone and compute alone."""
    shape = racks.shape
    with Crew(racks) as crew:
        boxes = crew.boxes("sharded" if shape.count > 1 else "flat")
        ticks, began = cpu_ticks(), time.monotonic()
        chunk = ["--chunk", point.chunk] if point.chunk else []
        workers = [crew.start(racks.worker(number, local), BUILD / "phub", "bench", "train", "--trace", trace, "--schedule", "fifo",
                              "--transport",
                              "tcp", "--optimizer", "nesterov", "--box", f"{address(boxes[number])}:{PORT}", "--job", "train", "--world",
                              shape.world, "--first-rank", rank, "--workers", 1, "--rounds", rounds, *chunk, "--json")
                   for rank, (number, local) in enumerate(shape.places())]
        answers = [answer(worker, began + DEADLINE_S, f"{point.model}, {point.racks} racks") for worker in workers]
        busy = busy_since(ticks)
    median = {name: report.spread(one[name]["p50_ms"] for one in answers).median for name in ("compute", "exchange", "fifo")}
    return {"step_ms": median["fifo"], "exchange_ms": median["exchange"], "compute_ms": median["compute"],
            "bytes": answers[0]["fifo"]["bytes"],
            "busy": round(busy, 2)}


def answer(worker, until, what):
    """{schedule: its line}."""
    try:
        out, err = worker.communicate(timeout=max(1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Failure(f"{what}: no answer in {DEADLINE_S} s") from None
    lines = [json.loads(line) for line in out.decode().splitlines()] if worker.returncode == 0 else []
    if not lines or any(line["errors"] for line in lines):
        raise Failure(f"{what}: {err.decode().strip() or 'wrong sums'}")
    return {line["schedule"]: line for line in lines}


def measure(log, rows, runs, say):
    """All points take turns, run by run, with all their racks up."""
    wanted = [(run, point) for run in range(runs) for point in points(rows) if log.lacks(run=run, **point.label)]
    traces = {model: write_trace(model) for model in {point.model for _, point in wanted}}
    with contextlib.ExitStack() as stack:
        nets = {}
        for racks, over in {point.net: None for _, point in wanted}:
            shape = Shape((WORKERS,) * racks, MBIT, over, UPLINK_WORKERS)
            nets[racks, over] = stack.enter_context(racks_of(shape, f"{racks}x{over}"))
        for run, point in wanted:
            found = log.tried(lambda: iteration(nets[point.net], point, traces[point.model], ROUNDS[rows]), run=run, **point.label)
            if found:
                say(f"{point.model} on {point.racks} racks, {point.oversubscribed}:1{', whole tensors' if point.chunk else ''}: "
                    f"{found['step_ms']:.0f} ms a step, {found['busy']:.2f} CPUs busy")
