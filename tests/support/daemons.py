"""Daemons as child processes of a test, and what a receiver holds, read by a reader of our own.

They write below one directory, which somebody else removes, and die with this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import time

#: A wait that takes longer has failed. Tests whose servers share few cores name a longer one.
DEADLINE_S = int(os.environ.get("DELTAWIRE_TEST_DEADLINE_S", "120"))
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded before any fork
_reserved = []


def programs() -> pathlib.Path | None:
    """The directory of the daemons, as the environment names it."""
    found = os.environ.get("DELTAWIRE_BIN_DIR")
    return pathlib.Path(found) if found else None


def free_port() -> int:
    """A port that the kernel gives to nobody else while this process lives."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # once bound: the daemon may listen
    _reserved.append(s)
    return s.getsockname()[1]


def read_safetensors(path: pathlib.Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """name -> (dtype, shape, bytes), by a reader that shares nothing with what is tested."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = memoryview(content)[8 + length :]
    return {
        name: (t["dtype"], tuple(t["shape"]), bytes(data[slice(*t["data_offsets"])]))
        for name, t in header.items()
    }


def run(*command: object, **options) -> str:
    """What the command prints on stdout. One that fails is an error with all that it printed.
    `options` are subprocess.run's."""
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, **options
    )
    if done.returncode != 0:
        raise AssertionError(
            f"{command} failed with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def until(done, what: str, seconds: float = DEADLINE_S):
    """What `done` returns, once that is true. It asks others, who cannot tell of it: so it asks again
    soon."""
    deadline = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def listens(address: pathlib.Path | int) -> bool:
    """Whether somebody takes connections at this Unix socket, or at this port of 127.0.0.1. That a
    socket's file is there says little: it comes before, and stays where a daemon was killed."""
    unix = isinstance(address, pathlib.Path)
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as probe:
        try:
            probe.connect(str(address) if unix else ("127.0.0.1", address))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def end(child: subprocess.Popen, patience_s: float = 10) -> None:
    """Asks it to end, kills it where it does not, and waits until it is gone."""
    child.terminate()
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def spawn(command: list[str], **options) -> subprocess.Popen:
    """Starts a child that dies with the thread that calls this. `options` are Popen's."""

    def die_with_parent() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(command, preexec_fn=die_with_parent, **options)


class Receiver:
    """A receiver of one model, as the command line sees it."""

    def __init__(self, tool: pathlib.Path, model: str, directory: pathlib.Path):
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self._tool = tool
        self._model = model

    def status(self) -> dict:
        """Of the model; {} while the receiver does not answer."""
        command = [str(self._tool), "status", "--json", "--receiver", self.address]
        done = subprocess.run(command, capture_output=True, text=True)
        models = json.loads(done.stdout)["receiver"].get("models", []) if done.stdout else []
        return next((m for m in models if m["model"] == self._model), {})

    def await_version(self, version: int) -> None:
        end = time.monotonic() + DEADLINE_S
        while int(self.status().get("committed", {}).get("version", 0)) < version:
            if time.monotonic() > end:
                raise RuntimeError(f"version {version} was not committed: {self.status()}")

    def await_served(self, version: int, seconds: float = DEADLINE_S) -> None:
        """Until every engine that it drives serves the version."""
        command = [str(self._tool), "wait", "--served", "--version", str(version), "--model",
                   self._model, "--receiver", self.address, "--timeout", str(int(seconds))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"version {version} is not served: {done.stdout}{done.stderr} "
                               f"{self.status().get('engines')}")

    def verify_engines(self) -> tuple[int, str]:
        """The exit code and words of `verify --engines`."""
        done = subprocess.run([str(self._tool), "verify", "--engines", "--model", self._model,
                               "--receiver", self.address, "--timeout", str(DEADLINE_S)],
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def sync(self) -> None:
        """Returns when it holds the newest version, wholly and verified."""
        command = [str(self._tool), "sync", "--model", self._model, "--receiver", self.address]
        end = time.monotonic() + DEADLINE_S
        while True:  # the receiver may only just have started
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"sync of {self._model} failed: {done.stdout}{done.stderr}")

    def content(self) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        return read_safetensors(self.directory / "model.safetensors")


class Daemons:
    """Senders and receivers, with their logs in `root`. A context manager: prints the logs where an
    error leaves it."""

    def __init__(self, root: pathlib.Path, where: pathlib.Path | None = None):
        """`where`: the programs' directory, if it is not the environment's."""
        self.root = root
        self._programs = where or programs()
        self._children: list[subprocess.Popen] = []

    def start_sender(self, directory: pathlib.Path, *options: str) -> str:
        """Its control address. Trainers and the command line can reach it when this returns, also if it
        is slow to start, as below strace."""
        control = f"127.0.0.1:{free_port()}"
        sender = self._start(
            "deltawire-sender", "--data-dir", str(directory), "--control-listen", control,
            "--bulk-listen", "127.0.0.1:0", *options,
        )
        self.sender_process = sender
        self._await(sender, directory / "trainer.sock")
        self._await(sender, int(control.rpartition(":")[2]))
        return control

    def start_receiver(
        self, senders: list[str], model: str, directory: pathlib.Path, *options: str
    ) -> Receiver:
        """The command line can reach it when this returns."""
        receiver = Receiver(self._programs / "deltawire", model, directory)
        follow = [option for sender in senders for option in ("--sender", sender)]
        child = self._start(
            "deltawire-receiver", *follow, "--model", f"{model}={directory}",
            "--control-listen", receiver.address, *options,
        )
        self._await(child, int(receiver.address.rpartition(":")[2]))
        return receiver

    def _start(self, program: str, *options: str) -> subprocess.Popen:
        command = [str(self._programs / program), *options]
        with open(self.root / f"{program}-{len(self._children)}.log", "w") as log:
            self._children.append(spawn(command, stdout=log, stderr=subprocess.STDOUT))
        return self._children[-1]

    def _await(self, child: subprocess.Popen, address: pathlib.Path | int) -> None:
        """Until the child listens there."""

        def ready() -> bool:
            if (status := child.poll()) is not None:
                raise AssertionError(f"{child.args[0]} ended with {status}:{self.logs()}")
            return listens(address)

        until(ready, f"{child.args[0]} listens")

    def kill(self, program: str) -> None:
        """Ends every child that runs `program` as a crash would, and waits until it is gone."""
        for child in self._children:
            if pathlib.Path(child.args[0]).name == program:
                child.kill()
                child.wait()

    def kill_one(self, pid: int) -> None:
        """Ends this child as a crash would, and waits until it is gone."""
        child = next(c for c in self._children if c.pid == pid)
        child.kill()
        child.wait()

    def end_last(self) -> None:
        """Ends the daemon that was started last, as if it had never been."""
        end(self._children.pop())

    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def wait(self) -> None:
        """Until all have ended by themselves."""
        for child in self._children:
            child.wait(DEADLINE_S)

    def logs(self) -> str:
        return "".join(f"\n--- {p.name}\n{p.read_text()}" for p in sorted(self.root.glob("*.log")))

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            print(self.logs(), flush=True)
        self.close()
