"""Reads the tensors of a directory of safetensors, with torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from deltawire._checkpoint import config_parts, header, metas, weight_files
from deltawire._errors import Error

__all__ = ["config_parts", "metas", "tensors", "weight_files"]


def tensors(directory: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """(name, torch tensor on the CPU) one after the other, in the order of `metas`."""
    from safetensors import safe_open  # pylint: disable=import-outside-toplevel

    for path in weight_files(directory):
        entries = header(path)
        with safe_open(path, framework="pt") as file:
            for name in sorted(entries, key=lambda n: entries[n]["data_offsets"]):
                yield name, file.get_tensor(name)


def tensor(directory: str | os.PathLike[str], name: str) -> Any:
    """One of them, on the CPU; Error where the checkpoint does not have it."""
    from safetensors import safe_open  # pylint: disable=import-outside-toplevel

    for path in weight_files(directory):
        if name in header(path):
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
    raise Error(f'{os.fspath(directory)} has no tensor "{name}" any more')
