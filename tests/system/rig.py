# SPDX-License-Identifier: Apache-2.0
"""What the system tests share: a box and workers as processes whose lines can be waited for, and cases told as TAP."""
import atexit
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
PHUBD = BUILD / "phubd"
WORKER = BUILD / "tests/system/worker"
DEADLINE_S = 90  # of any one wait: far more than a slow, shared machine needs
QUIET = dict(os.environ)
for name in ("PHUB_SECRET", "PHUB_SECRET_FILE", "PHUB_ENCRYPT", "PHUB_LOG", "PHUB_HOSTBOX", "RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX",
             "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
    QUIET.pop(name, None)

_processes = []


def say(text):
    print(f"# {text}", flush=True)


def free_port():
    """A port of 127.0.0.1 for one who binds it later: none of those that the system gives to whoever connects meanwhile."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10000, max(lowest, 20000))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Skip(Exception):
    """Raised by a case that cannot run here, with the reason."""


class Lines:
    """The lines of a pipe, as they come, to be waited for."""

    def __init__(self, pipe):
        self.lines = []
        self.ended = False
        self.changed = threading.Condition()
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def _read(self, pipe):
        for line in pipe:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def find(self, wanted, start=0, deadline_s=DEADLINE_S):
        """The first line from `start` on for which wanted(line) is true: its number and what wanted() gave."""
        until = time.monotonic() + deadline_s
        with self.changed:
            while True:
                for i in range(start, len(self.lines)):
                    found = wanted(self.lines[i])
                    if found:
                        return i, found
                start = len(self.lines)
                left = until - time.monotonic()
                if self.ended or left <= 0:
                    return None
                self.changed.wait(left)

    def settle(self, deadline_s):
        """Waits until the pipe's end was read; a child that outlives its parent may keep it open."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended, deadline_s)

    def text(self):
        with self.changed:
            return "\n".join(self.lines)


class Process:
    def __init__(self, name, command, env=None, prefix=()):
        self.name = name
        self.process = subprocess.Popen(
            [*prefix, *(str(word) for word in command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", env={**QUIET, **(env or {})}, cwd=ROOT)
        _processes.append(self)
        self.out = Lines(self.process.stdout)
        self.err = Lines(self.process.stderr)

    @property
    def pid(self):
        return self.process.pid

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, deadline_s=DEADLINE_S):
        """The exit status; -N for a signal. All that it printed has been read."""
        try:
            status = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {deadline_s} s") from None
        for lines in (self.out, self.err):
            lines.settle(1)
        return status

    def running(self):
        return self.process.poll() is None

    def forget(self):
        """Ends it, if it has not, and gives back what it takes here: for those who start thousands."""
        self.kill()
        self.process.wait()
        for lines in (self.out, self.err):
            lines.settle(1)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()
        if self in _processes:
            _processes.remove(self)

    def cpu_s(self):
        """User and system time of the process so far."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def show(self):
        for which, lines in (("stdout", self.out), ("stderr", self.err)):
            tail = lines.text().split("\n")[-15:]
            if tail != [""]:
                say(f"{self.name} ({self.process.poll()}) {which}:")
                for line in tail:
                    say(f"    {line[:600]}")


class Box(Process):
    """A phubd on loopback with a port of its own; options as listen="127.0.0.1:0". Boxes speak tcp with each other where nothing else is
    asked for, as if they were on several hosts."""

    def __init__(self, config=None, env=None, prefix=(), name="phubd", program=PHUBD, **options):
        options = {"listen": "127.0.0.1:0", "data_ports": "any", "uplink_transport": "tcp", **options}
        if config is not None:
            config_file = tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False)
            config_file.write(config)
            config_file.close()
            atexit.register(os.unlink, config_file.name)
        words = [program] + (["--config", config_file.name] if config is not None else [])
        for key, value in options.items():
            if value is not None:
                words += ["-o", f"{key}={value}"]
        super().__init__(name, words, env, prefix)
        found = self.out.find(lambda line: re.match(r"phubd: listening on (\S+)", line))
        if not found:
            self.show()
            raise AssertionError(f"{name} did not say where it listens")
        self.first_line = self.out.lines[0]
        self.address = found[1].group(1).rstrip(",")
        self.port = int(self.address.rsplit(":", 1)[1])

    def url(self, job, host=None):
        return f"phub://{host + ':' + str(self.port) if host else self.address}/{job}"

    def logged(self, pattern, deadline_s=DEADLINE_S):
        """Waits for a line of the log that holds the pattern, and returns it."""
        found = self.err.find(lambda line: re.search(pattern, line), 0, deadline_s)
        if not found:
            raise AssertionError(f"the box never logged /{pattern}/")
        return self.err.lines[found[0]]

    def stop(self):
        """Ends it in good order: exit status 0, which also says that its books balance."""
        self.kill(signal.SIGTERM)
        status = self.wait()
        check(status == 0, f"phubd exited with {status}: {self.err.text()[-2000:]}")
        return self


class Worker(Process):
    """tests/system/worker.c with these arguments. A worker that runs until the test ends it must be in mid-training, not fast: it pauses
    after each round, unless the test names a pause. Rank 0 pauses longer, so that rounds are open most of the time."""

    def __init__(self, url, rank=0, world=1, env=None, prefix=(), **arguments):
        if str(arguments.get("rounds")) in ("until-told", "1000000"):
            arguments = {"pause_us": 1000 if rank else 4000, **arguments}
        words = [f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in arguments.items()]
        super().__init__(f"{url.rsplit('/', 1)[1]}.{rank}", [WORKER, f"url={url}", f"rank={rank}", f"world={world}", *words],
                         env, prefix)
        self.seen = 0

    def event(self, name, deadline_s=DEADLINE_S):
        """The next event of this name. What came before it is not looked at again."""
        def wanted(line):
            event = json.loads(line)
            return event if event["event"] in (name, "end") else None
        found = self.out.find(wanted, self.seen, deadline_s)
        if not found and not self.running():
            raise AssertionError(f"{self.name}: it ended with {self.process.returncode} and no word instead of '{name}'")
        if not found:
            raise AssertionError(f"{self.name}: no event '{name}' within {deadline_s} s")
        if found[1]["event"] != name:
            raise AssertionError(f"{self.name}: it ended instead of '{name}': {found[1]}")
        self.seen = found[0] + 1
        return found[1]

    def tell(self):
        """Ends its standard input: the end of waiting, and of rounds=until-told."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def result(self, deadline_s=DEADLINE_S):
        """Its last line."""
        found = self.out.find(lambda line: (e := json.loads(line))["event"] == "end" and e, 0, deadline_s)
        if not found:
            raise AssertionError(f"{self.name}: no result within {deadline_s} s")
        return found[1]

    def good(self, deadline_s=DEADLINE_S):
        """Its result, which must be without an error and with every sum right."""
        result = self.result(deadline_s)
        check(result["rc"] == 0, f"{self.name} failed: {result['errno']}: {result['error']}")
        check(result["wrong"] == 0, f"{self.name}: {result['wrong']} elements were wrong")
        check(self.wait() == 0, f"{self.name}: exit status")
        return result

    def failed(self, errno, *words, deadline_s=DEADLINE_S):
        """Its result, which must be this error; its text holds every word (a regular expression)."""
        result = self.result(deadline_s)
        check(result["rc"] < 0, f"{self.name} did not fail: {result}")
        names = errno if isinstance(errno, tuple) else (errno,)
        check(result["errno"] in names, f"{self.name}: {result['errno']} instead of {names}: {result['error']}")
        holds(result["error"], *words)
        check(self.wait() == 1, f"{self.name}: exit status")
        return result


def job(url, world, count=None, **arguments):
    """Workers of all ranks; arguments that are callable are asked with the rank."""
    return [Worker(url, rank, world, **{k: v(rank) if callable(v) else v for k, v in arguments.items()})
            for rank in range(count if count is not None else world)]


def outlives(begin, lost, victim=1, world=3):
    """Workers in mid-exchange, begun by begin(rank, more arguments): one is killed and another takes its place. Sums say who is in
    them: the others where the job shrinks, and all of them in the end."""
    arguments = {"census": True, "lost": lost, "rounds": "until-told", "report_ms": 1, "wait_ms": 60000}
    everyone = (1 << world) - 1
    workers = [begin(rank, **arguments) for rank in range(world)]

    def until(worker, ranks):
        while worker.event("progress")["ranks"] != ranks:
            pass
    for worker in workers:
        until(worker, everyone)
    workers[victim].kill()
    workers[victim].wait()  # with gigabytes of huge pages that takes a while, and its connections live as long
    others = [worker for worker in workers if worker is not workers[victim]]
    if lost == "shrink":
        for worker in others:
            until(worker, everyone & ~(1 << victim))
    else:
        deadline, was = time.monotonic() + DEADLINE_S, None  # what had begun goes on without it, and then nothing
        while was != (was := [len(worker.out.lines) for worker in others]):
            check(time.monotonic() < deadline, "the job did not wait")
            time.sleep(0.5)
    workers[victim] = begin(victim, **arguments)
    for worker in workers:
        with worker.out.changed:
            worker.seen = len(worker.out.lines)
    for worker in workers:
        until(worker, everyone)
    others[0].tell()
    for worker in workers:
        worker.good()


class Steady:
    """A job that runs beside what goes wrong, and must not notice."""

    def __init__(self, box):
        self.workers = job(box.url("steady"), 2, transport=lambda rank: ("tcp", "shm")[rank], rounds="until-told",
                           report_ms=20, pause_us=1000, optimizer="sgd", keys="a:30000,b:70,c:9000")
        for worker in self.workers:
            worker.event("progress")

    def end(self):
        """It still runs now, and every sum of it was right."""
        with self.workers[0].out.changed:
            self.workers[0].seen = len(self.workers[0].out.lines)
        self.workers[0].event("progress")
        self.workers[0].tell()
        for worker in self.workers:
            worker.good()


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def holds(text, *words):
    for word in words:
        check(re.search(word, text), f"no /{word}/ in: {text}")


def do(*words):
    """A command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True)
    check(done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def namespace(name):
    """A namespace that ends with us: its process waits for the end of our pipe to it. Its number, and words to enter it."""
    holder = Process(name, ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"])
    check(holder.out.find(lambda line: line == "ready"), f"no network namespace: {holder.err.text()}")
    return holder.pid, ["nsenter", f"--target={holder.pid}", "--net", "--"]


def why_no(link):
    """Why there can be no link between namespaces of our own; None: it can be made."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    try:
        link()
    except (AssertionError, OSError) as error:
        return f"no such links between network namespaces here: {error}"
    return None


def cpu_s():
    """CPU seconds of this process and of its children that have ended."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def end_processes():
    for process in _processes:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()
    _processes.clear()


def run(cases, skip_all=None):
    """Runs the cases (functions; the first line of a doc string is the name) that the command line names, or all."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for needed in (PHUBD, WORKER):
        if not needed.exists():
            skip_all = f"{needed} is not there (make test-programs)"
    if skip_all:
        print(skip_all)
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    atexit.register(end_processes)
    wanted = [case for case in cases if not sys.argv[1:] or any(word in case.__name__ for word in sys.argv[1:])]
    if not wanted:
        sys.exit(f"{' '.join(sys.argv[1:])}: no such case; there are {', '.join(case.__name__ for case in cases)}")
    print(f"1..{len(wanted)}", flush=True)
    for number, case in enumerate(wanted, 1):
        name = (case.__doc__ or case.__name__).strip().split("\n")[0].rstrip(".")
        began, cpu_began = time.monotonic(), cpu_s()
        verdict, note, key = "ok", "", "passed"
        try:
            case()
        except Skip as why:
            note, key = f" # SKIP {why}", "skipped"
        except Exception as error:  # an assertion, or a bug of the test: both fail the case
            verdict, key = "not ok", "failed"
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            say(f"{case.__name__}: {error}")
            for process in _processes:
                process.show()
        counts[key] += 1
        end_processes()
        print(f"{verdict} {number} - {name} ({case.__name__}, {time.monotonic() - began:.1f} s, CPU {cpu_s() - cpu_began:.1f} s){note}", flush=True)
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{skipped}")
    sys.exit(1 if counts["failed"] else 0)
