#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the tests: unit, suite, fuzz corpora, simulation, system, RDMA in virtual machines, the Arm kernels under emulation.

Usage: tests/run.py [--variants NAME,...] [WORD...] [-WORD...]
  WORD      run only tests whose name holds one of the words, and none of those with a minus
  --variants   which builds are tested, and what of each: gcc (default), clang, address, thread, fuzz, lint, or all

All jobs of all variants (builds, tests, fuzzers, lint) share one queue. A job starts when what it needs is built and the CPUs
have room for it; the longest go first. How long each took and how much of a CPU it used last time stands in
~/.cache/phub-tests/times.json; without that file the heads of the tests are all that is known.

One line per job; the tail of its output where it fails; CPU seconds by step and folder; why cases were skipped; the last line
is "N passed, N failed, N skipped". Exit status: 0 all passed, 1 some failed, 2 usage.

A program says how it went by its exit status: 0, 77 (skipped; its last line is the reason), anything else failed. One that
speaks cmocka or TAP is counted by cases, others as one.

Lines in the head of a test say how it must be run:
  waits: WHY      it hardly computes, and takes a quarter of a CPU's place
  parts: WORD...  it takes long: a run for each word, which is its argument, as NAME-WORD, and none of the whole
  machines: WHY   it starts virtual machines by itself: it runs when their kernel is there
  vm: OPTIONS     it needs RDMA devices. It runs as it is where one is active, else in a virtual machine made with these
                  options, those of tests/vm/run.sh; as rdma/NAME
  vm: OPTIONS -- ARGUMENTS    a run with arguments beside the plain one
There may be several vm: lines, for rdma/NAME, rdma/NAME-2 and so on.

tests/threads.txt names the programs that create threads, and is all that the variant thread runs. A library preloaded into the
tests of the variants gcc and thread tells which programs call pthread_create(): one that is not in the list fails the run, and so
does a test of the variant thread without the thread that it is listed for. Not looked at: virtual machines and emulated programs.

Environment (make test sets them): BUILD, CC, SAN, CFLAGS, OPT of the variant gcc, which is whatever make builds; SEEDS and
SEEDS_FROM of the simulation; ARM_RUN; VM, which machine: uml (default), qemu (what the sanitizers for addresses and threads
need), or nothing, for none; TEST_TIMEOUT, seconds per program; TEST_CPUS, how many CPUs' worth of jobs run at a time.
"""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMES = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "phub-tests/times.json"
CPUS = float(os.environ.get("TEST_CPUS") or len(os.sched_getaffinity(0)))
JOBS_MAX = int(2 * CPUS)  # each makes the others' deadlines shorter
WAITS_CPU, LEAST_CPU = 0.25, 0.5
SLACK_CPU = 0.5  # what is known of a job is a mean: it computes at times only
THREADS = "tests/threads.txt"
# What make has set for the variant that it was asked for: the job says itself what it is built with.
HANDED_DOWN = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "BUILD", "CC", "SAN", "CFLAGS", "OPT")
SYSTEM_S, MACHINE_S = 30, 40  # what a test is taken for that nobody has timed here


@dataclasses.dataclass
class Variant:
    """A build, and which tests run on it: all, or those that WORDS choose."""
    build: str
    make: list  # what make is told
    targets: list
    words: list = dataclasses.field(default_factory=list)
    seeds: int = 500
    arm: bool = False
    vm: str = ""
    timeout_s: int = 300
    fuzz: bool = False
    threads: bool = False  # tells which programs create threads
    listed: bool = False   # runs what THREADS names


# clang runs what depends on the compiler: all of C, and the programs as their users meet them; the sanitizers what they can say
# something about: that for threads every program that creates one (tests/threads.txt), that for addresses RDMA too, in qemu, where
# everything is ten times slower: the transport, and not the exchange over it (5 minutes). Where a build is for a sanitizer's
# reports alone, lines are all that is known of the source: it compiles and links faster.
VARIANTS = {
    "gcc": Variant("build", [], ["test-programs", "arm-programs"], arm=True, vm="uml", threads=True),
    "clang": Variant("build-clang", ["CC=clang", "BUILD=build-clang"], ["test-programs"],
                     "unit suite fuzz/ sim phubd test_cli hostile bad_input library".split(), seeds=200),
    "address": Variant("build-address", ["SAN=address", "BUILD=build-address", "CFLAGS=-g1"], ["test-programs"],
                       "unit suite fuzz/ sim phubd racks hostbox bad_input hostile sites_saved -rdma/suite/test_exchange -test_transport- "
                       "-test_verbs_hostile-".split(), seeds=100, vm="qemu", timeout_s=600),
    "thread": Variant("build-thread", ["SAN=thread", "BUILD=build-thread", "CFLAGS=-g1"], ["test-programs"], seeds=20, timeout_s=600, threads=True,
                      listed=True),
    "fuzz": Variant("build-fuzz", ["CC=clang", "SAN=fuzzer", "BUILD=build-fuzz", "CFLAGS=-g1"], ["fuzz-programs"], fuzz=True),
}
LINT = "lint"


@dataclasses.dataclass
class Job:
    variant: str
    name: str
    command: list
    env: dict = dataclasses.field(default_factory=dict)
    needs: set = dataclasses.field(default_factory=set)  # keys of jobs that must have ended
    cpu: float = 1.0     # how many CPUs it keeps busy
    wall_s: float = 1.0  # how long it takes with them
    first: bool = False  # others wait for it
    timeout_s: int = 300
    counted: bool = True  # a build that works is no test
    threads: str = ""     # the library that tells which programs create threads
    sanitizer: bool = False  # reports go to files, so that no program's end hides one
    began: float = 0.0
    process: object = None
    log: pathlib.Path = None
    counts: object = None

    def sanitizer_options(self):
        """The sanitizer's dlopen() does not look where the program's would."""
        more = f"suppressions={ROOT}/tests/threads.suppressions:log_path={self.log.with_suffix('.sanitizer').resolve()}"
        return {"TSAN_OPTIONS": f"{self.env['TSAN_OPTIONS']}:{more}", "LD_LIBRARY_PATH": str(ROOT / self.env["BUILD"])}

    def creators(self):
        """The programs that created threads."""
        path = self.log.with_suffix(".threads")
        return set(path.read_text().splitlines()) if path.exists() else set()

    @property
    def key(self):
        return f"{self.variant}: {self.name}"

    @property
    def folder(self):
        return self.name.split("/")[0].split(" ")[0]


@dataclasses.dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def fail(text):
    print(f"tests/run.py: {text}", file=sys.stderr)
    sys.exit(2)


def head(path):
    """What the first lines of a test say: a list of values by word."""
    said = collections.defaultdict(list)
    with open(path, encoding="utf-8", errors="replace") as file:
        for _, line in zip(range(20), file):
            found = re.match(r'[ */#"]*(waits|parts|machines|vm): *(.*?)(?:""")?$', line)
            if found:
                said[found[1]].append(found[2].strip())
    return said


def wanted(name, words):
    plain = [word for word in words if not word.startswith("-")]
    return (not plain or any(word in name for word in plain)) and not any(word[1:] in name for word in words if word.startswith("-"))


def read_threads():
    """(program, test, its cases) for each line of THREADS."""
    found = []
    for line in (ROOT / THREADS).read_text().splitlines():
        program, _, test = line.partition(":")
        if line and not line.startswith("#"):
            if not test.split():
                fail(f"{THREADS}: \"{line}\" names no test; a line is PROGRAM: TEST [CASE...]")
            found.append((program.strip(), test.split()[0], test.split()[1:]))
    return found


# --- what there is to run -------------------------------------------------------------------------------------------------


class Collection:
    """The jobs of one variant."""

    def __init__(self, name, variant, words, rdma_here):
        self.name, self.variant, self.words, self.rdma_here = name, variant, words, rdma_here
        self.jobs, self.skips = [], []
        self.cases = {}  # by test, where THREADS says what is run; those of all its lines, or none for the whole
        for _, test, cases in read_threads() if variant.listed else []:
            whole = not cases or self.cases.get(test) == []
            self.cases[test] = [] if whole else list(dict.fromkeys([*self.cases.get(test, []), *cases]))
        self.env = {"BUILD": variant.build, "LC_ALL": "C", "SEEDS": str(variant.seeds),
                    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS") or "abort_on_error=0:detect_stack_use_after_return=1",
                    "UBSAN_OPTIONS": os.environ.get("UBSAN_OPTIONS") or "print_stacktrace=1",
                    "TSAN_OPTIONS": os.environ.get("TSAN_OPTIONS") or "halt_on_error=1:second_deadlock_stack=1"}

    def wanted(self, name):
        chosen = name.split(" ")[0] in self.cases if self.variant.listed else wanted(name, self.variant.words)
        return chosen and wanted(name, self.words)

    def add(self, name, command, **more):
        if self.wanted(name):
            command = [*command, *self.cases.get(name, [])]
            if self.variant.threads and not name.startswith(("arm/", "rdma/")):
                more = {"threads": str((ROOT / self.variant.build).resolve() / "tests/system/threads.so"), **more}
            more["sanitizer"] = self.variant.listed
            needs = {f"{self.name}: build"} | more.pop("needs", set())
            self.jobs.append(Job(self.name, name, [str(word) for word in command], self.env, needs, timeout_s=self.variant.timeout_s, **more))

    def skip(self, name, why):
        if self.wanted(name):
            self.skips.append((name, why))

    def add_rdma(self, name, options, command):
        """A run on this machine's RDMA device, or in a virtual machine that has some."""
        options, _, arguments = options.partition("-- ")
        command = [*command, *arguments.split()]
        if self.rdma_here:
            self.add(name, command)
        elif not self.variant.vm:
            self.skip(name, "no RDMA device here, and this variant runs no virtual machine")
        else:
            machine = ["tests/vm/run.sh", "-t", self.variant.timeout_s, "-r", self.variant.build]
            for variable in ("BUILD", "SEEDS", "LC_ALL", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
                machine += ["-e", variable]
            emulated = self.variant.vm == "qemu"
            self.add(name, [*machine, *([] if emulated else ["-U"]), *options.split(), "--", *command], cpu=2 if emulated else 1,
                     wall_s=MACHINE_S, needs={f"{self.variant.vm}: kernel"})

    def add_test(self, name, source, command, wall_s):
        said = head(source)
        cpu = WAITS_CPU if said["waits"] else 1
        if said["machines"]:
            if self.variant.vm:
                self.add(name, command, wall_s=MACHINE_S, threads="", needs={f"{self.variant.vm}: kernel"})
            else:
                self.skip(name, "this variant runs no virtual machine")
            return
        parts = [] if name in self.cases else " ".join(said["parts"]).split()
        for part in parts:
            self.add(f"{name}-{part}", [*command, part], cpu=cpu, wall_s=wall_s)
        if not parts and (not said["vm"] or "-- " in said["vm"][0]):
            self.add(name, command, cpu=cpu, wall_s=wall_s)
        for number, options in enumerate(said["vm"], 1):
            self.add_rdma(f"rdma/{name}" + (f"-{number}" if number > 1 else ""), options, command)

    def collect(self):
        build = pathlib.Path(self.variant.build)
        for script in sorted(ROOT.glob("tests/system/test_*")):
            if script.suffix not in (".py", ".sh"):
                continue
            if not os.access(script, os.X_OK):
                fail(f"{script.relative_to(ROOT)} cannot be executed, and would be left out; chmod +x it")
            self.add_test(f"system/{script.name}", script, [script.relative_to(ROOT)], SYSTEM_S)
        seeds = int(os.environ.get("SEEDS_FROM") or 1)
        if any(ROOT.glob("tests/sim/*.c")):
            self.add(f"sim (seeds {seeds}..{seeds + self.variant.seeds - 1})", [build / "sim", "--seeds", self.variant.seeds, "--from", seeds],
                     wall_s=SYSTEM_S)
        for source in sorted(ROOT.glob("tests/suite/test_*.c")):
            self.add_test(f"suite/{source.stem}", source, [build / "tests/suite" / source.stem], SYSTEM_S)
        for source in sorted(ROOT.glob("tests/unit/test_*.c")):
            self.add_test(f"unit/{source.stem}", source, [build / "tests/units", source.stem], 1)
        for source in sorted(ROOT.glob("tests/fuzz/fuzz_*.c")):
            name = source.stem[len("fuzz_"):]
            self.add(f"fuzz/{name}", [build / f"tests/fuzz/replay_{name}", f"tests/fuzz/corpus/{name}"])
        if self.variant.arm and os.environ.get("ARM_RUN", "qemu-aarch64-static"):
            self.collect_arm(build / "arm/units", os.environ.get("ARM_RUN", "qemu-aarch64-static"))

    def collect_arm(self, program, emulator):
        if not shutil.which(emulator):
            return self.skip("arm", f"no {emulator}: install qemu-user-static")
        if not shutil.which("aarch64-linux-gnu-gcc"):
            return self.skip("arm", "no cross compiler: install gcc-aarch64-linux-gnu")
        base = {f"test_{source.stem}" for source in ROOT.glob("phub/base/*.c")}
        for source in sorted(ROOT.glob("tests/unit/test_*.c")):
            if source.stem in base or source.stem.startswith("test_aggregation"):
                self.add(f"arm/{source.stem}", [emulator, program, source.stem])

    def collect_fuzz(self):
        for source in sorted(ROOT.glob("tests/fuzz/fuzz_*.c")):
            name = source.stem
            self.add(f"fuzzing/{name[len('fuzz_'):]}", ["tests/fuzz/run.sh", os.environ.get("FUZZ_SECONDS") or "5", f"{self.variant.build}/tests/fuzz/{name}"])


def builds(name, variant, whole):
    """The job that builds a variant. The first one uses all CPUs: nothing can run before it, and much waits for it."""
    jobs = int(CPUS) if whole else 1
    return Job(name, "build", ["make", f"-j{jobs}", *variant.make, *variant.targets], first=True, timeout_s=3600, counted=False)


def kernel(kind):
    maker = "tests/vm/debian.sh" if kind == "qemu" else "tests/vm/uml.sh"
    return Job(kind, "kernel", [maker], wall_s=100, first=True, timeout_s=3600, counted=False)


def lint_jobs(variants):
    """What lint reads that is generated is the builds'."""
    targets = {"gcc": ("lint", ["make", "lint"]), "clang": ("lint-clang", ["make", "lint-headers", "CC=clang", "BUILD=build-clang"])}
    return [Job(LINT, name, command, needs={f"{variant}: build"} if variant in variants else set(), wall_s=120, timeout_s=1800)
            for variant, (name, command) in targets.items()]


def single_variant():
    """What `make test` tests: as its caller has set CC, SAN and BUILD."""
    variant = dataclasses.replace(VARIANTS["gcc"], words=[])
    make = {name: os.environ[name] for name in ("BUILD", "CC", "SAN", "CFLAGS", "OPT") if os.environ.get(name)}
    variant.build = make.get("BUILD", "build")
    variant.make = [f"{name}={value}" for name, value in make.items()]
    variant.seeds = int(os.environ.get("SEEDS") or variant.seeds)
    variant.vm = os.environ.get("VM", "uml")
    variant.threads = make.get("SAN", "thread") == "thread"  # those of other sanitizers must come first in a program
    variant.timeout_s = int(os.environ.get("TEST_TIMEOUT") or (600 if make.get("SAN") else 300))
    if not os.environ.get("ARM_RUN", "qemu"):
        variant.arm, variant.targets = False, ["test-programs"]
    return variant


# --- running ----------------------------------------------------------------------------------------------------------------


def count_cases(text):
    """Counts of a log, and why cases were skipped; None where it holds no cases. A case that began and never ended failed."""
    counts, reasons, begun, before, listing = Counts(), [], 0, "", False
    for line in text.split("\n"):
        if line.startswith("[ RUN      ]"):
            begun += 1
        elif line.startswith("[       OK ]"):
            counts.passed += 1
        elif line.startswith("[  SKIPPED ]"):
            listing = listing or line.endswith("listed below:")  # of a group, each once more
            if not listing:
                counts.skipped += 1
                reasons.append("" if before.startswith("[ RUN") else before)
        elif re.match(r"ok \d", line):
            found = re.search(r"# *skip *(.*)", line, re.I)
            counts.skipped += bool(found)
            counts.passed += not found
            if found:
                reasons.append(found[1])
        elif re.match(r"not ok \d", line):
            counts.failed += 1
        before, listing = line, listing and line.startswith("[  SKIPPED ]")
    if begun:
        counts.failed = begun - counts.passed - counts.skipped
    return (counts, reasons) if begun or counts.passed + counts.failed + counts.skipped else None


class Queue:
    def __init__(self, jobs, known):
        self.waiting, self.running, self.ended = jobs, {}, set()
        self.known = known
        self.total, self.done = len(jobs), 0
        self.counts, self.complaints, self.reasons = Counts(), [], collections.defaultdict(list)
        self.cpu_s = collections.defaultdict(float)
        self.broken = {}  # keys of builds that failed, and what it says
        self.poll = select.poll()
        for job in jobs:
            if job.key in known:
                wall_s, cpu_s = known[job.key]
                job.wall_s = max(wall_s, 0.01)
                if job.counted:  # on a busy machine it had less of the CPUs than it would take
                    job.cpu = min(max(cpu_s / job.wall_s, min(job.cpu, LEAST_CPU)), CPUS)
        self.waiting.sort(key=lambda job: (not job.first, 0 if job.first else -job.wall_s))  # builds as they were asked for

    def start(self, job):
        logs = pathlib.Path(job.env.get("BUILD", "build")) / "test-logs"
        logs.mkdir(parents=True, exist_ok=True)
        job.log = logs / (re.sub(r"[ /:]+", ".", job.name if job.env else job.key) + ".log")  # there are two kernels
        env = {name: value for name, value in os.environ.items() if name not in HANDED_DOWN}
        for old in [*logs.glob(f"{job.log.stem}.sanitizer.*"), job.log.with_suffix(".threads")]:
            old.unlink(missing_ok=True)
        if job.threads:
            env |= {"LD_PRELOAD": job.threads, "PHUB_TEST_THREADS": str(job.log.with_suffix(".threads").resolve())}
        options = job.sanitizer_options() if job.sanitizer else {}
        with open(job.log, "wb") as log:
            job.process = subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                                           env={**env, **job.env, **options}, start_new_session=True)
        job.began = time.monotonic()
        pidfd = os.pidfd_open(job.process.pid)
        self.running[pidfd] = job
        self.poll.register(pidfd, select.POLLIN)

    def fits(self, job):
        used = sum(other.cpu for other in self.running.values())
        return not self.running or (len(self.running) < JOBS_MAX and used + job.cpu <= CPUS + SLACK_CPU)

    def drop(self, job):
        """A build that broke takes its tests along."""
        why = next((self.broken[key] for key in job.needs if key in self.broken), None)
        if why is None:
            return False
        self.waiting.remove(job)
        self.done += 1
        if why.startswith("skip:"):
            self.tell_skip(job.key, why[5:])
        else:
            self.counts.failed += 1
        return True

    def fill(self):
        for job in list(self.waiting):
            if job.needs - self.ended or self.drop(job) or not self.fits(job):
                continue
            self.waiting.remove(job)
            self.start(job)

    def tell_skip(self, key, why):
        self.counts.skipped += 1
        self.reasons[why].append(key)

    def judge(self, job, status, text):
        """Counts of one job and the reasons of its skips."""
        cases = count_cases(text) if job.counted else None
        last = text.rstrip().rsplit("\n", 1)[-1]
        summed = re.match(r"(\d+) passed, (\d+) failed, (\d+) skipped$", last)
        if cases:
            counts, reasons = cases
            if status not in (0, 77) and counts.failed == 0:
                counts.failed = 1
            return counts, reasons
        if summed:
            counts = Counts(*map(int, summed.groups()))
            counts.failed += status != 0 and counts.failed == 0
            return counts, []
        if status == 77:
            return Counts(skipped=1), [last]
        return Counts(passed=int(status == 0 and job.counted), failed=int(status != 0)), []

    def end(self, pidfd, note=""):
        job = self.running.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        _, raw, usage = os.wait4(job.process.pid, 0)
        status = os.waitstatus_to_exitcode(raw)
        job.process.returncode = status
        wall_s, cpu_s = time.monotonic() - job.began, usage.ru_utime + usage.ru_stime
        text = job.log.read_text(errors="replace")
        counts, reasons = self.judge(job, 1 if note else status, text)
        for report in sorted(job.log.parent.glob(f"{job.log.stem}.sanitizer.*")) if job.sanitizer else []:
            text += f"\n{report.name}:\n{report.read_text(errors='replace')}"
            counts.failed = max(counts.failed, 1)
        job.counts = counts
        self.cpu_s[job.variant, job.folder] += cpu_s
        self.ended.add(job.key)
        self.done += 1
        if not job.counted and status == 77:
            self.broken[job.key] = f"skip:no virtual machine: {text.rstrip().rsplit(chr(10), 1)[-1]}"
            counts = Counts()
        elif not job.counted and status != 0:
            self.broken[job.key] = f"{job.key} failed"
        if counts.failed == 0:
            self.known[job.key] = [round(wall_s, 2), round(cpu_s, 2)]
        for why in reasons:
            self.reasons[why or "no reason given"].append(job.key)
        self.counts.passed += counts.passed
        self.counts.failed += counts.failed
        self.counts.skipped += counts.skipped
        self.say(job, counts, wall_s, cpu_s, note or (f"exit status {status}" if status else ""), text)

    def say(self, job, counts, wall_s, cpu_s, note, text):
        verdict = "FAIL" if counts.failed else "skip" if counts.skipped and not counts.passed else "ok"
        what = "".join([f"{counts.passed:4d} passed" if job.counted else "    built      ", f", {counts.failed} failed" if counts.failed else "",
                        f", {counts.skipped} skipped" if counts.skipped else ""])
        print(f"{verdict:4} {job.key:46} {what} {wall_s:7.2f} s, {cpu_s:6.2f} of CPUs", flush=True)
        if counts.failed:
            failed = [line for line in text.split("\n") if re.match(r"not ok |\[  FAILED  \] [a-z]|FAIL |.*: failed$", line)][:10]
            self.complaints.append("\n    ".join([f"{job.key}: {note or 'see above'}", *failed]))
            print(f"---- {note}; the end of {job.log}:\n" + "\n".join(text.rstrip().split("\n")[-60:]) + "\n----", flush=True)

    def overdue(self):
        now = time.monotonic()
        for pidfd, job in list(self.running.items()):
            if now - job.began > job.timeout_s:
                os.killpg(job.process.pid, signal.SIGTERM)
                time.sleep(1)
                os.killpg(job.process.pid, signal.SIGKILL)
                self.end(pidfd, f"killed after {job.timeout_s} s")

    def stop(self):
        for job in self.running.values():
            os.killpg(job.process.pid, signal.SIGTERM)

    def status_line(self):
        if sys.stdout.isatty():
            names = ", ".join(job.key for job in self.running.values())
            print(f"\r\033[K{self.done} of {self.total}: {names}"[:shutil.get_terminal_size().columns + 4], end="\r", flush=True)

    def run(self):
        while self.waiting or self.running:
            self.fill()
            if not self.running:
                if not self.waiting:
                    break
                raise AssertionError(f"nothing runs, and these wait: {[job.key for job in self.waiting]}")
            self.status_line()
            for pidfd, _ in self.poll.poll(1000):
                self.end(pidfd)
            self.overdue()


def check_threads(collections_run, rdma_here):
    """What THREADS and the programs that created threads do not agree on: a line for each."""
    listed = read_threads()
    named, told = {program for program, _, _ in listed}, {}
    thread = Collection("thread", VARIANTS["thread"], [], rdma_here)
    thread.collect()
    there = {job.name.split(" ")[0] for job in thread.jobs}
    for program, test, _ in listed:
        if test not in there:
            told[program, test] = f"{THREADS}: {program}: there is no test {test}"
    for collection in collections_run:
        for job in (job for job in collection.jobs if job.threads and job.counts):
            seen = job.creators()
            if not collection.variant.listed:
                for program in seen - named:
                    told.setdefault(program, f"{job.key}: {program} creates a thread, and {THREADS} does not name it. Add \"{program}: TEST [CASE...]\" "
                                             f"with the cheapest test that runs it, as \"{program}: {job.name}\"")
            elif job.counts.passed and not job.counts.failed and not job.counts.skipped:
                for program, test, _ in listed:
                    if test == job.name.split(" ")[0] and program not in seen:
                        told[program, test] = f"{job.key}: {program} created no thread here, and {THREADS} says so"
    return list(told.values())


# --- what is told ---------------------------------------------------------------------------------------------------------


def tell_cpu(cpu_s):
    """CPU seconds: a line per step, a column per folder."""
    folders = sorted({folder for _, folder in cpu_s}, key=lambda f: -sum(s for (_, g), s in cpu_s.items() if g == f))
    steps = list(dict.fromkeys(step for step, _ in cpu_s))
    print("\n=== CPU seconds by step and folder")
    rows = [["step", *folders, "all"]]
    for step in steps:
        each = [cpu_s.get((step, folder), 0) for folder in folders]
        rows.append([step, *(f"{s:.0f}" if s else "" for s in each), f"{sum(each):.0f}"])
    sums = [sum(s for (_, g), s in cpu_s.items() if g == folder) for folder in folders]
    rows.append(["all", *(f"{s:.0f}" for s in sums), f"{sum(sums):.0f}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))


def tell_skips(reasons):
    if reasons:
        print("\n=== skipped, by reason")
    for why, keys in sorted(reasons.items(), key=lambda item: -len(item[1])):
        names = list(dict.fromkeys(keys))
        print(f"{len(keys):4}  {why}\n      {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}")


def read_times():
    try:
        return json.loads(TIMES.read_text())
    except (OSError, ValueError):
        return {}


def write_times(known):
    try:
        TIMES.parent.mkdir(parents=True, exist_ok=True)
        part = TIMES.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(known, indent=0, sort_keys=True))
        part.rename(TIMES)
    except OSError as error:
        print(f"tests/run.py: times are not kept: {error}", file=sys.stderr)


def arguments():
    parser = argparse.ArgumentParser(usage="tests/run.py [--variants NAME,...] [WORD...] [-WORD...]", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="gcc")
    options, words = parser.parse_known_args()
    options.words = words
    options.variants = [*VARIANTS, LINT] if options.variants == "all" else options.variants.split(",")
    for name in options.variants:
        if name not in VARIANTS and name != LINT:
            parser.error(f"variant \"{name}\" is unknown; there are {', '.join(VARIANTS)}, {LINT}, all")
    return options


def main():
    options = arguments()
    began = time.monotonic()
    jobs, skips, ran = [], [], []
    rdma_here = any("ACTIVE" in state.read_text() for state in pathlib.Path("/sys/class/infiniband").glob("*/ports/*/state"))
    kernels = set()
    for name in options.variants:
        if name == LINT:
            jobs += lint_jobs(options.variants)
            continue
        variant = VARIANTS[name] if len(options.variants) > 1 or name != "gcc" else single_variant()
        collection = Collection(name, variant, options.words, rdma_here)
        collection.collect_fuzz() if variant.fuzz else collection.collect()
        ran.append(collection)
        jobs += [builds(name, variant, name == options.variants[0]), *collection.jobs]
        skips += [(f"{name}: {test}", why) for test, why in collection.skips]
        kernels |= {need.split(":")[0] for job in collection.jobs for need in job.needs if need.endswith(": kernel")}
    jobs += [kernel(kind) for kind in sorted(kernels)]
    if not any(job.counted for job in jobs) and not skips:
        fail(f"no test's name holds {' or '.join(options.words)}")
    queue = Queue(jobs, read_times())
    for key, why in skips:
        queue.tell_skip(key, why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for number in (signal.SIGINT, signal.SIGQUIT):  # a shell that starts us in the background has them ignored, by tests' programs, too
        signal.signal(number, lambda *_: sys.exit(130))
    try:
        queue.run()
    except (KeyboardInterrupt, SystemExit):
        queue.stop()
        raise
    finally:
        write_times(queue.known)
    disagree = check_threads(ran, rdma_here)
    queue.complaints += disagree
    queue.counts.failed += len(disagree)
    tell_cpu(queue.cpu_s)
    tell_skips(queue.reasons)
    if queue.complaints:
        print("\n=== what failed\n" + "\n".join(queue.complaints))
    print(f"\n=== took {time.monotonic() - began:.0f} s")
    print(f"{queue.counts.passed} passed, {queue.counts.failed} failed, {queue.counts.skipped} skipped")
    return 1 if queue.counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
