"""Reads the tensors of a directory of safetensors, with torch, and tells whether it has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from deltawire._checkpoint import CONFIG, INDEX, config_parts, header, metas, present, weight_files
from deltawire._errors import Error

__all__ = ["Seen", "config_parts", "metas", "present", "tensors", "weight_files"]


class Seen:
    """What a checkpoint was when this was made, before it was read. Costs one `stat` for each file,
    where reading it opens each, and parses a header and perhaps an index of many megabytes."""

    def __init__(self, directory: str | os.PathLike[str]):
        # The directory's own stamp changes with each file that comes or goes.
        paths = [os.fspath(directory), *(os.path.join(directory, n) for n in (CONFIG, INDEX))]
        self._stamps = {path: _stamp(path) for path in paths + weight_files(directory)}

    def holds(self) -> bool:
        """Whether what was read of it (tensors' names, types and shapes, and the model's class) is
        what would be read now."""
        return all(_stamp(path) == stamp for path, stamp in self._stamps.items())


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    # Not the time of modification, which a copy may set to what it was.
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


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
