"""Has all ranks of an engine take a step, or none of them.

Owner: the plug-ins for vLLM and SGLang. Threads: the rank's own; every rank makes the call. Cost:
one gather of some text over the group's CPU backend; at an attach, also of a number for each
tensor. Errors: `Refused`, on all ranks.
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


#: What a rank holds: `Attached.held`.
Held = dict[str, tuple[int, int]]


class Refused(Exception):
    """What was asked for cannot be carried out; the engine's memory is what it was. `held`: of the
    model whose attach it is about, where that is known."""

    def __init__(self, reason: str, held: Held | None = None):
        super().__init__(reason)
        self.held = held


#: After so many versions all memory was compared with its digests.
CHECK_EVERY = 64


def everywhere(value: Any, group: Any) -> list:
    """What each rank of `group` gives here, by rank. A list of groups, the innermost first, stands
    for the group of all their ranks, as those of a stage and the stages."""
    import torch  # pylint: disable=import-outside-toplevel  # for servers' HTTP processes too

    ranks = [value]
    for part in group if isinstance(group, list) else [group]:
        if part.world_size > 1:
            found: list[Any] = [None] * part.world_size
            torch.distributed.all_gather_object(found, ranks, group=part.cpu_group)
            ranks = [one for several in found for one in several]
    return ranks


def _refuse(reasons: list[str | None]) -> None:
    """Raises what the ranks said, if one said something."""
    alike = len(set(reasons)) == 1
    said = [text if alike else f"rank {i}: {text}"
            for i, text in enumerate(reasons) if text is not None][: 1 if alike else None]
    if said:
        raise Refused("; ".join(said))


def together(step: Callable[[], Any], group: Any,
             held: Callable[[], Held | None] = lambda: None) -> Any:
    """Runs `step` on every rank of `group` (of `everywhere`: vLLM's or SGLang's GroupCoordinators);
    raises on all of them what it raised on one. `step` returns what must be the same on all ranks. `held`:
    asked after it; what the rank has just attached to, or None."""
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
        # First: that the bytes are others as well is no wonder then, and a reload no remedy.
        refuse_parts(attached)
    _refuse([text for text, *_ in ranks])
    if len({text for _, text, _ in ranks}) > 1:
        raise Refused("the ranks see different versions: " + ", ".join(t for _, t, _ in ranks))
    return result


class Rounds:
    """Looks at another part of a model's memory each time, so that after `every` times all of it
    was looked at. `every` 0: at none. Of one rank; every rank makes the same calls."""

    def __init__(self, every: int):
        self.every = every
        self._next = 0
        self._found = False

    def found(self) -> None:
        """Drift was found in another way: the next look is left out."""
        self._found = True

    def look(self, client: Callable[[], EngineClient], group: Any, skip: bool = False
             ) -> list[Share]:
        """Returns what `refuse_drift` does. Raises Refused where the memory has drifted; it is the next prepare that heals it, and
        the look before that one is left out. `client`: asked for it; what that raises is a
        refusal, too. A rank with `skip` looks at nothing, but hears what the others have found:
        ranks may have begun at different times."""
        of = self.every
        part = self._next % of if of else 0  # there may have been more parts the last time
        if skip or self._found or not of:
            part, of = 0, 0
        else:
            self._next = (part + 1) % of
        self._found = False
        try:
            return refuse_drift(client, group, part, of)
        except Drifted:
            # Memory that has come back from an engine's sleep with anything in it has drifted
            # everywhere: the other parts are compared at once, so that one update heals them all.
            # Every rank has heard of it, so every rank takes this step.
            self._found = True
            refuse_drift(client, group)
            raise


class Drifted(Refused):
    """Memory is no longer what was written to it."""

    @staticmethod
    def words(names: str) -> str:
        """What is said of it."""
        return DRIFTED + names + HEALS


def refuse_drift(client: Callable[[], EngineClient], group: Any, part: int = 0, of: int = 1
                 ) -> list[Share]:
    """Returns all ranks' shares of the chunks that no rank has all of. Raises Drifted, on all ranks of `group`, where one of `of` parts of the memory (0: none) is
    not what it should be on one of them. Chunks that several ranks have parts of are judged by
    their sum, while all ranks hold one version."""
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


#: What becomes of drift that was found.
HEALS = "; the next update takes what has drifted from the receiver's buffer"


def refuse_parts(ranks: list[Held]) -> None:
    """Of a checkpoint with other shapes some engines load what fits, and say nothing."""
    sums: dict[str, int] = {}
    for held in ranks:
        for name, (elements, _) in held.items():
            sums[name] = sums.get(name, 0) + elements
    parts = [name for held in ranks for name, (_, every) in held.items() if sums[name] < every]
    if parts:
        raise Refused("this model cannot be updated in place: it holds only a part of "
                      f"{some(dict.fromkeys(parts))}, so the checkpoint is of another shape; {ANEW}")
