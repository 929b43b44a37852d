#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phub.torch with tensors of a GPU: what becomes of them is what becomes of the CPU's, bit by bit, however late they are there.

This process only forks, and asks CUDA nothing: one that has done so forks no workers that can use it.
"""

import python_rig as rig
from python_rig import workers
from test_torch import FakeBucket, F, assert_close, batch_of, ddp_pair, ddp_workers, make_net, mine

import torch

import phub
import phub.torch

BUSY_CYCLES = 20_000_000  # of the GPU, before what is to be exchanged is there: about 10 ms


def late(values):
    """Such a tensor on the GPU, not there yet."""
    out = torch.zeros_like(values, device="cuda")
    there = values.cuda()
    torch.cuda._sleep(BUSY_CYCLES)
    return out.copy_(there)


def cuda_parameters(rank):
    torch.manual_seed(rank)
    shapes = [(1,), (3, 5), (1000, 1001), (257,)]
    values = [torch.randn(shape) for shape in shapes] + [torch.randn(50, 60).t(), torch.randn(99).half(), torch.randn(99).bfloat16()]
    return values


def cuda_optimizer(rank, url, transport):
    """What a GPU's parameters become is what those of the CPU do, bit by bit."""
    here = [torch.nn.Parameter(value) for value in cuda_parameters(rank)]
    there = [torch.nn.Parameter(late(value)) for value in cuda_parameters(rank)]
    options = dict(lr=0.01, momentum=0.9, rank=rank, world=2, transport=transport)
    assert there[4].is_contiguous() == here[4].is_contiguous()
    optimizers = [phub.torch.DistributedOptimizer(list(ps), "nesterov", url + n, **options) for ps, n in ((here, "h"), (there, "t"))]
    with torch.cuda.stream(torch.cuda.Stream() if rank else torch.cuda.current_stream()):
        for step in range(6):
            torch.manual_seed(100 * step + rank)
            for index, (a, b) in enumerate(zip(here, there)):
                a.grad = None if index == step + rank else torch.randn(a.shape).to(a.dtype)
                b.grad = None if a.grad is None else late(a.grad)
            for optimizer in optimizers:
                optimizer.step()
            sums = [(p * 1).cpu() for p in there]  # a later kernel's view of them
            for index, (a, b) in enumerate(zip(here, sums)):
                assert torch.equal(a.detach(), b), f"step {step}, parameter {index}"
    for optimizer in optimizers:
        optimizer.close()


def test_cuda_optimizer_equals_cpu(box):
    for transport in ("shm", "tcp"):
        workers(2, cuda_optimizer, box.url("cuda" + transport), transport)


def cuda_buckets(rank, url, transport):
    """The hook alone: means of two have the bits that torch gives them."""
    from phub._ddp import Hook, run

    hook = Hook(phub.connect(url, rank=rank, world=2, reduce="mean", transport=transport))
    for turn in range(6):
        torch.manual_seed(turn)
        sizes = [1_000_003, 30 + turn // 3]
        values = [[torch.randn(n) for n in sizes] for _ in range(2)]
        tensors = [late(value) for value in values[rank]]
        futures = [run(hook, FakeBucket(i, t, i == 1)) for i, t in enumerate(tensors)]
        for i, future in enumerate(futures):
            assert torch.equal((future.value() * 1).cpu(), (values[0][i] + values[1][i]) / 2), (turn, i)
    assert hook.rekeys == 2
    hook.detach()


def test_cuda_buckets(box):
    for transport in ("shm", "tcp"):
        workers(2, cuda_buckets, box.url("bucket" + transport), transport)


def cuda_ddp(rank, world, url, transport, options):
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    pair, worker = ddp_pair(url, lambda: make_net(3).cuda(), transport, **options)
    for step in range(5):
        images, labels = (t.cuda() for t in mine(batch_of(step, world), rank))
        for model, optimizer in pair:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        assert_close(pair[0][0], pair[1][0])
    assert phub.torch._hooks[pair[0][0]].rekeys == 2
    phub.torch.detach(pair[0][0])


def test_cuda_ddp_equals_gloo(box):
    for transport, view in (("shm", False), ("tcp", True)):
        ddp_workers(2, cuda_ddp, box.url("cudaddp" + transport), transport, dict(gradient_as_bucket_view=view))


def cuda_broadcast(rank, url):
    torch.manual_seed(rank)
    state = {name: tensor.cuda() for name, tensor in torch.nn.BatchNorm1d(400).state_dict().items()}
    state.update(float32=late(torch.randn(100_000)), int64=torch.randint(-(2**62), 2**62, (3, 5)).cuda(), here=torch.randn(5))
    phub.torch.broadcast_parameters(state, url, 1, rank=rank, world=2)
    return str({name: tensor.tolist() for name, tensor in state.items()})


def test_cuda_broadcast(box):
    answers = workers(2, cuda_broadcast, box.url("cudabroadcast"))
    assert answers[0] == answers[1]


def cuda_sites(rank, url, algorithm):
    """Two models under the same gradients; running statistics and evaluate() too."""
    seen = {"cpu": [], "cuda": []}

    def evaluate(model, draw, samples):
        device = next(model.parameters()).device.type
        seen[device].append(b"".join(t.cpu().numpy().tobytes() for t in model.state_dict().values()))
        return 10, 5, 1.0

    nets = [torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1].cuda()
    scout = dict(thetas=[0.05] if algorithm == "gaia" else [2], policy="hill", period=4)
    sites = [phub.torch.Site(net, url + name, algorithm=algorithm, scout=scout, evaluate=evaluate, reproducible=True, rank=rank, world=3)
             for net, name in zip(nets, "ht")]  # fmt: skip
    for step in range(9):
        torch.manual_seed(100 * step + rank)
        for here, there in zip(nets[0].parameters(), nets[1].parameters()):
            here.grad = torch.randn(here.shape)
            there.grad = late(here.grad)
        with torch.no_grad():
            nets[0][1].running_mean.add_(torch.randn(400))
            nets[1][1].running_mean.copy_(late(nets[0][1].running_mean))
            if step == 5:
                nets[0][0].bias.zero_()
                nets[1][0].bias.zero_()
        for site in sites:
            site.step(0.05)
        for (name, a), b in zip(nets[0].state_dict().items(), nets[1].state_dict().values()):
            assert torch.equal(a, (b * 1).cpu()), (step, name)
    assert seen["cpu"] == seen["cuda"] and len(seen["cpu"]) > 2, [len(s) for s in seen.values()]
    for site in sites:
        site.close()


def test_cuda_sites(box):
    for algorithm in ("local", "gaia"):
        workers(3, cuda_sites, box.url(algorithm), algorithm)


if __name__ == "__main__":
    if not workers(1, lambda rank: torch.cuda.is_available())[0]:
        rig.skip("no GPU here that CUDA knows")
    rig.run([test for name, test in list(globals().items()) if name.startswith("test_cuda")], rig.Box())
