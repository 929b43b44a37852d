#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub bench train: that computing takes the time of the trace, that each schedule exchanges when it should, that sums are
checked, and what a trace that is not one is answered. What overlap gains is a matter of the machine: tests/bench/rates.py."""
import json
import os
import pathlib
import re
import subprocess
import tempfile

import rig
from rig import check, holds

PHUB = rig.BUILD / "phub"
KEYS = ["bench", "trace", "schedule", "transport", "mode", "compute", "workers", "layers", "keys", "bytes", "optimizer",
        "rounds", "iterations_per_s", "p50_ms", "p99_ms", "min_ms", "max_ms", "trace_ms", "exposed_ms", "hidden", "errors"]
SCHEDULES = ["compute", "exchange", "serial", "backward", "fifo", "priority"]
LATE_MS = 2  # COMPUTE_LATE_NS: who woke too late catches up with so much of it
HEADING = "name,forward_ms,backward_ms,elements\n"
# Most bytes are in the last layer, whose backward is the first: there is time to hide them.
TRACE = "# made up\n" + HEADING + "front,10,20,1000\nmiddle,10,20,50000\nrelu,0.5,0.5,\nlast,10,20,2000000\n"


def phub_train(*words, status=0):
    done = subprocess.run([PHUB, "bench", "train", *(str(word) for word in words)], stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=2 * rig.DEADLINE_S, env=rig.QUIET, cwd=rig.ROOT, check=False)
    check(done.returncode == status, f"phub bench train {words}: exit code {done.returncode}, not {status}: {done.stderr}")
    return done.stdout, done.stderr


def replay(*words, status=0):
    """{schedule: its line} of a run."""
    out, err = phub_train("--json", *words, status=status)
    found = [json.loads(line) for line in out.splitlines()]
    for line in found:
        check(list(line) == KEYS, f"JSON: {list(line)}")
    return {line["schedule"]: line for line in found}, err


class File:
    """A file of this text, for a while."""

    def __init__(self, text="", name="trace.csv"):
        self.folder = tempfile.TemporaryDirectory(prefix="phub-train-")
        self.path = pathlib.Path(self.folder.name, name)
        if text:
            self.path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        self.folder.cleanup()


def times_of_schedules():
    """An iteration takes at least what the trace says; what is exposed and hidden of the exchange follows from the times"""
    trace_ms = 58
    with File(HEADING + "front,2,50,\nmiddle,2,1,50000\nlast,2,1,400000\n") as trace:
        for transport, optimizer, mode in (("tcp", "none", "zero-copy"), ("shm", "nesterov", "copy")):
            found, _ = replay("--trace", trace, "--transport", transport, "--optimizer", optimizer, "--mode", mode, "--rounds", 2)
            rig.say(f"{transport}: " + ", ".join(f"{s} {found[s]['min_ms']:.1f}" for s in SCHEDULES) + " ms")
            check(list(found) == SCHEDULES, f"{list(found)}")
            for name, line in found.items():
                check((line["transport"], line["mode"], line["workers"], line["layers"], line["keys"], line["bytes"],
                       line["rounds"], line["errors"]) == (transport, mode, 2, 3, 2, 1800000, 2, 0), f"{line}")
                check(0 < line["min_ms"] <= line["p50_ms"] <= line["p99_ms"] <= line["max_ms"], f"{line}")
                check(name == "exchange" or line["min_ms"] >= trace_ms - LATE_MS, f"{name} is faster than its layers: {line}")
                if name in ("compute", "exchange"):
                    check(line["hidden"] is None and line["exposed_ms"] is None, f"{line}")
                else:
                    exposed = line["p50_ms"] - found["compute"]["p50_ms"]
                    hidden = min(1, max(0, 1 - exposed / found["exchange"]["p50_ms"]))
                    check(abs(line["exposed_ms"] - exposed) < 0.01 and abs(line["hidden"] - hidden) < 0.01, f"{line}")


def order_of_schedules():
    """What runs beside what: serial exchanges after the whole backward, others from each layer's backward on; a forward waits for all
    keys or, with fifo and priority, for its layer's own"""
    layers = ("front", "middle", "last")
    with File(HEADING + "front,2,5,1000\nmiddle,2,5,50000\nlast,2,5,1000000\n") as trace, File(name="out.json") as timeline:
        for schedule in SCHEDULES[2:]:
            phub_train("--trace", trace, "--rounds", 1, "--schedule", schedule, "--timeline", timeline)
            events = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"]
            for worker in (0, 1):
                spans = {(kind, name): sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["pid"] == worker and
                                              e["name"] == f"{kind} {name}")
                         for kind in ("forward", "backward", "exchange", "wait") for name in layers}
                for at, name in enumerate(layers):
                    for i in (0, 1):
                        begins = spans["exchange", name][i][0]
                        check(begins >= spans["backward", name][i][1], f"{schedule}: {name} has no gradient yet: {spans}")
                        ended = spans["backward", layers[0]][i][1]
                        later = spans["backward", layers[at - 1]][i][0] if at else ended
                        check(begins >= ended if schedule == "serial" else at == 0 or begins <= later, f"{schedule}: {name}: {spans}")
                    waits_for = [name] if schedule in ("fifo", "priority") else layers
                    known = max(spans["exchange", other][0][1] for other in waits_for)
                    check(spans["forward", name][1][0] >= known, f"{schedule}: {name} goes on without its weights: {spans}")
                    for begins, _ in spans["wait", name] if schedule in ("fifo", "priority") and at else ():
                        check(any(begins >= end for _, end in spans["forward", layers[at - 1]]), f"{schedule}: {name} waits early: {spans}")


def table_and_timeline():
    """The table, the picture, and a timeline in which every layer and key of every worker appears."""
    with File(TRACE) as trace, File(name="out.json") as timeline:
        out, err = phub_train("--trace", trace, "--workers", 2, "--rounds", 1, "--schedule", "fifo", "--timeline", timeline,
                              "--compute-ms", 20, "--mode", "copy", "--dtype", "bf16")
        holds(out, "layers 4, keys 3 of 4.1 MB", r"computes for (20.000|19.999) ms \(sleeping\)", "exposed ms", r"fifo.* %",
              r"checked [1-9]\d* pieces of results, 0 wrong", r"backward +\| *#", "in flight")
        check("serial" not in out and err == "", out + err)
        events = json.loads(timeline.read_text())["traceEvents"]
    for worker in (0, 1):
        mine = [e for e in events if e["pid"] == worker]
        check({"name": f"worker {worker}"} in [e["args"] for e in mine], "a worker has no name")
        for kind, names, often in (("forward", ["front", "middle", "relu", "last"], 2),
                                   ("backward", ["front", "middle", "relu", "last"], 2), ("exchange", ["front", "last"], 2)):
            for name in names:
                spans = [e for e in mine if e["ph"] == "X" and e["name"] == f"{kind} {name}"]
                check(len(spans) == often, f"worker {worker}: {len(spans)} spans of {kind} {name}")
                check(all(e["dur"] >= 0 and e["cat"] == kind for e in spans), f"{spans}")
        begun = {kind: sorted(e["ts"] for e in mine if e["name"] == kind) for kind in
                 ("backward last", "exchange last", "backward front", "forward front")}
        for i in (0, 1):
            check(begun["backward last"][i] < begun["exchange last"][i] < begun["backward front"][i], f"order: {begun}")
        check(begun["backward front"][0] < begun["forward front"][1], f"order: {begun}")


def spinning():
    """Spinning burns the trace's time as CPU time; sleeping does not."""
    with File(HEADING + "a,20,20,1000\n") as trace:
        spent = {}
        for how in ("sleep", "spin"):
            before = os.times()
            found, _ = replay("--trace", trace, "--compute", how, "--workers", 1, "--rounds", 3, "--schedule", "serial")
            after = os.times()
            spent[how] = after.children_user + after.children_system - before.children_user - before.children_system
            check(found["compute"]["compute"] == how and found["compute"]["trace_ms"] == 40, f"{found}")
        # Two schedules of 6 iterations each compute: 3 measured ones and 3 before them.
        check(spent["spin"] > 12 * 0.040, f"{spent}")
        check(spent["sleep"] < spent["spin"] - 12 * 0.040 / 2, f"{spent}")


def guess():
    """--model and --compute-ms need no trace."""
    found, _ = replay("--model", "resnet-18", "--compute-ms", 30, "--workers", 1, "--rounds", 1, "--schedule", "priority")
    check(list(found) == ["compute", "exchange", "priority"] and found["priority"]["keys"] == 62, f"{found}")
    check(abs(found["compute"]["trace_ms"] - 30) < 0.001, f"{found}")
    for text, trace_ms in (("6.496", 6.496), ("0.5ms", 0.5), ("0.02s", 20)):
        found, _ = replay("--model", "resnet-18", "--compute-ms", text, "--workers", 1, "--rounds", 1, "--schedule", "serial")
        check(abs(found["compute"]["trace_ms"] - trace_ms) < 0.001, f"{text}: {found}")


def rounds():
    """As many iterations are measured as were asked for, whatever the turns, and with a timeline too."""
    with File(HEADING + "a,0.2,0.2,100\n") as trace, File(name="t.json") as timeline:
        for count in (1, 2, 3, 4, 7, 31):
            for more in ([], ["--timeline", timeline]):
                found, _ = replay("--trace", trace, "--rounds", count, *more)
                check(all(line["rounds"] == count and line["errors"] == 0 and 0 < line["min_ms"] for line in found.values()),
                      f"{count} rounds {more}: {found}")


def timeline_is_kept():
    """A run that fails leaves the timeline of an earlier one, and none where there was none; one that does not replaces it."""
    with File(HEADING + "a,0.2,0.2,100\n") as trace, File("from before" * 10000, "old.json") as old, File(name="new.json") as new:
        words = ["--trace", trace, "--rounds", 1, "--schedule", "fifo", "--timeline"]
        for file in (old, new):
            phub_train(*words, file, "--box", "127.0.0.1:1", "--timeout", 1, status=1)
        check(old.read_text() == "from before" * 10000 and not new.exists(), "the timelines were touched")
        for file in (old, new):
            phub_train(*words, file)
            check(json.loads(file.read_text())["traceEvents"], f"{file} is no timeline")


def waits_for_a_box():
    """A box that is not up yet is waited for, and that is said once, after a second; one that is there is not."""
    box = rig.Box()
    address = box.address
    with File(HEADING + "a,0.2,0.2,100\n") as trace:
        words = ["--trace", trace, "--rounds", 1, "--schedule", "fifo", "--box", address, "--timeout", 3]
        _, err = phub_train(*words)
        check(err == "", err)
        box.stop()
        _, err = phub_train(*words, status=1)
        holds(err, rf"^phub: waiting for a box at {address}, for 3 s at most ...\nphub: rank \d, connecting: ")
        check(err.count("\n") == 2, err)


def planted():
    """The checker sees a stale, a swapped and a doubled chunk, and the bench fails."""
    with File(HEADING + "a,1,1,20000\nb,1,1,30000\n") as trace:
        for plant in ("stale", "swapped", "doubled"):
            for optimizer in ("none", "adam"):
                found, err = replay("--trace", trace, "--rounds", 3, "--schedule", "priority", "--plant", plant,
                                    "--optimizer", optimizer, status=1)
                check(found["priority"]["errors"] > 0, f"{plant} was not seen")
                holds(err, r"^phub: rank 1, round \d+: key a, element \d+ is .* and should be")


def several_machines():
    """Commands on two machines are one job of a box that runs, and sums are checked over all ranks."""
    box = rig.Box()
    with File(HEADING + "a,2,3,100\nb,2,3,40000\n") as trace:
        words = [PHUB, "bench", "train", "--trace", trace, "--box", box.address, "--job", "try", "--world", 3, "--rounds", 4,
                 "--optimizer", "momentum", "--json"]
        halves = [rig.Process(f"from {first}", [*words, "--first-rank", first, "--workers", count])
                  for first, count in ((0, 2), (2, 1))]
        for half in halves:
            check(half.wait() == 0, f"{half.name}: {half.err.text()}")
            lines = [json.loads(line) for line in half.out.lines]
            check([line["schedule"] for line in lines] == SCHEDULES, half.out.text())
            check(all(line["workers"] == 3 and line["errors"] == 0 for line in lines), half.out.text())
        out, _ = phub_train("--trace", trace, "--box", box.address, "--rounds", 1, "--schedule", "serial")
        holds(out, "workers 2")
    box.stop()


BAD_TRACES = [
    ("", r"trace.csv:0: no layer with elements; write name,forward_ms,backward_ms,elements and lines like"),
    ("a,1,2,3\n", r"trace.csv:1: no heading but 'a,1,2,3'; begin with the line name,"),
    ("name,forward_ms,elements\n", r"trace.csv:1: no column backward_ms"),
    (HEADING + "# x\na,1,2ms,3\n", r"trace.csv:3: bad backward_ms '2ms'; allowed are milliseconds"),
    (HEADING + "a,1,2,0\n", r"trace.csv:2: no layer with elements"),
    (HEADING + "a,1,2,3\na,1,2,3\n", r"trace.csv:3: name 'a' was already used on line 2"),
    (HEADING.encode() + b"a\x1b[2J,1,2,3\n\xff\x00", r"trace.csv:2: bad name 'a\?\[2J'"),
]


def bad_traces():
    """What is no trace ends with 1 and one line that names file, line and column; no box starts."""
    for text, message in BAD_TRACES:
        with File(text or b"\n") as trace:
            if not text:
                trace.write_bytes(b"")
            _, err = phub_train("--trace", trace, status=1)
            holds(err, "^phub: .*" + message)
            check(err.count("\n") == 1, err)
    for words, message in (
            (["--trace", "/nowhere.csv"], "No such file.*give a CSV"),
            (["--trace", "/"], "not a file"),
            (["--model", "vgg-11", "--compute-ms", 5, "--phubd", "/nowhere/phubd"], "--phubd PATH"),
            (["--model", "vgg-11", "--compute-ms", 5, "--timeline", "/nowhere/t.json"], "--timeline a file"),
            (["--model", "vgg-11", "--compute-ms", 5, "--transport", "dpdk"], "its own message says why")):
        _, err = phub_train(*words, status=1)
        holds(err, message)


def wrong_usage():
    """Arguments that cannot be meant end with 2."""
    for words, message in (
            ([], "--trace FILE.csv, or --model NAME"),
            (["--trace", "a.csv", "--model", "vgg-11"], "either"),
            (["--model", "vgg-11"], "--compute-ms"),
            (["--model", "vgg-12", "--compute-ms", 5], "vgg-11"),
            (["--model", "vgg-11", "--compute-ms", "0"], "--compute-ms 0: allowed are milliseconds above 0, to 3600000, like 54 or"),
            (["--model", "vgg-11", "--compute-ms", "1.2.3"], "milliseconds above 0"),
            (["--model", "vgg-11", "--compute-ms", "-1"], "milliseconds above 0"),
            (["--model", "vgg-11", "--compute-ms", "1e3"], "milliseconds above 0"),
            (["--model", "vgg-11", "--compute-ms", "3600001"], "milliseconds above 0"),
            (["--trace", "a.csv", "--compute", "guess"], "sleep"),
            (["--trace", "a.csv", "--schedule", "random"], "priority"),
            (["--trace", "a.csv", "--world", 2], "--world needs --box"),
            (["--trace", "a.csv", "--box", "b:1", "--job", "j", "--world", 3, "--first-rank", 2], "do not fit"),
            (["--trace", "a.csv", "--first-rank", 2], "needs --world"),
            (["--trace", "a.csv", "--job", "j"], "give --box"),
            (["--trace", "a.csv", "--job", "j" * 64, "--box", "b:1"], "up to 63 characters"),
            (["--trace", "a.csv", "--box", "b" * 128], "up to 127 characters"),
            (["--trace", "a.csv", "--box", "b:1", "--set", "cores=1"], "--box runs"),
            (["--trace", "a.csv", "--set", "cores"], "KEY=VALUE"),
            (["--trace", "a.csv", "--optimizer", "lion"], "--optimizer"),
            (["--trace", "a.csv", "--timelime", "x"], "--timeline")):
        _, err = phub_train(*words, status=2)
        holds(err, re.escape(message))


def box_dies():
    """A box that is killed is told of, and the command ends with 1."""
    with File(TRACE) as trace:
        box = rig.Box()
        command = rig.Process("train", [PHUB, "bench", "train", "--trace", trace, "--box", box.address, "--rounds", 3000,
                                        "--timeout", 5])
        box.logged("starts: 2 workers")
        box.kill()
        check(command.wait() == 1, "exit code")
        holds(command.err.text(), r"^phub: rank \d, .*")


CASES = [times_of_schedules, order_of_schedules, table_and_timeline, spinning, guess, rounds, timeline_is_kept, waits_for_a_box, planted, several_machines,
         bad_traces, wrong_usage, box_dies]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() else f"{PHUB} is not there (make)")
