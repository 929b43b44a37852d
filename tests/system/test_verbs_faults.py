#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Exchanges over verbs where the box and every worker have devices of their own, and what ends or does not end them: cables
that break, packets that get lost, workers that die. In a virtual machine (nodeN is plugged into the switch's port bN).
Elsewhere nobody pulls your cables.

vm: -m 2048 -w 6
"""
import json
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import BUILD, Box, Worker, check, holds, outlives, run, say  # noqa: E402

WORLD = 3
KEYS = "a:300000,b:70,c:90000"
LOST_MS = 6000  # one processor serves two polling cores, three workers and all devices


def do(words):
    done = subprocess.run(words.split(), capture_output=True, text=True)
    check(done.returncode == 0, f"{words}: {done.stderr.strip()}")


def cable(rank, up):
    """Plugged in, it carries something when the kernel has worked off that it has a carrier: a second later, at most."""
    do(f"ip link set b{rank + 2} {'up' if up else 'down'}")
    while up and " state UP " not in subprocess.run(["ip", "link", "show", f"n{rank + 2}"], check=True, capture_output=True,
                                                    text=True).stdout:
        time.sleep(0.01)


def exchange(ports="node1", first=2, lost_ms=LOST_MS, **arguments):
    """A box on node1 and workers on node2.., or so, in mid-exchange."""
    box = Box(transports="verbs", rdma=ports, cores=2, lost_ms=lost_ms, warn_ms=lost_ms // 2, heartbeat_ms=500)
    workers = [Worker(box.url("faults"), rank, WORLD, env={"PHUB_RDMA": f"node{rank + first}"}, transport="verbs", keys=KEYS,
                      optimizer="sgd", report_ms=20, wait_ms=20000, rounds="until-told", **arguments)
               for rank in range(WORLD)]
    for worker in workers:
        worker.event("progress")
    return box, workers


def goes_on(box, workers, look=lambda: None):
    """Every worker reports more rounds, then all end well, every sum right."""
    for worker in workers:
        with worker.out.changed:
            worker.seen = len(worker.out.lines)
    for worker in workers:
        worker.event("progress")
    look()
    workers[0].tell()
    for worker in workers:
        worker.good()
    box.stop()


def resnet(width):
    """The keys of ResNet-50, whose first convolution has `width` filters (64 in the original), in order."""
    sizes = [3 * 49 * width, width, width]
    inputs = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle, outputs = width << stage, 4 * width << stage
        for block in range(blocks):
            for convolution, filters in ((inputs * middle, middle), (9 * middle * middle, middle), (middle * outputs, outputs)):
                sizes += [convolution, filters, filters]
            if block == 0:
                sizes += [inputs * outputs, outputs, outputs]
            inputs = outputs
    return ",".join(f"k{i}:{size}" for i, size in enumerate([*sizes, 1000 * inputs, 1000]))


def packets(device):
    """How many a device has sent and received."""
    counters = pathlib.Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters")
    return sum(int((counters / name).read_text()) for name in ("sent_pkts", "rcvd_pkts"))


def four_workers(width, rounds):
    """Every worker has a device, the box has two. Every sum is exact, the books balance, and the two share the work."""
    before = {f"node{i}": packets(f"node{i}") for i in range(1, 7)}
    box = Box(transports="verbs", rdma="node1,node2", cores=2, lost_ms=20000)
    workers = [Worker(box.url("resnet"), rank, 4, env={"PHUB_RDMA": f"node{rank + 3}"}, transport="verbs", keys=resnet(width),
                      rounds=rounds) for rank in range(4)]
    digests = {worker.good()["digest"] for worker in workers}
    check(len(digests) == 1, f"the workers hold different sums: {digests}")
    box.stop()
    moved = {device: packets(device) - count for device, count in before.items()}
    say(f"packets: {moved}")
    check(min(moved["node1"], moved["node2"]) > sum(moved.values()) / 2 / 4, "one port of the box did most of the work")
    check(min(moved[f"node{i}"] for i in range(3, 7)) > sum(moved.values()) / 2 / 8, "a worker's device did little")


def lost(port):
    """Packets that netem took from what its node was to receive."""
    shown = subprocess.run(["tc", "-s", "qdisc", "show", "dev", port], capture_output=True, text=True).stdout
    return int(shown.split("dropped ")[1].split(",")[0])


def test_resnet():
    """Four workers with a device each, a box with two: every sum of a ResNet-50 is exact, and the box's books balance"""
    four_workers(width=16, rounds=5)


def test_resnet_loss():
    """The same while every device loses one packet in a hundred"""
    for i in range(1, 7):
        do(f"tc qdisc add dev b{i} root netem loss 1%")
    four_workers(width=16, rounds=3)
    for i in range(1, 7):
        say(f"b{i} dropped {lost(f'b{i}')}")
        check(lost(f"b{i}") > 0, f"nothing was lost at b{i}")
        do(f"tc qdisc del dev b{i} root")


def test_short_cut():
    """A cable that is out for 0.2 seconds is not noticed"""
    box, workers = exchange()
    began = time.monotonic()
    cable(1, False)
    time.sleep(0.2)
    cable(1, True)
    say(f"it was out for {time.monotonic() - began:.2f} s")
    goes_on(box, workers)


def test_loss():
    """One packet in a hundred is lost both ways, and every sum is right"""
    box, workers = exchange()
    for port in ("b1", "b3"):
        do(f"tc qdisc add dev {port} root netem loss 1%")
    time.sleep(2)
    goes_on(box, workers)
    for port in ("b1", "b3"):
        say(f"{port} dropped {lost(port)}")
        check(lost(port) > 0, f"nothing was lost at {port}")
        do(f"tc qdisc del dev {port} root")


def reconnects(box):
    shown = subprocess.run([str(BUILD / "phub"), "jobs", "--json", box.address], capture_output=True, text=True)
    return next(job["reconnects"] for job in map(json.loads, shown.stdout.splitlines()) if job.get("job") == "faults")


def test_long_cut():
    """A cable that is out for longer than the devices try: the connections are made anew, and every sum is right"""
    box, workers = exchange()
    check(reconnects(box) == 0, "nothing has broken yet")
    cable(1, False)
    time.sleep(4.5)
    cable(1, True)
    broke = box.logged("rank 1 .* connection to core . broke: ")
    say(broke)
    holds(broke, "retry counter exceeded", r"10\.81\.0\.[13]", "node[13] port 1", "to connect again")
    say(box.logged("rank 1 .*: connected to core . again"))
    goes_on(box, workers, lambda: check(reconnects(box) >= 1, "none was made anew"))


def test_port_gone():
    """A port of the box that goes down for good: what went over it goes over the other one"""
    box, workers = exchange(ports="node1,node2", first=3)
    do("ip link set b2 down")
    say(box.logged("rank 1 .*: connected to core . again"))
    before = packets("node2")
    goes_on(box, workers, lambda: check(reconnects(box) >= WORLD, "not all were made anew"))
    check(packets("node2") - before < 100, "the port is used although it is down")
    do("ip link set b2 up")


def nowhere(port):
    """What goes to and from this node gets lost, and nobody remembers where it was."""
    do(f"tc qdisc add dev {port} root netem loss 100%")
    do("ip neighbour flush all")


def test_way_lost():
    """One of the box's two ports leads nowhere: jobs begin and go on by the other one"""
    nowhere("b1")
    box, workers = exchange(ports="node1,node2", first=3)
    do("tc qdisc del dev b1 root")
    nowhere("b2")
    say(box.logged("rank . .*: connected to core . again"))
    goes_on(box, workers)
    do("tc qdisc del dev b2 root")


def test_nobody_answers():
    """A worker whose port leads nowhere hears so at once, and others go on"""
    box, workers = exchange()
    nowhere("b5")
    lost = Worker(box.url("nowhere"), 0, 1, env={"PHUB_RDMA": "node5"}, transport="verbs", keys=KEYS, rounds=1, wait_ms=20000)
    result = lost.result()
    say(result["error"])
    holds(result["error"], "10.81.0.1 by node5 port 1 does not answer")
    check(result["ms"] < 10000, f"it took {result['ms']} ms")
    goes_on(box, workers)
    do("tc qdisc del dev b5 root")


def test_cut():
    """A cable that stays out ends the job, in words: which rank, device, port, peer, and what the device says"""
    box, workers = exchange()
    cable(1, False)
    began = time.monotonic()
    results = [worker.result() for worker in workers]
    took = time.monotonic() - began
    cable(1, True)
    for result in results:
        say(f"{result['errno']}: {result['error']}")
    check(took < LOST_MS / 1000 + 10, f"it took {took:.1f} s")
    line = box.logged("rank 1 .* was lost: ")
    say(line)
    holds(line, "its verbs connection to core", "transport retry counter exceeded", r"10\.81\.0\.[13]", "node[13] port 1")
    for result in results:
        check(result["rc"] < 0, f"no error: {result}")
        holds(result["error"], "transport retry counter exceeded", "node[13] port 1", r"10\.81\.0\.[13]")
    holds(results[1]["error"], f"broke .* no other came about within {LOST_MS / 1000:.1f} s|was lost: its verbs connection")
    for rank in (0, 2):
        holds(results[rank]["error"], "rank 1")
    box.stop()


def test_killed():
    """A worker that is killed is named to the others within the deadline"""
    box, workers = exchange()
    workers[1].kill()
    began = time.monotonic()
    for rank in (0, 2):
        result = workers[rank].result()
        say(f"{result['errno']}: {result['error']}")
        check(result["rc"] < 0, f"no error: {result}")
        holds(result["error"], "rank 1")
    check(time.monotonic() - began < LOST_MS / 1000 + 5, "it took too long")
    box.stop()


def test_answers_late():
    """A peer whose first answer was lost is asked again, as the kernel asks but once"""
    box, workers = exchange()
    nowhere("b5")
    late = Worker(box.url("late"), 0, 1, env={"PHUB_RDMA": "node5"}, transport="verbs", keys=KEYS, rounds=1, wait_ms=20000)
    time.sleep(1.7)
    check(late.running(), f"it gave up: {late.out.text()}")
    do("tc qdisc del dev b5 root")
    late.good()
    goes_on(box, workers)


def test_outlived():
    """A worker is killed in mid-round: the others go on, or wait; another takes its place, and all sums are right"""
    box = Box(transports="verbs", rdma="node1", cores=2, lost_ms=LOST_MS, warn_ms=LOST_MS // 2, heartbeat_ms=500)
    for lost, registered in (("shrink", True), ("wait", False)):
        def begin(rank, **arguments):
            return Worker(box.url(lost), rank, WORLD, env={"PHUB_RDMA": f"node{rank + 2}"}, transport="verbs", keys=KEYS,
                          registered=registered, **arguments)
        outlives(begin, lost)
    box.stop()


def test_freed():
    """Once a box that was killed or stopped has ended a wait, nothing touches the memory: no result that it had under way"""
    for number in (signal.SIGKILL, signal.SIGSTOP):
        box, workers = exchange(lost_ms=2000, registered=True, watch_ms=800)
        box.kill(number)
        for worker in workers:
            worker.event("watches")
        box.kill(signal.SIGCONT)
        for worker in workers:
            result = worker.result()
            say(f"{number.name}: {result['errno']}: {result['error']}")
            check(result["rc"] < 0, f"no error: {result}")
            check(result["touched"] == 0, f"{worker.name}: {result['touched']} bytes were written after the end")
            check(result["wrong"] == 0, f"{worker.name}: wrong sums: {result}")
        if number == signal.SIGSTOP:
            box.stop()


def why_not():
    if not pathlib.Path("/sys/class/net/b6").exists() or not pathlib.Path("/sys/class/infiniband/node6").exists():
        return "these devices are not those of a virtual machine"
    return None


run([test_resnet, test_resnet_loss, test_short_cut, test_loss, test_long_cut, test_port_gone, test_way_lost,
     test_nobody_answers, test_answers_late, test_cut, test_killed, test_outlived, test_freed], why_not())
