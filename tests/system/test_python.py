#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""client/python without torch: sums of numpy arrays, the calls of a process's own worker, errors, forks, installing."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import python_rig as rig
from python_rig import raises, workers

import numpy

import phub

WORLD = 4


# ---- sums ----


def data(rank, step, elements, dtype):
    """Integers small enough for exact sums, different in every place, step and rank."""
    at = numpy.arange(elements, dtype=numpy.int64)
    return ((at * 7 + step * 3 + rank * 5) % 16 - 8).astype(dtype)


def exchange(rank, url, transport):
    with phub.connect(url, rank=rank, world=WORLD, transport=transport) as worker:
        for shape, dtype in (((100_003,), "f4"), ((3, 5), "f2"), ((), "f4"), ((2, 3, 4), "f4")):
            elements = int(numpy.prod(shape))
            for step in range(3):
                got = worker.push_pull(data(rank, step, elements, dtype).reshape(shape))
                want = sum(data(r, step, elements, "i8") for r in range(WORLD))
                assert got.shape == shape and got.dtype == numpy.dtype(dtype), (got.shape, got.dtype)
                assert (got.reshape(-1) == want).all(), (shape, dtype, step)
        turned = data(rank, 9, 35, "f4").reshape(5, 7).T
        assert (worker.push_pull(turned) == sum(data(r, 9, 35, "f4") for r in range(WORLD)).reshape(5, 7).T).all()
        stats = worker.stats()
        assert stats["pushed_bytes"] == stats["pulled_bytes"] > 0, stats
        return worker.transport


def test_sums_over_tcp(box):
    assert workers(WORLD, exchange, box.url("tcp"), "tcp") == ["tcp"] * WORLD


def test_sums_over_shm(box):
    assert workers(WORLD, exchange, box.url("shm"), "shm") == ["shm"] * WORLD


def mean(rank, url):
    with phub.connect(url, rank=rank, world=2, reduce="mean") as worker:
        return worker.push_pull(numpy.array([rank, 10.0], numpy.float32)).tolist()


def test_mean(box):
    assert workers(2, mean, box.url("mean")) == [[0.5, 10.0]] * 2


def train(rank, url):
    """A key of an optimizer's job, by addresses."""
    weights = numpy.full(5, 1.0 + rank, numpy.float32)
    gradient = numpy.full(5, 1.0 + rank, numpy.float32)
    groups = [phub.hyper("sgd", lr=0.5)]
    with phub.connect(url, rank=rank, world=2, optimizer="sgd", groups=groups, reduce="mean") as worker:
        key = worker.key("w", 5)
        worker.start()
        with raises(phub.Error, "'w'", "phub_broadcast"):
            worker.begin(key, gradient.ctypes.data, weights.ctypes.data)
        worker.broadcast(key, weights.ctypes.data)
        worker.wait(key)
        assert (weights == 1.0).all(), weights
        for _ in range(2):
            worker.begin(key, gradient.ctypes.data, weights.ctypes.data)
            worker.wait()
            worker.set_hyper(0, phub.hyper("sgd", lr=0.25))
        worker.push(key, gradient.ctypes.data)
        worker.pull(key, weights.ctypes.data)
        assert worker.test(key)
        return weights.tolist()


def test_optimizer_by_addresses(box):
    assert workers(2, train, box.url("sgd")) == [[1.0 - 1.5 * (0.5 + 0.25 + 0.25)] * 5] * 2


def in_place(rank, url, transport):
    with phub.connect(url, rank=rank, world=2, transport=transport) as worker:
        key = worker.key("k", 1000)
        worker.start()
        push, result = (numpy.frombuffer((phub._worker.ctypes.c_float * 1000).from_address(a), "f4")
                        for a in worker.alloc(key))
        push[:] = rank + 1
        worker.begin(key, push.ctypes.data)
        worker.wait(key)
        assert (result == 3).all()
        return worker.stats()["copied_bytes"]


def test_memory_of_the_library_is_not_copied(box):
    for transport in ("shm", "tcp"):
        assert workers(2, in_place, box.url("place" + transport), transport) == [0, 0]


# ---- the process's own worker ----


def own(rank, url):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", PHUB_URL=url)
    assert not phub.is_initialized()
    for call in (phub.rank, phub.size, phub.barrier, lambda: phub.push_pull(numpy.ones(1, "f4"))):
        with raises(RuntimeError, "phub.init()"):
            call()
    phub.init()
    assert phub.is_initialized() and phub.rank() == rank and phub.size() == 2
    with raises(RuntimeError, "already"):
        phub.init()
    phub.barrier()
    total = phub.push_pull(numpy.array([rank + 1.0], numpy.float32))
    phub.shutdown()
    phub.shutdown()
    assert not phub.is_initialized()
    return total.tolist()


def test_own_worker_by_the_launchers_environment(box):
    assert workers(2, own, box.url("own")) == [[3.0]] * 2


# ---- errors ----


def test_errors_of_arguments(box):
    url = box.url("arguments")
    with raises(phub.Error, "phub://"):
        phub.connect("http://box/job")
    with raises(ValueError, "optimizer 'sdg'", "sgd"):
        phub.connect(url, optimizer="sdg")
    with raises(ValueError, "reduce 'max'", "mean"):
        phub.connect(url, reduce="max")
    with raises(TypeError, "colour"):
        phub.connect(url, colour="red")
    with raises(TypeError, "'momentun'", "momentum"):
        phub.hyper("nesterov", momentun=0.9)
    with raises(phub.Error, "rank 2", "world of 2"):
        phub.connect(url, rank=2, world=2)
    with raises(phub.Error, "ssp"):
        phub.connect(url, sync="ssp")
    with phub.connect(url) as worker:
        with raises(TypeError, "float64", "astype"):
            worker.push_pull(numpy.ones(3))
        with raises(ValueError, "without elements"):
            worker.push_pull(numpy.ones(0, "f4"))
        with raises(phub.Error, "'empty'"):
            worker.key("empty", 0)
        with raises(phub.Error, "no key 7"):
            worker.wait(7)
    with raises(ValueError, "closed"):
        worker.rank
    worker.close()


def test_no_box(box):
    begun = time.monotonic()
    with raises(phub.Error, "127.0.0.1:9"):
        phub.connect("phub://127.0.0.1:9/job", timeout=0.4)
    assert time.monotonic() - begun < 20  # the default is 30


def test_a_missing_rank_is_named(box):
    url = box.url("missing")
    worker = phub.connect(url, rank=0, world=2)
    begun = time.monotonic()
    with raises(TimeoutError, "rank 1", "after 1.6 s"):
        worker.push_pull(numpy.ones(3, "f4"), timeout=1.6)
    assert 1.5 < time.monotonic() - begun < 20
    with raises(phub.Error, "rank 0", "taken"):
        phub.connect(url, rank=0, world=2)

    def late():
        with phub.connect(url, rank=1, world=2) as other:
            other.push_pull(numpy.ones(3, "f4"))

    thread = threading.Thread(target=late)
    thread.start()
    assert worker.push_pull(numpy.ones(3, "f4")).tolist() == [2, 2, 2]  # the start goes on where it was
    thread.join()
    worker.close()


def test_a_start_that_has_timed_out_is_over_when_the_job_runs(box):
    url = box.url("late")
    worker = phub.connect(url, rank=0, world=2)
    key, array = worker.key("a", 3), numpy.ones(3, "f4")
    with raises(TimeoutError, "rank 1"):
        worker.start(0.3)
    there = threading.Event()

    def late():
        with phub.connect(url, rank=1, world=2) as other:
            key, array = other.key("a", 3), numpy.ones(3, "f4")
            other.start()
            there.set()
            other.begin(key, array.ctypes.data, array.ctypes.data)
            other.wait()

    thread = threading.Thread(target=late)
    thread.start()
    assert there.wait(20)
    time.sleep(0.3)  # and here it runs, too
    worker.start()
    with raises(phub.Error, "running already"):
        worker.start()
    worker.begin(key, array.ctypes.data, array.ctypes.data)
    worker.wait()
    thread.join()
    worker.close()
    assert array.tolist() == [2, 2, 2]


def differ(rank, url):
    with phub.connect(url, rank=rank, world=2) as worker:
        with raises(phub.Error, "float32[4]") if rank else raises(phub.Error, "float32[3]"):
            worker.push_pull(numpy.ones(3 + rank, "f4"))
        worker.close()


def test_arrays_that_differ_are_named(box):
    workers(2, differ, box.url("differ"))


def half(rank, url):
    """Rank 1 never comes to the second round: rank 0 gives up waiting, then gets its result."""
    with phub.connect(url, rank=rank, world=2) as worker:
        array = numpy.full(50_000, rank + 1, numpy.float32)
        worker.push_pull(array)
        if rank == 0:
            with raises(TimeoutError, "rank 1"):
                worker.push_pull(array, timeout=1.6)  # the box says once a second who is missing
            with raises(phub.Error, "in flight"):
                worker.push_pull(array)
            worker.barrier()
            worker.wait()
        else:
            worker.barrier()
            assert (worker.push_pull(array) == 3).all()
        return (worker.push_pull(array) == 3).all()


def test_a_round_in_flight_outlives_its_timeout(box):
    assert all(workers(2, half, box.url("half")))


def test_ctrl_c_is_heard_while_waiting(box):
    worker = phub.connect(box.url("interrupt"), rank=0, world=2)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with raises(KeyboardInterrupt):
        worker.push_pull(numpy.ones(3, "f4"))
    assert time.monotonic() - begun < 20  # at once, and not when the wait of 30 s is over
    worker.leave()
    worker.close()


# ---- processes ----


def test_fork(box):
    with phub.connect(box.url("fork")) as worker:
        array = numpy.arange(5, dtype=numpy.float32)
        worker.push_pull(array)
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    worker.push_pull(array)
                except phub.Error as e:
                    os._exit(0 if "forked" in str(e) else 2)
                os._exit(3)
            assert os.waitpid(pid, 0)[1] == 0
            assert (worker.push_pull(array) == array).all()


def forget(rank, url):
    worker = phub.connect(url, rank=rank, world=2)
    worker.push_pull(numpy.ones(3, "f4"))
    if rank == 0:
        del worker
    else:
        globals()["kept"] = worker  # alive when the process ends


def test_a_process_that_ends_leaves(box):
    workers(2, forget, box.url("forget"))
    box.wait_log("job 'forget' ended")
    script = f"import numpy, phub; phub.init({box.url('exit')!r}); phub.push_pull(numpy.ones(3, 'f4'))"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": path})
    box.wait_log("job 'exit' ended")
    for job in ("forget", "exit"):
        lines = [line for line in box.log.read_text().splitlines() if f"'{job}'" in line]
        assert not any("lost" in line for line in lines), lines


TRAINING = """
import ast, multiprocessing, os, signal, sys, threading, time
import numpy, phub

def train(rounds=60):
    worker = phub.connect(sys.argv[1], rank=0, world=1, optimizer="adam", transport="tcp")
    key = worker.key("a", 1000)
    worker.start()
    array = numpy.ones(1000, "f4")
    worker.broadcast(key, array.ctypes.data)
    worker.wait()
    for _ in range(rounds):
        worker.begin(key, array.ctypes.data, array.ctypes.data)
        worker.wait()
        time.sleep(0.005)
    return worker

def fail():
    worker = train()
    raise ValueError("planted")

def child(target):
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()

# Each end in a fork of this process, which imports once: there it is the rest of the program.
for name, end in ast.literal_eval(sys.argv[2]).items():
    if os.fork() == 0:
        sys.argv[1] += name
        break
    os.wait()
else:
    os._exit(0)
exec(end)
"""
# How a training ends, and is it finished?
ENDS = {
    "end": ("worker = train()", True),
    "function": ("train()", True),
    "exit": ("worker = train(); sys.exit(0)", True),
    "leave": ("train().leave(); raise ValueError()", True),
    "with": ("with train() as worker: pass\nraise ValueError()", True),
    "child": ("child(train)", True),
    "said": ("worker = train(); worker.finish(); raise ValueError()", True),
    "raise": ("worker = train(); raise ValueError()", False),
    "fail": ("fail()", False),
    "interrupt": ("worker = train(); os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", False),
    "exit1": ("worker = train(); sys.exit(1)", False),
    "caught": ("try: fail()\nexcept ValueError: sys.exit(1)", False),
    "finally": ("worker = train()\ntry: raise ValueError()\nfinally: worker.leave()", False),
    "thread": ("worker = train(); t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", False),
    "child1": ("child(fail)", False),
    "forgotten": ("phub._worker._FORGOTTEN_S = 0.2; train(); time.sleep(2)", False),
    "again": ("train(); worker = train(0)", True),
}


def test_a_training_that_an_exception_ends_is_not_finished(_):
    with tempfile.TemporaryDirectory() as folder:
        box = rig.Box("-o", f"checkpoint_targets={folder}", "-o", "checkpoint_every=10")
        path = os.pathsep.join(sys.path)
        ends = repr({name: end for name, (end, _) in ENDS.items()})
        subprocess.run([sys.executable, "-c", TRAINING, box.url(""), ends], stderr=subprocess.DEVNULL, timeout=rig.RESULT_S, check=True,
                       env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": ""})
        wanted = {name for name, (_, finished) in ENDS.items() if finished}
        for name in ENDS:
            box.wait_log(f"job '{name}' ended")
            until = time.monotonic() + 20
            while name in wanted and not pathlib.Path(folder, name, "finished").exists() and time.monotonic() < until:
                time.sleep(0.02)
        time.sleep(0.3)
        found = {mark.parent.name for mark in pathlib.Path(folder).glob("*/finished")}
        assert found == wanted, f"{found ^ wanted}: {box.log.read_text()}"
        log = [line for line in box.log.read_text().splitlines() if "lost" in line and "'" in line]
        assert not log, log
        assert box.stop()


# ---- nothing grows ----


def rekey(rank, url, transport, count):
    """Ends of (resident bytes, files), and how much they grew over the last nine tenths."""
    with phub.connect(url, rank=rank, world=2, transport=transport) as worker:
        buffer = numpy.zeros(20_000, numpy.float32)
        for turn in range(count):
            keys = [worker.key(f"k{i}", 20_000 - 100 * i - turn % 7) for i in range(3)]
            worker.start()
            for key in keys:
                push, result = worker.alloc(key)
                worker.begin(key, buffer.ctypes.data)
            worker.wait()
            worker.rekey()
            if turn == count // 10:
                worker_first = rig.footprint(os.getpid())
        return worker_first, rig.footprint(os.getpid())


def rest(box, job, files):
    """The box's footprint once the job has ended and its connections are closed: then it has `files` open, or fewer."""
    box.wait_log(f"job '{job}' ended")
    until = time.monotonic() + 5
    while (now := rig.footprint(box.process.pid))[1] > files and time.monotonic() < until:
        time.sleep(0.01)
    return now


def check_rekeys(box, transport, count):
    name = "rekey" + transport
    empty = len(os.listdir(f"/proc/{box.process.pid}/fd"))
    workers(2, rekey, box.url(name + "warm"), transport, count // 10)
    before = rest(box, name + "warm", empty)
    grown = workers(2, rekey, box.url(name), transport, count)
    grown.append((before, rest(box, name, before[1])))
    for first, last in grown:
        print(f"# {transport}: {first[0] >> 10} -> {last[0] >> 10} KiB, {first[1]} -> {last[1]} files")
    for first, last in grown:
        assert last[0] - first[0] < 1 << 20, (first, last)
        assert last[1] <= first[1], (first, last)


def test_1000_rekeys_leak_nothing_shm(box):
    check_rekeys(box, "shm", 1000)


def test_1000_rekeys_leak_nothing_tcp(box):
    check_rekeys(box, "tcp", 1000)


def test_old_sizes_are_forgotten(box):
    limit, phub._worker._ARRAYS_MAX = phub._worker._ARRAYS_MAX, 4
    with phub.connect(box.url("sizes")) as worker:
        for elements in [*range(1, 12), 3, 11]:
            array = numpy.full(elements, elements, numpy.float32)
            assert (worker.push_pull(array) == array).all()
        assert len(worker._arrays) == 4
    phub._worker._ARRAYS_MAX = limit


def exchange_named(worker, name):
    worker.key(name, 5)
    worker.start()
    values = numpy.arange(5, dtype=numpy.float32)
    worker.begin(0, values.ctypes.data, values.ctypes.data)
    worker.wait()


def test_a_pause_between_key_tables(_):
    """Longer than lost_ms between rekey() and start(): the worker is there, and says so by its heartbeats."""
    box = rig.Box("-o", "lost_ms=2000", "-o", "warn_ms=1000", "-o", "heartbeat_ms=200")
    workers_ = [phub.connect(box.url(transport), transport=transport) for transport in ("tcp", "shm")]
    for worker in workers_:
        exchange_named(worker, "first")
        assert worker.transport in ("tcp", "shm")
        worker.rekey()
        assert worker.transport == "" and worker.stats()["rounds"] == 1, worker.stats()
    time.sleep(3)
    for worker in workers_:
        worker.wait()  # there is nothing in flight
        exchange_named(worker, "second")
        assert worker.stats()["rounds"] == 2, worker.stats()
        worker.rekey()
        worker.barrier()
        worker.leave()
        worker.close()
    assert box.stop()


# ---- installing ----


def test_pip_install(box):
    for module in ("pip", "setuptools", "wheel"):
        if not importlib.util.find_spec(module):
            return f"no {module} (Debian: apt install python3-pip)"
    source = rig.ROOT / "client" / "python"
    before = sorted(p for p in source.rglob("*") if "__pycache__" not in p.parts)
    with tempfile.TemporaryDirectory(prefix="phub-test-") as target:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--target", target, source], check=True, stderr=subprocess.DEVNULL)
        library = pathlib.Path(os.environ.get("PHUB_LIBRARY") or rig.ROOT / "build" / "libphub.so.0")
        for name in ("libphub.so.0", "libphub-dpdk.so", "phubd"):  # where the first looks for the others
            assert pathlib.Path(target, "phub", name).exists() == (library.parent / name).exists(), name
        script = (
            "import numpy, phub, sys; assert phub.__file__.startswith(sys.argv[1]), phub.__file__;"
            "assert phub._library.lib._name.startswith(sys.argv[1]), phub._library.lib;"
            "w = phub.connect(sys.argv[2]); print(w.push_pull(numpy.ones(2, 'f4')).sum()); w.leave()"
        )
        env = {k: v for k, v in os.environ.items() if k not in ("PHUB_LIBRARY", "PHUB_PHUBD")}
        env.update(PATH="/nowhere", TMPDIR=target, XDG_RUNTIME_DIR="")
        out = subprocess.run([sys.executable, "-c", script, target, box.url("pip")], cwd="/", check=True, text=True,
                             stdout=subprocess.PIPE, env={**env, "PYTHONPATH": target}).stdout
        assert out.strip() == "2.0", out
        out = subprocess.run([sys.executable, "-c", script, target, box.url("pip.host") + "?hostbox=auto"], cwd="/", check=True, text=True,
                             stdout=subprocess.PIPE, env={**env, "PYTHONPATH": target}).stdout
        assert out.strip() == "2.0", out
    after = sorted(p for p in source.rglob("*") if "__pycache__" not in p.parts)
    assert after == before, set(after) - set(before)


if __name__ == "__main__":
    rig.run([test for name, test in list(globals().items()) if name.startswith("test_")], rig.Box())
