#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Keys whose zeros do not travel: fewer bytes on the wire, and the sums that there were. Real boxes, real workers.
vm: -m 2048 -t 240 -- verbs
"""
import os
import struct
import subprocess

import raw
import rig
from rig import check, holds
from test_racks import PHUB, Beside, Rack, flat, jobs
from test_uplinks import over, rdma_ports

ELEMENTS, ROUNDS, WORLD, ONE_IN = 1000000, 5, 3, 100


def exchange(transport, word="", box=None, prefix=(), **more):
    """A job of sums, of which one element in ONE_IN is not zero. What its workers say, all of it right."""
    url = (box or exchange.box).url(f"{transport}{word.replace(':', '-')}{len(more)}")
    given = {"keys": f"table:{ELEMENTS}{word}", "rounds": ROUNDS, "one_in": ONE_IN, "transport": transport, **more}
    return [worker.good() for worker in rig.job(url, WORLD, prefix=prefix, **given)]


def few(results, dense_bytes):
    """A worker's own values, at 5 bytes each, and those of all."""
    for result in results:
        check(result["coded_pushes"] > 0 and result["coded_results"] == result["coded_pushes"], f"not coded: {result}")
        check(result["pushed_bytes"] < 0.016 * dense_bytes, f"{result['pushed_bytes']} of {dense_bytes} bytes were pushed")
        check(result["pulled_bytes"] < 0.045 * dense_bytes, f"{result['pulled_bytes']} of {dense_bytes} bytes were pulled")


def all_bytes(results, dense_bytes):
    for result in results:
        check(result["coded_pushes"] == result["coded_results"] == 0, f"coded: {result}")
        check(result["pushed_bytes"] == result["pulled_bytes"] == dense_bytes, f"{result}")


def network():
    """Words that enter a network of the caller's own, and a function that says how many bytes have passed there, as the kernel counts."""
    if os.geteuid() != 0:
        raise rig.Skip("needs root, for a network namespace")
    enter = rig.namespace("network")[1]

    def passed():
        text = subprocess.run([*enter, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout
        return int(next(line for line in text.splitlines() if line.strip().startswith("lo:")).split(":")[1].split()[0])

    return enter, passed


def wire():
    """tcp and udp: what passes a network of their own, counted by the kernel, with a sparse key and with the same one that is not"""
    enter, passed = network()
    box = rig.Box(prefix=enter, transports="tcp,udp", cores=2)
    for transport in ("tcp", "udp"):
        counted = []
        for word in ("", ":sparse"):
            before = passed()
            results = exchange(transport, word, box, enter)
            counted.append(passed() - before)
            (few if word else all_bytes)(results, 4 * ELEMENTS * ROUNDS)
        share = counted[1] / counted[0]
        rig.say(f"{transport}: {counted[0] / 1e6:.1f} MB, and sparse {counted[1] / 1e6:.2f}: {share:.1%}")
        check(counted[0] > 2 * WORLD * 4 * ELEMENTS * ROUNDS, f"{counted[0]} bytes are fewer than were exchanged")
        check(share < (0.035 if transport == "tcp" else 0.09),
              f"{transport}: {counted[1]} of {counted[0]} bytes")  # udp tries sizes at first
    box.stop()


def kinds():
    """types, a mean, optimizers, a fixed order, a job that is encrypted; shared memory, where nothing travels"""
    box = exchange.box = rig.Box(cores=2)
    for number, more in enumerate([{"dtype": "f16"}, {"dtype": "bf16", "reduce": "mean"}, {"normals": 1, "reproducible": 1},
                                   {"optimizer": "adam"},
                                   {"optimizer": "sgd", "nan": "zero"}, {"optimizer": "momentum", "reduce": "mean", "dtype": "f16"}]):
        results = exchange("tcp", ":sparse", rounds=ROUNDS + number, **more)
        check(all(result["coded_pushes"] > 0 for result in results), f"{more}: {results}")
    all_bytes(exchange("shm", ":sparse"), 4 * ELEMENTS * ROUNDS)
    box.stop()
    box = rig.Box(config="jobs:\n  - {name: hidden, secret_env: HIDDEN}\n", env={"HIDDEN": "sesame"})
    given = {"keys": f"table:{ELEMENTS}:sparse,more:5000", "rounds": ROUNDS, "one_in": ONE_IN, "transport": "tcp"}
    for worker in rig.job(box.url("hidden"), WORLD, env={"PHUB_SECRET": "sesame", "PHUB_ENCRYPT": "1"}, **given):
        check(worker.good()["coded_pushes"] > 0, "nothing was coded")
    box.stop()


def boxes():
    """sums between boxes: a tree of three levels, sharded and chain, by tcp and shared memory, each as one box for all"""
    keys = "a:50000:sparse,b:70000:sparse,c:100,d:3000:sparse"
    for more in ({"optimizer": "none"}, {"optimizer": "adam", "reduce": "mean"}, {"optimizer": "none", "dtype": "f16"}):
        given = {"keys": keys, "one_in": 50, **more}
        want = {world: flat(world, **given) for world in (5, 6)}
        for make, transport in ((Rack, "tcp"), (Rack, "shm"), (lambda **o: Beside("sharded", **o), "tcp"),
                                (lambda **o: Beside("chain", **o), "tcp")):
            rack = make(**over(transport) if transport == "shm" else {})
            workers = rack.workers(**given)
            results = [worker.good() for worker in workers]
            check({result["digest"] for result in results} == {want[len(workers)]}, f"{more}: other sums than of one box")
            check(all(result["coded_pushes"] > 0 for result in results), f"{results}")
            rack.stop()


def uplink():
    """a box codes the sums that it sends up, and the one above its results, where all workers push by shared memory: the kernel counts"""
    enter, passed = network()
    for by in ("tcp", "udp"):
        root = rig.Box(prefix=enter, transports=by, cores=2)
        rack = rig.Box(prefix=enter, transports=f"shm,{by}", uplink=root.address, uplink_transport=by, cores=2)
        counted = []
        for word in ("", ":sparse"):
            before = passed()
            all_bytes(exchange("shm", word, rack, enter), 4 * ELEMENTS * ROUNDS)
            counted.append(passed() - before)
        share = counted[1] / counted[0]
        rig.say(f"{by}: {counted[0] / 1e6:.1f} MB between the boxes, and sparse {counted[1] / 1e6:.2f}: {share:.1%}")
        check(counted[0] > 2 * 4 * ELEMENTS * ROUNDS, f"{counted[0]} bytes are fewer than were exchanged")
        check(share < (0.05 if by == "tcp" else 0.1), f"{by}: {counted[1]} of {counted[0]} bytes")
        rack.stop()
        root.stop()


def shown():
    """phub jobs says how much of sparse keys travelled, and of a job that has none, or all of it in shared memory, nothing"""
    box, elements, world, workers = rig.Box(transports="tcp,udp,shm", cores=2), 100000, 2, {}
    for name, word, transport in (("few", ":sparse", "tcp"), ("all", ":sparse", "udp"), ("dense", "", "tcp"), ("near", ":sparse", "shm")):
        workers[name] = rig.job(box.url(name), world, keys=f"table:{elements}{word},more:5000", rounds="until-told", report_ms=20,
                                pause_us=1000,
                                one_in=0 if name == "all" else ONE_IN, transport=transport)
    for crew in workers.values():
        for worker in crew:
            worker.event("progress")
    for name, least, most in (("few", 0.01, 0.03), ("all", 0.9, 1)):  # a few values are zero by chance
        job = jobs(box, name)
        pushes, results = job["sparse"]["pushes"], job["sparse"]["results"]
        check(all(least < way["bytes"] / way["whole"] <= most for way in (pushes, results)), f"{job['sparse']}")
        check(job["rounds"] <= pushes["whole"] / (4 * elements * world) <= job["rounds"] + 2, f"of {job['rounds']} rounds: {job['sparse']}")
        check(pushes["coded"] > 0 < results["coded"], f"{job['sparse']}")
    nothing = {"coded": 0, "bytes": 0, "whole": 0}
    check("sparse" not in jobs(box, "dense") and jobs(box, "near")["sparse"] == {"pushes": nothing, "results": nothing},
          "it names what does not travel")
    out = subprocess.run([PHUB, "jobs", box.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S,
                         env=rig.QUIET).stdout
    holds(out, r"few: sparse keys: [0-9.]+ .B of [0-9.]+ .B pushed travelled, [0-9.]+ .B of [0-9.]+ .B of results\n", "all: sparse keys: ")
    check("dense: sparse" not in out and "near: sparse" not in out, out)
    for crew in workers.values():
        crew[0].tell()
        for worker in crew:
            worker.good()
    box.stop()


def malformed():
    """a coded push that is none ends its connection, and all are told the rank and the key; other jobs go on"""
    box = rig.Box(cores=1)
    steady = rig.Steady(box)
    members = [raw.member(box.address, "bad", rank, 2, [("table", 1000, 0, 0, 1)]) for rank in range(2)]
    members[0].start()
    data = raw.connected(members[1])
    payload = struct.pack("<IIf", 1, 0, 1.0) + b"\xe8\x07"  # the gap before it: element 1000 of 1000
    data.sock.sendall(data.header(members[1], round=1, length=len(payload), reserved=1) + payload)
    check(data.ended(), "a malformed coding did not end its connection")
    holds(members[0].error()[1], "rank 1", "a malformed coding of key 'table'")
    steady.end()
    box.stop()


def verbs():
    """RDMA: coded pushes from memory that the library has registered, and coded results written to it"""
    if not rdma_ports():
        raise rig.Skip("no RDMA device here")
    box = exchange.box = rig.Box(transports="tcp,verbs", cores=2)
    few(exchange("verbs", ":sparse"), 4 * ELEMENTS * ROUNDS)
    for result in exchange("verbs", ":sparse", one_in=0):  # some of all values are zero by chance
        check(result["coded_pushes"] > 0 and 0.9 < result["pushed_bytes"] / (4 * ELEMENTS * ROUNDS) < 1, f"{result}")
    all_bytes(exchange("verbs", "", registered=1, dtype="f32"), 4 * ELEMENTS * ROUNDS)
    box.stop()


if __name__ == "__main__":
    rig.run([wire, kinds, boxes, uplink, shown, malformed, verbs])
