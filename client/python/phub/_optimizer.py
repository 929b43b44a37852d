# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: torch's optimizer interface, with the optimizer itself in the box."""

import errno
import inspect
from typing import Any, Callable, Dict, List, Optional

import torch

from . import connect, job_url
from ._library import ALL, OPTIMIZERS, Error, Hyper, StaleError, milliseconds, warn
from ._tensors import PRIORITY_LAST, launched, nbytes_of, settle, wire_dtype
from ._worker import Worker, hyper

# The hyper-parameters that each optimizer has, by torch.optim's names.
_HYPERS = {
    "sgd": ("lr", "weight_decay"),
    "momentum": ("lr", "momentum", "dampening", "weight_decay"),
    "nesterov": ("lr", "momentum", "weight_decay"),
    "adagrad": ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    "adam": ("lr", "betas", "eps", "weight_decay"),
    "adamw": ("lr", "betas", "eps", "weight_decay"),
}
_OPTIONS = frozenset(inspect.signature(Worker).parameters) - {"url", "optimizer", "groups"}
# What a sum beside the job does without. All else it has as well: who it is, how it gets there, and what protects it.
_OF_ONE_JOB = frozenset(
    ("reduce", "sync", "staleness", "reproducible", "association", "nan", "lost", "wait", "quorum", "resume", "chunk_bytes")
)


def _defaults(kind: str, values: Dict[str, Any]) -> Dict[str, Any]:
    """The hyper-parameters of a group that says nothing itself."""
    if kind not in _HYPERS:
        hyper(kind)  # says why, for those that no box has yet
        raise ValueError(f"optimizer {kind!r}: use one of {', '.join(_HYPERS)}")
    unknown = [name for name in values if name not in _HYPERS[kind]]
    if unknown:
        raise TypeError(
            f"{kind} has no hyper-parameter or option {unknown[0]!r}: it has {', '.join(_HYPERS[kind])}"
            + ("; use 'momentum' or 'nesterov'" if kind == "sgd" and unknown[0] in _HYPERS["momentum"] else "")
        )
    h = hyper(kind)
    defaults = {n: (h.beta1, h.beta2) if n == "betas" else getattr(h, n) for n in _HYPERS[kind]}
    defaults.update(values)
    return defaults


def _hyper_of(kind: str, group: Dict[str, Any]) -> Hyper:
    values = {name: group[name] for name in _HYPERS[kind]}
    if "betas" in values:
        values["beta1"], values["beta2"] = values.pop("betas")
    return hyper(kind, **values)


class _Slot:
    """A trainable parameter, its key, and its round when it has one in flight."""

    __slots__ = ("key", "parameter", "source", "target")

    def __init__(self, key: int, parameter: torch.nn.Parameter):
        self.key = key
        self.parameter = parameter
        self.source: Optional[torch.Tensor] = None
        self.target: Optional[torch.Tensor] = None

    def aim(self) -> torch.Tensor:
        """Where the library writes the weights: the parameter's own memory if it is in order."""
        p = self.parameter
        return p.detach() if p.is_contiguous() else torch.empty(p.shape, dtype=p.dtype, device=p.device)

    def land(self) -> None:
        p = self.parameter
        if self.target.data_ptr() != p.data_ptr():
            p.copy_(self.target)
        else:
            self.target.view(-1)[:0].zero_()  # autograd learns that the parameter was written to
        self.source = self.target = None


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer that runs in the box: step() pushes all gradients and brings the new weights back.

    `params`: a module, parameters, or torch's list of groups with hyper-parameters of their own. `optimizer`: sgd,
    momentum, nesterov, adagrad, adam or adamw. Other arguments are torch.optim's hyper-parameters (lr, betas, ...) and
    phub.connect()'s options (rank, world, transport, sync, ...); rank and world come from the process group or the
    launcher when they are not given. The constructor is collective, and gives rank 0's parameters to all workers (not
    the buffers: see broadcast_parameters()).

    The box takes the mean of the gradients. Learning-rate schedulers work: a round uses what its group says at step(),
    which must be the same in all workers. Several backward passes before one step() accumulate, as always.

    Parameters with requires_grad=False or without elements are left alone. A gradient of None counts as zero, since
    another worker may have one; with find_unused_parameters=True the workers first find out which parameters none of
    them has a gradient for, and leave those alone, weight decay and momentum too, as torch.optim does (one small
    exchange more a step, in a job of its own beside this one).

    With resume=SECONDS a step that loses the box waits for it and takes its weights instead of raising; with
    lost="shrink" or "wait" the job outlives its workers, and a new one may be constructed in the place of one that died.
    Both move `steps`, which is what data, random numbers and schedulers should follow: see phub.torch.steps(). Buffers
    (BatchNorm's running statistics) are each worker's own, and follow nothing.

    The optimizer's state lives in the box: state_dict() holds the parameter groups alone, and groups cannot be added.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str = "sgd",
        url: Optional[str] = None,
        *,
        find_unused_parameters: bool = False,
        **hypers_and_options: Any,
    ):
        options = {name: value for name, value in hypers_and_options.items() if name in _OPTIONS}
        hypers = {name: value for name, value in hypers_and_options.items() if name not in _OPTIONS}
        names: Dict[int, str] = {}
        if isinstance(params, torch.nn.parallel.DistributedDataParallel):
            raise TypeError("give the plain module: the box takes the mean, DistributedDataParallel would do it twice")
        if isinstance(params, torch.nn.Module):
            names = {id(p): name for name, p in params.named_parameters()}
            params = params.parameters()
        if find_unused_parameters and options.get("sync", "bsp") != "bsp":
            raise ValueError("find_unused_parameters needs sync='bsp': it asks all workers at every step")
        self._kind = optimizer
        self._patience = milliseconds(options.get("resume") or 0, "resume") / 1e3 + 1
        self.worker: Optional[Worker] = None
        self._slots: List[_Slot] = []
        self._votes: Optional[Worker] = None
        self._landed = False  # the last step has its result: no box that is lost takes it back
        super().__init__(params, _defaults(optimizer, hypers))
        options.setdefault("reduce", "mean")
        if find_unused_parameters and (options.get("resume") or options.get("lost", "fail") != "fail"):
            raise ValueError("find_unused_parameters does not go with resume or lost: its job beside the job knows of neither")
        self.worker = connect(url, optimizer=optimizer, groups=self._hypers(), **launched(options))
        self._name_keys(names, find_unused_parameters)
        if find_unused_parameters:
            self._open_votes(url, options)

    def _name_keys(self, names: Dict[int, str], alone: bool) -> None:
        """Names every trainable parameter, starts, and takes rank 0's values as first weights."""
        for index, group in enumerate(self.param_groups):
            for place, p in enumerate(group["params"]):
                if not p.requires_grad or p.numel() == 0:
                    continue
                name = names.get(id(p), f"group{index}.{place}")
                key = self.worker.key(name, p.numel(), wire_dtype(p, name), group=index, alone=alone)
                self._slots.append(_Slot(key, p))
        try:
            self.worker.start()
            self._held = self._register()
            self._fetch()
        except StaleError as e:
            self._resume(e)

    def _fetch(self) -> None:
        """The box's weights: rank 0's at first, those of the job where it runs already."""
        for slot in self._slots:
            slot.target = target = slot.aim()
            if target.data_ptr() != slot.parameter.data_ptr():
                target.copy_(slot.parameter.detach())
        settle(slot.target for slot in self._slots)
        for slot in self._slots:
            self.worker.broadcast(slot.key, slot.target.data_ptr(), 0)
        self.worker.wait(ALL)
        with torch.no_grad():
            for slot in self._slots:
                slot.land()

    @property
    def steps(self) -> int:
        """Steps that the job has taken: 0 at first; more where this worker came later, or the box goes on from a checkpoint."""
        while True:
            try:
                return self.worker.round(self._slots[0].key) - 1
            except StaleError as e:
                self._resume(e)

    def _resume(self, loss: StaleError) -> None:
        """The box was lost: waits for it, and takes its weights."""
        warn(f"{loss}", UserWarning)
        while True:
            try:
                self.worker.resume(self._patience)
                self._fetch()
                return
            except StaleError:
                continue  # lost again meanwhile

    def _register(self) -> List[torch.Tensor]:
        """Where the transport can, it writes new weights straight to the parameters."""
        held = []
        for slot in self._slots:
            p = slot.parameter.detach()
            if not p.is_contiguous():
                continue
            try:
                self.worker.register(p.data_ptr(), nbytes_of(p))
            except Error:
                break
            held.append(p)
        return held

    def _open_votes(self, url: Optional[str], options: Dict[str, Any]) -> None:
        """A job beside the job, without optimizer: how many workers have a gradient for each parameter."""
        self._votes = connect(job_url(url, ".used"), **{n: v for n, v in options.items() if n not in _OF_ONE_JOB})
        self._votes.key("used", max(1, len(self._slots)))
        self._votes.start()

    def _used(self) -> List[_Slot]:
        """The parameters of this step: all, or those that some worker has a gradient for."""
        if self._votes is None:
            return self._slots
        votes = torch.tensor([0.0 if s.parameter.grad is None else 1.0 for s in self._slots] or [0.0], device="cpu")
        self._votes.begin(0, votes.data_ptr(), votes.data_ptr())
        self._ballot = votes  # a wait that times out leaves the round in flight
        self._votes.wait(0)
        return [slot for slot, count in zip(self._slots, votes.tolist()) if count > 0]

    def _hypers(self) -> List[Hyper]:
        return [_hyper_of(self._kind, group) for group in self.param_groups]

    def _send_hypers(self) -> None:
        """All of them: the library knows which are in force, also where this worker came to a job that ran."""
        for index, values in enumerate(self._hypers()):
            self.worker.set_hyper(index, values)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if getattr(self, "worker", None) is not None:
            raise Error(errno.EBUSY, "parameter groups cannot be added after the job has started")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One round of all parameters. Returns what `closure` does. TimeoutError names the ranks that did not come."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._landed = False
        try:
            self._exchange()
            self._landed = True
        except StaleError as e:
            self._resume(e)
        return loss

    def _exchange(self) -> None:
        self._send_hypers()
        used = self._used()
        rounds = []
        for slot in used:
            p = slot.parameter
            gradient = torch.zeros(p.shape, dtype=p.dtype, device=p.device) if p.grad is None else p.grad
            rounds.append((slot, (gradient.to_dense() if gradient.is_sparse else gradient).contiguous(), slot.aim()))
        settle(target for _, _, target in rounds)
        for place, (slot, source, target) in enumerate(rounds):
            # The next forward pass wants the front layers first.
            self.worker.begin(slot.key, source.data_ptr(), target.data_ptr(), min(place, PRIORITY_LAST))
            slot.source, slot.target = source, target  # not before: a round still in flight uses the last ones
        for slot in used:
            self.worker.wait(slot.key)
            slot.land()

    def close(self) -> None:
        """Leaves the job; the parameters keep their values. Again is fine."""
        for worker in (self._votes, self.worker):
            if worker is not None and not worker.closed:
                worker.leave()
                worker.close()
