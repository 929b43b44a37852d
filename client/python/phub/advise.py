# SPDX-License-Identifier: Apache-2.0
"""Advice on sync_every from `phub scout advise`, for training by something else: torchft's LocalSGD and DiLoCo, Flower."""
import json
import math
import socket
from typing import Any, Dict, List, Optional


class Window:
    """What a site says of a window of steps to `phub scout advise --policy scout+`: averaged() after each average, lost() after each
    mini-batch; report() makes the line for ask(), and the next window begins. Where the answer has "tries" above 0, tried() then says
    how the mean model (with the mean of the sites' running statistics) does on as many samples of this site, as many always the same.
    `weight`: of this site in the mean. Losses and norms that are NaN or infinite are told as such, and the scout falls back."""

    def __init__(self, site: int, weight: float = 1):
        self.site, self.weight = site, weight
        self._levels: List[Optional[Dict[str, Any]]] = [None, None]
        self._begin()

    def _begin(self) -> None:
        self._exchanges, self._said, self._heard, self._loss, self._samples = 0, 0.0, 0.0, 0.0, 0
        self._sites: Optional[int] = None

    def averaged(self, said: float, heard: float, sites: Optional[int] = None) -> None:
        """`said`: the squared norm of what this site has moved since the last average; `heard`: that of the mean of all these moves,
        which is of so many `sites`; None: of all that there are."""
        self._exchanges, self._said, self._heard = self._exchanges + 1, self._said + float(said), self._heard + float(heard)
        if sites is not None:
            self._sites = min(sites, self._sites or sites)

    def lost(self, loss: float, samples: int) -> None:
        """Of a mini-batch, as it was trained: the sum over its samples."""
        self._loss, self._samples = self._loss + float(loss), self._samples + samples

    def tried(self, loss: float, samples: int) -> None:
        """Of the mean model after the window that was reported last: the sum over samples."""
        self._levels[1] = {"loss": float(loss), "samples": samples}

    def report(self, step: int, rate: float, sent: int) -> Dict[str, Any]:
        """For ask(): `rate` of learning, and the bytes that were `sent` in the window."""
        said = {"site": self.site, "step": step, "bytes": sent, "weight": self.weight, "rate": rate, "before": self._levels[0],
                "after": self._levels[1],
                "moves": {"exchanges": self._exchanges, "said": self._said, "heard": self._heard} if self._exchanges else None,
                "train": {"loss": self._loss, "samples": self._samples} if self._samples else None}
        if self._exchanges and self._sites is not None:
            said["moves"]["sites"] = self._sites
        self._levels = [self._levels[1], None]
        self._begin()
        return said


def _plain(value: Any) -> Any:
    """Without NaN and infinity, of which JSON knows nothing: null takes their place."""
    if isinstance(value, dict):
        return {name: _plain(of) for name, of in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _connect(host: str, port: str, timeout: float) -> socket.socket:
    if host != "unix":
        return socket.create_connection((host.strip("[]"), int(port)), timeout)
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(timeout)
        peer.connect(port)
    except OSError:
        peer.close()
        raise
    return peer


def ask(address: str, *reports: Dict[str, Any], secret: str = "", timeout: float = 600) -> Dict[str, Any]:
    """Says how a window went at one site or several ({"site": 0, "step": 500, "home": {"correct": 370, "samples": 400}, "away": {...},
    "bytes": B} each, B of this window alone; {"site": 0, "step": 0} only asks), and waits for the answer, which is the same for all:
    {"sync_every": N, "theta": ..., "window": ..., "tries": ..., "action": ..., "reason": ...}. `address` is "unix:PATH" or "HOST:PORT".
    Accuracies, losses and norms may be NaN or infinite, which is told as null. Of two reports of a site on a window the last one counts.
    ValueError: a report was refused, and says why, or the address is none; OSError: nobody answers."""
    host, _, port = address.rpartition(":")
    if not host or not port or (host != "unix" and not port.isdecimal()):
        raise ValueError(f"{address!r} is no address; allowed are unix:PATH and HOST:PORT, as phub scout advise --listen has it")
    if not reports:
        raise ValueError("ask() needs a report; {'site': 0, 'step': 0} only asks")
    try:
        peer = _connect(host, port, timeout)
    except OSError as e:
        raise type(e)(e.errno, f"nobody answers at {address} ({e.strerror or e}); phub scout advise --listen {address} would") from None
    with peer:
        peer.sendall("".join(json.dumps(_plain({**report, **({"secret": secret} if secret else {})})) + "\n"
                             for report in reports).encode())
        with peer.makefile("rb") as lines:
            answers = [json.loads(line) for _, line in zip(reports, lines)]
    for answer in answers:
        if "error" in answer:
            raise ValueError(answer["error"])
    if len(answers) < len(reports):
        raise ConnectionError(f"{address}: ended without an answer")
    return answers[-1]
