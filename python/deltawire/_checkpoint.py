"""Reads a checkpoint's description of its tensors: names, dtypes and shapes, without torch.

The order is that of `deltawire publish`: by the file's name and then by the place in the file. So a
model registered from a checkpoint is the same model, whichever program registers it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import struct
from collections.abc import Collection, Iterator
from typing import Any

from deltawire._errors import CheckpointError
from deltawire._tensors import Source, TensorMeta

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
_SUFFIX, _ONLY = ".safetensors", "model.safetensors"
_NUMBERED = re.compile(r"((?:.*-)?)(\d+)(-of-(\d+))\.safetensors")
#: The limit of safetensors for a header.
_LONGEST_HEADER = 512 << 20
#: The bytes that are compared at a time.
_COMPARED = 1 << 20
_AGAIN = ("it is still being saved or fetched, or that was cut off: wait for it, or call "
          "save_pretrained, or huggingface_hub.snapshot_download, again")


def weight_files(directory: str | os.PathLike[str]) -> list[str]:
    """Returns the sorted paths of the files with weights, as common/layout/model_dir.cc chooses
    them. CheckpointError: a set of numbered files without an index is incomplete."""
    index = os.path.join(directory, INDEX)
    if os.path.exists(index):
        names = set(_map_of(read_json(index), index).values())
    else:
        names = _of_directory(os.fspath(directory))
    return [os.path.join(directory, name) for name in sorted(names)]


def _of_directory(directory: str) -> set[str]:
    names = {n for n in os.listdir(directory) if n.endswith(_SUFFIX) and not n.startswith(".")}
    if _ONLY in names:  # other files are the same model in another form, or an adapter
        return {_ONLY}
    sets: dict[str, tuple[set[int], int]] = {}
    numbered = {n: m for n in names if (m := _NUMBERED.fullmatch(n))}
    if models := {n: m for n, m in numbered.items() if n.startswith("model-")}:
        numbered = models
    for name, match in numbered.items():
        before, number, after, of = match.groups()
        sets.setdefault(f"{before}*{after}{_SUFFIX}", (set(), int(of)))[0].add(int(number))
    for name, (found, of) in sets.items():
        if len(found) < of:
            raise CheckpointError(
                f"{directory} has {len(found)} of the {of} files {name}, and no {INDEX}: {_AGAIN}")
    return set(numbered) or names


def metas(directory: str | os.PathLike[str]) -> list[TensorMeta]:
    """Returns the checkpoint's tensors; empty if the directory has no weights."""
    found: list[TensorMeta] = []
    for path in weight_files(directory):
        found += _metas_of(path)
    return found


def _metas_of(path: str) -> list[TensorMeta]:
    try:
        entries = sorted(header(path).items(), key=lambda e: e[1]["data_offsets"])
        end = entries[-1][1]["data_offsets"][1] if entries else 0
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); {_AGAIN}") from None
    with open(path, "rb") as file:
        whole = 8 + struct.unpack("<Q", file.read(8))[0] + end
        there = os.fstat(file.fileno()).st_size
    if there < whole:
        raise CheckpointError(f"{path} has {there} of its {whole} bytes; {_AGAIN}")
    return [TensorMeta(name, e["dtype"], tuple(e["shape"])) for name, e in entries]


def present(directory: str | os.PathLike[str]) -> tuple[list[TensorMeta], bool]:
    """Returns the weights, and whether there are any. A directory of small files may have only a
    checkpoint's index, or Git LFS's pointers. CheckpointError: a part of the weights is missing."""
    paths = weight_files(directory)
    missing = [p for p in paths if not os.path.exists(p) or _is_pointer(p)]
    if missing and len(missing) < len(paths):
        raise CheckpointError(
            f"{os.fspath(directory)} has {len(paths) - len(missing)} of its {len(paths)} weight "
            f"files, and not {os.path.basename(missing[0])}; {_AGAIN}, or `git lfs pull` in a clone")
    if missing or not paths:
        return [], False
    return metas(directory), True


def sources(directory: str | os.PathLike[str], wanted: Collection[str]
            ) -> Iterator[tuple[str, Source]]:
    """Yields the memory of some of its tensors, mapped from the files."""
    for path in weight_files(directory):
        entries = header(path)
        names = [n for n in entries if n in wanted]
        if not names:
            continue
        with open(path, "rb") as file:
            begin = 8 + struct.unpack("<Q", file.read(8))[0]
            # Copy on write, because ctypes finds only the address of writable memory.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        whole = (ctypes.c_char * len(memory)).from_buffer(memory)
        for name in names:
            entry = entries[name]
            address = ctypes.addressof(whole) + begin + entry["data_offsets"][0]
            yield name, Source(address, entry["dtype"], tuple(entry["shape"]), None, whole)


def equal(directory: str | os.PathLike[str], one: str, other: str) -> bool:
    """Returns whether two of its tensors have the same bytes, dtype and shape."""
    found = dict(sources(directory, (one, other)))
    first, second = found[one], found[other]
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    size = first.element_bytes
    for n in first.shape:
        size *= n
    views = [memoryview((ctypes.c_char * size).from_address(s.address)).cast("B")
             for s in (first, second)]
    return all(views[0][at : at + _COMPARED] == views[1][at : at + _COMPARED]
               for at in range(0, size, _COMPARED))


def says_tied(directory: str | os.PathLike[str]) -> bool:
    """Returns whether config.json ties the head to the embedding."""
    return any(part.get("tie_word_embeddings") is True for part in config_parts(directory))


def _is_pointer(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(8) == b"version "


def header(path: str) -> dict[str, Any]:
    """Returns a weight file's entries by the tensors' names."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        if not size:
            raise CheckpointError(f"{path} is empty, or begins with zeros; {_AGAIN}")
        if size > _LONGEST_HEADER:
            raise CheckpointError(f"{path} is no safetensors file: a header of {size} bytes")
        text = file.read(size)
        if len(text) < size:
            raise CheckpointError(f"{path} has {len(text)} of the {size} bytes of its header; "
                                  f"{_AGAIN}")
        entries = _object(text, path, "its header is")
    entries.pop("__metadata__", None)
    return entries


def read_json(path: str) -> dict[str, Any]:
    """Reads a file with one JSON object. CheckpointError names the file if that fails."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    return _object(text, path, "it is")


def _object(text: bytes, path: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # includes text that is not UTF-8
        raise CheckpointError(f"{path} cannot be used: {what} no JSON ({error})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} cannot be used: {what} JSON, and no object")
    return found


def _map_of(index: dict[str, Any], path: str) -> dict[str, str]:
    found = index.get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(n, str) for n in found.values()):
        raise CheckpointError(f"{path} cannot be used: it has no weight_map from tensors to files")
    return found


def config_parts(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns config.json's parts: the model's and its language model's; empty without one."""
    path = os.path.join(directory, CONFIG)
    if not os.path.exists(path):
        return []
    config = read_json(path)
    text = config.get("text_config")
    return [config, text] if isinstance(text, dict) else [config]


def config_dtype(directory: str | os.PathLike[str]) -> str:
    """Returns the dtype as config.json writes it, or "" if it names none or "auto"."""
    for part in config_parts(directory):
        found = part.get("dtype") or part.get("torch_dtype")
        if isinstance(found, str) and found != "auto":
            return found
    return ""
