# SPDX-License-Identifier: Apache-2.0
"""A Slurm of two nodes on this host, for a test alone: munged, slurmctld and two slurmd from a folder of their own, over loopback."""
import atexit
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import tempfile
import time

import rig

NODES = ("n1", "n2")
START_S = 60


def find(program):
    return shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


def why_not():
    """Why there can be none here; None: there can."""
    missing = [program for program in ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol") if not find(program)]
    if missing:
        return f"no {', '.join(missing)} (Debian: apt install slurmctld slurmd slurm-client munge)"
    return None if os.geteuid() == 0 else "needs root, which slurmd starts tasks as"


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="phub-slurm-"))
        self.processes = []
        atexit.register(self.stop)
        munge = self.folder / "munge"
        for name in ("munge", "state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir()
        for open_to_all in (self.folder, munge):
            open_to_all.chmod(0o755)
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o400)
        config = self.folder / "slurm.conf"
        config.write_text(self._config(munge, *_free_ports(3)))
        self.env = {"SLURM_CONF": str(config)}
        self._start("munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key", f"--log-file={munge}/log",
                    f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", "--num-threads=2")
        self._wait(lambda: (munge / "socket").exists())
        self._start("slurmctld", "-D", "-i")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        self._wait(lambda: self.do("sinfo", "-h", "-N", "-o", "%t").stdout.split() == ["idle"] * len(NODES))

    def _config(self, munge, port, *ports):
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={p} CPUs=8 State=UNKNOWN"
                          for node, p in zip(NODES, ports))
        return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""

    def _start(self, program, *arguments):
        process = rig.Process(program, [find(program), *arguments], env=self.env)
        rig._processes.remove(process)  # it stays beyond the case that has started it
        self.processes.append(process)

    def _wait(self, ready):
        until = time.monotonic() + START_S
        while not ready():
            for process in self.processes:
                rig.check(process.running(), f"{process.name} ended: {process.err.text()[-500:]}")
            rig.check(time.monotonic() < until, f"Slurm did not come up in {START_S} s")
            time.sleep(0.1)

    def do(self, program, *arguments, **env):
        return subprocess.run([find(program), *map(str, arguments)], capture_output=True, text=True, timeout=rig.DEADLINE_S, check=False,
                              stdin=subprocess.DEVNULL,
                              env={**rig.QUIET, **self.env, **env}, cwd=self.folder)

    def stop(self):
        """The daemons, the last one first; tasks have ended with their jobs."""
        if not self.processes:
            return
        self.do("scancel", "--user=root")
        for process in reversed(self.processes):
            process.kill(15)
            process.wait()
        self.processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
