"""The results of one server's replicas, each by itself, and the joint result.

A server's HTTP process returns only the first replica's answer. So the first rank of each replica
writes its result to a file that is named by the call's nonce, and the next call reads all of them.
No replica waits: when the server has answered the first call, every replica is done.

Files: /dev/shm/deltawire-answers-UID/, one for each replica; the next call and the process's end
remove it. `read` returns what is missing; `leave` logs what it cannot write.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from deltawire.engine._served import is_ours, user_folder

logger = logging.getLogger("vllm.deltawire")
#: The age in seconds after which the file of an unsettled call is removed.
_OLD_S = 3600.0
_NONCE = re.compile(r"[0-9A-Za-z_-]{8,64}")


@dataclass
class Done:
    """One replica's result of one call. `parts`, `tensors` and `taken` are of an attach, `shares`
    of a comparison of memory; the elements are EngineClient's."""

    nonce: str = ""
    ok: bool = True
    reason: str = ""
    drifted: bool = False
    corrupts: bool = False
    held: str = ""
    parts: dict[str, Any] = field(default_factory=dict)
    tensors: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    untaken: list[str] = field(default_factory=list)
    shares: list[Any] = field(default_factory=list)


@dataclass
class Read:
    done: list[Done]
    reasons: list[str]


def _remove_old(folder: str) -> None:
    """Removes files of replicas that were killed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if time.time() - entry.stat().st_mtime > _OLD_S:
                    os.unlink(entry.path)
            except OSError:
                pass  # another replica was faster


class Replicas:
    """The files of this replica and of its siblings."""

    def __init__(self, replica: int):
        self._replica = replica
        self._last = ""
        atexit.register(self._remove)

    def leave(self, done: Done) -> None:
        """Writes this replica's result in place of its previous one."""
        self._remove()
        try:
            self._last = self._path(done.nonce, self._replica)
            folder = os.path.dirname(self._last)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not is_ours(folder):
                raise OSError(f"{folder} can be written by others than this user; remove it")
            _remove_old(folder)
            with open(f"{self._last}.new", "w", encoding="utf-8",
                      opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                json.dump(asdict(done), file)
            os.rename(f"{self._last}.new", self._last)
        except (OSError, ValueError) as error:
            logger.error("deltawire: the other replicas will not know of this one: %s", error)

    def read(self, nonce: str, replicas: int) -> Read:
        """Returns all replicas' results of this call, and the objections."""
        found = Read([], [])
        for replica in range(replicas):
            try:
                path = self._path(nonce, replica)
                if not is_ours(os.path.dirname(path)):
                    raise FileNotFoundError(path)
                with open(path, encoding="utf-8") as file:
                    done = Done(**json.load(file))
            except (OSError, ValueError, TypeError):
                found.reasons.append(
                    f"replica {replica} of {replicas} has not answered on this machine; start one "
                    "server for each replica, and name each one as an engine of its own")
                continue
            found.done.append(done)
            if not done.ok:
                found.reasons.append(f"replica {replica}: {done.reason}")
        held = dict.fromkeys(done.held for done in found.done)
        if not found.reasons and len(held) > 1:
            found.reasons.append("the replicas hold different versions: " + ", ".join(
                text or "none" for text in held))
        return found

    def _remove(self) -> None:
        if self._last:
            try:
                os.unlink(self._last)
            except OSError:
                pass
        self._last = ""

    @staticmethod
    def _path(nonce: str, replica: int) -> str:
        """Raises ValueError for a nonce that is not a file's name."""
        if not _NONCE.fullmatch(nonce):
            raise ValueError(f"the nonce {nonce!r} is not 8 to 64 letters and digits")
        return os.path.join(user_folder("answers"), f"{nonce}-{replica}")
