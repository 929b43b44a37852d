#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch models as sites. With batch and group normalization, where each has classes that no other has: what scout+ says of them; with
what is frozen; how many samples evaluate() tries; and racks of other options.

This process only forks, as in test_sites_python.py, and workers compute."""
import math
import warnings

import python_rig as rig
from test_sites_python import WORLD, batch, bytes_of, data_of, failing, make_net, phub, raises, torch, workers


def deep_net(norm):
    torch.manual_seed(0)
    norms = [torch.nn.BatchNorm1d(32) if norm == "batch" else torch.nn.GroupNorm(4, 32) for _ in range(2)]
    return torch.nn.Sequential(torch.nn.Linear(4, 32), norms[0], torch.nn.ReLU(), torch.nn.Linear(32, 32), norms[1], torch.nn.ReLU(),
                               torch.nn.Linear(32, 6))


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
    site = phub.torch.Site(net, box.url(f"{algorithm}-{norm}"), algorithm=algorithm,
                           scout=dict(thetas=thetas, policy="scout+", period=10, tries=20),
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
    assert len(tried) > 2 and site.state["bytes_travel"] == (0 if algorithm == "local"
                                                             else len(tried) * 4 * numbers), (len(tried), site.state)
    site.close()
    return told, tried


def test_normed(box):
    for algorithm in ("bsp", "gaia", "local"):
        for norm in ("batch", "group"):
            ended = workers(WORLD, normed, box, algorithm, norm)
            assert len(set(map(repr, ended))) == 1, ended  # all are told the same, and try one mean
            told = ended[0][0]
            assert bool(told) == (norm == "batch") and (not told or told[0] <= 60), (algorithm, norm, told)


def finishes(rank, box, algorithm, theta):
    """After a number of steps after which nothing is due all models are one, statistics too, and training may go on."""
    net, data = deep_net("batch"), two_classes_of(rank)
    site = phub.torch.Site(net, box.url(f"finishes-{algorithm}"), algorithm=algorithm, theta=theta, rank=rank, world=WORLD)
    ended, said = [], []
    for step in range(20):
        x, y = batch(data, step, 20)
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        site.step(0.05)
        if step in (9, 19):
            ended.append(bytes_of(net))
            site.finish()
            ended.append(bytes_of(net))
            said.append(site.state["exchanges"])
    site.finish(5)  # again is fine
    site.close()
    return ended + [bytes_of(net)], said


def test_finishes(box):
    for algorithm, theta, said in (("bsp", 1, [11, 22]), ("gaia", 0.1, [11, 22]), ("local", 7, [2, 4]), ("dgc", 0.05, [11, 22])):
        ended = workers(WORLD, finishes, box, algorithm, theta)
        for at in range(5):
            assert len({models[at] for models, _ in ended}) == (1 if at in (1, 3, 4) else WORLD), (algorithm, at)
        assert all(counted == said for _, counted in ended), (algorithm, ended[0][1])


HELD = torch.zeros(5)  # what a site is given stays, or it writes to what others have then


def frozen_net(rank):
    net = make_net(rank, False)
    net[0].requires_grad_(False)
    net.scale = torch.nn.Parameter(torch.full((3,), 0.5 + rank, dtype=torch.float64).bfloat16(), requires_grad=False)
    net.counts = torch.nn.Parameter(torch.arange(5) + rank, requires_grad=False)
    return net


def frozen(rank, box, algorithm):
    """What is frozen, of whatever type, does not travel; all sites, and a state, have the same."""
    net, first, state = frozen_net(rank), frozen_net(0), None
    options = {"algorithm": algorithm, "theta": {"local": 2, "gaia": 0}.get(algorithm), "weight_decay": 0.01, "rank": rank, "world": WORLD}
    if rank < 2:  # a third might come when the other two have ended that job, and wait for them in a new one
        with raises(phub.Error, "frozen weights of sites differs: rank ", " says 4 (",
                    "broadcast_parameters(model.state_dict(), url) before it gives all rank 0's"):
            phub.torch.Site(net, box.url(f"unlike-{algorithm}"), **options | {"world": 2})
    phub.torch.broadcast_parameters(net.state_dict(), box.url(f"frozen-{algorithm}"), rank=rank, world=WORLD)
    for begin, end in ((0, 6), (6, 10)):
        site = phub.torch.Site(net, box.url(f"frozen-{algorithm}{begin}"), state=state, **options)
        for step in range(begin, end):
            x, y = batch(data_of(rank), step)
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            site.step(0.1)
        state, trained = site.state_dict(), sum(p.numel() for p in net.parameters() if p.requires_grad)
        assert algorithm == "gaia" or site.state["bytes"] == 4 * trained * site.state["exchanges"], site.state
        site.close()
    with torch.no_grad():
        net.scale[0] += 1
    with raises(phub.Error, "the frozen weights are not those that the state was saved with"):
        phub.torch.Site(net, box.url(f"other-{algorithm}"), state=state, **options)
    net.scale.data[0] -= 1
    assert bytes_of(net[0]) == bytes_of(first[0]) and bytes_of(net[3]) != bytes_of(first[3])
    return bytes_of(net[3]) if algorithm != "gaia" else None  # whose sites differ by what was not significant


def test_frozen(box):
    for algorithm in ("bsp", "gaia", "local"):
        assert len(set(workers(WORLD, frozen, box, algorithm))) == 1, algorithm


def test_thawed(box):
    """What is to be trained later, or nothing at all, is told."""
    net, data = frozen_net(0), data_of(0)
    with raises(phub.Error, "no parameter of the model requires gradients: there is nothing to train"):
        phub.torch.Site(make_net(0).requires_grad_(False), box.url("nothing"), rank=0, world=1)
    site = phub.torch.Site(net, box.url("thawed"), rank=0, world=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(60):
            x, y = batch(data, step)
            net[0].requires_grad_(step >= 30)
            torch.nn.functional.cross_entropy(net(x), y).backward()
            site.step(0.01)
    told = [str(w.message) for w in caught]
    assert len(told) == 1 and "0.weight has a gradient, but was frozen when this site was made" in told[0], told
    site.close()


def wanted(rank, box):
    """scout+ says how many samples it has time for, and classification() tries as many. Nothing need be right, but a loss."""
    warnings.simplefilter("error", RuntimeWarning)  # as of an evaluate() that fails
    net, data, asked = make_net(rank), data_of(rank), []
    drawn = phub.torch.classification(*data, count=50)

    def evaluate(model, draw, samples):
        found = drawn(model, draw, samples)
        asked.append((samples, found[0], drawn(model, draw, 0)[0]))
        return (found[0], None, found[2]) if rank == 1 else found

    site = phub.torch.Site(net, box.url("wanted"), scout=dict(thetas=[1, 2, 5], policy="scout+", period=10, tries=12), evaluate=evaluate,
                           rank=rank, world=WORLD)
    for step in range(30):
        x, y = batch(data, step)
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        site.lost(loss, len(y))
        site.step(0.05)
    site.close()
    assert asked and set(asked) == {(12, 12, 50)}, asked


def test_wanted(box):
    workers(WORLD, wanted, box)


def few(rank, box):
    """A loss of fewer than 10 samples leaves no site, be they tried or trained on; of 10 it does, and what was held back comes later."""
    counts, decided = {0: 9, 1: 9, 2: 10}, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step, site in enumerate(failing(box, "few", rank, lambda model, draw, samples: (counts[rank], 5, 7.0), 8)):
            if rank == 0:
                site.lost(3.0, 4)
            site.step(0.05)
            decided += [site.decision] if site.state["windows"] > len(decided) else []
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    assert len(told) == (rank < 2) and all("evaluate() has tried 9 samples, and of fewer than 10 nothing leaves a site" in t
                                           for t in told), told
    assert all(d.believed == 1 and math.isnan(d.loss) for d in decided), decided
    trains = [d.train for d in decided]
    assert [math.isnan(t) for t in trains] == [True, False, True, False] and trains[1::2] == [3, 3], trains


def test_few(box):
    workers(WORLD, few, box)
    with phub.connect(box.url("few-tries"), rank=0, world=1) as worker, raises(phub.Error, "tries=9; of fewer than 10 samples"):
        phub.Site(worker, scout=dict(thetas=[1], policy="scout+", tries=9), evaluate=lambda weights, draw, samples: (1, 1, 1.0))


def says_wrong(rank, box):
    """What cannot be, or what two options say, is refused in words, whatever else C would make of the number."""
    for number, (options, text) in enumerate((({"samples": -1, "weighted": True}, "samples=-1: allowed are whole numbers from 0 to 2^64 - 1"),
                                              ({"samples": 2**54}, "samples=18014398509481984; allowed: 0 to 2^53"),
                                              ({"warmup": -1}, "warmup=-1: allowed are whole numbers from 0 to 2^32 - 1"),
                                              ({"clip": -1}, "clipped to -1; needs to be at least 0"),
                                              ({"scout": {"thetas": [1, 5], "period": -5}}, "period=-5: allowed are"),
                                              ({"scout": {"thetas": [1, 5], "seed": -1}}, "seed=-1: allowed are"),
                                              ({"scout": {"thetas": [1, 5], "patience": -1}}, "patience=-1: allowed are"),
                                              ({"algorithm": "bsp", "outer": "adam"}, "outer=adam is of PHUB_SITE_LOCAL, and the"),
                                              ({"theta": 3, "scout": {"thetas": [1, 3]}}, "theta=3 beside a scout, which sets it"))):
        with raises(Exception, text), phub.connect(box.url(f"wrong{number}"), reduce="sum") as worker:
            site = phub.Site(worker, **options)
            site.tensor("w", HELD.data_ptr(), 5)
            site.start()
    with phub.connect(box.url("wrong"), reduce="sum") as worker:
        site = phub.Site(worker)
        site.tensor("w", HELD.data_ptr(), 5)
        site.start()
        for call in (lambda: site.set_samples(-1), lambda: site.lost(1.0, -1), lambda: site.score(-3, 1), lambda: site.score(3, -1)):
            with raises(ValueError, ": allowed are whole numbers from 0 to 2^64 - 1"):
                call()
    scout = phub.Scout([1, 2], model_bytes=100)
    with raises(ValueError, "bytes=-1: allowed are"):
        scout.observe([(0.5, 0.5, 10, -1)])


def test_says_wrong(box):
    workers(1, says_wrong, box)


def out_of_turn(rank, box):
    """Before its start, after one that failed, and with what is no state: in words."""
    net = make_net(0)
    site = phub.torch.Site(net, box.url("turn"), start=False, rank=0, world=1)
    for call in (lambda: site.step(0.1), site.finish, site.flush, lambda: site.state, lambda: site.ranks, lambda: site.decision,
                 lambda: site.alignment, lambda: site.lost(1, 1), lambda: site.score(3), lambda: site.set_samples(3), lambda: site.set_theta(3)):
        with raises(ValueError, "this site has not started: start() comes first"):
            call()
    site.load_state_dict({"site": b"bytes"})
    with raises(TypeError, "the state's 'site' is a tensor in what state_dict() gave, and here a bytes"):
        site.start()
    with raises(ValueError, "this site could not start, and is closed; make another"):
        site.start()
    with raises(ValueError, "this site is closed"):
        site.step(0.1)
    for state, text in ((b"bytes", "a state is what state_dict() gave, and this is a bytes"), ([1], "this is a list")):
        with raises(TypeError, text):
            phub.torch.Site(net, box.url("typed"), state=state, rank=0, world=1)
    with phub.connect(box.url("bare"), reduce="sum") as worker:
        bare = phub.Site(worker)
        bare.tensor("w", HELD.data_ptr(), 5)
        with raises(TypeError, "a state is the bytes of save(), and this is a dict"):
            bare.load({})
        with raises(TypeError, "a state is the bytes of save(), and this is a str"):
            phub.Scout([1, 2], model_bytes=100).load("")


def test_out_of_turn(box):
    workers(1, out_of_turn, box)


def box_dies(rank):
    """Sites have states of their own to go on from: the box's checkpoints are none of theirs."""
    box = rig.Box()
    site = phub.torch.Site(make_net(0), box.url("dies"), algorithm="gaia", rank=0, world=1)
    box.process.kill()
    box.process.wait()
    with raises(phub.Error, "When it runs again, start all sites again: each goes on from the state that it has saved, where it has"):
        for _ in range(100):
            site.step(0.1)


def test_box_dies(_):
    workers(1, box_dies)


def other_theta(rank, box):
    """Whose theta is another's is told so, as of other options; who comes later has theirs, which may have changed meanwhile."""
    for number, (first, others, *said) in enumerate((({}, {"theta": 10}, "20", "10"),
                                                     ({"algorithm": "dgc", "theta": 0.3}, {"algorithm": "dgc"}, "0.3", "0.001"))):
        with raises(phub.Error, "theta of sites differs", f"rank 0 says {said[0]}", f"rank 1 says {said[1]}"):
            phub.torch.Site(make_net(0), box.url(f"theta{number}"), rank=rank, world=2, **(others if rank else first))


def test_other_theta(box):
    workers(2, other_theta, box)


def unlike_racks(rank, box, name, momentum, frozen, *said):
    weights, across = torch.zeros(8), phub.connect(box.url(f"unlike-{name}"), rank=rank, world=2)
    with phub.connect(box.url(f"unlike-{name}{rank}"), rank=0, world=1, here=True) as rack:
        inner = phub.Site(rack, momentum=momentum * rank)
        inner.tensor("w", weights.data_ptr(), 8)
        values = torch.full((3,), frozen * rank, dtype=torch.float16)
        inner.frozen("f", values.data_ptr(), 6)
        inner.start()
        site = phub.Site(across, within=inner)
        with raises(phub.Error, "its tensors are those of the site within it; leave 'f' away"):
            site.frozen("f", values.data_ptr(), 6)
        with raises(phub.Error, *said):
            site.start()
        for opened in (site, across, inner):
            opened.close()


def test_unlike_racks(box):
    """The optimizer, and what is frozen, is that of the sites within, and alike in all racks."""
    workers(2, unlike_racks, box, "optimizer", 0.5, 0, "momentum of sites differs", "rank 0 says 0", "rank 1 says 0.5")
    workers(2, unlike_racks, box, "frozen", 0, 1, "frozen weights of sites differs", "rank 0 says 1 (", "rank 1 says 1 (")


if __name__ == "__main__":
    rig.run([test_normed, test_finishes, test_frozen, test_thawed, test_wanted, test_few,
             test_says_wrong, test_out_of_turn, test_box_dies, test_other_theta, test_unlike_racks], rig.Box())
