#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/completion/phub.bash: what TAB offers for phub and phubd, beside what the programs themselves say that they take."""
import re
import subprocess

import rig
from rig import check

PHUB, PHUBD = str(rig.BUILD / "phub"), str(rig.PHUBD)
COMMANDS = (["bench", "exchange"], ["bench", "aggregation"], ["bench", "kernels"], ["bench", "seals"], ["bench", "train"], ["jobs"],
            ["top"],
            ["doctor"], ["topo"], ["topo", "probe"], ["plan"], ["models"], ["checkpoint", "ls"], ["checkpoint", "verify"],
            ["checkpoint", "restore"], ["checkpoint", "export"], ["checkpoint", "rm"], ["boxes"], ["promote"],
            ["scout", "compare"], ["scout", "explain"], ["scout", "plot"], ["scout", "dry-run"], ["scout", "run"], ["scout", "advise"])

CHOOSE = ("NAME", "WHICH", "HOW", "WAY", "TYPE")  # what --help calls values of which there may be few

# Reads lines as bash would have them when TAB is typed behind their last word, words with tabs between, and prints what is offered.
COMPLETE = """source "$1"
while IFS= read -r line; do
	COMP_WORDS=() COMPREPLY=()
	while [[ $line == *$'\\t'* ]]; do COMP_WORDS+=("${line%%$'\\t'*}"); line=${line#*$'\\t'}; done
	COMP_WORDS+=("$line")
	COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
	case ${COMP_WORDS[0]} in *phubd) _phubd ;; *) _phub ;; esac
	echo "${COMPREPLY[*]}"
done"""


def complete(asked):
    """What TAB offers behind each of these lists of words, as sets."""
    done = subprocess.run(["bash", "-c", COMPLETE, "bash", rig.ROOT / "deploy/completion/phub.bash"],
                          input="".join("\t".join(words) + "\n" for words in asked),
                          capture_output=True, text=True, timeout=rig.DEADLINE_S, check=True, env=rig.QUIET, cwd=rig.ROOT / "deploy")
    check(not done.stderr and done.stdout.count("\n") == len(asked), f"{done.stderr}{done.stdout}")
    return [set(line.split()) for line in done.stdout.splitlines()]


def options_of(words):
    """Of --help: each option, and what it calls its value, or "" where it takes none."""
    done = subprocess.run([PHUB, *words, "--help"], capture_output=True, text=True, check=True, timeout=rig.DEADLINE_S)
    return dict(re.findall(r"^  (--[\w-]+)(?: (\S+))?  ", done.stdout + "  ", re.M))


def choices_of(words, option):
    """Those of which one is allowed; None: there are no such."""
    done = subprocess.run([PHUB, *words, option, "?"], capture_output=True, text=True, check=False, timeout=rig.DEADLINE_S, env=rig.QUIET)
    found = re.search(rf"{option} \?: allowed: (.*); see ", done.stderr)
    return set(found.group(1).split(", ")) if found else None


def judge(asked, wanted):
    for words, offered, due in zip(asked, complete(asked), wanted, strict=True):
        check(offered == due, f"{words}: {offered}, not {due}")


def options():
    """each command's options, and behind one that takes no value further ones"""
    asked, wanted = [], []
    for words in COMMANDS:
        of = options_of(words)
        check("--help" in of, f"{words}: {of}")
        flags = [option for option, value in of.items() if not value]
        asked += [[PHUB, *words, "--"], *([PHUB, *words, flag, "--"] for flag in flags)]
        wanted += (1 + len(flags)) * [set(of)]
    judge(asked, wanted)


def values():
    """behind an option that takes a value its choices, where there are such, with and without =, and never another option"""
    asked, wanted, others, chosen = [], [], [], 0
    for words in COMMANDS:
        for option, value in options_of(words).items():
            choices = choices_of(words, option) if value in CHOOSE else None
            if choices:
                chosen += 1
                asked += [[PHUB, *words, option, ""], [PHUB, *words, option, "="], [PHUB, *words, option, "=", "?"]]
                wanted += [choices, choices, set()]
            elif value:
                others.append([PHUB, *words, option, ""])
    check(chosen > 15 and len(others) > 50, f"--help and errors have changed: {chosen} with choices, {len(others)} without")
    judge(asked, wanted)
    for words, offered in zip(others, complete(others), strict=True):
        check(not any(word.startswith("--") for word in offered), f"{words}: {offered}")
    judge([[PHUB, "topo", "--model", "res"], [PHUB, "plan", "--optimizer", "ada"], [PHUB, "boxes", "--racks", "ra"],
           [PHUB, "topo", "--svg", "=", "ra"]],
          [{"resnet-18", "resnet-50"}, {"adagrad", "adam", "adamw"}, {"racks.yaml"}, {"racks.yaml"}])


def of_phubd():
    """phubd's options, as --KEY and behind -o, and of phub behind --set, and their values: all as --dump-config tells them"""
    told = subprocess.run([PHUBD, "--dump-config"], capture_output=True, text=True, check=True, timeout=rig.DEADLINE_S).stdout
    allowed = {key: words.removesuffix(", each once")
               for words, key in re.findall(r"^# Allowed: (.*?)\.(?: Default: .*)?\n(\w+):", told, re.M)}
    del allowed["jobs"]  # only in a file
    choices = {key: set(words.split(", ")) for key, words in allowed.items() if re.fullmatch(r"[a-z0-9-]+(, [a-z0-9-]+)+", words)}
    check(len(allowed) > 50 and {"tls", "hierarchy", "transports", "uplink_type", "huge_pages"} <= set(choices),
          f"--dump-config has changed: {choices}")
    files = {path.name for path in (rig.ROOT / "deploy").iterdir()}
    keys, setting = {f"{key}=" for key in allowed}, [PHUB, "bench", "exchange", "--set"]
    asked = [[PHUBD, "--"], [PHUBD, "-o", ""], [*setting, ""]]
    wanted = [{"--config", "--dump-config", "--check-config", "--version", "--help", *(f"--{key}" for key in allowed)}, keys, keys]
    for key, words in allowed.items():
        due = files if words.startswith("a path") else choices.get(key, set())
        forms = [[PHUBD, "-o", key, "="], [PHUBD, f"--{key}", ""], [PHUBD, f"--{key}", "="], [*setting, key, "="]]
        asked += forms if key in choices else forms[:1]
        wanted += len(asked[len(wanted):]) * [due]
    asked += [[PHUBD, "-o", "hierarchy", "=", "sh"], [PHUBD, "-o", "transports", "=", "udp,t"], [PHUBD, "--config", "phubd"],
              [PHUBD, "--dump-config", "--tls_c"], [PHUBD, "--config", "phubd.yaml", "-o", "poll", "=", "b"]]
    wanted += [{"sharded"}, {"udp,tcp"}, {"phubd.yaml"}, {"--tls_cert"}, {"busy"}]
    judge(asked, wanted)


if __name__ == "__main__":
    rig.run([options, values, of_phubd])
