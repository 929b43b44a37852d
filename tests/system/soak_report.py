# SPDX-License-Identifier: Apache-2.0
"""From a soak's JSON file to a table in markdown, a chart over time, and README.md."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
import report  # noqa: E402
from soak_watch import MIB, growth  # noqa: E402

MARKS = ("<!-- soak: from here on made by `python3 tests/system/soak.py --readme` -->", "<!-- soak: to here -->")
README_LEAST_S = 3600
CHARTS = (("memory, MiB", (("rss", "resident", MIB), ("anon", "anonymous", MIB), ("shared", "shared", MIB))),
          ("counts", (("fds", "file descriptors", 1), ("sockets", "of these sockets", 1), ("memfds", "memfds mapped", 1),
                      ("threads", "threads", 1))),
          ("jobs and workers", (("jobs", "jobs", 1), ("workers", "workers", 1), ("busy", "in the works", 1))),
          ("rounds a second", (("rounds_per_s", "all jobs", 1), ("steady_per_s", "the steady tenant", 1))))


def draw(told, path, say):
    pyplot = report.pyplot_or_none(say, f"{path.name} is")
    if not pyplot:
        return
    figure, axes = pyplot.subplots(len(CHARTS), 1, figsize=(11, 11), sharex=True, constrained_layout=True)
    for axis, (title, lines) in zip(axes, CHARTS):
        for name, label, unit in lines:
            points = [(s["at_s"] / 60, s[name] / unit) for s in told["samples"] if name in s and not s.get("quiet")]
            if points:
                axis.plot(*zip(*points), label=label, linewidth=0.8)
            still = [(s["at_s"] / 60, s[name] / unit) for s in told["samples"] if name in s and s.get("quiet")]
            if still and name in ("rss", "anon", "shared", "fds", "sockets", "memfds", "threads"):
                axis.plot(*zip(*still), ".", color="black", markersize=3)
        axis.set_title(title, loc="left", fontsize=9)
        if title.startswith("rounds"):
            axis.set_yscale("symlog")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8, loc="upper right")
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("minutes; dots: quiet points, where only the steady tenant is there")
    figure.savefig(path)


def number(value):
    return f"{value:,.0f}"


def grown(told, name, unit=1, digits=1):
    """First, last and highest value, and what a line through the quiet points gives over the run."""
    quiet = [s[name] / unit for s in told["samples"] if s.get("quiet") and name in s]
    most = max((s[name] / unit for s in told["samples"] if name in s), default=0)
    fitted = growth([s for s in told["samples"] if s.get("quiet")], name)
    line = f"{fitted[0] / unit:+.{digits}f}" if fitted else "-"
    return f"{quiet[0]:.{digits}f} | {quiet[-1]:.{digits}f} | {line} | {most:.{digits}f}" if quiet else "- | - | - | -"


def count_of(told, prefix):
    """Counts whose names begin like this, the largest first."""
    found = {name[len(prefix):]: count for name, count in told.items() if name.startswith(prefix)}
    return ", ".join(f"{name} {number(count)}" for name, count in sorted(found.items(), key=lambda one: -one[1]))


def table(told):
    counts, jobs = told["counts"], told["jobs"]
    named = ", ".join(f"{name} {number(count)}" for name, count in sorted(jobs.items(), key=lambda one: -one[1]))
    strangers = ", ".join(f"{name.replace('_', ' ')} {number(count)}"
                          for name, count in sorted(told["strangers"].items(), key=lambda one: -one[1]))
    killed = (f"It was killed {counts['kills']} times and came back on its checkpoints; workers went on {counts.get('resumed', 0)} times. "
              if counts.get("kills") else "")
    lines = [
        "", f"`make soak MINUTES={told['minutes']:g}{' KILL_BOX=1' if told['kill_box'] else ''}`, seed {told['seed']}, commit {told['commit']}, "
        f"{told['date']}, {told['cpus']} CPUs: **{told['verdict']}**.", "",
        report.fill(
            f"One phubd of 2 cores served {number(sum(jobs.values()))} jobs in {told['seconds'] / 60:.0f} minutes ({named}), "
            f"which ended as was due: {number(counts.get('rounds', 0))} rounds and {counts.get('pushed_bytes', 0) / 1e9:.1f} GB of gradients, "
            f"all sums checked. {killed}"
            f"Workers ended: {count_of(counts, 'workers: ')}. Turned down at the door: {count_of(told['notes'], 'refused: ') or 'nobody'}. "
            f"Beside them {number(sum(told['strangers'].values()))} visits of strangers "
            f"({strangers}); the box turned {number(counts.get('strangers_refused', 0))} away, "
            f"{number(counts.get('strangers_limited', 0))} of them unheard, and dropped "
            f"{number(counts.get('datagrams_dropped', 0))} datagrams. "
            + ("" if told["broken"] else "The steady tenant, which ran from the first second to the last, saw no error")
            + ("." if told["broken"] or told["kill_box"] else f", and kept {told['share']:.0%} of the rounds that it makes alone "
               f"(worst ten seconds: {told['worst_share']:.0%}).")), "",
        f"The box took {told['cpu_s'] / told['seconds']:.2f} CPUs; {counts.get('rounds', 0) / told['seconds']:.0f} rounds and "
        f"{counts.get('pushed_bytes', 0) / told['seconds'] / 1e6:.1f} MB of gradients a second.", "",
        "| at quiet points | first | last | fitted growth | most, under load |", "|---|---|---|---|---|",
        f"| anonymous memory, MiB | {grown(told, 'anon', MIB)} |", f"| heap (brk), MiB | {grown(told, 'heap', MIB)} |",
        f"| shared memory, MiB | {grown(told, 'shared', MIB)} |", f"| memfds mapped | {grown(told, 'memfds', 1, 0)} |",
        f"| file descriptors | {grown(told, 'fds', 1, 0)} |", f"| sockets | {grown(told, 'sockets', 1, 0)} |",
        f"| threads | {grown(told, 'threads', 1, 0)} |", ""]
    return "\n".join(lines)


def write(told, folder, say):
    """soak.json, soak.md and soak.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.json").write_text(json.dumps(told) + "\n")
    (folder / "soak.md").write_text(f"{MARKS[0]}\n{table(told)}\n{MARKS[1]}\n")
    try:
        draw(told, folder / "soak.svg", say)
    except (ValueError, RuntimeError) as why:
        say(f"no soak.svg: {why}")
    say(f"figures: {folder / 'soak.md'}, {folder / 'soak.json'}, {folder / 'soak.svg'}")


def part(folder):
    told = json.loads((folder / "soak.json").read_text())
    if told["broken"] or told["seconds"] < README_LEAST_S or told["kill_box"]:
        raise ValueError("README takes an hour at least without KILL_BOX, in which nothing broke")
    return MARKS, f"\n{table(told)}\n"
