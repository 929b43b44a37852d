# SPDX-License-Identifier: Apache-2.0
"""The systems that run.py measures, each behind the same few calls, and the place in which they run.

A system has a `name`, a `transport` (shm or tcp), `is_peer`, and
  recipe                     for a peer: what its orders (how) are piped into; words in capitals are the row's
  choices(row)               the settings that a trial compares; any value that prints as JSON
  measure(row, choice, rounds, warmup)   one run: the dictionary of its JSON line
  how(row, choice, rounds)   for the table: the command or the algorithm
Peers stay up and take turns; close() ends them.
"""
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / (os.environ.get("BUILD") or "build")
OUT = ROOT / os.environ["OUT"] if os.environ.get("OUT") else BUILD
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")
PEERS_LOG = OUT / "bench/peers.log"  # what they say on stderr
CPUS = len(os.sched_getaffinity(0))
ANSWER_S = 180  # that any one run may take
CONTROL = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")


def run_program(main, say):
    """Ends as main() says; by Ctrl-C with a word and 130."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def asked(sizes, name="ROWS", default="quick"):
    """What the environment asks for: one of `sizes` in the variable `name`, and RUNS. None where that makes no sense."""
    which, runs = os.environ.get(name) or default, os.environ.get("RUNS") or "5"
    return (which, int(runs)) if which in sizes and runs.isdigit() and int(runs) > 0 else None


def make_ready(say):
    """Before something is measured: is it built? Signals will end us in good order."""
    for program in ("phub", "phubd"):
        if not os.access(BUILD / program, os.X_OK):
            say(f"no {program} in {BUILD}: run make")
            return False
    signal.signal(signal.SIGINT, signal.default_int_handler)  # started with & in a script it would be ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return True


class Failure(Exception):
    """A system did not do what it should: the whole run fails."""


def cpu_ticks():
    """(all, idle) since the machine's start."""
    with open("/proc/stat") as lines:
        every = [int(word) for word in next(lines).split()[1:9]]
    return sum(every), every[3] + every[4]


def busy_since(ticks):
    """How many CPUs were busy since then, by whomever, interrupts included."""
    (total, idle), (total_now, idle_now) = ticks, cpu_ticks()
    return os.cpu_count() * (1 - (idle_now - idle) / max(1, total_now - total))


def cpus_busy(seconds=0.5):
    """How many CPUs others keep busy just now. The load average would still count what we ourselves ran a minute ago."""
    ticks = cpu_ticks()
    time.sleep(seconds)
    return busy_since(ticks)


def forget(*names):
    """Removes results of an earlier run, so that nobody takes them for this one's."""
    for pattern in names:
        for path in OUT.glob(pattern):
            path.unlink()


# ---- where they run ----

class Place:
    """Where a system's processes run: words that go before their command."""

    def __init__(self, prefix, congestion_control):
        self.prefix = prefix
        self.congestion_control = congestion_control


def host_place():
    return Place([], CONTROL.read_text().strip())


# In the namespace. The buffers' limits are the host's too: a namespace begins with the kernel's. A host that does not allow
# cubic to everybody (tcp_allowed_congestion_control) refuses it as the default; then the routes say it.
SET_UP = """
ip link set lo up
echo '{rmem}' >/proc/sys/net/ipv4/tcp_rmem
echo '{wmem}' >/proc/sys/net/ipv4/tcp_wmem
if ! echo cubic >/proc/sys/net/ipv4/tcp_congestion_control; then
	for to in 127.0.0.0/8 127.0.0.1; do
		ip route change table local local $to dev lo proto kernel scope host src 127.0.0.1 congctl lock cubic
	done
fi 2>/dev/null
"""
# Prints what both ends of a connection use.
PROBE = """
import socket
with socket.create_server(("127.0.0.1", 0)) as s, socket.create_connection(s.getsockname()) as near, s.accept()[0] as far:
    print(*{end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode() for end in (near, far)})
"""


@contextlib.contextmanager
def namespace_place(say):
    """A network namespace in which lo is up and everybody's sockets use cubic; host_place() where there cannot be one.

    A shell outside of our session holds it and removes it when our pipe to it ends: also when we are killed.
    """
    name = f"phub-bench-{os.getpid()}"
    made = None
    if os.geteuid() == 0:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if not made or made.returncode:
        place = host_place()
        say(f"no network namespace ({made.stderr.strip() if made else 'not root'}): peers run under the host's congestion "
            f"control, {place.congestion_control}")
        yield place
        return
    holder = subprocess.Popen(["sh", "-c", f"cat >/dev/null; ip netns delete {name}"], stdin=subprocess.PIPE,
                              start_new_session=True)
    try:
        prefix = ["nsenter", f"--net=/run/netns/{name}", "--"]
        limits = {name: (CONTROL.parent / f"tcp_{name}").read_text().strip() for name in ("rmem", "wmem")}
        subprocess.run([*prefix, "sh", "-ec", SET_UP.format(**limits)], check=True)
        used = subprocess.run([*prefix, sys.executable, "-c", PROBE], check=True, capture_output=True, text=True).stdout.strip()
        if used != "cubic":
            say(f"in the network namespace peers use {used}, not cubic: `modprobe tcp_cubic` may help")
        yield Place(prefix, used)
    finally:
        holder.stdin.close()
        holder.wait()


# ---- phub ----

class Phub:
    is_peer = False
    recipe = ""

    def __init__(self, place, transport, mode, keys=1):
        self.place, self.transport, self.mode, self.keys = place, transport, mode, keys
        self.name = f"phub {transport} {mode}" + (f", {keys:,} keys" if keys > 1 else "")

    def choices(self, row):
        return [cores for cores in (1, 2) if cores <= CPUS]

    def _words(self, row, cores, rounds):
        what = ["--model", row.model] if row.model else ["--bytes", row.bytes]
        keys = ["--keys", self.keys] if self.keys > 1 else []
        words = ["--transport", self.transport, "--mode", self.mode, "--workers", row.workers, *what, *keys,
                 "--rounds", rounds, "--cores", cores]
        return [str(word) for word in words]

    def measure(self, row, choice, rounds, warmup=2):
        words = [*self.place.prefix, BUILD / "phub", "bench", "exchange", *self._words(row, choice, rounds), "--json"]
        done = run_and_wait(words)
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = None
        if done.returncode or not answer or answer["errors"]:
            raise Failure(f"{self.name}, {row.name}: {done.stderr.strip() or done.stdout.strip() or 'no answer'}")
        if answer["bytes"] != row.bytes:
            raise Failure(f"{row.model} has {answer['bytes']} bytes, not {row.bytes}: correct run.py")
        return answer

    def how(self, row, choice, rounds):
        return f"`phub bench exchange {' '.join(self._words(row, choice, rounds))}`"

    def close(self):
        pass


def run_and_wait(words):
    """subprocess.run() out of reach of the terminal's Ctrl-C, which is ours to pass on."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        raise Failure(f"no answer in {ANSWER_S} s from {' '.join(map(str, words))}") from None
    finally:
        end(process)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


# ---- peers ----

def end(process):
    """Asks, then insists."""
    for ask, patience_s in ((lambda: None, 5 if process.stdin else 0), (process.terminate, 5),
                            (lambda: os.killpg(process.pid, signal.SIGKILL), 5)):
        if process.poll() is not None:
            return
        ask()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience_s)


class Conversation:
    """A peer's processes: an order goes in, a line of JSON comes out. They end when their stdin does."""

    def __init__(self, words, environment=None):
        with open(PEERS_LOG, "a") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                            bufsize=1, env={**os.environ, **(environment or {})}, start_new_session=True)

    def ask(self, order):
        try:
            self.process.stdin.write(" ".join(map(str, order)) + "\n")
            line = self._line()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failure(f"ended or did not answer `{' '.join(map(str, order))}`; {PEERS_LOG} says why")
        return json.loads(line)

    def _line(self):
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        return self.process.stdout.readline() if ready else ""

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        end(self.process)


class Peer:
    """What peers share: one set of processes for each way of starting them, for one number of workers at a time."""
    is_peer = True
    warmup = 2  # rounds before those that are measured

    def __init__(self, place):
        self.place = place
        self.workers = 0
        self.open = {}

    def _ask(self, row, start, order):
        if self.workers != row.workers:
            self.close()
            self.workers = row.workers
        words, environment = self._start(row, start)
        if start not in self.open:
            self.open[start] = Conversation([*self.place.prefix, *words], environment)
        try:
            answer = self.open[start].ask(order)
        except Failure as failure:
            raise Failure(f"{self.name}, {row.name}: {failure}") from None
        if answer["errors"]:
            raise Failure(f"{self.name}, {row.name}: {answer['errors']} wrong sums")
        return answer

    def close_idle(self, start):
        """Processes that will not be asked again."""
        if start in self.open:
            self.open.pop(start).close()

    def close(self):
        for start in list(self.open):
            self.close_idle(start)


class OpenMpi(Peer):
    """Its choices are (algorithm, segment, yield): a progress loop that yields, where it is oversubscribed, or spins. Algorithms
    are those of its component tuned; SM is its component sm, which sums in memory that the ranks share."""
    SM = -1
    ALGORITHMS = {0: "its own choice", 1: "basic linear", 2: "reduce and broadcast", 3: "recursive doubling", 4: "ring",
                  5: "segmented ring", 6: "Rabenseifner", SM: "coll/sm"}
    TRANSPORTS = {"shm": ["--mca", "btl", "self,vader"],
                  "tcp": ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]}
    SEGMENTS = (131072, 1048576)
    PROGRAM = OUT / "bench/peer_mpi"

    def __init__(self, place, transport):
        super().__init__(place)
        self.transport = transport
        self.name = f"Open MPI {transport}"

    @classmethod
    def missing(cls):
        reason = next((f"no {name}" for name in ("mpirun", "mpicc") if not shutil.which(name)), "")
        if not reason and not cls._build():
            reason = f"mpicc could not build peer_mpi, see {PEERS_LOG}"
        return reason

    @classmethod
    def _build(cls):
        source = HERE / "peer_mpi.c"
        if cls.PROGRAM.exists() and cls.PROGRAM.stat().st_mtime > source.stat().st_mtime:
            return True
        with open(PEERS_LOG, "a") as log:
            return subprocess.run(["mpicc", *"-std=gnu11 -O2 -Wall -Wextra -Wshadow -D_GNU_SOURCE -o".split(), cls.PROGRAM,
                                   source], stderr=log).returncode == 0

    def choices(self, row):
        yields = (1, 0) if row.workers <= CPUS else (1,)
        cuts = [(algorithm, segment) for algorithm in self.ALGORITHMS
                for segment in (self.SEGMENTS if algorithm == 5 else (0,))
                if segment < row.bytes and (algorithm != self.SM or self.transport == "shm")]
        return [(*cut, waits) for waits in yields for cut in cuts]

    def _command(self, workers, waits, sm_priority, program):
        return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(workers), "--mca", "pml", "ob1",
                *self.TRANSPORTS[self.transport], "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_sm_priority",
                str(sm_priority), "--mca", "mpi_yield_when_idle", str(waits), str(program)]

    @property
    def recipe(self):
        program = self.PROGRAM.relative_to(ROOT) if self.PROGRAM.is_relative_to(ROOT) else self.PROGRAM
        sm = "; coll/sm: with `coll_sm_priority 100`" if self.transport == "shm" else ""
        return f"`{' '.join(self._command('WORKERS', 1, 0, program))}` (spins: with `mpi_yield_when_idle 0`{sm})"

    def _start(self, row, start):
        waits, sm = start
        return self._command(row.workers, waits, 100 if sm else 0, self.PROGRAM), {
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def measure(self, row, choice, rounds, warmup=2):
        algorithm, _, waits = choice
        return self._ask(row, (waits, algorithm == self.SM), self._order(row, choice, rounds, warmup))

    def _order(self, row, choice, rounds, warmup):
        algorithm, segment, _ = choice
        return max(0, algorithm), segment, row.bytes, warmup, rounds

    def how(self, row, choice, rounds):
        algorithm, segment, waits = choice
        cut = f" of {segment >> 10} KiB" if segment else ""
        order = " ".join(map(str, self._order(row, choice, rounds, self.warmup)))
        return f"`echo {order}`: {self.ALGORITHMS[algorithm]}{cut}, {'yields' if waits else 'spins'}"


class Gloo(Peer):
    transport = "tcp"
    name = "Gloo tcp"
    recipe = "`tests/bench/peer_gloo.py WORKERS` (`torch.distributed.all_reduce`)"

    @staticmethod
    def missing():
        if not shutil.which(PYTHON):
            return f"no {PYTHON}"
        found = subprocess.run([PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"],
                               capture_output=True)
        return f"no torch in {PYTHON}" if found.returncode else ""

    def choices(self, row):
        return ["ring"]

    def _start(self, row, start):
        return [PYTHON, str(HERE / "peer_gloo.py"), str(row.workers), "lo"], None

    def measure(self, row, choice, rounds, warmup=2):
        return self._ask(row, choice, (row.bytes, warmup, rounds))

    def how(self, row, choice, rounds):
        return f"`echo {row.bytes} {self.warmup} {rounds}`: its ring"


def make_peers(place, say):
    """Those that are here; says which are not."""
    peers = []
    for kind, title, makers in ((OpenMpi, "Open MPI", [lambda: OpenMpi(place, "shm"), lambda: OpenMpi(place, "tcp")]),
                                (Gloo, "Gloo", [lambda: Gloo(place)])):
        reason = kind.missing()
        if reason:
            say(f"{title} is left out: {reason} (deploy/deps.sh bench)")
        else:
            peers += [make() for make in makers]
    return peers
