"""The effects of torch's operations on their arguments, from their schemas."""
from __future__ import annotations

from collections.abc import Iterable

import torch

_VIEWS = {"aten::detach", "aten::alias"}
_writes: dict = {}


def tensors_in(values: Iterable) -> Iterable[torch.Tensor]:
    """Yields the tensors among an operation's arguments, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def written_by(func, args, kwargs) -> list[torch.Tensor]:
    """Returns the arguments that an operation writes to."""
    at = _writes.get(func)
    if at is None:
        at = _writes[func] = [
            (i, a.name) for i, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write]
    if not at:
        return []
    return list(tensors_in(args[i] if i < len(args) else kwargs.get(name) for i, name in at))


def returned(func, written: list[torch.Tensor]):
    """Returns the result of an operation that would have written to these."""
    if not func._schema.returns:
        return None
    return written[0] if len(func._schema.returns) == 1 else tuple(written)


def is_view(func) -> bool:
    return func.is_view or func._schema.name in _VIEWS
