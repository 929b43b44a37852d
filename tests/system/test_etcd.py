#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for leases that run out
"""
Boxes that announce themselves to a real etcd of this test's own (Debian's etcd-server; its service is not used), and who sees
them: killed boxes, an etcd that is killed in mid-run, one that never was there, one that asks for a password.

Usage: test_etcd.py [WORD]...    only cases whose name holds a WORD
"""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request

import rig
from rig import Box, Process, Steady, Worker, check, holds

PHUB = rig.BUILD / "phub"
ETCD = shutil.which("etcd")
TTL_MS = 3000
GONE_S = 30  # a lease of TTL_MS has ended by then, on a busy machine too; an etcd that comes back grants the time anew


class Etcd:
    """A cluster of one, on free ports of 127.0.0.1, in a folder that goes with it. It may be killed and started again."""

    def __init__(self, tls=None):
        """`tls`: a context for calls of ours, and words for etcd."""
        self.folder = tempfile.TemporaryDirectory()
        self.port, self.peer_port = rig.free_port(), rig.free_port()
        self.context, self.words = tls or (None, [])
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.process = None
        self.start()

    def start(self):
        peer = f"http://127.0.0.1:{self.peer_port}"
        self.process = Process("etcd", [
            ETCD, "--name", "one", "--data-dir", self.folder.name, "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"one={peer}", *self.words])
        until(self.answers, "etcd answers")

    def answers(self):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{self.url}/health", timeout=2, context=self.context) as answer:
                return json.load(answer)["health"] == "true"
        check(self.process.running(), f"etcd has ended: {self.process.err.text()[-1000:]}")
        return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def call(self, path, token=None, **request):
        head = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
        asked = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(request).encode(), head)
        with urllib.request.urlopen(asked, timeout=10, context=self.context) as answer:
            return json.load(answer)


def until(condition, what, deadline_s=GONE_S):
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        check(time.monotonic() < end, f"not within {deadline_s} s: {what}")
        time.sleep(0.05)
    return found


def phub(*words, status=0, env=None):
    """stdout and stderr of `phub boxes`."""
    done = subprocess.run([PHUB, "boxes", *map(str, words)], capture_output=True, text=True, timeout=rig.DEADLINE_S,
                          env={**rig.QUIET, **(env or {})})
    check(done.returncode == status, f"phub boxes {words}: {done.returncode} instead of {status}: {done.stdout} {done.stderr}")
    return done.stdout, done.stderr


def boxes(etcd, env=None):
    """What it says there is, by name."""
    out, _ = phub("--etcd", etcd.url, "--json", env=env)
    return {box["box"]: box for box in map(json.loads, out.splitlines()) if "box" in box}


def roots(etcd):
    """Likewise, the roots."""
    out, _ = phub("--etcd", etcd.url, "--json")
    return {root["root"]: root for root in map(json.loads, out.splitlines()) if "box" not in root}


def announced(name, etcd, **options):
    box = Box(name=name, **{"box": name, "etcd": etcd.url, "etcd_ttl_ms": TTL_MS, **options})
    box.logged(f"box '{name}' is announced at {box.address}")
    return box


def appear_and_go():
    """Boxes and their jobs are seen with what they are; one that is killed is gone after its lease, one that ends at once."""
    etcd = Etcd()
    out, _ = phub("--etcd", etcd.url)
    holds(out, "no boxes under /phub at " + etcd.url)
    one = announced("one", etcd, rack="r0", transports="tcp, shm", cores=2)
    two = announced("two", etcd, rack="r1")
    steady = Steady(one)
    seen = until(lambda: (b := boxes(etcd)) and b["one"]["jobs"] and b["one"]["jobs"][0]["state"] == "running" and b, "the job")
    check(sorted(seen) == ["one", "two"], f"{seen}")
    for box, rack in ((one, "r0"), (two, "r1")):
        told = seen[box.name]
        check(told["address"] == box.address and told["rack"] == rack and told["up"], f"{told}")
        check(told["host"] == socket.gethostname()[:63] and abs(told["since"] - time.time()) < 600, f"{told}")
    check(seen["one"]["cores"] == 2 and seen["one"]["transports"] == "tcp, shm", f"{seen['one']}")
    job = seen["one"]["jobs"][0]
    check((job["job"], job["workers"], job["world"]) == ("steady", 2, 2) and seen["two"]["jobs"] == [], f"{seen}")
    out, _ = phub("--etcd", f"http://127.0.0.1:{rig.free_port()},{etcd.url}")  # the first does not answer
    holds(out, r"one +127.0.0.1:\d+ +r0 .* steady 2/2", r"two +127.0.0.1:\d+ +r1 .* no jobs")
    until(lambda: boxes(etcd)["one"]["jobs"][0]["round"] > job["round"], "rounds go on")
    steady.end()
    until(lambda: boxes(etcd)["one"]["jobs"] == [], "the job is gone")
    two.kill()
    two.wait()
    began = time.monotonic()
    until(lambda: sorted(boxes(etcd)) == ["one"], "the killed box is gone")
    rig.say(f"killed: gone after {time.monotonic() - began:.1f} s")
    one.stop()
    check(boxes(etcd) == {}, "a box that has ended is gone at once")


def watch():
    """phub boxes --watch prints what comes and goes, through the death of etcd."""
    etcd = Etcd()
    looks = Process("phub boxes", [PHUB, "boxes", "--etcd", etcd.url, "--watch"])
    told = Process("phub boxes --json", [PHUB, "boxes", "--etcd", etcd.url, "--watch", "--json"])
    box = announced("one", etcd, rack="r0")
    seen = looks.out.find(lambda line: "box one is up at " in line)
    check(seen and f"{box.address}, rack r0" in looks.out.lines[seen[0]], f"{looks.out.text()}")
    steady = Steady(box)
    check(looks.out.find(lambda line: "job steady at box one: running, 2 of 2 workers" in line), looks.out.text())
    etcd.kill()
    check(looks.err.find(lambda line: "boxes are looked for on and on" in line), "nothing about etcd's death")
    etcd.start()
    check(looks.err.find(lambda line: "etcd answers again" in line), "nothing about its return")
    steady.end()
    check(looks.out.find(lambda line: "job steady is gone from box one" in line), looks.out.text())
    box.stop()
    check(looks.out.find(lambda line: "box one is gone" in line), looks.out.text())
    check(len([line for line in looks.out.lines if "box one is up" in line]) == 1, looks.out.text())
    check(told.out.find(lambda line: json.loads(line) == {"box": "one", "up": False}), told.out.text())
    events = [json.loads(line) for line in told.out.lines]
    check(events[0]["box"] == "one" and events[0]["up"] and events[0]["address"] == box.address, f"{events}")
    check({"job": "steady", "state": "gone", "at": "one"} in events, f"{events}")
    for process in (looks, told):
        process.kill(signal.SIGTERM)
        check(process.wait() == 0, "a watch that is ended has not failed")


def killed_in_mid_run():
    """etcd is killed and started again while a job runs: no sum is wrong, no round waits, and the box is announced anew."""
    etcd = Etcd()
    box = announced("one", etcd)
    steady = Steady(box)
    until(lambda: boxes(etcd)["one"]["jobs"], "the job")

    def round_now():
        with steady.workers[0].out.changed:
            steady.workers[0].seen = len(steady.workers[0].out.lines)
        return steady.workers[0].event("progress")["round"]
    for times in (1, 2):
        etcd.kill()
        line = box.logged(r"this box is not announced since [\d.]+ s: .*; its jobs go on, and it is tried again")
        holds(line, etcd.url)
        before = round_now()
        time.sleep(TTL_MS / 1000 if times == 2 else 0.2)  # also for longer than the lease lasts
        check(round_now() > before, "rounds stand still without etcd")
        etcd.start()
        until(lambda n=times: box.err.text().count("is announced at " + box.address + " again, after") == n, "announced again")
        seen = until(lambda: (b := boxes(etcd)) and b["one"]["jobs"] and b, "the job is back")
        check(seen["one"]["jobs"][0]["workers"] == 2, f"{seen}")
    check(box.err.text().count("is not announced") == 2, f"it is said once each time: {box.err.text()}")
    steady.end()
    box.stop()


def data_lost():
    """An etcd that comes back without its data, and so without the lease, is told all anew."""
    etcd = Etcd()
    box = announced("one", etcd)
    steady = Steady(box)
    until(lambda: boxes(etcd)["one"]["jobs"], "the job")
    etcd.kill()
    shutil.rmtree(pathlib.Path(etcd.folder.name) / "member")
    etcd.start()
    until(lambda: "one" in boxes(etcd) and boxes(etcd)["one"]["jobs"], "box and job are told anew")
    steady.end()
    box.stop()


def stopped_box():
    """A box that stood still for longer than its lease was gone, and is back."""
    etcd = Etcd()
    box = announced("one", etcd)
    box.kill(signal.SIGSTOP)
    try:
        until(lambda: boxes(etcd) == {}, "gone while it stands still")
    finally:
        box.kill(signal.SIGCONT)
    until(lambda: "one" in boxes(etcd), "back again")
    box.stop()


def never_there():
    """A box starts, serves and ends without the etcd that it was told, and says so once."""
    port = rig.free_port()
    box = Box(etcd=f"http://127.0.0.1:{port}", etcd_ttl_ms=TTL_MS)
    holds(box.logged("this box is not announced: "), f"etcd http://127.0.0.1:{port}", "its jobs go on")
    steady = Steady(box)
    time.sleep(2)
    steady.end()
    box.stop()
    check(box.err.text().count("is not announced") == 1, f"more than once: {box.err.text()}")
    _, err = phub("--etcd", f"http://127.0.0.1:{port}", status=1)
    holds(err, f"phub: etcd http://127.0.0.1:{port}: ")


def deaf_etcd():
    """One that takes connections and never answers holds up neither the box nor its end."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        box = Box(etcd=url)
        steady = Steady(box)
        box.logged("this box is not announced: .*(timed out|Timeout)")
        steady.end()
        box.stop()
        _, err = phub("--etcd", url, "--timeout", 300, status=1)
        holds(err, "timed out|Timeout")


def passwords():
    """Wrong passwords and missing rights are told apart; the right ones are never on a command line or in a log."""
    etcd = Etcd()
    b64 = lambda text: base64.b64encode(text.encode()).decode()
    for user, password in (("root", "r00t"), ("box", "geheim"), ("other", "andere")):
        etcd.call("auth/user/add", name=user, password=password)
    etcd.call("auth/role/add", name="root")
    etcd.call("auth/role/add", name="phub")
    etcd.call("auth/role/grant", name="phub", perm={"permType": "READWRITE", "key": b64("/phub/"), "range_end": b64("/phub0")})
    etcd.call("auth/user/grant", user="root", role="root")
    etcd.call("auth/user/grant", user="box", role="phub")
    etcd.call("auth/enable")
    with tempfile.TemporaryDirectory() as where:
        def secret(text):
            path = pathlib.Path(where) / f"secret{len(os.listdir(where))}"
            path.write_text(text + "\n")
            path.chmod(0o600)
            return path
        box = announced("one", etcd, etcd_secret_file=secret("box:geheim"))
        wrong = Box(name="wrong", box="wrong", etcd=etcd.url, etcd_secret_file=secret("box:falsch"))
        wrong.logged("this box is not announced: .*user 'box': etcdserver: authentication failed, invalid user ID or password")
        none = Box(name="none", box="none", etcd=etcd.url)
        none.logged("this box is not announced: .*user name is empty.*; it wants a user and a password: .*etcd_secret_file")
        other = Box(name="other", box="other", etcd=etcd.url, etcd_secret_env="ETCD_SECRET", env={"ETCD_SECRET": "other:andere"})
        other.logged("this box is not announced: .*permission denied")
        seen = boxes(etcd, env={"PHUB_ETCD_SECRET": "box:geheim"})
        check(list(seen) == ["one"], f"{seen}")
        check(list(boxes(etcd, env={"PHUB_ETCD_SECRET_FILE": str(secret("box:geheim"))})) == ["one"], "by file")
        token = etcd.call("auth/authenticate", name="box", password="geheim")["token"]
        check(list(boxes(etcd, env={"PHUB_ETCD_SECRET": token})) == ["one"], "by token")
        _, err = phub("--etcd", etcd.url, status=1, env={"PHUB_ETCD_SECRET": "box:falsch"})
        holds(err, "user 'box': etcdserver: authentication failed")
        # What it holds back is not a job's business.
        Steady(wrong).end()
        for process in (box, wrong, none, other):
            process.stop()
            for word in ("geheim", "falsch", "andere"):
                check(word not in process.err.text(), f"a password in the log: {process.err.text()}")


def https():
    """Over https by an authority that was given; one of another authority is not believed, and no password goes there."""
    with tempfile.TemporaryDirectory() as where:
        files = {}
        for name in ("good", "other"):
            files[name] = (f"{where}/{name}.pem", f"{where}/{name}.key")
            rig.do("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                   f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[name][0], "-keyout", files[name][1])
        cert, key = files["good"]
        etcd = Etcd((ssl.create_default_context(cafile=cert), ["--cert-file", cert, "--key-file", key]))
        box = announced("one", etcd, etcd_ca=cert)
        check(list(boxes(etcd, env={"PHUB_ETCD_CA": cert})) == ["one"], "by https")
        wrong = Box(name="wrong", box="wrong", etcd=etcd.url, etcd_ca=files["other"][0], etcd_secret_env="S", env={"S": "u:geheim"})
        wrong.logged("this box is not announced: .*certificate")
        _, err = phub("--etcd", etcd.url, status=1)
        holds(err, "certificate")
        Worker("phub+etcd:///job", rounds=3, env={"PHUB_ETCD": etcd.url, "PHUB_ETCD_CA": cert}).good()
        for process in (box, wrong):
            process.stop()


def token_ages():
    """A token that etcd no longer knows is got anew: etcd is restarted, and simple tokens are in its memory alone."""
    etcd = Etcd()
    etcd.call("auth/user/add", name="root", password="r00t")
    etcd.call("auth/role/add", name="root")
    etcd.call("auth/user/grant", user="root", role="root")
    etcd.call("auth/enable")
    box = Box(name="one", box="one", etcd=etcd.url, etcd_ttl_ms=TTL_MS, etcd_secret_env="S", env={"S": "root:r00t"})
    box.logged("box 'one' is announced")
    etcd.kill()
    box.logged("is not announced since")
    etcd.start()
    box.logged("is announced at .* again, after")
    check(list(boxes(etcd, env={"PHUB_ETCD_SECRET": "root:r00t"})) == ["one"], "back under another token")
    box.stop()
    check(boxes(etcd, env={"PHUB_ETCD_SECRET": "root:r00t"}) == {}, "it was taken back")


def by_rack_file():
    """Boxes of a rack file are called, each: 1 when one is not up."""
    up, down = Box(name="up"), rig.free_port()
    with tempfile.TemporaryDirectory() as where:
        file = pathlib.Path(where) / "racks.yaml"

        def write(*ports):
            file.write_text("racks:\n  - name: r0\n    boxes:\n" + "".join(
                f"      - {{name: b{i}, address: '127.0.0.1:{port}', rate: 10Gbit}}\n" for i, port in enumerate(ports)))
        write(up.port)
        holds(phub("--racks", file)[0], r"b0 +127.0.0.1:\d+ +r0 +up +no jobs")
        steady = Steady(up)
        holds(phub("--racks", file)[0], r"b0 +127.0.0.1:\d+ +r0 +up +steady 2/2")
        write(up.port, down)
        out, _ = phub("--racks", file, status=1)
        holds(out, r"b0 .* up +steady", rf"b1 +127.0.0.1:{down} +r0 +NOT UP +no box listens at 127.0.0.1:{down}")
        told = [json.loads(line) for line in phub("--racks", file, "--json", status=1)[0].splitlines()]
        check([t["up"] for t in told] == [True, False] and told[0]["jobs"][0]["job"] == "steady" and told[1]["why"], f"{told}")
        steady.end()
        looks = Process("phub boxes", [PHUB, "boxes", "--racks", file, "--watch", "--interval", "100"])
        check(looks.out.find(lambda line: "box b1 (rack r0) is NOT UP" in line), looks.out.text())
        late = Box(name="late", listen=f"127.0.0.1:{down}")
        check(looks.out.find(lambda line: line.endswith("box b1 (rack r0) is up")), looks.out.text())
        steady = Steady(late)
        at, _ = looks.out.find(lambda line: line.endswith("box b1: steady 2/2"))
        steady.end()
        at, _ = looks.out.find(lambda line: line.endswith("box b1: no jobs"), at)
        late.stop()
        check(looks.out.find(lambda line: "box b1 (rack r0) is NOT UP" in line, at), looks.out.text())
        looks.kill(signal.SIGTERM)
        check(looks.wait() == 0, "a watch that is ended has not failed")

        def mute(stack):
            """Eight that take connections and say nothing, as of a rack that is cut off."""
            servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
            write(up.port, *(server.getsockname()[1] for server in servers))
            return servers

        with contextlib.ExitStack() as stack:
            mute(stack)
            out, _ = phub("--racks", file, "--timeout", "300", status=1)
            check(out.count("NOT UP") == 8, out)
        with contextlib.ExitStack() as stack:
            servers = mute(stack)
            looks = Process("phub boxes", [PHUB, "boxes", "--racks", file, "--timeout", str(4000 * rig.DEADLINE_S)])
            for server in servers:
                server.settimeout(rig.DEADLINE_S)
            called = [server.accept()[0] for server in servers]  # all eight, before any has answered or run out of time
            for connection in called:
                connection.close()
            check(looks.wait() == 1 and looks.out.text().count("NOT UP") == 8, looks.out.text())
        up.stop()
        _, err = phub("--racks", pathlib.Path(where) / "none.yaml", status=1)
        holds(err, "none.yaml")


def workers_find_a_box():
    """phub+etcd://: workers go to the box of their rack, or the one that has the job; they wait for one that is not up yet."""
    etcd = Etcd()
    where = f"phub+etcd://127.0.0.1:{etcd.port}"
    early = Worker(f"{where}/early", 0, 1, rounds=3)
    time.sleep(1)
    check(early.running(), f"it did not wait for a box: {early.out.text()}")
    two = announced("two", etcd, rack="r2")
    early.good()
    one = announced("one", etcd, rack="r1")
    for rack, box in (("r1", one), ("r2", two), ("r3", one)):
        job = rack + "job"
        workers = [Worker(f"{where}/{job}", rank, 2, rounds=20, env={"PHUB_RACK": rack}) for rank in range(2)]
        for worker in workers:
            worker.good()
        box.logged(f"job '{job}' ended")
    # Without a rack: where the job is, though another box is the first by name.
    first = Worker(f"{where}/joined", 0, 2, rounds=20, env={"PHUB_RACK": "r2"})
    two.logged("job 'joined' forms")
    until(lambda: boxes(etcd)["two"]["jobs"], "the job is announced")
    second = Worker("phub+etcd:///joined", 1, 2, rounds=20, env={"PHUB_ETCD": etcd.url})
    first.good()
    second.good()
    for box in (one, two):
        box.stop()


def hosts_boxes():
    """Workers that come by a box of their own host, which is not announced, are told of at the box that this goes to."""
    etcd = Etcd()
    top = announced("top", etcd)
    low = announced("low", etcd, uplink=top.address)
    looks = Process("phub boxes", [PHUB, "boxes", "--etcd", etcd.url, "--watch"])
    name = f"test-etcd-{os.getpid()}"
    workers = [Worker(box.url("hosted") + "?hostbox=auto", rank=rank, world=3, keys="a:1000", rounds="until-told", optimizer="none",
                      pause_us=5000,
                      env={"PHUB_PHUBD": str(rig.PHUBD), "PHUB_HOSTBOX_NAME": name}) for rank, box in enumerate((top, top, low))]
    until(lambda: {key: [job["workers"] for job in box["jobs"]] for key, box in boxes(etcd).items()} == {"top": [2], "low": [1]},
          "2 and 1 of 3 workers")
    until(lambda: all(job["known"] == 3 for box in boxes(etcd).values() for job in box["jobs"]), "both know of 3")
    holds(phub("--etcd", etcd.url)[0], r"top .* hosted 3/3 \(2 here\)", r"low .* hosted 3/3 \(1 here\)")
    for box, here in (("top", 2), ("low", 1)):
        check(looks.out.find(lambda line, told=f"job hosted at box {box}: running, 3 of 3 workers, {here} there": told in line),
              looks.out.text())
    looks.kill(signal.SIGTERM)
    workers[0].tell()
    for worker in workers:
        worker.good()
    low.stop()
    top.stop()


def workers_find_none():
    """No box, no etcd, no rights: an error in the time to connect that says which."""
    etcd = Etcd()
    Worker(f"phub+etcd://127.0.0.1:{etcd.port}/job", timeout_ms=4000).failed("ECONNREFUSED", "no box .* is announced under /phub")
    Worker(f"phub+etcd://127.0.0.1:{rig.free_port()}/job", timeout_ms=1500).failed(("ECONNREFUSED", "ETIMEDOUT"), "etcd http://127")
    Worker("phub+etcd:///job", timeout_ms=1500).failed("EINVAL", "PHUB_ETCD is not set")
    etcd.call("auth/user/add", name="root", password="r00t")
    etcd.call("auth/role/add", name="root")
    etcd.call("auth/user/grant", user="root", role="root")
    etcd.call("auth/enable")
    Worker(f"phub+etcd://127.0.0.1:{etcd.port}/job", timeout_ms=60000, env={"PHUB_ETCD_SECRET": "root:wrong"}).failed(
        "EACCES", "user 'root': etcdserver: authentication failed", deadline_s=20)
    # What announces itself and is none: the worker says what became of it.
    etcd.call("auth/disable", token=etcd.call("auth/authenticate", name="root", password="r00t")["token"])
    nobody = rig.free_port()
    etcd.call("kv/put", key=base64.b64encode(b"/phub/boxes/ghost").decode(), value=base64.b64encode(json.dumps(
        {"address": f"127.0.0.1:{nobody}", "host": socket.gethostname()[:63]}).encode()).decode())
    Worker(f"phub+etcd://127.0.0.1:{etcd.port}/job", timeout_ms=1500).failed(("ECONNREFUSED", "ETIMEDOUT"), f"127.0.0.1:{nobody}")


KEYS = "a:50000,b:70000,c:100"


def trained(rounds):
    """The weights after so many rounds of three workers at one box that nobody disturbed."""
    box = Box()
    workers = rig.job(box.url("flat"), 3, keys=KEYS, optimizer="adam", reduce="mean", rounds=rounds, settle=True, transport="tcp")
    digests = {worker.good()["settled"] for worker in workers}
    check(len(digests) == 1, f"{digests}")
    box.stop()
    return digests.pop()


def spread(boxes_of_ranks, **more):
    """A job of three workers that go on with the box, at these boxes."""
    given = {"keys": KEYS, "optimizer": "adam", "reduce": "mean", "rounds": 300, "settle": True, "transport": "tcp", "pause_us": 3000,
             "resume_ms": 120000, "timeout_ms": 120000, **more}
    return [Worker(box.url("spread"), rank, len(boxes_of_ranks), **given) for rank, box in enumerate(boxes_of_ranks)]


def uplink_by_name():
    """A box finds the one above by name, however late that comes, and anew when it is elsewhere: the job goes on from its checkpoint."""
    etcd = Etcd()
    wants = trained(300)
    with tempfile.TemporaryDirectory() as folder:
        keeps = {"checkpoint_targets": folder, "checkpoint_every": 10}
        below = [announced(name, etcd, uplink="etcd:top") for name in ("a", "b")]
        workers = spread([below[0], below[0], below[1]])
        below[0].logged("waits for the box above .*etcd knows no root and no other box 'top'")
        top = announced("top", etcd, **keeps)
        top.logged("checkpoint before round")
        top.kill()
        top.wait()
        top = announced("top", etcd, **keeps, listen=f"127.0.0.2:{rig.free_port()}")  # elsewhere
        digests = {worker.good()["settled"] for worker in workers}
        check(digests == {wants}, f"{digests} instead of {wants}")
        top.logged("goes on from its checkpoint before round")
        for box in below:
            holds(box.logged(f"the box above is at {top.address} now"), "uplink")
        for box in (*below, top):
            box.stop()


def wrong_words():
    """What cannot be meant is a usage error, before anybody is asked."""
    for words, said in (([], "which boxes"), (["--etcd", "ftp://h"], "not understood"), (["--etcd", "h", "--racks", "f"], "give one"),
                        (["--etcd", "http://u:geheim@h:1"], "has a user in it"), (["--etcd", "h", "--prefix", "a/"], "keys begin"),
                        (["--etcd", "h", "--watch", "--interval", "100"], "--racks")):
        _, err = phub(*words, status=2)
        holds(err, said)
        check("geheim" not in err, err)
    for option, said in (("etcd=ftp://h", "etcd: .*not understood"), ("box=a/b", "box: 'a/b'"), ("etcd_prefix=a/", "etcd_prefix: 'a/'"),
                         ("uplink=etcd:top", "uplink: 'etcd:top' without etcd")):
        done = subprocess.run([rig.PHUBD, "-o", option, "--check-config"], capture_output=True, text=True, env=rig.QUIET)
        check(done.returncode == 1, f"{option}: {done.returncode}")
        holds(done.stderr, said)


CASES = [appear_and_go, watch, killed_in_mid_run, data_lost, stopped_box, never_there, deaf_etcd, passwords, https, token_ages,
         by_rack_file,
         workers_find_a_box, hosts_boxes, workers_find_none, uplink_by_name, wrong_words]

if __name__ == "__main__":
    rig.run(CASES, None if ETCD else "etcd is not there (apt install etcd-server)")
