#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub scout run when sites or its box die, or it is silent: which of all that is said of it is the reason."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import time

import rig
from rig import check, holds
from scout_rig import FOLDER, PHUB, lines, phub

SKEWED = rig.BUILD / "tests/system/skewed"


def found_dead(name, lost, victims):
    """stderr of a run that looks after its sites when these are killed, and the others have ended of it."""
    def until(what, true):
        end = time.monotonic() + rig.DEADLINE_S
        while not true():
            check(run.running() and time.monotonic() < end, f"{what}: {run.err.text()}")
            time.sleep(0.02)

    log = FOLDER / f"{name}.jsonl"
    script = (f'echo $$ >{FOLDER}/{name}.$RANK; exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm=local thetas=1,2,5 '
              'period=10 pause_ms=2 steps=1000000')
    run = rig.Process("run", [PHUB, "scout", "run", "--sites", "3", "--lost", lost, "--out", log, "--", "sh", "-c", script, SKEWED])
    until("no window", lambda: log.exists() and '"decision"' in log.read_text())
    pids = [int((FOLDER / f"{name}.{rank}").read_text()) for rank in range(3)]
    os.kill(run.pid, signal.SIGSTOP)
    until("it looks", lambda: ") T " in pathlib.Path(f"/proc/{run.pid}/stat").read_text())
    for rank in victims:
        os.kill(pids[rank], signal.SIGKILL)
    dead = re.compile(r"\) Z (\S+ ){16}1 ")  # with all of its threads: until then nobody is told of its end
    until("a site lives", lambda: all(dead.search(pathlib.Path(f"/proc/{pid}/stat").read_text()) for pid in pids))
    os.kill(run.pid, signal.SIGCONT)
    check(run.wait() == 1, "it has failed")
    return run.err.text()


def run_loses_all_at_once():
    """run: of sites that are all found dead at one time nothing says that others go on, and one that was killed is the reason"""
    for name, lost, victims, reason in (("once", "shrink", (0, 1, 2), 0), ("reason", "fail", (1,), 1)):
        err = found_dead(name, lost, victims)
        check("; the others go on" not in err, err)
        check(err.splitlines()[-1] == f"phub: site {reason} was killed by signal 9 (Killed)", err)


def run_hears_its_box():
    """run: what the box says stands before the reason; what it says as it ends well is nothing to anybody, unless its log was asked for"""
    def with_box(body, *words):
        box = FOLDER / "own-box"
        box.write_text(f"#!/bin/sh\n{body}\n")
        box.chmod(0o755)
        return phub("run", "--sites", 2, "--phubd", box, *words, status=1)[1]

    listens = "echo listens at 127.0.0.1:9"
    ends = "; while :; do sleep 0.05; done"
    check(with_box("echo no memory >&2; exit 4", "--", "true") ==
          "no memory\nphub: %s ended while it started; its own message says why\n" % (FOLDER / "own-box"), "as it starts")
    check(with_box(f"{listens}; echo last words >&2; exit 3", "--", "sleep", 50) ==
          "last words\nphub: the box (phubd) ended with exit code 3; its own message says why\n", "in mid-run")
    err = with_box(f"trap 'echo down >&2; exit 0' TERM; echo up >&2; {listens}{ends}", "--", "sh", "-c", "exit 3")
    holds(err, r"^up\nphub: site \d ended with exit code 3; its own message says why\n$")
    err = with_box(f"trap 'echo down >&2; exit 5' TERM; {listens}{ends}", "--", "true")
    check(err == "down\nphub: the box (phubd) ended with exit code 5; its own message says why\n", err)
    err = with_box(f"trap 'echo down >&2; exit 0' TERM; {listens}{ends}", "--set", "log_level=debug", "--", "sh", "-c", "exit 3")
    check(err.endswith("says why\ndown\n"), err)


def run_box_is_silent():
    """run: who does not answer at --box is waited for for five seconds"""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())  # its queue is full, so that a handshake is never over
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):
            peer = stack.enter_context(socket.socket())
            peer.setblocking(False)
            peer.connect_ex(deaf.getsockname())
        time.sleep(0.2)
        began = time.monotonic()
        err = phub("run", "--box", "phub://127.0.0.1:%d/job" % deaf.getsockname()[1], "--", "true", status=1)[1]
        holds(err, "no answer within 5 s; start one there with phubd, or leave --box away")
        check(time.monotonic() - began > 4, f"{time.monotonic() - began:.1f} s")


def who_was_there():
    """explain: sites that were lost, left or came stand among the decisions, each at its step, also as JSON, also of a run without windows"""
    head = {"scout": "run", "version": 1, "algorithm": "local", "policy": "hill", "thetas": [1, 2], "first": 1, "period": 10, "sites": 3,
            "model_bytes": 8}
    moves = [{"scout": "decision", "t": t, "window": i, "theta": theta, "next": 3 - theta, "action": "loosens", "reason": "why", "sites": 2}
             for i, (t, theta) in enumerate(((10, 1), (20, 2), (30, 1)))]
    went = [{"scout": "site", "t": t, "rank": rank, "action": action, "sites": sites, "reason": action + " indeed"}
            for t, rank, action, sites in ((12, 1, "lost", 2), (20, 1, "came", 3), (33, 2, "left", 2))]
    strange = [{"scout": "site"}, {"scout": "site", "t": "x", "rank": 1}, {"scout": "site", "t": 25, "rank": 0}]
    end = {"scout": "end", "t": 40, "theta": 2, "bytes": 8, "sites": 2, "accuracy": 0.5}

    def log(name, *rows):
        (FOLDER / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return FOLDER / name

    path = log("who.jsonl", head, *moves, *went, end)
    out, _ = phub("explain", path)
    check(re.findall(r"^ *(\d+) +[-\d]+ +[-\d]+ +[-\d]+ +(\w+) ", out, re.M) == [("10", "loosens"), ("12", "lost"), ("20", "came"),
                                                                                 ("20", "loosens"), ("30", "loosens"), ("33", "left")], out)
    holds(out, r"site 2; 2 of 3 are there: left indeed\n", r"\nIt ended at step 40 with 2 of 3 sites, theta 2, .*, 50.00 % right")
    check([(line["t"], line["action"]) for line in lines(phub("explain", path, "--json")[0])] ==
          [(10, "loosens"), (12, "lost"), (20, "came"), (20, "loosens"), (30, "loosens"), (33, "left")], "lines of JSON")
    holds(phub("explain", path, "--at", 15)[0],
          r"\n  lost    at step 12 site 1; 2 of 3 are there: lost indeed\n  came    at step 20 site 1; 3 of 3 are there: came indeed\n")
    check(" site 1; " not in phub("explain", path, "--at", 25)[0], "another window's")
    check(lines(phub("compare", "--json", path)[0])[0]["sites"] == 2, "compare --json")
    holds(phub("compare", path)[0], r"\nTake care: who ended with 2 of 3 sites, and what it scored is of these\.\n$")
    check(phub("compare", log("unscored.jsonl", head, *moves, *went, {**end, "accuracy": None}))[0].endswith(
        "\nTake care: unscored ended with 2 of 3 sites.\n"), "of what was not scored")
    one = [{**moves[0], "t": 10, "sites": 1, "pull": 0, "r_all": 1}]
    found = phub("explain", log("one.jsonl", {**head, "policy": "scout+"}, *one, end), "--at", 10)[0]
    check("r = 1.0000" in found and "pull" not in found.split("  seen")[1].split("\n")[0], found)
    holds(phub("explain", FOLDER / "one.jsonl")[0], "; 1 window, theta changed in 1")
    bare = phub("explain", log("bare.jsonl", head, went[0], end))[0]
    check("0 windows" in bare and "AL:" not in bare and "(the mean of sites" not in bare, bare)
    still = log("still.jsonl", head, went[0])
    holds(phub("explain", still)[0], "0 windows, theta changed in 0", r"\n *12 +- +- +- +lost ",
          r"\nThe log ends early, at step 0 with 2 of 3 sites")
    check("; 3 of 3" not in phub("explain", log("strange.jsonl", head, *strange, *moves, end))[0]
          and "nan" not in phub("explain", FOLDER / "strange.jsonl")[0], "strange lines")


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([run_loses_all_at_once, run_hears_its_box, run_box_is_silent, who_was_there],
            None if SKEWED.exists() else f"{SKEWED} is not there (make test-programs)")
