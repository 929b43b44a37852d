#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub scout as people and scripts meet it, on decision logs that real runs of the study wrote: what it says of them, what it
refuses, and what it makes of logs that are broken."""
import contextlib
import functools
import itertools
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
from scout_rig import FOLDER, PHUB, fill, lines, panel, phub, small_disk

STUDY = rig.BUILD / "tests/bench/skew_study"
SKEWED = rig.BUILD / "tests/system/skewed"
SHORT = ["--steps", "160", "--batch", "10", "--train", "1500", "--valid", "500", "--sites", "3", "--skew", "80"]


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
        check(line["front"] == (not better) and line["oracle"] == (line["policy"] == "fixed"), str(found))
    out, _ = phub("compare", hill(), bsp())
    holds(out, "^run +algorithm +policy", r"\nhill +local +hill +160 ", r"\nbsp +bsp +fixed .* 1.0x .* o\n", " travelled +wire +fewer +theta")
    check("Take care" not in out, out)
    half = changed(hill(), "half", lambda own: own[:5])
    holds(phub("compare", hill(), half)[0], r"\nTake care: these runs differ in steps, and bytes, accuracy")
    other = changed(bsp(), "other", lambda own: [own[0].replace('"sites":3', '"sites":4').replace('"model_bytes":', '"model_bytes":1')] + own[1:])
    holds(phub("compare", bsp(), other)[0], r"\nTake care: these runs differ in sites, the model's size, and")
    zeros = "wire of dense went through shared memory, .*\nphub scout run --set transports=tcp shows what they would carry"
    dense = skewed("dense", "--algorithm", "dgc", "--theta", 0.01, steps=60)
    sent = skewed("wire", "--algorithm", "dgc", "--theta", 0.01, "--set", "transports=tcp", steps=60)
    told = {line["log"]: line for line in lines(phub("compare", "--json", dense, sent)[0])}
    check(told[str(dense)]["bytes_wire"] > 10 * told[str(dense)]["bytes"] and told[str(sent)]["bytes_wire"] < 1.5 * told[str(sent)]["bytes"], str(told))
    holds(phub("compare", dense, sent)[0], zeros)
    holds(phub("compare", dense, dense)[0], zeros.replace("of dense", "of all of these"))
    check("shared memory" not in phub("compare", sent)[0] and json.loads(sent.read_text().splitlines()[0])["transport"] == "tcp", "of tcp")
    sent = skewed("wire", "--algorithm", "local", "--theta", 5, steps=60)
    wire = lines(sent.read_text())[-1]["bytes_wire"]
    check(wire > lines(sent.read_text())[-1]["bytes"], "nothing but exchanges")
    holds(phub("compare", sent)[0], rf"\nwire .* {wire / 1e3:.1f} KB +[\d.]+x ")


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
    holds(out, r"^hill, step 80 \(steps 61 to 80, at theta", f"why +{w['reason']}", "3 of 3 sites believed, 1200 samples", "times fewer bytes than BSP",
          r"points \(between -?\d+\.\d and \d+\.\d\), (above|within) the 5\.0 that are borne",
          r"cost +[\d.e+-]+ = 50 max\(0, ", "<- was here", "not tried", r"r +[\d.]+, over all of 8 tensors; least in (conv|norm|linear)",
          "shadow +would have sent", r"theta 20: 31\.0 KB")
    told = lines(phub("explain", hill(), "--at", "70", "--json")[0])[0]
    check(told["t"] == 80 and told["reason"] == w["reason"] and any(t["theta"] == w["theta"] for t in told["tried"]), str(told))


def explain_falls_back():
    """explain: a window without reports is told, and is no change of theta where that stays"""
    stays = {"theta": 1, "next": 1, "action": "falls back", "AL": None}
    path = changed(hill(), "back", lambda own: own[:1] + [json.dumps({**json.loads(line), **stays}) + "\n" for line in own[1:4]])
    out, _ = phub("explain", path)
    holds(out, r"3 windows, theta changed in 0; in 3 more too few reports came, and it stayed\.", r"\n *20 +1 +1 +falls back ")
    check(len(lines(phub("explain", path, "--json")[0])) == 3, "lines of JSON")


def nothing_to_explain():
    """explain: a step that no window has, and a run without windows"""
    holds(phub("explain", hill(), "--at", "161", status=1)[1], "no window has step 161; --at takes a step of 1 to 160\n$")
    for at in ("-5", "1.5", "", "1000000000000000"):
        holds(phub("explain", hill(), "--at", at, status=2)[1], f"--at {at}: allowed is 0 to 999999999999999;")
    holds(phub("explain", bsp(), status=1)[1], "no decision in it: the run had no scout .--policy makes one., .*; phub scout compare tells what it sent")
    holds(phub("dry-run", bsp(), status=1)[1], "no decision in it")


def dry_run_of_itself():
    """dry-run: the run's own policy decides what the run did, in each window"""
    for line in lines(phub("dry-run", hill(), "--json")[0]):
        check(line["known"] == "seen" and line["theta"] == line["ran"] and line["next"] == line["ran_next"], str(line))


def dry_run_of_others():
    """dry-run: other parameters go other ways; what they have never seen is said, and bytes come from shadows"""
    told = lines(phub("dry-run", hill(), "--policy", "fixed", "--thetas", "20", "--theta", "20", "--json")[0])
    check(all(line["theta"] == 20 and line["next"] == 20 for line in told), str(told))
    check(all(line["known"] == "unknown" and line["AL"] is None for line in told if line["ran"] != 20), str(told))
    check(all(line["shadow"] for line in told if line["ran"] != 20) and sum(line["bytes"] for line in told) == 8 * 30952, str(told))
    out, _ = phub("dry-run", hill(), "--policy", "fixed", "--thetas", "20", "--theta", "20")
    holds(out, "fixed instead of hill: theta 20 at the end", "which was not tried until then", r"It would have sent 247\.6 KB a site in exchanges \(in \d of 8 windows by shadows\), and 0 B of what is tried elsewhere;\nthe run sent [\d.]+ MB, and 247\.6 KB\.")
    out, _ = phub("dry-run", hill(), "--policy", "fixed", "--thetas", "7", "--theta", "7")
    holds(out, "It would have sent 680.9 KB a site in exchanges, and 0 B")  # 22 exchanges in 160 steps
    by_shadow, counted = (sum(line["bytes"] for line in lines(phub("dry-run", log, "--policy", "fixed", "--thetas", "20", "--theta", "20", "--json")[0]))
                          for log in (hill(), changed(hill(), "shadowless", lambda own: [line.replace('"shadow":', '"light":') for line in own])))
    check(by_shadow == counted, f"{by_shadow} bytes by shadows, {counted} counted")
    told = lines(phub("dry-run", hill(), "--thetas", "7,10", "--theta", "10", "--json")[0])
    check(told[0]["next"] == 7 and all((line["next"], line["action"], line["known"]) == (7, None, "unknown") for line in told[1:]), str(told))
    holds(phub("dry-run", hill(), "--thetas", "7,10", "--theta", "10")[0], r"hill again: known until step 40\. It has decided nothing in 7 windows",
          "the run has not tried this theta yet")
    fixed = changed(hill(), "fixed", lambda own: [own[0].replace('"hill"', '"fixed"')] + [
        json.dumps({**json.loads(line), "AL": None, "theta": 10, "next": 10}) + "\n" for line in own[1:]])
    out, _ = phub("explain", fixed, "--at", 60)
    check("no model travels where theta is fixed" in out and "not tried" not in out and "believed" not in out and "\n  cost " not in out, out)
    out, _ = phub("dry-run", fixed, "--policy", "hill", "--theta", "10")
    holds(out, "no model has travelled in the run", "hill instead of fixed: known until step 20", "has decided nothing in 8 windows")
    silent = changed(hill(), "silent", lambda own: own[:1] + [own[1].replace('"AL":', '"was":')] + own[2:])
    check(lines(phub("dry-run", silent, "--json")[0])[0]["action"] == "falls back", "reports that were missing")
    loose = lines(phub("dry-run", hill(), "--sigma", "1", "--json")[0])
    check(loose[0]["action"] == "loosens", str(loose[0]))
    seeds = [phub("dry-run", hill(), "--policy", "annealing", "--seed", seed, "--json")[0] for seed in (1, 1, 2, 3, 4)]
    check(seeds[0] == seeds[1] and len(set(seeds)) > 1, "chance does not come of the seed")


def better():
    """a log of scout+ is explained, compared and drawn; dry-run decides as it did; what a log lacks for it is said"""
    path = log_of("plus", "--algorithm", "local", "--policy", "scout+", "--thetas", "1,2,5,10,20", "--theta", "1", "--period", "20")
    found = [line for line in lines(path.read_text()) if line["scout"] == "decision"]
    check(len(found) == 11 and all(line["reason"] and line["bytes_travel"] == 0 for line in found), str(found))
    check(all(0 < line["r_all"] < 1 and len(line["r"]) == 8 for line in found), str(found))
    holds(phub("explain", path)[0], "sites pull apart", r"\n *step +theta +to +action +r +pull +bytes")
    hopeless = changed(path, "hopeless", lambda own: own[:-3] + [line.replace('"action":"stays"', '"action":"cannot"') for line in own[-3:-1]] + own[-1:])
    check(phub("explain", hopeless)[0].count(" cannot ") == 1, phub("explain", hopeless)[0])
    out, _ = phub("explain", path, "--at", 150)
    holds(out, f"seen +sites align by r = {found[-1]['r_all']:.4f}, and pull apart {found[-1]['pull']:.3g} times", r"theta 1 +r 0\.\d+, sent .*, at step",
          r"r +[\d.]+, over all of 8 tensors")
    check("cost" not in out, out)
    told = lines(phub("explain", path, "--at", 150, "--json")[0])[0]
    check({t["theta"] for t in told["tried"]} == {line["theta"] for line in found} and all(t["r_all"] for t in told["tried"]), str(told))
    check(lines(phub("compare", "--json", path, hill())[0])[0]["bytes_travel"] == 0, "models of scout+ travelled")
    phub("plot", path, "--out", "plus.svg")
    for line in lines(phub("dry-run", path, "--json")[0]):
        check(line["known"] == "seen" and line["next"] == line["ran_next"] and line["r"] > 0, str(line))
    check([line["reason"] for line in lines(phub("dry-run", path, "--json")[0])] == [line["reason"] for line in found], "other reasons")
    eased = changed(path, "eased", lambda own: [own[0].replace('"ease":1,', '"ease":50,')] + own[1:])
    check(phub("dry-run", eased)[0] == phub("dry-run", path, "--ease", "50")[0] != phub("dry-run", path)[0], "how loose theta may be")
    out, _ = phub("dry-run", hill(), "--policy", "scout+")
    holds(out, r"would be +known +r +bytes", r"heard no exchange in 3 windows, .* it measures at theta 1\.", "no losses of the mean model", "sites pull apart")
    untried = changed(path, "untried", lambda own: [re.sub(r'"tried":\d+', '"tried":0', line) for line in own])
    check("no losses of the mean model" in phub("dry-run", untried)[0] and "no losses" not in phub("dry-run", path)[0], "what was tried")
    holds(phub("dry-run", hill(), "--policy", "scout+", "--thetas", "2,5", status=2)[1], "a grid of local begins with 1")
    check(phub("dry-run", hill(), "--policy", "fixed", "--theta", ".5e1")[0] == phub("dry-run", hill(), "--policy", "fixed", "--theta", "5")[0], "no zero before the point")
    old = changed(path, "old", lambda own: [line.replace('"seen":', '"unseen":') for line in own])
    holds(phub("dry-run", old, status=1)[1], "decides by what exchanges show, and this log does not have it", "take another --policy")
    dgc = changed(path, "dgc", lambda own: [own[0].replace('"local"', '"dgc"')] + own[1:])
    holds(phub("dry-run", dgc, status=2)[1], "does not know how far thetas of dgc")
    for policy in ("hill", "stochastic", "annealing"):
        holds(phub("dry-run", dgc, "--policy", policy, "--thetas", "0.1,0.01", status=2)[1], f"{policy} goes by what models lose at other sites, and those of dgc")
    phub("dry-run", dgc, "--policy", "fixed", "--thetas", "0.1,0.01")
    phub("dry-run", path, "--policy", "fixed")


def skewed(name, *words, steps=300, sites=2):
    """The log of a run of sites of libphub."""
    path = FOLDER / f"{name}.jsonl"
    phub("run", "--sites", sites, *words, "--period", 10, "--out", path, "--", "sh", "-c",
         f'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE steps={steps} >/dev/null', SKEWED)
    return path


def prices():
    """what talking has cost, in the unit that was asked for, is shown of each policy, scout+ too"""
    money = ["--unit", "money", "--price", "2000"]
    path = skewed("money", "--algorithm", "local", "--policy", "scout+", "--thetas", "1,2,5,10", *money)
    ended, found = lines(path.read_text())[-1], [line for line in lines(path.read_text()) if line["scout"] == "decision"]
    check(ended["t"] == found[-1]["t"] == 300 and all(line["unit"] == "money" and line["cost"] is None for line in found), str(found[-1]))
    spent = ended["bytes"] * 2e-6
    line = lines(phub("compare", "--json", path)[0])[0]
    check(line["unit"] == "money" and abs(line["spent"] / spent - 1) < 1e-5, f"{line}, wanted {spent}")
    holds(phub("compare", path, hill())[0], r"fewer +spent +theta", rf"\nmoney .* {spent:.4g} money ", r"\nhill .*x +- ", r"\nspent: by a site on bytes, travelled and within")
    out, _ = phub("explain", path)
    holds(out, r"pull +spent +reason", rf", {spent:.4g} money spent\.")
    first, own = found[0]["bytes"] * 2e-6, sum(line["bytes"] for line in found[:5]) * 2e-6
    holds(phub("explain", path, "--at", 45)[0], rf"\n  cost +{found[4]['bytes'] * 2e-6:.4g} money a site in exchanges of this window, {own:.4g} money since the start\n")
    holds(phub("dry-run", path)[0], r"r +spent +action", rf"\n +10 .* {first:.4g} money +stays", f"That would have cost {spent:.4g} money")
    seconds = sum(line["spent"] for line in lines(phub("dry-run", path, "--unit", "seconds", "--rate", "1000", "--latency", "1", "--json")[0]))
    check(abs(seconds / sum(line["bytes"] / 1000 + 10 / line["theta"] for line in found) - 1) < 1e-4, f"{seconds} seconds")
    check(all(line["spent"] is None for line in lines(phub("dry-run", hill(), "--json")[0])), "spent of a cost in bytes")
    path = skewed("worth", "--algorithm", "local", "--policy", "scout+", "--thetas", "1,2,5,10", "--worth", "7", *money)
    own = path.read_text().splitlines()
    check(json.loads(own[0])["worth"] == 7, own[0])
    idle = "what a unit of loss is worth .7. has decided nothing: in these [0-9]+ windows no probe has shown yet what talking more saves"
    holds(phub("explain", path)[0], rf"\nTake care: {idle}")
    window = json.loads(own[6]) | {"gain": 0.5, "interval": [0.4, 0.6], "extra": 1.25}
    path.write_text("\n".join([*own[:6], json.dumps(window), *own[7:]]) + "\n")
    holds(phub("explain", path, "--at", window["t"])[0], r"would save a loss of 0\.5000 \(between 0\.4000 and 0\.6000\), which is worth 3\.5 money, and costs 1\.25 money more")
    check("decided nothing" not in phub("explain", path)[0], "a probe has")
    for word in ("worth", "gain"):
        words = ["--sites", 2, "--policy", "scout+", "--algorithm", "local", "--thetas", "1,2,5", f"--{word}", 1, "--out", "idle.jsonl", "--", "sh", "-c"]
        err = phub("run", *words, 'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE steps=120 >/dev/null', SKEWED)[1]
        holds(err, rf"--{word} has decided nothing in these \d windows: no probe has shown yet")
    check("is worth" not in phub("explain", changed(path, "worthless", lambda own: [own[0].replace('"worth":7', '"worth":0')] + own[1:]), "--at", window["t"])[0], "worth nothing")
    path = skewed("latency", "--algorithm", "gaia", "--policy", "scout+", "--thetas", "0,0.05,0.1,0.2", "--unit", "seconds", "--rate", "1e12", "--latency", "1")
    found = [line for line in lines(path.read_text()) if line["scout"] == "decision"]
    check(all(line["next"] == 0 for line in found) and "no looser one is cheaper by 3 %, as theta does not change 10 seconds of a window's cost" in found[-1]["reason"], str(found[-1]))
    check(lines(phub("dry-run", path, "--unit", "bytes", "--json")[0])[-1]["theta"] > 0, "of bytes a looser one is cheaper")
    path = skewed("seconds", "--algorithm", "local", "--policy", "hill", "--thetas", "1,2,5", "--unit", "seconds", "--rate", "1MB", "--latency", "0.5")
    holds(phub("explain", path, "--at", 10)[0], r"\n  cost +[\d.]+ = 50 max.*\n +5.052 s a site in exchanges of this window, 1.01 s in what travelled, 6.062 s since the start\n")


def shadows_of_gaia():
    """explain, dry-run: what Gaia would have sent at another threshold is about so much, and said to be; of local SGD it is exact"""
    path = skewed("gaia", "--algorithm", "gaia", "--policy", "fixed", "--thetas", "0,0.1,0.3", "--theta", "0.1", "--shadow", "0.1,0.3", steps=60)
    holds(phub("explain", path, "--at", 30)[0], r"at theta 0.1: about [\d.]+ KB; theta 0.3: about [\d.]+ KB\n")
    out, _ = phub("dry-run", path, "--theta", "0.3")
    holds(out, r" about [\d.]+ KB \(shadow\) ", r"It would have sent about [\d.]+ KB a site in exchanges \(in 6 of 6 windows by shadows\), and 0 B of what is tried elsewhere;\nthe run sent", "\nabout: what Gaia sends follows of")
    check("about" not in phub("dry-run", path)[0], "an estimate of what was seen")
    check([line["about"] for line in lines(phub("dry-run", path, "--theta", "0.3", "--json")[0])] == [True] * 6, "lines of JSON")
    check("about" not in phub("dry-run", hill(), "--policy", "fixed", "--thetas", "20", "--theta", "20")[0] + phub("explain", hill(), "--at", 70)[0], "local SGD")


def plot():
    """plot: whole SVG with its panels, and a PNG where there is rsvg-convert, with a word on it where there is none"""
    phub("plot", hill(), bsp(), "--out", "all.svg")
    text = "\n".join(xml.etree.ElementTree.parse(FOLDER / "all.svg").getroot().itertext())
    holds(text, "Theta", "Accuracy lost", "nats", "Bytes against accuracy", "Alignment r of what sites say, per tensor: hill", "linear.weight",
          "Pareto front", "sigma")
    near = changed(hill(), "near", lambda own: own[:-1] + [json.dumps({**json.loads(own[-1]), "bytes": json.loads(own[-1])["bytes"] + 50000}) + "\n"])
    phub("plot", hill(), near, "--out", "near.svg")
    check(len(re.findall(r">[\d.]+ [KM]i?B<", (FOLDER / "near.svg").read_text())) >= 2, "an axis without numbers")
    phub("plot", hill(), "--out", "one.svg")
    check("Bytes against accuracy" not in (FOLDER / "one.svg").read_text(), "a front of one run")
    holds(phub("plot", bsp(), "--out", "none.svg", status=1)[1], "nothing to be drawn: .*; take the log of a run with a scout")
    check(not (FOLDER / "none.svg").exists(), "a picture of nothing")
    holds(phub("plot", hill(), "--out", "none.png", status=1, PATH="/nowhere")[1], "apt install librsvg2-bin")
    if shutil.which("rsvg-convert"):
        phub("plot", hill(), "--out", "one.png")
        check((FOLDER / "one.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", "no PNG")
    check(not list(FOLDER.glob("*.png.*")), "left behind: " + str(list(FOLDER.glob("*.png.*"))))
    holds(phub("plot", hill(), "--out", "/nowhere/x.svg", status=1)[1], "cannot write /nowhere/x.svg")


def legends():
    """plot: a legend names what is drawn, and nothing else"""
    plus = skewed("plus-sites", "--algorithm", "local", "--policy", "scout+", "--thetas", "1,2,5")
    climb = skewed("climb", "--algorithm", "local", "--policy", "hill", "--thetas", "1,2,5")
    phub("plot", plus, climb, "--out", "legend.svg")
    check({"plus-sites", "climb"} <= set(panel("legend.svg", "Theta")[0]), "Theta")
    lost = panel("legend.svg", "Accuracy lost")[0]
    check("climb" in lost and "plus-sites" not in lost and "sigma: what is borne" in lost, str(lost))
    losses = panel("legend.svg", "Loss")[0]
    check("in training, at sites" in losses and "averaged model, held out" not in losses, str(losses))
    scores = changed(climb, "scores", lambda own: [own[0]] + [json.dumps({**json.loads(line), "train_loss": None, "score": {"accuracy": 0.5, "loss": 1.5}}) + "\n" for line in own[1:2]])
    phub("plot", scores, "--out", "legend.svg")
    losses = panel("legend.svg", "Loss")[0]
    check("in training, at sites" not in losses and "averaged model, held out" in losses, str(losses))
    check((FOLDER / "legend.svg").read_text().count('<circle') == 3, "a score of one window, and an AL, are dots, and the former has one in the legend")
    worse = changed(hill(), "worse", lambda own: own[:-1] + [json.dumps({**json.loads(own[-1]), "bytes": 1e9, "accuracy": 0.1}) + "\n"])
    phub("plot", hill(), worse, "--out", "legend.svg")
    check("Pareto front of these" not in panel("legend.svg", "Bytes against")[0], "a front of one point")
    cheap = changed(bsp(), "cheap", lambda own: own[:-1] + [json.dumps({**json.loads(own[-1]), "bytes": 1e3, "accuracy": 0.1}) + "\n"])
    phub("plot", hill(), bsp(), cheap, "--out", "legend.svg")
    front = panel("legend.svg", "Bytes against")[0]
    check("oracle's Pareto front" in front and "Pareto front of these" not in front, str(front))


def cut_off():
    """a log whose last line is not whole is read up to there, and it is said"""
    for cut in (1, 2, 40):
        path = changed(hill(), "cut", lambda own: own[:4] + [own[4][:-cut]])
        out, err = phub("explain", path)
        if cut == 1:  # the newline alone
            check(not err, err)
        else:
            holds(err, "last line is not whole")
        holds(out, f"{4 if cut == 1 else 3} windows", "The log ends early, at step")
    holds(phub("compare", changed(hill(), "cut", lambda own: own[:4]))[0], r"\ncut .* 60\+ ")


def gone_on():
    """a log whose writer was lost and came again is one run: bytes are those of its windows, and it is said that some are missing"""
    again = changed(hill(), "again", lambda own: own[:4] + own[:1] + [line.replace('"bytes":', '"bytes":1', 1) if '"end"' in line else line for line in own[5:]])
    windows = [line for line in lines(again.read_text()) if line["scout"] == "decision"]
    out, err = phub("compare", "--json", again)
    check(lines(out)[0]["bytes"] == sum(line["bytes"] for line in windows) and lines(out)[0]["seconds"] is None and lines(out)[0]["accuracy"], out)
    holds(err, "came again: windows in between are missing")
    holds(phub("explain", again)[0], "7 windows")
    out, _ = phub("explain", again, "--at", 160)
    check("since the start" in out, out)


def standard_input():
    """- is standard input"""
    holds(phub("explain", "-", given=hill().read_text())[0], "8 windows")
    for command in (["compare"], ["plot", "--out", "twice.svg"]):
        holds(phub(*command, "-", "-", given=hill().read_text(), status=1)[1], "standard input: it is empty, or was read to its end before")


def broken():
    """what is no log is refused, with the line"""
    made = itertools.count()

    def own(change):
        return changed(hill(), f"broken{next(made)}", change)

    for path, why in (
            (FOLDER / "absent.jsonl", "absent.jsonl: No such file"),
            (own(lambda own: []), r"broken\d+.jsonl: it is empty: a run has not begun to write it\n$"),
            (own(lambda own: ["{}\n", "[]\n", "3\n"]), "no line ..scout.:.run., ....: it is no decision log of phub scout"),
            (own(lambda own: [own[0][:40]]), "its only line is no JSON, or not whole: it is no decision log of phub scout, or one that was broken off as it began"),
            (own(lambda own: ["hello, world\n"]), "its only line is no JSON, or not whole"),
            (own(lambda own: ["hello\n", "world\n"]), "line 1: no JSON .*: it is no decision log of phub scout, or its first line, .*, is damaged"),
            (FOLDER, ": Is a directory"),
            (own(lambda own: own[:2] + ["{\n"] + own[2:]), "line 3: no JSON \(.*\): the file is damaged there; a copy without that line \(sed 3d\) can be read, and where it was a window, that it is missing is told\n$"),
            (own(lambda own: [own[0].replace('"version":1', '"version":2')]), "line 1: a log of version 2"),
            (own(lambda own: [own[0].replace('"sites":3', '"sites":null')]), "does not say its sites"),
            (own(lambda own: own[1:]), "line 1: a decision outside of a run, whose first line, .*, is missing: without it nothing can be read"),
            (own(lambda own: own[:1] + [own[0].replace('"sites":3', '"sites":4')] + own[1:]), "line 2: a second run"),
            (own(lambda own: own[:2] + ["{\n", own[0].replace('"sites":3', '"sites":4')] + own[2:]), "line 4: a second run"),
            (own(lambda own: own[:2] + ["{\n", "x" * (16 << 20) + "\n"] + own[2:]), r"line 4: 16777217 bytes; .*\(sed 4d\)"),
            (own(lambda own: own + own[:1]), "a second run begins; a log is of one: make that line the first of a file of its own"),
            (own(lambda own: own[:2] + own[1:]), "line 3: step 20 comes after step 20: it is of another run, or there twice; a copy without that line .sed 3d. can be read"),
            (own(lambda own: own + own[-1:]), "an end outside of a run, behind its last line: remove what does not belong"),
            (own(lambda own: own[:1] + [own[1].replace('"t":20', '"t":"x"')]), "line 2: a decision without t, theta or next; a copy without that line .sed 2d. can be read"),
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
        holds(phub("explain", bare, status=1)[1], r"its first line has a grid of \d+ thetas .*: take a log as libphub wrote it")
    bare.write_text('{"scout":"run","version":1,"sites":2,"model_bytes":8,"thetas":[1],"period":-5}\n')
    holds(phub("explain", bare, status=1)[1], "its first line has period -5, which no run can have: take a log")


def wrong_words():
    """what cannot be is refused with exit code 2, and says what can"""
    for words, why in (([], "which command"), (["explan"], "did you mean phub scout explain"), (["compare"], "which logs"), (["explain"], "which log"),
                       (["explain", "a", "b"], "one word too many"), (["explain", "a", "--at", "x"], "allowed is"), (["plot", "a"], "picture"),
                       (["plot", "a", "--out", "a.jpg"], "FILE.svg or FILE.png"), (["dry-run"], "which log"),
                       (["dry-run", "a", "--sigma", "-1"], "a number from 0 to 1"), (["dry-run", "a", "--gain", "-1"], "a number from 0 on"), (["dry-run", "a", "--thetas", "1,,2"], "numbers from 0 on"),
                       (["dry-run", "a", "--sigma", "0x1"], "a number from 0 to 1"), (["dry-run", "a", "--policy", "hil"], "did you mean hill"),
                       (["dry-run", hill(), "--theta", "3"], "none of the thetas"), (["dry-run", hill(), "--sigma", "2"], "from 0 to 1"), (["dry-run", hill(), "--thetas", "5,1"], "of local the smallest: 1,5"), (["dry-run", hill(), "--first", "1"], "unknown option --first"),
                       (["dry-run", hill(), "--thetas", "1,1"], "twice")):
        holds(phub(*words, status=2)[1], why)
    for command in ("run", "compare", "explain", "plot", "dry-run", "advise"):
        holds(phub(command, "--help")[0], f"usage: phub scout {command}", "Exit codes")


# ---- run ----


def run_sites():
    """run: processes with ranks, a box of their own, and what was given in their environment; then what came of it"""
    script = """echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $PHUB_URL"; echo "to stderr" >&2; printf 'no newline'
                env | grep ^PHUB_SCOUT_ | sort >env$RANK; [ $RANK != 0 ] || cp "$0" "$PHUB_SCOUT_LOG" """
    (FOLDER / "out.jsonl").write_text('{"scout":"run","stale":1}\n')
    out, err = phub("run", "--sites", 3, "--policy", "hill", "--thetas", "1,2,20", "--theta", "2", "--sigma", "0.02", "--lambda-loss", "20", "--lambda-bytes", "0.5", "--trim", "0.2", "--seed", 7,
                    "--period", 50, "--unit", "seconds", "--rate", "1e8", "--latency", "0.02", "--shadow", "1,4", "--algorithm", "local", "--out", "out.jsonl", "--", "sh", "-c", script, hill())
    for k in range(3):
        holds(out, rf"(^|\n)\[{k}\] {k} of 3, {k} of 3, phub://127.0.0.1:\d+/scout\n", rf"\n\[{k}\] no newline\n")
        holds(err, rf"\[{k}\] to stderr")
        check((FOLDER / f"env{k}").read_text().split("\n")[:-1] == [
            "PHUB_SCOUT_ALGORITHM=local", "PHUB_SCOUT_LAMBDA_BYTES=0.5", "PHUB_SCOUT_LAMBDA_LOSS=20", "PHUB_SCOUT_LATENCY=0.02", f"PHUB_SCOUT_LOG={FOLDER}/out.jsonl", "PHUB_SCOUT_PERIOD=50", "PHUB_SCOUT_POLICY=hill",
            "PHUB_SCOUT_RATE=100000000", "PHUB_SCOUT_REPRODUCIBLE=1", "PHUB_SCOUT_SEED=7", "PHUB_SCOUT_SHADOW=1,4", "PHUB_SCOUT_SIGMA=0.02", "PHUB_SCOUT_THETA=2",
            "PHUB_SCOUT_THETAS=1,2,20", "PHUB_SCOUT_TRIM=0.2", "PHUB_SCOUT_UNIT=seconds"], (FOLDER / f"env{k}").read_text())
    holds(out, r"\nout +local +hill +160 ")
    with somebody() as address:
        out, _ = phub("run", "--sites", 1, "--box", f"phub://{address}/job", "--out", "out.jsonl", "--json", "--", "sh", "-c",
                      'echo $PHUB_URL; env | grep -c ^PHUB_SCOUT_; cp "$0" "$PHUB_SCOUT_LOG"', hill())
        check(out.startswith(f"[0] phub://{address}/job\n[0] 2\n") and json.loads(out.splitlines()[-1])["ended"], out)
        out, _ = phub("run", "--sites", 1, "--box", f"phub://127.0.0.1:{rig.free_port()},{address}/job", "--worth", "0.1", "--policy", "scout+", "--price", "3",
                      "--unit", "money", "--out", "out.jsonl", "--", "sh", "-c", 'env | grep ^PHUB_SCOUT_ | sort; cp "$0" "$PHUB_SCOUT_LOG"', hill())
        check(out.startswith("[0] PHUB_SCOUT_LOG="), out)
        holds(out, "PHUB_SCOUT_POLICY=scout\\+", "PHUB_SCOUT_PRICE=3\n", "PHUB_SCOUT_UNIT=money", "PHUB_SCOUT_WORTH=0.1\n")
        out, _ = phub("run", "--sites", 1, "--box", f"phub://{address}/job", "--gain", "0.1", "--ease", "1.5", "--policy", "scout+", "--out", "out.jsonl", "--", "sh", "-c", 'env | grep ^PHUB_SCOUT_ | sort; cp "$0" "$PHUB_SCOUT_LOG"', hill())
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
    check(sum(row.count("x") for row in rows) == 20000 and all(len(row) <= 4096 + 4 for row in rows) and rows[-1] == "[0] ", str(list(map(len, rows))))


def run_that_fails():
    """run: when one site fails all are ended, with what they have started, and it is said which and why"""
    began = time.monotonic()
    _, err = phub("run", "--sites", 3, "--", "sh", "-c", "echo $$ >pid$RANK; [ $RANK = 1 ] && sleep 0.3 && exit 3; sleep 97 & wait", status=1)
    holds(err, "phub: site 1 ended with exit code 3")
    check(time.monotonic() - began < 20, "waited for the others")
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
    _, err = phub("run", "--sites", 2, "--out", "out.jsonl", "--", "sh", "-c", 'echo same >&2; sleep 0.8; echo same >&2; cp "$0" "$PHUB_SCOUT_LOG.$RANK"; '
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
    process = subprocess.Popen([PHUB, "scout", "run", *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=rig.QUIET,
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
          r"\rstep 40, theta \d+, [\d.-]+ points lost elsewhere, [\d.]+ times fewer bytes than BSP, 2\.0 MB within in this window\x1b\[K", r"\r\x1b\[K\[0\] done\r\n")


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
    """run: whoever interrupts it twice does not wait for sites that do not heed it"""
    process = subprocess.Popen([PHUB, "scout", "run", "--sites", "1", "--", "sh", "-c", "trap '' TERM; echo here; while :; do sleep 1; done"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=rig.QUIET, cwd=FOLDER)
    check(process.stdout.readline().endswith("here\n"), "no site")
    process.send_signal(signal.SIGINT)
    holds(process.stderr.readline(), "interrupted")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=rig.DEADLINE_S)
    check(process.returncode == 130 and time.monotonic() - began < 2.5, f"{process.returncode}, {time.monotonic() - began:.1f} s")


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
            ([*grid, "--", "/nowhere/train"], 1, "cannot run /nowhere/train: No such file"), ([*grid, "--", "nowhere-train"], 1, "not in PATH"),
            (["--phubd", "/nowhere/phubd", "--", "true"], 1, "could not run /nowhere/phubd"),
            (["--out", "/nowhere/x.jsonl", "--", "true"], 1, "cannot write /nowhere/x.jsonl: /nowhere/: No such file"),
            (["--out", "", "--", "true"], 1, "needs a name"), (["--out", "script", "--", "true"], 1, "what is there is no decision log"),
            (["--out", "locked", "--", "true"], 1, "no regular file"),
            (["--box", f"phub://{dead}/job", "--", "true"], 1, f"no box at phub://{dead}/job: Connection refused; start one there with phubd"),
            (["--box", "phub://no.such.host.invalid/job", "--", "true"], 1, "no box at phub://no.such.host.invalid/job: "),
            (["--box", "phub://h", "--", "true"], 1, "use phub://host"),
            (["--policy", "hill", "--thetas", "10,5,2,1", "--", "true"], 2, "the tightest, of local the smallest: 1,2,5,10; see"),
            (["--algorithm", "dgc", "--policy", "hill", "--thetas", "0.001,0.01", "--", "true"], 2, "of dgc the largest: 0.01,0.001"),
            (["--algorithm", "gaia", "--policy", "scout+", "--thetas", "0.1,0.2", "--", "true"], 2, "a grid of gaia begins with 0"),
            (["--algorithm", "dgc", "--policy", "scout+", "--thetas", "1,0.1", "--", "true"], 2, "does not know how far thetas of dgc"),
            (["--algorithm", "dgc", "--policy", "annealing", "--thetas", "0.1,0.01", "--", "true"], 2, "annealing goes by what models lose at other sites"),
            (["--policy", "scout+", "--thetas", "2,5", "--", "true"], 2, "a grid of local begins with 1"),
            (["--algorithm", "dgc", "--policy", "scout+", "--", "true"], 2, "does not know how far thetas of dgc"),
            (["--unit", "seconds", "--", "true"], 2, "--unit seconds wants --rate"), (["--unit", "money", "--price", "0", "--", "true"], 2, "--unit money wants --price"),
            (["--unit", "seconds", "--rate", "1Mbit", "--", "true"], 2, "--rate 1Mbit: allowed are bytes, like"), (["--rate", "-1MB", "--", "true"], 2, "--rate -1MB: allowed are"),
            (["--algorithm", "local", *grid, "--shadow", "0.5", "--", "true"], 2, "shadow: local cannot have a theta of 0.5; allowed: a whole number of steps, 1 to"),
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
    phub("run", "--sites", 1, "--algorithm", "gaia", "--policy", "hill", "--thetas", "0.05,0.1", "--out", kept, "--", "sh", "-c", 'cp "$0" "$PHUB_SCOUT_LOG"', hill())
    phub("run", "--sites", 1, "--policy", "hill", "--thetas", "0.05,0.1", "--out", kept, "--", "sh", "-c", 'cp "$0" "$PHUB_SCOUT_LOG"', hill())
    holds(phub("run", "--out", "x.jsonl", "--", "true", PHUB_SCOUT_SIGMA="2", status=2)[1], "PHUB_SCOUT_SIGMA='2'; allowed: 0 to 1")


def run_keeps_the_log_before():
    """run: where sites fail before they have a log, the one of a run before is there again; one that is written takes its place, and that one stays beside it"""
    kept, before = FOLDER / "again.jsonl", FOLDER / "again.jsonl.before"
    for script, status in (("exit 3", 1), ("true", 1), (': >"$PHUB_SCOUT_LOG"; exit 3', 1), ('cp "$0" "$PHUB_SCOUT_LOG"; exit 3', 1), ('cp "$0" "$PHUB_SCOUT_LOG"', 0)):
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
    train = ["--sites", 2, "--policy", "hill", "--thetas", "1,2,5,10", "--theta", 5, "--period", 10, "--out", there / "run.jsonl", "--", "sh", "-c",
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
        check(4096 < len(cut) < len(good) and not cut.endswith("\n") and (seen / "run.jsonl.before").read_text() == good, f"{len(cut)} bytes, ...{cut[-200:]}")
        step = json.loads(cut.splitlines()[-2])["t"]
        holds(err, f"run.jsonl could not be written beyond step {step}: No space left on device\n", "the log of the run before is .*run.jsonl.before\n$")
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
    """run: with --lost shrink others go on without one that is lost, whatever the program says; without rank 0 the next one goes on with the log, where it can; nobody is left: it has failed"""
    def lose(dies, status=0, lost="shrink", log=":"):
        script = (f'[ $RANK = 0 ] || {log}; [ $RANK -lt {dies[0]} ] || [ $RANK -ge {dies[1]} ] || die=60; exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm=local thetas=1,2,5 '
                  'period=10 lazy_ms=2 steps=120 die_at=${die:-0}')
        (FOLDER / "lost.jsonl").unlink(missing_ok=True)  # one that is there would be spoken of, where this one was cut off
        return phub("run", "--sites", 3, "--lost", lost, "--out", "lost.jsonl", "--", "sh", "-c", script, SKEWED, status=status)

    out, err = lose((1, 2))
    holds(err, "phub: site 1 was killed by signal 9 .Killed.; the others go on\n", r" warn +job 'scout'.* was lost: .*\. The job goes on with 2 of 3\n")
    ends = [json.loads(line.split(" ", 1)[1]) for line in out.splitlines() if '"event":"end"' in line]
    check(len(ends) == 2 and all(end["rc"] == 0 and end["steps"] == 120 and end["sites"] == 2 for end in ends), str(ends))
    told = lines((FOLDER / "lost.jsonl").read_text())
    check(told[-1]["scout"] == "end" and [line["sites"] for line in told[1:-1]][-1] == 2, str(told[-2:]))
    gone, = (line for line in told if line["scout"] == "site")
    check((gone["rank"], gone["action"], gone["sites"], told[-1]["sites"]) == (1, "lost", 2, 2) and 60 < gone["t"] <= 65, str(gone))
    holds(out, "Take care: lost ended with 2 of 3 sites, and what it scored is of these")
    holds(phub("explain", "lost.jsonl")[0], rf"\n *{gone['t']} +- +- +lost +- +- +- +site 1; 2 of 3 are there: the box has lost it: its control session", r"\nIt ended at step 120 with 2 of 3 sites, theta ")
    holds(phub("explain", "lost.jsonl", "--at", gone["t"])[0], rf"\n  lost    at step {gone['t']} site 1; 2 of 3 are there: ", "0.500 .1/K. what they have by chance")
    out, err = lose((0, 1))
    holds(err, "phub: site 0 was killed by signal 9 .Killed.; the others go on\n")
    told = lines((FOLDER / "lost.jsonl").read_text())
    check([line["t"] for line in told if line["scout"] == "decision"] == list(range(10, 121, 10)) and told[-1]["rank"] == 1, str(told))
    holds(out, "Take care: lost ended with 2 of 3 sites")
    holds(phub("explain", "lost.jsonl")[0], r"\n *\d+ +- +- +writes .* site 1; 2 of 3 are there: site 0, which wrote the log, is there no more: this site goes on with it\n", "\nIt ended at step 120 with 2 of 3")
    _, err = lose((0, 1), status=1, log="unset PHUB_SCOUT_LOG")
    holds(err, "phub: site 0 was killed by signal 9 .Killed.; the others go on\n",
          r"phub: site 0, which wrote the log, was lost, and no other has gone on with it: lost.jsonl ends early, at step [56]0, and does not tell how the 2 others went on to their end; begin again for a log of the whole run\n$")
    holds(phub("explain", "lost.jsonl")[0], "The log ends early, at step .*\nTake care: it has no last line: .* who wrote it was lost, and no other site has gone on")
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
    cases = [("scout+", "--theta", "1", "fixed, hill, stochastic and annealing"), ("replay", "--theta", "1", "fixed, hill, stochastic and annealing"),
             *((policy, name, "0.5", most) for policy in ("fixed", "scout+") for name in ("--sigma", "--lambda-loss", "--lambda-bytes")),
             *((policy, name, "0.5", "scout+") for policy in ("fixed", "replay", "hill", "stochastic", "annealing") for name in ("--gain", "--worth", "--ease"))]
    for command in (["run"], ["advise", "--listen", "127.0.0.1:0", "--sites", "1", "--model-bytes", "1"], ["dry-run", hill()]):
        tail = ["--", "true"] if command[0] == "run" else []
        for policy, name, value, others in cases:
            err = phub(*command, "--policy", policy, "--thetas", "1,2", name, value, *tail, status=2)[1]
            holds(err, rf"{name} is of {others}; {policy} does not look at it".replace("+", r"\+"))
        for name in ("--gain", "--ease"):
            holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", name, "0", *tail, status=2)[1], f"{name} 0: allowed is a number above 0")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--gain", "1", "--worth", "2", *tail, status=2)[1], "--gain and --worth: the latter holds instead of the former; give one")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--sigma", "0.1", *tail, status=2)[1], r"scout\+ does not look at it: the loss that it bears is --gain")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--worth", "-2", *tail, status=2)[1], "--worth -2: allowed (is a number from 0 on|are bytes)")
        holds(phub(*command, "--policy", "scout+", "--thetas", "1,2", "--worth", "0", *tail, status=2)[1], "--worth 0: allowed is a number above 0; without it --gain holds")
        if command[0] != "dry-run":
            holds(phub(*command, "--thetas", "1,2", "--trim", "0.5", *tail, status=2)[1], "--trim 0.5: allowed is a number from 0 to below 0.5")
        holds(phub(*command, "--sigma", "1.5", *tail, status=2)[1], "--sigma 1.5: allowed is a number from 0 to 1")
        if command[0] != "advise":
            for unit, name in (("bytes", "--rate"), ("money", "--latency"), ("seconds", "--price")):
                holds(phub(*command, "--unit", unit, name, "1", *tail, status=2)[1], f"{name} is of --unit (seconds|money), and costs are in {unit}")
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
        process = subprocess.Popen([PHUB, "scout", "run", "--sites", "1", "--period", "50", "--shadow", "1", "--seed", "3", "--unit", "bytes", "--out", "idle.jsonl", "--", "sh", "-c",
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
        out, _ = phub("run", "--sites", 4, "--policy", "scout+", "--algorithm", "local", "--thetas", "1,2,5,10", "--seed", 3, "--set", f"transports={transport}", "--out", "repeats.jsonl",
                      "--", "sh", "-c", 'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE steps=400 reproducible=0', SKEWED)
        decided = [{**line, "bytes_wire": 0, "seconds": 0, "transport": "", "id": 0} for line in lines((FOLDER / "repeats.jsonl").read_text())]
        return sorted(re.findall('"event":"end".*"hash":"([0-9a-f]*)"', out)), decided

    found = [ends(transport) for transport in ("tcp", "tcp", "shm", "tcp")]
    check(len(found[0][0]) == 4 and all(one == found[0] for one in found), str([one[0] for one in found]))
    out, _ = phub("run", "--sites", 1, "--", "sh", "-c", 'env | grep REPRODUCIBLE; cp "$0" "$PHUB_SCOUT_LOG"', hill(), PHUB_SCOUT_REPRODUCIBLE="0")
    check(out.startswith("[0] PHUB_SCOUT_REPRODUCIBLE=0\n"), out)
    holds(phub("run", "--", "true", PHUB_SCOUT_REPRODUCIBLE="2", status=2)[1], "PHUB_SCOUT_REPRODUCIBLE='2'; allowed: 0 to 1")


def run_wrong_words():
    """run: what cannot be is refused"""
    for words, why in (([], "stands behind --"), (["--sites", "0", "--", "x"], "allowed is 1 to 64"), (["--sites", "65", "--", "x"], "1 to 64"),
                       (["--box", "host", "--", "x"], "a URL like phub://"), (["--box", "phub://a/b", "--set", "cores=1", "--", "x"], "another one"),
                       (["--job", "a/b", "--", "x"], "allowed are letters"), (["--set", "cores", "--", "x"], "KEY=VALUE"),
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
    check(told[0]["algorithm"] == "local" and told[0]["policy"] == "hill" and told[0]["first"] == 5 and told[0]["shadow"] == [1, 2, 5, 10] and told[0]["trim"] == 0.34, str(told[0]))
    decisions = [line for line in told if line["scout"] == "decision"]
    check(len(decisions) == ends[0]["windows"] and len({d["theta"] for d in decisions}) > 1, str(decisions))
    model, last = told[0]["model_bytes"], decisions[-1]["t"]
    for i, theta in enumerate(told[0]["shadow"]):
        sent = sum(d["shadow"][i]["bytes"] for d in decisions)
        check(sent == last // theta * model, f"theta {theta}: {sent} bytes in {last} steps")
    holds(phub("explain", "trained.jsonl")[0], "trained: local, policy hill, 3 sites")
    holds(phub("explain", "trained.jsonl", "--at", last)[0], r"points \((between -?\d+\.\d and \d+\.\d|exactly: models are one)\)", r"training loss \d+\.\d+ nats",
          r"r +0\.\d+, over all of 3 tensors; least in (weight|bias|statistics): 0\.\d+\. .* 0\.333 \(1/K\)")
    phub("plot", "trained.jsonl", "--out", "trained.svg")
    text = list(xml.etree.ElementTree.parse(FOLDER / "trained.svg").getroot().itertext())
    check("Alignment r of what sites say, per tensor: trained" in text and {"weight", "bias", "statistics"} <= set(text), str(text))
    check(len({block.get("fill") for block in xml.etree.ElementTree.parse(FOLDER / "trained.svg").iter() if block.tag.endswith("rect")}) > 6,
          "a heat map of one colour")


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([compare, explain, explain_falls_back, nothing_to_explain, dry_run_of_itself, dry_run_of_others, better, prices, shadows_of_gaia, plot, legends, cut_off, gone_on,
             standard_input, broken, strange, wrong_words, run_sites, run_trains, run_long_lines, run_that_fails, run_fails_alike, run_on_a_terminal, run_interrupted, run_insists, run_measures, run_writes_nothing,
             run_keeps_the_log_before, run_on_a_full_disk, run_loses_a_site, run_stays, run_repeats, not_looked_at, run_wrong_words], None if STUDY.exists() else f"{STUDY} is not there (make test-programs)")
