# SPDX-License-Identifier: Apache-2.0
"""Scout and Site: what phub_sites.h has for sites with skewed data, which is the place to read about them.

Nothing here knows of numpy or torch: weights and gradients are addresses, whose memory the caller keeps.
"""

import ctypes
import errno
import math
import os
import re
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from . import _library as library
from ._library import check, lib, milliseconds
from ._worker import _TURN_S, Worker, _choice, _encoded

ALGORITHMS = {"bsp": 0, "gaia": 1, "local": 2, "dgc": 3}
OUTERS = {"average": 0, "box": 1, "momentum": 2, "nesterov": 3, "adagrad": 4, "adam": 5, "yogi": 6}
POLICIES = {"fixed": 0, "replay": 1, "hill": 2, "stochastic": 3, "annealing": 4, "scout+": 5}
UNITS = {"bytes": 0, "seconds": 1, "money": 2}
ACTIONS = ("stays", "tightens", "loosens", "falls back", "cannot")

_D, _U, _U32, _U64 = ctypes.c_double, ctypes.c_uint, ctypes.c_uint32, ctypes.c_uint64
_FLOATS = ctypes.POINTER(ctypes.c_void_p)


class _ScoutOptions(ctypes.Structure):
    """struct phub_scout_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("policy", ctypes.c_int),
        ("thetas", ctypes.POINTER(_D)),
        ("theta_count", _U),
        ("first", _U),
        ("schedule", ctypes.POINTER(_D)),
        ("schedule_count", _U),
        ("period", _U32),
        ("model_bytes", _U64),
        ("lambda_loss", _D),
        ("lambda_bytes", _D),
        ("sigma", _D),
        ("temperature", _D),
        ("cooling", _D),
        ("memory", _U32),
        ("patience", _U),
        ("seed", _U64),
        ("algorithm", ctypes.c_int),
        ("gain", _D),
        ("tries", _U32),
        ("unit", ctypes.c_int),
        ("rate", _D),
        ("latency", _D),
        ("price", _D),
        ("rate_within", _D),
        ("latency_within", _D),
        ("price_within", _D),
        ("trim", _D),
        ("worth", _D),
        ("statistics", ctypes.c_bool),
        ("ease", _D),
        ("passes", _U32),
        ("guard", _D),
        ("drift", _D),
        ("probes", _D),
    ]


class _Report(ctypes.Structure):
    """struct phub_scout_report."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("home", _D),
        ("away", _D),
        ("samples", _U64),
        ("bytes", _U64),
        ("trained", _U64),
        ("train", _D),
        ("tried", _U64),
        ("before", _D),
        ("after", _D),
        ("within", _U64),
        ("exchanges", _D),
        ("exchanges_within", _D),
        ("alike", ctypes.c_bool),
    ]


class _Decision(ctypes.Structure):
    """struct phub_scout_decision."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("window", _U64),
        ("theta", _D),
        ("index", _U),
        ("action", ctypes.c_int),
        ("believed", _U),
        ("loss", _D),
        ("bytes", _D),
        ("cost", _D),
        ("reason", ctypes.c_char * 240),
        ("r", _D),
        ("pull", _D),
        ("gain", _D),
        ("radius", _D),
        ("tries", _U32),
        ("train", _D),
        ("spent", _D),
        ("extra", _D),
    ]


class _Score(ctypes.Structure):
    """struct phub_score."""

    _fields_ = [("samples", _U64), ("correct", _U64), ("loss", _D)]


_EVALUATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _FLOATS, _U64, ctypes.POINTER(_Score))


class _SiteOptions(ctypes.Structure):
    """struct phub_site_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("algorithm", ctypes.c_int),
        ("theta", _D),
        ("momentum", _D),
        ("weight_decay", _D),
        ("rate_first", _D),
        ("outer", ctypes.c_int),
        ("outer_rate", _D),
        ("outer_beta1", _D),
        ("outer_beta2", _D),
        ("outer_tau", _D),
        ("clip", _D),
        ("warmup", _U32),
        ("samples", _U64),
        ("weighted", ctypes.c_bool),
        ("scout", ctypes.POINTER(_ScoutOptions)),
        ("evaluate", _EVALUATE),
        ("context", ctypes.c_void_p),
        ("log", ctypes.c_char_p),
        ("within", ctypes.c_void_p),
        ("link", ctypes.c_char_p),
    ]


class _State(ctypes.Structure):
    """struct phub_site_state."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("steps", _U64),
        ("exchanges", _U64),
        ("theta", _D),
        ("share", _D),
        ("sites", _U),
        ("values", _U64),
        ("bytes", _U64),
        ("bytes_travel", _U64),
        ("bytes_wire", _U64),
        ("windows", _U64),
        ("bytes_within", _U64),
        ("log_error", ctypes.c_int),
        ("broken_since", _U64),
    ]


_P, _I = ctypes.c_void_p, ctypes.c_int
for _name, _result, _arguments in (
    ("phub_scout_options_init", None, [ctypes.POINTER(_ScoutOptions)]),
    ("phub_scout_create", _I, [ctypes.POINTER(_ScoutOptions), ctypes.POINTER(_P)]),
    ("phub_scout_destroy", None, [_P]),
    ("phub_scout_theta", _D, [_P]),
    ("phub_scout_host", _I, [_P, _U, _U]),
    ("phub_scout_hear", _I, [_P, _D, _D, _D, _D]),
    ("phub_scout_observe", _I, [_P, ctypes.POINTER(_Report), _U]),
    ("phub_scout_decide", _I, [_P, ctypes.POINTER(_Decision)]),
    ("phub_scout_apply", _I, [_P]),
    ("phub_scout_save", _I, [_P, ctypes.c_char_p, ctypes.c_size_t]),
    ("phub_scout_load", _I, [_P, ctypes.c_char_p, ctypes.c_size_t]),
    ("phub_site_options_init", None, [ctypes.POINTER(_SiteOptions)]),
    ("phub_site_warning", ctypes.c_char_p, [_P]),
    ("phub_site_open", _I, [_P, ctypes.POINTER(_SiteOptions), ctypes.POINTER(_P)]),
    ("phub_site_tensor", _I, [_P, ctypes.c_char_p, _P, _U32, ctypes.c_bool]),
    ("phub_site_frozen", _I, [_P, ctypes.c_char_p, _P, ctypes.c_uint64]),
    ("phub_site_start", _I, [_P, _I]),
    ("phub_site_step", _I, [_P, _FLOATS, _D, _I]),
    ("phub_site_finish", _I, [_P, _I]),
    ("phub_site_loss", _I, [_P, _D, _U64]),
    ("phub_site_score", _I, [_P, ctypes.POINTER(_Score)]),
    ("phub_site_wait", _I, [_P, _I]),
    ("phub_site_resume", _I, [_P, _I]),
    ("phub_site_set_samples", _I, [_P, _U64]),
    ("phub_site_set_theta", _I, [_P, _D]),
    ("phub_site_flush", _I, [_P]),
    ("phub_site_state", _I, [_P, ctypes.POINTER(_State)]),
    ("phub_site_ranks", _I, [_P, ctypes.POINTER(_U32), _U]),
    ("phub_site_decision", _I, [_P, ctypes.POINTER(_Decision)]),
    ("phub_site_alignment", _I, [_P, ctypes.POINTER(_D), _U]),
    ("phub_site_save", ctypes.c_int64, [_P, ctypes.c_char_p, ctypes.c_size_t]),
    ("phub_site_load", _I, [_P, ctypes.c_char_p, ctypes.c_size_t]),
    ("phub_site_close", None, [_P]),
):
    getattr(lib, _name).restype = _result
    getattr(lib, _name).argtypes = _arguments


class Report(NamedTuple):
    """What a site says of a window: accuracies of its model at home and away, 0 .. 1, of how many samples away (0: it says
    nothing of them), and the bytes that it has said; what it trained on, and lost on that; and for scout+ what the mean model
    lost at home, on how many samples, as the window before this one began, and as it ended. For costs what
    the site within has said, and how many exchanges there were. `alike`: its model is bit for bit that of the site where it travelled to."""

    home: float
    away: float
    samples: int
    bytes: int
    trained: int = 0
    train: float = math.nan
    tried: int = 0
    before: float = math.nan
    after: float = math.nan
    within: int = 0
    exchanges: float = 0
    exchanges_within: float = 0
    alike: bool = False


class Decision(NamedTuple):
    """What a scout has decided, as struct phub_scout_decision has it; what is not known is NaN, or an infinite `radius`."""

    window: int
    theta: float
    index: int
    action: str
    believed: int
    loss: float
    bytes: float
    cost: float
    reason: str
    r: float
    pull: float
    gain: float
    radius: float
    tries: int
    train: float
    spent: float
    extra: float


def _decided(d: _Decision) -> Decision:
    reason = d.reason.decode("utf-8", "replace")
    return Decision(d.window, d.theta, d.index, ACTIONS[d.action], d.believed, d.loss, d.bytes, d.cost, reason, d.r, d.pull, d.gain,
                    d.radius, d.tries, d.train, d.spent, d.extra)


def _numbers(values: Sequence[float]) -> Any:
    return (_D * len(values))(*values)


def _whole(name: str, value: Any, kind: Any = _U64) -> Any:
    """ctypes would make another number of one that the type does not have."""
    if kind in (_U, _U32, _U64) and isinstance(value, int) and kind(value).value != value:
        raise ValueError(f"{name}={value}: allowed are whole numbers from 0 to 2^{8 * ctypes.sizeof(kind)} - 1")
    return value


def _set(options: Any, values: Mapping[str, Any], what: str) -> None:
    kinds = dict(options._fields_)
    for name, value in values.items():
        if name not in kinds or name == "size":
            raise TypeError(f"unknown option {name!r} of a {what}")
        setattr(options, name, _whole(name, value, kinds[name]))


def _saved(state: Any) -> bytes:
    if not isinstance(state, (bytes, bytearray, memoryview)):
        raise TypeError(f"a state is the bytes of save(), and this is a {type(state).__name__}")
    return bytes(state)


def _scout_options(policy: str = "hill", thetas: Sequence[float] = (), schedule: Sequence[float] = (), first: Optional[float] = None,
                   algorithm: str = "local", unit: str = "bytes", **values: Any) -> _ScoutOptions:
    options = _ScoutOptions()
    lib.phub_scout_options_init(ctypes.byref(options))
    options.policy = _choice("policy", POLICIES, policy)
    options.algorithm = _choice("algorithm", ALGORITHMS, algorithm)
    options.unit = _choice("unit", UNITS, unit)
    options.thetas, options.theta_count = _numbers(thetas), len(thetas)
    options.schedule, options.schedule_count = _numbers(schedule), len(schedule)
    if first is not None:
        if first not in thetas:
            raise ValueError(f"first: {first} is not in the grid of thetas")
        options.first = list(thetas).index(first)
    _set(options, values, "scout")
    return options


def _check_order(thetas: Sequence[float], algorithm: str) -> None:
    """A grid's first theta is the one that talks most: the smallest, of dgc the largest."""
    right = sorted(thetas, reverse=algorithm == "dgc")
    if list(thetas) != right:
        raise ValueError(f"thetas: {list(thetas)} is no grid with the tightest first, of {algorithm} the "
                         f"{'largest' if algorithm == 'dgc' else 'smallest'}: {right}")


class Scout:
    """SkewScout's controller by itself, without a connection: for those with a transport of their own.

    `thetas`: the grid, the one that talks most first, or it is a ValueError; `first`: the one to begin with. `policy`: fixed,
    replay (of `schedule`), hill, stochastic, annealing, or scout+ (of thetas of `algorithm`; hear() after each exchange).
    `model_bytes` and the other options are those of struct phub_scout_options. All sites give theirs the same reports in the same
    order, and decide the same.
    """

    def __init__(self, thetas: Sequence[float], *, model_bytes: int, policy: str = "hill", **options: Any):
        self._handle = ctypes.c_void_p()
        _check_order(thetas, options.get("algorithm", "local"))
        own = _scout_options(policy, thetas, model_bytes=model_bytes, **options)
        check(lib.phub_scout_create(ctypes.byref(own), ctypes.byref(self._handle)))

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), ctypes.c_void_p()
        if handle:
            lib.phub_scout_destroy(handle)

    @property
    def theta(self) -> float:
        """In force."""
        return lib.phub_scout_theta(self._handle)

    def host(self, site: int, sites: int) -> int:
        """To which site the model of `site` travels in this window."""
        return check(lib.phub_scout_host(self._handle, site, sites))

    def hear(self, said: float, heard: float, squares: float, rate: float) -> None:
        """After each exchange, for scout+ and decision.r: what phub_scout_hear() in phub_sites.h says."""
        check(lib.phub_scout_hear(self._handle, said, heard, squares, rate))

    def observe(self, reports: Sequence[Report]) -> None:
        """A window is over, and this is what each site said; a Report, or a tuple like one. Again: instead of the last."""
        names, kinds = zip(*_Report._fields_[1:])
        own = (_Report * len(reports))(*((ctypes.sizeof(_Report), *map(_whole, names, report, kinds)) for report in reports))
        check(lib.phub_scout_observe(self._handle, own, len(reports)))

    def decide(self) -> Decision:
        """What follows of that; nothing has changed yet."""
        decision = _Decision(size=ctypes.sizeof(_Decision))
        check(lib.phub_scout_decide(self._handle, ctypes.byref(decision)))
        return _decided(decision)

    def apply(self) -> None:
        """What was decided is in force."""
        check(lib.phub_scout_apply(self._handle))

    def save(self) -> bytes:
        """What it is between two windows, for a checkpoint."""
        out = ctypes.create_string_buffer(check(lib.phub_scout_save(self._handle, None, 0)))
        check(lib.phub_scout_save(self._handle, out, len(out)))
        return out.raw

    def load(self, state: bytes) -> None:
        """What another with the same options had saved."""
        own = _saved(state)
        check(lib.phub_scout_load(self._handle, own, len(own)))


class Site:
    """A site on a worker's job, which is its alone: tensor() names the weights, start() joins the others, step() trains.

    `algorithm`: bsp, gaia, local or dgc. `theta`: None: the paper's, or a scout's. `outer`: of local: average, box, momentum, nesterov,
    adagrad, adam or yogi. `scout`: options of a Scout, with `thetas`: it sets theta. `evaluate(weights, draw, samples)` tries a
    model, whose tensors lie at the addresses `weights`, on a sample of this site's training data that follows from `draw`, of as
    many as `samples` says (0: as you like), and returns (samples, correct, loss): how many they were, and sums alone. Where it
    raises an Exception that model's report says nothing, and the training goes on; a RuntimeWarning has the first one's traceback
    (as an error, by Python's -W, step() raises it when the exchange is over, and so it does what else is raised, as
    KeyboardInterrupt). `log`: the site of the lowest rank that has one writes the run, decisions and the end there, and the next
    goes on when that one is lost or leaves; where it cannot, a warning says so once. That a site says what is no number
    (phub_site_warning()) is a RuntimeWarning at all sites, once of each; state["broken_since"] tells whether the model still is
    none. `within`: a Site that was started on another worker, of a rack, say: this one has its weights, steps for it, exchanges
    what the sites within have in common, and is closed before it. `link`: the class of link that it talks over. The other options
    are those of struct phub_site_options in phub_sites.h.
    """

    def __init__(
        self,
        worker: Worker,
        algorithm: str = "local",
        theta: Optional[float] = None,
        *,
        outer: str = "average",
        scout: Optional[Mapping[str, Any]] = None,
        evaluate: Optional[Callable[[List[int], int, int], Any]] = None,
        log: Optional[str] = None,
        within: Optional["Site"] = None,
        link: Optional[str] = None,
        **options: Any,
    ):
        self._handle = ctypes.c_void_p()
        self._worker, self._within = worker, within
        self._evaluate, self._raised, self._told = evaluate, None, False
        self._trained: List[bool] = list(within._trained) if within is not None else []
        self._names: List[str] = list(within._names) if within is not None else []
        own = _SiteOptions()
        lib.phub_site_options_init(ctypes.byref(own))
        own.algorithm = _choice("algorithm", ALGORITHMS, algorithm)
        own.theta = math.nan if theta is None else theta
        own.outer = _choice("outer", OUTERS, outer)
        own.log = _encoded(log)
        self._log = log or os.environ.get(f"PHUB_SCOUT_{link.upper()}_LOG" if link else "PHUB_SCOUT_LOG")
        own.within = within._p() if within is not None else None
        own.link = _encoded(link)
        _set(own, options, "site")
        if scout is not None:
            self._scout = _scout_options(**scout)
            own.scout = ctypes.pointer(self._scout)
        self._callback = _EVALUATE(self._tried) if evaluate is not None else _EVALUATE()
        own.evaluate = self._callback
        check(lib.phub_site_open(worker._p(), ctypes.byref(own), ctypes.byref(self._handle)))

    def _tried(self, context: Any, weights: Any, draw: int, score: Any) -> int:
        try:
            samples, correct, loss = self._evaluate([weights[t] for t in range(len(self._trained))], draw, score[0].samples)
            correct = 0 if correct is None else correct
            if not 0 <= correct <= samples < 2**64:
                raise ValueError(f"evaluate() returned {correct} correct of {samples} samples")
            score[0].samples, score[0].correct, score[0].loss = int(samples), int(correct), float(loss)
        except BaseException as e:  # noqa: B902 - raised where Python called
            self._raised = self._raised or (self._warned(e) if isinstance(e, Exception) else e)
            return -1
        return 0

    def _warned(self, e: Exception) -> Optional[BaseException]:
        """Once; what a warning is turned into, if anything."""
        told, self._told = self._told, True
        if told:
            return None
        trace = "".join(traceback.format_exception(type(e), e, e.__traceback__)).rstrip()
        try:
            library.warn(f"phub: evaluate() failed; what models lose at this site is not known, and training goes on. {trace}",
                         RuntimeWarning)
        except BaseException as raised:  # noqa: B902 - by a filter
            return raised
        return None

    def _p(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("this site is closed")
        self._worker._p()
        return self._handle

    def _patiently(self, timeout: Optional[float], call: Any, again: Any = None) -> None:
        """In short turns, so that signals of Python are heard. `again`: what is called from the second turn on."""
        seconds = self._worker._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            rc = call(milliseconds(min(left, _TURN_S)))
            call = again or call
            if rc != -errno.ETIMEDOUT or left <= _TURN_S:
                break
        raised, self._raised = self._raised, None
        if raised is None and self._within is not None:
            raised, self._within._raised = self._within._raised, None
        try:
            check(rc)
        except library.TimeoutError as e:
            self._raised = raised
            raise library.TimeoutError(e.code, re.sub(r" \(after \d+ ms\)$", "", str(e)) + f" (after {seconds:g} s)") from None
        if raised is not None:
            raise raised
        if self._log:
            self._check_log()
        for text in iter(lambda: lib.phub_site_warning(self._p()), None):
            library.warn(f"phub: {text.decode(errors='replace')}", RuntimeWarning)

    def _check_log(self) -> None:
        """Says once that the log cannot be written."""
        error = self.state["log_error"]
        if error:
            path, self._log = self._log, None
            library.warn(f"the decision log {path} is not written any more, and training goes on: {os.strerror(-error)}", RuntimeWarning)

    def tensor(self, name: str, address: int, elements: int, trained: bool = True) -> int:
        """Names the next tensor: float32 weights at `address`, which stay there, and are written by the calls below."""
        index = check(lib.phub_site_tensor(self._p(), name.encode(), address, elements, trained))
        self._trained.append(trained)
        self._names.append(name)
        return index

    def frozen(self, name: str, address: int, nbytes: int) -> None:
        """Names what nobody writes to, of any type, before start(). It does not travel: all sites have the same, or start() says of whom."""
        check(lib.phub_site_frozen(self._p(), name.encode(), address, nbytes))

    def save(self) -> bytes:
        """For a checkpoint, between two steps: all of it but the weights, which are to be saved beside it."""
        out = ctypes.create_string_buffer(check(lib.phub_site_save(self._p(), None, 0)))
        check(lib.phub_site_save(self._p(), out, len(out)))
        return out.raw

    def load(self, state: bytes) -> None:
        """What it had saved, before start(), after all tensors were named and have their weights of then: when all sites do so,
        training goes on bit for bit (phub_site_load())."""
        own = _saved(state)
        check(lib.phub_site_load(self._p(), own, len(own)))

    def start(self, timeout: Optional[float] = None) -> None:
        """Collective: joins the others. All have rank 0's weights, or those of a job that runs."""
        self._patiently(timeout, lambda ms: lib.phub_site_start(self._p(), ms))

    def step(self, gradients: Optional[Sequence[Optional[int]]], rate: float, timeout: Optional[float] = None) -> None:
        """A mini-batch: addresses of the mean gradients, one for each tensor (of those not trained None); None: this site had
        no samples. Then the exchange, where one is due. TimeoutError: it is on its way, and wait() goes on."""
        own = None
        if gradients is not None:
            if len(gradients) != len(self._trained):
                raise ValueError(f"{len(gradients)} gradients for {len(self._trained)} tensors")
            own = (ctypes.c_void_p * len(gradients))(*gradients)
        self._patiently(timeout, lambda ms: lib.phub_site_step(self._p(), own, rate, ms), lambda ms: lib.phub_site_wait(self._p(), ms))

    def lost(self, loss: float, samples: int) -> None:
        """What the mini-batch lost as it was trained, summed over its samples: for decision.train, and scout+ wants to know."""
        check(lib.phub_site_loss(self._p(), loss, _whole("samples", samples)))

    def score(self, samples: int, correct: Optional[int] = None, loss: Optional[float] = None) -> None:
        """What the mean model makes of data that you hold out, for the decision log, so at the site that writes it: on `samples` of them so many were
        correct, and lost this, summed up; None: not known. At any time: the log's end has the latest."""
        own = _Score(_whole("samples", samples), 2**64 - 1 if correct is None else _whole("correct", correct), math.nan if loss is None else loss)
        check(lib.phub_site_score(self._p(), ctypes.byref(own)))

    def wait(self, timeout: Optional[float] = None) -> None:
        """Goes on waiting for the exchange."""
        self._patiently(timeout, lambda ms: lib.phub_site_wait(self._p(), ms))

    def resume(self, timeout: Optional[float] = None) -> None:
        """After a StaleError: waits until the box is there again, and all go on. Nothing that was learned is lost."""
        self._patiently(timeout, lambda ms: lib.phub_site_resume(self._p(), ms))

    def set_samples(self, samples: int) -> None:
        """How many this site has, from the next exchange on."""
        check(lib.phub_site_set_samples(self._p(), _whole("samples", samples)))

    def set_theta(self, theta: float) -> None:
        """From the next step on, at all sites after the same step."""
        check(lib.phub_site_set_theta(self._p(), theta))

    def finish(self, timeout: Optional[float] = None) -> None:
        """Collective, after the last step: all sites end with one model, the same to the bit, as phub_site_finish() has it. Until
        then each has its own."""
        self._patiently(timeout, lambda ms: lib.phub_site_finish(self._p(), ms), lambda ms: lib.phub_site_wait(self._p(), ms))

    def flush(self) -> None:
        """Before the last step of a site that leaves while others go on: with it gaia and dgc say all that they have kept back.
        Local says all in each exchange, and nothing where none is due: let it leave after one. All together end by finish()."""
        check(lib.phub_site_flush(self._p()))

    @property
    def state(self) -> Dict[str, Any]:
        """struct phub_site_state: steps, exchanges, theta, share, sites, values, bytes, bytes_travel, bytes_wire, windows,
        bytes_within, log_error, broken_since."""
        state = _State(size=ctypes.sizeof(_State))
        check(lib.phub_site_state(self._p(), ctypes.byref(state)))
        return {name: getattr(state, name) for name, _ in _State._fields_ if name != "size"}

    @property
    def ranks(self) -> List[int]:
        """Of the sites that were there in the last exchange, in rising order; empty with outer="box", where nobody knows."""
        found = (_U32 * self._worker.world)()
        return list(found[:check(lib.phub_site_ranks(self._p(), found, len(found)))])

    @property
    def decision(self) -> Optional[Decision]:
        """The scout's last one; None: there is none yet."""
        decision = _Decision(size=ctypes.sizeof(_Decision))
        rc = lib.phub_site_decision(self._p(), ctypes.byref(decision))
        return None if rc == -errno.ENODATA else _decided(decision) if check(rc) == 0 else None

    @property
    def alignment(self) -> Dict[str, float]:
        """r of the last window, of each tensor by its name; NaN: not known. Empty: there is none yet."""
        r = (_D * len(self._names))()
        rc = lib.phub_site_alignment(self._p(), r, len(r))
        return {} if rc == -errno.ENODATA else dict(zip(self._names, r)) if check(rc) > 0 else {}

    def close(self) -> None:
        """Frees it, before the worker is closed; with an exchange on its way it leaves the job first. Again is fine."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle and self._worker._handle:
            lib.phub_site_close(handle)
