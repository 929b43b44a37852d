#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Exchanges over datagrams between network namespaces, on a segment that loses, repeats, reorders and damages them (segment_rig.py);
stopped processes and cables that are out; strangers on the same segment, who make datagrams, keep them and send them again.

parts: udp dpdk
"""
import collections
import contextlib
import json
import pathlib
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import BUILD, QUIET, Skip, Worker, check, do, holds, outlives, run, say  # noqa: E402
from segment_rig import (BOX, DPDK, DPDK_ALL, DPDK_BOX, DPDK_MEMIF, DPDK_WORKER, DPDK_XDP, KEYS, NODES, PLUGIN, QUEUE, SECRET,
                         STRANGER,  # noqa: E402
                         address, box_on, datagrams, dpdk_port, ends_well, exchanging, four_workers, goes_on, job_on, jobs_at, net, passed,
                         resnet18, way, why_not)

LOST_MS = 3000
FLOOD_BYTES = 120
DATA, ACK, PROBE, PROBED, END = range(1, 6)
HEAD = struct.Struct("<BBHIQII16s")  # of every datagram, as in transport/wire.h
OTHER = 1 << 63  # numbers of what is no DATA are above


# ---- cases: what networks do ----

def with_loss(mtu, rounds):
    """A box whose four workers exchanged ResNet-18's tensors while the segment lost more and more."""
    network = net()
    for node in range(NODES):
        network.link(node, "mtu", str(mtu))
    box = box_on()
    for percent in (0, 1, 5):
        network.faults(loss=percent)
        moved, did = four_workers(box, resnet18(16), rounds)
        say(f"^ MTU {mtu}, {percent} % loss")
        check(did["loss"] > 0 if percent else did["loss"] == 0, f"the segment lost {did['loss']}")
        check(moved["resent"] > 0 or not percent, "nothing was sent again")
        check(moved["resent"] < moved["sent"] * (0.05 + 2 * percent / 100), "more was sent again than was lost")
    network.faults()
    return box


def loss_1500():
    """four workers exchange ResNet-18's tensors, packets of 1500 bytes: no loss, 1 %, 5 %"""
    with_loss(1500, 10).stop()


def loss_9000():
    """the same in packets of 9000 bytes, and at full size"""
    box = with_loss(9000, 10)
    four_workers(box, resnet18(64), 2)
    say("^ ResNet-18 as it is")
    box.stop()


def lossy():
    """four workers exchange ResNet-18's tensors, packets of 1500 bytes: no loss, 1 %, 5 %"""
    with_loss(1500, 4).stop()


def shallow():
    """devices that hold a hundred packets, so that workers and the box who send at once lose them by their own doing"""
    for node in range(NODES):
        net().link(node, "mtu", "1500", "txqueuelen", "100")
    box = box_on()
    moved, _ = four_workers(box, resnet18(16), 5)
    for node in range(NODES):
        net().link(node, "mtu", "9000", "txqueuelen", str(QUEUE))
    check(moved["resent"] < moved["sent"] / 2, "most of what was sent was sent again")
    box.stop()


def disorder():
    """packets that overtake others, come twice, or are damaged, also so that their checksum is right"""
    box = box_on()
    workers = exchanging(box)
    for faults in ({"reorder": 5}, {"repeat": 5}, {"damage": 1}, {"reorder": 2, "repeat": 2, "damage": 1, "loss": 1}):
        before, frames = datagrams(box), net().count()
        net().faults(**faults)
        goes_on(*workers)
        time.sleep(1)
        goes_on(*workers)
        net().faults()
        moved = datagrams(box)
        moved.subtract(before)
        did = {name: value - frames[name] for name, value in net().count().items()}
        say(f"{faults}: segment {did}, box {dict(+moved)}")
        for fault in faults:
            check(did[fault] > 0, f"no {fault}")
        check(moved["forged"] > 0 or "damage" not in faults, "no damaged datagram came to where it is looked at")
        check(moved["repeat"] > 0 or "repeat" not in faults, "none came twice")
    ends_well(box, workers)


# ---- cases: what is out for a while ----

def stopped():
    """a worker, and then the box, that is stopped for a second, and for three: the job goes on"""
    box = box_on()
    workers = exchanging(box)
    for process in (workers[1], box):
        for seconds in (1, 3):
            process.kill(signal.SIGSTOP)
            time.sleep(seconds)
            process.kill(signal.SIGCONT)
            goes_on(*workers)
    ends_well(box, workers)


def stopped_once():
    """a worker, and then the box, that is stopped for a second, beside another over a network: the job goes on"""
    box = box_on()
    workers = exchanging(box, nodes=(BOX, 1))
    for process in (workers[0], box):
        process.kill(signal.SIGSTOP)
        time.sleep(1)
        process.kill(signal.SIGCONT)
        goes_on(*workers)
    ends_well(box, workers)


def sparse(nodes=(1, 2, 3)):
    """a key of which one element in a hundred is not zero, with its zeros and without them; these also with loss, and encrypted"""
    elements, rounds, box, counted = 300000, 10, box_on(), []
    for number, (word, percent, env) in enumerate([("", 0, {}), (":sparse", 0, {}), (":sparse", 2, {}),
                                                   (":sparse", 0, {"PHUB_ENCRYPT": "1"})]):
        net().faults(loss=percent)
        before = passed(box)
        workers = job_on(box, f"sparse-{number}", nodes, keys=f"table:{elements}{word}", rounds=rounds, one_in=100, env=env)
        results = [worker.good(60) for worker in workers]
        moved = passed(box)
        moved.subtract(before)
        say(f"key 'table{word}', {percent} % loss, {env or 'plain'}: {dict(moved)} bytes")
        check(all(bool(result["coded_pushes"]) == bool(result["coded_results"]) == bool(word) for result in results), f"{results}")
        check(all(result["pushed_bytes"] < 0.016 * 4 * elements * rounds for result in results) or not word, f"{results}")
        counted.append(moved)
    over = sum(way().worker(rank)[0] != "tcp" for rank in range(len(nodes)))
    check(counted[0]["box"] > 2 * over * 4 * elements * rounds, f"{counted[0]} bytes are fewer than were exchanged")
    for name in counted[0]:
        shares = [moved[name] / counted[0][name] for moved in counted[1:]]
        check(max(shares) < 0.09, f"{name}: of a key whose zeros travel {shares}")  # sizes are tried at first
    net().faults()
    box.stop()


def sparse_at_box():
    """the same, of one worker at the box and another over a network"""
    sparse((BOX, 1))


def cables():
    """a cable that is out for a second, and a device that is down for one: the job goes on"""
    box = box_on()
    workers = exchanging(box)
    for node in (1, BOX):
        net().tell("cut", node)
        time.sleep(1)
        net().tell("join", node)
        goes_on(*workers)
        net().link(node, "down")
        time.sleep(1)
        net().up(node)
        goes_on(*workers)
    ends_well(box, workers)


# ---- cases: strangers ----

class Ear:
    """UDP datagrams that come to and leave a node: (from, to, payload), both (host, port)."""

    def __init__(self, node):
        self.sock = net().socket(node, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.sock.bind(("e0", 3))
        self.sock.settimeout(0.1)

    def listen(self, seconds):
        heard = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                frame = self.sock.recv(65536)
                if frame[12:14] == b"\x08\x00" and frame[23] == 17:
                    source, sink = struct.unpack("!HH", frame[34:38])
                    heard.append(((socket.inet_ntoa(frame[26:30]), source), (socket.inet_ntoa(frame[30:34]), sink), frame[42:]))
        return heard


def kinds(heard):
    """What came to the box, by kind, each with the port it came to."""
    found = collections.defaultdict(list)
    for _, sink, payload in heard:
        if sink[0] == address(BOX) and len(payload) >= HEAD.size:
            found[payload[0]].append((sink[1], payload))
    return found


def head(kind, conn, number, version=1, zero=0, offset=0, answers=0, seal=bytes(16)):
    return HEAD.pack(kind, version, zero, conn, number, offset, answers, seal)


def forgeries(found, dice):
    """By the reason for which they must be dropped: (port, datagram)."""
    port, data = max(found[DATA], key=lambda item: len(item[1]))
    other = next(other for other, _ in found[DATA] if other != port)
    conn = struct.unpack_from("<I", data, 4)[0]
    far = 1 << 40
    spoiled = bytearray(data)
    spoiled[-1] ^= 1
    return {
        "runt": [(port, data[:length]) for length in (0, 1, 39, 40, 103)] + [(port, head(ACK, conn, OTHER + far)),
                 (port, head(ACK, conn, OTHER + far) + bytes(49)), (port, head(END, conn, OTHER + far) + b"\0"),
                 (port, head(PROBE, conn, OTHER + far) + bytes(15))],
        "foreign": [(port, b"\xff" * 1200), (port, head(DATA, conn, far, version=2) + bytes(200)),
                    (port, head(9, conn, far) + bytes(64)), (port, head(DATA, conn, far, zero=1) + bytes(64)),
                    (port, head(DATA, conn, OTHER + far) + bytes(64)), (port, head(END, conn, far))],
        "stranger": [(port, head(END, conn ^ 0x5a5a5a5a, OTHER + far)), (other, data),
                     (port, head(DATA, 0xffffffff, far) + data[HEAD.size:])],
        "forged": [(port, bytes(spoiled)), (port, head(DATA, conn, far, seal=dice.randbytes(16)) + data[HEAD.size:]),
                   (port, head(END, conn, OTHER + far)), (port, head(PROBE, conn, OTHER + far) + bytes(1000)),
                   (port, head(ACK, conn, OTHER + far, seal=dice.randbytes(16)) + b"\xff" * 48)],
    }


def sent_by(sock, box, items, times=1, reason="stranger"):
    """
    Sends them, and, where a busy machine has lost some, as many once more: how many, and by how much the box's counters rose.
    All are counted as `reason`: then none was taken for something else.
    """
    wanted = times * len(items)
    before = datagrams(box)
    sent, rose = 0, collections.Counter()
    while sent < 2 * wanted and rose[reason] < wanted:
        for i in range(sent, min(sent + wanted - rose[reason], 2 * wanted)):
            port, datagram = items[i % len(items)]
            sock.sendto(datagram, (address(BOX), port))
            sent += 1
            time.sleep(0.0002)
        deadline = time.monotonic() + 2
        while rose[reason] < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
            rose = datagrams(box)
            rose.subtract(before)
    check(rose[reason] >= wanted, f"{rose[reason]} of {sent} were counted as {reason}: {dict(+rose)}")
    return sent, rose


def strangers():
    """datagrams that a stranger makes, or keeps and sends again: each is dropped and counted, no sum and no address changes"""
    dice = random.Random(net().seed)
    box = box_on()
    ear = Ear(BOX)
    workers = exchanging(box, keys="a:30000,b:70,c:30000", pause_us=2000)  # so few that no true one gets lost
    found = kinds(ear.listen(1))
    check(found[DATA] and found[ACK] and found[PROBE], f"kinds that were heard: { {k: len(v) for k, v in found.items()} }")
    stranger = net().socket(STRANGER, socket.AF_INET, socket.SOCK_DGRAM)
    stranger.bind((address(STRANGER), 0))
    stranger.settimeout(0)
    for reason, items in forgeries(found, dice).items():
        for item in items:
            sent, rose = sent_by(stranger, box, [item], 20, reason)
            check(rose[reason] <= sent, f"{rose[reason]} were counted as {reason}, and {sent} were sent")
            say(f"{reason}: {sent} were sent, counters rose by {dict(+rose)}")
    for kind in (DATA, ACK, PROBE):
        items = [found[kind][i % len(found[kind])] for i in range(200)]
        sent, rose = sent_by(stranger, box, items, 1, "repeat")
        say(f"kind {kind} once more: {sent} were sent, counters rose by {dict(+rose)}")
        goes_on(*workers)
    try:
        raise AssertionError(f"the stranger got an answer: {stranger.recv(65536)[:64]}")
    except BlockingIOError:
        pass
    ears = kinds(ear.listen(0.3))
    check(ears[DATA], "the workers' datagrams do not come any more")
    ends_well(None, workers)
    ended = kinds(ear.listen(0.5))
    if ended[END]:
        sent_by(stranger, box, ended[END], 10)  # of a connection that is over
    box.stop()


def pour(sock, ports, datagram, per_s, seconds):
    """So many datagrams a second, 50 in one call (UDP_SEGMENT cuts them): how many were sent."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * per_s:
            sock.sendto(datagram * 50, (address(BOX), ports[sent // 50 % len(ports)]))
            sent += 50
        time.sleep(0.001)
    return sent


def last_round(worker):
    return next(event["round"] for event in map(json.loads, reversed(list(worker.out.lines))) if event["event"] == "progress")


def pace(worker, meanwhile):
    """Rounds a second while something is done."""
    first, began = last_round(worker), time.monotonic()
    meanwhile()
    return (last_round(worker) - first) / (time.monotonic() - began)


def flood(times=2):
    """100,000 datagrams a second that are nobody's: each is counted, and a job goes on with right sums

    Returns the job's rounds a second in parts of those that it has when the datagrams go elsewhere, for make bench-rates."""
    box = box_on()
    ear = Ear(BOX)
    workers = exchanging(box, keys="a:30000,b:70,c:30000", pause_us=0)
    ports = sorted({sink[1] for _, sink, _ in ear.listen(0.5) if sink[0] == address(BOX)})
    ear.sock.close()
    nobodys = max(ports) + 5000 if max(ports) < 60000 else min(ports) - 5000
    stranger = net().socket(STRANGER, socket.AF_INET, socket.SOCK_DGRAM)
    stranger.setsockopt(socket.IPPROTO_UDP, 103, FLOOD_BYTES)
    datagram = head(DATA, 0xfeedbeef, 7).ljust(100, b"\0")
    before = datagrams(box)["stranger"]
    elsewhere, flooded, sent = [], [], []  # the stranger and the network take CPUs either way: the box's part is what differs
    for _ in range(times):
        elsewhere.append(pace(workers[0], lambda: pour(stranger, [nobodys], datagram, 100000, 0.5)))
        flooded.append(pace(workers[0], lambda: sent.append(pour(stranger, ports, datagram, 100000, 0.5))))
    counted = datagrams(box)["stranger"] - before
    say(f"rounds/s: {statistics.median(elsewhere):.0f} ({min(elsewhere):.0f} to {max(elsewhere):.0f}) when they go elsewhere, "
        f"{statistics.median(flooded):.0f} ({min(flooded):.0f} to {max(flooded):.0f}) when they come here; {sum(sent)} sent at "
        f"{sum(sent) / times * 2:.0f}/s, {counted} counted")
    check(0 < counted <= sum(sent), f"{counted} of {sum(sent)} were counted")
    with workers[0].out.changed:
        workers[0].seen = len(workers[0].out.lines)
    workers[0].event("progress")
    ends_well(box, workers)
    return statistics.median(flooded) / max(statistics.median(elsewhere), 1)


# ---- cases: the end ----

def failed_in_time(workers, began, within_s, *words):
    for worker in workers:
        result = worker.result(within_s + 10)
        say(f"{worker.name}: {result['errno']}: {result['error']}")
        check(result["rc"] < 0, f"no error: {result}")
        check(result["wrong"] == 0, f"{result['wrong']} elements were wrong before")
        holds(result["error"], *words)
    within_s += 15  # for a machine that is busy; without lost_ms the error would come after 30 s
    check(time.monotonic() - began < within_s, f"it took {time.monotonic() - began:.1f} s")


def worker_killed():
    """a worker that is killed is named to the others in time"""
    box = box_on(lost_ms=LOST_MS, warn_ms=1500)
    workers = exchanging(box)
    began = time.monotonic()
    workers[1].kill()
    failed_in_time([workers[0], *workers[2:]], began, LOST_MS / 1000 + 3, "rank 1")
    box.stop()


def worker_gone():
    """a worker whose cable stays out is named to the others in time, and hears itself that the box is gone"""
    box = box_on(lost_ms=LOST_MS, warn_ms=1500)
    workers = exchanging(box)
    began = time.monotonic()
    net().tell("cut", 2)
    failed_in_time([workers[0], *workers[2:]], began, LOST_MS / 1000 + 3, "rank 1")
    failed_in_time([workers[1]], began, LOST_MS / 1000 + 5)
    net().tell("join", 2)
    box.stop()


def outlived():
    """a worker is killed in mid-round: the others go on, or wait; another takes its place, and all sums are right"""
    box = box_on()  # who is killed is missed at once; who comes in its place may take seconds to start DPDK
    for lost, registered in (("shrink", True), ("wait", False)):
        def begin(rank, **arguments):
            transport, env = way().worker(rank)
            return Worker(box.url(lost), rank, 3, prefix=net().inside(rank + 1), env={**SECRET, **env}, transport=transport, keys=KEYS,
                          registered=registered, **arguments)
        outlives(begin, lost)
    box.stop()


def deaf():
    """UDP that comes through no more while the control session lives: that worker says so in time, and the box says it to all"""
    box = box_on(lost_ms=LOST_MS, warn_ms=1500)
    workers = exchanging(box)
    began = time.monotonic()
    net().tell("deaf", 2)
    failed_in_time([workers[1]], began, LOST_MS / 1000 + 4, "nothing comes through.*UDP.*firewall.*data_ports")
    failed_in_time([workers[0], *workers[2:]], began, LOST_MS / 1000 + 5, "rank 1.*UDP comes through no more.*data_ports")
    net().tell("hear", 2)
    box.stop()


def racks():
    """a box below the other, its sums and workers by datagrams: sums at each loss as without it, sent again; and one that hears none is named"""
    for mtu in (1500, 9000):
        for node in range(NODES):
            net().link(node, "mtu", str(mtu))
        root = box_on(transports="tcp,udp", lost_ms=LOST_MS, warn_ms=1500)
        below = box_on(f"{address(1)}:0", node=1, uplink=root.address, uplink_transport="udp", lost_ms=LOST_MS, warn_ms=1500)
        digests, rounds = set(), 4
        for percent in (0, 1, 5):
            net().faults(loss=percent)
            before = datagrams(below, 1)
            name = f"loss-{percent}"
            workers = [Worker(box.url(name), rank, 4, prefix=net().inside(node), env=SECRET, transport="udp", keys=resnet18(16),
                              rounds=rounds)
                       for rank, (box, node) in enumerate(((root, 2), (root, 3), (below, 4), (below, 4)))]
            digests.update(worker.good(60)["digest"] for worker in workers)
            moved = datagrams(below, 1)
            moved.subtract(before)
            say(f"MTU {mtu}, {percent} % loss: the box below sent {moved['sent']} datagrams, {moved['resent']} again")
            check(moved["resent"] > 0 or not percent, "nothing was sent again")
        net().faults()
        check(len(digests) == 1, f"the sums differ: {digests}")
        workers = [Worker(box.url("deaf"), rank, 2, prefix=net().inside(node), env=SECRET, transport=transport, keys=KEYS, report_ms=1,
                          rounds="until-told")
                   for rank, (box, node, transport) in enumerate(((root, 2, "tcp"), (below, 1, "udp")))]
        goes_on(*workers)
        began = time.monotonic()
        net().tell("deaf", BOX)
        failed_in_time([workers[1]], began, LOST_MS / 1000 + 6,
                       "core 0 to its core 0 ended: UDP comes through no more|core 1 to its core 1 ended: UDP comes through no more")
        net().tell("hear", BOX)
        below.stop()
        root.stop()


def racks_dpdk():
    """a box below one that drives its port without the kernel sends its sums there by udp, and they are those of a box on udp"""
    if not PLUGIN.exists():
        raise Skip("this build has no DPDK")
    digests = set()
    for hierarchy in ("tree", "sharded"):
        for options in ({"transports": "tcp,udp"}, DPDK):
            root = box_on(hierarchy=hierarchy, lost_ms=LOST_MS, warn_ms=1500, **options)
            below = box_on(f"{address(1)}:0", node=1, transports="tcp,udp", uplink=root.address, uplink_transport="udp", lost_ms=LOST_MS,
                           warn_ms=1500)
            workers = [Worker(box.url("mixed"), rank, 3, prefix=net().inside(node), env=SECRET, transport="udp", keys=resnet18(8), rounds=3)
                       for rank, (box, node) in enumerate(((root, 2), (below, 3), (below, 3)))]
            digests.update(worker.good(60)["digest"] for worker in workers)
            below.stop()
            root.stop()
    check(len(digests) == 1, f"the sums differ: {digests}")


def racks_by_dpdk():
    """a box that drives its port without the kernel sends its sums by that, too: to one that does likewise or is on udp, at each loss as without it"""
    if not PLUGIN.exists():
        raise Skip("this build has no DPDK")
    patient = {"lost_ms": LOST_MS, "warn_ms": 1500}
    given, digests = {"keys": resnet18(8) + ",table:100000:sparse", "one_in": 100, "rounds": 4}, set()
    for hierarchy in ("tree", "sharded"):
        for options in ({**DPDK, "uplink_transport": "dpdk"}, {"transports": "tcp,udp", "uplink_transport": "udp"}):
            root = box_on(hierarchy=hierarchy, **patient, **options)
            below = box_on(f"{address(1)}:0", node=1, uplink=root.address, uplink_transport="dpdk", **patient, **DPDK)
            for percent in (0, 2):
                net().faults(loss=percent)
                before = datagrams(below, 1)
                workers = [Worker(box.url(f"loss-{percent}"), rank, 3, prefix=net().inside(node), env=SECRET, transport="udp", **given)
                           for rank, (box, node) in enumerate(((root, 2), (below, 3), (below, 4)))]
                digests.update(worker.good(60)["digest"] for worker in workers)
                moved = datagrams(below, 1)
                moved.subtract(before)
                say(f"{hierarchy}, root on {options['transports']}, {percent} % loss: the box below sent {moved['sent']} datagrams, {moved['resent']} again")
                check(moved["resent"] > 0 or not percent, "nothing was sent again")
            net().faults()
            if hierarchy == "tree":
                workers = [Worker(box.url("killed"), rank, 2, prefix=net().inside(node), env=SECRET, transport="udp", keys=KEYS,
                                  report_ms=1,
                                  rounds="until-told") for rank, (box, node) in enumerate(((root, 2), (below, 3)))]
                goes_on(*workers)
                holds(jobs_at(below, 1), rf"box {root.address} is above \(uplink\), lifting by dpdk, ")
                began = time.monotonic()
                root.kill()
                failed_in_time([workers[1]], began, LOST_MS / 1000 + 3, "box above .* was lost")
                workers[0].kill()
            below.stop()
            if hierarchy != "tree":
                root.stop()
    root = box_on(**patient, **DPDK)
    below = box_on(f"{address(1)}:0", node=1, uplink=root.address, uplink_transport="dpdk", **patient,
                   **{**DPDK, "transports": "tcp"})  # for that alone
    workers = [Worker(box.url("alone"), rank, 3, prefix=net().inside(node), env=SECRET, transport=transport, **given)
               for rank, (box, node, transport) in enumerate(((root, 2, "udp"), (below, 3, "tcp"), (below, 4, "tcp")))]
    digests.update(worker.good(60)["digest"] for worker in workers)
    below.stop()
    root.stop()
    check(len(digests) == 1, f"the sums differ: {digests}")


def box_killed():
    """workers whose box is killed hear so in time; so they do when it is told to end, which it does in good order"""
    for number in (signal.SIGKILL, signal.SIGTERM):
        box = box_on(lost_ms=LOST_MS, warn_ms=1500)
        workers = exchanging(box)
        began = time.monotonic()
        box.kill(number)
        failed_in_time(workers, began, LOST_MS / 1000 + 3)
        check(box.wait() == (-number if number == signal.SIGKILL else 0), "the box's exit status")


# ---- cases: others beside it ----

def beside():
    """jobs over tcp and udp at the same time, and a job of workers by shared memory, udp and tcp"""
    box = box_on(transports="tcp,shm,udp")
    jobs = [exchanging(box, name="streams", nodes=(1, 2), transports=("tcp", "tcp")),
            exchanging(box, name="datagrams", nodes=(3, 4), transports=("udp", "udp")),
            exchanging(box, name="mixed", nodes=(BOX, 1, 2), transports=("shm", "udp", "tcp"))]
    for workers in jobs:
        goes_on(*workers)
    check([worker.event("progress")["transport"] for worker in jobs[2]] == ["shm", "udp", "tcp"], "other transports")
    for workers in jobs:
        ends_well(None, workers)
    box.stop()


def both():
    """udp and dpdk of one box, on one address, share data_ports, whoever is named first; too few of them are an error"""
    for transports in ("udp,dpdk", "dpdk,udp"):
        box = box_on(transports=transports, data_ports="7100-7103")
        jobs = [exchanging(box, name="sockets", nodes=(1, 2), transports=("udp", "udp")), exchanging(box, name="port", nodes=(3, 4))]
        for workers in jobs:
            goes_on(*workers)
        check([worker.event("progress")["transport"] for worker in jobs[1]] == ["udp", "dpdk"], "other transports")
        for workers in jobs:
            ends_well(None, workers)
        box.stop()
    done = subprocess.run([*net().inside(BOX), BUILD / "phubd", "--listen", "127.0.0.1:0", "-o", "transports=udp,dpdk", "-o", "cores=2",
                           "-o", f"dpdk_ports={DPDK['dpdk_ports']}", "-o", "data_ports=7100-7101"], capture_output=True, text=True,
                          env=QUIET, timeout=30)
    check(done.returncode == 1, f"it ended with {done.returncode}")
    holds(done.stderr, "of UDP ports 7100-7101 no 2 in a row are free.*data_ports.*port=")


def misplaced():
    """a worker that has the box's address, and one in another network without a router, are told so"""
    box = box_on(dpdk_ports=f"net_af_packet0,iface=e0@{address(8)}/24")
    for ip, words in ((address(8), f"no way to {address(8)}: this worker has that address itself; PHUB_DPDK"),
                      ("10.86.0.9", f"no way to the box's address {address(8)}: .*PHUB_DPDK names a router's address with ,gw=")):
        worker = Worker(box.url("job"), prefix=net().inside(1), env={**SECRET, **dpdk_port(f"net_af_packet0,iface=e0@{ip}/24")[1]},
                        transport="dpdk", keys="a:1000")
        holds(worker.result()["error"], words)
    box.stop()


def six():
    """over IPv6, on a segment that loses one packet in a hundred"""
    box = box_on(listen="[fd83::1]:0")
    workers = exchanging(box)
    net().faults(loss=1)
    goes_on(*workers)
    time.sleep(0.5)
    goes_on(*workers)
    check(datagrams(box)["resent"] > 0, "nothing was sent again")
    ends_well(box, workers)


def xdp_link():
    """A veth pair from the box to node 1. XDP takes all that comes to its device: what is told by streams stays on e0."""
    libraries = subprocess.run(["pkg-config", "--variable=libdir", "libdpdk"], capture_output=True, text=True).stdout.strip()
    if not [*pathlib.Path(libraries).glob("librte_net_af_xdp.*")]:
        raise Skip(f"{libraries} has no net_af_xdp")
    try:
        net().socket(BOX, 44, socket.SOCK_RAW).close()  # AF_XDP
    except OSError as error:
        raise Skip(f"no sockets of XDP's here: {error}") from None
    there = net().names[1]
    do("ip", "-n", net().names[BOX], "link", "add", "x0", "up", "type", "veth", "peer", "name", "x1", "netns", there)
    do("ip", "-n", there, "addr", "add", "10.85.0.2/24", "dev", "x1")
    do("ip", "-n", there, "link", "set", "x1", "up")


def xdp():
    """four workers at its other end exchange keys of all sizes; next to nothing is sent again"""
    xdp_link()
    box = box_on()
    for keys, rounds in (("a:30000", 50), (resnet18(16), 5)):
        moved, _ = four_workers(box, keys, rounds, nodes=(1, 1, 1, 1))
        check(moved["resent"] < moved["sent"] / 20, "too much was sent again")
    box.stop()
    do("ip", "-n", net().names[BOX], "link", "del", "x0")


PARTS = {
    "udp": [loss_1500, loss_9000, shallow, disorder, sparse, stopped, cables, strangers, flood, worker_killed, worker_gone, outlived, deaf,
            racks,
            racks_dpdk, box_killed, beside, six],
    "dpdk": [racks_by_dpdk, *DPDK_BOX.cases(lossy, disorder, sparse, cables, strangers, flood),
             *DPDK_WORKER.cases(lossy, stopped, worker_killed, outlived, both, misplaced), *DPDK_ALL.cases(lossy, sparse, outlived),
             *DPDK_MEMIF.cases(stopped_once, sparse_at_box), *DPDK_XDP.cases(xdp)],
}

if __name__ == "__main__":
    part = PARTS.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if part:
        del sys.argv[1]
    run(part or [*PARTS["udp"], *PARTS["dpdk"]], why_not())
