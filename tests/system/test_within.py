#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sites in sites: racks that talk tightly inside, over their own box, and loosely across, over its uplink. Real boxes, real workers."""
import json
import pathlib
import random
import subprocess
import tempfile
import time

import rig
from rig import check, holds

RACKED = rig.BUILD / "tests/system/racked"
PHUB = rig.BUILD / "phub"
MODEL = 50000 * 4


class Racks:
    """Two racks with a box each, below a root, or exchanging with each other, and two workers in each."""

    def __init__(self, hierarchy="tree", **options):
        self.top = rig.Box(name="top", cores=1, hierarchy=hierarchy, **options)
        racks = [{}, {}] if hierarchy == "tree" else [{"listen": "127.0.0.2:0"}]
        self.racks = [rig.Box(name=f"rack{i}", cores=1, uplink=self.top.address, **more, **options) for i, more in enumerate(racks)]
        if hierarchy != "tree":
            self.racks.insert(0, self.top)

    def workers(self, job="across", transport="tcp", env=None, **more):
        words = [f"{name}={value}" for name, value in {"transport": transport, **more}.items()]
        return [Worker(f"{job}.{rank}", [RACKED, self.racks[rank // 2].url("inside-" + job), self.racks[rank // 2].url(job), f"rank={rank}",
                                         *words], env=env)
                for rank in range(4)]

    def stop(self):
        for box in {*self.racks} - {self.top}:
            box.stop()
        self.top.stop()


class Worker(rig.Process):
    def lines(self, event):
        return [line for line in map(json.loads, self.out.lines) if line["event"] == event]

    def until(self, event):
        found = self.out.find(lambda text: (line := json.loads(text)) and line["event"] == event and line)
        check(found, f"{self.name}: {event} never came: {self.err.text()}")
        return found[1]

    def end(self):
        check(self.wait() == 0, f"{self.name} failed: {self.err.text()} {self.out.lines[-1:]}")
        return self.lines("end")[0]


def plain(**more):
    """What each worker has in the end, computed without sites."""
    done = subprocess.run([RACKED, "plain", "plain", *(f"{name}={value}" for name, value in more.items())], check=True, capture_output=True,
                          text=True,
                          timeout=rig.DEADLINE_S)
    return [json.loads(line)["hash"] for line in done.stdout.splitlines()]


def jobs(box):
    out = subprocess.run([PHUB, "jobs", "--json", box.address], check=True, capture_output=True, text=True, timeout=rig.DEADLINE_S,
                         env=rig.QUIET).stdout
    return {job["job"]: job for job in map(json.loads, out.splitlines()) if "job" in job}


def as_plain(racks, job, transport="tcp", **more):
    lazy = {name: more.pop(name) for name in ("lazy_ms", "lost") if name in more}
    ends = [worker.end() for worker in racks.workers(job, transport, **lazy, **more)]
    wanted = plain(**more)
    check([end["hash"] for end in ends] == wanted, f"{job}: {[end['hash'] for end in ends]} and plainly {wanted}")
    return ends


def computed():
    """bit for bit what a plain loop computes, whatever the two thetas, also when they change in the middle, over a tree and an exchange"""
    for hierarchy in ("tree", "sharded", "chain"):
        racks = Racks(hierarchy)
        ends = as_plain(racks, "each", rack_theta=1, theta=10)
        check(len({end["hash"] for end in ends}) == 1, f"after an exchange across all have the same weights: {ends}")
        check(all(end["exchanges"] == 4 and end["rack_exchanges"] == 40 and end["sites"] == 4 and end["rack_sites"] == 2 for end in ends),
              f"{ends}")
        check(all(end["bytes"] == 4 * MODEL and end["bytes_within"] == end["rack_bytes"] == 40 * MODEL for end in ends), f"{ends}")
        as_plain(racks, "turns", "shm", rack_theta=2, theta=5, theta_at=15, theta_then=3, rack_then=4, steps=43)
        if hierarchy == "tree":
            as_plain(racks, "alone", rack_theta=3, theta=1)  # across more often than inside: what is common moves late
            as_plain(racks, "lazy", rack_theta=1, theta=4, lazy_ms=1, lost="shrink")
        racks.stop()


def finished():
    """at the end, at any step, all of all racks have the same weights, which are those of a plain loop of local SGD"""
    racks = Racks()
    for name, more in {"both": {"rack_theta": 3, "theta": 9}, "around": {"rack_theta": 1, "theta": 9},
                       "within": {"rack_theta": 3, "theta": 10}, "none": {"rack_theta": 1, "theta": 10}}.items():
        ends = as_plain(racks, name, finish=1, **more)
        check(len({end["hash"] for end in ends}) == 1, f"{name}: {ends}")
    for name, theta in (("gaia", .5), ("dgc", .05), ("bsp", 1)):
        ends = [worker.end() for worker in racks.workers(name, rack_algorithm=name, rack_theta=theta, theta=9, finish=1)]
        check(len({end["hash"] for end in ends}) == 1, f"{name}: {ends}")
    racks.stop()


def equal():
    """each algorithm inside, and momentum across: all have the same weights after an exchange across, of Gaia but for what is unsaid"""
    racks = Racks()
    for name, more in (("bsp", {}), ("dgc", {"rack_theta": .1}), ("local", {"rack_theta": 2}), ("gaia", {"rack_theta": 0})):
        for outer in ("average", "nesterov"):
            ends = [worker.end() for worker in racks.workers(f"{name}-{outer}", rack_algorithm=name, theta=10, outer=outer, **more)]
            check(len({end["hash"] for end in ends}) == 1 and ends[0]["exchanges"] == 4, f"{name}, {outer}: {ends}")
    ends = [worker.end() for worker in racks.workers("some", rack_algorithm="gaia", rack_theta=.5, theta=10)]
    check(0 < ends[0]["rack_bytes"] < 40 * MODEL and ends[0]["bytes"] == 4 * MODEL, f"{ends}")
    racks.stop()


def uplinks():
    """a rack's uplink carries one model every theta steps, not one a step, nor one for each worker; what is said inside stays there"""
    racks = Racks()
    for theta in (5, 20):
        workers = racks.workers(f"each{theta}", rack_theta=1, theta=theta, steps=100, hold=1)
        for worker in workers:
            worker.until("trained")
        for box in racks.racks:
            found = jobs(box)
            across, inside = found[f"each{theta}"], found[f"inside-each{theta}"]
            rate = across["above"]["bytes"] / 100 / (MODEL / theta)
            check(1 <= rate < 1.3, f"theta {theta}: {rate:.2f} models went up every theta steps: {across}")
            check("above" not in inside and inside["rounds"] >= 100, f"{inside}")
            rate = inside["pushed_bytes"] / 100 / (2 * MODEL)
            check(1 <= rate < 1.1, f"{rate:.2f} models of two workers went over the links within at each step: {inside}")
            table = subprocess.run([PHUB, "jobs", box.address], check=True, capture_output=True, text=True, env=rig.QUIET).stdout
            holds(table, r"sync +pushed +rounds", rf"inside-each{theta} .* bsp +{inside['pushed_bytes'] / 1e6:.1f} MB ")
        check(f"inside-each{theta}" not in jobs(racks.top), f"{jobs(racks.top)}")
        for worker in workers:
            worker.kill()
    racks.stop()


def logged():
    """the decision log says both classes of link, and the bytes of each; environment variables are those of the class"""
    racks = Racks()
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "across.jsonl"
        ends = [worker.end() for worker in racks.workers("log", rack_theta=1, thetas="2,4,10", period=10, steps=60, log=log)]
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        check(lines[0]["link"] == "across" and lines[0]["within"] == {"algorithm": "local", "theta": 1, "link": "rack"}, f"{lines[0]}")
        windows = [line for line in lines if line["scout"] == "decision"]
        check(len(windows) == ends[0]["windows"] >= 4, f"{windows}")
        for line, before in zip(windows, [0, *(line["t"] for line in windows)]):  # all that was said; the cost weighs a period's
            check(line["bytes_within"] == (line["t"] - before) * MODEL
                  and line.get("bytes_within_cost", line["bytes_within"]) == 10 * MODEL, f"{line}")
        check(windows[1]["t"] - windows[0]["t"] == 12 and "bytes_within_cost" not in windows[0], f"{windows[:2]}")
        check(lines[-1]["bytes_within"] == ends[0]["bytes_within"] == 60 * MODEL and lines[-1]["bytes"] == ends[0]["bytes"], f"{lines[-1]}")
        out = subprocess.run([PHUB, "scout", "explain", log, "--at", str(windows[1]["t"])], check=True, capture_output=True, text=True,
                             env=rig.QUIET).stdout
        holds(out, r"2\.4 MB a site in exchanges within, 4\.4 MB since the start: local, at theta 1, over rack\n")
        out = subprocess.run([PHUB, "scout", "explain", log], check=True, capture_output=True, text=True, env=rig.QUIET).stdout
        holds(out, r"Sites are within these: local, at theta 1, over rack; a site sent there 12\.0 MB\.\n")
        out = subprocess.run([PHUB, "scout", "compare", log], check=True, capture_output=True, text=True, env=rig.QUIET).stdout
        holds(out, r"travelled +within +wire +fewer", r"\nacross +local +hill +60 +\d\.\d MB +\d\.\d MB +12\.0 MB ",
              "within: that the sites within these sent")
        cut = pathlib.Path(folder) / "cut.jsonl"
        cut.write_text("".join(log.read_text().splitlines(True)[:-1]))
        out = subprocess.run([PHUB, "scout", "compare", "--json", log, cut], check=True, capture_output=True, text=True,
                             env=rig.QUIET).stdout
        sent = [json.loads(line)["bytes_within"] for line in out.splitlines()]
        check(sent == [60 * MODEL, windows[-1]["t"] * MODEL], f"in the end, and by windows: {sent}")
        picture = pathlib.Path(folder) / "links.svg"
        subprocess.run([PHUB, "scout", "plot", log, "--out", picture], check=True, env=rig.QUIET)
        holds(picture.read_text(), "Bytes, by class of links", "within them")
        cost = {"unit": "seconds", "rate": 1e8, "latency": 0.02, "latency_within": 0.001, "rate_within": 1e9}
        ends = [worker.end() for worker in racks.workers("cost", env={f"PHUB_SCOUT_ACROSS_{name.upper()}": str(value)
                                                                      for name, value in cost.items()},
                                                         rack_theta=1, thetas="2,4,10", period=10, steps=60, log=log)]
        windows = [line for line in map(json.loads, log.read_text().splitlines()) if line["scout"] == "decision"]
        model = 0.02 + MODEL / 1e8
        for line, before in zip(windows, [0, *(line["t"] for line in windows)]):
            meetings = -(-(line["t"] - before) // line["theta"]) * 10 / (line["t"] - before)
            spent = (meetings * model + 10 * (0.001 + MODEL / 1e9)) / 10
            check(line["unit"] == "seconds" and abs(line["spent"] - spent) < 1e-5 and abs(line["cost"] - line["spent"] / model) < 1e-9,
                  f"{line}: {spent}")
        out = subprocess.run([PHUB, "scout", "explain", log, "--at", str(windows[1]["t"])], check=True, capture_output=True, text=True,
                             env=rig.QUIET).stdout
        holds(out, r"cost .* of [\d.]+ models' seconds a step: [\d.]+ of 0.022\n")
        out = subprocess.run([PHUB, "scout", "dry-run", log, "--unit", "money", "--price", "0.09", "--json"], check=True,
                             capture_output=True, text=True, env=rig.QUIET).stdout
        check(len(out.splitlines()) == len(windows), out)
        for words, why in ((["--unit", "money", "--price", "0"], "costs in money want the link's price, of 10.9 bytes, above 0"),
                           (["--rate", "-1"], "--rate -1: allowed are bytes, like")):
            done = subprocess.run([PHUB, "scout", "dry-run", log, *words], capture_output=True, text=True, env=rig.QUIET)
            check(done.returncode == 2, f"{words}: {done}")
            holds(done.stderr, why)
        for price_within, theta, reason in ((10, 4, "no looser one is cheaper by 3 %, as theta does not change 240 money of a window's cost"),
                                            (0.01, 10, "allows this theta, and nothing says that data have drifted")):
            cost = {"policy": "scout+", "unit": "money", "price": 1e4, "price_within": 1e4 * price_within}
            [worker.end() for worker in racks.workers(f"dear{theta}", env={f"PHUB_SCOUT_ACROSS_{name.upper()}": str(value)
                                                                           for name, value in cost.items()},
                                                      rack_theta=1, thetas="1,2,4,10", period=12, steps=160, log=log)]
            last = [line for line in map(json.loads, log.read_text().splitlines()) if line["scout"] == "decision"][-1]
            check(last["next"] == theta and last["reason"].endswith(reason), f"{last}")
    words = [f"rank={rank}" for rank in range(4)]
    workers = []
    for rank, word in enumerate(words):
        env = {**rig.QUIET, "PHUB_SCOUT_RACK_THETA": "2", "PHUB_SCOUT_ACROSS_THETA": "8", "PHUB_SCOUT_THETA": "3"}
        box = racks.racks[rank // 2]
        workers.append(Worker(f"env.{rank}", [RACKED, box.url("inside-env"), box.url("env"), word, "transport=tcp"], env=env))
    ends = [worker.end() for worker in workers]
    check(all(end["exchanges"] == 5 and end["rack_exchanges"] == 20 for end in ends), f"{ends}")
    racks.stop()


def logged_without_scouts():
    """where both thetas stay each class of link has its log; sites without one share a variable, and the one around has its file"""
    racks = Racks()
    with tempfile.TemporaryDirectory() as folder:
        both = [pathlib.Path(folder) / name for name in ("rack", "across")]
        names = ("PHUB_SCOUT_RACK_LOG", "PHUB_SCOUT_ACROSS_LOG")
        for link, words in ((None, {}), ("", {"link": ""})):
            env = [dict(zip(names, both)), {"PHUB_SCOUT_LOG": both[1]}][link is not None]
            ends = [worker.end() for worker in racks.workers(f"both{link}", env={name: str(path) for name, path in env.items()},
                                                             rack_theta=2, theta=10, steps=40, **words)]
            lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in both]
            check([line["scout"] for line in lines[1]] == ["run", "end"], f"{lines[1]}")
            check(lines[1][0]["thetas"] == [10] and lines[1][0]["within"]["theta"] == 2 and lines[1][1]["bytes"] == ends[0]["bytes"],
                  f"{lines[1]}")
            check(lines[1][1]["bytes_within"] == 20 * MODEL, f"{lines[1]}")
        # two racks write to one file here: each has its lines in it, whole
        check([line["scout"] for line in lines[0]].count("end") == 2
              and all(line["link"] == "rack" for line in lines[0] if line["scout"] == "run"), f"{lines[0]}")
    racks.stop()


def lost():
    """a worker dies: the rest of its rack ends, and says who it was; the other rack goes on where the job across shrinks, else ends too"""
    for policy in ("shrink", "fail"):
        racks = Racks(lost_ms=3000, warn_ms=1500)
        workers = racks.workers("dies", rack_theta=1, theta=5, steps=300, lost=policy)
        workers[0].until("exchange")
        workers[1].kill()
        check(workers[0].wait() == 1 and "rank 1 " in workers[0].lines("end")[0]["error"], f"{workers[0].out.lines[-1:]}")
        ends = [worker.wait() for worker in workers[2:]]
        check(ends == ([0, 0] if policy == "shrink" else [1, 1]), f"{policy}: {ends} {workers[2].out.lines[-1:]}")
        if policy == "shrink":
            check(len({worker.lines("end")[0]["hash"] for worker in workers[2:]}) == 1 and workers[2].lines("end")[0]["sites"] == 2,
                  f"{workers[2].out.lines[-1:]}")
        racks.stop()


def late():
    """who comes to a job across that runs is turned away, and told to start all of it again"""
    racks = Racks(lost_ms=3000, warn_ms=1500)
    workers = racks.workers("late", rack_theta=1, theta=5, steps=100000, lost="shrink")
    workers[2].until("exchange")
    for worker in workers[:2]:
        worker.kill()
    workers[2].out.find(lambda text: json.loads(text)["sites"] == 2)
    again = racks.workers("late", rack_theta=1, theta=5, lost="shrink")[:2]
    for worker in again:
        check(worker.wait() == 1, f"{worker.out.lines}")
        holds(worker.err.text(), "it runs already, and with a site within nobody comes to it later yet; start all of it again")
    for worker in racks.workers("idle", no_thread=1):
        check(worker.wait() == 1, f"{worker.out.lines}")
        holds(worker.err.text(), "both want the progress thread; leave no_thread false")
    racks.stop()


def lost_boxes():
    """a rack's box, the one above, and both, are killed and started again: each update is in the means once, the bits are those of a plain loop"""
    seed = random.randrange(1 << 32)
    rig.say(f"seed {seed}")
    random.seed(seed)
    for victims in (["rack0"], ["top"], ["rack1", "top"], ["rack0", "rack1"]):
        listen = {name: f"127.0.0.1:{rig.free_port()}" for name in ("top", "rack0", "rack1")}
        more = {name: {"uplink": listen["top"]} if name != "top" else {} for name in listen}
        boxes = {name: rig.Box(name=name, cores=1, listen=listen[name], lost_ms=3000, warn_ms=1500, **more[name]) for name in listen}
        words = {"rack_theta": 2, "theta": 6, "steps": 150}
        wanted = plain(**words)
        workers = [Worker(f"again.{rank}", [RACKED, boxes[f"rack{rank // 2}"].url("inside"), boxes[f"rack{rank // 2}"].url("across"),
                                            f"rank={rank}", "transport=tcp",
                                            "pause_ms=10", "resume_ms=30000", "rack_resume_ms=30000",
                                            *(f"{n}={v}" for n, v in words.items())]) for rank in range(4)]
        for _ in range(2):
            for worker in workers:
                worker.until("start")
            time.sleep(random.uniform(0.05, 0.6))
            for name in victims:
                boxes[name].kill()
                boxes[name].wait()
            for name in sorted(victims, reverse=True):
                boxes[name] = rig.Box(name=name, cores=1, listen=listen[name], lost_ms=3000, warn_ms=1500, **more[name])
        ends = [worker.end() for worker in workers]
        check(any(worker.lines("stale") for worker in workers), "nobody saw it")
        check([end["hash"] for end in ends] == wanted, f"{victims}: {ends}, and plainly {wanted}")
        check({(end["steps"], end["rack_steps"], end["exchanges"], end["rack_exchanges"]) for end in ends} == {(150, 150, 25, 75)},
              f"{ends}")
        for name in ("rack0", "rack1", "top"):
            boxes[name].stop()
    racks = Racks()
    for words, why in (({"resume_ms": 1000}, "one of the two jobs resumes, and the other does not"),
                       ({"rack_resume_ms": 1000}, "one of the two jobs resumes"),
                       ({"resume_ms": 1000, "rack_resume_ms": 1000, "lost": "shrink"}, "jobs that resume do so with all their racks")):
        workers = racks.workers("refused", **words)
        check([worker.wait() for worker in workers] == [1] * 4, f"{[worker.out.lines for worker in workers]}")
        holds(" ".join(worker.err.text() for worker in workers), why)  # others may hear first that it has gone
    racks.stop()


CASES = [computed, finished, equal, uplinks, logged, logged_without_scouts, lost, lost_boxes, late]

if __name__ == "__main__":
    rig.run(CASES, None if RACKED.exists() else f"{RACKED} is not there (make test-programs)")
