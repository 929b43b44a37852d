#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How often should sites with skewed labels talk? The findings of SkewScout (Hsieh et al., ICML'20) on Fashion-MNIST, a PASS or
FAIL for each, and what controllers save beside the best fixed theta and beside others' rules (tests/bench/skew_rivals.h).

Usage: study.py             the quick grid: one theta of each rival; one seed, three where a line hangs on few points
       study.py --full      K = 2, 5, 10, every skew, norm and Dirichlet, seeds 1 to 10: hours (8,870 runs)
       study.py --torch     the main cells by PyTorch processes at a box (study_torch.py), beside the same in one process; seed 1
       --lines R1,R6        only these lines, and the cells that they need
       --seeds A-B          these instead
       --sites 5,2,10       for these K, in this order (--full; else 5)
       --on valid           on the validation images and seeds 100 (--full: 100 to 102), where parameters are fixed:
                            --lines choice says those of rivals
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

What each line asks for, and how rivals and drift are judged: study_lines.py.

Exit status: 0; 1: a line FAILs; 2: a run went wrong; 130: interrupted.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys

from study_cells import BETTER, GRIDS, SKEWS, STEPS, USUAL, Grid, Results, Spread
from study_lines import CHOICE, LINES, corner_cells, judge, steady_cells
from study_runs import Failure, Runner, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = "tests/bench/skew_study"  # which `make` alone does not make


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
    stages = [(grid, [cell for name in names for cell in {**LINES, **CHOICE}[name][0](grid)]) for grid in grids]
    stages += [(grid, others(grid)) for grid in grids if grid.full and set(names) >= set(LINES)]
    wanted = []
    for grid, cells in stages:
        steady = set(steady_cells(grid))
        pairs = [(cell, seed) for cell in cells for seed in seeds_of(grid, cell in steady, options)]
        wanted += sorted(pairs, key=lambda pair: pair[1])
    return list(dict.fromkeys(wanted))


def seeds_of(grid, steady, options):
    if options.seeds is not None:
        return options.seeds
    if options.on == "valid":
        return range(100, 103) if grid.full else (100,)
    return range(1, 11) if grid.full else (1, 2, 3) if steady else (1,)


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
                      f"{STEPS} steps; sources {program_hash[:12]}.", "", "```", *map(str, lines), "```", "", *torch_table(results, alone),
                      ""])


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
    found = re.fullmatch("([0-9]+)(?:-([0-9]+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: a seed or a range of them, like 3 or 1-10")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"{text}: there is no seed from {first} to {last}; the smaller one comes first")
    return range(first, last + 1)


def counts(text):
    if not re.fullmatch("[0-9]+(,[0-9]+)*", text) or min(map(int, text.split(","))) < 1:
        raise argparse.ArgumentTypeError(f"{text}: whole numbers of sites from 1 on, like 5,2,10")
    return list(dict.fromkeys(map(int, text.split(","))))


def jobs(text):
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number of runs at a time, 1 or more")
    return int(text)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--full", action="store_true", help="all cells and seeds: 8,870 runs, hours")
    parser.add_argument("--torch", action="store_true", help="the main cells by PyTorch processes at a box, too")
    parser.add_argument("--lines", help=f"of {', '.join(LINES)}; --on valid {', '.join(CHOICE)}, too")
    parser.add_argument("--seeds", type=numbers, metavar="A[-B]")
    parser.add_argument("--sites", type=counts, metavar="K,...")
    parser.add_argument("--cached", action="store_true", help="judge by what has run")
    parser.add_argument("--on", choices=("valid", "test"), default="test")
    parser.add_argument("--jobs", type=jobs, default=len(os.sched_getaffinity(0)))
    build = ROOT / os.environ.get("BUILD", "build")
    parser.add_argument("--program", type=pathlib.Path, default=build / PROGRAM)
    parser.add_argument("--plot", action="store_true", help="study.png, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.torch and (options.full or options.plot):
        parser.error("--torch has cells of its own: neither --full nor --plot")
    if options.torch and (options.sites or options.cached):
        parser.error("--torch has 5 sites, and runs what was not run: neither --sites nor --cached")
    known = TORCH_LINES if options.torch else (*LINES, *CHOICE)
    options.folder = build / "study"
    if options.lines is not None:
        options.lines = list(dict.fromkeys(options.lines.split(",")))
    else:
        options.lines = TORCH_LINES if options.torch else tuple(LINES)
    for name in options.lines:
        if name not in known:
            parser.error(f"no line {name or repr(name)}: there are {', '.join(known)}")
        if name in CHOICE and options.on != "valid":
            parser.error(f"{name} fixes parameters, which is never done on test images: --on valid")
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
    if not options.program.is_file():
        build = os.environ.get("BUILD", "build")
        raise Failure(f"{options.program} is not there: make{'' if build == 'build' else f' BUILD={build}'} {build}/{PROGRAM}, or --program FILE")
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
