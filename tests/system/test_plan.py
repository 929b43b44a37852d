#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub plan as people and scripts meet it: what limits where it must, what is refused, files that it reads and writes, and the
script that holds it against measurement."""
import json
import pathlib
import re
import subprocess
import tempfile

import rig
from rig import check, holds

PHUB = rig.BUILD / "phub"
CHECK = rig.ROOT / "tests/bench/plan_check.py"
# Nothing is measured: every rate is told.
TOLD = ["--core-gbps", "10", "--memory-bandwidth", "1000", "--link", "10Gbit", "--nics", "1", "--cores", "4"]
COST = {"plan": "cost", "transport": "tcp", "box_round_ns": 0, "box_message_ns": 0, "box_byte_ns": 0.4, "worker_round_ns": 0,
        "worker_key_ns": 0, "worker_message_ns": 0, "worker_byte_ns": 0.5}
KERNEL = {"bench": "kernel", "kernel": "sum_f32", "isa": "base", "workers": 4, "cache": "cold", "gb_per_s": 10}


def phub(*words, status=0):
    done = subprocess.run([PHUB, "plan", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=rig.DEADLINE_S * 4, env=rig.QUIET, cwd=rig.ROOT)
    check(done.returncode == status, f"phub plan {words}: exit code {done.returncode}, not {status}: {done.stderr[-1500:]}")
    return done.stdout, done.stderr


def plan(*words):
    """Its resources by name, and the plan."""
    lines = [json.loads(line) for line in phub("--json", *words)[0].splitlines()]
    return {line["resource"]: line for line in lines if line["plan"] == "resource"}, \
        next(line for line in lines if line["plan"] == "exchange")


def near(value, wanted):
    check(abs(value - wanted) <= 1e-4 * abs(wanted), f"{value}, not {wanted}")


def file_of(folder, *lines):
    path = pathlib.Path(folder, "costs.jsonl")
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def no_options():
    """without options it plans for this machine, and says what it took for granted"""
    out, _ = phub()
    holds(out, "^resnet-50: 102.2 MB of f32 in 161 keys", "assumed: ResNet-50", "<- limits", "exchanges  .* a second", "to buy next")


def each_resource_limits():
    """the resource that is made scarce is the one that limits"""
    for words, limit in ((["--workers", "8"], "box links"),
                         (["--nics", "100", "--link", "100G", "--worker-link", "1Gbit"], "worker links"),
                         (["--nics", "100", "--link", "100G", "--cores", "1"], "cores"),
                         (["--nics", "100", "--link", "100G", "--memory-bandwidth", "1"], "memory"),
                         (["--link", "1T", "--pcie", "1x1"], "PCIe"),
                         (["--cache-lines", "1M"], "cache lines"),
                         (["--here", "--cpus", "1", "--link", "10T"], "shared CPUs"),
                         (["--nics", "10000", "--link", "10T", "--cores", "100000"], "worker CPU")):
        resources, found = plan(*TOLD, "--transport", "tcp", *words)
        check(found["limit"] == limit and resources[limit]["limit"], f"{words}: {found}")
        check(sum(line["limit"] for line in resources.values()) == 1, f"{words}: {resources}")
        check(all(line["exchanges_per_s"] >= resources[limit]["exchanges_per_s"] for line in resources.values()), str(resources))


def numbers():
    """one box computed by hand: 8 workers of 100 MB, 10 Gbit/s, MTU 9000, sums at 10 GB/s, from a file of costs"""
    with tempfile.TemporaryDirectory() as folder:
        path = file_of(folder, KERNEL, COST, {"bench": "exchange", "errors": 0}, "")
        resources, found = plan("--costs", path, "--memory-bandwidth", "100", "--link", "10Gbit", "--nics", "2", "--cores", "4",
                                "--mtu", "9000", "--workers", "8", "--bytes", "100MB", "--pcie", "3x8")
    wire = 8948 / 9038 * 32768 / 32832
    near(found["wire_efficiency"], wire)
    near(resources["box links"]["exchanges_per_s"], 2 * 1.25e9 * wire / 0.8e9)
    near(resources["worker links"]["exchanges_per_s"], 1.25e9 * wire / 0.1e9)
    near(resources["PCIe"]["exchanges_per_s"], 2 * 7.8769231e9 / 1.09375 / 0.8e9)
    near(resources["memory"]["exchanges_per_s"], 100e9 / 4.25 / 0.8e9)  # 2 in, 2 out, 2 / 8 once
    near(resources["cores"]["exchanges_per_s"], 4 / (0.8 * (0.4 + 0.1 * (1 + 2 / 8) / (1 + 2 / 4))))  # rate of 4 workers
    near(resources["worker CPU"]["exchanges_per_s"], 1 / 0.05)
    near(found["ring_ms"], 1e3 * 1.75 * 0.1e9 / (1.25e9 * wire))
    check(found["limit"] == "box links" and found["second"] == "cores" and found["chunks"] == 3052, str(found))
    near(found["all_per_s"], 8 * found["exchanges_per_s"])
    near(found["gb_per_s_worker"], 0.1 * found["exchanges_per_s"])


def by_formulae(o, kernel, cost):
    """Seconds of each resource and of the exchange, as phub plan --help says."""
    n, size, full = o["workers"], o["bytes"], o["chunk"]
    whole, rest = divmod(full, max(size // o["keys"], 1))  # small keys, all of one size here, share a chunk
    m = -(-o["keys"] // whole) if whole else o["keys"] * -(-size // o["keys"] // full)
    if o["keys"] > 1:
        check(size % o["keys"] == 0 and (whole or rest), "keys must be of one size")
    s = size / m

    def u(x):
        return m / -(-m // x)

    e = (o["mtu"] - 52) / (o["mtu"] + 38) * s / (s + 64)
    k, per_message = kernel, cost["box_message_ns"] * m
    b = cost["box_byte_ns"] + (cost["box_round_ns"] + per_message) / size
    v = cost["worker_byte_ns"] + (cost["worker_round_ns"] + cost["worker_key_ns"] * o["keys"] + cost["worker_message_ns"] * m) / size
    t = {"box links": n * size / (e * u(o["nics"]) * o["link"] / 8), "worker links": size / (e * o["link"] / 8),
         "PCIe": n * size * (256 + 24) / 256 / (u(o["nics"]) * 8 * 8e9 * 128 / 130 / 8),
         "cache lines": 2 * n * size / 64 / o["lines"], "memory": n * size * (2 + 2 + 2 / n) / o["memory"],
         "cores": n * size * (k + b) * 1e-9 / u(o["cores"]), "worker CPU": size * v * 1e-9}
    if o["cpus"]:
        t["shared CPUs"] = n * size * (k + b + v) * 1e-9 / o["cpus"]
    limit, among = max(t, key=t.get), ["box links", "worker links", *([] if o["cpus"] else ["cores", "worker CPU"])]
    f = 2 * max(t["box links"], t["worker links"]) + sum(t[name] for name in among[2:])
    return t, t[limit] + (f - (t[limit] if limit in among else 0)) / m + o["latency"], m


def as_documented():
    """what is planned is what the formulae of the help text give, whatever limits"""
    usual = {"workers": 4, "bytes": 1 << 20, "keys": 1, "chunk": 32768, "mtu": 1500, "nics": 3, "link": 10e9, "cores": 5, "cpus": 0,
             "memory": 100e9, "lines": 1e9, "latency": 50e-6}
    cost = {**COST, "box_round_ns": 2000, "box_message_ns": 600, "worker_round_ns": 5000, "worker_key_ns": 70, "worker_message_ns": 900}
    limits = set()
    with tempfile.TemporaryDirectory() as folder:
        path = file_of(folder, {**KERNEL, "workers": 2}, {**KERNEL, "workers": 8}, cost)
        for change in ({}, {"cores": 1}, {"link": 100e9, "nics": 10}, {"memory": 1e9}, {"lines": 10e6}, {"cpus": 2},
                       {"bytes": 4096, "cpus": 2},
                       {"bytes": 4000, "cores": 64, "nics": 8}, {"bytes": 1 << 22, "keys": 1024}, {"bytes": 960000, "keys": 24},
                       {"link": 100e9, "nics": 64, "cores": 64}, {"link": 1e9, "nics": 8, "workers": 2}, {"chunk": 4096, "mtu": 9000}):
            o = {**usual, **change}
            here = ["--here", "--cpus", o["cpus"]] if o["cpus"] else []
            resources, found = plan("--costs", path, *here, "--workers", o["workers"], "--bytes", o["bytes"], "--keys", o["keys"],
                                    "--chunk", o["chunk"], "--mtu", o["mtu"], "--nics", o["nics"], "--link", f"{o['link'] / 1e9:g}G",
                                    "--cores", o["cores"], "--memory-bandwidth", f"{o['memory'] / 1e9:g}", "--pcie", "3x8",
                                    "--cache-lines", f"{o['lines'] / 1e6:g}M", "--latency-us", "50")
            t, exchange_s, m = by_formulae(o, 0.1, cost)
            check(found["chunks"] == m and set(resources) == set(t), f"{change}: {found}, {m} chunks; {t}")
            for name, seconds in t.items():
                near(resources[name]["exchanges_per_s"], 1 / seconds)
            near(found["exchange_ms"], 1e3 * exchange_s)
            limits.add(found["limit"])
    check(len(limits) >= 6, f"too few of them limited: {limits}")


def words():
    """one is one, and the note on memory is there where workers share it"""
    out, _ = phub(*TOLD, "--bytes", "4", "--workers", "1")
    holds(out, "in 1 key and 1 chunk of up to 32 KiB, 1 worker,", "1 of 4 cores have work", "may run faster there")
    holds(phub(*TOLD, "--here")[0], "not those of workers on it")
    check("not those" not in phub(*TOLD)[0], "no worker is on the box")


def loopback():
    """workers on the box need no link, unless one is told"""
    here = ["--here", "--core-gbps", "10", "--memory-bandwidth", "1000"]
    resources, found = plan(*here)
    check("box links" not in resources and "ring_ms" not in found and found["wire_efficiency"] == 1, f"{resources} {found}")
    resources, found = plan(*here, "--link", "100Mbit")
    check(found["limit"] == "box links" and found["ring_ms"] > 0, f"{resources} {found}")


def types():
    """a CSV brings its types; several in one are planned as the first, and that is said"""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as model:
        model.write("name,shape,dtype\na,1000x1000,bf16\nb,500,f32\n")
        model.flush()
        _, found = plan(*TOLD, "--model", model.name)
        check(found["bytes"] == 2 * 1000500 and any("all tensors bf16" in note for note in found["assumed"]), str(found))
        _, found = plan(*TOLD, "--model", model.name, "--dtype", "f32")
        check(found["bytes"] == 4 * 1000500 and not any("all tensors" in note for note in found["assumed"]), str(found))


def computing():
    """computing that is long hides the exchange"""
    _, found = plan(*TOLD, "--compute-ms", "100000")
    near(found["iteration_best_ms"], 100000)
    near(found["iteration_worst_ms"], 100000 + found["exchange_ms"])
    holds(phub(*TOLD, "--compute-ms", "100000")[0], "can hide")
    holds(phub(*TOLD, "--compute-ms", "0.001")[0], "too short to hide")


def sweep():
    """more workers: all together faster until the box's link limits, each never faster"""
    lines = [json.loads(line) for line in phub(*TOLD, "--worker-link", "1Gbit", "--sweep", "16", "--json")[0].splitlines()]
    steps = [line for line in lines if line["plan"] == "sweep"]
    check([step["workers"] for step in steps] == list(range(1, 17)), str(steps))
    check(all(a["exchanges_per_s"] >= b["exchanges_per_s"] for a, b in zip(steps, steps[1:])), str(steps))
    check(steps[0]["limit"] == "worker links" and steps[-1]["limit"] == "box links", str(steps))
    for most in (1, 2, 32, 33, 100):
        lines = [json.loads(line) for line in phub(*TOLD, "--sweep", most, "--json")[0].splitlines()]
        steps = [line["workers"] for line in lines if line["plan"] == "sweep"]
        check(steps[0] == 1 and steps[-1] == most and steps == sorted(set(steps)) and len(steps) == min(most, 32), str(steps))
    holds(phub(*TOLD, "--sweep", "100")[0], r"(?m)^ +100 +\S+ +\S+ +box links +#+$")


def wrong_words():
    """what cannot be ends with 2 and names the option"""
    for words, answer in ((["--workers", "0"], "1 to"), (["--nics", "10001"], "1 to 10000"), (["--link", "0"], "--link 0"),
                          (["--link", "-1G"], "above 0"), (["--link", "nan"], "above 0"), (["--link", "1e9"], "above 0"),
                          (["--link", "0x10"], "above 0"), (["--link", "56GB"], "56Gbit"), (["--link", "9" * 30], "above 0"),
                          (["--pcie", "7x8"], "GENxLANES"), (["--pcie", "3x0"], "GENxLANES"), (["--pcie", "3x8x"], "GENxLANES"),
                          (["--mtu", "100"], "576 to"), (["--memory-bandwidth", "fast"], "120GB/s"),
                          (["--cache-lines", "-5M"], "1370M"), (["--compute-ms", ""], "54"),
                          (["--optimizer", "lamb"], "--optimizer"), (["--model", "resnet-51"], "resnet-50"),
                          (["--bytes", "1MB", "--model", "vgg-19"], "--bytes or --model"), (["--keys", "3"], "belongs to --bytes"),
                          (["--cpus", "3"], "--here"), (["--runs", "2"], "belong to --calibrate"), (["--quick"], "belong to --calibrate"),
                          (["--calibrate", "--costs", "x"], "one of them"),
                          (["--bytes", "2", "--keys", "1000000"], "at least 4000000"),
                          (["--bytes", "3", "--dtype", "f32"], "multiple of 4"),
                          (["--bytes", "3", "--dtype", "f16"], "multiple of 2"),
                          (["--calibrate", "--workers", "4"], "--workers has no effect with --calibrate"),
                          (["--calibrate", "--model", "vgg-19"], "--model has no effect"),
                          (["--calibrate", "--sweep", "9"], "--sweep has no"),
                          (["--calibrate", "--frame", "0"], "--frame has no"), (["--calibrate", "--here"], "--here has no"),
                          (["--transport", "shm", "--nics", "2"], "--nics has no effect with --transport shm"),
                          (["--transport", "shm", "--link", "10G"], "--link has no effect"),
                          (["--transport", "tpc"], "tcp"), (["--chunk", "5000"], "powers of two")):
        out, err = phub(*words, status=2)
        check(out == "" and err.startswith("phub: ") and err.count("\n") == 1, f"{words}: {out}{err}")
        holds(err, re.escape(answer))


def bad_files():
    """a file of costs that is none is named, with its line"""
    with tempfile.TemporaryDirectory() as folder:
        for content, answer in (((), "no rates and no costs"), (("{",), ":1: not a line"),
                                ((KERNEL, {**COST, "box_byte_ns": -1}), ":2: not a line"),
                                (({**COST, "transport": "ipx"},), ":1: not a line"),
                                (({**KERNEL, "workers": 0},), ":1: not a line"), ((COST, KERNEL, "[]"), ":3: not a line"),
                                (({**KERNEL, "cache": "warm"},), "no cold rate of kernel sum_f32")):
            _, err = phub("--kernels", file_of(folder, *content), "--memory-bandwidth", "9", status=1)
            holds(err, re.escape(answer))
        holds(phub("--kernels", "/nowhere", status=1)[1], "No such file.*--calibrate")


def formulae():
    """the manual page has the formulae of --help, line by line, and every resource has one"""
    out, _ = phub("--help")
    found = out.split("busy):\n")[1].split("\noptions:")[0].strip("\n").split("\n")
    manual = (rig.ROOT / "deploy/man/phub.1").read_text().split("\n")
    check(len(found) > 10 and all(line in manual for line in found), f"phub.1 lacks {[f for f in found if f not in manual]}")
    for resource in plan(*TOLD, "--here", "--pcie", "3x8", "--cache-lines", "1G")[0]:
        check(any(line.startswith(f"  {resource} ") for line in found), f"no formula of {resource}")


def against_measurement():
    """plan_check.py calibrates, predicts and measures, in small, which is not for README"""
    with tempfile.TemporaryDirectory() as out:
        settings = {"env": {**rig.QUIET, "POINTS": "smoke", "RUNS": "1", "BUILD": str(rig.BUILD), "OUT": out},
                    "capture_output": True, "text": True, "timeout": 250}
        done = subprocess.run([CHECK], **settings)
        check(done.returncode == 0, done.stderr[-1500:])
        text = pathlib.Path(out, "plan.md").read_text()
        check("| shm, 2 workers, cores 1, 1MB |" in text and "| tcp, 2 workers" in text and "| 8 | " in text, text)
        check("on links of" in text or "shaped links are left out" in done.stderr, text + done.stderr)
        costs = [json.loads(line) for line in pathlib.Path(out, "bench/plan_costs.jsonl").read_text().splitlines()]
        check({line["transport"] for line in costs if line.get("plan") == "cost"} == {"shm", "tcp"}, str(costs))
        done = subprocess.run([CHECK, "--readme"], **{**settings, "env": {**settings["env"], "POINTS": "full"}})
        check(done.returncode == 1 and "a smoke test" in done.stderr, f"{done.returncode}: {done.stderr}")


if __name__ == "__main__":
    cases = [no_options, each_resource_limits, numbers, as_documented, words, loopback, types, computing, sweep, wrong_words, bad_files,
             formulae]
    sanitized = PHUB.exists() and any(name in PHUB.read_bytes() for name in (b"__asan_", b"__tsan_", b"__ubsan_"))
    rig.run(cases if sanitized else [*cases, against_measurement], None if PHUB.exists() else f"{PHUB} is not there (make)")
