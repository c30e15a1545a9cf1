"""Supplies what a trainer's stream leaves out of a registered model, or says why it must not.

TRL sends trainable parameters alone, each by one name. What else the checkpoint has is known to be
as it was only where the trainer's module says so; anything that is missing for another reason would
be silently stale in the engine, and is refused. Not thread-safe.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

from deltawire._checkpoint import says_tied
from deltawire._errors import Error, MissingTensorError
from deltawire._fsdp import place_of
from deltawire._names import Names, side_parts
from deltawire._tensors import TensorMeta, is_dtensor
from deltawire.integrations import _checkpoint
from deltawire.integrations._trained import Live, Trained

logger = logging.getLogger(__name__)

_ABSENT = "absent"
_NAMED = 3  # how many tensors a message names


class LeftOut:
    """Of one model, over all its versions: `begin`, `completed`, and `published` or `given_up`."""

    def __init__(self, metas: Iterable[TensorMeta], names: Names,
                 hf_dir: str | os.PathLike[str] | None):
        self._metas = {m.name: m for m in metas}
        self._names, self._hf_dir = names, hf_dir
        self._trained: Trained | None = None
        self._carried: frozenset[str] = frozenset()
        self._settled: dict[str, Any] = {}  # name -> its state when this process published it
        self._supplied: dict[str, Any] = {}  # the same, of the version that is written
        self._declared: dict[str, str] | None = None
        self._told = False
        self._aside: frozenset[str] = frozenset()  # of parts that the trainer does not have
        self._said: dict[str, list[str]] = {}

    @property
    def carries(self) -> bool:
        """Whether something may be carried over."""
        return bool(self._settled)

    def begin(self, module: Any) -> frozenset[str]:
        """Returns the names that the sender carries over: `module` has them frozen, or not at all,
        as it did when this process last published a version. `module`: the trainer's; None: not
        known."""
        self._supplied, self._said = {}, {}
        self._trained = None
        if module is not None and self._metas:
            self._trained = Trained(module, self._names, self._metas)
        self._carried = frozenset(
            n for n, state in self._settled.items() if self._state(n) == state is not None)
        return self._carried

    def published(self) -> None:
        self._settled = {**{n: self._settled[n] for n in self._carried}, **self._supplied}
        if self._said and not self._told:
            self._told = True
            logger.info("what the trainer does not send: %s", "; ".join(
                f"{reason} ({_some(names)})" for reason, names in self._said.items()))

    def given_up(self) -> None:
        """Nobody knows what the sender has: the next version is written as the first one was."""
        self._settled = {}

    def completed(self, stream: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """`stream`, and after it what is missing; raises MissingTensorError with the reason."""
        ties = self._ties()
        sources = set(ties.values())
        given: set[str] = set()
        copies: dict[str, Any] = {}
        for name, tensor in stream:
            if name in self._carried:
                raise Error(f'tensor "{name}" is frozen, so the version before was to be carried '
                            "over, and the trainer sends it: publish again")
            given.add(name)
            if name in sources:
                copies[name] = tensor.detach().to("cpu", copy=True)
            yield name, tensor
        missing = [n for n in self._metas if n not in given and n not in self._carried]
        if self._trained is None and self._hf_dir is not None:
            aside = side_parts(missing, given, self._hf_dir)
            self._aside = frozenset(n for part in aside.values() for n in part) | self._carried
        ready: dict[str, Any] = {}
        for name in missing:
            if ties.get(name) in copies:
                self._say("tied to what it sends, and copied in each version", name)
                yield name, copies[ties[name]]
                continue
            if name not in ready:
                ready.update(self._supply(name, missing))
            self._supplied[name] = self._state(name)
            yield name, ready.pop(name)

    def _supply(self, name: str, missing: list[str]) -> dict[str, Any]:
        trained = self._trained
        live = trained.live.get(name) if trained else None
        if trained is None and name in self._aside:
            self._say("of parts that the trainer does not have, and left as the checkpoint has "
                      "them", name)
            return {name: self._of_checkpoint(name)}
        if trained is None:
            raise _missing(name, missing, "and nothing says that the trainer has them frozen or "
                           "tied; where the integration takes `module`, give it the trainer's "
                           "model")
        if live is None and trained.whole:
            self._say("not in its model, and left as the checkpoint has it", name)
            return {name: self._of_checkpoint(name)}
        if live is None:
            raise _missing(name, missing, "and the trainer's model has none of that name, but "
                           "others that the checkpoint does not have: their names do not fit")
        if live.trains:
            raise _missing(name, missing, "though the trainer's model has them trainable")
        if live.is_buffer:
            self._say("buffers, sent from its model in each version", name)
            return {name: live.tensor}
        self._say("frozen, and carried over after the first version", name)
        if not is_dtensor(live.tensor):
            parts = dict(self._names.parts(live.name, live.tensor.detach()))
            if name not in parts:
                raise _missing(name, missing, "and frozen, and the checkpoint has it joined with "
                               "others; have the trainer send it")
            return parts
        return {name: self._of_shard(name, live, missing)}

    def _of_shard(self, name: str, live: Live, missing: list[str]) -> Any:
        """The checkpoint's tensor, compared with this rank's shard: no other rank would join in a
        gather of it."""
        whole = self._of_checkpoint(name)
        if live.parts != (name,) or tuple(live.tensor.shape) != tuple(whole.shape):
            raise _missing(name, missing, "and frozen in another form than the checkpoint's, cut "
                           "over ranks, so nobody can compare them")
        place = place_of(name, live.tensor)
        block = whole[tuple(slice(a, a + n) for a, n in zip(place.start, place.shape))]
        local = live.tensor.detach().to_local().cpu()
        if not _equal(block.to(local.dtype), local):
            raise _missing(name, missing, f"and frozen with other values than {self._hf_dir} has; "
                           "give hf_dir the checkpoint that the run starts from")
        return whole

    def _of_checkpoint(self, name: str) -> Any:
        if self._hf_dir is None:
            raise Error(f'tensor "{name}" does not come, and there is no hf_dir to take it from')
        return _checkpoint.tensor(self._hf_dir, name)

    def _state(self, name: str) -> Any:
        if self._trained is None:
            return _ABSENT if name in self._aside else None
        live = self._trained.live.get(name)
        if live is None:
            return _ABSENT if self._trained.whole else None
        return live.state

    def _ties(self) -> dict[str, str]:
        """Of registered tensors alone: name -> the name that the stream has."""
        if self._trained is not None:
            return {n: of for n, of in self._trained.ties.items()
                    if n in self._metas and of in self._metas and n != of}
        if self._declared is None:
            self._declared = self._by_config()
        return self._declared

    def _by_config(self) -> dict[str, str]:
        """Where config.json says that head and embedding are tied, and the checkpoint has both,
        with equal bytes."""
        heads = [m for m in self._metas.values() if m.name.endswith("lm_head.weight")]
        if not heads or self._hf_dir is None or not says_tied(self._hf_dir):
            return {}
        found = {}
        for head in heads:
            for m in self._metas.values():
                if (m.name.endswith("embed_tokens.weight")
                        and (m.shape, m.dtype) == (head.shape, head.dtype)
                        and _equal(self._of_checkpoint(m.name), self._of_checkpoint(head.name))):
                    found[head.name] = m.name
        return found

    def _say(self, reason: str, name: str) -> None:
        self._said.setdefault(reason, []).append(name)


def _equal(one: Any, other: Any) -> bool:
    """Bitwise; one dtype and shape."""
    import torch  # pylint: disable=import-outside-toplevel

    return torch.equal(one.contiguous().view(-1).view(torch.uint8),
                       other.contiguous().view(-1).view(torch.uint8))


def _missing(name: str, missing: list[str], reason: str) -> MissingTensorError:
    others = [name] + [n for n in missing if n != name]
    return MissingTensorError(
        f"{len(missing)} registered tensors were not given: {_some(others)}, {reason}", name)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(f'"{n}"' for n in names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
