#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench-racks` and `make bench-model` in small: that racks.py and model_check.py build their racks, measure all that they are
to, and leave nothing behind; and racks.py's tables, on numbers that are made up.
waits: for links that are slow on purpose"""
import json
import pathlib
import sys
import tempfile

import rig
from rig import check
from test_bench import SYSTEM_PYTHON, rack_or_skip, start

sys.path.insert(0, str(rig.ROOT / "tests/bench"))
import racks_report  # noqa: E402
import report  # noqa: E402

RACKS = rig.ROOT / "tests/bench/racks.py"
MODEL = rig.ROOT / "tests/bench/model_check.py"


def check_uplinks(lines):
    """Gradients that leave each of three racks in a round, by the way: flat's second rack sends both of its workers'."""
    found = {line["system"]: [by / line["bytes"] for by in line["out"]] for line in lines
             if line.get("section") == "exchange" and line["racks"] == 3}
    check(found["flat"][1] > 1.9 and 0.9 < found["tree"][1] < 1.2 and found["tree"][0] > 1.9, f"{found}")
    check(all(1.3 < by < 1.6 for way in ("sharded", "chain") for by in found[way]), f"{found}")


def several_racks():
    """three racks in each way, beside the peers, and steps on them: sums are right, and an uplink carries what it must"""
    with tempfile.TemporaryDirectory() as out:
        process = start(out, python=SYSTEM_PYTHON, program=RACKS)
        _, err = process.communicate(timeout=4 * rig.DEADLINE_S)
        check(process.returncode == 0, f"exit code {process.returncode}: {err[-1500:]}")
        rack_or_skip(err)
        check(not list(pathlib.Path("/run/netns").glob(f"phub-racks-{process.pid}-*")), "namespaces are still there")
        lines = [json.loads(line) for line in (pathlib.Path(out) / "racks.jsonl").read_text().splitlines()]
        ways = {line["system"] for line in lines if line.get("section") == "exchange"}
        check(ways >= {"flat", "tree", "sharded", "chain"}, f"measured: {ways}")
        check({line["racks"] for line in lines if line.get("section") == "train"} >= {1, 2}, f"no steps on racks: {lines}")
        check("| 3 | sharded |" in (pathlib.Path(out) / "racks.md").read_text(), "no table")
        check_uplinks(lines)
        process = start(out, words=["--readme"], python=SYSTEM_PYTHON, program=RACKS)
        _, err = process.communicate(timeout=rig.DEADLINE_S)
        check(process.returncode == 1 and "takes no smoke test" in err, f"README would take a smoke test: {err}")
        # One system lacks, as if it had failed: only that is measured again.
        path = pathlib.Path(out) / "racks.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines if line.get("system") != "tree" or line["racks"] != 2))
        process = start(out, python=SYSTEM_PYTHON, program=RACKS, RESUME="1")
        _, err = process.communicate(timeout=2 * rig.DEADLINE_S)
        check(process.returncode == 0 and err.count(" ms a round") == err.count(", tree: ") == 1, f"exit code {process.returncode}: {err[-1500:]}")
        check(len(path.read_text().splitlines()) == len(lines), "not all of it is there again")


def cost_model():
    """every way that the model predicts is measured, and a box takes the one that it chooses; how near it is, is not for a busy machine"""
    with tempfile.TemporaryDirectory() as out:
        process = start(out, python=SYSTEM_PYTHON, program=MODEL)
        _, err = process.communicate(timeout=2 * rig.DEADLINE_S)
        rack_or_skip(err)
        check(process.returncode in (0, 1) and "of 1 pass" in err, f"exit code {process.returncode}: {err[-1500:]}")
        check(not list(pathlib.Path("/run/netns").glob(f"phub-racks-{process.pid}-*")), "namespaces are still there")
        lines = [json.loads(line) for line in (pathlib.Path(out) / "model.jsonl").read_text().splitlines()]
        for word in ("predicted", "measured"):
            check({line[word] for line in lines if word in line} == {"flat", "tree", "sharded", "chain"}, f"{word}: {err}")
        choice = next(line["predicted"] for line in lines if line.get("choice"))
        check(f"hierarchy auto takes {choice}:" in err, f"not {choice}: {err}")


def racks_tables():
    """racks.py's tables: what links allow, the best way beside the others, and a step on several racks beside one, run by run"""
    near = (lambda found, want: abs(found - want) < 1e-6 * want)
    frame = 1514 / 1448  # 2 racks of 2 workers of 100 Mbit/s: 1 MB takes 80 ms on a worker's link, 40 on an uplink at 1:1
    for way, over, want in (("flat", 1, 80), ("flat", 8, 640), ("tree", 1, 80), ("tree", 8, 320), ("chain", 8, 320), ("Gloo", 1, 120),
                            ("Gloo", 8, 480)):
        check(near(racks_report.floor_ms(way, 2, 2, 100, over, 1_000_000), want * frame), f"{way}, {over}:1: not {want} ms and headers")
    check(near(racks_report.floor_ms("tree", 8, 2, 100, 4, 1_000_000), 7 * 160 * frame) and racks_report.models("sharded", 8, 2, 3) == 1.75,
          "8 racks")
    about = {"cpus": 2, "cpu": "-", "kernel": "-", "busy": 0, "load": 0, "commit": "-", "date": "-", "rows": "quick", "runs": 2,
             "workers": 2, "mbit": 100,
             "bytes": 1_000_000}
    lines = [{"section": "conditions", **about}, {"section": "end", "seconds": 1, "failures": 0}]
    for run, slower in enumerate((1, 2)):
        lines += [{"section": "exchange", "run": run, "racks": 2, "oversubscribed": 4, "system": system, "round_ms": ms * slower,
                   "bytes": 1_000_000,
                   "busy": 0.5, "out": [1.05e6, 1.05e6], "in": [2.1e6, 1e6], "is_peer": system == "Gloo", "how": "-", "recipe": "-"}
                  for system, ms in (("flat", 330), ("tree", 170), ("chain", 166), ("Gloo", 249))]
        lines += [{"section": "train", "run": run, "model": "alexnet", "racks": racks, "oversubscribed": 1, "chunk": 0,
                   "step_ms": ms * slower,
                   "exchange_ms": 1, "compute_ms": 1, "busy": 0.5} for racks, ms in ((1, 100), (4, 110))]
    records = racks_report.Records(lines)
    check(racks_report.best_way(records, racks=2, oversubscribed=4) == "chain", "the best way")
    text = "\n".join(racks_report.exchange_text(records) + racks_report.train_text(records))
    for row in ("| 2 | flat | 2.10 (2) | 1.05 (2) |",
                "| 2 | 4:1 | Gloo | 374 (249 to 498) | 251, a ring | 1.50x (1.50 to 1.50) | 1.50x | 0.50 |",
                "| 2 | 4:1 | chain | 249 (166 to 332) | 167 | - | - | 0.50 |",
                "| 2 | 4:1 | chain | 1.99x (1.99 to 1.99) | 1.50x (1.50 to 1.50) | - |",
                "| AlexNet | 4 | 15.1 | 10.0 (-26.7 to 46.7) | 165 |"):
        check(row in text, f"{row} is not in {text}")
    for marks in (racks_report.MARKS, racks_report.TRAIN_MARKS):
        check(all((report.ROOT / "README.md").read_text().count(mark) == 1 for mark in marks), f"README has no place for {marks}")


if __name__ == "__main__":
    sanitized = rig.PHUBD.exists() and any(name in rig.PHUBD.read_bytes() for name in (b"__asan_", b"__tsan_", b"__ubsan_"))
    rig.run([several_racks, cost_model, racks_tables], "a sanitizer's build: nothing to measure" if sanitized else None)
