# SPDX-License-Identifier: Apache-2.0
"""libphub through ctypes: finds the shared library, declares phub.h, turns error codes into exceptions.

Nothing here knows of numpy or torch; _worker.py and torch.py do.
"""

import ctypes
import errno
import math
import os
import pathlib
import sys
import warnings
from typing import Any, Type

VERSION = "0.1.0"

F32, F16, BF16 = 0, 1, 2
OPTIMIZERS = {"none": 0, "sgd": 1, "momentum": 2, "nesterov": 3, "adagrad": 4, "adam": 5, "adamw": 6}
REDUCES = {"sum": 0, "mean": 1}
SYNCS = {"bsp": 0, "ssp": 1, "async": 2}
NAN_POLICIES = {"pass": 0, "zero": 1, "fail": 2}
SEALS = {"gmac": 0, "crc": 1, "none": 2}
LOST_POLICIES = {"fail": 0, "shrink": 1, "wait": 2}
KEY_ALONE = 1
KEY_SPARSE = 2
TIMEOUT_MAX_MS = 2**31 - 1
ALL = -1


class Error(RuntimeError):
    """A call of libphub failed. `code` is the errno; the text is the library's own."""

    def __init__(self, code: int, text: str = ""):
        super().__init__(text or os.strerror(code))
        self.code = code

    def __reduce__(self) -> Any:
        return type(self), (self.code, str(self))  # so that it goes through a pipe, as multiprocessing has them


class StaleError(Error):
    """The box was lost, and the library connects again: resume(), then broadcast() the weights, and go on from round()."""


class TimeoutError(Error, TimeoutError):  # noqa: A001 - also caught as the built-in one
    """A wait reached its deadline; the text names who is missing."""


class Hyper(ctypes.Structure):
    """struct phub_hyper: the hyper-parameters of one parameter group, torch.optim's names."""

    _fields_ = [
        (name, ctypes.c_double)
        for name in (
            "lr",
            "momentum",
            "dampening",
            "weight_decay",
            "beta1",
            "beta2",
            "eps",
            "lr_decay",
            "initial_accumulator_value",
        )
    ]


class Options(ctypes.Structure):
    """struct phub_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("world", ctypes.c_int),
        ("secret", ctypes.c_char_p),
        ("optimizer", ctypes.c_int),
        ("reduce", ctypes.c_int),
        ("sync", ctypes.c_int),
        ("staleness", ctypes.c_uint),
        ("reproducible", ctypes.c_bool),
        ("nan", ctypes.c_int),
        ("chunk_bytes", ctypes.c_uint),
        ("groups", ctypes.POINTER(Hyper)),
        ("group_count", ctypes.c_uint),
        ("transport", ctypes.c_char_p),
        ("interface", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int),
        ("no_thread", ctypes.c_bool),
        ("seal", ctypes.c_int),
        ("lost", ctypes.c_int),
        ("wait_ms", ctypes.c_uint),
        ("quorum", ctypes.c_uint),
        ("resume_ms", ctypes.c_uint),
        ("tls_ca", ctypes.c_char_p),
        ("tls_pin", ctypes.c_char_p),
        ("encrypt", ctypes.c_bool),
        ("move_ms", ctypes.c_uint),
        ("association", ctypes.c_char_p),
        ("here", ctypes.c_bool),
    ]


class Stats(ctypes.Structure):
    """struct phub_stats."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "pushed_bytes",
            "pulled_bytes",
            "copied_bytes",
            "pushes",
            "results",
            "rounds",
            "resent",
            "wait_ns",
            "posts",
            "doorbells",
            "signalled",
            "registrations",
            "reconnects",
            "datagrams",
            "datagrams_resent",
            "datagrams_dropped",
            "moves",
            "coded_pushes",
            "coded_results",
        )
    ]


def _candidates():
    """Where libphub may be: $PHUB_LIBRARY, beside this file, the build folder of this source tree, the system."""
    named = os.environ.get("PHUB_LIBRARY")
    if named:
        yield named
        return
    here = pathlib.Path(__file__).resolve().parent
    yield str(here / "libphub.so.0")
    if (here.parent / "pyproject.toml").exists():
        yield str(here.parents[2] / "build" / "libphub.so.0")
    yield "libphub.so.0"
    yield "/usr/local/lib/libphub.so.0"  # where `make install` puts it; the linker knows it only after ldconfig


def _load() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(path)
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as e:
            tried.append(f"{path} ({e})")
    raise ImportError(
        "libphub.so.0 was not found: run `make` in the source tree (and `make install`), or set PHUB_LIBRARY to the "
        "file. Tried: " + ", ".join(tried)
    )


_P = ctypes.c_void_p
_I = ctypes.c_int
_PROTOTYPES = {
    "phub_options_init": (None, [ctypes.POINTER(Options)]),
    "phub_hyper_init": (None, [_I, ctypes.POINTER(Hyper)]),
    "phub_error": (ctypes.c_char_p, []),
    "phub_launched": (_I, [ctypes.POINTER(_I), ctypes.POINTER(_I)]),
    "phub_connect": (_I, [ctypes.c_char_p, ctypes.POINTER(Options), ctypes.POINTER(_P)]),
    "phub_rank": (_I, [_P]),
    "phub_world": (_I, [_P]),
    "phub_present": (_I, [_P]),
    "phub_resume": (_I, [_P, _I]),
    "phub_round": (ctypes.c_int64, [_P, _I]),
    "phub_transport": (ctypes.c_char_p, [_P]),
    "phub_key": (_I, [_P, ctypes.c_char_p, _I, ctypes.c_uint64, ctypes.c_uint, ctypes.c_uint]),
    "phub_start": (_I, [_P, _I]),
    "phub_rekey": (_I, [_P]),
    "phub_alloc": (_I, [_P, _I, ctypes.POINTER(_P), ctypes.POINTER(_P)]),
    "phub_mem_register": (_I, [_P, _P, ctypes.c_size_t]),
    "phub_mem_unregister": (_I, [_P, _P]),
    "phub_push_pull": (_I, [_P, _I, _P, _P, _I]),
    "phub_push": (_I, [_P, _I, _P, _I]),
    "phub_pull": (_I, [_P, _I, _P, _I]),
    "phub_broadcast": (_I, [_P, _I, _P, ctypes.c_uint]),
    "phub_wait": (_I, [_P, _I, _I]),
    "phub_test": (_I, [_P, _I]),
    "phub_set_hyper": (_I, [_P, ctypes.c_uint, ctypes.POINTER(Hyper)]),
    "phub_barrier": (_I, [_P, _I]),
    "phub_leave": (_I, [_P, _I]),
    "phub_leave_unfinished": (_I, [_P, _I]),
    "phub_close": (None, [_P]),
    "phub_stats": (_I, [_P, ctypes.POINTER(Stats)]),
}

lib = _load()
for _name, (_result, _arguments) in _PROTOTYPES.items():
    _function = getattr(lib, _name)
    _function.restype = _result
    _function.argtypes = _arguments


def check(rc: int) -> int:
    """Returns rc, or raises Error with the library's text when it is a negative errno."""
    if rc >= 0:
        return rc
    text = (lib.phub_error() or b"").decode("utf-8", "replace")
    raise {errno.ETIMEDOUT: TimeoutError, errno.ESTALE: StaleError}.get(-rc, Error)(-rc, text)


def warn(text: str, category: Type[Warning]) -> None:
    """Warns of the line that called this library, however deep in it, or in torch that called it, this is found out."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("phub", "torch"):
        frame = frame.f_back
    module = frame.f_globals
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, module.get("__name__"),
                           module.setdefault("__warningregistry__", {}))


def milliseconds(seconds: float, what: str = "timeout") -> int:
    """A timeout as the library takes it: at least 0, rounded up."""
    try:
        seconds = float(seconds)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}") from None
    return math.ceil(max(0.0, min(seconds * 1000.0, float(TIMEOUT_MAX_MS))))
