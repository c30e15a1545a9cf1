"""Directs deltawire's daemons: for orchestrators, and whoever else would call the command line.

    from deltawire.control import Receiver, Sender

    with Sender("10.0.0.1:7700", model="policy", credentials="keys/me/credentials.toml") as sender:
        sender.wait_committed(version=120, at_least=8, timeout=60)
        print(sender.receivers())

`credentials` is the file that the daemons and `deltawire` take (docs/security.md). It and the files
that it names are looked at again with each call, at most once a second.

Answers are dicts in the form of docs/json.md, with the fields of proto/deltawire/v1. Fields may
come with each release, so ignore those that you do not know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deltawire import _core
from deltawire._errors import AbandonedError, DeadlineError, RefusedError, UnavailableError
from deltawire._manager import Published

__all__ = ["Answers", "Receiver", "Sender"]

_LONGEST_MS = 2**32 - 2


def _milliseconds(seconds: float | None) -> int:
    """None: 0, which the library takes for no limit."""
    return 0 if seconds is None else max(1, int(min(seconds * 1000, _LONGEST_MS)))


def _is_over(held: dict[str, Any], at_start: dict[str, Any]) -> bool:
    """Whether the receiver knew at the start that the history of `held` is over: a rollback, or a
    model that starts anew, uses numbers again."""
    newest = at_start["newest"]
    if not newest["epoch"]:
        return False
    if held["lineage"] == newest["lineage"]:
        return held["epoch"] < newest["epoch"]
    return held["lineage"] == at_start["committed"]["lineage"]


def _is_reached(held: dict[str, Any], version: int, epoch: int, wanted: Mapping[str, Any],
                at_start: dict[str, Any]) -> bool:
    """Whether `held` is that version or a later one. `wanted`: its whole name; empty: not known."""
    if not wanted:
        return (held["epoch"] >= max(epoch, 1) and held["version"] >= version
                and not _is_over(held, at_start))
    at, name = ((i["epoch"], i["version"]) for i in (held, wanted))
    return held["lineage"] == wanted["lineage"] and (
        at > name or (at == name and held["root"] == wanted["root"]))


class Answers(Iterator[dict[str, Any]]):
    """The answers of a call that streams, as they come; an iterator, and a context manager that
    ends the call. It ends the call as well where nobody holds it any more. One thread at a time
    takes answers; `cancel` may come from any."""

    def __init__(self, call: _core.ControlCall):
        self._call: _core.ControlCall | None = call

    def __next__(self) -> dict[str, Any]:
        text = None if self._call is None else self._call.next()
        if text is None:
            self._call = None
            raise StopIteration
        return json.loads(text)

    def cancel(self) -> None:
        """Ends the call: who waits for an answer gets an `Error` with the code CANCELLED."""
        if (call := self._call) is not None:
            call.cancel()

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()  # who waits in another thread holds the call
        self._call = None


class _Daemon:
    """One daemon. `address`: its control address, HOST:PORT. `model`: the one that calls are about;
    None: the only one that the daemon has. `timeout`: seconds to connect, and of calls that only
    ask. Thread-safe; it connects with the first call, and again after a failure with the next."""

    _KIND: int

    def __init__(self, address: str, *, model: str | None = None,
                 credentials: str | os.PathLike[str] | None = None, timeout: float = 10.0):
        file = None if credentials is None else os.fspath(credentials)
        self._control: _core.Control | None = _core.Control(
            self._KIND, address, file, _milliseconds(timeout)
        )
        self._address, self._timeout = address, timeout
        self._model = model
        self._found: str | None = None  # the only one, where none was named

    def stream(self, method: str, request: dict[str, Any] | None = None, *,
               timeout: float | None = None) -> Answers:
        """Begins a call of a method by its name in proto/deltawire/v1. `timeout`: seconds of the
        whole call; None: no limit."""
        control = self._control
        if control is None:
            raise ValueError(f"{self._address}: this was closed")
        text = json.dumps(request or {})
        return Answers(control.start(method, text, _milliseconds(timeout)))

    def call(self, method: str, request: dict[str, Any] | None = None, *,
             timeout: float | None = None) -> dict[str, Any]:
        """The same, of a call with one answer; of one with several, the last."""
        last: dict[str, Any] = {}
        with self.stream(method, request, timeout=timeout) as answers:
            for last in answers:
                pass
        return last

    def _ask(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        return self.call(method, request, timeout=self._timeout)

    def status(self) -> dict[str, Any]:
        """The daemon's state, and that of its model, or of all models if none was named."""
        return self._ask("GetStatus", {"model": self._model or ""})

    def model(self) -> str:
        """The name of the model that calls are about."""
        if (known := self._model or self._found) is None:
            names = [m["model"] for m in self.status()["models"]]
            if not names:
                raise RefusedError(f"{self._address} has no model yet")
            if len(names) > 1:
                raise ValueError(f"{self._address} has several models: choose one with model= "
                                 f"({', '.join(names)})")
            known = self._found = names[0]
        return known

    def close(self) -> None:
        """Closes the connection when the calls that still run have ended."""
        self._control = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sender(_Daemon):
    """A sender's `SenderService`."""

    _KIND = _core.DAEMON_SENDER

    def changes(self) -> dict[str, Any]:
        """`status`, with what the newest version changed in each tensor."""
        return self._ask("GetStatus", {"model": self._model or "", "changes": True})

    def receivers(self) -> list[dict[str, Any]]:
        """Those that are attached now, with what they hold and do."""
        return self._ask("ListReceivers", {"model": self._model or ""})["receivers"]

    def watch(self, *, timeout: float | None = None) -> Answers:
        """The newest version at once (if any), then every publish and rollback as it happens."""
        return self.stream("WatchVersions", {"model": self.model()}, timeout=timeout)

    def sync(self, receivers: Iterable[str] = (), *, force_full: bool = False, group: str = "",
             timeout: float | None = None) -> dict[str, Any]:
        """Has attached receivers (all, or these ids) pull the newest version, and returns when each
        has committed: `{"receivers": [...], "group": ...}`, the last that each has said. `group`:
        all its members commit on one word, or none (docs/groups.md). AbandonedError: some did not.
        """
        if isinstance(receivers, str):
            raise ValueError(f"receivers is a list of ids, as in receivers=[{receivers!r}]")
        request = {"model": self.model(), "receiver_ids": list(receivers), "force_full": force_full,
                   "group": group}
        last: dict[str, dict[str, Any]] = {}
        outcome = None
        for progress in self.stream("TriggerSync", request, timeout=timeout):
            if progress["group"]["round"]:
                outcome = progress["group"]
            else:
                last[progress["receiver_id"]] = progress
        failed = [p for p in last.values() if p["phase"] != "committed"]
        if failed and outcome is None:
            why = "; ".join(f"{p['receiver_id']}: {p['message'] or p['phase']}" for p in failed[:5])
            raise AbandonedError(f"{len(failed)} of {len(last)} receivers did not commit: {why}")
        return {"receivers": list(last.values()), "group": outcome}

    def wait_committed(self, version: int = 0, *, at_least: int = 1, served: bool = False,
                       timeout: float | None = None) -> dict[str, Any]:
        """Returns when at least so many receivers are attached and each of them has committed the
        version (0: the newest) or a later one; with `served` when their engines serve it.
        DeadlineError says who is behind."""
        request = {"model": self.model(), "version": version, "at_least": at_least,
                   "served": served}
        last: dict[str, Any] = {}
        try:
            for last in self.stream("WaitCommitted", request, timeout=timeout):
                if last["served"] != served:
                    raise RefusedError(f"{self._address} is of a release that does not know what "
                                       "engines serve; update it")
        except DeadlineError as error:
            if not last:
                raise
            raise DeadlineError(f"{error}: {last['committed']} of {last['attached']} attached "
                                f"receivers are at version {last['version']}, and {at_least} are "
                                f"waited for; behind: {', '.join(last['behind']) or '-'}") from None
        return last

    def rollback(self, version: int, *, timeout: float | None = 120.0) -> dict[str, Any]:
        """Publishes an earlier version's bytes as the first version of the next epoch."""
        request = {"model": self.model(), "version": version}
        return self.call("Rollback", request, timeout=timeout)["info"]

    def unregister(self, model: str, *, timeout: float | None = 60.0) -> dict[str, Any]:
        """Ends a model at the sender and frees its memory; receivers keep what they hold. `model` is
        required, even if the sender has only one. RefusedError: an offload is under way, or a
        trainer that has registered the model is alive."""
        answer = self.call("UnregisterModel", {"model": model}, timeout=timeout)
        self._found = None
        return answer


class Receiver(_Daemon):
    """A receiver's `ReceiverService`."""

    _KIND = _core.DAEMON_RECEIVER

    def sync(self, *, force_full: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Pulls the newest version now; returns when it is committed."""
        return self.call("Sync", {"model": self.model(), "force_full": force_full}, timeout=timeout)

    def watch(self, *, timeout: float | None = None) -> Answers:
        """The committed version at once (if any), then every commit as it happens."""
        return self.stream("WatchVersions", {"model": self.model()}, timeout=timeout)

    def watch_served(self, *, timeout: float | None = None) -> Answers:
        """What each engine serves at once (if it is known), then each change of it."""
        return self.stream("WatchServed", {"model": self.model()}, timeout=timeout)

    def wait(self, version: int | Published | Mapping[str, Any], *, epoch: int = 0,
             served: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Returns when the version, or a later one, is committed; with `served` when each engine
        serves it or a later one. DeadlineError says how things stand. `version`: what an offload's
        `wait` has returned, or the `id` of an answer, is compared by lineage, epoch, version and
        root. A number alone may be met by an earlier run's version, as long as the receiver has not
        heard of the sender's new one. `epoch`: of what a rollback returned, with a number."""
        model = self.model()
        wanted: Mapping[str, Any] = {}
        if isinstance(version, Published):
            wanted = {"epoch": version.epoch, "version": version.version,
                      "lineage": version.lineage, "root": f"{version.root:016x}"}
        elif isinstance(version, Mapping):
            wanted = version
        number = 0 if wanted else version
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

    def _of(self, model: str) -> dict[str, Any]:
        """The status of a model that the receiver has."""
        return self._ask("GetStatus", {"model": model})["models"][0]

    def _standing(self, model: str) -> str:
        """In the words of `deltawire wait`."""
        try:
            m = self._of(model)
        except (DeadlineError, UnavailableError) as error:
            return str(error)
        held = {k: m[k]["version"] if m[k]["epoch"] else "none" for k in ("committed", "newest")}
        text = (f"{m['model']}: committed: {held['committed']}, the newest of {m['sender']}: "
                f"{held['newest']}, phase {m['phase']}{'' if m['attached'] else ', not attached'}")
        return f"{text}; {m['message']}" if m["message"] else text

    def verify(self, *, repair: bool = False, engines: bool = False,
               timeout: float | None = None) -> dict[str, Any]:
        """Compares every byte with its digest, and what disagrees is listed; `repair`: and fetched
        anew. `engines`: each engine does so, too."""
        request = {"model": self.model(), "repair": repair, "engines": engines}
        return self.call("Verify", request, timeout=timeout)

    def pause(self, *, timeout: float | None = None) -> None:
        """It follows no more; returns when no byte is being changed."""
        self.call("Pause", {"model": self.model()}, timeout=timeout)

    def resume(self) -> None:
        """It follows again."""
        self._ask("Resume", {"model": self.model()})
