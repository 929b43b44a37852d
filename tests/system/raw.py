# SPDX-License-Identifier: Apache-2.0
"""A worker made of bytes: control frames, proofs, data connections and headers by hand, so that each can be forged.

The formats are those of transport/control.proto, proof.h, handshake.h and wire.h, written down a second time: a change
of the protocol without a change of its version fails here.
"""
import hashlib
import hmac
import os
import select
import socket
import struct
import threading
import time

DEADLINE_S = 60
FRAME_MAX = 1 << 20

# Members of the oneof in Control.
HELLO, CHALLENGE, PROOF, WELCOME, JOB, KEYS, START, HYPER, BARRIER, BARRIER_DONE, HEARTBEAT, LEAVE, LEFT, ERROR, NOTICE, \
    ADMIN_REQUEST, ADMIN_REPLY = range(1, 18)
# ErrorCode.
VERSION, DENIED, NO_JOB, RANK, MISMATCH, LIMIT, PROTOCOL, LOST, NAN, NO_WEIGHTS, UNSUPPORTED, SHUTDOWN = range(1, 13)
# enum wire_type.
PUSH, INIT, PULL, RESULT, CREDIT = range(1, 6)


class Closed(Exception):
    """The other side ended the connection."""


# ---- protobuf, as much as is needed ----

def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(*fields):
    """Fields as (number, value): int, bool, str, bytes or float."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, (str, bytes)):
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
        else:
            out += varint(number << 3) + varint(int(value))
    return out


def decode(data):
    """{number: [values]}: ints and bytes."""
    at, fields = 0, {}

    def take():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = take()
        kind = tag & 7
        if kind == 0:
            value = take()
        elif kind == 2:
            length = take()
            value = data[at:at + length]
            at += length
        else:
            length = {1: 8, 5: 4}[kind]
            value = data[at:at + length]
            at += length
        fields.setdefault(tag >> 3, []).append(value)
    return fields


# ---- proofs ----

def mac_input(label, client_nonce, box_nonce, rank, world, name):
    return (label.ljust(16).encode() + client_nonce + box_nonce + struct.pack("<II", rank, world) +
            hashlib.sha256(name.encode()).digest())


def mac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def hkdf(secret, salt, info):
    return mac(mac(salt, secret), info + b"\1")


# ---- the control session ----

def dial(address):
    if address.startswith("@"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect("\0" + address[1:])
    else:
        host, port = address.rsplit(":", 1)
        sock = socket.create_connection((host.strip("[]"), int(port)))
    sock.settimeout(DEADLINE_S)
    return sock


def receive(sock, count):
    data = b""
    while len(data) < count:
        try:
            more = sock.recv(count - len(data))
        except ConnectionResetError:
            raise Closed(f"reset after {len(data)} of {count} bytes") from None
        if not more:
            raise Closed(f"ended after {len(data)} of {count} bytes")
        data += more
    return data


def drain(sock):
    """Reads to the end of the connection: all that came."""
    data = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more


class Control:
    """One control session. Every message it sends can be replaced."""

    def __init__(self, address, name="raw", rank=0, world=1, secret=b""):
        self.sock = dial(address)
        self.name, self.rank, self.world, self.secret = name, rank, world, secret
        self.nonce = os.urandom(16)
        self.notices = []

    def close(self):
        self.sock.close()

    def send_frame(self, data):
        self.sock.sendall(struct.pack("<I", len(data)) + data)

    def send(self, member, *fields):
        self.send_frame(encode((member, encode(*fields))))

    def next(self):
        """The next message: (member, fields)."""
        length, = struct.unpack("<I", receive(self.sock, 4))
        control = decode(receive(self.sock, length))
        (member, values), = control.items()
        return member, decode(values[0])

    def expect(self, member):
        """The next message but notices and heartbeats, which must be this one: its fields."""
        while True:
            got, fields = self.next()
            if got == NOTICE:
                self.notices.append(fields.get(5, [b""])[0].decode())
            elif got != HEARTBEAT:
                break
        if got == ERROR and member != ERROR:
            raise AssertionError(f"the box says: {error_text(fields)}")
        assert got == member, f"message {got} instead of {member}: {fields}"
        return fields

    def error(self):
        """The error that must come next: (code, text)."""
        fields = self.expect(ERROR)
        return fields[1][0], error_text(fields)

    def hello(self, **changed):
        fields = {"version": (1, 1), "version_min": (2, 1), "software": (3, "raw bytes"), "job": (4, self.name),
                  "rank": (5, self.rank), "world": (6, self.world), "nonce": (7, self.nonce)}
        for key, value in changed.items():
            fields[key] = (fields[key][0], value)
        self.send(HELLO, *fields.values(), (9, "tcp"))

    def prove(self):
        challenge = self.expect(CHALLENGE)
        self.box_nonce = challenge[2][0]
        self.send(PROOF, (1, mac(self.secret, self._input("phub 1 client"))))

    def _input(self, label):
        return mac_input(label, self.nonce, self.box_nonce, self.rank, self.world, self.name)

    def welcome(self):
        fields = self.expect(WELCOME)
        assert fields[1][0] == mac(self.secret, self._input("phub 1 box")), "the box did not prove itself"
        self.session = fields[2][0]
        self.cores = fields[6][0]
        self.addresses = {}
        for address in fields[5]:
            pair = decode(address)
            self.addresses[pair[1][0].decode()] = pair[2][0].decode()
        self.key = hkdf(self.secret, self.nonce + self.box_nonce, self._input("phub 1 key"))

    def join(self):
        self.hello()
        self.prove()
        self.welcome()
        return self

    def job(self, keys, **changed):
        """A Job of an all-reduce over tcp, as libphub sends it, then its keys: (name, elements[, dtype[, group[, sparse]]])."""
        fields = {"generation": (1, 1), "optimizer": (2, 0), "reduce": (3, 0), "sync": (4, 0), "nan": (7, 0),
                  "chunk_bytes": (8, 32768), "key_count": (9, len(keys)), "groups": (10, hypers()),
                  "transport": (11, "tcp"), "seal": (12, 0)}
        for key, value in changed.items():
            fields[key] = (fields[key][0], value)
        self.send(JOB, *fields.values())
        if keys:
            self.keys(keys)

    def keys(self, keys, generation=1, first=0):
        self.send(KEYS, (1, generation), (2, first), *(
            (3, encode((1, key[0]), (2, key[1]), (3, key[2] if len(key) > 2 else 0), (4, key[3] if len(key) > 3 else 0),
                        (6, key[4] if len(key) > 4 else 0)))
            for key in keys))

    def start(self):
        fields = self.expect(START)
        self.job_id = fields[2][0]
        self.epoch = fields[3][0]
        self.cores_of_chunks = fields[4][0]
        return self


def error_text(fields):
    return fields.get(2, [b""])[0].decode()


def hypers(lr=0.001):
    """One group of phub_hyper_init(PHUB_NONE)'s values."""
    return encode((1, lr), (5, 0.9), (6, 0.999), (7, 1e-8))


# ---- data connections ----

def handshake_head(kind, magic=b"PHHS", version=1):
    return struct.pack("<4sBBH", magic, version, kind, 0)


class Data:
    """One data connection over tcp, from the nonce on."""

    def __init__(self, address):
        self.sock = dial(address)
        nonce = receive(self.sock, 24)
        assert nonce[:8] == handshake_head(1), f"not a nonce: {nonce}"
        self.nonce = nonce[8:]
        self.seq = 0

    def hello(self, control, core=0, session=None, proof=None, head=None):
        """The worker's hello; returns the code in the box's welcome."""
        session = control.session if session is None else session
        proof = proof or mac(control.key, b"phub 1 data     " + self.nonce + struct.pack("<QI", session, core))
        self.sock.sendall((head or handshake_head(2)) + struct.pack("<IIQ", core, 0, session) + proof)
        welcome = receive(self.sock, 16)
        assert welcome[:8] == handshake_head(3), f"not a welcome: {welcome}"
        return struct.unpack("<I", welcome[8:12])[0]

    def header(self, control, **changed):
        """64 bytes of a push of chunk 0 in round 0, but for what is changed."""
        self.seq += 1
        fields = {"magic": b"PHUB", "version": 1, "type": PUSH, "priority": 0, "length": 0, "job": control.job_id,
                  "generation": 1, "epoch": control.epoch, "chunk": 0, "rank": control.rank, "round": 0, "hyper": 0,
                  "count": 1, "seq": self.seq, "credit": 0, "reserved": 0}
        for key, value in changed.items():
            assert key in fields, key
            fields[key] = value
        return struct.pack("<4sBBHIIIIIIQIIIIQ", *fields.values())

    def result(self):
        """The next result: (round, payload); credits are passed over."""
        while True:
            header = struct.unpack("<4sBBHIIIIIIQIIIIQ", receive(self.sock, 64))
            payload = receive(self.sock, header[4])
            if header[2] == RESULT:
                return header[10], payload

    def ended(self, deadline_s=DEADLINE_S):
        """Has the box ended this connection (credits may come before)?"""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            if not select.select([self.sock], [], [], until - time.monotonic())[0]:
                return False
            try:
                if not self.sock.recv(65536):
                    return True
            except ConnectionResetError:
                return True
        return False


def member(address, name, rank, world, keys, **changed):
    """Joined, and its key table sent."""
    control = Control(address, name, rank, world).join()
    control.job(keys, **changed)
    return control


def connected(control):
    """Started, with its one data connection to the core that has its one chunk."""
    control.start()
    data = Data(control.addresses["tcp"])
    code = data.hello(control, control.cores_of_chunks[0])
    assert code == 0, f"refused with code {code}"
    return data


def impostor(answer):
    """Something that listens like a box and answers hello and proof by answer(control, member, fields)."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        session = Control.__new__(Control)
        session.sock = server.accept()[0]
        session.sock.settimeout(DEADLINE_S)
        try:
            while True:
                answer(session, *session.next())
        except (Closed, OSError):
            session.sock.close()
            server.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"
