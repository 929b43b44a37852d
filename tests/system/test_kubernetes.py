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
    """By kind, those with its name."""
    documents = list(yaml.safe_load_all((rig.ROOT / "deploy/k8s" / file).read_text()))
    name = documents[0]["metadata"]["name"]
    return {document["kind"]: document for document in documents if document["metadata"]["name"] == name}


def container(document):
    return document["spec"]["template"]["spec"]["containers"][0]


class Pod:
    """A box, with files of its own where the pod has volumes, and a free port; `above`: what its uplink names."""

    def __init__(self, file="box.yaml", above=None):
        self.above = above
        self.secret = pathlib.Path(FOLDER.name, "secret")
        if not above:
            self.secret.unlink(missing_ok=True)
            self.secret.write_text("0123456789abcdef0123456789abcdef\n")
            self.secret.chmod(0o440)  # the volume's defaultMode
        self.port = str(rig.free_port())
        self.objects = objects(file)
        text = self.objects["ConfigMap"]["data"]["phubd.yaml"]
        self.config = pathlib.Path(FOLDER.name, f"phubd-{self.port}.yaml")
        self.config.write_text(re.sub("data_ports: [0-9-]+", "data_ports: any",
                                      re.sub("memory_max: [0-9]+GiB", "memory_max: 64MiB", self.mend(text))))
        self.container = container(self.objects.get("StatefulSet") or self.objects["DaemonSet"])
        check(all(self.mend(text) != text for text in (text, *self.container["args"]) if "/" in text), "a path or a port has another name")

    def mend(self, text):
        """Files and ports of this host, and the address of the box above in place of the Service's name and port."""
        if self.above:
            text = text.replace("phub-box:7077", f"127.0.0.1:{self.above.port}")
        return text.replace("/run/phub/secret", str(self.secret)).replace("/etc/phub/phubd.yaml",
                                                                          str(self.config)).replace("7077", self.port)

    def begin(self):
        self.process = rig.Process("phubd", [rig.PHUBD, *map(self.mend, self.container["args"])])
        check(self.process.out.find(lambda line: line.startswith("phubd: listening on")), self.process.err.text())

    def probe(self, name):
        words = [PROGRAMS.get(word, self.mend(word)) for word in self.container[name]["exec"]["command"]]
        return subprocess.run(words, capture_output=True, text=True, timeout=self.container[name]["timeoutSeconds"], check=False,
                              env=rig.QUIET).returncode


def configured():
    """phubd takes each ConfigMap as it is applied: but for where the secret lies, and memory that this machine may lack"""
    pods = [Pod(), Pod("nodes.yaml")]
    for pod in pods:
        text = pod.objects["ConfigMap"]["data"]["phubd.yaml"]
        pod.config.write_text(re.sub("memory_max: [0-9]+GiB", "memory_max: 64MiB", text.replace("/run/phub/secret", str(pod.secret))))
        done = subprocess.run([rig.PHUBD, *map(pod.mend, pod.container["args"]), "--check-config"], capture_output=True, text=True,
                              timeout=60, check=False, env=rig.QUIET)
        check(done.returncode == 0, done.stderr)


def boxed():
    """phubd takes the ConfigMap and the arguments; each probe says no before it runs and yes when it does; SIGTERM ends it within the time"""
    pod = Pod()
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    check(all(pod.probe(name) != 0 for name in probes), "a probe finds a box that is not there")
    pod.begin()
    check(all(pod.probe(name) == 0 for name in probes), "a probe does not find the box")
    pod.process.kill(15)
    check(pod.process.wait(pod.objects["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]) == 0,
          pod.process.err.text())


def run_workers(url, boxes):
    """The command of workers.yaml, in as many processes as it has pods, with the index that Kubernetes sets; `boxes` in turns."""
    job = objects("workers.yaml")["Job"]
    one = container(job)
    environment = {env["name"]: boxes[0].mend(env["value"]) for env in one["env"]}
    check(environment["PHUB_URL"] == "phub://phub-box/demo", "the URL names another Service")
    environment.update(PHUB_LIBRARY=str(rig.BUILD / "libphub.so.0"), PYTHONPATH=str(rig.ROOT / "client/python"))
    running = [rig.Process(f"pod {i}", [PROGRAMS.get(word, word) for word in one["command"]],
                           env={**environment, "JOB_COMPLETION_INDEX": str(i), "PHUB_URL": url.format(boxes[i % len(boxes)].port)})
               for i in range(job["spec"]["completions"])]
    for i, process in enumerate(running):
        check(process.wait() == 0, process.err.text())
        check(process.out.text() == f"rank {i} of {len(running)} got {float(len(running))}", process.out.text())


def end(pod):
    pod.process.kill(15)
    check(pod.process.wait() == 0, pod.process.err.text())


def workers():
    """the command of workers.yaml, in as many processes as it has pods, with the index that Kubernetes sets"""
    pod = Pod()
    pod.begin()
    run_workers("phub://127.0.0.1:{}/demo", [pod])
    end(pod)


def nodes():
    """boxes of two nodes by nodes.yaml, below the one of box.yaml: workers of either node get what all have pushed"""
    top = Pod()
    top.begin()
    below = [Pod("nodes.yaml", above=top) for _ in range(2)]
    for pod in below:
        pod.begin()
    run_workers("phub://127.0.0.1:{}/demo", below)
    for pod in below:
        check("uplink" in pod.config.read_text() and "demo" in pod.process.err.text(), pod.process.err.text())
        end(pod)
    end(top)


def allowed():
    """the NetworkPolicies let through what the ConfigMap has phubd listen on, both ways, and nothing else"""
    box, jobs = objects("box.yaml"), objects("workers.yaml")
    config = yaml.safe_load(box["ConfigMap"]["data"]["phubd.yaml"])
    control = int(config["listen"][0].rsplit(":", 1)[1])
    first, last = map(int, config["data_ports"].split("-"))
    wanted = [{"protocol": "TCP", "port": control}, {"protocol": "TCP", "port": first, "endPort": last}]
    check(box["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == wanted, "ingress of the box")
    check(jobs["NetworkPolicy"]["spec"]["egress"][0]["ports"] == wanted, "egress of the workers")
    check(container(box["StatefulSet"])["ports"][0]["containerPort"] == control and box["Service"]["spec"]["ports"][0]["port"] == control,
          "the port of the Service")
    cpus, cores = int(container(box["StatefulSet"])["resources"]["limits"]["cpu"]), config["cores"]
    check(cores <= cpus, f"{cores} cores on {cpus} CPUs")
    node = objects("nodes.yaml")
    config = yaml.safe_load(node["ConfigMap"]["data"]["phubd.yaml"])
    first, last = map(int, config["data_ports"].split("-"))
    check(node["NetworkPolicy"]["spec"]["egress"][0]["ports"] == wanted, "egress of a node's box")
    check(node["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == [wanted[0], {**wanted[1], "port": first, "endPort": last}],
          "ingress of a node's box")
    ports = [p["port"] for p in node["Service"]["spec"]["ports"]]
    check(ports == [control, *range(first, last + 1)] == [p["containerPort"] for p in container(node["DaemonSet"])["ports"]],
          f"ports of its Service: {ports}")


def packages_of(*files):
    """By one question to dpkg, which reads its whole list for each."""
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, check=True)
    paths = {os.path.realpath(path) for path in re.findall(r"=> (/\S+)", done.stdout)}
    names = {name: path for path in paths for name in (path, path.removeprefix("/usr"))}
    told = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True, check=False).stdout
    owners = {names[name]: package for package, name in re.findall(r"^([\w.+-]+)[^ ]*: (/.+)$", told, re.M)}
    check(paths == set(owners), f"no package has {paths - set(owners)}")
    return set(owners.values())


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
    wanted = packages_of(*(rig.BUILD / name for name in ("phubd", "phub", "libphub.so.0"))) - {"libc6", "libnl-3-200", "libnl-route-3-200"}
    # What is loaded when it is needed: libcurl, to talk with etcd.
    loaded = set(re.findall(rb"\blib[\w-]+\.so\.\d+(?=\0)", (rig.BUILD / "phubd").read_bytes()))
    check(b"libcurl.so.4" in loaded, f"phubd loads {loaded}")
    check(wanted | {"libcurl4"} <= told, f"the image lacks {sorted((wanted | {'libcurl4'}) - told)}")


if __name__ == "__main__":
    rig.run([configured, boxed, workers, nodes, allowed, image], WHY)
