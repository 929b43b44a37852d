# SPDX-License-Identifier: Apache-2.0
"""PyTorch through a PHub box.

Two lines for a DistributedDataParallel script, whose gradients then go through the box instead of the process group
(keep gloo or nccl: DDP needs it for what it broadcasts itself):

    import phub.torch
    phub.torch.attach(ddp_model, "phub://127.0.0.1/job")

or the optimizer in the box, which needs no process group:

    import phub.torch
    optimizer = phub.torch.DistributedOptimizer(model, "nesterov", "phub://127.0.0.1/job", lr=0.1)

or sites that train by themselves, each on data that is skewed, and talk now and then:

    site = phub.torch.Site(model, "phub://127.0.0.1/job", algorithm="local", theta=20)

How fast would that be? phub.torch.record_trace() writes down what `phub bench train` replays.

Rank and world come from the process group or the launcher (torchrun, mpirun, srun). Without a URL, $PHUB_URL is taken.
Tensors of float32, float16 and bfloat16, on the CPU or a GPU of CUDA's, summed in float32. What is to be exchanged is ready
on the current stream, as for all of torch; attach() and step() wait for it, and when they have returned so are the results.
Works with torch 1.13 and 2.x. Failures are phub.Error.
"""

import copy
import itertools
import warnings
import weakref
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import torch

from . import _ddp, connect, job_url
from ._library import ALL, F32
from ._optimizer import DistributedOptimizer
from ._record import record_trace
from ._sites import Site, classification
from ._tensors import DTYPES, check_place, launched, nbytes_of
from ._worker import Worker

__all__ = ["attach", "detach", "broadcast_parameters", "record_trace", "steps", "DistributedOptimizer", "Site", "classification"]

_hooks: "weakref.WeakKeyDictionary[Any, _ddp.Hook]" = weakref.WeakKeyDictionary()
_broadcasts = itertools.count()


def attach(model: torch.nn.parallel.DistributedDataParallel, url: Optional[str] = None, **options: Any) -> Worker:
    """Makes a DistributedDataParallel model exchange its gradients through the box; before the first backward pass.

    The box takes the mean, as DDP does. Accumulation (no_sync), find_unused_parameters, static_graph and
    gradient_as_bucket_view work as ever; join() and sparse gradients do not. `options` are those of phub.connect();
    rank and world are the process group's. Each model needs a job of its own. Returns the connection, which has
    .stats() and .transport.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(f"attach() takes a DistributedDataParallel model, not {type(model).__name__}")
    options.setdefault("reduce", "mean")
    worker = connect(url, **launched(options, model.process_group))
    hook = _ddp.Hook(worker, model.process_group)
    try:
        model.register_comm_hook(hook, _ddp.run)
    except BaseException:
        worker.leave()
        worker.close()
        raise
    _hooks[model] = hook
    return worker


class _Schedule:
    """Schedulers that were not stepped yet, at any step, in whatever order these come."""

    def __init__(self, optimizer: DistributedOptimizer, schedulers: List[Any]):
        self._optimizer, self._schedulers, self._at = optimizer, schedulers, 0
        self._groups = [{name: v for name, v in group.items() if name != "params"} for group in optimizer.param_groups]
        self._states = copy.deepcopy([scheduler.state_dict() for scheduler in schedulers])

    def go_to(self, step: int) -> None:
        if step < self._at:
            for group, first in zip(self._optimizer.param_groups, self._groups):
                group.update(copy.deepcopy(first))
            for scheduler, state in zip(self._schedulers, self._states):
                scheduler.load_state_dict(copy.deepcopy(state))
            self._at = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of steps before the optimizer's first: others have taken these
            while self._at < step:
                for scheduler in self._schedulers:
                    scheduler.step()
                self._at += 1


def steps(optimizer: DistributedOptimizer, total: int, seed: int = 0, scheduler: Any = None) -> Iterator[int]:
    """The steps that are left of `total`, from the one that the job is at: 0, 1, ...; again where the box goes back.

        for step in phub.torch.steps(optimizer, 1000, seed=1, scheduler=scheduler):
            x, y = batch(step)          # of this step and rank, whatever came before
            loss(model(x), y).backward()
            optimizer.step()

    Before each, torch's random numbers are those of (seed, rank, step): a worker that comes later, or a job that goes on
    from a checkpoint, draws what it would have drawn. `scheduler`, one of torch.optim.lr_scheduler or a list of them, is
    put where `step` steps of it lead: do not step it yourself. Your data must follow `step`, too. When there is none
    left, the training is finished: who has the result of the last one is done, also when the box is lost after that;
    then close() does not wait for it.
    """
    schedule = _Schedule(optimizer, list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler] if scheduler else [])
    optimizer.worker.finish(False)
    while True:
        step = optimizer.steps
        if step >= total:
            break
        schedule.go_to(step)
        torch.manual_seed(hash((seed, optimizer.worker.rank, step)) & (2**63 - 1))
        optimizer.zero_grad()
        yield step
        if step + 1 >= total and optimizer._landed:
            break
    optimizer.worker.finish()


def detach(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Leaves the job, in all workers between the same steps; then the process group exchanges gradients again."""
    if model not in _hooks:
        raise ValueError("this model is not attached")
    _hooks[model].detach()


def _packed(tensor: torch.Tensor) -> Tuple[torch.Tensor, int]:
    """(a copy to be exchanged, its type). What the box has no type for travels as float32, two bytes in each: every
    value of those is exact, while bytes taken for floats may be a NaN, and a NaN need not keep its bits."""
    flat = tensor.detach().contiguous().reshape(-1).cpu()
    if tensor.dtype in DTYPES:
        return flat.clone(), DTYPES[tensor.dtype]
    raw = torch.zeros((nbytes_of(tensor) + 1) // 2 * 2, dtype=torch.uint8, device="cpu")
    raw[: nbytes_of(tensor)] = flat.view(torch.uint8)
    return raw.view(torch.int16).float(), F32


def _unpack(buffer: torch.Tensor, tensor: torch.Tensor) -> None:
    if tensor.dtype not in DTYPES:
        buffer = buffer.to(torch.int16).view(torch.uint8)[: nbytes_of(tensor)].view(tensor.dtype)
    tensor.copy_(buffer.view(tensor.shape))


def broadcast_parameters(
    parameters: Union[Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]],
    url: Optional[str] = None,
    root: int = 0,
    **options: Any,
) -> None:
    """Gives rank `root`'s values to all: model.state_dict(), or (name, tensor) pairs. Tensors of any type, in place.

    Collective; in a short job of its own, named like the one of `url`. `options` are those of phub.connect().
    """
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    tensors: List[Tuple[str, torch.Tensor]] = []
    for name, tensor in pairs:
        if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
            check_place(tensor, name)
            tensors.append((name, tensor))
    if not tensors:
        return
    # Each call has a job of its own: in the last one a slow worker may still be.
    with connect(job_url(url, f".broadcast{next(_broadcasts)}"), **launched(options)) as worker:
        buffers = []
        for name, tensor in tensors:
            buffer, dtype = _packed(tensor)
            buffers.append((worker.key(name, buffer.numel(), dtype), buffer))
        worker.start()
        for key, buffer in buffers:
            worker.broadcast(key, buffer.data_ptr(), root)
        worker.wait(ALL)
    with torch.no_grad():
        for (_, buffer), (_, tensor) in zip(buffers, tensors):
            _unpack(buffer, tensor)
