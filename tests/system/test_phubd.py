#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phubd as an operator meets it: start, options and their errors, the end by SIGTERM and by SIGKILL, and what it costs idle.

Usage: test_phubd.py [WORD...]    only the cases whose names hold one of the words
"""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import DEADLINE_S, PHUBD, QUIET, Box, Skip, Worker, check, holds, job, run, say  # noqa: E402


def ask(*words, env=None):
    """Runs phubd to its end: exit status, stdout, stderr."""
    done = subprocess.run([PHUBD, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=DEADLINE_S, env={**QUIET, **(env or {})})
    return done.returncode, done.stdout, done.stderr


def config(text):
    file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
    file.write(text)
    file.flush()
    return file


def refused(status, *words, options=(), text=None):
    """It must not start, say one line to stderr that holds the words, and exit with this status."""
    file = config(text) if text is not None else None
    got, out, error = ask(*(["--config", file.name] if file else []), *options)
    check(got == status, f"exit status {got} instead of {status}: {out}{error}")
    check(out == "" and error.count("\n") == 1 and error.startswith("phubd: "), f"not one line of error: {out}{error}")
    holds(error, *words)
    return error


def shm_files():
    return {name for name in os.listdir("/dev/shm") if "phub" in name}


def abstract_sockets(pid):
    """A box's own: other tests have boxes too."""
    return set(re.findall(rf"@(phub-{pid}-\S*)", pathlib.Path("/proc/net/unix").read_text()))


def default_start():
    """without a file it serves loopback on the default port, says so in its first line, and ends cleanly on SIGTERM"""
    prefix = []
    if os.geteuid() == 0 and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0:
        prefix = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]
    else:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 7077)) == 0:
                raise Skip("port 7077 is in use, and no network namespace of its own without root")
    box = Box(listen=None, data_ports=None, prefix=prefix)
    check(re.fullmatch(r"phubd: listening on 127\.0\.0\.1:7077 \(tcp, shm\), .*", box.first_line), box.first_line)
    began = time.monotonic()
    box.stop()
    say(f"SIGTERM to exit: {time.monotonic() - began:.3f} s")
    check(len(box.out.lines) == 1, f"it said more: {box.out.text()}")


def terminate():
    """SIGTERM and SIGINT with jobs in full run: workers are told, nothing stays behind"""
    for number in (signal.SIGTERM, signal.SIGINT):
        box = Box(cores=2)
        workers = job(box.url("cut"), 2, transport=lambda rank: ("tcp", "shm")[rank], rounds="until-told", report_ms=20,
                      pause_us=0)
        idle = [Worker(box.url("waits"), 0, 2)]
        idle[0].event("connected")
        for worker in workers:
            worker.event("progress")
        began = time.monotonic()
        box.kill(number)
        check(box.wait() == 0, f"exit status {box.wait()}: {box.err.text()[-1000:]}")
        say(f"{signal.Signals(number).name} to exit: {time.monotonic() - began:.3f} s")
        for worker in workers + idle:
            worker.failed("ESHUTDOWN", f"job {worker.name.split('.')[0]} rank", "going down")
    check(not shm_files(), f"left in /dev/shm: {shm_files()}")


def killed():
    """SIGKILL leaves nothing behind: no file, no socket, no port; workers end with an error, and the next box starts"""
    box = Box(cores=2)
    endless = {"rounds": "until-told", "report_ms": 20}
    workers = job(box.url("k"), 3, transport=lambda rank: ("shm", "shm", "tcp")[rank], **endless)
    for worker in workers:
        worker.event("progress")
    links = []
    for fd in os.listdir(f"/proc/{box.pid}/fd"):
        links.append(os.readlink(f"/proc/{box.pid}/fd/{fd}"))
    check(any(link.startswith("/memfd:") for link in links), f"no memory of shm: {links}")
    check(not any(link.startswith("/dev/shm") for link in links), f"files in /dev/shm: {links}")
    check(abstract_sockets(box.pid), "no abstract socket seen, so their end is not either")
    box.kill()
    box.wait()
    for worker in workers:
        result = worker.result()
        check(result["rc"] < 0, "a worker did not notice")
        holds(result["error"], "job k rank", box.address)
    check(not shm_files(), f"left in /dev/shm: {shm_files()}")
    check(not abstract_sockets(box.pid), f"sockets left: {abstract_sockets(box.pid)}")
    again = Box(listen=box.address)
    for worker in job(again.url("k"), 3):
        worker.good()
    again.stop()


def ports_taken():
    """a port that is taken, also by another box, and a range of data ports that is"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        refused(1, f"port {taken} of 127.0.0.1 is taken", "another port", options=["--listen", f"127.0.0.1:{taken}"])
        refused(1, str(taken), options=["--listen", "127.0.0.1:0", "--data-ports", str(taken)])
    box = Box()
    refused(1, f"port {box.port} of 127.0.0.1 is taken", options=["--listen", box.address])
    box.stop()


def config_errors():
    """a config with an unknown key, a value out of range or worse: file, line, and what is allowed; exit status 1"""
    cases = [
        ("listen: [\"127.0.0.1:0\"]\nheartbeets_ms: 10\n", ":2: ", "heartbeets_ms", "heartbeat_ms"),
        ("poll: adaptive\n\nspin_us: 0\n", ":3: ", "spin_us", "'0' is out of range", "1 to 1000000"),
        ("heartbeat_ms: -5\n", ":1: ", "heartbeat_ms", "10 to 600000"),
        ("poll: frantic\n", ":1: ", "poll", "adaptive, busy"),
        ("transports: [tcp, pigeon]\n", ":1: ", "transports", "tcp, shm"),
        ("chunk_bytes: 33000\n", ":1: ", "chunk_bytes", "powers of two"),
        ("data_ports: 9-5\n", ":1: ", "data_ports", "1-65535"),
        ("listen: [\"nowhere\"]\n", ":1: ", "listen", "host:port"),
        ("cores: 2\ncores: 3\n", ":2: ", "cores"),
        ("jobs:\n  - name: a\n    world: 5000\n", ":3: ", "world", "0 to 1024"),
        ("jobs:\n  - name: a\n    colour: red\n", ":3: ", "colour", "memory_max"),
        ("jobs:\n  - world: 2\n", ":2: ", "name"),
        ("poll: [unclosed\n", ":[12]: "),
        ("- a\n- list\n", ":1: "),
        ("poll:\n  deeper: 1\n", ":[12]: ", "poll"),
    ]
    for text, *words in cases:
        refused(1, r"\.yaml:\d+: ", *words, text=text)
    refused(1, "no-such-file.yaml", options=["--config", "/tmp/no-such-file.yaml"])
    refused(2, "spin_us", "1 to 1000000", options=["-o", "spin_us=0"])
    refused(2, "window", "2 to 4096", options=["--window", "1"])
    for option in (["--transports", "quic"], ["-o", "transports=quic"]):
        refused(2, "transports: 'quic' is not understood: this build has no transport 'quic'; allowed: tcp, shm", options=option)
    refused(2, "memory_max: '8GB' is not understood; allowed: auto, or bytes from 1MiB, like 8GiB", options=["--memory-max", "8GB"])
    refused(1, "memory_max: '900TiB' is more than this machine", "at most [0-9]+MiB$", options=["-o", "memory_max=900TiB"])
    refused(2, "colour", options=["--colour", "red"])
    refused(2, "colour", options=["-o", "colour=red"])
    refused(2, "needs a value", options=["--window"])
    refused(2, "rubbish", options=["rubbish"])
    refused(1, "warn_ms 2000", "lost_ms 1500", options=["-o", "lost_ms=1500"])
    refused(1, "create", "jobs", options=["--create", "never"])
    # What options do to each other names the line of one that the file sets, and no line of one that it does not.
    for text, *words in (("poll: busy\nlost_ms: 1500\n", ":2: warn_ms 2000 is not below lost_ms 1500"),
                         ("\nwarn_ms: 500\n", ":2: heartbeat_ms 1000 is not below warn_ms 500"),
                         ("poll: busy\nlisten: ['*:0']\n", r":2: listen: \* is not loopback"),
                         ("jobs:\n  - {name: a, secret_env: HOME}\n  - {name: open}\nlisten: ['*:0']\ncreate: never\n",
                          ":3: .*job 'open' has no secret"),
                         ("poll: busy\n\ncreate: secret\n", ":3: create: secret needs"),
                         ("create: secret\ncreate_secret_file: /nosuch\n", ":2: /nosuch: "),
                         ("memory_max: 900TiB\n", ":1: memory_max: ")):
        refused(1, r"\.yaml:\d+: ", *words, text=text)
    error = refused(1, "warn_ms 2000 is not below lost_ms 1500", text="lost_ms: 3000\n", options=["-o", "lost_ms=1500"])
    check(".yaml" not in error, error)
    for check_only in ([], ["--check-config"]):
        refused(1, "nosuch0", options=["--listen", "127.0.0.1:0", "--interface", "nosuch0", *check_only])
        refused(1, "cores: CPU 9999 is not there", options=["--listen", "127.0.0.1:0", "--cores", "[0, 9999]", *check_only])
        refused(1, "192.0.2.1", options=["--listen", "192.0.2.1:0", "--create", "secret", "-o", "create_secret_env=HOME", *check_only])
    status, out, error = ask("--check-config", "--listen", "127.0.0.1:0", "--interface", "lo", "--cores", "[0]")
    check(status == 0 and "the options are good (no port was tried)" in out, error)
    status, out, _ = ask("--help")
    check(status == 0 and "--dump-config" in out, "no help")
    status, out, _ = ask("--version")
    check(status == 0 and re.match(r"phubd \d+\.\d+\.\d+\n$", out), "no version")


def dump():
    """--dump-config names every option with help, value and what is allowed, and loads again to the same"""
    changed = ["-o", "listen=127.0.0.1:7171, [::1]:7171", "-o", "cores=[0]", "-o", "memory_max=1GiB", "-o", "poll=busy",
               "-o", "data_ports=any", "-o", "create_secret_env=SECRET", "-o", "huge_pages=false", "-o", "stores=cached"]
    for options in ([], changed):
        status, first, error = ask(*options, "--dump-config")
        check(status == 0, error)
        file = config(first)
        status, second, error = ask("--config", file.name, "--dump-config")
        check(status == 0 and second == first, f"it reads its own dump as another: {error}{second}")
        for name in ("listen", "interface", "data_ports", "transports", "cores", "poll", "memory_max", "lost_ms", "jobs"):
            holds(first, rf"(?m)^{name}:")
        holds(first, "Allowed: 1 to 1000000")
    with_jobs = config("jobs:\n  - {name: a, world: 3, memory_max: 2MiB}\n  - {name: \"b'c\", secret_env: X}\n")
    first = ask("--config", with_jobs.name, "--dump-config")[1]
    file = config(first)
    check(ask("--config", file.name, "--dump-config")[1] == first, "jobs are not what they were")


def public():
    """a public address without secrets is refused; so is a secret that everybody can read"""
    refused(1, r"0\.0\.0\.0|\*", "secret", options=["--listen", "0.0.0.0:0"])
    refused(1, r"\*", "secret", options=["--listen", "*:0"])
    refused(1, "job 'open'", "no secret", text="listen: ['*:0']\ncreate: never\njobs: [{name: open}]\n")
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write("sesame\n")
        secret.flush()
        os.chmod(secret.name, 0o644)
        options = ["--listen", "*:0", "-o", "create=secret", "-o", f"create_secret_file={secret.name}"]
        refused(1, secret.name, "chmod 600", options=options)
        os.chmod(secret.name, 0o600)
        status, out, error = ask(*options, "--check-config")
        check(status == 0 and "good" in out, error)
        box = Box(listen="*:0", create="secret", create_secret_file=secret.name)
        url = f"phub://127.0.0.1:{box.port}/guarded"
        Worker(url, secret="guess").failed("EACCES", "wrong secret")
        for transport in ("tcp", "shm"):
            for worker in job(url, 2, secret="sesame", transport=transport):
                worker.good()
        box.stop()


def dpdk_ports():
    """ports of DPDK that cannot be read are refused before anything starts"""
    for check_only in ([], ["--check-config"]):
        refused(1, "transport dpdk needs a port", "dpdk_ports",
                options=["--listen", "127.0.0.1:0", "-o", "transports=tcp,dpdk", *check_only])
        refused(1, r"10\.78\.0\.999", options=["--listen", "127.0.0.1:0", "-o", "transports=tcp,dpdk", "-o",
                                             "dpdk_ports=net_null0@10.78.0.999/24", *check_only])
        refused(1, "net_null1.* in a network of its own", options=["--listen", "127.0.0.1:0", "-o", "transports=tcp,dpdk", "-o",
                                                                 "dpdk_ports=net_null0@10.78.0.1/24;net_null1@10.78.0.2/24", *check_only])


def interface():
    """an address that is none of the interface's is refused, as nobody could reach it; all addresses of it are served"""
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    for other in others[:1]:
        for check_only in ([], ["--check-config"]):
            refused(1, f"listen: 127.0.0.1: 127.0.0.1 is not an address of interface {other}", r"listen on .*\*, or leave interface",
                    options=["--listen", "127.0.0.1:0", "-o", f"interface={other}", *check_only])
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write("sesame\n")
        secret.flush()
        box = Box(listen="*:0", interface="lo", create="secret", create_secret_file=secret.name)
        for transport in ("tcp", "shm"):
            for worker in job(f"phub://127.0.0.1:{box.port}/lo", 2, secret="sesame", transport=transport):
                worker.good()
        box.stop()
    if not others:
        raise Skip("the first half needs a network interface beside lo")


def busy():
    """busy polling serves as well, and a congestion control that the kernel lacks is no more than a warning"""
    box = Box(poll="busy", cores=1, congestion="pigeon")
    box.logged("refuses congestion control pigeon")
    for worker in job(box.url("b"), 2, rounds=5, optimizer="adam"):
        worker.good()
    box.stop()


def cpu_s(box):
    """CPU time of all its threads so far, in nanoseconds as the scheduler counts it."""
    return sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{box.pid}/task").glob("*/schedstat")) / 1e9


def idle():
    """phubd with 4 connected idle workers uses under 1 % of a core, over tcp and over shared memory"""
    boxes = {transport: Box(cores=2, poll="adaptive") for transport in ("tcp", "shm")}
    workers = []
    for transport, box in boxes.items():
        workers += job(box.url("idle"), 4, transport=transport, idle=1, keys="layer:1000000")
    for worker in workers:
        worker.event("idle")
    before = {box: cpu_s(box) for box in boxes.values()}
    began = time.monotonic()
    time.sleep(3)  # three heartbeats of each worker
    span = time.monotonic() - began
    for transport, box in boxes.items():
        share = (cpu_s(box) - before[box]) / span
        say(f"{transport}: {100 * share:.2f} % of a core")
        check(share < 0.01, f"{transport}: {100 * share:.2f} % of a core when idle")
    for worker in workers:
        worker.tell()
    for worker in workers:
        worker.good()
    for box in boxes.values():
        box.stop()


run([default_start, terminate, killed, ports_taken, config_errors, dump, public, dpdk_ports, interface, busy, idle])
