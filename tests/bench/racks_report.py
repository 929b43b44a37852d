# SPDX-License-Identifier: Apache-2.0
"""From racks.jsonl, which racks.py writes, to racks.md, its pictures, and from there to README.md.

Claims are computed: what the links must carry and the least time that they allow, from the numbers of racks and workers; PHub's
overheads are read off the authors' posters (+-5 %)."""
import json

import report
from racks_train import COMPUTE_MS, CUT, FULL_MBIT, MBIT, SLOWER, UPLINK_WORKERS, WHOLE, WORKERS as TRAIN_WORKERS
from report import Spread, as_table, errors, fill, number, ran_on, spread, times
from systems import OUT

MARKS = ("<!-- racks: from here on made by `tests/bench/racks.py --readme` -->", "<!-- racks: to here -->")
TRAIN_MARKS = ("<!-- racks-train: from here on made by `tests/bench/racks.py --readme` -->", "<!-- racks-train: to here -->")
WAYS, PEERS = ("flat", "tree", "sharded", "chain"), ("Gloo", "Open MPI")
PAPER = {"alexnet": dict(zip(range(2, 9), (14.3, 14.7, 15.1, 15.5, 15.9, 16.2, 16.5))),
         "resnet-50": dict(zip(range(2, 9), (0.4, 1.6, 1.8, 1.8, 1.4, 1.5, 1.9)))}
TITLES = {"alexnet": "AlexNet", "resnet-50": "ResNet-50"}
FRAME, SEGMENT = 1514, 1448
COLOURS = {"flat": "#5d6d7e", "tree": "#66b266", "sharded": "#0b6e4f", "chain": "#1f4e9c", "Gloo": "#7d3c98", "Open MPI": "#c0392b"}


# ---- what links allow ----

def models(way, racks, workers, rack):
    """What a rack's uplink must carry in a round, each way, in models: PHub's section 3.4, and a ring of all workers in the racks'
    order for the peers, which is the least that crosses where nothing is summed for others in a rack."""
    if way == "flat":
        return (racks - 1) * workers if rack == 0 else workers
    if way == "tree":
        return racks - 1 if rack == 0 else 1
    count = racks if way in WAYS else racks * workers
    return 2 * (count - 1) / count


def floor_ms(way, racks, workers, mbit, oversubscribed, size):
    """The least time of a round: of the busiest uplink, and of a worker's link. A peer's: of its ring."""
    uplink = max(models(way, racks, workers, rack) for rack in (0, 1)) / (workers * mbit / oversubscribed)
    link = (1 if way in WAYS else 2 * (racks * workers - 1) / (racks * workers)) / mbit
    return max(uplink, link) * size * 8 / 1e3 * FRAME / SEGMENT


# ---- what was measured ----

class Records:
    def __init__(self, lines):
        self.lines = list(lines)
        self.conditions, self.end = self._one("conditions"), self._one("end")

    def _one(self, section):
        return next((line for line in self.lines if line["section"] == section), {})

    def of(self, section, **wanted):
        return [line for line in self.lines if line["section"] == section and all(line.get(key) == value for key, value in wanted.items())]

    def spread(self, section, value, **wanted):
        found = [line[value] for line in self.of(section, **wanted)]
        return spread(found) if found else None

    def shapes(self):
        return sorted({(line["racks"], line["oversubscribed"]) for line in self.of("exchange")})

    def ratios(self, section, value, over, under):
        """Run by run: what was measured in one turn is compared."""
        unders = {line["run"]: line[value] for line in self.of(section, **under)}
        found = [line[value] / unders[line["run"]] for line in self.of(section, **over) if line["run"] in unders]
        return spread(found) if found else None

    def busy(self, section, **wanted):
        return self.spread(section, "busy", **wanted)


# ---- the exchange ----

def traffic(records):
    """Models that each uplink carried in a round, the larger of its two ways, headers included, where it is oversubscribed least."""
    c = records.conditions
    for racks in sorted({racks for racks, _ in records.shapes()}):
        least = min(over for count, over in records.shapes() if count == racks)
        for system in (*WAYS, *PEERS):
            lines = records.of("exchange", racks=racks, system=system, oversubscribed=least)
            if not lines:
                continue
            found = [spread(max(max(line[way][pick]) for way in ("out", "in")) / line["bytes"] for line in lines)
                     for pick in (slice(0, 1), slice(1, None))]
            want = [models(system, racks, c["workers"], rack) for rack in (0, 1)] if system in WAYS else None
            yield [str(racks), system, *(f"{one.median:.2f}" + (f" ({want[i]:.3g})" if want else "") for i, one in enumerate(found))]


def best_way(records, **shape):
    """phub's fastest way, or None."""
    found = [(records.spread("exchange", "round_ms", system=way, **shape), way) for way in WAYS]
    return min([(s.median, way) for s, way in found if s], default=(None, None))[1]


def speeds(records):
    c = records.conditions
    for racks, over in records.shapes():
        shape = {"racks": racks, "oversubscribed": over}
        best = best_way(records, **shape)
        for system in (*WAYS, *PEERS):
            ms = records.spread("exchange", "round_ms", system=system, **shape)
            if not ms:
                continue
            floors = {name: floor_ms(name, racks, c["workers"], c["mbit"], over, c["bytes"]) for name in (system, best)}
            beside = records.ratios("exchange", "round_ms", {"system": system, **shape}, {"system": best, **shape})
            yield [str(racks), f"{over}:1", system, report.span(ms),
                   f"{floors[system]:.0f}" if system in WAYS else f"{floors[system]:.0f}, a ring",
                   "-" if system == best or not beside else f"{times(beside.median)} ({beside.min:.2f} to {beside.max:.2f})",
                   "-" if system == best else times(floors[system] / floors[best]),
                   f"{records.busy('exchange', system=system, **shape).median:.2f}"]


def speed_ups(records):
    """Of the best way over flat and the peers, run by run."""
    for racks, over in records.shapes():
        shape = {"racks": racks, "oversubscribed": over}
        best = best_way(records, **shape)
        found = [records.ratios("exchange", "round_ms", {"system": other, **shape}, {"system": best, **shape})
                 for other in ("flat", *PEERS)]
        if best:
            yield [str(racks), f"{over}:1", best,
                   *(f"{times(one.median)} ({one.min:.2f} to {one.max:.2f})" if one else "-" for one in found)]


def peers_text(records):
    lines = {}
    for line in records.of("exchange"):
        if line["is_peer"]:
            lines.setdefault((line["system"], line["recipe"]),
                             {}).setdefault(line["how"], []).append(f"{line['racks']} racks {line['oversubscribed']}:1")
    if not lines:
        return []
    text = ["", "What the peers ran, each the best of its settings in a trial; an `echo` is an order, to be piped into its processes:", ""]
    for (system, recipe), hows in lines.items():
        text.append(f"- {system}: {recipe}; " + "; ".join(f"{how} ({', '.join(dict.fromkeys(where))})" for how, where in hows.items()))
    return text


def exchange_text(records):
    c = records.conditions
    about = (f"{ran_on(c, records.end, 'bench-racks')} Medians of {c['runs']} runs that took turns (smallest to largest). A model of "
             f"{c['bytes'] / 1e6:g} MB, all-reduced as fp32, sums checked; {c['workers']} workers in each rack with links of {c['mbit']} Mbit/s of their own, "
             "boxes of one core; cubic for all.")
    return [fill(about), "", *as_table(["racks", "way", "uplink of the root's rack, models a round (as it must be)", "of the others"],
                                       "rlrr", traffic(records)),
            "", fill("An uplink carries what the links of its rack's workers do together (1:1), or a part of that. `links allow`: the time in which the "
                     "busiest link carries what it must, and behind it how many times the best way's that is; a peer's is that of a ring of all "
                     "workers, rack by rack. CPUs: all that were busy meanwhile, whoever used them."), "",
            *as_table(["racks", "uplinks", "way", "ms a round", "links allow", "beside the best way", "as links allow it", "CPUs busy"],
                      "rrlrrrrr", speeds(records)),
            "", "Speed-up of the best way, medians of the ratios within runs (smallest to largest):", "",
            *as_table(["racks", "uplinks", "best way", "over flat", *(f"over {peer}'s" for peer in PEERS)], "rrlrrr", speed_ups(records)),
            *peers_text(records)]


# ---- the experiment ----

def overhead(records, model, racks, oversubscribed=1, chunk=0):
    """In percent: what a step of each run takes longer than the median on one rack, of the same chunks."""
    found = records.spread("train", "step_ms", model=model, racks=racks, oversubscribed=oversubscribed, chunk=chunk)
    one = records.spread("train", "step_ms", model=model, racks=1, oversubscribed=1, chunk=chunk)
    return Spread(*(100 * (ms / one.median - 1) for ms in found)) if found and one else None


def percents(s):
    return f"{s.median:.1f} ({s.min:.1f} to {s.max:.1f})" if s else "-"


def columns(records):
    """(title, oversubscribed, chunk) of what was measured beside 1:1."""
    found = [("uplinks 4:1", 4, 0)] if records.of("train", oversubscribed=4) else []
    return found + ([("whole tensors", 1, WHOLE)] if records.of("train", chunk=WHOLE) else [])


def train_rows(records):
    for model in COMPUTE_MS:
        for racks in sorted({line["racks"] for line in records.of("train", model=model)}):
            key = {"model": model, "racks": racks, "oversubscribed": 1, "chunk": 0}
            one = racks == 1
            yield [TITLES[model], str(racks), "-" if one else f"{PAPER[model][racks]}",
                   "-" if one else percents(overhead(records, model, racks)),
                   *("-" if one else percents(overhead(records, model, racks, over, chunk)) for _, over, chunk in columns(records)),
                   *(number(records.spread("train", name, **key).median) for name in ("step_ms", "exchange_ms", "compute_ms")),
                   f"{records.busy('train', **key).median:.2f}"]


def why(records):
    """Why ours differs, as far as it was measured."""
    found = [s.median for s in (overhead(records, "alexnet", racks) for racks in range(2, 9)) if s]
    if not found:
        return []
    text = (f"AlexNet's step takes {min(found):.1f} to {max(found):.1f} % longer on several racks here, the paper's 14.3 to 16.5 %. Its step is nearly "
            "all exchange, and the cross-rack stage costs what of it is not behind the workers' own links: here each chunk of 32 KiB goes on as soon as "
            "its rack has summed it, and the uplink of eight links carries 2(K-1)/K models while each worker's link carries one.")
    whole = [(racks, overhead(records, "alexnet", racks, 1, WHOLE)) for racks in range(2, 9)]
    whole = [f"{s.median:.0f} % on {racks}" for racks, s in whole if s]
    if whole:
        text += f" Where a tensor is one chunk, so that a stage waits for the whole of it, the overhead is {', '.join(whole)} racks."
    text += (" The paper's grows by a seventh from 2 to 8 racks while what crosses an uplink grows to 1.75 times, "
             "which points to a cost of each round and not to the uplink's rate; the posters do not say which.")
    return ["", fill(text)]


def train_text(records):
    c = records.conditions
    chunks = " `whole tensors`: with chunks of 2 MiB, which hold any tensor." if records.of("train", chunk=WHOLE) else ""
    over = ", or that over 4" if records.of("train", oversubscribed=4) else ""
    about = (f"Racks of {TRAIN_WORKERS} workers, sharded over their boxes; overhead: of a step on K racks over the median on one rack, in "
             "percent. `phub bench train "
             "--schedule fifo --optimizer nesterov` computes as long as the paper's batch of 32 "
             f"({' and '.join(f'{ms} ms' for ms in COMPUTE_MS.values())}), to scale: links "
             f"of {MBIT} Mbit/s, 1/{SLOWER} of the {FULL_MBIT // 1000} Gbit/s that are assumed for the paper's; tensors of 1/{CUT} of "
             "torchvision's elements; chunks stay at 32 KiB, "
             f"which is that much coarser; all times are {SLOWER / CUT:g} times those at full size. An uplink is worth {UPLINK_WORKERS} "
             f"links, as many as workers in a rack of the paper's{over}."
             f"{chunks} ms and CPUs: at 1:1. {c['runs']} runs of each point took turns.")
    heads = ["model", "racks", "paper's overhead, %", "here, %", *(f"{title}, %" for title, _, _ in columns(records)), "ms a step",
             "exchange alone",
             "compute alone", "CPUs busy"]
    return [fill(about), "", *as_table(heads, "lr" + "r" * (len(heads) - 2), train_rows(records)), *why(records)]


# ---- pictures ----

def draw_speeds(records, pyplot):
    """Beside flat, run by run; and where the links would limit it."""
    c, shapes = records.conditions, records.shapes()
    figure, axes = pyplot.subplots(figsize=(max(7, 1.9 * len(shapes)), 5), layout="constrained")
    present = {system: colour for system, colour in COLOURS.items() if records.of("exchange", system=system)}

    def faster(shape, system):
        where = {"racks": shape[0], "oversubscribed": shape[1]}
        return records.ratios("exchange", "round_ms", {"system": "flat", **where}, {"system": system, **where})

    report.bars(axes, shapes, present, faster)
    for x, (racks, over) in enumerate(shapes):
        flat = records.spread("exchange", "round_ms", racks=racks, oversubscribed=over, system="flat")
        for i, system in enumerate(present if flat else ()):
            at = x + (i - (len(present) - 1) / 2) * 0.8 / len(present)
            axes.hlines(flat.median / floor_ms(system, racks, c["workers"], c["mbit"], over, c["bytes"]), at - 0.4 / len(present),
                        at + 0.4 / len(present), colors="black", label="links allow (a peer: a ring)" if i == x == 0 else None)
    axes.set_xticks(range(len(shapes)), [f"{racks} racks, {over}:1" for racks, over in shapes])
    axes.set(ylabel="times as fast as flat",
             title=f"All-reduce of {c['bytes'] / 1e6:g} MB over racks of {c['workers']} workers, uplinks 1:1 to 8:1")
    axes.margins(y=0.2)
    axes.legend(fontsize=9, loc="upper left")
    return figure


def draw_train(records, pyplot):
    models_here = [model for model in COMPUTE_MS if records.of("train", model=model)]
    figure, every = pyplot.subplots(1, len(models_here), figsize=(5.6 * len(models_here), 4.4), layout="constrained", squeeze=False)
    for axes, model in zip(every[0], models_here):
        axes.plot(list(PAPER[model]), list(PAPER[model].values()), "s--", color="black", mfc="none", label="paper")
        for (title, over, chunk), colour in zip([("here, uplinks 1:1", 1, 0), *columns(records)], ("#0b6e4f", "#1f4e9c", "#c0392b")):
            points = {racks: overhead(records, model, racks, over, chunk) for racks in range(2, 9)}
            points = {racks: s for racks, s in points.items() if s}
            if points:
                axes.errorbar(list(points), [s.median for s in points.values()], errors(list(points.values())), color=colour, marker="o",
                              ms=4, capsize=2,
                              label=title if title.startswith("here") else f"here, {title}")
        axes.axhline(0, color="0.6", lw=0.8)
        axes.set(xlabel="racks", ylabel="a step takes longer than on one rack, %", title=f"{TITLES[model]}: cross-rack overhead")
        axes.set_xticks(range(2, 9))
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -1), max(high * 1.1, 5))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    return figure


def draw(records, say):
    pyplot = report.pyplot_or_none(say, "the pictures are")
    if not pyplot:
        return
    for name, section, make in (("speed", "exchange", draw_speeds), ("train", "train", draw_train)):
        if records.of(section):
            figure = make(records, pyplot)
            figure.savefig(OUT / f"racks-{name}.png", dpi=110)
            pyplot.close(figure)


# ---- the files ----

def read():
    with open(OUT / "racks.jsonl") as lines:
        return Records(map(json.loads, lines))


def write(say):
    records = read()
    text = ["# Several racks in network namespaces", "", MARKS[0], "", *exchange_text(records), "", MARKS[1], "",
            "![speed](racks-speed.png)", "",
            "## PHub's experiment: a training step on several racks", "", TRAIN_MARKS[0], "", *train_text(records), "", TRAIN_MARKS[1], "",
            "![overhead](racks-train.png)"]
    if records.end.get("failures"):
        text += ["", f"**{records.end['failures']} failures: see what racks.py said; RESUME=1 measures them again.**"]
    (OUT / "racks.md").write_text("\n".join(text) + "\n")
    draw(records, say)
    say(f"written to {OUT / 'racks.md'}")
    return 0


def parts():
    return [lambda marks=marks: report.readme_part(read(), OUT / "racks.md", marks) for marks in (MARKS, TRAIN_MARKS)]
