#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for slow links
"""The udp transport on links: two network namespaces joined by a pair of interfaces, the box in one, the workers in the other.
Links that are slow, that carry less than they say, and that carry no datagrams at all; those that lose, double and reorder are
test_datagrams.py's. The namespaces live as long as this process: nothing is left behind, however it ends.

Usage: test_udp.py    exits 77 without root or namespaces
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import Box, do, job, namespace, run, say, why_no  # noqa: E402

KEYS = "conv1.weight:1728,conv1.bias:64,fc6.weight:300000"


def link(*shape, mtu=(1500, 1500)):
    """Two namespaces and a link, with this shape (words for tc) both ways: how to enter either."""
    (_, inside), (far, outside) = namespace("box's namespace"), namespace("workers' namespace")
    do(*inside, "ip", "link", "add", "udp0", "type", "veth", "peer", "name", "udp1", "netns", str(far))
    for enter, device, last, bytes_ in ((inside, "udp0", 1, mtu[0]), (outside, "udp1", 2, mtu[1])):
        do(*enter, "ip", "address", "add", f"10.78.0.{last}/24", "dev", device)
        do(*enter, "ip", "address", "add", f"fd78::{last}/64", "dev", device, "nodad")
        do(*enter, "ip", "link", "set", device, "mtu", str(bytes_), "up")
        if shape:
            do(*enter, "tc", "qdisc", "add", "dev", device, "root", *shape)
    return inside, outside


def exchange(inside, outside, host="10.78.0.1", listen=None, rounds=20, **options):
    """A job of two workers, all of whose sums are right."""
    box = Box(listen=listen or f"{host}:0", transports="udp", create="secret", create_secret_env="SECRET",
              env={"SECRET": "s"}, prefix=inside, cores=2, **options)
    url = box.url("udp", host if listen else None)
    for worker in job(url, 2, secret="s", keys=KEYS, rounds=rounds, check=1, transport="udp", prefix=outside):
        result = worker.good()
        say(f"{worker.name}: {result['rounds']} rounds")
    return box.stop()


def over_a_link():
    """a job over IPv4 and IPv6, and on any address"""
    inside, outside = link()
    exchange(inside, outside)
    exchange(inside, outside, host="[fd78::1]")
    exchange(inside, outside, listen="*:0")


def over_a_slow_link():
    """a link of 50 Mbit/s with a short queue loses what comes too fast, and all sums are right"""
    inside, outside = link("tbf", "rate", "50mbit", "burst", "32kb", "limit", "65536")
    exchange(inside, outside, rounds=4)


def over_a_narrow_link():
    """an end that takes in less than the other sends: what comes through is found out"""
    inside, outside = link(mtu=(1400, 9000))
    exchange(inside, outside)


def over_a_jumbo_link():
    """9000 bytes at both ends, and as many as the box is told"""
    inside, outside = link(mtu=(9000, 9000))
    exchange(inside, outside)
    exchange(inside, outside, datagram_mtu=1500)


def a_link_that_narrows():
    """where large datagrams come through no more, workers say so"""
    inside, outside = link()
    box = Box(listen="10.78.0.1:0", transports="udp", create="secret", create_secret_env="SECRET", env={"SECRET": "s"},
              prefix=inside)
    worker, = job(box.url("narrows"), 1, secret="s", keys=KEYS, rounds=100000, pause_us=2000, report_ms=100, transport="udp",
                  prefix=outside)
    worker.event("progress")  # it exchanges, in datagrams as large as come through
    do(*inside, "ip", "link", "set", "udp0", "mtu", "1400")
    do(*outside, "ip", "link", "set", "udp1", "mtu", "1400")
    worker.failed("EHOSTUNREACH", "large datagrams", "MTU")
    box.stop()


def through_a_wall():
    """where no datagram comes through, workers say so and what to look at"""
    inside, outside = link()
    do(*inside, "ip", "rule", "add", "pref", "10", "ipproto", "udp", "blackhole")
    box = Box(listen="10.78.0.1:0", transports="udp", create="secret", create_secret_env="SECRET", env={"SECRET": "s"},
              prefix=inside)
    worker, = job(box.url("wall"), 1, secret="s", keys=KEYS, rounds=1, transport="udp", prefix=outside)
    worker.failed("EHOSTUNREACH", "firewall")
    box.stop()


def asked_for_by_name():
    """a worker that asks for nothing takes no udp"""
    box = Box(transports="udp")
    worker, = job(box.url("unasked"), 1, keys=KEYS, rounds=1)
    worker.failed(("ENOTSUP", "EOPNOTSUPP"), "offers udp", "takes unasked")
    box.stop()


run([over_a_link, over_a_slow_link, over_a_narrow_link, over_a_jumbo_link, a_link_that_narrows, through_a_wall,
     asked_for_by_name], skip_all=why_no(link))
