# SPDX-License-Identifier: Apache-2.0
"""PHub from Python: a worker's connection to a box, and sums of numpy arrays in one call.

A box (`phubd`) sums what all workers of a job push, and sends the result back to each. One array:

    import numpy, phub

    with phub.connect("phub://127.0.0.1/job", rank=0, world=2) as worker:
        total = worker.push_pull(numpy.ones(1000, numpy.float32))

or, with the names that Horovod's and BytePS's users know, rank and world from the launcher (torchrun, mpirun, srun):

    phub.init("phub://127.0.0.1/job")
    total = phub.push_pull(array)
    print(phub.rank(), phub.size())

Without a URL, $PHUB_URL is taken. With ?hostbox=auto behind it the workers of each host are summed there first, by a box
that the first of them starts. phub.torch has the two lines for PyTorch. phub.Site and phub.torch.Site train on data that is
skewed from site to site, and say as little as that bears.

Errors of the library are phub.Error (a RuntimeError) with the library's text, and the errno as `code`;
phub.TimeoutError, which is also Python's own, names who is missing. Wrong arguments are ValueError and TypeError.
Timeouts are in seconds. Nothing is ever printed. A process that ends without leave() leaves by itself; one that is
killed is lost to the others.

A box that writes checkpoints goes on from them when a job comes again, unless its training was finished. It is when
all workers leave() or close() their optimizer, when phub.torch.steps() has no more, or when the script comes to its end.
It is not when a worker is lost, or when its script ends by an exception, Ctrl-C or sys.exit() with an error, for which
this module looks at what goes through sys.exit and threading.excepthook; nor when a script forgets its worker without
a word and runs on for more than 5 s.

In a forked child (a DataLoader's worker) its parent's connection does not exist: calls
raise Error.

Installing: `pip install ./client/python` takes along the libphub that `make` built in this source tree, and
libphub-dpdk.so (transport dpdk), libphub-etcd.so (phub+etcd://) and phubd (?hostbox=auto), when they lie beside it. Another libphub is found
through $PHUB_LIBRARY (the file), or
where the system keeps libraries (`make install`).
"""

import ctypes
import os
import threading
from typing import Any, Optional, Tuple

from ._library import ALL, BF16, F16, F32, VERSION as __version__, Error, Hyper, StaleError, TimeoutError, check, lib
from ._scout import Decision, Report, Scout, Site
from ._worker import Worker, hyper

__all__ = [
    "connect",
    "launched",
    "Worker",
    "hyper",
    "Hyper",
    "Site",
    "Scout",
    "Report",
    "Decision",
    "init",
    "is_initialized",
    "rank",
    "size",
    "push_pull",
    "barrier",
    "shutdown",
    "Error",
    "StaleError",
    "TimeoutError",
    "ALL",
    "F32",
    "F16",
    "BF16",
    "__version__",
]

DEFAULT_URL = "phub://127.0.0.1/default"


def launched() -> Tuple[int, int]:
    """(rank, world) of this process as its launcher (torchrun, mpirun, srun, Kubernetes) has set them, else (0, 1): what
    connect() takes where it is given neither. phub.h says which variables count, and in which order."""
    rank, world = ctypes.c_int(), ctypes.c_int()
    check(lib.phub_launched(ctypes.byref(rank), ctypes.byref(world)))
    return rank.value, world.value


def job_url(url: Optional[str] = None, suffix: str = "") -> str:
    """The job that a user means, or the one named like it with `suffix`."""
    name, mark, query = (url or os.environ.get("PHUB_URL") or DEFAULT_URL).partition("?")
    return name + suffix + mark + query


def connect(url: Optional[str] = None, **options: Any) -> Worker:
    """A Worker on the job that `url` names: phub://host[:port]/job (phubs:// is TLS); None: $PHUB_URL, else phub://127.0.0.1/default.

    `options` are Worker's. A box that is not up yet is tried again until `timeout` (30 s) is over.
    """
    return Worker(job_url(url), **options)


# One worker of this process for calls without a handle.

_lock = threading.Lock()
_mine: Optional[Worker] = None


def init(url: Optional[str] = None, **options: Any) -> None:
    """Connects this process's own worker, as connect() does."""
    global _mine
    with _lock:
        if _mine is not None:
            raise RuntimeError("phub.init() was called already; call phub.shutdown() first")
        _mine = connect(url, **options)


def is_initialized() -> bool:
    return _mine is not None


def _own() -> Worker:
    worker = _mine
    if worker is None:
        raise RuntimeError("call phub.init() first")
    return worker


def rank() -> int:
    """This worker's number, from 0."""
    return _own().rank


def size() -> int:
    """How many workers the job has."""
    return _own().world


def push_pull(array: Any, timeout: Optional[float] = None) -> Any:
    """Worker.push_pull() of this process's worker."""
    return _own().push_pull(array, timeout)


def barrier(timeout: Optional[float] = None) -> None:
    """Waits until every worker of the job is here."""
    _own().barrier(timeout)


def shutdown() -> None:
    """Leaves the job and closes this process's worker. Nothing to do is fine, and so is a job that has ended."""
    global _mine
    with _lock:
        worker, _mine = _mine, None
    if worker is None:
        return
    try:
        worker.leave()
    except Error:
        pass  # the session ended otherwise, and whoever waited for it was told
    worker.close()
