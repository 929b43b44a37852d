#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The exchange over RDMA beside as many pairs of perftest's `ib_send_bw -b`, taking turns on the same devices.

Usage: verbs.py      on this machine's RDMA devices, or else in the virtual machine (tests/vm), which it starts
                     writes $OUT/verbs.md and verbs.jsonl, one line for every run
       verbs.py --readme    puts what verbs.md has into README.md, between its two marks

Environment: BUILD  where phub is (build)
             OUT    where results go (BUILD)
             RUNS   runs of each (5); medians count
             EVENTS what perf counts of box and workers in the second table (LLC-load-misses,LLC-store-misses), where it can

Then pushes into shared slots beside pushes into fixed buffers of each worker, as in the paper: rate, the box's CPU time, its
memory, and misses of the last cache where the processor counts them. Which is better for the caches of a real NIC's host only
such a host can tell: run it there.

Both move messages of 32 KiB both ways at once over reliable connections. perftest's rate comes from how much longer more
iterations take, by the clock: what it computes itself needs the frequency of the processor, which a virtual machine does not
tell. It moves bytes and looks at none of them; phub sums them and checks the sums. In the virtual machine one emulated
device and one processor do all the work of both ends. Needs perftest. Exits with 1 when a share is below what is wanted.
"""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import report

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
OUT = pathlib.Path(os.environ.get("OUT") or BUILD)
RUNS = int(os.environ.get("RUNS") or 5)
CHUNK = 32 << 10
WANTED = 0.70
MARKS = ("<!-- verbs: from here on made by `tests/bench/verbs.py --readme` -->", "<!-- verbs: to here -->")
WORKERS = (1, 4)
PUSHES = {"slots": "SEND into slots that they share", "fixed": "WRITE into fixed buffers (the paper's way)"}
BYTES = 16 << 20
FEW, MANY = 1000, 4000  # iterations of a pair, all pairs together
EVENTS = os.environ.get("EVENTS") or "LLC-load-misses,LLC-store-misses"
INSIDE = "PHUB_BENCH_VERBS_INSIDE"  # set in the virtual machine


def say(text):
    print(f"verbs: {text}", file=sys.stderr, flush=True)


def devices():
    """(device, index of its RoCE v2 GID over IPv4) of each port that is up."""
    found = []
    for port in sorted(pathlib.Path("/sys/class/infiniband").glob("*/ports/1")):
        if "ACTIVE" not in (port / "state").read_text():
            continue
        for gid in sorted((port / "gids").iterdir(), key=lambda path: int(path.name)):
            try:
                kind = (port / "gid_attrs/types" / gid.name).read_text()
            except OSError:
                continue
            if "v2" in kind and gid.read_text().startswith("0000:0000:0000:0000:0000:ffff:"):
                found.append((port.parents[1].name, gid.name))
                break
    return found


def perftest_seconds(pairs, iterations, device, gid):
    """From the start of the clients to the end of the last: `pairs` servers and clients, each so many iterations."""
    words = ["ib_send_bw", "-b", "-s", str(CHUNK), "-n", str(iterations), "-d", device, "-x", gid, "-F", "-t", "64"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    ports = [18515 + 10 * i for i in range(pairs)]
    servers = [subprocess.Popen([*words, "-p", str(port)], **quiet) for port in ports]
    time.sleep(0.3)
    begin = time.monotonic()
    clients = [subprocess.Popen([*words, "-p", str(port), "127.0.0.1"], **quiet) for port in ports]
    for process in [*clients, *servers]:
        process.wait(timeout=120)
    return time.monotonic() - begin


def perftest(pairs, device, gid):
    """GB/s of all pairs, each way."""
    few = perftest_seconds(pairs, FEW // pairs, device, gid)
    many = perftest_seconds(pairs, MANY // pairs, device, gid)
    return (MANY // pairs - FEW // pairs) * pairs * CHUNK / max(many - few, 1e-3) / 1e9


def can_count():
    """Does perf count EVENTS here?"""
    try:
        done = subprocess.run(["perf", "stat", "-x,", "-e", EVENTS, "true"], capture_output=True, text=True)
    except OSError:
        return False
    return done.returncode == 0 and "<not" not in done.stderr


def counted(path):
    """The sum of what `perf stat -x,` has written."""
    lines = [line.split(",") for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return sum(int(line[0]) for line in lines)


def phub(workers, pushes="slots", count=False):
    perf = OUT / "verbs.perf"
    words = ["perf", "stat", "-x,", "-e", EVENTS, "-o", perf, "--"] if count else []
    words += [BUILD / "phub", "bench", "exchange", "--transport", "verbs", "--workers", workers, "--bytes", BYTES,
             "--rounds", 10, "--cores", 1, "--set", f"rdma_pushes={pushes}", "--json"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"verbs: phub bench exchange failed: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    if count:
        found["events"] = counted(perf)
        perf.unlink()
    return found


def commit():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} - {max(values):.3f})"


def measure(device, gid):
    lines, bad = [], 0
    table = ["| workers | phub, GB/s each way, all workers | ib_send_bw -b, as many pairs | share | posts, doorbells a chunk, "
             "chunks a completion: workers | the same: box |", "|---|---|---|---|---|---|"]
    for workers in WORKERS:
        ours, theirs, last = [], [], None
        for run in range(RUNS):
            say(f"{workers} workers, run {run + 1} of {RUNS}")
            theirs.append(perftest(workers, device, gid))
            last = phub(workers)
            ours.append(last["gb_per_s_worker"] * workers)
            lines.append({"workers": workers, "run": run, "perftest_gb_per_s": theirs[-1], **last})
        share = statistics.median(ours) / statistics.median(theirs)
        bad += share < WANTED
        work = [" ".join(f"{last[f'{who}_{what}']:.2f}" for what in ("posts_per_chunk", "doorbells_per_chunk",
                                                                    "posts_per_completion")) for who in ("worker", "box")]
        table.append(f"| {workers} | {spread(ours)} | {spread(theirs)} | **{share:.2f}** ({WANTED:.2f} wanted) | {work[0]} | "
                     f"{work[1]} |")
    where = "in the virtual machine, one processor" if os.environ.get(INSIDE) else "on this machine's device"
    text = "\n".join([f"{report.cpu_name()}, commit {commit()}, {time.strftime('%Y-%m-%d')}; 32 KiB both ways, {where} ({device}),",
                      f"medians of {RUNS}, smallest and largest.", "", *table, ""])
    return text, lines, bad


def compare():
    """Pushes into slots that workers share beside pushes into fixed buffers, as the paper's were: taking turns."""
    found, count = {pushes: [] for pushes in PUSHES}, can_count()
    for run in range(RUNS):
        say(f"ways to push, run {run + 1} of {RUNS}")
        for pushes in PUSHES:
            found[pushes].append({"pushes": pushes, "run": run, **phub(WORKERS[-1], pushes, count)})
    table = [f"| pushes of {WORKERS[-1]} workers, {BYTES >> 20} MiB | GB/s each way, all workers | box CPU s/GB | box's pinned memory, MB | "
             f"{EVENTS.replace(',', ' + ')}, box and workers |", "|---|---|---|---|---|"]
    for pushes, runs in found.items():
        events = spread([run["events"] for run in runs]) if count else "not counted on this machine"
        table.append(f"| {PUSHES[pushes]} | {spread([run['gb_per_s_worker'] * WORKERS[-1] for run in runs])} | "
                     f"{spread([run['box_cpu_s_per_gb'] for run in runs])} | {runs[-1]['box_pinned_bytes'] / 1e6:.1f} | {events} |")
    return "\n".join([*table, ""]), [run for runs in found.values() for run in runs]


def run_inside():
    """No device here: once more in the virtual machine, where only the output folder may be written."""
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ[INSIDE] = "1"
    words = [ROOT / "tests/vm/run.sh", "-U", "-m", "2048", "-t", "900", "-r", OUT]
    words += [word for name in (INSIDE, "RUNS", "EVENTS", "BUILD", "OUT") for word in ("-e", name)]
    words += ["--", "/usr/bin/python3", pathlib.Path(__file__).resolve()]
    return subprocess.run([str(word) for word in words]).returncode


def part():
    lines = [json.loads(line) for line in (OUT / "verbs.jsonl").read_text().splitlines()]
    if max(line["run"] for line in lines) < 4:
        raise ValueError("README takes medians of five runs at least")
    return MARKS, report.between_marks((OUT / "verbs.md").read_text(), OUT / "verbs.md", MARKS)[1]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if sys.argv[1:] == ["--readme"]:
        return report.put_into_readme([part], say)
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    found = devices()
    if not found and not os.environ.get(INSIDE):
        return run_inside()
    if not found:
        say("the virtual machine has no RDMA device")
        return 1
    text, lines, bad = measure(*found[0])
    ways, more = compare()
    text, lines = f"{text}\n{ways}", lines + more
    (OUT / "verbs.md").write_text(f"{MARKS[0]}\n{text}{MARKS[1]}\n")
    (OUT / "verbs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
