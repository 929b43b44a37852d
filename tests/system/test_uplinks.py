#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What boxes of one job speak with each other (uplink_transport), where those of other tests speak tcp. Real boxes, real workers.
vm: -m 2048 -t 300 -w 4 -- verbs
"""
import json
import pathlib
import subprocess
import time

import rig
from rig import check, holds
from test_racks import KEYS, PHUB, Beside, Rack, bad, census, flat, jobs, until


def over(transport):
    """Options of boxes that speak so with each other; their workers come by tcp."""
    return {"transports": f"tcp,{transport}", "uplink_transport": transport}


def rdma_ports():
    return [path.parent for path in pathlib.Path("/sys/class/infiniband").glob("*/ports/1/state") if "ACTIVE" in path.read_text()]


def rdma_packets():
    """How many all RDMA devices sent; None where they do not count so. Skips where there are none."""
    ports = rdma_ports()
    if not ports:
        raise rig.Skip("no RDMA device here")
    counters = [port / "hw_counters/sent_pkts" for port in ports]
    return sum(int(counter.read_text()) for counter in counters) if all(counter.exists() for counter in counters) else None


def datagrams(box):
    """How many this box sent, and how many came."""
    out = subprocess.run([PHUB, "jobs", "--json", box.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S,
                         env=rig.QUIET).stdout
    told = [line["datagrams"] for line in map(json.loads, out.splitlines()) if "datagrams" in line]
    return sum(each["sent"] for each in told), sum(each["came"] for each in told)


def lifts_by(box, job):
    """What a job's sums go by from this box."""
    told = jobs(box, job)
    return {b["transport"] for b in told.get("beside", []) if b.get("transport")} or {told["above"]["transport"]}


def mapped(box):
    """How much memory that processes share it has mapped, its own and others'."""
    return sum("memfd:" in line for line in pathlib.Path(f"/proc/{box.pid}/maps").read_text().splitlines())


def shm():
    """boxes on one host that read each other's memory: a tree, sharded and chain, as one box for all, whatever workers come by and sums go up as"""
    for hierarchy in ("tree", "sharded", "chain"):
        for options in ({}, {"uplink_type": "bf16"}):
            rack = Rack(**over("shm"), **options) if hierarchy == "tree" else Beside(hierarchy, **over("shm"), **options)
            for job, more in [("sum", {"optimizer": "none"}), ("half", {"optimizer": "none", "dtype": "bf16"}),
                              ("adam", {"optimizer": "adam", "reduce": "mean"}),
                              ("same", {"optimizer": "momentum", "transport": "shm"}),
                              ("mapped", {"optimizer": "none", "dtype": "f16", "transport": "shm"}),
                              ("slots", {"optimizer": "none", "dtype": "f16", "transport": "shm", "keys": "a:750000", "chunk_bytes": 4096, "rounds": 2}),
                              ("large", {"optimizer": "none", "keys": "a:900000,b:300000,c:100", "chunk_bytes": 1 << 20, "rounds": 3})]:
                if options and job not in ("sum", "half", "slots"):
                    continue  # the option is for the type of what goes up: of fp32, of bf16, and of f16 by slots
                digests = {worker.good()["digest"] for worker in rack.workers(job, **more)}
                check(digests == {flat(len(rack.boxes), **{**more, "transport": "tcp"})}, f"{hierarchy}, {options}, {job}: {digests}")
            for worker in [] if options else rack.workers("together", optimizer="momentum", barrier=True, schedule=3, tables=2):
                worker.good()
            workers = rack.training(job="told", optimizer="adam")
            check(lifts_by(rack.a, "told") == {"shm"}, f"{lifts_by(rack.a, 'told')}")
            check(mapped(rack.a) > 0, "it has mapped nothing")
            for worker in workers:
                worker.kill()
            for box in (rack.root, rack.a, rack.b):
                deadline = time.monotonic() + rig.DEADLINE_S
                while mapped(box) > 0:
                    check(time.monotonic() < deadline, f"{box.name} has {mapped(box)} mappings of jobs that are over")
                    time.sleep(0.05)
            rack.stop()


def comes_again(options, turns=1):
    """With shrink a box below that is killed is gone, and comes again, so many times. Its rack, and the workers, of which all are there."""
    rack = Rack(**options)
    begin = census(rack, "shrink")
    workers = [begin(rank) for rank in range(5)]
    for worker in workers:
        until(worker, 31)
    for _ in range(turns):
        old = rack.b
        old.kill()
        for rank in (2, 4):
            bad(workers[rank], rf"box {old.address} ended the session")
        for rank in (0, 1, 3):
            until(workers[rank], 0b01011)
        rack.b = rig.Box(name="b", uplink=rack.a.address, cores=1, **options)
        rack.boxes[2] = rack.boxes[4] = rack.b
        workers[2], workers[4] = begin(2), begin(4)
        for worker in workers:
            until(worker, 31)
    return rack, workers


def above_dies(rack, workers):
    """The box in the middle is killed: workers below are told, and the root goes on with its own."""
    rack.a.kill()
    for rank in (2, 4):
        bad(workers[rank], rf"box above \(uplink {rack.a.address}\) was lost")
    until(workers[3], 0b01000)
    workers[3].tell()
    workers[3].good()
    rack.b.stop()
    rack.root.stop()


def shm_lost():
    """likewise: with shrink a box below that is killed is gone, and comes again; when the one above is killed its workers are told at once"""
    above_dies(*comes_again(over("shm"), turns=3))


def shm_late():
    """a box that comes to a job that runs, and began without shared memory: by auto it speaks tcp, and says why; where it has to be shm it is refused"""
    root = rig.Box(name="root", cores=1)
    below = rig.Box(name="below", cores=1, uplink=root.address)
    given = {"keys": KEYS, "transport": "tcp", "rounds": "until-told", "report_ms": 20, "wait_ms": 60000, "lost": "shrink", "check": False}
    workers = [rig.Worker(box.url("late"), rank=rank, world=2, **given) for rank, box in enumerate((root, below))]
    for worker in workers:
        worker.event("progress")
    below.kill()
    bad(workers[1], rf"box {below.address} ended the session")
    root.logged(r"job 'late' box .* was lost: ")
    below = rig.Box(name="below", cores=1, uplink=root.address, uplink_transport="shm")
    bad(rig.Worker(below.url("late"), rank=1, world=2, **given), "began without shared memory, and has none in the box")
    below.stop()
    below = rig.Box(name="below", cores=1, uplink=root.address, uplink_transport="auto")
    workers[1] = rig.Worker(below.url("late"), rank=1, world=2, **given)
    workers[1].event("progress")
    below.logged("goes by tcp: the job runs there, and began without shared memory for boxes")
    workers[0].tell()
    for worker in workers:
        worker.good()
    below.stop()
    root.stop()


def shm_full():
    """a box has no memory to be read and written by another: by auto they speak tcp, and say why; where it has to be shm the job ends with what to do"""
    for way in ("auto", "shm"):
        root = rig.Box(name="root", cores=1, hierarchy="sharded", uplink_transport=way)
        below = rig.Box(name="below", cores=1, uplink=root.address, listen="127.0.0.2:0", memory_max="32MiB", uplink_transport=way)
        keys, more = "a:2000000", {"optimizer": "adam", "rounds": 5}
        workers = [rig.Worker(box.url("tight"), rank=rank, world=2, keys=keys, transport="tcp", **more)
                   for rank, box in enumerate((root, below))]
        below.logged("cannot come by shared memory: needs .*; raise memory_max, or set uplink_transport: tcp there")
        if way == "auto":
            digests = {worker.good()["digest"] for worker in workers}
            check(digests == {flat(2, keys=keys, **more)}, f"{digests}")
            root.logged(rf"job 'tight': the uplink to box {below.address} goes by tcp: shm: ")
        else:
            for worker in workers:
                bad(worker, r"box 127.0.0.[12]:\d+(, to which chunks of it are lifted,)? was lost: ")
        below.stop()
        root.stop()


def udp():
    """boxes that speak by datagrams: a tree, sharded and chain, as one box for all; and each box by what it likes"""
    tree = Rack(**over("udp"))
    for job, more in [("sum", {"optimizer": "none"}), ("half", {"optimizer": "none", "dtype": "bf16"}),
                      ("adam", {"optimizer": "adam", "reduce": "mean"})]:
        digests = {worker.good()["digest"] for worker in tree.workers(job, **more)}
        check(digests == {flat(5, **more)}, f"tree, {job}: {digests}")
    for worker in tree.workers("together", optimizer="momentum", barrier=True, schedule=3, tables=2):
        worker.good()
    for box in (tree.root, tree.a, tree.b):
        sent, came = datagrams(box)
        check(sent > 100 and came > 100, f"{box.name}: {sent} datagrams sent, {came} came")
    tree.stop()
    for hierarchy in ("sharded", "chain"):
        for mixed in (False, True):
            rack = Beside(hierarchy, **over("udp"), root={"uplink_transport": "tcp"} if mixed else {})
            for job, more in [("sum", {"optimizer": "none"}), ("same", {"optimizer": "momentum", "reproducible": True})]:
                digests = {worker.good()["digest"] for worker in rack.workers(job, **more)}
                check(digests == {flat(6, **more)}, f"{hierarchy}, {job}: {digests}")
            check(min(datagrams(rack.a)) > 100, "no datagrams")
            rack.stop()


def udp_lost():
    """by datagrams, too: a box that is killed, a worker that is killed, and a box above that has none"""
    rack = Rack(lost_ms=3000, warn_ms=1500, **over("udp"))
    workers = rack.training(optimizer="adam")
    workers[4].kill()
    for worker in workers[:4]:
        bad(worker, r"rank 4 \(.*was lost")
    workers = rack.training(job="again", optimizer="adam")
    rack.a.kill()
    bad(workers[3], r"box 127.0.0.1:\d+ \(ranks 0-2, 4\) was lost")
    for worker in (workers[2], workers[4]):
        bad(worker, rf"box above \(uplink {rack.a.address}\) was lost")
    rack.b.stop()
    below = rig.Box(name="below", cores=1, uplink=rack.root.address, **over("udp"))
    rack.root.stop()
    root = rig.Box(name="root", cores=2, listen=rack.root.address, transports="tcp")
    workers = [rig.Worker(box.url("none"), rank=rank, world=2, keys=KEYS, rounds=5, transport="tcp")
               for rank, box in enumerate((root, below))]
    refused = rf"box {root.address} does not offer transport udp, which box {below.address} asks for \(uplink_transport\); see transports at the one"
    bad(workers[1], rf"job none rank 1: box {below.address}: {refused}.* \(told by box {root.address}\)")
    root.logged(rf" warn .*'none' box {below.address} \(rank 1\) is gone before the start: {refused}")
    workers[0].kill()
    below.stop()
    root.stop()


def chosen():
    """auto: shm on one host, else tcp where a box has no verbs among its transports; log and phub jobs say why"""
    for above, below_has, by, why in (("tcp,shm", "tcp,shm", "shm", ""),
                                      ("tcp,shm", "tcp", "tcp", "verbs is not among this box's transports"),
                                      ("tcp", "tcp,shm", "tcp", "shm is not among that box's transports")):
        root = rig.Box(name="root", cores=1, transports=above)
        below = rig.Box(name="below", cores=1, uplink=root.address, transports=below_has, uplink_transport="auto")
        workers = [rig.Worker(box.url("auto"), rank=rank, world=2, keys=KEYS, rounds="until-told", report_ms=100, transport="tcp",
                              wait_ms=60000)
                   for rank, box in enumerate((root, below))]
        for worker in workers:
            worker.event("progress")
        below.logged(rf"job 'auto': the uplink to box {root.address} goes by {by}{': ' + why if why else '$'}")
        told = jobs(below, "auto")["above"]
        check((told["transport"], told["transport_why"]) == (by, why), f"{told}")
        text = subprocess.run([PHUB, "jobs", below.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S,
                              env=rig.QUIET).stdout
        reason = rf" \({why}\)" if why else ""
        holds(text, rf"box {root.address} is above \(uplink\), lifting by {by}{reason}, ")
        workers[0].tell()
        for worker in workers:
            worker.good()
        below.stop()
        root.stop()


def wished():
    """a wish that cannot be fulfilled says what to do"""
    if not rdma_ports():
        options = ["listen=127.0.0.1:0", "transports=tcp", "uplink_transport=verbs", "uplink=127.0.0.1:1"]
        done = subprocess.run([rig.PHUBD] + [word for option in options for word in ("-o", option)], capture_output=True, text=True,
                              timeout=rig.DEADLINE_S,
                              env=rig.QUIET, check=False)
        check(done.returncode == 1, f"{done}")
        holds(done.stderr, r"uplink_transport: verbs: (this host has no RDMA device; choose transport tcp|not built|.*libibverbs)")


def chosen_verbs():
    """auto over RDMA ports: verbs where both have it, sharded and in a tree, and tcp where the other has it not; one that has to be by verbs is an error"""
    rdma_packets()
    both = {"transports": "tcp,verbs", "uplink_transport": "auto", **PATIENT}
    for hierarchy in ("tree", "sharded"):
        rack = Rack(**both) if hierarchy == "tree" else Beside(hierarchy, **both)
        before = rdma_packets()
        digests = {worker.good()["digest"] for worker in rack.workers("auto", optimizer="none", rounds=5)}
        check(digests == {flat(len(rack.boxes), optimizer="none", rounds=5)}, f"{hierarchy}: {digests}")
        rack.a.logged(rf"the uplink to box {rack.root.address} goes by verbs$")
        sent = rdma_packets()
        check(sent is None or sent - before > 100, f"{hierarchy}: devices sent {sent} packets, {before} before")
        rack.stop()
    root = rig.Box(name="root", cores=1, **PATIENT)
    below = rig.Box(name="below", cores=1, uplink=root.address, **both)
    for worker in [rig.Worker(box.url("none"), rank=rank, world=2, keys=KEYS, rounds=5, transport="tcp")
                   for rank, box in enumerate((root, below))]:
        worker.good()
    below.logged(rf"the uplink to box {root.address} goes by tcp: verbs is not among that box's transports")
    below.stop()
    root.stop()


PATIENT = {"handshake_ms": 60000, "lost_ms": 60000, "warn_ms": 30000}  # of many processes on the one CPU of a virtual machine


def verbs():
    """boxes that speak verbs, their workers tcp: a tree, sharded and chain, as one box for all"""
    rdma_packets()
    for hierarchy in ("tree", "sharded", "chain"):
        rack = Rack(**over("verbs"), **PATIENT) if hierarchy == "tree" else Beside(hierarchy, **over("verbs"), **PATIENT)
        before = rdma_packets()
        for job, more in [("sum", {"optimizer": "none", "rounds": 5}), ("half", {"optimizer": "none", "dtype": "bf16", "rounds": 5}),
                          ("adam", {"optimizer": "adam", "reduce": "mean", "keys": "a:70000", "rounds": 3})]:
            digests = {worker.good()["digest"] for worker in rack.workers(job, **more)}
            check(digests == {flat(len(rack.boxes), **more)}, f"{hierarchy}, {job}: {digests}")
        for worker in rack.workers("together", optimizer="momentum", barrier=True, schedule=3, tables=2, rounds=4):
            worker.good()
        sent = rdma_packets()
        check(sent is None or sent - before > 1000, f"{hierarchy}: devices sent {sent} packets, {before} before")
        rack.stop()


def verbs_lost():
    """over verbs: with shrink a box below that is killed is gone, and comes again; when the one above is killed its workers are told"""
    rdma_packets()
    above_dies(*comes_again({**over("verbs"), **PATIENT}))


def cable(up):
    """That of the box below: plugged in, it carries something when the kernel has worked that off."""
    subprocess.run(["ip", "link", "set", "b2", "up" if up else "down"], check=True, timeout=rig.DEADLINE_S)
    while up and " state UP " not in subprocess.run(["ip", "link", "show", "n2"], check=True, capture_output=True, text=True,
                                                    timeout=rig.DEADLINE_S).stdout:
        time.sleep(0.01)


def verbs_broken():
    """a cable between boxes that is out for longer than the devices try: connections are made anew, and every sum is right.
    One that stays out ends the job, in words"""
    rdma_packets()
    if not pathlib.Path("/sys/class/infiniband/node2").exists():
        raise rig.Skip("no two devices with a cable each here")
    for hierarchy, lost_ms in (("tree", 20000), ("sharded", 20000), ("tree", 6000)):
        options = {"cores": 1, "lost_ms": lost_ms, "warn_ms": lost_ms // 2, "handshake_ms": 60000, **over("verbs")}
        root = rig.Box(name="root", rdma="node1", hierarchy=hierarchy, **options)
        below = rig.Box(name="below", rdma="node2", uplink=root.address, listen="127.0.0.2:0", **options)
        workers = [rig.Worker(box.url("cable"), rank=rank, world=2, keys=KEYS, optimizer="momentum", transport="tcp", rounds="until-told",
                              report_ms=20,
                              wait_ms=60000) for rank, box in enumerate((root, below))]
        for worker in workers:
            worker.event("progress")
        cable(False)
        if lost_ms == 6000:
            for worker in workers:
                bad(worker, "uplink of core 0 to its core 0 broke, and was not made anew|was lost: its verbs connection to core 0 broke: ")
            cable(True)
        else:
            time.sleep(4.5)
            cable(True)
            below.logged(r"job 'cable': the uplink of core 0 to core 0 of the box above, or beside, broke: ")
            below.logged(r"job 'cable': the uplink of core 0 to core 0 was made anew")
            for worker in workers:
                with worker.out.changed:
                    worker.seen = len(worker.out.lines)
            for worker in workers:
                worker.event("progress")
            workers[0].tell()
            for worker in workers:
                worker.good()
        below.stop()
        root.stop()


if __name__ == "__main__":
    rig.run([shm, shm_lost, shm_late, shm_full, udp, udp_lost, chosen, wished, chosen_verbs, verbs, verbs_lost, verbs_broken],
            None if PHUB.exists() else f"{PHUB} is not there (make)")
