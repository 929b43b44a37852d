#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The exchange over DPDK beside testpmd on the same devices of software, and beside the kernel's sockets on the same wire.

     box  ---- pair: dpdk0 <-> uplink ---------- worker      a veth pair, namespaces of their own; or a memif
     box  ---- pair: xdp0 <-> xdp1 ------------- worker      the same, all whose frames XDP takes: no stream goes over it
     box  ---- bridge ---- port0.. <-> uplink -- worker0..   the same for more workers

Usage: dpdk.py           measures; writes $OUT/dpdk.md, and dpdk.jsonl with one line for every run
       dpdk.py --readme  puts what dpdk.md has into README.md, between its two marks

Environment: BUILD  where phub is (build)
             OUT    where results go (BUILD)
             RUNS   runs of each (5), taking turns; medians count
             QUICK  1: few rounds and short stretches, to see that all of it works

testpmd moves frames of 1514 bytes one way from one process to another (txonly, rxonly), and what the receiver's port has
counted in some seconds is its rate. phub's bytes are those of frames in both directions together: what the payload, the
headers of each datagram and the acknowledgements come to, by the number of datagrams that either side has sent; on a veth
pair what the kernel counts stands beside it. Its frames of data have at most 1490 bytes. Polling core and worker, sender and
receiver have a CPU each, the same ones. testpmd looks at no byte; phub sums and checks them. A memif and af_packet of
DPDK 22.11 take no frames larger than 1518 bytes, so no MTU of 9000 is compared.

Needs root and dpdk-testpmd (Debian: dpdk-dev). Where the kernel has no sockets of XDP's, or DPDK no net_af_xdp, a line of the
table says so. Its namespaces are called phub-dpdk-PID-NAME and are removed in every case. Whether a share is reached is
printed; the exit code does not depend on it.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time

import report
from rack import holder, told
from run import commit
from systems import BUILD, OUT, Failure, cpus_busy, make_ready, run_program

QUICK = os.environ.get("QUICK") == "1"
RUNS = int(os.environ.get("RUNS") or 5)
WANTED = 0.60
SEALS = ("gmac", "crc", "none")
CPUS = sorted(os.sched_getaffinity(0))
CHUNK, BYTES, ROUNDS, WARMUP = 32 << 10, 16 << 20, 10 if QUICK else 60, 2
FRAME, MTU = 1514, 1500
HEADERS, DATA, ACK = 14 + 20 + 8, 104, 88  # of a frame; transport/wire.h: WIRE_DATA_BYTES, WIRE_ACK_BYTES
FRAGMENT = (MTU - 28 - DATA) // 64 * 64  # reliable_fragment_for()
SECONDS = 0.5 if QUICK else 2
SECRET = os.urandom(16).hex()
NAMES = f"phub-dpdk-{os.getpid()}"
BOX, NETWORK = "10.97.0.254", "10.97.0"
WORKERS = 4
ON_PACKET, ON_XDP = "af_packet on a veth pair", "af_xdp on a veth pair"
# The box's link, what it asks for, and what its worker asks for.
PAIRS = {
    ON_PACKET: ("dpdk0", "net_af_packet0,iface=dpdk0", "net_af_packet0,iface=uplink"),
    ON_XDP: ("xdp0", "net_af_xdp0,iface=xdp0@10.98.0.254/24", "net_af_xdp0,iface=xdp1@10.98.0.1/24"),
}
PLACE = """
for name in box pair 0 1 2 3; do
	ip netns add {names}-$name
	nsenter --net=/run/netns/{names}-$name -- sh -ec '
	[ ! -e /proc/sys/net/ipv6/conf/all ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
	ip link set lo up'
done
ip -n {names}-box link add name dpdk0 type veth peer name uplink netns {names}-pair
ip -n {names}-box addr add 10.96.0.254/24 dev dpdk0
ip -n {names}-pair addr add 10.96.0.1/24 dev uplink
ip -n {names}-box link set dpdk0 up
ip -n {names}-pair link set uplink up
ip -n {names}-box link add name xdp0 up type veth peer name xdp1 netns {names}-pair
ip -n {names}-pair link set xdp1 up
ip -n {names}-box link add name bridge type bridge mcast_snooping 0
ip -n {names}-box addr add {box}/24 dev bridge
ip -n {names}-box link set bridge up
for rank in 0 1 2 3; do
	ip -n {names}-box link add name port$rank type veth peer name uplink netns {names}-$rank
	ip -n {names}-box link set port$rank master bridge up
	ip -n {names}-$rank addr add {network}.1$rank/24 dev uplink
	ip -n {names}-$rank link set uplink up
done
"""


def say(text):
    print(f"dpdk: {text}", file=sys.stderr, flush=True)


def inside(name):
    return ["nsenter", f"--net=/run/netns/{NAMES}-{name}", "--"] if name else []


def ends_with_us(words):
    return ["setpriv", "--pdeathsig", "KILL", *map(str, words)]


# ---- testpmd ----

class Testpmd:
    """One process, on one CPU, that is told what to do; what it says is in a file, for it says it in pieces."""

    def __init__(self, place, cpu, devices, mode):
        words = ["stdbuf", "-oL", "dpdk-testpmd", f"--lcores=0@{cpu},1@{cpu}", "--no-pci", "--no-huge", "-m", 256, "--no-telemetry",
                 "--no-shconf", *(f"--vdev={device}" for device in devices), "--", "-i", "--nb-cores=1", f"--forward-mode={mode}",
                 f"--txpkts={FRAME}", "--total-num-mbufs=16384", "--record-core-cycles"]
        self.log = OUT / f"dpdk-{mode}.log"
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(ends_with_us(inside(place) + words), stdin=subprocess.PIPE, stdout=out,
                                            stderr=subprocess.STDOUT, text=True)
        self.await_(r"^Done$", 0)

    def await_(self, pattern, since):
        """The match, in what it has said since then."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found = re.search(pattern, self.log.read_text(errors="replace")[since:], re.M)
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise Failure(f"dpdk-testpmd: no {pattern!r}; see {self.log}")

    def say(self, text):
        since = len(self.log.read_text(errors="replace"))
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return since

    def bytes_in(self):
        """So many came, and when that was."""
        return int(self.await_(r"RX-bytes: +(\d+)", self.say("show port stats 0")).group(1)), time.monotonic()

    def end(self):
        """It may fall over when the other end of its device has gone: what it counted is known by then."""
        with contextlib.suppress(OSError):
            self.say("stop")
            self.say("quit")
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()


def testpmd_one_way(server, client):
    """GB/s of frames from one (namespace, CPU, device) to another."""
    started = []
    try:
        started.append(Testpmd(*server[:2], [server[2]], "rxonly"))
        started.append(Testpmd(*client[:2], [client[2]], "txonly"))
        for one in started:
            one.say("start")
        time.sleep(SECONDS / 2)
        before, begin = started[0].bytes_in()
        time.sleep(SECONDS)
        after, end = started[0].bytes_in()
    finally:
        for one in started:
            one.end()
    if after == before:
        raise Failure(f"testpmd moves nothing over {server[2]}; see {OUT}/dpdk-rxonly.log")
    return (after - before) / (end - begin) / 1e9


def testpmd_null():
    """What testpmd itself says a packet costs it from one net_null to another."""
    one = Testpmd("", CPUS[0], ["net_null0", "net_null1"], "io")
    try:
        one.say("start")
        time.sleep(SECONDS)
        return float(one.await_(r"CPU cycles/packet=([\d.]+)", one.say("stop")).group(1))
    finally:
        one.end()


# ---- phub ----

def phub(place, *words, env=None):
    words = [*inside(place), BUILD / "phub", "bench", *words, "--json"]
    done = subprocess.run(ends_with_us(words), capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})
    if done.returncode:
        raise Failure(f"phub {' '.join(map(str, words[3:]))}: {done.stderr.strip()[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def exchange(place, *words, cores=None, env=None):
    """One run; its line has also what frames have moved a second, both directions together."""
    pinned = ["--set", f"cores=[{','.join(map(str, cores or CPUS[:1]))}]", "--worker-cpus", ",".join(map(str, CPUS[1:]))]
    # The box tells a worker that is elsewhere what it has sent when it has shown a secret.
    if place:
        pinned += ["--set", "admin_secret_env=PHUB_ADMIN_SECRET"]
        env = {**(env or {}), "PHUB_ADMIN_SECRET": SECRET}
    line, = phub(place, "exchange", "--bytes", BYTES, "--rounds", ROUNDS, "--timeout", 20, *pinned, *words, env=env)
    if "worker_posts_per_chunk" in line:
        data = -(-CHUNK // FRAGMENT)
        sent = [line["worker_posts_per_chunk"], line["box_posts_per_chunk"]]
        frames = sum(CHUNK + data * (HEADERS + DATA) + max(0, posts - data) * (HEADERS + ACK) for posts in sent)
        a_second = line["rounds_per_s"] * line["workers"] * BYTES / CHUNK
        line["frames_gb_per_s"] = frames * a_second / 1e9
        line["datagrams_per_s"] = sum(sent) * a_second
    return line


def memif(role, ip):
    return f"net_memif0,role={role},socket={NAMES}", f"net_memif0,role={role},socket={NAMES}@{ip}/24"


def over_memif(*words, **more):
    return exchange("", "--transport", "dpdk", "--workers", 1, "--poll", "busy", "--set", f"dpdk_ports={memif('server', '10.77.0.1')[1]}",
                    *words, env={"PHUB_DPDK": memif("client", "10.77.0.2")[1]}, **more)


def link_bytes(name):
    """That went over the veth pair, both ways, as the kernel counts them."""
    link, = json.loads(told("ip", "-n", f"{NAMES}-box", "-s", "-j", "link", "show", name))
    return link["stats64"]["rx"]["bytes"] + link["stats64"]["tx"]["bytes"]


def over_veth(transport, *words, on=ON_PACKET):
    link, box, worker = PAIRS[on]
    before = link_bytes(link)
    line = exchange("box", "--transport", transport, "--workers", 1, "--listen", "10.96.0.254", "--worker-netns", f"{NAMES}-pair",
                    "--set", f"dpdk_ports={box}", *words, env={"PHUB_DPDK": worker})
    line["link_gb_per_s"] = (link_bytes(link) - before) / (ROUNDS + WARMUP) * line["rounds_per_s"] / 1e9
    return line


def set_cut(cut):
    """Whether the kernel cuts what it sends into frames before it hands it to the pair, as DPDK's ends do."""
    for name, link in (("box", "dpdk0"), ("pair", "uplink")):
        told("ip", "-n", f"{NAMES}-{name}", "link", "set", link, "gso_max_segs", 1 if cut else 65535)


def idle_share(how):
    """Of a CPU, that a phubd of one core takes which has nothing to do."""
    words = [BUILD / "phubd", "--listen", "127.0.0.1:0", "-o", "transports=dpdk", "-o", f"dpdk_ports={memif('server', '10.77.0.1')[1]}",
             "-o", "cores=1", "-o", f"poll={how}", "-o", "log_level=warn"]
    box = subprocess.Popen(ends_with_us(words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        if "listening" not in box.stdout.readline():
            raise Failure("phubd with dpdk alone does not start")
        time.sleep(1)
        before, begin = cpu_seconds(box.pid), time.monotonic()
        time.sleep(2 * SECONDS)
        return (cpu_seconds(box.pid) - before) / (time.monotonic() - begin)
    finally:
        box.terminate()
        box.wait(15)
        box.stdout.close()


def cpu_seconds(pid):
    """Of all its threads; to the nanosecond."""
    threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


# ---- what is measured, run by run ----

def testpmd_memif():
    return {"gb_per_s": testpmd_one_way(("", CPUS[0], memif("server", "")[0]), ("", CPUS[1], memif("client", "")[0]))}


def testpmd_veth(on):
    set_cut(True)
    box, worker = (port.split("@")[0] for port in PAIRS[on][1:])
    return {"gb_per_s": testpmd_one_way(("box", CPUS[0], box), ("pair", CPUS[1], worker))}


def veth(cut, transport, *words, on=ON_PACKET):
    set_cut(cut)
    return over_veth(transport, *words, on=on)


def four_on_udp():
    return exchange("box", "--transport", "udp", "--workers", WORKERS, "--listen", BOX, "--worker-netns", f"{NAMES}-{{}}")


def seals():
    return {f"{line['seal']} {line['bytes']}": line["ns"] for line in phub("", "seals")}


def cycles():
    done = subprocess.run(ends_with_us(["taskset", "-c", CPUS[0], BUILD / "tests/bench/dpdk_cycles"]), capture_output=True, text=True,
                          timeout=60)
    if done.returncode:
        raise Failure(f"dpdk_cycles: {done.stderr.strip()[-500:]}")
    return {"testpmd": testpmd_null(), **json.loads(done.stdout)}


MEASURED = [
    ("memif", "testpmd", testpmd_memif),
    *(("memif", seal, lambda seal=seal: over_memif("--seal", seal)) for seal in SEALS),
    *((on, what, how) for on in PAIRS for what, how in (
        ("testpmd", lambda on=on: testpmd_veth(on)),
        *((seal, lambda on=on, seal=seal: veth(True, "dpdk", "--poll", "busy", "--seal", seal, on=on)) for seal in SEALS))),
    ("wire", "dpdk (af_packet)", lambda: veth(True, "dpdk")),
    ("wire", "kernel udp, frames of 1514", lambda: veth(True, "udp")),
    ("wire", "kernel tcp, frames of 1514", lambda: veth(True, "tcp")),
    ("wire", "kernel udp, uncut", lambda: veth(False, "udp")),
    ("wire", "kernel tcp, uncut", lambda: veth(False, "tcp")),
    ("four", "udp", four_on_udp),
    ("cores", "1", lambda: over_memif()),
    ("cores", "2", lambda: over_memif(cores=CPUS[:2])),
    ("idle", "adaptive", lambda: {"share": idle_share("adaptive")}),
    ("idle", "busy", lambda: {"share": idle_share("busy")}),
    ("seals", "", seals),
    ("cycles", "", cycles),
]


def why_no_xdp():
    """What XDP's sockets lack, or ""."""
    libraries = told("pkg-config", "--variable=libdir", "libdpdk").strip()
    if not [*pathlib.Path(libraries).glob("librte_net_af_xdp.*")]:
        return f"DPDK has no net_af_xdp in {libraries}"
    try:
        socket.socket(44, socket.SOCK_RAW).close()  # AF_XDP
    except OSError as error:
        return f"the kernel has no sockets of XDP's ({error.strerror})"
    return ""


def measure(without_xdp):
    """A line for every run; all take turns, so that what disturbs the machine disturbs all."""
    lines = []
    for run in range(RUNS):
        for part, what, how in MEASURED:
            if part == ON_XDP and without_xdp:
                continue
            say(f"run {run + 1} of {RUNS}: {part} {what}")
            lines.append({"part": part, "what": what, "run": run, **how()})
    return lines


# ---- the tables ----

class Results:
    def __init__(self, lines):
        self.lines = lines

    def of(self, part, what, key):
        return [line[key] for line in self.lines if line.get("part") == part and line.get("what") == what and key in line]

    def spread(self, part, what, key, form="{:.3f}", scale=1):
        values = [value * scale for value in self.of(part, what, key)]
        if not values:
            return "-"
        return f"{form.format(statistics.median(values))} ({form.format(min(values))} - {form.format(max(values))})"

    def share(self, part, seal):
        return statistics.median(self.of(part, seal, "frames_gb_per_s")) / statistics.median(self.of(part, "testpmd", "gb_per_s"))


def shares(results, part, missing=""):
    if missing:
        yield [f"{part}: left out, {missing}", "-", "-", "-", "-", "-"]
        return
    yield [f"{part}: testpmd, one way", results.spread(part, "testpmd", "gb_per_s"), "-", "-", "-", "-"]
    for seal in SEALS:
        share = results.share(part, seal)
        yield [f"{part}: phub, seal {seal}", results.spread(part, seal, "frames_gb_per_s"), results.spread(part, seal, "link_gb_per_s"),
               f"**{share:.2f}** ({WANTED:.2f} wanted: {'reached' if share >= WANTED else 'not reached'})",
               results.spread(part, seal, "gb_per_s_worker"), results.spread(part, seal, "cpu_s_per_gb", "{:.2f}")]


def wire(results):
    for part, what, _ in MEASURED:
        if part in ("wire", "four"):
            yield [f"{WORKERS} workers, kernel udp, over a bridge" if part == "four" else f"1 worker, {what}",
                   *(results.spread(part, what, key) for key in ("rounds_per_s", "gb_per_s_worker")),
                   *(results.spread(part, what, key, "{:.2f}") for key in ("box_cpu_s_per_gb", "cpu_s_per_gb"))]


def small(results):
    for cores in ("1", "2"):
        yield [f"datagrams a second, both ways, {cores} core{'s' if cores == '2' else ''} behind one queue of the device (memif)",
               results.spread("cores", cores, "datagrams_per_s", "{:,.0f}")]
    for how in ("adaptive", "busy"):
        yield [f"an idle phubd with dpdk alone, one core, {how}: share of a CPU", results.spread("idle", how, "share", "{:.2%}")]
    for line in results.lines:
        if line.get("part") == "seals" and line["run"] == 0:
            yield from ([f"seal of a datagram ({key} bytes), ns", results.spread("seals", "", key, "{:.0f}")]
                        for key in line if re.fullmatch(r"\w+ \d+", key))
    yield ["testpmd, io forward from net_null to net_null: cycles a packet", results.spread("cycles", "", "testpmd", "{:.0f}")]
    for line in results.lines:
        if line.get("part") == "cycles" and line["run"] == 0:
            yield from ([f"{key}: cycles a packet", results.spread("cycles", "", key, "{:.0f}")]
                        for key in line if key not in ("part", "what", "run", "testpmd"))


def tables(results, conditions):
    c = conditions
    busy = " **Other programs kept the CPUs busy meanwhile: these numbers say little.**" if c["busy"] > len(CPUS) / 4 else ""
    quick = " **QUICK=1: these numbers say nothing.**" if c["quick"] else ""
    return "\n".join([
        report.fill(f"{len(CPUS)} CPUs ({report.cpu_name()}), commit {c['commit']}, {c['date']}; {BYTES >> 20} MiB a round, MTU {MTU}; medians "
                    f"of {c['runs']} runs that took turns (smallest - largest); {c['busy']:.2f} CPUs busy before the start.{busy}{quick}"),
                    "",
        *report.as_table(["device", "frames, GB/s", "counted by the kernel", "share of testpmd's", "gradients each way, GB/s",
                          "CPU s/GB, box and worker"], "lrrlrr",
                         [*shares(results, "memif"), *shares(results, ON_PACKET), *shares(results, ON_XDP, c["without_xdp"])]), "",
        *report.as_table(["veth pairs", "rounds/s", "GB/s each way, each worker", "box CPU s/GB", "CPU s/GB, box and workers"], "lrrrr",
                         wire(results)), "",
        *report.as_table(["what it costs", ""], "lr", small(results)), ""])


def why_not():
    """What is missing, in one line, or ""."""
    for program, package in (("dpdk-testpmd", "dpdk-dev"), ("ip", "iproute2"), ("setpriv", "util-linux"), ("stdbuf", "coreutils")):
        if not shutil.which(program):
            return f"no {program}: install {package} (deploy/deps.sh bench)"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if len(CPUS) < 2:
        return "needs two CPUs"
    missing = [name for name in ("libphub-dpdk.so", "tests/bench/dpdk_cycles") if not (BUILD / name).exists()]
    return f"no {' and '.join(missing)} in {BUILD}: make bench-dpdk builds them, with libdpdk-dev" if missing else ""


def main():
    page = report.Page("dpdk", say)
    code = page.answered(sys.argv[1:], __doc__)
    if code is not None:
        return code
    reason = why_not() if make_ready(say) else "not built"
    if reason:
        say(reason)
        return 1
    conditions = {"runs": RUNS, "quick": QUICK, "commit": commit(), "date": time.strftime("%Y-%m-%d"), "busy": cpus_busy(),
                  "without_xdp": why_no_xdp()}
    try:
        with holder(NAMES) as keep_fd:
            done = subprocess.run(["sh", "-ec", PLACE.format(names=NAMES, box=BOX, network=NETWORK)], capture_output=True, text=True,
                                  pass_fds=[keep_fd])
            if done.returncode:
                raise Failure(f"no network namespaces with veth and bridge: {done.stderr.strip()}")
            lines = measure(conditions["without_xdp"])
    except (Failure, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    page.write(tables(Results(lines), conditions), conditions, lines)
    return 0


if __name__ == "__main__":
    run_program(main, say)
