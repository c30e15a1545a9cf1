"""Strided boxes of elements: built, followed through clones, and found in lists of indices.

A *dimension* is a tuple (count, stride, stride, ...), with one stride for each side. Units are
elements. All functions are pure, and return `None` if boxes cannot express the result.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

#: The dimensions of a kernels::StridedCopy.
MAX_DIMS = 6


class Box(NamedTuple):
    """A copy of `counts` elements, nested; strides and offsets in elements of either side."""

    tensor: int  # index into the checkpoint's tensors
    storage: int  # index into the live storages
    counts: tuple[int, ...]
    src_offset: int
    src_strides: tuple[int, ...]
    dst_offset: int
    dst_strides: tuple[int, ...]


class Region(NamedTuple):
    """Elements of a live storage."""

    storage: int
    offset: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    width: int  # bytes of an element

    def in_bytes(self) -> Region:
        w = self.width
        return Region(self.storage, self.offset * w, (*self.counts, w),
                      (*(s * w for s in self.strides), 1), 1)

    def end(self) -> int:
        """Returns the position after the last element."""
        return self.offset + 1 + sum(
            (n - 1) * s for n, s in zip(self.counts, self.strides))

    def bits(self, memory: torch.UntypedStorage) -> torch.Tensor:
        """Returns the region of `memory`, as integers of its width."""
        bits = torch.empty(0, dtype=INTEGERS[self.width], device=memory.device)
        return bits.set_(memory, self.offset, self.counts, self.strides)


#: Integer types by an element's bytes.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def collapse(counts: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Merges adjacent dimensions that every side steps through alike, and removes those of 1."""
    dims = [(n, *s) for n, *s in zip(counts, *strides) if n != 1]
    merged: list[tuple[int, ...]] = []
    for dim in dims:
        if merged and all(a == b * dim[0] for a, b in zip(merged[-1][1:], dim[1:])):
            merged[-1] = (merged[-1][0] * dim[0], *dim[1:])
        else:
            merged.append(dim)
    if not merged:
        merged = [(1, *(1 for _ in strides))]
    return tuple(tuple(column) for column in zip(*merged))


def region_of(storage: int, view: torch.Tensor) -> Region:
    """Returns the elements of `view`, which is in `storage`. The same elements in the same order
    give the same region."""
    counts, strides = collapse(view.shape, view.stride())
    return Region(storage, view.storage_offset(), counts, strides, view.element_size())


def overlap(a: Region, b: Region) -> bool:
    """Returns whether the regions share an element. If their spans overlap, it needs a byte for
    each element from the first of both to the last."""
    if a.width != b.width:
        a, b = a.in_bytes(), b.in_bytes()
    if a.storage != b.storage or a.offset >= b.end() or b.offset >= a.end():
        return False
    low = min(a.offset, b.offset)
    marks = torch.zeros(max(a.end(), b.end()) - low, dtype=torch.bool)
    marks.as_strided(a.counts, a.strides, a.offset - low).fill_(True)
    return bool(marks.as_strided(b.counts, b.strides, b.offset - low).any())


@dataclasses.dataclass(frozen=True)
class Moved:
    """A storage whose elements are those of one tensor, moved and not computed.

    `dims`: (count, stride in this storage, stride in the tensor), the storage's strides falling and
    dense, so that an offset in the storage has one digit in each."""

    tensor: int
    offset: int  # of the tensor's element that is the storage's first
    dims: tuple[tuple[int, int, int], ...]

    def steps(self, offset: int, dims: Iterable[tuple[int, ...]]
              ) -> tuple[int, list[tuple[int, ...]]] | None:
        """Returns a view of this storage as a view of the tensor.

        `dims`: (count, stride in this storage, other strides ...). Returns the tensor's offset and
        (count, stride in the tensor, other strides ...), possibly with split dimensions. Returns
        None if a step would carry from one of this storage's dimensions into the next."""
        digits, rest, at = [], offset, self.offset
        for _, own, source in self.dims:
            digits.append(rest // own)
            rest %= own
            at += digits[-1] * source
        reach = list(digits)
        todo, done = [tuple(d) for d in dims][::-1], []
        while todo:
            count, stride, *others = todo.pop()
            if count == 1:
                continue
            if stride == 0:
                done.append((count, 0, *others))
                continue
            # The innermost stride is 1, so there is one.
            k = next(i for i, d in enumerate(self.dims) if d[1] <= stride)
            size, own, source = self.dims[k]
            step, odd = divmod(stride, own)
            if odd:
                return None
            inner = size // step
            if step < size and count > inner:
                # It spans this dimension, so split it in two: within it, and beyond it.
                if size % step or count % inner:
                    return None
                todo.append((inner, stride, *others))
                todo.append((count // inner, stride * inner, *(o * inner for o in others)))
                continue
            reach[k] += (count - 1) * step
            done.append((count, step * source, *others))
        if any(r >= d[0] for r, d in zip(reach, self.dims)):
            return None
        return at, done

    def clone(self, view: torch.Tensor, made: torch.Tensor) -> Moved | None:
        """Returns the origin of `made`, a clone of `view`, which is in this storage."""
        dims = sorted(zip(made.shape, view.stride(), made.stride()), key=lambda d: -d[2])
        found = self.steps(view.storage_offset(), dims)
        if found is None or made.storage_offset() != 0:
            return None
        offset, steps = found
        own = 1
        for count, _, stride in reversed(steps):
            if stride != own:
                return None
            own *= count
        if own * made.element_size() != made.untyped_storage().nbytes():
            return None
        return Moved(self.tensor, offset, tuple((n, o, s) for n, s, o in steps))


def whole(tensor: int, numel: int) -> Moved:
    """Returns a checkpoint's tensor itself."""
    return Moved(tensor, 0, ((numel, 1, 1),))


def unrolled(dims: list[tuple[int, int, int]], limit: int = 64) -> list | None:
    """Expands steps of 0 in the source, which boxes cannot have, into (offset of the place, the
    other dimensions) for each place of an element. None for more than `limit`."""
    still = [d for d in dims if d[1] == 0]
    moving = [d for d in dims if d[1] != 0]
    places = [0]
    for count, _, stride in still:
        places = [p + i * stride for p in places for i in range(count)]
        if len(places) > limit:
            return None
    return [(place, moving) for place in places]


class _Item(NamedTuple):
    """A box under construction: its beginning, and its inner dimensions."""

    src: int
    dst: int
    dims: tuple[tuple[int, int, int], ...]  # innermost first


def _nests(dims: Iterable[tuple[int, int, int]]) -> bool:
    """Returns whether each step clears the inner extent: the library finds a source's element by
    division."""
    span = 1
    for count, step, _ in sorted(dims, key=lambda d: d[1]):
        if step < span:
            return False
        span += (count - 1) * step
    return True


def first_run(src: torch.Tensor, dst: torch.Tensor) -> tuple[int, int, int]:
    """Returns (elements, step of the source, step of the place) of the first run of one step, or 1
    element if the source does not rise."""
    if len(src) < 2:
        return 1, 1, 1
    step, place = int(src[1] - src[0]), int(dst[1] - dst[0])
    other = torch.nonzero((src.diff() != step) | (dst.diff() != place))
    return (int(other[0]) + 1 if len(other) else len(src)) if step > 0 else 1, step, place


def _peel(src: torch.Tensor, dst: torch.Tensor, inner: tuple) -> tuple:
    """Removes dimensions as long as all runs are alike: (src, dst, dimensions)."""
    dims = list(inner)
    while len(src) > 1 and len(dims) < MAX_DIMS:
        run, step, place = first_run(src, dst)
        if run == 1 or len(src) % run or not _nests([*dims, (run, step, place)]):
            break
        rows, places = src.view(-1, run), dst.view(-1, run)
        if bool((rows.diff(dim=1) != step).any() | (places.diff(dim=1) != place).any()):
            break
        dims.append((run, step, place))
        src, dst = rows[:, 0].contiguous(), places[:, 0].contiguous()
    return src, dst, tuple(dims)


def _runs(src: torch.Tensor, dst: torch.Tensor, limit: int) -> list[_Item] | None:
    """Joins elements into runs of one step, greedily."""
    n = len(src)
    ds, dd = src.diff(), dst.diff()
    same = (ds[1:] == ds[:-1]) & (dd[1:] == dd[:-1])
    changes = (torch.nonzero(~same).flatten() + 1).tolist()
    changes.append(n - 1)
    items, at, next_change = [], 0, 0
    while at < n:
        if len(items) > limit:
            return None
        if at == n - 1 or int(ds[at]) <= 0:
            items.append(_Item(int(src[at]), int(dst[at]), ()))
            at += 1
            continue
        while changes[next_change] <= at:
            next_change += 1
        last = changes[next_change]
        items.append(_Item(int(src[at]), int(dst[at]),
                           ((last - at + 1, int(ds[at]), int(dd[at])),)))
        at = last + 1
    return items


def _stack(items: list[_Item]) -> list[_Item]:
    """Joins consecutive items of one shape that are one step apart."""
    out, at = [], 0
    while at < len(items):
        first, last = items[at], at
        if at + 1 < len(items) and len(first.dims) < MAX_DIMS:
            step = (items[at + 1].src - first.src, items[at + 1].dst - first.dst)
            while (step[0] > 0 and last + 1 < len(items) and items[last + 1].dims == first.dims
                   and (items[last + 1].src - items[last].src,
                        items[last + 1].dst - items[last].dst) == step):
                last += 1
            dims = (*first.dims, (last - at + 1, *step))
            if last > at and _nests(dims):
                out.append(first._replace(dims=dims))
                at = last + 1
                continue
        out.append(first)
        at += 1
    return out


def boxes_of(src: torch.Tensor, dst: torch.Tensor, limit: int, inner: tuple = ()
             ) -> list[tuple] | None:
    """Returns boxes (counts, src offset, src strides, dst offset, dst strides) that put element
    `src[i]` at place `dst[i]`; `dst` rises. `inner`: each of these elements is the first of such
    dimensions, innermost first. None if more than `limit` boxes would be needed at some point.

    The cost is a few vector operations over the elements, and some microseconds for each run that
    differs from the others."""
    if len(src) == 0:
        return []
    src, dst, dims = _peel(src, dst, inner)
    if dims or len(src) == 1:
        if len(src) > limit:
            return None
        items = [_Item(s, d, dims) for s, d in zip(src.tolist(), dst.tolist())]
    else:
        items = _runs(src, dst, limit)
        if items is None:
            return None
    while True:
        fewer = _stack(items)
        if len(fewer) == len(items):
            break
        items = fewer
    boxes = []
    for item in items:
        counts, src_strides, dst_strides = collapse(*zip(*(item.dims[::-1] or ((1, 1, 1),))))
        boxes.append((counts, item.src, src_strides, item.dst, dst_strides))
    return boxes
