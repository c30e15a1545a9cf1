"""The path of tensors on a GPU into the sender's memory, logged once."""

from __future__ import annotations

import functools
import logging

from deltawire import _core

logger = logging.getLogger(__name__)


@functools.cache
def why_no_gpu() -> str:
    """Returns why the library's own CUDA code cannot write tensors on a GPU; empty if it can."""
    return _core.why_no_gpu()


def has_cuda() -> bool:
    return not why_no_gpu()


@functools.cache
def say_way() -> None:
    """Logs the path. Called for each tensor on a CUDA device."""
    if has_cuda():
        logger.info("tensors on a GPU are written by that GPU into the sender's memory")
    else:
        logger.warning(
            "tensors on a GPU are copied by torch, since deltawire's own CUDA code cannot run: %s",
            why_no_gpu(),
        )
