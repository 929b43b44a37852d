# SPDX-License-Identifier: Apache-2.0
"""The jobs of a soak: each a short life of its own with real workers and, most of the time, a fault; and how it must end.

Each is a function of a `Stage` (what there is) and dice of its own, so that one seed tells all that it does. It returns what
came of it, in words to count, or raises AssertionError.
"""
import contextlib
import os
import pathlib
import random
import re
import struct
import subprocess
import threading
import time

import raw
from rig import BUILD, DEADLINE_S, QUIET, Worker, check, holds

PHUB = BUILD / "phub"
NICE = ("nice", "-n", "10")  # what is watched is the box and its steady tenant, not who else gets the CPUs
LIFE_S = (0.2, 0.5, 1, 1, 2, 2, 3, 5)
TRANSPORTS = (("shm",), ("tcp",), ("udp",), ("tcp", "shm"), ("tcp", "udp"), ("tcp", "shm", "udp"))
SMALL = "layer:1000,bias:24"
PERIOD = 4093


class Stage:
    """A box, what is known of it, and when the curtain falls."""

    def __init__(self, box, until, ca=None, secrets=None, fill=None, kills=False):
        self.box, self.until = box, until  # box() is the one that runs now; until(): time.monotonic() of the next quiet point
        self.ca, self.secrets = ca, secrets or {}
        self.fill = fill  # a context manager in which the box's disk for checkpoints is full
        self.kills = kills
        self.names = 0
        self.lock = threading.Lock()
        self.taken = {name: threading.Lock() for name in ("guarded", "slow-lane", "one-core", "small", "disk")}
        self.ending = Gate()
        self.counts = {}

    def name(self, kind):
        with self.lock:
            self.names += 1
            return f"{kind}-{self.names}"

    def tell(self, key, more=1):
        with self.lock:
            self.counts[key] = self.counts.get(key, 0) + more


class Gate:
    """Either some are ending, or one kills the box."""

    def __init__(self):
        self.changed = threading.Condition()
        self.inside = 0
        self.shut = False

    @contextlib.contextmanager
    def ends(self):
        with self.changed:
            self.changed.wait_for(lambda: not self.shut)
            self.inside += 1
        try:
            yield
        finally:
            with self.changed:
                self.inside -= 1
                self.changed.notify_all()

    @contextlib.contextmanager
    def closed(self):
        with self.changed:
            self.changed.wait_for(lambda: not self.shut)
            self.shut = True
            self.changed.wait_for(lambda: not self.inside)
        try:
            yield
        finally:
            with self.changed:
                self.shut = False
                self.changed.notify_all()


class Crew:
    """The workers of one job, who are gone when the block ends, whatever happened."""

    def __init__(self, stage, dice, kind, name=None, **shape):
        self.stage, self.dice = stage, dice
        self.name = name or stage.name(kind)
        self.world = shape.pop("world", None) or dice.randint(1, 6)
        self.shape = shape
        self.transports = dice.choice(TRANSPORTS)
        self.env = {}
        if stage.ca and dice.random() < 0.3:
            self.env["PHUB_TLS_CA"] = str(stage.ca)
        if self.name in stage.secrets:
            self.env["PHUB_SECRET"] = stage.secrets[self.name]
        self.workers = {}
        self.all = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.all:
            with contextlib.suppress(AssertionError, OSError, ValueError):
                result = worker.result(0.1)
                self.stage.tell(f"workers: {result['errno'] or 'well'}")
                self.stage.tell("rounds", result["rounds"])
                self.stage.tell("pushed_bytes", result["pushed_bytes"])
            worker.forget()

    def url(self):
        return self.stage.box().url(self.name)

    def start(self, rank, **more):
        words = {"transport": self.transports[rank % len(self.transports)], "report_ms": 100, **self.shape, **more}
        words = {key: value(rank) if callable(value) else value for key, value in words.items()}
        words = {key: value for key, value in words.items() if value is not None}
        worker = Worker(self.url(), rank, self.world, env=self.env, prefix=NICE, **{"pause_us": 0, **words})  # load is what a soak is for
        self.workers[rank] = worker
        self.all.append(worker)
        return worker

    def begin(self, **more):
        for rank in range(self.world):
            self.start(rank, **more)
        return self

    def run(self):
        for worker in list(self.workers.values()):
            worker.event("progress")
        return self

    def live(self, least_s=0.0):
        """For a while, but not beyond the quiet point."""
        span = max(least_s, min(self.dice.choice(LIFE_S), self.stage.until() - time.monotonic()))
        time.sleep(max(0.0, span))

    def tell(self):
        self.workers[self.dice.choice(list(self.workers))].tell()

    def good(self, but=()):
        return [worker.good() for rank, worker in self.workers.items() if rank not in but]

    def all_fail(self, errno, *words, but=()):
        for rank, worker in self.workers.items():
            if rank not in but:
                result = worker.failed(errno, *words)
                check(result["wrong"] == 0, f"{worker.name}: {result['wrong']} elements were wrong before it failed")

    def victim(self):
        return self.dice.randrange(self.world)


def keys_of(dice, most=40):
    """A key table: from one tiny tensor to a few hundred thousand elements in many."""
    count = 1 if dice.random() < 0.2 else dice.randint(2, most)
    sizes = [int(10 ** dice.uniform(0, 4.3)) for _ in range(count)]
    if dice.random() < 0.2:
        sizes[0] = dice.randint(100000, 600000)
    return ",".join(f"k{i}:{size}{':alone' if dice.random() < 0.1 else ''}" for i, size in enumerate(sizes))


def shape_of(dice, **fixed):
    """What a job may be, as its workers' words."""
    shape = {"keys": keys_of(dice), "dtype": dice.choice(("f32", "f32", "f16", "bf16")),
             "optimizer": dice.choice(("none", "none", "sgd", "momentum", "nesterov", "adagrad", "adam", "adamw")),
             "reduce": dice.choice(("sum", "sum", "mean")), "chunk_bytes": dice.choice((0, 4096, 32768, 131072)),
             "reproducible": int(dice.random() < 0.3), "alloc": int(dice.random() < 0.3),
             "pause_us": dice.choice((0, 500, 5000, 20000)), "seal": dice.choice(("gmac", "gmac", "crc", "none")),
             "nan": dice.choice(("pass", "zero", "fail")), **fixed}
    shape["normals"] = int(shape["dtype"] == "f32" and shape["reproducible"] and shape["reduce"] == "sum" and dice.random() < 0.5)
    if shape["optimizer"] != "none":
        shape["schedule"] = dice.choice((0, 0, 1, 3))
    return shape


def phub_jobs(stage, *words):
    done = subprocess.run([PHUB, "jobs", *words, stage.box().address], capture_output=True, text=True, env=QUIET, timeout=60,
                          check=False)
    return done.returncode, done.stdout + done.stderr


# ---- jobs that end well ----

def plain(stage, dice):
    """Any job: every sum is right."""
    with Crew(stage, dice, "plain", **shape_of(dice)) as crew:
        crew.begin(rounds="until-told").run()
        crew.live()
        crew.tell()
        crew.good()


def brief(stage, dice):
    """A few rounds, and gone."""
    with Crew(stage, dice, "brief", **shape_of(dice, rounds=dice.randint(1, 10), pause_us=0)) as crew:
        crew.begin().good()


def late(stage, dice):
    """One comes late, one is slow."""
    slow, tardy = dice.randrange(6), dice.randrange(6)
    with Crew(stage, dice, "late", **shape_of(dice, rounds=dice.randint(3, 20))) as crew:
        crew.begin(lag_ms=lambda rank: 20 if rank == slow else 0, delay_ms=lambda rank: 700 if rank == tardy else 0).good()


def rekeyed(stage, dice):
    """Key tables in a row."""
    with Crew(stage, dice, "rekeyed", **shape_of(dice, rounds=dice.randint(1, 15), tables=dice.randint(2, 5))) as crew:
        crew.begin().good()


def stepwise(stage, dice):
    """ssp and async: all steps of all ranks, each once."""
    sync = dice.choice(("ssp", "async"))
    shape = shape_of(dice, sync=sync, staleness=dice.randint(1, 4) if sync == "ssp" else 0, optimizer="sgd", lr=1, dtype="f32",
                     rounds=dice.randint(5, 100), reduce="sum", reproducible=0, pause_us=dice.choice((0, 1000)))
    with Crew(stage, dice, sync, **{**shape, "normals": 0, "schedule": 0}) as crew:
        crew.begin(check=int(crew.world == 1), settle=1, lag_ms=lambda rank: rank % 3)
        check(len({result["settled"] for result in crew.good()}) == 1, f"{crew.name}: the last weights differ")


def quorum(stage, dice):
    """Rounds close before the slowest has pushed."""
    world = dice.randint(2, 6)
    shape = shape_of(dice, optimizer="sgd", lr=1, dtype="f32", rounds=dice.randint(5, 60), reduce="sum", reproducible=0, normals=0)
    with Crew(stage, dice, "quorum", world=world, **{**shape, "normals": 0, "schedule": 0, "pause_us": 0}) as crew:
        crew.begin(quorum=dice.randint(1, world), check=0, settle=1, lag_ms=lambda rank: 10 if rank == 0 else 0)
        check(len({result["settled"] for result in crew.good()}) == 1, f"{crew.name}: the last weights differ")


def listed(stage, dice):
    """Jobs with rules of their own: a secret, a bandwidth, one core."""
    name = dice.choice(("guarded", "slow-lane", "one-core"))
    if not stage.taken[name].acquire(blocking=False):
        return "busy"
    try:
        with Crew(stage, dice, name, name=name, world=2, **shape_of(dice, rounds=dice.randint(2, 20))) as crew:
            crew.begin().good()
    finally:
        stage.taken[name].release()
    return name


def again(stage, dice):
    """All workers are killed; the job comes again and goes on from its last checkpoint, or anew where there was none yet."""
    shape = shape_of(dice, optimizer=dice.choice(("sgd", "momentum", "adam")), rounds="until-told", pause_us=2000)
    with Crew(stage, dice, "again", **shape) as crew:
        crew.begin().run()
        crew.live()
        for worker in crew.workers.values():
            worker.kill()
        for worker in crew.workers.values():
            worker.wait()
        stage.box().logged(f"job '{crew.name}' ended")
        crew.begin().run()
        time.sleep(0.3)
        crew.tell()
        crew.good()


# ---- workers that die, hang, or come back ----

def killed(stage, dice):
    """fail: kill -9 of one ends the job for all, by its name."""
    with Crew(stage, dice, "killed", world=dice.randint(2, 6), **shape_of(dice, rounds="until-told")) as crew:
        victim = crew.victim()
        crew.begin(die_at=lambda rank: dice.randint(1, 30) if rank == victim else None)
        crew.all_fail("EOWNERDEAD", f"rank {victim} .*lost", but=(victim,))
        check(crew.workers[victim].wait() == -9, "it was not killed")


def left(stage, dice):
    """One leaves while others go on."""
    with Crew(stage, dice, "left", world=dice.randint(2, 6), **shape_of(dice, rounds="until-told")) as crew:
        victim = crew.victim()
        crew.begin(skip_at=lambda rank: dice.randint(2, 20) if rank == victim else None)
        crew.all_fail("EOWNERDEAD", f"rank {victim} .*left", but=(victim,))
        crew.workers[victim].good()


def replaced(stage, dice):
    """shrink and wait: one or two are killed and others take their places; every chunk is the sum of some of them."""
    lost = dice.choice(("shrink", "wait"))
    shape = shape_of(dice, lost=lost, some=1, settle=1, optimizer=dice.choice(("none", "sgd")), lr=1, reduce="sum", dtype="f32",
                     rounds="until-told", pause_us=dice.choice((2000, 10000)), reproducible=int(dice.random() < 0.3))
    with Crew(stage, dice, lost, world=dice.randint(2, 6), **{**shape, "normals": 0, "schedule": 0}) as crew:
        victims = dice.sample(range(crew.world), 1 if lost == "wait" or crew.world == 2 else dice.randint(1, 2))
        crew.begin(die_at=lambda rank: dice.randint(5, 40) if rank in victims else None)
        for victim in victims:
            check(crew.workers[victim].wait() == -9, f"{crew.name}: rank {victim} was not killed: {crew.workers[victim].out.text()[-500:]}")
        time.sleep(dice.uniform(0, 0.5))
        back = victims if lost == "wait" else dice.sample(victims, dice.randint(0, len(victims)))
        for victim in victims:
            del crew.workers[victim]
        for victim in back:
            crew.start(victim)
        for victim in back:
            crew.workers[victim].event("progress")
        crew.live()
        crew.tell()
        check(len({result["settled"] for result in crew.good()}) == 1, f"{crew.name}: the last results differ")
    return lost


def nobody_comes(stage, dice):
    """wait: no other takes its place, and the job ends in time."""
    with Crew(stage, dice, "vain", world=dice.randint(2, 4), **shape_of(dice, lost="wait", replace_ms=800, rounds="until-told")) as crew:
        victim = crew.victim()
        crew.begin(die_at=lambda rank: 5 if rank == victim else None)
        crew.all_fail("EOWNERDEAD", "no other took its place", but=(victim,))


def stopped(stage, dice):
    """SIGSTOP for a while: the others wait, and all goes on."""
    with Crew(stage, dice, "stopped", world=dice.randint(2, 5), **shape_of(dice, rounds=20, pause_us=1000)) as crew:
        victim = crew.victim()
        crew.begin(stop_at=lambda rank: 5 if rank == victim else None)
        crew.workers[victim].event("stops")
        time.sleep(dice.uniform(0.1, 1.5))
        crew.workers[victim].kill(18)
        crew.good()


def silent(stage, dice):
    """SIGSTOP for good: lost after its time; when it goes on it hears so."""
    with Crew(stage, dice, "silent", world=dice.randint(2, 4), **shape_of(dice, rounds="until-told")) as crew:
        victim = crew.victim()
        crew.begin(stop_at=lambda rank: 5 if rank == victim else None)
        crew.workers[victim].event("stops")
        crew.all_fail("EOWNERDEAD", f"rank {victim} .*lost", but=(victim,))
        crew.workers[victim].kill(18)
        crew.workers[victim].failed(("EOWNERDEAD", "ECONNRESET"))


def data_value(rank, round_number, at):
    """worker_data.c's integers."""
    mask = (1 << 64) - 1
    x = ((rank << 48 ^ round_number << 16 ^ at) + 0x9e3779b97f4a7c15) & mask
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & mask
    x = (x ^ x >> 27) * 0x94d049bb133111eb & mask
    return (x ^ x >> 31) % 17 - 8


def slow_reader(stage, dice):
    """One pushes, and takes what comes back a few bytes at a time."""
    with Crew(stage, dice, "reader", world=2, keys=SMALL, rounds=5, optimizer="none", dtype="f32") as crew:
        crew.env.pop("PHUB_TLS_CA", None)
        crew.transports = ("tcp",)
        crew.start(0)
        control = raw.member(stage.box().address, crew.name, 1, 2, [("layer", 1000), ("bias", 24)])
        with contextlib.closing(control):
            data = raw.connected(control)
            with contextlib.closing(data.sock):
                for round_number in range(1, 6):
                    values = [data_value(1, round_number, i % PERIOD) for i in range(1000)]
                    values += [data_value(1, round_number, (i + 577) % PERIOD) for i in range(24)]
                    data.sock.sendall(data.header(control, round=round_number, length=4096) + struct.pack("<1024f", *values))
                    got = 0
                    while got < 4096:  # headers and credits come besides: enough to have read most of it
                        got += len(data.sock.recv(dice.randint(100, 700)))
                        time.sleep(0.005)
                crew.workers[0].event("end")
                control.send(raw.LEAVE)
                control.expect(raw.LEFT)
        crew.good()


def vanishes(stage, dice):
    """One goes away somewhere in the handshakes; the other hears so, or waits for the next, who is good."""
    where = dice.choice(("dialled", "hello", "proof", "joined", "tabled", "started", "data", "pushed"))
    with Crew(stage, dice, "vanishes", world=2, keys=SMALL, rounds=3, optimizer="none", dtype="f32") as crew:
        crew.env.pop("PHUB_TLS_CA", None)
        crew.transports = ("tcp",)
        control = raw.Control(stage.box().address, crew.name, 1, 2)
        with contextlib.closing(control):
            crew.start(0).event("connected")
            if where != "dialled":
                control.hello()
            if where not in ("dialled", "hello"):
                control.prove()
            if where not in ("dialled", "hello", "proof"):
                control.welcome()
            if where in ("tabled", "started", "data", "pushed"):
                control.job([("layer", 1000), ("bias", 24)])
            if where in ("started", "data", "pushed"):
                control.start()
            if where in ("data", "pushed"):
                data = raw.Data(control.addresses["tcp"])
                data.hello(control, control.cores_of_chunks[0])
            if where == "pushed":
                data.sock.sendall(data.header(control, round=1, length=4096) + bytes(dice.choice((0, 100, 4096))))
        if where in ("data", "pushed"):
            data.sock.close()
        if where in ("dialled", "hello", "joined"):
            crew.start(1)
            crew.good()
        elif where in ("proof", "tabled"):  # it may have been in time, and may not
            crew.workers[0].forget()
        else:
            crew.workers[0].failed("EOWNERDEAD", "rank 1 ")
    return where


# ---- who is refused ----

def refused(stage, dice):
    """What the box turns down at the door: secrets, certificates, names, ranks, tables, quotas."""
    case = dice.choice(("secret", "no secret", "needless secret", "pin", "rank", "world", "table", "memory", "keys"))
    with Crew(stage, dice, "refused", world=2, keys="a:100,b:5000", rounds=2) as crew:
        if case in ("secret", "no secret"):
            crew.name = "guarded"
            crew.env["PHUB_SECRET"] = "open" if case == "secret" else ""
            crew.start(0).failed("EACCES", "secret")
        elif case == "needless secret":
            crew.start(0, secret="open").failed("EACCES", "knows no secret")
        elif case == "pin":
            crew.env = {"PHUB_TLS_PIN": "0" * 64}
            crew.start(0).failed("EACCES", "PHUB_TLS_PIN")
        elif case == "rank":
            crew.start(0, no_start=1).event("idle")
            first = crew.workers[0]
            crew.start(0).failed("EADDRINUSE", "taken")
            first.tell()
            first.wait()
        elif case == "world":
            crew.start(0).event("connected")
            crew.world = 3
            crew.start(1).failed("EBADMSG", "world of 2")
        elif case == "table":
            crew.begin(keys=lambda rank: f"a:{100 + rank},b:5000")
            crew.all_fail("EBADMSG", "key 'a'")
        elif not stage.taken["small"].acquire(blocking=False):
            return "busy"
        else:
            try:
                crew.name, crew.world = "small", 1
                crew.start(0, keys=f"a:{4 << 20}" if case == "memory" else ",".join(f"k{i}:1" for i in range(3000)))
                crew.all_fail("ENOMEM", "memory_max" if case == "memory" else "keys_max")
                stage.box().logged("job 'small' ended")
            finally:
                stage.taken["small"].release()
    return case


def nans(stage, dice):
    """A NaN ends its job, by rank and key."""
    with Crew(stage, dice, "nan", world=dice.randint(1, 4), **shape_of(dice, nan="fail", rounds=20, keys="front:40,bad:20000",
                                                                      nan_key=1, nan_element=9001)) as crew:
        victim = crew.victim()
        crew.begin(nan_at=lambda rank: 5 if rank == victim else None)
        crew.all_fail("EDOM", f"rank {victim} ", "key 'bad'")


# ---- the operator ----

def paused(stage, dice):
    """Paused, and resumed: nothing is lost."""
    with Crew(stage, dice, "paused", **shape_of(dice, rounds="until-told")) as crew:
        crew.begin().run()
        status, text = phub_jobs(stage, "pause", crew.name, "--reason", "soak")
        check(status == 0, text)
        time.sleep(dice.uniform(0, 1))
        status, text = phub_jobs(stage, "resume", crew.name)
        check(status == 0, text)
        crew.live()
        crew.tell()
        crew.good()


def ended(stage, dice):
    """Drained or evicted: its workers hear by whom, and why."""
    how = dice.choice(("drain", "evict"))
    with Crew(stage, dice, how, **shape_of(dice, rounds="until-told")) as crew:
        crew.begin().run()
        if how == "evict" and dice.random() < 0.3:
            phub_jobs(stage, "pause", crew.name)
        status, text = phub_jobs(stage, how, crew.name, "--reason", "over its time")
        check(status == 0, text)
        crew.all_fail("ECANCELED", "operator", "over its time")
    return how


def full_disk(stage, dice):
    """No room for checkpoints: the job goes on, and the log says so."""
    if not stage.fill or not stage.taken["disk"].acquire(blocking=False):
        return "busy"
    try:
        with stage.fill(), Crew(stage, dice, "full", **shape_of(dice, optimizer="adam", dtype="f32", rounds="until-told", keys="a:200000",
                                                              pause_us=1000)) as crew:
            crew.begin().run()
            stage.box().logged(f"job '{crew.name}': no checkpoint: .*[Nn]o space")
            crew.tell()
            crew.good()
    finally:
        stage.taken["disk"].release()


# ---- a box that is killed ----

def resumes(stage, dice):
    """The box is killed under it, again and again: its weights are those of a run without that, bit by bit."""
    shape = shape_of(dice, optimizer=dice.choice(("sgd", "momentum", "adam", "adamw")), reproducible=1, rounds="until-told",
                     pause_us=dice.choice((2000, 10000)), resume_ms=60000, wait_ms=20000, patience_ms=90000)
    with Crew(stage, dice, "resumes", world=dice.randint(1, 4), **shape) as crew:
        with stage.ending.ends():  # who loses the box before its first start has nothing yet to go on with
            crew.begin().run()
        crew.live(1)
        with stage.ending.ends():
            for worker in crew.workers.values():  # what it has reported so far is old
                worker.seen = len(worker.out.lines)
            crew.run()
            crew.tell()
            stage.tell("resumed", sum(result["resumed"] for result in crew.good()))


JOBS = ((plain, 8), (brief, 4), (late, 2), (rekeyed, 3), (stepwise, 3), (quorum, 3), (listed, 3), (again, 2), (killed, 3), (left, 1),
        (replaced, 5), (nobody_comes, 1), (stopped, 2), (silent, 1), (slow_reader, 1), (vanishes, 4), (refused, 5), (nans, 1),
        (paused, 2), (ended, 2), (full_disk, 1))
KILLED_JOBS = ((resumes, 1),)


class Outcome:
    """One that is over: what it was, from which seed, how long it took, and what was wrong."""

    def __init__(self, kind, seed, took_s, note, error):
        self.kind, self.seed, self.took_s, self.note, self.error = kind, seed, took_s, note, error


def play(stage, seed, jobs):
    """One of them, chosen by the seed."""
    dice = random.Random(seed)
    job = dice.choices([job for job, _ in jobs], [weight for _, weight in jobs])[0]
    began = time.monotonic()
    note, error = "", None
    try:
        note = job(stage, dice) or ""
    except (AssertionError, OSError, raw.Closed, subprocess.TimeoutExpired) as why:
        error = f"{type(why).__name__}: {why}"
    return Outcome(job.__name__, seed, time.monotonic() - began, note, error)
