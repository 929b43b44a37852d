# SPDX-License-Identifier: Apache-2.0
"""The study's lines, for study.py: which cells each asks for, and whether it PASSes or FAILs by what was found there. R1 to R7 are
the paper's findings, B1 to B4 go beyond it.

B3: scout+ has one set of constants for all skews, fixed on validation images and seeds 100 to 102. A rival has the same: one theta
for all skews, since who uses its rule has to set one, and does not know the skew. It is the one that sends least there of those that
lose at most 1.0 points at every skew (CHOSEN). Bytes are those of the whole run, so scout+ pays for what it measures at first.
Accuracies are equal within 1.0 points of the best of the two and BSP: scout+ aims at that, and the oracle and rivals' thetas are
chosen by it. Printed beside it, and not judged: in how many skews scout+ also is at most 0.25 points below the rival; the rival's
other thetas; and what nobody can know beforehand, the best theta at each skew on the test images themselves, of those that are at
most 0.25 points below scout+, by bytes of the whole run, and by those from 20 % of it on.
B2: a controller that says that it cannot is right only where the oracle is BSP; else it must send less, and lose at most 1.0 points.
B4: a phase's theta is that of the oracle among runs that have its skew from the beginning to the end. A controller is back with the
first window after which theta is near, and from which on it is so in most of the phase's steps: within a place of the grid of that;
when the learning rate has fallen, looser as well, for the oracle's theta is one for all of a run, and as much is lost at a looser
one then. What that costs shows in the points lost. Windows are those that the controller has; where they are shorter than a period,
as scout+'s are while it measures, it is back in time as well after as many steps as 5 of a period have.
"""
import bisect
import statistics

from study_cells import (BETTER, CHOSEN, DRIFT, EQUAL, GRIDS, LATE, NEVER, PERIODS, RIVALS, SIGMA, SKEWS, STEPS, TRACE, USUAL, WITHIN,
                         Spread)


def spearman(xs, ys):
    """Rank correlation; of equals the mean rank. None: one of them is constant."""
    def ranks(values):
        return [sum(v < value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    return statistics.correlation(ranks(xs), ranks(ys))


def settled(run):
    """(theta, AL): in windows that end in the second half, the theta of most of their steps, of equals the later, and its median AL."""
    half = [window for window in run.windows if window["t"] > STEPS / 2]
    theta = max((window["theta"] for window in reversed(half)),
                key=lambda theta: sum(window["steps"] for window in half if window["theta"] == theta))
    losses = [window["loss"] for window in half if window["theta"] == theta and window["loss"] is not None]
    return theta, statistics.median(losses) if losses else float("inf")


# ---- lines ----

class Line:
    """`ok`: True, False, or None where there is no mark."""

    def __init__(self, name, ok, text, more=()):
        self.name, self.ok, self.text, self.more = name, ok, text, list(more)

    def __str__(self):
        mark = {True: "PASS", False: "FAIL", None: "----"}[self.ok]
        return "\n".join([f"{mark} {self.name}: {self.text}", *(f"       {line}" for line in self.more)])


def corner_cells(grid):
    return [grid.cell(skew=skew, norm=norm) for skew in (0, 100) for norm in ("group", "batch")] + \
        [grid.usual(algorithm, skew) for algorithm in ("gaia", "local", "dgc") for skew in (0, 100)]


def steady_cells(grid):
    """Of the quick grid, those that have three seeds: points lost differ by some tenths from one to another, and lines hang on that."""
    return corner_cells(grid) + [grid.cell(skew=skew) for skew in SKEWS] + [grid.scouted("hill", algorithm, 20) for algorithm in GRIDS] + \
        [grid.scouted(BETTER, algorithm, skew) for algorithm in GRIDS for skew in SKEWS]


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
            found = [settled(run) for run in results.all(cell)]
            loss, saved = Spread([al for _, al in found]), results.saved_on_wire(cell)
            good = loss.median <= SIGMA and (skew != 20 or saved.median >= 20)
            ok = ok and good
            more.append(f"{'     ' if good else 'loses'} {cell.name()}: AL {loss:.3f} at theta "
                        f"{'/'.join(f'{theta:g}' for theta in sorted({theta for theta, _ in found}))}, {saved:.1f}x fewer bytes "
                        f"on the wire, {results.saved(cell):.1f}x as papers count them, {results.lost(cell):.2f} points lost")
    return Line("R6", ok, f"the faithful controller stays within its sigma ({SIGMA}) at every skew, and saves 20x on the wire at 20 %",
                more)


def r7_cells(grid):
    return [cell for skew in ((20, 100) if grid.full else (100,))
            for cell in (grid.cell(skew=skew, sites=2), grid.cell("gaia", skew=skew, sites=2, policy="replay"))]


def line_r7(grid, results):
    return Line("R7", None, f"the authors' trace of 18 thetas, {STEPS // len(TRACE)} steps each, Gaia, K=2",
                [f"{cell.name()}: {results.lost(cell):.2f} points lost, {results.saved(cell):.1f}x fewer bytes"
                 for cell in r7_cells(grid) if cell.policy])


# ---- beyond the paper ----

def b1_cells(grid):
    return r5_cells(grid) + [grid.scouted(BETTER, algorithm, skew) for algorithm in GRIDS for skew in SKEWS[1:5]]


def line_b1(grid, results):
    more, ok = [], True
    for algorithm in GRIDS:
        for skew in SKEWS[1:5]:
            cell, oracle = grid.scouted(BETTER, algorithm, skew), results.oracle(grid.fixed(algorithm, skew))
            lost, pairs = results.lost(cell), results.pairs(cell, oracle)
            late = Spread([run.late / best.late for run, best in pairs])
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
            for cell in (grid.cell(skew=skew), grid.scouted(BETTER, "local", skew), *(
                theirs for rival in RIVALS for theirs in (grid.rival(rival, CHOSEN[rival], skew), *grid.rivals(rival, skew))))]


def meets(results, own, theirs):
    """"wins", "loses" or "neither": by bytes of the whole run where both accuracies are within WITHIN points of the best of these two
    and BSP; else who is within beats who is not."""
    lost = [results.lost(cell).median for cell in (own, theirs)]
    fine = [round(each - min(0, *lost), 6) <= WITHIN for each in lost]
    more = results.bytes(own).median - results.bytes(theirs).median
    if fine[0] != fine[1]:
        return "wins" if fine[0] else "loses"
    return "neither" if more == 0 or not fine[0] else "wins" if more < 0 else "loses"


def with_one_theta(grid, results, rival, theta):
    """How scout+ meets a rival that has this theta at every skew."""
    return [meets(results, grid.scouted(BETTER, "local", skew), grid.rival(rival, theta, skew)) for skew in SKEWS]


def with_hindsight(grid, results, rival, sent):
    """Likewise, the rival with the theta that at this skew sends least among those as accurate: words, and what is told of each."""
    words, told = [], []
    for skew in SKEWS:
        own = grid.scouted(BETTER, "local", skew)
        alike = [cell for cell in grid.rivals(rival, skew) if results.points(cell).median >= results.points(own).median - EQUAL]
        best = min(alike, key=lambda cell: sent(cell).median, default=None)
        wins = sent(own).median < sent(best).median if best else results.lost(own).median <= WITHIN
        words.append("wins" if wins else "loses")
        told.append(f"{skew} % {words[-1]}, " + (f"{best.theta:g}: {sent(best).median / sent(own).median:.2f} times the bytes" if best else
                                                 "none as accurate"))
    return words, told


def won(words):
    return f"{words.count('wins')} of {len(SKEWS)}"


def against(grid, results, rival):
    """In how many skews scout+ wins, and what is told of it: of the rival's one theta, and what is not judged."""
    theta, told, close = CHOSEN[rival], [], []
    words = with_one_theta(grid, results, rival, theta)
    for skew, word in zip(SKEWS, words):
        own, theirs = grid.scouted(BETTER, "local", skew), grid.rival(rival, theta, skew)
        lost, theirs_lost = results.lost(own).median, results.lost(theirs).median
        told.append(f"{skew} % {word}, {results.bytes(theirs).median / results.bytes(own).median:.2f} times the bytes, {theirs_lost:.2f} points "
                    f"lost to {lost:.2f}")
        close += [word] if round(lost - theirs_lost, 6) <= EQUAL else []
    others = ", ".join(f"{cell.theta:g}: {won(with_one_theta(grid, results, rival, cell.theta))}" for cell in grid.rivals(rival, 0)
                       if cell.theta != theta)
    more = [f"{rival} {theta:g}: {won(words)}: {'; '.join(told)}",
            f"  where no more than {EQUAL} points more are lost than by the rival: {won(close)}" +
            (f"; with another theta for all skews: {others}" if others else "")]
    for name, sent in (("", results.bytes), (", bytes from 20 % on", results.late_bytes)) if others else ():
        best, told = with_hindsight(grid, results, rival, sent)
        more.append(f"  the best theta at each skew, with hindsight{name}: {won(best)}: {'; '.join(told)}")
    return words.count("wins"), more


def line_b3(grid, results):
    found = [against(grid, results, rival) for rival in RIVALS]
    return Line("B3", all(wins >= 4 for wins, _ in found),
                f"{BETTER} beats FDA, QSR and AdaComm, each with one theta for all skews, on bytes at equal "
                f"accuracy (within {WITHIN} points of the best) in at least 4 of {len(SKEWS)} skews",
                [text for _, more in found for text in more])


def choice_cells(grid):
    return [cell for skew in SKEWS for cell in (grid.cell(skew=skew), *(theirs for rival in RIVALS for theirs in grid.rivals(rival, skew)))]


def choose(grid, results, rival):
    """(theta, [(theta, points lost where it loses most, times fewer bytes)]): among those of its grid that lose at most 1.0 points at
    every skew the one that sends least, by the geometric mean of skews; if there is none, the one that loses least where it loses
    most."""
    found = []
    for cells in zip(*(grid.rivals(rival, skew) for skew in SKEWS)):
        found.append((cells[0].theta, max(results.lost(cell).median for cell in cells),
                      statistics.geometric_mean(results.saved(cell).median for cell in cells)))
    safe = [each for each in found if round(each[1], 6) <= WITHIN]
    return (max(safe, key=lambda each: each[2]) if safe else min(found, key=lambda each: each[1]))[0], found


def line_choice(grid, results):
    more = []
    for rival in RIVALS:
        theta, found = choose(grid, results, rival)
        more.append(f"{rival} {theta:g}" + ("" if theta == CHOSEN[rival]
                                            else f", and not {CHOSEN[rival]:g}, which B3 goes by") + ": " + "; ".join(
            f"{each:g} loses {lost:.2f} points at worst, {saved:.1f}x" for each, lost, saved in found))
    return Line("choice", None, "thetas of rivals, each for all skews: points lost where most are, fewer bytes by the geometric mean of skews", more)


def b4_cells(grid):
    return [grid.scouted(BETTER, "local", drift=True), grid.cell(drift=True),
            *(cell for _, skew in DRIFT for cell in grid.fixed("local", skew))]


def phase_goals(grid, results):
    """Where in the controllers' grid the oracle of each phase's skew is."""
    oracles = [results.oracle(grid.fixed("local", skew)) for _, skew in DRIFT]
    return [GRIDS["local"].index(oracle.theta or GRIDS["local"][0]) for oracle in oracles]


PHASES = list(zip([step for step, _ in DRIFT], [step for step, _ in DRIFT[1:]] + [STEPS]))  # their steps, from and to


def place_of(theta):
    """In the coarse grid, of one that may be of the fine one: the loosest that is no looser."""
    return bisect.bisect_right(GRIDS["local"], theta) - 1


def thetas_of(run):
    """What each step was at."""
    found = [window["theta"] for window in run.windows for _ in range(window["steps"])]
    return found + [run.windows[-1]["next"]] * (STEPS - len(found))


def back(run, phase, goal):
    """(windows, steps) of a phase until theta is near the goal, and is so in most steps from then on; infinite: it never is. A
    window that the change falls into counts."""
    begin, end = phase
    least, most = GRIDS["local"][max(goal - 1, 0)], GRIDS["local"][min(goal + 1, len(GRIDS["local"]) - 1)]
    near = [least <= theta and (theta <= most or step >= LATE * STEPS) for step, theta in enumerate(thetas_of(run))]
    ends = [window["t"] for window in run.windows if begin < window["t"] < end]
    return next(((i + 1, t - begin) for i, t in enumerate(ends) if near[t] and sum(near[t:end]) > (end - t) / 2), (NEVER, NEVER))


def phase_ends(run):
    """Where in the grid phases end: the median of the steps of their second half."""
    return [place_of(statistics.median_low(thetas_of(run)[(begin + end) // 2:end])) for begin, end in PHASES]


def follows_drift(ends, goals):
    """Is theta tighter where the oracle is, as labels are more skewed? One that never moves is back at once. Of a phase that ends
    with a rate that has fallen nobody asks to be tighter than one that does not."""
    phases = list(zip((skew for _, skew in DRIFT), goals, ends, (begin + end >= 2 * LATE * STEPS for begin, end in PHASES)))
    return all(end < other_end for skew, goal, end, late in phases for other, other_goal, other_end, other_late in phases
               if skew > other and goal < other_goal and late <= other_late)


def line_b4(grid, results):
    def thetas(places):
        return ", ".join(f"{GRIDS['local'][place]:g}" for place in places)

    def told(counts):
        return " and ".join("never" if windows == NEVER else f"{windows} ({steps} steps)" for windows, steps in counts)

    cell, goals = b4_cells(grid)[0], phase_goals(grid, results)
    lost, ok, more = results.lost(cell), True, []
    for run in results.all(cell):
        ends = phase_ends(run)
        counts, settles = ([back(run, phase, goal) for phase, goal in zip(PHASES[1:], to[1:])] for to in (goals, ends))
        good = follows_drift(ends, goals) and all(windows <= 5 or steps <= 5 * PERIODS[BETTER] for windows, steps in counts)
        ok = ok and good
        more.append(f"{'     ' if good else 'loses'} windows after each change, until theta is near those of the oracles: {told(counts)}; "
                    f"until it is near those of phases' ends, {thetas(ends)}: {told(settles)}")
    return Line("B4", ok and lost.median <= WITHIN,
                f"{BETTER} is back within 5 windows (or {5 * PERIODS[BETTER]} steps) after drift, is tighter where labels are more "
                f"skewed, and loses at most {WITHIN} points", [
                    f"{cell.name()}, oracles {thetas(goals)}: {lost:.2f} points lost, {results.saved(cell):.1f}x fewer bytes; a run each:",
                    *more])


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
CHOICE = {"choice": (choice_cells, line_choice)}  # fixes parameters, so it is asked for by name, and --on valid


def judge(name, grid, results):
    cells, line = {**LINES, **CHOICE}[name]
    lacks = [cell for cell in dict.fromkeys(cells(grid)) if not results.pairs(cell, cell.bsp())]
    found = Line(name, None, f"not judged: {len(lacks)} of its cells have no run, or no BSP of the same seed beside it",
                 [cell.name() for cell in lacks[:3]]) if lacks else line(grid, results)
    if grid.sites != 5:
        found.name, found.more, found.ok = f"{name} K={grid.sites}", [*found.more, "marks are for K=5"], None
    return found
