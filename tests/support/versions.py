"""A model's versions as files that `deltawire publish` reads, and the bytes that they hold: bf16
values whose exponents are spread as weights' are, and changes of one step as an optimizer makes.
Standard library only, so that a test which compares bytes with these shares nothing with deltawire.
"""

from __future__ import annotations

import array
import functools
import hashlib
import json
import pathlib
import random
import re
import struct
import threading
import time
from collections.abc import Callable

from daemons import read_safetensors

# Sizes of the tensors, as shares of the model: one is small, and none is a round number of chunks.
SHARES = (0.47, 0.31, 0.19, 0.0299, 0.0001)


def _weights(draw: random.Random, elements: int) -> bytearray:
    """Half of the values in one binade, a quarter in the next smaller one, and so on."""
    high = bytes(
        (i & 0x80) | (0x3C - min(4, (8 - max(1, (i & 0x7F) << 1).bit_length()) // 2))
        for i in range(256)
    )
    content = bytearray(2 * elements)
    content[0::2] = draw.randbytes(elements)
    content[1::2] = draw.randbytes(elements).translate(high)
    return content


class Versions:
    def __init__(self, root: pathlib.Path, seed: int, model_bytes: int):
        self._root = root / "checkpoints"
        self._draw = random.Random(seed)
        elements = model_bytes // 2
        self._sizes = {f"layer.{i}": max(1, int(elements * s)) for i, s in enumerate(SHARES)}
        self._data = _weights(self._draw, sum(self._sizes.values()))
        # The versions' contents by their digests: a long test has thousands of them.
        self._by_digest: dict[bytes, int] = {}
        self._newest = 0
        self._drawn: list[Callable[[], int]] = []

    @property
    def newest(self) -> int:
        return self._newest

    @property
    def model_bytes(self) -> int:
        return len(self._data)

    def _places(self) -> list[Callable[[], int]]:
        """For each size of values one that draws an element of about that size."""
        high = bytes(self._data[1::2])
        found = []
        for top in range(0x38, 0x3C):
            either = b"[" + re.escape(bytes([top])) + re.escape(bytes([top | 0x80])) + b"]"
            at = array.array("I", (m.start() for m in re.finditer(either, high, re.DOTALL)))
            if at:
                found.append(functools.partial(self._draw.choice, at))
        return [*found, functools.partial(self._draw.randrange, len(high))]

    def next(self, share: float = 0.01, small: bool = False) -> pathlib.Path:
        """Changes so many of the elements by one step, for the first version none; the directory of
        the new newest version. `small`: as an optimizer does it, whose steps are of about one size,
        so that small values change far more often than large ones; else any as often as others."""
        elements = len(self._data) // 2
        if small and not self._drawn:
            self._drawn = self._places()
        for n in range(int(elements * share) if self._newest else 0):
            draw = self._drawn[n % len(self._drawn)] if small else None
            at = 2 * (draw() if draw else self._draw.randrange(elements))
            value = int.from_bytes(self._data[at : at + 2], "little")
            step = 1 if self._draw.random() < 0.5 else -1
            self._data[at : at + 2] = ((value + step) & 0xFFFF).to_bytes(2, "little")
        self._newest += 1
        self._by_digest[hashlib.sha256(self._data).digest()] = self._newest
        directory = self._root / f"step-{self.newest}"
        directory.mkdir(parents=True)
        header, at = {}, 0
        for name, size in self._sizes.items():
            offsets = [at, at + 2 * size]
            header[name] = {"dtype": "BF16", "shape": [size], "data_offsets": offsets}
            at += 2 * size
        text = json.dumps(header).encode()
        with open(directory / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(self._data)
        return directory

    def path(self, version: int) -> pathlib.Path:
        return self._root / f"step-{version}"

    def of(self, content: dict[str, tuple[str, tuple[int, ...], bytes]]) -> int | None:
        """The newest version that has this content, as read_safetensors reads it; None: no version
        has."""
        if {n: (d, s) for n, (d, s, _) in content.items()} != {
            n: ("BF16", (size,)) for n, size in self._sizes.items()
        }:
            return None
        found = hashlib.sha256()
        for name in self._sizes:
            found.update(content[name][2])
        return self._by_digest.get(found.digest())


class Witness:
    """Reads a weight file again and again, as an engine may at any time. What it reads must be one
    of the versions, and never an earlier one than before."""

    def __init__(self, path: pathlib.Path, versions: Versions, pause_s: float = 0.05):
        self.reads = 0
        self.fault = ""
        self._path = path
        self._versions = versions
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        before = 0
        while not self._stop.is_set() and not self.fault:
            try:
                content = read_safetensors(self._path)
            except FileNotFoundError:  # nothing is committed yet, or it is being updated in place
                time.sleep(0.01)
                continue
            except (ValueError, OSError, struct.error) as error:  # no whole file by that name
                self.fault = f"{self._path}: {error!r} after version {before}"
                return
            version = self._versions.of(content)
            if version is None or version < before:
                self.fault = f"{self._path} held version {version} after version {before}"
            before = version
            self.reads += 1
            self._stop.wait(self._pause_s)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.fault, self.fault
