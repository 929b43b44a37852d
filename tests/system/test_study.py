#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/study.py without its hours: that it judges canned numbers as it says, that each line can FAIL, that runs are kept
and an interrupted study goes on, and that it understands what skew_study prints."""
import contextlib
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import rig
from rig import Skip, check

sys.path.insert(0, str(rig.ROOT / "tests/bench"))
import study  # noqa: E402
import study_cells  # noqa: E402
import study_lines  # noqa: E402
import study_runs  # noqa: E402
import study_torch  # noqa: E402

SCRIPT = rig.ROOT / "tests/bench/study.py"
PROGRAM = rig.BUILD / "tests/bench/skew_study"
BSP_BYTES = 1500 * 30000
# Stands in for skew_study: one that talks less is worse, batch normalization is much worse with skew. Notes each call.
FAKE = """#!/bin/sh
accuracy=0.88
case "$*" in
--help) exit 2 ;;
*"--seeds BROKEN "*) echo "it broke" >&2 && exit 1 ;;
*"--seeds SLOW "*) echo "step 3 of 7" >&2 && echo $$ >FOLDER/slow && exec sleep 97 ;;
*"--norm batch"*"--skew 100 "*) accuracy=BATCH ;;
esac
echo "$*" >>FOLDER/calls
echo '{"study":"run","accuracy":'$accuracy',"bytes":1000,"bytes_wire":1000,"bytes_travel":0}'
"""


# ---- canned numbers, by which every line passes ----

def points(cell):
    """A world in which every claim holds."""
    if cell.algorithm == "bsp":
        return 70 if cell.norm == "batch" and cell.skew == 100 else 88
    if cell.policy:
        return 87.5
    if cell.rival:
        return 87.5 - cell.skew / 100
    if cell.algorithm == "dgc":
        return 88 - cell.skew / 10
    return 88 - cell.skew / 100 * (1.5 * math.log2(cell.theta) if cell.algorithm == "local" else 60 * cell.theta)


def sent(cell):
    if cell.algorithm == "bsp":
        return BSP_BYTES
    if cell.policy == study_cells.BETTER:
        return BSP_BYTES / 100 if cell.skew < 100 else BSP_BYTES / 2
    if cell.policy or cell.rival:
        return BSP_BYTES / 25
    return BSP_BYTES / (cell.theta if cell.algorithm == "local" else 1 + 200 * cell.theta if cell.algorithm == "gaia" else 100)


def windows(cell):
    if not cell.policy or cell.policy == "replay":
        return []
    thetas = study_cells.GRIDS[cell.algorithm]
    return [{"study": "window", "t": 100 * i + 100, "theta": thetas[here], "next": thetas[there], "loss": 0.04, "action": "stays"}
            for i, (here, there) in enumerate(zip(*((drifting()[:-1], drifting()[1:]) if cell.drift else [[2] * 15] * 2)))]


def drifting():
    """Places of 15 windows of 100 steps, and of one that never comes; oracles at 0, 100, 20 %: 5, 0, 3."""
    return [4] * 5 + [4, 2, 1, 1, 0] + [0, 1, 2, 3, 3] + [3]


def told(cell, **changed):
    end = {"study": "run", "accuracy": points(cell) / 100, "bytes": sent(cell), "bytes_early": sent(cell) / 5,
           "bytes_wire": sent(cell), "bytes_travel": 0, **changed}
    return "\n".join(map(json.dumps, [*windows(cell), end]))


def world(change=lambda cell, seed: {}, grid=study_cells.Grid(), lines=tuple(study_lines.LINES)):
    """Results of the quick grid, or another. `change` plants other numbers."""
    wanted = study.plan([grid], list(lines), study.arguments([]))
    runs = {}
    for cell, seed in wanted:
        runs.setdefault(cell, {})[seed] = study_runs.Run(told(cell, **change(cell, seed)))
    return study_cells.Results(runs)


def marks(results):
    return {name: study_lines.judge(name, study_cells.Grid(), results).ok for name in study_lines.LINES}


GOOD = {**dict.fromkeys(study_lines.LINES, True), "R7": None, "rivals": None}


def every_line_passes():
    found = {name: study_lines.judge(name, study_cells.Grid(), world()) for name in study_lines.LINES}
    for name, line in found.items():
        check(line.ok is GOOD[name], f"{line}")
        check(line.more and str(line).startswith(("PASS " if GOOD[name] else "---- ") + name), str(line))


def each_line_can_fail():
    hill, better = (lambda cell: cell.policy == "hill"), (lambda cell: cell.policy == study_cells.BETTER and cell.algorithm == "local")
    plants = {
        "R1": lambda cell, seed: cell == study_cells.Grid().usual("gaia", 0) and {"accuracy": 0.8649},
        "R2": lambda cell, seed: cell == study_cells.Grid().usual("dgc", 100) and {"accuracy": 0.8301},
        "R3": lambda cell, seed: cell.norm == "batch" and cell.skew == 100 and {"accuracy": 0.7301},
        "R4": lambda cell, seed: cell == study_cells.Cell(skew=100) and {"accuracy": 0.8699},
        "R5": lambda cell, seed: cell == study_cells.Grid().usual("local", 0) and {"accuracy": 0.84},
        "R6": lambda cell, seed: hill(cell) and cell.skew == 20 and {"bytes_wire": BSP_BYTES / 19},
        "B1": lambda cell, seed: better(cell) and cell.skew == 40 and {"accuracy": 0.8699},
        "B2": lambda cell, seed: better(cell) and cell.skew == 100 and {"bytes": BSP_BYTES},
        "B3": lambda cell, seed: better(cell) and cell.skew in (0, 20, 40) and {"bytes": BSP_BYTES / 20},
    }
    for name, plant in plants.items():
        found = marks(world(lambda cell, seed, plant=plant: plant(cell, seed) or {}))
        check(found[name] is False, f"{name} passes with {found}")


def rival_is_met():
    """By bytes within a point of the best, BSP or another; who is not is beaten by who is."""
    grid = study_cells.Grid()
    own, theirs = grid.scouted(study_cells.BETTER, "local", 20), grid.rival("fda", 0.5, 20)
    for lost, other, times, found in (
            (0.5, 0.5, 1.01, "wins"), (0.5, 0.5, 0.99, "loses"), (0.5, 0.5, 1, "neither"), (1, 0, 1.01, "wins"), (0, 1, 0.99, "loses"),
            (1.01, 0, 1.01, "loses"), (0, 1.01, 0.99, "wins"), (1.01, 1.01, 2, "neither"), (0.7, -0.3, 1.01, "wins"),
            (0.7, -0.31, 1.01, "loses"),
            (-0.31, 0.7, 0.99, "wins")):
        sends = {own: (lost, 1), theirs: (other, times)}
        results = world(lambda cell, seed, sends=sends: {"accuracy": (88 - sends[cell][0]) / 100, "bytes": sends[cell][1] * BSP_BYTES / 100}
                        if cell in sends else {})
        check(study_lines.meets(results, own, theirs) == found, f"{lost} and {other} points lost, {times} times the bytes: not {found}")


def rivals_by_other_rules():
    """What is printed beside the one theta for all skews decides nothing: accuracies that are closer, another theta, hindsight, late bytes."""
    grid, cheap = study_cells.Grid(True), study_cells.Grid(True).rivals("qsr", 0)[-1].theta

    def qsr(change):
        line = study_lines.judge("B3", grid, world(change, grid, ["B3"]))
        first = next(i for i, text in enumerate(line.more) if text.startswith(f"qsr {study_cells.CHOSEN['qsr']:g}: "))
        check(line.ok, str(line))
        return line.more[first:first + 4]

    found = qsr(lambda cell, seed: {"bytes": BSP_BYTES / 200, "bytes_early": -BSP_BYTES} if cell.rival == "qsr"
                and cell.theta == cheap else {})
    check("6 of 6: 0 % wins, 4.00 times the bytes, 0.50 points lost to 0.50; " in found[0], f"{found}")
    check("by the rival: 6 of 6; with another theta for all skews: " in found[1], f"{found}")
    check(f"0.16: 6 of 6, {cheap:g}: 3 of 6" in found[1], f"{found}")  # where more than a point is lost
    check(found[2].startswith(f"  the best theta at each skew, with hindsight: 4 of 6: 0 % loses, {cheap:g}: 0.50 times the bytes; 20 % loses, "), f"{found}")
    check("; 40 % wins, none as accurate; " in found[2], f"{found}")
    check(found[3].startswith("  the best theta at each skew, with hindsight, bytes from 20 % on: 6 of 6: 0 % wins, "), f"{found}")
    found = qsr(lambda cell, seed: {"accuracy": 0.8776 if cell.skew < 60 else 0.8775} if cell.rival == "qsr" and cell.skew < 80 else {})
    check("6 of 6: 0 % wins" in found[0] and "than by the rival: 3 of 6" in found[1], f"{found}")


def rivals_are_chosen():
    """The loosest that loses little at every skew; if none does, the one that loses least at its worst."""
    grid, thetas = study_cells.Grid(True), study_cells.RIVALS["fda"]

    def chosen(lost):
        plan = study.plan([grid], ["choice"], study.arguments(["--full", "--on", "valid", "--seeds", "100"]))
        runs = {cell: {seed: study_runs.Run(told(cell, bytes=BSP_BYTES / (1 + 10 * cell.theta), accuracy=0.88 - lost(cell) / 100)
                                            if cell.rival else told(cell))}
                for cell, seed in plan}
        return study_lines.choose(grid, study_cells.Results(runs), "fda"), study_lines.judge("choice", grid, study_cells.Results(runs))

    (theta, found), line = chosen(lambda cell: cell.theta * cell.skew / 100)
    check(theta == 1 and [each for each, _, _ in found] == list(thetas), f"{theta}, {found}")
    check(line.ok is None and "fda 1" in str(line) and "1 loses 1.00 points at worst, 11.0x" in str(line), str(line))
    (theta, _), _ = chosen(lambda cell: 1.5 + cell.theta * cell.skew / 100)
    check(theta == thetas[0], f"{theta}")
    (theta, _), line = chosen(lambda cell: 0 if cell.theta == 10 else 2)
    check(theta == 10 and f"fda 10, and not {study_cells.CHOSEN['fda']:g}, which B3 goes by: " in str(line), str(line))


def drifted(ends, thetas, **changed):
    """A world whose drift run has windows that end there, at these thetas; the last is the one chosen for after them."""
    cell = study_lines.b4_cells(study_cells.Grid())[0]
    text = [{"study": "window", "t": t, "theta": theta, "next": after} for t, theta, after in zip(ends, thetas, thetas[1:])]
    results = world(lambda of, seed: changed if of == cell else {})
    results.runs[cell][1] = study_runs.Run("\n".join(map(json.dumps, text)) + "\n" + told(cell, **changed).splitlines()[-1])
    return results


def drift_that_is_not_followed():
    """B4: a theta that never moves is near the end of each phase before it, and has followed nothing."""
    line = study_lines.judge("B4", study_cells.Grid(), drifted(range(100, 1501, 100), [5] * 16))
    check(line.ok is False and "phases' ends, 5, 5, 5: 1 (100 steps) and 1 (100 steps)" in str(line), str(line))


def windows_of_other_lengths():
    """B4 counts those that there were, and their steps; one that the change falls into is the first after it."""
    ends = [250, 490, *range(510, 600, 10), *range(600, 1500, 100)]  # it measures in short ones
    thetas = [50, 50, 50, 20, 5, 2, *[1] * 12, 20, 20, 20]
    line = study_lines.judge("B4", study_cells.Grid(), drifted(ends, thetas))
    check(line.ok and "of the oracles: 3 (30 steps) and 2 (200 steps);" in str(line), str(line))
    line = study_lines.judge("B4", study_cells.Grid(), drifted(ends, [50, 50, 50, 20, 20, 20, 20, *thetas[7:]]))
    check(line.ok and "of the oracles: 5 (50 steps) and" in str(line), str(line))
    line = study_lines.judge("B4", study_cells.Grid(), drifted(ends, [50, 50, 50, 20, 20, 20, 20, 20, *thetas[8:]]))
    check(line.ok and "of the oracles: 6 (60 steps) and" in str(line), str(line))  # as many steps as of one of a period
    line = study_lines.judge("B4", study_cells.Grid(), drifted([500, *range(560, 1000, 60), 1000, 1500], [50, *[20] * 6, 2, 2, 2, 20, 20]))
    check(line.ok is False and "loses windows" in str(line) and "of the oracles: 6 (360 steps) and" in str(line), str(line))
    # Nine short windows are fewer steps than one long one.
    line = study_lines.judge("B4", study_cells.Grid(), drifted([500, *range(510, 600, 10), 1000, 1500], [50, *[2] * 9, 50, 20, 20]))
    check(line.ok is False and "of the oracles: never and" in str(line), str(line))


def looser_as_the_rate_falls():
    """B4: from three quarters of the run on theta may be looser than the oracle's, and not before; the run may not lose for it."""
    ends = [500, 550, 1000, 1050, 1100, 1125, 1175, 1225, 1500]
    line = study_lines.judge("B4", study_cells.Grid(), drifted(ends, [50, 50, 2, 2, 2, 2, 20, 20, 100, 100]))
    check(line.ok and "of the oracles: 1 (50 steps) and 3 (125 steps)" in str(line), str(line))
    line = study_lines.judge("B4", study_cells.Grid(), drifted(ends, [50, 50, 2, 2, 2, 2, 20, 20, 100, 100], accuracy=0.8699))
    check(line.ok is False and "1.01 points lost" in str(line), str(line))
    line = study_lines.judge("B4", study_cells.Grid(), drifted([500, 550, 1000, 1050, 1100, 1500], [50, 50, 2, 2, 2, 100, 100]))
    check(line.ok is False and "1 (50 steps) and never" in str(line), str(line))


def drift_to_another_theta():
    """B4: theta is back where it is near the oracle's, and stays; not where it is at rest elsewhere, or passes by."""
    results, grid = world(), study_cells.Grid()
    check(study_lines.phase_goals(grid, results) == [5, 0, 3], f"{study_lines.phase_goals(grid, results)}")
    line = study_lines.judge("B4", grid, results)
    check(line.ok and "of the oracles: 2 (200 steps) and 2 (200 steps); until it is near those of phases' ends, 20, 2, 10: 1 (100 steps) and 2" in
          str(line), str(line))
    passes = [drifted(range(100, 1501, 100), [20] * 6 + thetas + [20, 20, 10, 10, 10, 10])
              for thetas in ([2, 5, 5, 5], [5, 5, 2, 5], [2, 10, 2, 2])]
    found = [study_lines.back(each.all(study_lines.b4_cells(grid)[0])[0], (500, 1000), 0) for each in passes]
    check(found == [(study_lines.NEVER, study_lines.NEVER)] * 2 + [(1, 100)], f"{found}")
    # Of a finer grid: 2 is near 1, and 3 is not.
    found = [study_lines.back(drifted(range(100, 1501, 100), [20] * 6 + [theta] * 10).all(study_lines.b4_cells(grid)[0])[0], (500, 1000), 0)
             for theta in (2, 3)]
    check(found == [(1, 100), (study_lines.NEVER, study_lines.NEVER)], f"{found}")
    # At once at a theta that is tighter than the oracle's of 20 %.
    line = study_lines.judge("B4", grid, drifted(range(100, 1501, 100), [20] * 5 + [20, 10, 5, 2, 2, *[2] * 6]))
    check(line.ok is False and "of the oracles: 3 (300 steps) and never; until" in str(line), str(line))


def bytes_on_the_wire():
    """R1 and R6 go by what travels, models too, not by what papers count."""
    gaia, hill = study_cells.Grid().usual("gaia", 0), study_cells.Grid().scouted("hill", "gaia", 20)
    for name, cell, at in (("R1", gaia, 9), ("R6", hill, 19)):
        for field, ok in (("bytes", True), ("bytes_wire", False)):
            line = study_lines.judge(name, study_cells.Grid(),
                                     world(lambda of, seed, cell=cell, field=field, at=at: {field: BSP_BYTES / at} if of == cell else {}))
            check(line.ok is ok and f"{at}.0x" in str(line), str(line))
    line = study_lines.judge("R6", study_cells.Grid(), world(lambda of, seed: {"bytes_travel": BSP_BYTES / 80} if of == hill else {}))
    check(line.ok is False and "19.0x fewer bytes on the wire, 19.0x as papers" in str(line), str(line))
    run = study_runs.Run(told(gaia, bytes_wire=7, bytes_travel=5, bytes_box=7))
    check(run.wire == 7, f"a box has counted models that travel: {run.wire}")


def windows_can_fail_lines():
    results = world()
    for cell, runs in results.runs.items():
        for run in runs.values():
            if cell.policy == "hill" and cell.skew == 80:
                for window in run.windows[8:]:
                    window["loss"] = 0.051
    found = marks(results)
    check(found["R6"] is False, "a controller above its sigma passes")
    results = world()
    for run in results.all(study_cells.Grid().scouted(study_cells.BETTER, "gaia", 60))[:2]:
        run.end["bytes_early"] = -BSP_BYTES
    check(marks(results)["B1"] is False, "one that sends much from 20 % on passes")
    results = world(lambda cell, seed: {"bytes": BSP_BYTES} if cell.policy == study_cells.BETTER and cell.skew == 100 else {})
    check(marks(results)["B2"] is False, "as many bytes as BSP pass")
    for algorithm in study_cells.GRIDS:
        for run in results.all(study_cells.Grid().scouted(study_cells.BETTER, algorithm, 100)):
            run.windows[3]["action"] = "cannot"
    check(marks(results)["B2"] is True, "one that says that it cannot, as nothing can, passes")
    for run in results.runs[study_cells.Cell("local", 2, 100)].values():
        run.points, run.bytes = 87.5, BSP_BYTES / 2
    line = study_lines.judge("B2", study_cells.Grid(), results)
    check(line.ok is False and str(line).count("loses") == 1 and "the oracle, local 2, 100 %, group, K=5: 2.00x" in str(line), str(line))


def median_of_seeds_counts():
    def plant(seeds):
        return lambda cell, seed: {"accuracy": 0.8} if cell == study_cells.Cell(skew=100) and seed in seeds else {}
    check(marks(world(plant((2,))))["R4"] is True, "one bad seed of three is no median")
    check(marks(world(plant((1, 3))))["R4"] is False, "two bad seeds of three are")


def no_mark_without_a_cell():
    """A line that lacks a cell, or BSP beside it, says so; the others are judged, with fewer seeds, too."""
    results = world()
    cell = study_cells.Grid().rivals("fda", 20)[0]
    del results.runs[cell]
    line = study_lines.judge("B3", study_cells.Grid(), results)
    check(line.ok is None and str(line).startswith("---- B3: not judged: 1 of its cells") and cell.name() in str(line), str(line))
    check({name: mark for name, mark in marks(results).items() if name != "B3"} == {name: mark for name, mark in GOOD.items()
                                                                                    if name != "B3"}, "others")
    del results.runs[study_cells.Grid().usual("gaia", 0)][2]
    check(marks(results)["R1"] is True, "two seeds of three")
    results.runs[study_cells.Grid().usual("gaia", 0)] = {9: next(iter(results.runs[study_cells.Grid().usual("gaia", 0)].values()))}
    check(marks(results)["R1"] is None, "a seed without BSP's")


def numbers_by_hand():
    check(study_lines.spearman((1, 2, 3), (5, 6, 9)) == 1, "in order")
    check(abs(study_lines.spearman((1, 2, 3), (5, 9, 6)) - 0.5) < 1e-12, "two in the wrong order")
    check(abs(study_lines.spearman((1, 2, 3), (5, 5, 9)) - math.sqrt(0.75)) < 1e-12, "equals share a rank")
    check(study_lines.spearman((1, 2, 3), (4, 4, 4)) is None, "a constant")
    check(study_lines.rising([0, 2, 1, 3]) == [0, 1.5, 1.5, 3], "neighbours that fall")
    places = [study_lines.reach(lost) for lost in ([0, 0.5, 1.5], [0, 0.2, 0.4], [0, 2, 3])]
    check(places == [1.5, 2, 0.5], f"as far as a point: {places}")
    cells = study_cells.Grid().fixed("local", 0)
    names = [study_lines.name_reach(cells, place) for place in (0, 0.5, 1, 2.5, 5)]
    check(names == ["BSP", "below 2", "2", "7.1", "50 or more"], f"{names}")
    check(f"{study_cells.Spread([3, 1, 2]):.1f}" == "2.0 (1.0 to 3.0)" and f"{study_cells.Spread([2, 2]):.1f}" == "2.0", "spreads")
    run = study_runs.Run("\n".join(map(json.dumps, [
        *({"study": "window", "t": t, "theta": theta, "next": 7, "loss": loss} for t, theta, loss in
          ((500, 10, .5), (700, 10, .4), (900, 5, .3), (950, 10, .01), (1000, 10, None), (1020, 10, .2), (1400, 5, .1), (1430, 5, None))),
        {"study": "run", "accuracy": .5, "bytes": 3, "bytes_wire": 2, "bytes_travel": 4}])))
    # Of what ends in the second half 630 steps were at 5, however many windows were at 10.
    check([window["steps"] for window in run.windows] == [500, 200, 200, 50, 50, 20, 380, 30], f"{run.windows}")
    theta, loss = study_lines.settled(run)
    check((theta, round(loss, 6)) == (5, 0.2), f"settled at {theta} with {loss}")
    check((run.points, run.bytes) == (50, 7), f"{run.points}, {run.bytes}")


def oracle():
    results, grid = world(), study_cells.Grid()
    found = [results.oracle(grid.fixed("local", skew)).theta for skew in study_cells.SKEWS]
    check(found == [50, 10, 2, 2, None, None], f"{found}")  # 1.5 log2(theta) skew <= 1


def grid():
    options = study.arguments([])
    wanted = study.plan([study_cells.Grid()], list(study_lines.LINES), options)
    check(len(set(wanted)) == len(wanted) <= 180, f"{len(wanted)} runs in the quick grid")
    full = study.plan([study_cells.Grid(True, sites) for sites in (5, 2, 10)], list(study_lines.LINES), options)
    check({seed for _, seed in full} == set(range(1, 11)) and {cell.sites for cell, _ in full} == {2, 5, 10}, "the full grid")
    check({cell.dirichlet for cell, _ in full} == {None, 0.1, 0.5, 1}, "with Dirichlet")
    left = full  # of each K what lines ask for, a seed after the other; then the rest
    for sites in (5, 2, 10):
        cells = {cell for name in study_lines.LINES
                 for cell in study_lines.LINES[name][0](study_cells.Grid(True, sites))} & {cell for cell, _ in left}
        stage, left = left[:10 * len(cells)], left[10 * len(cells):]
        check([seed for _, seed in stage] == [seed for seed in range(1, 11) for _ in cells], f"seeds of K={sites}: {stage[:3]}")
        check({cell for cell, _ in stage} == cells and not cells & {cell for cell, _ in left}, f"cells of K={sites}")
    check(len(set(full)) == len(full) and all(cell in study.others(study_cells.Grid(True, cell.sites)) for cell, _ in left), "each once")
    options = study.arguments(["--full", "--sites", "2,10", "--seeds", "1-2"])
    check(options.sites == [2, 10] and list(options.seeds) == [1, 2], f"{options}")
    valid = study.plan([study_cells.Grid(True)], ["R1"], study.arguments(["--on", "valid"]))
    check({seed for _, seed in valid} == {100, 101, 102}, "other seeds to fix parameters on")


def refused_arguments():
    """an empty range is no usual one, nor is an empty list: what runs for hours is what was asked for"""
    for words, text in (("--seeds", "3-1"),
                        "there is no seed from 3 to 1; the smaller one comes first"), (("--seeds", ""), "a seed or a range of them"), \
            (("--seeds", "1-"), "a seed or a range of them"), (("--seeds", "1,2"),
                                                               "a seed or a range of them"), (("--lines", ""), "no line ''"), \
            (("--lines", "R1,"),
             "no line ''"), (("--sites", "5,"), "whole numbers of sites"), (("--sites", "0"), "whole numbers of sites"), \
            (("--jobs", "0"), "1 or more"):
        done = subprocess.run([SCRIPT, "--program", "/nowhere", *words], capture_output=True, text=True, env=rig.QUIET)
        check(done.returncode == 2 and text in done.stderr, f"{words}: {done.returncode}, {done.stderr}")
    options = study.arguments(["--sites", "5,2,5", "--lines", "R1,R3,R1", "--seeds", "4"])
    check((options.sites, options.lines, list(options.seeds)) == ([5, 2], ["R1", "R3"], [4]), f"{options}")
    for words in (("--seeds", "3-1"), ("--seeds", "1.5"), ("--seeds", "1-2.5"), ("--drift", "100.5:50")):
        done = subprocess.run([PROGRAM, *words, "--steps", "1"], capture_output=True, text=True)
        check(done.returncode == 2 and f"skew_study: {words[0]} " in done.stderr, f"skew_study {words}: {done.returncode}, {done.stderr}")


# ---- as a process ----

class Fake:
    """A skew_study that is ours, and the study of it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.write()

    def write(self, batch=0.7, broken=0, slow=0):
        path = self.folder / "skew_study"
        path.write_text(FAKE.replace("FOLDER", str(self.folder)).replace("BATCH", str(batch)).replace("BROKEN", str(broken))
                        .replace("SLOW", str(slow)))
        path.chmod(0o755)

    def calls(self):
        path = self.folder / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def study(self, *words, status=0):
        done = subprocess.run([SCRIPT, "--program", self.folder / "skew_study", *words], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env={**rig.QUIET, "BUILD": str(self.folder)}, timeout=rig.DEADLINE_S)
        check(done.returncode == status, f"exit code {done.returncode}, not {status}: {done.stdout[-500:]}{done.stderr[-1500:]}")
        return done.stdout, done.stderr


def process():
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(folder)
        out, _ = fake.study("--lines", "R3,R4")
        check("PASS R3" in out and "PASS R4" in out and "88.00 IID, 70.00 at 100 %: 18.00 points lost" in out, out)
        calls = fake.calls()
        check(len(set(calls)) == len(calls) == 30 and all("--on test" in call for call in calls), f"{len(calls)} runs")
        text = (fake.folder / "study/report.md").read_text()
        check("PASS R3" in text and "| bsp, 100 %, batch, K=5 | 3 | 70.00 | 0.00 | 1.0x | 0.001 |" in text, text)
        out, _ = fake.study("--lines", "R3")
        check("PASS R3" in out and not fake.calls(), "what was run is not run again")
        fake.write(batch=0.74)  # another program
        out, _ = fake.study("--lines", "R3", status=1)
        check("FAIL R3" in out and "14.00 points lost" in out and len(fake.calls()) == 30, out)


def cached():
    """--cached runs nothing, and judges by what has run."""
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(folder)
        fake.study("--lines", "R3", "--seeds", "2", "--sites", "5")
        fake.calls()
        out, _ = fake.study("--lines", "R3,R5", "--cached")
        check("PASS R3" in out and "---- R5: not judged: " in out and not fake.calls(), out)
        text = (fake.folder / "study/report.md").read_text()
        check("| bsp, 100 %, batch, K=5 | 1 | 70.00 |" in text, text)
        out, _ = fake.study("--lines", "R3", "--cached", "--seeds", "7")
        check("---- R3: not judged" in out and not fake.calls(), out)


def interrupted():
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(folder)
        cell = study_cells.Cell(skew=100)
        runner = study_runs.Runner(fake.folder / "skew_study", fake.folder / "study", "test", 1)
        runner.run(cell, 2)
        check(len(fake.calls()) == 1, "it ran")
        fake.study("--lines", "R3")
        check(len(fake.calls()) == 29, "the study goes on where it was left")


def stopped():
    """A signal ends what runs, keeps what has run, and says so."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as folder:
            fake = Fake(folder)
            fake.write(slow=2)
            process = subprocess.Popen([SCRIPT, "--program", fake.folder / "skew_study", "--lines", "R3", "--jobs", "1"], text=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env={**rig.QUIET, "BUILD": folder})
            until = time.monotonic() + rig.DEADLINE_S
            while not (fake.folder / "slow").exists() or not (fake.folder / "slow").read_text():
                check(process.poll() is None and time.monotonic() < until, "it never came to the second seed")
                time.sleep(0.05)
            process.send_signal(number)
            out, err = process.communicate(timeout=rig.DEADLINE_S)
            check(process.returncode == 130 and "what has run is kept" in err and "Traceback" not in err and not out,
                  f"{process.returncode}: {err}")
            child = pathlib.Path("/proc", (fake.folder / "slow").read_text().strip(), "cmdline")
            check(not child.exists() or b"97" not in child.read_bytes(), "what it had started runs on")
            kept = list((fake.folder / "study/cache").iterdir())
            check(len(kept) == 10 and all(path.suffix == ".jsonl" for path in kept), f"not those of the first seed: {kept}")


def progress():
    """What runs, how far it says that it is, and when all will be over."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        shown = study_runs.Progress(4)
        shown.bar = True
        shown.at("bsp, 0 %")
        shown.at("bsp, 0 %", "step 3 of 7")
        check(said.getvalue().endswith("░ 0 of 4, 0 now  bsp, 0 %: step 3 of 7"), repr(said.getvalue()))
        shown.began -= 60
        shown.over("bsp, 0 %", True)
        check("██████░" in said.getvalue() and said.getvalue().endswith("1 of 4, 1 now, about 3 min left  "), repr(said.getvalue()))


def as_json():
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(folder)
        out, _ = fake.study("--lines", "R3,R4", "--seeds", "4-5", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        check([line["line"] for line in lines if line["study"] == "line" and line["ok"]] == ["R3", "R4"], out)
        batch = next(line for line in lines if line["study"] == "cell" and line["norm"] == "batch" and line["skew"] == 100
                     and line["seed"] == 5)
        check(abs(batch["points"] - 70) < 1e-9 and abs(batch["lost"] - 18) < 1e-9 and batch["saved"] == 1, f"{batch}")
        check(len(lines) == 2 + 20 and {line.get("seed") for line in lines[2:]} == {4, 5}, out)


def broken():
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(folder)
        fake.write(broken=2)
        _, err = fake.study("--lines", "R3", status=2)
        check("it broke" in err and "--seeds 2" in err, err)
        _, err = fake.study("--lines", "R9", status=2)
        check("no line R9" in err, err)
        _, err = fake.study("--lines", "choice", status=2)
        check("never done on test images" in err, err)
        _, err = fake.study("--torch", "--lines", "R5", status=2)
        check("no line R5" in err and "R1, R2, R3, R4" in err, err)
        _, err = fake.study("--torch", "--full", status=2)
        check("neither --full" in err, err)
        _, err = fake.study("--torch", "--cached", status=2)
        check("neither --sites nor --cached" in err, err)
        (fake.folder / "skew_study").unlink()
        _, err = fake.study("--lines", "R3", status=2)
        check(err == f"study: {folder}/skew_study is not there: make BUILD={folder} {folder}/tests/bench/skew_study, or --program FILE\n",
              err)
        for sites in ("0", "5,x"):
            _, err = fake.study("--full", "--sites", sites, status=2)
            check("--sites" in err, err)


def skew_study():
    if not pathlib.Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")).is_dir():
        raise Skip("no data (Debian: apt install dataset-fashion-mnist)")
    steps, period, usual = study_cells.STEPS, study_cells.PERIODS["hill"], study_cells.USUAL["local"]
    study_cells.STEPS = study_lines.STEPS = 18
    study_cells.PERIODS["hill"], study_cells.USUAL["local"] = 6, 2
    try:
        with tempfile.TemporaryDirectory() as folder:
            runner = study_runs.Runner(PROGRAM, pathlib.Path(folder), "valid", 2)
            grid = study_cells.Grid(sites=2)
            cells = [grid.cell(skew=100), grid.usual("gaia", 100), grid.scouted("hill", "local", 100), study_lines.r7_cells(grid)[1],
                     grid.cell("local", dirichlet=0.5), grid.cell(drift=False, norm="batch"),
                     *(grid.rivals(rival, 20)[0] for rival in study_cells.RIVALS)]
            with contextlib.redirect_stderr(io.StringIO()):
                results = study_cells.Results(runner.all([(cell, 1) for cell in cells]))
            for cell in cells:
                run = results.all(cell)[0]
                check(0 < run.points < 100, f"{cell.name()}: {run.end}")
                # Of local SGD a window ends with an interval.
                least, most = (18, 18) if cell.policy == "replay" else (2, 3) if cell.policy else (0, 0)
                check(least <= len(run.windows) <= most, f"{cell.name()}: {len(run.windows)} windows")
                for window, before in zip(run.windows, [{"t": 0, "next": 0.3 if cell.policy == "replay" else cell.theta}, *run.windows]):
                    check(window["theta"] == before["next"] and window["t"] == before["t"] + window["steps"] <= 18 and window["steps"] > 0,
                          f"{run.windows}")
            check(study_lines.settled(results.all(cells[2])[0])[0] in study_cells.GRIDS["local"], "a theta of the grid")
            check("| hill over local, 100 %, group, K=2 |" in "\n".join(study.table(results)), "the table")
    finally:
        study_cells.STEPS = study_lines.STEPS = steps
        study_cells.PERIODS["hill"], study_cells.USUAL["local"] = period, usual


# ---- PyTorch ----

def torch_world(change=lambda cell, trainer: {}):
    """(by PyTorch, in one process), in which every claim holds; a box gets a tenth more than papers count."""
    found = []
    for trainer in ("torch", "alone"):
        box = {"bytes_box": lambda cell: sent(cell) * 1.1} if trainer == "torch" else {}
        found.append(study_cells.Results({cell: {seed: study_runs.Run(told(cell, **{name: of(cell) for name, of in box.items()},
                                                                           **change(cell, trainer)))
                                           for seed in (1, 2)} for cell in study.torch_cells(study_cells.Grid())}))
    return found


def torch_lines():
    """Both trainers are judged alike, side by side, and PyTorch's can fail alone."""
    cells = study.torch_cells(study_cells.Grid())
    check(len(set(cells)) == len(cells) == 20 and set(study_lines.corner_cells(study_cells.Grid())) <= set(cells), f"{len(cells)} cells")
    lines = [study.line_beside(name, study_cells.Grid(), *torch_world()) for name in study.TORCH_LINES]
    check(all(line.ok and "in one process PASS:" in line.more for line in lines), "\n".join(map(str, lines)))
    plants = {
        "R1": (study_cells.Grid().usual("gaia", 0), 0.8649),
        "R2": (study_cells.Grid().usual("local", 100), 0.8301),
        "R3": (study_cells.Grid().cell(skew=100, norm="batch"), 0.7301),
        "R4": (study_cells.Grid().cell(skew=100), 0.8699),
    }
    for name, (bad, accuracy) in plants.items():
        for trainer in ("torch", "alone"):
            planted = torch_world(lambda cell, which: {"accuracy": accuracy} if (cell, which) == (bad, trainer) else {})
            line = study.line_beside(name, study_cells.Grid(), *planted)
            check(line.ok is (trainer != "torch") and (f"in one process {'PASS' if line.ok is False else 'FAIL'}:" in line.more), str(line))


def torch_rows():
    """What is lost is lost against BSP with group normalization, and the box's bytes are those of the box."""
    rows = study.torch_table(*torch_world())
    check(len(rows) == 2 + 20, "\n".join(rows))
    check("| bsp, 100 %, batch, K=5 | 70.00 | 18.00 | 1.0x | 45.000 | 49.500 | 1.0x | 70.00 | 18.00 | 1.0x |" in rows, "\n".join(rows))
    check("| local 20, 60 %, group, K=5 | 84.11 | 3.89 | 20.0x | 2.250 | 2.475 | 20.0x | 84.11 | 3.89 | 20.0x |" in rows, "\n".join(rows))


def torch_counts():
    """A box that counts other bytes than its sites is a failure."""
    study_torch.check_counts(7, 7)
    try:
        study_torch.check_counts(7, 8)
    except study_torch.Failure as failure:
        check("7 bytes" in str(failure) and "got 8" in str(failure), str(failure))
        return
    raise AssertionError("7 bytes are 8")


def torch_site_fails():
    """A site that ends is told, with its last words, and nothing waits for the others."""
    needs_torch()
    done = subprocess.run([study_torch.SOURCES[0], "--sites", "2", "--theta", "0.5", "--algorithm", "local", "--steps", "5"],
                          capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=rig.DEADLINE_S)
    check(done.returncode == 1 and "cannot have a theta of 0.5" in done.stderr and not done.stdout, f"{done}")


def needs_torch():
    if not importlib.util.find_spec("torch"):
        raise Skip("no torch (Debian: apt install python3-torch, and run /usr/bin/python3)")
    if not pathlib.Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")).is_dir():
        raise Skip("no data (Debian: apt install dataset-fashion-mnist)")
    if not study_torch.LIBRARY.exists() or re.search(rb"__(asan|tsan|ubsan)_\w", study_torch.LIBRARY.read_bytes()):
        raise Skip("no library that can be loaded into Python")


def torch_runs():
    """Two processes of PyTorch at a box: they learn, and send what BSP sends, by the papers' count and by the box's."""
    needs_torch()
    steps, study_cells.STEPS = study_cells.STEPS, 100
    try:
        with tempfile.TemporaryDirectory() as folder:
            runner = study_runs.Runner(study_torch.SOURCES[0], pathlib.Path(folder), "valid", 1, study_torch.SOURCES, None)
            seen = []
            run, ran = runner.run(study_cells.Cell(sites=2, skew=60), 100, seen.append)
            check(ran and seen and all(re.fullmatch("step (50|100) of 100", text) for text in seen), f"{seen}")
            again, ran = runner.run(study_cells.Cell(sites=2, skew=60), 100)
            check(not ran and again.end == run.end, "what was run is not run again")
            scouted, _ = runner.run(study_cells.Grid(sites=2).scouted(study_cells.BETTER, "local", 60), 100)
    finally:
        study_cells.STEPS = steps
    model = 4 * (9 * 16 + 2 * 16 + 16 * 9 * 32 + 2 * 32 + 32 * 9 * 10 + 10)
    check(run.points > 50, f"{run.points} % are right")
    check([(window["t"], window["theta"]) for window in scouted.windows] == [(t, 1) for t in range(10, 70, 10)], f"{scouted.windows}")
    check(60 <= (100 - 60) // scouted.windows[-1]["next"] + 60 == scouted.end["exchanges"] < 100,
          f"{scouted.windows[-1]}, then {scouted.end}")
    check(run.bytes == 100 * model and run.end["bytes_early"] == 20 * model and run.end["exchanges"] == 100, f"{run.end}")
    check(run.box == run.end["bytes_wire"] and 1 < run.box / run.bytes < 1.04, f"{run.end}")


if __name__ == "__main__":
    cases = [every_line_passes, each_line_can_fail, bytes_on_the_wire, rival_is_met, rivals_by_other_rules, rivals_are_chosen,
             drift_that_is_not_followed, windows_of_other_lengths, looser_as_the_rate_falls, drift_to_another_theta, windows_can_fail_lines,
             median_of_seeds_counts, no_mark_without_a_cell, numbers_by_hand, oracle, grid, refused_arguments, process, cached, interrupted,
             stopped, progress, as_json, broken, skew_study, torch_lines, torch_rows,
             torch_counts, torch_site_fails, torch_runs]
    rig.run(cases, None if PROGRAM.exists() else f"{PROGRAM} is not there (make test-programs)")
