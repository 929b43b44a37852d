#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
What can be known of Kubernetes manifests without a cluster: the fields of the kinds that we use and their types (a field that
is not listed here is a slip of the pen, or belongs into this list), and whether what one object names is there in another.

Usage: k8s.py FILE...    all FILEs are one application
Exit status: 0 clean, 1 violations, 2 usage.
"""
import re
import sys

import yaml

errors = 0


def complain(where, text):
    global errors
    errors += 1
    print(f"{where}: {text}")


# ---- types: each takes where it stands and the value ----


def text(where, value):
    if not isinstance(value, str) or not value:
        complain(where, f"{value!r} is no text; put numbers into quotes")


def number(where, value):
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        complain(where, f"{value!r} is no whole number")


def port(where, value):
    number(where, value)
    if isinstance(value, int) and not 1 <= value <= 65535:
        complain(where, f"{value} is no port")


def switch(where, value):
    if not isinstance(value, bool):
        complain(where, f"{value!r} is neither true nor false")


def name(where, value):
    text(where, value)
    if isinstance(value, str) and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value):
        complain(where, f"'{value}' is no name of Kubernetes: lower case, digits and -")


def mode(where, value):
    number(where, value)
    if isinstance(value, int) and value > 0o777:
        complain(where, f"{value} is no mode (0 to 511)")


def quantity(where, value):
    if bytes_of(value) is None:
        complain(where, f"{value!r} is no quantity, like \"4\", 500m or 16Gi")


def bytes_of(value):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?", value) if isinstance(value, str) else None
    units = {None: 1, "m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(found.group(1)) * units[found.group(2)] if found else None


def one_of(*allowed):
    def check(where, value):
        if value not in allowed:
            complain(where, f"{value!r}; allowed: {', '.join(map(str, allowed))}")
    return check


def each(kind):
    def check(where, value):
        if not isinstance(value, list):
            complain(where, "is no list")
            return
        for i, item in enumerate(value):
            kind(f"{where}[{i}]", item)
    return check


def mapping(kind):
    def check(where, value):
        if not isinstance(value, dict):
            complain(where, "is no mapping")
            return
        for key, item in value.items():
            kind(f"{where}.{key}", item)
    return check


def struct(_needs="", **fields):
    def check(where, value):
        if not isinstance(value, dict):
            complain(where, "is no mapping")
            return
        for key in value:
            if key not in fields:
                complain(where, f"there is no field '{key}' here that we know; allowed: {', '.join(fields)}")
        for key in _needs.split():
            if key not in value:
                complain(where, f"lacks '{key}'")
        for key, kind in fields.items():
            if key in value:
                kind(f"{where}.{key}", value[key])
    return check


# ---- what we use of Kubernetes: core/v1, apps/v1, batch/v1, networking.k8s.io/v1 ----

LABELS = mapping(text)
SELECTOR = struct("matchLabels", matchLabels=LABELS)
METADATA = struct("name labels", name=name, labels=LABELS, namespace=name, annotations=LABELS)
PROBE = struct("exec periodSeconds timeoutSeconds failureThreshold", exec=struct("command", command=each(text)), periodSeconds=number,
               timeoutSeconds=number, failureThreshold=number, initialDelaySeconds=number)
CONTAINER = struct(
    "name image resources securityContext", name=name, image=text, command=each(text), args=each(text),
    env=each(struct("name value", name=text, value=text)),
    ports=each(struct("name containerPort", name=name, containerPort=port, protocol=one_of("TCP", "UDP"))),
    resources=struct("requests limits", requests=mapping(quantity), limits=mapping(quantity)),
    securityContext=struct("allowPrivilegeEscalation readOnlyRootFilesystem capabilities", allowPrivilegeEscalation=one_of(False),
                           readOnlyRootFilesystem=one_of(True), capabilities=struct("drop", drop=one_of(["ALL"]))),
    startupProbe=PROBE, readinessProbe=PROBE, livenessProbe=PROBE,
    volumeMounts=each(struct("name mountPath", name=name, mountPath=text, readOnly=switch)))
VOLUME = struct("name", name=name, configMap=struct("name", name=name),
                secret=struct("secretName defaultMode", secretName=name, defaultMode=mode),
                emptyDir=struct(sizeLimit=quantity))
POD = struct(
    "containers securityContext automountServiceAccountToken", automountServiceAccountToken=one_of(False), enableServiceLinks=switch,
    terminationGracePeriodSeconds=number, restartPolicy=one_of("Always", "OnFailure", "Never"), nodeSelector=LABELS, hostNetwork=switch,
    securityContext=struct("runAsNonRoot runAsUser runAsGroup seccompProfile", runAsNonRoot=one_of(True), runAsUser=number,
                           runAsGroup=number,
                           fsGroup=number, seccompProfile=struct("type", type=one_of("RuntimeDefault"))),
    topologySpreadConstraints=each(struct("maxSkew topologyKey whenUnsatisfiable labelSelector", maxSkew=number, topologyKey=text,
                                          whenUnsatisfiable=one_of("ScheduleAnyway", "DoNotSchedule"), labelSelector=SELECTOR)),
    containers=each(CONTAINER), volumes=each(VOLUME))
TEMPLATE = struct("metadata spec", metadata=struct("labels", labels=LABELS), spec=POD)
PEER = each(struct(podSelector=SELECTOR, namespaceSelector=SELECTOR))
POLICY_PORTS = each(struct("protocol port", protocol=one_of("TCP", "UDP"), port=port, endPort=port))
KINDS = {
    "ConfigMap": ("v1", struct("data", data=mapping(text))),
    "Service": ("v1", struct("spec", spec=struct(
        "selector ports", clusterIP=one_of("None"), publishNotReadyAddresses=switch, internalTrafficPolicy=one_of("Local", "Cluster"),
        selector=LABELS,
        ports=each(struct("name port targetPort", name=name, port=port, targetPort=name, protocol=one_of("TCP", "UDP")))))),
    "StatefulSet": ("apps/v1", struct("spec", spec=struct("serviceName replicas selector template", serviceName=name, replicas=number,
                                                          selector=SELECTOR,
                                                          template=TEMPLATE))),
    "DaemonSet": ("apps/v1", struct("spec", spec=struct("selector template", selector=SELECTOR, template=TEMPLATE))),
    "Job": ("batch/v1", struct("spec", spec=struct("template", completionMode=one_of("Indexed"), completions=number, parallelism=number,
                                                   backoffLimit=number, template=TEMPLATE))),
    "NetworkPolicy": ("networking.k8s.io/v1", struct("spec", spec=struct(
        "podSelector policyTypes", podSelector=SELECTOR, policyTypes=each(one_of("Ingress", "Egress")),
        ingress=each(struct("from ports", **{"from": PEER, "ports": POLICY_PORTS})),
        egress=each(struct("to ports", to=PEER, ports=POLICY_PORTS))))),
}


def check_shape(where, document):
    """One object by itself. False: nothing more can be said of it."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in KINDS:
        complain(where, f"kind {kind!r}; known: {', '.join(KINDS)}")
        return False
    version, shape = KINDS[kind]
    if document.get("apiVersion") != version:
        complain(where, f"apiVersion {document.get('apiVersion')!r}; of a {kind} it is {version}")
    before = errors
    METADATA(f"{where}.metadata", document.get("metadata"))
    shape(where, {key: value for key, value in document.items() if key not in ("apiVersion", "kind", "metadata")})
    return errors == before


# ---- what they name of each other ----


def check_container(where, container, volumes):
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    for missing in sorted(mounted - volumes):
        complain(where, f"mounts '{missing}', which is no volume of the pod")
    if not re.fullmatch(r"[^:@]+(:\d+)?[^:@]*:(?!latest$)[^:@]+(@sha256:[0-9a-f]{64})?", container["image"]):
        complain(where, f"image '{container['image']}': give it a tag that is not latest")
    resources = container["resources"]
    for what in ("cpu", "memory"):
        request, limit = (bytes_of(resources[which].get(what)) for which in ("requests", "limits"))
        if request is None or limit is None or request > limit:
            complain(where, f"resources: {what} needs a request and a limit, the limit not below it")


def check_pod(where, template, known):
    pod = template["spec"]
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        check_container(f"{where}.{container['name']}", container, volumes)
    used = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
    for unused in sorted(volumes - used):
        complain(where, f"no container mounts volume '{unused}'")
    for volume in pod.get("volumes", []):
        for kind, key in (("configMap", "name"), ("secret", "secretName")):
            if kind in volume and (kind.lower(), volume[kind][key]) not in known:
                complain(where, f"volume '{volume['name']}': {kind} '{volume[kind][key]}' is neither here nor made by a command at a file's head")


def selects(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


def check_job(where, spec):
    world = [int(env["value"]) for container in spec["template"]["spec"]["containers"] for env in container.get("env", [])
             if env["name"] == "WORLD_SIZE" and env["value"].isdigit()]
    if spec.get("completionMode") != "Indexed" or world != [spec.get("completions")] or world != [spec.get("parallelism")]:
        complain(where, f"completionMode must be Indexed, and completions {spec.get('completions')}, parallelism {spec.get('parallelism')} and WORLD_SIZE "
                        f"{world} the same")
    if spec["template"]["spec"].get("restartPolicy") not in ("OnFailure", "Never"):
        complain(where, "a Job needs restartPolicy OnFailure or Never")


def check_config(where, config, services):
    """The boxes that a box's configuration names are Services here, at ports that these have. What else phubd takes, phubd knows."""
    settings = yaml.safe_load(config) or {}
    boxes = [settings[key] for key in ("uplink", "standby") if settings.get(key)]
    for box in (one.strip() for listed in boxes for one in (listed if isinstance(listed, list) else str(listed).split(","))):
        host, _, at = str(box).rpartition(":")
        service = services.get(host.rpartition("/")[2].split(".")[0])
        if not service or at not in [str(p["port"]) for p in service["ports"]]:
            complain(where, f"'{box}' is no Service here with a port of its own, like phub-box:7077")


def check_references(objects, known):
    templates = [(where, d["spec"]["template"]) for where, d in objects if d["kind"] in ("StatefulSet", "DaemonSet", "Job")]
    services = {d["metadata"]["name"]: d["spec"] for _, d in objects if d["kind"] == "Service"}
    for where, template in templates:
        check_pod(where, template, known)
    for where, document in objects:
        spec = document.get("spec", {})
        if document["kind"] in ("StatefulSet", "DaemonSet"):
            if not selects(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]):
                complain(where, "its selector does not fit the labels of its template")
            if document["kind"] == "StatefulSet" and spec["serviceName"] not in services:
                complain(where, f"there is no Service '{spec['serviceName']}'")
        elif document["kind"] == "ConfigMap" and "phubd.yaml" in document["data"]:
            check_config(where, document["data"]["phubd.yaml"], services)
        elif document["kind"] == "Job":
            check_job(where, spec)
        elif document["kind"] == "Service":
            ports = {p["name"] for _, t in templates if selects(spec["selector"], t["metadata"]["labels"])
                     for c in t["spec"]["containers"] for p in c.get("ports", [])}
            for p in spec["ports"]:
                if p["targetPort"] not in ports:
                    complain(where, f"port '{p['name']}': no pod that it selects has a port '{p['targetPort']}'")
        elif document["kind"] == "NetworkPolicy":
            peers = [peer["podSelector"]["matchLabels"]
                     for rules, side in ((spec.get("ingress", []), "from"), (spec.get("egress", []), "to"))
                     for rule in rules for peer in rule[side] if "podSelector" in peer]
            for selector in [spec["podSelector"]["matchLabels"], *peers]:
                if not any(selects(selector, template["metadata"]["labels"]) for _, template in templates):
                    complain(where, f"no pod here has the labels {selector}")


def main(*paths):
    """Callable again: deploy/lint/self_test.py does, once a violation."""
    global errors
    errors = 0
    if not paths:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    objects, known, sound = [], set(), True
    for path in paths:
        with open(path, encoding="utf-8") as file:
            content = file.read()
        known |= {("secret", made) for made in re.findall(r"^#.*kubectl create secret generic (\S+)", content, re.M)}
        try:
            documents = list(yaml.safe_load_all(content))
        except yaml.YAMLError as error:
            complain(path, str(error).replace("\n", " "))
            sound = False
            continue
        for number_, document in enumerate(documents, 1):
            where = f"{path}: {document.get('kind', number_) if isinstance(document, dict) else number_}"
            sound = check_shape(where, document) and sound
            objects.append((where, document))
    if sound:
        known |= {(d["kind"].lower(), d["metadata"]["name"]) for _, d in objects}
        check_references(objects, known)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
