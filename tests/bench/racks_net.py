# SPDX-License-Identifier: Apache-2.0
"""Several racks in network namespaces, for racks.py and others: hosts on links of one rate, uplinks that are oversubscribed as asked.

     worker 0..N-1, box                worker 0..N-1, box        a namespace each; 10.99.RACK.1, ..., the box 10.99.RACK.254
     [ link ]   [ link ]               [ link ]   [ link ]       tbf MBIT: what leaves a worker; of a box: of all its rack and the uplink
        |           |                     |           |          veth pairs
     [ port0 ]  [ portbox ]            [ port0 ]  [ portbox ]    the same: what goes to it
    +----------------------+          +----------------------+
    |      rack 0          |          |      rack 1          |   a bridge each, in a namespace of its own
    +----------------------+          +----------------------+
           [ uplink ]                        [ uplink ]          tbf N x MBIT / OVERSUBSCRIBED: what leaves the rack
               |                                 |
           [ port0 ]                         [ port1 ]           the same: what goes to the rack
    +--------------------------------------------------------+
    |                       switch                           |   a bridge in a namespace of its own
    +--------------------------------------------------------+

    with racks_of(Shape(workers=(2, 2, 2), mbit=100, oversubscribed=4)) as racks:
        with Crew(racks) as crew:
            crew.box(0, "-o", "hierarchy=sharded")
            crew.start(racks.worker(0, 1), "phub", ...)       # the second worker of rack 0

Needs root. What runs in the namespaces ends, and they are removed, when we are gone, also when we are killed (rack.py's holder).
"""
import contextlib
import dataclasses
import os
import subprocess

import rack
from rack import LINK, holder, tbf_bytes, told
from systems import BUILD, CONTROL, SET_UP, Failure, end

NETWORK, PREFIX, PORT = "10.99.0.0/16", 16, 7077
QUEUE_MS = 50  # how long a packet may wait for a link
SECRET = {**os.environ, "RACKS_SECRET": "of the racks", "PHUB_SECRET": "of the racks"}
RACK = """
ip netns add {rack}
ip -n {rack} link add name bridge type bridge mcast_snooping 0
ip -n {rack} link set bridge up
ip -n {switch} link add name port{number} type veth peer name {link} netns {rack}
ip -n {switch} link set port{number} master bridge up
ip -n {rack} link set {link} master bridge up
"""


@dataclasses.dataclass(frozen=True)
class Shape:
    """`workers` of each rack; `mbit` of a worker's link, each way. An uplink has the rate of `uplink_workers` such links (the rack's
    own workers where 0), over `oversubscribed`; or, where `uplinks` gives them, these rates in Mbit/s. A box has a link for each
    worker of its rack, and one for the uplink: it limits nobody; or one of `box` Mbit/s. `burst`: bytes that pass a link at once."""
    workers: tuple
    mbit: float
    oversubscribed: float = 1
    uplink_workers: int = 0
    uplinks: tuple = ()
    box: float = 0
    burst: int = 128 << 10  # GSO packets of 64 KiB pass whole

    @property
    def count(self):
        return len(self.workers)

    @property
    def world(self):
        return sum(self.workers)

    def uplink_mbit(self, number):
        return self.uplinks[number] if self.uplinks else (self.uplink_workers or self.workers[number]) * self.mbit / self.oversubscribed

    def box_mbit(self, number):
        return self.box or self.workers[number] * self.mbit + self.uplink_mbit(number)

    def places(self):
        """(rack, worker there) of each rank."""
        return [(number, local) for number, workers in enumerate(self.workers) for local in range(workers)]


def address(number, local="box"):
    return f"10.99.{number}.{254 if local == 'box' else local + 1}"


class Racks:
    """The namespaces and links."""

    def __init__(self, names, shape):
        self.names, self.shape, self.switch = names, shape, f"{names}-switch"

    def rack(self, number):
        return f"{self.names}-rack{number}"

    def worker(self, number, local):
        """The namespace of a worker; of the box: local is "box"."""
        return f"{self.rack(number)}-{local if local == 'box' else f'worker{local}'}"

    def members(self, number):
        """(worker or "box", rate of its link) of a rack."""
        return [("box", self.shape.box_mbit(number)), *((local, self.shape.mbit) for local in range(self.shape.workers[number]))]

    @staticmethod
    def enter(namespace):
        """Words that go before what runs there."""
        return ["nsenter", f"--net=/run/netns/{namespace}", "--"]

    def build(self, keep_fd):
        script = rack.SWITCH.format(switch=self.switch)
        for number in range(self.shape.count):
            script += RACK.format(rack=self.rack(number), switch=self.switch, number=number, link=LINK)
            for local, _ in self.members(number):
                script += rack.MEMBER.format(name=self.worker(number, local), switch=self.rack(number), port=f"port{local}", link=LINK,
                                             address=address(number, local), prefix=PREFIX, network=NETWORK)
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, pass_fds=[keep_fd])
        if done.returncode:
            raise Failure(f"no racks: {done.stderr.strip()}")
        limits = {name: (CONTROL.parent / f"tcp_{name}").read_text().strip() for name in ("rmem", "wmem")}
        for number in range(self.shape.count):
            self._limit(self.rack(number), LINK, self.shape.uplink_mbit(number))
            self._limit(self.switch, f"port{number}", self.shape.uplink_mbit(number))
            for local, mbit in self.members(number):
                told(*self.enter(self.worker(number, local)), "sh", "-ec", SET_UP.format(**limits))
                self._limit(self.worker(number, local), LINK, mbit)
                self._limit(self.rack(number), f"port{local}", mbit)

    def _limit(self, namespace, device, mbit):
        told("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{round(mbit * 1000)}kbit", "burst",
             self.shape.burst, "latency", f"{QUEUE_MS}ms")

    def degrade(self, number, mbit):
        """From now on the uplink of this rack carries no more, each way."""
        self._limit(self.rack(number), LINK, mbit)
        self._limit(self.switch, f"port{number}", mbit)

    def counters(self):
        """[bytes out and in of each rack's uplink], with the headers of all segments: see rack.py."""
        down = tbf_bytes(self.switch)
        return [(tbf_bytes(self.rack(number))[LINK], down[f"port{number}"]) for number in range(self.shape.count)]


@contextlib.contextmanager
def racks_of(shape, tag="0"):
    """`tag`: of its own where a process has several at once."""
    names = f"phub-racks-{os.getpid()}-{tag}"
    with holder(names) as keep_fd:
        racks = Racks(names, shape)
        racks.build(keep_fd)
        yield racks


class Crew:
    """What runs: boxes, then workers. All end with it."""

    def __init__(self, racks):
        self.racks, self.processes = racks, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self, namespace, *words):
        process = subprocess.Popen([*self.racks.enter(namespace), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, bufsize=0, start_new_session=True, env=SECRET)
        self.processes.append(process)
        return process

    def box(self, number, *words):
        box = self.start(self.racks.worker(number, "box"), BUILD / "phubd", "--listen", f"{address(number)}:{PORT}", "--cores", 1, "-o",
                         "create=secret", "-o", "create_secret_env=RACKS_SECRET", "-o", "transports=tcp", *words)
        if b"listening" not in box.stdout.readline():
            raise Failure(f"box {number} does not start: {box.stderr.read().decode()}")

    def boxes(self, way):
        """Starts all of them, and says which box the workers of each rack come to. Flat: all come to that of rack 0."""
        if way == "flat":
            self.box(0)
            return [0] * self.racks.shape.count
        self.box(0, "-o", f"hierarchy={way}")
        for number in range(1, self.racks.shape.count):
            self.box(number, "-o", f"uplink={address(0)}:{PORT}")
        return range(self.racks.shape.count)

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            end(process)
