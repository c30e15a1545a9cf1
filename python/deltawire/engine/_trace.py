"""Finds where a running engine keeps each byte of a checkpoint, by watching its own loader.

The loader runs once over tensors that have shapes and no data (torch's ``meta`` device), while a
dispatch mode sees every operation. A copy from a view of such a tensor into a view of a live
parameter is written down as a strided box, and is not carried out: the parameters stay as they
are. What the loader computes instead of moving (a cast, a negated exponential, a quantised block)
cannot be expressed as boxes and is reported by name.

Units: a box is in elements, relative to the first element of the HF tensor and of the parameter's
storage. Threads: the caller's alone. Cost: no weights are read or written; about 10 microseconds
for each operation of the loader. Errors: values (`Trace.problems`), never half a trace.
"""
from __future__ import annotations

import dataclasses
from typing import Callable, Iterable, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Box(NamedTuple):
    """`counts` elements, nested; strides and offsets in elements of either side."""

    tensor: int  # index into the checkpoint's tensors
    storage: int  # index into Trace.storages
    counts: tuple[int, ...]
    src_offset: int
    src_strides: tuple[int, ...]
    dst_offset: int
    dst_strides: tuple[int, ...]


@dataclasses.dataclass
class Storage:
    """Memory of live parameters; several parameters may share one."""

    names: list[str]
    keeper: torch.Tensor  # one of the parameters, so that the memory stays
    itemsize: int


@dataclasses.dataclass
class Trace:
    storages: list[Storage]
    boxes: list[Box] = dataclasses.field(default_factory=list)
    #: Regions that the loader fills with a constant: (storage, offset, counts, strides).
    fills: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = dataclasses.field(
        default_factory=list)
    #: Why the trace is not the whole truth: "NAME: what happened".
    problems: list[str] = dataclasses.field(default_factory=list)


class _Refused(RuntimeError):
    """An operation that the trace cannot follow; the message names it."""


#: Operations that hand on the same values; the trace reads through them.
_SAME_VALUES = {aten.clone.default, aten._to_copy.default, aten.contiguous.default}


def _collapse(counts, *strides):
    """Merges neighbouring dimensions that every side steps through alike, and drops those of 1."""
    dims = [(n, *s) for n, *s in zip(counts, *strides) if n != 1]
    merged = []
    for dim in dims:
        if merged and all(a == b * dim[0] for a, b in zip(merged[-1][1:], dim[1:])):
            merged[-1] = (merged[-1][0] * dim[0], *dim[1:])
        else:
            merged.append(dim)
    if not merged:
        merged = [(1, *(1 for _ in strides))]
    return tuple(tuple(column) for column in zip(*merged))


class _Watch(TorchDispatchMode):
    def __init__(self, trace: Trace, sources: dict[int, int], live: dict[int, int]):
        super().__init__()
        self.trace, self.sources, self.live = trace, sources, live

    def _live(self, value):
        if isinstance(value, torch.Tensor) and value.numel():
            return self.live.get(value.untyped_storage()._cdata)
        return None

    def _source(self, value):
        if isinstance(value, torch.Tensor):
            return self.sources.get(value.untyped_storage()._cdata)
        return None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten.copy_.default and self._live(args[0]) is not None:
            self._copied(args[0], args[1])
            return args[0]
        written = [
            args[i] if i < len(args) else kwargs.get(a.name)
            for i, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        if any(self._live(w) is not None for w in written):
            if func in (aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default):
                at = args[0]
                self.trace.fills.append(
                    (self._live(at), at.storage_offset(), tuple(at.shape), at.stride()))
                return args[0]
            raise _Refused(f"{func} writes to a live parameter")
        if func in _SAME_VALUES and self._source(args[0]) is not None:
            dtype = kwargs.get("dtype")
            if dtype is None or dtype == args[0].dtype:
                return args[0].view(args[0].shape) if args[0].is_contiguous() else args[0]
        if any(self._source(a) is not None for a in args) and not func.is_view:
            if func._schema.name not in ("aten::detach", "aten::alias"):
                raise _Refused(f"{func} computes with the checkpoint's values")
        return func(*args, **kwargs)

    def _copied(self, dst, src):
        tensor = self._source(src)
        if tensor is None:
            raise _Refused(f"a copy into {self._names(dst)} from memory that is no checkpoint's")
        if src.dtype != dst.dtype:
            raise _Refused(f"{self._names(dst)}: a cast from {src.dtype} to {dst.dtype}")
        src = src.expand(dst.shape)
        if 0 in dst.shape:
            return
        counts, src_strides, dst_strides = _collapse(dst.shape, src.stride(), dst.stride())
        self.trace.boxes.append(Box(tensor, self._live(dst), counts, src.storage_offset(),
                                    src_strides, dst.storage_offset(), dst_strides))

    def _names(self, dst):
        return ", ".join(self.trace.storages[self._live(dst)].names)


def live_storages(model: torch.nn.Module, buffers: Iterable[str] = ()) -> tuple[list[Storage], dict]:
    """Storages of all parameters (and of the named buffers), and their index by torch's handle."""
    storages: list[Storage] = []
    index: dict[int, int] = {}
    named = list(model.named_parameters(remove_duplicate=False))
    wanted = set(buffers)
    named += [(n, b) for n, b in model.named_buffers() if n in wanted]
    for name, tensor in named:
        if not tensor.numel():
            continue
        handle = tensor.untyped_storage()._cdata
        if handle not in index:
            index[handle] = len(storages)
            storages.append(Storage([], tensor.detach(), tensor.element_size()))
        storages[index[handle]].names.append(name)
    return storages, index


def trace(model: torch.nn.Module, load: Callable[[Iterable], object],
          tensors: list[tuple[str, torch.dtype, tuple[int, ...]]]) -> Trace:
    """Runs `load(pairs)` over dataless tensors and returns what it would have copied.

    `tensors`: the checkpoint's (name, dtype, shape), in its order. `model`'s parameters are
    neither written nor replaced: a loader that assigns a new `param.data` is undone and reported.
    """
    storages, live = live_storages(model)
    result = Trace(storages)
    held = [(p, p.data) for p in model.parameters()]
    dummies = [torch.empty(shape, dtype=dtype, device="meta") for _, dtype, shape in tensors]
    sources = {d.untyped_storage()._cdata: i for i, d in enumerate(dummies)}
    names = [name for name, _, _ in tensors]
    at = [""]

    def pairs():
        for name, dummy in zip(names, dummies):
            at[0] = name
            yield name, dummy

    try:
        with torch.no_grad(), _Watch(result, sources, live):
            load(pairs())
    except Exception as error:  # pylint: disable=broad-except
        # The loader is somebody else's code: whatever it raises is a reason, not a failure of ours.
        result.problems.append(f"{at[0]}: {error}")
    for parameter, data in held:
        if parameter.data.data_ptr() != data.data_ptr():
            parameter.data = data
            result.problems.append("the loader replaced a parameter's memory; it was put back")
    return result
