#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whole jobs through a real box: several at once, workers that die or fall silent, addresses, large models, equal bits.

Usage: test_jobs.py [WORD...]    only the cases whose names hold one of the words
"""
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import BUILD, PHUBD, Box, Skip, Worker, check, free_port, holds, job, run, say  # noqa: E402

TENSORS = "conv:9408,bias:64,fc:250000,tail:1000"


def resnet_50():
    """(name, elements) of torchvision's resnet50, in forward order: 161 tensors, 25,557,032 elements."""
    tensors = []

    def conv(name, outputs, inputs, kernel):
        tensors.append((f"{name}.weight", outputs * inputs * kernel * kernel))

    def norm(name, channels):
        tensors.append((f"{name}.weight", channels))
        tensors.append((f"{name}.bias", channels))

    conv("conv1", 64, 3, 7)
    norm("bn1", 64)
    inputs = 64
    for layer, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            name = f"layer{layer}.{block}"
            for number, (outputs, takes, kernel) in enumerate(
                    ((width, inputs, 1), (width, width, 3), (4 * width, width, 1)), 1):
                conv(f"{name}.conv{number}", outputs, takes, kernel)
                norm(f"{name}.bn{number}", outputs)
            if block == 0:
                conv(f"{name}.downsample.0", 4 * width, inputs, 1)
                norm(f"{name}.downsample.1", 4 * width)
            inputs = 4 * width
    tensors += [("fc.weight", 1000 * 2048), ("fc.bias", 1000)]
    assert len(tensors) == 161 and sum(n for _, n in tensors) == 25557032
    return tensors


def rate(worker, span_ms):
    """Rounds a second over the next `span_ms` of its own clock."""
    first = last = worker.event("progress")
    while last["ms"] - first["ms"] < span_ms:
        last = worker.event("progress")
    return (last["round"] - first["round"]) * 1000 / (last["ms"] - first["ms"])


def newest(worker):
    """Puts behind us what it has reported so far."""
    with worker.out.changed:
        worker.seen = len(worker.out.lines)


def three_jobs():
    """three jobs with different optimizers, dtypes and worlds on 2 cores; one is killed, the others go on with right sums"""
    box = Box(cores=2)
    endless = {"rounds": "until-told", "report_ms": 50, "pause_us": 2000, "keys": TENSORS}
    plain = job(box.url("plain"), 2, transport="tcp", **endless)
    doomed = job(box.url("doomed"), 3, transport="shm", optimizer="momentum", dtype="f16", reduce="mean", **endless)
    adam = job(box.url("adam"), 4, optimizer="adam", dtype="bf16", schedule=1, **endless)
    for worker in plain + doomed + adam:
        worker.event("progress")
    doomed[1].kill()
    for worker in (plain[0], adam[0]):
        newest(worker)
    for rank in (0, 2):
        doomed[rank].failed("EOWNERDEAD", "job .?doomed", "rank 1 ", "lost", "exited or was killed, or its library gave up")
    again = job(box.url("doomed"), 2, optimizer="adagrad", keys="other:5000", rounds=20)
    for worker in again:
        worker.good()
    for worker in (plain[0], adam[0]):
        newest(worker)
        began = worker.event("progress")["round"]
        while worker.event("progress")["round"] < began + 50:
            pass
    plain[1].tell()
    adam[3].tell()
    for worker in plain + adam:
        result = worker.good()
        check(result["rounds"] > 3, f"only {result['rounds']} rounds")
    box.logged("job 'doomed': rank 1 .* was lost")
    box.stop()


def silent_worker():
    """a stopped worker is named to the log and to those who wait, then it is lost; one that goes on in time is not"""
    box = Box(heartbeat_ms=100, warn_ms=600, lost_ms=6000)
    waiting = {"wait_ms": 1500, "patience_ms": 120000, "keys": "layer:20000"}
    gone = job(box.url("gone"), 3, stop_at=lambda rank: 4 if rank == 2 else 0, rounds=10, **waiting)
    back = job(box.url("back"), 2, stop_at=lambda rank: 4 if rank == 0 else 0, rounds=10, transport="tcp", **waiting)
    gone[2].event("stops")
    back[0].event("stops")
    box.logged(r"job 'back': rank 0 \(127.*silent for \d+\.\d s; declared lost in")
    back[0].kill(signal.SIGCONT)
    for worker in back:
        worker.good()
    box.logged("job 'back': rank 0 .* is heard again")
    warned = box.logged(r"job 'gone': rank 2 \(127.*silent for \d+\.\d s; declared lost in")
    for rank in (0, 1):
        text = gone[rank].event("waits")["error"]
        holds(text, "job gone rank %d" % rank, "key 'layer'", "round 4", "rank 2")
    for rank in (0, 1):
        gone[rank].failed("EOWNERDEAD", "job .?gone", "rank 2 ", "lost", r"silent for \d")
    lost = box.logged("job 'gone': rank 2 .* was lost")
    lines = box.err.text().split("\n")
    check(lines.index(warned) < lines.index(lost), "lost before it was named")
    gone[2].kill()
    box.stop()


def world_of_one():
    """a world of 1, over either transport, with and without an optimizer, also async"""
    box = Box()
    for transport in ("tcp", "shm"):
        for optimizer, sync in (("none", "bsp"), ("nesterov", "bsp"), ("adamw", "async"), ("sgd", "ssp")):
            worker = Worker(box.url(f"one-{transport}-{optimizer}"), transport=transport, optimizer=optimizer, sync=sync,
                            staleness=1 if sync == "ssp" else 0, keys=TENSORS)
            check(worker.event("started")["transport"] == transport, f"not over {transport}")
            worker.good()
    box.stop()


def client_first():
    """workers that start before phubd try again until it is there, or until their deadline"""
    alone = Worker(f"phub://127.0.0.1:{free_port()}/early", timeout_ms=800)
    early = []
    with socket.socket() as stand_in:
        stand_in.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stand_in.bind(("127.0.0.1", 0))
        stand_in.listen()
        port = stand_in.getsockname()[1]
        for rank in range(2):
            early.append(Worker(f"phub://127.0.0.1:{port}/early", rank, 2, timeout_ms=60000))
            stand_in.accept()[0].close()  # it has tried for the first time
    box = Box(listen=f"127.0.0.1:{port}")
    for worker in early:
        worker.good()
    alone.failed(("ECONNREFUSED", "ETIMEDOUT"), "job early rank 0", "127.0.0.1:", "is phubd running", "800 ms")
    box.stop()


def addresses():
    """IPv6, a name for the host, an interface, and data connections within a range of ports"""
    if not os.path.exists("/proc/net/if_inet6") or "::1" not in [
            ":".join(line[i:i + 4] for i in range(0, 32, 4)).replace("0000:" * 7 + "0001", "::1")
            for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines()]:
        raise Skip("no IPv6 on loopback")
    first = free_port()
    last = min(first + 15, 65535)
    box = Box(listen="[::1]:0, 127.0.0.1:0", interface="lo", data_ports=f"{first}-{last}", cores=2)
    check(box.address.startswith("[::1]:"), f"listens on {box.address}")
    for transport in ("tcp", "shm"):
        for worker in job(box.url("six"), 2, transport=transport, interface="lo", keys=TENSORS):
            worker.good()
    four = re.search(r"127\.0\.0\.1:(\d+)", box.first_line)
    check(four, f"no IPv4 address in: {box.first_line}")
    workers = job(f"phub://localhost:{four.group(1)}/four", 2, transport="tcp", idle=1)
    for worker in workers:
        worker.event("idle")
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{box.pid}/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == "0A" and inode in inodes(box.pid):
                ports.add(int(local.rsplit(":", 1)[1], 16))
    data = ports - {box.port, int(four.group(1))}
    say(f"data ports {sorted(data)}, allowed {first}-{last}")
    check(data and all(first <= port <= last for port in data), f"data ports {data} outside {first}-{last}")
    for worker in workers:
        worker.tell()
    for worker in workers:
        worker.good()
    Worker(box.url("bad"), interface="nosuch0", timeout_ms=2000).failed("ENODEV", "job bad", "nosuch0")
    box.stop()


def inodes(pid):
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        match = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        if match:
            found.add(match.group(1))
    return found


def exchange_resnet(transport, world, rounds):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("\n".join(f"{name}:{elements}" for name, elements in resnet_50()))
        keys.flush()
        box = Box(cores=2, lost_ms=60000, warn_ms=20000)
        workers = job(box.url("resnet"), world, transport=transport, keys=f"@{keys.name}", rounds=rounds, alloc=1, barrier=1,
                      wait_ms=120000)
        results = [worker.good(240) for worker in workers]
    check(len({result["digest"] for result in results}) == 1, "ranks got different results")
    say(f"{transport}: last round of {world} x 102 MB in {results[0]['all_us'] / 1e6:.2f} s")
    box.stop()


def resnet_50_tcp():
    """4 workers with ResNet-50's tensors over tcp, every sum of every round checked"""
    exchange_resnet("tcp", 4, 2)


def resnet_50_shm():
    """8 workers with ResNet-50's tensors over shared memory, every sum of every round checked"""
    exchange_resnet("shm", 8, 3)


def reproducible():
    """reproducible: two runs of 4 workers that start and run at random times give the same bits, rank by rank"""
    box = Box(cores=2)
    seed = int.from_bytes(os.urandom(4), "little")
    say(f"seed {seed}")
    chance = random.Random(seed)
    digests = set()
    for transport in ("tcp", "tcp", "shm"):
        workers = job(box.url("again"), 4, transport=transport, optimizer="adamw", reproducible=1, normals=1, rounds=15,
                      keys=TENSORS, delay_ms=lambda _: chance.randrange(200), pause_us=lambda _: chance.randrange(3000))
        digests |= {worker.good()["digest"] for worker in workers}
    check(len(digests) == 1, f"runs differ: {digests}")
    for worker in job(box.url("loose"), 4, normals=1, rounds=5, keys=TENSORS):
        worker.good()  # in any order: within rounding of the true sum
    box.stop()


def schedules():
    """a learning rate that changes every round on 4 box cores: bit-equal to the serial oracle, for every optimizer"""
    box = Box(cores=4)
    for optimizer in ("sgd", "momentum", "nesterov", "adagrad", "adam", "adamw"):
        for worker in job(box.url(optimizer), 3, transport=lambda rank: ("tcp", "shm", "tcp")[rank], optimizer=optimizer,
                          reduce="mean", weight_decay=0.01, schedule=1, rounds=20, chunk_bytes=4096, keys=TENSORS):
            worker.good()
    box.stop()


def large_key():
    """a key of more than 4 GiB, and of more than 2^31 elements, starts by tcp and is exchanged; where there is no memory for it, one of 600 MiB"""
    have, free = (int(re.search(rf"{name}: *(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) >> 20
                  for name in ("MemTotal", "MemAvailable"))
    huge = {"keys": f"embedding:{(1 << 31) + 40000}:bf16", "alloc": 1, "wait_ms": 120000}
    options = {"memory_max": "18GiB", "lost_ms": 60000, "warn_ms": 20000}
    sanitized = any(name in PHUBD.read_bytes() for name in (b"__asan_init", b"__tsan_init"))
    exchanged = have >= 18 and free >= 12 and not sanitized  # 8 GiB of it are touched
    for transport in ([] if have < 18 else ["tcp"] if exchanged else ["tcp", "shm"]):  # 18 GiB are what it is counted with by shm
        box = Box(**options)
        worker = Worker(box.url(transport), transport=transport, idle=1, **huge)
        worker.event("idle")
        worker.tell()
        worker.good()
        box.stop()
    if exchanged:
        box = Box(**options)
        Worker(box.url("huge"), transport="shm", rounds=1, **huge).good(240)
    else:
        say(f"4 GiB are not exchanged: {'a sanitizer is slow' if sanitized else f'{have} GiB of memory, {free} free'}")
        box = Box(**{**options, "memory_max": "4GiB"})
        for worker in job(box.url("large"), 2, keys=f"embedding:{600 << 18}", alloc=1, rounds=1, transport="shm", wait_ms=120000):
            worker.good(240)
    box.stop()


def planted():
    """the checker itself: a stale, a swapped and a doubled chunk are found"""
    box = Box()
    for plant in ("stale", "swapped", "doubled"):
        result = Worker(box.url(plant), keys="layer:50000", plant=plant).result()
        check(result["rc"] == 0 and result["wrong"] > 1000, f"{plant}: {result['wrong']} elements found wrong")
    Worker(box.url("nothing"), keys="layer:50000", plant="nothing").good()
    box.stop()


def phub_jobs(box, *words, status=0):
    """phub jobs of this box: the lines of its JSON, or of stderr when it is to fail."""
    done = subprocess.run([BUILD / "phub", "jobs", *words, "--json", box.address], capture_output=True, text=True, check=False,
                          timeout=60)
    check(done.returncode == status, f"phub jobs {words}: {done.returncode}: {done.stderr}")
    return done.stderr if status else [json.loads(line) for line in done.stdout.splitlines()]


def job_info(box, name):
    return next(line for line in phub_jobs(box) if line.get("job") == name)


def quotas():
    """a job of the box's list has its cores and its bandwidth, and another beside it all of them"""
    allowed = 4 << 20
    box = Box(cores=3, config="jobs:\n  - {name: small, memory_max: 1MiB}\n"
                              f"  - {{name: slow, weight: 2, cores: 2, bandwidth: {allowed}}}\n")
    slow = job(box.url("slow"), 2, transport=lambda rank: ("tcp", "shm")[rank], keys="a:65536", rounds="until-told",
               report_ms=50)
    free = job(box.url("free"), 2, keys="a:200000", rounds="until-told", report_ms=50)
    for worker in slow + free:
        worker.event("progress")
    got = rate(slow[0], 3000) * 2 * 65536 * 4
    say(f"{got / 1e6:.2f} MB/s of {allowed / 1e6:.2f}")
    check(0.5 * allowed < got < 1.05 * allowed, f"{got} bytes/s")
    info, other = job_info(box, "slow"), job_info(box, "free")
    check(info["cores"] == 2 and info["weight"] == 2 and info["bandwidth"] == allowed and info["quota_ms"] > 500, f"{info}")
    check(other["cores"] == 3 and other["weight"] == 1 and other["bandwidth"] == 0 and other["quota_ms"] == 0, f"{other}")
    Worker(box.url("small"), keys="a:1000000").failed("ENOMEM", "needs [0-9]+ bytes in the box", "of box and job")
    slow[0].tell()
    free[0].tell()
    for worker in slow + free:
        worker.good()
    box.stop()


def beside():
    """jobs beside a listed one are under its entry: they share its memory, and are 8 at most; others may not be"""
    box = Box(config="create: never\njobs:\n  - {name: small, memory_max: 4MiB}\n")
    Worker(box.url("smaller"), keys="a:1000").failed("ENOENT", "none may be created")
    worker = Worker(box.url("small.used"), keys="a:80000", rounds="until-told", report_ms=20)
    worker.event("progress")
    Worker(box.url("small"), keys="a:300000").failed("ENOMEM", "of box and job, which the jobs beside it share")
    waiting = [Worker(box.url(f"small.{i}"), keys="a:1000", world=2) for i in range(7)]
    for i in range(7):
        box.logged(f"job 'small.{i}' forms")
    Worker(box.url("small.7"), keys="a:1000").failed("ENOMEM", "there are 8 beside job 'small', and no more may be")
    worker.tell()
    worker.good()
    box.logged("job 'small.used' ended")
    Worker(box.url("small"), keys="a:300000").good()
    for worker in waiting:
        worker.kill()
    box.stop()


def comes_unmapped():
    """who comes in the place of one that began by tcp has no shared memory in the box: it comes by tcp unasked, and is refused by shm"""
    box = Box(cores=1)
    more = {"world": 2, "keys": TENSORS, "rounds": "until-told", "report_ms": 20, "lost": "shrink", "census": True}
    first = Worker(box.url("unmapped"), 0, **more)
    other = Worker(box.url("unmapped"), 1, transport="tcp", **more)
    check((first.event("progress")["transport"], other.event("progress")["transport"]) == ("shm", "tcp"), "the transports")
    other.kill()
    box.logged("rank 1 .* was lost")
    Worker(box.url("unmapped"), 1, transport="shm",
           **more).failed("EOPNOTSUPP", "rank 1 .* began without shared memory, .* name another transport, or none")
    other = Worker(box.url("unmapped"), 1, **more)
    check(other.event("progress")["transport"] == "tcp", "it came by another transport")
    box.logged("rank 1 comes to a job that began without shared memory for it")
    first.tell()
    for worker in (first, other):
        worker.good()
    box.stop()


def paused():
    """a paused job takes pushes and answers none, whoever waits is told of it, and goes on when it is resumed"""
    box = Box()
    for name, world, more in (("bsp", 2, {}), ("async", 1, {"optimizer": "sgd", "sync": "async"})):
        workers = job(box.url(name), world, keys=TENSORS, rounds="until-told", report_ms=20, wait_ms=3000, patience_ms=60000,
                      transport=lambda rank: ("tcp", "shm")[rank], **more)
        for worker in workers:
            worker.event("progress")
        phub_jobs(box, "pause", name, "--reason", "the cooling is out")
        check(job_info(box, name)["state"] == "paused", "not paused")
        holds(job_info(box, name)["waiting"], "operator paused it: the cooling is out")
        before = job_info(box, name)["rounds"]
        holds(workers[0].event("waits")["error"], "the box's operator paused it: the cooling is out")
        check(job_info(box, name)["rounds"] == before, "it goes on")
        holds(phub_jobs(box, "pause", name, status=1), "is paused already")
        holds(phub_jobs(box, "drain", name, status=1), "resume it first")
        phub_jobs(box, "resume", name)
        for worker in workers:
            newest(worker)
            worker.event("progress")
        workers[0].tell()
        for worker in workers:
            worker.good()
    holds(phub_jobs(box, "resume", "nobody", status=1), "no job 'nobody' is here")
    box.stop()


def drained():
    """a drained job ends behind a whole round, an evicted one at once, and its workers hear by whom and why"""
    box = Box(cores=2)
    for name, more in (("bsp", {}), ("adam", {"optimizer": "adam"}), ("ssp", {"optimizer": "sgd", "sync": "ssp", "staleness": 1})):
        workers = job(box.url(name), 3, keys=TENSORS, rounds="until-told", report_ms=20, **more)
        for worker in workers:
            worker.event("progress")
        phub_jobs(box, "drain", name, "--reason", "new disks")
        for worker in workers:
            result = worker.failed("ECANCELED", f"job .?{name}", "operator drained it: new disks", "no more are begun")
            check(result["wrong"] == 0 or name == "ssp", f"{result['wrong']} wrong")  # what each rank sees in ssp is not checked
        if name != "ssp":
            check(len({worker.result()["rounds"] for worker in workers}) == 1, "some finished more rounds than others")
    workers = job(box.url("evicted"), 2, keys=TENSORS, rounds="until-told", report_ms=20)
    steady = job(box.url("steady"), 2, keys=TENSORS, rounds="until-told", report_ms=20)
    for worker in workers + steady:
        worker.event("progress")
    phub_jobs(box, "pause", "evicted")
    phub_jobs(box, "evict", "evicted", "--reason", "over its time")
    for worker in workers:
        worker.failed("ECANCELED", "job .?evicted", "operator ended it: over its time")
    newest(steady[0])
    steady[0].event("progress")
    steady[0].tell()
    for worker in steady:
        worker.good()
    holds(phub_jobs(box, "evict", "steady", status=2), "evict needs --reason")
    box.stop()


def killed_while_memory_is_used():
    """a worker that writes to phub_alloc()'s memory while the box is lost and comes back: the memory is there until it resumes"""
    with tempfile.TemporaryDirectory() as folder:
        options = {"listen": f"127.0.0.1:{free_port()}", "checkpoint_targets": folder, "checkpoint_every": 1}
        box = Box(**options)
        worker = Worker(box.url("alloc"), optimizer="sgd", alloc=1, transport="shm", keys=TENSORS, rounds="until-told", report_ms=1,
                        pause_us=800000, resume_ms=60000)
        worker.event("progress")
        box.logged("checkpoint before round")
        box.kill()
        box.wait()
        worker.event("stale")  # it has written its next gradient
        again = Box(**options)
        worker.event("resumed")
        newest(worker)
        worker.event("progress")
        worker.tell()
        worker.good()
        again.stop()


def killed_with_a_worker():
    """a worker that dies with its box: who waits for it to come back is told in the end that it is this rank that lacks"""
    options = {"listen": f"127.0.0.1:{free_port()}"}
    box = Box(**options)
    workers = [Worker(box.url("two"), rank=rank, world=2, transport="tcp", keys=TENSORS, rounds="until-told", report_ms=20,
                      resume_ms=6000) for rank in range(2)]
    workers[1].event("progress")
    box.kill()
    box.wait()
    workers[0].kill()            # after the box, which would tell the others of this death
    again = Box(**options)
    workers[1].failed("ECONNRESET", "it was not back within 6.0 s, and said last: job 'two' waits to start for rank 0 of 2")
    again.stop()


run([planted, killed_with_a_worker, killed_while_memory_is_used, quotas, beside, comes_unmapped, paused, drained, three_jobs, silent_worker,
     world_of_one, client_first, addresses, reproducible, schedules, resnet_50_tcp,
     resnet_50_shm, large_key])
