#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One of several sites that train a small CNN on Fashion-MNIST together, each with images of mostly its own classes.

    build/phubd &
    torchrun --nproc_per_node 5 deploy/demo/sites.py --skew 60                      # theta stays
    torchrun --nproc_per_node 5 deploy/demo/sites.py --skew 60 --policy hill        # a scout sets it

(Debian 12's torch 1.13 needs --redirects 1 --tee 1 before --nproc_per_node.) --skew is how many percent of the images are dealt
out by class, the rest by turns. Rank 0 prints the accuracy of its model on the test set, and what was sent for it.
"""

import argparse

import train  # beside this file: it finds phub and the data
import torch
import torch.nn.functional as F

import phub
import phub.torch

GRIDS = {"bsp": [1], "gaia": [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3], "local": [1, 2, 5, 10, 20, 50, 100], "dgc": [0.1, 0.03, 0.01, 0.003, 0.001]}


def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.GroupNorm(2, 16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                               torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.GroupNorm(2, 32), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                               torch.nn.Flatten(), torch.nn.Linear(32 * 9, 10))  # fmt: skip


def read(part):
    """Images of 14x14, and labels."""
    images, labels = train.load(part)
    return F.avg_pool2d(images.float() / 255, 2), labels


def deal(labels, rank, world, skew):
    """Which images are this site's."""
    generator = torch.Generator().manual_seed(7)
    order = torch.randperm(len(labels), generator=generator)
    by_label = torch.rand(len(labels), generator=generator) < skew / 100
    owner = torch.where(by_label, labels % world, torch.arange(len(labels)) % world)
    return order[owner[order] == rank]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", help="of the job; $PHUB_URL")
    parser.add_argument("--skew", type=float, default=60, help="percent (%(default)s)")
    parser.add_argument("--algorithm", choices=list(GRIDS), default="local", help="(%(default)s)")
    parser.add_argument("--theta", type=float, help="the paper's")
    parser.add_argument("--policy", help="of a scout: hill, stochastic, annealing, scout+")
    parser.add_argument("--steps", type=int, default=600, help="(%(default)s)")
    parser.add_argument("--period", type=int, default=50, help="steps between decisions (%(default)s)")
    parser.add_argument("--log", help="for the scout's decisions, lines of JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = phub.launched()
    images, labels = read("train")
    mine = deal(labels, rank, world, arguments.skew)
    images, labels = images[mine], labels[mine]

    net = make_net()
    grid = GRIDS[arguments.algorithm]
    scout = dict(thetas=grid, first=grid[len(grid) // 2], policy=arguments.policy, period=arguments.period) if arguments.policy else None
    site = phub.torch.Site(net, arguments.url, algorithm=arguments.algorithm, theta=arguments.theta, scout=scout, log=arguments.log,
                           evaluate=phub.torch.classification(images, labels), weight_decay=5e-4, rate_first=0.05)
    windows = 0
    for step in range(arguments.steps):
        chosen = torch.randint(len(labels), (20,))
        net.zero_grad()
        loss = F.cross_entropy(net(images[chosen]), labels[chosen])
        loss.backward()
        site.lost(loss.item(), len(chosen))
        site.step(0.05 if step < 0.75 * arguments.steps else 0.005)
        if rank == 0 and site.state["windows"] > windows:
            windows, decision = site.state["windows"], site.decision
            print(f"step {step + 1}: loss {decision.loss:.3f}, theta {decision.theta:g}: it {decision.action}: {decision.reason}", flush=True)
    state = site.state
    site.close()
    if rank == 0:
        images, labels = read("t10k")
        with torch.no_grad():
            accuracy = float((net(images).argmax(1) == labels).float().mean())
        model = 4 * sum(p.numel() for p in net.parameters())
        sent = state["bytes"] + state["bytes_travel"]
        print(f"accuracy {100 * accuracy:.1f} %, {sent} bytes sent, {arguments.steps * model / max(sent, 1):.1f} times less than a gradient a step")


if __name__ == "__main__":
    main()
