#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What users get wrong: secrets, jobs, ranks, key tables, options, sizes, NaN. Each is told by a clear error that names job,
rank and key to whom it concerns, and ends nothing else.

Usage: test_bad_input.py [WORD...]    only the cases whose names hold one of the words
"""
import os
import pathlib
import socket
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import raw  # noqa: E402
from rig import Box, Steady, Worker, check, holds, job, run, say  # noqa: E402

PERIOD = 4093


def secrets():
    """a wrong secret, none where one is needed, one where none is known, a box that does not know it"""
    box = Box(config="jobs:\n  - {name: guarded, secret_env: GUARDED_SECRET}\n", env={"GUARDED_SECRET": "sesame"})
    steady = Steady(box)
    url = box.url("guarded")
    Worker(url, secret="open").failed("EACCES", "job guarded rank 0", "wrong secret", "PHUB_SECRET")
    Worker(url).failed("EACCES", "job guarded rank 0", "has a secret", "PHUB_SECRET")
    Worker(box.url("plain"), secret="open").failed("EACCES", "job plain rank 0", "knows no secret")
    for worker in job(url, 2, env={"PHUB_SECRET": "sesame"}):
        worker.good()

    def claim(session, member, fields):
        if member == raw.HELLO:
            session.send(raw.CHALLENGE, (1, 1), (2, os.urandom(16)), (3, 1))
        else:
            session.send(raw.WELCOME, (1, os.urandom(32)), (2, 1), (6, 1))

    Worker(f"phub://{raw.impostor(claim)}/guarded", secret="sesame").failed(
        "EACCES", "job guarded rank 0", "does not know the job's secret")
    box.logged("guarded.*wrong secret")
    steady.end()
    box.stop()


def jobs():
    """a job that may not be created, by rule and by room; a name that is none"""
    box = Box(config="create: never\njobs:\n  - {name: listed, world: 2}\n")
    Worker(box.url("other")).failed("ENOENT", "job other rank 0", "no job 'other'", "create: never")
    Worker(box.url("listed"), 0, 3).failed("EBADMSG", "job listed rank 0", "world of 2", "rank 0 says 3")
    for worker in job(box.url("listed"), 2):
        worker.good()
    box.stop()
    box = Box(config="create: secret\ncreate_secret_env: CREATE\njobs_max: 1\n", env={"CREATE": "may"})
    Worker(box.url("new"), secret="not").failed("EACCES", "job new rank 0", "wrong secret")
    first = Worker(box.url("first"), 0, 2, secret="may", wait_ms=30000)
    first.event("connected")
    Worker(box.url("second"), secret="may").failed("ENOMEM", "job second rank 0", "1 jobs", "jobs_max")
    Worker(box.url("first"), 1, 2, secret="may").good()
    first.good()
    Worker(f"phub://{box.address}/not a name").failed("EINVAL", "not a name")
    box.stop()


def ranks():
    """a rank out of range, a rank taken twice, worlds that differ"""
    box = Box()
    steady = Steady(box)
    Worker(box.url("r"), 5, 2).failed("ERANGE", "rank 5", "world of 2|world")
    control = raw.Control(box.address, "r", 7, 2)
    control.hello()
    code, text = control.error()
    check(code == raw.RANK, f"code {code}")
    holds(text, "job 'r'", "rank 7 of a world of 2")
    first = Worker(box.url("r"), 0, 2, wait_ms=60000)
    first.event("connected")
    Worker(box.url("r"), 0, 2).failed("EADDRINUSE", "job r rank 0", "rank 0 of job 'r' is taken by 127.0.0.1")
    Worker(box.url("r"), 1, 3).failed("EBADMSG", "job r rank 1", "world of 2", "rank 1 says 3")
    Worker(box.url("r"), 1, 2).good()
    first.good()
    Worker(box.url("steady"), 1, 2).failed("EADDRINUSE", "job steady rank 1", "taken")
    steady.end()
    box.stop()


def tables():
    """key tables and options that differ: the first difference, the key, and both ranks"""
    box = Box(datagram_seal="crc")
    steady = Steady(box)
    same = "in:100,middle:5000,out:7"
    cases = [  # what rank 1 says instead, and what both must be told
        ({"keys": "in:100,center:5000,out:7"}, ("key 1 ", "rank 0 names it 'middle'|rank 1 names it 'center'", "'center'")),
        ({"keys": "in:100,middle:5001,out:7"}, ("key 'middle'", "5000", "5001 ?")),
        ({"keys": "in:100,middle:5000:f16,out:7"}, ("key 'middle'", "dtype", "f32", "f16")),
        ({"keys": "in:100,middle:5000:alone,out:7"}, ("key 'middle'", "alone")),
        ({"keys": "in:100,middle:5000"}, ("key 'out'", "missing at rank 1")),
        ({"keys": same + ",more:1"}, ("key 'more'", "missing at rank 0")),
        ({"optimizer": "adam"}, ("optimizer differs", "none", "adam")),
        ({"reduce": "mean"}, ("reduce differs", "sum", "mean")),
        ({"nan": "fail"}, ("nan differs", "pass", "fail")),
        ({"reproducible": 1}, ("reproducible differs",)),
        ({"seal": "crc"}, ("seal differs", "gmac", "crc")),
        ({"chunk_bytes": 4096}, ("chunk_bytes differs", "32768", "4096")),
        ({"lr": 0.5}, ("lr of parameter group 0 differs", "0.001", "0.5")),
    ]
    running = []
    for number, (changed, words) in enumerate(cases):
        url = box.url(f"t{number}")
        running.append((words, Worker(url, 0, 2, keys=same), Worker(url, 1, 2, **{"keys": same, **changed})))
    for words, *workers in running:
        for worker in workers:
            worker.failed("EBADMSG", f"job {worker.name.split('.')[0]} rank {worker.name[-1]}", "rank 0", "rank 1", *words)
    steady.end()
    box.stop()


def schedules():
    """hyper-parameters that differ in a round end the job and name the ranks"""
    box = Box()
    for worker in job(box.url("one"), 2, optimizer="sgd", rounds=10, schedule=lambda rank: rank, keys="weight:9000"):
        worker.failed("EBADMSG", "job one rank [01]", "rank [01] .*pushed key 'weight'", "hyper-parameters")
    for worker in job(box.url("both"), 3, optimizer="sgd", rounds=10, schedule=lambda rank: 2 if rank == 2 else 1):
        worker.failed("EBADMSG", "job both rank [012]", "rank 2 ", "rank [01] ", "lr")
        say(worker.result()["error"])
    box.stop()


def missing():
    """workers that never come, or never push: every wait ends in time and names them"""
    box = Box(heartbeat_ms=200)
    start = [Worker(box.url("start"), 0, 4, wait_ms=2500), Worker(box.url("start"), 1, 4, no_start=1)]
    barrier = [Worker(box.url("barrier"), 0, 2, barrier=1, wait_ms=2500), Worker(box.url("barrier"), 1, 2, idle=1)]
    many = Worker(box.url("many"), 0, 100, wait_ms=2500)
    pushes = [Worker(box.url("pushes"), rank, 3, wait_ms=2500, keys="embedding:50,head:100000", idle=int(rank == 2))
              for rank in range(3)]
    start[0].failed("ETIMEDOUT", "job start rank 0",
                    r"rank 0: the start waits for ranks 1-3 of 4; 1 of them joined but sent no keys \(after 2500 ms\)$")
    barrier[0].failed("ETIMEDOUT", "job barrier rank 0", r"rank 0: the barrier waits for rank 1 of 2 \(after 2500 ms\)$")
    many.failed("ETIMEDOUT", r"the start waits for ranks 1-64 and 35 more of 100 \(after 2500 ms\)$")
    waits = pushes[0].result(), pushes[1].result()
    check("ETIMEDOUT" in {result["errno"] for result in waits}, f"no time-out: {waits}")
    for result in waits:  # the other is told when the first has given up and gone
        check(result["errno"] in ("ETIMEDOUT", "EOWNERDEAD"), f"{result}")
        if result["errno"] == "ETIMEDOUT":
            holds(result["error"], "job pushes rank [01]",
                  "key '(embedding|head)' round 1 waits for rank 2 \(127[^()]*\)( \(and 1 more keys\))? \(after 2500 ms\)$")
    box.stop()


def hosts():
    """a box that cannot be reached: one sentence, with one piece of advice; a host that does not exist is told at once"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # taken, and nobody listens
        for host in ("127.0.0.1", "localhost"):
            Worker(f"phub://{host}:{port}/a", timeout_ms=300).failed(
                "ECONNREFUSED", rf"^job a rank 0: box {host}:{port} cannot be reached: [^;]*; is [^;?]*\? \(after 300 ms\)$")
    began = time.monotonic()
    Worker("phub://no..such..host/a", timeout_ms=60000).failed(
        "ENOENT", "^job a rank 0: box no..such..host:7077 cannot be reached: cannot look up host [^;]*; give a name that "
        "resolves, or an address$")
    check(time.monotonic() - began < 30, "a host that does not exist was tried again")


def leaves():
    """a worker that leaves while others go on: they are told who, and do not wait"""
    box = Box()
    workers = job(box.url("l"), 3, skip_at=lambda rank: 3 if rank == 1 else 0, rounds=10, keys="layer:100", optimizer="sgd")
    workers[1].good()
    for rank in (0, 2):
        workers[rank].failed("EOWNERDEAD", f"job l rank {rank}", "rank 1 ", "left")
    box.stop()


def data_value(rank, round_number, at):
    """worker_data.c's integers."""
    mask = (1 << 64) - 1
    x = ((rank << 48 ^ round_number << 16 ^ at) + 0x9e3779b97f4a7c15) & mask
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & mask
    x = (x ^ x >> 27) * 0x94d049bb133111eb & mask
    return (x ^ x >> 31) % 17 - 8


def nans():
    """NaN and infinity in a gradient: fail names rank, key and element; zero counts them as zero; pass passes them"""
    box = Box()
    steady = Steady(box)
    spoil = {"keys": "front:40,bad:20000,back:5", "nan_key": 1, "nan_element": 9001, "look_at": 2, "check": 0, "rounds": 3}
    for dtype in ("f32", "f16", "bf16"):
        for infinite in (0, 1):
            workers = job(box.url(f"fail-{dtype}-{infinite}"), 3, nan="fail", dtype=dtype, infinite=infinite, **spoil,
                          nan_at=lambda rank: 2 if rank == 1 else 0, transport="tcp" if infinite else "shm")
            for rank, worker in enumerate(workers):
                worker.failed("EDOM", f"job fail-{dtype}-{infinite} rank {rank}", "rank 1 ", "NaN or infinity",
                              "element 9001 of key 'bad'", "in round 2")
        zeroed = job(box.url("zero"), 3, nan="zero", dtype=dtype, **spoil, nan_at=lambda rank: 2 if rank == 1 else 0)
        want = sum(data_value(rank, 2, (9001 + 577) % PERIOD) for rank in (0, 2))
        for worker in zeroed:
            check(float(worker.good()["spoiled"]) == want, f"zero gave {worker.result()['spoiled']}, not {want}")
        passed = job(box.url("pass"), 2, nan="pass", dtype=dtype, **spoil, nan_at=lambda rank: 2 if rank == 1 else 0)
        for worker in passed:
            check(worker.good()["spoiled"].lstrip("-") == "nan", f"pass gave {worker.result()['spoiled']}")
    steady.end()
    box.stop()


def sizes():
    """a key of 0 elements, one of 5 GiB, two of one name, and too many keys"""
    box = Box(memory_max="64MiB", keys_max=4)
    steady = Steady(box)
    Worker(box.url("zero"), keys="first:1,empty:0").failed("EINVAL", "job zero rank 0", "key 'empty'")
    control = raw.member(box.address, "zero", 0, 1, [("first", 1), ("empty", 0)])
    code, text = control.error()
    holds(text, "job 'zero' rank 0", "key 'empty'", "0 elements")
    for transport in ("tcp", "shm"):
        for worker in job(box.url("huge"), 2, keys=f"bias:10,embedding:{5 << 28}", transport=transport):
            worker.failed("ENOMEM", "job huge rank [01]: box [0-9.:]+: needs more", "memory_max", "key is 'embedding'",
                          "needs more than 53687091")
    Worker(box.url("fits"), keys=f"most:{3 << 20}", optimizer="adam").good()  # 12 MiB, with state and sums
    Worker(box.url("twins"), keys="w:1,b:1,w:2").failed(
        "EINVAL", "^job twins rank 0: key 2 has the name of key 0, 'w'; give every key a name of its own$")
    roomy = Box()
    control = raw.member(roomy.address, "twins", 0, 1, [(f"k{i}", 1) for i in range(300)] + [("k7", 2)])
    code, text = control.error()
    holds(text, "^job 'twins' rank 0: key 300 has the name of key 7, 'k7'; give every key a name of its own$")
    raw.member(roomy.address, "single", 0, 1, [(f"k{i}", 1) for i in range(1000)]).start()
    roomy.kill()
    Worker(box.url("many"), keys="a:1,b:1,c:1,d:1,e:1").failed("ENOMEM", "job many rank 0", "5 keys", "at most 4", "keys_max")
    steady.end()
    box.stop()


def weights():
    """a gradient before the first weights is refused by key, here and by the box"""
    box = Box()
    Worker(box.url("w"), optimizer="sgd", no_weights=1, keys="conv:100").failed(
        "ENODATA", "job w rank 0", "key 'conv'", "phub_broadcast")
    control = raw.member(box.address, "w", 0, 1, [("conv", 100)], optimizer=1)
    data = raw.connected(control)
    data.sock.sendall(data.header(control, round=1, length=400) + bytes(400))
    code, text = control.error()
    check(code == raw.NO_WEIGHTS, f"code {code}: {text}")
    holds(text, "job 'w'", "rank 0 ", "key 'conv'", "before it has first weights")
    box.stop()


def versions():
    """a peer of another version: both ends say which versions there are"""
    box = Box()
    for version, version_min in ((9, 9), (0, 0)):
        control = raw.Control(box.address, "v")
        control.hello(version=version, version_min=version_min)
        code, text = control.error()
        check(code == raw.VERSION, f"code {code}")
        holds(text, "version 1", f"versions {version_min} to {version}", "raw bytes")
    control = raw.Control(box.address, "v")
    control.hello(version=9)  # and all down to 1
    check(control.expect(raw.CHALLENGE)[1][0] == 1, "did not choose version 1")
    address = raw.impostor(lambda session, member, fields: session.send(raw.CHALLENGE, (1, 9), (2, os.urandom(16))))
    Worker(f"phub://{address}/v").failed("EPROTONOSUPPORT", "job v rank 0", "version 9", "version 1")
    address = raw.impostor(lambda session, member, fields: session.send(
        raw.ERROR, (1, raw.VERSION), (2, "the box speaks protocol version 9")))
    Worker(f"phub://{address}/v").failed("EPROTONOSUPPORT", "job v rank 0", "version 9")

    def rubbish(session, member, fields):
        session.sock.sendall(struct.pack("<I", 7) + os.urandom(7))

    Worker(f"phub://{raw.impostor(rubbish)}/v", timeout_ms=3000).failed(("EPROTO", "ETIMEDOUT"), "job v rank 0", "127.0.0.1")
    box.stop()


run([secrets, jobs, ranks, tables, schedules, missing, hosts, leaves, nans, sizes, weights, versions])
