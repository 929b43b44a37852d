#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sites that are killed and begin again from what they saved go on bit for bit, at another box; what does not fit is refused in words."""
import json
import os
import pathlib
import random
import shutil
import tempfile

import rig
from rig import check, holds
from test_sites import ALGORITHMS, GRID, Site, scout, sites

WORLD = 3
KEPT = ("hash", "theta", "share", "steps", "exchanges", "windows", "bytes", "bytes_travel")
PLUS = {"policy": "scout+", "period": 10, "pull": .4}
RUNS = {
    **ALGORITHMS,
    "diloco": {"algorithm": "local", "theta": 6, "outer": "nesterov"},
    "yogi": {"algorithm": "local", "theta": 6, "outer": "yogi", "weighted": 1, "samples": "3,0,5"},
    "turns": {"algorithm": "local", "theta": 10, "theta_at": 20, "theta_then": 7},
    "hill-local": {"algorithm": "local", "policy": "hill", **GRID["local"]},
    "hill-gaia": {"algorithm": "gaia", "policy": "hill", **GRID["gaia"]},
    "annealing": {"algorithm": "local", "policy": "annealing", **GRID["local"]},
    "fixed-dgc": {"algorithm": "dgc", "policy": "fixed", "thetas": ".1,.05", "first": 1, "period": 10},
    "hill-phase": {"algorithm": "local", "policy": "hill", "thetas": "4", "first": 0, "period": 10},
    "plus-local": {"algorithm": "local", "thetas": "1,2,5,10", **PLUS},
    "plus-gaia": {"algorithm": "gaia", "thetas": "0,.02,.05,.1,.2", **PLUS},
}


def options(name):
    return {"algorithm": name.split("-")[0], **RUNS[name]}


def crash(box, job, folder, at, more=3, **arguments):
    """They save after step `at`, go on, and are killed all at once, or by that. Returns the file of a rank."""
    there = sites(box, job, save_at=at, die_at=at + more, save=lambda rank: f"{folder}/{job}.{rank}", **arguments)
    for site in there:
        check(site.wait() != 0, f"{site.name} was not killed")
        check(site.lines("saved")[0]["rc"] == 0, f"{site.name}: nothing was saved: {site.err.text()}")
    return lambda rank: f"{folder}/{job}.{rank}"


def same(ends, wants, names=KEPT):
    for end, want in zip(ends, wants, strict=True):
        for name in names:
            check(end[name] == want[name], f"rank {end['rank']}: {name} is {end[name]}, and {want[name]} without the break: {end}")


def goes_on():
    """each algorithm, DiLoCo, and scouts: killed by kill -9 after a step that chance picks, and begun again at another box"""
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        for name in RUNS:
            at, transport, box = chance.randrange(21, 70), chance.choice(["shm", "tcp"]), rig.Box()
            whole = [site.end() for site in sites(box, name, transport=transport, **options(name))]
            file = crash(box, f"{name}-{at}", folder, at, transport=transport, **options(name))
            box.stop()
            box = rig.Box()
            ends = [site.end() for site in sites(box, name, transport=transport, load=file, **options(name))]
            same(ends, whole)
            box.stop()


def each_step():
    """a scout in many places of its interval; saving changes nothing, and what goes on can be saved again"""
    box = rig.Box()
    run = {**options("hill-local"), "steps": 60}
    with tempfile.TemporaryDirectory() as folder:
        whole = [site.end() for site in sites(box, "whole", **run)]
        file, last = None, 0
        for at in range(5, 56, 6):
            file = crash(box, f"at{at}", folder, at, **run, **({"load": file} if file else {}))
            check(at > last, "it went back")
            last = at
        saves = sites(box, "saves", load=file, save_at=58, save=lambda rank: f"{folder}/more.{rank}", **run)
        same([site.end() for site in saves], whole)
    box.stop()


def some_lost():
    """one has lost its file and comes to the others; a late one, in a job that runs, keeps what it had to say"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        for name, at in (("bsp", 33), ("gaia", 33), ("diloco", 33), ("plus-local", 33), ("hill-phase", 47)):
            file = crash(box, f"lost-{name}", folder, at, **options(name))
            for bare in (0, 2):
                there = sites(box, f"{name}{bare}", verbose=1, load=lambda rank, bare=bare, file=file: "" if rank == bare else file(rank), **options(name))
                ends = [site.end() for site in there]
                starts = [site.lines("start")[0] for site in there]
                check([start["steps"] for start in starts] == [at] * WORLD, f"{name}: they do not go on from step {at}: {starts}")
                steps = {tuple(line["steps"] for line in site.lines("exchange")) for site in there}
                check(len(steps) == 1, f"{name}: they exchange after other steps: {steps}")
                check(all(end["steps"] == 100 and end["sites"] == WORLD for end in ends), f"{name}: {ends}")
                if name != "gaia":
                    last = [site.lines("exchange")[-1]["trained"] for site in there]
                    check(len(set(last)) == 1, f"{name}: weights differ after an exchange: {last}")
        run = {"algorithm": "local", "theta": 5, "lost": "wait", "pause_ms": 5}
        file = crash(box, "late", folder, 12, algorithm="local", theta=5)
        there = [Site(box, "one", rank, steps=200, verbose=1, **run, **({"die_at": 30} if rank == 1 else {})) for rank in range(WORLD)]
        check(there[1].wait() != 0, "it was not killed")
        late = Site(box, "one", 1, steps=200, verbose=1, load=file(1), **run)
        ends = [site.end() for site in (there[0], late, there[2])]
        check(late.lines("start")[0]["steps"] > 12, f"it does not have the others' step: {late.lines('start')}")
        check(len({end["trained"] for end in ends}) == 1, f"weights differ at the end: {ends}")
    box.stop()


def at_the_box():
    """where the box has the outer optimizer its checkpoints have its state: the two fit together"""
    with tempfile.TemporaryDirectory() as folder:
        config = {"checkpoint_targets": folder + "/box", "checkpoint_every": 1, "checkpoint_keep": 100}
        os.mkdir(folder + "/box")
        os.mkdir(folder + "/none")
        run = {"algorithm": "local", "theta": 6, "outer": "box"}
        box = rig.Box(**config)
        whole = [site.end() for site in sites(box, "whole", **run)]
        for steps, load in ((27, lambda rank: ""), (33, lambda rank: f"{folder}/box.{rank}")):
            there = sites(box, "box", steps=steps, save_at=steps, save=lambda rank: f"{folder}/box.{rank}", load=load, **run)
            check(box.err.find(lambda line, last=steps // 6: f"checkpoint before round {last + 1} written" in line), "the box has no checkpoint")
            for site in there:
                site.process.stdin.write("\n")
                site.process.stdin.flush()
            for site in there:
                site.end()
            box.stop()
            if steps == 27:
                shutil.copytree(folder + "/box", folder + "/behind")
            box = rig.Box(**config)
        there = sites(box, "box", load=lambda rank: f"{folder}/box.{rank}", **run)
        same([site.end() for site in there], whole, ("trained", "theta", "exchanges", "bytes"))
        check(not any(site.lines("warning") for site in there), "it warns of what is whole")
        box.stop()
        for name, has in (("behind", "goes on after 4, with the weights and the optimizer of then"),
                          ("none", "has no checkpoint, and begins with rank 0's common weights")):
            box = rig.Box(**{**config, "checkpoint_targets": f"{folder}/{name}"})
            there = sites(box, "box", load=lambda rank: f"{folder}/box.{rank}", **run)
            same([site.end() for site in there], whole, ("theta", "exchanges", "bytes"))
            for site in there:
                check(site.lines("end")[0]["trained"] != whole[0]["trained"], f"{name}: the same bits")
                check([f"this site was in 5 exchanges, and the box {has}" in line["text"] for line in site.lines("warning")] == [True],
                      f"{name}: {site.lines('warning')}")
            box.stop()
        box = rig.Box()
        file, other = crash(box, "early", folder, 33, **run), crash(box, "late", folder, 40, **run)
        turned = crash(box, "turned", folder, 33, theta_at=20, theta_then=7, **run)
        for job, mine, said in (("first", lambda rank: file(rank) if rank else "", "steps so far of sites differs: rank 0 says 0, rank "
                                                                                   "[12] says 33|rank [12] says 33, rank 0 says 0"),
                                ("last", lambda rank: file(rank) if rank < 2 else "", "rank 2 says 0"),
                                ("step", lambda rank: other(1) if rank == 1 else file(rank), "rank 1 says 40"),
                                ("theta", lambda rank: turned(1) if rank == 1 else file(rank), "theta so far of sites differs: .*rank 1 says 7")):
            for site in sites(box, f"unlike-{job}", load=mine, **run):
                check(site.wait() == 1, f"{site.name} went on")
                holds(site.err.text(), said)
        there = [Site(box, "late", rank, lost="wait", pause_ms=5, **{**run, "steps": 200}, **({"die_at": 30} if rank == 1 else {})) for rank in range(WORLD)]
        check(there[1].wait() != 0, "it was not killed")
        ends = [site.end() for site in (there[0], Site(box, "late", 1, load=file(1), lost="wait", pause_ms=5, **{**run, "steps": 200}), there[2])]
        check(all((end["steps"], end["exchanges"]) == (200, 33) for end in ends), f"who comes to a job that runs is let in: {ends}")
        box.stop()


def refused():
    """states of other steps, runs, ranks, options, models, weights, and damaged ones"""
    box, run = rig.Box(), options("hill-local")
    with tempfile.TemporaryDirectory() as folder:
        early, late = crash(box, "early", folder, 30, **run), crash(box, "late", folder, 35, **run)
        other = crash(box, "other", folder, 30, **{**run, "pull": .3})
        for file, why in ((late, "rank 0 has loaded a state of step 30, and rank 1 one of step 35"), (other, "of two runs")):
            for site in sites(box, f"mixed{why[:5]}".replace(" ", ""), load=lambda rank, file=file: file(rank) if rank == 1 else early(rank), **run):
                check(site.wait() == 1, f"{site.name} went on")
                holds(site.err.text(), why)
        gaia = {"algorithm": "gaia", "theta": .1}
        early_gaia, other = (crash(box, f"gaia{i}", folder, 30, **gaia) for i in range(2))
        for site in sites(box, "mixedgaia", load=lambda rank: other(rank) if rank == 1 else early_gaia(rank), **gaia):
            check(site.wait() == 1, f"{site.name} went on with two runs")
            holds(site.err.text(), "of two runs")
        whole = pathlib.Path(early(0)).read_bytes()
        cases = [("a", {}, {"load": early(1)}, "is that of rank 1, and this is rank 0"),
                 ("b", {}, {"world": 2}, "is of one of 3 sites, and here are 2"),
                 ("c", {"algorithm": "gaia", "thetas": ".02,.05", "first": 1}, {}, "its algorithm was local, and here it is gaia"),
                 ("d", {"policy": "annealing"}, {}, "its scout's policy was hill, and here it is annealing"),
                 ("e", {"outer": "adam"}, {}, "its outer optimizer was average, and here it is adam"),
                 ("f", {"period": 11}, {}, "of a scout with other options"),
                 ("g", {"weighted": 1}, {}, "its weighting by samples")]
        for name, more, place, why in cases:
            world = place.pop("world", WORLD)
            site = Site(box, f"refused-{name}", 0, world, **{**run, **more, "load": early(0), **place})
            check(site.wait() == 1, f"{why}: it was taken")
            holds(site.err.text(), why)
        chance = random.Random(3)
        damaged = [(whole[:5200 + chance.randrange(len(whole) - 5200)], "no state of a site|not whole") for _ in range(3)] + [(whole + b"more", "not whole")]
        for _ in range(12):
            at = 5200 + chance.randrange(len(whole) - 5200)
            damaged.append((whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1:], "state"))
        damaged.append((bytes([whole[0] ^ 1]) + whole[1:], "the weights of tensor 'weight' are not those"))
        damaged.append((whole[:5208] + b"\x02" + whole[5209:], "is of version 2, and this libphub reads version 1"))
        for i, (content, why) in enumerate(damaged):
            path = pathlib.Path(folder, "damaged")
            path.write_bytes(content)
            site = Site(box, f"damaged{i}", 0, load=path, **run)
            check(site.wait() == 1, f"{i}: it was taken")
            holds(site.err.text(), why)
    box.stop()


def log_goes_on():
    """the log goes on in its file: what was lost with the crash does not count, and each decision is as without the break, to the last number"""
    box = rig.Box()
    with tempfile.TemporaryDirectory() as folder:
        for name, at in (("hill-local", 8), ("hill-local", 33), ("plus-local", 37), ("plus-gaia", 41)):
            job, run = f"{name}-{at}", {**options(name), "score_at": 20}
            whole, broken = f"{folder}/{job}.whole.jsonl", f"{folder}/{job}.jsonl"
            for site in sites(box, f"{job}-whole", log=whole, **run):
                site.end()
            file = crash(box, job, folder, at, 40, log=broken, **run)
            for site in sites(box, job, log=broken, load=file, **run):
                site.end()
            wanted, found = ([json.loads(line) for line in pathlib.Path(path).read_text().splitlines()] for path in (whole, broken))
            check([line["scout"] for line in found].count("run") == 1, f"it has not gone on in its file: {found}")
            restart = [i for i, line in enumerate(found) if line.get("action") == "restarted"]
            check(len(restart) == 1 and found[restart[0]]["t"] == at and found[restart[0]]["sites"] == WORLD, f"the restart: {restart}")
            check(any(line.get("t", 0) > at for line in found[:restart[0]]), "nothing was lost")
            found = [line for i, line in enumerate(found) if line["scout"] == "decision" and (i > restart[0] or line["t"] <= at)]
            wanted = [line for line in wanted if line["scout"] == "decision"]
            for one, other in zip(found, wanted, strict=True):
                check(one == other, f"a window without the break: {other}, with it: {one}")
            totals = [json.loads(line) for line in scout("compare", whole, broken, "--json").splitlines()]
            check(totals[1].pop("seconds") > 0 and totals[1].pop("bytes_wire") > totals[0].pop("bytes_wire"), f"the end is not of the whole run: {totals}")
            del totals[0]["seconds"], totals[0]["log"], totals[1]["log"]
            check(totals[0] == totals[1], f"compare: {totals}")
            holds(scout("explain", broken), f"go on from what they saved after step {at}")
            scout("plot", broken, "--out", f"{folder}/plot.svg")
        for name, thetas in (("hill-gaia", ".5,2"), ("fixed-dgc", ".01,.2")):  # with what shadows had still to say, or with others from there on
            env, whole, broken = {**rig.QUIET, "PHUB_SCOUT_SHADOW": thetas}, f"{folder}/{name}.whole", f"{folder}/{name}"
            for site in sites(box, f"{name}-shadows", log=whole, env=env, **options(name)):
                site.end()
            file = crash(box, f"{name}-shadows", folder, 37, log=broken, env=env, **options(name))
            for again in (env, {**rig.QUIET, "PHUB_SCOUT_SHADOW": ".3"}, rig.QUIET):
                for site in sites(box, f"{name}-shadows", log=broken, load=file, env=again, **options(name)):
                    site.end()
                lines = [[json.loads(line) for line in pathlib.Path(path).read_text().splitlines()] for path in (whole, broken)]
                told = [{line["window"]: line.get("shadow") for line in part if line["scout"] == "decision"} for part in lines]
                check(len(told[0]) > 8 and (told[0] == told[1]) == (again is env), f"{name}: {told}")
        log = f"{folder}/bare.jsonl"  # who has lost its file is who writes
        file = crash(box, "bare", folder, 33, 40, log=log, **options("hill-local"))
        for site in sites(box, "bare", log=log, load=lambda rank: file(rank) if rank else "", **options("hill-local")):
            site.end()
        found = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
        told = [(line["t"], line["rank"], line["action"]) for line in found if line["scout"] == "site"]
        check(told == [(33, 0, "restarted")], f"what is told of sites: {told}")
        holds(scout("explain", log), "10 windows", "go on from what they saved after step 33, but rank 0, which has saved nothing, from theirs")
    box.stop()


if __name__ == "__main__":
    rig.run([goes_on, each_step, some_lost, at_the_box, refused, log_goes_on])
