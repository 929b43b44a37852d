#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sites with skewed data at a box: the same bits as a loop in one process, whoever dies, comes late, lies, or is lost with the box."""
import errno
import functools
import json
import pathlib
import random
import re
import subprocess
import tempfile
import time

import rig
from rig import check, holds

SKEWED = rig.BUILD / "tests/system/skewed"
WORLD = 3
BOX_LOST = -116
CANNOT = 4
GRID = {"local": {"thetas": "1,2,5,10", "first": 2, "period": 10}, "gaia": {"thetas": ".02,.05,.1,.2", "first": 2, "period": 10}}
ALGORITHMS = {"bsp": {}, "gaia": {"theta": .1}, "local": {"theta": 7}, "dgc": {"theta": .05, "clip": 1, "warmup": 10}}


def words(arguments):
    return [f"{name}={value}" for name, value in arguments.items()]


def scout(*arguments):
    """What phub scout says."""
    command = [rig.BUILD / "phub", "scout", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET).stdout


class Site(rig.Process):
    def __init__(self, box, job, rank, world=WORLD, env=None, **arguments):
        super().__init__(f"{job}.{rank}", [SKEWED, box.url(job), f"rank={rank}", f"world={world}", *words(arguments)], env)
        self.rank = rank

    def lines(self, event=None):
        return [line for line in map(json.loads, self.out.lines) if event in (None, line["event"])]

    def until(self, wanted):
        """Waits for the first line of which `wanted` is true."""
        found = self.out.find(lambda text: (line := json.loads(text)) and wanted(line) and line)
        check(found, f"{self.name}: the line never came: {self.err.text()}")
        return found[1]

    def end(self):
        """Its last line, of a run that went well."""
        check(self.wait() == 0, f"{self.name} failed: {self.err.text()} {self.out.lines[-1:]}")
        return self.lines("end")[0]


def sites(box, job, world=WORLD, **arguments):
    """One of each rank; an argument may be a function of the rank."""
    return [Site(box, job, rank, world, **{name: value(rank) if callable(value) else value for name, value in arguments.items()})
            for rank in range(world)]


@functools.cache
def loop(world=WORLD, **arguments):
    """What each of the sites has in the end when their sum is a loop in one process."""
    process = rig.Process("loop", [SKEWED, "loop", f"world={world}", *words(arguments)])
    check(process.wait() == 0, f"the loop failed: {process.err.text()}")
    return [json.loads(line) for line in process.out.lines]


def same(ends, wants, *more):
    for end, want in zip(ends, wants, strict=True):
        for name in ("hash", "theta", "windows", *more):
            check(end[name] == want[name], f"rank {end['rank']}: {name} is {end[name]}, and {want[name]} in one process: {end}")


def as_loop(box, job, world=WORLD, **arguments):
    ends = [site.end() for site in sites(box, job, world, **arguments)]
    options = {name: value for name, value in arguments.items() if name not in ("lost", "lazy_ms", "transport")}
    same(ends, loop(world, **options), "bytes")
    return ends


def algorithms():
    """each algorithm, over shared memory and tcp, as a loop bit for bit"""
    box = rig.Box()
    for name, options in ALGORITHMS.items():
        for transport in ("shm", "tcp"):
            as_loop(box, f"{name}-{transport}", algorithm=name, transport=transport, **options)
    as_loop(box, "five", 5, algorithm="local", theta=4)
    as_loop(box, "alone", 1, algorithm="local", theta=4)
    box.stop()


def outer_optimizers():
    """FedAvgM, DiLoCo, FedAdagrad, FedAdam and FedYogi as a loop; the box's Nesterov near the sites' own"""
    box, diloco = rig.Box(), None
    for outer in ("momentum", "nesterov", "adagrad", "adam", "yogi"):
        ends = as_loop(box, outer, algorithm="local", theta=5, outer=outer)
        diloco = ends if outer == "nesterov" else diloco
    ends = [site.end() for site in sites(box, "box", algorithm="local", theta=5, outer="box")]
    check(all(end["exchanges"] == 20 and abs(end["distance"] - want["distance"]) < 1e-4 for end, want in zip(ends, diloco, strict=True)),
          f"{ends} are not near {diloco}")
    check(len({end["trained"] for end in ends}) == 1, "weights differ after an exchange")
    box.stop()


def weights_of_sites():
    """sites that count by their samples, one without any, and theta that changes in the middle"""
    box = rig.Box()
    ends = as_loop(box, "weighted", algorithm="local", theta=5, weighted=1, samples="3,0,5")
    check([end["share"] for end in ends] == [0.375, 0, 0.625], f"shares: {ends}")
    ends = as_loop(box, "alike", algorithm="gaia", theta=.2, samples="3,0,5")
    check([end["share"] for end in ends] == [0.5, 0, 0.5], f"shares: {ends}")
    as_loop(box, "turns", algorithm="local", theta=10, theta_at=40, theta_then=3)
    box.stop()


def leavers():
    """before they leave sites say all that is left: then all have the same weights"""
    box = rig.Box()
    for flush in (0, 1):
        ends = [site.end() for site in sites(box, f"flush{flush}", algorithm="gaia", theta=.3, steps=50, flush=flush)]
        spread = max(end["distance"] for end in ends) - min(end["distance"] for end in ends)
        check((spread < 1e-5) == bool(flush), f"flush={flush}: the distances are {spread} apart")
    box.stop()


def ends_alike(ends, what):
    check(len({end["hash"] for end in ends}) == 1, f"{what}: weights differ: {[end['hash'] for end in ends]}")
    return ends


NESTEROV = {"algorithm": "local", "outer": "nesterov", "theta": 7}
FINISHES = {**{name: {"algorithm": name, **more} for name, more in ALGORITHMS.items()}, "nesterov": NESTEROV,
            "exchanged": {"algorithm": "local", "theta": 10}, "uneven": {"algorithm": "gaia", "theta": .2, "samples": "3,0,5", "weighted": 1},
            "scout": {"algorithm": "gaia", "policy": "scout+", "thetas": "0,.05,.1,.2", "period": 10}}


def finishes():
    """at the end, at any step, all have one model to the bit, with what is not trained: for an exchange more, or nothing; the log has it"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        for name, options in FINISHES.items():
            path = pathlib.Path(folder, name)
            for transport in ("shm", "tcp"):
                before, after = ([site.end() for site in sites(box, f"{name}-{transport}{finish}", transport=transport, norm=1, steps=50,
                                                               finish=finish, log=path, **options)] for finish in (0, 1))
                ends_alike(after, name)
                more = [sum(end[kind] for end in after) - sum(end[kind] for end in before) for kind in ("bytes", "bytes_travel")]
                whole = 3 * 4 * 1290
                shown = 4 * 10 * (2 if name == "uneven" else 3)
                want = {"bsp": (whole, shown), "dgc": (more[0], shown), **dict.fromkeys(("local", "nesterov"), (3 * 5200, 0)),
                        "exchanged": (0, 0)}.get(name, (whole + 5200, shown))
                check(tuple(more) == want and (name != "dgc" or whole / 2 < more[0] <= whole), f"{name}: {more} bytes more, not {want}")
                check(after[0]["exchanges"] == before[0]["exchanges"] + (name != "exchanged"), f"{name}: {after[0]} after {before[0]}")
                end = json.loads(path.read_text().splitlines()[-1])
                sent = sum(end["bytes"] for end in after) / 3
                check(abs(end["bytes"] - sent) < 1 or name == "scout", f"{name}: the log has {end}, and sites have sent {sent}")
    for outer in ("average", "box"):
        ends = [site.end() for site in sites(box, f"at-{outer}", algorithm="local", theta=7, steps=50, finish=1, outer=outer)]
        check(len({end["trained"] for end in ends}) == 1 and ends[0]["exchanges"] == 8, f"outer={outer}: {ends}")
    box.stop()


def finishes_in_trouble():
    """who is lost as all finish, or comes, a box that is lost, and a site that goes on instead, which is named"""
    address = f"127.0.0.1:{rig.free_port()}"
    box = rig.Box(listen=address)
    for name in ("local", "gaia", "dgc"):
        *ends, lost = sites(box, f"lost-{name}", algorithm=name, lost="shrink", finish=1, steps=lambda rank: 50 + 10 * (rank == 2),
                            die_at=lambda rank: 50 * (rank == 2), theta=20 if name == "local" else .1)
        check(lost.wait() == -9, f"{name}: {lost.err.text()}")
        check([end["sites"] for end in ends_alike([site.end() for site in ends], name)] == [2, 2], f"{name}: {ends}")
    for name in ("bsp", "gaia", "dgc"):  # who comes for the end alone makes no step
        run = {**ALGORITHMS[name], "algorithm": name, "lost": "wait", "finish": 1, "norm": 1, "steps": 50}
        there = sites(box, f"late-{name}", die_at=lambda rank: 49 * (rank == 1), **run)
        check(there[1].wait() == -9, "it was not killed")
        there[1] = Site(box, f"late-{name}", 1, **run)
        ends_alike([site.end() for site in there], name)
        check(there[1].lines("start")[0]["steps"] == 50, f"{name}: {there[1].lines()}")
    first, *others = sites(box, "early", algorithm="gaia", theta=.1, lost="shrink", finish=1, steps=lambda rank: 50 + 10 * (rank > 0))
    check(first.wait() == 1, f"finishes alone: {first.lines('end')}")
    holds(first.lines("end")[0]["error"], "rank 1 goes on", "after step 50")
    ends_alike([site.end() for site in others], "those who went on")
    ends = [site.end() for site in sites(box, "box", algorithm="local", outer="box", lost="shrink", finish=1, steps=lambda rank: 50 + 10 * (rank > 0))]
    check([end["exchanges"] for end in ends] == [3, 3, 3], f"where the box steps: {ends}")
    box.stop()
    for name, options in ALGORITHMS.items():
        box = rig.Box(listen=address)
        run = {**options, "algorithm": name, "steps": 50, "norm": 1, "resume_ms": 20000, "lazy_ms": 100}
        want = ends_alike([site.end() for site in sites(box, "whole", finish=1, **run)], name)
        *early, late = sites(box, "resumed", finish=lambda rank: 1 + 600 * (rank == 2), **run)
        for site in (*early, late):
            site.until(lambda line: line["event"] == "finishes")
        time.sleep(.1)
        box.kill()
        box.wait()
        box = rig.Box(listen=address)
        ends = ends_alike([site.end() for site in (*early, late)], f"{name}, resumed")
        check(ends[0]["hash"] == want[0]["hash"] or name == "gaia", f"{name}: {ends} after a loss, {want}")
        check(all(site.lines("stale") for site in early), f"{name}: nobody saw it")
        box.stop()


def scouts():
    """each policy decides at the box as in a loop, over Gaia and local SGD, and models travel"""
    box = rig.Box()
    for policy in ("hill", "stochastic", "annealing"):
        for name, grid in GRID.items():
            ends = as_loop(box, f"{policy}-{name}", algorithm=name, policy=policy, **grid)
            check(all(end["bytes_travel"] == end["windows"] * 1300 * 4 for end in ends), f"bytes that travelled: {ends}")
        as_loop(box, f"{policy}-long", algorithm="local", policy=policy, thetas="1,3,8,20", first=2, period=7)
    first = as_loop(box, "stays", algorithm="local", policy="hill", **GRID["local"])
    lazy = as_loop(box, "lazy", algorithm="local", policy="hill", lazy_ms=1, lost="shrink", **GRID["local"])
    check([end["hash"] for end in first] == [end["hash"] for end in lazy], "it matters whether workers may be lost")
    box.stop()


def pulls():
    """scout+ decides at the box as in a loop, from sums alone: no model travels, but what Gaia leaves at its site, where a trial of the
    mean model is due; alike sites loosen, and pulled ones do not"""
    box = rig.Box()
    for name, grid in GRID.items():
        for pull in (0, 10):
            grid = {**grid, "thetas": grid["thetas"] if name == "local" else "0,.05,.1,.2"}
            more = {"policy": "scout+", "pull": pull, "steps": 140, **grid}
            ends = as_loop(box, f"{name}-{pull}", algorithm=name, **more)
            shown = [want["shown"] for want in loop(algorithm=name, **more)]
            check([end["bytes_travel"] for end in ends] == shown, f"{ends}, {shown} in one process")
            check(all(end["windows"] > 5 for end in ends) and all(bytes % 40 == 0 and (bytes > 0) == (name == "gaia") for bytes in shown),
                  f"{ends}")
            tightest = float(grid["thetas"].split(",")[0])
            check((ends[0]["theta"] > tightest) == (pull == 0), f"{name}, pull {pull}: theta {ends[0]['theta']}: {ends[0]['reason']}")
    as_loop(box, "uneven", algorithm="local", policy="scout+", weighted=1, samples="3,0,5", **GRID["local"])
    more = {"algorithm": "gaia", "policy": "scout+", "weighted": 1, "samples": "3,0,5", "thetas": "0,.05,.1,.2", "period": 10}
    ends = as_loop(box, "uneven-gaia", norm=1, **more)
    check([end["bytes_travel"] for end in ends] == [want["shown"] for want in loop(norm=1, **more)], f"{ends}")
    check([end["bytes_travel"] > 0 for end in ends] == [True, False, True], f"who has no data shows nothing: {ends}")
    box.stop()


NORMS = {"bsp": {"policy": "scout+", "thetas": "1", "period": 10, "norm": 8},
         "gaia": {"policy": "scout+", "thetas": "0,.02,.05,.1,.2", "period": 10, "norm": 8}}


def norms():
    """over BSP and Gaia scout+ tells whose model does well with its own site's statistics alone that no theta mends it.
    That is within 50 steps, and it goes on as the pull allows; whose does well with others', too, is not accused; and each site keeps
    its own"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        for name, options in NORMS.items():
            for norm in (0, 8):
                more = {"algorithm": name, "steps": 80, **options, "norm": norm}
                ends = as_loop(box, f"{name}-{norm}", log=path, **more)
                windows = [line for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "decision"]
                told = [line["t"] for line in windows if line["action"] == "cannot"]
                check(bool(told) == (norm > 0), f"{name}, norm {norm}: {windows}")
                travelled = sum(line["bytes_travel"] for line in windows)
                check(travelled % 40 == 0 and travelled > 80 and 0 <= ends[0]["bytes_travel"] - travelled <= 40, f"{windows}")
                if norm == 0:
                    continue
                check(told[0] <= 50 and told[-1] == windows[-1]["t"] and windows[-1]["next"] == (1 if name == "bsp" else .02),
                      f"{told}: {windows}")
                holds(scout("explain", path, "--at", told[0]), "batch normalization", "No theta mends that; group normalization does")
    box.stop()


def off():
    """a scout whose policy is fixed gives the bits of none, as does a log of none; both logs are whole, and no model travels"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        for name, theta in (("local", 5), ("gaia", .1)):
            without = [site.end() for site in sites(box, f"{name}-off", algorithm=name, theta=theta)]
            alone = [site.end() for site in sites(box, f"{name}-log", algorithm=name, theta=theta, log=path)]
            logs = [[json.loads(line) for line in path.read_text().splitlines()]]
            fixed = [site.end() for site in sites(box, f"{name}-on", algorithm=name, policy="fixed", log=path, **GRID[name])]
            logs.append([json.loads(line) for line in path.read_text().splitlines()])
            check(all(end["windows"] >= 9 and end["bytes_travel"] == 0 for end in fixed), f"windows of a theta that stays: {fixed}")
            for ends, lines, windows in ((alone, logs[0], 0), (fixed, logs[1], fixed[0]["windows"])):
                for other, end in zip(ends, without, strict=True):
                    check(other["hash"] == end["hash"] and other["bytes"] == end["bytes"], f"{other} is not {end}")
                check([line["scout"] for line in lines] == ["run"] + ["decision"] * windows + ["end"], f"{lines}")
                check([lines[0][name] for name in ("policy", "model_bytes", "bsp_bytes", "first")] == ["fixed", 5200, 5160, theta], f"{lines[0]}")
                sent = sum(end["bytes"] for end in ends) / WORLD
                check(abs(lines[-1]["bytes"] - sent) < 1 and lines[-1]["bytes_travel"] == 0 and lines[-1]["theta"] == theta, f"{lines[-1]}")
            check(all(line["AL"] is None and line["next"] == theta and 0 < line["r_all"] < 1 for line in logs[1][1:-1]), f"{logs[1]}")
        site = Site(box, "nowhere", 0, 1, algorithm="local", theta=2, log=f"{folder}/none/log")
        check(site.wait() == 1, "a log that cannot be was taken")
        holds(site.err.text(), "no decision log can be written to", "No such file")
    box.stop()


def wire():
    """zeros do not travel: of DGC, and of those whose turn it is not while models travel"""
    box = rig.Box()
    dense = [site.end()["bytes_wire"] for site in sites(box, "bsp", algorithm="bsp", transport="tcp")]
    few = [site.end()["bytes_wire"] for site in sites(box, "dgc", transport="tcp", algorithm="dgc", **ALGORITHMS["dgc"])]
    check(max(few) < 0.15 * min(dense), f"DGC: {few} bytes, a gradient a step: {dense}")
    by_lost = [sum(site.end()["bytes_wire"]
                   for site in sites(box, f"travel-{lost}", algorithm="local", transport="tcp", lost=lost, **GRID["local"]))
               for lost in ("fail", "shrink")]
    check(by_lost[1] < 1.02 * by_lost[0], f"models that travel as a sum, and as a broadcast: {by_lost[::-1]} bytes")
    box.stop()


def log():
    """rank 0's decision log has what was decided, begins anew with a run, and says where it cannot be"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        for job in ("first", "second"):
            path = pathlib.Path(folder, "log")
            ends = [site.end() for site in sites(box, job, algorithm="local", log=path, **GRID["local"])]
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            check([line["scout"] for line in lines] == ["run"] + ["decision"] * ends[0]["windows"] + ["end"], f"lines: {lines}")
            check(lines[0]["job"] == job and lines[0]["tensors"] == ["weight", "bias", "statistics", "phub.sites"][:3], f"{lines[0]}")
            last = lines[-2]
            check(last["next"] == ends[0]["theta"] and last["reason"] == ends[0]["reason"] and last["believed"] == 3, f"{last}")
            check(last["bytes_travel"] == 5200 and lines[-1]["bytes"] == ends[0]["bytes"], f"{lines[-2:]}")
            for line in lines[1:-1]:  # how accuracies, tensors and losses were
                low, high = line["interval"]
                check(abs(low + high - 2 * line["AL"]) < 1e-9 and (low == high if line["theta"] == 1 else 0.02 < high - low < 0.3),
                      f"{line}")
                check(len(line["r"]) == 3 and all(0 < r <= 1 for r in line["r"]) and line["train_loss"] > 0, f"{line}")
                check(min(line["r"][:2]) <= line["r_all"] <= max(line["r"][:2]), f"r of all that are trained: {line}")
            check(all(a["next"] == b["theta"] for a, b in zip(lines[1:-1], lines[2:-1])), "thetas do not follow each other")
        ends = [site.end() for site in sites(box, "uneven", algorithm="gaia", log=path, samples="3,0,1", weighted=1, transport="tcp",
                                             **GRID["gaia"])]
        end, mean = json.loads(path.read_text().splitlines()[-1]), sum(end["bytes"] for end in ends) / WORLD
        check(abs(end["bytes"] - mean) < 1 and ends[0]["bytes"] > 1.2 * mean, f"{end['bytes']} bytes, the mean of sites is {mean}: {ends}")
        travelled = sum(end["bytes_travel"] for end in ends) / WORLD
        check(abs(end["bytes_travel"] - travelled) < 1 and ends[0]["bytes_travel"] > 1.2 * travelled,
              f"{end}: models of {travelled} bytes travelled")
        wire = sum(end["bytes_wire"] for end in ends) / WORLD
        check(abs(end["bytes_wire"] / wire - 1) < 0.02 and ends[0]["bytes_wire"] > 1.05 * wire, f"{end}: {wire} bytes on the wire: {ends}")
        ends = [site.end() for site in sites(box, "by-itself", algorithm="gaia", theta=.1, log=path, samples="3,0,1", weighted=1,
                                             transport="tcp")]
        end, mean, wire = json.loads(path.read_text().splitlines()[-1]), *(sum(end[name] for end in ends) / WORLD
                                                                           for name in ("bytes", "bytes_wire"))
        check(abs(end["bytes"] - mean) < 1 and abs(end["bytes_wire"] / wire - 1) < 0.02 and ends[0]["bytes"] > 1.2 * mean,
              f"{end}, {wire}: {ends}")
        site = Site(box, "nowhere", 0, 1, algorithm="local", log=f"{folder}/none/log", **GRID["local"])
        check(site.wait() == 1, "a log that cannot be was taken")
        holds(site.err.text(), "no decision log can be written to", "No such file")
    box.stop()


def log_scores():
    """what the mean model made of held-out data stands in the next window's line and, the latest, in the end with the run's seconds,
    also where theta stays; and in a pipe"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        began = time.monotonic()
        for site in sites(box, "scores", algorithm="local", log=path, score_at=15, **GRID["local"]):
            site.end()
        took = time.monotonic() - began
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        check([line.get("score") for line in lines[1:-1]] == [None, {"accuracy": 0.75, "loss": 0.2}] + [None] * (len(lines) - 4),
              f"{lines}")
        check(lines[-1]["accuracy"] == 0.9 and lines[-1]["loss"] is None and 0 < lines[-1]["seconds"] < took, f"{lines[-1]}, took {took} s")
        for algorithm, more in (*ALGORITHMS.items(), ("local", {"outer": "box"})):
            ends = [site.end() for site in sites(box, f"fixed-{algorithm}-{len(more)}", algorithm=algorithm, log=path, score_at=15, **more)]
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            check([line["scout"] for line in lines] == ["run", "end"], f"{lines}")
            check(lines[0]["policy"] == "fixed" and lines[0]["thetas"] == [ends[0]["theta"]] and lines[0]["model_bytes"] in (5200, 5160),
                  f"{lines[0]}")
            sent = ends[0]["bytes"] if more.get("outer") == "box" else sum(end["bytes"] for end in ends) / WORLD
            check(abs(lines[1]["bytes"] - sent) < 1 and sent > 0 and lines[1]["accuracy"] == 0.9 and lines[1]["seconds"] > 0, f"{lines[1]}")
        pipe = Site(box, "pipe", 0, 1, algorithm="local", log="/dev/stderr")
        pipe.end()
        holds(pipe.err.text(), '"scout":"run"', '"scout":"end"')
    box.stop()


def log_bytes():
    """windows that outlast the period: the log has what was sent in them, and apart what the cost weighs of it"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        ends = as_loop(box, "long", algorithm="local", policy="hill", thetas="25", period=10, steps=100, log=path)
        windows = [line for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "decision"]
        check([line["t"] for line in windows] == [25, 50, 75, 100], f"{windows}")
        check(all(line["bytes"] == 5200 and line["bytes_cost"] == 2080 for line in windows), f"{windows}")
        check(windows[-1]["bytes_total"] - 4 * 5200 == ends[0]["bytes"] == 4 * 5200, f"{windows[-1]} {ends[0]}")
        check(all(abs(line["cost"] - 50 * max(0, line["AL"] - 0.05) - 0.04) < 1e-6 for line in windows), f"{windows}")
        holds(scout("explain", path, "--at", 60), r"5\.2 KB a site in exchanges", r"31\.2 KB since the start", r"1 of 0\.04 models a step")
        ended, cut = json.loads(scout("compare", "--json", path)), pathlib.Path(folder, "cut")
        cut.write_text("".join(path.read_text().splitlines(True)[:-1]))
        check(json.loads(scout("compare", "--json", cut))["bytes"] == ended["bytes"] == 4 * 5200, f"{ended}")
        for job, unit in (("climbs", {}), ("costs", {"PHUB_SCOUT_UNIT": "seconds", "PHUB_SCOUT_RATE": "1e6",
                                                     "PHUB_SCOUT_LATENCY": "0.01"})):
            for site in sites(box, job, env=unit, algorithm="local", policy="hill", thetas="1,4,15,25", first=3, period=10, log=path):
                site.end()
            windows = [line for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "decision"]
            check(any("bytes_cost" in line for line in windows) and len({line["theta"] for line in windows}) > 2, f"{windows}")
            again = [json.loads(line) for line in scout("dry-run", "--json", path).splitlines()]
            check([(line["next"], line["bytes"], line["reason"]) for line in again] == [(line["next"], line["bytes"], line["reason"])
                                                                                        for line in windows],
                  f"it decided otherwise: {again} {windows}")
            holds(scout("dry-run", path), "hill again: ", r"It would have sent ([\d.]+ KB) a site in exchanges, .*\n?the run sent \1,")
    box.stop()


def log_full():
    """a log that cannot be written: it is known, and the training goes on as without"""
    box = rig.Box()
    ends = as_loop(box, "full", algorithm="local", log="/dev/full", **GRID["local"])
    check([end["log_error"] for end in ends] == [-errno.ENOSPC, 0, 0], f"{ends}")
    box.stop()


def alignment():
    """r of a tensor in a log is that of what sites have said of it, whatever their shares; what no exchange had is not known"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")

        def decisions(job, world=WORLD, **arguments):
            for site in sites(box, job, world, log=path, policy="scout+", period=10, **arguments):
                site.end()
            return [line for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "decision"]

        alone = decisions("alone", 1, algorithm="local", thetas="1,2")
        check(all(abs(r - 1) < 1e-6 for line in alone for r in [*line["r"], line["r_all"]]),
              f"one site does not agree with itself: {alone}")
        for job, samples in (("alike", "1"), ("uneven", "3,0,5")):
            far, near = (decisions(f"{job}-{pull}", algorithm="local", thetas="1", pull=pull, weighted=1, samples=samples)[-1]
                         for pull in (10, 0))
            check(all(f < n / 3 for f, n in zip(far["r"][:2], near["r"][:2])), f"r of sites that pull apart, and of others: {far} {near}")
        gaia = decisions("gaia", algorithm="gaia", thetas="0,.1")
        check(all(line["r"][2] is None and line["r"][0] and line["r"][1] for line in gaia), f"statistics of Gaia are not exchanged: {gaia}")
    box.stop()


def bad_reports():
    """reports that are missing or cannot be true: the loosest safe theta, then the tightest; and as in a loop"""
    box = rig.Box()
    for kind in ("lies", "fails"):
        ends = as_loop(box, kind, algorithm="local", policy="hill", steps=80, **{kind: 3}, **GRID["local"])
        check(all(end["action"] == 3 and end["theta"] == 1 for end in ends), f"it did not fall back: {ends[0]}")
        holds(ends[0]["reason"], "of 3 sites 1 have said", "in 8 windows in a row", "the tightest theta, until they do")
    box.stop()


def one_bad_site():
    """whoever cannot try models costs one report of what was lost there, and whoever has no data none"""
    box = rig.Box()
    for kind in ("fails", "lies"):
        for rank in range(WORLD):
            ends = as_loop(box, f"{kind}-{rank}", algorithm="local", policy="hill", steps=80, **{kind: 1 << rank}, **GRID["local"])
            check(all(end["believed"] == 2 and end["action"] != 3 for end in ends), f"one of three is too much: {ends[0]}")
            check((f"site {rank} says an accuracy of" in ends[0]["reason"]) == (kind == "lies"), f"{ends[0]['reason']}")
    idle = as_loop(box, "idle", 4, algorithm="local", policy="hill", steps=80, samples="1,0,0,1", **GRID["local"])
    check(all(end["believed"] == 2 and end["action"] != 3 for end in idle), f"sites without data are missed: {idle[0]}")
    check([end["bytes_travel"] > 0 for end in idle] == [True, False, False, True], f"models of sites without data travel: {idle}")
    one = as_loop(box, "one", algorithm="local", policy="hill", steps=80, fails=1, samples="1,1,0", **GRID["local"])
    check(all(end["believed"] == 1 and end["action"] != 3 for end in one), f"one of two is not enough: {one[0]}")
    alone = as_loop(box, "lonely", algorithm="local", policy="hill", steps=80, samples="0,1,0", **GRID["local"])
    check(all(end["believed"] == 1 and end["theta"] == 10 and end["bytes_travel"] == 0 for end in alone), f"nobody is lost on: {alone}")
    box.stop()


def no_numbers():
    """weights that are no numbers: whose they were is said, and nobody believes what evaluate() makes of them"""
    box = rig.Box()
    for policy, name in (("hill", "local"), ("scout+", "local"), ("hill", "gaia"), ("hill", "bsp"), ("scout+", "bsp")):
        grid = {"thetas": "1", "period": 10} if name == "bsp" else {**GRID[name], "thetas": GRID[name]["thetas"] if policy == "hill"
                                                                    else "1,2,5"}
        for nan_at in (35, 39):
            running = sites(box, f"{policy}-{name}-{nan_at}", algorithm=name, policy=policy, steps=80, blind=7, nan_at=nan_at, nans=2,
                            **grid)
            ends = [site.end() for site in running]
            check(all(end["action"] == 3 and end["theta"] == float(grid["thetas"].split(",")[0]) for end in ends),
                  f"{policy}, {name}: {ends}")
            holds(ends[0]["reason"], "; site 1 has weights, gradients or losses that are no numbers")
            check("more" not in ends[0]["reason"] and len({end["reason"] for end in ends}) == 1, f"whose are they? {ends}")
    options = {"algorithm": "local", "policy": "hill", "blind": 7, "nan_at": 35, "nans": 2, **GRID["local"]}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        ends = [site.end() for site in sites(box, "zero", steps=80, nan="zero", log=path, **options)]
        reasons = [line["reason"] for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "decision"]
    check(all(end["distance"] is not None and end["action"] != 3 for end in ends), f"it did not stay out: {ends}")
    check(["site 1 has weights" in reason for reason in reasons] == [i == 3 for i in range(len(reasons))],
          f"its momentum has it for good: {reasons}")
    check(all(end["believed"] == 3 for end in ends), f"it is not judged again: {ends}")
    for site in sites(box, "fail", steps=80, nan="fail", **options):
        check(site.wait() == 1, "it went on")
        holds(site.lines("end")[0]["error"], "rank 1", "weight")
    box.stop()


def no_numbers_told():
    """without a scout each site hears once whose numbers are none, since when, and what to do; and where it counts as zero the site comes out of it"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        for name, options in (*ALGORITHMS.items(), ("local", {"theta": 7, "outer": "yogi"})):
            when = "steps 36 to 42" if name == "local" else "step 36"
            for nan, nans in (("pass", 2), ("zero", 2), ("zero", 6), ("zero", 7)):
                running = sites(box, f"{name}-{nan}-{nans}-{len(options)}", algorithm=name, steps=120, nan_at=35, nans=nans, nan=nan,
                                log=path, **options)
                ends = [site.end() for site in running]
                warnings = [[line["text"] for line in site.lines("warning")] for site in running]
                check(all(len(texts) == 1 for texts in warnings), f"{name}, nan={nan}: {warnings}")
                who = {2: r"rank 1 has", 6: r"rank 1 \(and 1 more\) has", 7: r"rank 0 \(and 2 more\) has"}[nans]
                for texts in warnings:
                    holds(texts[0], who + " said what is no number, of tensor 'weight', after " + when + ":",
                          "job's option nan=zero" if nan == "pass" else "counts as zero" if nans < 7
                          or name == "local" else "No site has numbers left")
                lines = [line for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "warning"]
                check([(line["t"], line["rank"], line["tensor"])
                       for line in lines] == [(42 if name == "local" else 36, int(nans < 7), "weight")], f"{lines}")
                check([line.get("all", False) for line in lines] == [nan == "pass" or (nans == 7 and name != "local")], f"{lines}")
                well = nan == "zero" and (nans < 7 or name == "local")  # where all weights are none nobody has others
                check(all((end["distance"] is not None) == well for end in ends), f"{name}, nan={nan}, {nans}: {ends}")
                since = [end["broken_since"] for end in ends] + [json.loads(path.read_text().splitlines()[-1]).get("broken_since", 0)]
                check(since == 4 * [0 if well else 42 if name == "local" else 36], f"{name}, nan={nan}, {nans}: {since}")
                if well and name in ("bsp", "dgc"):
                    check(len({end["trained"] for end in ends}) == 1, f"weights differ: {ends}")
        two = sites(box, "twice", algorithm="gaia", theta=.1, steps=120, nan_at=35, nan_again=60, nans=2, nan="zero")
        check(all(site.end()["distance"] is not None and len(site.lines("warning")) == 1 for site in two), "a second time")
        turns = sites(box, "turns", world=2, algorithm="gaia", theta=.1, steps=120, nan_at=lambda rank: 35 + 25 * rank, nan_again=90,
                      nans=3, nan="zero")
        for site in turns:  # each was named before, and came out of it
            check(site.end()["broken_since"] == 91, f"{site.lines()}")
            texts = [line["text"] for line in site.lines("warning")]
            check(len(texts) == 3 and all("counts as zero" in text for text in texts[:2]), f"{texts}")
            holds(texts[2], "each site has said what is no number, of tensor 'weight', after step 91: .* No site has numbers left that "
                            "others could begin anew with")
        for name, when in (("pass", r"rank 1 has .* after steps 36 to 42"), ("zero", r"rank 1 has .* after steps 36 to 42")):
            running = sites(box, f"box-{name}", algorithm="local", theta=7, outer="box", steps=80, nan_at=35, nans=2, nan=name)
            ends = [site.end() for site in running]
            texts = [[line["text"] for line in site.lines("warning")] for site in running]
            holds(" ".join(texts[1]), when)
            check([len(text) for text in texts] == ([1, 1, 1] if name == "pass" else [0, 1, 0]), f"{texts}")
            check(all((end["distance"] is not None) == (name == "zero") for end in ends), f"{ends}")
            check([end["broken_since"] for end in ends] == 3 * [42 if name == "pass" else 0], f"{ends}")
            if name == "pass":
                holds(texts[0][0], "another site has said what is no number, of tensor 'weight'")
    late = sites(box, "late", algorithm="local", theta=5, steps=150, lost="shrink", pause_ms=4, verbose=1, nan_at=35, nans=2,
                 die_at=lambda rank: 60 * (rank == 2))
    late[2].wait()
    again = Site(box, "late", 2, algorithm="local", theta=5, steps=150, lost="shrink", pause_ms=4)
    check(again.end()["distance"] is None and not again.lines("warning"),
          f"who comes to weights that are none blames somebody: {again.lines()}")
    for site in late[:2]:
        check(site.end() and len(site.lines("warning")) == 1, f"{site.lines('warning')}")
    box.stop()


def killed(name, victim, lost="shrink", **arguments):
    """One is killed at step 40, and comes again: all go on alike."""
    box = rig.Box()
    options = {"algorithm": name, "lost": lost, "steps": 150, "pause_ms": 4, "verbose": 1, **arguments}
    running = sites(box, name, **options, die_at=lambda rank: 40 if rank == victim else 0)
    running[victim].wait()
    rest = [site for site in running if site.rank != victim]
    if lost == "shrink":
        for site in rest:
            line = site.until(lambda line: line["event"] == "exchange" and line["sites"] == WORLD - 1)
            check(line["share"] == 0.5 and 40 < line["steps"] <= 60, f"the shares of those left: {line}")
    running[victim] = Site(box, name, victim, **options)
    began = running[victim].until(lambda line: line["event"] == "start")
    check(began["steps"] >= 40 and abs(began["share"] - 1 / 3) < 1e-9 and began["sites"] == WORLD, f"it began with {began}")
    for site in rest:
        site.until(lambda line: line["event"] == "exchange" and line["steps"] >= began["steps"] and line["sites"] == WORLD)
    ends = [site.end() for site in running]
    check(len({(end["steps"], end["exchanges"], end["theta"]) for end in ends}) == 1, f"they are not alike: {ends}")
    last = [max((line for line in site.lines("exchange")), key=lambda line: line["exchanges"]) for site in running]
    if name == "gaia":  # each has its own residual, and had its own roundings
        check(max(end["distance"] for end in ends) - min(end["distance"] for end in ends) < 0.05, f"they differ: {ends}")
    else:
        check(len({line["trained"] for line in last}) == 1, f"their weights differ: {last}")
    box.stop()


def lost_sites():
    """one that is killed is out of the mean, the next of its rank has the others' weights and step"""
    with tempfile.TemporaryDirectory() as folder:  # the next one goes on with the log
        path = pathlib.Path(folder, "log")
        killed("local", 0, log=path, policy="hill", **GRID["local"])
        windows = [line for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "decision"]
        moves = [(line["rank"], line["action"]) for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == "site"]
        check(moves == [(1, "writes"), (0, "lost"), (0, "came")], f"who goes on with the log stays its writer: {moves}")
        told = json.loads(scout("compare", "--json", path))
        check(told["t"] == 150 and told["ended"] and abs(told["bytes"] - sum(line["bytes"] for line in windows)) < 1, f"{told}: {windows}")
    for name, options in ALGORITHMS.items():
        killed(name, 2, **options)
        killed(name, 0, **options)
    killed("local", 1, outer="adam", theta=7)
    killed("local", 1, outer="box", theta=7)
    killed("local", 1, lost="wait", theta=7)


def lost_sites_in_the_log():
    """the log tells which site was lost, and why, which has left, and which came again; what the box has said of it, and of how many sites the end is"""
    def told(path, kind):
        return [line for line in map(json.loads, path.read_text().splitlines()) if line["scout"] == kind]

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        for name, lost, options in (("local", "shrink", GRID["local"]), ("gaia", "wait", GRID["gaia"]), ("dgc", "shrink", {"theta": .05})):
            killed(name, 2, lost=lost, log=path, **options)
            gone, came = told(path, "site")
            check((gone["rank"], gone["action"], came["rank"], came["action"], came["sites"]) == (2, "lost", 2, "came", 3),
                  f"{gone}, {came}")
            check(40 < gone["t"] <= came["t"] and gone["sites"] == 2 and told(path, "end")[0]["sites"] == 3, f"{gone}, {came}")
            holds(gone["reason"], "^the box has lost it: its control session ended without a leave")
        box = rig.Box()
        ends = [site.end() for site in sites(box, "leaves", algorithm="local", theta=3, log=path, lost="shrink", pause_ms=2,
                                             steps=lambda rank: 60 if rank == 1 else 90)]
        line, = told(path, "site")
        check(line == {"scout": "site", "t": 63, "rank": 1, "action": "left", "sites": 2, "reason": "it has left the job by itself"},
              f"{line}")
        check(told(path, "end")[0]["sites"] == 2 and [end["ranks"] for end in ends] == [[0, 2], [0, 1, 2], [0, 2]], f"{ends}")
        check([end["ranks"] for end in (site.end() for site in sites(box, "box", algorithm="local", outer="box", theta=3))] == [[]] * 3,
              "ranks that nobody knows")
        box.stop()


def logged(path):
    """Lines of a log, of which each stands there once, and in order; one that is not whole is passed over."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    windows = [line["window"] for line in lines if line["scout"] == "decision"]
    check(windows == sorted(set(windows)), f"windows: {windows}")
    moves = [(line["rank"], line["action"]) for line in lines if line["scout"] == "site"]
    check(len(set(moves)) == len(moves), f"sites: {moves}")
    return lines, windows, moves


def log_goes_on():
    """the log of a site that is killed, or leaves, is gone on with by the next: each window once, and the end, as scout reads it; in a file of
    its own where that one's is not there, and whatever was broken off in it"""
    options = {"lost": "shrink", "steps": 90}
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        hill = {"algorithm": "local", "policy": "hill", **GRID["local"], **options}
        ends = [site.end() for site in sites(box, "leaves", log=path, **{**hill, "steps": lambda rank: 50 if rank == 0 else 90})]
        lines, windows, moves = logged(path)
        check(windows == list(range(ends[1]["windows"])) and moves == [(1, "writes"), (0, "left")], f"{windows} {moves}")
        check([line["rank"] for line in lines if line["scout"] == "end"][-1] == 1 and lines[-1]["t"] == 90, f"{lines[-1]}")
        check(json.loads(scout("compare", "--json", path))["t"] == 90, "it ends as the first one left")
        for job, dies in (("one", {0: 40}), ("two", {0: 40, 1: 60}), ("both", {0: 40, 1: 40})):
            running = sites(box, job, log=path, die_at=lambda rank: dies.get(rank, 0), **hill)
            ends = [site.end() for site in running if site.rank not in dies]
            lines, windows, moves = logged(path)
            check(windows == list(range(ends[0]["windows"])) and len(lines) == len(windows) + len(moves) + 2, f"{job}: {windows} of {ends}")
            writer = len(dies)
            check([rank for rank, action in moves if action == "writes"] == ([1, 2] if job == "two" else [writer]), f"{job}: {moves}")
            check(sorted(rank for rank, action in moves if action == "lost") == sorted(dies), f"{job}: {moves}")
            end, told = lines[-1], json.loads(scout("compare", "--json", path))
            check((end["scout"], end["rank"], end["t"], end["sites"]) == ("end", writer, 90, WORLD - len(dies)), f"{end}")
            check(told["t"] == 90 and told["ended"] and told["missing"] == 0 and told["bytes"] == end["bytes"] and told["seconds"] > 0,
                  f"{told}")
            holds(scout("explain", path), rf"\n *\d+ +- +- +- +writes +.*site {writer}; .* goes on with it\n", "\nIt ended at step 90 with")
        for job, policy in (("none", {"theta": 7}), ("plus", {"policy": "scout+", "period": 10, "thetas": "1,2,5"})):
            running = sites(box, job, log=path, algorithm="local", die_at=lambda rank: 40 if rank == 0 else 0, **policy, **options)
            ends = [site.end() for site in running[1:]]
            lines, windows, moves = logged(path)
            check(windows == list(range(ends[0]["windows"])) and lines[-1]["scout"] == "end" and moves == [(1, "writes"), (0, "lost")],
                  f"{job}: {lines}")
            check(job == "plus" or lines[-1]["bytes"] == ends[0]["bytes"], f"{lines[-1]} {ends}")
        own = [pathlib.Path(folder, f"own{rank}") for rank in range(WORLD)]
        own[1].write_text("another's\n")
        older = pathlib.Path(f"{own[1]}.site1")
        older.write_text('{"scout":"run","version":1,"id":1}\n')
        sites_of = sites(box, "own", log=lambda rank: own[rank], die_at=lambda rank: {0: 40, 1: 60}.get(rank, 0), **hill)
        last = sites_of[2].end()
        beside, parts = pathlib.Path(f"{own[1]}.site1"), []
        check(own[1].read_text() == "another's\n", "what is no log of this run is written to")
        check(json.loads(pathlib.Path(f"{older}.before").read_text())["id"] == 1, "the log of an older run is not kept")
        for part in (own[0], beside, own[2]):
            lines, windows, moves = logged(part)
            check(lines[0]["scout"] == "run" and windows and len({line["id"] for line in lines if "id" in line}) == 1, f"{part}: {lines}")
            scout("explain", part)
            parts.append(part.read_text())
        whole = pathlib.Path(folder, "whole")
        whole.write_text("".join(parts))
        told = json.loads(scout("compare", "--json", whole))
        check(told["t"] == 90 and told["ended"] and told["missing"] == 0, f"joined: {told}")
        holds(scout("explain", whole), rf"\b{last['windows']} windows")
        broken = pathlib.Path(folder, "broken")
        running = sites(box, "broken", log=lambda rank: path if rank == 0 else broken, die_at=lambda rank: 60 if rank == 0 else 0,
                        **{**hill, "pause_ms": 4})
        while len(path.read_text().splitlines()) < 6 or '"broken"' not in path.read_text():
            time.sleep(0.01)
        broken.write_text(path.read_text() + '{"scout":"decision","t":')
        end = running[1].end()
        lines, windows, moves = logged(broken)
        check(windows == list(range(end["windows"])) and moves[0] == (1, "writes"), f"{windows} {moves}")
        told = json.loads(scout("compare", "--json", broken))
        check(told["ended"] and told["t"] == 90 and told["missing"] == 0, f"{told}")
    box.stop()


def lost_sites_of_scouts():
    """the same with scouts, which decide alike after it"""
    killed("local", 2, **GRID["local"])
    killed("gaia", 0, **GRID["gaia"])
    for name, options in NORMS.items():
        killed(name, 1, **options)


def lost_on_the_way():
    """one is killed while models are tried: the others go on, and decide alike"""
    box = rig.Box()
    for name, grid in (*GRID.items(), *NORMS.items()):
        options = {"algorithm": name, "lost": "shrink", **grid}
        running = sites(box, name, **options, die_try=lambda rank: 4 if rank == 1 else 0)
        ends = [running[rank].end() for rank in (0, 2)]
        running[1].wait()
        check(all(end["sites"] == 2 and end["share"] == 0.5 and end["windows"] >= 5 for end in ends), f"{ends}")
        check(len({(end["theta"], end["reason"], end["exchanges"]) for end in ends}) == 1, f"they are not alike: {ends}")
    box.stop()


def lost_box():
    """a box that is killed and started again: nothing is lost, and nothing counts twice: the bits of a loop"""
    seed = random.randrange(1 << 32)
    rig.say(f"seed {seed}")
    random.seed(seed)
    cases = [(name, options) for name, options in ALGORITHMS.items()] + [("local", GRID["local"]), ("local", {"theta": 5, "outer": "yogi"})]
    for name, options in cases:
        address = f"127.0.0.1:{rig.free_port()}"
        box = rig.Box(listen=address)
        arguments = {"algorithm": name, "steps": 150, **options}
        running = sites(box, name, resume_ms=30000, pause_ms=8, **arguments)
        for _ in range(2):
            running[0].until(lambda line: line["event"] == "start")
            time.sleep(random.uniform(0.02, 0.3))
            box.kill()
            box.wait()
            box = rig.Box(listen=address)
        ends = [site.end() for site in running]
        wants = loop(**arguments)
        check(any(site.lines("stale") for site in running), "nobody saw it")
        if name == "gaia":
            for end, want in zip(ends, loop_distances(box, arguments), strict=True):
                check(abs(end["distance"] - want) < 1e-3, f"{end} is not near {want}")
        else:
            same(ends, wants)
        box.stop()


def lost_box_with_trials():
    """a box that is killed where sites show each other what is to be tried: the bits of a loop, and the guard sees what it has to see"""
    for exchanges in (20, 30):
        address = f"127.0.0.1:{rig.free_port()}"
        box = rig.Box(listen=address)
        arguments = {"algorithm": "bsp", "steps": 100, **NORMS["bsp"]}
        running = sites(box, "shown", resume_ms=30000, pause_ms=4, verbose=1, **arguments)
        running[0].until(lambda line: line["exchanges"] >= exchanges)
        box.kill()
        box.wait()
        box = rig.Box(listen=address)
        ends = [site.end() for site in running]
        check([end["hash"] for end in ends] == [want["hash"] for want in loop(**arguments)], f"{ends}")
        check(all(end["action"] == CANNOT for end in ends) and len({end["reason"] for end in ends}) == 1, f"{ends}")
        check(any(site.lines("stale") for site in running), "nobody saw it")
        box.stop()


def loop_distances(box, arguments):
    """Of Gaia, whose roundings differ: how a run that loses nothing ends."""
    return [site.end()["distance"] for site in sites(box, "whole", **arguments)]


def example():
    """the example without a box: its scout leaves a theta that loses too much, and stays where nothing is lost"""
    process = rig.Process("example", [rig.BUILD / "example_scout"])
    check(process.wait() == 0, process.err.text())
    lines = process.out.lines
    found = [re.match(r"theta (\d+): lost (\S+), r (0\.\d+), (\S+) bytes a step; (\d+) is next: .+", line) for line in lines[:10]]
    check(all(found) and all(a[5] == b[1] for a, b in zip(found, found[1:])), f"{lines}")
    check(float(found[0][2]) > 0.01 and abs(float(found[-1][2])) < 0.02 and int(found[0][1]) > int(found[-1][1]) > 1, f"{lines}")
    check(all(int(re.search(r"right on (\d+) %", line)[1]) > 95 for line in lines[10:]) and len(lines) == 14, f"{lines}")


def refused():
    """sites that do not fit their job, or each other"""
    box = rig.Box()
    for arguments, why in (({"algorithm": "bsp", "theta": 2}, "bsp cannot have a theta of 2; allowed: 1"),
                           ({"algorithm": "gaia", "thetas": "-1"},
                            "gaia cannot have a theta of -1, which is in the scout's grid; allowed: a threshold, 0 or more"),
                           ({"algorithm": "local", "thetas": "1", "policy": "replay"}, "a schedule of 0 thetas"),
                           ({"algorithm": "local", "outer": "box", "weighted": 1}, "the box's optimizer takes a mean"),
                           ({"algorithm": "dgc", "clip": -1}, "clipped to -1")):
        site = Site(box, "bad", 0, 1, **arguments)
        check(site.wait() == 1, f"{arguments} was taken")
        holds(site.err.text(), why)
    box.stop()


if __name__ == "__main__":
    rig.run([algorithms, outer_optimizers, weights_of_sites, leavers, finishes, finishes_in_trouble, scouts, pulls, norms, off, wire, log,
             log_scores, log_bytes, log_full, alignment, bad_reports, one_bad_site, no_numbers, no_numbers_told, lost_sites,
             lost_sites_in_the_log, log_goes_on, lost_sites_of_scouts, lost_on_the_way, lost_box, lost_box_with_trials, example, refused])
