# SPDX-License-Identifier: Apache-2.0
"""The communication hook of DistributedDataParallel: each bucket is a key, each backward pass a round of all keys.

DDP calls the hook bucket by bucket, in the same order in every worker, and says which bucket is the last. A bucket
whose place in the key table is known is pushed at once, while autograd goes on with the layers before it. While a
layout is new (the first pass, and the one after DDP has rebuilt its buckets) buckets are gathered up to the last one,
and the new key table starts then. The last bucket's call waits for all results: autograd has nothing else to do then.

Results of the CPU's buckets are the library's memory; those of a GPU's go where the bucket is. Buckets are held until their
rounds are over, so that no allocator gives their memory to others meanwhile. A GPU's is pushed when the stream that DDP has
filled it on is done, which the call waits for.
"""

from typing import Any, List, Optional, Tuple

import torch

from ._library import ALL, Error
from ._tensors import DTYPES, PRIORITY_LAST, nbytes_of, settle, view, wire_dtype
from ._worker import Worker


class _Key:
    """A bucket's place in the key table."""

    __slots__ = ("index", "result", "held")

    def __init__(self, index: int, result: torch.Tensor):
        self.index = index
        self.result = result  # where the library puts results, for buckets of the CPU
        self.held: Optional[torch.Tensor] = None  # the bucket, while its memory is registered


class Hook:
    """State of the hook. One backward pass at a time, as DDP has it."""

    def __init__(self, worker: Worker, group: Any = None):
        self.worker: Optional[Worker] = worker
        self.group = group  # does the work after detach()
        self.layout: List[Tuple[int, torch.dtype]] = []  # (elements, type) of each key of the table in use
        self.keys: List[_Key] = []
        self.buckets: List[Tuple[torch.Tensor, Any]] = []  # of the pass so far, with their futures
        self.known = True  # they are those of the table in use
        self.in_place = True  # the transport may be able to read buckets where they are
        self.rekeys = 0

    def __call__(self, bucket: Any) -> Any:
        tensor = bucket.buffer()
        wire_dtype(tensor, f"DDP's bucket {bucket.index()}")
        if bucket.index() == 0:
            self._forget_pass()
        place = len(self.buckets)
        future = torch.futures.Future(devices=[tensor.device]) if tensor.is_cuda else torch.futures.Future()
        self.buckets.append((tensor, future))
        slot = (tensor.numel(), tensor.dtype)
        self.known = self.known and place < len(self.layout) and self.layout[place] == slot
        if self.known:
            self._push(place, tensor)
        if bucket.is_last():
            self._finish()
        return future

    def _forget_pass(self) -> None:
        """A pass that ended half-way may have left rounds in flight."""
        if self.buckets:
            self.worker.wait(ALL)
        self.buckets = []
        self.known = True

    def _push(self, place: int, tensor: torch.Tensor) -> None:
        key = self.keys[place]
        if self.in_place and (key.held is None or key.held.data_ptr() != tensor.data_ptr()):
            self._hold(key, tensor)
        # Front layers come in the last buckets, and the next forward pass wants them first.
        target = tensor.data_ptr() if tensor.is_cuda else None
        settle([tensor])
        self.worker.begin(key.index, tensor.data_ptr(), target, max(0, PRIORITY_LAST - place))

    def _hold(self, key: _Key, tensor: torch.Tensor) -> None:
        self._let_go(key)
        try:
            self.worker.register(tensor.data_ptr(), nbytes_of(tensor))
            key.held = tensor
        except Error:
            self.in_place = False  # the transport copies

    def _let_go(self, key: _Key) -> None:
        if key.held is not None:
            self.worker.unregister(key.held.data_ptr())
            key.held = None

    def _rekey(self) -> None:
        """All workers come here after the same bucket of the same pass."""
        self.worker.wait(ALL)
        for key in self.keys:
            self._let_go(key)
        self.keys = []
        if self.layout:
            self.worker.rekey()
        self.layout = [(t.numel(), t.dtype) for t, _ in self.buckets]
        indexes = [
            self.worker.key(f"bucket{place}", elements, DTYPES[dtype], alone=True)
            for place, (elements, dtype) in enumerate(self.layout)
        ]
        self.worker.start()
        for index, (elements, dtype) in zip(indexes, self.layout):
            self.keys.append(_Key(index, view(self.worker.alloc(index)[1], elements, dtype)))
        self.rekeys += 1

    def _finish(self) -> None:
        buckets = self.buckets
        if not self.known or len(buckets) != len(self.layout):
            self._rekey()
            for place, (tensor, _) in enumerate(buckets):
                self._push(place, tensor)
        for key, (tensor, future) in zip(self.keys, buckets):
            self.worker.wait(key.index)
            future.set_result(tensor if tensor.is_cuda else key.result)
        self.buckets = []

    def fail(self, error: Exception) -> None:
        """DDP waits for the futures of the pass's earlier buckets: they get the error too."""
        for _, future in self.buckets:
            if not future.done():
                future.set_exception(error)

    def detach(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.leave()
            worker.close()
        self.keys, self.layout, self.buckets = [], [], []  # what is in flight is read until it has left


# Without annotations: DDP compares them with its own.
def run(state, bucket):
    """What DDP calls. After detach() the process group does the work, as without a hook."""
    if state.worker is None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        return default_hooks.allreduce_hook(state.group, bucket)
    try:
        return state(bucket)
    except Exception as e:
        state.fail(e)
        raise
