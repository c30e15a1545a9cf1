"""Makes all ranks of an engine take a step, or none of them.

Every rank makes the call, from its own thread. It costs one gather of some text over the group's
CPU backend, and at an attach also of a number for each tensor. Refusals are raised on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deltawire import Error
from deltawire.engine._outcome import ANEW, DRIFTED, some

if TYPE_CHECKING:
    from deltawire.engine._client import EngineClient, Share

logger = logging.getLogger(__name__)


#: A rank's tensors: `Attached.held`.
Held = dict[str, tuple[int, int]]


class Refused(Exception):
    """The call cannot be carried out, and the engine's memory is unchanged. `held`: of the model
    whose attach failed, if known."""

    def __init__(self, reason: str, held: Held | None = None):
        super().__init__(reason)
        self.held = held


#: The number of versions after which all memory was compared with its digests.
CHECK_EVERY = 64


def everywhere(value: Any, group: Any) -> list:
    """Returns the value of each rank of `group`, by rank. A list of groups, the innermost first, is
    the group of all their ranks, such as those of a stage and the stages."""
    import torch  # pylint: disable=import-outside-toplevel  # for servers' HTTP processes too

    ranks = [value]
    for part in group if isinstance(group, list) else [group]:
        if part.world_size > 1:
            found: list[Any] = [None] * part.world_size
            torch.distributed.all_gather_object(found, ranks, group=part.cpu_group)
            ranks = [one for several in found for one in several]
    return ranks


def _refuse(reasons: list[str | None]) -> None:
    """Raises the ranks' reasons, if there are any."""
    alike = len(set(reasons)) == 1
    said = [text if alike else f"rank {i}: {text}"
            for i, text in enumerate(reasons) if text is not None][: 1 if alike else None]
    if said:
        raise Refused("; ".join(said))


def together(step: Callable[[], Any], group: Any,
             held: Callable[[], Held | None] = lambda: None) -> Any:
    """Runs `step` on every rank of `group` (of `everywhere`: vLLM's or SGLang's GroupCoordinators);
    raises on all of them what it raised on one. `step` returns a value that must be the same on all
    ranks. `held` is called after it, and returns the tensors of the rank's new attach, or None."""
    reason = result = parts = None
    try:
        result = step()
    except Exception as error:  # pylint: disable=broad-except
        # A rank that leaves the others waiting for the gather below hangs the whole server.
        reason = str(error) or repr(error)
        if isinstance(error, Refused):
            parts = error.held or None
        elif not isinstance(error, Error):
            logger.exception("deltawire: unexpected")
    ranks = everywhere((reason, str(result), parts or held()), group)
    attached = [held for *_, held in ranks if held is not None]
    if len(attached) == len(ranks):
        # Check this first: it explains differing bytes, too, and a reload is no remedy for it.
        refuse_parts(attached)
    _refuse([text for text, *_ in ranks])
    if len({text for _, text, _ in ranks}) > 1:
        raise Refused("the ranks see different versions: " + ", ".join(t for _, t, _ in ranks))
    return result


class Rounds:
    """Looks at another part of a model's memory each time, so that `every` looks cover all of it;
    with `every` 0 it never looks. One rank's object; every rank makes the same calls."""

    def __init__(self, every: int):
        self.every = every
        self._next = 0
        self._found = False

    def found(self) -> None:
        """Skips the next look, because drift was found in another way."""
        self._found = True

    def look(self, client: Callable[[], EngineClient], group: Any, skip: bool = False
             ) -> list[Share]:
        """Returns what `refuse_drift` does. Raises Refused if the memory has drifted; the next
        prepare heals it, and the look before that one is skipped. `client` returns the client; its
        exception is a refusal, too. A rank with `skip` does not look, but gets the others'
        findings, because ranks may have begun at different times."""
        of = self.every
        part = self._next % of if of else 0  # the last time there may have been more parts
        if skip or self._found or not of:
            part, of = 0, 0
        else:
            self._next = (part + 1) % of
        self._found = False
        try:
            return refuse_drift(client, group, part, of)
        except Drifted:
            # If memory returns from an engine's sleep with random content, it has drifted
            # everywhere. So compare the other parts at once, and one update heals them all. Every
            # rank knows of the drift, so every rank takes this step.
            self._found = True
            refuse_drift(client, group)
            raise


class Drifted(Refused):
    """The memory differs from the written bytes."""

    @staticmethod
    def words(names: str) -> str:
        """Returns the text about it."""
        return DRIFTED + names + HEALS


def refuse_drift(client: Callable[[], EngineClient], group: Any, part: int = 0, of: int = 1
                 ) -> list[Share]:
    """Returns all ranks' shares of the chunks that no rank has all of. Raises Drifted, on all ranks
    of `group`, if one of `of` parts of the memory (0: none) is wrong on one of them. Chunks that
    several ranks have parts of are judged by their sum, while all ranks hold one version."""
    reason, held, drifted, shares = None, "", "", []
    try:
        found_client = client()
        held = str(found_client.held)
        if of:
            drifted, shares = found_client.look(part, of)
    except Exception as error:  # pylint: disable=broad-except  # the others wait for this rank
        reason = str(error) or repr(error)
        if not isinstance(error, (Refused, Error)):
            logger.exception("deltawire: unexpected")
    ranks = everywhere((reason, held, drifted, shares), group)
    _refuse([text for text, *_ in ranks])
    found = [f"rank {i}: {DRIFTED}{names}" if len(ranks) > 1 else DRIFTED + names
             for i, (_, _, names, _) in enumerate(ranks) if names]
    every = [share for *_, of_rank in ranks for share in of_rank]
    parts = found_client.judge(every) if all(rank[1] == held for rank in ranks) else ""
    if parts:
        found.append(f"{DRIFTED}{parts}, which several ranks have parts of")
    if found:
        raise Drifted("; ".join(found) + HEALS)
    return every


#: The remedy for drift, at the end of a reason.
HEALS = "; the next update takes what has drifted from the receiver's buffer"


def refuse_parts(ranks: list[Held]) -> None:
    """Refuses a checkpoint with other shapes, of which some engines silently load what fits."""
    sums: dict[str, int] = {}
    for held in ranks:
        for name, (elements, _) in held.items():
            sums[name] = sums.get(name, 0) + elements
    parts = [name for held in ranks for name, (_, every) in held.items() if sums[name] < every]
    if parts:
        raise Refused("this model cannot be updated in place: it holds only a part of "
                      f"{some(dict.fromkeys(parts))}, so the checkpoint is of another shape; {ANEW}")
