# SPDX-License-Identifier: Apache-2.0
"""Worker: one rank of a job. Each method is one call of phub.h, which is the place to read about them.

Waiting calls ask the library in short turns, so that Ctrl-C and other signals of Python are heard while it waits.
"""

import ctypes
import errno
import multiprocessing.util
import re
import sys
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Tuple

from . import _library as library
from ._library import ALL, F16, F32, KEY_ALONE, KEY_SPARSE, Hyper, Options, Stats, check, lib, milliseconds

_TURN_S = 0.25  # the longest that a signal of Python waits
_LEAVE_S = 5.0  # at the end of a process that did not leave by itself
_FORGOTTEN_S = 5.0  # a process that ends so soon after it let go of a worker tells how that went
_ARRAYS_MAX = 256  # sizes that push_pull() remembers
_NUMPY_DTYPES = {"float32": F32, "float16": F16}


_TWO_PHASE = ("lars", "lamb", "clip_global_norm")


def _choice(what: str, table: Dict[str, int], value: str) -> int:
    try:
        return table[value]
    except KeyError:
        if value in _TWO_PHASE:
            raise NotImplementedError(
                f"{what} {value!r} needs two-phase jobs (a norm over all chunks before the first step), which are not there"
                " yet"
            ) from None
        raise ValueError(f"{what} {value!r}: use one of {', '.join(table)}") from None


def _encoded(text: Any) -> Optional[bytes]:
    return text.encode() if isinstance(text, str) else text


def hyper(optimizer: str, **values: float) -> Hyper:
    """The hyper-parameters of one parameter group: torch.optim's defaults for `optimizer`, and what `values` say else.

    ValueError and TypeError name what is wrong and what is allowed.
    """
    h = Hyper()
    lib.phub_hyper_init(_choice("optimizer", library.OPTIMIZERS, optimizer), ctypes.byref(h))
    for name, value in values.items():
        if not hasattr(h, name):
            raise TypeError(f"unknown hyper-parameter {name!r}: use {', '.join(n for n, _ in Hyper._fields_)}")
        setattr(h, name, float(value))
    return h


# ---- the end of those that nobody closes ----
#
# The box must know whether a training is finished, or only this run of it: checkpoints of one that is finished are not
# gone on from. A script that comes to its end has finished; one that an exception ends has not. Python does not tell
# an atexit function which of them it was, but for the exceptions that it prints.

_handles: Dict[int, bool] = {}  # open ones; True: its training is finished, whatever comes
_forgotten: Dict[int, Any] = {}  # of workers that are gone: what leaves for them when the process ends
_failures: List[str] = []  # of threads and sys.exit()


def _note_exit(code: Any = None, leave: Any = sys.exit) -> None:
    if code not in (None, 0) and threading.current_thread() is threading.main_thread():
        _failures.append("sys.exit")
    leave(code)


def _note_thread(args: Any, hook: Any = threading.excepthook) -> None:
    _failures.append("thread")
    hook(args)


sys.exit = _note_exit
threading.excepthook = _note_thread


def _is_calm() -> bool:
    """Is no exception on its way, or being handled?"""
    error = sys.exc_info()[1]
    return error is None or (isinstance(error, SystemExit) and error.code in (None, 0))


def _is_well() -> bool:
    """The process ends: as it should?"""
    return _is_calm() and not _failures and getattr(sys, "last_value", None) is None


def _leave(handle: int, finished: bool, timeout_ms: int) -> int:
    return (lib.phub_leave if finished else lib.phub_leave_unfinished)(handle, timeout_ms)


def _end(handle: int, at_exit: bool = True) -> None:
    """The others are told that this rank has left."""
    finished = _handles.pop(handle, None)
    _forgotten.pop(handle, None)
    if finished is not None:
        _leave(handle, finished or (at_exit and _is_well()), milliseconds(_LEAVE_S))
        lib.phub_close(handle)


def _forget(handle: int, finalizer: Any) -> None:
    """A worker is gone with the function that had it. Where an exception ended that, and somebody caught it, the process
    ends soon and says so; one that goes on has not said that the training is finished, so that it is not."""
    if _handles.get(handle) is not False:
        _end(handle, at_exit=False)
        return
    _forgotten[handle] = finalizer
    timer = threading.Timer(_FORGOTTEN_S, _end, (handle, False))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        pass  # the process ends, and the finalizer comes


class Worker:
    """A connection to a box as one rank of a job: key() names the tensors, start() joins the others, then rounds.

    `rank` and `world`: None takes them from the launcher (torchrun, mpirun, srun), else 0 of 1.
    `groups`: one Hyper for each parameter group, None for one group of the optimizer's defaults.
    `lost`: what becomes of the job when a worker is lost: "fail", "shrink" or "wait" (for `wait` seconds).
    `resume`: seconds for which the library tries to reach a box that was lost; calls raise StaleError until resume().
    `encrypt`: gradients and results are encrypted wherever they leave the host; needs a secret.
    `move`: seconds for which the library tries to go on at the standby of a box that was lost (if it has one), within the
    waits of its calls; 0: never.
    `tls_ca`, `tls_pin`: what the box is known by; with either the control session is TLS, and never plain.
    `timeout`: seconds, for this call and for every later one that is not given its own.
    The other options are those of struct phub_options in phub.h, where their defaults stand too.

    push_pull() exchanges numpy arrays. All other calls take addresses as plain integers (tensor.data_ptr(),
    array.ctypes.data): the caller keeps that memory alive, and to itself, until wait() has returned. Every call may
    come from any thread, but close() only when no other call is on the way. Failures raise Error, or TimeoutError,
    with the library's text: what failed, for which job, rank and key, and what to do.
    """

    def __init__(
        self,
        url: str,
        *,
        rank: Optional[int] = None,
        world: Optional[int] = None,
        secret: Optional[str] = None,
        optimizer: str = "none",
        groups: Optional[List[Hyper]] = None,
        reduce: str = "sum",
        sync: str = "bsp",
        staleness: int = 0,
        reproducible: bool = False,
        association: Optional[str] = None,
        here: bool = False,
        nan: str = "pass",
        seal: str = "gmac",
        encrypt: bool = False,
        lost: str = "fail",
        wait: float = 0,
        quorum: int = 0,
        resume: float = 0,
        move: float = 45.0,
        chunk_bytes: int = 0,
        transport: Optional[str] = None,
        interface: Optional[str] = None,
        tls_ca: Optional[str] = None,
        tls_pin: Optional[str] = None,
        timeout: float = 30.0,
    ):
        self._handle = ctypes.c_void_p()
        self._timeout = milliseconds(timeout) / 1e3
        self._arrays: Dict[Tuple[str, int], int] = {}  # (numpy type, elements) to key
        self._landing: Dict[int, Any] = {}  # arrays that rounds in flight read and write
        self._running = False
        options = Options()
        lib.phub_options_init(ctypes.byref(options))
        if rank is not None:
            options.rank = rank
        if world is not None:
            options.world = world
        options.secret = _encoded(secret)
        options.optimizer = _choice("optimizer", library.OPTIMIZERS, optimizer)
        options.reduce = _choice("reduce", library.REDUCES, reduce)
        options.sync = _choice("sync", library.SYNCS, sync)
        options.staleness = staleness
        options.reproducible = reproducible
        options.association = _encoded(association)
        options.here = here
        options.nan = _choice("nan", library.NAN_POLICIES, nan)
        options.seal = _choice("seal", library.SEALS, seal)
        options.encrypt = encrypt
        options.lost = _choice("lost", library.LOST_POLICIES, lost)
        options.wait_ms = milliseconds(wait, "wait")
        options.quorum = quorum
        options.resume_ms = milliseconds(resume, "resume")
        options.move_ms = milliseconds(move, "move")
        options.chunk_bytes = chunk_bytes
        options.transport = _encoded(transport)
        options.interface = _encoded(interface)
        options.tls_ca = _encoded(tls_ca)
        options.tls_pin = _encoded(tls_pin)
        options.timeout_ms = milliseconds(timeout)
        if groups is not None:
            options.groups = (Hyper * len(groups))(*groups)
            options.group_count = len(groups)
        for handle in list(_forgotten):
            _end(handle, at_exit=False)  # it may hold this rank
        check(lib.phub_connect(url.encode(), ctypes.byref(options), ctypes.byref(self._handle)))
        handle = self._handle.value
        _handles[handle] = False
        self._finalizer = multiprocessing.util.Finalize(None, _end, args=(handle,), exitpriority=0)
        self._forget = weakref.finalize(self, _forget, handle, self._finalizer)
        self._forget.atexit = False

    def _p(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("this worker is closed")
        return self._handle

    def _patiently(self, call: Any, *arguments: Any, timeout: Optional[float]) -> None:
        """Calls with turns of the time given as last argument, until one ends otherwise than by its time."""
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            rc = call(self._p(), *arguments, milliseconds(min(left, _TURN_S)))
            if rc != -errno.ETIMEDOUT or left <= _TURN_S:
                break
        try:
            check(rc)
        except library.TimeoutError as e:
            text = re.sub(r" \(after \d+ ms\)$", "", str(e))
            raise library.TimeoutError(e.code, f"{text} (after {seconds:g} s)") from None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None and self._handle:
            self.leave(finished=True)
        self.close()

    @property
    def rank(self) -> int:
        return check(lib.phub_rank(self._p()))

    @property
    def world(self) -> int:
        return check(lib.phub_world(self._p()))

    @property
    def present(self) -> int:
        """Workers that are in the job now: less than the world after losses."""
        return check(lib.phub_present(self._p()))

    def round(self, key: int) -> int:
        """The round of the key that the next push begins, from 1; in a job that ran before, the one it is at."""
        return check(lib.phub_round(self._p(), key))

    def resume(self, timeout: Optional[float] = None) -> None:
        """After a StaleError: waits until the box is there again and the job runs."""
        self._patiently(lib.phub_resume, timeout=timeout)

    @property
    def transport(self) -> str:
        """What carries the gradients: "shm", "tcp", ...; "" before start()."""
        return lib.phub_transport(self._p()).decode()

    @property
    def closed(self) -> bool:
        return not self._handle

    # ---- keys and memory ----

    def key(
        self, name: str, elements: int, dtype: int = F32, group: int = 0, alone: bool = False, sparse: bool = False
    ) -> int:
        """
        Names the next key, as no other is named, and returns its index. `alone`: it may be exchanged without its
        neighbours. `sparse`: zeros of it need not travel (PHUB_KEY_SPARSE in phub.h).
        """
        flags = (KEY_ALONE if alone else 0) | (KEY_SPARSE if sparse else 0)
        return check(lib.phub_key(self._p(), name.encode(), dtype, elements, group, flags))

    def start(self, timeout: Optional[float] = None) -> None:
        """Collective: agrees on the keys with the other workers and the box."""
        self._patiently(lib.phub_start, timeout=timeout)
        self._running = True

    def rekey(self) -> None:
        """Collective: forgets all keys, so that key() and start() can name the next table, whenever that is."""
        check(lib.phub_rekey(self._p()))
        self._arrays = {}
        self._running = False

    def alloc(self, key: int) -> Tuple[int, int]:
        """(address to write gradients to, address to read results from): exchanged without a copy, until rekey()."""
        push, result = ctypes.c_void_p(), ctypes.c_void_p()
        check(lib.phub_alloc(self._p(), key, ctypes.byref(push), ctypes.byref(result)))
        assert push.value is not None and result.value is not None
        return push.value, result.value

    def register(self, address: int, nbytes: int) -> None:
        """Lets the transport use this memory in place until unregister(). Error of code ENOTSUP: it cannot."""
        check(lib.phub_mem_register(self._p(), address, nbytes))

    def unregister(self, address: int) -> None:
        check(lib.phub_mem_unregister(self._p(), address))

    # ---- rounds ----

    def begin(self, key: int, source: int, target: Optional[int] = None, priority: int = 0) -> None:
        """Begins a round: pushes from `source`, the result goes to `target`; None: only to alloc()'s memory.

        Lower priorities go first.
        """
        check(lib.phub_push_pull(self._p(), key, source, target, priority))

    def push(self, key: int, source: int, priority: int = 0) -> None:
        check(lib.phub_push(self._p(), key, source, priority))

    def pull(self, key: int, target: int, timeout: Optional[float] = None) -> None:
        self._patiently(lib.phub_pull, key, target, timeout=timeout)

    def broadcast(self, key: int, address: int, root: int = 0) -> None:
        """Begins a round that gives rank `root`'s values to all; the first weights of a job with an optimizer."""
        check(lib.phub_broadcast(self._p(), key, address, root))

    def wait(self, key: int = ALL, timeout: Optional[float] = None) -> None:
        self._patiently(lib.phub_wait, key, timeout=timeout)

    def test(self, key: int) -> bool:
        """Has the round of `key` ended?"""
        return bool(check(lib.phub_test(self._p(), key)))

    def set_hyper(self, group: int, values: Hyper) -> None:
        """Hyper-parameters of a parameter group, from the next round on; equal in all workers."""
        check(lib.phub_set_hyper(self._p(), group, ctypes.byref(values)))

    def barrier(self, timeout: Optional[float] = None) -> None:
        self._patiently(lib.phub_barrier, timeout=timeout)

    def stats(self) -> Dict[str, int]:
        """Counters since the connection; struct phub_stats in phub.h says what each is."""
        s = Stats(size=ctypes.sizeof(Stats))
        check(lib.phub_stats(self._p(), ctypes.byref(s)))
        return {name: getattr(s, name) for name, _ in Stats._fields_ if name != "size"}

    # ---- numpy ----

    def _array_key(self, dtype: str, elements: int, timeout: Optional[float]) -> int:
        slot = (dtype, elements)
        if slot not in self._arrays:
            known = [*self._arrays, slot][-_ARRAYS_MAX:]
            if self._arrays:
                self.rekey()
            self._arrays = {s: self.key(f"{s[0]}[{s[1]}]", s[1], _NUMPY_DTYPES[s[0]], alone=True) for s in known}
        if not self._running:
            self.start(timeout)
        return self._arrays[slot]

    def push_pull(self, array: Any, timeout: Optional[float] = None) -> Any:
        """The sum (or mean, by the worker's `reduce`) of a numpy array over all workers, as a new array of its shape.

        float32 and float16. Collective: all workers call in the same order with the same types and sizes. The first
        call with a type and size makes a key for it, which takes milliseconds; later ones only exchange.
        """
        import numpy

        source = numpy.ascontiguousarray(array)
        if source.dtype.name not in _NUMPY_DTYPES or not source.dtype.isnative:
            raise TypeError(f"push_pull() takes float32 and float16 arrays, not {source.dtype}: use array.astype()")
        if source.size == 0:
            raise ValueError("push_pull() of an array without elements")
        result = numpy.empty(numpy.shape(array), source.dtype)
        key = self._array_key(source.dtype.name, source.size, timeout)
        self.begin(key, source.ctypes.data, result.ctypes.data)
        self._landing[key] = (source, result)  # a wait that times out leaves the round in flight
        self.wait(key, timeout)
        del self._landing[key]
        return result

    # ---- the end ----

    def finish(self, finished: bool = True) -> None:
        """Says that the training is finished, or is not after all, for when this worker leaves without a word."""
        _handles[self._p().value] = finished

    def leave(self, timeout: Optional[float] = None, finished: Optional[bool] = None) -> None:
        """Leaves the job in good order; what is in flight is given up.

        `finished`: the training is, and the next job of this name does not go on from its checkpoints. None: it is,
        unless this is called while an exception is being handled, or on its way.
        """
        if finished is None:
            finished = _handles.get(self._p().value, False) or _is_calm()
        check(_leave(self._p(), finished, milliseconds(self._timeout if timeout is None else timeout)))

    def close(self) -> None:
        """Frees the connection; without leave() the box takes it for a lost worker. Again is fine."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            _handles.pop(handle.value, None)
            self._forget.detach()
            self._finalizer.cancel()
            lib.phub_close(handle)
        self._landing = {}
