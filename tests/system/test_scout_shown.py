#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What phub scout compare, explain and plot make of logs, by logs that are made up, so that each number is known."""
import json
import os
import xml.etree.ElementTree

import rig
from rig import check, holds
from scout_rig import FOLDER, lines, phub

MODEL = 1000


def made(name, windows, end=None, **run):
    """A log of two sites, a window each 10 steps; dicts of what is not as usual, or None: its line is missing."""
    out = [{"scout": "run", "version": 1, "algorithm": "local", "policy": "hill", "thetas": [1, 2, 5], "first": 1, "period": 10, "sites": 2,
            "model_bytes": MODEL, "seed": 0, "tensors": ["w", "b"], **run}]
    for i, window in enumerate(windows):
        if window is not None:
            out.append({"scout": "decision", "t": 10 * (i + 1), "window": i, "theta": 1, "next": 1, "n": 100, "believed": 2, "sites": 2, "AL": 0.01,
                        "interval": None, "r_all": 0.5, "r": [0.5, 0.5], "bytes": 5 * MODEL, "bytes_travel": 0, "bytes_total": 5 * MODEL * (i + 1),
                        "bytes_bsp": 10 * MODEL * (i + 1), "cost": 0.5, "action": "stays", "reason": "no theta beside is known to be cheaper",
                        "train_loss": 0.5, **window})
    if end is not None:
        out.append({"scout": "end", "t": 10 * len(windows), "bytes": 5 * MODEL * len(windows), "bytes_travel": 0, "bytes_wire": None, "theta": 1,
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
    check(err == f"phub: {gap}: lines of 3 windows are missing, the first of them before step 40: sums are without these\n", err)
    holds(out, "5 windows, theta changed in 1")
    for command in (["compare", gap], ["plot", gap, "--out", "gap.svg"], ["dry-run", gap]):
        holds(phub(*command)[1], "lines of 3 windows are missing")
    check(lines(phub("compare", "--json", gap)[0])[0]["missing"] == 3, "compare --json")
    told = lines(phub("explain", gap, "--json")[0])
    check([(line["t"], line["missing"], line["missing_before"]) for line in told] == [(40, 3, 1)], str(told))
    out = phub("explain", gap, "--at", 70)[0]
    holds(out, r"step 70 \(steps 61 to 70, at theta 2\)", r"\n  gap +the lines of 2 windows just before this one are missing in the log\n")
    check("  gap " not in phub("explain", gap, "--at", 80)[0], "a gap where there is none")
    first = made("first", [None, {}, {}], {})
    holds(phub("explain", first)[1], "lines of 1 windows are missing, the first of them before step 20")


def fewer():
    """bytes that are more than BSP's are not called fewer, and what is near as many has two places"""
    for total, words, cell in ((20, "4.0 times fewer bytes than BSP", "4.0x"), (76, "1.05 times fewer bytes than BSP", "1.05x"), (80, "as many bytes as BSP", "1.0x"),
                               (84, "1.05 times as many bytes as BSP", "1.05x more"), (160, "2.0 times as many bytes as BSP", "2.0x more")):
        path = made("saved", [{"bytes_total": total * MODEL / 8 * (i + 1)} for i in range(8)], {"bytes": total * MODEL})
        holds(phub("compare", path)[0], rf"\nsaved .* - +{cell} +1 ", "or, where it says more, how many times as many")
        check(f"theta 1, with {words}." in phub("explain", path)[0], f"{words}: {phub('explain', path)[0]}")
        check(f"since the start, {words}\n" in phub("explain", path, "--at", 80)[0], f"{words}: {phub('explain', path, '--at', 80)[0]}")


def seen(**said):
    return {"policy": "scout+", "AL": None, "seen": {"exchanges": 10, "said": 1, "heard": 0.5, "sites": 2, "rate": 0.1, "trained": 100, "tried": 200,
                                                     "train": 0.5, "before": None, "after": None, **said}}


def trials():
    """explain and plot show what the mean model lost where it was tried"""
    windows = [seen(tried=0), seen(after=1.25), seen(before=1.25, after=0.75), seen(before=0.75, after=0.5)]
    path = made("tried", windows, {}, policy="scout+")
    holds(phub("explain", path, "--at", 30)[0], r"\n +the mean model, tried on 200 samples a site, lost 1\.2500 as the window before this one began, and 0\.7500 as it ended\n")
    holds(phub("explain", path, "--at", 20)[0], r"tried on 200 samples a site, lost 1\.2500 as it ended\n")
    check("the mean model" not in phub("explain", path, "--at", 10)[0], "a trial where there is none")
    told = made("told", [{**window, "train_loss": None, "score": {"accuracy": 0.5, "loss": None}} for window in windows], policy="scout+")
    holds(phub("explain", told, "--at", 20)[0], r"\n +the averaged model has 50\.00 % right\n +the mean model, tried on")
    phub("plot", path, "--out", "tried.svg")
    root = xml.etree.ElementTree.parse(FOLDER / "tried.svg").getroot()
    dotted = [e for e in root if e.tag.endswith("line") and e.get("stroke-dasharray") == "2 3"]
    check("averaged model, there" in "\n".join(root.itertext()) and len(dotted) == 3, f"{len(dotted)} lines")  # two in the panel, one in the legend
    dots = [e for e in root if e.tag.endswith("circle")]
    at = float(min(dotted, key=lambda e: float(e.get("x1"))).get("x1"))
    check(any(abs(float(dot.get("cx")) - at) < 0.1 for dot in dots), f"the first is at {at}, of the window that ended at step 10")
    phub("plot", made("untried", [seen(tried=0)] * 4, {}, policy="scout+"), "--out", "untried.svg")
    check("averaged model, there" not in (FOLDER / "untried.svg").read_text(), "a legend of nothing")


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
        found, text = colours(sites, [0, chance / 10, chance / 2, chance, (1 + chance) / 2, 1])
        check(found[0] == found[1] == (68, 1, 84) and found[-1] == (253, 231, 37), f"ends: {found}")
        for a, b in zip(found[1:], found[2:]):
            check(sum(abs(x - y) for x, y in zip(a, b)) > 30, f"K={sites}: colours that cannot be told apart: {found}")
        holds(text, rf"{chance:.2g}: by chance \(1/K\)", "1: sites agree", rf"{chance / 10:.2g} or less: they cancel out")


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([gaps, fewer, trials, heat])
