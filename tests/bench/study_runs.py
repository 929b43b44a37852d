# SPDX-License-Identifier: Apache-2.0
"""Runs of the study on skewed sites, for study.py: what a program printed of each, kept in a cache, with progress."""
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time


class Failure(Exception):
    pass


def say(text):
    print(f"study: {text}", file=sys.stderr, flush=True)


class Run:
    """What skew_study printed of one. A window has the step that it ended after, `t`, how many it took, `steps`, the theta that it
    was at, and the one that it chose, `next`."""

    def __init__(self, text):
        lines = [json.loads(line) for line in text.splitlines()]
        self.windows = [line for line in lines if line["study"] == "window"]
        for window, began in zip(self.windows, [0, *(window["t"] for window in self.windows)]):
            window["steps"] = window["t"] - began
        self.end = next(line for line in lines if line["study"] == "run")
        self.points = 100 * self.end["accuracy"]
        self.bytes = self.end["bytes"] + self.end["bytes_travel"]
        self.box = self.end.get("bytes_box")  # where there was one: payload that came to it
        # As sparse ones are coded; where there was a box models that travel are in it already.
        self.wire = self.end["bytes_wire"] + (0 if self.box else self.end["bytes_travel"])

    @property
    def late(self):
        """Bytes from 20 % of the run on; of models that travelled, all."""
        return self.bytes - self.end["bytes_early"]


def yield_to_others():
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), 10))


class Progress:
    """A bar on a terminal, with what runs now; elsewhere a line now and then."""

    WIDTH, EVERY_S = 24, 60

    def __init__(self, wanted):
        self.wanted, self.done, self.ran, self.now = wanted, 0, 0, {}
        self.began = self.said = time.monotonic()
        self.lock, self.bar = threading.Lock(), sys.stderr.isatty()

    def text(self):
        left = self.wanted - self.done
        each = (time.monotonic() - self.began) / self.ran if self.ran else 0
        return f"{self.done} of {self.wanted}, {self.ran} now" + (f", about {each * left / 60:.0f} min left" if each and left else "")

    def show(self):
        if self.bar:
            full = self.WIDTH * self.done // max(self.wanted, 1)
            runs = "; ".join(f"{name}{step and f': {step}'}" for name, step in self.now.items())
            print(f"\r\x1b[K{'█' * full}{'░' * (self.WIDTH - full)} {self.text()}  {runs}"[:160], end="", file=sys.stderr, flush=True)
        elif self.done == self.wanted or time.monotonic() > self.said + self.EVERY_S:
            self.said = time.monotonic()
            say(self.text())

    def at(self, name, step=""):
        with self.lock:
            self.now[name] = step
            self.show()

    def over(self, name, ran):
        with self.lock:
            self.now.pop(name, None)
            self.done, self.ran = self.done + 1, self.ran + ran
            self.show()

    def end(self):
        if self.bar:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Runner:
    """Runs cells, or reads what they printed when they ran before. A run follows from its words and from `sources`. `before` is
    called in its process."""

    def __init__(self, program, folder, on, jobs, sources=(), before=yield_to_others):
        self.program, self.folder, self.on, self.jobs, self.before = program, folder / "cache", on, jobs, before
        self.hash = hashlib.sha256(b"".join(path.read_bytes() for path in sources or (program,))).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes, self.ended = set(), False

    def words(self, cell, seed):
        return [*cell.words(), "--seeds", str(seed), "--on", self.on]

    def path(self, words):
        return self.folder / (hashlib.sha256(json.dumps([self.hash, words]).encode()).hexdigest()[:32] + ".jsonl")

    def execute(self, words, path, step):
        """What it prints goes to the path, when all went well; step() hears how far it says that it is."""
        partial, said = path.with_suffix(f".{os.getpid()}"), []
        try:
            with partial.open("w") as out:
                process = subprocess.Popen([self.program, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True,
                                           preexec_fn=self.before)
                self.processes.add(process)
                for line in process.stderr:
                    if re.fullmatch(r"step \d+ of \d+\n", line):
                        step(line.strip())
                    else:
                        said.append(line)
                process.wait()
                self.processes.discard(process)
            if process.returncode:
                raise Failure(f"{self.program} {' '.join(words)}: {''.join(said).strip()[-500:]}")
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)

    def run(self, cell, seed, step=lambda text: None):
        """(Run, whether it ran now)"""
        words = self.words(cell, seed)
        path = self.path(words)
        ran = not path.exists()
        if ran:
            self.execute(words, path, step)
        return Run(path.read_text()), ran

    def kept(self, wanted):
        """{cell: {seed: Run}} of those that have run."""
        found = {}
        for cell, seed in wanted:
            path = self.path(self.words(cell, seed))
            if path.exists():
                found.setdefault(cell, {})[seed] = Run(path.read_text())
        return found

    def end(self):
        """Whatever runs."""
        self.ended = True
        for process in list(self.processes):
            process.terminate()

    def all(self, wanted):
        """{cell: {seed: Run}}"""
        found, progress = {}, Progress(len(wanted))

        def one(cell, seed):
            name = f"{cell.name()}, seed {seed}"
            if self.ended:
                return
            progress.at(name)
            run, ran = self.run(cell, seed, lambda text: progress.at(name, text))
            found.setdefault(cell, {})[seed] = run
            progress.over(name, ran)

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(one, *each) for each in wanted]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                self.end()
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                progress.end()
        return found
