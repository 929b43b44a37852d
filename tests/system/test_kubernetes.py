#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/k8s and deploy/container, as far as they can be run without a cluster and without images: phubd by the ConfigMap and the
arguments, the probes, the workers' command with the variables of an indexed Job, and the packages of the images."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import rig
from rig import check

FOLDER = tempfile.TemporaryDirectory(prefix="phub-k8s-")
PROGRAMS = {"phub": str(rig.BUILD / "phub"), "python3": sys.executable}

try:
    import yaml
except ImportError as error:
    yaml, WHY = None, f"{error} (Debian: apt install python3-yaml)"
else:
    WHY = None


def objects(file):
    return {document["kind"]: document for document in yaml.safe_load_all((rig.ROOT / "deploy/k8s" / file).read_text())}


def container(document):
    return document["spec"]["template"]["spec"]["containers"][0]


class Pod:
    """The box, with files of its own where the pod has volumes, and a free port."""

    def __init__(self):
        self.secret = pathlib.Path(FOLDER.name, "secret")
        self.secret.write_text("0123456789abcdef0123456789abcdef\n")
        self.secret.chmod(0o440)  # the volume's defaultMode
        self.port = str(rig.free_port())
        self.objects = objects("box.yaml")
        text = self.objects["ConfigMap"]["data"]["phubd.yaml"]
        self.config = pathlib.Path(FOLDER.name, "phubd.yaml")
        self.config.write_text(self.mend(text).replace("data_ports: 7100-7131", "data_ports: any").replace("memory_max: 12GiB", "memory_max: 64MiB"))
        self.container = container(self.objects["StatefulSet"])
        check(all(self.mend(text) != text for text in (text, *self.container["args"]) if "/" in text), "a path or a port has another name")

    def mend(self, text):
        return (text.replace("/run/phub/secret", str(self.secret)).replace("/etc/phub/phubd.yaml", str(pathlib.Path(FOLDER.name, "phubd.yaml")))
                .replace("7077", self.port))

    def begin(self):
        self.process = rig.Process("phubd", [rig.PHUBD, *map(self.mend, self.container["args"])])
        check(self.process.out.find(lambda line: line.startswith("phubd: listening on")), self.process.err.text())

    def probe(self, name):
        words = [PROGRAMS.get(word, self.mend(word)) for word in self.container[name]["exec"]["command"]]
        return subprocess.run(words, capture_output=True, text=True, timeout=self.container[name]["timeoutSeconds"], check=False, env=rig.QUIET).returncode


def boxed():
    """phubd takes the ConfigMap and the arguments; each probe says no before it runs and yes when it does; SIGTERM ends it within the time"""
    pod = Pod()
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    check(all(pod.probe(name) != 0 for name in probes), "a probe finds a box that is not there")
    pod.begin()
    check(all(pod.probe(name) == 0 for name in probes), "a probe does not find the box")
    pod.process.kill(15)
    check(pod.process.wait(pod.objects["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]) == 0, pod.process.err.text())


def workers():
    """the command of workers.yaml, in as many processes as it has pods, with the index that Kubernetes sets"""
    pod = Pod()
    pod.begin()
    job = objects("workers.yaml")["Job"]
    one = container(job)
    environment = {env["name"]: pod.mend(env["value"]) for env in one["env"]}
    check(environment["PHUB_URL"] == "phub://phub-box/demo", "the URL names another Service")
    environment.update(PHUB_URL=f"phub://127.0.0.1:{pod.port}/demo", PHUB_LIBRARY=str(rig.BUILD / "libphub.so.0"), PYTHONPATH=str(rig.ROOT / "client/python"))
    running = [rig.Process(f"pod {i}", [PROGRAMS.get(word, word) for word in one["command"]], env={**environment, "JOB_COMPLETION_INDEX": str(i)})
               for i in range(job["spec"]["completions"])]
    for i, process in enumerate(running):
        check(process.wait() == 0, process.err.text())
        check(process.out.text() == f"rank {i} of {len(running)} got {float(len(running))}", process.out.text())
    pod.process.kill(15)
    check(pod.process.wait() == 0, pod.process.err.text())


def allowed():
    """the NetworkPolicies let through what the ConfigMap has phubd listen on, both ways, and nothing else"""
    box, jobs = objects("box.yaml"), objects("workers.yaml")
    config = yaml.safe_load(box["ConfigMap"]["data"]["phubd.yaml"])
    control = int(config["listen"][0].rsplit(":", 1)[1])
    first, last = map(int, config["data_ports"].split("-"))
    wanted = [{"protocol": "TCP", "port": control}, {"protocol": "TCP", "port": first, "endPort": last}]
    check(box["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == wanted, "ingress of the box")
    check(jobs["NetworkPolicy"]["spec"]["egress"][0]["ports"] == wanted, "egress of the workers")
    check(container(box["StatefulSet"])["ports"][0]["containerPort"] == control and box["Service"]["spec"]["ports"][0]["port"] == control, "the port of the Service")
    cpus, cores = int(container(box["StatefulSet"])["resources"]["limits"]["cpu"]), config["cores"]
    check(cores <= cpus, f"{cores} cores on {cpus} CPUs")


def packages_of(file):
    done = subprocess.run(["ldd", file], capture_output=True, text=True, check=True)
    found = set()
    for path in set(re.findall(r"=> (/\S+)", done.stdout)):
        for name in (os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")):
            owner = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True, check=False)
            if owner.returncode == 0:
                found.add(owner.stdout.split(":")[0])
                break
        else:
            raise AssertionError(f"no package has {path}")
    return found


def image():
    """the packages of the image hold every library that phubd, phub and libphub need"""
    release = pathlib.Path("/etc/os-release").read_text()
    if "debian" not in release or "\nVERSION_ID=\"12\"" not in release:
        raise rig.Skip("this is not Debian 12, which the image is made of")
    if any(b"__asan_" in (rig.BUILD / name).read_bytes() for name in ("phubd", "phub")):
        raise rig.Skip("a sanitizer needs a library of its own")
    dockerfile = (rig.ROOT / "deploy/container/Dockerfile").read_text()
    stage = dockerfile.split("AS box\n")[1].split("\nFROM")[0]
    told = set(re.findall(r"\b(?:lib|ibv)[\w.+-]+", stage.split("&&")[1]))
    # These come along with libc6 itself, and with libibverbs1.
    wanted = set().union(*(packages_of(rig.BUILD / name) for name in ("phubd", "phub", "libphub.so.0"))) - {"libc6", "libnl-3-200", "libnl-route-3-200"}
    check(wanted <= told, f"the image lacks {sorted(wanted - told)}")


if __name__ == "__main__":
    rig.run([boxed, workers, allowed, image], WHY)
