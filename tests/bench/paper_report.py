# SPDX-License-Identifier: Apache-2.0
"""From paper.jsonl, which paper.py writes, to paper.md, a picture for each experiment, and the table in README.md.

The paper's numbers are read off the charts of the authors' posters by eye (+-5 %), but for the plateau of chunk
sizes, which the paper's text says. A verdict is computed: `as in the paper` within 25 % of its number (or where the claim itself has limits,
within those; `at least 92 %` is 0.92), `same direction` where ours lies on the same side of 1 (no effect), else `differs`.
"""
import json
import math
import statistics

from report import Spread, as_table, errors, fill, number, percent, pyplot_or_none, ran_on, readme_part, span, spread, times
from systems import OUT

MARKS = ("<!-- paper: from here on made by `make bench-readme` -->", "<!-- paper: to here -->")

# Exchanges a second without compute, all workers together; a model of about ResNet-18's size, 56 Gbit/s each.
PAPER_SCALING = {"PHub on PBox": {1: 105, 2: 212, 4: 425, 8: 790}, "PHub, sharded on the workers": {1: 68, 2: 105, 4: 212, 8: 405}}
# Samples a second, by KiB of a chunk. The text says that 16 to 128 KiB lie within 8 % of the best.
PLATEAU = 0.92
PAPER_CHUNKS = {4: 270, 8: 520, 16: 730, 32: 770, 64: 740, 128: 710, 256: 645, 512: 480, 1024: 380, 2048: 180}
JUDGED_CHUNKS = {4, 16, 32, 64, 128, 2048}  # the sizes that claims are about
PAPER_WIDE = 20           # tall beside wide, "up to", on 28 cores
PAPER_STREAMED = {"cached": 71.6, "streamed": 40.5}  # rates, VGG, 8 workers
PAPER_JOBS = {"AlexNet": 0.95, "ResNet-50": 1.0}     # of a job's rate, left with 8 at once
NEAR = 1.25
SHARE_MAX = 0.05  # from a fair share


def verdict(ours, paper):
    """Of two ratios."""
    if max(ours, paper) <= NEAR * min(ours, paper):
        return "as in the paper"
    same = (ours > 1) == (paper > 1)
    return f"same direction, {'weaker' if abs(math.log(ours)) < abs(math.log(paper)) else 'stronger'}" if same else "differs"


class Records:
    def __init__(self, lines):
        self.lines = list(lines)
        self.conditions = self._one("conditions")
        self.end = self._one("end")

    def _one(self, experiment):
        return next((line for line in self.lines if line["experiment"] == experiment), {})

    def of(self, experiment, **wanted):
        return [line for line in self.lines if line["experiment"] == experiment
                and all(line.get(key) == value for key, value in wanted.items())]

    def values(self, experiment, key, **wanted):
        """Sorted, of what was measured."""
        return sorted({line[key] for line in self.of(experiment, **wanted)})

    def whats(self, experiment, **wanted):
        """Models and sizes, in the order of measuring."""
        return list(dict.fromkeys(line["what"] for line in self.of(experiment, **wanted)))

    def spread(self, experiment, value, **wanted):
        return spread(line[value] if isinstance(value, str) else value(line) for line in self.of(experiment, **wanted))

    def ratios(self, experiment, value, over, under):
        """Run by run: what was measured in one turn is compared."""
        unders = {line["run"]: line[value] for line in self.of(experiment, **under)}
        found = [line[value] / unders[line["run"]] for line in self.of(experiment, **over) if line["run"] in unders]
        return spread(found) if found else None

    def command(self, experiment, **wanted):
        return self.of(experiment, **wanted)[0]["command"]


# ---- each experiment: rows of the table of claims, rows of its own table, its picture ----

class Scaling:
    """Exchanges a second without compute."""
    name, title = "scaling", "Exchanges a second without compute"
    heads, align = ["exchange of", "over", "workers", "exchanges/s, all workers", "beside 1", "box CPU s/GB", "command"], "llrrrrl"

    def __init__(self, records):
        self.r = records

    @staticmethod
    def rate(line):
        return line["workers"] * line["rounds_per_s"]

    def relative(self, what, transport):
        """Workers: rate beside one worker's."""
        key = {"what": what, "transport": transport}
        counts = self.r.values("scaling", "workers", **key)
        if not counts or counts[0] != 1:
            return {}
        one = self.r.spread("scaling", self.rate, workers=1, **key).median
        return {n: Spread(*(v / one for v in self.r.spread("scaling", self.rate, workers=n, **key))) for n in counts}

    def claims(self):
        for transport in self.r.values("scaling", "transport"):
            for what in self.r.whats("scaling", transport=transport):
                found = self.relative(what, transport)
                if 8 in found:
                    paper = PAPER_SCALING["PHub on PBox"][8] / PAPER_SCALING["PHub on PBox"][1]
                    ours = found[8].median
                    yield [f"exchanges a second from 1 to 8 workers, {what}, {transport}", times(paper), times(ours),
                           verdict(ours, paper) + ("" if ours > paper / NEAR else self._why(what, transport))]
                    yield self._cpu(what, transport)

    def _why(self, what, transport):
        """CPUs that one worker and its box keep busy, of those that there are."""
        lines = self.r.of("scaling", what=what, transport=transport, workers=1)
        box, every = (statistics.median(line[cpu] * line["gb_per_s_worker"] for line in lines)
                      for cpu in ("box_cpu_s_per_gb", "cpu_s_per_gb"))
        return (f": the paper's workers are machines with links of their own; here one worker already keeps the box at {box:.2f} "
                f"CPUs and both at {every:.2f} of the {self.r.conditions['cpus']} that all share")

    def _cpu(self, what, transport):
        one, eight = (self.r.spread("scaling", "box_cpu_s_per_gb", what=what, transport=transport, workers=n).median for n in (1, 8))
        return [f"box CPU of an exchange, 8 workers beside 1, {what}, {transport}", "-", times(eight / one),
                f"{'does not grow' if eight <= 1.05 * one else 'grows'} (the paper gives no number)"]

    def rows(self):
        for transport in self.r.values("scaling", "transport"):
            for what in self.r.whats("scaling", transport=transport):
                for n, relative in self.relative(what, transport).items():
                    key = {"what": what, "transport": transport, "workers": n}
                    yield [what, transport, str(n), span(self.r.spread("scaling", self.rate, **key)), times(relative.median),
                           number(self.r.spread("scaling", "box_cpu_s_per_gb", **key).median),
                           f"`{self.r.command('scaling', **key)}`"]

    def draw(self, pyplot):
        transports = self.r.values("scaling", "transport")
        figure, axes = pyplot.subplots(1, len(transports) + 1, figsize=(4.6 * (len(transports) + 1), 4.8), layout="constrained")
        for ax, transport in zip(axes, transports):
            for i, (name, curve) in enumerate(PAPER_SCALING.items()):
                ax.plot(list(curve), [v / curve[1] for v in curve.values()], color="black", ls=("--", ":")[i], marker="s", ms=4,
                        label=f"paper: {name}")
            for i, what in enumerate(self.r.whats("scaling", transport=transport)):
                plot(ax, self.relative(what, transport), COLOURS[i % len(COLOURS)], f"here: {what}")
            ax.set(xscale="log", yscale="log", xlabel="workers", ylabel="exchanges/s of all workers, relative to 1 worker",
                   title=f"Over {transport}")
            plain(ax, "x", self.r.values("scaling", "workers", transport=transport), str)
            plain(ax, "y", (0.5, 1, 2, 4, 8), lambda v: f"{v:g}")
        for t, transport in enumerate(transports):
            for i, what in enumerate(self.r.whats("scaling", transport=transport)):
                key = {"what": what, "transport": transport}
                counts = self.r.values("scaling", "workers", **key)
                plot(axes[-1], {n: self.r.spread("scaling", "box_cpu_s_per_gb", workers=n, **key) for n in counts},
                     COLOURS[i % len(COLOURS)], what, ls=("-", "--")[t % 2])
        lines = ", ".join(f"{line}: {transport}" for line, transport in zip(("solid", "dashed"), transports))
        axes[-1].set(xscale="log", xlabel="workers", ylabel="CPU seconds of the box per GB of gradients",
                     title=f"Cost for the box ({lines})")
        axes[-1].set_ylim(bottom=0)
        plain(axes[-1], "x", self.r.values("scaling", "workers"), str)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0),
                      ncol=5, fontsize=9)
        return figure


class Chunks:
    """Chunk sizes."""
    name, title = "chunks", "Chunk size"
    heads, align = ["over", "chunk", "rounds/s", "beside the best", "the paper's", "CPU s/GB", "command"], "lrrrrrl"

    def __init__(self, records):
        self.r = records

    def relative(self, transport):
        """Chunk in KiB: rate beside the best one's."""
        sizes = self.r.values("chunks", "chunk", transport=transport)
        rates = {size: self.r.spread("chunks", "rounds_per_s", transport=transport, chunk=size) for size in sizes}
        best = max((rate.median for rate in rates.values()), default=1)
        return {size >> 10: Spread(*(v / best for v in rate)) for size, rate in rates.items()}

    def claims(self):
        for transport in self.r.values("chunks", "transport"):
            found = {size: rate.median for size, rate in self.relative(transport).items()}
            if not JUDGED_CHUNKS <= set(found):
                continue
            best = max(found, key=found.get)
            yield [f"chunk size, {transport}: the best", f"32 KiB, or 32 KiB at {PLATEAU:.0%} of it", f"{best} KiB",
                   "as in the paper" if best == 32 else
                   f"{'as in the paper' if found[32] >= PLATEAU else 'differs'}: 32 KiB reaches {percent(found[32])} of it"]
            low = min((16, 32, 64, 128), key=found.get)
            yield [f"chunk size, {transport}: 16 to 128 KiB beside the best", f"at least {PLATEAU:.0%}", f"at least {percent(found[low])}",
                   "as in the paper" if found[low] >= PLATEAU else f"differs: {self._why(transport, low, best)}"]
            for size in (4, 2048):
                paper = PAPER_CHUNKS[size] / max(PAPER_CHUNKS.values())
                says = verdict(found[size], paper)
                yield [f"chunk size, {transport}: {size} KiB beside the best", f"{paper:.0%}", f"{found[size]:.0%}",
                       says if says == "as in the paper" else f"{says}: {self._why(transport, size, best)}"]

    def cpu(self, transport, size):
        return self.r.spread("chunks", "cpu_s_per_gb", transport=transport, chunk=size << 10)

    def _why(self, transport, size, best):
        """The limit here is not a wire but CPUs: what a chunk's size costs them."""
        if size == best:
            return "it is the best here, where CPUs are the limit and no wire"
        ratio = self.cpu(transport, size).median / self.cpu(transport, best).median
        return f"CPUs are the limit here, no wire, and {size} KiB take {times(ratio)} the CPU time of {best} KiB for the same bytes"

    def rows(self):
        for transport in self.r.values("chunks", "transport"):
            for size, relative in self.relative(transport).items():
                key = {"transport": transport, "chunk": size << 10}
                paper = PAPER_CHUNKS.get(size)
                yield [transport, f"{size} KiB", span(self.r.spread("chunks", "rounds_per_s", **key)), f"{relative.median:.0%}",
                       f"{paper / max(PAPER_CHUNKS.values()):.0%}" if paper else "-", number(self.cpu(transport, size).median),
                       f"`{self.r.command('chunks', **key)}`"]

    def draw(self, pyplot):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        best = max(PAPER_CHUNKS.values())
        left.plot(list(PAPER_CHUNKS), [v / best for v in PAPER_CHUNKS.values()], "s--", color="black", ms=4,
                  label="paper: PHub on PBox")
        left.fill_between((16, 128), PLATEAU, 1, color="0.8", zorder=0, label="paper: 16 to 128 KiB within 8 %")
        for i, transport in enumerate(self.r.values("chunks", "transport")):
            plot(left, self.relative(transport), COLOURS[i], f"here: {transport}")
            sizes = [size >> 10 for size in self.r.values("chunks", "chunk", transport=transport)]
            plot(right, {size: self.cpu(transport, size) for size in sizes}, COLOURS[i], f"here: {transport}")
        left.set(ylabel="rounds/s, relative to the best size", title="Speed")
        right.set(ylabel="CPU seconds of box and workers per GB of gradients", title="Cost")
        for ax in (left, right):
            ax.set(xscale="log", xlabel="bytes of a chunk")
            ax.set_ylim(bottom=0)
            plain(ax, "x", list(PAPER_CHUNKS), lambda v: f"{v}K" if v < 1024 else f"{v >> 10}M")
            ax.legend(fontsize=9)
        return figure


class Wide:
    """Tall against wide."""
    name, title = "wide", "Tall against wide aggregation"
    heads, align = ["keys of", "adds", "tall, GB/s", "wide, GB/s", "tall beside wide", "waits of wide", "command"], "lrrrrrl"
    WAYS = [(how, adds) for adds in ("held", "arriving") for how in ("tall", "wide")]

    def __init__(self, records):
        self.r = records

    def keys(self):
        """What was aggregated: label for people, and what picks its lines."""
        found = [(size_text(key), {"key": key, "what": "keys"}) for key in self.r.values("wide", "key", what="keys")]
        return found + [(what, {"what": what}) for what in self.r.whats("wide") if what != "keys"]

    def ratio(self, adds, **key):
        way = {"adds": adds, **key}
        return self.r.ratios("wide", "gb_per_s", {"how": "tall", **way}, {"how": "wide", **way})

    def claims(self):
        cores = self.r.of("wide")[0]["cores"] if self.r.of("wide") else 0
        found = [(self.ratio(adds, **key).median, label, adds) for label, key in self.keys() for adds in ("held", "arriving")]
        if found:
            ours, label, adds = max(found)
            says = verdict(ours, PAPER_WIDE)
            yield [f"tall beside wide, at most (keys of {label}, {adds}, {cores} cores)", f"up to {PAPER_WIDE}x", times(ours),
                   says + (f": {cores} cores wait for each other here, 28 on two sockets there" if "weaker" in says else "")]
        for label, key in self.keys():
            if key["what"] != "keys":
                yield [f"tall beside wide, {label}, arriving, {cores} cores", "-", times(self.ratio("arriving", **key).median),
                       "printed only"]

    def rows(self):
        for label, key in self.keys():
            for adds in ("held", "arriving"):
                speed = {how: self.r.spread("wide", "gb_per_s", how=how, adds=adds, **key) for how in ("tall", "wide")}
                yield [label, adds, span(speed["tall"]), span(speed["wide"]), times(self.ratio(adds, **key).median),
                       str(self.r.of("wide", how="wide", adds=adds, **key)[0]["waits"]), f"`{self.r.command('wide', **key)}`"]

    def draw(self, pyplot):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        sizes = self.r.values("wide", "key", what="keys")
        cores = self.r.of("wide")[0]["cores"]
        for i, (how, adds) in enumerate(self.WAYS):
            plot(left, {size: self.r.spread("wide", "gb_per_s", how=how, adds=adds, what="keys", key=size) for size in sizes},
                 COLOURS[i // 2], f"{how}, {adds}", ls="-" if how == "tall" else "--")
        for i, adds in enumerate(("held", "arriving")):
            plot(right, {size: self.ratio(adds, what="keys", key=size) for size in sizes}, COLOURS[i], f"here, {adds} ({cores} cores)")
        right.axhline(PAPER_WIDE, color="black", ls="--", label="paper: up to 20x (28 cores)")
        right.axhline(1, color="0.6", lw=0.8)
        left.set(xscale="log", xlabel="bytes of a key", ylabel="GB/s of gradients, 8 workers", title="Speed")
        left.set_ylim(bottom=0)
        right.set(xscale="log", yscale="log", xlabel="bytes of a key", ylabel="tall beside wide", title="How many times faster tall is")
        plain(right, "y", (1, 2, 5, 10, 20), lambda v: f"{v}x")
        for ax in (left, right):
            plain(ax, "x", sizes, lambda v: size_text(v).replace(" KiB", "K").replace(" MiB", "M"))
            ax.legend(fontsize=9)
        return figure


class Fused:
    """Fused against separate, and cached against streamed: there the kernels work in a block that stays in a cache, and what
    they rewrote is copied out past the caches, because they do not stream what they rewrite in place. No box does that."""
    name, title = "fused", "Optimizer fused or separate, weights and state stored cached or copied out"
    heads, align = ["what", "optimizer", "way", "GB/s", "beside fused, cached", "the paper's", "command"], "lllrrrl"
    WAYS = {"fused, cached": ("fused", "cached"), "fused, streamed": ("fused", "streamed"), "separate, cached": ("separate", "cached")}

    def __init__(self, records):
        self.r = records

    def relative(self, way, **key):
        as_said = {"pass": self.WAYS[way][0], "stores": self.WAYS[way][1], **key}
        return self.r.ratios("fused", "gb_per_s", as_said, {"pass": "fused", "stores": "cached", **key})

    def keys(self):
        return [{"what": what, "optimizer": optimizer} for what in self.r.whats("fused")
                for optimizer in self.r.values("fused", "optimizer", what=what)]

    def claims(self):
        for key in self.keys():
            name = f"{key['what']}, {key['optimizer']}"
            streamed, separate = self.relative("fused, streamed", **key), self.relative("separate, cached", **key)
            if streamed:
                paper = PAPER_STREAMED["cached"] / PAPER_STREAMED["streamed"]
                yield [f"weights and state stored cached beside copied out past the caches, {name}", times(paper),
                       times(1 / streamed.median),
                       verdict(1 / streamed.median, paper)]
            if separate:
                yield [f"fused beside separate optimizer, {name}", "faster", times(1 / separate.median),
                       "as in the paper (which gives no number)" if separate.median < 1 else "differs"]

    def rows(self):
        for key in self.keys():
            for way, (passes, stores) in self.WAYS.items():
                relative = self.relative(way, **key)
                if relative:
                    paper = PAPER_STREAMED[stores] / PAPER_STREAMED["cached"] if passes == "fused" else None
                    yield [key["what"], key["optimizer"], way,
                           span(self.r.spread("fused", "gb_per_s", stores=stores, **{"pass": passes}, **key)),
                           times(relative.median), times(paper) if paper else "-", f"`{self.r.command('fused', **key)}`"]

    def draw(self, pyplot):
        keys = self.keys()
        figure, ax = pyplot.subplots(figsize=(max(6.6, 2.6 + 2 * len(keys)), 4.4), layout="constrained")
        width = 0.8 / (len(keys) + 1)
        for i, key in enumerate(keys):
            found = [(x, self.relative(way, **key)) for x, way in enumerate(self.WAYS)]
            found = [(x, relative) for x, relative in found if relative]
            bars = ax.bar([x + (i + 1) * width for x, _ in found], [s.median for _, s in found], width * 0.95,
                          yerr=errors([s for _, s in found]), capsize=3, color=COLOURS[i % len(COLOURS)],
                          label=f"here: {key['what']}, {key['optimizer']}")
            ax.bar_label(bars, [f"{s.median:.2f}" for _, s in found], fontsize=9, padding=3)
        bars = ax.bar([0, 1], [1, PAPER_STREAMED["streamed"] / PAPER_STREAMED["cached"]], width * 0.95, color="white",
                      edgecolor="black", hatch="//", label="paper: VGG, 8 workers")
        ax.bar_label(bars, [f"{bar.get_height():.2f}" for bar in bars], fontsize=9, padding=3)
        ax.set_xticks([0.4 - width / 2, 1.4 - width / 2, 2.4 - width / 2],
                      ["fused,\ncached stores", "fused,\ncopied out", "separate optimizer,\ncached stores"])
        ax.set(ylabel="speed, relative to fused and cached", title="Sum and optimizer's step of 8 workers' gradients")
        ax.margins(y=0.15)
        ax.legend(fontsize=9, loc="upper right")
        ax.set_ylim(0, 1.45)
        return figure


class Jobs:
    """Jobs at once."""
    name, title = "jobs", "Jobs at once on one box"
    heads, align = ["each job", "over", "jobs", "rounds/s, all jobs", "beside 1 job", "smallest share", "largest share", "box CPU s/GB",
                    "command"], "llrrrrrrl"

    def __init__(self, records):
        self.r = records

    def every(self, what, transport, count):
        """The lines for all jobs together."""
        return {"what": what, "transport": transport, "jobs": count, "bench": "exchange" if count == 1 else "exchange jobs"}

    def keys(self):
        return [(what, transport) for what in self.r.whats("jobs") for transport in self.r.values("jobs", "transport", what=what)]

    def counts(self, what, transport):
        return self.r.values("jobs", "jobs", what=what, transport=transport)

    def cpu(self, what, transport, count):
        return self.r.spread("jobs", "box_cpu_s_per_gb", **self.every(what, transport, count))

    def relative(self, what, transport):
        counts = self.counts(what, transport)
        if 1 not in counts:
            return {}
        one = self.r.spread("jobs", "rounds_per_s", **self.every(what, transport, 1)).median
        return {n: Spread(*(v / one for v in self.r.spread("jobs", "rounds_per_s", **self.every(what, transport, n)))) for n in counts}

    def shares(self, what, transport, count):
        """The smallest and the largest share of a fair one: medians of the runs'."""
        key = self.every(what, transport, count)
        return [self.r.spread("jobs", f"share_{end}", **key) for end in ("min", "max")]

    def claims(self):
        for what, transport in self.keys():
            found = self.relative(what, transport)
            if 8 not in found:
                continue
            paper = PAPER_JOBS["ResNet-50" if "resnet" in what else "AlexNet"]
            ours = found[8].median
            cpu = self.cpu(what, transport, 8).median / self.cpu(what, transport, 1).median
            yield [f"work of 8 jobs beside one's, {what} each, {transport}", f"{paper:.0%}", f"{ours:.0%}",
                   "as in the paper" if abs(ours - paper) <= SHARE_MAX else
                   f"{'more' if ours > paper else 'less'}: no compute lies between exchanges, 16 workers and the box share "
                   f"{self.r.conditions['cpus']} CPUs, and a GB takes {times(cpu)} the box's CPU time"]
            low, high = (s.median for s in self.shares(what, transport, 8))
            far = max(1 - low, high - 1)
            yield [f"8 jobs, {what} each, {transport}: shares of a fair one", "-", f"{low:.2f} to {high:.2f}",
                   f"{'within' if far <= SHARE_MAX else 'not within'} 5 % (our own aim on the shaped rack)"]

    def rows(self):
        for what, transport in self.keys():
            for n, relative in self.relative(what, transport).items():
                key = self.every(what, transport, n)
                shares = [f"{s.median:.3f}" for s in self.shares(what, transport, n)] if n > 1 else ["-", "-"]
                yield [what, transport, str(n), span(self.r.spread("jobs", "rounds_per_s", **key)), times(relative.median), *shares,
                       number(self.cpu(what, transport, n).median), f"`{self.r.command('jobs', **key)}`"]

    def draw(self, pyplot):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        for i, (what, transport) in enumerate(self.keys()):
            plot(left, self.relative(what, transport), COLOURS[i % len(COLOURS)], f"here: {what}, {transport}")
            many = [n for n in self.counts(what, transport) if n > 1]
            ends = [self.shares(what, transport, n) for n in many]
            at = [n * (1 + 0.06 * (i - (len(self.keys()) - 1) / 2)) for n in many]
            middles = [(low.median + high.median) / 2 for low, high in ends]
            right.errorbar(at, middles, [(high.median - low.median) / 2 for low, high in ends], ls="none", capsize=4, lw=2,
                           color=COLOURS[i % len(COLOURS)], label=f"{what}, {transport}: smallest to largest")
        for (name, kept), marker in zip(PAPER_JOBS.items(), "s^"):
            left.plot([8], [kept], marker, color="black", mfc="none", ls="none", label=f"paper: {name}, with its compute")
        left.axhline(1, color="0.6", lw=0.8)
        right.axhspan(1 - SHARE_MAX, 1 + SHARE_MAX, color="0.93", zorder=0, label="5 %")
        left.set(xscale="log", xlabel="jobs at once, 2 workers each", ylabel="rounds/s of all jobs, relative to one job", title="Work done")
        left.set_ylim(bottom=0)
        right.set(xscale="log", xlabel="jobs at once, 2 workers each", ylabel="a job's rate, relative to its fair share", title="Fairness")
        low, high = right.get_ylim()
        right.set_ylim(min(low, 0.85), max(high, 1.15))
        for ax in (left, right):
            plain(ax, "x", self.r.values("jobs", "jobs"), str)
            ax.legend(fontsize=9)
        right.set_xlim(left.get_xlim())
        return figure


EXPERIMENTS = [Scaling, Chunks, Wide, Fused, Jobs]

# ---- drawing ----

COLOURS = ["#0b6e4f", "#1f4e9c", "#c0392b", "#7d3c98", "#e08e0b", "#5d6d7e", "#16a0a0", "#a04000", "#2e86c1", "#8e8e00"]


def size_text(nbytes):
    return f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"


def plot(ax, points, colour, label, ls="-"):
    """x: Spread."""
    spreads = list(points.values())
    ax.errorbar(list(points), [s.median for s in spreads], errors(spreads), color=colour, label=label, ls=ls, marker="o", ms=4,
                capsize=2)
    ax.grid(alpha=0.3)


def plain(ax, axis, ticks, text):
    """Only these ticks, with plain numbers."""
    getattr(ax, f"set_{axis}ticks")(list(ticks), [text(tick) for tick in ticks])
    ax.tick_params(axis=axis, which="minor", length=0, labelleft=False, labelbottom=False)


def draw(found, say):
    pyplot = pyplot_or_none(say, "the pictures are")
    if not pyplot:
        return
    for experiment in found:
        figure = experiment.draw(pyplot)
        figure.savefig(OUT / f"paper-{experiment.name}.png", dpi=120, bbox_inches="tight")
        pyplot.close(figure)


# ---- the files ----

def read():
    with open(OUT / "paper.jsonl") as lines:
        return Records(map(json.loads, lines))


def short_tables(records, found):
    c = records.conditions
    about = (f"{ran_on(c, records.end, 'bench-paper')} Medians of {c['runs']} runs that took turns, sums checked in each. The "
             "paper's numbers are read off the authors' posters; `-`: it gives none.")
    return [fill(about), "", *as_table(["claim", "PHub's", "here", "verdict"], "lrrl",
                                            [row for experiment in found for row in experiment.claims()])]


def write(say):
    records = read()
    found = [make(records) for make in EXPERIMENTS if records.of(make.name)]
    text = ["# PHub's own experiments, here", "", MARKS[0], *short_tables(records, found), MARKS[1]]
    for experiment in found:
        text += ["", f"## {experiment.title}", "", f"![{experiment.title}](paper-{experiment.name}.png)", "",
                 *as_table(experiment.heads, experiment.align, experiment.rows())]
    if records.end.get("failures"):
        text += ["", f"**{records.end['failures']} failures: see what paper.py said.**"]
    (OUT / "paper.md").write_text("\n".join(text) + "\n")
    draw(found, say)
    say(f"written to {OUT / 'paper.md'}")
    return 0


def part():
    records = read()
    if not records.end.get("complete"):
        raise ValueError("README takes no run of paper.py that left experiments out, or was interrupted")
    return readme_part(records, OUT / "paper.md", MARKS)
