# SPDX-License-Identifier: Apache-2.0
"""Those who do not belong to the box: random and protocol-aware bytes on every port, half-open connections, floods, replays."""
import array
import contextlib
import os
import random
import socket
import ssl
import struct
import time

import raw

HEAD = struct.Struct("<BBHIQII16s")  # of every datagram, as in transport/wire.h
KEYS = [("layer", 1000), ("bias", 24)]
CHUNK = 4096
LENGTHS = (0, 1, 2, 3, 4, 5, 8, 23, 24, 55, 56, 57, 64, 65, 300, 1500, 4096, 70000)
TRICKS = []


def trick(function):
    TRICKS.append(function)
    return function


def spoil(dice, data):
    """The bytes with some of them changed, cut off, doubled or made up."""
    data = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        kind, at = dice.randrange(5), dice.randrange(len(data) + 1)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at:at + dice.randint(1, 8)]
        elif kind == 2:
            data[at:at] = dice.randbytes(dice.randint(1, 16))
        elif kind == 3 and at < len(data):
            data[at] = dice.choice((0, 1, 0x7f, 0x80, 0xff))
        else:
            data[at:at] = data[max(0, at - 8):at]
    return bytes(data)


class Strangers:
    """All that they know: the box's ports, and what once was said there."""

    def __init__(self, box, tls=None):
        """`box()` is the one that runs now."""
        self.box, self.tls = box, tls
        self.ports, self.port_of = {}, None
        self.held = []  # connections that say nothing, or not enough
        self.kept = {"control": [], "udp": []}
        self.done = {}
        self.host = 0
        self.sniffer = None
        with contextlib.suppress(OSError, AttributeError):  # root alone
            self.sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.sniffer.bind(("lo", 0))
            self.sniffer.setblocking(False)

    def close_held(self):
        for sock in self.held:
            sock.close()
        self.held.clear()

    def close(self):
        self.close_held()
        if self.sniffer:
            self.sniffer.close()

    def learn(self):
        """The addresses of all ports, which any worker is told."""
        if self.port_of != self.box().pid:
            control = raw.Control(self.box().address, "stranger").join()
            self.ports = {"control": self.box().address, **control.addresses}
            control.close()
            self.port_of = self.box().pid

    def from_elsewhere(self):
        """A source of its own in 127/8, so that no worker is limited with it."""
        self.host = self.host % 250 + 1
        return (f"127.9.9.{self.host}", 0)

    def dial(self, port):
        address = self.ports[port]
        if address.startswith("@"):
            return raw.dial(address)
        host, number = address.rsplit(":", 1)
        sock = socket.create_connection((host, int(number)), 20, self.from_elsewhere())
        sock.settimeout(20)
        return sock

    def udp_ports(self):
        return [int(part) for part in self.ports.get("udp", "").replace(",", ":").split(":") if part.isdigit()]

    def act(self, dice):
        """One thing, whatever comes of it."""
        self.held = [sock for sock in self.held if not ended(sock)]
        what = dice.choice(TRICKS)
        try:
            self.learn()
            what(self, dice)
        except (OSError, raw.Closed, AssertionError, IndexError, KeyError, ValueError, struct.error):
            pass  # turned away, and rightly so
        self.done[what.__name__] = self.done.get(what.__name__, 0) + 1


def ended(sock):
    """Has the box hung up? Its socket is closed then."""
    try:
        sock.setblocking(False)
        if sock.recv(65536):
            return False
    except BlockingIOError:
        return False
    except OSError:
        pass
    sock.close()
    return True


def stream_ports(strangers):
    return [name for name in ("control", "tcp", "shm") if name in strangers.ports]


@trick
def random_bytes(strangers, dice):
    for port in stream_ports(strangers):
        with strangers.dial(port) as sock:
            sock.sendall(dice.randbytes(dice.choice(LENGTHS)))
            if dice.random() < 0.3:
                sock.shutdown(socket.SHUT_WR)
                raw.drain(sock)


@trick
def half_open(strangers, dice):
    """They connect and wait, some behind the first bytes of something."""
    for port in stream_ports(strangers):
        if len(strangers.held) < 60:
            sock = strangers.dial(port)
            strangers.held.append(sock)
            sock.sendall(dice.choice((b"", b"\x16", b"\x16\x03\x01", b"\x10\0\0\0", b"PHHS", b"\xff")))


@trick
def flood(strangers, dice):
    """Many at once from one address, most of whom are closed unheard."""
    host = strangers.from_elsewhere()
    name, number = strangers.ports["control"].rsplit(":", 1)
    socks = []
    for _ in range(dice.randint(50, 500)):
        with contextlib.suppress(OSError):
            socks.append(socket.create_connection((name, int(number)), 5, host))
    for sock in socks:
        sock.close()


@trick
def frames(strangers, dice):
    """A hello that is not quite one; one that is, and then rubbish."""
    good = raw.encode((raw.HELLO, raw.encode((1, 1), (2, 1), (3, "x"), (4, "nobody"), (5, 0), (6, 1), (7, bytes(16)))))
    with strangers.dial("control") as sock:
        for _ in range(dice.randint(1, 5)):
            data = spoil(dice, good) if dice.random() < 0.7 else good
            sock.sendall(struct.pack("<I", len(data)) + data)
        sock.shutdown(socket.SHUT_WR)
        raw.drain(sock)


@trick
def member(strangers, dice):
    """Who may join, and then says what no worker says: ends his own job alone."""
    control = raw.Control(strangers.box().address, f"stranger-{dice.getrandbits(40):x}").join()
    job = raw.encode((1, 1), (2, dice.randrange(8)), (3, 0), (4, dice.randrange(4)), (8, dice.choice((0, 1, 4096, 1 << 31))),
                     (9, dice.choice((0, 1, 2, 1 << 31))), (10, raw.hypers()), (11, dice.choice(("tcp", "shm", "udp", "?"))),
                     (12, dice.randrange(4)), (13, dice.randrange(4)), (14, dice.randrange(4)), (15, dice.getrandbits(32)))
    keys = raw.encode((1, 1), (2, 0), (3, raw.encode((1, "k"), (2, dice.choice((0, 1, 1000, 1 << 62))), (3, dice.randrange(5)))))
    with contextlib.closing(control):
        for _ in range(dice.randint(1, 6)):
            what = dice.choice((raw.JOB, raw.KEYS, raw.HYPER, raw.BARRIER, raw.HEARTBEAT, raw.LEAVE, 18, 19, 20,
                                dice.randrange(1, 32)))
            body = job if what == raw.JOB else keys if what == raw.KEYS else dice.randbytes(dice.randrange(40))
            body = spoil(dice, body) if dice.random() < 0.5 else body
            control.send_frame(raw.encode((what, body)))
        control.sock.settimeout(1)
        with contextlib.suppress(TimeoutError):
            raw.drain(control.sock)


@trick
def operator(strangers, dice):
    """Commands of phub jobs that it does not send."""
    control = raw.Control(strangers.box().address, "")
    with contextlib.closing(control):
        control.hello(name="") if dice.random() < 0.1 else control.send(
            raw.HELLO, (1, 1), (2, 1), (3, "x"), (4, ""), (5, 0), (6, 1), (7, control.nonce), (8, 1))
        control.world = 1
        control.prove()
        control.expect(raw.WELCOME)
        for _ in range(dice.randint(1, 5)):
            words = [dice.choice(("", "no-such-job", "\0\x1b[2J%s%n", "x" * 70000, dice.randbytes(9))) for _ in range(dice.randrange(4))]
            command = dice.choice(("jobs", "status", "pause", "resume", "drain", "evict", "", "quit", "x" * 1000))
            if command in ("jobs", "status"):
                words = words[:1]
            data = raw.encode((raw.ADMIN_REQUEST, raw.encode((1, command), *((2, word) for word in words))))
            control.send_frame(spoil(dice, data) if dice.random() < 0.4 else data)
        control.sock.settimeout(1)
        with contextlib.suppress(TimeoutError):
            raw.drain(control.sock)


@trick
def data_hello(strangers, dice):
    """The hello of a data connection that belongs to no session."""
    for port in ("tcp", "shm"):
        with strangers.dial(port) as sock:
            nonce = raw.receive(sock, 24)
            hello = raw.handshake_head(2) + struct.pack("<IIQ", dice.randrange(3), 0, dice.getrandbits(64)) + nonce[8:] + nonce[8:]
            sock.sendall(spoil(dice, hello) if dice.random() < 0.7 else hello)
            sock.shutdown(socket.SHUT_WR)
            raw.drain(sock)


@trick
def data_member(strangers, dice):
    """A worker whose connection is good, and whose headers are not: ends his own job alone."""
    control = raw.member(strangers.box().address, f"stranger-{dice.getrandbits(40):x}", 0, 1, KEYS)
    with contextlib.closing(control):
        data = raw.connected(control)
        with contextlib.closing(data.sock):
            for _ in range(dice.randint(1, 20)):
                good = data.header(control, round=data.seq, length=CHUNK) + dice.randbytes(CHUNK)
                data.sock.sendall(spoil(dice, good[:64]) + good[64:] if dice.random() < 0.3 else good)
            if dice.random() < 0.5:
                data.sock.sendall(data.header(control, round=data.seq, length=CHUNK) + bytes(dice.randrange(CHUNK)))


@trick
def fds(strangers, dice):
    """Descriptors that nobody asked for, over the socket of shared memory: the box must not keep them."""
    if "shm" not in strangers.ports:
        return
    with strangers.dial("shm") as sock, open("/dev/null", "rb") as null:
        given = array.array("i", [null.fileno()] * dice.choice((1, 2, 8, 200)))
        sock.sendmsg([dice.randbytes(dice.choice((1, 24, 56, 64)))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])


@trick
def datagrams(strangers, dice):
    """Random ones, and some that look like ours."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(strangers.from_elsewhere())
        for port in strangers.udp_ports():
            for _ in range(dice.randint(1, 60)):
                head = HEAD.pack(dice.choice((0, 1, 1, 1, 255)), dice.randrange(8), dice.getrandbits(4),
                                 dice.getrandbits(32) >> dice.randrange(32),
                                 dice.getrandbits(64) >> dice.randrange(64), dice.getrandbits(32), dice.getrandbits(32), dice.randbytes(16))
                said = dice.choice((head, head + dice.randbytes(dice.randrange(1400)), dice.randbytes(dice.randrange(1400))))
                with contextlib.suppress(OSError):
                    sock.sendto(said, ("127.0.0.1", port))


@trick
def replay_datagrams(strangers, dice):
    """What was heard on the way to the box, said again: changed, and as it was."""
    ports = strangers.udp_ports()
    for _ in range(400 if strangers.sniffer else 0):
        try:
            frame = strangers.sniffer.recv(65536)
        except BlockingIOError:
            break
        if len(frame) > 42 and frame[12:14] == b"\x08\0" and frame[23] == 17 and struct.unpack(">H", frame[36:38])[0] in ports:
            strangers.kept["udp"].append((struct.unpack(">H", frame[36:38])[0], frame[42:]))
    del strangers.kept["udp"][:-300]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for port, data in strangers.kept["udp"]:
            with contextlib.suppress(OSError):
                sock.sendto(spoil(dice, data) if dice.random() < 0.3 else data, ("127.0.0.1", port))


@trick
def replay_session(strangers, dice):
    """A session that was good once, said again byte by byte, to the port that it was said to and to another."""
    if not strangers.kept["control"] or dice.random() < 0.2:
        control = raw.Control(strangers.box().address, "replayed")
        said = []
        sent = control.sock.sendall
        with contextlib.closing(control):
            class Tap:
                def __getattr__(self, name):
                    return getattr(control_sock, name)

                def sendall(self, data):
                    said.append(bytes(data))
                    sent(data)
            control_sock, control.sock = control.sock, Tap()
            control.join()
        strangers.kept["control"].append(b"".join(said))
        del strangers.kept["control"][:-5]
    said = dice.choice(strangers.kept["control"])
    with strangers.dial(dice.choice(("control", "tcp"))) as sock:
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        raw.drain(sock)


@trick
def tls(strangers, dice):
    """Records of TLS that are spoilt, and sessions over TLS that talk rubbish."""
    if not strangers.tls:
        return
    context = ssl.create_default_context(cafile=str(strangers.tls))
    context.check_hostname = False
    if dice.random() < 0.5:
        come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(come, go).do_handshake()
        hello = go.read()
        with strangers.dial("control") as sock:
            sock.sendall(spoil(dice, hello) if dice.random() < 0.6 else hello[:dice.randrange(len(hello))])
            sock.shutdown(socket.SHUT_WR)
            raw.drain(sock)
        return
    with strangers.dial("control") as plain, context.wrap_socket(plain) as sock:
        sock.sendall(dice.randbytes(dice.choice(LENGTHS)))
        if dice.random() < 0.3:
            plain_fd = os.dup(sock.fileno())
            os.write(plain_fd, dice.randbytes(50))  # in the middle of it, not sealed
            os.close(plain_fd)


def run(strangers, seed, busy, over, pause_s=0.05):
    """Until `over` is set: what they do while `busy` is set. Own thread."""
    dice = random.Random(seed)
    while not over.is_set():
        if not busy.wait(0.2):
            continue
        strangers.act(dice)
        time.sleep(dice.uniform(0, 2 * pause_s))
