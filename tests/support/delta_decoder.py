"""A second, plain decoder of docs/delta_format.md (version 3), laid out like the document.

The codec tight has a file of its own, delta_tight.py. Standard library only, with the shared
libraries libzstd (dense) and libxxhash (tight). Written for reading, not for speed. Deltas are
lists of (element, signed difference), in order; whatever is refused raises Refused.
"""

import ctypes
import struct

BLOCK = 65536
MAX_CHUNK = 8 << 20
FAST, TIGHT, DENSE = 1, 2, 3
MASK64 = (1 << 64) - 1


class Refused(Exception):
    pass


def need(condition, rule):
    if not condition:
        raise Refused(rule)


def elements_of(raw_bytes, width):
    need(width in (1, 2, 4, 8) and raw_bytes % width == 0, "width")
    need(0 < raw_bytes <= MAX_CHUNK, "size of the chunk")
    return raw_bytes // width


def blocks_of(n):
    """The elements of each block, as ranges."""
    return [range(at, min(at + BLOCK, n)) for at in range(0, n, BLOCK)]


def check_head(payload, codec, width):
    need(len(payload) >= 4, "truncated")
    need(payload[0] == 3, "format")
    need(payload[1] == codec, "codec")
    need(payload[2] == width, "width")


def fits(d, width):
    return -(1 << 8 * width - 1) <= d < 1 << 8 * width - 1


# Bit streams, packed columns, Rice parameter


class Bits:
    """Reads a bit stream."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        end = self.at + n
        need(end <= 8 * len(self.data), "truncated")
        word = int.from_bytes(self.data[self.at // 8:(end + 7) // 8], "little")
        value = word >> self.at % 8 & (1 << n) - 1
        self.at = end
        return value

    def zeros(self):
        """The number of zeros before the next one; both are taken."""
        n = 0
        while self.take(1) == 0:
            n += 1
        return n

    def pad(self):
        """Takes the padding; returns the number of bytes that were read."""
        need(self.take(-self.at % 8) == 0, "padding")
        return self.at // 8


def packed_columns(bits, columns, rows):
    """Returns the rows."""
    widths, minima = [], []
    for _ in range(columns):
        widths.append(bits.take(5))
        minima.append(bits.take(26))
        need(bits.take(1) == 0, "reserved")
    offsets = [[bits.take(w) for w in widths] for _ in range(rows)]
    for w, column in zip(widths, zip(*offsets)):
        need(min(column) == 0 and max(column).bit_length() == w, "columns that are not exact")
    return [[o + m for o, m in zip(row, minima)] for row in offsets]


def rice(c, m):
    k = 0
    while 2000 * c << k < 481 * (2 * m - c):
        k += 1
    return k


# fast


def order(values):
    """j: the smallest for which at most half of the values have more bits."""
    return sorted((v.bit_length() for v in values), reverse=True)[len(values) // 2]


def gaps_between(places):
    return [b - a - 1 for a, b in zip([-1] + places, places)]


def rice_bits(places, among):
    k = rice(len(places), among)
    return sum(k + (gap >> k) + 1 for gap in gaps_between(places))


def sparse_bytes(changes, m):
    """Bytes of the sparse stream of a block's changes, (place in the block, difference)."""
    large = [i for i, (_, d) in enumerate(changes) if abs(d) >= 2]
    bits = rice_bits([at for at, _ in changes], m) + len(changes)
    if large:
        values = [abs(changes[i][1]) - 2 for i in large]
        j = order(values)
        bits += rice_bits(large, len(changes)) + 6
        bits += sum(2 * ((v >> j) + 1).bit_length() - 1 + j for v in values)
    return (bits + 7) // 8


def read_places(low, k, bits, among):
    """Places from gaps whose low parts were read before."""
    places, at = [], 0
    for part in low:
        at += (bits.zeros() << k) + part
        need(at < among, "a position beyond the block")
        places.append(at)
        at += 1
    return places


def sparse_block(stream, m, width, c, e):
    bits = Bits(stream)
    k = rice(c, m)
    low = [bits.take(k) for _ in range(c)]
    negative = [bits.take(1) for _ in range(c)]
    places = read_places(low, k, bits, m)
    size = [1] * c
    if e > 0:
        k = rice(e, c)
        low = [bits.take(k) for _ in range(e)]
        large = read_places(low, k, bits, c)
        j = bits.take(6)
        values = []
        for _ in range(e):
            more = bits.zeros()
            need(more < 64, "an abs(d) that does not fit")
            u = 1 << more | bits.take(more)
            values.append(u - 1 << j | bits.take(j))
        need(order(values) == j, "order")
        for i, v in zip(large, values):
            size[i] = v + 2
    need(bits.pad() == len(stream), "bytes of the block")
    changes = [(at, -a if minus else a) for at, a, minus in zip(places, size, negative)]
    need(all(fits(d, width) for _, d in changes), "an abs(d) that does not fit")
    return changes


def raw_block(stream, m, width, c):
    changes = []
    for i in range(m):
        d = int.from_bytes(stream[i * width:(i + 1) * width], "little", signed=True)
        if d != 0:
            changes.append((i, d))
    need(len(changes) == c, "changed")
    need(sparse_bytes(changes, m) >= m * width, "sparse would be smaller")
    return changes


def decode_fast(payload, raw_bytes, width):
    n = elements_of(raw_bytes, width)
    check_head(payload, FAST, width)
    need(payload[3] == 0, "reserved")
    need(len(payload) >= 8, "truncated")
    need(int.from_bytes(payload[4:8], "little") == n, "elements")
    bits = Bits(payload[8:])
    blocks = blocks_of(n)
    rows = packed_columns(bits, 3, len(blocks))
    at = 8 + bits.pad()
    result = []
    for block, (c, e, size) in zip(blocks, rows):
        m = len(block)
        need(e <= c <= m, "counts")
        need(size <= m * width, "bytes of a block")
        stream = payload[at:at + size]
        need(len(stream) == size, "truncated")
        at += size
        if c == 0:
            need(size == 0, "bytes of a block without changes")
            changes = []
        elif size == m * width:
            need(e == 0, "large in a raw block")
            changes = raw_block(stream, m, width, c)
        else:
            changes = sparse_block(stream, m, width, c, e)
        result += [(block.start + place, d) for place, d in changes]
    need(at == len(payload), "bytes after the last stream")
    need(result, "no change")
    return result


# dense


def unzstd(frame, size):
    """The content of exactly one frame that says and has `size` bytes."""
    zstd = ctypes.CDLL("libzstd.so.1")
    for name in ("ZSTD_getFrameContentSize", "ZSTD_findFrameCompressedSize", "ZSTD_decompress"):
        getattr(zstd, name).restype = ctypes.c_uint64
    length = ctypes.c_size_t(len(frame))
    need(zstd.ZSTD_getFrameContentSize(frame, length) == size, "content size")
    need(zstd.ZSTD_findFrameCompressedSize(frame, length) == len(frame), "one zstd frame")
    content = ctypes.create_string_buffer(size)
    got = zstd.ZSTD_decompress(content, ctypes.c_size_t(size), frame, length)
    need(got == size, "zstd")
    return content.raw


def decode_dense(payload, raw_bytes, width):
    n = elements_of(raw_bytes, width)
    check_head(payload, DENSE, width)
    need(payload[3] == 0, "reserved")
    content = unzstd(payload[4:], raw_bytes)
    planes = [content[i * n:(i + 1) * n] for i in range(width)]
    result = []
    for i, code in enumerate(zip(*planes)):
        z = int.from_bytes(bytes(code), "little")
        if z != 0:
            result.append((i, -(z + 1) // 2 if z & 1 else z // 2))
    need(result, "no change")
    return result


# What a delta does


def apply(data, changes, width):
    data = bytearray(data)
    for at, d in changes:
        place = slice(at * width, (at + 1) * width)
        value = int.from_bytes(data[place], "little") + d
        data[place] = (value % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(data)


# Digest


def splitmix64(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
        yield z ^ (z >> 31)


class Digest:
    def __init__(self, seed):
        stream = splitmix64(seed)
        self.key = [next(stream) for _ in range(1024)]
        self.multiplier = [next(stream) | 1 for _ in range(2048)]

    def of(self, data):
        data = data + bytes(-len(data) % 4)
        words = struct.unpack("<%dI" % (len(data) // 4), data)
        total = 0
        for b in range(0, len(words), 1024):
            block = sum(k * w for k, w in zip(self.key, words[b:b + 1024]))
            total += self.multiplier[b // 1024] * block
        return total & MASK64


# Root


def root_term(chunk, digest):
    low, high = chunk ^ 0x6782737BEA4239B9, digest ^ 0xAF56BC3B0996523A
    product = low * high
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    h = (16 + swapped + high + ((product & MASK64) ^ (product >> 64))) & MASK64
    h = ((h ^ (h >> 37)) * 0x165667919E3779F9) & MASK64
    return h ^ (h >> 32)


def root_of(digests):
    """Of a dict from chunk to digest."""
    return sum(root_term(chunk, digest) for chunk, digest in digests.items()) & MASK64
