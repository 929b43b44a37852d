#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One of several sites that train a small CNN on Fashion-MNIST together, each with images of mostly its own classes.

    build/phub scout run --sites 5 -- deploy/demo/sites.py --skew 60 --policy scout+

starts a box and five of these, with a scout that sets theta. At a box that runs, by torchrun, and with a theta that stays:

    build/phubd &
    torchrun --redirects 1 --tee 1 --nproc_per_node 5 deploy/demo/sites.py --skew 60 --theta 20

(Only Debian 12's torch 1.13 needs --redirects and --tee.) --skew is how many percent of the images are dealt out by class, the
rest by turns; with --drift they are dealt out anew on the way, and nothing tells the sites but their data. Rank 0 prints the
accuracy of the model that all sites end with on the test set, and what a site has sent: as the log has it, where there is one, and
so as `phub scout compare` shows it; else what this site has.

With --checkpoint FILE each site saves its model and itself to FILE.RANK.STEP, the last two, and all go on from there when they were
killed and are started again, as if nothing had been in between.
"""

import argparse
import contextlib
import glob
import json
import math
import os
import sys

import train as demo  # beside this file: it finds phub and the data
import torch
import torch.nn.functional as F

import phub
import phub.torch

GRIDS = {"bsp": [1], "gaia": [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3], "local": [1, 2, 5, 10, 20, 50, 100],
         "dgc": [0.1, 0.03, 0.01, 0.003, 0.001]}
FINE = {"gaia": [0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.25, 0.3],  # scout+ need not try each
        "local": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 56, 68, 80, 100]}  # fmt: skip
POLICIES = ("fixed", "hill", "stochastic", "annealing", "scout+")
OUTERS = ("average", "momentum", "nesterov", "adagrad", "adam", "yogi")
NORMS = {"none": lambda channels: [], "batch": lambda channels: [torch.nn.BatchNorm2d(channels)],
         "group": lambda channels: [torch.nn.GroupNorm(2, channels)]}  # fmt: skip
PARTS = {"train": ("train", slice(20000)), "valid": ("train", slice(-5000, None)), "test": ("t10k", slice(None))}
BATCH, RATE, LATE, DECAY = 20, 0.05, 0.75, 5e-4  # from the part LATE of the steps on the rate is a tenth
STEPS = 1500


# ---- model and data ----


def make_net(norm="group", seed=1):
    """7.7 thousand weights, for images of 14x14. Group normalization looks at each image alone; batch normalization at who is in
    a site's mini-batch, which differs from site to site with their classes."""
    torch.manual_seed(seed)
    layers, inputs = [], 1
    for channels in (16, 32):
        layers += [torch.nn.Conv2d(inputs, channels, 3, padding=1, bias=norm == "none"), *NORMS[norm](channels), torch.nn.ReLU(),
                   torch.nn.MaxPool2d(2)]  # fmt: skip
        inputs = channels
    net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(inputs * 9, 10))
    for layer in net:
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            gain = 2 if isinstance(layer, torch.nn.Conv2d) else 1  # a ReLU follows, which halves
            torch.nn.init.normal_(layer.weight, std=(gain / layer.weight[0].numel()) ** 0.5)
            if layer.bias is not None:
                torch.nn.init.zeros_(layer.bias)
    return net


def read(part):
    """Images of 14x14, whose pixels have a mean of 0 and a deviation of 1 over the training part, and labels."""
    name, which = PARTS[part]
    images, labels = demo.load(name)
    return (F.avg_pool2d(images[which].float(), 2) - 72.87) / 84.21, labels[which]


def deal(labels, rank, world, skew, seed=1):
    """Which images are this site's: of a random order `skew` percent by class, c to site c mod `world`, and the rest by turns."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = round(len(labels) * skew / 100)
    owner = (torch.arange(len(labels)) - by_class) % world
    owner[:by_class] = labels[order[:by_class]] % world
    return order[owner == rank]


def batches(count, seed):
    """Indexes of mini-batches, for ever: epoch after epoch, each in a new order. A site without images has empty ones."""
    generator, left = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.int64)
    while True:
        while 0 < count and len(left) < BATCH:
            left = torch.cat([left, torch.randperm(count, generator=generator)])
        yield left[:BATCH]
        left = left[BATCH:]


# ---- training ----


class Share:
    """What is this site's of all images: `skews` has percent, by the step from which on they are dealt out so, the first of them 0."""

    def __init__(self, rank, world, skews, seed=1):
        self.rank, self.world, self.skews, self.seed = rank, world, skews, seed
        self.all = read("train")
        self.take(0)

    def take(self, step):
        """(images, labels) where they are others from this step on, else None."""
        if step not in self.skews:
            return None
        mine = deal(self.all[1], self.rank, self.world, self.skews[step], self.seed)
        self.now = tuple(part[mine] for part in self.all)
        return self.now

    def evaluate(self, model, draw, samples):
        return phub.torch.classification(*self.now)(model, draw, samples)


def open_site(net, images, labels, url=None, scout=None, evaluate=None, **options):
    """A site that begins to train: collective."""
    return phub.torch.Site(net, url, scout=scout, evaluate=evaluate or phub.torch.classification(images, labels), samples=len(labels),
                           momentum=0.9, weight_decay=DECAY, rate_first=RATE, clip=1, warmup=100, **options)  # fmt: skip


def train(site, net, images, labels, steps, seed, told, take=lambda step: None, begin=0):
    """All steps from `begin` on; take(step) before each, as Share has it, and told(step, loss) after each."""
    drawn = batches(len(labels), seed)
    for step in range(steps):
        others = take(step) if step > 0 else None
        if others:
            images, labels = others
            drawn = batches(len(labels), seed)
            site.set_samples(len(labels))
        chosen = next(drawn)
        if step < begin:
            continue
        net.zero_grad(set_to_none=True)
        loss = None
        if len(chosen):
            loss = F.cross_entropy(net(images[chosen]), labels[chosen])
            loss.backward()
            loss = loss.item()
            site.lost(loss, len(chosen))
        site.step(RATE if step < LATE * steps else RATE / 10)
        told(step + 1, loss)


class Checkpoints:
    """The last two of this site. None is more than one ahead of the others, so when they are killed there is a step that all have."""

    def __init__(self, path, every, rank, world, url):
        self.path, self.every = f"{path}.{rank}", every
        mine = self.steps()[-2:]
        told = torch.zeros(world, 2)
        told[rank, : len(mine)] = torch.tensor(mine)
        with phub.connect(phub.job_url(url, "-saved")) as worker:
            told = torch.from_numpy(worker.push_pull(told.numpy()))
        self.step = int(max((step for step in told[0] if all(step in row for row in told)), default=0))
        if self.step == 0 and told.any():
            raise RuntimeError(f"there is no step that all sites have saved ({path}.RANK.STEP); without these files they begin anew")
        self.saved = torch.load(f"{self.path}.{self.step}") if self.step else {"model": None, "site": None}

    def steps(self):
        return sorted(int(name.rsplit(".", 1)[1]) for name in glob.glob(f"{glob.escape(self.path)}.*")
                      if name.rsplit(".", 1)[1].isdecimal())

    def save(self, step, net, site):
        if step % self.every:
            return
        torch.save({"model": net.state_dict(), "site": site.state_dict()}, f"{self.path}.new")
        os.replace(f"{self.path}.new", f"{self.path}.{step}")
        site.worker.barrier()
        for old in self.steps():
            if not step - self.every <= old <= step:
                os.remove(f"{self.path}.{old}")


@torch.no_grad()
def tried(net, images, labels):
    """How many images there are, how many of them the net names rightly, and the sum of its loss."""
    net.eval()
    outs = [(net(x), y) for x, y in zip(images.split(1000), labels.split(1000))]
    net.train()
    return (len(labels), sum(int((out.argmax(1) == y).sum()) for out, y in outs),
            sum(float(F.cross_entropy(out, y, reduction="sum")) for out, y in outs))


def score(net, images, labels):
    """The share of images that the net names rightly."""
    count, right, _ = tried(net, images, labels)
    return right / count


# ---- as a script ----


def number(convert, allowed, good):
    """A type of argparse's."""

    def taken(text):
        with contextlib.suppress(ValueError):
            if good(convert(text)):
                return convert(text)
        raise argparse.ArgumentTypeError(f"{text}: allowed are {allowed}")

    return taken


percent = number(float, "0 to 100", lambda x: 0 <= x <= 100)
whole = number(int, "1 to 2^32 - 1", lambda x: 1 <= x < 2**32)


def drift(text):
    """{step: percent}"""
    found = {}
    for part in text.split(","):
        step, _, skew = part.partition(":")
        if not skew or not step.isdecimal() or int(step) <= max(found, default=0):
            raise argparse.ArgumentTypeError(f"{text}: allowed is STEP:PERCENT,... with steps from 1 on that rise")
        found[int(step)] = percent(skew)
    return found


def arguments():
    """What `phub scout run` was told is the default here, so that the grid fits."""
    given = os.environ.get
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of the job; $PHUB_URL, else phub://127.0.0.1/default")
    parser.add_argument("--skew", type=percent, default=60, help="percent (%(default)s)")
    parser.add_argument("--drift", type=drift, default={}, metavar="STEP:PERCENT,...", help="another skew from a step on")
    parser.add_argument("--norm", choices=list(NORMS), default="group", help="normalization (%(default)s)")
    parser.add_argument("--algorithm", choices=list(GRIDS), default=given("PHUB_SCOUT_ALGORITHM", "local"), help="(%(default)s)")
    parser.add_argument("--outer", choices=OUTERS, default="average",
                        help="of local, what is made of the mean: nesterov is DiLoCo's (%(default)s)")
    parser.add_argument("--theta", type=number(float, "numbers from 0 on", lambda x: 0 <= x < math.inf),
                        help="the paper's; with a policy, where it begins")
    parser.add_argument("--policy", choices=POLICIES, default=given("PHUB_SCOUT_POLICY"), help="of a scout, which sets theta")
    parser.add_argument("--period", type=whole, default=50, help="steps between its decisions (%(default)s)")
    parser.add_argument("--steps", type=whole, default=STEPS, help="(%(default)s)")
    parser.add_argument("--seed", type=number(int, "0 to 2^32", lambda x: 0 <= x <= 2**32), default=1,
                        help="of weights, images and their order (%(default)s)")
    parser.add_argument("--checkpoint", metavar="FILE", help="of each site, FILE.RANK.STEP, which it goes on from")
    parser.add_argument("--every", type=whole, default=100, help="steps between checkpoints (%(default)s)")
    parser.add_argument("--log", help="of the run and the scout's decisions, lines of JSON")
    a = parser.parse_args()
    for name, allowed in (("algorithm", GRIDS), ("policy", (*POLICIES, "replay"))):  # the environment's, which has a replay's thetas, too
        if getattr(a, name) not in (None, *allowed):
            parser.error(f"PHUB_SCOUT_{name.upper()}={getattr(a, name)}: allowed are {', '.join(allowed)}")
    if a.outer != "average" and a.algorithm != "local":
        parser.error(f"--outer is of local SGD, and the algorithm is {a.algorithm}")
    if max(a.drift, default=0) >= a.steps:
        parser.error(f"--drift: step {max(a.drift)} is not before the last of {a.steps}")
    return a


def scout_of(a):
    if not a.policy:
        return None
    grid = FINE.get(a.algorithm, GRIDS[a.algorithm]) if a.policy == "scout+" else GRIDS[a.algorithm]
    first = a.theta if a.theta is not None else grid[0] if a.policy == "scout+" else grid[len(grid) // 2]
    return {"thetas": grid, "first": first, "policy": a.policy, "period": a.period, "seed": a.seed}


def teller(site):
    """What rank 0 says: each decision, or how far it is."""
    windows = site.state["windows"]

    def told(step, loss):
        nonlocal windows
        decision = site.decision if site.state["windows"] > windows else None
        if decision:
            windows = site.state["windows"]
            lost = "" if decision.loss != decision.loss else f"{100 * decision.loss:.1f} points lost elsewhere; "
            print(f"step {step}: {lost}{decision.action}, theta {decision.theta:g} from here on: {decision.reason}", flush=True)
        elif step % 100 == 0 and not windows:
            print(f"step {step}: loss {'-' if loss is None else f'{loss:.3f}'}", flush=True)

    return told


def sent(path, state):
    """Bytes of exchanges, and of models that travelled: as the log's end has them, the mean of sites; else this site's."""
    try:
        with open(path) as log:
            end = json.loads(log.readlines()[-1])
        if end["scout"] == "end":
            return end["bytes"] + (end["bytes_travel"] or 0)
    except (TypeError, OSError, ValueError, LookupError):  # there is none, or it could not be written
        pass
    return state["bytes"] + state["bytes_travel"]


def tell_end(net, steps, right, bytes_sent):
    model = 4 * sum(tensor.numel() for tensor in net.parameters())  # of running statistics BSP says nothing
    ratio = steps * model / bytes_sent if bytes_sent else 1
    words = "as many as" if abs(ratio - 1) < 0.005 else f"{ratio:.1f} times fewer than" if ratio > 1 else f"{1 / ratio:.2f} times as many as"
    fewer = f", {words} BSP" if bytes_sent else ""
    print(f"accuracy {100 * right:.2f} %; a site has sent {bytes_sent:.0f} bytes{fewer}", flush=True)


def main():
    a = arguments()
    torch.set_num_threads(1)
    rank, world = phub.launched()
    if rank == 0 and world == 1:
        print("sites.py: one site alone; for several: phub scout run --sites 5 -- deploy/demo/sites.py", file=sys.stderr)
    share = Share(rank, world, {0: a.skew, **a.drift}, a.seed)
    net = make_net(a.norm, a.seed)
    kept = Checkpoints(a.checkpoint, a.every, rank, world, a.url) if a.checkpoint else None
    begin, state = (kept.step, kept.saved["site"]) if kept else (0, None)
    if begin:
        net.load_state_dict(kept.saved["model"])
    if begin and rank == 0:
        print(f"sites.py: goes on from step {begin}", flush=True)
    site = open_site(net, *share.now, a.url, scout_of(a), share.evaluate, algorithm=a.algorithm, theta=None if a.policy else a.theta,
                     outer=a.outer, log=a.log, state=state)  # fmt: skip
    tell = teller(site) if rank == 0 else lambda step, loss: None

    def told(step, loss):
        tell(step, loss)
        if kept:
            kept.save(step, net, site)

    train(site, net, *share.now, a.steps, a.seed * world + rank, told, share.take, begin)
    site.finish()  # until here each has a model of its own
    state, there = site.state, site.ranks
    scores = rank == there[0]
    if scores and len(there) < world:
        print(f"sites.py: sites {', '.join(map(str, there))} of {world} are left: scored is the model that they ended with", flush=True)
    if scores:
        count, right, loss = tried(net, *read("test"))
        site.score(count, right, loss)  # into the log, which ends as the site is closed
    site.close()
    if scores:
        tell_end(net, a.steps, right / count, sent(a.log or os.environ.get("PHUB_SCOUT_LOG"), state))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, ValueError, TypeError, OSError, KeyboardInterrupt) as e:
        sys.exit(f"sites.py: {str(e) or ('interrupted' if isinstance(e, KeyboardInterrupt) else type(e).__name__)}")
