#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A box and its standby, as processes: what is mirrored, what a standby costs in bits (none), and what happens when either dies.

Usage: test_standby.py [WORD...]    only the cases whose names hold one of the words
"""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rig import BUILD, Box, check, free_port, holds, job, run, say  # noqa: E402

TENSORS = "conv:9408,bias:64,fc:40000,tail:1000"


def jobs(box):
    """Its jobs, by name, as `phub jobs --json` tells them."""
    done = subprocess.run([BUILD / "phub", "jobs", "--json", box.address], capture_output=True, text=True)
    check(done.returncode == 0, done.stderr)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["job"]: one for one in found if "job" in one}


def await_state(box, name, *states, deadline_s=60):
    until = time.monotonic() + deadline_s
    while True:
        now = jobs(box).get(name, {}).get("standby", {})
        if now.get("state") in states:
            return now
        check(time.monotonic() < until, f"the standby of {name} is {now}, not {states}")
        time.sleep(0.05)


def two(there={}, **here):
    """A standby, and a box that has it."""
    standby = Box(name="standby", **{"cores": 2, **there})
    box = Box(cores=2, standby=standby.address, **here)
    return box, standby


def digests(workers):
    found = {worker.good()["digest"] for worker in workers}
    check(len(found) == 1, f"ranks have other bits: {found}")
    return found.pop()


def end_as_alone(workers, arguments):
    """The workers are told to end, some rounds from now, and end with the bits of as many rounds that nobody disturbed."""
    with workers[0].out.changed:
        workers[0].seen = len(workers[0].out.lines)
    began = workers[0].event("progress")["round"]
    while workers[0].event("progress")["round"] < began + 5:
        pass
    workers[0].tell()
    found, rounds = digests(workers), workers[0].result()["rounds"]
    alone = Box(cores=2)
    wanted = digests(job(alone.url("demo"), len(workers), **{**arguments, "rounds": rounds, "pause_us": 0}))
    alone.stop()
    check(found == wanted, f"{arguments}: other bits after {rounds} rounds")


KINDS = [{"optimizer": "none"}, {"optimizer": "none", "dtype": "f16", "reduce": "mean"}, {"optimizer": "adam"},
         {"optimizer": "nesterov", "dtype": "bf16"}, {"optimizer": "sgd", "reduce": "mean", "reproducible": True, "normals": True}]


def same_bits():
    """sums and weights have the same bits with a standby as without, by tcp and shared memory"""
    alone = Box(cores=2)
    box, standby = two()
    for number, kind in enumerate(KINDS):
        # Long enough for all of it to be mirrored, on a busy machine, too.
        arguments = {"rounds": 50, "pause_us": 10000, "keys": TENSORS, "transport": ("tcp", "shm")[number % 2], **kind}
        there = job(alone.url(f"k{number}"), 3, **arguments)
        here = job(box.url(f"k{number}"), 3, **arguments)
        check(digests(there) == digests(here), f"{arguments}: other bits")
    check(len([line for line in standby.err.lines if "all of it is mirrored here" in line]) == len(KINDS), "not all were mirrored")
    for one in (alone, box, standby):
        one.stop()


def told():
    """`phub jobs` says how the standby is; a job that leaves is forgotten there; one with async has none"""
    box, standby = two()
    workers = job(box.url("demo"), 2, keys=TENSORS, optimizer="adam", rounds="until-told", report_ms=20, pause_us=2000)
    free = job(box.url("free"), 2, keys=TENSORS, optimizer="sgd", sync="async", rounds="until-told", report_ms=20, pause_us=2000,
               check=False)
    for worker in workers + free:
        worker.event("progress")
    now = await_state(box, "demo", "whole")
    check(now["bytes"] > 0 and now["why"] == "", f"{now}")
    text = subprocess.run([BUILD / "phub", "jobs", standby.address], capture_output=True, text=True).stdout
    holds(text, "demo +mirror +0 of 2 here .* - ", "demo waits: for box .*, of whose job this is the whole copy")
    now = await_state(box, "free", "off")
    holds(now["why"], "sync bsp")
    text = subprocess.run([BUILD / "phub", "jobs", box.address], capture_output=True, text=True).stdout
    holds(text, "demo: its standby has all of it", "free: WITHOUT a standby .*sync bsp")
    for crew in (workers, free):
        crew[0].tell()
        for worker in crew:
            worker.good()
    standby.logged("job .demo. ended|mirror of job .demo.* ends")
    check(not jobs(standby), f"the standby keeps {jobs(standby)}")
    box.stop()
    standby.stop()


def killed():
    """the box is killed, or told to stop, at any time: the workers go on at the standby, and end with the bits of a run that nobody disturbed"""
    for number, kind in enumerate(KINDS):
        # Large tensors: some of a round is nearly always on its way to the standby.
        arguments = {"rounds": "until-told", "pause_us": 1000, "keys": "conv:9408,bias:64,fc:500000,tail:1000", "transport": "tcp",
                     "barrier": True, "report_ms": 20, **kind}
        how = (signal.SIGKILL, signal.SIGTERM)[number % 2]
        box, standby = two()
        workers = job(box.url("demo"), 3, **arguments)
        workers[0].event("progress")
        await_state(box, "demo", "whole")
        time.sleep(0.07 * number)
        box.kill(how)
        standby.logged("goes on here with 3 of 3")
        end_as_alone(workers, arguments)
        if how == signal.SIGTERM:
            check(box.wait() == 0, "phubd failed")
        standby.stop()


SECRET = {"create": "secret", "create_secret_env": "SECRET", "env": {"SECRET": "sesame"}}
ENCRYPTED = {"PHUB_SECRET": "sesame", "PHUB_ENCRYPT": "1"}


def encrypted():
    """an encrypted job is mirrored encrypted, and goes on so at the standby with the same bits; one that does not encrypt is refused"""
    arguments = {"rounds": "until-told", "pause_us": 5000, "keys": TENSORS, "transport": "tcp", "barrier": True, "report_ms": 20, "optimizer": "adam"}
    box, standby = two(there={**SECRET, "data_encryption": "require"}, **SECRET)
    workers = job(box.url("demo"), 3, env=ENCRYPTED, **arguments)
    workers[0].event("progress")
    await_state(box, "demo", "whole")
    time.sleep(0.1)
    box.kill()
    standby.logged("goes on here with 3 of 3")
    end_as_alone(workers, arguments)
    standby.stop()
    for how, env, says in (("off", ENCRYPTED, "data_encryption: off"), ("require", {"PHUB_SECRET": "sesame"}, "data_encryption: require")):
        box, standby = two(there={**SECRET, "data_encryption": how}, **SECRET)
        workers = job(box.url("demo"), 2, env=env, keys=TENSORS, rounds="until-told", report_ms=20)
        workers[0].event("progress")
        why = await_state(box, "demo", "broken")["why"]
        holds(why, says + ".*set data_encryption: ", "allow at the standby")
        check("PHUB_ENCRYPT" not in why, why)
        workers[0].tell()
        digests(workers)
        box.stop()
        standby.stop()


def going_down():
    """a box that is told to stop answers no round that its standby does not have: its workers go on there, every time"""
    for number in range(10):
        box, standby = two()
        workers = job(box.url("demo"), 3, keys="a:3000,b:50,c:900", optimizer="adam", rounds="until-told", report_ms=20, transport="tcp")
        workers[0].event("progress")
        await_state(box, "demo", "whole")
        time.sleep(0.01 * number)
        box.stop()
        standby.logged("goes on here with 3 of 3")
        workers[0].tell()
        digests(workers)
        standby.stop()


def standby_dies():
    """the standby is killed and comes back, again and again: the job goes on without, and is whole there again"""
    there = {"listen": f"127.0.0.1:{free_port()}", "cores": 2}
    standby = Box(name="standby", **there)
    box = Box(cores=2, standby=standby.address)
    workers = job(box.url("demo"), 2, keys=TENSORS, optimizer="adam", rounds="until-told", report_ms=20, transport="tcp")
    for _ in range(3):
        await_state(box, "demo", "whole")
        workers[0].event("progress")
        standby.kill()
        standby.wait()
        now = await_state(box, "demo", "broken")
        check(now["why"], f"{now}")
        with workers[0].out.changed:
            workers[0].seen = len(workers[0].out.lines)
        workers[0].event("progress")
        standby = Box(name="standby", **there)
    await_state(box, "demo", "whole")
    rounds = jobs(box)["demo"]["rounds"]
    box.kill()
    standby.logged("goes on here with 2 of 2")
    check(jobs(standby)["demo"]["rounds"] >= rounds, f"{jobs(standby)['demo']['rounds']} rounds; there were {rounds} before")
    workers[0].tell()
    digests(workers)
    standby.stop()


def chain():
    """the standby has a standby of its own: a job survives two boxes, bit by bit"""
    arguments = {"keys": TENSORS, "transport": "tcp", "report_ms": 20, "optimizer": "adam", "rounds": "until-told", "pause_us": 5000, "schedule": 1}
    third = Box(name="third", cores=2)
    box, second = two(there={"standby": third.address})
    workers = job(box.url("demo"), 2, **arguments)
    workers[0].event("progress")
    await_state(box, "demo", "whole")
    box.kill()
    second.logged("goes on here with 2 of 2")
    await_state(second, "demo", "whole")
    second.kill()
    third.logged("goes on here with 2 of 2")
    end_as_alone(workers, arguments)
    third.stop()


def failing_back():
    """two boxes, each the other's standby: a job goes to one, and back to the other when that was started again and has all of it"""
    listens = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    def begin(number):
        return Box(name=f"box{number}", listen=listens[number], cores=2, standby=listens[1 - number])

    boxes = [begin(0), begin(1)]
    workers = job(boxes[0].url("demo"), 2, keys=TENSORS, optimizer="adam", rounds="until-told", report_ms=20, pause_us=2000)
    for turn in range(3):
        here, there = turn % 2, 1 - turn % 2
        workers[0].event("progress")
        await_state(boxes[here], "demo", "whole")
        boxes[here].kill()
        boxes[here].wait()
        boxes[there].logged("goes on here with 2 of 2")
        check("broken" == await_state(boxes[there], "demo", "broken")["state"], "it is told that it has no standby")
        boxes[here] = begin(here)
        await_state(boxes[there], "demo", "whole")
        check("LOST" not in boxes[there].err.text(), boxes[there].err.text())
    workers[0].tell()
    digests(workers)
    for box in boxes:
        box.stop()


def silent():
    """a standby that is stopped holds rounds up for lost_ms at most; then the job goes on without it"""
    box, standby = two(heartbeat_ms=100, warn_ms=300, lost_ms=1000, there={"heartbeat_ms": 100, "warn_ms": 300, "lost_ms": 1000})
    workers = job(box.url("demo"), 2, keys=TENSORS, optimizer="adam", rounds="until-told", report_ms=20, transport="tcp")
    workers[0].event("progress")
    await_state(box, "demo", "whole")
    standby.kill(signal.SIGSTOP)
    began = time.monotonic()
    now = await_state(box, "demo", "broken")
    say(f"given up after {time.monotonic() - began:.1f} s: {now['why']}")
    with workers[0].out.changed:
        workers[0].seen = len(workers[0].out.lines)
    workers[0].event("progress")
    standby.kill(signal.SIGCONT)
    await_state(box, "demo", "whole")
    workers[0].tell()
    digests(workers)
    box.stop()
    standby.stop()


def refused():
    """a standby with another number of cores, or another secret, is told by name; the job runs without"""
    box, standby = two(there={"cores": 1})
    workers = job(box.url("demo"), 2, keys=TENSORS, rounds="until-told", report_ms=20)
    workers[0].event("progress")
    holds(await_state(box, "demo", "broken")["why"], "cores")
    workers[0].tell()
    digests(workers)
    box.stop()
    standby.stop()
    with tempfile.NamedTemporaryFile("w") as ours, tempfile.NamedTemporaryFile("w") as theirs:
        for file, secret in ((ours, "correct horse"), (theirs, "battery staple")):
            file.write(secret)
            file.flush()
        box, standby = two(create="secret", create_secret_file=ours.name,
                           there={"create": "secret", "create_secret_file": theirs.name})
        workers = job(box.url("demo"), 2, keys=TENSORS, rounds="until-told", report_ms=20, secret="correct horse")
        workers[0].event("progress")
        why = await_state(box, "demo", "broken")["why"]
        holds(why, "different secrets; give both the same one, by secret_file in their list of jobs, or create_secret_file")
        check("PHUB_SECRET" not in why, why)
        workers[0].tell()
        digests(workers)
        box.stop()
        standby.stop()
        box, standby = two(create="secret", create_secret_file=ours.name,
                           there={"create": "secret", "create_secret_file": ours.name})
        workers = job(box.url("demo"), 2, keys=TENSORS, rounds="until-told", report_ms=20, secret="correct horse", transport="tcp")
        await_state(box, "demo", "whole")
        box.kill()
        standby.logged("goes on here with 2 of 2")
        workers[0].tell()
        digests(workers)
        standby.stop()


def comes_back():
    """a paused job is paused at the standby, too, until it is resumed there; the box, which was only stopped, says where its workers may be"""
    quick = {"heartbeat_ms": 100, "warn_ms": 300, "lost_ms": 1000}
    box, standby = two(there=quick, **quick)
    workers = job(box.url("demo"), 2, keys=TENSORS, optimizer="adam", rounds="until-told", report_ms=20, transport="tcp")
    workers[0].event("progress")
    await_state(box, "demo", "whole")
    phub = BUILD / "phub"
    subprocess.run([phub, "jobs", "pause", "demo", "--reason", "a switch is changed", box.address], check=True, capture_output=True)
    time.sleep(0.3)
    box.kill(signal.SIGSTOP)
    standby.logged("goes on here with 2 of 2")
    standby.logged("is paused here as it was at its box: a switch is changed")
    now = jobs(standby)["demo"]
    check(now["state"] == "paused", f"{now}")
    holds(now["waiting"], "paused it: a switch is changed")
    subprocess.run([phub, "jobs", "resume", "demo", standby.address], check=True, capture_output=True)
    workers[0].event("progress")
    box.kill(signal.SIGCONT)
    box.logged("rank [01] .* was lost: .*Its standby .* had all of it: its workers may have gone on there"
               "|the standby has taken it over: its workers have moved")
    workers[0].tell()
    digests(workers)
    box.stop()
    standby.stop()


def told_what_to_do():
    """what a box cannot do with its standby is said in the words of its own options, not in those of workers"""
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write("correct horse")
        secret.flush()
        ours, guarded = {"create": "secret", "create_secret_file": secret.name}, {"secret": "correct horse"}
        for here, there, mine, words in ((ours, {}, guarded, "standby .* has no secret for the job, and this box has one"),
                                         ({}, ours, {}, "standby .* has a secret for the job, and this box has none")):
            box, standby = two(there=there, **here)
            workers = job(box.url("demo"), 2, keys=TENSORS, rounds="until-told", report_ms=20, **mine)
            workers[0].event("progress")
            why = await_state(box, "demo", "broken")["why"]
            holds(why, words + ".*by secret_file in its list of jobs, or create_secret_file")
            check("PHUB_SECRET" not in why, why)
            workers[0].tell()
            digests(workers)
            box.stop()
            standby.stop()
    box = Box(cores=2, standby="phubs://127.0.0.1:9")
    workers = job(box.url("demo"), 2, keys=TENSORS, rounds="until-told", report_ms=20)
    workers[0].event("progress")
    holds(await_state(box, "demo", "broken")["why"], "standby: phubs:// needs .*PHUB_TLS_CA in the environment of phubd")
    workers[0].tell()
    digests(workers)
    box.stop()


def on_the_same_host():
    """who names no transport comes by one with which it can go on; who asks for shm is warned of by name, in the log, by jobs and by doctor"""
    box, standby = two()
    arguments = {"optimizer": "adam", "keys": TENSORS, "rounds": "until-told", "report_ms": 20}
    moving = job(box.url("moving"), 2, **arguments)
    stuck = job(box.url("stuck"), 2, transport="shm", **arguments)
    free = job(box.url("free"), 2, **{**arguments, "optimizer": "sgd"}, sync="async", check=False)
    for workers, transport in ((moving, "tcp"), (stuck, "shm"), (free, "shm")):
        for worker in workers:
            worker.event("progress")
        found = jobs(box)[workers[0].name.split(".")[0]]
        check({one["transport"] for one in found["workers"]} == {transport}, f"{found}")
        check(found["standby"]["cannot_move"] == ([0, 1] if workers is stuck else []), f"{found['standby']}")
    await_state(box, "stuck", "whole")
    text = subprocess.run([BUILD / "phub", "jobs", box.address], capture_output=True, text=True).stdout
    holds(text, "stuck: CANNOT MOVE to the standby when the box is lost: ranks 0, 1 by shm")
    check("moving: CANNOT" not in text and "free: CANNOT" not in text, text)
    text = subprocess.run([BUILD / "phub", "doctor", box.address], capture_output=True, text=True).stdout
    holds(text, "job stuck: it cannot go on at the standby when the box is lost: ranks 0, 1 by shm")
    check(len([line for line in box.err.lines if "is lost with this box" in line]) == 1, box.err.text())
    box.logged("'stuck' is lost with this box.*ranks 0, 1 of 2, which asked for shm, cannot go on there")
    box.kill()
    standby.logged("'moving' goes on here with 2 of 2")
    for worker in stuck:
        worker.failed("ECONNRESET", "in memory that was shared with it cannot go on")
    moving[0].tell()
    digests(moving)
    for worker in free:
        worker.forget()
    standby.stop()


def begun_again():
    """a box that is started again says what is lost where its job begins anew though its standby had it, and how old a checkpoint is"""
    with tempfile.TemporaryDirectory() as folder:
        listen = f"127.0.0.1:{free_port()}"
        here = {"listen": listen, "cores": 2, "checkpoint_targets": folder, "checkpoint_every": 20}
        standby = Box(name="standby", cores=2)
        box = Box(standby=standby.address, **here)
        arguments = {"optimizer": "adam", "keys": TENSORS, "rounds": "until-told", "report_ms": 20, "pause_us": 2000}
        sums = {**arguments, "optimizer": "none"}
        stuck = job(box.url("stuck"), 2, transport="shm", **sums)
        moving = job(box.url("moving"), 2, transport="tcp", **arguments)
        for workers in (stuck, moving):
            workers[0].event("progress")
        await_state(box, "stuck", "whole")
        await_state(box, "moving", "whole")
        until = time.monotonic() + 60
        while not jobs(box)["moving"]["checkpoint"]["last"]:
            check(time.monotonic() < until, "no checkpoint")
            time.sleep(0.05)
        box.kill()
        box.wait()
        standby.logged("'moving' goes on here with 2 of 2")
        moving[0].tell()
        digests(moving)
        for worker in stuck:
            worker.failed("ECONNRESET", "cannot go on")
        box = Box(standby=standby.address, **here)
        stuck = job(box.url("stuck"), 2, transport="shm", **sums)
        box.logged(r"'stuck' has begun here anew, but its standby .* had it at round [1-9]\d* from before .* between are LOST")
        standby.logged(r"'stuck': box .* comes again with it; the copy that was kept here, at round [1-9]\d*, goes")
        moving = job(box.url("moving"), 2, transport="tcp", check=False, **arguments)
        box.logged(r"'moving' goes on from a checkpoint before round [1-9]\d*, which was written \d+ s ago.*these weights are OLD")
        # A standby that is lost and comes back has nothing from before.
        await_state(box, "stuck", "whole")
        check(box.err.text().count("are LOST") == 1, box.err.text())
        for workers in (stuck, moving):
            workers[0].event("progress")
            workers[0].tell()
        for worker in stuck + moving:
            worker.good()
        box.stop()
        standby.stop()


def ended_there():
    """a job that ends at the standby ends older checkpoints of its name there, too: the next one begins anew"""
    with tempfile.TemporaryDirectory() as folder:
        options = {"cores": 2, "checkpoint_targets": folder, "checkpoint_every": 20}
        arguments = {"optimizer": "adam", "keys": TENSORS, "transport": "tcp", "pause_us": 2000}
        standby = Box(name="standby", **options)
        cut = job(standby.url("demo"), 2, rounds=1000000, check=False, **arguments)
        standby.logged("checkpoint before round .* written")
        standby.kill()
        for worker in cut:
            worker.kill()
        standby.wait()
        standby = Box(name="standby", **{**options, "checkpoint_every": 1000000})
        box = Box(cores=2, standby=standby.address)
        workers = job(box.url("demo"), 2, rounds="until-told", report_ms=20, **arguments)
        workers[0].event("progress")
        await_state(box, "demo", "whole")
        box.kill()
        standby.logged("goes on here with 2 of 2")
        workers[0].tell()
        digests(workers)
        standby.logged("job 'demo' rank 0 .* left")
        until = time.monotonic() + 60
        while jobs(standby):
            check(time.monotonic() < until, "the job does not end")
            time.sleep(0.02)
        digests(job(standby.url("demo"), 2, rounds=5, **arguments))
        check("goes on from its checkpoint" not in standby.err.text(), standby.err.text())
        standby.stop()


def nobody_there():
    """a standby that is the box itself is refused; one whose name has no address is warned of when the box starts"""
    for only_check in ([], ["--check-config"]):
        done = subprocess.run([BUILD / "phubd", "--listen", "127.0.0.1:7999", "--standby", "localhost:7999", *only_check],
                              capture_output=True, text=True, timeout=60)
        check(done.returncode == 1, f"{done}")
        holds(done.stderr, "standby: 'localhost:7999' is this box itself")
    done = subprocess.run([BUILD / "phubd", "--check-config", "--standby", "nowhere.invalid:77"], capture_output=True, text=True,
                          timeout=60)
    check(done.returncode == 0, f"{done}")
    holds(done.stderr, "standby: 'nowhere.invalid' does not resolve to an address")
    box = Box(standby="nowhere.invalid:77")
    box.logged("warn .*standby: 'nowhere.invalid' does not resolve to an address: jobs run WITHOUT a standby until it does")
    box.stop()


run([on_the_same_host, begun_again, ended_there, comes_back, told_what_to_do, nobody_there, same_bits, told, killed, encrypted, going_down,
     standby_dies, chain, failing_back, silent, refused])
