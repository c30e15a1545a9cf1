"""One vLLM worker's answers to a receiver's calls (docs/engine.md, "vLLM").

vLLM's executor reads the ranks' replies in order and stops at the first failure; unread replies
answer the next calls. So no call raises, on any rank: each rank returns (ok, reason), the ranks of
one engine agree, and every one of them answers with the joint result. An answer repeats its call's
nonce, by which the receiver recognizes a reply of an earlier call.

The ranks of one replica agree over vLLM's own groups. Replicas of data parallelism do not: each is
called when its own step ends, so a collective over them would wait for a step that waits for it.
They leave their results in files, and `settle` reads all of them afterwards.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from deltawire.engine import Attached, EngineClient, Identity, PlanCache
from deltawire.engine._attach import proven, set_proven
from deltawire.engine._outcome import ANEW, some
from deltawire.engine._ranks import (
    CHECK_EVERY,
    Drifted,
    Held,
    Refused,
    Rounds,
    everywhere,
    refuse_drift,
    refuse_parts,
    together,
)
from deltawire.engine._replicas import Done, Replicas

logger = logging.getLogger("vllm.deltawire")  # vLLM shows what its own loggers say


class Corrupts(Refused):
    """A reload of the engine's own would leave wrong weights."""


@dataclass
class Followed:
    """One model of a worker, and the known state of its memory."""

    directory: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # of its attach
    client: EngineClient | None = None
    model: torch.nn.Module | None = None
    prepared: Identity | None = None
    before: Identity | None = None  # the last update's base, the target of a rollback
    rounds: Rounds = field(default_factory=lambda: Rounds(0))
    looks: Rounds = field(default_factory=lambda: Rounds(0))  # of `prove`
    drifted: bool = False  # found by a proof, and nothing was written since

    @property
    def held(self) -> Identity | None:
        return self.client.held if self.client is not None and self.client.held else None


class Follower:
    """A worker's models. Every rank of an engine gets the same calls in the same order."""

    def __init__(self, engine: Any):
        """`engine`: a `_vllm_engine.Engine`, the access to vLLM."""
        self._engine = engine
        self._process = secrets.token_hex(8)
        self._served, self._draft = Followed(), Followed()
        self._replicas = Replicas(engine.replica)
        self._done = Done()
        self._half_loaded = False  # a reload of vLLM's own has failed on one rank
        self._undo: Callable[[], None] = lambda: None  # for the case that another replica fails
        self._calls: dict[str, Callable[..., None]] = {
            "attach": self._attach, "prepare": self._prepare, "apply": self._apply,
            "rollback": self._rollback, "discard": self._discard, "check": self._check,
            "prove": self._prove, "reload": self._reload, "detach": self._detach,
            "settle": self._settle, "held": lambda: None}

    def answer(self, call: str, nonce: str, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the joint result of all ranks of this engine, as a JSON object."""
        group = self._engine.group
        draft = bool(options.pop("draft", False))
        self._followed = self._draft if draft else self._served
        replicas = options.pop("replicas", None)
        self._many = 1 if self._engine.alone else max(self._engine.replicas, replicas or 1)
        if call != "settle":
            self._done, self._undo = Done(nonce=nonce), lambda: None
        refused = self._refusal(call, {**options, **(
            {"replicas": self._many} if call == "settle" else {})})
        reasons = everywhere((nonce, str(refused) if refused is not None else None, self._process,
                              str(self._followed.held or "")), group)
        said = [reason for _, reason, _, _ in reasons]
        ok = all(reason is None for reason in said)
        if not ok:
            words = dict.fromkeys(
                reason for reason in said if reason is not None)
            if len(words) == 1:
                reason = next(iter(words))
            else:
                reason = "; ".join(f"rank {i}: {text}" for i, text in enumerate(said)
                                   if text is not None)
            logger.error("deltawire: %s: %s", call, reason)
        else:
            reason = ""
        held = self._followed.held
        if len({text for *_, text in reasons}) > 1:
            held = None
        if call != "settle":
            self._done.ok, self._done.reason = ok, reason
            self._done.drifted = isinstance(refused, Drifted)
            self._done.corrupts = isinstance(refused, Corrupts)
            self._done.held = str(held or "")
            if self._many > 1 and self._engine.rank == 0:
                self._replicas.leave(self._done)
        return {
            "nonce": nonce, "rank": self._engine.rank, "ranks": len(reasons),
            "replicas": self._engine.replicas, "engine": reasons[0][2], "ok": ok, "reason": reason,
            "drifted": isinstance(refused, Drifted), "anew": ANEW in reason,
            "corrupts": isinstance(refused, Corrupts), "held": named(held),
            "untaken": self._done.untaken if ok else []}

    def _refusal(self, call: str, options: dict[str, Any]) -> Exception | None:
        """Takes the step; returns the objection, if any."""
        try:
            step = self._calls.get(call)
            if step is None:
                raise Refused(f"there is no call {call!r}; there are {', '.join(self._calls)}")
            try:
                inspect.signature(step).bind(**options)
            except TypeError as error:
                raise Refused(f"{call}: {error}") from None
            with self._engine.configuration():
                step(**options)
        except Refused as refused:
            return refused
        except Exception as error:  # pylint: disable=broad-except  # the others wait for this rank
            logger.exception("deltawire: unexpected")
            return error if str(error) else RuntimeError(repr(error))
        return None

    def _require(self) -> EngineClient:
        if self._followed.client is None:
            raise Refused("attach comes first" + (
                ", with a draft_directory" if self._followed is self._draft else ""))
        return self._followed.client

    def _together(self, step: Callable[[], Any], held: Callable[[], Held | None] = lambda: None
                  ) -> Any:
        return together(step, self._engine.group, held)

    # The steps. Each one raises Refused on all ranks or on none.

    def _attach(self, directory: str = "", check_every: int = CHECK_EVERY,
                loader_tensors: bool = False, second_instance: bool = False,
                plans: str | bool = False, threads: int = 1, draft_directory: str = "") -> None:
        """Proves that the memory equals the committed version in `directory`, and follows it from
        now on. `draft_directory`: of the draft model, if it has one of its own. Until this is done,
        nothing is followed."""

        def refuse_nothing() -> None:
            if not (directory or draft_directory):
                raise Refused("attach has neither a directory nor a draft_directory")

        self._together(refuse_nothing)
        options = {"loader_tensors": loader_tensors, "plans": plans, "threads": threads}
        if directory:
            self._served = self._followed = self._follow(
                self._served, self._engine.served, directory, check_every, second_instance, options)
            self._served.directory = directory
            self._served.options = {"check_every": check_every, "second_instance": second_instance,
                                    **options}
        if draft_directory:
            self._draft = self._follow(self._draft, self._engine.draft, draft_directory,
                                       check_every, False, options)

    def _follow(self, older: Followed, model: Callable[[], Any], directory: str, *how: Any
                ) -> Followed:
        """Returns the model that is followed from now on. The memory may have changed since an
        older attach, which stays after a refusal only where all of it is as it was."""
        followed = Followed()
        try:
            self._bind(followed, model(), str(older.held or ""), directory, *how)
        except Exception:
            if not self._is_unchanged(older):
                older.client = None
            raise
        return followed

    def _is_unchanged(self, older: Followed) -> bool:
        """Compares all memory, on every rank. A rank without memory to attach, say, thus costs no
        reload of the directory, which some engines have to refuse."""

        def client() -> EngineClient:
            if older.client is None:
                raise Refused("nothing was followed")
            older.client.discard()
            return older.client

        older.prepared = older.before = None
        try:
            refuse_drift(client, self._engine.group)
        except Refused:
            return False
        return True

    def _bind(self, followed: Followed, model: Any, older: str, directory: str, check_every: int,
              second_instance: bool, options: dict[str, Any]) -> None:
        """`older`: the version that the memory had for an older attach."""
        found: list[tuple[EngineClient, Attached]] = []

        def attach() -> Identity:
            self._engine.refuse_what_cannot_follow(model)
            client = EngineClient(directory, options["threads"])
            attached = client.attach(
                model.module, model.load, plans=self._engine.plans(model, options["plans"]),
                loader_tensors=options["loader_tensors"], is_served=model.is_served,
                second=self._engine.second(model) if second_instance else None,
                beside=model.beside)
            if not attached:
                raise Refused(f"this model cannot be updated in place: {attached.reason}",
                              None if self._many > 1 else attached.held)
            logger.info("deltawire: attached to %s: %s", client.held, attached.described())
            found.append((client, attached))
            return client.held

        before = proven(model.module) if model is not None else None
        try:
            self._together(attach, lambda: found[0][1].held if found and self._many == 1 else None)
        except Refused:
            if model is not None:
                set_proven(model.module, before)  # not all ranks have attached
            raise
        client, attached = found[0]
        if model.is_served:
            self._half_loaded = False  # every byte was compared
        followed.client, followed.model = client, model.module
        followed.rounds, followed.looks = Rounds(check_every), Rounds(check_every or CHECK_EVERY)
        parts: Held = {}
        for rank in everywhere(attached.held, self._engine.group):
            for name, (elements, every) in rank.items():
                parts[name] = parts.get(name, (0, 0))[0] + elements, every
        taken = {name for names in everywhere(attached.by_loader, self._engine.group)
                 for name in names}
        self._done.parts, self._done.tensors = parts, client.tensors
        self._done.taken = sorted(taken | {n for n, (elements, _) in parts.items() if elements})
        self._done.untaken = [n for n in client.tensors if n not in set(self._done.taken)]

        def undo() -> None:
            followed.client = None
            set_proven(model.module, before)

        if str(client.held) != older:  # else the others find this replica as it was
            self._undo = undo

    def _move(self, version: int | None, directory: str) -> None:
        """Follows another receiver's directory from now on, if that has the version of the memory.
        A receiver that has ended, or lost its directory, commits nothing more in the followed one.
        """
        followed, client = self._followed, self._followed.client
        moved = (client is not None and client.held and client.held.version == version
                 and not (followed.directory == directory and client.is_current()))
        if not all(everywhere(bool(moved), self._engine.group)):
            return
        try:
            self._attach(directory, **followed.options)
        except Refused as refused:
            logger.info("deltawire: %s is not followed yet: %s", directory, refused)
        self._done = Done(nonce=self._done.nonce)  # what an attach has found is none of this call's

    def _prepare(self, version: int | None = None, directory: str = "") -> None:
        """Prepares and checks the update to the committed version; discards an earlier one.
        `directory`: of the receiver that asks."""
        if directory and self._followed is self._served:
            self._move(version, directory)
        followed = self._followed
        followed.prepared = followed.before = None
        self._done.shares = followed.rounds.look(self._require, self._engine.group)

        def prepare() -> Identity:
            outcome = self._require().prepare()
            if not outcome:
                raise Refused(outcome.reason)
            if version not in (None, outcome.update.to.version):
                raise Refused(f"version {version} was asked for, and {outcome.update.to} is "
                              "committed")
            return outcome.update.to

        # If the receiver commits between two ranks' steps, they have prepared different versions,
        # and none of them may write.
        followed.prepared = self._together(prepare)

        def undo() -> None:
            followed.prepared = None
            followed.client.discard()

        self._undo = undo

    def _apply(self, version: int | None = None, check: bool = False) -> None:
        """Writes the prepared update. `check`: compares all memory after it, and undoes the update
        on a difference."""
        followed = self._followed

        def target() -> Identity:
            self._require()
            if followed.prepared is None:
                raise Refused("no update is prepared; prepare comes first")
            if version not in (None, followed.prepared.version):
                raise Refused(f"version {version} was asked for, and {followed.prepared} is "
                              "prepared")
            return followed.prepared

        to = self._together(target)
        client = self._require()
        held = client.held
        followed.prepared = followed.before = None
        followed.drifted = False
        try:
            self._together(lambda: self._write(client.apply))
            if check:
                self._done.shares = refuse_drift(self._require, self._engine.group)
        except Refused as refused:
            self._take_back(refused, client.held == to != held)
            raise
        followed.before = held
        self._undo = lambda: self._take_back(Refused("another replica has refused it"), to != held)

    def _rollback(self, version: int | None = None) -> None:
        """Undoes the last apply. If a rank cannot, the others stay as they were before the call."""
        followed = self._followed

        def target() -> Identity:
            self._require()
            if followed.before is None:
                raise Refused("no update was applied that could be undone")
            if version not in (None, followed.before.version):
                raise Refused(f"version {version} was asked for, and {followed.before} is before")
            return followed.before

        self._together(target)
        client = self._require()
        followed.prepared = followed.before = None
        self._together(lambda: self._write(client.rollback))

    def _write(self, step: Callable[[], Any]) -> Identity:
        """Writes this rank's share. Raises Refused."""
        done = step()
        if not done:
            raise Refused(done.reason)
        self._engine.compute_anew(self._followed.model)
        return self._require().held

    def _take_back(self, refused: Refused, has_written: bool) -> None:
        """Undoes this rank's share of an update that `refused` has ended. If that fails, half of an
        update stays, and no call is accepted until an attach has proven the memory anew."""
        why = None
        if has_written:
            try:
                self._write(self._require().rollback)
            except Exception as error:  # pylint: disable=broad-except  # vLLM's own functions, too
                why = str(error) or repr(error)
                self._followed.client = None
        failed = [f"rank {i} could not take its share back: {text}"
                  for i, text in enumerate(everywhere(why, self._engine.group)) if text is not None]
        if failed:
            raise Refused(f"{refused}; and {'; '.join(failed)}: half of an update stays; have the "
                          "directory read, and attach again") from None

    def _discard(self) -> None:
        """Discards the prepared update; an applied one stays."""
        followed = self._followed
        followed.prepared = None
        if followed.client is not None:
            followed.client.discard()

    def _check(self) -> None:
        """Compares all memory with the digests of its version."""
        self._done.shares = refuse_drift(self._require, self._engine.group)

    def _prove(self, version: int, epoch: int, lineage: str, root: str, part: str = "all") -> None:
        """Compares the memory with the digests of this version, given by its identity. `part`:
        "all", or "next" for another part each time."""

        def held() -> Identity:
            now = self._require().held
            if not now or named(now) != {"version": version, "epoch": epoch, "lineage": lineage,
                                         "root": root}:
                raise Refused(f"the memory is {now or 'no version'}, and not version {version} of "
                              f"root {root}")
            if part not in ("all", "next"):
                raise Refused(f"part {part!r} is neither all nor next")
            return now

        self._together(held)
        followed = self._followed
        try:
            # A proof that is repeated, because its answer did not arrive, must find the same.
            if part == "all" or followed.drifted:
                self._done.shares = refuse_drift(self._require, self._engine.group)
            else:
                self._done.shares = followed.looks.look(self._require, self._engine.group)
        except Drifted:
            followed.drifted = True
            followed.rounds.found()
            raise

    def _reload(self, directory: str) -> None:
        """Runs the engine's own load of the whole directory. Nothing is followed afterwards."""
        for why in everywhere(self._engine.why_no_reload(), self._engine.group):
            if why:
                raise Corrupts(why)
        if self._half_loaded:
            raise Refused(f"{ANEW}: an earlier reload of vLLM's own has raised, and its next one "
                          "would say that it is done")
        self._served = self._followed = Followed()
        self._half_loaded = True  # on all ranks, whichever of them raises
        self._together(lambda: self._engine.reload(directory))
        self._half_loaded = False

    def _detach(self) -> None:
        self._served, self._draft = Followed(), Followed()
        self._followed = self._served

    def _settle(self, of: str, replicas: int) -> None:
        """Returns the joint result of all replicas on their call `of`. Undoes a step that only this
        one has done."""
        client = self._followed.client
        group = self._engine.group
        if self._engine.alone:  # its own result was complete
            if self._done.nonce == of and self._done.ok:
                return
            raise Refused(self._done.reason or "there was no such call")
        # One rank reads, because all ranks must get the same.
        read = everywhere(self._replicas.read(of, replicas) if self._engine.rank == 0 else None,
                          group)[0]
        reasons = list(read.reasons)
        if not reasons:
            try:
                refuse_parts([done.parts for done in read.done])
            except Refused as refused:
                reasons.append(str(refused))
        drifted = any(done.drifted for done in read.done)
        if not reasons and client is not None:
            shares = [share for done in read.done for share in done.shares]
            if parts := client.judge(shares):
                drifted = self._followed.drifted = True
                self._followed.rounds.found()
                reasons.append(Drifted.words(parts + ", which several replicas have parts of"))
        if not reasons:
            taken = {name for done in read.done for name in done.taken}
            self._done.untaken = [n for n in self._done.tensors if n not in taken]
            return
        if self._done.nonce == of and self._done.ok:
            undo, self._undo = self._undo, lambda: None
            undo()
        # Nothing was touched only if every replica says so: another one may have reloaded.
        corrupts = len(read.done) == replicas and all(done.corrupts for done in read.done)
        raise (Drifted if drifted else Corrupts if corrupts else Refused)("; ".join(reasons))


def named(identity: Identity | None) -> dict[str, Any] | None:
    """Returns an identity as JSON."""
    if not identity:
        return None
    return {"version": identity.version, "epoch": identity.epoch, "lineage": identity.lineage,
            "root": f"{identity.root:016x}"}
