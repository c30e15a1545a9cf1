"""Has all ranks of an engine take a step, or none of them.

Owner: the plug-ins for vLLM and SGLang. Threads: the rank's own; every rank makes the call. Cost:
one gather of some text over the group's CPU backend. Errors: `Refused`, on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from deltawire import Error

logger = logging.getLogger(__name__)


class Refused(Exception):
    """What was asked for cannot be carried out; the engine's memory is what it was."""


def together(step: Callable[[], Any], group: Any) -> Any:
    """Runs `step` on every rank of `group` (a GroupCoordinator of vLLM's or SGLang's); raises on
    all of them what it raised on one. `step` returns what must be the same on all ranks."""
    import torch  # pylint: disable=import-outside-toplevel  # for servers' HTTP processes too

    reason = result = None
    try:
        result = step()
    except Exception as error:  # pylint: disable=broad-except
        # A rank that leaves the others waiting for the gather below hangs the whole server.
        reason = str(error) or repr(error)
        if not isinstance(error, (Refused, Error)):
            logger.exception("deltawire: unexpected")
    ranks = [(reason, str(result))]
    if group.world_size > 1:
        ranks = [None] * group.world_size
        torch.distributed.all_gather_object(ranks, (reason, str(result)), group=group.cpu_group)
    reasons = [f"rank {i}: {text}" if len(ranks) > 1 else text
               for i, (text, _) in enumerate(ranks) if text is not None]
    if reasons:
        raise Refused("; ".join(reasons))
    if len({text for _, text in ranks}) > 1:
        raise Refused("the ranks see different versions: " + ", ".join(t for _, t in ranks))
    return result
