#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""RDMA as an operator meets it: which ports there are and why one cannot be used, limits, names that are wrong, what an
exchange costs the devices, and the DSCP of what goes over the wire.

vm: -w 2
"""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import rig  # noqa: E402
from rig import BUILD, PHUBD, QUIET, Box, Skip, Worker, check, holds  # noqa: E402

ROCE_PORT = 4791


def command(*words, status=0, env=None, lock_kib=None):
    """Runs it and checks how it ended; with a limit of locked memory it is nobody who runs it. Returns stdout and stderr."""
    done = subprocess.run([*(nobody(lock_kib) if lock_kib else []), *map(str, words)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=rig.DEADLINE_S, env={**QUIET, **(env or {})}, cwd=rig.ROOT,
                          check=False)
    check(done.returncode == status, f"{words}: exit status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def nobody(lock_kib):
    """Root may lock whatever it likes."""
    return ["sh", "-c", f'ulimit -l {lock_kib}; exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"', "sh"]


def phub(*words, **how):
    return command(BUILD / "phub", *words, **how)


def in_the_machine():
    """Cases that change devices, or know their names, are for the virtual machine's."""
    if not pathlib.Path("/sys/class/net/b2").exists() or not pathlib.Path("/sys/class/infiniband/node2").exists():
        raise Skip("changes network interfaces: for tests/vm/run.sh -w 2")


class Down:
    """An interface that is down for a while."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        subprocess.run(["ip", "link", "set", self.name, "down"], check=True)

    def __exit__(self, *_):
        subprocess.run(["ip", "link", "set", self.name, "up"], check=True)


def ports():
    return {port["device"]: port for port in json.loads(phub("topo", "--json")[0].splitlines()[0])["rdma"]}


def topo():
    """phub topo lists the ports with all that a person chooses by, as a table and as JSON"""
    in_the_machine()
    found = ports()
    check(list(found) == ["node1", "node2"], f"{found}")
    check(found["node2"] == {"device": "node2", "port": 1, "nic": "n2", "node": -1, "kind": "RoCE v2", "mbit_per_s": 10000,
                             "mtu": 4096, "state": "active", "gid_index": 1, "gid": "10.81.0.2", "usable": True, "why": None,
                             "do": None}, f"{found['node2']}")
    out, _ = phub("topo")
    holds(out, r"(?m)^node1:1 +n1 +- +RoCE v2 +10\.0 +4096 +active +@1 +10\.81\.0\.1$")
    check("cannot be used" not in out, out)
    # Which core is for which: no node is known here, so both, and each begins with another.
    words = ["topo", "--model", "resnet-50", "--cores", 2]
    holds(phub(*words)[0], r"(?m)^ *0 .* node1:1,node2:1 ", r"(?m)^ *1 .* node2:1,node1:1 ")
    cores = [line for line in map(json.loads, phub(*words, "--json")[0].splitlines()) if line["topo"] == "core"]
    check([core["rdma"] for core in cores] == [["node1:1", "node2:1"], ["node2:1", "node1:1"]], f"{cores}")
    # Without an address the link-local GID is what is left.
    subprocess.run(["ip", "address", "flush", "dev", "n2"], check=True)
    found = ports()["node2"]
    subprocess.run(["ip", "address", "add", "10.81.0.2/24", "dev", "n2"], check=True)
    check(found["gid"].startswith("fe80::") and found["gid_index"] == 0 and found["usable"], f"{found}")
    check(ports()["node2"]["gid"] == "10.81.0.2", "its address has come back")


def port_down():
    """a port that is down is listed with the reason and what to type; a box that has no other does not start"""
    in_the_machine()
    with Down("n2"):
        found = ports()
        check(found["node1"]["usable"] and not found["node2"]["usable"], f"{found}")
        check(found["node2"]["why"] == "the port is down" and found["node2"]["do"].startswith("ip link set up dev n2"), f"{found}")
        holds(phub("topo")[0], r"(?m)^node2:1 cannot be used: the port is down\n  -> ip link set up dev n2")
        holds(phub("doctor")[0], r"ok +rdma +node1:1 can be used",
              r"warn +rdma +node2:1 cannot be used: the port is down\n +-> ip link set up dev n2")
        for words in (["-o", "rdma=node2"], ["-o", "rdma=node2", "--check-config"]):
            _, err = command(PHUBD, "-o", "listen=127.0.0.1:0", "-o", "transports=verbs", *words, status=1)
            holds(err, "node2:1: the port is down: ip link set up dev n2")
        left_out = "verbs: rdma names node2:1, and it is left out: the port is down: ip link set up dev n2"
        _, err = command(PHUBD, "-o", "transports=verbs", "-o", "rdma=node2,node1", "--check-config")
        holds(err, left_out)
        box = Box(transports="tcp,verbs", rdma="node1,node2")
        box.logged(left_out)
        box.stop()
        # A worker says it too (libphub in a program has no log). What was not named is left out in silence.
        for names, said in (("node1,node2", True), ("node1", False), ("", False)):
            _, err = phub(*exchange(), env={"PHUB_RDMA": names})
            check((left_out in err) == said, f"PHUB_RDMA={names}: {err}")
    check(ports()["node2"]["usable"], "it is up again")


def wrong_names():
    """a box whose rdma names what is not there says what is; so does a GID that is none"""
    in_the_machine()
    for name, *words in (("mlx5_0", "rdma names mlx5_0,", "devices here: node1, node2"), ("node1:2", "rdma names node1:2,", "phub topo"),
                         ("node1,nosuch", "rdma names nosuch,", "devices here: node1, node2"), ("node2:3@1,node1", "rdma names node2:3@1,"),
                         ("node1@9", "node1:1: it has no GID of index 9", "leave @9 away")):
        for more in ([], ["--check-config"]):
            _, err = command(PHUBD, "-o", "listen=127.0.0.1:0", "-o", "transports=tcp,verbs", "-o", f"rdma={name}", *more, status=1)
            holds(err, "^phubd: verbs: ", *words)
            check(err.count("\n") == 1, err)
    for name in ("node1@abc", "node1:abc", "node1:1:2", "node1@1xyz", "node1@-7", "node1:", "node1@", "node1:0", "node1:256", "node1@256",
                 "node1@1@1", ":1", "node1,", ",node1", "node2,node1@+1"):
        for more in ([], ["--check-config"]):
            _, err = command(PHUBD, "-o", "listen=127.0.0.1:0", "-o", "transports=tcp,verbs", "-o", f"rdma={name}", *more, status=1)
            holds(err, "^phubd: verbs: rdma names ", re.escape("DEVICE[:PORT][@GID]"))
            check(err.count("\n") == 1, err)
    for name in ("node1,node1", "node2:1@1,node1,node2:1"):
        _, err = command(PHUBD, "-o", "transports=tcp,verbs", "-o", f"rdma={name}", "--check-config", status=1)
        holds(err, "and a port only once")
    out, _ = command(PHUBD, "-o", "transports=tcp,verbs", "-o", "rdma=node2:1@1", "--check-config")
    holds(out, "the options are good")


def named_by_a_worker():
    """a worker that names ports which are not there, or in another form, does not take another transport in silence"""
    in_the_machine()
    box = Box(transports="tcp,verbs", rdma="node1")
    for name, word in (("nosuch", "rdma names nosuch, and there is no such port; devices here: node1, node2"),
                       ("node2@abc", re.escape("rdma names 'node2@abc', which is not of the form DEVICE[:PORT][@GID]")),
                       ("node2@9", "node2:1: it has no GID of index 9")):
        for transport in ({}, {"transport": "verbs"}):
            result = Worker(box.url("named"), env={"PHUB_RDMA": name}, keys="a:1000", rounds=2, **transport).result()
            check(result["rc"] < 0, f"{result}")
            holds(result["error"], word)
            if not transport:
                holds(result["error"], f"PHUB_RDMA={name}: ")
    box.stop()


def address(*words):
    subprocess.run(["ip", "address", *words, "dev", "n1"], check=True)


def moved():
    """an interface of the box that loses its address, and gets it again behind another: later jobs find its GID at the new index"""
    in_the_machine()
    box = Box(transports="verbs", rdma="node1")
    worker = {"transport": "verbs", "keys": "a:1000", "env": {"PHUB_RDMA": "node2"}}
    Worker(box.url("before"), rounds=2, **worker).good()
    at = ports()["node1"]["gid_index"]
    address("flush")
    address("add", "10.81.0.99/24")
    address("add", "10.81.0.1/24")
    # guest.sh's, which went with the address.
    subprocess.run(["ip", "route", "replace", "10.81.0.0/24", "dev", "n1", "src", "10.81.0.1", "table", "1001"], check=True)
    now = ports()["node1"]
    rig.say(f"GID {now['gid']} is at {now['gid_index']}, it was 10.81.0.1 at {at}")
    try:
        Worker(box.url("after"), rounds=2, **worker).good()
        rig.say(box.logged("verbs: node1 port 1 has GID .* now; it was "))
        Worker(box.url("later"), rounds=2, **worker).good()
        box.stop()
    finally:
        address("delete", "10.81.0.99/24")


def rights():
    """who may not open the devices is told which file it is"""
    in_the_machine()
    files = sorted(pathlib.Path("/dev/infiniband").glob("uverbs*"))
    for file in files:
        os.chmod(file, 0o600)
    try:
        out, _ = phub("topo", lock_kib=64)
    finally:
        for file in files:
            os.chmod(file, 0o666)
    holds(out, r"(?m)^node1 cannot be used: it cannot be opened: Permission denied\n  -> ls -l /dev/infiniband/uverbs0")


def limits():
    """where ulimit -l is too small, doctor, box and worker name the number that is needed"""
    in_the_machine()
    out, _ = phub("doctor", lock_kib=64)
    holds(out, r"warn +ulimit -l +64 KiB may be locked", "LimitMEMLOCK=infinity")
    need = int(re.search(r"-> ulimit -l (\d+) ", out)[1])
    holds(phub("doctor", lock_kib=need)[0], rf"ok +ulimit -l +{need} KiB may be locked; enough for RDMA")
    holds(phub("doctor")[0], "ok +ulimit -l +any amount", "transports=tcp,shm,verbs serves RDMA too")
    secret = {"PHUB_ADMIN_SECRET": "between operators"}
    for more in ([], ["--check-config"]):
        _, err = command(PHUBD, "-o", "listen=127.0.0.1:0", "-o", "transports=tcp,verbs", "-o", "memory_max=64MiB", *more, status=1,
                         lock_kib=1024)
        holds(err, "at least 73728 KiB", "it is 1024 KiB", "or lower memory_max or rdma_slots_memory$")
    _, err = command(PHUBD, "-o", "memory_max=64MiB", "-o", "rdma_slots_memory=65MiB", "--check-config", status=1)
    holds(err, "rdma_slots_memory 65MiB is more than memory_max 64MiB")
    # Both nodes' ports learn of 4 MiB of slots. The bells of two cores at two ports are what little else there is.
    box = Box(transports="tcp,verbs", memory_max="64MiB", prefix=nobody(73728), admin_secret_env="PHUB_ADMIN_SECRET", env=secret)
    holds(phub("doctor", box.address, env=secret)[0], "verbs +offered")
    box.stop()
    box = Box(admin_secret_env="PHUB_ADMIN_SECRET", env=secret)
    holds(phub("doctor", box.address, env=secret)[0],
          "ok +verbs +not offered by the box, and this machine has RDMA\n +-> phubd -o transports=tcp,shm,verbs")
    box.stop()
    # Each number takes it further, and there is one that does.
    limit = 64
    for _ in range(20):
        done = subprocess.run([*nobody(limit), BUILD / "phub", *exchange()], capture_output=True, text=True, check=False,
                              timeout=rig.DEADLINE_S, cwd=rig.ROOT, env={**QUIET, "PHUB_RDMA": "node2"})
        if done.returncode == 0:
            break
        if "not admitted" in done.stderr:
            holds(done.stderr, "rank 0, .*No space left on device; the box's log says what it lacks")
        numbers = [int(number) for number in re.findall(r"verbs: needs `ulimit -l` of at least (\d+) KiB", done.stderr)]
        rig.say(f"{limit} KiB: {numbers}")
        check(numbers and max(numbers) > limit, f"with {limit} KiB no larger number is named: {done.stderr}")
        limit = max(numbers)
    check(done.returncode == 0 and limit > 64, f"with {limit} KiB: {done.stderr}")
    rig.say(f"an exchange went through with {limit} KiB")
    # A worker whose pieces are no whole pages and begin anywhere: each refusal names a larger number, and soon one does.
    box, limit, seen = Box(transports="verbs", rdma="node1", prefix=nobody("unlimited")), 64, []
    for _ in range(20):
        result = Worker(box.url(f"odd-{limit}"), env={"PHUB_RDMA": "node2"}, prefix=nobody(limit), transport="verbs",
                        keys="a:200000,b:70,c:50001", registered=True, rounds=2).result()
        if result["rc"] == 0:
            break
        number = re.search(r"verbs: needs `ulimit -l` of at least (\d+) KiB", result["error"])
        check(number and int(number[1]) > limit, f"with {limit} KiB no larger number is named: {result['error']}")
        seen.append(limit)
        limit = int(number[1])
    rig.say(f"{seen} KiB were too little, {limit} did")
    check(result["rc"] == 0 and seen, f"with {limit} KiB: {result}")
    box.stop()


def exchange(*more):
    return ["bench", "exchange", "--transport", "verbs", "--workers", "1", "--bytes", "256KiB", "--rounds", "3", "--listen",
            "10.81.0.1", "--set", "rdma=node1", "--set", "memory_max=8MiB", "--json", *more]


def counted(workers, size, rounds):
    """What `phub bench exchange` counts at one worker's connection, by one port at each end."""
    out, _ = phub("bench", "exchange", "--transport", "verbs", "--workers", workers, "--bytes", size, "--rounds", rounds,
                  "--cores", 1, "--set", "rdma=node1", "--json", env={"PHUB_RDMA": "node2"})
    found = json.loads(out)
    rig.say(", ".join(f"{key} {value:.3f}" for key, value in found.items() if "_per_c" in key or key.startswith("reg")))
    return found


def work():
    """what devices have to do for an exchange: requests, doorbells, completions, regions of memory"""
    in_the_machine()
    idle, loaded = counted(1, "4KiB", 300), counted(4, "16MiB", 4)
    for who in ("worker", "box"):
        check(idle[f"{who}_doorbells_per_chunk"] >= 1, f"one chunk at a time has a doorbell of its own: {idle}")
        check(loaded[f"{who}_doorbells_per_chunk"] < 0.5, f"{who}: doorbells under load: {loaded}")
        # The hundredths are nudges, which come when nothing else does for a while (rounds of 4 workers on one processor), and
        # the box's grants of credit that no result could carry. The exchange suite counts without nudges.
        for found in (idle, loaded):
            check(1 <= found[f"{who}_posts_per_chunk"] < 1.1, f"{who}: requests: {found}")
        check(loaded[f"{who}_posts_per_completion"] > 10, f"{who}: completions: {loaded}")
    # The connection's own to the box's one core, and phub_alloc()'s two: all gradients, all results.
    check(idle["registrations_per_worker"] == loaded["registrations_per_worker"] == 3, f"{idle} {loaded}")


def listen_to(sock, seen, ended):
    """{address of the sender: the DSCPs and ECN bits of its RoCE packets}"""
    while not ended.is_set():
        try:
            packet = sock.recv(65536)
        except TimeoutError:
            continue
        if packet[0] == 0x45 and int.from_bytes(packet[22:24], "big") == ROCE_PORT:
            seen.setdefault(socket.inet_ntoa(packet[12:16]), set()).add((packet[1] >> 2, packet[1] & 3))


def marks(*more, **env):
    """What an exchange between node2, the worker, and node1, the box, looks like where it comes in: both ends are of this machine."""
    seen, ended = {}, threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as sock:
        sock.settimeout(0.2)
        thread = threading.Thread(target=listen_to, args=(sock, seen, ended))
        thread.start()
        try:
            phub(*exchange(*more), env={"PHUB_RDMA": "node2", **env})
        finally:
            ended.set()
            thread.join()
    return seen


def dscp():
    """rdma_dscp marks what the box sends, PHUB_RDMA_DSCP what a worker sends; without them nothing is marked"""
    in_the_machine()
    seen = marks()
    check(seen == {"10.81.0.1": {(0, 0)}, "10.81.0.2": {(0, 0)}}, f"{seen}")
    seen = marks("--set", "rdma_dscp=26", PHUB_RDMA_DSCP="46")
    check(seen == {"10.81.0.1": {(26, 0)}, "10.81.0.2": {(46, 0)}}, f"{seen}")
    _, err = phub(*exchange(), env={"PHUB_RDMA_DSCP": "64"}, status=1)
    holds(err, "PHUB_RDMA_DSCP='64' is no DSCP; allowed: 0 to 63")


sys.exit(rig.run([topo, port_down, wrong_names, named_by_a_worker, rights, limits, work, dscp, moved]))
