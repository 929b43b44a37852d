#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub scout run as people and scripts meet it: what sites are given, what becomes of the log, and what it says where something
fails."""
import contextlib
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree

import rig
from rig import check, holds
from scout_rig import FOLDER, PHUB, SKEWED, STUDY, bsp, changed, fill, hill, lines, phub, small_disk

CREW_GRACE_S = 3  # which sites have to end by themselves


def run_sites():
    """run: processes with ranks, a box of their own, and what was given in their environment; then what came of it"""
    script = """echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $PHUB_URL"; echo "to stderr" >&2; printf 'no newline'
                env | grep ^PHUB_SCOUT_ | sort >env$RANK; [ $RANK != 0 ] || cp "$0" "$PHUB_SCOUT_LOG" """
    (FOLDER / "out.jsonl").write_text('{"scout":"run","stale":1}\n')
    out, err = phub("run", "--sites", 3, "--policy", "hill", "--thetas", "1,2,20", "--theta", "2", "--sigma", "0.02", "--lambda-loss", "20",
                    "--lambda-bytes", "0.5", "--trim", "0.2", "--seed", 7,
                    "--period", 50, "--unit", "seconds", "--rate", "1e8", "--latency", "0.02", "--shadow", "1,4", "--algorithm", "local",
                    "--out", "out.jsonl", "--", "sh", "-c", script, hill())
    for k in range(3):
        holds(out, rf"(^|\n)\[{k}\] {k} of 3, {k} of 3, phub://127.0.0.1:\d+/scout\n", rf"\n\[{k}\] no newline\n")
        holds(err, rf"\[{k}\] to stderr")
        check((FOLDER / f"env{k}").read_text().split("\n")[:-1] == [
            "PHUB_SCOUT_ALGORITHM=local", "PHUB_SCOUT_LAMBDA_BYTES=0.5", "PHUB_SCOUT_LAMBDA_LOSS=20", "PHUB_SCOUT_LATENCY=0.02",
            f"PHUB_SCOUT_LOG={FOLDER}/out.jsonl", "PHUB_SCOUT_PERIOD=50", "PHUB_SCOUT_POLICY=hill",
            "PHUB_SCOUT_RATE=100000000", "PHUB_SCOUT_REPRODUCIBLE=1", "PHUB_SCOUT_SEED=7", "PHUB_SCOUT_SHADOW=1,4", "PHUB_SCOUT_SIGMA=0.02",
            "PHUB_SCOUT_THETA=2",
            "PHUB_SCOUT_THETAS=1,2,20", "PHUB_SCOUT_TRIM=0.2", "PHUB_SCOUT_UNIT=seconds"], (FOLDER / f"env{k}").read_text())
    holds(out, r"\nout +local +hill +160 ")
    with somebody() as address:
        out, _ = phub("run", "--sites", 1, "--box", f"phub://{address}/job", "--out", "out.jsonl", "--json", "--", "sh", "-c",
                      'echo $PHUB_URL; env | grep -c ^PHUB_SCOUT_; cp "$0" "$PHUB_SCOUT_LOG"', hill())
        check(out.startswith(f"[0] phub://{address}/job\n[0] 2\n") and json.loads(out.splitlines()[-1])["ended"], out)
        out, _ = phub("run", "--sites", 1, "--box", f"phub://127.0.0.1:{rig.free_port()},{address}/job", "--worth", "0.1",
                      "--policy", "scout+", "--price", "3",
                      "--unit", "money", "--out", "out.jsonl", "--", "sh", "-c",
                      'env | grep ^PHUB_SCOUT_ | sort; cp "$0" "$PHUB_SCOUT_LOG"', hill())
        check(out.startswith("[0] PHUB_SCOUT_LOG="), out)
        holds(out, "PHUB_SCOUT_POLICY=scout\\+", "PHUB_SCOUT_PRICE=3\n", "PHUB_SCOUT_UNIT=money", "PHUB_SCOUT_WORTH=0.1\n")
        out, _ = phub("run", "--sites", 1, "--box", f"phub://{address}/job", "--gain", "0.1", "--ease", "1.5", "--policy", "scout+",
                      "--out", "out.jsonl", "--", "sh", "-c", 'env | grep ^PHUB_SCOUT_ | sort; cp "$0" "$PHUB_SCOUT_LOG"', hill())
        check(out.startswith("[0] PHUB_SCOUT_EASE=1.5\n[0] PHUB_SCOUT_GAIN=0.1\n[0] PHUB_SCOUT_LOG="), out)


@contextlib.contextmanager
def somebody():
    """Who takes connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        yield "127.0.0.1:%d" % there.getsockname()[1]


def run_long_lines():
    """run: a line that is longer than there is room goes in pieces, all of it"""
    out, _ = phub("run", "--sites", 1, "--out", "out.jsonl", "--", sys.executable, "-c",
                  f"print('x' * 20000); print(); import shutil, os; shutil.copy({str(hill())!r}, os.environ['PHUB_SCOUT_LOG'])")
    rows = [line for line in out.splitlines() if line.startswith("[0]")]
    check(sum(row.count("x") for row in rows) == 20000 and all(len(row) <= 4096 + 4 for row in rows) and rows[-1] == "[0] ",
          str(list(map(len, rows))))


def run_that_fails():
    """run: when one site fails all are ended, with what they have started, and it is said which and why"""
    _, err = phub("run", "--sites", 3, "--", "sh", "-c", "echo $$ >pid$RANK; [ $RANK = 1 ] && sleep 0.3 && exit 3; sleep 9797 & wait",
                  status=1)  # the others do not end by themselves
    holds(err, "phub: site 1 ended with exit code 3")
    for k in (0, 2):
        group = (FOLDER / f"pid{k}").read_text().strip()
        until = time.monotonic() + rig.DEADLINE_S
        while left := [p for p in pathlib.Path("/proc").glob("[0-9]*/stat") if group_of(p) == group]:
            check(time.monotonic() < until, f"left behind of site {k}: {left}")
            time.sleep(0.05)
    _, err = phub("run", "--", "sh", "-c", "kill -9 $$", status=1)
    holds(err, r"site \d was killed by signal 9 \(Killed\)")
    _, err = phub("run", "--sites", 1, "--", "sh", "-c", "trap '' TERM; kill -TERM $PPID; while :; do sleep 1; done", status=143)
    holds(err, "interrupted")  # and by SIGKILL, as it does not heed the other
    _, err = phub("run", "--sites", 1, "--", FOLDER, status=1)
    holds(err, r"\[0\] .*: Permission denied", "site 0 could not run the command")
    holds(phub("run", "--", "true", status=1)[1], "none has written scout.jsonl")


def run_fails_alike():
    """run: what all sites say as they fail stands there once, and what one alone has said too"""
    script = ('echo "RANK $RANK" >&2; touch alike$RANK; while [ ! -e alike0 -o ! -e alike1 -o ! -e alike2 -o ! -e alike3 ]; do sleep 0.05; done; sleep 1; '
              'printf "usage: train\\nno such option" >&2; exit 2')
    _, err = phub("run", "--sites", 4, "--", "sh", "-c", script, status=1)
    check(err.count("usage: train\n") == err.count("no such option\n") == 1, err)
    holds(err, r"phub: site \d ended with exit code 2; its own message says why\n$", *(rf"\[{k}\] RANK {k}\n" for k in range(4)))
    script = 'echo "$0" | sed "s/RANK/$RANK/g" >&2; touch $1$RANK; while [ ! -e ${1}0 -o ! -e ${1}1 -o ! -e ${1}2 ]; do sleep 0.05; done; sleep $2; exit 2'
    _, err = phub("run", "--sites", 3, "--", "sh", "-c", script, "job j rank RANK: no theta of 2.5", "own", 1, status=1)
    check(err.count("no theta of 2.5\n") == 1, err)  # although what the first one has said is passed on before it fails
    _, err = phub("run", "--sites", 3, "--", "sh", "-c", script, "rank 1RANK or RANK", "others", 0, status=1)
    check(all(f"rank 1{k} or {k}\n" in err for k in range(3)), err)
    _, err = phub("run", "--sites", 2, "--out", "out.jsonl", "--", "sh", "-c",
                  'echo same >&2; sleep 0.8; echo same >&2; cp "$0" "$PHUB_SCOUT_LOG.$RANK"; '
                  'mv "$PHUB_SCOUT_LOG.$RANK" "$PHUB_SCOUT_LOG"', hill())
    check(err.count("[0] same\n") == err.count("[1] same\n") == 2, err)


def group_of(path):
    """Of a process that lives."""
    try:
        fields = path.read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[2]


def on_terminal(*words):
    """What `phub scout run` writes to one."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([PHUB, "scout", "run", *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
                               env=rig.QUIET,
                               cwd=FOLDER)
    os.close(theirs)
    seen = b""
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        try:
            seen += os.read(ours, 4096) if select.select([ours], [], [], 0.1)[0] else b""
        except OSError:  # its end
            break
    os.close(ours)
    check(process.wait() == 0, seen.decode())
    return seen.decode()


def run_on_a_terminal():
    """run: a terminal has a line that tells how far they are, and no trace of it behind what sites write"""
    script = 'head -3 "$0" >"$PHUB_SCOUT_LOG"; sleep 1; echo done >&2; cp "$0" "$PHUB_SCOUT_LOG"'
    within = changed(hill(), "within", lambda own: [line.replace('"bytes_bsp":', '"bytes_within":2000000,"bytes_bsp":') for line in own])
    holds(on_terminal("--sites", 1, "--out", "tty.jsonl", "--", "sh", "-c", script, within),
          r"\rstep 40, theta \d+, [\d.-]+ points lost elsewhere, [\d.]+ times fewer bytes than BSP, 2\.0 MB within in this window\x1b\[K",
          r"\r\x1b\[K\[0\] done\r\n")


def run_interrupted():
    """run: SIGINT ends the sites, then the box; it is said before what comes of it, and the log is whole as far as it goes"""
    script = 'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm=local thetas=1,2,5 period=5 lazy_ms=1 steps=100000'
    process = subprocess.Popen([PHUB, "scout", "run", "--sites", "2", "--out", "broken-off.jsonl", "--", "sh", "-c", script, SKEWED],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=rig.QUIET, cwd=FOLDER)
    log, until = FOLDER / "broken-off.jsonl", time.monotonic() + rig.DEADLINE_S
    while not log.exists() or log.read_text().count("decision") < 3:
        check(process.poll() is None and time.monotonic() < until, "no window")
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=rig.DEADLINE_S)
    check(process.returncode == 130, f"exit code {process.returncode}")
    check(err.startswith("phub: interrupted: ends the sites\n") and err.count("interrupted") == 1, err)
    kinds = [line["scout"] for line in lines(log.read_text())]
    check(kinds[0] == "run" and set(kinds[1:]) == {"decision"}, str(kinds))
    holds(err, f"broken-off.jsonl has {len(kinds) - 1} windows until then")
    holds(phub("explain", "broken-off.jsonl")[0], "The log ends early, at step")


def run_insists():
    """run: whoever interrupts it twice does not wait for sites that do not heed it; on a machine that stands still, at one of five tries"""
    took = []
    while not took or took[-1] >= CREW_GRACE_S:
        took.append(insists())
        check(len(took) <= 5, f"{took} s")


def insists():
    process = subprocess.Popen([PHUB, "scout", "run", "--sites", "1", "--", "sh", "-c",
                                "trap '' TERM; echo here; while :; do sleep 1; done"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=rig.QUIET, cwd=FOLDER)
    check(process.stdout.readline().endswith("here\n"), "no site")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    holds(process.stderr.readline(), "interrupted")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=rig.DEADLINE_S)
    check(process.returncode == 130, f"{process.returncode}")
    return time.monotonic() - began


def run_measures():
    """run: a terminal tells how long scout+ measures before it moves"""
    log = ['{"scout":"run","policy":"scout+","sites":1,"thetas":[1,2],"model_bytes":8,"version":1}\n',
           *('{"scout":"decision","t":%d,"theta":1,"next":1,"pull":%s,"bytes_total":8,"bytes_bsp":16}\n' % (10 * k, "null" if k < 3 else "2.5")
             for k in (1, 2, 3))]
    for windows, wanted in ((0, r"\rmeasuring\x1b"), (1, r"\rstep 10, theta 1, measuring\x1b"),
                            (2, r"step 20, theta 1, measuring\x1b"), (3, r"step 30, theta 1, 2.0 times fewer bytes than BSP\x1b")):
        path = FOLDER / "measures.jsonl"
        path.write_text("".join(log[:1 + windows]))
        holds(on_terminal("--sites", 1, "--out", "tty.jsonl", "--", "sh", "-c", 'cp "$0" "$PHUB_SCOUT_LOG"; sleep 0.7', path), wanted)


def run_writes_nothing():
    """run: what is wrong is said before anything starts, once, and nothing is overwritten for it"""
    kept = FOLDER / "kept.jsonl"
    began = '{"scout":"run"}\n'
    grid = ["--policy", "hill", "--thetas", "1,2,5"]
    (FOLDER / "script").write_text("print(1)\n")
    (FOLDER / "locked").mkdir()
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as there:
        dead = "127.0.0.1:%d" % there.getsockname()[1]
    for words, status, why in (
            ([*grid, "--", "/nowhere/train"], 1, "cannot run /nowhere/train: No such file"),
            ([*grid, "--", "nowhere-train"], 1, "not in PATH"),
            (["--phubd", "/nowhere/phubd", "--", "true"], 1, "could not run /nowhere/phubd"),
            (["--out", "/nowhere/x.jsonl", "--", "true"], 1, "cannot write /nowhere/x.jsonl: /nowhere/: No such file"),
            (["--out", "", "--", "true"], 1, "needs a name"), (["--out", "script", "--", "true"], 1, "what is there is no decision log"),
            (["--out", "locked", "--", "true"], 1, "no regular file"),
            (["--box", f"phub://{dead}/job", "--", "true"], 1,
             f"no box at phub://{dead}/job: Connection refused; start one there with phubd"),
            (["--box", "phub://no.such.host.invalid/job", "--", "true"], 1, "no box at phub://no.such.host.invalid/job: "),
            (["--box", "phub://h", "--", "true"], 2, "use phub://host"),
            (["--policy", "hill", "--thetas", "10,5,2,1", "--", "true"], 2, "the tightest, of local the smallest: 1,2,5,10; see"),
            (["--algorithm", "dgc", "--policy", "hill", "--thetas", "0.001,0.01", "--", "true"], 2, "of dgc the largest: 0.01,0.001"),
            (["--algorithm", "gaia", "--policy", "scout+", "--thetas", "0.1,0.2", "--", "true"], 2, "a grid of gaia begins with 0"),
            (["--algorithm", "dgc", "--policy", "scout+", "--thetas", "1,0.1", "--", "true"], 2, "does not know how far thetas of dgc"),
            (["--algorithm", "dgc", "--policy", "annealing", "--thetas", "0.1,0.01", "--", "true"], 2,
             "annealing goes by what models lose at other sites"),
            (["--policy", "scout+", "--thetas", "2,5", "--", "true"], 2, "a grid of local begins with 1"),
            (["--algorithm", "dgc", "--policy", "scout+", "--", "true"], 2, "does not know how far thetas of dgc"),
            (["--unit", "seconds", "--", "true"], 2, "--unit seconds wants --rate"),
            (["--unit", "money", "--price", "0", "--", "true"], 2, "--unit money wants --price"),
            (["--unit", "seconds", "--rate", "1Mbit", "--", "true"], 2, "--rate 1Mbit: allowed are bytes, like"),
            (["--rate", "-1MB", "--", "true"], 2, "--rate -1MB: allowed are"),
            (["--algorithm", "local", *grid, "--shadow", "0.5", "--", "true"], 2,
             "shadow: local cannot have a theta of 0.5; allowed: a whole number of steps, 1 to"),
            (["--algorithm", "local", "--theta", "0.5", "--", "true"], 2, "local cannot have a theta of 0.5"),
            ([*grid, "--theta", "3", "--", "true"], 2, "--theta 3: is none of the thetas"),
            (["--thetas", ",".join(map(str, range(1, 66))), "--", "true"], 2, "up to 64 numbers")):
        kept.write_text(began)
        start = time.monotonic()
        err = phub("run", "--out", kept, *words, status=status)[1]
        holds(err, why)
        check(len(err.splitlines()) == 1 and kept.read_text() == began, f"{words}: {err}")
        check(time.monotonic() - start < 10, f"{words}: {time.monotonic() - start:.1f} s")
    check((FOLDER / "script").read_text() == "print(1)\n", "a file that is no log was overwritten")
    phub("run", "--sites", 1, "--algorithm", "gaia", "--policy", "hill", "--thetas", "0.05,0.1", "--out", kept, "--", "sh", "-c",
         'cp "$0" "$PHUB_SCOUT_LOG"', hill())
    phub("run", "--sites", 1, "--policy", "hill", "--thetas", "0.05,0.1", "--out", kept, "--", "sh", "-c", 'cp "$0" "$PHUB_SCOUT_LOG"',
         hill())
    holds(phub("run", "--out", "x.jsonl", "--", "true", PHUB_SCOUT_SIGMA="2", status=2)[1], "PHUB_SCOUT_SIGMA='2'; allowed: 0 to 1")


def run_keeps_the_log_before():
    """run: where sites fail before they have a log, the one of a run before is there again.
    One that is written takes its place, and that one stays beside it"""
    kept, before = FOLDER / "again.jsonl", FOLDER / "again.jsonl.before"
    for script, status in (("exit 3", 1), ("true", 1), (': >"$PHUB_SCOUT_LOG"; exit 3', 1), ('cp "$0" "$PHUB_SCOUT_LOG"; exit 3', 1),
                           ('cp "$0" "$PHUB_SCOUT_LOG"', 0)):
        kept.write_text('{"scout":"run"}\n')
        phub("run", "--sites", 1, "--out", kept, "--", "sh", "-c", f'[ ! -e {kept} ] || exit 9; {script}', hill(), status=status)
        wanted = hill().read_text() if "cp" in script else '{"scout":"run"}\n'
        check(kept.read_text() == wanted and before.exists() == ("cp" in script), f"{script}: {kept.read_text()[:80]}")
        before.unlink(missing_ok=True)
    before.write_text("mine")
    holds(phub("run", "--out", kept, "--", "true", status=1)[1], "cannot write .*again.jsonl.before: what is there is no decision log")
    check(before.read_text() == "mine" and kept.exists(), "a file was lost")
    kept.unlink()
    phub("run", "--sites", 1, "--out", kept, "--", "sh", "-c", 'cp "$0" "$PHUB_SCOUT_LOG"', hill())
    check(before.read_text() == "mine", "a file was lost")
    before.unlink()


def run_on_a_full_disk():
    """run: a disk that is full is said before anything starts; one that becomes so is an error that says where the log ends, and the one before stays"""
    inside, there, seen = small_disk("disk", "256k")
    train = ["--sites", 2, "--policy", "hill", "--thetas", "1,2,5,10", "--theta", 5, "--period", 10, "--out", there / "run.jsonl", "--",
             "sh", "-c",
             'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm=local steps=600 >/dev/null', SKEWED]
    phub("run", *train, prefix=inside)
    good = (seen / "run.jsonl").read_text()
    check('"end"' in good and len(good) > 32 << 10, good[-200:])
    fill(seen, 0)
    err = phub("run", *train, prefix=inside, status=1)[1]
    check(err == f"phub: cannot write {there}/run.jsonl: No space left on device\n" and (seen / "run.jsonl").read_text() == good, err)
    for _ in range(2):  # of two such runs no log is the one before
        fill(seen, 12 << 10)
        err = phub("run", *train, prefix=inside, status=1)[1]
        cut = (seen / "run.jsonl").read_text()
        check(4096 < len(cut) < len(good) and not cut.endswith("\n") and (seen / "run.jsonl.before").read_text() == good,
              f"{len(cut)} bytes, ...{cut[-200:]}")
        step = json.loads(cut.splitlines()[-2])["t"]
        holds(err, f"run.jsonl could not be written beyond step {step}: No space left on device\n",
              "the log of the run before is .*run.jsonl.before\n$")
        (seen / "filler").unlink()
    err = phub("compare", there / "run.jsonl", prefix=inside)[1]
    holds(err, "its last line is not whole, .* was broken off, or its disk is full")
    phub("run", *train, prefix=inside)
    check((seen / "run.jsonl").read_text().endswith("}\n") and (seen / "run.jsonl.before").read_text() == good, "the log of a good run")
    holds(phub("run", "--sites", 1, "--out", "opened.jsonl", "--", "sh", "-c", ': >"$PHUB_SCOUT_LOG"', status=1)[1],
          "nothing is in opened.jsonl: rank 0 has not begun to train, or could not write it")
    holds(phub("run", "--sites", 1, "--out", "open.jsonl", "--", "sh", "-c", 'head -3 "$0" >"$PHUB_SCOUT_LOG"', hill())[1],
          "open.jsonl has no last line: rank 0 has ended without closing its site")


def run_loses_a_site():
    """run: with --lost shrink others go on without one that is lost, whatever the program says.
    Without rank 0 the next one goes on with the log, where it can; nobody is left: it has failed"""
    def lose(dies, status=0, lost="shrink", log=":"):
        script = (f'[ $RANK = 0 ] || {log}; [ $RANK -lt {dies[0]} ] || [ $RANK -ge {dies[1]} ] || die=60; exec "$0" "$PHUB_URL" '
                  f'rank=$RANK world=$WORLD_SIZE algorithm=local thetas=1,2,5 '
                  'period=10 lazy_ms=2 steps=120 die_at=${die:-0}')
        (FOLDER / "lost.jsonl").unlink(missing_ok=True)  # one that is there would be spoken of, where this one was cut off
        return phub("run", "--sites", 3, "--lost", lost, "--out", "lost.jsonl", "--", "sh", "-c", script, SKEWED, status=status)

    out, err = lose((1, 2))
    holds(err, "phub: site 1 was killed by signal 9 .Killed.; the others go on\n",
          r" warn +job 'scout'.* was lost: .*\. The job goes on with 2 of 3\n")
    ends = [json.loads(line.split(" ", 1)[1]) for line in out.splitlines() if '"event":"end"' in line]
    check(len(ends) == 2 and all(end["rc"] == 0 and end["steps"] == 120 and end["sites"] == 2 for end in ends), str(ends))
    told = lines((FOLDER / "lost.jsonl").read_text())
    check(told[-1]["scout"] == "end" and [line["sites"] for line in told[1:-1]][-1] == 2, str(told[-2:]))
    gone, = (line for line in told if line["scout"] == "site")
    check((gone["rank"], gone["action"], gone["sites"], told[-1]["sites"]) == (1, "lost", 2, 2) and 60 < gone["t"] <= 65, str(gone))
    holds(out, r"Take care: lost ended with 2 of 3 sites\.\n")
    holds(phub("explain", "lost.jsonl")[0],
          rf"\n *{gone['t']} +- +- +- +lost +- +- +- +site 1; 2 of 3 are there: the box has lost it: its control session",
          r"\nIt ended at step 120 with 2 of 3 sites, theta ")
    holds(phub("explain", "lost.jsonl", "--at", gone["t"])[0], rf"\n  lost    at step {gone['t']} site 1; 2 of 3 are there: ",
          "0.500 .1/K. what they have by chance")
    out, err = lose((0, 1))
    holds(err, "phub: site 0 was killed by signal 9 .Killed.; the others go on\n")
    told = lines((FOLDER / "lost.jsonl").read_text())
    check([line["t"] for line in told if line["scout"] == "decision"] == list(range(10, 121, 10)) and told[-1]["rank"] == 1, str(told))
    holds(out, "Take care: lost ended with 2 of 3 sites")
    holds(phub("explain", "lost.jsonl")[0],
          r"\n *\d+ +- +- +- +writes .* site 1; 2 of 3 are there: site 0, which wrote the log, is there no more: this site goes on with it\n",
          "\nIt ended at step 120 with 2 of 3")
    _, err = lose((0, 1), status=1, log="unset PHUB_SCOUT_LOG")
    holds(err, "phub: site 0 was killed by signal 9 .Killed.; the others go on\n",
          r"phub: site 0, which wrote the log, was lost, and no other has gone on with it: lost.jsonl ends early, at step [56]0, and does "
          r"not tell how the 2 others went on to their end; begin again for a log of the whole run\n$")
    holds(phub("explain", "lost.jsonl")[0],
          "The log ends early, at step .*\nTake care: it has no last line: .* who wrote it was lost, and no other site has gone on")
    _, err = lose((0, 3), status=1)  # what the box says of it, at whatever time, does not stand behind the reason
    holds(err, r"phub: site \d was killed by signal 9 .Killed.\n$")
    _, err = lose((1, 2), status=1, lost="fail")
    check("; the others go on" not in err, err)
    holds(err, r"phub: site (1 was killed by signal 9 .Killed.|[02] ended with exit code 1; its own message says why)\n$")  # who is found first
    _, err = phub("run", "--sites", 2, "--lost", "shrink", "--", "sh", "-c", "[ $RANK = 0 ] && exit 3; sleep 50", status=1)
    why = ". A job begins with all of its sites: --lost shrink holds from there on\n"
    check(err == f"phub: site 0 ended with exit code 3; its own message says why{why}", err)
    _, err = phub("run", "--sites", 2, "--lost", "shrink", "--", "sh", "-c", "[ $RANK = 0 ] && kill -9 $$; sleep 50", status=1)
    check(err == f"phub: site 0 was killed by signal 9 (Killed){why}", err)
    holds(phub("run", "--lost", "wait", "--", "true", status=2)[1], "Allowed: fail, shrink;")


def not_looked_at():
    """run, advise, dry-run: an option that the policy does not look at is refused, with the policies that do; and of a unit that is not that of costs"""
    most = "replay, hill, stochastic and annealing"
    cases = [("scout+", "--theta", "1", "fixed, hill, stochastic and annealing"),
             ("replay", "--theta", "1", "fixed, hill, stochastic and annealing"),
             *((policy, name, "0.5", most) for policy in ("fixed", "scout+") for name in ("--sigma", "--lambda-loss", "--lambda-bytes")),
             *((policy, name, "0.5", "scout+") for policy in ("fixed", "replay", "hill", "stochastic", "annealing")
               for name in ("--gain", "--worth", "--ease"))]
    for command in (["run"], ["advise", "--listen", "127.0.0.1:0", "--sites", "1", "--model-bytes", "1"], ["dry-run", hill()]):
        tail = ["--", "true"] if command[0] == "run" else []
        for policy, name, value, others in cases:
            err = phub(*command, "--policy", policy, "--thetas", "1,2", name, value, *tail, status=2)[1]
            holds(err, rf"{name} is of {others}; {policy} does not look at it".replace("+", r"\+"))
        for name in ("--gain", "--ease"):
            holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", name, "0", *tail, status=2)[1],
                  f"{name} 0: allowed is a number above 0")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--gain", "1", "--worth", "2", *tail, status=2)[1],
              "--gain and --worth: the latter holds instead of the former; give one")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--sigma", "0.1", *tail, status=2)[1],
              r"scout\+ does not look at it: the loss that it bears is --gain")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--worth", "-2", *tail, status=2)[1],
              "--worth -2: allowed (is a number from 0 on|are bytes)")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--worth", "0", *tail, status=2)[1],
              "--worth 0: allowed is a number above 0; without it --gain holds")
        if command[0] != "dry-run":
            holds(phub(*command, "--thetas", "1,2", "--trim", "0.5", *tail, status=2)[1],
                  "--trim 0.5: allowed is a number from 0 to below 0.5")
        holds(phub(*command, "--sigma", "1.5", *tail, status=2)[1], "--sigma 1.5: allowed is a number from 0 to 1")
        if command[0] != "advise":
            for unit, name in (("bytes", "--rate"), ("money", "--latency"), ("seconds", "--price")):
                holds(phub(*command, "--unit", unit, name, "1", *tail, status=2)[1],
                      f"{name} is of --unit (seconds|money), and costs are in {unit}")
            holds(phub(*command, "--rate", "1", *tail, status=2)[1], "--rate is of --unit seconds, and costs are in bytes")


def run_stays():
    """run: a theta that stays has a log, with and without a scout; models stay, and the weights are the same"""
    script = 'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm=local steps=60'
    hashes = []
    for name, words in (("alone", ["--theta", "5"]), ("fixed", ["--policy", "fixed", "--thetas", "1,5", "--theta", "5", "--period", "10"])):
        out, err = phub("run", "--sites", 2, *words, "--shadow", "1,5", "--out", f"{name}.jsonl", "--", "sh", "-c", script, SKEWED)
        ends = [json.loads(line.split(" ", 1)[1]) for line in out.splitlines() if '"event":"end"' in line]
        hashes += [end["hash"] for end in ends]
        told = lines((FOLDER / f"{name}.jsonl").read_text())
        check([line["scout"] for line in told] == ["run"] + ["decision"] * (6 if name == "fixed" else 0) + ["end"], str(told))
        check(told[-1]["bytes_travel"] == 0 and told[-1]["bytes"] == ends[0]["bytes"], str(told[-1]))
        check(err.count("--shadow is of windows of a scout, and alone.jsonl has none") == (name == "alone"), err)
        check(f"phub: the log is {name}.jsonl: phub scout {'explain' if name == 'fixed' else 'compare'} {name}.jsonl " in err, err)
    check(len(set(hashes)) == 1, str(hashes))
    for policy, wanted in (("", ["period", "shadow", "seed"]), ("policy=fixed thetas=1,5", [])):
        process = subprocess.Popen([PHUB, "scout", "run", "--sites", "1", "--period", "50", "--shadow", "1", "--seed", "3",
                                    "--unit", "bytes", "--out", "idle.jsonl", "--", "sh", "-c",
                                    f'"$0" "$PHUB_URL" rank=0 world=1 algorithm=local steps=100 {policy} >/dev/null; echo trained >&2; sleep 0.8', SKEWED],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=rig.QUIET, cwd=FOLDER)
        err = process.communicate(timeout=rig.DEADLINE_S)[1].splitlines()
        told = re.findall("--([a-z]+) is of windows", "\n".join(err[:err.index("[0] trained")]))
        check(process.returncode == 0 and sorted(told) == sorted(wanted), str(err))  # as soon as there is a log
    found = {line["log"]: line for line in lines(phub("compare", "--json", "alone.jsonl", "fixed.jsonl")[0])}
    check(found["alone.jsonl"]["bytes"] == found["fixed.jsonl"]["bytes"] > 0, str(found))


def run_repeats():
    """run: over any transport a run follows from its seed, bit for bit, but where the environment says that it need not"""
    def ends(transport):
        out, _ = phub("run", "--sites", 4, "--policy", "scout+", "--algorithm", "local", "--thetas", "1,2,5,10", "--seed", 3,
                      "--set", f"transports={transport}", "--out", "repeats.jsonl",
                      "--", "sh", "-c", 'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE steps=400 reproducible=0', SKEWED)
        decided = [{**line, "bytes_wire": 0, "seconds": 0, "transport": "", "id": 0}
                   for line in lines((FOLDER / "repeats.jsonl").read_text())]
        return sorted(re.findall('"event":"end".*"hash":"([0-9a-f]*)"', out)), decided

    found = [ends(transport) for transport in ("tcp", "tcp", "shm", "tcp")]
    check(len(found[0][0]) == 4 and all(one == found[0] for one in found), str([one[0] for one in found]))
    out, _ = phub("run", "--sites", 1, "--", "sh", "-c", 'env | grep REPRODUCIBLE; cp "$0" "$PHUB_SCOUT_LOG"', hill(),
                  PHUB_SCOUT_REPRODUCIBLE="0")
    check(out.startswith("[0] PHUB_SCOUT_REPRODUCIBLE=0\n"), out)
    holds(phub("run", "--", "true", PHUB_SCOUT_REPRODUCIBLE="2", status=2)[1], "PHUB_SCOUT_REPRODUCIBLE='2'; allowed: 0 to 1")


def run_wrong_words():
    """run: what cannot be is refused"""
    for words, why in (([], "stands behind --"), (["--sites", "0", "--", "x"], "allowed is 1 to 64"),
                       (["--sites", "65", "--", "x"], "1 to 64"),
                       (["--box", "host", "--", "x"], "a URL like phub://"),
                       (["--box", "phub://a/b", "--set", "cores=1", "--", "x"], "another one"),
                       (["--box", "phub://host", "--", "x"], "--box: box address 'phub://host': the job's name is missing"),
                       (["--box", "phub+etcd://host/a/b", "--", "x"], r"--box: box address 'phub\+etcd://host/a/b': use phub\+etcd://host"),
                       (["--box", "phub+etcd:///a", "--", "x"], "it names no etcd, and PHUB_ETCD is not set"),
                       (["--job", "a/b", "--", "x"], "allowed are 1 to 63 letters"),
                       (["--job", "x" * 64, "--", "x"], "allowed are 1 to 63 letters"),
                       (["--shadow", "5,1,5", "--", "x"], "shadow: theta 5 is there twice"),
                       (["--algorithm", "local", "--shadow", "1,0.5", "--", "x"], "shadow: local cannot have a theta of 0.5; allowed"),
                       (["--set", "cores", "--", "x"], "KEY=VALUE"), (["--set", "=2", "--", "x"], "KEY=VALUE"),
                       (["--policy", "hil", "--", "x"], "did you mean hill"), (["--thetas", "a", "--", "x"], "numbers from 0 on")):
        holds(phub("run", *words, status=2)[1], why)
    (FOLDER / "link").symlink_to("there")
    holds(phub("run", "--out", "link", "--", "true", status=1)[1], "cannot write link: what is there is no regular file")


def run_trains():
    """run: sites of libphub do what is given, whatever they say themselves, and the log has their shadows"""
    script = 'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm=bsp steps=80'
    out, _ = phub("run", "--sites", 3, "--algorithm", "local", "--policy", "hill", "--thetas", "1,2,5,10", "--theta", "5", "--period", 10,
                  "--trim", "0.34", "--shadow", "1,2,5,10", "--out", "trained.jsonl", "--", "sh", "-c", script, SKEWED)
    ends = [json.loads(line.split(" ", 1)[1]) for line in out.splitlines() if '"event":"end"' in line]
    check(len(ends) == 3 and len({end["hash"] for end in ends}) == 1 and ends[0]["windows"] > 3, str(ends))
    told = lines((FOLDER / "trained.jsonl").read_text())
    check(told[0]["algorithm"] == "local" and told[0]["policy"] == "hill" and told[0]["first"] == 5 and told[0]["shadow"] == [1, 2, 5, 10]
          and told[0]["trim"] == 0.34, str(told[0]))
    decisions = [line for line in told if line["scout"] == "decision"]
    check(len(decisions) == ends[0]["windows"] and len({d["theta"] for d in decisions}) > 1, str(decisions))
    model, last = told[0]["model_bytes"], decisions[-1]["t"]
    for i, theta in enumerate(told[0]["shadow"]):
        sent = sum(d["shadow"][i]["bytes"] for d in decisions)
        check(sent == last // theta * model, f"theta {theta}: {sent} bytes in {last} steps")
    holds(phub("explain", "trained.jsonl")[0], "trained: local, policy hill, 3 sites")
    holds(phub("explain", "trained.jsonl", "--at", last)[0], r"points \((between -?\d+\.\d and \d+\.\d|exactly: models are one)\)",
          r"training loss \d+\.\d+",
          r"r +0\.\d+, over all of 3 tensors; least in (weight|bias|statistics): 0\.\d+\. .* 0\.333 \(1/K\)")
    phub("plot", "trained.jsonl", "--out", "trained.svg")
    text = list(xml.etree.ElementTree.parse(FOLDER / "trained.svg").getroot().itertext())
    check("Alignment r of what sites say, per tensor: trained" in text and {"weight", "bias", "statistics"} <= set(text), str(text))
    check(len({block.get("fill") for block in xml.etree.ElementTree.parse(FOLDER / "trained.svg").iter()
               if block.tag.endswith("rect")}) > 6,
          "a heat map of one colour")


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([run_sites, run_trains, run_long_lines, run_that_fails, run_fails_alike, run_on_a_terminal, run_interrupted, run_insists,
             run_measures, run_writes_nothing, run_keeps_the_log_before, run_on_a_full_disk, run_loses_a_site, run_stays, run_repeats,
             not_looked_at, run_wrong_words],
            None if STUDY.exists() else f"{STUDY} is not there (make test-programs)")
