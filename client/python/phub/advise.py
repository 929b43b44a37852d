# SPDX-License-Identifier: Apache-2.0
"""Advice on sync_every from `phub scout advise`, for training by something else: torchft's LocalSGD and DiLoCo, Flower."""
import json
import socket
from typing import Any, Dict


def ask(address: str, *reports: Dict[str, Any], secret: str = "", timeout: float = 600) -> Dict[str, Any]:
    """Says how a window went at one site or several ({"site": 0, "step": 500, "home": {"correct": 370, "samples": 400}, "away": {...},
    "bytes": B} each; {"site": 0, "step": 0} only asks), and waits for the answer, which is the same for all:
    {"sync_every": N, "theta": ..., "window": ..., "action": ..., "reason": ...}. `address` is "unix:PATH" or "HOST:PORT".
    ValueError: a report was refused, and says why; OSError: nobody answers."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_UNIX if host == "unix" else socket.AF_INET) as peer:
        peer.settimeout(timeout)
        peer.connect(port if host == "unix" else (host, int(port)))
        peer.sendall("".join(json.dumps({**report, **({"secret": secret} if secret else {})}) + "\n" for report in reports).encode())
        with peer.makefile("rb") as lines:
            answers = [json.loads(line) for _, line in zip(reports, lines)]
    for answer in answers:
        if "error" in answer:
            raise ValueError(answer["error"])
    if len(answers) < len(reports):
        raise ConnectionError(f"{address}: ended without an answer")
    return answers[-1]
