#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub scout advise as other trainers meet it: what it answers to reports, and what it makes of those that cannot be."""
import json
import math
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import rig
from rig import check, holds
from scout_rig import FOLDER, PHUB, fill, lines, phub, small_disk


class Advisor:
    def __init__(self, *words, sites=2, listen=None, prefix=(), status=0):
        self.status = status
        self.path = listen or f"unix:{FOLDER}/advise"
        self.process = subprocess.Popen([*prefix, PHUB, "scout", "advise", "--listen", self.path, "--sites", str(sites),
                                         "--model-bytes", "1000", "--thetas",
                                         "1,2,5,10", *([] if "scout+" in words else ["--theta", "5"]), "--period", "100", *words],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=rig.QUIET, cwd=FOLDER)
        self.said = self.process.stdout.readline()
        if not listen:
            holds(self.said, "listen.*unix:")
        else:
            self.path = self.said.split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.out, self.err = self.process.communicate(timeout=rig.DEADLINE_S)
        check(self.process.returncode == self.status, f"exit code {self.process.returncode}: {self.err}")

    def call(self):
        host, port = self.path.rsplit(":", 1)
        peer = socket.socket(socket.AF_UNIX if host == "unix" else socket.AF_INET)
        peer.settimeout(rig.DEADLINE_S)
        peer.connect(port if host == "unix" else (host, int(port)))
        return peer

    def ask(self, *lines):
        """The answers to these lines, which come in as many."""
        with self.call() as peer:
            peer.sendall(b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines))
            with peer.makefile("rb") as answers:
                return [json.loads(answers.readline() or b'{"closed":1}') for _ in lines]


def report(site, step, away, **more):
    return {"site": site, "step": step, "home": {"correct": 90, "samples": 100}, "away": {"correct": away, "samples": 100}, "bytes": 20000,
            **more}


def advise():
    """advise: all hear one decision when all have reported; who is late hears what holds; the log is one that explain reads"""
    with Advisor("--out", "advise.jsonl") as a:
        check(a.ask({"site": 0, "step": 0})[0]["sync_every"] == 5, "the first theta")
        heard = []
        waits = threading.Thread(target=lambda: heard.extend(a.ask(report(0, 100, 70))))
        waits.start()
        time.sleep(0.2)
        check(not heard, "an answer before all have reported")
        heard += a.ask(report(1, 100, 70))
        waits.join()
        check(len(heard) == 2 and heard[0] == heard[1] and heard[0]["sync_every"] == 2 and heard[0]["action"] == "tightens", str(heard))
        check(a.ask(report(0, 100, 70))[0]["reason"] == "the window of this step is over: it ended at step 100", "late")
        both = a.ask(report(0, 200, 89), report(1, 200, 89))
        check(both[0] == both[1] and both[0]["window"] == 1, str(both))
        mode = os.stat(FOLDER / "advise").st_mode
        check(stat.S_ISSOCK(mode) and not mode & 0o077, f"{mode:o}")
    check(not (FOLDER / "advise").exists(), "the socket is left behind")
    holds(a.out, r"step 100: theta 5, then 2 \(tightens\)")
    windows = [line for line in lines((FOLDER / "advise.jsonl").read_text()) if line["scout"] == "decision"]
    check([w["t"] for w in windows] == [100, 200] and abs(windows[0]["AL"] - 0.2) < 1e-12 and windows[0]["bytes"] == 20000, str(windows))
    check([w["bytes_total"] for w in windows] == [21000, 42000], "bytes are of a window, and a model more that was tried elsewhere")
    holds(phub("explain", "advise.jsonl")[0], "advise: local, policy hill, 2 sites; 2 windows, theta changed in")


def moves(k, step, heard, **more):
    return {"site": k, "step": step, "bytes": 20000, "moves": {"exchanges": 100, "said": 4, "heard": heard}, "weight": 1 + k, "rate": 0.05,
            "train": {"loss": 50, "samples": 100}, **more}


def advise_counts():
    """advise: BSP's bytes are those of windows and sites that were reported; a replay goes by its schedule, which may have a theta twice"""
    with Advisor("--out", "counts.jsonl", "--wait", "0.3") as a:
        for step in (700, 800, 1200):  # 600 steps had no advisor, then three windows went by without a word
            a.ask(report(0, step, 80), report(1, step, 80))
        a.ask(report(0, 1230, 80), report(1, 1230, 80))  # and one came early
        a.ask(report(0, 1330, 80))  # of two sites one
    told = [line for line in lines((FOLDER / "counts.jsonl").read_text()) if line["scout"] == "decision"]
    check([line["bytes_bsp"] for line in told] == [1000 * steps for steps in (100, 200, 300, 330, 380)], str(told))
    with Advisor("--policy", "scout+", "--out", "counts.jsonl") as a:  # which no model travels for, whatever reports say
        a.ask(report(0, 100, 80), report(1, 100, 80))
    _, told, end = lines((FOLDER / "counts.jsonl").read_text())
    check(told["bytes_total"] == 20000 and told["bytes_travel"] == end["bytes_travel"] == 0, f"{told}, {end}")
    path = f"unix:{FOLDER}/replay"
    process = subprocess.Popen([PHUB, "scout", "advise", "--listen", path, "--sites", "1", "--model-bytes", "9", "--policy", "replay",
                                "--thetas", "5,2,5,1"],
                               stdout=subprocess.PIPE, text=True, env=rig.QUIET, cwd=FOLDER)
    process.stdout.readline()
    steps = []
    for step in (0, 500, 1000, 1500, 2000):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path[5:])
            peer.sendall(json.dumps({"site": 0, "step": step}).encode() + b"\n")
            steps.append(json.loads(peer.recv(4096))["sync_every"])
    check(steps == [5, 2, 5, 1, 1], str(steps))
    process.terminate()
    process.wait()


def advise_pulls():
    """advise: scout+ sets theta by how far sites say that they have moved; dry-run of its log decides the same; silence leads back"""
    squares = 5 / 9  # of shares 1/3 and 2/3
    for pull, wanted in ((0.1, 10), (49, 2)):
        with Advisor("--policy", "scout+", "--out", "pulls.jsonl", "--wait", "0.2") as a:
            check(a.ask({"site": 0, "step": 0})[0]["sync_every"] == 1, "it begins at the tightest")
            for window in range(1, 9):
                level = {"loss": 100 - window, "samples": 200}
                answer = a.ask(*(moves(k, 100 * window, 4 * squares / (1 + pull), before=level, after=level) for k in range(2)))[0]
            check(answer["sync_every"] == wanted, f"pull {pull}: {answer}")
            for window in range(9, 12):
                answer = a.ask(moves(0, 100 * window, 1, moves=None) if window == 9 else {"site": 0, "step": 100 * window})[0]
                check(answer["action"] == "falls back" and answer["sync_every"] == (wanted if window < 11 else 1),
                      f"window {window}: {answer}")
            holds(answer["reason"], "is missing, or cannot be true, for 3 windows")
        told = [line for line in lines((FOLDER / "pulls.jsonl").read_text()) if line["scout"] == "decision"]
        check(abs(told[3]["r_all"] * (1 + pull) / squares - 1) < 1e-9 and told[3]["train_loss"] == 0.5 and told[3]["seen"]["after"] == 0.48,
              str(told[3]))
        again = lines(phub("dry-run", "pulls.jsonl", "--json")[0])
        check([line["next"] for line in again] == [line["next"] for line in told], f"{again} of {told}")
    with Advisor("--policy", "scout+", sites=3) as a:  # one of three says that the mean was longer, or was nothing
        for window, lie in ((1, 1e300), (2, 0), (3, 1e300), (4, 0)):
            answer = a.ask(*(moves(k, 100 * window, lie if k == 1 else 1.2, weight=1) for k in range(3)))[0]
        check(answer["sync_every"] > 1, f"a lie was believed: {answer}")
    for lie in ({"exchanges": 1000000000, "said": 4e7}, {"exchanges": 1, "said": 0.04}, {"sites": 1},
                {"sites": 1024}):  # of three, and hears what all do
        with Advisor("--policy", "scout+", "--out", "pulls.jsonl", sites=3) as a:
            for window in (1, 2, 3):
                a.ask(*({**moves(k, 100 * window, 4 / 3, weight=1),
                         "moves": {"exchanges": 100, "said": 4, "heard": 4 / 3, "sites": 3, **(lie if k == window - 1 else {})}}
                        for k in range(3)))
        told = [line["seen"] for line in lines((FOLDER / "pulls.jsonl").read_text()) if line["scout"] == "decision"]
        check(all(seen["exchanges"] == 100 and abs(seen["sites"] - 3) < 1e-9 and abs(seen["said"] - 4) < 1e-9 for seen in told),
              f"{lie} was believed: {told}")
    with Advisor("--policy", "scout+", sites=3) as a:  # one of three says that it learns no more
        for window in range(1, 13):
            answer = a.ask(*(moves(k, 100 * window, 4 / 3 / 50, weight=1, rate=1e-9 if k == 2 and window > 8 else 0.05)
                             for k in range(3)))[0]
            check(window < 8 or answer["sync_every"] == 2, f"window {window}: {answer}")


def advise_waits():
    """advise: who does not report is waited for so long, and then is silent; a site that asks again is one; gone ones do no harm"""
    with Advisor("--wait", "0.5", "--json", sites=3) as a:
        began = time.monotonic()
        gone = a.call()
        gone.sendall(json.dumps(report(2, 100, 80)).encode() + b"\n")
        gone.close()
        first = a.call()
        first.sendall(json.dumps(report(0, 100, 10)).encode() + b"\n")
        check(a.ask(report(0, 100, 80))[0]["action"] == "tightens", "of three two have reported")
        check(0.3 < time.monotonic() - began < 55, f"{time.monotonic() - began} s, of 60 without the option")
        first.close()
        answer = a.ask({"site": 1, "step": 200, "bytes": 5})[0]
        check(answer["action"] == "falls back", str(answer))
    decisions = [line for line in lines(a.out) if line["scout"] == "decision"]
    check(decisions[0]["believed"] == 2 and abs(decisions[0]["AL"] - 0.1) < 1e-12 and decisions[1]["AL"] is None, str(decisions))


def advise_silent():
    """advise: sites that never report are named; the mean is of them too, or of as many as a report says; dry-run decides the same"""
    for more, heard in (({}, 4 / 5), ({"sites": 3}, 4 / 3)):  # of noise alone, of square 4
        with Advisor("--policy", "scout+", "--out", "silent.jsonl", "--wait", "0.1", sites=5) as a:
            for window in range(1, 4):
                answer = a.ask(*({**moves(k, 100 * window, heard, weight=1), "moves": {"exchanges": 100, "said": 4, "heard": heard, **more}}
                                 for k in (0, 2, 4)))[0]
                holds(answer["reason"], "; site 1 has not reported, nor have 1 more$")
        told = [line for line in lines((FOLDER / "silent.jsonl").read_text()) if line["scout"] == "decision"]
        check(told[1]["pull"] < 1e-9 and answer["sync_every"] == 10, f"{more}: {told[1]}")
    with Advisor("--out", "silent.jsonl", "--wait", "0.1", sites=3) as a:
        for window, reporting in enumerate(((0, 2), (0, 1, 2), (0,), (0, 2), (0, 1)), 1):
            answer = a.ask(*(report(k, 100 * window, 80 + window) for k in reporting))[0]
            check(("has not reported" in answer["reason"]) == (len(reporting) < 3), str(answer))
    told = [line for line in lines((FOLDER / "silent.jsonl").read_text()) if line["scout"] == "decision"]
    check([line.get("bytes_cost") for line in told] == [20000, None, 20000, 20000, 20000], str(told))
    again = lines(phub("dry-run", "silent.jsonl", "--json")[0])
    check([line["next"] for line in again] == [line["next"] for line in told], f"{again} of {told}")


def advise_heavy():
    """advise: one heavy site that is late weighs what it did, and no site is another for it; where the mean is known to be without it, it is not in it"""
    weights = 4, 1, 1, 1, 1
    for more, wanted in (({}, 3.2), ({"sites": 5}, 3.2), ({"sites": 4}, 4)):
        with Advisor("--policy", "scout+", "--out", "heavy.jsonl", "--wait", "0.1", sites=5) as a:
            for window in range(1, 7):
                said = {"exchanges": 100, "said": 4, "heard": 1, **(more if window == 6 else {})}
                answer = a.ask(*({**moves(k, 100 * window, 1, weight=weights[k]), "moves": said} for k in range(window == 6, 5)))[0]
                check(window < 6 or more == {"sites": 4} or "others" not in answer["reason"], answer["reason"])
        told = [line["seen"]["sites"] for line in lines((FOLDER / "heavy.jsonl").read_text()) if line["scout"] == "decision"]
        check(all(abs(sites - 3.2) < 1e-9 for sites in told[:5]) and abs(told[5] - wanted) < 1e-9, f"{more}: {told}")


def advise_weights():
    """advise: a weight beyond all does not decide what theta is: it counts as twice the middle one's where more would loosen, and the reason names the site"""
    for weight, wanted, more in ((1, 2, ""), (1e9, 2, "; site 1 says a weight above 2 times the middle one's, and counts as that$"),
                                 (1e308, 2, "site 1 says a weight")):
        with Advisor("--policy", "scout+", sites=5) as a:
            for window in range(1, 7):
                heard = 4 / 5 / 51
                answer = a.ask(*({**moves(k, 100 * window, heard, weight=1),
                                  **({"weight": weight, "moves": {"exchanges": 100, "said": heard, "heard": heard}} if k == 1 else {})}
                                 for k in range(5)))[0]
            check(answer["sync_every"] == wanted, f"{weight}: {answer}")
            holds(answer["reason"], more)


def advise_lies():
    """advise: with --trim one site of five that lies of accuracies or losses, for ever, changes nothing.
    Without, the reason names who stands out, and is short whatever is said"""
    def course(lie, *words, policy):
        with Advisor("--policy", policy, *words, sites=5) as a:
            told = []
            for window in range(1, 26):
                level = [{"loss": 200 - (window - i) / 10, "samples": 200} for i in (1, 0)]
                said = [{**moves(k, 100 * window, 4 / 5 / 21, weight=1), **report(k, 100 * window, 70),
                         "train": {"loss": 100, "samples": 100},
                         "before": level[0], "after": level[1]} for k in range(5)]
                told.append(a.ask(*({**one, **lie} if k == 1 else one for k, one in enumerate(said)))[0])
            return told

    def loss(value):
        return {"loss": value, "samples": 100}

    def score(correct):
        return {"correct": correct, "samples": 100}

    for policy, lies in (("hill", [{"home": score(100), "away": score(100)}, {"home": score(0), "away": score(100)},
                                   {"home": score(100), "away": score(0)}]),
                         ("scout+", [{"train": loss(1e300)}, {"train": loss(-1e300)}, {"before": loss(1e300), "after": loss(-1e300)},
                                     {"after": loss(1e300)}])):
        honest = [told["sync_every"] for told in course({}, "--trim", "0.2", policy=policy)]
        for lie in lies:
            found = course(lie, "--trim", "0.2", policy=policy)
            check([told["sync_every"] for told in found] == honest, f"{lie}: {found}")
            found = course(lie, policy=policy)
            check(all(len(told["reason"]) < 239 for told in found), f"{lie}: {found}")
            check("train" in lie or any("site 1 stands out" in told["reason"] for told in found), f"{lie}: {found[-1]}")


def advise_far():
    """advise: who says to have moved beyond all does not hold theta tightest: it counts as four times the middle one's, and the reason names the site"""
    told = {}
    for times in (1, 4, 20, 1e12):
        with Advisor("--policy", "scout+", sites=5) as a:
            for window in range(1, 7):
                said = [{"exchanges": 100, "said": 4 * (times if k == 4 else 1), "heard": 0.5} for k in range(5)]
                answer = a.ask(*(moves(k, 100 * window, 0, weight=1, moves=said[k]) for k in range(5)))[0]
            told[times] = answer["sync_every"]
            holds(answer["reason"], "; site 4 says moves .squared. above 4 times the middle one's, and counts as that$" if times > 4 else "")
    check(1 < told[4] == told[20] == told[1e12] <= told[1], str(told))


def advise_broken():
    """advise: what is no finite number is null: who says so of its model is named, and scout+ falls back to the tightest; counts may be reals"""
    broken = {"train": {"loss": None, "samples": 100}}, {"moves": {"exchanges": 100, "said": None,
                                                                   "heard": 1}}, {"moves": {"exchanges": 100, "said": 1, "heard": None}}
    for more in broken:
        with Advisor("--policy", "scout+", sites=3) as a:
            for window in range(1, 8):
                answer = a.ask(*(moves(k, 100 * window, 1.2, weight=1, **(more if k == 1 and window > 4 else {})) for k in range(3)))[0]
                check(answer["sync_every"] == (10 if 4 <= window < 7 else answer["sync_every"]), f"window {window}: {answer}")
            check(answer["action"] == "falls back" and answer["sync_every"] == 1, f"{more}: {answer}")
            holds(answer["reason"], "for 3 windows in a row; site 1 has weights, gradients or losses that are no numbers$")
            answer = a.ask(*(moves(k, 800, 1.2, weight=1, rate=None, before={"loss": None, "samples": 9},
                                   after={"loss": None, "samples": 9}) for k in range(3)))[0]
            check(answer["action"] == "loosens" and "; " not in answer["reason"], f"the mean model's loss is nobody's fault: {answer}")
    (FOLDER / "broken.jsonl").write_text('{"scout":"run","job":"another"}\n')
    with Advisor("--out", "broken.jsonl") as a:
        answer = a.ask(report(0, 100.0, 80, bytes=2e4), report(1, 1e2, 80, home={"correct": None, "samples": 100.0}))[0]
        holds(answer["reason"], "; of what models get right at site 1 nothing is known$")
        answer = a.ask({**report(0, 120, 80), "away": {"correct": None, "samples": 100}}, report(1, 120, 80))[0]
        holds(answer["reason"], "; of what models get right at site 0 nothing is known$")
        answer = a.ask(report(0, 150, 80), report(1, 150, 80, home={"correct": None, "samples": 0}))[0]
        check("no numbers" not in answer["reason"], f"who was tried on nothing has numbers: {answer}")
        answer = a.ask(json.dumps(report(0, 200, 80, train={"loss": -math.inf, "samples": 1},
                                         before={"loss": math.inf, "samples": 1})).encode(),
                       json.dumps(report(1, 200, 80, home={"correct": math.nan, "samples": 9}, note='"NaN, Infinity')).encode())[0]
        holds(answer["reason"], "; site 0 has weights, gradients or losses that are no numbers")
        for line in (b'{"site":0,"step":300,"train":{"loss":nan,"samples":1}}', b'{"site":0,"step":300,"secret":NaN"}', b"NaN" * 1365):
            holds(a.ask(line)[0]["error"], "no JSON")
    check([line["bytes"] for line in lines((FOLDER / "broken.jsonl").read_text()) if line["scout"] == "decision"] == [20000, 20000, 20000, 20000],
          "of reals")
    check(a.err == "phub: the log of the run before is broken.jsonl.before\n" and "another" in (FOLDER / "broken.jsonl.before").read_text(),
          a.err)


def advise_killed():
    """advise: one that was killed and is started again keeps what it had logged, also where a log before that is there.
    A first line alone is nothing to keep"""
    out, before = FOLDER / "killed.jsonl", FOLDER / "killed.jsonl.before"
    before.write_text('{"scout":"run","job":"older"}\n{"scout":"end"}\n')
    for window in (1, 2):
        a = Advisor("--out", out.name, sites=1)
        a.ask(report(0, 100 * window, 70))
        a.process.kill()
        a.process.communicate()
        said = lines(out.read_text())
        check([line["scout"] for line in said] == ["run", "decision"] and said[1]["t"] == 100 * window, str(said))
        if window == 1:
            check("older" in before.read_text(), "the log before was touched")
    check(lines(before.read_text())[1]["t"] == 100, f"what the first one had logged is gone: {before.read_text()}")
    out.write_text(out.read_text().split("\n")[0] + "\n")
    with Advisor("--out", out.name, sites=1) as a:
        a.ask(report(0, 300, 70))
    check(lines(before.read_text())[1]["t"] == 100 and lines(out.read_text())[1]["t"] == 300, before.read_text())
    check(a.err == "phub: killed.jsonl was of a run that was broken off, and has gone; killed.jsonl.before, of the run before that, stays\n", a.err)


def advise_on_a_full_disk():
    """advise: a log that cannot be written is told as that happens, ends there for good, and is what explain reads; advice goes on"""
    inside, there, seen = small_disk("disk", "64k")
    fill(seen, 12 << 10)
    with Advisor("--out", there / "full.jsonl", sites=1, prefix=inside, status=1) as a:
        windows, told = 0, []
        threading.Thread(target=lambda: told.append(a.process.stderr.readline()), daemon=True).start()
        while not told and windows < 200:
            windows += 1
            check(a.ask(report(0, 100 * windows, 80))[0]["window"] == windows - 1, "no advice")
        (seen / "filler").unlink()
        check(a.ask(report(0, 100 * windows + 100, 80))[0]["window"] == windows, "no advice")
    holds(told[0], rf"^phub: cannot write {there}/full.jsonl: No space left on device; it ends before step \d+, and advice goes on without it\n$")
    logged = (seen / "full.jsonl").read_text()
    check(a.err == "" and not logged.endswith("\n"), f"{a.err!r}, {logged[-100:]}")
    step = 100 * (len(logged.splitlines()) - 1)
    check(f"before step {step}," in told[0], f"{told[0]}, and it ends before {step}")
    holds(phub("explain", there / "full.jsonl", prefix=inside)[1], "its last line is not whole")


def advise_twice():
    """advise: each report is answered: of one site's in a window the last one counts, over whichever connection it came"""
    with Advisor("--out", "twice.jsonl", sites=2) as a:
        with a.call() as first, a.call() as second, a.call() as half:
            first.sendall(2 * (json.dumps(report(0, 100, 10)).encode() + b"\n"))
            time.sleep(0.2)
            second.sendall(json.dumps(report(0, 100, 70)).encode() + b"\n")
            half.sendall(json.dumps(report(0, 100, 70)).encode() + b"\n")
            half.shutdown(socket.SHUT_WR)  # says no more, and hears nevertheless
            time.sleep(0.2)
            wanted = a.ask(report(1, 100, 70), report(1, 100, 70))
            check(wanted[0]["window"] == 0 and "is over" in wanted[1]["reason"], str(wanted))
            for peer, count in ((first, 2), (second, 1), (half, 1)):
                with peer.makefile("rb") as answers:
                    check([json.loads(answers.readline()) for _ in range(count)] == count * wanted[:1], f"{count} answers")
            check(half.recv(1) == b"", "who has said all, and heard all, is let go")
    check(abs(lines((FOLDER / "twice.jsonl").read_text())[1]["AL"] - 0.2) < 1e-12, "the last report counts")
    with Advisor() as a:
        check(a.ask(*(21 * [report(0, 100, 70)]))[0] == {"error": "too many reports on one window"}, "there is no bound of reports")


def advise_refused():
    """advise: who says what is no report hears so at once, and nobody waits for it.
    It may say it better, but not undo what it has said; strangers spoil nothing"""
    wrong, why = report(1, 100, 70, bytes=-1), "bytes is no whole number from 0 to 2^53"
    (FOLDER / "secret").write_text("open sesame\n")
    with Advisor("--wait", "9999", sites=3) as a:  # whoever is waited for is so beyond the deadline of ask()
        check(a.ask(wrong)[0] == {"error": why}, "before the others")
        answer = a.ask(report(0, 100, 70), report(2, 100, 70))[0]
        check(answer["window"] == 0 and answer["sync_every"] == 2, str(answer))
        holds(answer["reason"], rf"; site 1 has not reported; site 1 said what is no report \({re.escape(why)}\)$")
        with a.call() as peer, peer.makefile("rb") as answers:
            peer.sendall(b"".join(json.dumps(report(k, 200, 70)).encode() + b"\n" for k in (0, 2)))
            holds(a.ask({"site": 1, "bytes": 5})[0]["error"], "step is missing")  # after them, and of no step
            check(json.loads(answers.readline())["window"] == 1, "it is waited for")
        a.ask({**wrong, "step": 300}, {**wrong, "step": 300, "site": 2})
        a.ask({**wrong, "step": 300, "site": 2})
        holds(a.ask(report(0, 300, 70))[0]["reason"], "site 1 said what is no report, and 1 more$")
        check(all("error" in a.ask({**wrong, "step": 400, "site": k})[0] for k in range(3)), "all three")
        a.ask({**wrong, "step": 400})
        answer = a.ask(*(report(k, 400, 70) for k in (1, 0, 2)))[0]  # which it says better
        check(answer["window"] == 3 and "report" not in answer["reason"], str(answer))
        with a.call() as peer, peer.makefile("rb") as answers:
            peer.sendall(json.dumps(report(1, 500, 70)).encode() + b"\n" + json.dumps(report(1, 400, 70)).encode() + b"\n")
            holds(answers.readline().decode(), "is over")
            a.ask({**wrong, "step": 500})  # as it has said what is right already
            answer = a.ask(report(0, 500, 70), report(2, 500, 70))[0]
            check(answer == json.loads(answers.readline()) and "report" not in answer["reason"], str(answer))
    with Advisor("--secret-file", "secret", "--wait", "0.5", sites=2) as a:
        for line in ({**wrong, "secret": "sesame"}, b'{"site":1,"step":1,"secret":5}', b"{", {**wrong, "step": 0, "secret": "open sesame"}):
            check("error" in a.ask(line)[0], str(line))  # of whom it is nobody knows, or it only asks
        began = time.monotonic()
        check("no report" not in a.ask(report(0, 100, 70, secret="open sesame"))[0]["reason"] and time.monotonic() - began > 0.4,
              "a stranger was heard")
        a.ask({**wrong, "step": 200, "secret": "open sesame"})
        time.sleep(0.7)  # it is forgotten, as nobody else has come
        began = time.monotonic()
        check("no report" not in a.ask(report(0, 200, 70, secret="open sesame"))[0]["reason"] and time.monotonic() - began > 0.4,
              "of another window")


def advise_many():
    """advise: one caller may speak for all, and read when it has said all; a step that cannot be makes nobody late"""
    with Advisor("--wait", "30", sites=1000) as a:
        answers = a.ask(*(report(k, 100, 70) for k in range(1000)))
        check(all(answer == answers[0] and answer["window"] == 0 for answer in answers), str(answers[-1]))
        answers = a.ask(*(report(k, 100, 70) for k in range(1000)))
        check(all("is over" in answer.get("reason", "") for answer in answers), str(answers[-1]))
    with Advisor("--wait", "0.1", sites=3) as a:
        check(a.ask(report(0, 100, 80), report(1, 1 << 53, 80), report(2, 100, 80))[0]["window"] == 0, "one of three")
        check(a.ask(report(1, 1 << 53, 80))[0]["window"] == 1, "one alone")
        check(a.ask(*(report(k, 300, 80) for k in range(3)))[0]["window"] == 2, "all are late")


def advise_strangers():
    """advise: lines that are no reports are refused and say why; long ones, many callers and lies do no harm to those who report"""
    refused = [(b"", "no JSON"), (b"[]", "no object"), (b"{", "no JSON"), (b'{"site":2,"step":1}', "site: needs one of 0 to 1"),
               (b'{"site":-1,"step":1}', "no whole number"), (b'{"site":0.5,"step":1}', "no whole number"),
               (b'{"site":0}', "step is missing"),
               (b'{"site":0,"step":1,"home":3}', "home is not"),
               (b'{"site":0,"step":1,"away":{"correct":2,"samples":1}}', "more that is correct"),
               (b'{"site":0,"step":1,"bytes":9007199254740993}', "no whole number"), (b'{"site":0,"site":1,"step":1}', "duplicate"),
               (b'{"site":0,"step":1,"secret":' + b'"' + b"x" * 256 + b'"}', "secret is no text"), (b"[" * 3000, "no JSON"),
               (b'{"site":0,"step":1,"moves":3}', "moves is not"),
               (b'{"site":0,"step":1,"moves":{"exchanges":1,"said":1}}', "moves: needs said, heard"),
               (b'{"site":0,"step":1,"moves":{"exchanges":1000000001,"said":1,"heard":1}}', "at most 1000000000"),
               (b'{"site":0,"step":1,"moves":{"exchanges":1,"said":-1,"heard":1}}', "said is no number from 0 on"),
               (b'{"site":0,"step":1,"moves":{"exchanges":1,"said":1,"heard":1e999}}', "no JSON|heard is no number"),
               (b'{"site":0,"step":1,"weight":0}', "weight is 0"), (b'{"site":0,"step":1,"rate":"much"}', "rate is no number"),
               (b'{"site":0,"step":1,"train":[]}', "train is not"), (b'{"site":0,"step":1,"train":{"loss":1}}', "a loss without samples"),
               (b'{"site":0,"step":1,"after":{"samples":1}}', "samples without a loss"),
               (b'{"site":0,"step":1,"before":{"loss":"x"}}', "loss is no number"),
               (b"\xff\x00", "no JSON"), (b"x" * 5000, "too long")]
    with Advisor() as a:
        for line, why in refused:
            holds(a.ask(line)[0].get("error", "nothing"), why)
        crowd = [a.call() for _ in range(40)]
        check(any(peer.recv(1) == b"" for peer in crowd[-4:]), "there is no bound of callers")
        for peer in crowd:
            peer.close()
        time.sleep(0.2)
        for _ in range(50):
            a.call().close()
        time.sleep(0.2)
        both = a.ask(report(0, 100, 70), report(1, 100, 70))
        check(both[0]["sync_every"] == 2, str(both))
    check(not a.err, a.err)


def advise_secret():
    """advise: with a secret only who says it is heard; without one nobody elsewhere is"""
    (FOLDER / "secret").write_text("open sesame\n")
    with Advisor("--secret-file", "secret", sites=1, listen="127.0.0.1:0") as a:
        for line in (report(0, 100, 70), report(0, 100, 70, secret="open"), report(0, 100, 70, secret="open sesamee")):
            check(a.ask(line)[0] == {"error": "this is not the secret"}, str(line))
        check(a.ask(report(0, 100, 70, secret="open sesame"))[0]["sync_every"] == 2, "the secret")
    given = ["--sites", "1", "--model-bytes", "1", "--thetas", "1"]
    holds(phub("advise", "--listen", "0.0.0.0:0", *given, status=1)[1], "reached from elsewhere: give --secret-file")
    for secret, why in (("/nowhere/secret", "cannot read"), (".", "cannot read .: Is a directory"),
                        ("empty", "its first line is empty, and is to be the secret"), ("long", "less than 256")):
        (FOLDER / "empty").write_text("\n")
        (FOLDER / "long").write_text("x" * 300)
        holds(phub("advise", "--listen", "127.0.0.1:0", "--secret-file", secret, *given, status=1)[1], why)


def advise_sockets():
    """advise: a socket that was left behind is taken over; one that is in use, and a file, are not"""
    given = ["--sites", "1", "--model-bytes", "1", "--thetas", "1"]
    with Advisor(sites=1):
        holds(phub("advise", "--listen", f"unix:{FOLDER}/advise", *given, status=1)[1], "another one listens there")
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(FOLDER / "advise"))
    left.close()
    with Advisor(sites=1) as a:
        check(a.ask({"site": 0, "step": 0})[0]["sync_every"] == 5, "over a socket that was left")
    (FOLDER / "file").write_text("mine")
    holds(phub("advise", "--listen", f"unix:{FOLDER}/file", *given, status=1)[1], "Address already in use")
    check((FOLDER / "file").read_text() == "mine", "a file was removed")
    holds(phub("advise", "--listen", f"unix:{FOLDER}/" + "x" * 200, *given, status=1)[1], "a path has 1 to")
    holds(phub("advise", "--listen", "127.0.0.1:0", "--out", "/nowhere/x", *given, status=1)[1], "cannot write /nowhere/x")
    few = subprocess.run(["bash", "-c", 'ulimit -n 40; exec "$@"', "-", PHUB, "scout", "advise", "--listen", "127.0.0.1:0",
                          "--sites", "100", "--model-bytes", "1", "--thetas", "1"],
                         capture_output=True, text=True, timeout=rig.DEADLINE_S, env=rig.QUIET, cwd=FOLDER)
    check(few.returncode == 1 and few.stderr == "phub: 100 sites need `ulimit -n` of at least 132\n", few.stderr)


def advise_wrong_words():
    """advise: what cannot be is refused"""
    given = ["--listen", "127.0.0.1:0", "--sites", "2", "--model-bytes", "1000"]
    rest = ["--sites", "2", "--model-bytes", "1000", "--thetas", "1,2"]
    for where in ("foo", "", "foo:", "foo:port", "foo:70000", "::1", "[::1]", "10.0.0.1", ":7000"):
        err = phub("advise", "--listen", where, *rest, status=2)[1]
        check(err.startswith(f"phub: --listen {where}: allowed is HOST:PORT, like 127.0.0.1:7080 (port 0: any that is free), or unix:PATH; "), err)
    holds(phub("advise", "--listen", "no.such.host.invalid:7000", *rest, status=1)[1],
          "--listen no.such.host.invalid:7000: no address of this name is known")
    for words, why in (([], "needs --listen"), (given, "needs --listen.*--thetas"),
                       ([*given, "--thetas", "1,2.5"],
                        r"2.5 is none of the steps between averages; allowed: a whole number of steps, 1 to 10\^9"),
                       ([*given, "--thetas", "1,2e9"], r"2e\+09 is none of the steps"),
                       ([*given, "--thetas", "1,2", "--theta", "3"], "none of the thetas"), ([*given, "--thetas", "1,1"], "twice"),
                       ([*given, "--thetas", "1", "--sigma", "2"], "from 0 to 1"),
                       ([*given, "--thetas", "2,5", "--policy", "scout+"], "a grid of local begins with 1"),
                       ([*given, "--thetas", "1", "--policy", "scout+", "--worth", "1e308TB"], "--worth 1e308TB: allowed are bytes"),
                       ([*given, "--thetas", "1", "--policy", "scout+", "--gain", "0"], "a number above 0"),
                       ([*given, "--thetas", "5,1"], "of local the smallest: 1,5"),
                       ([*given, "--thetas", "1", "--sites", "0"], "allowed is 1 to")):
        holds(phub("advise", *words, status=2)[1], why)


def python(script, *words):
    """Runs it with phub at hand."""
    library = rig.BUILD / "libphub.so.0.1.0"
    if re.search(rb"__(asan|tsan|ubsan)_\w", library.read_bytes()):
        raise rig.Skip("a library under a sanitizer cannot be loaded by Python")
    return subprocess.run(["/usr/bin/python3", "-c", script, *words], capture_output=True, text=True, timeout=rig.DEADLINE_S,
                          env={**rig.QUIET, "PYTHONPATH": str(rig.ROOT / "client/python"), "PHUB_LIBRARY": str(library)})


def advise_python():
    """phub.advise: asks, and says what was refused"""
    script = """import sys; from phub import advise; a = sys.argv[1]
one = {"step": 100, "home": {"correct": 9, "samples": 10}, "away": {"correct": 7, "samples": 10}, "bytes": 20000}
assert advise.ask(a, {"site": 0, "step": 0})["sync_every"] == 5
assert advise.ask(a, {"site": 0, **one}, {"site": 1, **one})["sync_every"] == 2
try: advise.ask(a, {"site": 2, "step": 1})
except ValueError as error: print(error)
try: advise.ask(a + "x", {"site": 0, "step": 0})
except FileNotFoundError as error: print(str(error).replace(a, "A"))
try: advise.ask("127.0.0.1:1", {"site": 0, "step": 0})
except ConnectionRefusedError as error: print(error)
for words in (("nowhere",), ("host:x", {}), ("unix:", {}), (a,)):
    try: advise.ask(*words)
    except ValueError as error: print(str(error).replace(a, "A"))
sites = [advise.Window(k) for k in range(2)]
for step in range(200, 700, 100):
    for site in sites:
        for _ in range(4): site.averaged(1.0, 0.45); site.lost(10.0, 20)
    answer = advise.ask(a, *(site.report(step, 0.05, 1000) for site in sites))
    for site in sites: site.tried(30.0, 60)
for site in sites: site.averaged(1.0, 0.45, 2); site.averaged(1.0, 0.45, 5); site.lost(float("nan") if site.site else 1.0, 20); site.tried(float("inf"), 60)
print(sites[0].report(700, 0.05, 1000)["moves"]); sites[0].averaged(1.0, 0.45); sites[0].lost(10.0, 20)
print(advise.ask(a, *(site.report(700, 0.05, 1e3) for site in sites))["reason"])"""
    with Advisor("--out", "python.jsonl") as a:
        done = python(script, a.path)
    none = "is no address; allowed are unix:PATH and HOST:PORT, as phub scout advise --listen has it"
    check(done.stdout.splitlines() == ["site: needs one of 0 to 1",
                                       "[Errno 2] nobody answers at Ax (No such file or directory); phub scout advise --listen Ax would",
          "[Errno 111] nobody answers at 127.0.0.1:1 (Connection refused); phub scout advise --listen 127.0.0.1:1 would",
          f"'nowhere' {none}", f"'host:x' {none}", f"'unix:' {none}", "ask() needs a report; {'site': 0, 'step': 0} only asks",
                                       "{'exchanges': 2, 'said': 2.0, 'heard': 0.9, 'sites': 2}",
          "of 2 sites 0 have said what can be true, in 6 windows in a row that said too little: the tightest theta, until they do; site 1 "
          "has weights, gradients or losses that are no numbers"] and done.returncode == 0, done.stdout + done.stderr)
    seen = [line["seen"] for line in lines((FOLDER / "python.jsonl").read_text()) if line["scout"] == "decision" and "seen" in line]
    wanted = {"exchanges": 4, "said": 4, "heard": 1.8, "sites": 2, "rate": 0.05, "trained": 80, "tried": 60, "train": 0.5, "before": 0.5,
              "after": 0.5}
    check(len(seen) == 5 and {**seen[4], "heard": round(seen[4]["heard"], 9)} == wanted, f"{seen}")
    check((seen[0]["tried"], seen[1]["after"], seen[1]["before"]) == (0, 0.5, None), f"levels of windows that were none: {seen}")


def advise_python_ipv6():
    """phub.advise: asks at an address of IPv6, as --listen has it"""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as e:
        raise rig.Skip(f"no IPv6 here: {e}") from None
    script = "import sys; from phub import advise; print(advise.ask(sys.argv[1], {'site': 0, 'step': 0})['sync_every'])"
    with Advisor(sites=1, listen="[::1]:0") as a:
        done = python(script, a.path)
    check(done.stdout == "5\n", done.stdout + done.stderr)


if __name__ == "__main__":
    os.environ["BUILD"] = str(rig.BUILD)
    rig.run([advise, advise_counts, advise_pulls, advise_waits, advise_silent, advise_heavy, advise_weights, advise_far, advise_lies, advise_broken,
             advise_killed, advise_on_a_full_disk, advise_twice, advise_refused, advise_many, advise_strangers, advise_secret,
             advise_sockets, advise_wrong_words, advise_python, advise_python_ipv6])
