#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for strangers' time to run out
"""What keeps strangers out, with real processes: TLS, limits on who knocks, privileges given up, and what is said about all that.

Usage: test_security.py [WORD...]    only the cases whose names hold one of the words
"""
import atexit
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import pty
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import raw  # noqa: E402
from rig import BUILD, PHUBD, QUIET, Box, Skip, Steady, Worker, check, free_port, holds, job, run, say  # noqa: E402

PHUB = BUILD / "phub"
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="phub-security-"))
atexit.register(shutil.rmtree, FOLDER, True)


def certificate(name, names="DNS:localhost,IP:127.0.0.1"):
    """A certificate that vouches for itself: the paths of it and of its key."""
    cert, key = FOLDER / f"{name}.pem", FOLDER / f"{name}.key"
    if not cert.exists():
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                        "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        key.chmod(0o600)
    return cert, key


def sealed_box(tls, **options):
    cert, key = certificate("box")
    return Box(tls=tls, tls_cert=cert, tls_key=key, cores=1, **options)


def phub(*words, env=None, status=0):
    done = subprocess.run([PHUB, *map(str, words)], capture_output=True, text=True, env={**QUIET, **(env or {})}, timeout=60)
    check(status is None or done.returncode == status, f"phub {words}: {done.returncode}, {done.stdout} {done.stderr}")
    return done.stdout + done.stderr


def overheard(box, worker_env):
    """What a listener between worker and box hears of a control session: all of it, and what the worker said."""
    doors = socket.create_server(("127.0.0.1", 0))
    seen, said = [], []

    def carry(source, target, *into):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                for kept in into:
                    kept.append(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def between():
        near = doors.accept()[0]
        far = socket.create_connection(("127.0.0.1", box.port))
        threading.Thread(target=carry, args=(near, far, seen, said), daemon=True).start()
        carry(far, near, seen)

    threading.Thread(target=between, daemon=True).start()
    url = f"phub://127.0.0.1:{doors.getsockname()[1]}/nobody-knows-this-job"
    Worker(url, transport="tcp", keys="layer-of-a-secret-model:1000", env=worker_env).good()
    return b"".join(seen), b"".join(said)


def tls_hides():
    """a listener learns job and keys of a plain session, and nothing of one over TLS"""
    cert, _ = certificate("box")
    box = sealed_box("allow")
    seen, _ = overheard(box, {})
    check(b"nobody-knows-this-job" in seen and b"layer-of-a-secret-model" in seen, "the plain session was not seen")
    seen, _ = overheard(box, {"PHUB_TLS_CA": str(cert)})
    check(len(seen) > 1000, f"{len(seen)} bytes")
    check(b"nobody-knows" not in seen and b"secret-model" not in seen, "the session was not sealed")
    box.stop()


def tls_of_workers():
    """by authority, by pin, by url; plain workers are told what to set; one that wants TLS takes nothing else"""
    cert, _ = certificate("box")
    other, _ = certificate("other")
    box = sealed_box("require")
    pin = re.search(r"PHUB_TLS_PIN=([0-9a-f]{64})", box.logged("need TLS 1.3")).group(1)
    for worker in job(box.url("both"), 2, env={"PHUB_TLS_CA": str(cert)}, keys="a:1000"):
        worker.good()
    Worker(box.url("pin").replace("phub:", "phubs:"), env={"PHUB_TLS_PIN": pin}, keys="a:10", transport="tcp").good()
    Worker(box.url("name", "localhost"), env={"PHUB_TLS_CA": str(cert)}, keys="a:10").good()
    Worker(box.url("plain")).failed("EACCES", "takes TLS alone", "PHUB_TLS_CA", "PHUB_TLS_PIN")
    Worker(box.url("naked").replace("phub:", "phubs:")).failed("EINVAL", "PHUB_TLS_CA", "PHUB_TLS_PIN")
    Worker(box.url("other"), env={"PHUB_TLS_CA": str(other)}).failed("EACCES", "PHUB_TLS_CA", "self.signed")
    Worker(box.url("other"), env={"PHUB_TLS_PIN": "0" * 64}).failed("EACCES", "PHUB_TLS_PIN")
    holds(phub("jobs", box.address, env={"PHUB_TLS_PIN": pin}), "no jobs|refused")
    holds(phub("jobs", box.address, status=1), "takes TLS alone")
    holds(phub("jobs", box.address, env={"PHUB_TLS_PIN": "1" * 64}, status=1), "PHUB_TLS_PIN")
    box.stop()
    plain = Box(cores=1)
    Worker(plain.url("plain"), env={"PHUB_TLS_PIN": pin}).failed("EPROTO", "no TLS 1.3", "tls_cert")
    Worker(plain.url("plain"), keys="a:10").good()
    plain.stop()


def tls_files():
    """a box with a key that others may open, without one, or with another's does not start, and says why"""
    cert, key = certificate("box")
    _, other = certificate("other")
    for options, words in (({"tls_cert": cert}, "needs tls_cert and tls_key"),
                           ({"tls_cert": cert, "tls_key": other}, "not the key of the certificate"),
                           ({"tls_cert": FOLDER / "none", "tls_key": key}, "No such file")):
        options = [f"--{name}={value}" for name, value in {"tls": "require", **options}.items()]
        for check_only in ([], ["--check-config"]):
            done = subprocess.run([PHUBD, *check_only, *options], capture_output=True, text=True, env=QUIET, timeout=60)
            check(done.returncode == 1, f"{options}: {done.returncode}")
            holds(done.stderr, words)
    loose = FOLDER / "loose.key"
    shutil.copy(key, loose)
    loose.chmod(0o640)
    done = subprocess.run([PHUBD, "--check-config", "--tls=allow", f"--tls_cert={cert}", f"--tls_key={loose}"],
                          capture_output=True, text=True, env=QUIET, timeout=60)
    check(done.returncode == 1, "a key that its group may open")
    holds(done.stderr, "chmod 600")


def pin_of(cert):
    der = subprocess.run(["openssl", "x509", "-in", cert, "-outform", "DER"], check=True, capture_output=True).stdout
    return hashlib.sha256(der).hexdigest()


def reloaded():
    """SIGHUP: newcomers are shown the new certificate and who is there stays; a pair that does not fit leaves the old one"""
    names = [certificate(name) for name in ("before", "after", "third")]
    cert, key = FOLDER / "now.pem", FOLDER / "now.key"

    def put(new_cert, new_key):
        shutil.copy(new_cert, cert)
        shutil.copy(new_key, key)
        key.chmod(0o600)

    def joins(name, which):
        Worker(box.url(name), keys="a:10", env={"PHUB_TLS_PIN": pin_of(names[which][0])}).good()
        wrong = Worker(box.url(name), keys="a:10", timeout_ms=2000, env={"PHUB_TLS_PIN": pin_of(names[1 - which][0])})
        check(wrong.result()["rc"] < 0, "a worker met the other certificate")

    put(*names[0])
    box = Box(tls="require", tls_cert=cert, tls_key=key, cores=1)
    steady = job(box.url("steady"), 2, transport="tcp", rounds="until-told", report_ms=20, pause_us=2000, keys="a:1000",
                 env={"PHUB_TLS_PIN": pin_of(names[0][0])})
    for worker in steady:
        worker.event("progress")
    joins("one", 0)
    put(*names[1])
    joins("still", 0)
    box.kill(signal.SIGHUP)
    box.logged("certificate and key are read anew")
    box.logged(f"PHUB_TLS_PIN={pin_of(names[1][0])}")
    joins("two", 1)
    put(names[2][0], names[1][1])
    box.kill(signal.SIGHUP)
    box.logged("SIGHUP: tls: .*not the key of the certificate.*read before stay")
    joins("three", 1)
    cert.unlink()
    box.kill(signal.SIGHUP)
    box.logged("SIGHUP: tls: .*No such file.*read before stay")
    joins("four", 1)
    with steady[0].out.changed:
        steady[0].seen = len(steady[0].out.lines)
    steady[0].event("progress")
    steady[0].tell()
    for worker in steady:
        worker.good()
    box.stop()
    box = Box(cores=1)
    box.kill(signal.SIGHUP)
    box.logged("SIGHUP: nothing to read anew: tls is off")
    box.stop()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PHUBD, [PHUBD, "--listen=127.0.0.1:0", "--data-ports=any", "--cores=1"])
    said = b""
    while b"listening on" not in said or b"\n" not in said.split(b"listening on")[1]:
        said += os.read(terminal, 4096)
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    check(status == 0, f"a box whose terminal was closed ended with {status}")


def answers(box, said):
    """All that the box says to these bytes."""
    with socket.create_connection(("127.0.0.1", box.port), 60) as sock:
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                heard += data
        return heard


class Between:
    """Somebody on the way, who takes a plain control session and its tcp data connections over: hears all, changes some of it."""

    def __init__(self, box, hello=None, data=None):
        self.box, self.hello, self.data = box, hello or bytes, data or (lambda at, heard: heard)
        self.up, self.down = bytearray(), bytearray()
        self.control, self.inner = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        self.url = f"phub://127.0.0.1:{self.control.getsockname()[1]}/tapped"
        threading.Thread(target=self._control, daemon=True).start()

    def _control(self):
        near, _ = self.control.accept()
        far = socket.create_connection(("127.0.0.1", self.box.port))
        threading.Thread(target=self._carry, args=(near, far, None, self.hello), daemon=True).start()
        self._carry(far, near, None, self._elsewhere)

    def _elsewhere(self, heard):
        """The box says where its data port is; the worker hears where ours is: as many digits, and nothing seals that."""
        found = re.search(rb"127\.0\.0\.1:(\d{5})", heard)
        if not found:
            return heard
        threading.Thread(target=self._data, args=(int(found[1]),), daemon=True).start()
        return heard.replace(found[0], b"127.0.0.1:%d" % self.inner.getsockname()[1])

    def _data(self, port):
        near, _ = self.inner.accept()
        far = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=self._carry, args=(near, far, self.up, lambda heard: self.data(len(self.up), heard)),
                         daemon=True).start()
        self._carry(far, near, self.down, bytes)

    @staticmethod
    def _carry(source, target, kept, change):
        with contextlib.suppress(OSError):
            while heard := source.recv(65536):
                said = change(heard)
                if kept is not None:
                    kept += heard
                target.sendall(said)
            target.shutdown(socket.SHUT_WR)


NO_SUPPORT = ("ENOTSUP", "EOPNOTSUPP")
SECRET = {"PHUB_SECRET": "sesame"}
ENCRYPTED = {**SECRET, "PHUB_ENCRYPT": "1"}
TAPPED = {"transport": "tcp", "keys": "w:40000", "rounds": 3}


def secret_box(**options):
    return Box(cores=1, transports="tcp,shm", create="secret", create_secret_env="SECRET", env={"SECRET": "sesame"}, **options)


def encrypted():
    """who is on the way sees what a plain job pushes and gets, and nothing of an encrypted one"""
    box = secret_box()
    taps = []
    for env in (SECRET, SECRET, ENCRYPTED):
        taps.append(Between(box))
        Worker(taps[-1].url, env=env, **TAPPED).good()
    plain, again, hidden = taps
    for heard, other, sealed in ((plain.up, again.up, hidden.up), (plain.down, again.down, hidden.down)):
        check(len(heard) > 3 * 160000, f"{len(heard)} bytes")
        known = {bytes(heard[at:at + 32]) for at in range(10000, len(heard) - 32, 997)}
        seen = sum(word in other for word in known)
        check(seen > len(known) // 2, f"{seen} of {len(known)} in the same plain job")
        check(len(sealed) > len(heard), f"{len(sealed)} bytes sealed of {len(heard)}")
        check(not any(word in sealed for word in known), "gradients or results of an encrypted job were seen")
    box.stop()


def mirrored(env):
    """All that goes from a box to its standby while a job runs, and back."""
    standby = secret_box()
    tap = Between(standby)
    box = secret_box(standby="127.0.0.1:%d" % tap.control.getsockname()[1])
    workers = job(box.url("tapped"), 2, env=env, keys="w:4000", transport="tcp", rounds=200, pause_us=5000)
    for worker in workers:
        worker.good()
    standby.logged("mirrored here")
    box.stop()
    standby.stop()
    return bytes(tap.up), bytes(tap.down)


def encrypted_to_a_standby():
    """who is between a box and its standby sees the sums of a plain job, and nothing of an encrypted one, whose answers are sealed"""
    (heard, answers), (other, _), (sealed, trailers) = mirrored(SECRET), mirrored(SECRET), mirrored(ENCRYPTED)
    check(min(len(heard), len(sealed)) > 100 * 16000, f"{len(heard)} and {len(sealed)} bytes")
    heads = [at.start() for at in re.finditer(b"PHUB", heard)]  # headers are plain, and the same in both
    known = {heard[at:at + 32] for at in range(10000, len(heard) - 32, 4999)
             if not any(head - 32 < at < head + 64 for head in heads)}
    seen = sum(word in other for word in known)
    check(seen > len(known) // 2, f"{seen} of {len(known)} in the same plain job")
    check(not any(word in sealed for word in known), "sums of an encrypted job were seen")
    check(len(trailers) > 1.5 * len(answers), f"{len(trailers)} bytes of answers, {len(answers)} in clear")


def encrypted_is_not_changed():
    """a byte that is changed on the way ends the worker's connection, with a word for it at both ends; others go on"""
    box = secret_box()
    steady = job(box.url("others"), 2, env=ENCRYPTED, rounds="until-told", keys="w:5000", transport="tcp", pause_us=1000)

    def spoil(at, heard):
        if not at <= 200000 < at + len(heard):
            return heard
        spoilt = bytearray(heard)
        spoilt[200000 - at] ^= 1
        return bytes(spoilt)

    worker = Worker(Between(box, data=spoil).url, env=ENCRYPTED, **TAPPED)
    worker.failed("EPROTO", "a push was forged or changed on its way")
    box.logged("tapped.*a push was forged or changed on its way")
    shown = [json.loads(line) for line in phub("jobs", "--json", box.address).splitlines()]
    total = next(line["dropped"] for line in shown if line.get("box"))
    check(total["forged"] == 1, f"of a job that is over: {total}")
    good = next(line["dropped"] for line in shown if line.get("job") == "others")
    check(set(good) == set(total) and not any(good.values()), f"of a job that nobody touched: {good}")
    check("all jobs so far: messages dropped, 1: forged 1\n" in phub("jobs", box.address), "not told")
    check(re.search(r"warn +forged +the box has dropped 1 messages", phub("doctor", box.address)), "doctor says nothing")
    for other in steady:
        other.tell()
    for other in steady:
        other.good()
    box.stop()


def encrypted_is_agreed():
    """worker and box that do not agree on encryption say so, also when somebody on the way strikes it from what is asked"""
    box = secret_box(data_encryption="off")
    Worker(box.url("a"), env=ENCRYPTED).failed(NO_SUPPORT, "the box does not do .data_encryption: off.")
    Worker(box.url("a"), env=SECRET).good()
    box.stop()
    box = secret_box(data_encryption="require")
    Worker(box.url("a"), env=SECRET).failed("EACCES", "encrypted data alone .data_encryption: require.", "PHUB_ENCRYPT=1")
    Worker(box.url("a"), env=ENCRYPTED, transport="shm").good()
    Worker(box.url("a"), env={"PHUB_ENCRYPT": "1"}).failed("EINVAL", "needs the job's secret")
    Worker(box.url("a"), env={**SECRET, "PHUB_ENCRYPT": "yes"}).failed("EINVAL", "PHUB_ENCRYPT='yes'")
    tap = Between(box, hello=lambda said: said.replace(b"\x60\x01", b"\x60\x00", 1))
    Worker(tap.url, env=ENCRYPTED).failed("EACCES", "encrypted data alone")
    box.stop()
    box = secret_box()
    tap = Between(box, hello=lambda said: said.replace(b"\x60\x01", b"\x60\x00", 1))
    Worker(tap.url, env=ENCRYPTED).failed(NO_SUPPORT, "knows nothing of encrypted data")
    two = [Worker(box.url("b"), rank, 2, env=env) for rank, env in enumerate((SECRET, ENCRYPTED))]
    for worker in two:
        worker.failed("EBADMSG", "encrypt differs")
    box.stop()
    box = Box(cores=1)
    Worker(box.url("a"), env=ENCRYPTED).failed("EACCES", "asks for encrypted data and has no secret")
    box.stop()


def replayed():
    """what a worker said once, said again to the same box: its proof is worth nothing, plain or over TLS"""
    cert, _ = certificate("box")
    box = sealed_box("allow", create="secret", create_secret_env="SECRET", env={"SECRET": "sesame"})
    for env in ({}, {"PHUB_TLS_CA": str(cert)}):
        _, said = overheard(box, {"PHUB_SECRET": "sesame", **env})
        check(len(said) > 200, f"{len(said)} bytes")
        heard = answers(box, said)
        if env:
            box.logged("stranger 127.0.0.1:[0-9]+ refused: TLS")
        else:
            holds(heard.decode(errors="replace"), "wrong secret")
    check(box.err.text().count("joined:") == 2, "the second session joined a job")
    box.stop()


def boxes():
    """boxes of several racks that take TLS alone, with one secret: the box above is called by phubs://,
    those beside as they say; one with another secret is refused"""
    cert, key = certificate("box")
    shared = {"cores": 1, "tls": "require", "tls_cert": cert, "tls_key": key, "create": "secret", "create_secret_env": "SECRET"}
    env = {"SECRET": "sesame", "PHUB_TLS_CA": str(cert)}
    top = Box(name="top", hierarchy="sharded", env=env, **shared)
    below = [Box(name=name, uplink=f"phubs://{top.address}", env=env, **shared) for name in ("a", "b")]
    workers = [Worker(box.url("spread"), rank, 3, env={"PHUB_SECRET": "sesame", "PHUB_TLS_CA": str(cert)}, rounds=20, optimizer="adam",
                      transport="tcp",
                      keys="a:30000,b:40000") for rank, box in enumerate([top, *below])]
    for worker in workers:
        worker.good()
    below[0].logged("box 127.0.0.1:[0-9]+ lifts chunks to this box")
    other = Box(name="other", uplink=f"phubs://{top.address}", env={**env, "SECRET": "open"}, **shared)
    Worker(other.url("spread"), 0, 2, env={"PHUB_SECRET": "open", "PHUB_TLS_CA": str(cert)},
           transport="tcp").failed("EACCES", "have different secrets")
    blind = Box(name="blind", uplink=f"phubs://{top.address}", env={"SECRET": "sesame"}, **shared)
    blind.logged("uplink: phubs:// needs to know the other box: set PHUB_TLS_CA")
    for box in (blind, other, *below, top):
        box.stop()


def too_many():
    """who knocks without end is closed unheard, is counted, and keeps no worker out; who proves himself does not count"""
    box = Box(cores=1, handshake_rate_source=5)
    for number in range(40):  # twice what a burst may have, none of it a stranger
        holds(phub("jobs", box.address), "no jobs|core")
    callers, closed = [], 0
    for _ in range(300):
        sock = socket.create_connection(("127.0.0.1", box.port), 60)
        sock.settimeout(0.5)
        callers.append(sock)
    for sock in callers[30:]:
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            closed += b"too many newcomers" in sock.recv(4096)
    check(closed > 240, f"{closed} of 300 were told and closed")
    holds(phub("jobs", box.address), "no jobs|core")  # tries again until it is heard
    Worker(box.url("late"), keys="a:10").good()
    line = [json.loads(line) for line in phub("jobs", "--json", box.address).splitlines()][0]
    check(line["strangers_limited"] >= closed and line["strangers_refused"] >= line["strangers_limited"], f"{line}")
    holds(phub("jobs", box.address), "because too many came at once: [1-9]")
    box.logged("closed unheard.*handshake_rate_source")
    for sock in callers:
        sock.close()
    box.stop()


def half_open(box, source, port):
    """Knocks at a port from this address until told to stop, and keeps the last 2000 connections. (stop, counts)."""
    over, callers, counts = threading.Event(), collections.deque(maxlen=2000), {"made": 0, "failed": 0}

    def flood():
        while not over.is_set():
            sock = socket.socket()
            try:
                sock.bind((source, 0))
                sock.settimeout(5)
                sock.connect(("127.0.0.1", port))
                counts["made"] += 1
            except OSError:
                counts["failed"] += 1
                over.wait(0.01)
            callers.append(sock)

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()

    def stop():
        over.set()
        for thread in threads:
            thread.join()
    return stop, counts


def limited(box):
    return json.loads(phub("jobs", "--json", box.address).splitlines()[0])["strangers_limited"]


def flooded_data_port():
    """half-open data connections of one address without end: others come in, and their jobs run as if nothing was"""
    port = free_port()
    box = Box(cores=1, data_ports=port, handshake_rate_source=20)
    steady = Steady(box)
    stop, counts = half_open(box, "127.0.0.2", port)
    try:
        deadline = time.monotonic() + 60
        while counts["made"] < 1000:
            check(time.monotonic() < deadline, f"{counts}")
            time.sleep(0.01)
        for number in range(5):
            begun = time.monotonic()
            for worker in job(box.url(f"others-{number}"), 4, transport="tcp", keys="a:1000", rounds=5, timeout_ms=20000):
                result = worker.good()
                check(result["rounds"] == 5, f"{result}")
            check(time.monotonic() - begun < 15, f"a job took {time.monotonic() - begun:.1f} s beside the flood")
    finally:
        stop()
    say(f"{counts['made']} connections of the flood, {limited(box)} closed unheard")
    check(limited(box) > counts["made"] / 2, f"{limited(box)} of {counts}")
    box.logged("data connection of 127.0.0.2:[0-9]+ is closed unheard.*handshake_rate_source")
    steady.end()
    box.stop()


def flooded_from_here():
    """who has to share an address with a flood comes in when it is over, and tries until then"""
    port = free_port()
    box = Box(cores=1, data_ports=port, handshake_rate_source=2)
    stop, counts = half_open(box, "127.0.0.1", port)
    try:
        deadline = time.monotonic() + 60
        while counts["made"] < 100:
            check(time.monotonic() < deadline, f"{counts}")
            time.sleep(0.01)
        workers = job(box.url("patient"), 2, transport="tcp", keys="a:1000", rounds=5)
        time.sleep(1)
        check(all(worker.process.poll() in (None, 0) for worker in workers), "a worker gave up")  # one may have had luck
    finally:
        stop()
    for worker in workers:
        worker.good()
    box.stop()


class Reluctant:
    """Stands before a box, and has no time for newcomers for so many times; None: never."""

    def __init__(self, box, times):
        self.doors, self.box, self.times, self.came = socket.create_server(("127.0.0.1", 0)), box, times, 0
        self.address = f"127.0.0.1:{self.doors.getsockname()[1]}"
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self):
        text = raw.encode((1, 15), (2, "too many newcomers came at once"), (3, -1))
        frame = raw.encode((raw.ERROR, text))
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.doors.accept()
                self.came += 1
                if self.times is None or self.came <= self.times:
                    caller.sendall(len(frame).to_bytes(4, "little") + frame)
                    caller.close()
                else:
                    there = socket.create_connection(("127.0.0.1", self.box.port))
                    for pair in ((caller, there), (there, caller)):
                        threading.Thread(target=carry, args=pair, daemon=True).start()


def carry(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def busy():
    """a worker and the operator try again when the box has no time for newcomers, and say so when their time is over"""
    box = Box(cores=1)
    never, soon = Reluctant(box, None), Reluctant(box, 3)
    begun = time.monotonic()
    holds(phub("jobs", never.address, status=1), "too many newcomers came at once.*tries in [3-5][.]")
    check(never.came > 4 and time.monotonic() - begun > 3, f"{never.came} tries")
    holds(phub("doctor", never.address, status=1), "too many newcomers came at once", "raise handshake_rate_source")
    Worker(f"phub://{never.address}/late", keys="a:10", timeout_ms=1500).failed(
        ("ETIMEDOUT", "EBUSY"), "job late", "did not let it in: too many newcomers came at once", "1500 ms")
    holds(phub("jobs", soon.address), "no jobs")
    check(soon.came == 4, f"{soon.came} tries")
    soon.came = 0
    Worker(f"phub://{soon.address}/late", keys="a:10").good()
    box.stop()


def status_of(box):
    """The kernel's view of a box: every thread's lines that begin with these words."""
    tasks = pathlib.Path(f"/proc/{box.pid}/task")
    found = []
    for task in tasks.iterdir():
        lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found.append({name: lines[name].split() for name in ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapInh", "CapBnd",
                                                             "CapAmb", "NoNewPrivs")})
    return found


def privileges():
    """root becomes a user that may nothing, in all of its threads, and serves jobs as before; others are told what to do"""
    if os.geteuid() != 0:
        raise Skip("needs root, to become another user")
    nobody = pwd.getpwnam("nobody")
    secret = FOLDER / "of-root-alone"
    secret.write_text("sesame")
    secret.chmod(0o600)
    cert, key = certificate("box")
    for transports, kept in (("tcp,shm,udp", 0), ("tcp,shm", 0)):
        box = Box(cores=2, user="nobody", transports=transports, create="secret", create_secret_file=secret, tls="allow",
                  tls_cert=cert, tls_key=key)
        box.logged("runs as user nobody .uid [0-9]+., keeps no capabilities")
        worker = job(box.url("demo"), 2, env={"PHUB_SECRET": "sesame"}, keys="a:100000")
        for thread in status_of(box):
            check(set(thread["Uid"]) == {str(nobody.pw_uid)} and set(thread["Gid"]) == {str(nobody.pw_gid)}, f"{thread}")
            check("0" not in thread["Groups"], f"{thread}")
            check(all(int(thread[name][0], 16) == kept for name in ("CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd")),
                  f"{thread}")
            check(thread["NoNewPrivs"] == ["1"], f"{thread}")
        for one in worker:
            one.good()
        box.stop()
    for options, words in ((["--user=nobody-of-this-name"], "there is no 'nobody-of-this-name'; create it"),
                           (["--group=nogroup"], "set user too"),
                           (["--user=nobody", "--group=no-group-of-this-name"], "groupadd")):
        for check_only in ([], ["--check-config"]):
            done = subprocess.run([PHUBD, *check_only, *options], capture_output=True, text=True, env=QUIET, timeout=60)
            check(done.returncode == 1, f"{options}: {done.returncode}")
            holds(done.stderr, words)
    copy = FOLDER / "phubd"
    shutil.copy(PHUBD, copy)
    FOLDER.chmod(0o711)
    done = subprocess.run([copy, "--check-config", "--user=root"], user="nobody", group="nogroup", extra_groups=[],
                          capture_output=True, text=True, env=QUIET, timeout=60)
    holds(done.stderr, "only root may become 'root'")


def loud():
    """a box at a public address says once what is plain there, and phub jobs and doctor each time; one elsewhere does not"""
    if os.geteuid() != 0:
        raise Skip("needs root, for a network of its own")
    cert, key = certificate("box")
    prefix = ["unshare", "-n", "sh", "-c", "ip link set lo up && ip address add 203.0.113.7/32 dev lo && exec \"$@\"", "sh"]
    options = {"cores": 1, "create": "secret", "create_secret_env": "SECRET", "env": {"SECRET": "sesame"}}
    for more, words in (({}, "control sessions .tls: off., and reads gradients"),
                        ({"tls": "require", "tls_cert": cert, "tls_key": key}, "on the way to it reads gradients")):
        box = Box(listen="127.0.0.1:0,203.0.113.7:0", prefix=prefix, **options, **more)
        box.logged("warn +203.0.113.7 is a public address.*" + words)
        inside = ["nsenter", "-t", str(box.pid), "-n"]
        for command in ("jobs", "doctor"):
            done = subprocess.run([*inside, PHUB, command, box.address], capture_output=True, text=True, timeout=60,
                                  env={**QUIET, **({"PHUB_TLS_CA": str(cert)} if more else {})})
            holds(done.stdout, "203.0.113.7 is a public address.*" + words)
        check(box.err.text().count("is a public address") == 1, "said more than once")
        box.stop()
    box = Box(cores=1)
    check("public address" not in phub("jobs", box.address) + box.err.text(), "a box on loopback complains")
    box.stop()


if __name__ == "__main__":
    run([tls_hides, tls_of_workers, tls_files, reloaded, encrypted, encrypted_to_a_standby, encrypted_is_not_changed, encrypted_is_agreed,
         replayed, boxes, too_many,
        flooded_data_port, flooded_from_here, busy, privileges, loud])
