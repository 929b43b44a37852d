#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub scout as people and scripts meet it, on decision logs that real runs of the study wrote: what it says of them, what it
refuses, and what it makes of logs that are broken."""
import itertools
import json
import os
import re
import shutil
import xml.etree.ElementTree

import rig
from rig import check, holds
from scout_rig import FOLDER, SKEWED, STUDY, bsp, changed, hill, lines, log_of, panel, phub, skewed


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
    holds(out, "^run +algorithm +policy", r"\nhill +local +hill +160 ", r"\nbsp +bsp +fixed .* 1.0x .* o\n",
          " travelled +wire +fewer +theta")
    check("Take care" not in out, out)
    half = changed(hill(), "half", lambda own: own[:5])
    holds(phub("compare", hill(), half)[0], r"\nTake care: these runs differ in steps, and bytes, accuracy")
    other = changed(bsp(), "other", lambda own: [own[0].replace('"sites":3', '"sites":4').replace('"model_bytes":', '"model_bytes":1')] + own[1:])
    holds(phub("compare", bsp(), other)[0], r"\nTake care: these runs differ in sites, the model's size, and")
    zeros = "wire of dense went through shared memory, .*\nphub scout run --set transports=tcp shows what they would carry"
    dense = skewed("dense", "--algorithm", "dgc", "--theta", 0.01, steps=60)
    sent = skewed("wire", "--algorithm", "dgc", "--theta", 0.01, "--set", "transports=tcp", steps=60)
    told = {line["log"]: line for line in lines(phub("compare", "--json", dense, sent)[0])}
    check(told[str(dense)]["bytes_wire"] > 10 * told[str(dense)]["bytes"]
          and told[str(sent)]["bytes_wire"] < 1.5 * told[str(sent)]["bytes"], str(told))
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
        holds(out, rf"\n *{move['t']} +20 +{move['theta']:g} +{move['next']:g} +{move['action']} ")
    told = lines(phub("explain", hill(), "--json")[0])
    check([w["t"] for w in told] == [m["t"] for m in moves], str(told))
    out, _ = phub("explain", hill(), "--at", "70")
    w = windows[3]
    holds(out, r"^hill, step 80 \(steps 61 to 80, at theta", f"why +{w['reason']}", "3 of 3 sites believed, 1200 samples",
          "times fewer bytes than BSP",
          r"points \(between -?\d+\.\d and \d+\.\d\), (above|within) the 5\.0 that are borne",
          r"cost +[\d.e+-]+ = 50 max\(0, ", "<- ", "not tried", r"r +[\d.]+, over all of 8 tensors; least in (conv|norm|linear)",
          "shadow +would have sent", r"theta 20: 31\.0 KB")
    check([line.split("<- ")[-1] for line in out.splitlines() if "<- " in line] == (["stays here"] if w["theta"] == w["next"] else
          [word for theta in (1, 2, 5, 10, 20) for word, there in (("was here", w["theta"]), ("goes here", w["next"])) if theta == there]),
          out)
    holds(phub("explain", hill(), "--at", "1")[0],
          r"\n  thetas  theta 1 to 2 +not tried\n +theta 5 +not tried  <- goes here\n +theta 10 +cost .*  <- was here\n +theta 20 +not tried\n")
    told = lines(phub("explain", hill(), "--at", "70", "--json")[0])[0]
    check(told["t"] == 80 and told["reason"] == w["reason"] and any(t["theta"] == w["theta"] for t in told["tried"]), str(told))


def explain_falls_back():
    """explain: a window without reports is told, and is no change of theta where that stays"""
    stays = {"theta": 1, "next": 1, "action": "falls back", "AL": None}
    path = changed(hill(), "back", lambda own: own[:1] + [json.dumps({**json.loads(line), **stays}) + "\n" for line in own[1:4]])
    out, _ = phub("explain", path)
    holds(out, r"3 windows, theta changed in 0; in 3 more too few reports came, and it stayed\.", r"\n *20 +20 +1 +1 +falls back ")
    check(len(lines(phub("explain", path, "--json")[0])) == 3, "lines of JSON")


def nothing_to_explain():
    """explain: a step that no window has, and a run without windows"""
    holds(phub("explain", hill(), "--at", "161", status=1)[1], "no window has step 161; --at takes a step of 1 to 160\n$")
    path = changed(hill(), "later", lambda own: own[:-1] + [own[-1].replace('"t":160', '"t":170')])
    holds(phub("explain", path, "--at", "165", status=1)[1],
          "takes a step of 1 to 160, as the run ended at step 170, before the window of step 161 on did\n$")
    for at in ("-5", "1.5", "", "1000000000000000"):
        holds(phub("explain", hill(), "--at", at, status=2)[1], f"--at {at}: allowed is 0 to 999999999999999;")
    holds(phub("explain", bsp(), status=1)[1],
          "no decision in it: the run had no scout .--policy makes one., .*; phub scout compare tells what it sent")
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
    holds(out, "fixed instead of hill: theta 20 at the end", "which was not tried until then",
          r"It would have sent 247\.6 KB a site in exchanges \(in \d of 8 windows by shadows\), and 0 B of what is tried elsewhere;\nthe "
          r"run sent [\d.]+ MB, and 247\.6 KB\.")
    out, _ = phub("dry-run", hill(), "--policy", "fixed", "--thetas", "7", "--theta", "7")
    holds(out, "It would have sent 680.9 KB a site in exchanges, and 0 B")  # 22 exchanges in 160 steps
    by_shadow, counted = (sum(line["bytes"] for line in lines(phub("dry-run", log, "--policy", "fixed", "--thetas", "20", "--theta", "20",
                                                                   "--json")[0]))
                          for log in (hill(), changed(hill(), "shadowless",
                                                      lambda own: [line.replace('"shadow":', '"light":') for line in own])))
    check(by_shadow == counted, f"{by_shadow} bytes by shadows, {counted} counted")
    told = lines(phub("dry-run", hill(), "--thetas", "7,10", "--theta", "10", "--json")[0])
    check(told[0]["next"] == 7 and all((line["next"], line["action"], line["known"]) == (7, None, "unknown") for line in told[1:]),
          str(told))
    holds(phub("dry-run", hill(), "--thetas", "7,10", "--theta", "10")[0],
          r"hill again: known until step 40\. It has decided nothing in 7 windows",
          "the run has not tried this theta yet")
    fixed = changed(hill(), "fixed", lambda own: [own[0].replace('"hill"', '"fixed"')] + [
        json.dumps({**json.loads(line), "AL": None, "theta": 10, "next": 10}) + "\n" for line in own[1:]])
    out, _ = phub("explain", fixed, "--at", 60)
    check("no model travels where theta is fixed" in out and "not tried" not in out and "believed" not in out and "\n  cost " not in out,
          out)
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
    holds(phub("explain", path)[0], "sites pull apart", r"\n *step +steps +theta +to +action +r +pull +bytes",
          r"\nr: how far what sites say agrees: 1 is all of it, 0\.333 \(1/K\)")
    hopeless = changed(path, "hopeless", lambda own: own[:-3] + [line.replace('"action":"stays"', '"action":"cannot"')
                                                                 for line in own[-3:-1]] + own[-1:])
    check(phub("explain", hopeless)[0].count(" cannot ") == 1, phub("explain", hopeless)[0])
    out, _ = phub("explain", path, "--at", 150)
    holds(out, f"seen +sites align by r = {found[-1]['r_all']:.4f}, and pull apart {found[-1]['pull']:.3g} times",
          r"theta 1 +r 0\.\d+, sent .*, at step",
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
    holds(out, r"would be +known +r +bytes", r"heard no exchange in 3 windows, .* it measures at theta 1\.", "no losses of the mean model",
          "sites pull apart")
    untried = changed(path, "untried", lambda own: [re.sub(r'"tried":\d+', '"tried":0', line) for line in own])
    check("no losses of the mean model" in phub("dry-run", untried)[0] and "no losses" not in phub("dry-run", path)[0], "what was tried")
    holds(phub("dry-run", hill(), "--policy", "scout+", "--thetas", "2,5", status=2)[1], "a grid of local begins with 1")
    check(phub("dry-run", hill(), "--policy", "fixed", "--theta", ".5e1")[0] == phub("dry-run", hill(), "--policy", "fixed",
                                                                                     "--theta", "5")[0], "no zero before the point")
    old = changed(path, "old", lambda own: [line.replace('"seen":', '"unseen":') for line in own])
    holds(phub("dry-run", old, status=1)[1], "decides by what exchanges show, and this log does not have it", "take another --policy")
    dgc = changed(path, "dgc", lambda own: [own[0].replace('"local"', '"dgc"')] + own[1:])
    holds(phub("dry-run", dgc, status=2)[1], "does not know how far thetas of dgc")
    for policy in ("hill", "stochastic", "annealing"):
        holds(phub("dry-run", dgc, "--policy", policy, "--thetas", "0.1,0.01", status=2)[1],
              f"{policy} goes by what models lose at other sites, and those of dgc")
    phub("dry-run", dgc, "--policy", "fixed", "--thetas", "0.1,0.01")
    phub("dry-run", path, "--policy", "fixed")


def prices():
    """what talking has cost, in the unit that was asked for, is shown of each policy, scout+ too"""
    money = ["--unit", "money", "--price", "2000"]
    path = skewed("money", "--algorithm", "local", "--policy", "scout+", "--thetas", "1,2,5,10", *money)
    ended, found = lines(path.read_text())[-1], [line for line in lines(path.read_text()) if line["scout"] == "decision"]
    check(ended["t"] == found[-1]["t"] == 300 and all(line["unit"] == "money" and line["cost"] is None for line in found), str(found[-1]))
    spent = ended["bytes"] * 2e-6
    line = lines(phub("compare", "--json", path)[0])[0]
    check(line["unit"] == "money" and abs(line["spent"] / spent - 1) < 1e-5, f"{line}, wanted {spent}")
    holds(phub("compare", path, hill())[0], r"fewer +spent +theta", rf"\nmoney .* {spent:.4g} money ", r"\nhill .*x +- ",
          r"\nspent: by a site on bytes, travelled and within")
    out, _ = phub("explain", path)
    holds(out, r"pull +spent +reason", rf", {spent:.4g} money spent\.")
    first, own = found[0]["bytes"] * 2e-6, sum(line["bytes"] for line in found[:5]) * 2e-6
    holds(phub("explain", path, "--at", 45)[0],
          rf"\n  cost +{found[4]['bytes'] * 2e-6:.4g} money a site in exchanges of this window, {own:.4g} money since the start\n")
    holds(phub("dry-run", path)[0], r"r +spent +action", rf"\n +10 .* {first:.4g} money +stays", f"That would have cost {spent:.4g} money")
    seconds = sum(line["spent"] for line in lines(phub("dry-run", path, "--unit", "seconds", "--rate", "1000", "--latency", "1",
                                                       "--json")[0]))
    check(abs(seconds / sum(line["bytes"] / 1000 + 10 / line["theta"] for line in found) - 1) < 1e-4, f"{seconds} seconds")
    check(all(line["spent"] is None for line in lines(phub("dry-run", hill(), "--json")[0])), "spent of a cost in bytes")
    path = skewed("worth", "--algorithm", "local", "--policy", "scout+", "--thetas", "1,2,5,10", "--worth", "7", *money)
    own = path.read_text().splitlines()
    check(json.loads(own[0])["worth"] == 7, own[0])
    idle = "what a unit of loss is worth .7. has decided nothing: in these [0-9]+ windows no probe has shown yet what talking more saves"
    holds(phub("explain", path)[0], rf"\nTake care: {idle}")
    window = json.loads(own[6]) | {"gain": 0.5, "interval": [0.4, 0.6], "extra": 1.25}
    path.write_text("\n".join([*own[:6], json.dumps(window), *own[7:]]) + "\n")
    holds(phub("explain", path, "--at", window["t"])[0],
          r"would save a loss of 0\.5000 \(between 0\.4000 and 0\.6000\), which is worth 3\.5 money, and costs 1\.25 money more")
    check("decided nothing" not in phub("explain", path)[0], "a probe has")
    for word in ("worth", "gain"):
        words = ["--sites", 2, "--policy", "scout+", "--algorithm", "local", "--thetas", "1,2,5", f"--{word}", 1, "--out", "idle.jsonl",
                 "--", "sh", "-c"]
        err = phub("run", *words, 'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE steps=120 >/dev/null', SKEWED)[1]
        holds(err, rf"--{word} has decided nothing in these \d windows: no probe has shown yet")
    check("is worth" not in phub("explain", changed(path, "worthless", lambda own: [own[0].replace('"worth":7', '"worth":0')] + own[1:]),
                                 "--at", window["t"])[0], "worth nothing")
    path = skewed("latency", "--algorithm", "gaia", "--policy", "scout+", "--thetas", "0,0.05,0.1,0.2", "--unit", "seconds",
                  "--rate", "1e12", "--latency", "1")
    found = [line for line in lines(path.read_text()) if line["scout"] == "decision"]
    check(all(line["next"] == 0 for line in found)
          and "no looser one is cheaper by 3 %, as theta does not change 10 seconds of a window's cost" in found[-1]["reason"],
          str(found[-1]))
    check(lines(phub("dry-run", path, "--unit", "bytes", "--ease", 10, "--json")[0])[-1]["theta"] > 0, "of bytes a looser one is cheaper")
    path = skewed("seconds", "--algorithm", "local", "--policy", "hill", "--thetas", "1,2,5", "--unit", "seconds", "--rate", "1MB",
                  "--latency", "0.5")
    holds(phub("explain", path, "--at", 10)[0],
          r"\n  cost +[\d.]+ = 50 max.*\n +5.052 s a site in exchanges of this window, 1.01 s in what travelled, 6.062 s since the start\n")


def shadows_of_gaia():
    """explain, dry-run: what Gaia would have sent at another threshold is about so much, and said to be; of local SGD it is exact"""
    path = skewed("gaia", "--algorithm", "gaia", "--policy", "fixed", "--thetas", "0,0.1,0.3", "--theta", "0.1", "--shadow", "0.1,0.3",
                  steps=60)
    holds(phub("explain", path, "--at", 30)[0], r"at theta 0.1: about [\d.]+ KB; theta 0.3: about [\d.]+ KB\n")
    out, _ = phub("dry-run", path, "--theta", "0.3")
    holds(out, r" about [\d.]+ KB \(shadow\) ",
          r"It would have sent about [\d.]+ KB a site in exchanges \(in 6 of 6 windows by shadows\), and 0 B of what is tried elsewhere;\n"
          r"the run sent", "\nabout: what Gaia sends follows of")
    check("about" not in phub("dry-run", path)[0], "an estimate of what was seen")
    check([line["about"] for line in lines(phub("dry-run", path, "--theta", "0.3", "--json")[0])] == [True] * 6, "lines of JSON")
    check("about" not in phub("dry-run", hill(), "--policy", "fixed", "--thetas", "20",
                              "--theta", "20")[0] + phub("explain", hill(), "--at", 70)[0], "local SGD")


def plot():
    """plot: whole SVG with its panels, and a PNG where there is rsvg-convert, with a word on it where there is none"""
    phub("plot", hill(), bsp(), "--out", "all.svg")
    text = "\n".join(xml.etree.ElementTree.parse(FOLDER / "all.svg").getroot().itertext())
    holds(text, "Theta", "Accuracy lost", "nats", "Bytes against accuracy", "Alignment r of what sites say, per tensor: hill",
          "linear.weight",
          "Pareto front", "sigma")
    near = changed(hill(), "near", lambda own: own[:-1] + [json.dumps({**json.loads(own[-1]),
                                                                       "bytes": json.loads(own[-1])["bytes"] + 50000}) + "\n"])
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
    scores = changed(climb, "scores", lambda own: [own[0]] + [json.dumps({**json.loads(line), "train_loss": None,
                                                                          "score": {"accuracy": 0.5, "loss": 1.5}}) + "\n"
                                                              for line in own[1:2]])
    phub("plot", scores, "--out", "legend.svg")
    losses = panel("legend.svg", "Loss")[0]
    check("in training, at sites" not in losses and "averaged model, held out" in losses, str(losses))
    check((FOLDER / "legend.svg").read_text().count('<circle') == 3,
          "a score of one window, and an AL, are dots, and the former has one in the legend")
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
    """a log whose writer was lost and came again is one run: it is said that windows are missing, and nothing of what was sent"""
    again = changed(hill(), "again", lambda own: own[:4] + own[:1] + [line.replace('"bytes":', '"bytes":1', 1) if '"end"' in line else line
                                                                      for line in own[5:]])
    out, err = phub("compare", "--json", again)
    check(all(lines(out)[0][name] is None for name in ("bytes", "saving", "seconds")) and lines(out)[0]["accuracy"], out)
    holds(err, "came again: windows in between are missing, and what the run has sent is not known\n")
    holds(phub("explain", again)[0], "7 windows")
    for at, known in ((40, True), (160, False)):
        out, _ = phub("explain", again, "--at", at)
        check(("since the start" in out) == known, out)


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
            (own(lambda own: [own[0][:40]]),
             "its only line is no JSON, or not whole: it is no decision log of phub scout, or one that was broken off as it began"),
            (own(lambda own: ["hello, world\n"]), "its only line is no JSON, or not whole"),
            (own(lambda own: ["hello\n", "world\n"]),
             "line 1: no JSON .*: it is no decision log of phub scout, or its first line, .*, is damaged"),
            (FOLDER, ": Is a directory"),
            (own(lambda own: own[:2] + ["{\n"] + own[2:]),
             "line 3: no JSON \(.*\): the file is damaged there; a copy without that line \(sed 3d\) can be read, and where it was a "
             "window, that it is missing is told\n$"),
            (own(lambda own: [own[0].replace('"version":1', '"version":2')]), "line 1: a log of version 2"),
            (own(lambda own: [own[0].replace('"sites":3', '"sites":null')]), "does not say its sites"),
            (own(lambda own: own[1:]),
             "line 1: a decision outside of a run, whose first line, .*, is missing: without it nothing can be read"),
            (own(lambda own: own[:1] + [own[0].replace('"sites":3', '"sites":4')] + own[1:]), "line 2: a second run"),
            (own(lambda own: own[:2] + ["{\n", own[0].replace('"sites":3', '"sites":4')] + own[2:]), "line 4: a second run"),
            (own(lambda own: own[:2] + ["{\n", "x" * (16 << 20) + "\n"] + own[2:]), r"line 4: 16777217 bytes; .*\(sed 4d\)"),
            (own(lambda own: own + own[:1]), "a second run begins; a log is of one: make that line the first of a file of its own"),
            (own(lambda own: own[:2] + own[1:]),
             "line 3: step 20 comes after step 20: it is of another run, or there twice; a copy without that line .sed 3d. can be read"),
            (own(lambda own: own + own[-1:]), "an end outside of a run, behind its last line: remove what does not belong"),
            (own(lambda own: own[:1] + [own[1].replace('"t":20', '"t":"x"')]),
             "line 2: a decision without t, theta or next; a copy without that line .sed 2d. can be read"),
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
    for words, why in (([], "which command"), (["explan"], "did you mean phub scout explain"), (["compare"], "which logs"),
                       (["explain"], "which log"),
                       (["explain", "a", "b"], "one word too many"), (["explain", "a", "--at", "x"], "allowed is"),
                       (["plot", "a"], "picture"),
                       (["plot", "a", "--out", "a.jpg"], "FILE.svg or FILE.png"), (["dry-run"], "which log"),
                       (["dry-run", "a", "--sigma", "-1"], "a number from 0 to 1"),
                       (["dry-run", "a", "--gain", "-1"], "a number from 0 on"),
                       (["dry-run", "a", "--thetas", "1,,2"], "numbers from 0 on"),
                       (["dry-run", "a", "--sigma", "0x1"], "a number from 0 to 1"),
                       (["dry-run", "a", "--policy", "hil"], "did you mean hill"),
                       (["dry-run", hill(), "--theta", "3"], "none of the thetas"), (["dry-run", hill(), "--sigma", "2"], "from 0 to 1"),
                       (["dry-run", hill(), "--thetas", "5,1"], "of local the smallest: 1,5"),
                       (["dry-run", hill(), "--first", "1"], "unknown option --first"),
                       (["dry-run", hill(), "--thetas", "1,1"], "twice")):
        holds(phub(*words, status=2)[1], why)
    for command in ("run", "compare", "explain", "plot", "dry-run", "advise"):
        holds(phub(command, "--help")[0], f"usage: phub scout {command}", "Exit codes")


# ---- run ----


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([compare, explain, explain_falls_back, nothing_to_explain, dry_run_of_itself, dry_run_of_others, better, prices,
             shadows_of_gaia, plot, legends, cut_off, gone_on, standard_input, broken, strange, wrong_words],
            None if STUDY.exists() else f"{STUDY} is not there (make test-programs)")
