# SPDX-License-Identifier: Apache-2.0
"""What the tests of client/python share: a box of their own, workers as forked processes, TAP on stdout.

Import it first: it ends the program with status 77 and a reason when something is missing.
"""

import ast
import atexit
import contextlib
import multiprocessing
import os
import pathlib
import pickle
import re
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from rig import free_port  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
LIBRARY = BUILD / "libphub.so.0"
PHUBD = BUILD / "phubd"
RESULT_S = 120  # for workers to come back, on a busy machine

fork = multiprocessing.get_context("fork")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


for program in (PHUBD, LIBRARY):
    if not program.exists():
        skip(f"{program} is not there (make)")
if re.search(rb"__(asan|tsan|ubsan)_\w", LIBRARY.read_bytes()):
    skip("a library under a sanitizer cannot be loaded into Python")
try:
    import numpy  # noqa: F401
except ImportError as e:
    skip(f"{e} (Debian: apt install python3-numpy, and run /usr/bin/python3)")

os.environ["PHUB_LIBRARY"] = str(LIBRARY)
for name in ("PHUB_URL", "PHUB_SECRET", "PHUB_SECRET_FILE", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
sys.path.insert(0, str(ROOT / "client" / "python"))


class Box:
    """A phubd on a free port of loopback."""

    def __init__(self, *options):
        self.folder = tempfile.mkdtemp(prefix="phub-test-")
        self.log = pathlib.Path(self.folder, "log")
        command = [PHUBD, "--listen", "127.0.0.1:0", "-o", "data_ports=any", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True)
        line = self.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        if not found:
            raise RuntimeError(f"phubd did not start: {line}{self.log.read_text()}")
        self.port = int(found.group(1))

    def url(self, job):
        return f"phub://127.0.0.1:{self.port}/{job}"

    def wait_log(self, text, seconds=10):
        until = time.monotonic() + seconds
        while text not in self.log.read_text():
            assert time.monotonic() < until, f"the box never said {text!r}:\n{self.log.read_text()}"
            time.sleep(0.05)

    def stop(self):
        """Ends it. True when all was well, slots, credits and completions too."""
        self.process.terminate()
        code = self.process.wait(20)
        if code != 0:
            print("# phubd exited with", code, "\n# " + self.log.read_text().replace("\n", "\n# "))
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code == 0


def footprint(pid):
    """(resident bytes of its own, open files) of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kib = sum(int(n) for n in re.findall(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", status, re.M))
    return kib * 1024, len(os.listdir(f"/proc/{pid}/fd"))


def _child(pipe, function, rank, arguments):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = (True, function(rank, *arguments))
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send_bytes(pickle.dumps(answer))
    pipe.close()


def workers(world, function, *arguments):
    """function(rank, *arguments) in `world` forked processes; what they return, by rank. Fails as the first of them."""
    running = []
    for rank in range(world):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=_child, args=(theirs, function, rank, arguments))
        process.start()
        theirs.close()
        running.append((process, ours))
    until = time.monotonic() + RESULT_S
    answers = []
    for rank, (process, pipe) in enumerate(running):
        try:
            come = pipe.poll(max(0, until - time.monotonic()))
            answers.append(pickle.loads(pipe.recv_bytes()) if come else (False, "it did not come back in time"))
        except EOFError:
            process.join()
            answers.append((False, f"it died: exit code {process.exitcode}"))
    for process, pipe in running:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
        pipe.close()
    for rank, (well, answer) in enumerate(answers):
        assert well, f"rank {rank}: {answer}"
    return [answer for _, answer in answers]


ENTRY = """#!/usr/bin/python3 -IS
import os, signal, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({path!r})
request = {script!r}, os.getcwd(), dict(os.environ), sys.argv[1:], os.getpgid(0)
socket.send_fds(server, [repr(request).encode()], [0, 1, 2])
status = server.recv(1)
if not status:
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(status[0])
"""
REQUEST_MAX = 1 << 20


class Preloaded:
    """Scripts that launchers start without the cost of their imports (2 to 3 CPU seconds for torch).

    command(script) is a small program, the entry. A server, which is a fork of this process, forks a child for each entry that starts.
    The child runs the script with the entry's arguments, environment, folder, files and process group. Entry and child die together.
    """

    def __init__(self, warm=lambda: None):
        """warm() runs in the server: what all scripts share in memory."""
        self.folder = tempfile.TemporaryDirectory(prefix="phub-test-")
        self.path = f"{self.folder.name}/socket"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        listener.listen(64)
        ending, self.alive = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.alive)
            _forked(lambda: (warm(), _serve(listener, ending)))
        listener.close()
        os.close(ending)
        atexit.register(self.stop)

    def command(self, script):
        fd, path = tempfile.mkstemp(prefix="entry-", dir=self.folder.name)
        with open(fd, "w") as file:
            file.write(ENTRY.format(path=self.path, script=str(script)))
        os.chmod(path, 0o755)
        return path

    def stop(self):
        """Waits for the server, so that its CPU time and its children's count as this test's."""
        os.close(self.alive)
        os.waitpid(self.pid, 0)
        self.folder.cleanup()


def _forked(function, tell=lambda status: None):
    """Ends this process, which os.fork() made, as an interpreter ends after function(), but without the test's exit handlers.
    tell(status) runs when all output is written."""
    status = 0
    try:
        function()
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
        if status and not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    tell(status)
    os._exit(status)


def _serve(listener, ending):
    """Forks for each entry, until the test has ended; then waits for the children."""
    while ending not in (ready := select.select([listener, ending], [], [])[0]):
        if listener in ready:
            entry = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                _forked(lambda: _become(entry), lambda status: entry.send(bytes([status])))
            entry.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _become(entry):
    """Runs the script as the entry's process would."""
    request, files, _, _ = socket.recv_fds(entry, REQUEST_MAX, 3)
    script, folder, environment, words, group = ast.literal_eval(request.decode())
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError):  # a group of another session
        os.setpgid(0, group)

    def follow():
        entry.recv(1)  # the entry says nothing: its end is all that comes
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, daemon=True).start()
    sys.argv[:] = [script, *words]
    sys.path.insert(0, str(pathlib.Path(script).parent))
    runpy.run_path(script, run_name="__main__")


@contextlib.contextmanager
def raises(kind, *words):
    """The block must raise `kind` with all `words` in its text."""
    try:
        yield
    except kind as e:
        for word in words:
            assert word in str(e), f"{word!r} is not in: {e}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def run(tests, box):
    """Runs the tests, each with the box, and ends the program. Arguments: only tests whose name holds one of them."""
    passed = failed = 0
    chosen = [t for t in tests if not sys.argv[1:] or any(word in t.__name__ for word in sys.argv[1:])]
    for number, test in enumerate(chosen, 1):
        begun, cpu = time.monotonic(), sum(os.times()[:4])
        name = f"{number} {test.__name__}"
        try:
            why = test(box)
        except Exception:
            failed += 1
            print(f"not ok {name}\n# " + traceback.format_exc().replace("\n", "\n# "))
            continue
        passed += 1
        took = f"{time.monotonic() - begun:.1f} s, CPU {sum(os.times()[:4]) - cpu:.1f} s"
        print(f"ok {name}" + (f" # SKIP {why}" if isinstance(why, str) else f" # {took}"), flush=True)
    if not box.stop():
        failed += 1
        print(f"not ok {len(chosen) + 1} the box ends well")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
