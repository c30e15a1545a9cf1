"""Writes a stream of named tensors, one version of a model, into the sender's memory.

It reads the stream once, and keeps one tensor of it at a time, or two with an overlap. Not
thread-safe. TensorError names the tensor; the caller that has begun the offload abandons it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from deltawire import _core
from deltawire._casts import CastLog
from deltawire._errors import ExtraTensorError
from deltawire._fsdp import Place
from deltawire._gpu_diff import GpuDiffs
from deltawire._layout import Layout
from deltawire._overlap import Overlap
from deltawire._pinning import PinnedHalves
from deltawire._ties import Ties
from deltawire._writing import check, copy_settled, has_cuda, on_our_cuda, settled


class StreamWriter:
    """The writer of one rank of `model`, over all its versions. `place`, of a registered tensor:
    the place of its bytes, and its other writers."""

    def __init__(
        self, model: str, rank: int, layout: Layout, halves: PinnedHalves, gpu_base: bool
    ):
        self._layout, self._halves, self._gpu_base = layout, halves, gpu_base
        self._cast_log = CastLog(model, rank)

    def write(
        self,
        offload: _core.Offload | None,
        named: Iterator[tuple[str, Any]],
        keep: set[str],
        place: Callable[[str, Any], tuple[Place, int]],
        partly: bool,
        overlap: Overlap,
        report: Callable[[str, int, int, int], None] = lambda *_: None,
        lasting: bool = True,
    ) -> tuple[int, int]:
        """Returns how many tensors (or parts of them) and how many bytes this rank wrote. `keep`:
        names that the sender carries over. `partly`: other ranks give the rest. `offload`: None if
        `place` gives this rank no tensor to write. `report`: gets each tensor's name, how many were
        given, of how many, and the copied bytes.
        `lasting`: tensors stay as they are until this returns."""
        layout = self._layout
        seen: set[str] = set()
        firsts = frozenset(layout.tied.values())
        ties = Ties(offload, layout.metas, seen, firsts)
        # Ties are compared with tensors in the sender's memory, which must be whole there.
        diff = self._gpu_base and not layout.leaves_ties and not layout.compared
        halves = None if has_cuda() else self._halves
        diffs = GpuDiffs(offload, halves, lasting) if diff and offload is not None else None
        tensors = 0
        self._cast_log.begin()
        for name, tensor in overlap.taken(named):
            if name in keep or layout.skips(name):
                if name in layout.tied and layout.tied[name] not in keep:
                    overlap.wait()
                    ties.check_tied(name, layout.tied[name], tensor, place)
                continue
            if name not in layout.index and (layout.leaves_ties or name in layout.compared):
                overlap.wait()  # the tensor that it may be a copy of must be complete
                if offload is not None:
                    ties.check(name, tensor)
                continue
            index = layout.find(name)
            if name in seen:
                raise ExtraTensorError(f'tensor "{name}" was given twice for one version', name)
            seen.add(name)
            meta = layout.metas[index]
            given = check(meta, tensor, layout.casts)
            where, share = place(name, tensor)
            report(name, len(seen), len(layout.metas) - len(keep), overlap.bytes)
            if not where.writes or offload is None:
                continue
            local = settled(tensor)
            ties.wrote(name, tensor, local)
            if diffs is not None and name not in firsts and on_our_cuda(local):
                overlap.run(name, local, functools.partial(
                    diffs.add, index, meta, list(where.parts(local)), share))
            else:
                for part, there in where.parts(local):
                    overlap.run(name, part, functools.partial(
                        copy_settled, offload, index, meta, part, there, share, halves))
                    del part
            self._cast_log.add(given, meta)
            tensors += 1
            del tensor, local  # only the copy holds it now
        overlap.wait()
        if diffs is not None:
            overlap.bytes += diffs.flush()
        ties.finish()
        self._cast_log.end()
        if not partly:  # otherwise the sender checks over all ranks
            layout.check_complete(seen, keep)
        return tensors, overlap.bytes
