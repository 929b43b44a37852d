#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub scout as people and scripts meet it, on decision logs that real runs of the study wrote: what it says of them, what it
refuses, and what it makes of logs that are broken."""
import functools
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree

import rig
from rig import check, holds

PHUB = rig.BUILD / "phub"
STUDY = rig.BUILD / "tests/bench/skew_study"
SHORT = ["--steps", "160", "--batch", "10", "--train", "1500", "--valid", "500", "--sites", "3", "--skew", "80"]
folder = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(folder.name)


def phub(*words, status=0, given=None, **environment):
    done = subprocess.run([PHUB, "scout", *map(str, words)], input=given, stdin=None if given else subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=rig.DEADLINE_S * 4, env={**rig.QUIET, **environment}, cwd=FOLDER)
    check(done.returncode == status, f"phub scout {words}: exit code {done.returncode}, not {status}: {done.stderr[-1500:]}")
    return done.stdout, done.stderr


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@functools.cache
def log_of(name, *words):
    """The log of a real run."""
    path = FOLDER / f"{name}.jsonl"
    done = subprocess.run([STUDY, *SHORT, *words, "--log", path], capture_output=True, text=True, timeout=rig.DEADLINE_S * 8)
    if "fashion-mnist" in done.stderr:
        raise rig.Skip(done.stderr.strip())
    check(done.returncode == 0, done.stderr)
    return path


def hill():
    return log_of("hill", "--algorithm", "local", "--policy", "hill", "--thetas", "1,2,5,10,20", "--theta", "10", "--period", "20",
                  "--shadow", "1,10,20")


def bsp():
    return log_of("bsp", "--algorithm", "bsp")


def changed(path, name, change):
    """A copy of a log, with its lines as `change` makes them."""
    out = FOLDER / f"{name}.jsonl"
    out.write_text("".join(change(path.read_text().splitlines(True))))
    return out


def compare():
    """compare: sums, savings and the front, as a table and as JSON"""
    ended = lines(hill().read_text())[-1]
    found = {line["log"]: line for line in lines(phub("compare", "--json", hill(), bsp())[0])}
    of = found[str(hill())]
    check(of["bytes"] == ended["bytes"] and of["accuracy"] == ended["accuracy"] and of["ended"], str(of))
    wanted = found[str(bsp())]["bytes"] / (ended["bytes"] + ended["bytes_travel"])
    check(abs(of["saving"] / wanted - 1) < 1e-5 and abs(found[str(bsp())]["saving"] - 1) < 1e-9, f"{of}, wanted {wanted}")
    for line in found.values():
        better = [o for o in found.values() if o["bytes"] + o["bytes_travel"] < line["bytes"] + line["bytes_travel"]
                  and o["accuracy"] >= line["accuracy"]]
        check(line["front"] == (not better), str(found))
    out, _ = phub("compare", hill(), bsp())
    holds(out, "^run +algorithm +policy", r"\nhill +local +hill +160 ", r"\nbsp +bsp +fixed .* 1.0x ")


def explain():
    """explain: each change of theta, and of one window all that was seen and what other thetas have cost"""
    windows = [line for line in lines(hill().read_text()) if line["scout"] == "decision"]
    moves = [w for w in windows if w["theta"] != w["next"]]
    check(moves and len(windows) == 8, f"{len(windows)} windows, {len(moves)} changes: a bad example")
    out, _ = phub("explain", hill())
    holds(out, f"8 windows, theta changed in {len(moves)}", "It ended at step 160")
    for move in moves:
        holds(out, rf"\n *{move['t']} +{move['theta']:g} +{move['next']:g} +{move['action']} ")
    told = lines(phub("explain", hill(), "--json")[0])
    check([w["t"] for w in told] == [m["t"] for m in moves], str(told))
    out, _ = phub("explain", hill(), "--at", "70")
    w = windows[3]
    holds(out, r"^hill, step 80 \(steps 61 to 80, at theta", f"why +{w['reason']}", "3 of 3 sites believed, 1200 samples", "times fewer than BSP",
          r"cost +[\d.e+-]+ = 50 max\(0, ", "<- was here", "not tried", r"r +[\d.]+, the mean of 8 tensors; least in (conv|norm|linear)",
          "shadow +would have sent", r"theta 20: 31\.0 KB")
    told = lines(phub("explain", hill(), "--at", "70", "--json")[0])[0]
    check(told["t"] == 80 and told["reason"] == w["reason"] and any(t["theta"] == w["theta"] for t in told["tried"]), str(told))


def nothing_to_explain():
    """explain: a step that no window has, and a run without windows"""
    holds(phub("explain", hill(), "--at", "161", status=1)[1], "no window has step 161; the last one ends with step 160")
    holds(phub("explain", bsp(), status=1)[1], "no decision in it")
    holds(phub("dry-run", bsp(), status=1)[1], "no decision in it")


def dry_run_of_itself():
    """dry-run: the run's own policy decides what the run did, in each window"""
    for line in lines(phub("dry-run", hill(), "--json")[0]):
        check(line["known"] == "seen" and line["theta"] == line["ran"] and line["next"] == line["ran_next"], str(line))


def dry_run_of_others():
    """dry-run: other parameters go other ways; what they have never seen is said, and bytes come from shadows"""
    told = lines(phub("dry-run", hill(), "--policy", "fixed", "--thetas", "20", "--first", "20", "--json")[0])
    check(all(line["theta"] == 20 and line["next"] == 20 for line in told), str(told))
    check(all(line["known"] == "unknown" and line["AL"] is None for line in told if line["ran"] != 20), str(told))
    check(all(line["shadow"] for line in told if line["ran"] != 20) and sum(line["bytes"] for line in told) == 8 * 30952, str(told))
    out, _ = phub("dry-run", hill(), "--policy", "fixed", "--thetas", "20", "--first", "20")
    holds(out, "fixed instead of hill: theta 20 at the end", "it was never tried", "It would have sent 247.6 KB a site in exchanges; the run sent")
    out, _ = phub("dry-run", hill(), "--policy", "fixed", "--thetas", "7", "--first", "7")
    holds(out, "is not known in 8 windows: the run had no shadow")
    loose = lines(phub("dry-run", hill(), "--sigma", "1", "--json")[0])
    check(loose[0]["action"] == "loosens", str(loose[0]))
    seeds = [phub("dry-run", hill(), "--policy", "annealing", "--seed", seed, "--json")[0] for seed in (1, 1, 2, 3, 4)]
    check(seeds[0] == seeds[1] and len(set(seeds)) > 1, "chance does not come of the seed")


def plot():
    """plot: whole SVG with its panels, and a PNG where there is rsvg-convert, with a word on it where there is none"""
    phub("plot", hill(), bsp(), "--out", "all.svg")
    text = "\n".join(xml.etree.ElementTree.parse(FOLDER / "all.svg").getroot().itertext())
    holds(text, "Theta", "Accuracy lost", "nats", "Bytes against accuracy", "Alignment r of what sites say, per tensor: hill", "linear.weight",
          "Pareto front", "sigma")
    phub("plot", hill(), "--out", "one.svg")
    check("Bytes against accuracy" not in (FOLDER / "one.svg").read_text(), "a front of one run")
    holds(phub("plot", bsp(), "--out", "none.svg", status=1)[1], "nothing to be drawn")
    check(not (FOLDER / "none.svg").exists(), "a picture of nothing")
    holds(phub("plot", hill(), "--out", "none.png", status=1, PATH="/nowhere")[1], "apt install librsvg2-bin")
    if shutil.which("rsvg-convert"):
        phub("plot", hill(), "--out", "one.png")
        check((FOLDER / "one.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", "no PNG")
    check(not list(FOLDER.glob("*.png.*")), "left behind: " + str(list(FOLDER.glob("*.png.*"))))
    holds(phub("plot", hill(), "--out", "/nowhere/x.svg", status=1)[1], "cannot write /nowhere/x.svg")


def names_in_pictures():
    """plot: what a log calls its tensors is text, and no markup"""
    evil = changed(hill(), "e<v>&il", lambda own: [own[0].replace("conv1.weight", "<script>&\\u0001")] + own[1:])
    phub("plot", evil, bsp(), "--out", "evil.svg")
    tree = xml.etree.ElementTree.parse(FOLDER / "evil.svg")
    check(not any("script" in element.tag for element in tree.iter()), "markup from a log")


def cut_off():
    """a log whose last line is not whole is read up to there, and it is said"""
    for cut in (1, 2, 40):
        path = changed(hill(), "cut", lambda own: own[:4] + [own[4][:-cut]])
        out, err = phub("explain", path)
        if cut == 1:  # the newline alone
            check(not err, err)
        else:
            holds(err, "last line is not whole")
        holds(out, f"{4 if cut == 1 else 3} windows", "The log ends at step")
    holds(phub("compare", changed(hill(), "cut", lambda own: own[:4]))[0], r"\ncut .* 60\+ ")


def standard_input():
    """- is standard input"""
    holds(phub("explain", "-", given=hill().read_text())[0], "8 windows")


def broken():
    """what is no log is refused, with the line"""
    made = itertools.count()

    def own(change):
        return changed(hill(), f"broken{next(made)}", change)

    for path, why in (
            (FOLDER / "absent.jsonl", "absent.jsonl: No such file"),
            (own(lambda own: []), "no line ..scout.:.run"),
            (own(lambda own: ["{}\n", "[]\n", "3\n"]), "no line ..scout"),
            (own(lambda own: own[:2] + ["{\n"] + own[2:]), "line 3: "),
            (own(lambda own: [own[0].replace('"version":1', '"version":2')]), "line 1: a log of version 2"),
            (own(lambda own: [own[0].replace('"sites":3', '"sites":null')]), "does not say its sites"),
            (own(lambda own: own[1:]), "line 1: a decision outside of a run"),
            (own(lambda own: own[:1] + own), "line 2: a second run"),
            (own(lambda own: own[:2] + own[1:]), "line 3: step 20 comes after step 20"),
            (own(lambda own: own + own[-1:]), "an end outside"),
            (own(lambda own: own[:1] + [own[1].replace('"t":20', '"t":"x"')]), "line 2: a decision without t"),
            (own(lambda own: own[:1] + [own[1].replace('"theta":10', '"theta":null')]), "line 2: a decision without t, theta")):
        for command in (["compare"], ["explain"], ["dry-run"], ["plot", "--out", "x.svg"]):
            holds(phub(*command, path, status=1)[1], why)


def strange():
    """fields that are missing or of another kind are not known, and nothing falls over"""
    bare = FOLDER / "bare.jsonl"
    bare.write_text('{"scout":"run","version":1,"sites":2,"model_bytes":8,"thetas":[1]}\n{"other":1}\n\n{"scout":"news","t":1}\n'
                    '{"scout":"decision","t":10,"theta":1,"next":1,"AL":"much","r":7,"interval":[1],"shadow":{"a":1},"score":3,"bytes":-5}\n')
    holds(phub("compare", bare)[0], "bare")
    holds(phub("explain", bare, "--at", "3")[0], "the log does not say", "unknown")
    phub("dry-run", bare)
    phub("plot", bare, "--out", "bare.svg")
    for grid in ("[]", str(list(range(65)))):
        bare.write_text('{"scout":"run","version":1,"sites":2,"model_bytes":8,"thetas":%s}\n{"scout":"decision","t":1,"theta":1,"next":1}\n' % grid)
        holds(phub("explain", bare, status=1)[1], "a grid of")


def wrong_words():
    """what cannot be is refused with exit code 2, and says what can"""
    for words, why in (([], "which command"), (["explan"], "did you mean phub scout explain"), (["compare"], "which logs"), (["explain"], "which log"),
                       (["explain", "a", "b"], "one word too many"), (["explain", "a", "--at", "x"], "allowed is"), (["plot", "a"], "picture"),
                       (["plot", "a", "--out", "a.jpg"], "FILE.svg or FILE.png"), (["dry-run"], "which log"),
                       (["dry-run", "a", "--sigma", "-1"], "a number from 0 on"), (["dry-run", "a", "--thetas", "1,,2"], "numbers from 0 on"),
                       (["dry-run", "a", "--sigma", "0x1"], "a number from 0 on"), (["dry-run", "a", "--policy", "hil"], "did you mean hill"),
                       (["dry-run", hill(), "--first", "3"], "none of the thetas"), (["dry-run", hill(), "--sigma", "2"], "outside its limits"),
                       (["dry-run", hill(), "--thetas", "1,1"], "twice")):
        holds(phub(*words, status=2)[1], why)
    for command in ("compare", "explain", "plot", "dry-run"):
        holds(phub(command, "--help")[0], f"usage: phub scout {command}", "Exit codes")


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([compare, explain, nothing_to_explain, dry_run_of_itself, dry_run_of_others, plot, names_in_pictures, cut_off, standard_input,
             broken, strange, wrong_words], None if STUDY.exists() else f"{STUDY} is not there (make test-programs)")
