"""The floating types that are converted while they are written, and the types of a model's layout.

A model is registered as its checkpoint has it, or as the caller says. A trainer's other floating
types, such as fp32 masters, are rounded to nearest, ties to even. If only config.json is known, it
has one dtype for all tensors; tensors that checkpoints and engines keep in fp32 beside it stay as
they are (`_WIDE`).
"""

from __future__ import annotations

import fnmatch
import logging
import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from deltawire import _checkpoint
from deltawire._errors import DTypeError
from deltawire._tensors import DTYPE_BYTES, TensorMeta, dtype_name

logger = logging.getLogger(__name__)

# The types to which each type may be cast: narrower ones, and wider ones, which hold each of its
# numbers. bf16 has numbers that fp16 lacks; 8-bit floats need scales, which no tensor has.
_TO = {
    "F64": ("F32", "F16", "BF16"),
    "F32": ("F64", "F16", "BF16"),
    "F16": ("F64", "F32", "BF16"),
    "BF16": ("F64", "F32"),
}


# Last parts of names. In checkpoints that say bfloat16 a router's correction bias is in fp32
# (DeepSeek-V3.1, Kimi-K3, Hy3), and so is A_log in some (Qwen3.5) and not in others (Qwen3.6). vLLM
# always has both in fp32, so in bf16 they would lose bits, and its loader would cast them back.
_WIDE = frozenset({"A_log", "e_score_correction_bias", "expert_bias"})

_KINDS_NAMED = 12


def may_cast(given: str, wanted: str) -> bool:
    return wanted in _TO.get(given, ())


def stored(
    metas: Sequence[TensorMeta],
    said: Collection[str],
    hf_dir: str | os.PathLike[str] | None,
    dtype: Any,
    keep: Collection[str] = (),
    disk: Sequence[TensorMeta] = (),
) -> list[TensorMeta]:
    """Returns the layout with which a model with these tensors is registered.

    `dtype` applies to all tensors in F64, F32, F16 or BF16. Without it those of `disk`, its
    weights, apply by name. Without weights that of its config.json applies if it makes a tensor no
    larger, except for `_WIDE`. `said`: names whose dtype the caller has given himself, and keeps.
    `keep`: names, or patterns of names, of tensors that keep theirs in any case.
    """
    kept = {m.name for m in metas if _is_one_of(m.name, keep)}
    _warn_of_unknown(keep, metas)
    if dtype is not None:
        return [m if m.name in kept else _as(m, dtype_name(dtype, m.name)) for m in metas]
    said = {*said, *kept}
    if hf_dir is None or not os.path.isdir(hf_dir):  # the library reports a wrong path
        return list(metas)
    if all(m.name in said for m in metas):
        return list(metas)
    of = {m.name: m.dtype for m in disk}
    if not of:
        wanted = _of_config(hf_dir)
        # A trainer that has some tensors of this type keeps the others wide on purpose.
        if wanted and not any(m.dtype == wanted for m in metas):
            of = {m.name: wanted for m in metas if m.name.rpartition(".")[2] not in _WIDE}
    return [m if m.name in said else _narrowed(m, of.get(m.name, m.dtype)) for m in metas]


def as_trained(metas: Sequence[TensorMeta], keep: Collection[str]) -> list[TensorMeta]:
    """Returns a checkpoint's tensors, with those that `keep` names in fp32, as trainers hold
    them."""
    _warn_of_unknown(keep, metas)
    return [TensorMeta(m.name, "F32", m.shape)
            if m.dtype in ("BF16", "F16") and _is_one_of(m.name, keep) else m for m in metas]


def _warn_of_unknown(keep: Collection[str], metas: Sequence[TensorMeta]) -> None:
    for pattern in keep:
        if not any(fnmatch.fnmatchcase(m.name, pattern) for m in metas):
            logger.warning("keep_dtype has %r, which is the name of no tensor; a pattern matches "
                           "whole names, as *norm.weight does", pattern)


def _of_config(hf_dir: str | os.PathLike[str]) -> str:
    named = _checkpoint.config_dtype(hf_dir)
    try:
        return dtype_name(named, "") if named else ""
    except DTypeError:
        raise DTypeError(f"{os.path.join(hf_dir, 'config.json')} has the dtype {named!r}, which "
                         "safetensors has no name for; give `dtype`") from None


def _is_one_of(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


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


def _is_router(name: str) -> bool:
    """Returns whether it is a router of experts: its rounding decides which experts compute a
    token."""
    return any(part == "gate" or "router" in part for part in name.split(".")[:-1])


class CastLog:
    """A log line, once, after the first version with casts: how many, and from which types. It
    names routers and vectors by kind, because they cost next to nothing and may be meant to stay
    wide."""

    def __init__(self, model: str, rank: int):
        self._model, self._rank = model, rank
        self._counts: Counter[tuple[str, str]] = Counter()
        self._kinds: Counter[tuple[bool, str]] = Counter()  # routers first
        self._said = False

    def begin(self) -> None:
        self._counts.clear()
        self._kinds.clear()

    def add(self, given: str, meta: TensorMeta) -> None:
        if self._said or given == meta.dtype:
            return
        self._counts[given, meta.dtype] += 1
        is_router = _is_router(meta.name)
        if is_router or sum(n > 1 for n in meta.shape) <= 1:
            kind = ".".join("*" if part.isdigit() else part for part in meta.name.split("."))
            self._kinds[not is_router, f"{kind} {given} to {meta.dtype}"] += 1

    def end(self) -> None:
        if self._said or not self._counts:
            return
        self._said = True
        casts = ", ".join(f"{n} from {a} to {b}" for (a, b), n in sorted(self._counts.items()))
        if self._kinds:
            kinds = [f"{kind} ({n})" for (_, kind), n in sorted(self._kinds.items())]
            more = len(kinds) - _KINDS_NAMED
            casts += ("; of these routers and vectors, which stay as they are if keep_dtype names them: "
                      + ", ".join(kinds[:_KINDS_NAMED])
                      + (f" and {more} more kinds" if more > 0 else ""))
        # One warning for a job is enough.
        level = logging.WARNING if self._rank == 0 else logging.INFO
        logger.log(level, "model %s: rank %d casts tensors while they are written: %s",
                   self._model, self._rank, casts)
