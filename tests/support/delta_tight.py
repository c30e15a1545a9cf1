"""The codec tight of docs/delta_format.md (version 3), laid out like its section of the document.

The rest of the format is in delta_decoder.py, which says how both are written.
"""

import ctypes
import struct

from delta_decoder import (BLOCK, MASK64, TIGHT, Bits, check_head, decode_fast, elements_of, need,
                           packed_columns)

# Class

EXPONENT = {  # class function: width, lowest bit, bits
    1: (2, 7, 8),
    2: (2, 10, 5),
    3: (4, 23, 8),
    4: (1, 3, 4),
    5: (1, 2, 5),
}


def exponents(old, width, function):
    if function == 0:
        return [0] * (len(old) // width)
    need(function in EXPONENT and EXPONENT[function][0] == width, "class function")
    _, low, bits = EXPONENT[function]
    values = struct.unpack("<%d%s" % (len(old) // width, "BH?I"[width - 1]), old)
    return [v >> low & (1 << bits) - 1 for v in values]


def class_of(exponent, base):
    return min(max(exponent - base, 0), 15)


# History

ROW_OF_AGE = [0, 1, 2, 3, 3, 4, 4, 4, 4]  # also the highest row that can occur at a depth


def rows_and_directions(deltas, n):
    """`deltas` newest first; direction is True for a negative difference."""
    rows, negative = [0] * n, [False] * n
    for age in range(len(deltas), 0, -1):  # the newest overwrites
        for i, d in deltas[age - 1]:
            rows[i], negative[i] = ROW_OF_AGE[age], d < 0
    return rows, negative


def xxh3(data):
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64
    return function(data, len(data))


def context_of(payloads):
    """Of fast payloads, newest first; empty ones where the chunk did not change."""
    checks = [xxh3(p) if p else 0 for p in payloads]
    return xxh3(struct.pack("<%dQ" % len(checks), *checks)) & 0xFFFFFFFF


# Payload

P = [32, 512, 1966, 4588, 8520, 13763, 20316, 27525, 35389, 43254, 49807, 55706, 60293, 63570,
     64881, 65405]
H = [739, 11865, 46076, 109795, 210681, 356608, 561331, 824045, 1174692, 1632013, 2158872,
     2869978, 3820826, 5304696, 6967419, 9402137]
P_BEYOND = 4096


def weight_of_code(r):
    return (4 + (r - 1) % 4) << (r - 1) // 4


class Parameters:
    def __init__(self):
        self.weight = [[0] * 16 for _ in range(5)]  # of row and class
        self.same = [[0] * 16 for _ in range(5)]
        self.q1, self.q2, self.m = [], [], 0


def read_levels(bits, most):
    count = bits.take(5)
    need(count <= most, "number of levels")
    levels = [bits.take(4) for _ in range(count)]
    need(count == 0 or levels[-1] != 0, "the last level is 0")
    return levels + [0] * (most - count)


def read_parameters(bits, depth):
    p = Parameters()
    mask = bits.take(16)
    for c in range(16):
        if mask >> c & 1:
            r = bits.take(7)
            need(1 <= r <= 88, "rate code")
            p.weight[0][c] = weight_of_code(r)
    for row in range(1, ROW_OF_AGE[depth] + 1):
        mask = bits.take(16)
        for c in range(16):
            if mask >> c & 1:
                p.weight[row][c] = H[bits.take(4)]
                p.same[row][c] = bits.take(4)
    p.q1 = read_levels(bits, 16)
    p.q2 = read_levels(bits, 15)
    p.m = bits.take(4)
    return p


# Survival function

ONE = 1 << 31
OCTAVE = 1 << 20


def survival_table():
    table, t = [], 1 << 62
    for _ in range(1024):
        table.append(t >> 31)
        t = t * 0xFFD3A751C0F7E10B >> 64
    return table + [1 << 30]


T = survival_table()


def survival(s):
    """G."""
    i, r = s >> 10 & 1023, s & 1023
    return T[i] - ((T[i] - T[i + 1]) * r >> 10) >> (s >> 20)


# Arithmetic coder


class Coder:
    """The coder's state, and the bytes that come of it."""

    def __init__(self):
        self.low, self.range, self.out = 0, MASK64, bytearray()

    def interval(self, a, b):
        u = self.range >> 31
        self.narrow(u * a, u * (b - a))

    def decision(self, p, yes):
        u = (self.range >> 16) * p
        self.narrow(0, u) if yes else self.narrow(u, self.range - u)

    def raw(self, k, x):
        u = self.range >> k
        self.narrow(u * x, u)

    def narrow(self, start, size):
        self.low += start
        self.range = size
        if self.low > MASK64:
            self.carry()
            self.low &= MASK64

    def normalise(self):
        while self.range < 1 << 56:
            self.out.append(self.low >> 56)
            self.low = self.low << 8 & MASK64
            self.range <<= 8

    def carry(self):
        at = len(self.out) - 1
        while self.out[at] == 255:
            self.out[at] = 0
            at -= 1
        self.out[at] += 1

    def finish(self):
        for k in range(9):
            unit = 1 << 64 - 8 * k
            end = (self.low + unit - 1) // unit * unit
            if end - self.low < self.range:
                break
        if end > MASK64:
            self.carry()
        self.out += (end & MASK64).to_bytes(8, "big")[:k]
        return bytes(self.out).rstrip(b"\0")


class Decoder(Coder):
    """Reads a stream, and makes what an encoder would have made of the same events."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream
        self.ahead = int.from_bytes(stream[:8].ljust(8, b"\0"), "big")  # the stream less low

    def narrow(self, start, size):
        self.ahead -= start
        need(0 <= self.ahead < size, "a point in no interval")
        super().narrow(start, size)

    def normalise(self):
        at = len(self.out) + 8
        super().normalise()
        more = self.stream[at:len(self.out) + 8].ljust(len(self.out) + 8 - at, b"\0")
        self.ahead = self.ahead << 8 * len(more) | int.from_bytes(more, "big")

    def point(self):
        v = self.ahead // (self.range >> 31)
        need(v < ONE, "a point in no interval")
        return v

    def decide(self, p):
        yes = self.ahead < (self.range >> 16) * p
        self.decision(p, yes)
        return yes

    def take(self, k):
        x = self.ahead // (self.range >> k)
        need(x < 1 << k, "a point in no interval")
        self.raw(k, x)
        return x


# Lanes

EVEN = 32768  # the probability of a sign


def lanes_of(n, lane_bits):
    """The elements of each lane, in order."""
    part = BLOCK >> lane_bits
    lanes = [[] for _ in range(1 << lane_bits)]
    for at in range(0, n, part):
        lanes[at // part % len(lanes)].extend(range(at, min(at + part, n)))
    return lanes


def longer_probability(p, c, j):
    """Of the decision "L > j" for an element of class c."""
    if j == 1:
        return P[p.q1[c]]
    x = c + j - 1
    return P[p.q2[x - 1]] if x <= 15 else P_BEYOND


def read_difference(coder, p, width, row, c, direction):
    def decide(probability):
        yes = coder.decide(probability)
        coder.normalise()
        return yes

    if row == 0:
        negative = coder.decide(EVEN)
    else:
        negative = direction if decide(P[p.same[row][c]]) else not direction
    length, most = 1, 8 * width
    while length < most and decide(longer_probability(p, c, length)):
        length += 1
    size = 1
    if length == most:
        need(negative, "an abs(d) that does not fit")
        size = 1 << most - 1
    elif length >= 2:
        size = 2 | decide(P[p.m])
        left = length - 2
        while left > 0:
            k = min(left, 16)
            size = size << k | coder.take(k)
            coder.normalise()
            left -= k
    return -size if negative else size


def decode_lane(stream, elements, width, p, classes, rows, directions):
    coder, changes, s = Decoder(stream), [], 0
    next_one, end = 0, len(elements)
    while True:
        v = coder.point()
        while next_one < end and s < 8 * OCTAVE:
            at = elements[next_one]
            h = p.weight[rows[at]][classes[at]]
            if survival(s + h) <= v:
                break
            s += h
            next_one += 1
        if next_one == end or s >= 8 * OCTAVE:
            coder.interval(0, survival(s))  # end, or skip
            coder.normalise()
            if next_one == end:
                break
        else:
            coder.interval(survival(s + h), survival(s))
            d = read_difference(coder, p, width, rows[at], classes[at], directions[at])
            changes.append((at, d))
            next_one += 1
        s = 0
    need(coder.finish() == stream, "not what an encoder would have written")
    return changes


def decode_tight(payload, old, width, history=()):
    """`history`: fast payloads of the deltas that led to `old`, newest first, empty where the
    chunk did not change; at least as many as the payload's depth."""
    n = elements_of(len(old), width)
    check_head(payload, TIGHT, width)
    need(len(payload) >= 6, "truncated")
    function, lane_bits, reserved = payload[3] & 15, payload[3] >> 4 & 3, payload[3] >> 6
    base, depth, at = payload[4], payload[5], 6
    need(reserved == 0, "reserved")
    need(lane_bits <= 2, "lanes")
    need(depth <= 8, "depth")
    need(len(history) >= depth, "history that is not there")
    history = history[:depth]
    if depth > 0:
        need(len(payload) >= at + 4, "truncated")
        need(int.from_bytes(payload[at:at + 4], "little") == context_of(history), "context")
        at += 4
    classes = [class_of(e, base) for e in exponents(old, width, function)]
    past = [decode_fast(h, len(old), width) if h else [] for h in history]
    rows, directions = rows_and_directions(past, n)
    bits = Bits(payload[at:])
    p = read_parameters(bits, depth)
    lanes = lanes_of(n, lane_bits)
    sizes = packed_columns(bits, 1, len(lanes))
    at += bits.pad()
    result = []
    for elements, (size,) in zip(lanes, sizes):
        stream = payload[at:at + size]
        need(len(stream) == size, "truncated")
        at += size
        result += decode_lane(stream, elements, width, p, classes, rows, directions)
    result.sort()
    need(at == len(payload), "bytes after the last stream")
    need(result, "no change")
    return result
