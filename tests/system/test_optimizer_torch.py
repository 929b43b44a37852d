#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Our optimizers against PyTorch's, over 100 steps with a schedule, weight decay and per-group hyper-parameters.

For every tensor: within 1e-6 of its largest weight of what torch.optim computes in float32, and no further from
torch.optim in float64 than twice torch's own float32 error. The C side is the kernels behind
`$BUILD/tests/units test_aggregation_optimizer --trace`. Exits 77 (skipped) without torch or without that program.
"""
import math
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / os.environ.get("BUILD", "build") / "tests/units"
STEPS = 100
WORKERS = 4
SEED = 20180101
ISAS = ("base", "avx2", "avx512", "neon")
FIELDS = (  # struct optimizer_hyper, in its order
    "lr", "momentum", "dampening", "weight_decay", "lr_decay", "initial_accumulator_value", "beta1", "beta2", "eps")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import numpy
    import torch
except ImportError as error:
    skip(f"{error} (Debian: apt install python3-torch)")
if not PROGRAM.exists():
    skip(f"{PROGRAM} is not there (make test-programs)")

# Parameter groups of one model: each trains two tensors under its own values; {} is PyTorch's defaults.
GROUPS = {
    "sgd": [{"lr": 0.05}, {"lr": 0.01, "weight_decay": 0.05}],
    "momentum": [
        {"lr": 0.01, "momentum": 0.9},
        {"lr": 0.02, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01},
    ],
    "nesterov": [
        {"lr": 0.01, "momentum": 0.9, "nesterov": True},
        {"lr": 0.02, "momentum": 0.7, "nesterov": True, "weight_decay": 0.03},
    ],
    "adagrad": [{}, {"lr": 0.05, "lr_decay": 0.02, "weight_decay": 0.01}],
    "adagrad-accumulator": [{"initial_accumulator_value": 0.3}, {"initial_accumulator_value": 0.3, "eps": 1e-5}],
    "adam": [{}, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.05}],
    "adamw": [{}, {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.3}],
}
CLASSES = {
    "sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "nesterov": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
}
# Large, ordinary, and tiny gradients; a tensor that fills no vector; one of many blocks of the kernels.
SHAPES = ((4096, 1.0), (13, 1.0), (1000, 1e-6), (999, 1e3), (9001, 0.1))


def make_data(count, gradient_size, generator):
    weights = torch.randn(count, generator=generator)
    gradients = torch.randn(STEPS, WORKERS, count, generator=generator) * gradient_size
    gradients[:, :, ::7] = 0  # embeddings that no sample touched
    return weights, gradients


def lr_factor(step):
    """Warm-up, then cosine: a different value every step."""
    return min(1.0, (step + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))


def mean_gradient(gradients, dtype):
    total = gradients[0].to(dtype)
    for worker in gradients[1:]:
        total = total + worker.to(dtype)
    return total * (1.0 / WORKERS)


def run_torch(kind, groups, tensors, dtype):
    """Weights after each step of every tensor, one list per group."""
    parameters = [[torch.nn.Parameter(w.to(dtype, copy=True)) for w, _ in group] for group in tensors]
    keywords = {k: v for k, v in groups[0].items() if k == "initial_accumulator_value"}
    options = [{"params": p, **{k: v for k, v in g.items() if k not in keywords}} for p, g in zip(parameters, groups)]
    if kind in ("sgd", "momentum", "nesterov"):
        keywords["lr"] = 0.001
    optimizer = CLASSES[kind](options, **keywords)
    initial = [group["lr"] for group in optimizer.param_groups]
    traces = [[[] for _ in group] for group in tensors]
    for step in range(STEPS):
        for group, lr in zip(optimizer.param_groups, initial):
            group["lr"] = lr * lr_factor(step)
        for group, data in zip(parameters, tensors):
            for parameter, (_, gradients) in zip(group, data):
                parameter.grad = mean_gradient(gradients[step], dtype)
        optimizer.step()
        for trace, group in zip(traces, parameters):
            for steps, parameter in zip(trace, group):
                steps.append(parameter.detach().double().numpy().copy())
    return traces, [(lr, group) for lr, group in zip(initial, optimizer.param_groups)]


def request_of(initial_lr, group, weights, gradients):
    """What the C side reads after its first line."""
    values = {field: float(group.get(field, 0)) for field in FIELDS}
    values["beta1"], values["beta2"] = group.get("betas", (0.9, 0.999))
    request = [weights.numpy().tobytes()]
    for step in range(STEPS):
        values["lr"] = initial_lr * lr_factor(step)
        request.append(numpy.array([values[field] for field in FIELDS], dtype=numpy.float64).tobytes())
        request.append(gradients[step].numpy().tobytes())
    return b"".join(request)


def run_ours(kind, isa, count, request):
    """Files carry megabytes for less than pipes, which take 512 bytes a call."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as replied:
        asked.write(f"{kind} {isa} {count} {STEPS} {WORKERS}\n".encode())
        asked.write(request)
        asked.seek(0)
        subprocess.run([PROGRAM, "test_aggregation_optimizer", "--trace"], stdin=asked, stdout=replied, check=True)
        replied.seek(0)
        reply = replied.read()
    return numpy.frombuffer(reply, dtype=numpy.float32).astype(numpy.float64).reshape(STEPS, count)


def available_isas():
    isas = []
    for isa in ISAS:
        probe = subprocess.run([PROGRAM, "test_aggregation_optimizer", "--trace"], input=f"sgd {isa} 0 0 1\n".encode(), stderr=subprocess.DEVNULL)
        if probe.returncode == 0:
            isas.append(isa)
    return isas


def check_case(name, isas, generator):
    kind, groups = name.split("-")[0], GROUPS[name]
    tensors = [[make_data(count, size, generator) for count, size in SHAPES] for _ in groups]
    single, settings = run_torch(kind, groups, tensors, torch.float32)
    double, _ = run_torch(kind, groups, tensors, torch.float64)
    failures, worst_apart, worst_ratio = 0, 0.0, 0.0
    for g, (initial_lr, group) in enumerate(settings):
        for t, (weights, gradients) in enumerate(tensors[g]):
            torch32, torch64 = numpy.array(single[g][t]), numpy.array(double[g][t])
            scale = numpy.abs(torch64).max()
            torch_error = numpy.abs(torch32 - torch64).max()
            request = request_of(initial_lr, group, weights, gradients)
            for isa in isas:
                ours = run_ours(kind, isa, len(weights), request)
                apart = numpy.abs(ours - torch32).max() / scale
                error = numpy.abs(ours - torch64).max()
                good = apart <= 1e-6 and error <= 2 * torch_error
                failures += not good
                worst_apart, worst_ratio = max(worst_apart, apart), max(worst_ratio, error / torch_error)
                if not good:
                    print(f"FAIL {name} group {g} tensor {t} {isa}: from torch {apart:.2e},"
                          f" from float64 {error / scale:.2e} (torch {torch_error / scale:.2e})")
    print(f"{name:20} from torch at most {worst_apart:.2e} of the largest weight,"
          f" from float64 at most {worst_ratio:.2f} times as far as torch")
    return failures


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    isas = available_isas()
    print(f"torch {torch.__version__}, seed {SEED}, kernels: {' '.join(isas)}")
    failures = sum(check_case(name, isas, generator) for name in GROUPS)
    if failures:
        print(f"{failures} of the comparisons failed", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
