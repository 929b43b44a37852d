# SPDX-License-Identifier: Apache-2.0
"""From rack.jsonl, which rack.py writes, to rack.md and rack.png, and from there to README.md."""
import collections
import json
import statistics
from textwrap import fill

import report
from systems import OUT

MARKS = ("<!-- rack: from here on made by `make bench-readme` -->", "<!-- rack: to here -->")
SHARE, FASTER, NARROW, STREAMS = 0.92, {4: 1.35, 8: 1.6}, 1.85, 0.95  # to reach
PHUB = "phub tcp f32"
SEGMENT, FRAME = 1448, 1514  # bytes of a payload, and of the packet as tbf counts it

# Medians of the runs of one system with one number of workers, and the range. Gradients: millions a second, each worker's.
Median = collections.namedtuple("Median", "how peer bytes mbit ms ms_min ms_max gradients gradients_min gradients_max up down cpu")


class Results:
    """What rack.jsonl holds."""

    def __init__(self, lines):
        self.conditions, self.end, self.streams = {}, {}, collections.defaultdict(list)
        runs = collections.defaultdict(list)
        for line in lines:
            kind = line.get("bench", line.get("peer"))
            if kind == "conditions":
                self.conditions = line
            elif kind == "end":
                self.end = line
            elif kind == "streams":
                self.streams[line["workers"]].append(line)
            else:
                runs[line["workers"], line["system"]].append(line)
        self.rows = collections.defaultdict(dict)  # workers: {system: Median}
        for (workers, system), found in runs.items():
            self.rows[workers][system] = self._median(found)

    @staticmethod
    def _median(runs):
        last = runs[-1]
        size = last["row"]["bytes"]
        ms = [1e3 / run["rounds_per_s"] for run in runs]
        gradients = [size / 4e6 * run["rounds_per_s"] for run in runs]
        middle = {what: statistics.median(run[what] for run in runs) for what in ("up_share", "down_share", "cpu_s_per_gb")}
        return Median(last["how"], last["is_peer"], size, last["mbit"], statistics.median(ms), min(ms), max(ms),
                      statistics.median(gradients), min(gradients), max(gradients), middle["up_share"], middle["down_share"],
                      middle["cpu_s_per_gb"] * last["bytes"] / size)

    def get(self, workers, system):
        return self.rows.get(workers, {}).get(system)

    def faster_peer(self, workers):
        """Its name and its Median, or None."""
        peers = [(system, m) for system, m in self.rows.get(workers, {}).items() if m.peer]
        return min(peers, key=lambda peer: peer[1].ms, default=None)


def limit(mbit, width=4, per_gradient=1.0):
    """Millions of gradients a second that full packets of a link carry, `width` bytes each, so many times over."""
    return mbit / 8 * SEGMENT / FRAME / width / per_gradient


# ---- the tables ----

def exchange_table(results):
    rows = []
    for workers, systems in results.rows.items():
        best = results.faster_peer(workers)
        for system, m in systems.items():
            rows.append([str(workers), system, m.how, *map(report.number, (m.ms, m.ms_min, m.ms_max, m.gradients)),
                         f"{m.up:.1%}", f"{m.down:.1%}", report.number(m.cpu), report.times(best[1].ms / m.ms) if best else "-"])
            rows[-1][3:6] = [f"{rows[-1][3]} ({rows[-1][4]} to {rows[-1][5]})"]
    return report.as_table(["workers", "system", "how", "ms a round", "M gradients/s", "up", "down", "CPU s/GB", "speed"],
                           "rllrrrrrr", rows)


class Claims:
    """The numbers to reach, beside what was measured; only what this run can judge."""

    def __init__(self, results):
        self.results, self.rows = results, []
        for workers in results.rows:
            self._streams(workers)
            self._share(workers)
            self._faster(workers)
            self._narrow(workers)

    def _add(self, claim, wanted, measured, reached):
        verdict = {True: "reached", False: f"not reached (measured {measured})", None: "printed only"}[reached]
        self.rows.append([claim, wanted, measured, verdict])

    def _streams(self, workers):
        tried = self.results.streams[workers]
        if tried:
            last = tried[-1]
            lowered = "" if len(tried) == 1 else f", lowered from {tried[0]['mbit']}"
            self._add(f"{workers} workers: plain TCP streams both ways at once, share of {last['mbit']} Mbit/s{lowered}",
                      f"at least {STREAMS:.0%}", f"{last['share']:.1%}", last["share"] >= STREAMS)

    def _share(self, workers):
        ours = self.results.get(workers, PHUB)
        for way in ("up", "down"):
            share = getattr(ours, way) if ours else 0
            if ours:
                self._add(f"{workers} workers: {PHUB}, share of line rate {way}, headers included", f"at least {SHARE:.0%}",
                          f"{share:.1%}", share >= SHARE)

    def _faster(self, workers):
        ours, best, wanted = self.results.get(workers, PHUB), self.results.faster_peer(workers), FASTER.get(workers)
        if ours and best:
            ratio = best[1].ms / ours.ms
            self._add(f"{workers} workers: {PHUB} beside the faster peer ({best[0]}); the limit is "
                      f"{report.times(2 * (workers - 1) / workers)}", f"at least {report.times(wanted)}" if wanted else "-",
                      report.times(ratio), ratio >= wanted if wanted else None)

    def _narrow(self, workers):
        ours = self.results.get(workers, PHUB)
        for dtype in ("f16", "bf16"):
            narrow = self.results.get(workers, f"phub tcp {dtype}")
            if ours and narrow:
                ratio = ours.ms / narrow.ms
                self._add(f"{workers} workers: {dtype} on the wire beside f32, gradients a second", f"at least {NARROW:.2f}x",
                          report.times(ratio), ratio >= NARROW)

    def table(self):
        return report.as_table(["claim", "to reach", "measured", "verdict"], "llrl", self.rows)


def conditions(results):
    c = results.conditions
    rows = "" if c["rows"] == "quick" else f" ROWS={c['rows']}"
    rate = "" if c["mbit"] == 500 else f" RATE={c['mbit']}"
    sizes = " and ".join(sorted({f"{m.bytes / 1e6:.4g} MB ({m.mbit} Mbit/s)" for one in results.rows.values()
                                 for m in one.values()}))
    seconds = next((m.bytes * 8 / (m.mbit * 1e6) for one in results.rows.values() for m in one.values()), 0)
    return [fill(text, 125) for text in (
        f"{c['cpus']} CPUs ({c['cpu']}), Linux {c['kernel']}, load {c['load']:.2f} at the start, commit {c['commit']}, {c['date']}; "
        f"`make bench-rack{rows}{rate}`, {results.end.get('seconds', 0)} s. Medians of {c['runs']} runs that took turns; (smallest "
        "to largest).",
        "",
        f"A namespace for every worker and for the box, veth links to a bridge, each shaped with tbf both ways (a worker's: burst "
        f"{c['burst'] >> 10} KiB, queue {c['queue_ms']} ms; the box's: N times rate and burst). All sockets use cubic; nothing is bound to CPUs. "
        f"All-reduce of {sizes} of fp32 gradients per worker: {seconds:.1f} s of a link, so that beginning and end of a round do not "
        "weigh; f16 and bf16 exchange as many gradients in half the bytes. Ms a round: measured time by rounds. Up, down: share of the rate of a worker's link "
        "that its bytes took, headers included, as tbf counted them, mean of the workers (the burst that a rest has saved may take it a "
        "little over 100 %). CPU: of all processes, per GB of fp32 gradients. "
        "Speed: the faster peer's ms a round by these. Sums were checked in every run.",
    )]


def tables(results):
    return [*conditions(results), "", *exchange_table(results), "", "What is to be reached:", "", *Claims(results).table()]


# ---- the picture ----

COLOURS = {"phub tcp f32": "#0b6e4f", "phub tcp f16": "#66b266", "phub tcp bf16": "#a8d5a2", "Open MPI tcp": "#c0392b",
           "Gloo tcp": "#7d3c98"}


def draw(results, path, say):
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        say("no matplotlib: rack.png is left out (deploy/deps.sh bench)")
        return
    figure, axes = pyplot.subplots(figsize=(10, 6), constrained_layout=True)
    width = 0.8 / len(COLOURS)
    groups = list(results.rows)
    for i, (system, colour) in enumerate(COLOURS.items()):
        at = [(x + (i - (len(COLOURS) - 1) / 2) * width, results.get(workers, system)) for x, workers in enumerate(groups)
              if results.get(workers, system)]
        if at:
            rates = [m.gradients for _, m in at]
            spread = [[m.gradients - m.gradients_min for _, m in at], [m.gradients_max - m.gradients for _, m in at]]
            axes.bar([x for x, _ in at], rates, width, yerr=spread, capsize=3, color=colour, label=system)
            for x, m in at:
                axes.annotate(report.number(m.gradients), (x, 0), (0, 4), textcoords="offset points", ha="center", fontsize=8)
    for x, workers in enumerate(groups):
        mbit = next(iter(results.rows[workers].values())).mbit
        ring = 2 * (workers - 1) / workers
        for style, value, label in (("-", limit(mbit), "link full, f32: every gradient once each way"),
                                    ("--", limit(mbit, width=2), "link full, two bytes a gradient"),
                                    (":", limit(mbit, per_gradient=ring), "link full, ring: 2(N-1)/N times each way")):
            axes.hlines(value, x - 0.45, x + 0.45, colors="black", linestyles=style, label=label if x == 0 else None)
    axes.set_xticks(range(len(groups)), [f"{n} workers, {next(iter(results.rows[n].values())).mbit} Mbit/s" for n in groups])
    axes.set(ylabel="millions of gradients a second (more is better)", title="All-reduce in a rack of shaped links")
    axes.margins(y=0.3)
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    figure.savefig(path, dpi=110)


# ---- the files ----

def read():
    with open(OUT / "rack.jsonl") as lines:
        return Results(map(json.loads, lines))


def write(say):
    results = read()
    text = ["# A rack in network namespaces", "", MARKS[0], *tables(results), MARKS[1]]
    if results.end.get("failures"):
        text += ["", f"**{results.end['failures']} failures: see what rack.py said.**"]
    (OUT / "rack.md").write_text("\n".join(text) + "\n")
    if results.rows:
        draw(results, OUT / "rack.png", say)
    for row in Claims(results).rows:
        say(f"{row[3].split(' (')[0]}: {row[0]}: {row[2]}, to reach: {row[1]}")
    say(f"written to {OUT / 'rack.md'}")


def write_readme(say):
    return report.put_into_readme(read, OUT / "rack.md", MARKS, say)
