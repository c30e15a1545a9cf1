"""Waits for a version in a receiver's directory on this machine, and reads it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from deltawire import DeadlineError, Error
from deltawire.integrations import _checkpoint

#: How often a directory is looked for that no receiver has committed to yet.
_LOOK_S = 0.05


class ReceiverDirectory:
    """`path`: the directory of one model. Nothing is opened before a wait. Not thread-safe."""

    def __init__(self, path: str | os.PathLike[str]):
        self._path = os.fspath(path)
        self._client: Any = None

    def committed(self) -> int:
        """The committed version; 0 when there is none, or no receiver's directory."""
        from deltawire.engine import EngineClient  # pylint: disable=import-outside-toplevel

        if self._client is None:
            try:
                self._client = EngineClient(self._path)
            except Error:
                return 0
        return self._client.committed.version if self._client.committed else 0

    def wait(self, version: int, timeout: float) -> None:
        """Returns when `version` is committed. Raises DeadlineError after `timeout` seconds, and
        Error when a newer one is committed: then it is too late for this one."""
        end = time.monotonic() + timeout
        while (found := self.committed()) < version:
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineError(
                    f"{self._path}: version {version} is not committed after {timeout:.0f} s"
                    + (f"; version {found} is" if found else ": no receiver has committed there")
                    + "; deltawire status says why")
            if self._client is None:
                time.sleep(min(_LOOK_S, left))
                continue
            try:
                self._client.wait(self._client.committed, left)
            except DeadlineError:
                pass  # said above, with the version
            except Error:
                self._client = None  # the receiver has made its files anew
        if found != version:
            raise Error(f"{self._path}: version {found} is committed, and {version} was waited for")

    def tensors(self, version: int) -> Iterator[tuple[str, Any]]:
        """(name, torch tensor) of `version`. REQUIRES: `wait` has returned for it. The receiver
        changes no file that is open, so each file is wholly of one version."""
        for name, tensor in _checkpoint.tensors(self._path):
            yield name, tensor
        if self.committed() != version:
            raise Error(f"{self._path}: version {self.committed()} was committed while {version} "
                        "was read; publish the next one when this one is loaded")
