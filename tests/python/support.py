"""What the Python package's tests share: skips, the Python with torch, and a cluster.

Skips (one line "SKIPPED: why", exit code 0) are decided here. DELTAWIRE_TRAINER_PYTHON names a
Python that has torch; it must have the ABI that the extension was built for.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from daemons import Daemons, Receiver, free_port, programs, spawn  # noqa: E402


def skip(why: str) -> None:
    print(f"SKIPPED: {why}")
    sys.exit(0)


def use_trainer_python() -> None:
    """Starts this script again in the Python that DELTAWIRE_TRAINER_PYTHON names, if it is set."""
    wanted = os.environ.get("DELTAWIRE_TRAINER_PYTHON")
    if wanted and "DELTAWIRE_IN_TRAINER_PYTHON" not in os.environ:
        os.environ["DELTAWIRE_IN_TRAINER_PYTHON"] = "1"
        os.execv(wanted, [wanted, *sys.argv])


def need(module: str):
    """Imports and returns the module, or skips the test."""
    try:
        return __import__(module)
    except ImportError as error:
        skip(f"{sys.executable} cannot import {module}: {error}")


class Cluster(Daemons):
    """A sender, and a receiver for each model that is asked for, in a directory of their own."""

    def __init__(self, *sender_options: str):
        shm = pathlib.Path("/dev/shm")
        self._dir = tempfile.TemporaryDirectory(
            prefix="deltawire-py-", dir=shm if shm.is_dir() else None
        )
        super().__init__(pathlib.Path(self._dir.name))
        self.endpoint = str(self.root / "s")
        self.control = self.start_sender(self.root / "s", *sender_options)
        self._receivers: dict[str, Receiver] = {}

    def close(self) -> None:
        super().close()
        self._dir.cleanup()

    def content(self, model: str = "policy") -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        """What a receiver of `model` holds after it was told to sync to the newest version."""
        if model not in self._receivers:
            self._receivers[model] = self.start_receiver(
                [self.control], model, self.root / f"r-{model}", "--no-follow"
            )
        self._receivers[model].sync()
        return self._receivers[model].content()

    def follow(self, model: str, *options: str) -> Receiver:
        """Starts a receiver of `model` that pulls every version by itself."""
        return self.start_receiver([self.control], model, self.root / f"f-{model}", *options)

    def side_file(self, name: str, model: str = "policy") -> str:
        return (self.root / f"r-{model}" / name).read_text()
