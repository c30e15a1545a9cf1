"""Hands a rank's tensors on GPUs over in batches, each of which its GPU diffs at once.

A GPU keeps a copy of what it has handed over, and then hands over changes alone. Not thread-safe.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deltawire import _core
from deltawire._errors import Error
from deltawire._fsdp import Place
from deltawire._pinning import PinnedHalves
from deltawire._tensors import TensorMeta, dtype_name, torch_dtype
from deltawire._writing import copy_settled, settled, warn_once

logger = logging.getLogger(__name__)

_SIZE = re.compile(r"\d[\d.]* [kMGT]?B")

#: A batch holds its tensors, and those that were cast for it.
_BATCH_BYTES = 128 << 20


@dataclass(frozen=True)
class _Part:
    index: int
    meta: TensorMeta
    local: Any
    place: Place


class GpuDiffs:
    """The tensors of one offload. `lasting`: tensors stay as they are until `flush`; else each is
    handed over before `add` returns."""

    def __init__(self, offload: _core.Offload, halves: PinnedHalves | None, lasting: bool):
        self._offload, self._halves, self._lasting = offload, halves, lasting
        self._parts: list[_Part] = []
        self._bytes = 0
        self._way = (0, 0)  # device and share

    def add(self, index: int, meta: TensorMeta, parts: Sequence[tuple[Any, Place]],
            share: int) -> int:
        """Takes one tensor's parts on a GPU. Returns the bytes that were handed over by now."""
        way, done = (parts[0][0].device.index, share), 0
        if self._parts and way != self._way:
            done = self.flush()
        self._way = way
        for local, place in parts:
            if dtype_name(local.dtype, meta.name) != meta.dtype:
                local = local.detach().to(torch_dtype(meta.dtype))
            self._parts.append(_Part(index, meta, local, place))
            self._bytes += local.numel() * local.element_size()
        if not self._lasting or self._bytes >= _BATCH_BYTES:
            done += self.flush()
        return done

    def flush(self) -> int:
        """Hands over what is left, and returns its bytes."""
        parts, size = self._parts, self._bytes
        self._parts, self._bytes = [], 0
        if not parts:
            return 0
        settled(parts[-1].local)  # casts were queued
        device, share = self._way
        blocks = []
        for p in parts:
            width = p.local.element_size()
            start = list(p.place.start) if len(p.place.start) == p.local.dim() else None
            blocks.append((p.index, p.local.data_ptr(), width, list(p.local.shape),
                           [s * width for s in p.local.stride()], start))
        try:
            self._offload.diff(blocks, share, device)
            return size
        except Error as error:
            self._offload.check()  # raises if the offload is over
            warn_once(str(error))
        return sum(copy_settled(self._offload, p.index, p.meta, p.local, p.place, share,
                                self._halves) for p in parts)


class DiffLog:
    """Logs where the versions of one rank of `model` are diffed, when that or its reason changes."""

    def __init__(self, model: str, rank: int):
        self._model, self._rank = model, rank
        self._said = ""

    def say(self, diffed_on: str) -> None:
        """`diffed_on`: of an offload, with sizes, which vary; "": on no GPU of this rank."""
        way = _SIZE.sub("", diffed_on)
        if way == self._said:
            return
        self._said = way
        logger.info("%s, rank %d: versions are diffed on %s", self._model, self._rank,
                    diffed_on or "the sender's side")
