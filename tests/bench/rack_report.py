# SPDX-License-Identifier: Apache-2.0
"""From rack.jsonl, which rack.py writes, to rack.md and rack.png, and from there to README.md."""
import collections
import json
import statistics

import report
from report import percent, ratio, spread
from systems import OUT

MARKS = ("<!-- rack: from here on made by `make bench-readme` -->", "<!-- rack: to here -->")
SHARE, FASTER, NARROW, STREAMS = 0.92, {4: 1.35, 8: 1.6}, 1.85, 0.95  # to reach
PHUB = "phub tcp f32"
SEGMENT, FRAME = 1448, 1514  # bytes of a payload, and of the packet as tbf counts it

# Of the runs of one system with one number of workers; all but the first four and cpu are Spreads. Gradients: millions a
# second, each worker's.
Median = collections.namedtuple("Median", "how peer bytes mbit ms gradients up down cpu")


class Results:
    """What rack.jsonl holds."""

    def __init__(self, lines):
        self.conditions, self.end, self.streams = {}, {}, collections.defaultdict(list)
        self.recipes = {}
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
                report.note_recipe(self.recipes, line)
        self.rows = collections.defaultdict(dict)  # workers: {system: Median}
        for (workers, system), found in runs.items():
            self.rows[workers][system] = self._median(found)

    @staticmethod
    def _median(runs):
        last = runs[-1]
        size = last["row"]["bytes"]
        cpu = statistics.median(run["cpu_s_per_gb"] for run in runs)
        return Median(last["how"], last["is_peer"], size, last["mbit"], spread(1e3 / run["rounds_per_s"] for run in runs),
                      spread(size / 4e6 * run["rounds_per_s"] for run in runs), spread(run["up_share"] for run in runs),
                      spread(run["down_share"] for run in runs), cpu * last["bytes"] / size)

    def get(self, workers, system):
        return self.rows.get(workers, {}).get(system)

    def faster_peer(self, workers):
        """Its name and its Median, or None."""
        peers = [(system, m) for system, m in self.rows.get(workers, {}).items() if m.peer]
        return min(peers, key=lambda peer: peer[1].ms.median, default=None)


def limit(mbit, width=4, per_gradient=1.0):
    """Millions of gradients a second that full packets of a link carry, `width` bytes each, so many times over."""
    return mbit / 8 * SEGMENT / FRAME / width / per_gradient


# ---- the tables ----

def exchange_table(results):
    rows = []
    for workers, systems in results.rows.items():
        best = results.faster_peer(workers)
        for system, m in systems.items():
            rows.append([str(workers), system, m.how, report.span(m.ms), report.number(m.gradients.median), percent(m.up.median),
                         percent(m.down.median), report.number(m.cpu),
                         report.times(best[1].ms.median / m.ms.median) if best else "-"])
    return report.as_table(["workers", "system", "how", "ms a round", "M gradients/s", "up", "down", "CPU s/GB", "speed"],
                           "rllrrrrrr", rows)


class Claims(report.ClaimTable):
    """The rates with 2 workers, and narrow gradients with other numbers than 4, are judged where they were measured."""

    def __init__(self, results):
        super().__init__()
        self.results = results
        for workers in sorted({4, 8, *results.rows}):
            self._streams(workers)
            self._share(workers)
            self._faster(workers)
            self._narrow(workers)

    def _streams(self, workers):
        tried = self.results.streams[workers]
        share = tried[-1]["share"] if tried else 0
        lowered = "" if len(tried) <= 1 else f", lowered from {tried[0]['mbit']}"
        rate = f"{tried[-1]['mbit']} Mbit/s{lowered}" if tried else "the rate"
        self.judge(f"{workers} workers: plain TCP streams both ways at once, share of {rate}",
                   report.Spread(share, share, share) if tried else None, least=STREAMS, form=percent)

    def _share(self, workers):
        ours = self.results.get(workers, PHUB)
        for way in ("up", "down"):
            self.judge(f"{workers} workers: {PHUB}, share of line rate {way}, headers included",
                       getattr(ours, way) if ours else None, least=SHARE, form=percent)

    def _faster(self, workers):
        ours, best = self.results.get(workers, PHUB), self.results.faster_peer(workers)
        which = f" ({best[0]})" if best else ""
        self.judge(f"{workers} workers: {PHUB} beside the faster peer{which}; the limit is "
                   f"{report.times(2 * (workers - 1) / workers)}", ratio(best[1].ms, ours.ms) if ours and best else None,
                   least=FASTER.get(workers))

    def _narrow(self, workers):
        ours = self.results.get(workers, PHUB)
        for dtype in ("f16", "bf16"):
            narrow = self.results.get(workers, f"phub tcp {dtype}")
            if narrow or workers == 4:
                self.judge(f"{workers} workers: {dtype} on the wire beside f32, gradients a second",
                           ratio(ours.ms, narrow.ms) if ours and narrow else None, least=NARROW)


def conditions(results):
    c = results.conditions
    rate = "" if c["mbit"] == 500 else f" RATE={c['mbit']}"
    sizes = " and ".join(sorted({f"{m.bytes / 1e6:.4g} MB ({m.mbit} Mbit/s)" for one in results.rows.values()
                                 for m in one.values()}))
    seconds = next((m.bytes * 8 / (m.mbit * 1e6) for one in results.rows.values() for m in one.values()), 0)
    return [report.fill(text) for text in (
        f"{report.ran_on(c, results.end, 'bench-rack' + rate)} Medians of {c['runs']} runs that took turns; (smallest to largest).",
        "",
        f"A namespace for every worker and for the box, veth links to a bridge, each shaped with tbf both ways (a worker's: burst "
        f"{c['burst'] >> 10} KiB, queue {c['queue_ms']} ms; the box's: N times rate and burst). All sockets use cubic; nothing is bound to CPUs. "
        f"All-reduce of {sizes} of fp32 gradients per worker: {seconds:.1f} s of a link, so that beginning and end of a round do not "
        "weigh; f16 and bf16 exchange as many gradients in half the bytes. Ms a round: measured time by rounds. Up, down: share of the rate of a worker's link "
        "that its bytes took, headers included, as tbf counted them, mean of the workers (the burst that a rest has saved may take it a "
        "little over 100 %). CPU: of all processes, per GB of fp32 gradients. "
        "Speed: the faster peer's ms a round by these. Sums were checked in every run."
        + (" For time, this set has f16 and bf16 with 4 workers only, and one peer, the trial's faster, with 2; ROWS=full has all."
           if c["rows"] == "quick" else ""),
    )]


def tables(results):
    return [*conditions(results), "", *exchange_table(results), *report.recipe_list(results.recipes), "", "What is to be reached:", "",
            *Claims(results).table()]


# ---- the picture ----

COLOURS = {"phub tcp f32": "#0b6e4f", "phub tcp f16": "#66b266", "phub tcp bf16": "#a8d5a2", "Open MPI tcp": "#c0392b",
           "Gloo tcp": "#7d3c98"}


def draw(results, path, say):
    pyplot = report.pyplot_or_none(say, "rack.png is")
    if not pyplot:
        return
    figure, axes = pyplot.subplots(figsize=(10, 6), constrained_layout=True)
    groups = list(results.rows)

    def rate(workers, system):
        found = results.get(workers, system)
        return found and found.gradients

    report.bars(axes, groups, COLOURS, rate)
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
    Claims(results).say(say)
    say(f"written to {OUT / 'rack.md'}")


def part():
    return report.readme_part(read(), OUT / "rack.md", MARKS)
