#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The example of sites, deploy/demo/sites.py, as its users start it: what it says, scores and refuses, who is lost, and what drifts.

This process only forks, as in test_sites_python.py, and workers compute."""
import contextlib
import functools
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import python_rig as rig
from python_rig import raises
from test_sites_python import torch, workers

EXAMPLE = rig.ROOT / "deploy/demo/sites.py"


def no_data():
    """Why the demo cannot run here, or None."""
    there = pathlib.Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"), "train-images-idx3-ubyte.gz").exists()
    return None if there else "no Fashion-MNIST here (deploy/deps.sh demo)"


def warm():
    """For all that follow: a part of the images, as reading and scoring all takes longer than twenty steps of training."""
    sys.path.insert(0, str(EXAMPLE.parent))
    import train

    few = {part: tuple(tensor[:count].clone() for tensor in train.load(part)) for part, count in (("train", 6000), ("t10k", 2000))}
    train.load = few.__getitem__


@functools.cache
def preloaded():
    return rig.Preloaded(warm)


@functools.cache
def example():
    """The example, without its imports and the reading of its data."""
    return preloaded().command(EXAMPLE)


def test_example(box):
    """As its users start it: what they tell `phub scout run` chooses the script's grid, of scout+ a finer one."""
    if no_data():
        return no_data()
    words = ["--steps", "20", "--period", "10", "--norm", "batch", "--seed", "3"]
    with tempfile.TemporaryDirectory() as folder:
        command = [rig.BUILD / "phub", "scout", "run", "--sites", "2", "--policy", "scout+", "--algorithm", "gaia",
                   "--box", box.url("example"),
                   "--out", f"{folder}/log", "--", EXAMPLE, *words]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=rig.RESULT_S)
        lines = [json.loads(line) for line in pathlib.Path(folder, "log").read_text().splitlines()]
        compared = json.loads(subprocess.run([rig.BUILD / "phub", "scout", "compare", "--json", f"{folder}/log"], capture_output=True,
                                             text=True).stdout)
    assert done.returncode == 0, done
    assert "[0] step 10: stays, theta 0 from here on: " in done.stdout and "[1]" not in done.stdout, done
    told = (f"accuracy {100 * compared['accuracy']:.2f} %; a site has sent {compared['bytes'] + 384:.0f} bytes, "  # batch normalization's statistics
            f"{1 / compared['saving']:.2f} times as many as BSP\n")
    # The end is an exchange, after which one of two says all once more.
    assert told in done.stdout and abs(20 / compared["saving"] - 21.5) < 0.1, (told, compared["saving"], done.stdout)
    assert lines[-1]["accuracy"] > 0.1 and lines[-1]["loss"] > 0 and lines[-1]["seconds"] > 0, lines[-1]
    assert lines[0]["algorithm"] == "gaia" and lines[0]["thetas"][:4] == [0, 0.01, 0.02, 0.03] and lines[0]["seed"] == 3, lines[0]
    names = lines[0]["tensors"]
    assert len([name for name in names if "running" in name]) == 4, names  # batch normalization's


def test_example_replays(box):
    """A recorded schedule comes by `phub scout run`, and of DGC a smaller theta is a looser one."""
    if no_data():
        return no_data()
    with tempfile.TemporaryDirectory() as folder:
        command = [rig.BUILD / "phub", "scout", "run", "--sites", "2", "--policy", "replay", "--algorithm", "dgc", "--thetas", ".1,.01",
                   "--box",
                   box.url("replays"), "--out", f"{folder}/log", "--", example(), "--steps", "20", "--period", "10"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=rig.RESULT_S)
    assert done.returncode == 0 and re.search(r"\[0\] step 10: .*loosens, theta 0.01 from here on", done.stdout), done


# The example at a site that is killed in its 13th step, when the log has a decision.
DIES = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import sites

def dying(count, seed, batches=sites.batches):
    for step, batch in enumerate(batches(count, seed)):
        if step == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

sites.batches = dying
sites.main()
"""


def test_example_loses(_):
    """One of three is killed: the others score the mean of their two models, and the log says of how many it is."""
    if no_data():
        return no_data()
    with tempfile.TemporaryDirectory() as folder:
        dies = pathlib.Path(folder, "dies.py")
        dies.write_text(DIES.format(folder=str(EXAMPLE.parent)))
        script = f'if [ $RANK = 1 ]; then set -- {preloaded().command(dies)}; else set -- "$0"; fi; exec "$1" --steps 60 --theta 5'
        command = [rig.BUILD / "phub", "scout", "run", "--sites", "3", "--lost", "shrink", "--policy", "fixed", "--period", "5",
                   "--out", f"{folder}/log", "--",
                   "sh", "-c", script, example()]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=rig.RESULT_S)
        lines = [json.loads(line) for line in pathlib.Path(folder, "log").read_text().splitlines()]
    assert done.returncode == 0 and "[0] sites.py: sites 0, 2 of 3 are left: scored is the model that they ended with\n" in done.stdout, done
    assert [(line["rank"], line["action"]) for line in lines if line["scout"] == "site"] == [(1, "lost")], lines
    assert lines[-1]["sites"] == 2 and lines[-1]["accuracy"] > 0.1, lines[-1]
    return None


def test_example_without_log(box):
    """A run that talks at its end alone has sent one model, and BSP saves nothing against itself."""
    if no_data():
        return no_data()
    done = subprocess.run([example(), "--url", box.url("silent"), "--theta", "1000", "--steps", "3"], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=rig.RESULT_S)
    assert done.returncode == 0 and "; a site has sent 30952 bytes, 3.0 times fewer than BSP\n" in done.stdout, done
    done = subprocess.run([example(), "--url", box.url("bsp"), "--algorithm", "bsp", "--steps", "3"], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=rig.RESULT_S)
    assert done.returncode == 0 and f"; a site has sent {3 * 30952} bytes, as many as BSP\n" in done.stdout, done
    return None


def test_example_refuses(box):
    """A line, and no traceback."""
    if no_data():
        return no_data()
    for words, status, text in ((["--steps", "-3"], 2, "--steps: -3: allowed are 1 to 2^32 - 1"),
                                (["--theta", "0.5"], 1, "cannot have a theta of 0.5"),
                                (["--policy", "hill", "--theta", "3"], 1, "3.0 is not in the grid")):
        done = subprocess.run([example(), "--url", box.url("refused"), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=rig.RESULT_S)
        assert done.returncode == status and text in done.stderr and "Traceback" not in done.stderr and not done.stdout, done
    return None


def refuses(rank):
    """What cannot be is refused before anything begins."""
    sys.path.insert(0, str(EXAMPLE.parent))
    import sites

    whole, seen = "allowed are 1 to 2^32 - 1", io.StringIO()
    for words, text in (("--steps x", whole), ("--steps 0", whole), ("--period 0", whole),
                        ("--theta nan", "nan: allowed are numbers from 0 on"),
                        ("--theta -1", "-1: allowed are numbers from 0 on"), ("--seed -1", "-1: allowed are 0 to 2^32"),
                        ("--skew 101", "101: allowed are 0 to 100"),
                        ("--skew nan", "nan: allowed are 0 to 100"),
                        ("--drift 5", "5: allowed is STEP:PERCENT,... with steps from 1 on that rise"),
                        ("--drift 9:1,9:2", "that rise"), ("--drift 9:101", "101: allowed are 0 to 100"),
                        ("--drift 20:9 --steps 20", "--drift: step 20 is not before the last of 20"),
                        ("--outer adam --algorithm dgc", "--outer is of local SGD, and the algorithm is dgc")):
        sys.argv = ["sites.py", *words.split()]
        with raises(SystemExit, "2"), contextlib.redirect_stderr(seen):
            sites.arguments()
        assert text in seen.getvalue().splitlines()[-1], (words, seen.getvalue())
    os.environ["PHUB_SCOUT_ALGORITHM"] = "fedavg"
    sys.argv = ["sites.py"]
    with raises(SystemExit, "2"), contextlib.redirect_stderr(seen):
        sites.arguments()
    assert "PHUB_SCOUT_ALGORITHM=fedavg: allowed are bsp, gaia, local, dgc" in seen.getvalue(), seen.getvalue()
    return None


def test_example_refuses_words(_):
    return no_data() or workers(1, refuses)[0]


def test_example_drifts(box):
    """Images are dealt out anew at a step, and the outer optimizer is the product's."""
    if no_data():
        return no_data()
    found = []
    for more in ([], ["--drift", "8:100"], ["--outer", "nesterov"]):
        with tempfile.TemporaryDirectory() as folder:
            command = [rig.BUILD / "phub", "scout", "run", "--sites", "2", "--box", box.url(f"drifts{len(found)}"),
                       "--out", f"{folder}/log", "--", example(), "--steps", "16", "--theta", "4", "--skew", "0", *more]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=rig.RESULT_S)
            assert done.returncode == 0, done
            end = json.loads(pathlib.Path(folder, "log").read_text().splitlines()[-1])
        found.append((end["accuracy"], end["loss"]))
    assert len(set(found)) == 3, found
    return None


def deals(rank):
    """Each image at one site, as many by class as was asked for; a site without any trains on nothing."""
    sys.path.insert(0, str(EXAMPLE.parent))
    import sites

    labels = torch.arange(1000) % 10
    for world, skew in ((5, 0), (5, 60), (5, 100), (12, 100), (1, 50)):
        parts = [sites.deal(labels, k, world, skew, seed=4) for k in range(world)]
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(1000)), (world, skew)
        own = sum(int((labels[part] % world == k).sum()) for k, part in enumerate(parts))
        wanted = 1000 * (skew / 100 + (1 - skew / 100) / min(world, 10))
        assert abs(own - wanted) < 40, (world, skew, own)
        assert not torch.equal(parts[0], sites.deal(labels, 0, world, skew, seed=5)), "the seed says nothing"
    drawn = sites.batches(50, 1)
    epochs = torch.cat([next(drawn) for _ in range(5)])  # of 20: two epochs
    assert torch.equal(epochs.sort().values, torch.arange(50).repeat_interleave(2)), epochs
    assert len(parts) == 1 and len(next(sites.batches(0, 1))) == 0
    share = sites.Share(0, 2, {0: 0, 7: 100}, seed=4)  # which drifts
    first = share.now
    assert share.take(6) is None and share.now is first and abs(float((first[1] % 2 == 0).float().mean()) - 0.5) < 0.02
    assert share.take(7) is share.now and bool((share.now[1] % 2 == 0).all()), share.now
    return None


def counts(rank):
    """What the example says was sent is the log's, the mean of sites; where that has no end, what this site has sent."""
    sys.path.insert(0, str(EXAMPLE.parent))
    import sites

    end, found = '{"scout":"end","t":9,"bytes":30.5,"bytes_travel":4}\n', []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        for text in ('{"scout":"run"}\n' + end, end.replace("4}", "null}"), '{"scout":"run"}\n', end.replace('"end"', '"decision"'),
                     end[:20], ""):
            path.write_text(text)
            found.append(sites.sent(path, {"bytes": 5, "bytes_travel": 2}))
        found += [sites.sent(None, {"bytes": 5, "bytes_travel": 2}), sites.sent(f"{folder}/none", {"bytes": 5, "bytes_travel": 2})]
    assert found == [34.5, 30.5, 7, 7, 7, 7, 7, 7], found
    return None


def test_example_counts(_):
    return no_data() or workers(1, counts)[0]


def test_example_deals(_):
    return no_data() or workers(1, deals)[0]


if __name__ == "__main__":
    sys.stdout.flush()
    rig.run([test_example, test_example_replays, test_example_loses, test_example_without_log, test_example_refuses,
             test_example_refuses_words, test_example_drifts,
             test_example_counts, test_example_deals], rig.Box())
