#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The phub command as scripts and people meet it: its contract of options, JSON and exit codes, the checkers of its
benches against planted errors, and what is left when it is interrupted."""
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import xml.etree.ElementTree

import rig
from rig import check, holds

PHUB = rig.BUILD / "phub"
SANITIZED = bool(re.search(rb"__(asan|tsan|ubsan)_", PHUB.read_bytes())) if PHUB.exists() else False
EXCHANGE_KEYS = ["bench", "transport", "mode", "workers", "bytes", "optimizer", "rounds", "rounds_per_s", "p50_ms",
                 "p99_ms", "gb_per_s_worker", "box_cpu_s_per_gb", "cpu_s_per_gb", "errors"]
AGGREGATION_KEYS = ["bench", "how", "adds", "pass", "stores", "model", "optimizer", "workers", "cores", "bytes", "chunk", "keys",
                    "rounds", "p50_ms", "min_ms", "max_ms", "gb_per_s", "cpu_s_per_gb", "waits", "errors"]
SEAL_KEYS = ["bench", "seal", "bytes", "gb_per_s", "ns", "gb_per_s_min", "gb_per_s_max"]
KERNEL_KEYS = ["bench", "kernel", "isa", "workers", "cache", "gb_per_s", "roofline_gb_per_s", "stores",
               "gb_per_s_min", "gb_per_s_max"]


def phub(*words, status=0, env=None):
    """Runs the command and checks how it ended. Returns its stdout and stderr."""
    done = subprocess.run([PHUB, *(str(word) for word in words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=rig.DEADLINE_S * 2, env={**rig.QUIET, **(env or {})}, cwd=rig.ROOT, check=False)
    check(done.returncode == status,
          f"phub {' '.join(map(str, words))}: exit code {done.returncode}, not {status}: {done.stderr[-1500:]}")
    return done.stdout, done.stderr


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def exchange(*words, status=0):
    """One line of JSON of an exchange, with the contract's keys."""
    out, err = phub("bench", "exchange", "--json", *words, status=status)
    found = lines(out)
    check(len(found) == 1 and list(found[0]) == EXCHANGE_KEYS, f"JSON: {out}")
    return found[0], err


def one_error(err):
    check(err.startswith("phub: ") and err.count("\n") == 1, f"not one line on stderr: {err!r}")
    return err


def children_of(parent):
    """Its live children: {pid: name}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            name, rest = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1) if entry.name.isdigit() else ("", "")
        except OSError:
            continue
        fields = rest.split()
        if fields and int(fields[1]) == parent and fields[0] != "Z":
            found[int(entry.name)] = name
    return found


def started(transport, workers, *more):
    """An exchange that does not end by itself, and its children when all of them run."""
    command = rig.Process("phub", [PHUB, "bench", "exchange", "--transport", transport, "--workers", workers, "--bytes",
                                   "1MB", "--rounds", "10000000", *more])
    until = time.monotonic() + rig.DEADLINE_S
    children = {}
    while len(children) < workers + 1 and time.monotonic() < until and command.running():
        time.sleep(0.05)
        children = children_of(command.pid)
    check(len(children) == workers + 1, f"box and workers did not start: {children}")
    time.sleep(0.5)
    return command, children


def gone(children):
    left = [pid for pid in children if pathlib.Path(f"/proc/{pid}").exists()]
    check(not left, f"processes are left: {left}")


# ---- usage ----

def help_everywhere():
    """--help of every command says how to call it and ends with 0."""
    out, _ = phub("--help")
    commands = re.findall(r"^  (\w+) ", out, re.M)
    check({"bench", "jobs", "top", "doctor", "topo", "plan", "models", "version"} <= set(commands), f"commands: {commands}")
    for words in [[name] for name in commands if name != "version"] + [["bench", "exchange"], ["bench", "aggregation"],
                                                                                ["bench", "kernels"], ["bench", "seals"],
                                                                                ["bench", "train"], ["checkpoint", "ls"],
                                                                                ["checkpoint", "export"]]:
        out, _ = phub(*words, "--help")
        holds(out, "^usage: phub " + " ".join(words))
    phub("help", "jobs")
    phub("version")


def nobody_reads():
    """who reads standard output may have enough of it: nothing is said; a full disk is told"""
    for words in (["models"], ["plan", "--model", "vgg-19", "--json"], ["scout", "run", "--help"]):
        ours, theirs = os.pipe()
        os.close(ours)
        done = subprocess.run([PHUB, *words], stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=rig.DEADLINE_S)
        os.close(theirs)
        check(done.returncode == 128 + signal.SIGPIPE and not done.stderr, f"{words}: {done.returncode}, {done.stderr}")
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([PHUB, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=rig.DEADLINE_S)
        check(done.returncode == 1 and done.stderr == "phub: could not write to standard output: is the disk full?\n",
              f"{words}: {done.returncode}, {done.stderr}")


def wrong_usage():
    """What is not understood ends with 2, one line, and the nearest word."""
    for words, answer in [
            ([], "--help"),
            (["benhc"], "phub bench"),
            (["bench", "kernel"], "phub bench kernels"),
            (["nonsense"], "--help"),
            (["bench", "exchange", "--transprot", "shm"], "--transport"),
            (["bench", "exchange", "--transport", "tpc", "--bytes", "4"], "tcp"),
            (["bench", "exchange", "--transport", "shm"], "--bytes or --model"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "1MB", "--model", "vgg-19"], "--bytes or --model"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "10ZB"], "TB and TiB"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "17TiB"], "allowed"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "1TB", "--model", "vgg-19"], "--bytes or --model"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "4", "--chunk", "5000"], "powers of two"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "-4"], "allowed"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "4", "--workers", "0"], "1 to"),
            (["bench", "exchange", "--transport", "shm", "--bytes"], "needs a value"),
            (["bench", "exchange", "--json=1"], "takes no value"),
            (["bench", "exchange", "--transport", "loop", "--bytes", "4", "--jobs", "2"], "--transport shm or tcp"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "4", "--jobs", "64", "--workers", "5"], "more than 256"),
            (["bench", "exchange", "--transport", "tcp", "--bytes", "4", "--seal", "gmac"], "--transport udp and dpdk"),
            (["bench", "aggregation", "--how", "tal"], "tall"),
            (["bench", "aggregation", "--stores", "streamed", "--adds", "arriving"], "held gradients"),
            (["bench", "aggregation", "--optimizer", "none", "--separate"], "give --optimizer"),
            (["bench", "aggregation", "--bytes", "4", "--model", "vgg-19"], "--bytes or --model"),
            (["bench", "kernels", "--workers", "2,,4"], "allowed"),
            (["bench", "kernels", "--kernel", "sum_f99"], "zero_nonfinite_f16, zero_nonfinite_bf16; see phub bench kernels"),
            (["jobs", "a:1", "b:2"], "one word too many"),
            (["jobs", "evict", "mnist"], "needs --reason"),
            (["jobs", "pause"], "needs the name of a job"),
            (["jobs", "drain", "mnist", "--no-wait"], "--no-wait belongs to rebalance"),
            (["jobs", "--reason", "x"], "--reason belongs to"),
            (["models", "-x"], "two dashes"),
            (["models", "nothing"], "resnet-50"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "6", "--keys", "2"], "multiple of 8"),
            (["bench", "exchange", "--transport", "shm", "--model", "alexnut"], "alexnet"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "4", "--set", "cores"], "KEY=VALUE"),
            (["bench", "exchange", "--transport", "loop", "--bytes", "4", "--listen", "::1"], "loop has none"),
            (["bench", "exchange", "--transport", "loop", "--bytes", "4", "--worker-cpus", "0"], "loop has none"),
            (["bench", "exchange", "--transport", "tcp", "--bytes", "4", "--worker-cpus", "0,x"], "--worker-cpus: CPU list"),
            (["bench", "exchange", "--transport", "tcp", "--bytes", "4", "--worker-netns", "w{}"], "needs --listen"),
            (["bench", "exchange", "--transport", "tcp", "--bytes", "4", "--listen", "::1", "--worker-netns", "../w"], "ip netns"),
            (["topo", "--chunk", "5000"], "powers of two"),
            (["topo", "--model", "nothing"], "resnet-50"),
            (["topo", "--cores", "2"], "belong to --model"),
            (["topo", "more"], "one word too many"),
            (["topo", "--root", "b"], "belong to --racks"),
            (["topo", "--hierarchy", "star"], "flat, tree, sharded, chain"),
            (["topo", "--hierarchy", "tree"], "belong to --racks"),
            (["topo", "--hostbox", "--model", "resnet-50"], "belong to --racks"),
            (["topo", "--hostbox", "--racks", "x"], "belong to --model"),
            (["topo", "--hierarchy", "chain", "--model", "resnet-50"], "belong to --racks"),
            (["topo", "--lift", "f32", "--model", "resnet-50"], "belong to --racks"),
            (["topo", "--racks", "x", "--hierarchy", "tree"], "belong to --model"),
            (["topo", "--racks", "x", "--cores", "2"], "in the rack file"),
            (["topo", "probe"], "--boxes LIST or --racks FILE"),
            (["topo", "probe", "--serve", "1", "--boxes", "a:1"], "waits for one who asks"),
            (["topo", "--racks", "x", "--root", "b"], "belong to --model"),
            (["jobs", "[::1"], "HOST:PORT"),
            (["jobs", "box:70000"], "HOST:PORT"),
            (["jobs", "--interval", "100"], "belong to --watch"),
            (["top", "--interval", "1"], "50 to"),
            (["doctor", "phub://box/x"], "HOST:PORT"),
            (["version", "--fast"], "unknown option"),
            (["--version", "more"], "one word too many"),
            (["help", "nonsense"], "--help")]:
        out, err = phub(*words, status=2)
        check(out == "", f"stdout: {out}")
        holds(one_error(err), re.escape(answer))


def failures_say_what_to_do():
    """What fails ends with 1 and one line with a cure."""
    for words, answer in [
            (["bench", "exchange", "--transport", "dpdk", "--bytes", "4", "--workers", 17], "dpdk: more than 16 workers.*PHUB_DPDK"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "4", "--phubd", "/nowhere/phubd"], "--phubd PATH"),
            (["bench", "exchange", "--transport", "shm", "--bytes", "4", "--worker-cpus", "4095"], "CPU 4095 is not there.*taskset"),
            (["bench", "exchange", "--transport", "shm", "--model", "/nowhere.csv"], "No such file.*give a CSV"),
            (["bench", "aggregation", "--bytes", "4", "--cores", "256"], "need as many CPUs.*give --cores"),
            (["jobs", "127.0.0.1:1"], "start one with phubd"),
            (["models", "/nowhere.csv"], "No such file.*give a CSV")]:
        out, err = phub(*words, status=1)
        check(out == "", f"stdout: {out}")
        holds(one_error(err), answer)
    _, err = phub("bench", "exchange", "--transport", "dpdk", "--bytes", 4, status=1, env={"PHUB_DPDK": "net_null0@10.0.0.2/24"})
    holds(one_error(err), "give --set dpdk_ports=.*unset PHUB_DPDK")


def not_a_box():
    """What answers but is no box, with a banner or to the greeting, is told as such, and no firewall is blamed."""
    for banner in b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.0 400 Bad Request\r\n\r\n":
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"

            def answer(count, server=server, banner=banner):
                for _ in range(count):
                    stranger, _ = server.accept()
                    with stranger:
                        if banner.startswith(b"HTTP"):
                            stranger.recv(4096)
                        stranger.sendall(banner)
                        while stranger.recv(4096):
                            pass

            thread = threading.Thread(target=answer, args=(2,), daemon=True)
            thread.start()
            said = f"what answers at {address} does not speak the language of a box; check host and port"
            holds(one_error(phub("jobs", address, status=1)[1]), said)
            found = [line for line in lines(phub("doctor", "--json", address, status=1)[0]) if line["check"] == "box"]
            check(len(found) == 1 and found[0]["text"] == said and "firewall" not in found[0]["do"], f"{found}")
            thread.join(rig.DEADLINE_S)


def box_that_does_not_start():
    """A box that refuses its options ends the bench with 1, and its own words are shown."""
    if (rig.BUILD / "libphub-dpdk.so").exists():
        for words, answer in (("--nonsense", "unrecognized option '--nonsense'.*dpdk_eal"), ("-l 999", "environment does not start: EAL: "),
                              (" ".join(["-v"] * 70), "more than 64 EAL arguments.*dpdk_eal")):
            done = subprocess.run([rig.BUILD / "phubd", "-o", "listen=127.0.0.1:0", "-o", "transports=dpdk", "-o", "cores=1", "-o",
                                   "dpdk_ports=net_null0@10.0.0.1/24", "-o", f"dpdk_eal={words}"], capture_output=True, text=True,
                                  check=False, timeout=rig.DEADLINE_S)
            check(done.returncode == 1 and done.stdout == "", f"{done.returncode}: {done.stdout}")
            holds(done.stderr, answer)
            check(done.stderr.count("\n") == 1, f"not one line: {done.stderr}")
    _, err = phub("bench", "exchange", "--transport", "tcp", "--bytes", "4", "--set", "cores=9999", status=1)
    holds(err, "cores: '9999'", "ended while it started")


# ---- benches ----

def exchange_contract():
    """JSON of an exchange has the contract's keys in its order, over each transport and mode."""
    if (rig.BUILD / "libphub-dpdk.so").exists():
        for workers, cores in ((1, 1), (4, 2)):
            out, _ = phub("bench", "exchange", "--json", "--transport", "dpdk", "--workers", workers, "--cores", cores, "--bytes", "300KB",
                          "--rounds", 6)
            check(lines(out)[0]["errors"] == 0, out)
    for transport in ("shm", "tcp", "loop"):
        for mode in ("zero-copy", "copy"):
            found, _ = exchange("--transport", transport, "--mode", mode, "--workers", 3, "--bytes", "300KB", "--keys", 7,
                                "--rounds", 6)
            check((found["transport"], found["mode"], found["workers"], found["bytes"], found["rounds"], found["errors"])
                  == (transport, mode, 3, 300000, 6, 0), f"{found}")
            check(0 < found["p50_ms"] <= found["p99_ms"] and found["rounds_per_s"] > 0, f"{found}")
            check(abs(found["gb_per_s_worker"] - found["rounds_per_s"] * 3e5 / 1e9) < 1e-3, f"{found}")


def exchange_listen():
    """The box may listen on an IPv6 address, with or without brackets."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        raise rig.Skip(f"no IPv6 here: {error}") from None
    for host in ("::1", "[::1]"):
        found, _ = exchange("--transport", "tcp", "--workers", 2, "--bytes", 4, "--rounds", 2, "--listen", host)
        check(found["errors"] == 0, f"{found}")


def exchange_stores():
    """Results go past the caches or not, as the box is told, and are right either way."""
    for stores in ("cached", "streamed"):
        found, _ = exchange("--transport", "shm", "--workers", 2, "--bytes", "300KB", "--rounds", 4, "--set", f"stores={stores}")
        check(found["errors"] == 0 and found["rounds"] == 4, f"{found}")
    _, err = phub("bench", "exchange", "--transport", "shm", "--bytes", 4096, "--set", "stores=written", status=1)
    holds(err, "stores: 'written'.*allowed: auto, cached, streamed")


def exchange_table():
    """Without --json it is a table for people."""
    out, err = phub("bench", "exchange", "--transport", "shm", "--workers", 2, "--bytes", "64KiB", "--rounds", 3)
    holds(out, "64 KiB", "rounds a second", "p99", r"checked +[1-9]\d* pieces of results, 0 wrong")
    check(err == "", err)


def exchange_optimizers():
    """Every optimizer and dtype gives the bits of the serial run, every round, over shm and tcp."""
    for number, optimizer in enumerate(["sgd", "momentum", "nesterov", "adagrad", "adam", "adamw"]):
        for dtype in ("f32", "f16", "bf16"):
            exchange("--transport", ("shm", "tcp")[number % 2], "--optimizer", optimizer, "--dtype", dtype, "--check", "all",
                     "--workers", 3, "--bytes", 120000, "--keys", 5, "--rounds", 5, "--cores", 1 + number % 2)


def exchange_planted():
    """The checker sees a stale, a swapped and a doubled chunk, and the bench fails."""
    for transport, optimizer in (("shm", "none"), ("tcp", "none"), ("loop", "none"), ("shm", "adam")):
        for plant in ("stale", "swapped", "doubled"):
            for check_which in ("first-last", "all"):
                found, err = exchange("--transport", transport, "--optimizer", optimizer, "--workers", 2, "--bytes", 200000,
                                      "--rounds", 4, "--check", check_which, "--plant", plant, status=1)
                check(found["errors"] > 0, f"{plant} was not seen: {found}")
                holds(one_error(err), r"rank 1, round 5: key key0, element \d+ is .* and should be")
    exchange("--transport", "shm", "--workers", 1, "--bytes", 8, "--rounds", 2, "--plant", "swapped", status=1)


def exchange_jobs():
    """Several jobs at once: a line for each and one for all; their shares are of the sum; a wrong result names its job."""
    for transport in ("shm", "tcp"):
        out, _ = phub("bench", "exchange", "--transport", transport, "--workers", 2, "--jobs", 3, "--bytes", "100KB", "--rounds",
                      50, "--optimizer", "sgd", "--json")
        *jobs, every = lines(out)
        check([job["job"] for job in jobs] == [0, 1, 2] and every["jobs"] == 3 and every["errors"] == 0, out)
        check(abs(sum(job["share"] for job in jobs) - 3) < 1e-3, out)
        check(abs(sum(job["rounds_per_s"] for job in jobs) / every["rounds_per_s"] - 1) < 1e-3, out)
        check(every["share_min"] == min(job["share"] for job in jobs) <= 1 <= every["share_max"], out)
        check(every["cpu_s_per_gb"] > every["box_cpu_s_per_gb"] > 0, out)
    out, err = phub("bench", "exchange", "--transport", "tcp", "--workers", 2, "--jobs", 2, "--bytes", "100KB", "--plant",
                    "doubled", status=1)
    holds(out, "2 jobs of 2 workers")
    holds(one_error(err), r"job 0, rank 1, round 51: key key0, element \d+ is .* and should be")


def exchange_resnet():
    """ResNet-50's tensors with 8 workers, a sixteenth of each, and all of them with 2; every round checked, over tcp and shm."""
    if SANITIZED:
        raise rig.Skip("too slow under a sanitizer")
    tensors = lines(phub("models", "resnet-50", "--json")[0])[0]["tensors"]
    sizes = [max(math.prod(tensor["shape"]) // 16, 1) for tensor in tensors]
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as small:
        small.write("name,shape\n" + "".join(f"{tensor['name']},{size}\n" for tensor, size in zip(tensors, sizes)))
        small.flush()
        for transport, workers, model, nbytes in (("shm", 8, small.name, 4 * sum(sizes)), ("tcp", 8, small.name, 4 * sum(sizes)),
                                                  ("tcp", 2, "resnet-50", 102228128)):
            found, _ = exchange("--transport", transport, "--workers", workers, "--model", model, "--rounds", 2, "--check", "all",
                                "--timeout", 80)
            check(found["bytes"] == nbytes and found["errors"] == 0 and len(sizes) == 161, f"{found}")


def exchange_csv():
    """Tensors of one's own, with dtypes and parameter groups."""
    csv = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"phub-cli-{os.getpid()}.csv"
    csv.write_text("name,shape,dtype,group\na,3x5,f32,0\nb,7,f16,1\nc,100x100,bf16,1\n")
    try:
        found, _ = exchange("--transport", "shm", "--workers", 2, "--model", csv, "--optimizer", "sgd", "--rounds", 4)
        check(found["bytes"] == 15 * 4 + 7 * 2 + 10000 * 2, f"{found}")
        out, _ = phub("models", csv, "--json")
        check([t["group"] for t in lines(out)[0]["tensors"]] == [0, 1, 1], out)
    finally:
        csv.unlink()


def exchange_over_dpdk(names, inside, words):
    """A box on DPDK with two cores, its port at the bridge of the namespaces, for workers on kernel sockets and on DPDK."""
    subprocess.run(["sh", "-ec", f"""
ip -n {names}-box link add name dpdk0 type veth peer name dpdk1
ip -n {names}-box link set dpdk1 master bridge up
ip -n {names}-box link set dpdk0 up"""], check=True)
    env = dict(os.environ, PHUB_DPDK="net_af_packet0,iface=uplink@10.98.0.3{}/24")
    for transport in ("udp", "dpdk"):
        done = subprocess.run([*inside, PHUB, *words, "--transport", transport, "--cores", "2", "--set", "transports=dpdk",
                               "--set", "dpdk_ports=net_af_packet0,iface=dpdk0@10.98.0.2/24"], capture_output=True, text=True,
                              check=False, timeout=rig.DEADLINE_S, env=env)
        check(done.returncode == 0 and lines(done.stdout)[0]["errors"] == 0, f"{transport}: {done.returncode}: {done.stderr}")
    told = subprocess.run(["ip", "-n", f"{names}-box", "-s", "-j", "link", "show", "dpdk0"], capture_output=True, text=True, check=True)
    moved = json.loads(told.stdout)[0]["stats64"]
    check(moved["rx"]["bytes"] > 16e6 < moved["tx"]["bytes"], f"16 MB took dpdk0 each way? {moved}")


def exchange_in_namespaces():
    """Workers enter namespaces of their own: their bytes take the links, and who is no root is told."""
    names = f"phub-cli-{os.getpid()}"
    words = ["bench", "exchange", "--json", "--transport", "tcp", "--workers", "2", "--bytes", "1MB", "--rounds", "2",
             "--listen", "10.98.0.1", "--worker-netns", f"{names}-{{}}"]
    _, err = phub(*words, status=1)
    holds(one_error(err), f"no network namespace {names}-0 for rank 0; make it with `ip netns add {names}-0`")
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise rig.Skip("needs root and ip")
    # A bridge without a MAC of its own takes the least of its ports': one more port, and who knew it by ARP finds it a minute later.
    script = f"""
for name in {names}-0 {names}-1; do ip netns add $name; done
ip -n {names}-box link add name bridge address 02:70:68:75:62:01 type bridge
ip -n {names}-box addr add 10.98.0.1/24 dev bridge
ip -n {names}-box link set bridge up
for rank in 0 1; do
	ip -n {names}-box link add name port$rank type veth peer name uplink netns {names}-$rank
	ip -n {names}-box link set port$rank master bridge up
	ip -n {names}-$rank addr add 10.98.0.1$rank/24 dev uplink
	ip -n {names}-$rank link set uplink up
done"""
    inside = ["nsenter", f"--net=/run/netns/{names}-box", "--"]
    try:
        if subprocess.run(["ip", "netns", "add", f"{names}-box"], capture_output=True, check=False).returncode:
            raise rig.Skip("no network namespaces here")
        subprocess.run(["sh", "-ec", script], check=True)
        done = subprocess.run([*inside, PHUB, *words], capture_output=True, text=True, check=False, timeout=rig.DEADLINE_S)
        check(done.returncode == 0 and lines(done.stdout)[0]["errors"] == 0, f"{done.returncode}: {done.stderr}")
        told = subprocess.run(["ip", "-n", f"{names}-box", "-s", "-j", "link"], capture_output=True, text=True, check=True)
        moved = {link["ifname"]: link["stats64"] for link in json.loads(told.stdout)}
        for port in ("port0", "port1"):
            check(moved[port]["rx"]["bytes"] > 4e6 < moved[port]["tx"]["bytes"], f"4 MB took {port} each way? {moved[port]}")
        if (rig.BUILD / "libphub-dpdk.so").exists():
            exchange_over_dpdk(names, inside, words)
        done = subprocess.run([*inside, "setpriv", "--bounding-set", "-sys_admin", PHUB, *words], capture_output=True, text=True,
                              check=False, timeout=rig.DEADLINE_S)
        check(done.returncode == 1, f"exit code {done.returncode}")
        holds(one_error(done.stderr), "entering its network namespace: only root may")
    finally:
        for name in ("box", "0", "1"):
            subprocess.run(["ip", "netns", "delete", f"{names}-{name}"], capture_output=True, check=False)


def exchange_pinned():
    """Workers keep to the CPUs that they are given, in turn, with all their threads; the box does not."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    command, children = started("tcp", 3, "--worker-cpus", ",".join(map(str, cpus)))
    try:
        workers = [pid for pid, name in sorted(children.items()) if name == "phub"]
        found = [{frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir(f"/proc/{pid}/task")} for pid in workers]
        wanted = [{frozenset([cpus[i % len(cpus)]])} for i in range(3)]
        check(found == wanted, f"{found}, not {wanted}")
    finally:
        command.kill(signal.SIGTERM)
        command.wait()
    gone(children)


def exchange_interrupted():
    """Ctrl-C ends workers and box, and nothing is left."""
    for number in (signal.SIGINT, signal.SIGTERM):
        command, children = started("shm", 3)
        command.kill(number)
        check(command.wait() == 1, "exit code")
        holds(command.err.text(), "phub: interrupted")
        gone(children)


def exchange_worker_dies():
    """A worker that is killed is named, and the bench ends with 1."""
    command, children = started("tcp", 2)
    os.kill(max(pid for pid, name in children.items() if name == "phub"), signal.SIGKILL)
    check(command.wait() == 1, "exit code")
    holds(command.err.text(), "phub: rank 1 was killed by signal 9")
    gone(children)


def exchange_box_dies():
    """A box that is killed is said to be, and the bench ends with 1."""
    command, children = started("shm", 2)
    os.kill(next(pid for pid, name in children.items() if name == "phubd"), signal.SIGKILL)
    check(command.wait() == 1, "exit code")
    holds(command.err.text(), r"phub: the box \(phubd\) was killed by signal 9")
    gone(children)


def exchange_parent_dies():
    """Box and workers end when the command is killed."""
    command, children = started("shm", 2)
    command.kill(signal.SIGKILL)
    command.wait()
    until = time.monotonic() + rig.DEADLINE_S
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < until:
        time.sleep(0.1)
    gone(children)


def kernels_contract():
    """JSON of the kernels has the contract's keys; warm and cold."""
    out, _ = phub("bench", "kernels", "--quick", "--kernel", "sum_f32", "--workers", "4", "--json", "--isa", "base")
    found = lines(out)
    check([list(line) for line in found] == [KERNEL_KEYS] * 2, out)
    check([(line["cache"], line["stores"]) for line in found] == [("warm", "cached"), ("cold", "streamed")], out)
    check(all(line["roofline_gb_per_s"] > 0 for line in found), out)
    check(all(0 < line["gb_per_s_min"] <= line["gb_per_s"] <= line["gb_per_s_max"] for line in found), out)
    check(all(line["isa"] == "base" and line["workers"] == 4 for line in found), out)


def seals_contract():
    """JSON of the seals: both kinds at both sizes; and of a chunk's encryption, with the library that does it."""
    out, _ = phub("bench", "seals", "--json")
    found = lines(out)
    check([list(line) for line in found] == [SEAL_KEYS] * 4 + [[*SEAL_KEYS, "by"]] * 2, out)
    check([(line["seal"], line["bytes"]) for line in found]
          == [("gmac", 1344), ("gmac", 8832), ("crc", 1344), ("crc", 8832),
              ("aes-256-gcm seal", 32768), ("aes-256-gcm open", 32768)], out)
    check(all(line["by"] in ("libcrypto", "intel-ipsec-mb") for line in found[4:]), out)
    check(all(0 < line["gb_per_s_min"] <= line["gb_per_s"] <= line["gb_per_s_max"] for line in found), out)


def aggregation_contract():
    """Each way of adding is measured and right; the check sees a chunk that was stepped twice."""
    words = ["bench", "aggregation", "--bytes", "300004", "--keys", 7, "--workers", 3, "--rounds", 3]
    out, _ = phub(*words, "--adds", "all", "--fused", "--separate", "--json")
    found = lines(out)
    check([list(line) for line in found] == [AGGREGATION_KEYS] * 8, out)
    ways = {(line["how"], line["adds"], line["pass"], line["stores"]): line for line in found}
    check(len(ways) == 8 and all(line["errors"] == 0 and line["bytes"] == 300004 for line in found), out)
    check(all(0 < line["min_ms"] <= line["p50_ms"] <= line["max_ms"] for line in found), out)
    waits = {way: line["waits"] for way, line in ways.items()}
    check(waits["tall", "held", "fused", "cached"] == 0 and waits["wide", "held", "fused", "cached"] == 7
          and waits["wide", "arriving", "separate", "cached"] == 4 * 7, f"{waits}")
    holds(phub(*words, "--optimizer", "none", "--how", "wide")[0], "optimizer none", "wide  held")
    for optimizer in ("sgd", "adam"):
        _, err = phub(*words, "--optimizer", optimizer, "--how", "wide", "--plant", status=1)
        holds(one_error(err), r"wide, held, fused, cached: \d+ numbers are not those of a serial calculation, first in key0")


# ---- looking ----

def jobs_of_a_box():
    """phub jobs shows who is there and who is missing, as table and as JSON."""
    box = rig.Box()
    out, _ = phub("jobs", box.address)
    holds(out, "no jobs")
    workers = rig.job(box.url("shown"), 3, count=2)
    until = time.monotonic() + rig.DEADLINE_S
    found = {}
    while found.get("missing") != [2] and time.monotonic() < until:
        found = next((line for line in lines(phub("jobs", "--json", box.address)[0]) if line.get("job") == "shown"), {})
    check(found.get("world") == 3 and found["missing"] == [2] and len(found["workers"]) == 2, f"{found}")
    out, _ = phub("jobs", "--workers", box.address)
    holds(out, r"shown +\S+ +2/3 .* 2$|shown.* 2\n", "peer")
    out, _ = phub("top", "--count", 2, "--interval", 50, box.address)
    check(out.count("up ") == 2, out)
    out, _ = phub("doctor", box.address)
    holds(out, "job shown: 1 of 3 workers are missing")
    many = rig.Worker(box.url("many"), 1, 100)
    many.event("connected")
    out, _ = phub("jobs", box.address)
    holds(out, r"(?m)^many .* 0, 2-99 *$")
    for worker in [*workers, many]:
        worker.kill()
    box.kill(signal.SIGTERM)
    box.wait()


def doctor():
    """phub doctor looks at the machine, and at a box and its data ports."""
    found = lines(phub("doctor", "--json")[0])
    check(all(set(line) == {"check", "state", "text", "do"} for line in found), f"{found}")
    check({"cpus", "isa", "clock", "ulimit -n", "ulimit -l", "shm", "huge pages", "congestion", "box"}
          <= {line["check"] for line in found}, f"{found}")
    _, err = phub("doctor", "--json", status=1, env={"PHUB_ISA": "mmx"})
    check(err == "", err)
    out, _ = phub("doctor", "127.0.0.1:1", status=1)
    holds(out, "fail +box")
    dpdk = [line for line in found if line["check"] == "dpdk"]
    there = (rig.BUILD / "libphub-dpdk.so").exists()
    check(len(dpdk) == 1 and ("plugin is there" if there else "no DPDK") in dpdk[0]["text"], f"{dpdk}")
    if there:
        box = rig.Box(transports="tcp,dpdk,shm", cores=2, dpdk_ports="net_null0@10.76.0.1/24,port=7200;net_null1@10.76.1.1/24")
        out, _ = phub("doctor", box.address)
        holds(out, "dpdk +offered to workers at 10.76.0.1,10.76.1.1, UDP ports 7200-7201", "shm +offered", "tcp +data port")
        box.stop()
    box = rig.Box()
    out, _ = phub("doctor", box.address)
    holds(out, "answers in", "tcp +data port .* can be reached", "shm +offered", rf"port {box.port} +taken")
    check("7077" not in out, out)
    box.stop()


def good_callers():
    """Neither workers that find out whether shared memory is there nor phub doctor are strangers that were refused."""
    box = rig.Box()
    for worker in rig.job(box.url("good"), 2):
        worker.good()
    phub("doctor", box.address)
    totals = next(line for line in lines(phub("jobs", "--json", box.address)[0]) if "strangers_refused" in line)
    check(totals["strangers_refused"] == 0, f"{totals}")
    box.stop()


def stalled():
    """phub doctor on a job that waits for one of its workers, all of which are there."""
    box = rig.Box()
    workers = rig.job(box.url("stalled"), 2, keys="a:100", rounds=1000000, report_ms=50, pause_us=1000)
    for worker in workers:
        worker.event("progress")
    workers[1].kill(signal.SIGSTOP)
    until = time.monotonic() + rig.DEADLINE_S
    out = ""
    while "stalls" not in out and time.monotonic() < until:
        out, _ = phub("doctor", box.address)
    holds(out, "job stalled: all 2 workers are there, and it stalls: round .* waits for rank 1")
    check("0 of 2" not in out, out)
    for worker in workers:
        worker.kill()
    box.kill(signal.SIGTERM)
    box.wait()


def wrong_admin_secret():
    """The error of a wrong admin secret names the variable of that secret, and no job."""
    with tempfile.TemporaryDirectory() as folder:
        secret = pathlib.Path(folder, "secret")
        secret.write_text("sesame\n")
        secret.chmod(0o600)
        box = rig.Box(admin_secret_file=secret)
        if os.geteuid() == 0:
            # This user needs none over loopback, so the caller is another one, who may not read the file.
            def ask(**env):
                return subprocess.run([rig.BUILD / "phub", "jobs", box.address], capture_output=True, text=True, timeout=rig.DEADLINE_S,
                                      env={**rig.QUIET, **env}, user=65534, group=65534, extra_groups=[])
            done = ask(PHUB_ADMIN_SECRET="wrong")
            check(done.returncode == 1, done.stderr)
            holds(done.stderr, "wrong admin secret; set PHUB_ADMIN_SECRET or PHUB_ADMIN_SECRET_FILE")
            check("job ''" not in done.stderr + box.err.text(), done.stderr)
            check(ask(PHUB_ADMIN_SECRET="sesame").returncode == 0, "the right one is refused")
            open_file = pathlib.Path(folder, "open")
            open_file.write_text("sesame\n")
            open_file.chmod(0o644)
            os.chmod(folder, 0o755)
            done = ask(PHUB_ADMIN_SECRET_FILE=str(open_file))
            holds(done.stderr, f"PHUB_ADMIN_SECRET_FILE: {open_file}: open to every user of this machine; type chmod 600")
        box.stop()
        if os.geteuid() != 0:
            raise rig.Skip("needs root, to call as another user")


def topo_and_models():
    """Placement and models, as tables and as JSON."""
    found = {line["model"]: line for line in lines(phub("models", "--json")[0])}
    check(found["resnet-50"]["elements"] == 25557032 and found["vgg-19"]["tensors"] == 38, f"{found}")
    out, _ = phub("models", "resnet-50")
    holds(out, r"conv1\.weight +64x3x7x7 +f32 +0 +9408")
    cores = [line for line in lines(phub("topo", "--model", "resnet-50", "--cores", 1, "--json")[0])
             if line["topo"] == "core"]
    check(sum(line["bytes"] for line in cores) == 102228128, f"{cores}")
    with tempfile.TemporaryDirectory() as where:
        picture = pathlib.Path(where) / "host.svg"
        out, _ = phub("topo", "--model", "resnet-50", "--cores", 1, "--svg", picture)
        holds(out, "CPUs on")
        words = [node.text for node in xml.etree.ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}text")]
        chunks = re.search(r"(\d+) +102228128", out).group(1)
        check(f"{chunks} chunks" in words and "102.2 MB" in words and any(word.startswith("node ") for word in words), f"{words}")
        phub("topo", "--svg", pathlib.Path(where) / "none" / "host.svg", status=1)
    # More cores than CPUs, as phubd runs them too; and an error leaves no half of the output.
    out, _ = phub("topo", "--model", "resnet-50", "--cores", 4 * (os.cpu_count() or 1))
    holds(out, "no core is pinned", "imbalance")
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as bad:
        bad.write("name,elements,dtype\na,10,f99\n")
        bad.flush()
        out, _ = phub("topo", "--model", bad.name, status=1)
        check(out == "", out)


RACKS = """
racks:
  - name: r0
    uplink: 40Gbit
    boxes: [{name: b0, address: "10.0.0.1:7077", rate: 100Gbit, cores: 4}, {name: spare, address: "10.0.0.2:1", rate: 1Gbit}]
    hosts: [{name: h0, rate: 25Gbit, workers: 2}]
  - name: r1
    oversubscription: 4
    boxes: [{name: b1, address: "10.0.1.1:7077", rate: 100Gbit, sibling: b0}]
    hosts: [{name: h1, rate: 25Gbit, workers: 2}, {name: "h<2", rate: 25Gbit}]
"""


def racks():
    """A rack file, as text, JSON and a picture; what is wrong in it has a line."""
    with tempfile.TemporaryDirectory() as where:
        path, picture = pathlib.Path(where) / "racks.yaml", pathlib.Path(where) / "racks.svg"
        path.write_text(RACKS)
        out, _ = phub("topo", "--racks", path)
        holds(out, "2 racks, 3 boxes, 3 hosts with 5 workers", r"r1 +37\.5 Gbit +- +1 +2 +3", r"b1 +r1 +10\.0\.1\.1:7077 +100 Gbit +- +b0")
        out, _ = phub("topo", "--racks", path, "--model", "resnet-50", "--hierarchy", "sharded", "--svg", picture)
        holds(out, "sharded waits for host h0", r"b0 +\d+ +52\d{6} +4 +\d{8}")
        holds(out, r"tree +69\.\d+ +69\.\d+ +0 +0\.0\d+ +the link of host h0, out +1",
              "hierarchy: auto takes tree: 69.\\d+ ms a round beside sharded 69")
        root = xml.etree.ElementTree.parse(picture).getroot()
        words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        check(any(word.startswith("h<2") for word in words) and any("(spare)" in word for word in words), f"{words}")
        found = lines(phub("topo", "--racks", path, "--model", "resnet-50", "--lift", "bf16", "--root", "b1", "--json")[0])
        tree = next(one for one in found if one["topo"] == "traffic" and one["way"] == "tree")
        whole = 102228128
        check(tree["bytes"] == whole and [(up["out"], up["in"]) for up in tree["uplinks"]] ==
              [(whole // 2, whole), (whole, whole // 2)], f"{tree}")
        flat, chunks = next(one for one in found if one["topo"] == "traffic" and one["way"] == "flat"), tree["chunks"]
        check([(up["chunks_out"], up["chunks_in"]) for up in tree["uplinks"]] == 2 * [(chunks, chunks)], f"{tree}")
        check([up["chunks_out"] for up in flat["uplinks"]] == 2 * [2 * chunks] and flat["boxes"][1]["chunks_in"] == 5 * chunks, f"{flat}")
        holds(phub("topo", "--racks", path, "--model", "resnet-50", "--root", "b1", "--svg", picture)[0],
              rf"uplink r0 +{2 * chunks}/{2 * chunks} +{chunks}/{chunks} +\d+/\d+ ",
              rf"box b1 +{5 * chunks}/{5 * chunks} +{4 * chunks}/{4 * chunks} ")
        holds(picture.read_text(), f"chunks: {chunks} up, {chunks} down", f"chunks: {4 * chunks} in, {4 * chunks} out",
              f"chunks: {2 * chunks} each way")
        ways = {one["way"]: one for one in found if one["topo"] == "prediction"}
        check(list(ways) == ["flat", "tree", "sharded", "chain"] and [way for way, one in ways.items() if one["choice"]] == ["tree"],
              f"{ways}")
        check(all(abs(one["predicted_ms"] - one["busy_ms"] - one["lag_ms"] - one["fill_ms"]) < 1e-3 for one in ways.values()), f"{ways}")
        check("the link of host h0 limits" in ways["tree"]["why"], f"{ways}")
        out, _ = phub("topo", "--racks", path, "--model", "resnet-50", "--hostbox", "--svg", picture)
        holds(out, "summed at each host first", r"box b0 +100 Gbit +306\.7 +204\.5",
              "the link of host h0 limits|the uplink of r\\d limits|the link of b\\d limits")
        holds(picture.read_text(), "h0  2 workers, summed here")
        path.write_text(RACKS.replace("rate: 25Gbit", "rate: 800Kbit").replace("rate: 100Gbit", "rate: 2Mbit").replace("40Gbit", "1Mbit"))
        out, _ = phub("topo", "--racks", path, "--model", "resnet-50", "--svg", picture)
        holds(out, r"r0 +1 Mbit ", r"b0 +r0 +10\.0\.0\.1:7077 +2 Mbit", r"tree +\d{7} +\d{7} ",
              r"auto takes \w+: \d{7} ms a round beside (\w+ \d{7}( \(the [\w ]+\))?(, )?)+; the ")
        check("e+0" not in out + picture.read_text(), out)
        path.write_text(RACKS)
        check(sum(one["chunks"] for one in found if one["topo"] == "home") == tree["chunks"], f"{found}")
        holds(phub("topo", "--racks", path, "--model", "resnet-50", "--root", "spare", status=1)[1], "it is not that")
        holds(phub("topo", "--racks", path, "--svg", "/nonexistent/x.svg", status=1)[1], "cannot write /nonexistent/x.svg")
        holds(phub("topo", "--racks", rig.ROOT / "deploy/racks.yaml", "--model", "resnet-50", "--hostbox")[0],
              "2 racks, 2 boxes, 4 hosts with 32 workers")
        path.write_text(RACKS.replace("uplink: 40Gbit", "uplink: fast"))
        holds(phub("topo", "--racks", path, status=1)[1], "racks.yaml:4: uplink: 'fast' is not understood; allowed: like 100Gbit")
        holds(phub("topo", "--racks", where, status=1)[1], "cannot be read: Is a directory")


def manuals():
    """Every option of --help stands in the manual page."""
    manual = (rig.ROOT / "deploy/man/phub.1").read_text()
    for words in (["bench", "exchange"], ["bench", "aggregation"], ["bench", "kernels"], ["bench", "train"], ["jobs"], ["doctor"],
                  ["topo"], ["topo", "probe"], ["plan"], ["models"], ["checkpoint", "ls"], ["checkpoint", "verify"],
                  ["checkpoint", "restore"], ["checkpoint", "export"], ["checkpoint", "rm"], ["boxes"], ["promote"],
                  ["scout", "compare"], ["scout", "explain"], ["scout", "plot"], ["scout", "dry-run"], ["scout", "run"],
                  ["scout", "advise"]):
        out, _ = phub(*words, "--help")
        for option in re.findall(r"^  --([\w-]+)", out, re.M):
            check(option == "help" or f"Fl -{option}" in manual, f"phub.1 lacks --{option} of {' '.join(words)}")
    options = subprocess.run([rig.PHUBD, "--dump-config"], capture_output=True, text=True, check=True).stdout
    manual = (rig.ROOT / "deploy/man/phubd.8").read_text()
    told = {}  # name: help, range and default, as the program says them
    for help_, allowed, name in re.findall(r"^# (.+)\n# (Allowed: .+)\n(\w+):", options, re.M):
        told[name] = f"{help_[0].upper()}{help_[1:]}\n{allowed}"
    section = manual.split(".Sh OPTIONS\n")[1].split(".El\n")[0]
    written = {part.split("\n")[0]: part.split("\n", 1)[1].strip() for part in section.split(".It Cm ")[1:]}
    check(list(told) == re.findall(r"^(\w+):", options, re.M) and len(told) > 20, f"--dump-config has changed: {list(told)}")
    check(list(written) == list(told), f"phubd.8 has {list(written)}, phubd {list(told)}")
    for name, text in told.items():
        check(written[name] == text, f"phubd.8 says of {name}:\n{written[name]}\nand phubd --dump-config:\n{text}")
    usage = subprocess.run([rig.PHUBD, "--help"], capture_output=True, text=True, check=True).stdout
    for option in re.findall(r"--([a-z][\w-]+)", usage):
        check(f"Fl -{option}" in manual or option in ("listen", "version", "help"), f"phubd.8 lacks --{option}")


CASES = [help_everywhere, nobody_reads, wrong_usage, failures_say_what_to_do, not_a_box, box_that_does_not_start, exchange_contract,
         exchange_table, exchange_listen, exchange_stores, exchange_optimizers, exchange_planted, exchange_jobs, exchange_resnet,
         exchange_csv, exchange_in_namespaces, exchange_pinned, exchange_interrupted, exchange_worker_dies, exchange_box_dies,
         exchange_parent_dies, kernels_contract, seals_contract, aggregation_contract, jobs_of_a_box, doctor, good_callers, stalled,
         wrong_admin_secret, topo_and_models, racks, manuals]

if __name__ == "__main__":
    rig.run(CASES, None if PHUB.exists() else f"{PHUB} is not there (make)")
