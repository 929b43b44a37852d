#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What phub scout compare, explain and plot make of logs, by logs that are made up, so that each number is known; and what README says of them."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree

import rig
from rig import check, holds
from scout_rig import FOLDER, PHUB, lines, panel, phub

MODEL = 1000


def made(name, windows, end=None, **run):
    """A log of two sites, a window each 10 steps; dicts of what is not as usual, or None: its line is missing."""
    out = [{"scout": "run", "version": 1, "algorithm": "local", "policy": "hill", "thetas": [1, 2, 5], "first": 1, "period": 10, "sites": 2,
            "model_bytes": MODEL, "seed": 0, "tensors": ["w", "b"], **run}]
    for i, window in enumerate(windows):
        if window is not None:
            out.append({"scout": "decision", "t": 10 * (i + 1), "window": i, "theta": 1, "next": 1, "n": 100, "believed": 2, "sites": 2,
                        "AL": 0.01,
                        "interval": None, "r_all": 0.5, "r": [0.5, 0.5], "bytes": 5 * MODEL, "bytes_travel": 0,
                        "bytes_total": 5 * MODEL * (i + 1),
                        "bytes_bsp": 10 * MODEL * (i + 1), "cost": 0.5, "action": "stays",
                        "reason": "no theta beside is known to be cheaper",
                        "train_loss": 0.5, **window})
    if end is not None:
        out.append({"scout": "end", "t": 10 * len(windows), "bytes": 5 * MODEL * len(windows), "bytes_travel": 0, "bytes_wire": None,
                    "theta": 1,
                    "accuracy": None, "loss": None, "seconds": 1, **end})
    path = FOLDER / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in out))  # as libphub writes them
    return path


def gaps():
    """a log in whose middle a line is missing is read, and how many windows are is said, also where, and as JSON"""
    whole = made("whole", [{}] * 8, {})
    check(not phub("explain", whole)[1] and lines(phub("compare", "--json", whole)[0])[0]["missing"] == 0, "a gap where there is none")
    gap = made("gap", [{}, {}, None, {"next": 2, "action": "loosens"}, None, None, {"theta": 2, "next": 2}, {"theta": 2, "next": 2}], {})
    out, err = phub("explain", gap)
    check(err == f"phub: {gap}: lines of 3 windows are missing, the first of them before step 40, and sums are of the whole run\n", err)
    holds(out, "5 windows, theta changed in 1")
    for command in (["compare", gap], ["plot", gap, "--out", "gap.svg"], ["dry-run", gap]):
        holds(phub(*command)[1], "lines of 3 windows are missing")
    told = lines(phub("compare", "--json", gap)[0])[0]
    check(told["missing"] == 3 and told["bytes"] == 40 * MODEL, "compare --json")
    open_end = gap.with_name("open.jsonl")
    open_end.write_text("".join(gap.read_text().splitlines(True)[:-1]))
    out, err = phub("compare", "--json", open_end)
    holds(err, "before step 40, and what the run has sent is not known\n$")
    check(all(lines(out)[0][name] is None for name in ("bytes", "bytes_travel", "saving")), out)
    told = lines(phub("explain", gap, "--json")[0])
    check([(line["t"], line["missing"], line["missing_before"]) for line in told] == [(40, 3, 1)], str(told))
    out = phub("explain", gap, "--at", 70)[0]
    holds(out, r"step 70 \(steps 61 to 70, at theta 2\)", r"\n  gap +the lines of 2 windows just before this one are missing in the log\n")
    check("  gap " not in phub("explain", gap, "--at", 80)[0], "a gap where there is none")
    first = made("first", [None, {}, {}], {})
    holds(phub("explain", first)[1], "lines of 1 window are missing, the first of them before step 20")
    for path, at, told in ((whole, 0, "1 to 80"), (whole, 81, "1 to 80"), (first, 10, "11 to 30"),
                           (gap, 60, "1 to 80, but of 41 to 60, whose lines are missing"),
                           (gap, 21, "1 to 80, but of 21 to 30, whose lines are missing")):
        check(f"{path}: no window has step {at}; --at takes a step of {told}\n" in phub("explain", path, "--at", at, status=1)[1],
              phub("explain", path, "--at", at, status=1)[1])
    holds(phub("explain", gap, "--at", 61)[0], r"step 70 \(steps 61 to 70")


def cannot():
    """windows in which no theta helps are not such with too few reports; who never told what training loses is told what that costs"""
    norm = {"action": "cannot", "reason": "no theta helps"}
    for head, window, unit in (("bytes", {}, {}), ("spent", {"spent": 1}, {"unit": "money", "price": 1})):
        holds(phub("explain", made("counts", [{"next": 2, **window}], {}, **unit))[0],
              rf" {head} +reason\n.*\nAL: .*\n{head}: of a site, for exchanges in the window of so many steps that ends there \(the mean "
              r"of sites,\nwithout what travelled\)\.\nIt ended")
    out = phub("explain", made("cannot", [{}, norm, norm], {}, policy="scout+"))[0]
    holds(out, "3 windows, theta changed in 0; in 2 it said that no theta helps, and what does\\.")
    check("too few reports" not in out and "site.lost" not in out, out)
    out = phub("explain", made("few", [{}, {"action": "falls back", "reason": "few"}], {}))[0]
    holds(out, "theta changed in 0; in 1 more too few reports came, and it stayed\\.")
    silent = {"train_loss": None}
    for policy, told in (("scout+", True), ("hill", False)):
        out = phub("explain", made("silent", [silent, silent], {}, policy=policy))[0]
        check(("Take care: no site has said what it loses in training (phub_site_loss(), in Python site.lost())" in out) == told, out)


def fewer():
    """bytes that are more than BSP's are not called fewer, and what is near as many has two places"""
    for total, words, cell in ((20, "4.0 times fewer bytes than BSP", "4.0x"), (76, "1.05 times fewer bytes than BSP", "1.05x"),
                               (80, "as many bytes as BSP", "1.0x"),
                               (84, "1.05 times as many bytes as BSP", "1.05x more"), (160, "2.0 times as many bytes as BSP", "2.0x more")):
        path = made("saved", [{"bytes_total": total * MODEL / 8 * (i + 1)} for i in range(8)], {"bytes": total * MODEL})
        holds(phub("compare", path)[0], rf"\nsaved .* - +{cell} +1 ", "or, where it says more, how many times as many")
        check(f"theta 1, with {words}." in phub("explain", path)[0], f"{words}: {phub('explain', path)[0]}")
        check(f"since the start, {words}\n" in phub("explain", path, "--at", 80)[0], f"{words}: {phub('explain', path, '--at', 80)[0]}")


    path = made("statistics", [], {"t": 80, "bytes": 20 * MODEL}, bsp_bytes=MODEL // 2, policy="fixed",
                thetas=[1])  # of what is not trained BSP says nothing
    check(lines(phub("compare", "--json", path)[0])[0]["bytes_bsp"] == 40 * MODEL, phub("compare", "--json", path)[0])


def not_known():
    """dry-run: sums are of windows in which its course is known, and no further; what they are by is said, and what travels is in them"""
    path = made("partly", [{"AL": 0.2, "bytes_travel": MODEL, "shadow": [{"theta": 5, "bytes": 2 * MODEL}]}] * 4, {}, sigma=0.05,
                algorithm="gaia")
    for words, told in ((["--thetas", "1"], r"hill again: theta 1 at the end\..*\nIt would have sent 20\.0 KB a site in exchanges, and "
                                            r"4\.0 KB of what is tried elsewhere;\nthe run sent 20\.0 KB, and 4\.0 KB\.\n$"),
                        (["--thetas", "1,5", "--sigma", "0.5"],
                         r"hill again: known until step 20\. It has decided nothing in 3 windows, .*\nUntil step 20 it would have sent "
                         r"about 7\.0 KB a site in exchanges \(in 1 of 2 windows by shadows\), "
                         r"and 2\.0 KB of what is tried elsewhere;\nthe run sent 10\.0 KB, and 2\.0 KB\.\nabout: .*\n$"),
                        (["--policy", "fixed", "--thetas", "5", "--theta", "5"],
                         r"It would have sent about 8\.0 KB a site in exchanges \(in 4 of 4 windows by shadows\), and 0 B of what is "
                         r"tried elsewhere;\nthe run sent 20\.0 KB, and 4\.0 KB\.\nabout: .*\n$"),
                        (["--policy", "fixed", "--thetas", "2", "--theta", "2"],
                         r"not known in 4 windows: the run had no shadow of that theta\.\n$")):
        out = phub("dry-run", path, *words)[0]
        check(re.search(told, out, re.S), f"{words}: {out}")
    holds(phub("dry-run", path, "--thetas", "1,2", "--sigma", "0.5")[0], "hill again: known until step 10",
          r"\nUntil step 10 it would have sent 5\.0 KB a site in exchanges, and 1\.0 KB of what")
    out = phub("dry-run", path, "--thetas", "2,3")[0]
    check("known until step 0." in out and "would have sent" not in out.split("is not known.", 1)[1], out)
    course = [line["on_course"] for line in lines(phub("dry-run", path, "--thetas", "1,5", "--sigma", "0.5", "--json")[0])]
    check(course == [True, True, False, False], str(course))
    untold = made("untold", [{"bytes": None}] * 2, {}, algorithm="gaia")
    holds(phub("dry-run", untold, "--policy", "fixed")[0], "What it would have sent is not known in 2 windows")
    unsaid = made("unsaid", [{"bytes": None, "shadow": [{"theta": 5, "bytes": 7}]}] * 2, {})
    holds(phub("dry-run", unsaid, "--policy", "fixed", "--thetas", "5", "--theta", "5")[0],
          r"would have sent 14 B .*;\nthe run sent unknown, and 0 B")


def spent():
    """what was spent is of the whole run, what travelled in it; where it is not one beside the other compare says so"""
    prices = {"unit": "seconds", "rate": 1000, "latency": 0.5, "price": 0}
    window = {"unit": "seconds", "spent": 1, "bytes_travel": MODEL}  # 10 s each, and two models in rounds of their own: 2 * (0.5 + 1) s
    # the last 5 steps have sent 2500 bytes, in two and a half exchanges: 2.5 * 0.5 + 2.5 s
    for policy, travel in (("hill", 3), ("scout+", 1)):
        path = made("paid", [window] * 4, {"t": 45, "bytes": 22500, "bytes_travel": 4000}, policy=policy, **prices)
        whole = 4 * (10 + travel) + 3.75
        check(lines(phub("compare", "--json", path)[0])[0]["spent"] == whole, phub("compare", "--json", path)[0])
        holds(phub("compare", path)[0], rf" {whole:.4g} s ", r"\nspent: by a site on bytes, travelled and within, by what")
        holds(phub("explain", path)[0], rf", {whole:.4g} s spent\.")
        holds(phub("explain", path, "--at", 20)[0],
              rf" 10 s a site in exchanges of this window, {travel} s in what travelled, {2 * (10 + travel)} s since the start\n")
    gaia = made("gaia-paid", [window] * 4, {"t": 45, "bytes": 22500, "bytes_travel": 4000}, algorithm="gaia", **prices)
    check(lines(phub("compare", "--json", gaia)[0])[0]["spent"] == 4 * 13 + 5, "an exchange in each step")
    for same, rate in ((["1000", "1e3", "1KB", "0.001mb"], 1000), (["2KiB", "2048B"], 2048)):
        for text in same:
            told = lines(phub("dry-run", path, "--policy", "hill", "--thetas", "1", "--rate", text, "--json")[0])[0]
            check(abs(told["spent"] / (10 * 0.5 + 5 * MODEL / rate) - 1) < 1e-5, f"--rate {text}: {told}")
    money = made("money", [{"unit": "money", "spent": 1e-6 * 500, "bytes_travel": MODEL}] * 4,
                 {"t": 45, "bytes": 22500, "bytes_travel": 4000}, unit="money", rate=0, latency=0, price=1000)
    check(abs(lines(phub("compare", "--json", money)[0])[0]["spent"] / 0.0265 - 1) < 1e-9, phub("compare", "--json", money)[0])
    holds(phub("dry-run", money, "--thetas", "1")[0], r"That would have cost 0\.024 money\.")
    silent = made("silent", [{"unit": "money"}] * 4, {}, unit="money", rate=0, latency=0, price=1000)
    check(lines(phub("compare", "--json", silent)[0])[0]["spent"] is None, "a sum of what is not known")
    dearer = made("dearer", [window] * 4, {"t": 45, "bytes": 22500}, **{**prices, "latency": 1})
    for others, told in (([made("bare", [{}] * 4, {})], "Take care: costs of these runs are not in one unit"), ([money], "not in one unit"),
                         ([dearer], "Take care: links of these runs have not cost the same"), ([gaia], None)):
        out = phub("compare", path, *others)[0]
        check(told in out if told else "cost the same" not in out and "one unit" not in out, out)


def seen(**said):
    return {"policy": "scout+", "AL": None,
            "seen": {"exchanges": 10, "said": 1, "heard": 0.5, "sites": 2, "rate": 0.1, "trained": 100, "tried": 200,
                                                     "train": 0.5, "before": None, "after": None, **said}}


def trials():
    """explain and plot show what the mean model lost where it was tried"""
    windows = [seen(tried=0), seen(after=1.25), seen(before=1.25, after=0.75), seen(before=0.75, after=0.5)]
    path = made("tried", windows, {}, policy="scout+")
    holds(phub("explain", path, "--at", 30)[0],
          r"\n +the mean model, tried on 200 samples a site, lost 1\.2500 as the window before this one began, and 0\.7500 as it ended\n")
    holds(phub("explain", path, "--at", 20)[0], r"tried on 200 samples a site, lost 1\.2500 as it ended\n")
    check("the mean model" not in phub("explain", path, "--at", 10)[0], "a trial where there is none")
    told = made("told", [{**window, "train_loss": None, "score": {"accuracy": 0.5, "loss": None}} for window in windows], policy="scout+")
    holds(phub("explain", told, "--at", 20)[0], r"\n +the averaged model has 50\.00 % right\n +the mean model, tried on")
    phub("plot", path, "--out", "tried.svg")
    root = xml.etree.ElementTree.parse(FOLDER / "tried.svg").getroot()
    dotted = [e for e in root if e.tag.endswith("line") and e.get("stroke-dasharray") == "2 3"]
    check("averaged model, at sites" in "\n".join(root.itertext()) and len(dotted) == 3,
          f"{len(dotted)} lines")  # two in the panel, one in the legend
    dots = [e for e in root if e.tag.endswith("circle")]
    at = float(min(dotted, key=lambda e: float(e.get("x1"))).get("x1"))
    check(any(abs(float(dot.get("cx")) - at) < 0.1 for dot in dots), f"the first is at {at}, of the window that ended at step 10")
    phub("plot", made("untried", [seen(tried=0)] * 4, {}, policy="scout+"), "--out", "untried.svg")
    check("averaged model, at sites" not in (FOLDER / "untried.svg").read_text(), "a legend of nothing")


def here():
    """explain marks the theta that a window was at, also where no window there has said what it is like"""
    was, blank = {"theta": 1, "next": 2, "action": "loosens"}, {"theta": 2, "next": 2, "action": "falls back"}
    for policy, nothing, like in (("scout+", {"r_all": None, "pull": 0.5}, "r not known"),
                                  ("hill", {"cost": None, "AL": None}, "cost not known")):
        path = made("here", [was, {**blank, **nothing}, {**blank, **nothing}, {**blank, **nothing, "next": 1}, {**blank, "r_all": 0.25}],
                    {}, policy=policy)
        out = phub("explain", path, "--at", 40)[0]
        holds(out, rf"theta 2 +{like}, sent 5\.0 KB, at step 40  <- was here\n", r"theta 5 +not tried\n", r"theta 1 .*  <- goes here\n")
        told = lines(phub("explain", path, "--at", 20, "--json")[0])[0]["tried"]
        check([(t["theta"], t["t"], t["r_all"] if policy == "scout+" else t["cost"]) for t in told] == [(1, 10, 0.5), (2, 20, None)],
              f"{told}")
        check(like not in phub("explain", path, "--at", 50)[0], "what is known of a theta")
        if policy == "scout+":
            holds(out, "how sites align is not known; they pulled apart 0.5 times as much as the noise of a batch when that was last measured")


def heat():
    """plot: r is by its logarithm, so that what is about 1/K can be told apart; the scale has 1/K marked, whatever K"""
    def colours(sites, rs):
        path = made("heat", [{"r": [r, r]} for r in rs], {}, sites=sites)
        phub("plot", path, "--out", "heat.svg")
        root = xml.etree.ElementTree.parse(FOLDER / "heat.svg").getroot()
        blocks = [e for e in root if e.tag.endswith("rect") and e.get("height", "").startswith("15.0")]
        check(len(blocks) == 2 * len(rs), f"{len(blocks)} blocks")
        return [tuple(int(e.get("fill")[i:i + 2], 16) for i in (1, 3, 5)) for e in blocks[:len(rs)]], "\n".join(root.itertext())

    for sites in (2, 10, 64):
        chance = 1 / sites
        found, text = colours(sites, [0, chance / 100, chance / 10, chance / 2, chance, (1 + chance) / 2, 1])
        check(found[0] == found[1] == (68, 1, 84) and found[-1] == (253, 231, 37), f"ends: {found}")
        for a, b in zip(found[1:], found[2:]):
            check(sum(abs(x - y) for x, y in zip(a, b)) > 20, f"K={sites}: colours that cannot be told apart: {found}")
        holds(text, rf"{chance:.2g}: by chance \(1/K\)", "1: sites agree", rf"{chance / 100:.2g}: they cancel out")


def ticks_of(texts):
    return [text for text in texts if re.fullmatch(r"[\d.]+", text)]


def kinds_of_theta():
    """plot: steps, thresholds and densities have a panel each, with their own rows; who has no windows is where it was all along"""
    climbs = made("climbs", [{"theta": 5, "next": 2}, {"theta": 2, "next": 2}], {}, thetas=[2, 5])
    gaia = made("gaia", [{"theta": 0.1, "next": 0.1}] * 4, {}, algorithm="gaia", thetas=[0.1, 0.2])
    stays = made("stays", [], {"t": 40, "theta": 20}, policy="fixed", thetas=[20])
    phub("plot", climbs, gaia, stays, made("dgc", [], {"t": 40, "theta": 0.5}, algorithm="dgc"), "--out", "kinds.svg")
    titles = [e.text for e in xml.etree.ElementTree.parse(FOLDER / "kinds.svg").getroot() if e.get("class") == "title"]
    check([title for title in titles if title.startswith("Theta")] == ["Theta: steps between exchanges",
                                                                       "Theta: Gaia's significance threshold"], str(titles))
    texts, drawn = panel("kinds.svg", "Theta: steps")
    check(ticks_of(texts)[-3:] == ["2", "5", "20"] and {"climbs", "stays"} <= set(texts) and "gaia" not in texts and "dgc" not in texts,
          str(texts))
    flat = [line[1:] for line in drawn if line[0] == "#009e73" and line[2] == line[4] and line[3] <= 610]
    check(len(flat) == 1 and flat[0][0] == 110 and flat[0][2] == 610, f"one that stays: {flat}")
    texts, _ = panel("kinds.svg", "Theta: Gaia")
    check(ticks_of(texts)[-2:] == ["0.1", "0.2"] and "part of a weight" in texts and "climbs" not in texts, str(texts))


def thetas_that_overlap():
    """plot: runs at one theta are all to be seen, and where it is"""
    thetas = [10, 5, 5, 2, 1, 1, 20, 20]
    path, twin = (made(name, [{"theta": theta} for theta in thetas], {"theta": 20}, thetas=[1, 2, 5, 10, 20]) for name in ("one", "twin"))
    phub("plot", path, twin, "--out", "overlap.svg")
    _, drawn = panel("overlap.svg", "Theta")
    ticks = {y1 for stroke, _, y1, _, y2 in drawn if stroke == "#e4e4e4" and y1 == y2}
    seen = {colour: [(x1, x2, y1) for stroke, x1, y1, x2, y2 in drawn if stroke == colour and y1 == y2 and x2 <= 610]
            for colour in ("#0072b2", "#d55e00")}
    check({y for pieces in seen.values() for _, _, y in pieces} <= ticks and len(ticks) == 5, f"{ticks}: {seen}")
    pieces = sorted(x for one in seen.values() for x in one)
    check(pieces[0][0] == 110 and all(b <= a + 0.2 for a, b in zip([p[1] for p in pieces], [*[p[0] for p in pieces[1:]], 610])),
          f"gaps: {pieces}")
    for colour, one in seen.items():
        check(200 < sum(x2 - x1 for x1, x2, _ in one) < 300, f"{colour}: {one}")
    phub("plot", path, "--out", "overlap.svg")
    check(len([line for line in panel("overlap.svg", "Theta")[1] if line[0] == "#0072b2" and line[2] == line[4]]) == 5 + 1,
          "a line in pieces")


def to_the_end():
    """plot: what is behind the last window is drawn, as far as it is known; all panels have one axis; a line that is missing is a gap"""
    path = made("rest", [{}, {"next": 2}], {"t": 25, "theta": 2, "loss": 0.25})
    phub("plot", path, "--out", "rest.svg")
    for title in ("Theta", "Accuracy", "Loss", "Alignment"):
        texts, drawn = panel("rest.svg", title)
        check("25" in texts and any(line[1] == line[3] == 610 for line in drawn), f"{title}: it ends at step 25: {texts}")
    flat = sorted(line[1:4:2] for line in panel("rest.svg", "Theta")[1] if line[0] == "#0072b2" and line[2] == line[4] and line[3] <= 610)
    check(flat == [(110, 510), (510, 610)], str(flat))
    check("averaged model, held out" in panel("rest.svg", "Loss")[0], "the score at the end")
    gap = made("hole", [{}, None, {}, {}], {})
    phub("plot", gap, "--out", "hole.svg")
    flat = sorted(line[1:4:2] for line in panel("hole.svg", "Theta")[1] if line[0] == "#0072b2" and line[2] == line[4] and line[3] <= 610)
    check(flat == [(110, 235), (360, 610)], str(flat))
    for name, unknown in (("rest", True), ("hole", True), ("whole", False)):
        phub("plot", made("whole", [{}] * 4, {}) if name == "whole" else FOLDER / f"{name}.jsonl", "--out", "grey.svg")
        text = (FOLDER / "grey.svg").read_text()
        check(("not known" in text) == ("#dddddd" in text) == unknown, f"{name}: a colour without a name, or a name without a colour")


def texts_in_pictures():
    """plot: labels of the scale do not touch, however few tensors.
    Names that are long lack what they have in common, and their middle, and those that are alike are paths; the axis of bytes is of
    runs that are shown, and in what they differ is said"""
    long = made("a-name-that-is-longer-than-what-a-legend-has-room-for-1", [{}] * 2, {"accuracy": 0.5})
    phub("plot", made("few", [{"r": [0.5]}] * 2, {"accuracy": 0.6}, tensors=["w"]), long,
         made("without", [{}] * 2, {"bytes": 1e12, "bytes_travel": 0}), "--out", "few.svg")
    root = xml.etree.ElementTree.parse(FOLDER / "few.svg").getroot()
    for title in ("Alignment r of what sites say, per tensor: few", "Bytes against"):
        texts, _ = panel("few.svg", title)
        check(texts, title)
    scale = [e for e in root if e.text and re.search("sites agree|by chance|cancel out", e.text)]
    ys = sorted(float(e.get("y")) for e in scale)
    check(len(ys) == 9 and all(b - a >= 11 for a, b in zip(ys, ys[1:])), str(ys))
    check("a-name-that-is\u2026oom-for-1" in [e.text for e in root], "a long name")
    for names, told in ((["module.layers.3.attention.weight", "module.layers.3.attention.bias"], {"weight", "bias"}),
                        (["a.layers.10.self_attention.weight", "b.bias"], {"a.layers.1\u2026.weight", "b.bias"}),
                        (["weight", "weights"], {"weight", "weights"}),
                        (["\u00e4" * 30, "b"], {"\u00e4" * 10 + "\u2026" + "\u00e4" * 7, "b"})):
        phub("plot", made("names", [{}] * 2, tensors=names), "--out", "names.svg")
        check(told <= set(panel("names.svg", "Alignment")[0]), f"{names}: {panel('names.svg', 'Alignment')[0]}")
    wild = bytes(FOLDER) + b"/b\xff\xc3\xed\xa0\x80\xf5.jsonl"  # the name of a file, and no text
    shutil.copy(long, wild)
    phub("plot", os.fsdecode(wild), "--out", "wild.svg")
    check("b" + "\ufffd" * 6 in panel("wild.svg", "Theta")[0], str(panel("wild.svg", "Theta")[0]))
    for windows, run, told in (([{}] * 2, {}, None), ([{}] * 3, {}, "steps"),
                               ([{}] * 3, {"sites": 3, "model_bytes": 7}, "steps, sites, the model's size")):
        phub("plot", long, made("other", windows, {"accuracy": 0.6, "bytes": 5}, **run), "--out", "unlike.svg")
        texts, _ = panel("unlike.svg", "Bytes against")
        check(texts[-2:] == ["Take care: these differ in", told] if told else "Take care" not in "".join(texts), f"{told}: {texts}")
    texts, _ = panel("few.svg", "Bytes against")
    check("few" in texts and "without" not in texts and not any("TB" in text for text in texts)
          and sum("KB" in text for text in texts) >= 2, str(texts))
    for name in ("x", "y"):
        (FOLDER / name).mkdir()
        (FOLDER / name / "scout.jsonl").write_text(long.read_text())
    phub("plot", "x/scout.jsonl", "y/scout.jsonl", "--out", "alike.svg")
    check({"x/scout.jsonl", "y/scout.jsonl"} <= set(panel("alike.svg", "Theta")[0]), "names that are alike")
    holds(phub("compare", "x/scout.jsonl", "y/scout.jsonl", long)[0], r"\nx/scout\.jsonl +local", r"\ny/scout\.jsonl +local",
          r"\na-name-that-is")


def names_in_pictures():
    """plot: what a log calls its tensors is text, and no markup"""
    phub("plot", made("e<v>&il", [{}] * 2, {"accuracy": 0.5}, tensors=["<script>&\x01", "b"]), made("good", [{}] * 2, {"accuracy": 0.6}),
         "--out", "evil.svg")
    tree = xml.etree.ElementTree.parse(FOLDER / "evil.svg")
    check(not any("script" in element.tag for element in tree.iter()) and "<script>& " in tree.getroot().itertext(), "markup from a log")


def names_in_json():
    """compare, explain: a log whose name is no UTF-8 is told of in JSON that is"""
    good, bad = made("naïve", [{"next": 2}], {}), os.path.join(os.fsencode(FOLDER), b"na\xefve\xc3.jsonl")
    shutil.copy(good, bad)
    for command, name in (("compare", good), ("explain", good), ("compare", bad), ("explain", bad)):
        done = subprocess.run([PHUB, "scout", command, "--json", name], capture_output=True, timeout=rig.DEADLINE_S)
        told = lines(done.stdout.decode())
        wanted = str(good) if name == good else f"{FOLDER}/na\ufffdve\ufffd.jsonl"
        check(done.returncode == 0 and [line["log"] for line in told] == [wanted], f"{command} {name}: {done}")


def plot_that_cannot_be_written():
    """plot: a picture that has no room leaves the one before as it was, and nothing beside it; a link goes on to lead where it does"""
    one, two = made("one", [{}] * 8, {"accuracy": 0.5}), made("two", [{}] * 8, {"accuracy": 0.6, "bytes": 50 * MODEL})
    short = ["sh", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "sh"]  # as a full disk: 8 blocks
    for name in ("kept.svg", "kept.png") if shutil.which("rsvg-convert") else ("kept.svg",):
        phub("plot", one, "--out", name)
        before = (FOLDER / name).read_bytes()
        check(len(before) > 8 * 512, f"{name}: a small picture")
        holds(phub("plot", one, two, "--out", name, status=1, prefix=short)[1], f"cannot write .*{name}.*: File too large")
        check((FOLDER / name).read_bytes() == before, f"{name} is another one")
    (FOLDER / "led.svg").symlink_to("kept.svg")
    phub("plot", one, two, "--out", "led.svg")
    check((FOLDER / "led.svg").is_symlink() and "Pareto" in (FOLDER / "kept.svg").read_text(), "not where the link leads")
    (FOLDER / "out.svg").symlink_to("/dev/stdout")
    check(phub("plot", one, "--out", "out.svg")[0].endswith("</svg>\n") and (FOLDER / "out.svg").is_symlink(), "not to standard output")
    check(not list(FOLDER.glob("*.part")) + list(FOLDER.glob("*.png.*")), "left behind: " + str(list(FOLDER.glob("*.p*"))))


def plot_fails_early():
    """plot: a picture that cannot be written is refused before logs are read, and nothing is left behind"""
    (FOLDER / "folder.svg").mkdir()
    for out, why in (("/proc/nope/x.svg", "cannot write /proc/nope/x.svg: No such file or directory"),
                     ("/proc/x.png", "cannot write /proc/x.png: "), ("folder.svg", "cannot write folder.svg: Is a directory")):
        if out.endswith(".png") and not shutil.which("rsvg-convert"):
            continue
        check(phub("plot", "absent.jsonl", "--out", out, status=1)[1].startswith(f"phub: {why}"), out)
    holds(phub("plot", "absent.jsonl", "--out", "x.png", status=1, PATH="/nowhere")[1],
          "a PNG needs rsvg-convert: apt install librsvg2-bin")
    holds(phub("plot", "absent.jsonl", "--out", "free.svg", status=1)[1], "absent.jsonl: No such file")
    check(not list(FOLDER.glob("free.svg*")), "left behind")


def seeds():
    """run, dry-run, advise: a seed is a whole number below 2^64 - 1, and what is none is refused with that"""
    log = made("seeded", [{}] * 2, {})
    advise = ["advise", "--listen", "127.0.0.1:0", "--sites", "1", "--model-bytes", "1", "--thetas", "1"]
    for words, tail in ((["run"], ["--", "true"]), (["dry-run", log], []), (advise, [])):
        for seed in ("-1", "18446744073709551615", "18446744073709551616", "1.5", "0x10", "1e3", ""):
            holds(phub(*words, "--seed", seed, *tail, status=2)[1],
                  f"--seed {re.escape(seed)}: allowed is 0 to 18446744073709551614; see phub scout {words[0]} --help")
    phub("dry-run", log, "--seed", 2**64 - 2)


def came_later():
    """where who writes a log's end came later, and knows not what was sent before, windows tell, or nobody: never too little"""
    def log(name, windows, action, end, since, at=185):
        path = made(name, windows, {"t": 300, "rank": 1, "accuracy": 0.7, **end}, policy="hill" if windows else "fixed", period=120)
        text = path.read_text().splitlines(True)
        site = {"scout": "site", "t": at, "rank": 1, "action": action, "sites": 2, "since": since, "reason": "why"}
        path.write_text("".join(text[:2 if windows else 1] + [json.dumps(site) + "\n"] + text[2 if windows else 1:]))
        return path

    first = {"t": 120, "bytes": 120 * MODEL, "bytes_travel": MODEL, "bytes_bsp": 120 * MODEL, "bytes_total": 121 * MODEL}
    second = {"t": 240, "bytes": 60 * MODEL, "bytes_travel": MODEL, "bytes_bsp": 240 * MODEL, "bytes_total": 61 * MODEL}
    late = {"bytes": 90 * MODEL, "bytes_travel": MODEL}  # of the second window, and of 60 steps more
    all_of_it = {"bytes": 210 * MODEL, "bytes_travel": 2 * MODEL}
    never = "who wrote its end came after step %d, no window tells what was sent until then, and what the run has sent is not known\n$"
    cheap = made("cheap", [], {"t": 300, "bytes": 250 * MODEL, "accuracy": 0.6}, policy="fixed")
    for name, windows, action, end, since, sent, why in (
            ("r1", [first, second], "restarted", late, 185, 212, "^$"),
            ("r2", [first, second], "writes", late, 185, 212, "^$"),
            ("r3", [first, second], "writes", all_of_it, 0, 212, "^$"),
            ("r4", [first], "writes", {"bytes": 90 * MODEL}, 185, None, never % 185),
            ("r5", [], "restarted", late, 185, None, never % 185),
            ("r6", [], "writes", {"bytes": 60 * MODEL}, 240, None, never % 240),
            ("r7", [], "writes", {"bytes": 210 * MODEL}, 0, 210, "^$"),
            ("r8", [], "writes", late, None, None, "who wrote its end came later, and what the run has sent is not known\n$")):
        path = log(name, windows, action, end, since)
        out, err = phub("compare", "--json", path, cheap)
        told, other = lines(out)
        holds(err, why)
        known = sent is not None
        check(told["t"] == 300 and told["accuracy"] == 0.7 and told["front"] == known and other["front"] == (not known), out)
        check((told["bytes"] + told["bytes_travel"] == sent * MODEL and abs(told["saving"] - 300 / sent) < 1e-4) if known
              else told["bytes"] is None and told["saving"] is None and not told["oracle"], out)
        check(("fewer bytes than BSP" in phub("explain", path)[0]) == known, f"explain {name}")
        phub("plot", path, cheap, cheap, "--out", f"{name}.svg")
        check((name in panel(f"{name}.svg", "Bytes against")[0]) == known, f"plot {name}")
    holds(phub("compare", FOLDER / "r5.jsonl")[0], r"\nr5 +local +fixed +300 +- +- +- +- +1 +70.00 +")


def run_was_killed():
    """run: what one that was killed has left is told of by the next; a log that was whole stays until there is another"""
    out, before = FOLDER / "killed.jsonl", FOLDER / "killed.jsonl.before"
    good, part = made("good", [{}] * 2, {}).read_text(), made("part", [{}] * 3).read_text()
    out.write_text(good)
    killed = subprocess.Popen([PHUB, "scout", "run", "--sites", "1", "--out", out, "--", "sh", "-c",
                               f'cp {FOLDER}/part.jsonl "$PHUB_SCOUT_LOG"; exec sleep 100'],
                              env=rig.QUIET, cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + rig.DEADLINE_S
    while not (out.exists() and out.read_text() == part) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    check(out.read_text() == part and before.read_text() == good, "it has left nothing")
    script = ["--", "sh", "-c", f'cmp "$PHUB_SCOUT_LOG.before" {FOLDER}/good.jsonl && [ ! -e "$PHUB_SCOUT_LOG" ] && ']
    fails, writes = script[:-1] + [script[-1] + "exit 3"], script[:-1] + [script[-1] + f'cp {FOLDER}/good.jsonl "$PHUB_SCOUT_LOG"']
    err = phub("run", "--sites", 1, "--out", out, *fails, status=1)[1]
    holds(err, f"phub: {out} was of a run that was broken off, and is {out}.broken now; {before}, of the run before that, stays\n")
    check(out.read_text() == part and before.read_text() == good, "not all is as it was")
    out.write_text(part.splitlines(True)[0])
    err = phub("run", "--sites", 1, "--out", out, *fails, status=1)[1]
    holds(err, f"phub: {out} was of a run that was broken off, and has gone; {before}, of the run before that, stays\n")
    check(out.read_text() == good and not before.exists(), "the log that was whole is not there again")
    tells = f"phub: the log is {out}: phub scout explain {out} tells why theta changed, and phub scout plot --out FILE.svg {out} draws it\n"
    for first, second, told in ((good, part, f"{tells}phub: the log of the run before is {before}, where that of an older one was\n"),
                                (part, good, f"{tells}phub: the log of what was broken off is {out}.broken; the log of the run before is {before}\n"),
                                (good, None, f"{tells}phub: the log of the run before is {before}\n"), (None, good, tells)):
        for path, text in ((out, first), (before, second)):
            path.unlink(missing_ok=True)
            if text:
                path.write_text(text)
        err = phub("run", "--sites", 1, "--out", out, *writes)[1]
        check(told in err and out.read_text() == good and before.read_text() == good, err)
        check(("the log of the run before" in err) == (first is not None), err)


def run_goes_on():
    """run: of one that was broken off again and again, and goes on from what its sites have saved, no line is lost, whatever log was there"""
    whole = made("whole", [{}] * 8, {})
    text = whole.read_text().splitlines(True)
    text[0] = text[0].replace('"version":1', '"version":1,"id":7')
    again = json.dumps({"scout": "site", "t": 20, "rank": 0, "action": "restarted", "sites": 2, "since": 0, "reason": "why"}) + "\n"
    parts = [text[:4], [text[0], again, *text[3:5], text[5][:40]], [text[0], again.replace("20", "40"), *text[5:7]],
             [text[0], again.replace("20", "60"), *text[7:]]]
    out, good = FOLDER / "goes-on.jsonl", made("good", [{}] * 2, {}).read_text().replace('"version":1', '"version":1,"id":8')
    for older, name in ((None, "before"), (good, "broken")):
        for path in FOLDER.glob("goes-on.*"):
            path.unlink()
        if older:
            out.write_text(older)
        for i, part in enumerate(parts):
            (FOLDER / "part").write_text("".join(part))
            for script in ("exit 3", f'cp {FOLDER}/part "$PHUB_SCOUT_LOG"; exit {0 if part is parts[-1] else 3}')[i == 0:]:
                told = phub("run", "--sites", 1, "--out", out, "--", "sh", "-c", script, status=int("3" in script[-1:]))[1]
        holds(told, f"phub: {out}: lines of 6 windows are missing, the first of them before step 70, and sums are of the whole run\n",
              f"phub: {out}: its run goes on from what is in {out}.{name}: cat {out}.{name} {out} is the log of all of it\n",
              f"phub: what this run has logged before is {out}.{name}: cat {out}.{name} {out} is all of it\n$")
        (FOLDER / "all.jsonl").write_text(pathlib.Path(f"{out}.{name}").read_text() + out.read_text())
        for at in range(10, 81, 10):
            found, wanted = (phub("explain", log, "--at", at) for log in (FOLDER / "all.jsonl", whole))
            check(re.sub("  restarted .*\n", "", found[0]) == wanted[0].replace("whole,", "all,") and not found[1], str(found))
        check(older is None or pathlib.Path(f"{out}.before").read_text() == older, "the log of an older run has gone")


def run_of_one_log():
    """run: of two at once that would write one log the second ends before anything starts; who was killed is in nobody's way"""
    out, log = FOLDER / "one.jsonl", made("of-one", [{}], {})
    script = f'cp {log} "$PHUB_SCOUT_LOG"; echo writes; exec sleep 100'
    for end in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen([PHUB, "scout", "run", "--sites", "1", "--out", out, "--", "sh", "-c", script], env=rig.QUIET, cwd=FOLDER,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as first:
            check("writes" in first.stdout.readline(), "the first has not begun")
            err = phub("run", "--sites", 1, "--out", out, "--", "touch", FOLDER / "begun", status=1)[1]
            check(err == f"phub: cannot write {out}: another phub scout run writes it now; give --out another name\n", err)
            check(out.read_text() == log.read_text() and not (FOLDER / "begun").exists(), "the second has begun")
            first.send_signal(end)
    phub("run", "--sites", 1, "--out", out, "--", "cp", log, out)
    check(not pathlib.Path(f"{out}.lock").exists(), "the lock is left over")


def run_of_dgc():
    """run: dgc with a policy that goes by what models lose elsewhere is refused before anything starts, also without --thetas"""
    for policy in ("hill", "stochastic", "annealing"):
        for thetas in ([], ["--thetas", "0.1,0.01"]):
            err = phub("run", "--algorithm", "dgc", "--policy", policy, *thetas, "--", "sh", "-c", f"touch {FOLDER}/started", status=2)[1]
            holds(err, f"{policy} goes by what models lose at other sites, and those of dgc")
    holds(phub("run", "--algorithm", "dgc", "--policy", "scout\u002b", "--", "true", status=2)[1],
          "does not know how far thetas of dgc may go")
    check(not (FOLDER / "started").exists(), "a site was started")
    phub("run", "--algorithm", "dgc", "--policy", "fixed", "--sites", 1, "--out", "dgc.jsonl", "--", "cp", made("dgc-log", [{}], {}),
         "dgc.jsonl")


def models_that_are_one():
    """an AL of models that are all one is exact; of others, as those of Gaia whatever theta, it has an interval"""
    for name, words, ones in (("local", ["--thetas", "1,2"], {1}), ("gaia", ["--thetas", "0,0.2", "--theta", "0.2"], set())):
        script = f'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm={name} steps=60 >/dev/null'
        phub("run", "--sites", 3, "--policy", "hill", *words, "--period", 10, "--out", "one.jsonl", "--", "sh", "-c", script,
             rig.BUILD / "tests/system/skewed")
        windows = [line for line in lines((FOLDER / "one.jsonl").read_text()) if line["scout"] == "decision"]
        check({window["theta"] for window in windows} - ones, f"a bad example: {windows}")
        for window in windows:
            low, high = window["interval"]
            one = window["theta"] in ones
            check((low == high) == one and (abs(window["AL"]) < 1e-12 or not one), f"{window}")
            out, _ = phub("explain", "one.jsonl", "--at", window["t"])
            holds(out, r"data: 0\.0 points \(exactly: models are one\), within" if one else r"data: -?\d+\.\d points \(between -?\d")


def run_of_no_numbers():
    """run: models that are no numbers to the end are an error, with the step and who said it first.
    So it is where all sites' are, in compare and explain too"""
    def train(nans, nan, algorithm="local", status=0):
        script = f'exec "$0" "$PHUB_URL" rank=$RANK world=$WORLD_SIZE algorithm={algorithm} steps=60 nan_at=35 nans={nans} nan={nan} >/dev/null'
        return phub("run", "--sites", 2, "--theta", 5 if algorithm == "local" else 0.1, "--out", "nan.jsonl", "--", "sh", "-c", script,
                    rig.BUILD / "tests/system/skewed", status=status)

    for nans, nan, algorithm, step, rank in ((3, "pass", "local", 40, 0), (2, "pass", "local", 40, 1), (3, "zero", "gaia", 36, 0)):
        out, err = train(nans, nan, algorithm, status=1)
        holds(err, rf"^phub: models are no numbers \(NaN or infinite\) since step {step}, which rank {rank} said first, of tensor "
                   r"'weight': what was trained is lost; begin again")
        holds(out, rf"\nTake care: models of nan are no numbers since step {step}\.\n$")
        check(lines(phub("compare", "--json", "nan.jsonl")[0])[0]["broken_since"] == step, "compare --json")
    for nans, nan in ((0, "pass"), (3, "zero"), (2, "zero")):
        check("no numbers" not in "".join(train(nans, nan)), f"nans={nans}, nan={nan}")
        check(lines(phub("compare", "--json", "nan.jsonl")[0])[0]["broken_since"] is None, "compare --json")
    warning = '{"scout":"warning","t":20,"rank":1,"tensor":"w","all":true,"text":"?"}\n'
    for name, all_of, end, status in (("open", True, None, 1), ("some", False, None, 0),
                                      ("came-back", True, {}, 0)):  # a site that is not closed has no last line
        path = made(name, [{}] * 2, end)
        path.write_text(path.read_text().replace('{"scout":"end"', warning + '{"scout":"end"') + (warning if end is None else ""))
        path.write_text(path.read_text().replace(',"all":true', ',"all":true' if all_of else ""))
        err = phub("run", "--sites", 1, "--out", "copied.jsonl", "--", "sh", "-c", 'cp "$0" "$PHUB_SCOUT_LOG"', path, status=status)[1]
        check(("since step 20, which rank 1 said first, of tensor 'w'" in err) == (status == 1), f"{name}: {err}")
    holds(phub("explain", made("lost", [{}] * 4, {"broken_since": 20}))[0], r"\nTake care: models are no numbers since step 20\.\n$")


def readme():
    """README: what it says that scouts tell is what they tell, the options that it shows are there, and its links lead somewhere"""
    text = (rig.ROOT / "README.md").read_text()
    source = re.sub(r'"\s*"', "", "".join(path.read_text() for path in sorted((rig.ROOT / "client/scout").glob("*.c"))))
    told = re.findall(r"^\| \*(.+?)\*", text[text.index("**What does it tell me?**"):text.index("**Limits.**")], re.MULTILINE)
    check(len(told) >= 8, f"{told}")
    for words in told:
        check(all(part in source for part in re.split(r"\b[A-Z]\b", words)), f"no scout says: {words}")
    example = (rig.ROOT / "deploy/demo/sites.py").read_text()
    shown = re.findall(r"^    (?:build/)?phub scout ([\w-]+)(.*?)(?: -- (.*?))?(?:  .*)?$", text, re.MULTILINE)
    check(len(shown) >= 8, f"{shown}")
    for command, own, others in shown:
        usage = phub(command, "--help")[0]
        check(all(option in usage for option in re.findall(r"--[a-z-]+", own)), f"phub scout {command} has not all of {own}")
        check(all(f'"{option}"' in example for option in re.findall(r"--[a-z-]+", others)), f"sites.py has not all of {others}")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    places = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    for place in re.findall(r"\]\(#([^)]*)\)", text):
        check(place in places, f"no heading for #{place}")
    for path in re.findall(r"\]\(([^)#:]*)\)", text):
        check((rig.ROOT / path).exists(), f"no {path}")


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([gaps, cannot, fewer, not_known, spent, trials, here, heat, kinds_of_theta, thetas_that_overlap, to_the_end, texts_in_pictures,
             names_in_pictures, names_in_json, plot_that_cannot_be_written, plot_fails_early, seeds, came_later, run_was_killed,
             run_goes_on, run_of_one_log, run_of_dgc, models_that_are_one, run_of_no_numbers, readme])
