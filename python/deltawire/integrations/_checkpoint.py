"""Reads directories of safetensors: names, dtypes and shapes without torch, tensors with it.

Order: as `deltawire publish` has it, by the file's name and then by the place in the file, so that
a model registered from a checkpoint is the same model whoever registers it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

from deltawire import Error, TensorMeta

_INDEX = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
#: safetensors' own limit for a header.
_LONGEST_HEADER = 512 << 20


def weight_files(directory: str | os.PathLike[str]) -> list[str]:
    """Paths of the files with weights, sorted; empty when there are none."""
    index = os.path.join(directory, _INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    else:
        names = {n for n in os.listdir(directory) if n.endswith(_SUFFIX) and not n.startswith(".")}
    return [os.path.join(directory, name) for name in sorted(names)]


def metas(directory: str | os.PathLike[str]) -> list[TensorMeta]:
    """What the checkpoint holds; empty when the directory has no weights."""
    found: list[TensorMeta] = []
    for path in weight_files(directory):
        header = _header(path)
        header.pop("__metadata__", None)
        entries = sorted(header.items(), key=lambda e: e[1]["data_offsets"])
        found += [TensorMeta(name, e["dtype"], tuple(e["shape"])) for name, e in entries]
    return found


def tensors(directory: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """(name, torch tensor on the CPU) one after the other, in the order of `metas`."""
    from safetensors import safe_open  # pylint: disable=import-outside-toplevel

    for path in weight_files(directory):
        header = _header(path)
        header.pop("__metadata__", None)
        with safe_open(path, framework="pt") as file:
            for name in sorted(header, key=lambda n: header[n]["data_offsets"]):
                yield name, file.get_tensor(name)


def tensor(directory: str | os.PathLike[str], name: str) -> Any:
    """One of them, on the CPU; Error where the checkpoint does not have it."""
    from safetensors import safe_open  # pylint: disable=import-outside-toplevel

    for path in weight_files(directory):
        if name in _header(path):
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
    raise Error(f'{os.fspath(directory)} has no tensor "{name}" any more')


def _header(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if not 0 < size <= _LONGEST_HEADER:
            raise Error(f"{path} is no safetensors file: a header of {size} bytes")
        return json.loads(file.read(size))
