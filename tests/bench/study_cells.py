# SPDX-License-Identifier: Apache-2.0
"""The study's points (cells), what was found at each, and its grids, for study.py."""
import dataclasses
import statistics
import typing

from study_runs import Failure

STEPS, SIGMA = 1500, 0.05
LATE = 0.75  # from this part of the steps on the learning rate is a tenth
NEVER = float("inf")
BETTER = "scout+"
PERIODS = {"hill": 100, BETTER: 50}  # steps of a window
WITHIN = 1.0  # points that the oracle may lose
EQUAL = 0.25  # points within which accuracies are alike where a theta is chosen for that
SKEWS = (0, 20, 40, 60, 80, 100)
GRIDS = {"local": (1, 2, 5, 10, 20, 50, 100), "gaia": (0, 0.02, 0.05, 0.1, 0.2, 0.3)}  # of controllers, the tightest first
# Of the better one, which finds its way without trying them all.
FINE_GRIDS = {"local": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 56, 68, 80, 100),
              "gaia": (0, .01, .02, .03, .05, .07, .1, .14, .2, .25, .3)}
# Of the oracle, and of what R5 is read from; BSP is in it, too.
FIXED_GRIDS = {"local": (2, 5, 10, 20, 50, 100), "gaia": (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)}
QUICK_GRIDS = {"local": (2, 5, 10, 20, 50), "gaia": (0.02, 0.05, 0.1, 0.2, 0.4)}
USUAL = {"local": 20, "gaia": 0.1, "dgc": 0.001}
# Of rivals, the tightest first; AdaComm's steps between looks were found on seed 100, --on valid, at 60 % skew.
RIVALS = {"fda": (0.3, 0.5, 0.7, 1, 3, 10), "qsr": (0.07, 0.08, 0.11, 0.16, 0.24), "adacomm": (5, 10, 20, 50, 100)}
# For all skews, as `study.py --full --sites 5 --on valid --lines choice` chooses: see choose().
CHOSEN = {"fda": 0.5, "qsr": 0.07, "adacomm": 5}
QUICK_RIVALS = {rival: (theta,) for rival, theta in CHOSEN.items()}
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
            thetas = (FINE_GRIDS if self.policy == BETTER else GRIDS)[self.algorithm]
            words += ["--policy", self.policy, "--thetas", ",".join(map(str, thetas)), "--period",
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

    def late_bytes(self, cell):
        return Spread([run.late for run in self.all(cell)])

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

    def rival(self, rival, theta, skew):
        return self.cell("local", theta, skew, rival=rival)

    def rivals(self, rival, skew):
        """With each theta of its grid, the tightest first."""
        return [self.rival(rival, theta, skew) for theta in (RIVALS if self.full else QUICK_RIVALS)[rival]]
