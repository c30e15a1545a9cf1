#!/usr/bin/env python3
"""A second, plain decoder of docs/delta_format.md (version 1), laid out like the document.

    delta_decoder.py GOLDEN_DIR    checks every case of delta_v1.json; exits 1 on a difference

Standard library only. Written for reading, not for speed.
"""

import json
import pathlib
import struct
import sys

BLOCK = 65536
MASK64 = (1 << 64) - 1


class Malformed(Exception):
    pass


def need(condition, rule):
    if not condition:
        raise Malformed(rule)


def code_of(d, width):
    """The code byte of a difference, read as a signed number; None when it goes wide."""
    signed = d - (1 << 8 * width) if d >> (8 * width - 1) else d
    if 1 <= signed <= 127:
        return 2 * signed - 1
    if -127 <= signed <= -1:
        return -2 * signed - 2
    return 254 if width == 1 else None


def difference_of(code, width):
    if code == 254:
        need(width == 1, "code 254 in a wide element")
        return 128
    d = (code + 1) // 2 if code % 2 else -(code + 2) // 2
    return d % (1 << 8 * width)


def sparse_block(width, elements, changed, wide, gap_bytes, stream):
    """Yields (index in the block, difference)."""
    wides = [int.from_bytes(stream[i * width:(i + 1) * width], "little") for i in range(wide)]
    gaps = stream[wide * width:wide * width + gap_bytes]
    codes = stream[wide * width + gap_bytes:]
    need(gaps[-1] != 255, "the last gap goes on")
    need(sum(g != 255 for g in gaps) == changed, "gaps and changed disagree")
    need(sum(gaps) + changed <= elements, "a gap runs past the block")
    need(codes.count(255) == wide, "codes and wide disagree")
    at, out, wides = 0, [], iter(wides)
    codes = iter(codes)
    for gap in gaps:
        at += gap
        if gap == 255:
            continue
        code = next(codes)
        if code == 255:
            d = next(wides)
            need(d != 0 and code_of(d, width) is None, "a wide difference has a code")
        else:
            d = difference_of(code, width)
        out.append((at, d))
        at += 1
    return out


def sparse_size(changes, width):
    size, following = 0, 0
    for at, d in changes:
        size += (at - following) // 255 + 1 + 1
        size += width if code_of(d, width) is None else 0
        following = at + 1
    return size


def decode(payload, raw_bytes, width):
    """Returns [(element, difference)], or raises Malformed."""
    need(len(payload) >= 12, "truncated header")
    fmt, got_width, reserved, elements, changed = struct.unpack_from("<BBHII", payload)
    need(fmt == 1 and got_width == width and reserved == 0, "header")
    need(elements * width == raw_bytes and changed >= 1, "header")
    blocks = (elements + BLOCK - 1) // BLOCK
    streams = 12 + 16 * blocks
    need(len(payload) >= streams, "truncated table")
    result = []
    for block in range(blocks):
        entry = payload[12 + 16 * block:28 + 16 * block]
        codec, count, wide, gap_bytes = struct.unpack("<B3xIII", entry)
        need(entry[1:4] == bytes(3), "reserved")
        size = min(BLOCK, elements - BLOCK * block)
        if codec == 0:
            need(count == wide == gap_bytes == 0, "same block")
            continue
        need(1 <= count <= size, "changed")
        if codec == 1:
            need(wide <= count <= gap_bytes, "entry")
            length = wide * width + gap_bytes + count
            need(length < size * width, "raw would be no larger")
            need(len(payload) >= streams + length, "truncated streams")
            stream = payload[streams:streams + length]
            changes = sparse_block(width, size, count, wide, gap_bytes, stream)
        else:
            need(codec == 2 and wide == gap_bytes == 0, "codec")
            length = size * width
            need(len(payload) >= streams + length, "truncated streams")
            every = [int.from_bytes(payload[streams + i * width:streams + (i + 1) * width],
                                    "little") for i in range(size)]
            changes = [(i, d) for i, d in enumerate(every) if d]
            need(len(changes) == count, "changed")
            need(sparse_size(changes, width) >= length, "sparse would be smaller")
        streams += length
        result += [(BLOCK * block + at, d) for at, d in changes]
    need(streams == len(payload), "bytes after the last stream")
    need(len(result) == changed, "changed")
    return result


def apply(data, changes, width):
    data = bytearray(data)
    for at, d in changes:
        place = slice(at * width, (at + 1) * width)
        value = int.from_bytes(data[place], "little") + d
        data[place] = (value % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(data)


def splitmix64(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
        yield z ^ (z >> 31)


class Digest:
    def __init__(self, seed):
        stream = splitmix64(seed)
        self.key = [next(stream) for _ in range(32768)]
        self.multiplier = [next(stream) | 1 for _ in range(64)]

    def of(self, data):
        data = data + bytes(-len(data) % 4)
        words = struct.unpack("<%dI" % (len(data) // 4), data)
        total = 0
        for b in range(0, len(words), 32768):
            block = sum(k * w for k, w in zip(self.key, words[b:b + 32768]))
            total += self.multiplier[b // 32768] * block
        return total & MASK64


def check_case(directory, case, digest):
    read = lambda part: (directory / ("delta_v1_%s_%s.bin" % (case["name"], part))).read_bytes()
    old, new, payload = read("old"), read("new"), read("payload")
    width = case["width"]
    changes = decode(payload, len(old), width)
    need(apply(old, changes, width) == new, "applied, it is not the new version")
    need(len(changes) == case["changed"], "changed")
    need("%016x" % digest.of(old) == case["digest_old"], "digest of old")
    need("%016x" % digest.of(new) == case["digest_new"], "digest of new")
    for cut in range(0, len(payload), 1 + len(payload) // 64):
        try:
            decode(payload[:cut], len(old), width)
        except Malformed:
            continue
        raise Malformed("cut to %d bytes, it was accepted" % cut)


def main(argv):
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    directory = pathlib.Path(argv[1])
    manifest = json.loads((directory / "delta_v1.json").read_text())
    digest = Digest(manifest["key_seed"])
    failed = 0
    for case in manifest["cases"]:
        try:
            check_case(directory, case, digest)
            print("ok   %s" % case["name"])
        except Malformed as problem:
            print("FAIL %s: %s" % (case["name"], problem))
            failed += 1
    return 1 if failed or not manifest["cases"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
