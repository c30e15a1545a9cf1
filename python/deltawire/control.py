"""Directs deltawire's daemons, for orchestrators and other programs.

    from deltawire.control import Receiver, Sender

    with Sender("10.0.0.1:7700", model="policy", credentials="keys/me/credentials.toml") as sender:
        sender.wait_committed(version=120, at_least=8, timeout=60)
        print(sender.receivers())

`credentials` is the file that the daemons and `deltawire` read (docs/security.md). It and the files
that it names are checked again with each call, at most once a second.

Answers are objects with the fields of the messages in proto/deltawire/v1, and mappings as well, so
`answer["id"]` is `answer.id`; those of `call` and `stream` are dicts. Each release may add fields.
`deltawire.aio` has the same for asyncio.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from deltawire import _core
from deltawire._answers import (
    CommitInfo,
    GroupOutcome,
    Identity,
    ReceiverInfo,
    ReceiverModelStatus,
    ReceiverStatusResponse,
    SenderStatusResponse,
    ServedInfo,
    SyncProgress,
    SyncUpdate,
    UnregisterModelResponse,
    VerifyResponse,
    VersionInfo,
    WaitCommittedUpdate,
)
from deltawire._attempt import checked_version
from deltawire._errors import AbandonedError, DeadlineError, RefusedError, UnavailableError
from deltawire._manager import Published

__all__ = ["Answers", "Identity", "Receiver", "Sender", "Synced"]

_T = TypeVar("_T")

_LONGEST_MS = 2**32 - 2


def _milliseconds(seconds: float | None) -> int:
    """Converts seconds; None becomes 0, the library's value for no limit."""
    return 0 if seconds is None else max(1, int(min(seconds * 1000, _LONGEST_MS)))


def _is_over(held: Mapping[str, Any], at_start: Mapping[str, Any]) -> bool:
    """Returns whether the receiver knew at the start that the history of `held` has ended: a
    rollback, or a model that starts anew, uses numbers again."""
    newest = at_start["newest"]
    if not newest["epoch"]:
        return False
    if held["lineage"] == newest["lineage"]:
        return held["epoch"] < newest["epoch"]
    return held["lineage"] == at_start["committed"]["lineage"]


def _is_reached(held: Mapping[str, Any], version: int, epoch: int, wanted: Mapping[str, Any],
                at_start: Mapping[str, Any]) -> bool:
    """Returns whether `held` is that version or a later one. `wanted`: its identity, if known."""
    if not wanted:
        return (held["epoch"] >= max(epoch, 1) and held["version"] >= version
                and not _is_over(held, at_start))
    at, name = ((i["epoch"], i["version"]) for i in (held, wanted))
    return held["lineage"] == wanted["lineage"] and (
        at > name or (at == name and held["root"] == wanted["root"]))


@dataclass(frozen=True)
class Synced:
    """A sync that has ended: each receiver's last message, and the round of a group, or None."""

    receivers: tuple[SyncProgress, ...]
    group: GroupOutcome | None

    def __getitem__(self, name: str) -> Any:
        if name not in ("receivers", "group"):
            raise KeyError(name)
        return getattr(self, name)


class OpenCalls:
    """The calls of one piece of work, so that another thread can end them."""

    def __init__(self) -> None:
        self._mu = threading.Lock()
        self._calls: list[_core.ControlCall] = []
        self._is_over = False

    def add(self, call: _core.ControlCall) -> None:
        with self._mu:
            self._calls.append(call)
            over = self._is_over
        if over:
            call.cancel()

    def cancel(self) -> None:
        """Ends these calls, and any that begin later."""
        with self._mu:
            self._is_over, calls = True, list(self._calls)
        for call in calls:
            call.cancel()


#: The calls of this context's work, if another thread may end it.
open_calls: ContextVar[OpenCalls | None] = ContextVar("deltawire_open_calls", default=None)


class Answers(Iterator[_T], Generic[_T]):
    """The answers of a streaming call: an iterator, and a context manager that ends the call. The
    call also ends when the object is no longer referenced. One thread at a time reads answers; any
    thread may call `cancel`."""

    def __init__(self, call: _core.ControlCall, made: Callable[[dict[str, Any]], _T]):
        self._call: _core.ControlCall | None = call
        self._made = made

    def __next__(self) -> _T:
        call = self._call  # another thread may end it meanwhile
        text = None if call is None else call.next()
        if text is None:
            self._call = None
            raise StopIteration
        return self._made(json.loads(text))

    def cancel(self) -> None:
        """Ends the call: a thread that waits for an answer gets an `Error` with the code
        CANCELLED."""
        if (call := self._call) is not None:
            call.cancel()

    def __enter__(self) -> Answers[_T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()  # a thread that waits holds the call
        self._call = None


class _Daemon:
    """One daemon. `address`: its control address, HOST:PORT. `model`: the model of the calls; None:
    the daemon's only one. `timeout`: seconds to connect, and for calls that only ask. Thread-safe.
    It connects with the first call, and after a failure with the next."""

    _KIND: int

    def __init__(self, address: str, *, model: str | None = None,
                 credentials: str | os.PathLike[str] | None = None, timeout: float = 10.0):
        file = None if credentials is None else os.fspath(credentials)
        self._control: _core.Control | None = _core.Control(
            self._KIND, address, file, _milliseconds(timeout)
        )
        self._address, self._timeout = address, timeout
        self._model = model
        self._found: str | None = None  # the only one, if none was named

    def stream(self, method: str, request: dict[str, Any] | None = None, *,
               timeout: float | None = None) -> Answers[dict[str, Any]]:
        """Begins a call of a method by its name in proto/deltawire/v1. `timeout`: seconds for the
        whole call; None: no limit."""
        return self._begin(method, request, timeout, lambda told: told)

    def _begin(self, method: str, request: dict[str, Any] | None, timeout: float | None,
               made: Callable[[dict[str, Any]], _T]) -> Answers[_T]:
        control = self._control
        if control is None:
            raise ValueError(f"{self._address}: this was closed")
        call = control.start(method, json.dumps(request or {}), _milliseconds(timeout))
        if (open_ := open_calls.get()) is not None:
            open_.add(call)
        return Answers(call, made)

    def call(self, method: str, request: dict[str, Any] | None = None, *,
             timeout: float | None = None) -> dict[str, Any]:
        """Makes such a call and returns its answer, or the last of several."""
        last: dict[str, Any] = {}
        with self.stream(method, request, timeout=timeout) as answers:
            for last in answers:
                pass
        return last

    def _ask(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        return self.call(method, request, timeout=self._timeout)

    def _status(self) -> dict[str, Any]:
        return self._ask("GetStatus", {"model": self._model or ""})

    def model(self) -> str:
        """The name of the calls' model."""
        if (known := self._model or self._found) is None:
            names = [m["model"] for m in self._status()["models"]]
            if not names:
                raise RefusedError(f"{self._address} has no model yet")
            if len(names) > 1:
                raise ValueError(f"{self._address} has several models: choose one with model= "
                                 f"({', '.join(names)})")
            known = self._found = names[0]
        return known

    def close(self) -> None:
        """Closes the connection when the running calls have ended."""
        self._control = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sender(_Daemon):
    """A sender's `SenderService`."""

    _KIND = _core.DAEMON_SENDER

    def status(self) -> SenderStatusResponse:
        """Returns the state of the daemon and its model, or of all models if none was named."""
        return SenderStatusResponse.of(self._status())

    def changes(self) -> SenderStatusResponse:
        """Returns `status` with the newest version's changes in each tensor."""
        request = {"model": self._model or "", "changes": True}
        return SenderStatusResponse.of(self._ask("GetStatus", request))

    def receivers(self) -> list[ReceiverInfo]:
        """Returns the attached receivers, with their versions and activity."""
        told = self._ask("ListReceivers", {"model": self._model or ""})
        return [ReceiverInfo.of(r) for r in told["receivers"]]

    def watch(self, *, timeout: float | None = None) -> Answers[VersionInfo]:
        """Yields the newest version at once (if any), then every publish and rollback as it
        happens."""
        return self._begin("WatchVersions", {"model": self.model()}, timeout, VersionInfo.of)

    def sync(self, receivers: Iterable[str] = (), *, force_full: bool = False, group: str = "",
             timeout: float | None = None) -> Synced:
        """Makes attached receivers (all, or these ids) pull the newest version, and returns when
        each has committed. `group`: all its members commit together, or none does (docs/groups.md).
        AbandonedError: some did not commit.
        """
        if isinstance(receivers, str):
            raise ValueError(f"receivers is a list of ids, as in receivers=[{receivers!r}]")
        request = {"model": self.model(), "receiver_ids": list(receivers), "force_full": force_full,
                   "group": group}
        last: dict[str, SyncProgress] = {}
        outcome = None
        for progress in self._begin("TriggerSync", request, timeout, SyncProgress.of):
            if progress.group.round:
                outcome = progress.group
            else:
                last[progress.receiver_id] = progress
        failed = [p for p in last.values() if p.phase != "committed"]
        if failed and outcome is None:
            why = "; ".join(f"{p.receiver_id}: {p.message or p.phase}" for p in failed[:5])
            raise AbandonedError(f"{len(failed)} of {len(last)} receivers did not commit: {why}")
        return Synced(tuple(last.values()), outcome)

    def wait_committed(self, version: int = 0, *, at_least: int = 1, served: bool = False,
                       timeout: float | None = None) -> WaitCommittedUpdate:
        """Returns when at least `at_least` receivers are attached and each of them has committed
        the version (0: the newest) or a later one; with `served`, when their engines serve it.
        DeadlineError names those that are behind."""
        request = {"model": self.model(), "version": checked_version(version, least=0),
                   "at_least": at_least, "served": served}
        last = None
        try:
            for last in self._begin("WaitCommitted", request, timeout, WaitCommittedUpdate.of):
                if last.served != served:
                    raise RefusedError(f"{self._address} is of a release that does not know what "
                                       "engines serve; update it")
        except DeadlineError as error:
            if last is None:
                raise
            raise DeadlineError(f"{error}: {last.committed} of {last.attached} attached "
                                f"receivers are at version {last.version}, and {at_least} are "
                                f"waited for; behind: {', '.join(last.behind) or '-'}") from None
        if last is None:
            raise UnavailableError(f"the sender at {self._address} ended the wait")
        return last

    def rollback(self, version: int, *, timeout: float | None = 120.0) -> VersionInfo:
        """Publishes an earlier version's bytes as the first version of the next epoch."""
        request = {"model": self.model(), "version": checked_version(version)}
        return VersionInfo.of(self.call("Rollback", request, timeout=timeout)["info"])

    def unregister(self, model: str, *, timeout: float | None = 60.0) -> UnregisterModelResponse:
        """Ends a model at the sender and frees its memory; receivers keep their versions. `model`
        is required, even if the sender has only one. RefusedError: an offload is under way, or a
        trainer that has registered the model is alive."""
        answer = self.call("UnregisterModel", {"model": model}, timeout=timeout)
        self._found = None
        return UnregisterModelResponse.of(answer)


class Receiver(_Daemon):
    """A receiver's `ReceiverService`."""

    _KIND = _core.DAEMON_RECEIVER

    def status(self) -> ReceiverStatusResponse:
        """Returns the state of the daemon and its model, or of all models if none was named."""
        return ReceiverStatusResponse.of(self._status())

    def sync(self, *, force_full: bool = False, timeout: float | None = None) -> SyncUpdate:
        """Pulls the newest version now; returns when it is committed."""
        request = {"model": self.model(), "force_full": force_full}
        return SyncUpdate.of(self.call("Sync", request, timeout=timeout))

    def watch(self, *, timeout: float | None = None) -> Answers[CommitInfo]:
        """Yields the committed version at once (if any), then every commit as it happens."""
        return self._begin("WatchVersions", {"model": self.model()}, timeout, CommitInfo.of)

    def watch_served(self, *, timeout: float | None = None) -> Answers[ServedInfo]:
        """Yields what each engine serves at once (if known), then each change of it."""
        return self._begin("WatchServed", {"model": self.model()}, timeout, ServedInfo.of)

    def wait(self, version: int | Published | Mapping[str, Any], *, epoch: int = 0,
             served: bool = False, timeout: float | None = None) -> CommitInfo | ServedInfo:
        """Returns when the version, or a later one, is committed; with `served`, when each engine
        serves it or a later one. DeadlineError has the progress. `version` may be the result of an
        offload's `wait`, or the `id` of an answer: these are compared by lineage, epoch, version
        and root. A number alone may match an earlier run's version, as long as the receiver does
        not know the sender's new one. `epoch`: of a rollback's result, together with a number."""
        model = self.model()
        wanted: Mapping[str, Any] = {}
        if isinstance(version, Published):
            wanted = {"epoch": version.epoch, "version": version.version,
                      "lineage": version.lineage, "root": f"{version.root:016x}"}
        elif isinstance(version, Mapping):
            wanted = version
        number = 0 if wanted else checked_version(version, least=0)
        at_start = self._of(model)
        try:
            with (self.watch_served if served else self.watch)(timeout=timeout) as news:
                for told in news:
                    reached = told["oldest" if served else "id"]
                    if _is_reached(reached, number, epoch, wanted, at_start):
                        return told
        except DeadlineError as error:
            raise DeadlineError(f"{error}: {self._standing(model)}") from None
        raise UnavailableError(f"the receiver at {self._address} ended the watch")

    def _of(self, model: str) -> ReceiverModelStatus:
        """Returns the status of a model that the receiver has."""
        return ReceiverModelStatus.of(self._ask("GetStatus", {"model": model})["models"][0])

    def _standing(self, model: str) -> str:
        """Describes the progress in the words of `deltawire wait`."""
        try:
            m = self._of(model)
        except (DeadlineError, UnavailableError) as error:
            return str(error)
        held = {k: m[k]["version"] if m[k]["epoch"] else "none" for k in ("committed", "newest")}
        text = (f"{m.model}: committed: {held['committed']}, the newest of {m.sender}: "
                f"{held['newest']}, phase {m.phase}{'' if m.attached else ', not attached'}")
        return f"{text}; {m.message}" if m.message else text

    def verify(self, *, repair: bool = False, engines: bool = False,
               timeout: float | None = None) -> VerifyResponse:
        """Compares every byte with its digest and lists corrupt chunks; with `repair` fetches them
        anew. `engines`: each engine does so, too."""
        request = {"model": self.model(), "repair": repair, "engines": engines}
        return VerifyResponse.of(self.call("Verify", request, timeout=timeout))

    def pause(self, *, timeout: float | None = None) -> None:
        """Stops following; returns when no byte is being changed."""
        self.call("Pause", {"model": self.model()}, timeout=timeout)

    def resume(self) -> None:
        """Follows again."""
        self._ask("Resume", {"model": self.model()})
