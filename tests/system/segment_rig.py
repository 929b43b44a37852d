# SPDX-License-Identifier: Apache-2.0
"""A segment between network namespaces that does to packets what networks do (segment.c), and boxes and workers on it, with
sockets or with ports that DPDK drives. test_datagrams.py has the cases.
"""
import atexit
import collections
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import time

from rig import BUILD, QUIET, Box, Skip, Worker, check, do, say

SEGMENT = BUILD / "tests/system/segment"
PLUGIN = BUILD / "libphub-dpdk.so"
BOX, STRANGER = 0, 5  # nodes; those between are the workers'
NODES = 6
SECRET = {"PHUB_SECRET": "of this test", "PHUB_ADMIN_SECRET": "of its admin"}
KEYS = "a:300000,b:70,c:90000"
QUEUE = 10000  # frames that wait at a device: more than may be on their way


# ---- the network ----

class Net:
    """Namespaces with a device each, on one segment."""

    def __init__(self):
        self.seed = int.from_bytes(os.urandom(4), "little")
        say(f"seed {self.seed}")
        self.names = [f"phub-{os.getpid()}-{who}" for who in ("box", "w0", "w1", "w2", "w3", "stranger", "hub")]
        atexit.register(self.end)
        for name in self.names:
            do("ip", "netns", "add", name)
        hub = self.names[-1]
        self.segment = subprocess.Popen(["ip", "netns", "exec", hub, SEGMENT, str(self.seed), *(f"t{i}" for i in range(NODES))],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check(self.segment.stdout.readline() == "ready\n", "there is no segment")
        for i in range(NODES):
            do("ip", "-n", hub, "link", "set", f"t{i}", "netns", self.names[i])
            self.link(i, "name", "e0", "txqueuelen", str(QUEUE))
            do("ip", "-n", self.names[i], "link", "set", "lo", "up")
            do("ip", "-n", self.names[i], "addr", "add", f"{address(i)}/24", "dev", "e0")
            self.up(i)

    def up(self, node):
        self.link(node, "up")
        do("ip", "-n", self.names[node], "addr", "replace", f"fd83::{node + 1}/64", "dev", "e0", "nodad")

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.segment.stdin.close()
        self.segment.wait(10)
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def tell(self, *words):
        """Asks the segment for something; its answer."""
        self.segment.stdin.write(" ".join(map(str, words)) + "\n")
        self.segment.stdin.flush()
        return self.segment.stdout.readline().strip()

    def faults(self, **percents):
        """What is done to frames from now on; what is not named is not done."""
        for name in ("loss", "repeat", "reorder", "damage"):
            check(self.tell(name, int(percents.get(name, 0) * 10000)) == "done", f"no {name}")

    def count(self):
        return json.loads(self.tell("count"))

    def link(self, node, *words):
        do("ip", "-n", self.names[node], "link", "set", "e0" if "name" not in words else f"t{node}", *words)

    def inside(self, node):
        return ("ip", "netns", "exec", self.names[node])

    def socket(self, node, *kind):
        """A socket in the node's namespace. Only this thread goes there and comes back."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.names[node]}", os.O_RDONLY)
        try:
            enter(there)
            return socket.socket(*kind)
        finally:
            enter(here)
            os.close(here)
            os.close(there)


def enter(namespace):
    check(ctypes.CDLL(None, use_errno=True).setns(namespace, 0) == 0, "setns() failed")


def address(node):
    return f"10.83.0.{node + 1}"


_net = []


def net():
    if not _net:
        _net.append(Net())
    return _net[0]


# ---- boxes and jobs ----

class Way:
    """Who moves datagrams: a box's options, and what a worker of this rank asks for, (transport, environment)."""

    def __init__(self, name, what, box, worker=lambda rank: ("udp", {})):
        self.name, self.what, self.box, self.worker = name, what, box, worker

    def cases(self, *cases):
        return [self.case(case) for case in cases]

    def case(self, case):
        def same():
            if not PLUGIN.exists():
                raise Skip("this build has no DPDK")
            _way.append(self)
            try:
                case()
            finally:
                _way.pop()
        same.__name__ = f"{self.name}_{case.__name__}"
        same.__doc__ = f"{self.what}: {case.__doc__}"
        return same


def dpdk_port(port):
    """What a worker asks for that is on this one; its program is not where the plugin is."""
    return "dpdk", {"PHUB_DPDK": port, "LD_LIBRARY_PATH": str(BUILD)}


_way = [Way("udp", "sockets", {"transports": "udp"})]
DPDK = {"transports": "dpdk", "dpdk_ports": "net_af_packet0,iface=e0"}
DPDK_BOX = Way("dpdk", "a box on DPDK", DPDK)
DPDK_WORKER = Way("dpdk_worker", "a box and a worker on DPDK", DPDK, lambda rank: dpdk_port("net_af_packet0,iface=e0") if
                  rank == 1 else ("udp", {}))
DPDK_ALL = Way("dpdk_all", "a box and all its workers on DPDK", DPDK, lambda rank: dpdk_port("net_af_packet0,iface=e0"))
DPDK_MEMIF = Way("dpdk_memif", "a box and a worker with a memif between them, and one over tcp", {
    "transports": "dpdk,tcp", "dpdk_ports": "net_memif0,role=server,socket=phub@10.84.0.1/24"}, lambda rank: dpdk_port(
        "net_memif0,role=client,socket=phub@10.84.0.2/24") if rank == 0 else ("tcp", {}))
DPDK_XDP = Way("dpdk_xdp", "a box with XDP's sockets on a veth pair of its own", {
    "transports": "dpdk", "dpdk_ports": "net_af_xdp0,iface=x0@10.85.0.1/24"})


def way():
    """The one of the case that runs."""
    return _way[-1]


def box_on(listen=f"{address(BOX)}:0", node=BOX, **options):
    """A box, and the network as it was at first."""
    net().faults()
    options = {"cores": 2, "lost_ms": 10000, "warn_ms": 9000, **way().box, **options}
    return Box(listen=listen, prefix=net().inside(node), env=SECRET, create="secret", create_secret_env="PHUB_SECRET",
               admin_secret_env="PHUB_ADMIN_SECRET", **options)


def job_on(box, name="job", nodes=(1, 2, 3, 4), transports=None, env=(), **arguments):
    arguments = {"keys": KEYS, "report_ms": 1, "rounds": "until-told", "wait_ms": 30000, **arguments}
    asks = [(transports[rank], {}) if transports else way().worker(rank) for rank in range(len(nodes))]
    return [Worker(box.url(name), rank, len(nodes), prefix=net().inside(node), env={**SECRET, **dict(env), **asks[rank][1]},
                   transport=asks[rank][0], **arguments) for rank, node in enumerate(nodes)]


def exchanging(box, **arguments):
    """Workers in mid-exchange."""
    workers = job_on(box, **arguments)
    for worker in workers:
        worker.event("progress")
    return workers


def goes_on(*workers):
    """All of these jobs report more rounds from now on."""
    for worker in workers:
        with worker.out.changed:
            worker.seen = len(worker.out.lines)
    for worker in workers:
        worker.event("progress", 30)


def ends_well(box, workers):
    workers[0].tell()
    digests = {worker.good()["digest"] for worker in workers}
    check(len(digests) == 1, f"the workers hold different sums: {digests}")
    if box:
        box.stop()


def rate(worker):
    """Rounds per second, from the first one that was reported to the last."""
    told = [event for event in map(json.loads, list(worker.out.lines)) if event["event"] == "progress"]
    span = told[-1]["ms"] - told[0]["ms"] if told else 0
    return (told[-1]["round"] - told[0]["round"]) * 1000 / span if span else 0


def jobs_at(box, node, *words):
    """What `phub jobs` says."""
    shown = subprocess.run([*net().inside(node), BUILD / "phub", "jobs", *words, box.address], capture_output=True, text=True,
                           env={**QUIET, **SECRET})
    check(shown.returncode == 0, f"phub jobs: {shown.stderr}")
    return shown.stdout


def datagrams(box, node=BOX):
    """The box's counters of all cores, those of drops by reason."""
    sums = collections.Counter()
    for line in map(json.loads, jobs_at(box, node, "--json").splitlines()):
        for name, value in line.get("datagrams", {}).items():
            sums.update(value if name == "dropped" else {} if isinstance(value, dict) else {name: value})
    return sums


def passed(box, node=BOX):
    """Bytes that the box counts in datagrams, both ways, and those that the kernel does at its device."""
    counted = datagrams(box, node)
    device = json.loads(subprocess.run(["ip", "-n", net().names[node], "-s", "-j", "link", "show", "e0"], capture_output=True,
                                       check=True).stdout)[0]
    return collections.Counter(box=counted["sent_bytes"] + counted["came_bytes"],
                               device=sum(device["stats64"][way]["bytes"] for way in ("rx", "tx")))


def resnet18(width):
    """The keys of ResNet-18, whose first convolution has `width` filters (64 in the original), in order."""
    sizes = [3 * 49 * width, width, width]
    inputs = width
    for stage in range(4):
        filters = width << stage
        for block in range(2):
            sizes += [9 * inputs * filters, filters, filters, 9 * filters * filters, filters, filters]
            if inputs != filters:
                sizes += [inputs * filters, filters, filters]
            inputs = filters
    return ",".join(f"k{i}:{size}" for i, size in enumerate([*sizes, 1000 * inputs, 1000]))


def four_workers(box, keys, rounds, **arguments):
    """Every sum is exact, and it ends in time; what the box and the segment counted meanwhile."""
    before, frames = datagrams(box), net().count()
    began = time.monotonic()
    workers = job_on(box, f"resnet-{time.monotonic_ns()}", keys=keys, rounds=rounds, report_ms=1, **arguments)
    results = [worker.good(60) for worker in workers]
    digests = {result["digest"] for result in results}
    check(len(digests) == 1, f"the workers hold different sums: {digests}")
    moved = datagrams(box)
    moved.subtract(before)
    did = {name: value - frames[name] for name, value in net().count().items()}
    say(f"{rate(workers[0]):.1f} rounds/s, {time.monotonic() - began:.1f} s in all; the box sent {moved['sent']}, "
        f"{moved['resent']} again ({moved['lost']} found lost); workers " +
        ", ".join(f"{result['datagrams']} and {result['datagrams_resent']}" for result in results) + f"; segment: {did}")
    check(not did["loss"] or sum(result["datagrams_resent"] for result in results) > 0, "no worker sent anything again")
    return moved, did


def why_not():
    """Why none of it can be here; None: it can."""
    if os.geteuid() != 0:
        return "only root makes namespaces"
    if not SEGMENT.exists():
        return f"{SEGMENT} is not there (make test-programs)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    probe = f"phub-{os.getpid()}-probe"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if done.returncode != 0:
        return f"no namespaces here: {done.stderr.strip()}"
    do("ip", "netns", "delete", probe)
    return None
