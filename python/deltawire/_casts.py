"""Which floating types are converted while they are written, and to what a model is registered.

A model is registered as its checkpoint has it, or as the caller says; what a trainer holds in
another floating type, such as fp32 masters, is rounded to nearest, ties to even, on its way.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from deltawire import _checkpoint
from deltawire._errors import DTypeError
from deltawire._tensors import DTYPE_BYTES, TensorMeta, dtype_name

logger = logging.getLogger(__name__)

# To what each type may be cast: narrower ones, and wider ones, which hold each of its numbers.
# bf16 has numbers that fp16 has not; 8-bit floats need scales that no tensor brings with it.
_TO = {
    "F64": ("F32", "F16", "BF16"),
    "F32": ("F64", "F16", "BF16"),
    "F16": ("F64", "F32", "BF16"),
    "BF16": ("F64", "F32"),
}


def may_cast(given: str, wanted: str) -> bool:
    return wanted in _TO.get(given, ())


def stored(
    metas: Sequence[TensorMeta],
    said: Collection[str],
    hf_dir: str | os.PathLike[str] | None,
    dtype: Any,
) -> list[TensorMeta]:
    """The layout that a model with these tensors is registered with.

    `dtype`: of all tensors in F64, F32, F16 or BF16. Else those of `hf_dir`'s weights, by name, or
    without weights that of its config.json, where they make a tensor no larger. `said`: names whose
    dtype the caller has said himself, and keeps.
    """
    if dtype is not None:
        return [_as(m, dtype_name(dtype, m.name)) for m in metas]
    if hf_dir is None or not os.path.isdir(hf_dir):  # the library says what is wrong with the path
        return list(metas)
    if all(m.name in said for m in metas):
        return list(metas)
    of = _checkpoint.dtypes(hf_dir)
    if not of:
        named = _checkpoint.config_dtype(hf_dir)
        # A trainer that has tensors of this type already keeps the others wide on purpose.
        if named and not any(m.dtype == dtype_name(named, m.name) for m in metas):
            of = {m.name: dtype_name(named, m.name) for m in metas}
    return [m if m.name in said else _narrowed(m, of.get(m.name, m.dtype)) for m in metas]


def _as(meta: TensorMeta, wanted: str) -> TensorMeta:
    if wanted not in _TO:
        raise DTypeError(f"dtype is {wanted}; tensors are cast to {', '.join(_TO)}", meta.name)
    if meta.dtype == wanted or meta.dtype not in _TO:
        return meta
    if not may_cast(meta.dtype, wanted):
        raise DTypeError(
            f'tensor "{meta.name}" is {meta.dtype}, which is not cast to {wanted}: numbers would '
            "be lost; give another dtype",
            meta.name,
        )
    return TensorMeta(meta.name, wanted, meta.shape)


def _narrowed(meta: TensorMeta, wanted: str) -> TensorMeta:
    if not may_cast(meta.dtype, wanted) or DTYPE_BYTES[wanted] > DTYPE_BYTES[meta.dtype]:
        return meta
    return TensorMeta(meta.name, wanted, meta.shape)


class CastLog:
    """Says once, after the first version with casts, how many were cast, and from what."""

    def __init__(self, model: str, rank: int):
        self._model, self._rank = model, rank
        self._counts: Counter[tuple[str, str]] = Counter()
        self._said = False

    def begin(self) -> None:
        self._counts.clear()

    def add(self, given: str, wanted: str) -> None:
        if given != wanted:
            self._counts[given, wanted] += 1

    def end(self) -> None:
        if self._said or not self._counts:
            return
        self._said = True
        casts = ", ".join(f"{n} from {a} to {b}" for (a, b), n in sorted(self._counts.items()))
        # Once for a job is enough.
        level = logging.WARNING if self._rank == 0 else logging.INFO
        logger.log(level, "model %s: rank %d casts tensors while they are written: %s",
                   self._model, self._rank, casts)
