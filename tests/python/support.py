"""Daemons for the Python package's tests, and a reader of what the receiver holds.

Skips (one line "SKIPPED: why", exit code 0) are decided here. DELTAWIRE_TRAINER_PYTHON names a Python
that has torch; it must have the ABI that the extension was built for.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 120


def skip(why: str) -> None:
    print(f"SKIPPED: {why}")
    sys.exit(0)


def use_trainer_python() -> None:
    """Goes on in the Python of DELTAWIRE_TRAINER_PYTHON, if that is set."""
    wanted = os.environ.get("DELTAWIRE_TRAINER_PYTHON")
    if wanted and "DELTAWIRE_IN_TRAINER_PYTHON" not in os.environ:
        os.environ["DELTAWIRE_IN_TRAINER_PYTHON"] = "1"
        os.execv(wanted, [wanted, *sys.argv])


def need(module: str):
    """The module, or a skip."""
    try:
        return __import__(module)
    except ImportError as error:
        skip(f"{sys.executable} cannot import {module}: {error}")


_reserved = []


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


class Follower:
    """A receiver that follows, as `deltawire status` sees it."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, model: str):
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self._programs = programs
        self._model = model

    def status(self) -> dict:
        """Of the model; {} while the receiver does not answer."""
        command = [str(self._programs / "deltawire"), "status", "--json"]
        command += ["--receiver", self.address]
        done = subprocess.run(command, capture_output=True, text=True)
        models = json.loads(done.stdout)["receiver"].get("models", []) if done.stdout else []
        return next((m for m in models if m["model"] == self._model), {})

    def await_version(self, version: int) -> None:
        end = time.monotonic() + DEADLINE_S
        while int(self.status().get("committed", {}).get("version", 0)) < version:
            if time.monotonic() > end:
                raise RuntimeError(f"version {version} was not committed: {self.status()}")


class Cluster:
    """A sender, and a receiver for each model that is asked for. A context manager."""

    def __init__(self, *sender_options: str):
        shm = pathlib.Path("/dev/shm")
        self._dir = tempfile.TemporaryDirectory(
            prefix="deltawire-py-", dir=shm if shm.is_dir() else None
        )
        self.root = pathlib.Path(self._dir.name)
        self.endpoint = str(self.root / "s")
        self._bin = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"])
        self._control = f"127.0.0.1:{free_port()}"
        self._children: list[subprocess.Popen] = []
        self._receivers: dict[str, str] = {}
        options = ["--data-dir", self.endpoint, "--control-listen", self._control]
        self._start("deltawire-sender", *options, "--bulk-listen", "127.0.0.1:0", *sender_options)

    def _start(self, program: str, *options: str) -> None:
        command = [str(self._bin / program), *options]
        with open(self.root / f"{program}-{len(self._children)}.log", "w") as log:
            self._children.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            for log in sorted(self.root.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()}", file=sys.stderr)
        for child in self._children:
            child.kill()
            child.wait()
        self._dir.cleanup()

    def content(self, model: str = "policy") -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        """What a receiver holds after it was told to bring itself to the newest version."""
        directory = self.root / f"r-{model}"
        if model not in self._receivers:
            self._receivers[model] = f"127.0.0.1:{free_port()}"
            options = ["--sender", self._control, "--model", f"{model}={directory}"]
            options += ["--control-listen", self._receivers[model], "--no-follow"]
            self._start("deltawire-receiver", *options)
        command = [str(self._bin / "deltawire"), "sync", "--model", model]
        command += ["--receiver", self._receivers[model]]
        end = time.monotonic() + DEADLINE_S
        while True:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                return read_safetensors(directory / "model.safetensors")
            if time.monotonic() > end:  # the receiver may only just have started
                raise RuntimeError(f"sync of {model} failed: {done.stdout}{done.stderr}")

    def follow(self, model: str, *options: str) -> Follower:
        """A receiver of `model` that follows."""
        follower = Follower(self._bin, self.root / f"f-{model}", model)
        self._start(
            "deltawire-receiver", "--sender", self._control, "--control-listen", follower.address,
            "--model", f"{model}={follower.directory}", *options,
        )
        return follower

    def side_file(self, name: str, model: str = "policy") -> str:
        return (self.root / f"r-{model}" / name).read_text()
