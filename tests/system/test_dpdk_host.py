#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
deploy/dpdk-host.sh as an operator meets it, on a host that is made of files: two NUMA nodes, NICs of several makers, an IOMMU,
a bond, a bridge, and somebody who is logged in. A thread plays the kernel: it gives and takes devices and huge pages.
"""
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import rig  # noqa: E402
from rig import QUIET, ROOT, check, holds  # noqa: E402

SCRIPT = ROOT / "deploy/dpdk-host.sh"
DEVICES = "sys/bus/pci/devices"
DRIVERS = "sys/bus/pci/drivers"
I40E, I40E_TWIN, MLX5, LOGIN, BONDED, PLAIN = (
    "0000:3b:00.0", "0000:3b:00.1", "0000:5e:00.0", "0000:01:00.0", "0000:81:00.0", "0000:af:00.0")
NICS = (I40E, I40E_TWIN, MLX5, LOGIN, BONDED, PLAIN, "0000:00:1f.0")
NODE = "sys/devices/system/node/node{}/hugepages/hugepages-{}kB/nr_hugepages"


class Host:
    """A tree like a host's."""

    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        for node in (0, 1):
            base = f"sys/devices/system/node/node{node}"
            self.put(f"{base}/cpulist", f"{node * 4}-{node * 4 + 3}")
            self.put(f"{base}/meminfo", f"Node {node} MemTotal: 33554432 kB\nNode {node} MemFree: 4194304 kB\n"
                     f"Node {node} Active(file): 1048576 kB\nNode {node} Inactive(file): 1048576 kB")
            for kib in (2048, 1048576):
                self.put(NODE.format(node, kib), "0")
                self.put(NODE.format(node, kib).replace("nr_", "free_"), "0")
        for kib in (2048, 1048576):
            self.put(f"sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages", "0")
        self.put("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 12582912 kB")
        self.put("proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw,pagesize=2M 0 0")
        self.put("sys/devices/system/cpu/online", "0-7")
        self.put("sys/devices/system/cpu/isolated", "6-7")
        self.put("sys/devices/system/cpu/nohz_full", "")
        self.put("var/lib/dpkg/status", "Package: librte-eal23\nStatus: install ok installed\nVersion: 22.11.7-1\n")
        self.nic(I40E, "i40e", ["eth2"], group=40)
        self.nic(I40E_TWIN, "", [], group=40)
        self.nic(MLX5, "mlx5_core", ["eth3"], group=41, node=1)
        self.nic(LOGIN, "ixgbe", ["eth0"], group=20)
        self.nic(BONDED, "ice", ["eth4"], group=42)
        self.nic(PLAIN, "i40e", ["eth5"], group=43)
        self.nic("0000:00:1f.0", "pcieport", [], group=40, kind="0x060400")
        self.put(f"{DRIVERS}/vfio-pci/bind", "")
        self.put(f"{DRIVERS}/vfio-pci/unbind", "")
        self.put("sys/bus/pci/drivers_probe", "")
        self.put("sys/class/net/bond0/mtu", "1500")
        os.symlink("../bond0", self.root / "sys/class/net/eth4/upper_bond0")
        self.put("ip-address", "1: lo    inet 127.0.0.1/8 scope host lo\n"
                 "2: eth0    inet 192.0.2.10/24 brd 192.0.2.255 scope global eth0\n"
                 "2: eth0    inet6 2001:db8::10/64 scope global\n3: eth2    inet6 fe80::1/64 scope link\n"
                 "5: bond0    inet 198.51.100.7/24 scope global bond0\n6: eth5    inet 203.0.113.9/24 scope global eth5")
        self.put("proc/net/route", "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
                 "eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\nbond0 00000000 016433C6 0003 0 0 0 00000000 0 0 0")
        self.put("proc/net/tcp", "")

    def path(self, name):
        return self.root / name

    def put(self, name, text):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def get(self, name):
        return self.path(name).read_text().strip()

    def nic(self, pci, driver, interfaces, group, node=0, kind="0x020000"):
        base = f"{DEVICES}/{pci}"
        for name, text in (("class", kind), ("vendor", "0x8086"), ("device", "0x1572"), ("numa_node", str(node)),
                           ("driver_override", "(null)")):
            self.put(f"{base}/{name}", text)
        self.put(f"sys/kernel/iommu_groups/{group}/devices/.keep", "")
        self.path(f"sys/kernel/iommu_groups/{group}/devices/.keep").unlink()
        os.symlink(self.path(base), self.path(f"sys/kernel/iommu_groups/{group}/devices/{pci}"))
        os.symlink(self.path(f"sys/kernel/iommu_groups/{group}"), self.path(f"{base}/iommu_group"))
        if driver:
            self.put(f"{DRIVERS}/{driver}/bind", "")
            self.put(f"{DRIVERS}/{driver}/unbind", "")
            os.symlink(self.path(f"{DRIVERS}/{driver}"), self.path(f"{base}/driver"))
        for name in interfaces:
            self.put(f"sys/class/net/{name}/mtu", "1500")
            self.put(f"sys/class/net/{name}/carrier", "1")
            self.put(f"sys/class/net/{name}/speed", "25000")
            for queue in ("rx-0", "rx-1", "tx-0"):
                self.put(f"sys/class/net/{name}/queues/{queue}/x", "")
            self.path(f"{base}/net").mkdir()
            os.symlink(self.path(f"sys/class/net/{name}"), self.path(f"{base}/net/{name}"))

    def driver(self, pci):
        link = self.path(f"{DEVICES}/{pci}/driver")
        return os.path.basename(os.readlink(link)) if link.is_symlink() else ""

    def run(self, *words, status=0, env=None):
        """Its output and its errors."""
        quiet = {k: v for k, v in QUIET.items() if k != "SSH_CONNECTION"}
        done = subprocess.run([SCRIPT, *map(str, words), "--root", self.root], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=rig.DEADLINE_S, env={**quiet, **(env or {})}, check=False)
        check(done.returncode == status, f"{words}: status {done.returncode} instead of {status}: {done.stdout}{done.stderr}")
        return done.stdout, done.stderr

    def refused(self, *words, **more):
        """What it says when it refuses; nothing has changed then."""
        before = self.contents()
        out, err = self.run(*words, status=1, **more)
        check(out == "", f"it refuses, and prints: {out}")
        check(self.contents() == before, "it refused, and changed something")
        return err

    def contents(self):
        return {str(p): os.readlink(p) if p.is_symlink() else p.read_text()
                for p in sorted(self.root.rglob("*")) if p.is_symlink() or p.is_file()}


class Kernel(threading.Thread):
    """Answers what is written into the tree: drivers come and go. What is only written there is a pipe: a file might be read half written."""

    def __init__(self, host, home, takes=True):
        super().__init__(daemon=True)
        self.host, self.home, self.takes, self.over = host, home, takes, False
        self.pipes = {}
        for path in [*host.path(DRIVERS).glob("*/bind"), *host.path(DRIVERS).glob("*/unbind"), host.path("sys/bus/pci/drivers_probe")]:
            path.unlink()
            os.mkfifo(path)
            self.pipes[path] = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def probe(self, pci, driver=""):
        link = self.host.path(f"{DEVICES}/{pci}/driver")
        override = self.host.get(f"{DEVICES}/{pci}/driver_override").replace("(null)", "")
        if self.takes and not link.is_symlink():
            os.symlink(self.host.path(f"{DRIVERS}/{driver or override or self.home[pci]}"), link)

    def answer(self, path, pci):
        if path.name == "unbind":
            self.host.path(f"{DEVICES}/{pci}/driver").unlink()
        else:
            self.probe(pci, path.parent.name if path.name == "bind" else "")

    def run(self):
        said = dict.fromkeys(self.pipes, "")
        while not self.over:
            readable, _, _ = select.select(self.pipes.values(), [], [], 0.05)
            for path in [p for p, fd in self.pipes.items() if fd in readable]:
                *lines, said[path] = (said[path] + os.read(self.pipes[path], 4096).decode()).split("\n")
                for line in lines:
                    self.answer(path, line)
        for fd in self.pipes.values():
            os.close(fd)


@contextlib.contextmanager
def host(kernel=True, **more):
    folder = tempfile.mkdtemp()
    thread = None
    try:
        h = Host(folder)
        if kernel:
            thread = Kernel(h, {I40E: "i40e", I40E_TWIN: "i40e", LOGIN: "ixgbe"}, **more)
            thread.start()
        yield h
    finally:
        if thread:
            thread.over = True
            thread.join()
        shutil.rmtree(folder)


def usage():
    """Wrong usage is told, with what is right."""
    with host(kernel=False) as h:
        for words, told in ((["nonsense"], '"nonsense" is neither show'), (["plan"], "no wish"),
                            (["plan", "--hugepages", "4M:2"], "not like 2M:1024"), (["plan", "--hugepages"], "needs a value"),
                            (["plan", "--bind", "eth2=vfio-pci"], "not a PCI address"),
                            (["plan", "--bind", f"{I40E}=i40e"], "one of vfio-pci"), (["plan", "--mtu", "eth2"], "not like eth2"),
                            (["plan", "--isolate", "7-2"], "not like 2-7"), (["plan", "--isolate", "x"], "not like 2-7"),
                            (["show", "--mtu", "eth2=9000"], "for plan and apply"), (["plan", "--json"], "for show"),
                            (["plan", "apply"], "one at a time")):
            out, err = h.run(*words, status=2)
            holds(err, told)
            check(out == "", f"{words}: {out}")
        out, _ = h.run("--help")
        holds(out, "Usage: dpdk-host.sh", "Exit status: 0 done")


def show():
    """What there is: nodes, pages, CPUs, IOMMU, NICs and who uses them"""
    with host(kernel=False) as h:
        before = h.contents()
        out, _ = h.run(env={"SSH_CONNECTION": "192.0.2.77 50000 192.0.2.10 22"})
        holds(out, "node 1 +CPUs 4-7, 4 GiB of 32 GiB free", "none are reserved", r"/dev/hugepages \(rw,pagesize=2M\)",
              "CPUs 6-7", "IOMMU +on, 5 groups", "DPDK +22.11.7-1", rf"{I40E}  driver i40e, node 0.*group 40",
              "eth2: up, 25000 Mbit/s, MTU 1500, 2 RX and 1 TX queues", "i40e, needs vfio-pci; the NIC steers",
              "mlx5, stays with the kernel's driver", r"SSH connection over eth0 \(192.0.2.10/24\)", "eth4 is part of bond0",
              "bond0 has the default route")
        check("\x1b" not in out, "colour, and no terminal")
        check("fe80" not in out, "a link-local address is no use")
        facts = json.loads(h.run("show", "--json")[0])
        check([n["node"] for n in facts["nodes"]] == [0, 1], f"{facts['nodes']}")
        check(facts["nodes"][0]["hugepages"][1] == {"size_kib": 1048576, "total": 0, "free": 0}, f"{facts['nodes'][0]}")
        nics = {n["pci"]: n for n in facts["nics"]}
        check(sorted(nics) == sorted([I40E, I40E_TWIN, MLX5, LOGIN, BONDED, PLAIN]), f"{sorted(nics)}")
        check(nics[MLX5]["node"] == 1 and nics[MLX5]["pmd"] == "mlx5" and nics[MLX5]["iommu_group"] == 41, f"{nics[MLX5]}")
        check(nics[LOGIN]["interfaces"][0]["addresses"] == ["192.0.2.10/24", "2001:db8::10/64"], f"{nics[LOGIN]}")
        check(nics[I40E_TWIN]["driver"] == "" and nics[I40E_TWIN]["interfaces"] == [], f"{nics[I40E_TWIN]}")
        check(facts["hugetlbfs"] == ["/dev/hugepages"] and facts["iommu_groups"] == 5, f"{facts}")
        check(h.contents() == before, "show changed something")


def show_bare():
    """A host without NUMA nodes, IOMMU, NICs or DPDK"""
    with host(kernel=False) as h:
        for name in ("sys/devices/system/node", "sys/kernel/iommu_groups", "sys/bus", "var", "proc"):
            shutil.rmtree(h.path(name))
        out, _ = h.run()
        holds(out, "none on PCI", "IOMMU +off", "intel_iommu=on", "not installed: apt-get install dpdk", "phubd needs no mount")
        facts = json.loads(h.run("--json")[0])
        check(facts["nics"] == [] and facts["nodes"] == [] and facts["dpdk"] == "", f"{facts}")


def logged_in():
    """A NIC that somebody is logged in over is not taken: by environment, by connection, over IPv6, under a bond"""
    bind = ("plan", "--bind", f"{LOGIN}=vfio-pci")
    tcp = "  sl  local_address rem_address   st\n   0: {}:{} 4D0200C0:C350 {} 00000000:00000000 00:00000000 00000000 0 0 1"
    with host(kernel=False) as h:
        holds(h.refused(*bind), "eth0 has the address 192.0.2.10/24", "nothing was changed")
        told = h.refused(*bind, env={"SSH_CONNECTION": "192.0.2.77 50000 192.0.2.10 2222"})
        holds(told, r"SSH connection over eth0 \(192.0.2.10/24\): binding it cuts you off: .*--force")
        holds(h.run(*bind, "--force")[0], "driver_override\n", "# ends by --force.*: eth0 has the address")
        for file, line, cut in (("tcp", tcp.format("0A0200C0", "0016", "01"), True),
                                ("tcp", tcp.format("0A0200C0", "0016", "0A"), False),
                                ("tcp", tcp.format("0A0200C0", "1BB0", "01"), False),
                                ("tcp6", tcp.format("0000000000000000FFFF00000A0200C0", "0016", "01"), True),
                                ("tcp6", tcp.format("B80D0120000000000000000010000000", "0016", "01"), True)):
            h.put(f"proc/net/{file}", line)
            h.put("proc/net/if_inet6", "20010db8000000000000000000000010 02 40 00 80     eth0")
            told = h.refused(*bind)
            check(("cuts you off" in told) == cut, f"{line}: {told}")
            h.path(f"proc/net/{file}").unlink()
        holds(h.refused("plan", "--bind", f"{BONDED}=vfio-pci"), "eth4 is part of bond0", "bond0 has the default route")
        holds(h.refused("plan", "--bind", f"{PLAIN}=vfio-pci"), "eth5 has the address 203.0.113.9/24")


def refusals():
    """What cannot work is refused, with what to do"""
    with host(kernel=False) as h:
        holds(h.refused("plan", "--bind", f"{MLX5}=vfio-pci", "--force"), "mlx5_core, which it must keep: name it in dpdk_ports")
        holds(h.refused("plan", "--bind", "0000:99:00.0=vfio-pci"), "no such PCI device; .dpdk-host.sh show. lists")
        holds(h.refused("plan", "--bind", "0000:00:1f.0=vfio-pci"), "that is no NIC")
        holds(h.refused("plan", "--hugepages", "2M:64@7"), "no NUMA node 7")
        holds(h.refused("plan", "--hugepages", "1G:7@0"), "7 GiB more, and 6 GiB are free on node 0")
        holds(h.refused("plan", "--hugepages", "2M:6145"), "12 GiB more, and 12 GiB are free")
        h.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512")
        holds(h.refused("plan", "--hugepages", "2M:64"), "there are 512, and fewer would take them from others")
        holds(h.run("plan", "--hugepages", "2M:64", "--force")[0], "echo 64 >")
        holds(h.refused("plan", "--mtu", "eth9=9000"), "no interface eth9")
        holds(h.refused("plan", "--mtu", "eth2=9000", "--bind", f"{I40E}=vfio-pci"), "takes that interface away")
        holds(h.refused("plan", "--isolate", "0-7"), "no CPU is left")
        holds(h.refused("plan", "--isolate", "6-9"), "CPUs 8-9 are not there; online are 0-7")
        h.nic("0000:3b:00.2", "i40e", [], group=40)
        holds(h.refused("plan", "--bind", f"{I40E}=vfio-pci"), r"0000:3b:00.2 \(i40e\) is in the same IOMMU group")
        h.run("plan", "--bind", f"{I40E}=vfio-pci", "--bind", "0000:3b:00.2=vfio-pci")
        h.path(f"{DEVICES}/{I40E}/iommu_group").unlink()
        holds(h.refused("plan", "--bind", f"{I40E}=vfio-pci"), "no IOMMU for it: intel_iommu=on")
        h.put("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
        h.run("plan", "--bind", f"{I40E}=vfio-pci")


def plan():
    """A plan is the commands, and changes nothing; what is already so is left out"""
    with host(kernel=False) as h:
        before = h.contents()
        out, _ = h.run("plan", "--hugepages", "2M:1024@1", "--hugepages", "1G:2", "--bind", f"{I40E}=vfio-pci",
                       "--mtu", "eth3=9000", "--isolate", "1-3,5")
        commands = [line for line in out.splitlines() if not line.startswith("#")]
        check(commands == [
            f"echo 1024 >/{NODE.format(1, 2048)}", "echo 2 >/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
            f"echo {I40E} >/{DEVICES}/{I40E}/driver/unbind", f"echo vfio-pci >/{DEVICES}/{I40E}/driver_override",
            f"echo {I40E} >/sys/bus/pci/drivers_probe", "echo 9000 >/sys/class/net/eth3/mtu"], f"{commands}")
        holds(out, "isolcpus=1-3,5 nohz_full=1-3,5 rcu_nocbs=1-3,5 irqaffinity=0,4,6-7", r"cores: \[1-3, 5\]",
              "hugepagesz=1G hugepages=2", "/etc/dpdk/interfaces")
        check("CPU 0" not in out, out)
        for cpus in ("0", "2-3,0-1"):
            holds(h.run("plan", "--isolate", cpus)[0], f"warning: leave CPU 0 out of --isolate {cpus}")
        check(h.contents() == before, "plan changed something")
        holds(h.run("plan", "--mtu", "eth3=1500", "--hugepages", "2M:0")[0], "nothing to do")
        shutil.rmtree(h.path(f"{DRIVERS}/vfio-pci"))
        holds(h.run("plan", "--bind", f"{I40E}=vfio-pci")[0], "^modprobe vfio-pci\n")


def apply():
    """What was planned is done, noted, and taken back"""
    with host() as h:
        before = h.contents()
        wishes = ("--hugepages", "2M:512@0", "--bind", f"{I40E}=vfio-pci", "--mtu", "eth3=9000")
        planned = [line for line in h.run("plan", *wishes)[0].splitlines() if not line.startswith("#")]
        out, _ = h.run("apply", *wishes)
        done = [line for line in out.splitlines() if not line.startswith("#")]
        check(done == [f"{line}  # done" for line in planned], f"{done}")
        check(h.driver(I40E) == "vfio-pci" and h.get("sys/class/net/eth3/mtu") == "9000", f"{h.driver(I40E)}")
        check(h.get(NODE.format(0, 2048)) == "512", "no huge pages")
        holds(h.run("apply", *wishes)[0], "nothing to do")
        h.run("apply", "--hugepages", "2M:600@0")
        out, _ = h.run("undo")
        check("failed" not in out and out.count("# done") == 6, out)
        check(h.driver(I40E) == "i40e" and h.get("sys/class/net/eth3/mtu") == "1500", f"{h.driver(I40E)}: {out}")
        after = h.contents()
        left = [name for name in before if after.get(name, "").strip() != before[name].strip().replace("(null)", "")]
        check(set(left) <= {str(h.path(f"{DEVICES}/{nic}/driver_override")) for nic in NICS if nic != I40E}, f"{left}")
        holds(h.run("undo", status=1)[1], "nothing to undo")


def unbind():
    """A NIC comes back to the kernel, and undo takes it away again"""
    with host() as h:
        h.run("apply", "--bind", f"{I40E}=vfio-pci")
        h.path("var/lib/phub/dpdk-host.undo").unlink()
        h.run("apply", "--unbind", I40E)
        check(h.driver(I40E) == "i40e", h.driver(I40E))
        h.run("undo")
        check(h.driver(I40E) == "vfio-pci", h.driver(I40E))


def half_way():
    """What fails half-way says so, and can be taken back"""
    with host() as h:
        h.path("sys/bus/pci/drivers_probe").unlink()
        h.path("sys/bus/pci/drivers_probe").mkdir()
        out, err = h.run("apply", "--mtu", "eth3=9000", "--bind", f"{I40E}=vfio-pci", status=1)
        holds(out, "driver/unbind  # done", "drivers_probe  # failed")
        holds(err, "Is a directory", "dpdk-host.sh undo. takes back")
        check(h.driver(I40E) == "" and h.get("sys/class/net/eth3/mtu") == "1500", "it went on")
        out, _ = h.run("undo")
        holds(out, "left out: it has no driver")
        check(h.driver(I40E) == "i40e", h.driver(I40E))
    with host(takes=False) as h:
        holds(h.run("apply", "--bind", f"{I40E}=vfio-pci", status=1)[1], f"{I40E} has no driver now, not vfio-pci: .dmesg")
    with host() as h:
        h.path(NODE.format(0, 2048)).unlink()
        os.symlink("/dev/null", h.path(NODE.format(0, 2048)))
        holds(h.run("apply", "--hugepages", "2M:8@0", status=1)[1], "gave 0* ?of 8|gave  ?of 8", "too fragmented")


def foreign_notes():
    """An undo file is read, not run"""
    with host(kernel=False) as h:
        for line in ("echo 1 >/etc/passwd", "rm -rf /", "echo 1 >/sys/../etc/passwd", "echo $(id) >/sys/x", "echo 1 >/sys/x; id"):
            h.put("var/lib/phub/dpdk-host.undo", line)
            holds(h.run("undo", status=1)[1], "line 1: not of mine")
        holds(h.run("undo", "--undo-file", "/nowhere", status=1)[1], "/nowhere is not there")


sys.exit(rig.run([usage, show, show_bare, logged_in, refusals, plan, apply, unbind, half_way, foreign_notes]))
