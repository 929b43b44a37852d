# SPDX-License-Identifier: Apache-2.0
"""phub.torch.Site: a PyTorch model as a site with skewed data."""

import errno
import os
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch

from . import connect
from ._library import Error, StaleError, milliseconds
from ._scout import Decision
from ._scout import Site as Bare
from ._tensors import check_place, launched, nbytes_of, view
from ._worker import Worker

_OF_SITE = ("momentum", "weight_decay", "rate_first", "outer_rate", "outer_beta1", "outer_beta2", "outer_tau", "clip", "warmup",
            "samples", "weighted", "link")  # fmt: skip
_UNHEARD = 50  # steps without a loss, until scout+ asks for it
Evaluate = Callable[[torch.nn.Module, int, int], Tuple[int, int, float]]


def classification(inputs: torch.Tensor, labels: torch.Tensor, count: int = 400) -> Evaluate:
    """An evaluate() for Site: tries a classifier on this site's training samples, drawn as the scout has it: on as many as it wants, or,
    where that is left open, on `count`."""

    def evaluate(model: torch.nn.Module, draw: int, samples: int) -> Tuple[int, int, float]:
        generator = torch.Generator().manual_seed(draw & (2**63 - 1))
        chosen = torch.randint(len(labels), (samples or count,), generator=generator)
        out = model(inputs[chosen])
        loss = torch.nn.functional.cross_entropy(out, labels[chosen], reduction="sum")
        return len(chosen), int((out.argmax(1) == labels[chosen]).sum()), float(loss)

    return evaluate


def _bytes(state: Mapping[str, torch.Tensor], name: str) -> bytes:
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is what state_dict() gave, and this is a {type(state).__name__}")
    if name not in state:
        raise ValueError(f"the state has no {name!r}: it is not state_dict()'s, or that of a site with others, or none, within")
    if not isinstance(state[name], torch.Tensor):
        raise TypeError(f"the state's {name!r} is a tensor in what state_dict() gave, and here a {type(state[name]).__name__}")
    return bytes(state[name].cpu().contiguous().numpy())


def _name(
    site: Bare, named: List[Tuple[str, torch.Tensor, bool]], homes: List[torch.Tensor], frozen: List[Tuple[str, torch.Tensor]]
) -> None:
    for (name, _, trained), home in zip(named, homes):
        site.tensor(name, home.data_ptr(), home.numel(), trained)
    for name, tensor in frozen:
        held = tensor.cpu().contiguous()
        site.frozen(name, held.data_ptr(), nbytes_of(held))


class Site:
    """A model that trains at this site, on data of its own, together with those of the others.

        site = phub.torch.Site(model, url, algorithm="local", theta=20)
        for x, y in batches:
            model.zero_grad()
            loss(model(x), y).backward()
            site.step(0.05)                 # the learning rate, the same at all sites
        site.finish()                       # all have one model now; until here each had its own
        site.close()

    step() is the optimizer too: SGD with `momentum` (0.9) and `weight_decay` (0). With `scout=dict(thetas=[...])` theta follows
    what the skew costs (policy="scout+": what lost() is told, too): `evaluate(model, draw, samples)` tries a model, this site's or one that came here,
    on a sample of this site's training data that follows from `draw`, of as many as `samples` says (0: as you like), and returns
    (samples, correct, loss), sums; correct is None where nothing can be right, as in regression, and losses alone count then, which only
    scout+ goes by; classification() makes one.
    It runs in eval mode and without gradients, with the weights to be tried in the model; with scout+ those of the mean model, whose
    running statistics are the mean of the sites'. Options are those of phub.Site and
    phub.connect(), rank and world as in DistributedOptimizer.

    The constructor is collective: all begin with rank 0's weights and buffers. Parameters that require gradients then are
    trained. Buffers (running statistics) go with the model where the algorithm averages weights (local: 4 bytes an element
    in each exchange), and where it travels; with the others they stay as they are at their site, and with scout+ sites show
    each other theirs where the mean model is to be tried. What is not of floats is each site's own. outer="box" takes a
    model without buffers. Parameters that do not require gradients (frozen), of any type, do not travel, and nobody is to
    write to them: all sites have the same to begin with, or an Error says which has not
    (broadcast_parameters(model.state_dict(), url), before this, gives all rank 0's).

    `within`: options of a site inside of this one, at a job of its own that is its box's alone (phub_sites.h: sites in sites):
    within=dict(url="phub://box/rack", rank=r, world=n, algorithm="local", theta=1) talks tightly in a rack, and this one, with
    theta=20, over its uplink. Its momentum and weight_decay are those of the steps; `inner` is that phub.Site.
    float32, on the CPU or a GPU of CUDA's. Steps and exchanges are the CPU's work, in pinned memory of a GPU's tensors: each step
    copies the gradients there and the weights back (and buffers both ways). A parameter's .data is not to be written to then.
    With resume=SECONDS a step that loses the box waits for it and goes on.

    A checkpoint is model.state_dict() and state_dict() of this, of each site its own, after the same step, torch.save()d.
    To go on from it: model.load_state_dict(), then `state=` what state_dict() gave here; or start=False, load_state_dict(), and
    start(), which is collective then. What goes on does so bit for bit, where all sites do; state["steps"] is where.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        url: Optional[str] = None,
        *,
        algorithm: str = "local",
        theta: Optional[float] = None,
        outer: str = "average",
        scout: Optional[Dict[str, Any]] = None,
        evaluate: Optional[Evaluate] = None,
        log: Optional[str] = None,
        within: Optional[Dict[str, Any]] = None,
        state: Optional[Mapping[str, torch.Tensor]] = None,
        start: bool = True,
        **options: Any,
    ):
        own = {name: options.pop(name) for name in _OF_SITE if name in options}
        self.model = model
        self._evaluate = evaluate
        self._patience = milliseconds(options.get("resume") or 0, "resume") / 1e3 + 1
        self._tensors: List[Tuple[torch.Tensor, bool]] = []
        named, frozen = self._named()
        self._tensors = [(tensor, trained) for _, tensor, trained in named]
        # Where the library has each: the tensor itself, or of a GPU's a copy, and what _touch() left there.
        self._homes = [torch.empty_like(t, device="cpu", pin_memory=True) if t.is_cuda else t for t, _ in self._tensors]
        self._versions: List[Optional[int]] = [None] * len(self._homes)
        self._inner_worker: Optional[Worker] = None
        self.inner: Optional[Bare] = None
        self._site: Optional[Bare] = None
        self._saved = state
        policy = os.environ.get("PHUB_SCOUT_POLICY") or (scout or {}).get("policy")
        self._unheard: Optional[int] = 0 if policy == "scout+" and evaluate else None
        self.worker = connect(url, **launched(options))

        def begin() -> None:
            self._fetch()
            if within is not None:
                self._open_inner(dict(within), named, frozen)
            self._site = Bare(self.worker, algorithm, theta, outer=outer, scout=scout, evaluate=evaluate and self._try, log=log,
                              within=self.inner, **own)  # fmt: skip
            if within is None:
                _name(self._site, named, self._homes, frozen)
            if self._saved is not None:
                self._site.load(_bytes(self._saved, "site"))
            self._saved = None
            self._resumed(self._site.start)

        self._begin: Optional[Callable[[], None]] = begin
        if start:
            self.start()

    def start(self) -> None:
        """Of one that was made with start=False; collective."""
        begin, self._begin = self._begin, None
        if begin is None:
            raise ValueError("this site could not start, and is closed; make another" if self.worker.closed else "this site has started")
        try:
            begin()
        except BaseException as e:
            self._abandon()
            if isinstance(e, Error) and "frozen weights of sites differs" in str(e):
                raise Error(e.code, f"{e}: phub.torch.broadcast_parameters(model.state_dict(), url) before it "
                                    "gives all rank 0's") from None  # fmt: skip
            raise
        self._touch()

    def _live(self) -> Bare:
        if self._site is None:
            raise ValueError("this site is closed" if self.worker.closed else "this site has not started: start() comes first")
        return self._site

    def state_dict(self) -> Dict[str, torch.Tensor]:
        """Between two steps: all of this site but the model, as bytes that torch.save() takes."""
        if self._begin is not None:
            raise ValueError("this site has not started: there is nothing to save")
        sites = {"site": self._site, "inner": self.inner}
        return {name: torch.frombuffer(bytearray(site.save()), dtype=torch.uint8) for name, site in sites.items() if site is not None}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Of one that was made with start=False, before start(); the model has its weights of then."""
        if self._begin is None:
            raise ValueError("this site has started; make it with start=False, or with state=")
        self._saved = state

    def _named(self) -> Tuple[List[Tuple[str, torch.Tensor, bool]], List[Tuple[str, torch.Tensor]]]:
        """What is exchanged: parameters that require gradients, and are trained, then buffers, of floats; and what is frozen."""
        found = [(n, p, True) for n, p in self.model.named_parameters() if p.requires_grad and p.numel() > 0]
        found += [(n, b, False) for n, b in self.model.named_buffers() if b.is_floating_point() and b.numel() > 0]
        for name, tensor, _ in found:
            check_place(tensor, name)
            if tensor.dtype != torch.float32 or not tensor.is_contiguous():
                raise Error(errno.ENOTSUP, f"{name} is {tensor.dtype}: what a site trains, and buffers of floats, are contiguous and float32; "
                                           "make it so, or a buffer an attribute of the model")  # fmt: skip
        if not any(trained for *_, trained in found):
            raise Error(errno.EINVAL, "no parameter of the model requires gradients: there is nothing to train, and nothing to exchange")
        frozen = [(n, p.detach()) for n, p in self.model.named_parameters() if not p.requires_grad and p.numel() > 0]
        for name, tensor in frozen:
            check_place(tensor, name)
        self._frozen = [(n, p) for n, p in self.model.named_parameters() if not p.requires_grad]
        return found, frozen

    def _open_inner(self, within: Dict[str, Any], named: List[Tuple[str, torch.Tensor, bool]],
                    frozen: List[Tuple[str, torch.Tensor]]) -> None:
        own = {name: within.pop(name) for name in ("algorithm", "theta", "outer", "scout", "log", *_OF_SITE) if name in within}
        evaluate = self._try if self._evaluate and "scout" in own else None
        self._inner_worker = connect(within.pop("url", None), here=True, **launched(within))
        self.inner = Bare(self._inner_worker, evaluate=evaluate, **own)
        _name(self.inner, named, self._homes, frozen)
        if self._saved is not None:
            self.inner.load(_bytes(self._saved, "inner"))
        self.inner.start()

    @torch.no_grad()
    def _fetch(self) -> None:
        """Of a GPU's tensors the library gets what was written since _touch(): of buffers nothing tells whether that is so."""
        for (tensor, _), home, version in zip(self._tensors, self._homes, self._versions):
            if home is not tensor and (version != tensor._version or not isinstance(tensor, torch.nn.Parameter)):
                home.copy_(tensor)

    @torch.no_grad()
    def _touch(self) -> None:
        """The model has the weights, and autograd learns that they were written to."""
        for index, ((tensor, _), home) in enumerate(zip(self._tensors, self._homes)):
            if home is tensor:
                tensor.detach().view(-1)[:0].zero_()
            else:
                tensor.copy_(home)
                self._versions[index] = tensor._version

    @torch.no_grad()
    def _try(self, weights: List[int], draw: int, samples: int) -> Tuple[int, int, float]:
        """evaluate() with these weights in the model, which gets its own back."""
        places = zip(self._tensors, self._homes, weights)
        guests = [(t, t.detach().clone(), a) for (t, _), home, a in places if home is not t or a != t.data_ptr()]
        training = self.model.training
        try:
            for tensor, _, address in guests:
                tensor.copy_(view(address, tensor.numel(), tensor.dtype).view(tensor.shape))
            self.model.eval()
            return self._evaluate(self.model, draw, samples)
        finally:
            self.model.train(training)
            for tensor, before, _ in guests:
                tensor.copy_(before)

    def _resumed(self, call: Callable[[], None]) -> None:
        """The call, and where it loses the box, the rest of it when that is there again."""
        while True:
            try:
                return call()
            except StaleError:
                call = lambda: self._live().resume(self._patience)  # noqa: E731

    def lost(self, loss: float, samples: int) -> None:
        """Before step(), for decision.train, and scout+ wants to know: the mini-batch's mean loss, and how many samples it had."""
        self._unheard = None
        self._live().lost(float(loss) * samples, samples)

    def score(self, samples: int, correct: Optional[int] = None, loss: Optional[float] = None) -> None:
        """Before close(), at the site that writes the decision log: what the mean model makes of data that you hold out, sums over `samples`."""
        self._live().score(samples, correct, loss)

    def step(self, rate: float, timeout: Optional[float] = None) -> None:
        """A step along the gradients of the parameters (None: zeros; all None: this site had no samples), and the exchange
        where one is due."""
        gradients: Optional[List[Optional[int]]] = []
        held = []  # what the call reads
        for tensor, trained in self._tensors:
            if not trained:
                gradients.append(None)
                continue
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.to_dense() if tensor.grad.is_sparse else tensor.grad
            held.append(gradient.detach().cpu().contiguous())
            gradients.append(held[-1].data_ptr())
        if all(tensor.grad is None for tensor, trained in self._tensors if trained):
            gradients = None
        thawed = [name for name, tensor in self._frozen if tensor.grad is not None]
        if thawed:
            self._frozen = []
            warnings.warn(f"{thawed[0]} has a gradient, but was frozen when this site was made: it is not trained. Make the site of a new job "
                          "when more is to be trained", stacklevel=2)
        if self._unheard is not None:
            self._unheard += 1
            if self._unheard == _UNHEARD:
                warnings.warn(f"{_UNHEARD} steps without site.lost(loss, samples): scout+ tries no model then, and does not see what no "
                              f"theta mends", stacklevel=2)
        self._fetch()
        try:
            self._resumed(lambda: self._live().step(gradients, rate, timeout))
        finally:
            self._touch()

    def finish(self, timeout: Optional[float] = None) -> None:
        """Collective, after the last step: what is left to say is said, and the model is the one that all sites agree on, to the
        bit, with the mean of their buffers (phub_site_finish()). It counts in `state` and the log, and training may go on."""
        self._fetch()
        try:
            self._resumed(lambda: self._live().finish(timeout))
        finally:
            self._touch()

    def flush(self) -> None:
        """phub.Site.flush(): before the last step of a site that leaves while others go on. All together end by finish()."""
        self._live().flush()

    def set_samples(self, samples: int) -> None:
        self._live().set_samples(samples)

    def set_theta(self, theta: float) -> None:
        self._live().set_theta(theta)

    @property
    def state(self) -> Dict[str, Any]:
        """phub.Site.state: steps, theta, share, bytes and so on."""
        return self._live().state

    @property
    def ranks(self) -> List[int]:
        """phub.Site.ranks: of the sites that were there in the last exchange."""
        return self._live().ranks

    @property
    def decision(self) -> Optional[Decision]:
        """The scout's last one, if any."""
        return self._live().decision

    @property
    def alignment(self) -> Dict[str, float]:
        """phub.Site.alignment: r of the last window by tensors' names."""
        return self._live().alignment

    def _abandon(self) -> None:
        for site in (self._site, self.inner):
            if site is not None:
                site.close()
        self.worker.close()
        if self._inner_worker is not None:
            self._inner_worker.close()

    def close(self) -> None:
        """Leaves the job; the model keeps its weights. Again is fine."""
        if self.worker.closed:
            return
        try:
            self.worker.leave()
            if self._inner_worker is not None:
                self._inner_worker.leave()
        finally:
            self._abandon()
