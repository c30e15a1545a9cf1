"""Has all ranks of an engine take a step, or none of them.

Owner: the plug-ins for vLLM and SGLang. Threads: the rank's own; every rank makes the call. Cost:
one gather of some text over the group's CPU backend; at an attach, also of a number for each
tensor. Errors: `Refused`, on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from deltawire import Error
from deltawire.engine._outcome import some

logger = logging.getLogger(__name__)


class Refused(Exception):
    """What was asked for cannot be carried out; the engine's memory is what it was."""


#: What a rank holds: `Attached.held`.
Held = dict[str, tuple[int, int]]


def together(step: Callable[[], Any], group: Any,
             held: Callable[[], Held | None] = lambda: None) -> Any:
    """Runs `step` on every rank of `group` (a GroupCoordinator of vLLM's or SGLang's); raises on
    all of them what it raised on one. `step` returns what must be the same on all ranks. `held`:
    asked after it; what the rank has just attached to, or None."""
    import torch  # pylint: disable=import-outside-toplevel  # for servers' HTTP processes too

    reason = result = None
    try:
        result = step()
    except Exception as error:  # pylint: disable=broad-except
        # A rank that leaves the others waiting for the gather below hangs the whole server.
        reason = str(error) or repr(error)
        if not isinstance(error, (Refused, Error)):
            logger.exception("deltawire: unexpected")
    ranks = [(reason, str(result), held())]
    if group.world_size > 1:
        mine, ranks = ranks[0], [None] * group.world_size
        torch.distributed.all_gather_object(ranks, mine, group=group.cpu_group)
    reasons = [f"rank {i}: {text}" if len(ranks) > 1 else text
               for i, (text, *_) in enumerate(ranks) if text is not None]
    if reasons:
        raise Refused("; ".join(reasons))
    if len({text for _, text, _ in ranks}) > 1:
        raise Refused("the ranks see different versions: " + ", ".join(t for _, t, _ in ranks))
    attached = [held for *_, held in ranks if held is not None]
    if len(attached) == len(ranks):
        _refuse_parts(attached)
    return result


def _refuse_parts(ranks: list[Held]) -> None:
    """Of a checkpoint with other shapes some engines load what fits, and say nothing."""
    sums: dict[str, int] = {}
    for held in ranks:
        for name, (elements, _) in held.items():
            sums[name] = sums.get(name, 0) + elements
    parts = [name for held in ranks for name, (_, every) in held.items() if sums[name] < every]
    if parts:
        raise Refused("this model cannot be updated in place: it holds only a part of "
                      f"{some(dict.fromkeys(parts))}, so the checkpoint is of another shape")
