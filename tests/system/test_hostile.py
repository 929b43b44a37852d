#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for strangers' time to run out
"""Bytes that no worker sends, on every port: what is malformed ends its connection, what a member forges ends its job with
its rank named, and a job that runs beside it all never notices.

Usage: test_hostile.py [WORD...]    only the cases whose names hold one of the words
"""
import os
import pathlib
import random
import socket
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import raw  # noqa: E402
from rig import Box, Steady, Worker, check, holds, run, say  # noqa: E402

KEYS = [("layer", 1000), ("bias", 24)]  # one chunk of 4096 bytes
CHUNK = 4096


def chance():
    seed = int.from_bytes(os.urandom(4), "little")
    say(f"seed {seed}")
    return random.Random(seed)


def addresses(box):
    """Those of all ports: control, tcp, shm."""
    control = raw.Control(box.address, "ask").join()
    found = {"control": box.address, **control.addresses}
    control.close()
    check(set(found) == {"control", "tcp", "shm"}, f"addresses: {found}")
    return found


def partner(box, name, rank=0, world=2, **arguments):
    return Worker(box.url(name), rank, world, keys="layer:1000,bias:24", transport="tcp", **arguments)


def honest():
    """the raw worker is a worker when it does not forge anything, also with what is old thrown away"""
    box = Box()
    other = partner(box, "honest", rounds=1, check=0)
    control = raw.member(box.address, "honest", 1, 2, KEYS)
    data = raw.connected(control)
    data.sock.sendall(data.header(control, round=1, epoch=control.epoch - 1, length=CHUNK) + bytes(CHUNK))  # dropped
    data.sock.sendall(data.header(control, round=1, generation=0, length=CHUNK) + bytes(CHUNK))  # dropped
    data.sock.sendall(data.header(control, round=1, length=CHUNK) + struct.pack("<1024f", *range(1024)))
    round_number, payload = data.result()
    mine = struct.unpack("<1024f", payload)
    check(round_number == 1, f"result of round {round_number}")
    check(all((value - i).is_integer() and abs(value - i) <= 8 for i, value in enumerate(mine)), "not the sum")
    control.send(raw.LEAVE)
    control.expect(raw.LEFT)
    other.good()
    box.stop()


def random_bytes():
    """random, truncated and oversize bytes on the control port, the data port and the shared-memory socket"""
    dice = chance()
    box = Box(handshake_ms=1500, cores=2, log_level="debug")
    steady = Steady(box)
    ports = addresses(box)
    idlers = []
    for name, address in ports.items():
        sent = 0
        for length in (0, 1, 3, 4, 8, 24, 55, 56, 57, 64, 300, 4096, 100000):
            for _ in range(4):
                sock = raw.dial(address)
                try:
                    sock.sendall(dice.randbytes(length))
                    sent += length
                    if dice.random() < 0.5:
                        sock.shutdown(socket.SHUT_WR)
                        raw.drain(sock)  # to its end
                except OSError:
                    pass  # it hung up already
                sock.close()
        sock = raw.dial(address)
        sock.sendall(dice.randbytes(2))
        idlers += [raw.dial(address), sock]  # say nothing, or not enough
        say(f"{name}: {sent} bytes")
    for sock in idlers:
        raw.drain(sock)  # ended by the box, in its time
    steady.end()
    box.stop()


def frames():
    """frames of the control session that are too long, empty, cut off, no message, or out of order"""
    dice = chance()
    box = Box(handshake_ms=3000)
    steady = Steady(box)
    control = raw.Control(box.address)
    control.sock.sendall(struct.pack("<I", raw.FRAME_MAX + 1))
    code, text = control.error()
    check(code == raw.PROTOCOL, f"code {code}")
    holds(text, "more than 65536 bytes")
    for beginning in (struct.pack("<I", 0xffffffff), struct.pack("<I", 0), struct.pack("<I", 100) + b"cut off"):
        control = raw.Control(box.address)
        control.sock.sendall(beginning)
        control.sock.shutdown(socket.SHUT_WR)
        raw.drain(control.sock)
    for _ in range(20):
        control = raw.Control(box.address)
        control.send_frame(dice.randbytes(dice.randrange(1, 2000)))
        code, text = control.error()
        check(code == raw.PROTOCOL, f"code {code}")
        holds(text, "that is no message|instead of hello|no name for a job|nonce|protocol version")
    for member in (raw.PROOF, raw.JOB, raw.LEAVE, raw.START, raw.WELCOME, raw.ADMIN_REPLY):
        control = raw.Control(box.address)
        control.send(member)
        holds(control.error()[1], "instead of hello")
    control = raw.Control(box.address)
    control.hello(nonce=b"short")
    holds(control.error()[1], "nonce of 5 bytes; it has 16")
    control = raw.Control(box.address)
    control.hello()
    control.hello()
    control.expect(raw.CHALLENGE)
    holds(control.error()[1], "instead of a proof")
    for name in ("", "a/b", "a b", "x" * 64, "\x01"):
        control = raw.Control(box.address, name)
        control.hello()
        code, text = control.error()
        check(code == raw.NO_JOB, f"code {code}")
        holds(text, "is no name for a job")
    steady.end()
    box.stop()


def handshakes():
    """data connections with a wrong proof, session, core, version, or a second time"""
    box = Box(cores=1, handshake_ms=2000)
    steady = Steady(box)
    control = raw.member(box.address, "door", 0, 1, KEYS).start()
    tcp = control.addresses["tcp"]
    check(raw.Data(tcp).hello(control, proof=os.urandom(32)) == 1, "a wrong proof was not denied")
    check(raw.Data(tcp).hello(control, session=control.session + 77) == 2, "an unknown session was not refused")
    check(raw.Data(tcp).hello(control, core=1) == 3, "a core that is not there was not refused")
    check(raw.Data(tcp).hello(control, core=0xffffffff) == 3, "a core that is not there was not refused")
    shm = raw.Data(control.addresses["shm"])
    check(shm.hello(control) != 0, "shared memory for a member over tcp")
    first = raw.Data(tcp)
    check(first.hello(control) == 0, "refused")
    check(raw.Data(tcp).hello(control) == 4, "a second connection to a core was not refused")
    replay = raw.Data(tcp)  # the first one's proof, with this one's nonce
    proof = raw.mac(control.key, b"phub 1 data     " + first.nonce + struct.pack("<QI", control.session, 0))
    check(replay.hello(control, proof=proof) == 1, "a replayed proof was not denied")
    for head in (raw.handshake_head(2, version=2), raw.handshake_head(2, magic=b"HTTP"), raw.handshake_head(1)):
        data = raw.Data(tcp)
        try:
            data.hello(control, head=head)
        except raw.Closed:
            continue
        raise AssertionError(f"a hello with {head} was answered")
    box.logged("data connection 127.* of session .* to core 0 refused")
    first.sock.sendall(first.header(control, round=1, length=CHUNK) + bytes(CHUNK))
    check(first.result() == (1, bytes(CHUNK)), "the true connection suffered")
    steady.end()
    box.stop()


def forged_headers():
    """a member's header with a chunk beyond the job, another's job or rank, and all else that is out of place"""
    box = Box()
    steady = Steady(box)
    wrong = [
        {"chunk": 1}, {"chunk": 0xffffffff}, {"job": 0}, {"job": 77}, {"rank": 0}, {"rank": 1023}, {"rank": 5000},
        {"length": CHUNK - 4}, {"length": CHUNK + 4}, {"length": 2 << 20}, {"length": (2 << 20) + 1},
        {"length": 0xffffffff}, {"length": 0}, {"type": 0}, {"type": raw.RESULT}, {"type": raw.CREDIT}, {"type": 250},
        {"type": raw.PULL}, {"generation": 2}, {"epoch": 2}, {"count": 0}, {"count": 2}, {"count": 5000}, {"seq": 2},
        {"seq": 0}, {"magic": b"PHUD"}, {"version": 2}, {"reserved": 1}, {"round": 3}, {"round": 1 << 63},
    ]
    for number, changed in enumerate(wrong):
        name = f"forged{number}"
        other = partner(box, name)
        control = raw.member(box.address, name, 1, 2, KEYS)
        data = raw.connected(control)
        data.sock.sendall(data.header(control, **{"round": 1, "length": CHUNK, **changed}) + bytes(CHUNK))
        code, text = control.error()
        check(code == raw.PROTOCOL, f"{changed}: code {code}: {text}")
        holds(text, f"job '{name}'", "rank 1 .127")
        if "chunk" in changed:
            holds(text, "a chunk beyond the job's")
        check(data.ended(), f"{changed}: its connection still stands")
        other.failed("EPROTO", f"job {name} rank 0", "rank 1 .127")
        if number in (0, 3, 5, 7, 13, 18, 23, 26):
            say(f"{changed}: {text}")
    steady.end()
    box.stop()


def forged_rounds():
    """a member that pulls, pushes or broadcasts when others do something else"""
    box = Box()
    for changed, words in (({"type": raw.INIT}, ("sent a init|sent an init",)),):
        other = partner(box, "kind", wait_ms=30000)
        control = raw.member(box.address, "kind", 1, 2, KEYS)
        data = raw.connected(control)
        data.sock.sendall(data.header(control, **{"round": 1, "length": CHUNK, **changed}) + bytes(CHUNK))
        text = control.error()[1]
        say(text)
        holds(text, "job 'kind'", "rank [01] ", "key 'layer'", "do something else")
        other.failed("EBADMSG", "job kind rank 0", "key 'layer'")
    box.stop()


def cut_off():
    """a member whose data connection ends inside a message"""
    box = Box(lost_ms=2000, warn_ms=500, heartbeat_ms=200)
    other = partner(box, "cut")
    control = raw.member(box.address, "cut", 1, 2, KEYS)
    data = raw.connected(control)
    data.sock.sendall(data.header(control, round=1, length=CHUNK) + bytes(CHUNK // 2))
    data.sock.close()
    other.failed("EOWNERDEAD", "job cut rank 0", "rank 1 .127", "lost")
    box.stop()


def forged_tables():
    """a member's key table with anything in it"""
    box = Box(handshake_ms=3000)
    steady = Steady(box)
    wrong = [  # (changes of Job, keys, what must be told)
        ({"generation": 2}, KEYS, "generation 2"),
        ({"optimizer": 99}, KEYS, "optimizer"),
        ({"reduce": 5}, KEYS, "reduce 5"),
        ({"sync": 9}, KEYS, "sync"),
        ({"sync": 1}, KEYS, "optimizer"),
        ({"nan": 8}, KEYS, "nan"),
        ({"seal": 3}, KEYS, "seal 3 is unknown"),
        ({"seal": (1 << 64) - 1}, KEYS, "seal 4294967295 is unknown"),
        ({"seal": 1}, KEYS, "seal crc is less than the box takes"),
        ({"chunk_bytes": 3}, KEYS, "chunk_bytes 3"),
        ({"chunk_bytes": 1 << 31}, KEYS, "chunk_bytes"),
        ({"key_count": 0xffffffff}, KEYS, "keys"),
        ({"key_count": 1}, KEYS, "keys 0 to 2"),
        ({"key_count": 0}, [], "empty"),
        ({"transport": "pigeon"}, KEYS, "pigeon"),
        ({"transport": "p" * 1000}, KEYS, "transport"),
        ({}, [("", 10)], "name of key 0"),
        ({}, [("n" * 300, 10)], "name of key 0"),
        ({}, [("tab\tbed", 10)], "name of key 0"),
        ({}, [("layer", 0)], "key 'layer'.*0 elements"),
        ({}, [("layer", 10, 77)], "key 'layer'.*dtype 77"),
        ({}, [("layer", 10, 0, 3)], "key 'layer'.*parameter group 3"),
        ({}, [("layer", (1 << 64) - 1)], "layer|elements|bytes"),
        ({}, [("layer", 1 << 62), ("other", 1 << 62)], "layer|elements|bytes"),
        ({"groups": raw.hypers(float("nan"))}, KEYS, "lr"),
        ({"optimizer": 1, "groups": raw.hypers(-1.0)}, KEYS, "lr"),
    ]
    for number, (changed, keys, words) in enumerate(wrong):
        control = raw.Control(box.address, f"table{number}").join()
        control.job(keys, **changed)
        try:
            code, text = control.error()
        except AssertionError:
            if "optimizer" not in changed and "groups" in changed:
                continue  # an all-reduce has no use for it
            raise AssertionError(f"{changed}, {keys}: accepted") from None
        holds(text, f"job 'table{number}'", words)
    for member in (raw.HELLO, raw.PROOF, raw.START, raw.WELCOME, raw.BARRIER_DONE, raw.ADMIN_REQUEST):
        control = raw.Control(box.address, "order").join()
        control.send(member)
        code, text = control.error()
        check(code == raw.PROTOCOL, f"code {code}")
        holds(text, "job 'order' rank 0", "not for a worker to send")
        control.close()
    control = raw.Control(box.address, "order2").join()
    control.keys(KEYS)
    holds(control.error()[1], "job 'order2' rank 0", "without their job")
    control = raw.Control(box.address, "order3", 0, 2).join()
    control.job(KEYS)
    control.job(KEYS)
    holds(control.error()[1], "job 'order3' rank 0", "second key table")
    steady.end()
    box.stop()


def many_strangers():
    """hundreds of connections that say nothing do not keep those out who prove themselves"""
    box = Box(handshake_ms=2000, sessions_max=64)
    ports = addresses(box)
    strangers = []
    for address in ports.values():
        strangers += [raw.dial(address) for _ in range(120)]
    worker = Worker(box.url("in"), keys="layer:1000", transport="tcp", timeout_ms=30000)
    worker.good()
    Worker(box.url("in2"), keys="layer:1000", transport="shm", timeout_ms=30000).good()
    for sock in strangers:
        raw.drain(sock)
    box.stop()


def refused_first():
    """a worker whose data connection is refused a moment before the box tells why: it tells the reason, not the refusal"""
    doors = socket.create_server(("127.0.0.1", 0))
    nonce = os.urandom(16)
    seen = {}

    def answer(session, member, fields):
        if member == raw.HELLO:
            seen["input"] = (fields[7][0], nonce, fields.get(5, [0])[0], fields[6][0], fields[4][0].decode())
            session.send(raw.CHALLENGE, (1, 1), (2, nonce))
        elif member == raw.PROOF:
            address = raw.encode((1, "tcp"), (2, "127.0.0.1:%d" % doors.getsockname()[1]))
            session.send(raw.WELCOME, (1, raw.mac(b"", raw.mac_input("phub 1 box", *seen["input"]))), (2, 1), (3, 1000),
                         (4, 10000), (5, address), (6, 1), (7, 32768))
        elif member == raw.KEYS:
            session.send(raw.START, (1, 1), (2, 1), (3, 1), (4, bytes(1)), (5, 8))
            door = doors.accept()[0]
            door.sendall(raw.handshake_head(1) + os.urandom(16))
            raw.receive(door, 56)
            door.sendall(raw.handshake_head(3) + struct.pack("<II", 2, 0))
            time.sleep(0.1)  # the refusal is there first: that is the case
            session.send(raw.ERROR, (1, raw.LOST), (2, "job 'why': rank 1 was lost"), (3, 1))

    url = f"phub://{raw.impostor(answer)}/why"
    Worker(url, transport="tcp", keys="layer:10").failed("EOWNERDEAD", "job why rank 0", "rank 1 was lost")


run([honest, random_bytes, frames, handshakes, forged_headers, forged_rounds, cut_off, forged_tables, many_strangers,
     refused_first])
