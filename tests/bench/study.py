#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How often should sites with skewed labels talk? The findings of SkewScout (Hsieh et al., ICML'20) on Fashion-MNIST, a PASS or
FAIL for each, and what controllers save beside the best fixed theta and beside others' rules (tests/bench/skew_rivals.h).

Usage: study.py             the quick grid: one seed, three where a line hangs on few points
       study.py --full      K = 2, 5, 10, every skew, norm and Dirichlet, seeds 1 to 10: days
       study.py --torch     the main cells by PyTorch processes at a box (study_torch.py), beside the same in one process; seed 1
       --lines R1,R6        only these lines, and the cells that they need
       --seeds A-B          these instead
       --sites 5,2,10       for these K, in this order (--full; else 5)
       --on valid           on the validation images and seeds 100 (--full: 100 to 102), where parameters are fixed
       --cached             run nothing: judge by what has run, where a study was interrupted; a line that lacks cells says so
       --jobs N             runs of one process at a time (as many as there are CPUs)
       --program FILE       instead of BUILD/tests/bench/skew_study
       --plot               study.png, too (matplotlib)
       --json               lines and runs as lines of JSON

Environment: BUILD  where skew_study is (build). Results go to BUILD/study: report.md or torch.md, and cache/ with what each run
printed, by its arguments and the program's hash, so that a study that was interrupted goes on. Of each K what lines ask for comes
first, a seed of all cells after the other, then what no line asks for.

A run is a process of skew_study and follows from its arguments bit for bit. `Points` are percentage points of accuracy of the
averaged model, `lost` those below BSP with the same norm, sites, skew and seed. Bytes are what a site sends, as the papers count
them, models that travel to be probed and what a rule asks for included; R1 and R6 go by those on the wire, as sparse exchanges are
coded, with models that travel. The oracle is the theta of a grid with the fewest bytes among those that lose at most 1.0 points; BSP
is in each grid. Numbers are medians of seeds, with the least and the most.

B2: a controller that says that it cannot is right only where the oracle is BSP; else it must send less, and lose at most 1.0 points.
B4: a phase's theta is that of the oracle among runs that have its skew from the beginning to the end. A controller is back with the
first window after which theta is within a place of the grid of that, and from which on it is so in most windows of the phase.

Exit status: 0; 1: a line FAILs; 2: a run went wrong; 130: interrupted.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import typing

from study_runs import Failure, Runner, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, SIGMA = 1500, 0.05
BETTER = "scout+"
PERIODS = {"hill": 100, BETTER: 50}  # steps of a window
WITHIN = 1.0  # points that the oracle may lose
EQUAL = 0.25  # points within which accuracies are alike
SKEWS = (0, 20, 40, 60, 80, 100)
GRIDS = {"local": (1, 2, 5, 10, 20, 50, 100), "gaia": (0, 0.02, 0.05, 0.1, 0.2, 0.3)}  # of controllers, the tightest first
# Of the oracle, and of what R5 is read from; BSP is in it, too.
FIXED_GRIDS = {"local": (2, 5, 10, 20, 50, 100), "gaia": (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)}
QUICK_GRIDS = {"local": (2, 5, 10, 20, 50), "gaia": (0.02, 0.05, 0.1, 0.2, 0.4)}
USUAL = {"local": 20, "gaia": 0.1, "dgc": 0.001}
# Of rivals; the ranges, and AdaComm's steps between looks, were found on seed 100, --on valid, at 60 % skew.
RIVALS = {"fda": (0.3, 1, 3, 10), "qsr": (0.11, 0.16, 0.24), "adacomm": (20, 50, 100)}
EVERY = 300
TRACE = (0.30, 0.15, 0.10, 0.05, 0.05, 0.10, 0.10, 0.05, 0.05, 0.05, 0.05, 0.10, 0.10, 0.15, 0.15, 0.20, 0.25, 0.30)
DRIFT = ((0, 0), (500, 100), (1000, 20))  # from a step on, percent


# ---- cells and runs ----

@dataclasses.dataclass(frozen=True)
class Cell:
    """One of the study's points, without its seed."""
    algorithm: str = "bsp"
    theta: typing.Optional[float] = None
    skew: float = 0
    norm: str = "group"
    sites: int = 5
    dirichlet: typing.Optional[float] = None
    drift: bool = False
    policy: typing.Optional[str] = None
    rival: typing.Optional[str] = None

    def words(self):
        """Arguments of skew_study."""
        words = ["--algorithm", self.algorithm, "--norm", self.norm, "--sites", self.sites, "--steps", STEPS]
        if self.theta is not None:
            words += ["--theta", self.theta]
        words += ["--dirichlet", self.dirichlet] if self.dirichlet else ["--skew", self.skew]
        if self.drift:
            words += ["--drift", ",".join(f"{step}:{percent}" for step, percent in DRIFT)]
        if self.policy == "replay":
            words += ["--policy", "replay", "--thetas", ",".join(map(str, TRACE)), "--period", STEPS // len(TRACE)]
        elif self.policy:
            words += ["--policy", self.policy, "--thetas", ",".join(map(str, GRIDS[self.algorithm])), "--period",
                      PERIODS[self.policy], *(["--sigma", SIGMA] if self.policy == "hill" else [])]
        if self.rival:
            words += ["--rival", self.rival, "--every", EVERY]
        return [str(word) for word in words]

    def bsp(self):
        """What it is measured by."""
        return dataclasses.replace(self, algorithm="bsp", theta=None, policy=None, rival=None)

    def name(self):
        where = f"Dirichlet {self.dirichlet}" if self.dirichlet else "drift" if self.drift else f"{self.skew} %"
        what = self.policy if self.policy == "replay" else f"{self.policy} over {self.algorithm}" if self.policy else \
            self.rival or self.algorithm
        theta = f" {self.theta:g}" if self.theta is not None and not self.policy else ""
        return f"{what}{theta}, {where}, {self.norm}, K={self.sites}"


class Results:
    """{cell: {seed: Run}}; cells that were not run have none."""

    def __init__(self, runs):
        self.runs = runs

    def has(self, cell):
        return bool(self.runs.get(cell))

    def all(self, cell):
        return list(self.runs.get(cell, {}).values())

    def pairs(self, cell, beside):
        """Runs of both with the same seed."""
        of, others = self.runs.get(cell, {}), self.runs.get(beside, {})
        return [(of[seed], others[seed]) for seed in sorted(of) if seed in others]

    def lost(self, cell, beside=None):
        return Spread([b.points - a.points for a, b in self.pairs(cell, beside or cell.bsp())])

    def saved(self, cell):
        return Spread([b.bytes / max(a.bytes, 1) for a, b in self.pairs(cell, cell.bsp())])

    def saved_on_wire(self, cell):
        return Spread([b.wire / max(a.wire, 1) for a, b in self.pairs(cell, cell.bsp())])

    def bytes(self, cell):
        return Spread([run.bytes for run in self.all(cell)])

    def points(self, cell):
        return Spread([run.points for run in self.all(cell)])

    def oracle(self, cells):
        """Of those that lose little, the cell with the fewest bytes."""
        good = [cell for cell in cells if self.has(cell) and self.lost(cell).median <= WITHIN]
        return min(good, key=lambda cell: self.bytes(cell).median, default=None)


class Spread:
    def __init__(self, values):
        if not values:
            raise Failure("a line asks for a cell that was not run")
        self.median, self.least, self.most = statistics.median(values), min(values), max(values)

    def __format__(self, form):
        text = format(self.median, form)
        return text if self.least == self.most else f"{text} ({self.least:{form}} to {self.most:{form}})"


def spearman(xs, ys):
    """Rank correlation; of equals the mean rank. None: one of them is constant."""
    def ranks(values):
        return [sum(v < value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    return statistics.correlation(ranks(xs), ranks(ys))


def settled(run, first):
    """(theta, AL): in windows of the second half, the theta that most of them were at, of equals the later, and its median AL."""
    thetas = [first] + [window["theta"] for window in run.windows[:-1]]  # a window says which theta is next
    half = [(theta, window["loss"]) for theta, window in zip(thetas, run.windows)][len(run.windows) // 2:]
    theta = max(reversed([theta for theta, _ in half]), key=[theta for theta, _ in half].count)
    losses = [loss for at, loss in half if at == theta and loss is not None]
    return theta, statistics.median(losses) if losses else float("inf")


# ---- lines ----

class Line:
    """`ok`: True, False, or None where there is no mark."""

    def __init__(self, name, ok, text, more=()):
        self.name, self.ok, self.text, self.more = name, ok, text, list(more)

    def __str__(self):
        mark = {True: "PASS", False: "FAIL", None: "----"}[self.ok]
        return "\n".join([f"{mark} {self.name}: {self.text}", *(f"       {line}" for line in self.more)])


class Grid:
    """Which cells there are, for K sites."""

    def __init__(self, full=False, sites=5):
        self.full, self.sites = full, sites

    def cell(self, algorithm="bsp", theta=None, skew=0, **more):
        return Cell(algorithm, theta, skew, sites=more.pop("sites", self.sites), **more)

    def usual(self, algorithm, skew):
        return self.cell(algorithm, USUAL[algorithm], skew)

    def fixed(self, algorithm, skew):
        """Among which the oracle chooses, the tightest first."""
        tried = FIXED_GRIDS[algorithm] if self.full else QUICK_GRIDS[algorithm]
        return [self.cell(skew=skew), *(self.cell(algorithm, theta, skew) for theta in tried)]

    def scouted(self, policy, algorithm, skew=0, **more):
        """By the better one, which measures at the tightest theta first, or by the paper's."""
        first = GRIDS[algorithm][0] if policy == BETTER else USUAL[algorithm]
        return self.cell(algorithm, first, skew, policy=policy, **more)

    def rivals(self, rival, skew):
        return [self.cell("local", theta, skew, rival=rival) for theta in RIVALS[rival]]


def corner_cells(grid):
    return [grid.cell(skew=skew, norm=norm) for skew in (0, 100) for norm in ("group", "batch")] + \
        [grid.usual(algorithm, skew) for algorithm in ("gaia", "local", "dgc") for skew in (0, 100)]


def line_r1(grid, results):
    more, ok = [], True
    for algorithm in ("gaia", "local"):
        cell = grid.usual(algorithm, 0)
        lost, saved = results.lost(cell), results.saved_on_wire(cell)
        ok = ok and lost.median <= 1.5 and saved.median >= 10
        more.append(f"{cell.name()}: {lost:.2f} points lost, {saved:.1f}x fewer bytes on the wire, "
                    f"{results.saved(cell):.1f}x as papers count them")
    return Line("R1", ok, "IID, Gaia and FedAvg lose at most 1.5 points at 10x fewer bytes on the wire", more)


def line_r2(grid, results):
    more, ok = [], True
    for algorithm in ("gaia", "local", "dgc"):
        cell = grid.usual(algorithm, 100)
        lost = results.lost(cell)
        ok = ok and lost.median >= 5
        more.append(f"{cell.name()}: {lost:.2f} points lost, {results.saved(cell):.1f}x fewer bytes")
    return Line("R2", ok, "at 100 % skew Gaia, FedAvg and DGC lose 5 points or more", more)


def line_norm(grid, results, name, norm, most, least, text):
    cell, even = grid.cell(skew=100, norm=norm), grid.cell(norm=norm)
    lost = results.lost(cell, even)
    return Line(name, least <= lost.median <= most, text,
                [f"{results.points(even):.2f} IID, {results.points(cell):.2f} at 100 %: {lost:.2f} points lost"])


def line_r3(grid, results):
    return line_norm(grid, results, "R3", "batch", 100, 15, "BSP with batch normalization loses 15 points or more at 100 % skew")


def line_r4(grid, results):
    return line_norm(grid, results, "R4", "group", 1, -100, "BSP with group normalization loses at most 1 point at 100 % skew")


def r5_cells(grid):
    return [cell for algorithm in GRIDS for skew in SKEWS for cell in grid.fixed(algorithm, skew)]


def rising(values):
    """The nearest that never falls, by least squares: neighbours that do are one, at their mean."""
    blocks = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, count), (before, others) = blocks.pop(), blocks.pop()
            blocks.append(((mean * count + before * others) / (count + others), count + others))
    return [mean for mean, count in blocks for _ in range(count)]


def reach(lost):
    """How far along a grid little is lost, from 0 at its first: between two of it as far as a line would say."""
    lost = rising(lost)
    for i, (here, there) in enumerate(zip(lost, lost[1:])):
        if there > WITHIN:
            return i + max(WITHIN - here, 0) / (there - here)
    return len(lost) - 1


def name_reach(cells, place):
    """The theta there, by logarithms; between BSP and the first theta there is none to name."""
    low, part = int(place), place - int(place)
    if low == 0:
        return "BSP" if part == 0 else f"below {cells[1].theta:g}"
    if low == len(cells) - 1:
        return f"{cells[-1].theta:g} or more"
    return f"{cells[low].theta * (cells[low + 1].theta / cells[low].theta) ** part:.2g}"


def line_r5(grid, results):
    more, ok = [], True
    for algorithm in GRIDS:
        fixed = [grid.fixed(algorithm, skew) for skew in SKEWS]
        lost = [results.lost(grid.usual(algorithm, skew)).median for skew in SKEWS]
        places = [reach([results.lost(cell).median for cell in cells]) for cells in fixed]
        needed = ", ".join(name_reach(cells, place) for cells, place in zip(fixed, places))
        for what, values, shown in (("points lost", lost, ", ".join(f"{value:.2f}" for value in lost)),
                                    ("theta needed", [-place for place in places], needed)):
            rank = spearman(SKEWS, values)
            ok = ok and rank is not None and rank >= 0.9
            more.append(f"{algorithm}, {what}, at {SKEWS} %: {shown}; Spearman {'undefined' if rank is None else f'{rank:.2f}'}")
    return Line("R5", ok, "loss and the theta needed are monotone in skew (Spearman of .9 or more)", more)


def r6_cells(grid):
    return [cell for algorithm in GRIDS for skew in SKEWS
            for cell in (grid.scouted("hill", algorithm, skew), grid.cell(skew=skew))]


def line_r6(grid, results):
    more, ok = [], True
    for algorithm in GRIDS:
        for skew in SKEWS:
            cell = grid.scouted("hill", algorithm, skew)
            found = [settled(run, cell.theta) for run in results.all(cell)]
            loss, saved = Spread([al for _, al in found]), results.saved_on_wire(cell)
            good = loss.median <= SIGMA and (skew != 20 or saved.median >= 20)
            ok = ok and good
            more.append(f"{'     ' if good else 'loses'} {cell.name()}: AL {loss:.3f} at theta "
                        f"{'/'.join(f'{theta:g}' for theta in sorted({theta for theta, _ in found}))}, {saved:.1f}x fewer bytes "
                        f"on the wire, {results.saved(cell):.1f}x as papers count them, {results.lost(cell):.2f} points lost")
    return Line("R6", ok, f"the faithful controller stays within its sigma ({SIGMA}) at every skew, and saves 20x on the wire at 20 %", more)


def r7_cells(grid):
    return [cell for skew in ((20, 100) if grid.full else (100,))
            for cell in (grid.cell(skew=skew, sites=2), grid.cell("gaia", skew=skew, sites=2, policy="replay"))]


def line_r7(grid, results):
    return Line("R7", None, f"the authors' trace of 18 thetas, {STEPS // len(TRACE)} steps each, Gaia, K=2",
                [f"{cell.name()}: {results.lost(cell):.2f} points lost, {results.saved(cell):.1f}x fewer bytes"
                 for cell in r7_cells(grid) if cell.policy])


# ---- beyond the paper ----

def late_bytes(run):
    """From 20 % of the run on; of models that travelled, all."""
    return run.bytes - run.end["bytes_early"]


def b1_cells(grid):
    return r5_cells(grid) + [grid.scouted(BETTER, algorithm, skew) for algorithm in GRIDS for skew in SKEWS[1:5]]


def line_b1(grid, results):
    more, ok = [], True
    for algorithm in GRIDS:
        for skew in SKEWS[1:5]:
            cell, oracle = grid.scouted(BETTER, algorithm, skew), results.oracle(grid.fixed(algorithm, skew))
            lost, pairs = results.lost(cell), results.pairs(cell, oracle)
            late = Spread([late_bytes(run) / late_bytes(best) for run, best in pairs])
            whole = Spread([run.bytes / best.bytes for run, best in pairs])
            good = lost.median <= WITHIN and late.median <= 1.5
            ok = ok and good
            more.append(f"{'     ' if good else 'loses'} {cell.name()}: {late:.2f} times the bytes of {oracle.name()} from 20 % "
                        f"on, {whole:.2f} of the whole run, {lost:.2f} points lost")
    return Line("B1", ok, f"{BETTER} needs at most 1.5 times the oracle's bytes and loses at most 1.0 points at 20 to 80 %", more)


def b2_cells(grid):
    return [cell for algorithm in GRIDS for cell in (*grid.fixed(algorithm, 100), grid.scouted(BETTER, algorithm, 100))]


def line_b2(grid, results):
    more, ok = [], True
    for algorithm in GRIDS:
        cell = grid.scouted(BETTER, algorithm, 100)
        lost, saved = results.lost(cell), results.saved(cell)
        said = all(any(window["action"] == "cannot" for window in run.windows) for run in results.all(cell))
        oracle = results.oracle(grid.fixed(algorithm, 100))
        good = lost.median <= WITHIN and saved.median > 1 or said and oracle == cell.bsp()
        ok = ok and good
        more.append(f"{'     ' if good else 'loses'} {cell.name()}: {saved:.2f}x fewer bytes, {lost:.2f} points lost"
                    f"{', and says that no theta would do' if said else ''}; the oracle, {oracle.name()}: "
                    f"{results.saved(oracle):.2f}x, {results.lost(oracle):.2f} points lost")
    return Line("B2", ok, f"at 100 % {BETTER} beats BSP in bytes, or says that it cannot where no theta would", more)


def b3_cells(grid):
    return [cell for skew in SKEWS
            for cell in (grid.cell(skew=skew), grid.scouted(BETTER, "local", skew),
                         *(theirs for rival in RIVALS for theirs in grid.rivals(rival, skew)))]


def cheapest(results, cells, points):
    """The fewest bytes among cells that are about as accurate."""
    return min((results.bytes(cell).median for cell in cells if results.points(cell).median >= points - EQUAL), default=None)


def line_b3(grid, results):
    more, ok = [], True
    for rival in RIVALS:
        wins, told = 0, []
        for skew in SKEWS:
            cell = grid.scouted(BETTER, "local", skew)
            own = results.bytes(cell).median
            theirs = cheapest(results, grid.rivals(rival, skew), results.points(cell).median)
            win = results.lost(cell).median <= WITHIN if theirs is None else own < theirs
            wins += win
            told.append(f"{skew} % {'wins' if win else 'loses'} "
                        f"({'none as accurate' if theirs is None else f'{theirs / own:.2f} times the bytes'})")
        ok = ok and wins >= 4
        more.append(f"{rival}: {wins} of {len(SKEWS)}: {'; '.join(told)}")
    return Line("B3", ok, f"{BETTER} beats FDA, QSR and AdaComm, each with its best theta of a grid at each skew, on bytes at "
                          f"equal accuracy in at least 4 of {len(SKEWS)} skews", more)


def b4_cells(grid):
    return [grid.scouted(BETTER, "local", drift=True), grid.cell(drift=True),
            *(cell for _, skew in DRIFT for cell in grid.fixed("local", skew))]


def phase_goals(grid, results):
    """Where in the controllers' grid the oracle of each phase's skew is."""
    oracles = [results.oracle(grid.fixed("local", skew)) for _, skew in DRIFT]
    return [GRIDS["local"].index(oracle.theta or GRIDS["local"][0]) for oracle in oracles]


def phases(run):
    """Of each phase the places in the grid that its windows chose."""
    places = [GRIDS["local"].index(window["theta"]) for window in run.windows]
    starts = [step * len(places) // STEPS for step, _ in DRIFT] + [len(places)]
    return [places[begin:end] for begin, end in zip(starts, starts[1:])]


def windows_to(places, goal):
    """Until theta is near the goal, and mostly so from then on; infinite: it never is."""
    near = [abs(place - goal) <= 1 for place in places]
    return next((i + 1 for i in range(len(near)) if near[i] and sum(near[i:]) > len(near[i:]) / 2), float("inf"))


def phase_ends(run):
    """Where in the grid phases end."""
    return [statistics.median_low(places[len(places) // 2:]) for places in phases(run)]


def follows_drift(ends, goals):
    """Is theta tighter where the oracle is, as labels are more skewed? One that never moves is back at once."""
    phases = list(zip((skew for _, skew in DRIFT), goals, ends))
    return all(end < other_end for skew, goal, end in phases for other, other_goal, other_end in phases
               if skew > other and goal < other_goal)


def line_b4(grid, results):
    def thetas(places):
        return [GRIDS["local"][place] for place in places]

    cell, goals = b4_cells(grid)[0], phase_goals(grid, results)
    runs = results.all(cell)
    back, settles = ([[windows_to(places, goal) for places, goal in zip(phases(run)[1:], to[1:])] for run, to in of]
                     for of in ([(run, goals) for run in runs], [(run, phase_ends(run)) for run in runs]))
    ok = all(follows_drift(phase_ends(run), goals) and max(counts) <= 5 for run, counts in zip(runs, back))
    return Line("B4", ok, f"{BETTER} is back within 5 windows after drift, and tighter where labels are more skewed",
                [f"{cell.name()}: windows after each change, a run each: {back} to the oracles {thetas(goals[1:])}, {settles} to "
                 f"thetas {[thetas(phase_ends(run)) for run in runs]} where phases end; "
                 f"{results.lost(cell):.2f} points lost, {results.saved(cell):.1f}x fewer bytes"])


def rivals_cells(grid):
    return r5_cells(grid) + [cell for skew in SKEWS for rival in RIVALS for cell in grid.rivals(rival, skew)]


def line_rivals(grid, results):
    more = []
    for skew in SKEWS:
        best = [(rival, results.oracle([grid.cell(skew=skew), *grid.rivals(rival, skew)])) for rival in RIVALS]
        best += [(algorithm, results.oracle(grid.fixed(algorithm, skew))) for algorithm in GRIDS]
        more.append(f"{skew} %: " + ", ".join(
            f"{name} {'BSP' if cell == cell.bsp() else f'{cell.theta:g}'}: {results.saved(cell):.1f}x" for name, cell in best))
    return Line("rivals", None, f"what each saves with its best theta that loses at most {WITHIN} points", more)


LINES = {
    "R1": (corner_cells, line_r1), "R2": (corner_cells, line_r2), "R3": (corner_cells, line_r3), "R4": (corner_cells, line_r4),
    "R5": (r5_cells, line_r5), "R6": (r6_cells, line_r6), "R7": (r7_cells, line_r7), "rivals": (rivals_cells, line_rivals),
    "B1": (b1_cells, line_b1), "B2": (b2_cells, line_b2), "B3": (b3_cells, line_b3), "B4": (b4_cells, line_b4),
}


def judge(name, grid, results):
    lacks = [cell for cell in dict.fromkeys(LINES[name][0](grid)) if not results.pairs(cell, cell.bsp())]
    found = Line(name, None, f"not judged: {len(lacks)} of its cells have no run, or no BSP of the same seed beside it",
                 [cell.name() for cell in lacks[:3]]) if lacks else LINES[name][1](grid, results)
    if grid.sites != 5:
        found.name, found.more, found.ok = f"{name} K={grid.sites}", [*found.more, "marks are for K=5"], None
    return found


# ---- the same by PyTorch, through a box ----

TORCH_LINES = ("R1", "R2", "R3", "R4")
TORCH_SKEWS = (100, 0, 60)  # those first that lines hang on


def torch_cells(grid):
    """The main cells."""
    return [grid.cell(skew=skew, norm="batch") for skew in (0, 100)] + \
        [cell for skew in TORCH_SKEWS
         for cell in (grid.cell(skew=skew), grid.usual("gaia", skew), grid.usual("local", skew), grid.usual("dgc", skew),
                      grid.scouted("hill", "local", skew), grid.scouted(BETTER, "local", skew))]


def beside_groups(cell):
    """BSP with group normalization, by which all of these cells are measured."""
    return dataclasses.replace(cell.bsp(), norm="group")


def line_beside(name, grid, results, alone):
    """What PyTorch's runs say, with what those of one process say of the same seeds."""
    line, other = judge(name, grid, results), judge(name, grid, alone)
    mark = {True: "PASS", False: "FAIL", None: "----"}[other.ok]
    line.more += [f"in one process {mark}:", *(f"  {text}" for text in other.more)]
    return line


def torch_table(results, alone):
    def of(found, cell):
        beside = found.pairs(cell, beside_groups(cell))
        lost, saved = found.lost(cell, beside_groups(cell)), Spread([b.bytes / max(a.bytes, 1) for a, b in beside])
        return f"{found.points(cell):.2f} | {lost:.2f} | {saved:.1f}x"

    lines = ["| cell | points | lost | fewer bytes | MB a site | MB at the box | fewer there | in one process: points | lost | fewer bytes |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for cell in sorted(results.runs, key=lambda of: (of.skew, of.norm != "group")):
        pairs = results.pairs(cell, beside_groups(cell))
        lines.append(f"| {cell.name()} | {of(results, cell)} | {results.bytes(cell).median / 1e6:.3f} | "
                     f"{statistics.median(run.box for run, _ in pairs) / 1e6:.3f} | "
                     f"{Spread([b.box / a.box for a, b in pairs]):.1f}x | {of(alone, cell)} |")
    return lines


# ---- running ----

def others(grid):
    """Cells of --full that no line asks for: other norms, Dirichlet."""
    places = [{"skew": skew} for skew in SKEWS] + [{"dirichlet": alpha} for alpha in (0.1, 0.5, 1)]
    norms = ("none", "batch", "group")
    return [grid.cell(algorithm, USUAL.get(algorithm), norm=norm, **place)
            for algorithm in ("bsp", "gaia", "local", "dgc") for norm in norms for place in places] + \
        [grid.scouted("hill", algorithm, **place) for algorithm in GRIDS for place in places[len(SKEWS):]]


def plan(grids, names, options):
    """[(cell, seed)], each once: of each grid what lines ask for, a seed after the other, then the rest."""
    stages = [(grid, [cell for name in names for cell in LINES[name][0](grid)]) for grid in grids]
    stages += [(grid, others(grid)) for grid in grids if grid.full and len(names) == len(LINES)]
    wanted = []
    for grid, cells in stages:
        corners = set(corner_cells(grid))
        pairs = [(cell, seed) for cell in cells for seed in seeds_of(grid, cell in corners, options)]
        wanted += sorted(pairs, key=lambda pair: pair[1])
    return list(dict.fromkeys(wanted))


def seeds_of(grid, corner, options):
    if options.seeds:
        return options.seeds
    if options.on == "valid":
        return range(100, 103) if grid.full else (100,)
    return range(1, 11) if grid.full else (1, 2, 3) if corner else (1,)


# ---- report ----

def table(results):
    lines = ["| cell | seeds | points | lost | fewer bytes | MB a site |", "|---|---|---|---|---|---|"]
    for cell in sorted(results.runs, key=lambda of: (of.sites, of.norm, of.drift, of.dirichlet or 0, of.skew, of.name())):
        beside = f"{results.lost(cell):.2f} | {results.saved(cell):.1f}x" if results.pairs(cell, cell.bsp()) else "| "
        lines.append(f"| {cell.name()} | {len(results.all(cell))} | {results.points(cell):.2f} | {beside} | "
                     f"{results.bytes(cell).median / 1e6:.3f} |")
    return lines


def plot(results, path):
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        say("no matplotlib: study.png left out (deploy/deps.sh bench)")
        return
    figure, axes = pyplot.subplots(2, 3, figsize=(15, 9), sharex=True)
    for axis, skew in zip(axes.flat, SKEWS):
        kinds = {}
        for cell in results.runs:
            if (cell.skew, cell.norm, cell.sites) == (skew, "group", 5) and not (cell.dirichlet or cell.drift):
                kinds.setdefault(cell.policy and f"{cell.policy}, {cell.algorithm}" or cell.rival or cell.algorithm, []).append(
                    (results.bytes(cell).median / 1e6, results.points(cell).median))
        for kind, points in sorted(kinds.items()):
            axis.plot(*zip(*sorted(points)), marker="o", label=kind)
        axis.set(title=f"{skew} % skew", xscale="log", xlabel="MB a site", ylabel="accuracy, %")
    axes.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def report(lines, results, options, program_hash):
    cells, runs = len(results.runs), sum(len(of) for of in results.runs.values())
    return "\n".join(["# The study on skewed sites", "",
                      f"{'Full' if options.full else 'Quick'} grid, scored on the {options.on} images; {cells} cells, {runs} runs "
                      f"of {STEPS} steps; skew_study {program_hash[:12]}.", "",
                      "```", *map(str, lines), "```", "", *table(results), ""])


def torch_report(lines, results, alone, options, program_hash):
    seeds = sorted({seed for runs in results.runs.values() for seed in runs})
    return "\n".join(["# The study on skewed sites, by PyTorch through a box", "",
                      f"`study.py --torch`, commit {commit()}, scored on the {options.on} images, seeds {', '.join(map(str, seeds))}; "
                      f"{STEPS} steps; sources {program_hash[:12]}.", "", "```", *map(str, lines), "```", "", *torch_table(results, alone), ""])


def commit():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def print_json(lines, trainers):
    for line in lines:
        print(json.dumps({"study": "line", "line": line.name, "ok": line.ok, "text": line.text, "more": line.more}))
    for trainer, results in trainers.items():
        for cell, runs in results.runs.items():
            for seed, run in runs.items():
                beside = results.runs.get(beside_groups(cell), {}).get(seed)
                print(json.dumps({"study": "cell", "trainer": trainer, "cell": cell.name(), **dataclasses.asdict(cell), "seed": seed,
                                  "points": run.points, "lost": beside and beside.points - run.points, "bytes": run.bytes,
                                  "bytes_box": run.box, "saved": beside and beside.bytes / max(run.bytes, 1)}))


def numbers(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def counts(text):
    found = [int(word) for word in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return found


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--full", action="store_true", help="days")
    parser.add_argument("--torch", action="store_true", help="the main cells by PyTorch processes at a box, too")
    parser.add_argument("--lines", help=f"of {', '.join(LINES)}")
    parser.add_argument("--seeds", type=numbers, metavar="A[-B]")
    parser.add_argument("--sites", type=counts, metavar="K,...")
    parser.add_argument("--cached", action="store_true", help="judge by what has run")
    parser.add_argument("--on", choices=("valid", "test"), default="test")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    build = ROOT / os.environ.get("BUILD", "build")
    parser.add_argument("--program", type=pathlib.Path, default=build / "tests/bench/skew_study")
    parser.add_argument("--plot", action="store_true", help="study.png, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.torch and (options.full or options.plot):
        parser.error("--torch has cells of its own: neither --full nor --plot")
    if options.torch and (options.sites or options.cached):
        parser.error("--torch has 5 sites, and runs what was not run: neither --sites nor --cached")
    known = TORCH_LINES if options.torch else tuple(LINES)
    options.lines, options.folder = options.lines.split(",") if options.lines else known, build / "study"
    for name in options.lines:
        if name not in known:
            parser.error(f"no line {name}: there are {', '.join(known)}")
    return options


def torch_study(options, runner):
    """Lines, text, and what each trainer found."""
    import study_torch

    grid = Grid()
    cells = torch_cells(grid) if options.lines == TORCH_LINES else corner_cells(grid)
    wanted = [(cell, seed) for seed in options.seeds or ((100,) if options.on == "valid" else (1,)) for cell in cells]
    say(f"{len(wanted)} runs of {grid.sites} PyTorch processes and a box, a minute of CPU each; then as many in one process")
    torch = Runner(ROOT / "tests/bench/study_torch.py", options.folder, options.on, 1, study_torch.SOURCES, None)
    results = Results(torch.all(wanted))
    alone = Results(runner.all(wanted))
    lines = [line_beside(name, grid, results, alone) for name in options.lines]
    return lines, torch_report(lines, results, alone, options, torch.hash), {"torch": results, "alone": alone}


def grid_study(options, runner):
    """Likewise."""
    grids = [Grid(options.full, sites) for sites in options.sites or ((5, 2, 10) if options.full else (5,))]
    wanted = plan(grids, options.lines, options)
    results = Results(runner.kept(wanted) if options.cached else runner.all(wanted))
    lines = [judge(name, grid, results) for grid in grids for name in options.lines]
    if options.plot:
        plot(results, options.folder / "study.png")
    return lines, report(lines, results, options, runner.hash), {"alone": results}


def main(words):
    options = arguments(words)
    runner = Runner(options.program, options.folder, options.on, options.jobs)
    lines, text, trainers = (torch_study if options.torch else grid_study)(options, runner)
    path = options.folder / ("torch.md" if options.torch else "report.md")
    path.write_text(text)
    if options.json:
        print_json(lines, trainers)
    else:
        print(*lines, sep="\n")
        if options.torch:
            print("", *torch_table(trainers["torch"], trainers["alone"]), sep="\n")
    say(f"{path}")
    return 1 if any(line.ok is False for line in lines) else 0


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        say(failure)
        sys.exit(2)
    except KeyboardInterrupt:
        say("interrupted; what has run is kept, and the same command goes on from there")
        sys.exit(130)
