#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Priorities on a slow link: two network namespaces joined by a pair of interfaces that a token bucket limits both ways, the
box in one, the workers in the other. The namespaces live as long as this process: nothing is left behind, however it ends.

Usage: test_priority.py    exits 77 without root, namespaces or sch_tbf
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import Box, check, do, job, namespace, run, say, why_no  # noqa: E402

RATE_MBIT = 100
WAY_BACK_MBIT = 20
FC6 = 4 << 20  # elements, 16 MiB: VGG-19's fc6 has 411 MB, which would take a minute here
PARTS = 16  # of fc6, each a key: how many are open says how far it is, without a clock
KEYS = "conv1.weight:1728,conv1.bias:64," + ",".join(f"fc6.{part}:{FC6 // PARTS}" for part in range(PARTS))
KEYS_BACK = ",".join(f"fc6.{part}:{FC6 // 4 // PARTS}" for part in range(PARTS)) + ",conv1.weight:1728:alone"  # the highest chunk index


def link(way_mbit=RATE_MBIT, way_back_mbit=RATE_MBIT):
    """Two namespaces and the slow link, as fast to the box and back: how to enter either."""
    (_, inside), (far, outside) = namespace("box's namespace"), namespace("workers' namespace")
    do(*inside, "ip", "link", "add", "slow0", "type", "veth", "peer", "name", "slow1", "netns", str(far))
    for enter, device, address, mbit in ((inside, "slow0", "10.77.0.1/24", way_back_mbit),
                                         (outside, "slow1", "10.77.0.2/24", way_mbit)):
        do(*enter, "ip", "address", "add", address, "dev", device)
        do(*enter, "ip", "link", "set", device, "up")
        do(*enter, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb",
            "latency", "50ms")
    return inside, outside


def front_first():
    """conv1 of VGG-19, pushed behind fc6, comes back while fc6 is still queued on a slow link, and behind it without priorities"""
    inside, outside = link()
    box = Box(listen="10.77.0.1:0", create="secret", create_secret_env="SECRET", env={"SECRET": "s"}, prefix=inside, cores=1)
    workers = job(box.url("vgg"), 2, secret="s", keys=KEYS, front=1, barrier=1, rounds=3, transport="tcp", prefix=outside)
    shares = []
    ideal_s = 2 * 4 * FC6 * 8 / (RATE_MBIT * 1e6)
    for worker in workers:
        result = worker.good()
        say(f"{worker.name}: {result['open_behind']} parts open, conv1 after {result['front_us'] / 1e3:.0f} ms, fc6 after {result['all_us'] / 1e3:.0f} ms "
            f"(the link needs {1e3 * ideal_s:.0f} ms)")
        check(result["open_behind"] > PARTS // 2, f"only {result['open_behind']} of {PARTS} parts of fc6 were still open")
        check(result["all_us"] > 0.8e6 * ideal_s, "the link is not slow")
        shares.append(result["front_us"] / result["all_us"])
    workers = job(box.url("flat"), 2, secret="s", keys=KEYS, front=1, flat=1, barrier=1, rounds=1, prefix=outside)
    for worker in workers:
        result = worker.good()
        say(f"{worker.name}: {result['open_behind']} parts open, without priorities conv1 after {result['front_us'] / 1e3:.0f} ms")
        check(result["open_behind"] < PARTS // 2, f"{result['open_behind']} parts open without priorities too: nothing was shown")
    box.stop()
    return max(shares)


def back_first():
    """the box's own order: with fc6 summed and its results queued for a slow way back, conv1, last in the table, is first"""
    inside, outside = link(100 * WAY_BACK_MBIT, WAY_BACK_MBIT)
    box = Box(listen="10.77.0.1:0", create="secret", create_secret_env="SECRET", env={"SECRET": "s"}, prefix=inside,
              cores=1, window=1024)
    workers = job(box.url("vgg"), 2, secret="s", keys=KEYS_BACK, back=1, lag_ms=500, barrier=1, rounds=2, transport="tcp",
                  prefix=outside)
    for worker in workers:
        result = worker.good()
        say(f"{worker.name}: {result['open_behind']} parts open, conv1 after {result['front_us'] / 1e3:.0f} ms, fc6 after {result['all_us'] / 1e3:.0f} ms")
        check(result["open_behind"] > PARTS // 4, f"only {result['open_behind']} of {PARTS} parts of fc6 were still open")
    box.stop()


if __name__ == "__main__":
    run([front_first, back_first], skip_all=why_no(link))
