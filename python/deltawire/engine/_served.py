"""The versions that a server's engine holds, written by the ranks and read by its HTTP process.

A rank writes a `Record` when the bytes are in its memory, and not before; during a change the
record names both versions. The file is locked as long as the rank lives, so a dead rank's record
does not count. `Served` uses only records of this server: of processes that descend from this one,
or that have the same DELTAWIRE_SERVER in their environment. It needs a record of every rank.

Files: /dev/shm/deltawire-served-UID/, 2 KiB for each rank. A read takes half of a request's cost
(docs/integrations.md). A record has one writer and any number of readers. `Record` raises OSError
if its file cannot be made; an unreadable record counts as unknown.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import sys
import tempfile
import time
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Names a server whose ranks do not descend from its HTTP process (several API servers, Ray).
SERVER_VARIABLE = "DELTAWIRE_SERVER"
_RECORD_BYTES = 2048
_DIRECTORIES = ("/dev/shm", tempfile.gettempdir())
#: The number of reads of a record whose checksum shows that a write is in progress.
_TRIES = 100


@dataclass(frozen=True)
class State:
    """A published state by its identity. `lineage`: 32 hex digits; `root`: 64 bits."""

    version: int
    epoch: int
    lineage: str
    root: int

    @classmethod
    def of(cls, identity: Any) -> State:
        return cls(identity.version, identity.epoch, identity.lineage, identity.root)

    def __str__(self) -> str:
        """Formats it as in HTTP headers: an item of structured fields (RFC 8941)."""
        return (f'{self.version};epoch={self.epoch};lineage="{self.lineage[:8]}"'
                f';root="{self.root:016x}"')


@dataclass(frozen=True)
class Reading:
    """The ranks' records at one moment. `states`: the possible contents of the memory, at most one
    unless it is changing, none if unknown. `changes`: another value after any change."""

    states: tuple[State, ...] = ()
    changes: tuple[Any, ...] = ()

    @property
    def state(self) -> State | None:
        """The one state that all ranks hold, if no rank is changing."""
        return self.states[0] if len(self.states) == 1 else None


def user_folder(name: str) -> str:
    """Returns a folder of this user's in shared memory, which may not exist yet."""
    root = next(d for d in _DIRECTORIES if os.path.isdir(d))
    return os.path.join(root, f"deltawire-{name}-{os.getuid()}")


def directory() -> str:
    """Returns the folder of this user's records."""
    return user_folder("served")


def is_ours(path: str) -> bool:
    """Returns whether no other user can write there: /dev/shm is everybody's."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _start_and_parent(pid: int) -> tuple[int, int]:
    """Returns a process's start (clock ticks since the boot), and its parent."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # a name may have spaces
    return int(fields[19]), int(fields[1])


def _ancestors() -> list[list[int]]:
    """Returns (process, its start) of this process and its ancestors."""
    found, pid = [], os.getpid()
    while pid > 0:
        try:
            start, parent = _start_and_parent(pid)
        except OSError:
            break
        found.append([pid, start])
        pid = parent
    return found


def _rank_and_world() -> tuple[int, int]:
    """Returns torch's rank and world, which in vLLM and SGLang are the engine's."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return 0, 1
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _packed(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    packed = b"%08x " % zlib.crc32(text) + text
    if len(packed) > _RECORD_BYTES:
        raise OSError(f"a record of {len(packed)} bytes, and {_RECORD_BYTES} is the limit")
    return packed.ljust(_RECORD_BYTES)


def _is_whole(packed: bytes) -> bool:
    checksum, _, text = packed.rstrip(b" ").partition(b" ")
    return b"%08x" % zlib.crc32(text) == checksum


def _unpacked(packed: bytes) -> dict[str, Any]:
    return json.loads(packed.partition(b" ")[2])


class Record:
    """One rank's record of its memory. It ends with the object, or with the process."""

    def __init__(self) -> None:
        folder = directory()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not is_ours(folder):
            raise OSError(f"{folder} can be written by others than this user; remove it")
        _remove_dead(folder)
        rank, world = _rank_and_world()
        self._record: dict[str, Any] = {
            "ancestors": _ancestors(), "server": os.environ.get(SERVER_VARIABLE, ""),
            "rank": rank, "world": world, "changes": 0, "states": [], "since": 0}
        path = os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(4)}")
        # Name it only when it is locked and complete: readers would take it for a dead one's.
        hidden = os.path.join(folder, f".{os.path.basename(path)}")
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.pwrite(self._fd, _packed(self._record), 0)
        os.rename(hidden, path)
        self._end = weakref.finalize(self, _end, self._fd, path, os.getpid())
        _records.add(self)

    def changing(self, before: Any, after: Any) -> None:
        """Call it before the first byte changes, with `deltawire.engine.Identity` objects."""
        # If one of them is unknown, the other must not look like the memory's content.
        self._write([State.of(before), State.of(after)] if before and after else [])

    def holds(self, identity: Any) -> None:
        """Call it when the last byte is written. An empty identity: the content is unknown."""
        self._write([State.of(identity)] if identity else [])

    def close(self) -> None:
        self._end()

    def leave(self) -> None:
        """Closes the record in a forked child: the lock belongs to the open file, and would outlive
        the rank."""
        if self._end.detach() is not None:
            os.close(self._fd)
        self._fd = -1

    def _write(self, states: Sequence[State]) -> None:
        if self._fd < 0:
            return  # a forked child has the object, but not the memory
        self._record["changes"] += 1
        self._record["since"] = time.monotonic_ns()  # one clock for all processes of a machine
        self._record["states"] = [[s.version, s.epoch, s.lineage, s.root] for s in states]
        os.pwrite(self._fd, _packed(self._record), 0)


#: This process's records.
_records: weakref.WeakSet[Record] = weakref.WeakSet()


def _leave_records() -> None:
    for record in list(_records):
        record.leave()
    _records.clear()


os.register_at_fork(after_in_child=_leave_records)


def _end(fd: int, path: str, owner: int) -> None:
    if os.getpid() == owner:  # otherwise a fork outside of Python made the process
        try:
            os.unlink(path)
        except OSError:
            pass
    os.close(fd)


def _is_alive(fd: int) -> bool:
    """Returns whether its writer still has it locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _whole_record(fd: int, known: bytes | None) -> bytes | None:
    """Returns None if its writer is dead. `known`: a whole record, which need not be checked
    again."""
    for _ in range(_TRIES):
        if not _is_alive(fd):
            return None
        packed = os.pread(fd, _RECORD_BYTES, 0)
        if packed == known or _is_whole(packed):
            return packed
    return None


def _remove_dead(folder: str) -> None:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if not name.startswith(".") and not _is_alive(fd):
                os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(fd)


class Served:
    """The engine's versions, as seen by this process. Not thread-safe."""

    def __init__(self) -> None:
        self._folder = directory()
        self._server = os.environ.get(SERVER_VARIABLE, "")
        self._me = [os.getpid(), _start_and_parent(os.getpid())[0]]
        self._files: dict[str, int] = {}  # name -> descriptor, of this server's records
        self._others: set[str] = set()  # names of other servers' records
        self._last: tuple[dict[str, bytes], Reading] = ({}, Reading())

    def read(self) -> Reading:
        """Never raises: unreadable records count as unknown."""
        self._look()
        records: dict[str, bytes] = {}
        for name, fd in list(self._files.items()):
            record = _whole_record(fd, self._last[0].get(name))
            if record is None:
                os.close(self._files.pop(name))
            else:
                records[name] = record
        if records != self._last[0]:
            self._last = records, _together({n: _unpacked(r) for n, r in records.items()})
        return self._last[1]

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def _look(self) -> None:
        """Opens the new records."""
        try:
            names = set(os.listdir(self._folder)) if is_ours(self._folder) else set()
        except OSError:
            names = set()
        self._others &= names
        for name in names - self._others - self._files.keys():
            if name.startswith("."):
                continue
            try:
                fd = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            record = _whole_record(fd, None)
            if record is not None and self._is_of_this_server(_unpacked(record)):
                self._files[name] = fd
            else:
                os.close(fd)
                self._others.add(name)

    def _is_of_this_server(self, record: dict[str, Any]) -> bool:
        if self._server:
            return record["server"] == self._server
        return self._me in record["ancestors"]


def _together(records: dict[str, dict[str, Any]]) -> Reading:
    """Returns the joint content of several ranks. If a rank is missing, it is unknown."""
    changes = tuple(sorted((name, r["changes"]) for name, r in records.items()))
    worlds = {r["world"] for r in records.values()}
    ranks = {r["rank"] for r in records.values()}
    if len(worlds) != 1 or ranks != set(range(worlds.pop())):
        return Reading((), changes)
    # The older state comes first: during a change the one before it, otherwise the state of the
    # rank that has not changed for the longest time, because the others have changed already.
    ordered = sorted(records.values(), key=lambda record: record["since"])
    if not all(record["states"] for record in ordered):
        return Reading((), changes)
    changing = [State(*r["states"][0]) for r in ordered if len(r["states"]) > 1]
    states = [State(*s) for record in ordered for s in record["states"]]
    return Reading(tuple(dict.fromkeys(changing + states)), changes)
