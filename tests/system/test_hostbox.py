#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for boxes that end when nobody is there
"""phub://box/job?hostbox=auto: the first worker on a host starts a box there, the others find it, and it ends with the last one.

Two "hosts" on this machine are told apart by PHUB_HOSTBOX_NAME. Real boxes, real workers.
"""
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import rig
from rig import check, holds
from test_racks import admitted, until  # noqa: E402

PHUB = rig.BUILD / "phub"
KEYS = "a:50000,b:70000,c:100"
ROUNDS = 8
FOLDER = tempfile.TemporaryDirectory(prefix="phub-hostbox-")
ENDS_S = 20  # for a box of which nobody is left: 2 s, on a machine that has much else to do


class Site:
    """A root box, and hosts of which it is above. Their names are of this site alone."""

    count = 0

    def __init__(self, **options):
        Site.count += 1
        self.mark = f"test-{os.getpid()}-{Site.count}-"
        self.root = rig.Box(name="root", **{"cores": 1, **options})

    def env(self, host, **more):
        sanitizers = {f"{name}_OPTIONS": f"{os.environ.get(f'{name}_OPTIONS', '')}:log_path={FOLDER.name}/sanitizer"
                      for name in ("ASAN", "LSAN", "TSAN", "UBSAN")}
        return {**sanitizers, "PHUB_PHUBD": str(rig.PHUBD), "PHUB_HOSTBOX_NAME": f"{self.mark}{host}", "XDG_RUNTIME_DIR": "",
                "TMPDIR": FOLDER.name, **more}

    def worker(self, host, rank, world, job="demo", env=None, query="?hostbox=auto", at=None, **more):
        """`at`: the box above the host's; the root where it is not given."""
        given = {"keys": KEYS, "rounds": ROUNDS, **more}
        return rig.Worker((at or self.root).url(job) + query, rank=rank, world=world, env=self.env(host, **(env or {})), **given)

    def workers(self, hosts, **more):
        return [self.worker(host, rank, len(hosts), **more) for rank, host in enumerate(hosts)]

    def training(self, hosts, **more):
        workers = self.workers(hosts, rounds=1000000, report_ms=50, **more)
        for worker in workers:
            worker.event("progress")
        return workers

    def boxes(self):
        """{host: [pid]} of phubds that run for hosts of this site. One that ends under the leak sanitizer has a child that looks the same."""
        found, parents = {}, {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                name = (folder / "comm").read_text().strip()
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue  # it has ended
            mine = [word.decode() for word in environment if word.startswith(f"PHUB_HOSTBOX_NAME={self.mark}".encode())]
            if name == "phubd" and mine:
                found.setdefault(mine[0].split(self.mark)[1], []).append(int(folder.name))
        boxes = {pid for pids in found.values() for pid in pids}
        return {host: kept for host, pids in found.items() if (kept := [pid for pid in pids if parents[pid] not in boxes])}

    def address(self, host, job="demo"):
        """Where the box of that host listens, and its log."""
        log = log_of(self.root.address, job, f"{self.mark}{host}")
        line = next(line for line in log.read_text().splitlines() if line.startswith("phubd: listening on "))
        return line.split()[3], log

    def ends(self):
        """Nobody is left, and so no box but the root, which ends well, too."""
        until = time.monotonic() + ENDS_S
        while self.boxes():
            check(time.monotonic() < until, f"still there: {self.boxes()}")
            time.sleep(0.05)
        self.root.stop()
        for log in [*pathlib.Path(FOLDER.name).glob("phub-hostbox-*.log"),
                    *pathlib.Path(FOLDER.name).glob("sanitizer.*")]:  # nobody sees their exit status
            found = re.search(r".*(Sanitizer|runtime error|did not balance).*", log.read_text())
            check(not found, found and found.group())

    def logs(self, job="demo"):
        """Hosts of which a log is there."""
        return {host for host in ("one", "two") if log_of(self.root.address, job, f"{self.mark}{host}").exists()}


def socket_name(address, job, name, tls=0):
    host, port = address.rsplit(":", 1)
    text = "\0".join([host, port, job, str(tls), name])
    return f"phub-hostbox-{os.geteuid()}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def log_of(*what):
    return pathlib.Path(FOLDER.name, socket_name(*what) + ".log")


def bad(worker, *patterns):
    result = worker.result()
    check(worker.wait() == 1, f"it ended well: {result}")
    holds(json.dumps(result), *patterns)
    return result


def jobs(address, name):
    out = subprocess.run([PHUB, "jobs", "--json", address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S,
                         env=rig.QUIET).stdout
    return next(job for job in map(json.loads, out.splitlines()) if job.get("job") == name)


@functools.cache
def flat(world, **more):
    """The digest that so many workers at one box end with."""
    box = rig.Box(cores=1)
    digests = {worker.good()["digest"] for worker in rig.job(box.url("flat"), world, keys=KEYS, rounds=ROUNDS, transport="tcp", **more)}
    box.stop()
    check(len(digests) == 1, f"{digests}")
    return digests.pop()


def summed():
    """two hosts of two workers: sums and weights are those of one box for all, and both boxes end with the last worker"""
    site = Site()
    for job, more in [("sum", {"optimizer": "none"}), ("mean", {"optimizer": "none", "reduce": "mean"}), ("adam", {"optimizer": "adam"}),
                      ("adam", {"optimizer": "adam"})]:  # the second one meets boxes that linger
        digests = {worker.good()["digest"] for worker in site.workers(["one", "one", "two", "two"], job=job, **more)}
        check(digests == {flat(4, **more)}, f"{job}: {digests}")
    site.ends()
    for job in ("sum", "mean", "adam"):
        for host in site.logs(job):  # what this machine lacks may be said in each
            holds(log_of(site.root.address, job, f"{site.mark}{host}").read_text(), r"Z (warn|error) ")


def once():
    """the root has two contributors, and each host's link carries one gradient a round; workers reach their box by shared memory"""
    site = Site()
    workers = site.training(["one", "one", "two", "two"], optimizer="none", pause_us=5000)
    check(sorted(below["ranks"] for below in jobs(site.root.address, "demo")["below"]) == [[0, 1], [2, 3]], "the root has others")
    file = pathlib.Path(FOLDER.name) / "once.yaml"
    file.write_text(f"racks:\n  - name: r0\n    boxes:\n      - {{name: root, address: '{site.root.address}', rate: 10Gbit}}\n")
    seen = subprocess.run([PHUB, "boxes", "--racks", file], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S,
                          env=rig.QUIET).stdout
    holds(seen, r"root .* up +demo 4/4")
    for host in ("one", "two"):
        address, _ = site.address(host)
        found = jobs(address, "demo")
        while found["rounds"] < 30:
            found = jobs(address, "demo")
        sent = found["above"]["bytes"] / found["rounds"] / found["bytes"]
        check(0.9 < sent < 1.15, f"{sent:.2f} gradients a round went up")
        members = [m for m in found["workers"] if m.get("transport")]
        check([m["transport"] for m in members] == ["shm", "shm"], f"{found['workers']}")
    check({host: len(pids) for host, pids in site.boxes().items()} == {"one": 1, "two": 1}, f"{site.boxes()}")
    for worker in workers:
        worker.kill()
    site.ends()


def uneven():
    """all workers on one host; and a host with a single worker beside one with three"""
    site = Site()
    for job, hosts in (("same", ["one", "one", "one"]), ("single", ["one", "two", "one", "one"])):
        digests = {worker.good()["digest"] for worker in site.workers(hosts, job=job, optimizer="adam", reduce="mean")}
        check(digests == {flat(len(hosts), optimizer="adam", reduce="mean")}, f"{job}: {digests}")
    site.ends()


def rush():
    """many workers that come at the same moment start one box, and never two"""
    site = Site()
    for turn in range(3):
        workers = [site.worker("one", rank, 12, job=f"rush{turn}", keys="a:100", rounds="until-told", report_ms=50) for rank in range(12)]
        for worker in workers:
            worker.event("progress")
        log = log_of(site.root.address, f"rush{turn}", f"{site.mark}one").read_text()
        check(log.count("phubd: listening on ") == 1 and len([p for pids in site.boxes().values() for p in pids]) <= turn + 1, log)
        workers[0].tell()
        for worker in workers:
            worker.good()
    site.ends()


def beside():
    """two jobs at the same time have a box each, and the end of one is nothing to the other"""
    site = Site()
    crews = {job: site.training(["one", "one"], job=job, optimizer="none") for job in ("left", "right")}
    check(len(site.boxes()["one"]) == 2, f"{site.boxes()}")
    for worker in crews["left"]:
        worker.kill()
    until = time.monotonic() + ENDS_S
    while len(site.boxes()["one"]) > 1:
        check(time.monotonic() < until, "the box of a job that is over is still there")
        time.sleep(0.05)
    for worker in crews["right"]:
        with worker.out.changed:
            worker.seen = len(worker.out.lines)
        worker.event("progress")
    for worker in crews["right"]:
        worker.kill()
    site.ends()


def first_killed():
    """the worker that started the box is killed: the others are told which rank was lost, and the box ends with them"""
    site = Site()
    first = site.worker("one", 0, 3, rounds=1000000, report_ms=50)
    first.event("connected")
    pids = site.boxes()["one"]
    others = [site.worker(host, rank, 3, rounds=1000000, report_ms=50) for rank, host in ((1, "one"), (2, "two"))]
    for worker in (first, *others):
        worker.event("progress")
    check(site.boxes()["one"] == pids, "another box was started")
    first.kill()
    for worker in others:
        bad(worker, r"rank 0 \(.*was lost")
    site.ends()
    check(site.logs() == {"one", "two"}, f"logs that say who was lost: {site.logs()}")


def all_killed():
    """all workers are killed: nothing is left"""
    site = Site()
    workers = site.training(["one", "one", "two", "two"])
    for worker in workers:
        worker.kill()
    site.ends()


def box_killed():
    """a host's box is killed: all workers get an error that names it within the deadline, and the job can be started again at once"""
    site = Site(lost_ms=3000, warn_ms=1500)
    workers = site.training(["one", "one", "two", "two"])
    address, log = site.address("one")
    began = time.monotonic()
    os.kill(site.boxes()["one"][0], signal.SIGKILL)
    for worker in workers[:2]:
        bad(worker, rf"box {address} \(this host's own, of hostbox=auto; log: {log}\)", "ECONNRESET")
    for worker in workers[2:]:
        bad(worker, rf"box {address} \(ranks 0, 1\) was lost")
    check(time.monotonic() - began < 15, "it took too long")
    for worker in site.workers(["one", "one", "two", "two"], optimizer="adam"):
        worker.good()
    site.ends()


def kept():
    """the box in the URL writes checkpoints of what hosts' boxes sum, and a job that comes again after all was killed goes on from the last"""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(checkpoint_targets=folder, checkpoint_every=5)
        workers = site.training(["one", "one", "two"], optimizer="adam", pause_us=2000)
        site.root.logged("job 'demo': checkpoint before round .* written")
        for worker in workers:
            worker.kill()
        site.root.logged("job 'demo' ended|rank . was lost")
        for worker in [admitted(lambda rank=rank, host=host: site.worker(host, rank, 3, optimizer="adam", rounds=3))
                       for rank, host in enumerate(["one", "one", "two"])]:
            worker.good()
        site.root.logged("job 'demo' goes on from its checkpoint before round")
        site.ends()


def outlived():
    """with lost=shrink a worker is killed, and then a host's whole box: the others go on without, and come back to all when others take their places"""
    site = Site(lost_ms=3000, warn_ms=1500)
    hosts = ["one", "one", "two", "two"]

    def begin(rank):
        return site.worker(hosts[rank], rank, 4, lost="shrink", census=True, rounds="until-told", report_ms=1, wait_ms=60000, keys=KEYS)

    workers = [begin(rank) for rank in range(4)]
    for worker in workers:
        until(worker, 0b1111)
    workers[1].kill()
    for rank in (0, 2, 3):
        until(workers[rank], 0b1101)
    workers[1] = begin(1)
    for worker in workers:
        until(worker, 0b1111)
    os.kill(site.boxes()["two"][0], signal.SIGKILL)
    for rank in (2, 3):
        bad(workers[rank], "this host's own, of hostbox=auto")
    for rank in (0, 1):
        until(workers[rank], 0b0011)
    workers[2:] = [admitted(lambda rank=rank: begin(rank)) for rank in (2, 3)]  # the second one may come to a box that has no memory for it
    for worker in workers:
        until(worker, 0b1111)
    workers[0].tell()
    for worker in workers:
        worker.good()
    site.ends()


def missing():
    """no phubd to start, or one that does not start: every worker is told so, and why"""
    site = Site()
    bare = {"PHUB_PHUBD": "", "PATH": "/nowhere"}
    for worker in site.workers(["one", "one"], env=bare):
        worker.failed("ENOENT", "needs a phubd to start, and there is none beside .*PATH; set PHUB_PHUBD")
    for worker in site.workers(["one", "one"], env={"PHUB_PHUBD": "/nowhere/phubd"}):
        worker.failed("ENOENT", "PHUB_PHUBD='/nowhere/phubd' is no program")
    for worker in site.workers(["one", "one"], env={"PHUB_HOSTBOX_CORES": "few"}):
        worker.failed("ECONNREFUSED", r"did not start: phubd: cores: 'few' is not understood; allowed: .*; its log: /")
    for worker in site.workers(["one", "one"], env={"PHUB_PHUBD": "/bin/true"}):
        worker.failed("ECONNREFUSED", "did not start: it ended without a word")
    folder = pathlib.Path(tempfile.mkdtemp(dir=FOLDER.name))
    (folder / "phubd").symlink_to(rig.PHUBD)
    for worker in site.workers(["one", "one"], env={"PHUB_PHUBD": "", "PATH": f"/nowhere:{folder}"}):
        worker.good()
    site.ends()


def silent():
    """a phubd that never answers costs no more than the time that was given"""
    site = Site()
    mute = pathlib.Path(FOLDER.name, "mute")
    mute.write_text("#!/bin/sh\nexec sleep 5\n")
    mute.chmod(0o755)
    began = time.monotonic()
    workers = site.workers(["one", "one"], env={"PHUB_PHUBD": str(mute)}, timeout_ms=1000)
    for worker in workers:
        worker.failed("ETIMEDOUT", "this host's box .* has not come up in time; its log: ")
    check(time.monotonic() - began < 5, "it waited for longer")
    site.root.stop()


def confined():
    """a user who may have no more processes: every worker is told so at once, and which of them could not be had"""
    if os.geteuid() != 0:
        raise rig.Skip("needs root, to be a user of whom nobody else is")
    site = Site()
    user = 100000 + os.getpid()
    with tempfile.TemporaryDirectory(prefix="phub-confined-") as folder:
        for program in (rig.WORKER, rig.PHUBD):  # the build folder may be out of this user's reach
            shutil.copy(program, folder)
        own = pathlib.Path(folder, "own")
        own.mkdir()
        os.chown(own, user, user)
        os.chmod(folder, 0o755)
        os.chmod(FOLDER.name, 0o1733)  # for what a sanitizer has to say
        for processes, errno, text in [(1, "EAGAIN", r"cannot start .*/phubd for hostbox=auto: .*no more processes \(ulimit -u, pids.max\)"),
                                       (2, "ECONNREFUSED", r"did not start: phubd: .*cannot fork: .*; its log: /")]:
            prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "prlimit", f"--nproc={processes}",
                      "sh", "-c", 'shift; exec "$0" "$@"', f"{folder}/{rig.WORKER.name}"]
            began = time.monotonic()
            alone = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0"}  # which takes a process
            site.worker("one", 0, 1, env={**alone, "PHUB_PHUBD": f"{folder}/phubd", "TMPDIR": str(own)}, prefix=prefix,
                        timeout_ms=60000).failed(errno, text)
            check(time.monotonic() - began < 30, "it waited for longer")
    os.chmod(FOLDER.name, 0o700)
    site.ends()


def wrapped():
    """PHUB_PHUBD is a script around phubd: one that goes on when phubd has gone to the background is not waited for"""
    site = Site()
    lives = pathlib.Path(FOLDER.name, "lives")
    lives.write_text("until this file is gone")
    patient = pathlib.Path(FOLDER.name, "patient")
    patient.write_text(f'#!/bin/sh\n{rig.PHUBD} "$@"\nwhile [ -e {lives} ]; do sleep 0.1; done\n')
    patient.chmod(0o755)
    began = time.monotonic()
    for worker in site.workers(["one", "one"], env={"PHUB_PHUBD": str(patient)}, timeout_ms=60000):
        worker.good()
    check(time.monotonic() - began < 30, "it was waited for")
    mute = pathlib.Path(FOLDER.name, "dumb")  # it ends without an answer, and its wrapper does not
    mute.write_text(f"#!/bin/sh\n: >&3\nexec 3>&-\nwhile [ -e {lives} ]; do sleep 0.1; done\n")
    mute.chmod(0o755)
    began = time.monotonic()
    site.worker("two", 0, 1, env={"PHUB_PHUBD": str(mute)},
                timeout_ms=60000).failed("ECONNREFUSED", "did not start: it ended without a word")
    check(time.monotonic() - began < 30, "it was waited for")
    lives.unlink()
    site.ends()


def no_root():
    """nobody is at the URL's address: the host's box waits for it, and workers are told for what"""
    site = Site()
    site.root.stop()
    first, second = site.worker("one", 0, 2, wait_ms=6000), site.worker("one", 1, 2, wait_ms=3000)
    bad(second, r"the box above \(uplink.*\) is not there: .*refused")
    whole = rf"the start waits; the box says: all 2 ranks of job 'demo' are here, and the box above \(uplink {site.root.address}\) is not there: .*refused"
    alone = r"the start waits for rank 1 of 2; the box above \(uplink\) is not there: .*refused"  # the other has given up
    bad(first, alone)
    site.worker("one", 0, 1, job="single", wait_ms=2000).failed("ETIMEDOUT", whole.replace("2 ranks", "1 ranks").replace("demo", "single"))
    late = site.workers(["one", "one"])
    for worker in late:
        worker.event("connected")
    site.root = rig.Box(name="root", cores=1, listen=site.root.address)
    for worker in late:
        worker.good()
    site.ends()


def refused():
    """what jobs at several boxes cannot have is refused by name, and so is a query that is not understood"""
    site = Site()
    for more, what in [({"sync": "ssp", "optimizer": "sgd"}, "sync ssp and async"), ({"quorum": 1, "optimizer": "sgd"}, "a quorum"),
                       ({"resume_ms": 1000}, "resume"), ({"interface": "lo"}, "an interface"),
                       ({"transport": "udp"}, "a transport other than shm and tcp"), ({"here": 1}, "here .it has no part above"),
                       ({"env": {"PHUB_ENCRYPT": "1", "PHUB_SECRET": "x" * 20}}, "encrypted data")]:
        site.worker("one", 0, 1, **more).failed("EOPNOTSUPP", f"hostbox=auto has a box of this host sum its workers.* do not go with {what}")
    for query in ("?hostbox=maybe", "?", "?hostbox=auto&x=1"):
        site.worker("one", 0, 1, query=query).failed("EINVAL", "neither hostbox=auto nor hostbox=none")
    site.worker("one", 0, 1, query="", env={"PHUB_HOSTBOX": "yes"}).failed("EINVAL", "PHUB_HOSTBOX='yes'; allowed: auto, none")
    check(not site.boxes(), f"{site.boxes()}")
    site.worker("one", 0, 1, query="?hostbox=none", env={"PHUB_HOSTBOX": "auto"}).good()
    check(not site.boxes(), f"{site.boxes()}")
    worker = site.worker("one", 0, 1, query="", env={"PHUB_HOSTBOX": "auto"}, rounds=1000000, report_ms=50)
    worker.event("progress")
    check(list(site.boxes()) == ["one"], f"{site.boxes()}")
    worker.kill()
    site.ends()


def secret():
    """the job's secret goes to the host's box for both its sides, and is on nobody's command line; a wrong one is refused"""
    word = "correct-horse-battery-staple"
    file = pathlib.Path(FOLDER.name, "secret")
    file.write_text(word + "\n")
    file.chmod(0o600)
    site = Site(create="secret", create_secret_file=file)
    workers = site.training(["one", "one", "two"], env={"PHUB_SECRET_FILE": str(file)})
    for pid in (pid for pids in site.boxes().values() for pid in pids):
        check(word not in pathlib.Path(f"/proc/{pid}/cmdline").read_text(), "the secret is on the command line")
    site.worker("one", 0, 3, env={"PHUB_SECRET": "another-" + word}).failed("EACCES")
    for worker in workers:
        worker.kill()
    site.worker("three", 0, 2, job="wrong",
                env={"PHUB_SECRET": "another-" + word}).failed("EACCES", "this box and the one above have different secrets")
    site.ends()


def sealed():
    """control sessions with the box above are TLS where the URL, or what the box is known by, says so"""
    folder = pathlib.Path(tempfile.mkdtemp(dir=FOLDER.name))
    rig.do("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=box",
           "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key", "-out", folder / "cert")
    site = Site(tls="require", tls_cert=folder / "cert", tls_key=folder / "key")
    for worker in site.workers(["one", "one", "two"], env={"PHUB_TLS_CA": str(folder / "cert")}):
        worker.good()
    bad(site.worker("four", 0, 1, job="plain"), "the box takes TLS alone")
    site.ends()


def sharded():
    """racks of hosts, sharded, chain and as the cost model chooses: host boxes are the home of nothing, whichever rack they are in,
    and nobody has to call them"""
    for hierarchy, ways in (("sharded", ["sharded"]), ("chain", ["chain"]), ("auto", ["tree", "sharded", "chain", None])):
        site = Site(hierarchy=hierarchy, cores=2)
        other = rig.Box(name="other", cores=2, uplink=site.root.address, listen="127.0.0.2:0")
        for job, more in (("adam", {"optimizer": "adam"}),
                          ("tables", {"optimizer": "momentum", "barrier": True, "schedule": 3, "tables": 2})):
            workers = [site.worker("one", 0, 5, job=job, **more), site.worker("one", 1, 5, job=job, **more),
                       site.worker("two", 2, 5, job=job, **more),
                       site.worker("two", 3, 5, job=job, at=other, **more),
                       rig.Worker(other.url(job), rank=4, world=5, **{"keys": KEYS, "rounds": ROUNDS, **more})]
            digests = {worker.good()["digest"] for worker in workers}
            check(job == "tables" or digests == {flat(5, **more)}, f"{hierarchy}, {job}: {digests}")
        workers = [site.worker("one", 0, 3, job="long", rounds=1000000, report_ms=50, pause_us=2000),
                   site.worker("two", 1, 3, job="long", at=other, rounds=1000000, pause_us=2000),
                   rig.Worker(other.url("long"), rank=2, world=3, keys=KEYS, rounds=1000000, pause_us=2000)]
        workers[0].event("progress")
        found = jobs(site.root.address, "long")
        check(len(found["below"]) == 2 and len(found.get("beside", [])) in ((2,) if hierarchy != "auto" else (0, 2))
              and found.get("hierarchy") in ways, f"{hierarchy}: {found}")
        workers[0].kill()
        for worker in workers[1:]:
            bad(worker, r"rank 0 .*was lost")
        other.stop()
        site.ends()
    if os.geteuid() != 0:
        raise rig.Skip("needs root, for a network namespace")
    _, enter = rig.namespace("other")
    for last in (1, 2):
        rig.do(*enter, "ip", "address", "add", f"10.99.99.{last}/32", "dev", "lo")
    site = Site(hierarchy="sharded", listen="10.99.99.1:0", create="secret", create_secret_env="WORD", env={"WORD": "x" * 20}, prefix=enter)
    other = rig.Box(name="other", cores=1, uplink=site.root.address, listen="10.99.99.2:0", create="secret", create_secret_env="WORD",
                    env={"WORD": "x" * 20}, prefix=enter)
    common = {"keys": KEYS, "rounds": 5, "prefix": enter, "world": 3}
    for worker in [*(rig.Worker(site.root.url("demo") + "?hostbox=auto", rank=rank, env=site.env("one", PHUB_SECRET="x" * 20), **common)
                     for rank in range(2)),
                   rig.Worker(other.url("demo"), rank=2, env={"PHUB_SECRET": "x" * 20}, **common)]:
        worker.good()
    other.logged("job 'demo': 2 boxes exchange, sharded, on 1 core each")
    site.root.logged(r"box 10\.99\.99\.\d:\d+ \(ranks 0, 1\) left")  # by the address that it calls from, not by one that means nothing here
    other.stop()
    site.ends()


def squatter():
    """another user who listens where the host's box would is refused, and named"""
    if os.geteuid() != 0:
        raise rig.Skip("needs root, to be another user")
    site = Site()
    script = ("import os,socket,sys;os.setuid(65534);s=socket.socket(socket.AF_UNIX);s.bind('\\0'+sys.argv[1]);s.listen();"
              "print('ready',flush=True);sys.stdin.read()")
    name = socket_name(site.root.address, "demo", site.mark + "one")
    other = rig.Process("squatter", [sys.executable, "-c", script, name])
    check(other.out.find(lambda line: line == "ready"), other.err.text())
    site.worker("one", 0, 1).failed("EACCES", rf"another user of this host \(uid 65534, process {other.pid}\) listens")
    other.kill()
    site.ends()


def stranger():
    """a process of another user that comes to the host's box learns nothing, and does not keep it"""
    if os.geteuid() != 0:
        raise rig.Skip("needs root, to be another user")
    site = Site()
    workers = site.training(["one", "one"])
    script = ("import os,socket,sys;os.setuid(65534);s=socket.socket(socket.AF_UNIX);s.connect('\\0'+sys.argv[1]);"
              "print(len(s.recv(100)),flush=True);sys.stdin.read()")
    other = rig.Process("stranger", [sys.executable, "-c", script, socket_name(site.root.address, "demo", site.mark + "one")])
    check(other.out.find(lambda line: line == "0"), f"it was told: {other.out.text()} {other.err.text()}")
    for worker in workers:
        worker.kill()
    site.ends()
    other.kill()


def stale():
    """the worker that has the name dies before it has started a box: those that wait for its answer start one"""
    site = Site()
    script = "import socket,sys;s=socket.socket(socket.AF_UNIX);s.bind('\\0'+sys.argv[1]);s.listen();print('ready',flush=True);s.accept();sys.stdin.read()"
    first = rig.Process("first", [sys.executable, "-c", script, socket_name(site.root.address, "demo", site.mark + "one")])
    check(first.out.find(lambda line: line == "ready"), first.err.text())
    workers = site.workers(["one", "one"])
    time.sleep(0.5)
    check(not site.boxes(), "a box was started beside one that may come up")
    first.kill()
    for worker in workers:
        worker.good()
    site.ends()


def brief():
    """workers that come as the box of the one before ends, for it lingers no time, find a box all the same"""
    site = Site()
    hasty = pathlib.Path(FOLDER.name, "hasty")
    hasty.write_text(f'#!/bin/sh\nexec {rig.PHUBD} "$@" -o hostbox_linger_ms=0\n')
    hasty.chmod(0o755)
    for turn in range(25):
        site.worker("one", 0, 1, keys="a:100", rounds=2, delay_ms=turn % 5, env={"PHUB_PHUBD": str(hasty)}).good()
    site.ends()


def by_hand():
    """hostbox_fd is for those who have such a socket: another one is refused, and says so"""
    done = subprocess.run([rig.PHUBD, "-o", "listen=127.0.0.1:0", "-o", "hostbox_fd=1"], capture_output=True, text=True,
                          timeout=rig.DEADLINE_S, check=False,
                          env=rig.QUIET)
    check(done.returncode == 1, f"{done}")
    holds(done.stderr, "phubd: hostbox_fd: 1 is no Unix socket that listens")


def apart():
    """the host's box has a session of its own, no descriptor of the worker's, any CPU, and SIGINT for the workers does not end it"""
    site = Site()
    read, write = os.pipe()
    os.set_inheritable(write, True)
    cpu = min(os.sched_getaffinity(0))
    command = [rig.WORKER, f"url={site.root.url('demo')}?hostbox=auto", "rank=0", "world=1", f"keys={KEYS}", "rounds=1000000",
               "report_ms=50"]
    worker = subprocess.Popen(["taskset", "-c", str(cpu), *command], stdout=subprocess.PIPE, text=True,
                              env={**rig.QUIET, **site.env("one")},
                              pass_fds=[write], start_new_session=True)
    os.close(write)
    for line in worker.stdout:
        if json.loads(line)["event"] == "progress":
            break
    pid = site.boxes()["one"][0]
    check(os.getsid(pid) != os.getsid(worker.pid), "one session")
    check(os.sched_getaffinity(worker.pid) == {cpu} and os.sched_getaffinity(pid) == os.sched_getaffinity(0), "bound as the worker is")
    fds = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
    check(os.readlink(f"/proc/self/fd/{read}") not in fds, "it has a descriptor of the worker's")
    os.killpg(worker.pid, signal.SIGINT)  # as the terminal does
    worker.stdout.close()
    check(worker.wait(rig.DEADLINE_S) != 0, "the worker goes on")
    os.close(read)
    site.ends()


PYTHON = """
import os, sys, time
sys.path.insert(0, {client!r})
import numpy, phub
phub.init({url!r}, rank=int(sys.argv[1]), world=int(sys.argv[2]))
total = phub.push_pull(numpy.full(1000, 1 + phub.rank(), numpy.float32))
assert (total == sum(range(1, 1 + phub.size()))).all(), total
child = os.fork()
if child == 0:
    time.sleep(60)  # as a DataLoader's worker that nobody ended
    os._exit(0)
phub.barrier()
phub.shutdown()
print(child, flush=True)
"""

TORCH = """
import sys
sys.path.insert(0, {client!r})
import torch, phub.torch
torch.manual_seed(1)
model = torch.nn.Linear(8, 1)
where = dict(rank=int(sys.argv[1]), world=int(sys.argv[2]), transport=None)
phub.torch.broadcast_parameters(model.state_dict(), {url!r}, **where)
optimizer = phub.torch.DistributedOptimizer(model, "sgd", {url!r}, lr=0.1, **where)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((4, 8), 1.0 + where["rank"])).mean().backward()
    optimizer.step()
optimizer.close()
print(sum(p.sum().item() for p in model.parameters()), flush=True)
"""


def run_python(script, hosts):
    if re.search(rb"__(asan|tsan|ubsan)_\w", (rig.BUILD / "libphub.so.0").read_bytes()):
        raise rig.Skip("a library under a sanitizer cannot be loaded into Python")
    site = Site()
    text = script.format(client=str(rig.ROOT / "client/python"), url=site.root.url("demo") + "?hostbox=auto")
    env = {"PHUB_LIBRARY": str(rig.BUILD / "libphub.so.0"), "PHUB_PHUBD": ""}
    processes = [rig.Process(f"python.{rank}", [sys.executable, "-c", text, rank, len(hosts)], env=site.env(host, **env))
                 for rank, host in enumerate(hosts)]
    for process in processes:
        check(process.wait() == 0, process.err.text())
    return site, [process.out.text().split()[-1] for process in processes]


def python():
    """from Python, with the phubd beside libphub; a forked child that outlives its worker does not keep the box"""
    site, children = run_python(PYTHON, ["one", "one", "two"])
    site.ends()
    for child in children:
        os.kill(int(child), signal.SIGKILL)


def pytorch():
    """phub.torch, whose other jobs of the same URL go by a host's box, too"""
    try:
        import torch  # noqa: F401, PLC0415
    except ImportError as why:
        raise rig.Skip(f"{why} (Debian: apt install python3-torch)") from None
    site, sums = run_python(TORCH, ["one", "one", "two"])
    check(len(set(sums)) == 1, f"{sums}")
    site.root.logged(r"'demo\.broadcast0'.* ended")
    site.ends()


if __name__ == "__main__":
    rig.run([summed, once, uneven, rush, beside, first_killed, all_killed, box_killed, kept, outlived, missing, silent, confined, wrapped,
             no_root, refused, secret, sealed, sharded, squatter, stranger, stale, brief, by_hand, apart,
             python, pytorch])
