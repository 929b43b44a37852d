# SPDX-License-Identifier: Apache-2.0
"""What a soak watches of the box from outside, once a second, and what it makes of the samples: does anything grow?"""
import json
import os
import pathlib
import re
import subprocess
import threading
import time

from rig import BUILD, QUIET

PHUB = BUILD / "phub"
MIB = 1 << 20
# What must not grow from one quiet point to the next: (name, bound of what a fit over the whole run may give, and whether a
# quiet point may not differ from the first at all).
STEADY = (("anon", 4 * MIB, False), ("shared", 4 * MIB, False), ("fds", 1, True), ("threads", 1, True), ("memfds", 1, True),
          ("sockets", 1, True))
LEAST = ("rss", "anon", "shared", "virtual", "heap", "fds", "threads", "memfds", "sockets")
QUIET_LOOKS = 4
WARM_UP = 0.2  # of the quiet points are not fitted: pools and caches fill
FITTED_LEAST = 4


def status_of(pid):
    """Bytes and counts that the kernel knows of a process; {} when it is gone."""
    root = pathlib.Path(f"/proc/{pid}")
    found = {}
    try:
        for line in (root / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            key = {"VmRSS": "rss", "RssAnon": "anon", "RssShmem": "shared", "Threads": "threads", "VmSize": "virtual"}.get(name)
            if key:
                found[key] = int(value.split()[0]) * (1 if key == "threads" else 1024)
        fields = (root / "stat").read_text().rsplit(")", 1)[1].split()
        found["cpu_s"] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        maps = (root / "maps").read_text()
        heap = re.search(r"^([0-9a-f]+)-([0-9a-f]+) .*\[heap\]$", maps, re.M)
        found["heap"] = int(heap.group(2), 16) - int(heap.group(1), 16) if heap else 0
        found["memfds"] = len(set(re.findall(r" (\d+) +/memfd:", maps)))
        names = []
        for fd in os.listdir(root / "fd"):
            try:
                names.append(os.readlink(root / "fd" / fd))
            except OSError:
                continue  # closed meanwhile
        found["fds"] = len(names)
        found["sockets"] = sum(name.startswith("socket:") for name in names)
    except (OSError, IndexError):
        return {}
    return found


def shared_files():
    """What is in /dev/shm that a box could have left."""
    return sorted(name for name in os.listdir("/dev/shm") if "phub" in name)


def ask(address):
    """phub jobs --json: (box, cores, jobs), or None: no answer."""
    try:
        done = subprocess.run([PHUB, "jobs", "--json", address], capture_output=True, text=True, timeout=20, env=QUIET,
                              check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
    except (subprocess.TimeoutExpired, ValueError):
        return None
    if done.returncode or not lines:
        return None
    return lines[0], [line for line in lines if "core" in line], [line for line in lines if "job" in line]


class Watch:
    """Samples while the box runs; `extra()` adds what the soak itself counts."""

    def __init__(self, box, extra):
        self.box, self.extra = box, extra  # box() is the one that runs now
        self.began = time.monotonic()
        self.samples, self.quiet = [], []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def take(self):
        box = self.box()
        sample = {"at_s": round(time.monotonic() - self.began, 2), **status_of(box.pid), **self.extra()}
        said = ask(box.address)
        if said:
            first, cores, jobs = said
            sample |= {"jobs": len(jobs), "workers": sum(len(j["workers"]) for j in jobs),
                       "rounds_per_s": round(sum(j["rounds_per_s"] for j in jobs), 1),
                       "gb_per_s": round(sum(j["gb_per_s"] for j in jobs), 4),
                       "strangers_refused": first["strangers_refused"], "strangers_limited": first["strangers_limited"],
                       "dropped": sum(core["dropped"] for core in cores),
                       "datagrams_dropped": sum(sum((core.get("datagrams") or {}).get("dropped", {}).values())
                                                for core in cores)}
        return sample

    def _run(self):
        while not self.over.wait(max(0.05, 1 - (time.monotonic() - self.began) % 1)):
            self.samples.append(self.take())

    def quiet_point(self):
        """Only what always runs is there: a sample that others like it can be compared with. The least of some in a row: the
        steady tenant may have a checkpoint in the works, and this very question takes a socket."""
        sample = self.take()
        for _ in range(QUIET_LOOKS - 1):
            time.sleep(0.2)
            other = self.take()
            sample |= {name: min(sample[name], other[name]) for name in LEAST if name in sample and name in other}
        sample["quiet"] = True
        self.samples.append(sample)
        self.quiet.append(sample)
        return sample

    def stop(self):
        self.over.set()
        self.thread.join()


def slope(points):
    """Least squares: how fast y grows with x."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    under = sum((x - mean_x) ** 2 for x, _ in points)
    return over / under if under else 0.0


def growth(quiet, name):
    """(growth over the time that was fitted, by a line; least, most): None when there are too few quiet points."""
    fitted = [q for q in quiet[max(1, int(len(quiet) * WARM_UP)):] if name in q]  # the first came before any load
    if len(fitted) < FITTED_LEAST:
        return None
    points = [(q["at_s"], q[name]) for q in fitted]
    values = [y for _, y in points]
    return slope(points) * (points[-1][0] - points[0][0]), min(values), max(values)


def leaks(quiet, sanitized=False):
    """What grows, or is not back where it was: sentences. Sanitizers keep memory that was freed."""
    found = []
    for name, bound, equal in STEADY:
        if sanitized and name == "anon":
            continue
        values = [q[name] for q in quiet if name in q]
        if not values:
            continue
        fitted = growth(quiet, name)
        if fitted and fitted[0] > bound:
            found.append(f"{name} grows: by {fitted[0]:.0f} over the quiet points, from {values[0]} to {values[-1]}")
        elif not fitted and not equal and values[-1] - values[0] > 8 * bound:
            found.append(f"{name} grew from {values[0]} to {values[-1]}")
        elif equal and values[-1] > values[0]:
            found.append(f"{name} is {values[-1]} at the last quiet point, and was {values[0]} at the first")
    return found
