#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What encryption of gradients and results costs, on each transport: the same exchange with and without, taking turns.

Usage: encrypt.py           measures; writes $OUT/encrypt.md, and encrypt.jsonl with one line for every run
       encrypt.py --readme  puts what encrypt.md has into README.md, between its two marks

Environment: BUILD  where phub is (build)
             OUT    where results go (BUILD)
             RUNS   runs of each (5), taking turns; medians count
             QUICK  1: few rounds, to see that all of it works

One worker and one core of a box, a CPU each: all-reduce of 16 MiB in chunks of 32 KiB, whose sums the worker checks. A gradient
byte is sealed by the worker, opened by the box, and its result sealed and opened again. Over shm nothing leaves the host, and
nothing is encrypted; loop is in memory and in one thread. tcp and udp go over the loopback device, dpdk and af_xdp over a veth
pair between namespaces (as in dpdk.py: root), verbs over an emulated device, in the virtual machine (tests/vm) where this one
has none: there one CPU does all the work of both ends. What cannot run here is left out, and said why.

What bounds it is AES-256-GCM itself: `phub bench seals` tells what sealing and opening a chunk takes one CPU, with the library
that phub was built with, and `openssl speed` what libcrypto takes.
"""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import dpdk
import report
import verbs
from rack import holder
from run import commit
from systems import BUILD, OUT, ROOT, Failure, cpus_busy, make_ready, run_program

RUNS, QUICK = dpdk.RUNS, dpdk.QUICK
CHUNK = 32 << 10
INSIDE = "PHUB_BENCH_ENCRYPT_INSIDE"  # set in the virtual machine
WITHOUT, WITH = "without", "with"


def say(text):
    print(f"encrypt: {text}", file=sys.stderr, flush=True)


def here(transport):
    return lambda *words: dpdk.exchange("", "--transport", transport, "--workers", 1, *words)


def in_loop(*words):
    """It has one thread: nothing to bind."""
    return dpdk.phub("", "exchange", "--transport", "loop", "--workers", 1, "--bytes", dpdk.BYTES, "--rounds", dpdk.ROUNDS, *words)[0]


def over_verbs(*words):
    return dpdk.phub("", "exchange", "--transport", "verbs", "--workers", 1, "--bytes", dpdk.BYTES, "--rounds", 5 if QUICK else 20,
                     "--cores", 1, *words)[0]


def places():
    """{transport: how one run is done}, and {transport: why it is left out}."""
    found, left = {"loop": in_loop, "shm": here("shm"), "tcp": here("tcp"), "udp": here("udp")}, {}
    without = dpdk.why_not()
    for name, on in (("dpdk (af_packet)", dpdk.ON_PACKET), ("dpdk (af_xdp)", dpdk.ON_XDP)):
        why = without or (dpdk.why_no_xdp() if on == dpdk.ON_XDP else "")
        if why:
            left[name] = why
        else:
            found[name] = lambda *words, on=on: dpdk.over_veth("dpdk", "--poll", "busy", "--rounds", 10 if QUICK else 25, *words,
                                                                           on=on)
    if verbs.devices():
        found["verbs"] = over_verbs
    return found, left


def measure(found):
    lines = []
    for run in range(RUNS):
        for transport, how in found.items():
            for what, words in ((WITHOUT, []), (WITH, ["--encrypt"])):
                line = how(*words)
                lines.append({**line, "part": transport, "what": what, "run": run,
                              "gb_per_s": line["rounds_per_s"] * line["workers"] * line["bytes"] / 1e9})
                say(f"{transport} {what}: {lines[-1]['gb_per_s']:.3f} GB/s")
    return lines


def measure_inside():
    """verbs in the virtual machine: its lines, or why there are none."""
    there = OUT / "encrypt-verbs.jsonl"
    there.unlink(missing_ok=True)
    words = [ROOT / "tests/vm/run.sh", "-U", "-m", "2048", "-t", "300", "-r", OUT]
    words += [word for name in (INSIDE, "RUNS", "QUICK", "BUILD", "OUT") for word in ("-e", name)]
    words += ["--", "/usr/bin/python3", pathlib.Path(__file__).resolve()]
    done = subprocess.run([str(word) for word in words], env={**os.environ, INSIDE: "1"}, stderr=subprocess.PIPE, text=True)
    if done.returncode == 77:
        return [], done.stderr.strip().splitlines()[-1]
    if done.returncode or not there.exists():
        return [], f"the virtual machine ended with {done.returncode}: {done.stderr.strip()[-200:]}"
    return [json.loads(line) for line in there.read_text().splitlines()], ""


def ciphers():
    """[(what, GB/s sealed, GB/s opened)] of a chunk on one CPU."""
    lines = {line["seal"]: line for line in dpdk.phub("", "seals") if line["bytes"] == CHUNK}
    found = [(f"phub, by {line['by']}", line["gb_per_s"], lines[name.replace("seal", "open")]["gb_per_s"])
             for name, line in lines.items() if name.endswith(" seal")]
    with contextlib.suppress(OSError):
        rates = []
        for more in ([], ["-decrypt"]):
            words = ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", str(CHUNK), "-evp", "aes-256-gcm", *more]
            rates += re.findall(r"^\+F:.*:([\d.]+)$", subprocess.run(words, capture_output=True, text=True).stdout, re.M)
        if len(rates) == 2:
            found.append(("libcrypto, by `openssl speed`", *(float(rate) / 1e9 for rate in rates)))
    return found


# ---- what is told of it ----

def spread(lines, transport, what, key):
    return report.spread(line[key] for line in lines if line["part"] == transport and line["what"] == what)


def rows(lines):
    for transport in dict.fromkeys(line["part"] for line in lines):
        plain, sealed = (spread(lines, transport, what, "gb_per_s") for what in (WITHOUT, WITH))
        share = report.ratio(sealed, plain)
        yield [transport + (", nothing to encrypt" if transport == "shm" else ""), report.span(plain), report.span(sealed),
               f"{share.median:.0%} ({share.min:.0%} to {share.max:.0%})",
               *(report.span(spread(lines, transport, what, key)) for key in ("p50_ms", "box_cpu_s_per_gb") for what in (WITHOUT, WITH))]


def tables(lines, c):
    busy = " **Other programs kept the CPUs busy meanwhile: these numbers say little.**" if c["busy"] > len(dpdk.CPUS) / 4 else ""
    quick = " **QUICK=1: these numbers say nothing.**" if c["quick"] else ""
    left = [f"- {transport} is left out: {why}" for transport, why in c["left"].items()]
    return "\n".join([
        report.fill(f"{len(dpdk.CPUS)} CPUs ({report.cpu_name()}), commit {c['commit']}, {c['date']}; one worker, a box of one core, all-reduce "
                    f"of 16 MiB; medians of {c['runs']} runs that took turns (smallest to largest); {c['busy']:.2f} CPUs busy before the "
                    f"start; `make bench-encrypt`, {c['seconds']:.0f} s. verbs: of a virtual machine with one CPU for both ends.{busy}{quick}"), "",
        *report.as_table(["transport", "GB/s up without", "encrypted", "share", "round ms without", "encrypted", "box CPU s/GB without",
                          "encrypted"], "lrrrrrrr", rows(lines)), *(["", *left] if left else []), "",
        *report.as_table(["AES-256-GCM of 32 KiB, one CPU", "seal GB/s", "open GB/s"], "lrr",
                         [[what, report.number(seal), report.number(opened)] for what, seal, opened in c["ciphers"]]), ""])


def measure_all(conditions):
    begin = time.monotonic()
    found, conditions["left"] = places()
    with contextlib.ExitStack() as stack:
        if "dpdk (af_packet)" in found:
            keep_fd = stack.enter_context(holder(dpdk.NAMES))
            done = subprocess.run(["sh", "-ec", dpdk.PLACE.format(names=dpdk.NAMES, box=dpdk.BOX, network=dpdk.NETWORK)],
                                  capture_output=True, text=True, pass_fds=[keep_fd])
            if done.returncode:
                raise Failure(f"no network namespaces with veth and bridge: {done.stderr.strip()}")
        lines = measure(found)
    if "verbs" not in found:
        more, why = measure_inside()
        lines += more
        conditions["left"].update({"verbs": why} if why else {})
    conditions.update(ciphers=ciphers(), seconds=time.monotonic() - begin)
    return lines


def main():
    page = report.Page("encrypt", say)
    code = page.answered(sys.argv[1:], __doc__)
    if code is not None:
        return code
    if not make_ready(say):
        return 1
    conditions = {"runs": RUNS, "quick": QUICK, "commit": commit(), "date": time.strftime("%Y-%m-%d"), "busy": cpus_busy()}
    try:
        if os.environ.get(INSIDE):
            lines = measure({"verbs": over_verbs})
            (OUT / "encrypt-verbs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            return 0
        lines = measure_all(conditions)
    except (Failure, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    page.write(tables(lines, conditions), conditions, lines)
    return 0


if __name__ == "__main__":
    run_program(main, say)
