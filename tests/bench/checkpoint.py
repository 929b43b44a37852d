#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What checkpoints cost a training job, at the pace that the box chooses by itself.

Usage: checkpoint.py           measures; writes $OUT/checkpoint.md, and checkpoint.jsonl with one line for every run; exit code 1
                               when rounds are slower by more than 3.5 %, at the median
       checkpoint.py --readme  puts what checkpoint.md has into README.md, between its two marks

Environment: BUILD    where phub is (build)
             OUT      where results go (BUILD)
             RUNS     runs of each (5), taking turns; medians count
             FOLDER   where checkpoints are written, in folders of their own (OUT): a disk, not a tmpfs, or it says little
             SECONDS  that a run is measured for at least (60)
             QUICK    1: one run of each of some seconds, to see that all of it works; the exit code says nothing of the cost

A job has two workers, processes of client/python, which sleep 150 ms for the computing of a GPU and then exchange 25 keys of
4 MiB over shared memory, adam on the box: 315 MB in a checkpoint. Without checkpoints, with one target, and with three and a parity of 1,
all on the same disk. A run with checkpoints is measured from the end of one to the end of another, once the box has its
interval from four of them: so all that they cost is in it, and as much of it as belongs to that time. What the box says of
the interval and its cost stands beside it.
"""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import report
from run import commit
from systems import BUILD, OUT, ROOT, Failure, cpus_busy, make_ready, run_program

QUICK = os.environ.get("QUICK") == "1"
RUNS = 1 if QUICK else int(os.environ.get("RUNS") or 5)
SECONDS = 4 if QUICK else float(os.environ.get("SECONDS") or 60)
LEARN = 2 if QUICK else 4  # checkpoints
FOLDER = pathlib.Path(os.environ.get("FOLDER") or OUT)
WANTED = 0.035
LIMIT_S = 120 if QUICK else 900
KEYS, ELEMENTS, COMPUTE_S = 25, 1 << 20, 0.15
WORLD = 2
KINDS = {"none": (0, 0), "1 target": (1, 0), "3 targets, parity 1": (3, 1)}


def say(text):
    print(f"checkpoint: {text}", file=sys.stderr, flush=True)


class Box:
    """One with so many targets, and a job on it."""

    def __init__(self, targets, parity):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="phub-checkpoint-", dir=FOLDER))
        options = ["--listen=127.0.0.1:0", "--data-ports=any"]
        if targets:
            places = [self.folder / str(i) for i in range(targets)]
            for place in places:
                place.mkdir()
            options += [f"--checkpoint_targets={','.join(map(str, places))}", f"--checkpoint_parity={parity}"]
        self.log = open(self.folder / "log", "w", encoding="utf-8")
        self.box = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", BUILD / "phubd", *options], stdout=subprocess.PIPE,
                                    stderr=self.log, text=True)
        found = re.search(r"listening on ([^ ,]+)", self.box.stdout.readline())
        self.workers = []
        if not found:
            self.end()
            raise Failure("phubd does not start")
        self.address = found.group(1)
        self.workers = [subprocess.Popen(["setpriv", "--pdeathsig", "KILL", sys.executable, __file__, "--worker",
                                          f"phub://{self.address}/bench", str(rank)], stdout=self.log, stderr=self.log)
                        for rank in range(WORLD)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        for process in [*self.workers, self.box]:
            process.kill()
            process.wait()
        self.box.stdout.close()
        self.log.close()
        shutil.rmtree(self.folder)

    def look(self):
        """(seconds, what phub jobs says of the job; None when it is not there yet)"""
        done = subprocess.run([BUILD / "phub", "jobs", "--json", self.address], capture_output=True, text=True, timeout=60)
        if done.returncode or any(worker.poll() is not None for worker in self.workers):
            raise Failure(f"the job ended: {(self.folder / 'log').read_text()[-500:]}")
        found = [line for line in map(json.loads, done.stdout.splitlines()) if line.get("job")]
        return time.monotonic(), found[0] if found else None

    def until(self, wanted, what):
        """Looks until it is so."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            now, job = self.look()
            if job and job["state"] == "running" and wanted(now, job):
                return now, job
            time.sleep(0.1)
        raise Failure(f"no {what} in {LIMIT_S} s: {job}")


def work(url, rank):
    """A worker, until it is killed."""
    sys.path.insert(0, str(ROOT / "client" / "python"))
    os.environ["PHUB_LIBRARY"] = str(BUILD / "libphub.so.0")
    import phub  # noqa: PLC0415 - of this checkout
    with phub.connect(url, rank=rank, world=WORLD, optimizer="adam", groups=[phub.hyper("adam", lr=1e-3)],
                      transport="shm") as worker:
        keys = [worker.key(f"layer{i}", ELEMENTS) for i in range(KEYS)]
        worker.start()
        places = [worker.alloc(key) for key in keys]
        for key, (gradient, _) in zip(keys, places):
            worker.broadcast(key, gradient)
        worker.wait()
        while True:
            time.sleep(COMPUTE_S)
            for key, (gradient, _) in zip(keys, places):
                worker.begin(key, gradient)
            worker.wait()


def measure_one(kind):
    targets, parity = KINDS[kind]
    with Box(targets, parity) as box:
        if not targets:
            begin, first = box.until(lambda _, job: job["rounds"] >= 10, "ten rounds")
            end, last = box.until(lambda now, job: now - begin >= SECONDS, "end")
            return {"kind": kind, "rounds_per_s": (last["rounds"] - first["rounds"]) / (end - begin)}
        _, learnt = box.until(lambda _, job: job["checkpoint"]["done"] >= LEARN and job["checkpoint"]["interval"], "interval")
        seen = learnt["checkpoint"]["done"]
        begin, first = box.until(lambda _, job: job["checkpoint"]["done"] > seen, "checkpoint")
        end, last = box.until(lambda now, job: now - begin >= SECONDS and job["checkpoint"]["done"] > done_at(box, job), "checkpoint")
        c = last["checkpoint"]
        return {"kind": kind, "rounds_per_s": (last["rounds"] - first["rounds"]) / (end - begin),
                "checkpoints": c["done"] - first["checkpoint"]["done"], "interval": c["interval"], "box_says": c["overhead"],
                "took_s": c["last"]["took_ms"] / 1e3, "bytes": c["last"]["bytes"],
                "lost_s": c["overhead"] * c["interval"] * (end - begin) / max(1, last["rounds"] - first["rounds"])}


def done_at(box, job):
    """How many were done when its time was over: one more ends the run."""
    if not hasattr(box, "over"):
        box.over = job["checkpoint"]["done"]
    return box.over


def measure():
    lines = []
    for number in range(RUNS):
        for kind in KINDS:
            lines.append({"run": number, **measure_one(kind)})
            say(json.dumps(lines[-1]))
    return lines


def costs(lines, kind):
    """By which part rounds were slower, of each run beside the one without in its turn."""
    rates = {(line["run"], line["kind"]): line["rounds_per_s"] for line in lines}
    return [rates[run, "none"] / rates[run, kind] - 1 for run in range(RUNS)]


def cell(values, form):
    s = report.spread(values)
    return form.format(s.median) + (f" ({form.format(s.min)} - {form.format(s.max)})" if len(values) > 1 else "")


def rows(lines):
    for kind, (targets, _) in KINDS.items():
        mine = [line for line in lines if line["kind"] == kind]
        rate = cell([line["rounds_per_s"] for line in mine], "{:.2f}")
        if not targets:
            yield [kind, rate, "", "", "", "", ""]
            continue
        yield [kind, rate, cell([100 * cost for cost in costs(lines, kind)], "{:.1f} %"),
               cell([100 * line["box_says"] for line in mine], "{:.1f} %"), cell([line["interval"] for line in mine], "{:.0f}"),
               cell([line["lost_s"] for line in mine], "{:.2f}"), cell([line["took_s"] for line in mine], "{:.2f}")]


def tables(lines, c):
    busy = " **Other programs kept the CPUs busy meanwhile: these numbers say little.**" if c["busy"] > c["cpus"] / 4 else ""
    quick = " **QUICK=1: these numbers say nothing.**" if c["quick"] else ""
    size = max(line.get("bytes", 0) for line in lines if line["kind"] == "1 target") / 1e6
    return "\n".join([
        report.fill(f"{c['cpus']} CPUs ({report.cpu_name()}), commit {c['commit']}, {c['date']}; two workers, 105 MB of gradients with "
                    f"adam, 150 ms of compute, shared memory, {size:.0f} MB a checkpoint, {c['disk']}; medians of {c['runs']} runs that took "
                    f"turns (smallest - largest); {c['busy']:.2f} CPUs busy before the start.{busy}{quick}"), "",
        *report.as_table(["checkpoints", "rounds/s", "slower by", "the box says", "interval, rounds", "rounds lose, s each",
                          "taken and written, s"], "lrrrrrr", list(rows(lines))), ""])


def disk():
    done = subprocess.run(["stat", "-f", "-c", "%T", FOLDER], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown file system"


def main():
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], int(sys.argv[3]))
        return 0
    page = report.Page("checkpoint", say)
    code = page.answered(sys.argv[1:], __doc__)
    if code is not None:
        return code
    if not make_ready(say):
        return 1
    conditions = {"runs": RUNS, "quick": QUICK, "commit": commit(), "date": time.strftime("%Y-%m-%d"), "busy": cpus_busy(),
                  "cpus": len(os.sched_getaffinity(0)), "disk": disk()}
    try:
        lines = measure()
    except (Failure, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    page.write(tables(lines, conditions), conditions, lines)
    worst = max(statistics.median(costs(lines, kind)) for kind, (targets, _) in KINDS.items() if targets)
    if not QUICK and worst > WANTED:
        say(f"rounds are slower by {100 * worst:.1f} %, and {100 * WANTED:.1f} % is the aim")
        return 1
    return 0


if __name__ == "__main__":
    run_program(main, say)
