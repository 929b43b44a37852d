#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A rack in network namespaces: phub over tcp beside Open MPI and Gloo, on links of one stated rate.

     worker 0      worker 1           worker N-1      a namespace each; 10.99.0.1, 10.99.0.2, ...
    [ uplink ]    [ uplink ]   ...   [ uplink ]       tbf RATE: what leaves the worker
        |             |                  |            veth pairs
    [ port0 ]     [ port1 ]    ...   [ portN-1 ]      tbf RATE: what goes to the worker
    +------------------------------------------+
    |                 switch                   |      a bridge in a namespace of its own
    +------------------------------------------+
                     [ portbox ]                      tbf N x RATE: what goes to the box
                          |
                     [ uplink ]                       tbf N x RATE: what leaves the box
                         box                          a namespace; 10.99.0.254

Usage: rack.py            measures; writes $OUT/rack.md, rack.png, and rack.jsonl with one line for every run
       rack.py --report   writes rack.md and rack.png anew from rack.jsonl
       rack.py --readme   puts the tables of rack.md into README.md, between their marks

Environment: BUILD   where phub is (build)
             OUT     where results go (BUILD)
             RUNS    runs of each system, taking turns (5)
             ROWS    quick (two minutes: 4 workers; 8 without narrow gradients; 2 with the faster peer only),
                     full (everything with 2, 4 and 8), or smoke (2 workers; seconds)
             RATE    of a worker's link each way, Mbit/s (500); halved where plain TCP streams do not reach 95 % of
                     it (smoke is too short to judge that: it prints the share and goes on)

Needs root. Its namespaces are called phub-rack-PID-NAME; a shell outside of our session ends what runs in them and removes
them when we are gone, also when we are killed.
"""
import contextlib
import dataclasses
import json
import math
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time

import rack_report
import report
from run import Row, commit
from systems import (BUILD, CONTROL, CPUS, OUT, SET_UP, Failure, Gloo, OpenMpi, Phub, Place, asked, cpus_busy, end, forget,
                     make_ready, run_program)

NETWORK, PREFIX, BOX, PORT = "10.99.0.0/24", 24, "10.99.0.254", 9999
LINK = "uplink"  # the device that leads to the switch, in every namespace
BURST = 128 << 10  # of a worker's link; GSO packets of 64 KiB pass whole. Of the box's: N times that
QUEUE_MS = 50  # how long a packet may wait for a link
ENOUGH, RATE_MIN = 0.95, 10  # what plain TCP must reach; Mbit/s
ROUND_S, RUN_S, SMOKE_S = 0.3, 0.6, 0.1  # a round of phub's at line rate, measured rounds of a run
STREAM_WARM_S, STREAM_S, SMOKE_STREAM_S = 1.0, 2.0, 0.5
TRIAL_PART, FINALISTS = 8, 2  # a trial exchanges an eighth; the best few again all
WORKERS = {"smoke": [2], "quick": [2, 4, 8], "full": [2, 4, 8]}
NARROW = ("phub tcp f16", "phub tcp bf16")


def say(text):
    print(f"rack: {text}", file=sys.stderr, flush=True)


# ---- the rack ----

# Ends what runs in our namespaces, and removes them, when the last end of its pipe is closed.
HOLDER = """
cat >/dev/null
for path in /run/netns/{names}-*; do
	[ -e "$path" ] || continue
	for pid in $(ip netns pids "${{path##*/}}"); do kill -9 "$pid"; done
	ip netns delete "${{path##*/}}"
done
"""
SWITCH = """
ip netns add {switch}
ip -n {switch} link add name bridge type bridge mcast_snooping 0
ip -n {switch} link set bridge up
"""
# A namespace behind a port. Nothing is remembered of one connection for the next. Where cubic may not be the default (see
# SET_UP), the route says it.
MEMBER = """
ip netns add {name}
nsenter --net=/run/netns/{name} -- sh -ec '
[ ! -e /proc/sys/net/ipv6/conf/all ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save'
ip -n {switch} link add name {port} type veth peer name {link} netns {name}
ip -n {switch} link set {port} master bridge up
ip -n {name} addr add {address}/{prefix} dev {link}
ip -n {name} link set {link} up
ip -n {name} route change {network} dev {link} proto kernel scope link src {address} congctl lock cubic
"""


def told(*words):
    """What a command says; a failed one's words are the Failure."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Rack:
    """The namespaces and links of N workers and a box."""

    def __init__(self, names, workers):
        self.names, self.workers, self.mbit = names, workers, 0
        self.switch = f"{names}-switch"
        self.box = Place(self.enter("box"), "cubic")

    def enter(self, name):
        return ["nsenter", f"--net=/run/netns/{self.names}-{name}", "--"]

    @property
    def members(self):
        """Name, address, port of the switch and share of the rate."""
        workers = [(f"worker{rank}", address(rank), f"port{rank}", 1) for rank in range(self.workers)]
        return [("box", BOX, "portbox", self.workers), *workers]

    def build(self, keep_fd):
        script = SWITCH.format(switch=self.switch)
        limits = {name: (CONTROL.parent / f"tcp_{name}").read_text().strip() for name in ("rmem", "wmem")}
        for name, at, port, _ in self.members:
            script += MEMBER.format(name=f"{self.names}-{name}", switch=self.switch, port=port, link=LINK, address=at,
                                    prefix=PREFIX, network=NETWORK)
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, pass_fds=[keep_fd])
        if done.returncode:
            raise Failure(f"no rack: {done.stderr.strip()}")
        for name, *_ in self.members:
            told(*self.enter(name), "sh", "-ec", SET_UP.format(**limits))

    def set_rate(self, mbit):
        self.mbit = mbit
        for name, _, port, share in self.members:
            tbf = ["root", "tbf", "rate", f"{mbit * share}mbit", "burst", BURST * share, "latency", f"{QUEUE_MS}ms"]
            told("tc", "-n", f"{self.names}-{name}", "qdisc", "replace", "dev", LINK, *tbf)
            told("tc", "-n", self.switch, "qdisc", "replace", "dev", port, *tbf)

    def counters(self):
        """{(rank, "up" or "down", "tbf" or "link"): (bytes, when)}. tbf counts the headers of all segments of a GSO packet,
        the device those of one."""
        found = {}

        def note(key, count):
            found[key] = count, time.monotonic()

        for rank in range(self.workers):
            note((rank, "up", "tbf"), tbf_bytes(f"{self.names}-worker{rank}")[LINK])
        down = tbf_bytes(self.switch)
        for rank in range(self.workers):
            note((rank, "down", "tbf"), down[f"port{rank}"])
        links = {link["ifname"]: link["stats64"] for link in json.loads(told("ip", "-n", self.switch, "-s", "-j", "link"))}
        for rank in range(self.workers):
            note((rank, "up", "link"), links[f"port{rank}"]["rx"]["bytes"])
            note((rank, "down", "link"), links[f"port{rank}"]["tx"]["bytes"])
        return found


def address(rank):
    return f"10.99.0.{rank + 1}"


def tbf_bytes(name):
    return {q["dev"]: q["bytes"] for q in json.loads(told("tc", "-n", name, "-s", "-j", "qdisc", "show")) if q["kind"] == "tbf"}


def crossed(before, after):
    """What each counter counted."""
    return {key: after[key][0] - before[key][0] for key in before}


@contextlib.contextmanager
def holder(names):
    """The shell that cleans up. Those who make namespaces inherit its pipe: it waits for them too."""
    shell = subprocess.Popen(["sh", "-c", HOLDER.format(names=names)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield shell.stdin.fileno()
    finally:
        shell.stdin.close()
        shell.wait()


@contextlib.contextmanager
def rack_of(workers):
    names = f"phub-rack-{os.getpid()}"
    with holder(names) as keep_fd:
        rack = Rack(names, workers)
        rack.build(keep_fd)
        yield rack


def why_not():
    """In one line, or ""."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    try:
        with rack_of(1) as rack:
            rack.set_rate(RATE_MIN)
    except (Failure, OSError) as error:
        return f"no network namespaces with veth, bridge and tbf: {str(error).splitlines()[0]}"
    return ""


# ---- plain TCP streams ----

STREAM_BYTES = 256 << 10


def pump(streams):
    """Sends and receives on all of them, as fast as they can, until they are closed."""
    out, into = bytes(STREAM_BYTES), bytearray(STREAM_BYTES)
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            stream.setblocking(False)
            selector.register(stream, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            for key, events in selector.select():
                with contextlib.suppress(BlockingIOError):
                    if events & selectors.EVENT_READ and key.fileobj.recv_into(into) == 0:
                        return
                    if events & selectors.EVENT_WRITE:
                        key.fileobj.send(out)


def stream(words):
    """`box N`: accepts so many, says so, and prints what congestion control both ends use; `worker`: connects."""
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        if words[0] == "worker":
            pump([socket.create_connection((BOX, PORT))])
        with socket.create_server((BOX, PORT)) as server:
            print("listens", flush=True)
            streams = [server.accept()[0] for _ in range(int(words[1]))]
            used = {one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode() for one in streams}
            print(*sorted(used), flush=True)
            pump(streams)


def plain_streams(rack, seconds):
    """(what the slowest stream reaches of the rate, either way; congestion control)."""
    me = [sys.executable, os.path.abspath(__file__), "--stream"]
    processes = []

    def start(name, *words):
        processes.append(subprocess.Popen([*rack.enter(name), *me, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          text=True, start_new_session=True))
        return processes[-1]

    try:
        box = start("box", "box", str(rack.workers))
        box.stdout.readline()
        for rank in range(rack.workers):
            start(f"worker{rank}", "worker")
        congestion_control = box.stdout.readline().strip()
        time.sleep(STREAM_WARM_S)
        before = rack.counters()
        time.sleep(seconds)
        after = rack.counters()
        if any(process.poll() is not None for process in processes):
            raise Failure("a plain TCP stream ended by itself")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            end(process)
    slowest = min((after[key][0] - before[key][0]) / (after[key][1] - before[key][1]) for key in before if key[2] == "tbf")
    return slowest * 8 / (rack.mbit * 1e6), congestion_control


def settle_rate(rack, wanted, smoke, note):
    """The wanted rate, or half of it, ..., such that plain TCP streams reach it."""
    seconds = SMOKE_STREAM_S if smoke else STREAM_S
    mbit = wanted
    while mbit >= RATE_MIN:
        rack.set_rate(mbit)
        share, congestion_control = plain_streams(rack, seconds)
        note(bench="streams", workers=rack.workers, mbit=mbit, share=share, congestion_control=congestion_control)
        say(f"{rack.workers} workers: as many plain TCP streams both ways at once reach {share:.1%} of {mbit} Mbit/s "
            f"({congestion_control})")
        if share >= ENOUGH or smoke:
            return
        mbit //= 2
        say(f"that is below {ENOUGH:.0%}: the machine cannot carry it; lowered to {mbit} Mbit/s")
    raise Failure(f"plain TCP streams do not reach {ENOUGH:.0%} of any rate from {wanted} down to {RATE_MIN} Mbit/s")


# ---- the systems on it ----

class RackPhub(Phub):
    extra_rounds = 2  # that it does before those that are measured

    def __init__(self, rack, dtype):
        super().__init__(rack.box, "tcp", "zero-copy")
        self.rack, self.dtype = rack, dtype
        self.name = f"phub tcp {dtype}"

    def _narrow(self, row):
        """As many gradients as the row has, each two bytes long; or the row itself."""
        return row if self.dtype == "f32" else dataclasses.replace(row, bytes=row.bytes // 2)

    def _words(self, row, cores, rounds):
        where = ["--listen", BOX, "--worker-netns", f"{self.rack.names}-worker{{}}"]
        return [*super()._words(row, cores, rounds), "--dtype", self.dtype, *where]

    def measure(self, row, choice, rounds, warmup=1):
        return super().measure(self._narrow(row), choice, rounds)

    def how(self, row, choice, rounds):
        return super().how(self._narrow(row), choice, rounds).replace(str(os.getpid()), "PID")


class RackMpi(OpenMpi):
    """mpirun stands beside the box; its daemons and their ranks each in a worker's namespace, under a host name of their own."""
    extra_rounds = warmup = 1
    shown = "10.99.0.1:1,10.99.0.2:1,...", "'tests/bench/rack.py --enter phub-rack-PID'"  # hosts and agent, for people
    agent = os.path.abspath(__file__)

    def __init__(self, rack):
        super().__init__(rack.box, "tcp")
        self.rack = rack

    def _addresses(self, workers):
        return [address(rank) for rank in range(workers)]

    def _command(self, workers, waits, sm_priority, program):
        mpirun, *words = super()._command(workers, waits, sm_priority, program)
        words[words.index("btl_tcp_if_include") + 1] = LINK
        if workers == "WORKERS":
            hosts, agent = self.shown
        else:
            hosts = ",".join(f"{one}:1" for one in self._addresses(workers))
            agent = f"{sys.executable} {self.agent} --enter {self.rack.names}"
        return [mpirun, "--host", hosts, "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca",
                "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", LINK, *words]


class RackGloo(Gloo):
    extra_rounds, warmup = 2, 1
    recipe = f"`tests/bench/peer_gloo.py WORKERS {LINK} 10.99.0.1 {PORT} phub-rack-PID-worker{{}}`"

    def __init__(self, rack):
        super().__init__(Place([], "cubic"))
        self.rack = rack

    def _start(self, row, start):
        (*words, _), environment = super()._start(row, start)
        return [*words, LINK, address(0), str(PORT), f"{self.rack.names}-worker{{}}"], environment


def enter(names, host, *command):
    """What mpirun starts instead of ssh."""
    enter_namespace(f"{names}-worker{int(host.rsplit('.', 1)[1]) - 1}", command)


def enter_namespace(name, command):
    os.execvp("nsenter", ["nsenter", f"--net=/run/netns/{name}", "--", "unshare", "--uts", "--", "sh", "-c",
                          f"hostname {name} && {' '.join(command)}"])


def make_systems(rack):
    systems = [RackPhub(rack, dtype) for dtype in ("f32", "f16", "bf16")]
    for kind, title in ((RackMpi, "Open MPI"), (RackGloo, "Gloo")):
        reason = kind.missing()
        if reason:
            say(f"{title} is left out: {reason} (deploy/deps.sh bench)")
        else:
            systems.append(kind(rack))
    return systems


# ---- measuring ----

def choose(system, row, part=TRIAL_PART, finalists=FINALISTS):
    """The best of its settings, by a short trial, and its p50 where there was one."""
    small = dataclasses.replace(row, what="trial", bytes=row.bytes // part // 4 * 4)
    choices = system.choices(row)
    if len(choices) == 1:
        return choices[0], 0
    ranked = sorted((system.measure(small, choice, 1, warmup=1)["p50_ms"], choice) for choice in choices)
    best = [choice for _, choice in ranked[:finalists if system.is_peer else 1]]
    return min((system.measure(row, choice, 1, warmup=1)["p50_ms"], choice) for choice in best)[::-1]


class Bench:
    def __init__(self, lines, runs, which):
        self.lines, self.runs, self.quick, self.smoke = lines, runs, which == "quick", which == "smoke"
        self.trouble = 0

    def note(self, **record):
        self.lines.write(json.dumps(record) + "\n")
        self.lines.flush()

    def fail(self, failure):
        say(f"FAILED: {failure}")
        self.trouble += 1

    def measure(self, rack, system, row, choice, rounds):
        """One run, with what crossed a worker's link per round and way: the mean of the workers. Every gradient goes up at
        least once, and something of every sum comes down, in any all-reduce."""
        before, began = rack.counters(), time.monotonic()
        answer = system.measure(row, choice, rounds, warmup=1)
        count = crossed(before, rack.counters())
        answer["took_s"] = round(time.monotonic() - began, 2)
        all_rounds = rounds + system.extra_rounds
        least = min(by for (_, _, what), by in count.items() if what == "link")
        if least < answer["bytes"] * all_rounds:
            raise Failure(f"{system.name}, {row.name}: only {least} bytes took a worker's link, not "
                          f"{all_rounds} x {answer['bytes']}: it found another way")
        for (way, what) in (("up", "tbf"), ("down", "tbf"), ("up", "link"), ("down", "link")):
            mean = statistics.mean(count[rank, way, what] for rank in range(rack.workers))
            answer[f"{way}_{what}_bytes"] = mean / all_rounds
        for way in ("up", "down"):
            answer[f"{way}_share"] = answer[f"{way}_tbf_bytes"] * 8 * answer["rounds_per_s"] / (rack.mbit * 1e6)
        return answer

    def choose(self, system, row):
        return (system.choices(row)[0], 0) if self.smoke else choose(system, row)

    def row(self, rack, row, systems):
        plans = {}
        for system in systems:
            try:
                twin = next((plan for one, plan in plans.items() if not (one.is_peer or system.is_peer)), None)
                plans[system] = twin or self.choose(system, row)
                if self.quick and row.workers == 2 and system.is_peer and not plans[system][1]:
                    plans[system] = plans[system][0], system.measure(row, plans[system][0], 1, warmup=1)["p50_ms"]
            except Failure as failure:
                self.fail(failure)
        if self.quick and row.workers == 2:
            self.keep_the_faster_peer(plans)
        rounds_s = SMOKE_S if self.smoke else RUN_S
        for run in range(self.runs):
            for system, (choice, _) in list(plans.items()):
                narrow = 1 if system.is_peer or system.dtype == "f32" else 2
                rounds = max(2, math.ceil(rounds_s * narrow / ROUND_S))
                try:
                    answer = self.measure(rack, system, row, choice, rounds)
                except Failure as failure:
                    self.fail(failure)
                    del plans[system]
                    continue
                self.note(row=dataclasses.asdict(row), mbit=rack.mbit, system=system.name, is_peer=system.is_peer,
                          how=system.how(row, choice, rounds), recipe=system.recipe, run=run, **answer)

    @staticmethod
    def keep_the_faster_peer(plans):
        peers = sorted((p50_ms, system.name, system) for system, (_, p50_ms) in plans.items() if system.is_peer)
        for _, _, system in peers[1:]:
            say(f"{system.name} is left out with 2 workers: {peers[0][1]} was faster in the trial")
            del plans[system]

    def workers(self, count, mbit):
        with rack_of(count) as rack:
            settle_rate(rack, mbit, self.smoke, self.note)
            size = int(rack.mbit * 1e6 / 8 * (SMOKE_S if self.smoke else ROUND_S)) // 8 * 8
            row = Row(count, f"{size / 1e6:.3g} MB", size)
            left_out = NARROW if self.quick and count != 4 else ()
            systems = [system for system in make_systems(rack) if system.name not in left_out]
            try:
                self.row(rack, row, systems)
            finally:
                for system in systems:
                    system.close()


def measure(which, runs, mbit):
    began = time.time()
    os.makedirs(OUT / "bench", exist_ok=True)
    with open(OUT / "rack.jsonl", "w") as lines:
        bench = Bench(lines, runs, which)
        bench.note(bench="conditions", runs=runs, rows=which, mbit=mbit, burst=BURST, queue_ms=QUEUE_MS, cpus=CPUS,
                   cpu=report.cpu_name(), kernel=os.uname().release, load=os.getloadavg()[0], busy=cpus_busy(), commit=commit(),
                   date=time.strftime("%Y-%m-%d", time.gmtime(began)))
        for count in WORKERS[which]:
            say(f"{count} workers ({time.time() - began:.0f} s so far)")
            try:
                bench.workers(count, mbit)
            except Failure as failure:
                bench.fail(failure)
        bench.note(bench="end", seconds=round(time.time() - began), failures=bench.trouble)
    say(f"{time.time() - began:.0f} s")
    return bench.trouble


def main():
    words = sys.argv[1:]
    if words[:1] == ["--enter"]:
        return enter(*words[1:])
    if words[:1] == ["--stream"]:
        return stream(words[1:])
    wanted, mbit = asked(WORKERS), os.environ.get("RATE") or "500"
    if (words not in ([], ["--report"], ["--readme"]) or not wanted or
            not mbit.isdigit() or not RATE_MIN <= int(mbit) <= 100000):
        print(f"usage: [RUNS=N] [ROWS={'|'.join(WORKERS)}] [RATE=MBIT] rack.py [--report | --readme]", file=sys.stderr)
        return 2
    if words == ["--readme"]:
        return report.put_into_readme([rack_report.part], say)
    if words == ["--report"]:
        return rack_report.write(say)
    if not make_ready(say):
        return 1
    forget("rack.jsonl", "rack.md", "rack.png")
    reason = why_not()
    if reason:
        say(f"skipped: {reason}")
        return 0
    trouble = measure(*wanted, int(mbit))
    rack_report.write(say)
    return 1 if trouble else 0


if __name__ == "__main__":
    run_program(main, say)
