#!/usr/bin/env python3
"""Writes the corpora of the delta fuzz targets, tests/fuzz/corpus/delta_*:

    make_delta_corpus.py CORPUS_DIR

It is run once for each format version; inputs that found a bug are kept beside what it writes. Its
chunks, and their history for tight, are those of tests/fuzz/delta_input.h and delta_tight_laws.h.
"""

import ctypes
import pathlib
import random
import sys

import delta_decoder as decoder
import delta_encoder as encoder

SMALL = [1, 3, 64, 257, 700, 300, 17, 128]
LARGE = [decoder.BLOCK + k for k in (-1, 0, 1, 8)]
LARGE += [2 * decoder.BLOCK + k for k in (-1, 0, 3, 77)]
WIDTH_CODE = {1: 0, 2: 1, 4: 2, 8: 3}
DESCRIBED, TIGHT = 32, 64


def lcg(state):
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & decoder.MASK64
        yield state


def pattern(size):
    draw = lcg(0x9E3779B97F4A7C15)
    return bytes(next(draw) >> 56 for _ in range(size))


def past_of(n, width):
    zeros, draw, past = bytes(n * width), lcg(n * width), []
    for k in range(8):
        data = bytearray(zeros)
        for i in range(len(data)):
            s = next(draw)
            if s >> 58 == 0:
                data[i] = (s >> 40 & 3) - 1 & 255
        changes = encoder.differences(zeros, bytes(data), width)
        past.append(b"" if k == 4 else encoder.encode_fast(changes, n, width))
    return past


def changes_of(draw, n, width, density, large):
    most = (1 << 8 * width - 1) - 1
    result = []
    for i in range(n):
        if draw.random() < density:
            d = draw.choice((1, -1))
            if draw.random() < large:
                d *= min(most, draw.getrandbits(draw.randrange(2, 8 * width)) + 1)
            result.append((i, d))
    return result or [(n - 1, -most - 1)]


# What the fuzz targets turn into changes: a count, then gaps and differences.
DESCRIPTIONS = {
    "one": "01 00 00",
    "some": "08 0000 0301 0a80 2081 0000 07c0ff 64c77fff 00c101",
    "extreme": "03 00c70000000000000080 01c7ffffffffffffff7f 00c601000000000080",
    "all": "02 00ff 00fe",
    "far": "04 0500 fe01 fe00 0a01",
}


def write(directory, name, data):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data)


def write_fast(root, draw):
    for index, width, density, large in [(0, 1, 1, 1), (1, 8, 1, 1), (2, 2, .1, .2), (3, 4, .05, .5),
                                         (4, 2, .02, 0), (4, 1, .9, .9), (5, 8, .3, .5)]:
        n = SMALL[index]
        payload = encoder.encode_fast(changes_of(draw, n, width, density, large), n, width)
        head = bytes([WIDTH_CODE[width] | index << 2])
        write(root / "delta_fast", "payload_w%d_n%d_%d" % (width, n, len(payload)), head + payload)
    for name, text in DESCRIPTIONS.items():
        for index, width in [(2, 8), (4, 2), (7, 4)]:
            head = bytes([WIDTH_CODE[width] | index << 2 | DESCRIBED])
            write(root / "delta_fast", "%s_w%d_n%d" % (name, width, SMALL[index]),
                  head + bytes.fromhex(text))


def write_fold(root, draw):
    described = [bytes.fromhex(text) for text in DESCRIPTIONS.values()]
    for index, width in [(2, 8), (3, 1), (4, 2), (5, 4), (7, 2)]:
        n = SMALL[index]
        payload = encoder.encode_fast(changes_of(draw, n, width, 20 / n, .3), n, width)
        parts = [b"\0" + d for d in described]
        parts += [b"\2" + len(payload).to_bytes(2, "little") + payload, b"\3"]
        draw.shuffle(parts)
        head = bytes([WIDTH_CODE[width] | index << 2 | len(parts) - 1 << 5])
        write(root / "delta_fold", "w%d_n%d" % (width, n), head + b"".join(parts))
        twice = b"\0" + described[1] + b"\3" + b"\5" + described[2] + b"\x11\x01"
        head = bytes([WIDTH_CODE[width] | index << 2 | 2 << 5])
        write(root / "delta_fold", "damaged_w%d_n%d" % (width, n), head + twice)


def write_tight(root, draw):
    for index, width, function, density, large in [
            (2, 8, 0, .2, .5), (3, 1, 4, .1, .2), (3, 1, 5, .1, .2), (4, 2, 1, .05, .1),
            (4, 2, 2, .05, .1), (4, 4, 3, .1, .9), (5, 2, 0, .9, .1), (0, 8, 0, 1, 1)]:
        n = SMALL[index]
        changes = changes_of(draw, n, width, density, large)
        head = bytes([WIDTH_CODE[width] | index << 2, function])
        for depth in (0, 1, 8):
            payload = encoder.encode_tight(changes, pattern(n * width), width, function,
                                           past_of(n, width)[:depth])
            write(root / "delta_tight", "payload_w%d_f%d_n%d_depth%d" % (width, function, n, depth),
                  head + payload)
        # Our encoders give so small chunks one lane.
        for lanes in (1, 2):
            payload = encoder.encode_tight(changes, pattern(n * width), width, function,
                                           past_of(n, width)[:2], lanes=lanes)
            write(root / "delta_tight", "lanes%d_w%d_f%d_n%d" % (lanes, width, function, n),
                  head + payload)
    for name, text in DESCRIPTIONS.items():
        for index, width, more in [(2, 8, 0x80), (4, 2, 0x21), (7, 1, 0x84)]:
            head = bytes([WIDTH_CODE[width] | index << 2 | DESCRIBED, more])
            write(root / "delta_tight", "%s_w%d_n%d" % (name, width, SMALL[index]),
                  head + bytes.fromhex(text))


def zstd(content):
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(len(content) + 1000)
    size = library.ZSTD_compress(out, ctypes.c_size_t(len(out)), content,
                                 ctypes.c_size_t(len(content)), 3)
    return out.raw[:size]


def write_dense(root, draw):
    for index, width, density, large in [(0, 1, 1, 1), (2, 2, .9, .2), (3, 4, .9, .5),
                                         (4, 1, .5, .2), (5, 8, .9, .1)]:
        n = SMALL[index]
        codes = [0] * n
        for at, d in changes_of(draw, n, width, density, large):
            codes[at] = 2 * d if d >= 0 else -2 * d - 1
        planes = b"".join(bytes(z >> 8 * p & 255 for z in codes) for p in range(width))
        head = bytes([WIDTH_CODE[width] | index << 2, 3, decoder.DENSE, width, 0])
        write(root / "delta_dense", "payload_w%d_n%d" % (width, n), head + zstd(planes))
    for name, text in DESCRIPTIONS.items():
        head = bytes([WIDTH_CODE[4] | 4 << 2 | DESCRIBED])
        write(root / "delta_dense", name + "_w4", head + bytes.fromhex(text))


def write_blocks(root, draw):
    for index, width, function in [(0, 1, 4), (2, 2, 1), (6, 1, 0), (7, 2, 2)]:
        n = LARGE[index]
        changes = changes_of(draw, n, width, 30 / n, .2)
        head = bytes([width - 1 | index << 2, function])
        payload = encoder.encode_fast(changes, n, width)
        write(root / "delta_blocks", "fast_w%d_n%d" % (width, n), head + payload)
        head = bytes([head[0] | TIGHT, function])
        payload = encoder.encode_tight(changes, pattern(n * width), width, function)
        write(root / "delta_blocks", "tight_w%d_n%d" % (width, n), head + payload)
        payload = encoder.encode_tight(changes, pattern(n * width), width, function, lanes=2)
        write(root / "delta_blocks", "tight_lanes_w%d_n%d" % (width, n), head + payload)
        for name, text in DESCRIPTIONS.items():
            for head in ([width - 1 | index << 2 | DESCRIBED, 0],
                         [width - 1 | index << 2 | DESCRIBED | TIGHT, function | 0x10 * index]):
                write(root / "delta_blocks", "%s_%s_w%d_n%d" % (
                    "tight" if head[0] & TIGHT else "fast", name, width, n),
                      bytes(head) + bytes.fromhex(text))


def main(argv):
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    draw = random.Random(2)
    for part in (write_fast, write_fold, write_tight, write_dense, write_blocks):
        part(pathlib.Path(argv[1]), draw)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
