#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench` in small: that tests/bench/run.py measures phub beside its peers, fails when one of them sums wrongly, goes on
without one that is not installed, and leaves nothing behind; and rack.py, in its network namespaces, too. Of dpdk.py, what
takes no time."""
import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import rig
from rig import Skip, check

sys.path.insert(0, str(rig.ROOT / "tests/bench"))
import dpdk  # noqa: E402
import rack_report  # noqa: E402
import report  # noqa: E402

RUN = rig.ROOT / "tests/bench/run.py"
RACK = rig.ROOT / "tests/bench/rack.py"
CYCLES = rig.BUILD / "tests/bench/dpdk_cycles"
SYSTEM_PYTHON = "/usr/bin/python3"
# Stands in for mpirun: answers every order as peer_mpi does, and says that so many sums were wrong.
FAKE_MPIRUN = """#!/bin/sh
while read -r algorithm segment bytes warmup rounds; do
	echo "{\\"workers\\":2,\\"bytes\\":$bytes,\\"rounds\\":$rounds,\\"rounds_per_s\\":1,\\"p50_ms\\":1,\\"p99_ms\\":1,\
\\"cpu_s_per_gb\\":1,\\"errors\\":WRONG}"
done
"""


def start(out, path=None, python="/nonexistent", program=RUN, words=(), **more):
    """The smallest set, into the folder `out`."""
    environment = {**rig.QUIET, "ROWS": "smoke", "RUNS": "1", "BUILD": str(rig.BUILD), "OUT": out, "PYTHON": python, **more}
    if path:
        environment["PATH"] = path
    return subprocess.Popen([SYSTEM_PYTHON, program, *words], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def run(out, path=None, python="/nonexistent", status=0):
    """Returns its stderr and the systems that it measured."""
    process = start(out, path, python)
    _, err = process.communicate(timeout=rig.DEADLINE_S)
    check(process.returncode == status, f"exit code {process.returncode}, not {status}: {err[-1500:]}")
    lines = [json.loads(line) for line in (pathlib.Path(out) / "bench.jsonl").read_text().splitlines()]
    check(not namespace(process.pid), f"{namespace(process.pid)} is still there")
    return err, [line["system"] for line in lines if "system" in line]


def namespace(pid):
    path = pathlib.Path(f"/run/netns/phub-bench-{pid}")
    return path if path.exists() else None


def fake_mpi(folder, wrong):
    """A PATH on which mpirun is ours, and mpicc makes an empty file."""
    for name, text in (("mpirun", FAKE_MPIRUN.replace("WRONG", str(wrong))), ("mpicc", "#!/bin/sh\n: >${OUT}/bench/peer_mpi\n")):
        path = pathlib.Path(folder) / name
        path.write_text(text)
        path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def beside_peers():
    """phub, Open MPI and Gloo in one run, with all sums checked"""
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        raise Skip("no Open MPI (deploy/deps.sh bench)")
    with tempfile.TemporaryDirectory() as out:
        err, systems = run(out, python=SYSTEM_PYTHON)
        wanted = {"phub shm zero-copy", "phub shm copy", "phub tcp zero-copy", "phub tcp copy", "Open MPI shm", "Open MPI tcp"}
        wanted |= set() if "Gloo is left out" in err else {"Gloo tcp"}
        check(set(systems) == wanted and len(systems) == 2 * len(wanted), f"measured: {systems}: {err}")
        text = (pathlib.Path(out) / "bench.md").read_text()
        check("| 2 workers, 1 MB | Open MPI tcp | `echo 0 0 1000000 2 " in text and "- Open MPI tcp: `mpirun " in text,
              f"bench.md: {text}")
        check("| 2 workers, 4 KB: phub shm zero-copy beside the faster peer (" in text, f"bench.md: {text}")


def wrong_sums():
    """a peer whose sums are wrong fails the run, which measures the others"""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as folder:
        err, systems = run(out, path=fake_mpi(folder, 3), status=1)
        check("Open MPI shm, 2 workers" in err and "3 wrong sums" in err, err)
        check("Gloo is left out" in err, err)
        check("phub tcp copy" in systems and "Open MPI shm" not in systems, f"measured: {systems}")


def no_peers():
    """without mpirun and torch their columns are left out"""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as folder:
        for program in ("sh", "ip", "nsenter", "cat", "git"):
            if shutil.which(program):
                os.symlink(shutil.which(program), pathlib.Path(folder) / program)
        err, systems = run(out, path=folder)
        check("Open MPI is left out: no mpirun" in err and "Gloo is left out: no /nonexistent" in err, err)
        check(len(systems) == 8, f"measured: {systems}")


def interrupted():
    """Ctrl-C and SIGKILL leave neither namespace nor processes"""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as folder:
            process = start(out, path=fake_mpi(folder, 0))
            lines = rig.Lines(process.stderr)
            check(lines.find(lambda line: "2 workers, 4 KB" in line), "it did not begin")
            time.sleep(0.3)
            process.send_signal(number)
            check(process.wait(timeout=rig.DEADLINE_S) == code, f"exit code {process.returncode}, not {code}")
            until = time.monotonic() + rig.DEADLINE_S
            while namespace(process.pid) and time.monotonic() < until:
                time.sleep(0.05)
            check(not namespace(process.pid), f"{namespace(process.pid)} is still there")


def rack_namespaces(pid):
    return list(pathlib.Path("/run/netns").glob(f"phub-rack-{pid}-*"))


def rack_or_skip(err):
    if "skipped" in err:
        check(len(err.splitlines()) == 1, f"it skips in more than one line: {err}")
        raise Skip(err.strip())


def rack():
    """phub and its peers on shaped links: what every run moved took them, and nothing is left"""
    with tempfile.TemporaryDirectory() as out:
        process = start(out, python=SYSTEM_PYTHON, program=RACK, RATE="200")
        _, err = process.communicate(timeout=2 * rig.DEADLINE_S)
        check(process.returncode == 0, f"exit code {process.returncode}: {err[-1500:]}")
        rack_or_skip(err)
        check(not rack_namespaces(process.pid), f"still there: {rack_namespaces(process.pid)}")
        lines = [json.loads(line) for line in (pathlib.Path(out) / "rack.jsonl").read_text().splitlines()]
        runs = {line["system"]: line for line in lines if "system" in line}
        wanted = {"phub tcp f32", "phub tcp f16", "phub tcp bf16"}
        wanted |= {name for name, word in (("Open MPI tcp", "Open MPI"), ("Gloo tcp", "Gloo")) if f"{word} is left out" not in err}
        check(set(runs) == wanted, f"measured: {set(runs)}: {err}")
        for name, line in runs.items():
            # A link of so many Mbit/s, and the burst that it lets through after a rest.
            check(all(line[f"{way}_link_bytes"] >= line["bytes"] and 0 < line[f"{way}_share"] < 1.2 for way in ("up", "down")),
                  f"{name}: {line}")
        text = (pathlib.Path(out) / "rack.md").read_text()
        check("| 2 | phub tcp f32 | `phub bench exchange --transport tcp" in text and "share of line rate up" in text,
              f"rack.md: {text}")


def rack_killed():
    """SIGKILL leaves neither namespaces nor what ran in them"""
    with tempfile.TemporaryDirectory() as out:
        for when in ("2 workers (", "2 workers: as many"):  # while links are made; while phub exchanges
            process = start(out, program=RACK)
            lines = rig.Lines(process.stderr)
            if not lines.find(lambda line, when=when: when in line):
                rack_or_skip(lines.text())
                check(False, f"it did not begin: {lines.text()}")
            time.sleep(0.3)
            inside = [pid for path in rack_namespaces(process.pid) for pid in
                      subprocess.run(["ip", "netns", "pids", path.name], capture_output=True, text=True, check=False).stdout.split()]
            process.kill()
            process.wait()
            until = time.monotonic() + rig.DEADLINE_S
            while (rack_namespaces(process.pid) or any(pathlib.Path(f"/proc/{pid}").exists() for pid in inside)) \
                    and time.monotonic() < until:
                time.sleep(0.05)
            check(not rack_namespaces(process.pid), f"still there: {rack_namespaces(process.pid)}")
            check(not any(pathlib.Path(f"/proc/{pid}").exists() for pid in inside), f"still running: {inside}")


# ---- the verdicts, from made-up numbers ----

def table_of(make, results, *lines):
    """{claim: (to reach, measured, verdict)}"""
    return {row[0]: row[1:] for row in make(results(lines)).rows}


def only(said, *words):
    """The one claim that has all these words."""
    found = [row for claim, row in said.items() if all(word in claim for word in words)]
    check(len(found) == 1, f"{words}: {said}")
    return found[0]


def bench_lines(system, what, p50s, workers=4, cpu=1.0, through="shm", is_peer=False):
    return [{"name": f"{workers} workers, {what}", "system": system, "how": "-", "through": through, "is_peer": is_peer, "bytes": 4,
             "workers": workers, "row": {"kind": "exchange"}, "p50_ms": p50, "rounds_per_s": 1, "cpu_s_per_gb": cpu} for p50 in p50s]


def verdict_of_speed():
    """at the limit is reached, below it is not; ranges that overlap say so, in a least and in a most"""
    for ours, peer, verdict in (((1, 1, 1), (4, 4, 4), "reached"), ((1, 1, 1), (3.9, 3.9, 3.9), "not reached (measured 3.90x)"),
                                ((1, 1, 1), (3.8, 5, 5.1), "reached, within the spread"),
                                ((0.9, 1, 1.1), (3.9, 3.9, 3.9), "not reached, within the spread (measured 3.90x)")):
        said = table_of(report.Claims, report.Results, *bench_lines("phub shm zero-copy", "100 MB", ours),
                        *bench_lines("Open MPI shm", "100 MB", peer, is_peer=True),
                        *bench_lines("Open MPI tcp", "100 MB", (9, 9, 9), through="tcp", is_peer=True))
        row = only(said, "4 workers, 100 MB: phub shm zero-copy", "(Open MPI shm)")
        check(row[0] == "at least 4.00x" and row[2] == verdict, f"{ours}, {peer}: {row}")
    for many, verdict in (((1.3, 1.3, 1.3), "reached"), ((1.31, 1.31, 1.31), "not reached (measured 1.31x)"),
                          ((1.2, 1.25, 1.4), "reached, within the spread")):
        said = table_of(report.Claims, report.Results, *bench_lines("phub shm zero-copy", "10.24 MB as keys", (1, 1, 1)),
                        *bench_lines("phub shm zero-copy, 10,000 keys", "10.24 MB as keys", many))
        check(only(said, "10,000 keys")[::2] == ["at most 1.30x", verdict], f"{many}: {said}")


def verdict_of_cpu():
    """through phub's sockets go 2 bytes for a gradient's byte, through a ring's 2 (N - 1) / N"""
    for workers, sockets, gradients in ((2, "0.75x", "printed only"), (4, "1.12x", "not reached (measured 1.50x)")):
        said = table_of(report.Claims, report.Results,
                        *bench_lines("phub tcp zero-copy", "100 MB", (1,), workers, 1.5, "tcp"),
                        *bench_lines("Gloo tcp", "100 MB", (1,), workers, 1.0, "tcp", True))
        check(only(said, f"{workers} workers", "through sockets")[1] == sockets, f"{said}")
        check(only(said, f"{workers} workers", "of gradients")[2] == gradients, f"{said}")


def verdict_of_kernels():
    """the worst share is judged, of those beyond the caches"""
    for share, least, verdict in ((0.9, 0.9, "reached"), (0.9, 0.89, "reached, within the spread"),
                                  (0.8999, 0.89, "not reached (measured 90.0%)")):
        lines = [{"bench": "kernel", "kernel": kernel, "isa": "-", "workers": 4, "cache": cache, "gb_per_s": speed, "roofline_gb_per_s": 1,
                  "gb_per_s_min": min(least, speed), "gb_per_s_max": speed}
                 for kernel, cache, speed in (("good", "cold", 0.99), ("worst", "cold", share), ("cached", "warm", 0.1))]
        check(only(table_of(report.Claims, report.Results, *lines), "kernels", "(worst, 4")[2] == verdict, f"{share}: {verdict}")
    for share, verdict in ((1.05, "reached"), (1.06, "not reached (measured 106.0%)")):
        line = {**lines[0], "gb_per_s": share}
        check(only(table_of(report.Claims, report.Results, line), "kernels", "highest")[2] == verdict, f"{share}: {verdict}")


def nothing_measured():
    """a claim whose row is missing says so"""
    for make, results in ((report.Claims, report.Results), (rack_report.Claims, rack_report.Results)):
        said = table_of(make, results)
        check(len(said) > 5 and all(row[1:] == ["-", "not measured"] for row in said.values()), f"{said}")


def verdict_of_rack():
    """the share of the line rate, the faster of the peers, and narrow gradients"""
    def lines(system, rate, share, nbytes=8, is_peer=False):
        return [{"workers": 4, "system": system, "how": "-", "is_peer": is_peer, "bytes": nbytes, "mbit": 500, "row": {"bytes": 8},
                 "rounds_per_s": rate, "cpu_s_per_gb": 1, "up_share": share, "down_share": 1} for _ in range(3)]

    for share, faster, narrow, verdicts in ((0.92, 1.0, 2.5, ("reached", "reached", "reached")),
                                            (0.919, 1.001, 2.49, ("not reached (measured 91.9%)", "not reached (measured 1.35x)",
                                                                  "not reached (measured 1.84x)"))):
        said = table_of(rack_report.Claims, rack_report.Results, *lines("phub tcp f32", 1.35, share),
                        *lines("phub tcp f16", narrow, 1, 4), *lines("Gloo tcp", faster, 1, is_peer=True),
                        *lines("Open MPI tcp", 0.5, 1, is_peer=True),
                        {"bench": "streams", "workers": 4, "mbit": 500, "share": 0.949})
        found = tuple(only(said, "4 workers", words)[2] for words in ("line rate up", "faster peer (Gloo tcp)", ": f16 on the wire"))
        check(found == verdicts, f"{found}, not {verdicts}")
        check(only(said, "4 workers", "plain TCP")[2] == "not reached (measured 94.9%)", f"{said}")
        check(only(said, "4 workers", ": bf16 on")[2] == "not measured", f"{said}")


def busy_machine():
    """a machine that others kept busy says so in its table"""
    conditions = {"cpus": 2, "cpu": "-", "kernel": "-", "load": 3.0, "commit": "-", "date": "-", "rows": "quick"}
    for busy, warns in ((0.1, False), (1.1, True)):
        text = report.ran_on({**conditions, "busy": busy}, {"seconds": 1}, "bench")
        check(("say little" in text) == warns, f"{busy}: {text}")


def readme():
    """all tables are put into README, or none"""
    with tempfile.TemporaryDirectory() as out:
        report.README = pathlib.Path(out) / "README.md"
        marks = [report.MARKS, rack_report.MARKS]
        before = "".join(f"{begin}\nold\n{end}\n" for begin, end in marks)
        report.README.write_text(before)

        def missing():
            raise FileNotFoundError("no rack.md")

        said = []
        parts = [lambda: (marks[0], "\nnew\n"), missing]
        check(report.put_into_readme(parts, said.append) == 1 and report.README.read_text() == before, f"{said}")
        check("no rack.md" in said[0], f"{said}")
        parts[1] = lambda: (marks[1], "\nnew too\n")
        check(report.put_into_readme(parts, said.append) == 0, f"{said}")
        check(report.README.read_text() == before.replace("old", "new", 1).replace("old", "new too"), report.README.read_text())


def dpdk_tables():
    """dpdk.py's tables with XDP's sockets, or why there are none; README takes them, but none of QUICK=1"""
    conditions = {"runs": 5, "quick": False, "commit": "c", "date": "d", "busy": 0, "without_xdp": "no such sockets"}
    keys = ("gb_per_s", "frames_gb_per_s", "gb_per_s_worker", "rounds_per_s", "share", "gmac 1344", "testpmd")
    lines = [{"part": part, "what": what, "run": turn, **dict.fromkeys(keys, 0.25 * (1 + turn))} for turn in range(5)
             for part, what, _ in dpdk.MEASURED]
    with tempfile.TemporaryDirectory() as out:
        page = report.Page("dpdk", None)
        page.path = pathlib.Path(out) / page.path.name
        text = dpdk.tables(dpdk.Results([line for line in lines if line["part"] != dpdk.ON_XDP]), conditions)
        check("| af_xdp on a veth pair: left out, no such sockets | - |" in text, text)
        text = dpdk.tables(dpdk.Results(lines), {**conditions, "without_xdp": ""})
        for part in ("memif", "af_packet on a veth pair", "af_xdp on a veth pair"):
            check(f"| {part}: testpmd, one way | 0.750 (0.250 - 1.250) |" in text, text)
            check(f"| {part}: phub, seal gmac | 0.750 (0.250 - 1.250) | - | **1.00** (0.60 wanted: reached) |" in text, text)
        with contextlib.redirect_stdout(io.StringIO()):
            page.write(text, conditions, lines)
            check(page.part() == (page.marks, f"\n{text}"), "README would get something else")
            check(page.marks[0] in (report.ROOT / "README.md").read_text(), "README has no place for it")
            page.write(text, {**conditions, "quick": True}, lines)
        try:
            raise AssertionError(f"README would get what says nothing: {page.part()}")
        except ValueError:
            pass


def dpdk_cycles():
    """dpdk_cycles sends and receives"""
    if not (rig.BUILD / "libphub-dpdk.so").exists():
        raise Skip("this build has no DPDK")
    done = subprocess.run([CYCLES, "gmac", "500"], capture_output=True, text=True)
    check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-1500:]}")
    cycles = json.loads(done.stdout)
    check(len(cycles) == 4 and min(cycles.values()) > 0, f"{cycles}")


def lines_of_text():
    """what can be pasted is not cut at a hyphen"""
    text = report.fill("x" * 115 + " `make bench-rack`, and so on")
    check("bench-rack" in text and "\n" in text, text)


def forgets():
    """a rack that cannot be measured leaves no table of an earlier run"""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as folder:
        for name in ("rack.jsonl", "rack.md", "rack.png", "bench.md"):
            (pathlib.Path(out) / name).write_text("old")
        process = start(out, path=folder, program=RACK)  # no nsenter, tc or ip
        _, err = process.communicate(timeout=rig.DEADLINE_S)
        check(process.returncode == 0 and "skipped" in err, f"exit code {process.returncode}: {err}")
        check(os.listdir(out) == ["bench.md"], f"left: {os.listdir(out)}")


if __name__ == "__main__":
    reason = None
    sanitized = rig.PHUBD.exists() and any(name in rig.PHUBD.read_bytes() for name in (b"__asan_", b"__tsan_", b"__ubsan_"))
    if sanitized and "dpdk_cycles" not in sys.argv[1:]:
        reason = "a sanitizer's build: nothing to measure"
    rig.run([beside_peers, wrong_sums, no_peers, interrupted, rack, rack_killed, verdict_of_speed, verdict_of_cpu,
             verdict_of_kernels, nothing_measured, verdict_of_rack, busy_machine, readme, dpdk_tables, dpdk_cycles, lines_of_text,
             forgets], reason)
