#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""phubd as a service: the unit under a systemd that is booted for this, as process 1 of namespaces of its own in this machine's root file
system (an overlay: what is written is gone at the end), with what `make install` installs and what the unit's head says is typed before.

Usage: test_systemd.py [WORD...]    only the cases whose names hold one of the words
"""
import functools
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

os.environ.pop("LD_PRELOAD", None)  # tests/run.py's counter of threads: its file may not be in the root that systemd has
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import rig  # noqa: E402
from rig import BUILD, PHUBD, QUIET, ROOT, WORKER, Box, Process, Skip, Worker, check, holds, run  # noqa: E402

UNIT = ROOT / "deploy/systemd/phubd.service"
CREDENTIALS = "/run/credentials/phubd.service"

# In a mount namespace: a root with our installation over this machine's, that systemd may have to itself; what enables or starts
# the services of this machine is hidden. It ends with our pipe to it.
BOOT = r"""
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root group
touch empty
make -s --no-print-directory -o all -C "$ROOT" BUILD="$BUILD" DESTDIR="$PWD/upper" PREFIX=/usr/local install >&2
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount -t cgroup2 cgroup2 group
group=group$(sed -n 's/^0:://p' /proc/self/cgroup)/phub-systemd-$$
mkdir "$group"
setpriv --pdeathsig KILL sh -euc 'echo $$ >"$1/cgroup.procs"; shift; exec unshare "$@"' sh "$group" \
	--mount --pid --fork --kill-child=KILL --uts --ipc --net --cgroup sh -euc "$BOOT_INSIDE" sh "$PWD/root" &
exec >&- # so that who waits for a word hears when that has ended
trap "" HUP INT TERM # of those who end the test: the end of the pipe comes then
cat >/dev/null
echo 1 >"$group/cgroup.kill" || kill -9 $!
wait
# What systemd made there, innermost first.
for try in 1 2 3 4 5; do
	find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
	sleep 0.1
done
"""

BOOT_INSIDE = r"""
read -r outer _ </proc/self/stat
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
	touch dev/$node
	mount --bind /dev/$node dev/$node
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for folder in run var/log root home etc/init.d etc/systemd/system; do
	mount -t tmpfs -o mode=755 tmpfs ./$folder
done
for folder in tmp dev/shm; do
	mount -t tmpfs -o mode=1777 tmpfs ./$folder
done
mount --bind ../empty etc/fstab
for unit in systemd-tmpfiles-setup systemd-tmpfiles-setup-dev systemd-tmpfiles-clean systemd-udevd systemd-udev-trigger; do
	ln -s /dev/null etc/systemd/system/$unit.service
done
install -D -m 755 "$WORKER" "./$WORKER"
ip link set lo up
mkdir -p mnt/old
pivot_root . mnt/old
umount -l /mnt/old
mount --make-rshared /
echo "booting $outer"
exec setpriv --bounding-set -sys_module,-sys_time,-sys_rawio,-mknod env -i container=phub PATH="$PATH" \
	/lib/systemd/systemd --system --show-status=no --log-target=null --unit=multi-user.target </dev/null >/dev/null 2>&1
"""


class Machine:
    """A systemd that has booted, which takes half a second."""

    def __init__(self, folder):
        environment = {"ROOT": str(ROOT), "BUILD": str(BUILD), "WORKER": str(WORKER), "BOOT_INSIDE": BOOT_INSIDE,
                       "PATH": QUIET.get("PATH", "") + ":/usr/sbin:/sbin"}
        words = ["unshare", "--mount", "sh", "-euc", BOOT, "sh", folder]
        self.holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env={**QUIET, **environment})
        line = self.holder.stdout.readline()
        if not line.startswith("booting "):
            self.holder.stdin.close()
            said = self.holder.stderr.read().strip().splitlines()
            raise Skip(f"no systemd can be booted here: {said[-1] if said else 'no word why'}")
        self.inside = ["nsenter", f"--target={line.split()[1]}", "--all", "--"]
        self.do("for try in $(seq 300); do test -S /run/systemd/private && break; sleep 0.1; done")
        self.do("systemctl is-system-running --wait", status=None)
        state = self.do("systemctl is-system-running", status=None).strip()
        check(state in ("running", "degraded"), f"systemd is {state} instead of running")

    def do(self, command, status=0):
        """What this command says, run as root in there."""
        done = subprocess.run([*self.inside, "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                               "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0", "LC_ALL=C", "sh", "-c", command],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=rig.DEADLINE_S)
        if status is not None and done.returncode != status:
            raise AssertionError(f"{command}: {done.returncode}: {done.stdout}{done.stderr}{self.journal()}")
        return done.stdout + done.stderr

    def put(self, path, text):
        self.do(f"mkdir -p {os.path.dirname(path)}; cat >{path} <<'END'\n{text}\nEND")

    def journal(self):
        return self.do("journalctl -u phubd -o cat --no-pager -n 30", status=None) if hasattr(self, "inside") else ""

    def logged(self, pattern):
        until = time.monotonic() + rig.DEADLINE_S
        while not re.search(pattern, self.do("journalctl -u phubd -o cat --no-pager")):
            check(time.monotonic() < until, f"phubd never logged /{pattern}/: {self.journal()}")
            time.sleep(0.1)

    def restart(self, service="", **options):
        """phubd with these options, and these lines in a drop-in of its unit."""
        self.do("systemctl stop phubd; systemctl reset-failed phubd", status=None)
        self.put("/etc/phub/phubd.yaml", "\n".join(f"{key}: {value}" for key, value in {"cores": 1, **options}.items()))
        self.put("/etc/systemd/system/phubd.service.d/test.conf", f"[Service]\n{service}")
        self.do("systemctl daemon-reload; systemctl start phubd")

    def pid(self):
        return self.do("systemctl show --property MainPID --value phubd").strip()

    def worker(self, job, user="phub", **arguments):
        prefix = [*self.inside, "setpriv", "--reuid", user, "--regid", "phub", "--clear-groups", "--"]
        return Worker(f"phub://127.0.0.1/{job}", prefix=prefix, **arguments)


@functools.lru_cache(maxsize=None)
def booted():
    """The machine, or why there is none: a text."""
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    if not os.access("/lib/systemd/systemd", os.X_OK):
        return "no systemd (deploy/deps.sh test)"
    if any(word in PHUBD.read_bytes() for word in (b"__asan_init", b"__tsan_init")):
        return "a sanitizer wants what the unit's sandbox forbids"
    folder = tempfile.mkdtemp(prefix="phub-systemd-")
    try:
        machine = Machine(folder)
    except Skip as why:
        return str(why)
    finally:
        # It was mounted over in a namespace of the machine's alone.
        shutil.rmtree(folder, True)
    # What the head of the unit says is typed before, and nothing else.
    machine.do(re.search(r"(?m)^# +(useradd .*)$", UNIT.read_text()).group(1))
    return machine


def machine_or_skip():
    machine = booted()
    if isinstance(machine, str):
        raise Skip(machine)
    return machine


def verified():
    """systemd-analyze finds nothing wrong with the unit, and little that its sandbox leaves open"""
    if not shutil.which("systemd-analyze"):
        raise Skip("no systemd-analyze (deploy/deps.sh test)")
    text = UNIT.read_text()
    check(text.count("ExecStart=phubd ") == 1, "another ExecStart: make install looks for that")
    with tempfile.TemporaryDirectory(prefix="phub-systemd-") as folder:
        file = pathlib.Path(folder) / "phubd.service"  # phubd is not installed here
        file.write_text(text.replace("ExecStart=phubd ", f"ExecStart={PHUBD} "))
        for words in (["verify", "--man=no"], ["security", "--offline=true", "--no-pager", "--threshold=25"]):
            done = subprocess.run(["systemd-analyze", *words, file], capture_output=True, text=True, timeout=60)
            said = [line for line in done.stderr.splitlines() if "phubd.service" in line]
            check(done.returncode == 0 and not said, f"systemd-analyze {words}: {done.stdout[-300:]} {done.stderr}")


def told():
    """phubd tells who started it that it is ready, at a path and at an abstract name, and does not mind when nobody listens"""
    with tempfile.TemporaryDirectory(prefix="phub-systemd-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as path, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        path.bind(f"{folder}/notify")
        abstract.bind(f"\0phub-systemd-{os.getpid()}")
        for listener, name in ((path, f"{folder}/notify"), (abstract, f"@phub-systemd-{os.getpid()}")):
            listener.settimeout(rig.DEADLINE_S)
            box = Box(cores=1, env={"NOTIFY_SOCKET": name})
            said = listener.recv(4096).decode()
            check(said == f"READY=1\nSTATUS={box.first_line.removeprefix('phubd: ')}", f"it said {said!r}")
            box.stop()
        box = Box(cores=1, env={"NOTIFY_SOCKET": f"{folder}/nobody"})
        box.logged("NOTIFY_SOCKET: .*No such file")
        box.stop()


def served():
    """systemctl start comes back when workers can come: over tcp and shm; strangers do not"""
    machine = machine_or_skip()
    machine.do("systemctl enable --now phubd")
    for transport in ("tcp", "shm"):
        machine.worker("first", transport=transport, optimizer="sgd").good()
    holds(machine.do("systemctl status phubd"), r"Active: active \(running\)", 'Status: "listening on 127.0.0.1:7077 .tcp, shm.')
    check(machine.do("systemctl is-enabled phubd").strip() == "enabled", "not enabled")
    machine.worker("strangers", user="65534", timeout_ms=2000).failed("ENOENT", "only the box's own user")
    holds(machine.do("phub doctor"), "0 failed")
    machine.do("systemctl stop phubd")
    check(machine.do("systemctl show --property Result,ExecMainStatus --value phubd").split() == ["success", "0"], "stopped badly")


def fenced():
    """no capability, no new one, system calls and files fenced in; limits as far as this machine lets them be raised"""
    machine = machine_or_skip()
    machine.restart()
    pid = machine.pid()
    status = dict(line.split(":\t", 1) for line in machine.do(f"cat /proc/{pid}/status").splitlines())
    check([int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 4, "capabilities")
    check(status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", "no_new_privs, seccomp")
    check(status["Uid"].split()[0] == machine.do("id -u phub").strip(), "another user")
    limits = machine.do(f"cat /proc/{pid}/limits")
    if int(re.search(r"CapBnd:\s*(\w+)", machine.do("cat /proc/1/status")).group(1), 16) >> 24 & 1:  # CAP_SYS_RESOURCE
        holds(limits, r"Max locked memory +unlimited +unlimited", r"Max open files +65536 +65536")
    there = f"nsenter --target={pid} --mount -- "
    for place in ("/etc/phub", "/usr/local", "/var/lib", "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup/cgroup.procs"):
        check(machine.do(there + f"test -w {place} && echo yes", status=None) == "", f"{place} can be written")
    machine.do("touch /home/secret /tmp/secret")
    check("secret" not in machine.do(there + "ls -a /home /tmp", status=None), "/home or /tmp can be read")
    holds(machine.do(there + "ls -ld /var/lib/phubd/checkpoints"), "^drwx------ .* phub ")


def credentials():
    """a secret of root's comes by LoadCredential; another user's workers, who know it, come over tcp by themselves"""
    machine = machine_or_skip()
    machine.do("umask 077; echo sesame >/root/phub-secret")
    loads = re.search(r"(?m)^# +(LoadCredential=.*)$", UNIT.read_text()).group(1)
    machine.restart(loads, create="secret", create_secret_file=f"{CREDENTIALS}/secret")
    for user, transport in (("65534", "tcp"), ("phub", "shm"), ("root", "shm")):
        worker = machine.worker("j" + user, user=user, env={"PHUB_SECRET": "sesame"})
        check(worker.event("started")["transport"] == transport, f"{user}'s worker did not come over {transport}")
        worker.good()
    machine.worker("other", user="65534", transport="shm", env={"PHUB_SECRET": "sesame"}).failed("EACCES", "belongs to another user")
    machine.worker("wrong", env={"PHUB_SECRET": "open"}).failed("EACCES", "secret")


def resumed():
    """a job goes on from its checkpoint below /var/lib/phubd, after a restart and after a kill, which systemd makes good"""
    machine = machine_or_skip()
    machine.restart(checkpoint_targets="/var/lib/phubd/checkpoints", checkpoint_every=5)
    arguments = {"world": 2, "rounds": "until-told", "report_ms": 20, "pause_us": 2000, "resume_ms": 60000, "optimizer": "sgd",
                 "wait_ms": 20000, "patience_ms": 90000, "reproducible": 1}
    workers = [machine.worker("long", rank=rank, transport=("tcp", "shm")[rank], **arguments) for rank in range(2)]
    for command in ("systemctl restart phubd", "systemctl kill --signal=KILL phubd"):
        for worker in workers:
            while worker.event("progress")["round"] < 50:
                pass
        # Quick rounds are ahead of the box's timer, and of the disk.
        machine.do("timeout 20 sh -c 'until ls /var/lib/phubd/checkpoints/long/*.phub; do sleep 0.05; done' >/dev/null 2>&1")
        was = machine.pid()
        machine.do(command)
        for worker in workers:
            worker.event("resumed")
        check(machine.pid() not in ("0", was), "it is the same phubd")
    for worker in workers:
        worker.event("progress")
    workers[0].tell()
    for worker in workers:
        check(worker.good()["resumed"] == 2, "a worker was not there each time")


def stopped():
    """systemctl stop in mid-job: the workers hear why"""
    machine = machine_or_skip()
    machine.restart()
    workers = [machine.worker("brief", rank=rank, world=2, transport=("tcp", "shm")[rank], rounds="until-told", report_ms=20)
               for rank in range(2)]
    for worker in workers:
        worker.event("progress")
    machine.do("systemctl stop phubd")
    for worker in workers:
        worker.failed("ESHUTDOWN", "the box is going down")
    check(machine.do("systemctl show --property Result --value phubd").strip() == "success", "stopped badly")


def reloaded():
    """systemctl reload: newcomers are shown the new certificate; one that cannot be read leaves the old one"""
    machine = machine_or_skip()

    def renew():
        machine.do("cd /etc/phub && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=box "
                   "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem && chown phub key.pem && chmod 600 key.pem")
        return machine.do("openssl x509 -in /etc/phub/cert.pem -outform DER | sha256sum").split()[0]

    pins = [renew()]
    machine.restart(tls="require", tls_cert="/etc/phub/cert.pem", tls_key="/etc/phub/key.pem")
    machine.worker("before", env={"PHUB_TLS_PIN": pins[0]}).good()
    pins.append(renew())
    machine.do("systemctl reload phubd")
    machine.logged(f"PHUB_TLS_PIN={pins[1]}")
    machine.worker("after", env={"PHUB_TLS_PIN": pins[1]}).good()
    machine.do("rm /etc/phub/key.pem; systemctl reload phubd")
    machine.logged("SIGHUP: .*read before stay")
    machine.worker("still", env={"PHUB_TLS_PIN": pins[1]}).good()


def refused():
    """what phubd refuses, systemctl start refuses; the reason is in the journal"""
    machine = machine_or_skip()
    for options, why in (({"checkpoint_targets": "/srv"}, "ReadWritePaths="), ({"create": "secrt"}, "allowed: "),
                         ({"create": "secret", "create_secret_file": "/root/phub-secret"}, "Permission denied")):
        try:
            machine.restart(**options)
        except AssertionError:
            machine.logged(why)
        else:
            raise AssertionError(f"it started with {options}")
    machine.do("install -d -o phub /srv/phub-disk")
    machine.restart("ReadWritePaths=/srv/phub-disk", checkpoint_targets="/srv/phub-disk")
    check(machine.do("systemctl is-active phubd").strip() == "active", "it does not run")


def pinned():
    """cores that are pinned and never sleep, on the CPUs that the unit gives them"""
    machine = machine_or_skip()
    cpu = max(os.sched_getaffinity(0))
    machine.restart(f"CPUAffinity={cpu}", cores=1, poll="busy")
    machine.worker("pinned").good()
    masks = machine.do(f"grep -h Cpus_allowed_list /proc/{machine.pid()}/task/*/status").split()[1::2]
    check(len(masks) > 1 and set(masks) == {str(cpu)}, f"threads run on {masks}")
    machine.restart(cores=f"[{cpu}]", poll="busy")
    machine.worker("listed").good()
    machine.do("systemctl disable --now phubd")


def driven():
    """deploy/systemd/dpdk.conf lets phubd drive a port of the kernel's by DPDK, with the two capabilities for that and no other"""
    machine = machine_or_skip()
    if not (BUILD / "libphub-dpdk.so").exists():
        raise Skip("this build has no DPDK")
    machine.do("ip link add rack0 type veth peer rack1; ip link set rack0 up; ip link set rack1 up; "
               "ip netns add worker && ip link set rack1 netns worker && ip netns exec worker sh -c "
               "'ip link set lo up; ip link set rack1 up; ip address add 10.9.0.2/24 dev rack1'; ip address add 10.9.0.3/24 dev rack0")
    machine.do("install -D -m 644 /usr/local/share/doc/phub/examples/dpdk.conf /etc/systemd/system/phubd.service.d/dpdk.conf")
    machine.do("umask 077; echo sesame >/etc/phub/secret; chown phub /etc/phub/secret")
    machine.restart(listen="['10.9.0.3:7077']", transports="[tcp, dpdk]", create="secret", create_secret_file="/etc/phub/secret",
                    dpdk_ports="'net_af_packet0,iface=rack0@10.9.0.1/24'", dpdk_eal="--no-huge")
    status = machine.do(f"cat /proc/{machine.pid()}/status")
    holds(status, "CapEff:\\s*0000000000003000", "NoNewPrivs:\\s*1")  # CAP_NET_ADMIN and CAP_NET_RAW
    prefix = [*machine.inside, "ip", "netns", "exec", "worker"]
    worker = Worker("phub://10.9.0.3:7077/driven", prefix=prefix, transport="udp", env={"PHUB_SECRET": "sesame"})
    check(worker.event("started")["transport"] == "udp", "not over udp")
    worker.good()
    machine.do("rm /etc/systemd/system/phubd.service.d/dpdk.conf; ip link delete rack0; ip netns delete worker")


if __name__ == "__main__":
    run([verified, told, served, fenced, credentials, resumed, stopped, reloaded, refused, pinned, driven])
