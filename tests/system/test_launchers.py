#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# waits: for launchers, and a Slurm, to start
"""Workers that are given no rank: each takes it from what its launcher has set. Real mpirun, torchrun and Slurm; Kubernetes' variables."""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import rig
import slurm_rig
from rig import check, holds

WORLD = 4
TASK_S = 120
SBATCH = rig.ROOT / "deploy/slurm/phub.sbatch"
PYTHON = """
import os, sys
sys.path.insert(0, {client!r})
import numpy, phub
assert phub.launched()[1] == {world}, phub.launched()
phub.init({url!r})
total = phub.push_pull(numpy.full(1000, 1 + phub.rank(), numpy.float32))
assert phub.launched() == (phub.rank(), phub.size()) and (total == {total}).all(), total
os.write(1, f"python {{phub.rank()}} of {{phub.size()}}\\n".encode())  # at once: launchers mix what comes in pieces
phub.shutdown()
"""


def worker(url):
    return [str(rig.WORKER), f"url={url}", "rank=-1", "world=-1", "keys=a:5000,b:70", "rounds=10", "optimizer=adam"]


def python(url, world=WORLD):
    return [sys.executable, "-c",
            PYTHON.format(client=str(rig.ROOT / "client/python"), url=url, world=world, total=sum(range(1, world + 1)))]


def needs(program, package):
    found = shutil.which(program)
    if not found:
        raise rig.Skip(f"no {program} (Debian: apt install {package})")
    return found


def launch(*words, **env):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=TASK_S, check=False,
                          stdin=subprocess.DEVNULL,
                          env={**rig.QUIET, "PHUB_LIBRARY": str(rig.BUILD / "libphub.so.0"), **env}, cwd=rig.ROOT)
    check(done.returncode == 0, f"{words[0]} ended with {done.returncode}: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return done.stdout


def ended(text, world=WORLD):
    """The workers' last words must be of all ranks, each without an error and with every sum right, and the same weights."""
    ends = [json.loads(word) for word in re.findall(r'\{"event":"end".*\}', text)]
    check(sorted(end["rank"] for end in ends) == list(range(world)), f"{text[-2000:]}")
    check(all(end["rc"] == 0 and end["wrong"] == 0 and end["rounds"] == 10 for end in ends) and len({end["digest"] for end in ends}) == 1,
          f"{ends}")


def counted(text, world=WORLD):
    check(sorted(re.findall(r"python (\d+) of (\d+)", text)) == [(str(rank), str(world)) for rank in range(world)], f"{text[-2000:]}")


def both(url):
    """What a launcher starts as one command: a worker, then Python, each with a job of its own."""
    return ["sh", "-c", f"{shlex.join(worker(url('worker')))} && exec {shlex.join(python(url('python')))}"]


def openmpi():
    """Open MPI's mpirun"""
    mpirun = [needs("mpirun.openmpi", "openmpi-bin"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", WORLD]
    box = rig.Box(cores=1)
    said = launch(*mpirun, *both(box.url))
    ended(said)
    counted(said)
    box.stop()


def mpich():
    """MPICH's mpiexec"""
    mpiexec = [needs("mpiexec.hydra", "mpich"), "-n", WORLD]
    box = rig.Box(cores=1)
    said = launch(*mpiexec, *both(box.url))
    ended(said)
    counted(said)
    box.stop()


def torchrun(*words):
    # The first two options work around Debian 12's torch 1.13 under Python 3.11.
    return ["torchrun", "--redirects", "1", "--tee", "1", "--master_port", rig.free_port(), "--nproc_per_node", WORLD, "--no_python",
            *words]


def torch():
    """torchrun"""
    needs("torchrun", "python3-torch")
    box = rig.Box(cores=1)
    said = launch(*torchrun(*both(box.url)))
    ended(said)
    counted(said)
    box.stop()


def kubernetes():
    """the variables of an indexed Job of Kubernetes (set here by hand: there is no cluster), and those of torchrun over them"""
    box = rig.Box(cores=1)

    def pods(job, command, **more):
        running = [rig.Process(f"pod {i}", command(box.url(job)), env={"JOB_COMPLETION_INDEX": str(i), "WORLD_SIZE": str(WORLD),
                                                                     "PHUB_LIBRARY": str(rig.BUILD / "libphub.so.0"),
                                                                       **{k: v(i) for k, v in more.items()}})
                   for i in range(WORLD)]
        for pod in running:
            check(pod.wait() == 0, pod.err.text())
        return "\n".join(pod.out.text() for pod in running)
    ended(pods("indexed", worker))
    counted(pods("python", python))
    ended(pods("torch", worker, RANK=lambda i: str(WORLD - 1 - i)))
    alone = rig.Process("pod", worker(box.url("alone")), env={"JOB_COMPLETION_INDEX": "0"})
    alone.wait()
    holds(alone.out.text(), "JOB_COMPLETION_INDEX is set but WORLD_SIZE is not")
    box.stop()


class Site:
    """Slurm, which takes seconds to come up: once for all of its cases."""

    slurm = None

    @classmethod
    def get(cls):
        why = slurm_rig.why_not()
        if why:
            raise rig.Skip(why)
        if not cls.slurm:
            cls.slurm = slurm_rig.Slurm()
        return cls.slurm


def srun_all():
    """Slurm's srun, on two nodes; with PMI-2; and torchrun under it, whose ranks count"""
    slurm = Site.get()
    box = rig.Box(cores=1)
    srun = [slurm_rig.find("srun"), "--nodes=2", f"--ntasks={WORLD}"]
    ended(launch(*srun, "--mpi=pmi2", *worker(box.url("pmi")), **slurm.env))
    said = launch(*srun, *both(box.url), **slurm.env)
    ended(said)
    counted(said)
    if shutil.which("torchrun"):
        ended(launch(slurm_rig.find("srun"), "--nodes=1", "--ntasks=1", *torchrun(*worker(box.url("torch"))), **slurm.env))
    box.stop()


def batch(slurm, *command, **env):
    """Runs deploy/slurm/phub.sbatch on both nodes: its exit status, what it wrote, and the folder of its files."""
    out = slurm.folder / f"out-{time.monotonic_ns()}"
    shared = pathlib.Path(tempfile.mkdtemp(dir=slurm.folder))
    env = {"PHUB_FOLDER": str(shared), "PHUB_PHUBD": str(rig.PHUBD), "PHUB_BOX_HOST": "127.0.0.1",
           "PHUB_BOX": "--cores 1", "PHUB_LOG": "info", **env}
    done = slurm.do("sbatch", "--parsable", f"--output={out}", "--nodes=2", "--ntasks-per-node=2", SBATCH, *command, **env)
    check(done.returncode == 0, done.stderr)
    return exit_status(slurm, done.stdout.strip()), out.read_text(), shared


def exit_status(slurm, job):
    """Of a batch job, when it has ended; as `sbatch --wait`, which looks only after 2, 6, 12, 20, 30 and 42 s."""
    until = time.monotonic() + TASK_S
    while True:
        said = slurm.do("scontrol", "--oneliner", "show", "job", job).stdout
        state = re.search(r"JobState=(\w+)", said)
        if state and state[1] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            break
        check(time.monotonic() < until, f"job {job} has not ended: {said}")
        time.sleep(0.2)
    code, number = map(int, re.search(r" ExitCode=(\d+):(\d+)", said).groups())
    return 128 + number if number else code


def nobody_left(mark):
    """No phubd that was started with this folder, or for a node by its workers."""
    until = time.monotonic() + 20
    while True:
        left = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "comm").read_text() == "phubd\n" and str(mark).encode() in (folder / "environ").read_bytes():
                    left.append(folder.name)
            except OSError:
                continue
        if not left:
            return
        check(time.monotonic() < until, f"still there: {left}")
        time.sleep(0.1)


# Both nodes are this host: only by this name have they a box each.
OF_NODE = 'export PHUB_HOSTBOX_NAME=$SLURM_JOB_ID-$SLURMD_NODENAME; exec "$@"'


def sbatch():
    """deploy/slurm/phub.sbatch: a box and a job on two nodes, each of which sends one gradient up; all ends, and the secret is gone"""
    slurm = Site.get()
    words = [word for word in worker("") if not word.startswith("url=")]
    status, text, shared = batch(slurm, "sh", "-c", f'set -- {" ".join(words)} url="$PHUB_URL"; {OF_NODE}')
    check(status == 0, text)
    ended(text)
    holds(text, "phub: 4 workers on 2 nodes, the box is phub://127.0.0.1:", '"transport":"shm"')
    check(len(re.findall(r"phubd: listening on 127\.0\.0\.1:\d+ \(shm, tcp\)", text)) == 2,
          f"a box for each node: {text}")  # their logs, by PHUB_LOG
    check(list(shared.iterdir()) == [], f"left behind: {list(shared.rglob('*'))}")
    nobody_left(shared)
    status, text, shared = batch(slurm, *words, "url=phub://127.0.0.1:1/x", "timeout_ms=300", PHUB_HOSTBOX="none")
    check(status in (1, 128 + signal.SIGTERM), f"{status}: {text}")  # srun ends the others when the first have failed
    holds(text, "ECONNREFUSED", "the log of the box: ")
    log = next(shared.rglob("box.log")).read_text()
    holds(log, "listening on", "goes down")
    check(not list(shared.rglob("secret")), "the secret is still there")
    nobody_left(shared)
    status, text, shared = batch(slurm, "true", PHUB_BOX="-o nonsense=1")
    check(status == 1, f"{status}: {text}")
    holds(text, "the box did not start on n1:", "unknown key 'nonsense'")
    check(not list(shared.rglob("secret")), "the secret is still there")


def batch_python():
    """the same from Python: the URL, the secret and the rank come from the environment"""
    slurm = Site.get()
    script = PYTHON.replace("{url!r}", "").format(client=str(rig.ROOT / "client/python"), world=4, total=10)
    file = slurm.folder / "train.py"
    file.write_text(script)
    status, text, shared = batch(slurm, "sh", "-c", f'set -- {sys.executable} {file}; {OF_NODE}',
                                 PHUB_LIBRARY=str(rig.BUILD / "libphub.so.0"))
    check(status == 0, text)
    counted(text)
    nobody_left(shared)


def cancelled():
    """scancel in mid-run: the box goes down, the workers end, nothing is left"""
    slurm = Site.get()
    shared = pathlib.Path(tempfile.mkdtemp(dir=slurm.folder))
    out = slurm.folder / "cancelled"
    env = {"PHUB_FOLDER": str(shared), "PHUB_PHUBD": str(rig.PHUBD), "PHUB_BOX_HOST": "127.0.0.1", "PHUB_BOX": "--cores 1"}
    words = [word for word in worker("") if not word.startswith(("url=", "rounds="))]
    command = f'set -- {" ".join(words)} rounds=100000000 report_ms=100 url="$PHUB_URL"; {OF_NODE}'
    done = slurm.do("sbatch", "--parsable", f"--output={out}", "--nodes=2", "--ntasks-per-node=2", SBATCH, "sh", "-c", command, **env)
    until = time.monotonic() + rig.DEADLINE_S
    while not (out.exists() and '"progress"' in out.read_text()):
        check(time.monotonic() < until, f"it never ran: {out.read_text() if out.exists() else done.stderr}")
        time.sleep(0.1)
    slurm.do("scancel", done.stdout.strip())
    while slurm.do("squeue", "-h").stdout.strip():
        check(time.monotonic() < until, "it is still in the queue")
        time.sleep(0.1)
    nobody_left(shared)
    check(not list(shared.rglob("secret")), "the secret is still there")


def stop_slurm():
    """Slurm ends in good order"""
    if not Site.slurm:
        raise rig.Skip("there is none")
    Site.slurm.stop()


if __name__ == "__main__":
    os.environ.pop("PHUB_URL", None)
    rig.run([openmpi, mpich, torch, kubernetes, srun_all, sbatch, batch_python, cancelled, stop_slurm])
