#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A run of the study on skewed sites, as skew_study makes one, but by real processes: a phubd, and K of PyTorch, which train as
deploy/demo/sites.py does and talk through the box by tcp.

Usage: study_torch.py --algorithm local --theta 20 --norm group --sites 5 --steps 1500 --skew 100 --seeds 1 --on test

It takes these and --policy, --thetas, --period and --sigma, and prints the lines that skew_study prints: one for each window of a
scout, one for the run. There `bytes_wire` is what a site's library says that it has pushed, the mean of sites, models, reports
and first weights included, and `bytes_box` what the box says that it got of it. When the two differ the run has failed.

Exit status: 0; 1: the run went wrong; 2: usage; 130: interrupted. stderr: how far it is.
"""
import argparse
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import rig  # noqa: E402

DEMO = rig.ROOT / "deploy/demo"
PHUB, LIBRARY = rig.BUILD / "phub", rig.BUILD / "libphub.so.0"
SOURCES = (pathlib.Path(__file__).resolve(), DEMO / "sites.py", DEMO / "train.py", rig.PHUBD, LIBRARY)  # a run follows from these
JOB = "study"
TOGETHER = ["setpriv", "--pdeathsig", "KILL"]  # what is started ends with this process, however that ends
PATIENCE_S = 300  # of a site, for others: far more than they take


class Failure(Exception):
    pass


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("bsp", "gaia", "local", "dgc"), default="bsp")
    parser.add_argument("--theta", type=float)
    parser.add_argument("--policy", choices=("fixed", "hill", "stochastic", "annealing", "scout+"))
    parser.add_argument("--thetas", type=lambda text: [float(each) for each in text.split(",")],
                        help="the policy's grid, the tightest first")
    parser.add_argument("--period", type=int, default=500)
    parser.add_argument("--sigma", type=float, default=0.05)
    parser.add_argument("--norm", choices=("none", "batch", "group"), default="group")
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--skew", type=float, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=1, metavar="SEED")
    parser.add_argument("--on", choices=("valid", "test"), default="valid")
    parser.add_argument("--as-site", help=argparse.SUPPRESS)  # the URL of its job
    a = parser.parse_args()
    if a.policy and not a.thetas:
        parser.error("--policy needs --thetas")
    return a


# ---- a site ----

def tell(event, **what):
    print(json.dumps({"event": event, **what}), flush=True)


def site_tells(a, site, early):
    """What is told after a step; `early` takes the bytes of the first fifth."""
    seen, theta = 0, site.state["theta"]

    def told(step, loss):
        nonlocal seen, theta
        state = site.state
        if step == a.steps // 5:
            early.append(state["bytes"])
        if state["windows"] > seen:
            seen, decision = state["windows"], site.decision
            tell("window", t=step, theta=theta, next=decision.theta, loss=decision.loss, bytes=decision.bytes, action=decision.action,
                 reason=decision.reason)
        theta = state["theta"]
        if step % 50 == 0:
            tell("step", step=step)

    return told


def average(phub, net, url):
    """The net becomes the mean of all sites', which is what the papers score. Collective, in a job of its own: what it costs is no part
    of what training has sent."""
    import torch

    tensors = [tensor for tensor in net.state_dict().values() if tensor.is_floating_point()]
    with phub.connect(phub.job_url(url, "-mean"), reduce="mean", reproducible=True, timeout=PATIENCE_S) as worker:
        mean = torch.from_numpy(worker.push_pull(torch.cat([tensor.flatten() for tensor in tensors]).numpy()))
    for tensor, values in zip(tensors, mean.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(values.view(tensor.shape))


def train_as_site(a):
    """Trains, says what it has sent, waits until stdin ends, and then joins the others in the mean."""
    sys.path.insert(0, str(DEMO))
    import sites
    import torch

    torch.set_num_threads(1)
    rank, world = sites.phub.launched()
    images, labels = sites.read("train")
    mine = sites.deal(labels, rank, world, a.skew, a.seeds)
    images, labels = images[mine], labels[mine]
    net, early = sites.make_net(a.norm, a.seeds), [0]
    scout = {"thetas": a.thetas, "first": a.theta, "policy": a.policy, "period": a.period, "sigma": a.sigma, "seed": a.seeds}
    site = sites.open_site(net, images, labels, a.as_site, scout if a.policy else None, algorithm=a.algorithm,
                           theta=None if a.policy else a.theta, transport="tcp", reproducible=True, timeout=PATIENCE_S)
    sites.train(site, net, images, labels, a.steps, a.seeds * world + rank, site_tells(a, site, early))
    tell("trained", bytes_early=early[-1], **site.state)
    sys.stdin.read()
    site.close()
    average(sites.phub, net, a.as_site)
    weights = b"".join(tensor.numpy().tobytes() for tensor in net.state_dict().values())
    tell("end", accuracy=sites.score(net, *sites.read(a.on)) if rank == 0 else None, hash=hashlib.sha256(weights).hexdigest()[:16])


# ---- all of them ----

def environment(rank, world):
    """Of a site: what this process was told of boxes, ranks and scouts is not for it."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "PHUB_LIBRARY": str(LIBRARY), "OMP_NUM_THREADS": "1"}


def events(site, name):
    with site.out.changed:
        return [line for line in map(json.loads, site.out.lines) if line["event"] == name]


def all_tell(name, sites, box, steps):
    """What each site says last; how far the first one is goes to stderr."""
    shown = 0
    while True:
        ended = [not site.running() for site in sites]
        for site, over in zip(sites, ended):
            if over:
                site.wait()
        found = [events(site, name) for site in sites]
        if all(found):
            return [each[-1] for each in found]
        for site, over, said in zip(sites, ended, found):
            if over and not said:
                raise Failure(f"{site.name} ended with status {site.process.returncode}: {site.err.text()[-1500:]}")
        if not box.running():
            raise Failure(f"phubd ended with status {box.process.returncode}: {box.err.text()[-1500:]}")
        step = (events(sites[0], "step") or [{"step": 0}])[-1]["step"]
        if step > shown and name == "trained":
            shown = step
            print(f"step {step} of {steps}", file=sys.stderr, flush=True)
        time.sleep(0.1)


def got(box):
    """Payload that has come to the box from the sites' job."""
    asked = subprocess.run([PHUB, "jobs", "--json", box.address], capture_output=True, text=True, timeout=rig.DEADLINE_S)
    if asked.returncode:
        raise Failure(f"phub jobs: {asked.stderr.strip()}")
    return sum(line["pushed_bytes"] for line in map(json.loads, asked.stdout.splitlines()) if line.get("job") == JOB)


def check_counts(pushed, box):
    """Of all sites, and at the box."""
    if pushed != box:
        raise Failure(f"sites have pushed {pushed} bytes, and the box says that it got {box}")


def finite(line):
    """JSON has no word for what is not known."""
    return {name: None if isinstance(value, float) and value - value != 0 else value for name, value in line.items()}


def run(a):
    began, own = time.monotonic(), sys.argv[1:]
    box = rig.Box(prefix=TOGETHER, cores=1, log_level="warn")
    sites = [rig.Process(f"site {rank}", [sys.executable, __file__, *own, "--as-site", box.url(JOB)], environment(rank, a.sites), TOGETHER)
             for rank in range(a.sites)]
    trained = all_tell("trained", sites, box, a.steps)
    at_box = got(box)
    check_counts(sum(site["bytes_wire"] for site in trained), at_box)
    for site in sites:
        site.process.stdin.close()
    ended = all_tell("end", sites, box, a.steps)
    if len({end["hash"] for end in ended}) != 1:
        raise Failure(f"sites have other means: {ended}")
    if any(site.wait() for site in sites):
        raise Failure(f"a site ended badly: {[site.err.text()[-500:] for site in sites]}")
    box.stop()
    for window in events(sites[0], "window"):
        print(json.dumps(finite({"study": "window", **window})))
    mean = {name: sum(site[name] for site in trained) // a.sites for name in ("bytes", "bytes_early", "bytes_travel", "bytes_wire")}
    print(json.dumps({"study": "run", "algorithm": a.algorithm, "norm": a.norm, "sites": a.sites, "skew": a.skew, "policy": a.policy,
                      "theta": trained[0]["theta"], "steps": a.steps, "seed": a.seeds, "on": a.on, "accuracy": ended[0]["accuracy"], **mean,
                      "bytes_box": at_box // a.sites, "exchanges": trained[0]["exchanges"], "hash": ended[0]["hash"],
                      "seconds": round(time.monotonic() - began, 2)}))


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    a = arguments()
    for name in [name for name in rig.QUIET if name.startswith("PHUB_")]:
        del rig.QUIET[name]
    if a.as_site:
        train_as_site(a)
        return 0
    signal.signal(signal.SIGTERM, interrupt)
    try:
        run(a)
    except (Failure, AssertionError, OSError, subprocess.TimeoutExpired) as failure:
        print(f"study_torch.py: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status) if status == 130 else sys.exit(status)
