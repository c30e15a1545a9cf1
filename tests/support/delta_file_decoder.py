#!/usr/bin/env python3
"""A second, plain reader of delta files (docs/delta_file.md), written from the document alone.

Usage: delta_file_decoder.py FILE   prints what it says; exit status 1 when it is malformed
"""

import pathlib
import struct
import sys
from typing import NamedTuple

HEADER = struct.Struct("<8sIIQQQQII56s56s16sQ")
IDENTITY = struct.Struct("<QQQQQ16s")
ENTRY = struct.Struct("<IIQQQQ")


class Identity(NamedTuple):
    lineage: str
    epoch: int
    version: int
    root: int


class Entry(NamedTuple):
    chunk: int
    kind: str
    before: int
    after: int
    payload: bytes


class DeltaFile(NamedTuple):
    fingerprint: str
    seed: int
    chunks: int
    from_: Identity
    to: Identity
    checksum: int
    entries: list


class Malformed(ValueError):
    """The bytes are no delta file of version 1."""


def want(condition, what):
    if not condition:
        raise Malformed(what)


def identity(data):
    high, low, epoch, version, root, reserved = IDENTITY.unpack(data)
    want(reserved == bytes(16), "reserved bytes of an identity")
    return Identity(f"{high:016x}{low:016x}", epoch, version, root)


def read(data):
    want(len(data) >= HEADER.size == 192, "shorter than a header")
    (magic, form, header, size, high, low, seed, chunks, count, old, new, reserved,
     checksum) = HEADER.unpack_from(data)
    want(magic == b"DWDELTA1" and form == 1 and header == 192, "magic or format")
    want(size == len(data), "cut short")
    want(reserved == bytes(16), "reserved bytes")
    at = 192 + 40 * count
    want(at <= len(data), "no room for the entries")
    entries = []
    for i in range(count):
        chunk, kind, before, after, offset, length = ENTRY.unpack_from(data, 192 + 40 * i)
        want(chunk < chunks and kind in (0, 1), f"entry {i}")
        want((offset, length) == (0, 0) if kind == 0 else offset == at and length > 0,
             f"payload of entry {i}")
        entries.append(Entry(chunk, ("whole", "fast")[kind], before, after,
                             data[at:at + length]))
        at += length
    want(at == len(data), "bytes that no entry names")
    return DeltaFile(f"{high:016x}{low:016x}", seed, chunks, identity(old), identity(new),
                     checksum, entries)


def main():
    try:
        file = read(pathlib.Path(sys.argv[1]).read_bytes())
    except Malformed as error:
        print(error)
        return 1
    for name, value in file._asdict().items():
        if name != "entries":
            print(f"{name}: {value}")
    for e in file.entries:
        print(f"chunk {e.chunk}: {e.kind}, {e.before:016x} -> {e.after:016x}, "
              f"{len(e.payload)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
