# SPDX-License-Identifier: Apache-2.0
"""Loads one box with changing jobs, faults and strangers for as long as told, and watches that nothing grows, nothing hangs, every
job ends as it must, and a steady tenant does not notice.

Usage: soak.py [--minutes N] [--seed N] [--kill-box] [--slots N] [--go-on]    into BUILD/soak.md, .json, .svg and .log
       soak.py --readme          puts the table of an hour without KILL_BOX into README.md, between its two marks
       soak.py --replay SEED     one job of that number, as a line of a soak named it, beside a box of its own

Exits 1 with what broke and the end of the box's log.
"""
import argparse
import atexit
import collections
import concurrent.futures
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import soak_jobs  # noqa: E402
import soak_report  # noqa: E402
import soak_strangers  # noqa: E402
import soak_watch  # noqa: E402
from rig import BUILD, PHUBD, ROOT, Box, Process, Worker, check, end_processes, free_port  # noqa: E402

SECRETS = {"guarded": "of the guarded", "steady": "of the steady"}
CONFIG = """jobs:
  - {name: steady, world: 3, secret_env: STEADY_SECRET, weight: 8}
  - {name: guarded, world: 2, secret_env: GUARDED_SECRET}
  - {name: slow-lane, bandwidth: 16MiB}
  - {name: one-core, cores: 1, weight: 2}
  - {name: small, memory_max: 2MiB}
"""
OPTIONS = {"cores": 2, "transports": "tcp,shm,udp", "heartbeat_ms": 250, "warn_ms": 1500, "lost_ms": 6000, "handshake_ms": 1500,
           "memory_max": "2GiB", "keys_max": 2048, "datagram_seal": "none", "checkpoint_every": 40, "tls": "allow"}
DISK_MIB = 96
STEADY_PAUSE_US = 40000
SHARE_LEAST, WORST_SHARE_LEAST = 0.4, 0.05
RATES_LEAST_S = 120  # a short soak says nothing about rates
SANITIZED = re.search(rb"__(asan|tsan|ubsan)_\w", PHUBD.read_bytes()) is not None
ALONE_S = 3  # at the start
QUIET_WAIT_S = 60
WINDOW_S = 10
LOG_TAIL = 60


class Broken(Exception):
    """Something is wrong with the box: the soak ends."""


def say(text):
    print(f"soak: {text}", file=sys.stderr, flush=True)


class Disk:
    """Where checkpoints go: a small tmpfs of the box's own, which ends with it; without root a folder, which is never full."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="phub-soak-"))
        atexit.register(shutil.rmtree, self.folder, True)
        self.where = self.folder / "checkpoints"
        self.where.mkdir()
        self.inside, self.root = (), pathlib.Path("/")
        if os.geteuid() == 0:
            mount = f"mount -t tmpfs -o size={DISK_MIB}m tmpfs {self.where} && echo ready && exec cat"
            self.holder = Process("disk", ["unshare", "--mount", "sh", "-c", mount])
            if self.holder.out.find(lambda line: line == "ready", 0, 10):
                self.inside = ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--")
                self.root = pathlib.Path(f"/proc/{self.holder.pid}/root")

    def seen(self):
        return self.root / self.where.relative_to("/")

    @contextlib.contextmanager
    def full(self):
        filler = self.seen() / "filler"
        try:
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while file.write(bytes(1 << 20)):
                    pass
            yield
        finally:
            filler.unlink(missing_ok=True)

    def sweep(self):
        """Jobs that are over for good: their operator needs their checkpoints no more."""
        for folder in self.seen().iterdir():
            if folder.is_dir() and folder.name != "steady":
                shutil.rmtree(folder, ignore_errors=True)


def certificate(folder):
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj",
                    "/CN=soak", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key


class Steady:
    """The tenant that runs through: over every transport at once, at its own pace, every sum checked."""

    def __init__(self, box, ca, resume):
        more = {"resume_ms": 60000, "reproducible": 1, "patience_ms": 120000} if resume else {}
        self.workers = [Worker(box.url("steady"), rank, 3,
                               env={"PHUB_SECRET": SECRETS["steady"], **({"PHUB_TLS_CA": str(ca)} if rank else {})},
                               transport=transport, rounds="until-told", report_ms=200, pause_us=STEADY_PAUSE_US, optimizer="adam",
                               keys="a:30000,b:70,c:9000,d:80000", **more)
                        for rank, transport in enumerate(("tcp", "shm", "udp"))]
        for worker in self.workers:
            worker.event("progress")

    def round(self):
        import json
        with self.workers[0].out.changed:
            lines = self.workers[0].out.lines
            last = next((line for line in reversed(lines) if '"progress"' in line), None)
            del lines[:-20]  # for hours
        return json.loads(last)["round"] if last else 0

    def trouble(self):
        for worker in self.workers:
            if not worker.running():
                return f"the steady tenant's {worker.name} ended: {worker.out.text()[-700:]}"
        return None

    def end(self):
        self.workers[0].tell()
        return [worker.good() for worker in self.workers]


class Soak:
    def __init__(self, arguments):
        self.arguments = arguments
        self.kill_box = arguments.kill_box
        self.seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "little")
        self.dice = random.Random(self.seed)
        self.seconds = arguments.minutes * 60
        self.broken = []
        self.jobs, self.notes = collections.Counter(), collections.Counter()
        self.counts = collections.Counter()
        self.busy, self.over = threading.Event(), threading.Event()
        self.busy_until = 0
        self.in_works = 0
        self.log = []
        self.disk = Disk()
        self.cert, self.key = certificate(self.disk.folder)
        self.port = free_port()
        self.left_before = soak_watch.shared_files()
        self.box = self.start_box()

    def start_box(self):
        box = Box(config=CONFIG, prefix=self.disk.inside, listen=f"127.0.0.1:{self.port}", checkpoint_targets=self.disk.where,
                  tls_cert=self.cert,
                  tls_key=self.key, env={"GUARDED_SECRET": SECRETS["guarded"], "STEADY_SECRET": SECRETS["steady"]}, **OPTIONS)
        box.stage = None
        return box

    # ---- what goes on beside ----

    def extra(self):
        return {"busy": self.in_works, "steady_round": self.steady.round(), "strangers": sum(self.strangers.done.values()),
                "ended": sum(self.jobs.values())}

    def breaks(self, text):
        self.broken.append(text)
        say(f"BROKEN: {text}")

    def look(self):
        """What must never be, at any time."""
        if not self.box.running() and not self.stage.ending.shut:
            raise Broken(f"the box ended with {self.box.process.poll()}")
        trouble = self.steady.trouble()
        if trouble:
            raise Broken(trouble)
        if self.broken and not self.arguments.go_on:
            raise Broken(f"{len(self.broken)} as said above")
        last = self.watch.samples[-1] if self.watch.samples else {}
        if last.get("rss", 0) > 3 << 30 or last.get("fds", 0) > 2000:
            raise Broken(f"the box takes too much: {last}")

    def progress(self):
        last = self.watch.samples[-1] if self.watch.samples else {}
        line = (f"{self.spent() / 60:6.1f} of {self.arguments.minutes:g} min, {sum(self.jobs.values())} jobs, {self.in_works} now, "
                f"{sum(self.strangers.done.values())} strangers, {last.get('anon', 0) / soak_watch.MIB:.1f} MiB, {last.get('fds', 0)} fds, "
                f"{last.get('rounds_per_s', 0):.0f} rounds/s" + (f", {len(self.broken)} BROKEN" if self.broken else ""))
        if sys.stderr.isatty():
            print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.said > 60:
            say(line)
            self.said = time.monotonic()

    def spent(self):
        return time.monotonic() - self.began

    # ---- the load ----

    def finish(self, future):
        outcome = future.result()
        self.in_works -= 1
        self.jobs[outcome.kind] += 1
        if outcome.note:
            self.notes[f"{outcome.kind}: {outcome.note}"] += 1
        if outcome.error:
            self.breaks(f"{outcome.kind} (--replay {outcome.seed}), after {outcome.took_s:.1f} s: {outcome.error}")

    def load(self, pool, until):
        """Jobs, one after the other in every slot, until the time is over; then all of them end."""
        running = set()
        which = soak_jobs.KILLED_JOBS if self.kill_box else soak_jobs.JOBS
        self.busy_until = until
        self.busy.set()
        while running or time.monotonic() < until:
            while len(running) < self.arguments.slots and time.monotonic() < until and not (self.broken and not self.arguments.go_on):
                self.in_works += 1
                running.add(pool.submit(soak_jobs.play, self.stage, self.dice.getrandbits(32), which))
            done, running = concurrent.futures.wait(running, 0.5, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                self.finish(future)
            self.look()
            self.progress()
        self.busy.clear()

    def quiet(self):
        with self.stage.ending.ends():
            self.wait_for_quiet()

    def wait_for_quiet(self):
        """Waits until only the steady tenant is there, then takes the sample that others are compared with."""
        self.strangers.close_held()
        until = time.monotonic() + QUIET_WAIT_S
        while time.monotonic() < until:
            said = soak_watch.ask(self.box.address)
            if said and [job["job"] for job in said[2]] == ["steady"] and len(said[2][0]["workers"]) == 3:
                break
            time.sleep(0.2)
            self.look()
        else:
            raise Broken(f"not quiet {QUIET_WAIT_S} s after all jobs have ended: {said}")
        time.sleep(OPTIONS["handshake_ms"] / 1000 + 0.7)  # strangers who said nothing are closed by then
        self.disk.sweep()
        self.watch.quiet_point()
        self.look()

    def killer(self):
        """Kills the box again and again, but not while a job ends: some of its workers would wait for those that have left."""
        dice = random.Random(self.seed + 2)
        while not self.over.wait(dice.uniform(2, 8) if self.counts["kills"] else 1):
            if not self.busy.is_set():
                continue
            with self.stage.ending.closed():
                if self.over.is_set():
                    return
                if not self.box.running():
                    self.breaks(f"the box ended by itself with {self.box.process.poll()}")
                self.box.kill()
                self.box.wait()
                self.log += self.box.err.text().split("\n")
                time.sleep(dice.choice((0, 0, 0.5, 2)))
                self.box.forget()
                self.box = self.start_box()
                self.counts["kills"] += 1

    # ---- from the first to the last ----

    def run(self):
        self.steady = Steady(self.box, self.cert, self.kill_box)
        say(f"seed {self.seed}, {self.arguments.minutes:g} minutes, box at {self.box.address}, pid {self.box.pid}")
        self.strangers = soak_strangers.Strangers(lambda: self.box, self.cert)
        self.stage = soak_jobs.Stage(lambda: self.box, lambda: self.busy_until, self.cert, SECRETS,
                                     self.disk.full if self.disk.inside else None)
        if not self.disk.inside:
            say("without root: the disk for checkpoints never fills")
        self.watch = soak_watch.Watch(lambda: self.box, self.extra)
        self.began = self.said = time.monotonic()
        beside = [threading.Thread(target=soak_strangers.run, args=(self.strangers, self.seed + 1, self.busy, self.over), daemon=True)]
        if self.kill_box:
            beside.append(threading.Thread(target=self.killer, daemon=True))
        for thread in beside:
            thread.start()
        cycle_s = 6 if self.seconds < 120 else 40
        try:
            with concurrent.futures.ThreadPoolExecutor(self.arguments.slots) as pool:
                time.sleep(ALONE_S)
                self.quiet()
                while self.spent() < self.seconds:
                    self.load(pool, time.monotonic() + min(cycle_s, max(1, self.seconds - self.spent())))
                    self.quiet()
        except Broken as why:
            self.broken.append(str(why))
        self.over.set()
        for thread in beside:
            thread.join(60)
        self.watch.stop()
        self.end()

    def end(self):
        """All in good order: the steady tenant's sums, the box's books, nothing left behind."""
        try:
            for result in self.steady.end():
                self.counts["steady_rounds"] = result["rounds"]
                self.stage.tell("resumed", result["resumed"])
        except AssertionError as why:
            self.broken.append(f"the steady tenant: {why}")
        try:
            self.box.stop()
        except AssertionError as why:
            self.broken.append(str(why))
        self.log += self.box.err.text().split("\n")
        left = [name for name in soak_watch.shared_files() if name not in self.left_before]
        if left:
            self.broken.append(f"left in /dev/shm: {left}")
        if not self.kill_box:
            self.broken += soak_watch.leaks(self.watch.quiet, SANITIZED)
        self.strangers.close()
        self.judge_rates()
        if self.kill_box and not self.counts["kills"]:
            self.broken.append("the box was never killed")
        if self.kill_box and not self.stage.counts.get("resumed"):
            self.broken.append("no worker went on after the box was killed")
        self.arguments.out.mkdir(parents=True, exist_ok=True)
        (self.arguments.out / "soak.log").write_text("\n".join(self.log) + "\n")

    def judge_rates(self):
        """Of the steady tenant: rounds a second in each span of WINDOW_S, beside what it makes when nobody else is there."""
        samples = sorted((s for s in self.watch.samples if s.get("steady_round")), key=lambda s: s["at_s"])  # two threads take them
        for before, after in zip(samples, samples[1:]):
            if after["at_s"] > before["at_s"]:
                after["steady_per_s"] = round((after["steady_round"] - before["steady_round"]) / (after["at_s"] - before["at_s"]), 2)
        alone = [s["steady_per_s"] for s in samples if "steady_per_s" in s and s["busy"] == 0]
        self.share = self.worst_share = 1.0 if self.kill_box else 0.0
        if len(alone) < 3 or self.kill_box:
            return
        rate = statistics.median(alone)
        first, last = samples[0], samples[-1]
        self.share = (last["steady_round"] - first["steady_round"]) / (last["at_s"] - first["at_s"]) / rate
        self.worst_share = self.share
        for i, begin in enumerate(samples):
            end = next((s for s in samples[i:] if s["at_s"] - begin["at_s"] >= WINDOW_S), None)
            if end:
                part = (end["steady_round"] - begin["steady_round"]) / (end["at_s"] - begin["at_s"]) / rate
                self.worst_share = min(self.worst_share, part)
        if self.seconds < RATES_LEAST_S:
            return
        if self.share < SHARE_LEAST or self.worst_share < WORST_SHARE_LEAST:
            self.broken.append(f"the steady tenant kept {self.share:.0%} of its rounds, {self.worst_share:.0%} in the worst {WINDOW_S} s")

    def told(self):
        last = next((s for s in reversed(self.watch.samples) if "strangers_refused" in s), {})
        counts = {**self.counts, **self.stage.counts,
                  **{k: last.get(k, 0) for k in ("strangers_refused", "strangers_limited", "datagrams_dropped")}}
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT,
                                check=False).stdout.strip()
        spent = [s["cpu_s"] for s in self.watch.samples if "cpu_s" in s]  # of the last box, where it was killed
        return {"cpu_s": spent[-1] if spent else 0, "seed": self.seed, "minutes": self.arguments.minutes, "seconds": round(self.spent(), 1),
                "kill_box": self.kill_box,
                "commit": commit or "unknown", "date": time.strftime("%Y-%m-%d"), "cpus": len(os.sched_getaffinity(0)),
                "verdict": "broken" if self.broken else "clean", "broken": self.broken, "share": self.share,
                "worst_share": self.worst_share, "counts": counts, "jobs": dict(self.jobs), "notes": dict(self.notes),
                "strangers": self.strangers.done, "samples": self.watch.samples}


def replay(arguments):
    """One job again, beside nothing else."""
    soak = Soak(arguments)
    soak.busy_until = time.monotonic() + 10
    stage = soak_jobs.Stage(lambda: soak.box, lambda: soak.busy_until, soak.cert, SECRETS, soak.disk.full if soak.disk.inside else None)
    outcome = soak_jobs.play(stage, arguments.replay, soak_jobs.KILLED_JOBS if arguments.kill_box else soak_jobs.JOBS)
    say(f"{outcome.kind} {outcome.note}: {outcome.error or 'as it must be'}")
    soak.box.show()
    return 1 if outcome.error else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--kill-box", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=BUILD, help="folder of what it writes")
    parser.add_argument("--go-on", action="store_true", help="also when a job ended otherwise than it must")
    parser.add_argument("--replay", type=int, metavar="SEED")
    parser.add_argument("--readme", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse()
    if arguments.readme:
        return soak_report.report.put_into_readme([lambda: soak_report.part(arguments.out)], say)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    atexit.register(end_processes)
    if arguments.replay is not None:
        return replay(arguments)
    soak = Soak(arguments)
    soak.run()
    told = soak.told()
    soak_report.write(told, arguments.out, say)
    for line in soak_report.table(told).split("\n"):
        print(line)
    if soak.broken:
        say(f"BROKEN, seed {soak.seed}:")
        for text in soak.broken:
            say(f"  {text[:2000]}")
        say(f"the end of {arguments.out / 'soak.log'}:")
        for line in soak.log[-LOG_TAIL:]:
            say(f"    {line[:400]}")
        return 1
    say("clean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
