#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub topo probe: two racks of two hosts in network namespaces, whose links and uplinks are shaped; what it says of them.

     a b           c d        a veth pair each, tbf LINK both ways
    [rack0]       [rack1]     bridges
       +--[spine]--+          a bridge; veth pairs, tbf UPLINK both ways

Which racks are told apart follows from ratios of 2 to 1. How near rates are is a matter of the machine: tests/bench/rates.py.
waits: for links that are slow on purpose
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import rig
from rig import check, do, holds

PHUB = rig.BUILD / "phub"
LINK, UPLINK = 80, 40  # Mbit/s: 4:1, two links of a rack
PORT = 7079
MEMBERS = {"a": 0, "b": 0, "c": 1, "d": 1}
TOKEN = {**rig.QUIET, "PHUB_PROBE_TOKEN": "of the probes"}


def address(name):
    return f"10.98.0.{1 + list(MEMBERS).index(name)}"


def within(pid, *words):
    return ["nsenter", f"--target={pid}", "--net", "--", *map(str, words)]


class Net:
    """The namespaces and their links."""

    def __init__(self, uplink=UPLINK):
        self.bridges = [self.bridge(name) for name in ("rack0", "rack1", "spine")]
        self.enter = {}
        for name, rack in MEMBERS.items():
            pid, self.enter[name] = rig.namespace(name)
            self.link(pid, "eth0", self.bridges[rack], name, LINK)
            do(*within(pid, "ip", "addr", "add", f"{address(name)}/24", "dev", "eth0"))
        for rack in (0, 1):
            self.link(self.bridges[rack], "up", self.bridges[2], f"rack{rack}", uplink)
            do(*within(self.bridges[rack], "ip", "link", "set", "dev", "up", "master", "bridge"))

    @staticmethod
    def bridge(name):
        pid, _ = rig.namespace(name)
        do(*within(pid, "ip", "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0"))
        do(*within(pid, "ip", "link", "set", "bridge", "up"))
        return pid

    @staticmethod
    def link(pid, device, bridge, port, mbit):
        do(*within(bridge, "ip", "link", "add", "name", port, "type", "veth", "peer", "name", device, "netns", pid))
        do(*within(bridge, "ip", "link", "set", "dev", port, "master", "bridge", "up"))
        do(*within(pid, "ip", "link", "set", "dev", device, "up"))
        for where, name in ((bridge, port), (pid, device)):
            do(*within(where, "tc", "qdisc", "replace", "dev", name, "root", "tbf", "rate", f"{mbit}mbit", "burst", "64k", "latency",
                       "50ms"))

    def serve(self, names=MEMBERS, env=TOKEN):
        probes = [rig.Process(f"probe {name}", [PHUB, "topo", "probe", "--serve", PORT], env=env, prefix=self.enter[name])
                  for name in names]
        for probe in probes:
            check(probe.out.find(lambda line: "listens" in line), f"no probe: {probe.err.text()}")
        return probes

    def probe(self, *words, status=0, env=TOKEN):
        done = subprocess.run([*self.enter["a"], PHUB, "topo", "probe", "--port", str(PORT), "--seconds", "0.4", *map(str, words)], env=env,
                              capture_output=True, text=True, timeout=2 * rig.DEADLINE_S, check=False)
        check(done.returncode == status, f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout, done.stderr


def boxes(names="ac"):
    return ",".join(f"{name}={address(name)}:7077" for name in names)


def hosts(names="bd"):
    return ",".join(f"{name}={address(name)}" for name in names)


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


def two_racks():
    """boxes and hosts of two racks: who is where; the file is one that phub reads"""
    net = Net()
    probes = net.serve()
    with tempfile.TemporaryDirectory() as where:
        path = pathlib.Path(where) / "racks.yaml"
        out, _ = net.probe("--boxes", boxes(), "--hosts", hosts(), "--out", path, "--json")
        for probe in probes:
            check(probe.wait() == 0, f"{probe.err.text()}")
            check(f"probe ends: {address('a')} has measured" in probe.out.text(), probe.out.text())
        found = lines(out)
        check({line["name"]: line["rack"] for line in found if line["probe"] == "member"} == {"a": "r0", "b": "r0", "c": "r1", "d": "r1"},
              out)
        text = path.read_text()
        holds(text, r"^# Measured by phub topo probe, 2\d{3}-", "Racks: told apart by rates together, with a gap of",
              "uplink: .* Gbit/s out")
        told = subprocess.run([PHUB, "topo", "--racks", path, "--json"], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S)
        told = lines(told.stdout)
        racks = [line for line in told if line["topo"] == "rack"]
        check(len(racks) == 2 and all(rack["uplink_bytes_per_s"] > 0 and rack["latency_s"] > 0 for rack in racks), f"{racks}")
        members = [line for line in told if line["topo"] in ("box", "rack_host")]
        check({(line.get("box") or line["host"]): line["rack"] for line in members} == {"a": "r0", "b": "r0", "c": "r1", "d": "r1"},
              f"{members}")
        check(all(line["rate_bytes_per_s"] > 0 for line in members), f"{members}")
        check([line["port"] for line in members if line["topo"] == "box"] == [7077, 7077], f"{members}")
        for wrong in ("/nowhere/racks.yaml", "nowhere/racks.yaml"):  # before any probe is asked
            _, err = net.probe("--boxes", boxes(), "--out", wrong, status=1)
            check(re.fullmatch(rf"phub: cannot write --out {wrong}: /?nowhere/: No such file or directory\n", err), err)
        # What is there stays, and is measured anew by name, with all that the file says beside it.
        _, err = net.probe("--boxes", boxes(), "--out", path, status=1)
        holds(err, "is there already; --force")
        path.write_text("racks:\n- {name: left, uplink: 1Gbit, boxes: [{name: a, address: '%s:7077', rate: 1Gbit, cores: 3, sibling: c}]}\n"
                        "- {name: right, uplink: 1Gbit, boxes: [{name: c, address: '%s:7077', rate: 1Gbit}], hosts: [{name: h, rate: 7Gbit, workers: 5}]}\n"
                        % (address("a"), address("c")))
        net.serve("ac")
        net.probe("--racks", path, "--out", path, "--force", "--streams", 1)
        text = path.read_text()
        holds(text, "name: left", "cores: 3", "sibling: c", "# not measured", "rate: 7Gbit", "workers: 5", "alone in its rack")
        check(len(re.findall(r"uplink: ([\d.]+)Mbit", text)) == 2 and "uplink: 1Gbit" not in text, text)


def one_rack():
    """hosts of one switch: nothing separates them by rates, and no file of two racks comes out"""
    net = Net()
    probes = net.serve("ab")
    out, _ = net.probe("--boxes", boxes("ab"), "--streams", 1)
    holds(out, "rates together: cannot tell", "rates alone: cannot tell", "nothing separates them", r"\n  - name: r0\n")
    check("r1" not in out, out)
    check(all(probe.wait() == 0 for probe in probes), "a probe was not told to end")


def again():
    """probes wait for another run when one fails, be it at its very end, and with --keep; which one of them ends says who asked"""
    net = Net()
    probes = net.serve("ab")
    words = ("--boxes", boxes("ab"), "--streams", 1, "--seconds", "100ms")
    _, err = net.probe(*words, "--out", "/tmp/" + 250 * "x", status=1)  # what is written beside it has a longer name
    holds(err, "cannot write /tmp/x*.*: File name too long")
    out, _ = net.probe(*words, "--keep")
    holds(out, "0.1 s a run")
    check(all(probe.running() and "ends" not in probe.out.text() for probe in probes), "a probe ended")
    net.probe(*words)
    for probe in probes:
        check(probe.wait() == 0 and f"probe ends: {address('a')} has measured" in probe.out.text(), probe.out.text())


def refused():
    """a host that does not answer, another token, none, and names that cannot be: named, and no file"""
    net = Net()
    probes = net.serve("ab")
    with tempfile.TemporaryDirectory() as where:
        path = pathlib.Path(where) / "racks.yaml"
        _, err = net.probe("--boxes", boxes("abc"), "--out", path, status=1)
        holds(err, rf"no probe answers at {re.escape(address('c'))} port {PORT}: Connection refused; start `phub topo probe --serve`")
        _, err = net.probe("--boxes", f"a={address('a')}:1,gone=10.98.0.77:1", "--out", path, status=1)
        holds(err, "no probe answers at 10.98.0.77 port")
        _, err = net.probe("--boxes", boxes("ab"), "--out", path, status=1, env={**TOKEN, "PHUB_PROBE_TOKEN": "of nobody"})
        holds(err, rf"the probe at {re.escape(address('a'))} port {PORT} has another token")
        check(probes[0].err.find(lambda line: "someone who came has another token" in line), probes[0].err.text())
        _, err = net.probe("--boxes", boxes("ab"), "--out", path, status=1, env=rig.QUIET)
        holds(err, "probes need a token")
        check(all(probe.running() for probe in probes), "a probe ended by what strangers said")
        _, err = net.probe("--boxes", boxes("a"), "--hosts", "x/y", "--out", path, status=1)
        holds(err, "'x/y' cannot be the name of a box or host")
        _, err = net.probe("--boxes", boxes("aa"), "--out", path, status=1)
        holds(err, "there are two of the name a")
        for seconds in ("0", "0.09", "61", "1e1", "2m"):
            _, err = net.probe("--boxes", boxes("ab"), "--out", path, "--seconds", seconds, status=2)
            holds(err, rf"--seconds {seconds}: allowed are seconds from 0.1 to 60, like 1.5 or 300ms")
        _, err = net.probe("--serve", PORT, "--keep", status=2)
        holds(err, "--serve waits for one who asks")
        check(not os.listdir(where), f"{os.listdir(where)}")


def interrupted():
    """Ctrl-C, and the loss of a probe, leave no file; the other probes wait for the next one who asks"""
    net = Net()
    probes = net.serve("ab")
    with tempfile.TemporaryDirectory() as where:
        path = pathlib.Path(where) / "racks.yaml"
        words = [PHUB, "topo", "probe", "--boxes", boxes("ab"), "--out", path, "--seconds", "2s"]
        asks = rig.Process("asks", words, env=TOKEN, prefix=net.enter["b"])
        check(asks.err.find(lambda line: "2 members" in line), asks.err.text())
        time.sleep(1)
        asks.kill(signal.SIGINT)
        check(asks.wait() == -signal.SIGINT, "it did not end by the signal")
        check(not os.listdir(where) and all(probe.running() for probe in probes), f"{os.listdir(where)}")
        asks = rig.Process("asks", words, env=TOKEN, prefix=net.enter["b"])
        check(asks.err.find(lambda line: "2 members" in line), asks.err.text())
        time.sleep(1)
        probes[1].kill()
        check(asks.wait() == 1, asks.err.text())
        holds(asks.err.text(), "probe at b is gone|a to b: ")
        check(not os.listdir(where) and probes[0].running(), f"{os.listdir(where)}")


if __name__ == "__main__":
    rig.run([two_racks, one_rack, again, refused, interrupted], skip_all=rig.why_no(Net))
