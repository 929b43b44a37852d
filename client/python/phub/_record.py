# SPDX-License-Identifier: Apache-2.0
"""record_trace(): how long each layer of a model computes, into a CSV that `phub bench train --trace` replays."""

import re
import statistics
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from ._library import BF16, F16, F32
from ._tensors import DTYPES

# What a moment is the beginning of.
START, FORWARD, LEFT, BACKWARD, GRADIENT, END = range(6)
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
TYPES = {F32: "f32", F16: "f16", BF16: "bf16"}

Mark = Tuple[int, int, float]  # kind, layer, seconds


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a module returned that backward will reach."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)


class _Layer:
    def __init__(self, name: str, module: torch.nn.Module):
        self.name = re.sub(r"[^!-~]|[,'\"]", "_", name or "model")[:120]
        self.module = module
        self.elements: Dict[str, int] = {}  # of its parameters, by type


class _Recorder:
    """Hooks on all layers that write down moments. A layer is a module without children, or with parameters of its own."""

    def __init__(self, model: torch.nn.Module, clock: Callable[[], float]):
        self.layers = [
            _Layer(name, module)
            for name, module in model.named_modules()
            if not list(module.children()) or list(module.parameters(recurse=False))
        ]
        self.marks: List[Mark] = []
        self.order: List[int] = []  # layers as forward first met them
        self.clock = clock
        self.devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
        self.hooks: List[Any] = []

    def mark(self, kind: int, layer: int = -1) -> None:
        for device in self.devices:  # else the moments would be those at which work was handed over
            torch.cuda.synchronize(device)
        self.marks.append((kind, layer, self.clock()))

    def _enter(self, layer: int) -> None:
        if layer not in self.order:
            self.order.append(layer)
        self.mark(FORWARD, layer)

    def _leave(self, layer: int, output: Any) -> None:
        for tensor in _tensors(output):
            tensor.register_hook(lambda gradient: self.mark(BACKWARD, layer))
        self.mark(LEFT, layer)

    def attach(self) -> None:
        for index, layer in enumerate(self.layers):
            self.hooks.append(layer.module.register_forward_pre_hook(lambda m, i, index=index: self._enter(index)))
            self.hooks.append(layer.module.register_forward_hook(lambda m, i, o, index=index: self._leave(index, o)))
            for p in layer.module.parameters(recurse=False):
                if p.requires_grad:
                    self.hooks.append(p.register_hook(lambda gradient, index=index: self.mark(GRADIENT, index)))

    def detach(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def time(self, step: Callable[[], Any]) -> float:
        """Seconds of one step."""
        self.marks = []
        self.mark(START)
        step()
        self.mark(END)
        return self.marks[-1][2] - self.marks[0][2]

    def accounts(self) -> Dict[Tuple[str, int], float]:
        """The seconds of the last step, each given to one: what comes between two moments belongs to the first. So
        operations between modules count for the module before them."""
        spent: Dict[Tuple[str, int], float] = {}
        backward = -1
        for (kind, layer, begun), (following, _, ended) in zip(self.marks, self.marks[1:]):
            if kind == BACKWARD:
                backward = layer
            if kind == START:
                owner = ("before", -1)
            elif kind == LEFT and following in (BACKWARD, END):
                owner = ("loss", -1)
            elif kind in (FORWARD, LEFT):
                owner = ("forward", layer)
            elif kind == GRADIENT and following in (FORWARD, END):
                owner = ("after", -1)
            else:
                owner = ("backward", backward)
            spent[owner] = spent.get(owner, 0.0) + ended - begun
        return spent

    def share_parameters(self) -> None:
        """Gives each trainable parameter to the layer that has it; that of a layer which never ran to one before it."""
        seen = set()
        owner = self.order[0]
        for index, layer in enumerate(self.layers):
            if index in self.order:
                owner = index
            for p in layer.module.parameters(recurse=False):
                if not p.requires_grad or id(p) in seen or p.numel() == 0:
                    continue
                seen.add(id(p))
                if p.dtype not in DTYPES:
                    raise TypeError(f"{layer.name} has parameters of {p.dtype}: float32, float16 and bfloat16 can be sent")
                kind = TYPES[DTYPES[p.dtype]]
                self.layers[owner].elements[kind] = self.layers[owner].elements.get(kind, 0) + p.numel()
        if not seen:
            raise ValueError("the model has no parameter that is trained: there is nothing to exchange")


def _rows(recorder: _Recorder, ms: Dict[Tuple[str, int], float]) -> Iterator[str]:
    def row(name: str, forward: float, backward: float, elements: int = 0, kind: str = "") -> str:
        return f"{name},{forward:.6f},{backward:.6f},{elements or ''},{kind}\n"

    yield "name,forward_ms,backward_ms,elements,dtype\n"
    yield row("(input)", ms.get(("before", -1), 0), ms.get(("after", -1), 0))
    for index in recorder.order:
        layer = recorder.layers[index]
        kinds = sorted(layer.elements) or [""]
        for kind in kinds[1:]:  # in front: pushed when the layer's backward has ended
            yield row(f"{layer.name}.{kind}", 0, 0, layer.elements[kind], kind)
        yield row(
            layer.name,
            ms.get(("forward", index), 0),
            ms.get(("backward", index), 0),
            layer.elements.get(kinds[0], 0),
            kinds[0],
        )
    yield row("(loss)", 0, ms.get(("loss", -1), 0))


def record_trace(
    model: torch.nn.Module,
    step: Callable[[], Any],
    path: str,
    *,
    steps: int = 20,
    warmup: int = 5,
    clock: str = "wall",
    note: str = "",
) -> float:
    """Writes a CSV with the times of the model's layers to `path`, for `phub bench train --trace`. Returns ms of a step.

    `step()` is called `warmup` times, then twice `steps` times: without and with hooks on the layers. It runs one forward
    and backward pass as in training (with the batch of one worker), but no optimizer: that is the box's. Medians are
    taken of each layer, and scaled so that together they last as long as a step without hooks.

    A line has the layer's name, milliseconds forward and backward, and its trainable parameters, which are exchanged as one
    key. What happens before the first layer, behind the last gradient and in the loss has lines without parameters.

    Models on a GPU are synchronized with at every layer. `clock="cpu"` counts CPU time of this thread instead of time:
    on a busy machine, with torch.set_num_threads(1), for replay with --compute spin. `note` becomes a comment.
    """
    if clock not in CLOCKS:
        raise ValueError(f"clock {clock!r}: use 'wall' or 'cpu'")
    if steps < 1 or warmup < 0:
        raise ValueError(f"{steps} steps after {warmup} to warm up: at least 1 and 0 are needed")
    recorder = _Recorder(model, CLOCKS[clock])
    for _ in range(warmup):
        step()
    plain = statistics.median(recorder.time(step) for _ in range(steps))
    recorder.attach()
    try:
        spent = []
        for _ in range(steps):
            recorder.time(step)
            spent.append(recorder.accounts())
    finally:
        recorder.detach()
    if not any(kind == BACKWARD for kind, _, _ in recorder.marks):
        raise ValueError("step() must run the model forward and backward: no gradient came back to its layers")
    recorder.share_parameters()
    ms = {owner: 1e3 * statistics.median(one.get(owner, 0.0) for one in spent) for one in spent for owner in one}
    hooked = sum(ms.values())
    ms = {owner: value * plain * 1e3 / hooked for owner, value in ms.items()}
    with open(path, "w", encoding="ascii", errors="replace") as file:
        for line in note.splitlines():
            file.write(f"# {line}\n")
        file.write(
            f"# phub.torch.record_trace: torch {torch.__version__}, {torch.get_num_threads()} threads, clock {clock}, "
            f"{', '.join(sorted(map(str, recorder.devices))) or 'cpu'};\n"
            f"# medians of {steps} steps of {plain * 1e3:.3f} ms ({hooked:.3f} ms with hooks)\n"
        )
        file.writelines(_rows(recorder, ms))
    return plain * 1e3
