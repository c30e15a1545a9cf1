"""Which way tensors on a GPU take into the sender's memory, said once."""

from __future__ import annotations

import functools
import logging

from deltawire import _core

logger = logging.getLogger(__name__)


@functools.cache
def why_no_gpu() -> str:
    """Why the library's own CUDA code cannot write tensors on a GPU; empty: it can."""
    return _core.why_no_gpu()


def has_cuda() -> bool:
    return not why_no_gpu()


@functools.cache
def say_way() -> None:
    """Called when a tensor on a CUDA device comes."""
    if has_cuda():
        logger.info("tensors on a GPU are written by that GPU into the sender's memory")
    else:
        logger.warning(
            "tensors on a GPU are copied by torch, since deltawire's own CUDA code cannot run: %s",
            why_no_gpu(),
        )
