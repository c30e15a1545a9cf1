"""Waits for a version in a receiver's directory on this machine, and reads it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deltawire import DeadlineError, Error, Published
from deltawire.integrations import _checkpoint

#: How often a directory is looked for that no receiver has committed to yet.
_LOOK_S = 0.05


@dataclass(frozen=True)
class Expected:
    """The name of a version that is waited for; it travels between processes. A number alone names
    no bytes: a sender that starts anew uses numbers again, under another lineage, and a receiver
    holds the old ones until it has heard of that. `epoch`: the least. `root`: None before the
    version is published."""

    version: int
    lineage: str
    epoch: int = 1
    root: int | None = None

    @classmethod
    def of(cls, published: Published) -> Expected:
        return cls(published.version, published.lineage, published.epoch, published.root)

    def is_at(self, held: Any) -> bool:
        """Whether `held`, which has these fields, is the version. Error: it is a later one, so it
        is too late for this one."""
        if (held.lineage != self.lineage
                or (held.epoch, held.version) < (self.epoch, self.version)):
            return False
        if held.version == self.version and self.root in (None, held.root):
            return True
        if (held.epoch, held.version) == (self.epoch, self.version):
            return False  # the same number with other bytes
        raise Error(f"version {held.version} is committed, and {self.version} was waited for")

    def __str__(self) -> str:
        return f"version {self.version} of lineage {self.lineage[:8]}"


class ReceiverDirectory:
    """`path`: the directory of one model. Nothing is opened before a wait. Not thread-safe."""

    def __init__(self, path: str | os.PathLike[str]):
        self._path = os.fspath(path)
        self._client: Any = None

    def committed(self) -> Any:
        """The identity of the committed version; false when there is none, or no receiver's
        directory."""
        from deltawire.engine import EngineClient  # pylint: disable=import-outside-toplevel

        if self._client is None:
            try:
                self._client = EngineClient(self._path)
            except Error:
                return None
        return self._client.committed

    def wait(self, expected: Expected, timeout: float) -> Any:
        """Returns the identity of `expected` once it is committed. Raises DeadlineError after
        `timeout` seconds, and Error when a later version is committed."""
        end = time.monotonic() + timeout
        while True:
            found = self.committed()
            try:
                if found and expected.is_at(found):
                    return found
            except Error as error:
                raise Error(f"{self._path}: {error}") from None
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineError(
                    f"{self._path}: {expected} is not committed after {timeout:.0f} s"
                    + (f"; {found} is" if found else ": no receiver has committed there")
                    + "; deltawire status says why")
            if self._client is None:
                time.sleep(min(_LOOK_S, left))
                continue
            try:
                self._client.wait(found, left)
            except DeadlineError:
                pass  # said above, with the version
            except Error:
                self._client = None  # the receiver has made its files anew

    def tensors(self, found: Any) -> Iterator[tuple[str, Any]]:
        """(name, torch tensor) of `found`, which `wait` has returned. The receiver changes no file
        that is open, so each file is wholly of one version."""
        for name, tensor in _checkpoint.tensors(self._path):
            yield name, tensor
        if not (now := self.committed()) or now != found:
            raise Error(f"{self._path}: {now or 'nothing'} was committed while {found} was read; "
                        "publish the next one when this one is loaded")
