"""The numbers that tie the parts of one offload together, over ranks and senders."""

from __future__ import annotations

import operator
import os
import re
import sys
from typing import Any

from deltawire import _core
from deltawire._errors import Error

_KEY = "deltawire/job"
_VERSIONS_END = 1 << 63
_NETWORK_ADDRESS = re.compile(r"[^/]*:\d+")


def checked_version(version: Any, least: int = 1) -> int:
    """Returns the version as an int. Raises Error, INVALID_ARGUMENT, if it is not one."""
    try:
        number = -1 if isinstance(version, bool) else operator.index(version)
    except TypeError:
        number = -1
    if not least <= number < _VERSIONS_END:
        error = Error(f"{version!r} is no version: give an integer from {least} to 2^63 - 1, such as "
                      "the number of steps done")
        error.code = "INVALID_ARGUMENT"
        raise error
    return number


def checked_endpoint(endpoint: str | os.PathLike[str]) -> str:
    """Returns the endpoint as text. Error, INVALID_ARGUMENT: no sender can ever listen there."""
    text, found = os.fspath(endpoint), ""
    if os.path.isfile(text):
        found = "is a file"
    elif _NETWORK_ADDRESS.fullmatch(text) and not os.path.exists(text):
        found = "is a network address, and a trainer writes into the sender on its own machine"
    if found:
        error = Error(f"the endpoint {text} {found}; give the data directory of deltawire-sender "
                      "(/dev/shm/deltawire, or its --data-dir), or the trainer.sock in it")
        error.code = "INVALID_ARGUMENT"
        raise error
    return text


def draw_attempt() -> int:
    """Returns a random number, never 0. One rank draws it and hands it to the others."""
    return _core.draw_attempt()


def agree_attempt() -> int:
    """Draws an attempt on the job's first rank and sends it to all. Every rank calls."""
    group = distributed()
    if group is None:
        raise Error(
            "several senders publish parts of one version, and there is no torch.distributed to "
            "agree over: give `attempt`, the same number on every rank (deltawire.draw_attempt())"
        )
    drawn = [draw_attempt() if group.get_rank() == 0 else 0]
    group.broadcast_object_list(drawn, src=0)
    return drawn[0]


def job_of_store() -> str:
    """Returns a name that the processes of this start of a torch.distributed job share, or "".

    The ranks agree on it through the job's key-value store, which is new at each start (torchrun
    puts the restarts into its keys). That is not a collective: ranks call in any order, when they
    need it.
    """
    group = distributed()
    if group is None:
        return ""
    store = group.distributed_c10d._get_default_store()
    if store is None:  # MPI has no store
        return ""
    # The first rank sets it; the others read it.
    return store.compare_set(_KEY, "", f"{draw_attempt():016x}").decode()


def distributed() -> Any:
    """Returns torch.distributed if the program uses it, else None."""
    torch = sys.modules.get("torch")
    group = getattr(torch, "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return group
