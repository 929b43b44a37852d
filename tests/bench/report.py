# SPDX-License-Identifier: Apache-2.0
"""From bench.jsonl, which run.py writes, to bench.md and bench.png, and from there to README.md."""
import collections
import json
import math
import statistics
import textwrap

from systems import OUT, ROOT

README = ROOT / "README.md"
MARKS = ("<!-- bench: from here on made by `make bench-readme` -->", "<!-- bench: to here -->")
BIG, ZERO_COPY, COPY = "100 MB", "zero-copy", "copy"

Spread = collections.namedtuple("Spread", "median min max")
# Of the runs of one system in one row; p50 and cpu are Spreads.
Median = collections.namedtuple("Median", "how through peer bytes workers kind p50 rate cpu")


def spread(values):
    values = list(values)
    return Spread(statistics.median(values), min(values), max(values))


def ratio(over, under):
    """Of two Spreads: their medians', and the least and the most that runs of either could give."""
    return Spread(over.median / under.median, over.min / under.max, over.max / under.min)


def fill(text):
    """Lines of a text; what can be pasted is never cut."""
    return textwrap.fill(text, 125, break_on_hyphens=False, break_long_words=False)


def cpu_name():
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def note_recipe(recipes, line):
    if line.get("recipe"):
        recipes[line["system"]] = line["recipe"]


def recipe_list(recipes):
    """For under a table."""
    if not recipes:
        return []
    return ["", "A peer's `echo` is an order, to be piped into its processes:", "",
            *(f"- {system}: {recipe}" for system, recipe in recipes.items())]


class Results:
    """What bench.jsonl holds."""

    def __init__(self, lines):
        self.conditions, self.end, self.kernels = {}, {}, []
        self.recipes = {}  # {system: what its orders are piped into}
        runs = collections.defaultdict(list)
        for line in lines:
            if line.get("bench") == "conditions":
                self.conditions = line
            elif line.get("bench") == "end":
                self.end = line
            elif line.get("bench") == "kernel":
                self.kernels.append(line)
            else:
                runs[line["name"], line["system"]].append(line)
                note_recipe(self.recipes, line)
        self.rows = collections.defaultdict(dict)  # row name: {system: Median}
        for (name, system), found in runs.items():
            self.rows[name][system] = self._median(found)

    @staticmethod
    def _median(runs):
        last = runs[-1]
        return Median(last["how"], last["through"], last["is_peer"], last["bytes"], last["workers"], last["row"]["kind"],
                      spread(run["p50_ms"] for run in runs), statistics.median(run["rounds_per_s"] for run in runs),
                      spread(run["cpu_s_per_gb"] for run in runs))

    def get(self, name, system):
        return self.rows.get(name, {}).get(system)

    def faster_peer(self, name, through=None):
        """Its name and its Median; of those that run through this transport. None: no peer was measured."""
        peers = [(system, m) for system, m in self.rows.get(name, {}).items()
                 if m.peer and (through is None or m.through == through)]
        return min(peers, key=lambda peer: peer[1].p50.median, default=None)


# ---- numbers as people read them ----

def number(value):
    """Three digits that count: 0.00452, 1.23, 45.6, 1,235."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def span(s):
    return f"{number(s.median)} ({number(s.min)} to {number(s.max)})"


def times(value):
    return f"{value:.2f}x" if value >= 0.1 else f"{value:.2g}x"


def percent(value):
    return f"{value:.1%}"


def as_table(heads, align, rows):
    rule = [{"l": "---", "r": "---:"}[side] for side in align]
    return ["| " + " | ".join(cells) + " |" for cells in ([*heads], rule, *rows)]


# ---- the tables ----

def exchange_table(results):
    rows = []
    for name, systems in results.rows.items():
        best = results.faster_peer(name)
        best_tcp = results.faster_peer(name, "tcp")
        for system, m in systems.items():
            beside = best_tcp if m.through == "tcp" and not m.peer else best
            rows.append([name, system, m.how, span(m.p50), number(m.rate), number(m.cpu.median),
                         times(beside[1].p50.median / m.p50.median) if beside else "-"])
    return as_table(["all-reduce of", "system", "how", "p50 ms", "rounds/s", "CPU s/GB", "speed"], "lllrrrr", rows)


def kernel_table(results):
    rows = [[k["kernel"], k["isa"], str(k["workers"]), k["cache"], number(k["gb_per_s"]), number(k["roofline_gb_per_s"]),
             f"{100 * k['gb_per_s'] / k['roofline_gb_per_s']:.0f} %"] for k in results.kernels]
    return as_table(["kernel", "isa", "workers", "cache", "GB/s", "roofline", "share"], "llrlrrr", rows)


def kernel_summary(results):
    """A line a kernel, beyond the caches; a column for each number of sources."""
    cold = {(k["kernel"], k["workers"]): k for k in results.kernels if k["cache"] == "cold"}
    counts = sorted({workers for _, workers in cold})

    def cell(k):
        if not k:
            return "-"
        spread = f" ({number(k['gb_per_s_min'])} to {number(k['gb_per_s_max'])})" if "gb_per_s_min" in k else ""
        return f"{number(k['gb_per_s'])}{spread}, {k['gb_per_s'] / k['roofline_gb_per_s']:.0%}"

    rows = [[kernel, *(cell(cold.get((kernel, workers))) for workers in counts)] for kernel in dict.fromkeys(k for k, _ in cold)]
    return as_table(["kernel", *(f"{n} sources" if n > 1 else "1 source" for n in counts)], "l" + "r" * len(counts), rows)


def kernel_text(results):
    if not results.kernels:
        return []
    isa = results.kernels[0]["isa"]
    return ["", fill(f"Kernels (`phub bench kernels --quick`, {isa}, one CPU, beyond the last-level cache): GB/s of gradients, and the share of the "
                     "roofline, the best of copies of the same arrays (store: of cached ones, because what it writes is added to next)."),
            "", *kernel_summary(results)]


class ClaimTable:
    """Numbers to reach, beside what was measured."""

    def __init__(self):
        self.rows = []

    def judge(self, claim, measured, least=None, most=None, form=times):
        """`measured` is a Spread, or None where its row was not measured. Without a limit it is printed only."""
        limit = least if least is not None else most
        wanted = "-" if limit is None else f"{'at least' if least is not None else 'at most'} {form(limit)}"
        if measured is None:
            self.rows.append([claim, wanted, "-", "not measured"])
            return
        reached, *other = [value >= least if least is not None else limit is None or value <= most for value in measured]
        close = ", within the spread" if len(set(other)) > 1 else ""
        said = form(measured.median)
        verdict = "printed only" if limit is None else f"reached{close}" if reached else f"not reached{close} (measured {said})"
        self.rows.append([claim, wanted, said, verdict])

    def table(self):
        return as_table(["claim", "to reach", "measured", "verdict"], "llrl", self.rows)

    def say(self, say):
        for claim, wanted, measured, verdict in self.rows:
            say(f"{verdict.split(' (')[0]}: {claim}: {measured}, to reach: {wanted}")


class Claims(ClaimTable):
    def __init__(self, results):
        super().__init__()
        self.results = results
        for mode, wanted in ((ZERO_COPY, 4), (COPY, 2)):
            self._speed(f"4 workers, {BIG}", f"phub shm {mode}", None, wanted)
        for workers, wanted in ((4, 1), (2, 0.5), (8, None)):
            for what in ("4 KB", "64 KB"):
                self._speed(f"{workers} workers, {what}", f"phub shm {ZERO_COPY}", None, wanted)
        for workers in (2, 4, 8):
            for mode in (ZERO_COPY, COPY):
                self._speed(f"{workers} workers, {BIG}", f"phub tcp {mode}", "tcp", 1)
        for workers in (2, 4, 8):
            self._cpu(workers, f"phub tcp {ZERO_COPY}")
        self._keys()
        self._kernels()

    def _speed(self, name, system, through, wanted):
        ours, best = self.results.get(name, system), self.results.faster_peer(name, through)
        which = f" ({best[0]})" if best else ""
        self.judge(f"{name}: {system} beside the faster peer{' over tcp' if through else ''}{which}, p50",
                   ratio(best[1].p50, ours.p50) if ours and best else None, least=wanted)

    def _cpu(self, workers, system):
        """phub moves 2 bytes through sockets for each gradient byte, a ring 2 (N - 1) / N."""
        name = f"{workers} workers, {BIG}"
        ours, gloo = self.results.get(name, system), self.results.get(name, "Gloo tcp")
        of_gradients = ratio(ours.cpu, gloo.cpu) if ours and gloo else None
        of_sockets = of_gradients and Spread(*(value * (workers - 1) / workers for value in of_gradients))
        self.judge(f"{name}: {system}, CPU per byte through sockets beside Gloo's", of_sockets, most=1)
        self.judge(f"{name}: {system}, CPU per byte of gradients beside Gloo's", of_gradients, most=1 if workers >= 4 else None)

    def _keys(self):
        name = next((name for name in self.results.rows if name.endswith("as keys")), "")
        one = self.results.get(name, f"phub shm {ZERO_COPY}")
        many = self.results.get(name, f"phub shm {ZERO_COPY}, 10,000 keys")
        self.judge("4 workers: 10,000 keys of 1 KiB beside one of 10.24 MB, p50",
                   ratio(many.p50, one.p50) if one and many else None, most=1.3)

    def _kernels(self):
        cold = [k for k in self.results.kernels if k["cache"] == "cold"]
        worst = min(cold, key=lambda k: k["gb_per_s"] / k["roofline_gb_per_s"], default=None)
        which = f" ({worst['kernel']}, {worst['workers']} sources)" if worst else ""
        rates = worst and (worst["gb_per_s"], worst.get("gb_per_s_min", worst["gb_per_s"]), worst.get("gb_per_s_max", worst["gb_per_s"]))
        self.judge(f"kernels, cold: share of the roofline, the lowest{which}",
                   Spread(*(rate / worst["roofline_gb_per_s"] for rate in rates)) if worst else None, least=0.9, form=percent)
        highest = max((k["gb_per_s"] / k["roofline_gb_per_s"] for k in self.results.kernels), default=None)
        self.judge("kernels: share of the roofline, the highest: above it a measurement is wrong",
                   Spread(highest, highest, highest) if highest else None, most=1.05, form=percent)


def ran_on(c, end, target):
    """The line about the machine. `busy`: CPUs that others used; older files have the load average instead."""
    busy = c.get("busy", c["load"])
    warning = " Other programs kept the CPUs busy meanwhile: these numbers say little." if busy > c["cpus"] / 2 else ""
    options = (f" RUNS={c['runs']}" if c.get("runs", 5) != 5 else "") + (f" ROWS={c['rows']}" if c["rows"] != "quick" else "")
    return (f"{c['cpus']} CPUs ({c['cpu']}), Linux {c['kernel']}, {busy:.2f} CPUs busy before the start, commit {c['commit']}, "
            f"{c['date']}; `make {target}{options}`, {end.get('seconds', 0)} s."
            f"{warning}")


def conditions(results):
    c = results.conditions
    where = (f"in a network namespace of their own, with {c['congestion_control']} and the host's buffer limits" if c["namespace"] else
             f"under the host's congestion control, {c['congestion_control']} (phub's own sockets: cubic)")
    return [fill(text) for text in (
        f"{ran_on(c, results.end, 'bench')} Medians of {c['runs']} runs that took turns; (smallest to largest).",
        "",
        f"phub, Open MPI and Gloo ran on the same machine {where}. None is bound to CPUs. Each got the best of its settings, found in a "
        "trial before the row. p50: over the rounds of all workers. CPU: of all processes, box included, per GB of gradients that all "
        "workers gave. Speed: p50 of the faster peer, of the faster one over tcp for phub's tcp, divided by this p50. "
        "`zero-copy`: data in memory of the library's; `copy`: in malloc'ed memory it did not see before. Peers sum a model as one "
        "buffer of as many bytes, which favours them. Sums were checked in every run."
        + (" For time, this set has `copy` at 100 MB only, and no shm at 8 workers and 100 MB; ROWS=full has all."
           if c["rows"] == "quick" else ""),
    )]


def tables(results):
    return [*conditions(results), "", *Claims(results).table(), *kernel_text(results), "", "<details><summary>Every row, with its "
            "command and spread</summary>", "", *exchange_table(results), *recipe_list(results.recipes), "", "</details>"]


# ---- the picture ----

COLOURS = {f"phub shm {ZERO_COPY}": "#0b6e4f", f"phub shm {COPY}": "#66b266", f"phub tcp {ZERO_COPY}": "#1f4e9c",
           f"phub tcp {COPY}": "#79a7e3", "Open MPI shm": "#c0392b", "Open MPI tcp": "#e59866", "Gloo tcp": "#7d3c98"}


def pyplot_or_none(say, what):
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        say(f"no matplotlib: {what} left out (deploy/deps.sh bench)")
        return None
    return pyplot


def draw(results, path, say):
    pyplot = pyplot_or_none(say, "bench.png is")
    if not pyplot:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 6), constrained_layout=True)
    plain = {name: systems for name, systems in results.rows.items()
             if all(m.kind == "exchange" for m in systems.values()) and name.split(", ")[1][0].isdigit()}
    draw_sizes(left, plain)
    draw_bars(right, plain)
    figure.savefig(path, dpi=110)


def errors(spreads):
    """As matplotlib wants them."""
    return [[s.median - s.min for s in spreads], [s.max - s.median for s in spreads]]


def bars(axes, groups, colours, value):
    """A bar for each of `colours` in each of `groups`, as high as value(group, name), a Spread; None: no bar."""
    width = 0.8 / len(colours)
    for i, (name, colour) in enumerate(colours.items()):
        at = [(x + (i - (len(colours) - 1) / 2) * width, value(group, name)) for x, group in enumerate(groups)]
        at = [(x, s) for x, s in at if s]
        if at:
            spreads = [s for _, s in at]
            drawn = axes.bar([x for x, _ in at], [s.median for s in spreads], width, yerr=errors(spreads), capsize=2, color=colour,
                             label=name)
            axes.bar_label(drawn, [number(s.median) for s in spreads], rotation=90, fontsize=8, padding=4,
                           bbox={"color": "white", "pad": 0.5})  # readable where a line is behind


def draw_sizes(axes, rows):
    """p50 against size, for the number of workers with the most sizes."""
    count = collections.Counter(m.workers for systems in rows.values() for m in list(systems.values())[:1])
    workers = max(count, key=count.get)
    for system, colour in COLOURS.items():
        points = sorted((systems[system].bytes, systems[system]) for systems in rows.values()
                        if system in systems and systems[system].workers == workers)
        if points:
            p50 = [m.p50.median for _, m in points]
            axes.errorbar([size for size, _ in points], p50, errors([m.p50 for _, m in points]), label=system, color=colour, capsize=2,
                          marker="o" if system.startswith("phub") else "s", ls="-" if system.startswith("phub") else "--")
    axes.set(xscale="log", yscale="log", xlabel="bytes of gradients per worker", ylabel="p50 of a round, ms",
             title=f"All-reduce, {workers} workers")
    axes.grid(alpha=0.3)
    axes.legend()


def draw_bars(axes, rows):
    """p50 of the largest size, by the number of workers."""
    largest = max((m.bytes for systems in rows.values() for m in systems.values()), default=0)
    groups = sorted({m.workers for systems in rows.values() for m in systems.values() if m.bytes == largest})
    found = {(m.workers, system): m for systems in rows.values() for system, m in systems.items() if m.bytes == largest}
    bars(axes, groups, COLOURS, lambda n, system: found[n, system].p50 if (n, system) in found else None)
    axes.set_xticks(range(len(groups)), [f"{n} workers" for n in groups])
    axes.margins(y=0.15)
    axes.set(ylabel="p50 of a round, ms (less is better)", title=f"All-reduce of {largest / 1e6:g} MB")
    axes.legend(loc="upper left")


# ---- the files ----

def read():
    with open(OUT / "bench.jsonl") as lines:
        return Results(map(json.loads, lines))


def write(say):
    results = read()
    text = ["# Measured here", "", MARKS[0], *tables(results), MARKS[1]]
    if results.kernels:
        text += ["", "## phub bench kernels --quick", "", *kernel_table(results)]
    if results.end.get("failures"):
        text += ["", f"**{results.end['failures']} failures: see what run.py said.**"]
    (OUT / "bench.md").write_text("\n".join(text) + "\n")
    if results.rows:
        draw(results, OUT / "bench.png", say)
    Claims(results).say(say)
    say(f"written to {OUT / 'bench.md'}")


def between_marks(text, where, marks):
    """What stands before, between and behind them."""
    if any(text.count(mark) != 1 for mark in marks):
        raise ValueError(f"{where} lacks the lines\n{marks[0]}\n{marks[1]}")
    before, rest = text.split(marks[0])
    inside, behind = rest.split(marks[1])
    return before, inside, behind


class Page:
    """What a bench with one program of its own writes: OUT/NAME.md for README.md, and OUT/NAME.jsonl with its conditions and runs."""

    def __init__(self, name, say):
        self.path, self.say = OUT / f"{name}.md", say
        self.marks = (f"<!-- {name}: from here on made by `tests/bench/{name}.py --readme` -->", f"<!-- {name}: to here -->")

    def answered(self, words, usage):
        """The exit code where the words after the program's name want no measurement, or None."""
        if words == ["--readme"]:
            return put_into_readme([self.part], self.say)
        if not words:
            return None
        print(usage)
        return 0 if words[0] in ("-h", "--help") else 2

    def write(self, text, conditions, lines):
        """`conditions`: with "runs" and "quick"."""
        self.path.write_text(f"{self.marks[0]}\n{text}{self.marks[1]}\n")
        self.path.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in [conditions, *lines]))
        print(text)

    def part(self):
        with open(self.path.with_suffix(".jsonl"), encoding="utf-8") as lines:
            conditions = json.loads(next(lines))
        if conditions["quick"] or conditions["runs"] < 5:
            raise ValueError("README takes medians of five runs at least, and none of QUICK=1")
        return self.marks, between_marks(self.path.read_text(), self.path, self.marks)[1]


def readme_part(results, path, marks):
    """What the file at `path` has for README.md: the marks, and what goes between them."""
    if results.conditions.get("rows", "smoke") == "smoke" or results.end.get("failures", 1):
        raise ValueError("README takes no smoke test, and no run that failed or was interrupted")
    return marks, between_marks(path.read_text(), path, marks)[1]


def part():
    return readme_part(read(), OUT / "bench.md", MARKS)


def put_into_readme(parts, say):
    """All of them or, when one is missing, none. Returns the exit code."""
    try:
        text = README.read_text()
        for marks, inside in [make() for make in parts]:
            before, _, behind = between_marks(text, README, marks)
            text = before + marks[0] + inside + marks[1] + behind
    except (OSError, ValueError) as error:
        say(f"{README} stays as it is: {error}")
        return 1
    README.write_text(text)
    say(f"{README} has {len(parts)} table{'s' if len(parts) > 1 else ''} anew")
    return 0
