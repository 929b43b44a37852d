#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions per gradient byte, of each kernel and of the box's whole way of a chunk, against those that were recorded: a
regression that shows on a noisy machine too. valgrind's callgrind counts them; it knows no AVX-512, so base and AVX2 stand
for all instruction sets. What is counted does not depend on the machine, but on the compiler and its -O: each has its own
record in tests/bench/instructions.json, and a build by one without is skipped. A new one's record is made at a commit that is
known to be good:  make bench-instructions RECORD=1 CC='clang -gdwarf-4' BUILD=build-clang
(valgrind 3.19 reads gcc 12's debug information; of clang's only that of DWARF 4.)

Usage: test_instructions.py [--record]     --record: what is counted now is what is expected from now on
                                           (make bench-instructions RECORD=1)
"""
import concurrent.futures
import itertools
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
PHUB = BUILD / "phub"
RECORD = ROOT / "tests/bench/instructions.json"
TOLERANCE = 0.03  # of what was recorded; and so many instructions per byte, for what takes next to none:
FLOOR = 0.0005
WORKERS = 4
BYTES = 256 << 10
# The box on the loop transport: name and options of an exchange.
EXCHANGES = {
    "box, all-reduce of f32": [],
    "box, adam on bf16": ["--optimizer", "adam", "--dtype", "bf16"],
    "box, 64 chunks of 4 KiB": ["--chunk", "4096"],
}
ROUNDS, FIRST, LAST = 6, 3, 7  # of a run, before which there are two to warm up; from here to here rounds are counted


class Skip(Exception):
    """Its text says why."""


def compiler():
    """Who compiled the build folder: the record's key, and the command that records anew for it."""
    try:
        words = (BUILD / ".flags").read_text().split()
    except OSError:
        raise Skip(f"{BUILD} says nothing about its compiler")
    if any(word.startswith("-fsanitize") for word in words):
        raise Skip("a sanitizer adds instructions")
    said = subprocess.run([words[0], "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    version = subprocess.run([words[0], "-dumpversion"], capture_output=True, text=True).stdout.strip()
    optimization = [word for word in words if re.fullmatch(r"-O\w", word)]
    cc = " ".join(itertools.takewhile(lambda word: not word.startswith("-std="), words))
    key = " ".join(["clang" if "clang" in said else "gcc", version.split(".")[0], *optimization, platform.machine()])
    return key, f"make bench-instructions RECORD=1 CC={shlex.quote(cc)} BUILD={os.path.relpath(BUILD, ROOT)}"


def count(folder, name, options, command, **environment):
    """Runs it under callgrind: what it printed."""
    done = subprocess.run(["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/{name}", *options, PHUB, *command],
                          capture_output=True, text=True, env={**os.environ, **environment})
    if "debuginfo reader" in done.stderr:
        raise Skip("valgrind cannot read the debug information of this build: CC='clang -gdwarf-4', or another compiler")
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def kernels(isa):
    """Instructions per gradient byte of every kernel: callgrind writes a file after each call."""
    with tempfile.TemporaryDirectory() as folder:
        told = count(folder, "out", ["--toggle-collect=kernels_call_once", "--dump-after=kernels_call_once"],
                     ["bench", "kernels", "--once", "--workers", str(WORKERS), "--isa", isa, "--json"])
        found = {}
        for number, line in enumerate(map(json.loads, told.splitlines()), 1):
            total = re.search(r"^totals: (\d+)", (pathlib.Path(folder) / f"out.{number}").read_text(), re.MULTILINE)
            found[f"{line['kernel']} {isa}"] = int(total[1]) / line["bytes"]
        return found


def in_box(path):
    """Is this file of the box's side, and not of the network that is played?"""
    path = os.path.relpath(ROOT / path, ROOT)  # "ROOT/./aggregation/kernels_simd.h" for what was included
    if path.startswith("../") and re.search(r"/(phub|aggregation)/\w+\.[ch]$", path):
        raise Skip(f"this build's objects were made in another tree ({path}): a compiler's cache had them; build anew with CCACHE_DISABLE=1")
    return path.startswith(("phub/", "aggregation/", "transport/wire"))


def box_instructions(profile):
    """Of the box's functions, and of what they call in libraries: copies. callgrind's file names each thing once, with a number."""
    names, total = {}, 0
    box = ours = foreign = called = False
    for line in profile.splitlines():
        match = re.match(r"(ob|fl|fi|fe|fn|cob|cfi|cfl|cfn)=\((\d+)\)(?: (.*))?", line)
        if match:
            kind, number, name = match.groups()
            space = {"cob": "ob", "fn": "fn", "cfn": "fn"}.get(kind, kind if kind == "ob" else "file")
            names.setdefault((space, number), name or "")
            name = names[space, number]
            if kind == "ob":
                ours = name.endswith("/phub")
            elif kind == "fl":
                box = in_box(name)
            elif kind == "cob":
                foreign = not name.endswith("/phub")
        elif line.startswith("calls="):
            called = True
        elif re.match(r"[+*\d-]", line):
            cost = int(line.split()[1])
            if box and ours and (not called or foreign):
                total += cost
            if called:
                called = foreign = False
    return total


def exchange(name):
    """Instructions of the box per gradient byte, in a round of the loop transport."""
    with tempfile.TemporaryDirectory() as folder:
        # Each worker's begin of a round writes a file of what has run since the one before.
        count(folder, "out", ["--toggle-collect=core_step", "--dump-before=trial_member_begin_round"],
              ["bench", "exchange", "--transport", "loop", "--workers", str(WORKERS), "--bytes", str(BYTES),
               "--rounds", str(ROUNDS), *EXCHANGES[name]], PHUB_ISA="avx2")
        parts = [(pathlib.Path(folder) / f"out.{1 + at}").read_text() for at in range(WORKERS * FIRST + 1, WORKERS * LAST + 1)]
    return {name: sum(map(box_instructions, parts)) / (LAST - FIRST) / (WORKERS * BYTES)}


def measure():
    isas = ["base", "avx2"] if platform.machine() == "x86_64" else ["base"]
    found = {}
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for part in [*map(lambda isa: pool.submit(kernels, isa), isas), *map(lambda name: pool.submit(exchange, name), EXCHANGES)]:
            found.update(part.result())
    return {name: round(value, 5) for name, value in found.items()}


def compare(found, wanted, again):
    """TAP: a case each; returns how many failed."""
    failed, better = 0, []
    print(f"1..{len(wanted)}")
    for number, (name, before) in enumerate(wanted.items(), 1):
        now = found.get(name)
        room = max(TOLERANCE * before, FLOOR)
        bad = now is None or now > before + room
        failed += bad
        print(f"{'not ok' if bad else 'ok'} {number} {name}: {now} instructions per gradient byte, recorded {before}")
        if now is not None and now < before - room:
            better.append(name)
    for name in [*better, *(set(found) - set(wanted))]:
        print(f"# {name}: {found[name]} is {'better' if name in wanted else 'new'}; record it: {again}")
    if failed:
        print(f"# more instructions than before. If that is worth it: {again}, and say in the commit why")
    return failed


def main():
    words = sys.argv[1:]
    if words not in ([], ["--record"]):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    if not shutil.which("valgrind"):
        raise Skip("no valgrind (deploy/deps.sh test)")
    if not os.access(PHUB, os.X_OK):
        raise Skip(f"no phub in {BUILD}")
    key, again = compiler()
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if words:
        records[key] = measure()
        RECORD.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")
        print(f"{len(records[key])} recorded for {key} in {RECORD}")
        return 0
    if key not in records:
        raise Skip(f"no record for {key}, only for {', '.join(sorted(records))}; at a commit that is good: {again}")
    return 1 if compare(measure(), records[key], again) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Skip as why:
        print(why)
        sys.exit(77)
