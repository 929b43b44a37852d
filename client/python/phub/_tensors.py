# SPDX-License-Identifier: Apache-2.0
"""What torch.py and its parts share: which tensors can be exchanged, and who takes part."""

import ctypes
import errno
from typing import Any, Dict, Iterable, Optional

import torch
import torch.distributed

from ._library import BF16, F16, F32, Error

DTYPES = {torch.float32: F32, torch.float16: F16, torch.bfloat16: BF16}
PRIORITY_LAST = 65535  # what begin() takes for "goes last"


def check_place(tensor: torch.Tensor, name: str) -> None:
    """Error of code ENOTSUP for tensors that do not lie in this machine's memory or its GPUs', element by element."""
    if not (tensor.device.type == "cpu" or tensor.device.type == "cuda" and torch.version.cuda):
        raise Error(errno.ENOTSUP, f"{name} lies on {tensor.device}: only tensors of the CPU and of CUDA can be exchanged")
    if tensor.layout != torch.strided:
        raise Error(errno.ENOTSUP, f"{name} is sparse: use dense gradients (torch.nn.Embedding(..., sparse=False))")


def wire_dtype(tensor: torch.Tensor, name: str) -> int:
    """F32, F16 or BF16, or Error of code ENOTSUP that names the tensor."""
    check_place(tensor, name)
    if tensor.dtype not in DTYPES:
        raise Error(errno.ENOTSUP, f"{name} is {tensor.dtype}: float32, float16 and bfloat16 can be exchanged")
    return DTYPES[tensor.dtype]


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Before the library gets them, and after the last was allocated: blocks until their GPUs have done what was asked of them on
    this thread's current streams, also with what had that memory before. The library copies on streams of its own, which wait for
    no other. What it has copied is there for all streams when its wait() ends."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def launched(options: Dict[str, Any], group: Optional[Any] = None) -> Dict[str, Any]:
    """The options with rank and world of the process group, when there is one and the caller gave none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        options.setdefault("rank", torch.distributed.get_rank(group))
        options.setdefault("world", torch.distributed.get_world_size(group))
    return options


def view(address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor over memory of the library, to be read; the caller minds its lifetime."""
    nbytes = elements * torch.empty((), dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=dtype)


def nbytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
