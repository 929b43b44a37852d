#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Gloo's all-reduce (through torch.distributed), measured as `phub bench exchange` measures a round.

Usage: peer_gloo.py WORLD [INTERFACE]                        starts WORLD ranks on this machine; INTERFACE: theirs ("lo")
       peer_gloo.py WORLD INTERFACE HOST PORT NETNS     the same, each rank in a network namespace, {} in NETNS being its
                                                        rank, or one name for each rank, with commas between; rank 0's has
                                                        the address HOST
       peer_gloo.py --rank R WORLD INTERFACE HOST PORT       one rank; rank 0 listens on HOST and PORT

Started by systems.py. Stays up and is told by lines on rank 0's stdin what to do next, so that it can take turns with others
on one machine; ranks that wait for a line sleep. It ends with its stdin.
  in:   BYTES WARMUP ROUNDS
  out:  {"peer":"gloo","workers":4,"bytes":..,"rounds":..,"rounds_per_s":..,"p50_ms":..,"p99_ms":..,"cpu_s_per_gb":..,
         "errors":0}
p50 and p99 are over the rounds of all ranks; CPU seconds are those of all ranks, per GB (1e9) of gradients that all ranks
gave. Gloo sums in place, so that values would grow from round to round: the measured rounds sum zeros, and a round before
them and one behind them sum numbers that are compared with a serial calculation.
"""
import json
import os
import socket
import subprocess
import sys
import time

PATTERN = 1021  # a prime, so that no two pieces of a message look alike


def values(torch, rank, turn):
    """The first elements of this rank's gradient, which repeat. Small integers: every sum is exact in every order."""
    return ((torch.arange(PATTERN) * 7 + rank * 5 + turn * 3) % 16 - 8).float()


def spread(torch, array, pattern):
    """Writes the pattern over the whole array."""
    whole = len(array) // PATTERN * PATTERN
    array[:whole].view(-1, PATTERN).copy_(pattern.expand(whole // PATTERN, PATTERN))
    array[whole:] = pattern[:len(array) - whole]


def count_wrong(array, pattern):
    whole = len(array) // PATTERN * PATTERN
    return int((array[:whole].view(-1, PATTERN) != pattern).sum()) + int((array[whole:] != pattern[:len(array) - whole]).sum())


def checked_round(torch, dist, array, turn):
    """One round with numbers in it. Returns how many sums are wrong."""
    spread(torch, array, values(torch, dist.get_rank(), turn))
    dist.all_reduce(array)
    return count_wrong(array, sum(values(torch, rank, turn) for rank in range(dist.get_world_size())))


def timed_rounds(dist, array, rounds):
    """This rank's times, its wall time and its CPU seconds."""
    times = []
    array.zero_()
    dist.barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        begin = time.perf_counter()
        dist.all_reduce(array)
        times.append(time.perf_counter() - begin)
    return times, time.perf_counter() - wall, time.process_time() - cpu


def measure(torch, dist, nbytes, warmup, rounds):
    world = dist.get_world_size()
    array = torch.empty(nbytes // 4)
    wrong = checked_round(torch, dist, array, 0)
    array.zero_()
    for _ in range(warmup - 1):
        dist.all_reduce(array)
    own = timed_rounds(dist, array, rounds)
    wrong += checked_round(torch, dist, array, 1)
    gathered = [None] * world
    dist.all_gather_object(gathered, (*own, wrong))
    times = sorted(t for one in gathered for t in one[0])
    return {
        "peer": "gloo", "workers": world, "bytes": nbytes, "rounds": rounds,
        "rounds_per_s": rounds / max(one[1] for one in gathered),
        "p50_ms": times[len(times) // 2] * 1e3, "p99_ms": times[len(times) * 99 // 100] * 1e3,
        "cpu_s_per_gb": sum(one[2] for one in gathered) / (nbytes * rounds * world * 1e-9),
        "errors": sum(one[3] for one in gathered),
    }


def run_rank(rank, world, interface, host, port):
    os.environ.update(GLOO_SOCKET_IFNAME=interface, MASTER_ADDR=host, MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    while True:
        order = [sys.stdin.readline().split() if rank == 0 else None]
        dist.broadcast_object_list(order)
        if not order[0]:
            break
        answer = measure(torch, dist, *map(int, order[0]))
        if rank == 0:
            print(json.dumps(answer), flush=True)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def start_ranks(world, interface="lo", host="127.0.0.1", port=None, netns=""):
    """All ranks on this machine. Returns the worst exit code; when one fails, the others are ended."""
    rest, names = [str(world), interface, host, port or free_port()], netns.split(",")
    ranks = []
    for rank in range(world):
        enter = ["nsenter", f"--net=/run/netns/{names[rank % len(names)].format(rank)}", "--"] if netns else []
        ranks.append(subprocess.Popen([*enter, sys.executable, __file__, "--rank", str(rank), *rest],
                                      stdin=None if rank == 0 else subprocess.DEVNULL))
    codes = {}
    while len(codes) < world:
        pid, status = os.wait()
        codes[pid] = status
        if status:
            for rank in ranks:
                if rank.pid not in codes:
                    rank.kill()
    return 1 if any(codes.values()) else 0


def main():
    if sys.argv[1:2] == ["--rank"]:
        rank, world, interface, host, port = sys.argv[2:]
        run_rank(int(rank), int(world), interface, host, int(port))
    else:
        sys.exit(start_ranks(int(sys.argv[1]), *sys.argv[2:]))


if __name__ == "__main__":
    main()
