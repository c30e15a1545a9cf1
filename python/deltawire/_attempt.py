"""What ties the parts of one offload together, over ranks and senders."""

from __future__ import annotations

import sys

from deltawire import _core
from deltawire._errors import Error


def draw_attempt() -> int:
    """A random number, never 0. One rank draws it and hands it to the others."""
    return _core.draw_attempt()


def agree_attempt() -> int:
    """Draws an attempt on the job's first rank; torch.distributed hands it to all. Every rank calls."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise Error(
            "several senders publish parts of one version, and there is no torch.distributed to "
            "agree over: give `attempt`, the same number on every rank (deltawire.draw_attempt())"
        )
    drawn = [draw_attempt() if distributed.get_rank() == 0 else 0]
    distributed.broadcast_object_list(drawn, src=0)
    return drawn[0]
