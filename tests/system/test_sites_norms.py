#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch models with batch and group normalization as sites of whom each has classes that no other has: what scout+ says of them.

This process only forks, as in test_sites_python.py, and workers compute."""
import python_rig as rig
from test_sites_python import WORLD, batch, phub, torch, workers


def deep_net(norm):
    torch.manual_seed(0)
    norms = [torch.nn.BatchNorm1d(32) if norm == "batch" else torch.nn.GroupNorm(4, 32) for _ in range(2)]
    return torch.nn.Sequential(torch.nn.Linear(4, 32), norms[0], torch.nn.ReLU(), torch.nn.Linear(32, 32), norms[1], torch.nn.ReLU(), torch.nn.Linear(32, 6))


def two_classes_of(rank, count=300):
    """Of six, which no other site of three has."""
    centers = 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(100 + rank)
    labels = rank + 3 * torch.randint(2, (count,), generator=generator)
    return centers[labels] + torch.randn(count, 4, generator=generator), labels


def statistics_of(model):
    return b"".join(b.numpy().tobytes() for b in model.buffers() if b.is_floating_point())


def normed(rank, box, algorithm, norm):
    """scout+ tries the mean model, with the mean of the sites' running statistics, and each site keeps its own."""
    net, data, tried, told = deep_net(norm), two_classes_of(rank), [], []
    classify = phub.torch.classification(*data)

    def evaluate(model, draw, samples):
        tried.append(statistics_of(model))
        return classify(model, draw, samples)

    thetas = {"bsp": [1], "gaia": [0, 0.02, 0.05], "local": [1, 2, 5]}[algorithm]
    site = phub.torch.Site(net, box.url(f"{algorithm}-{norm}"), algorithm=algorithm, scout=dict(thetas=thetas, policy="scout+", period=10, tries=20),
                           evaluate=evaluate, rank=rank, world=WORLD)
    for step in range(80):
        x, y = batch(data, step, 20)
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        site.lost(loss, len(y))
        own, seen = statistics_of(net), len(tried)
        site.step(0.05)
        if algorithm != "local":
            assert statistics_of(net) == own
            assert not own or all(other != own for other in tried[seen:])
        told += [step + 1] if site.decision and site.decision.action == "cannot" else []
    numbers = sum(b.numel() for b in net.buffers() if b.is_floating_point())
    assert len(tried) > 2 and site.state["bytes_travel"] == (0 if algorithm == "local" else len(tried) * 4 * numbers), (len(tried), site.state)
    site.close()
    return told, tried


def test_normed(box):
    for algorithm in ("bsp", "gaia", "local"):
        for norm in ("batch", "group"):
            ended = workers(WORLD, normed, box, algorithm, norm)
            assert len(set(map(repr, ended))) == 1, ended  # all are told the same, and try one mean
            told = ended[0][0]
            assert bool(told) == (norm == "batch") and (not told or told[0] <= 60), (algorithm, norm, told)


if __name__ == "__main__":
    rig.run([test_normed], rig.Box())
