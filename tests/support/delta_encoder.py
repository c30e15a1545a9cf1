"""A plain encoder of docs/delta_format.md (version 3): fast, tight, and how encoders choose the
parameters of tight.

Its payloads must equal the kernels' byte for byte. Definitions that both directions share (tables,
classes, history, the arithmetic coder) come from delta_decoder.py and delta_tight.py. Deltas are
lists of (element, signed difference), in order.
"""

from delta_decoder import (BLOCK, FAST, TIGHT, blocks_of, decode_fast, gaps_between, order, rice,
                           sparse_bytes)
from delta_tight import (EVEN, OCTAVE, ONE, P, H, ROW_OF_AGE, Coder, class_of, context_of,
                         exponents, lanes_of, longer_probability, rows_and_directions, survival,
                         weight_of_code)


class BitWriter:
    def __init__(self):
        self.out, self.word, self.used = bytearray(), 0, 0

    def put(self, value, n):
        assert 0 <= value < 1 << n
        self.word |= value << self.used
        self.used += n
        whole = self.used // 8
        self.out += (self.word & (1 << 8 * whole) - 1).to_bytes(whole, "little")
        self.word >>= 8 * whole
        self.used -= 8 * whole

    def zeros(self, n):
        """n zeros and a one."""
        self.put(1 << n, n + 1)

    def finish(self):
        self.put(0, -self.used % 8)
        return bytes(self.out)


def put_columns(bits, rows):
    columns = list(zip(*rows))
    minima = [min(column) for column in columns]
    widths = [(max(column) - low).bit_length() for column, low in zip(columns, minima)]
    for width, low in zip(widths, minima):
        bits.put(width, 5)
        bits.put(low, 27)
    for row in rows:
        for value, low, width in zip(row, minima, widths):
            bits.put(value - low, width)


def differences(old, new, width):
    result, modulus = [], 1 << 8 * width
    for i in range(len(old) // width):
        place = slice(i * width, (i + 1) * width)
        if old[place] != new[place]:
            d = int.from_bytes(new[place], "little") - int.from_bytes(old[place], "little")
            result.append((i, (d + modulus // 2) % modulus - modulus // 2))
    return result


# fast


def sparse_stream(changes, m):
    bits = BitWriter()
    k = rice(len(changes), m)
    gaps = gaps_between([at for at, _ in changes])
    for gap in gaps:
        bits.put(gap & (1 << k) - 1, k)
    for _, d in changes:
        bits.put(d < 0, 1)
    for gap in gaps:
        bits.zeros(gap >> k)
    large = [i for i, (_, d) in enumerate(changes) if abs(d) >= 2]
    if large:
        k = rice(len(large), len(changes))
        gaps = gaps_between(large)
        for gap in gaps:
            bits.put(gap & (1 << k) - 1, k)
        for gap in gaps:
            bits.zeros(gap >> k)
        values = [abs(changes[i][1]) - 2 for i in large]
        j = order(values)
        bits.put(j, 6)
        for v in values:
            u = (v >> j) + 1
            low = u.bit_length() - 1
            bits.zeros(low)
            bits.put(u & (1 << low) - 1, low)
            bits.put(v & (1 << j) - 1, j)
    return bits.finish()


def by_block(changes, blocks):
    result, at = [], 0
    for block in blocks:
        inside = []
        while at < len(changes) and changes[at][0] < block.stop:
            inside.append((changes[at][0] - block.start, changes[at][1]))
            at += 1
        result.append(inside)
    return result


def encode_fast(changes, n, width):
    """Empty where there is no change."""
    if not changes:
        return b""
    blocks = blocks_of(n)
    rows, streams = [], []
    for block, inside in zip(blocks, by_block(changes, blocks)):
        m, large = len(block), sum(abs(d) >= 2 for _, d in inside)
        if not inside:
            stream = b""
        elif sparse_bytes(inside, m) < m * width:
            stream = sparse_stream(inside, m)
            assert len(stream) == sparse_bytes(inside, m)
        else:
            every = [0] * m
            for at, d in inside:
                every[at] = d
            stream = b"".join(d.to_bytes(width, "little", signed=True) for d in every)
            large = 0
        rows.append((len(inside), large, len(stream)))
        streams.append(stream)
    table = BitWriter()
    put_columns(table, rows)
    head = bytes([3, FAST, width, 0]) + n.to_bytes(4, "little")
    return head + table.finish() + b"".join(streams)


# tight: choice of parameters

LEVEL_BORDERS = [173, 1083, 3103, 6374, 10975, 16901, 23843, 31444, 39388, 46643, 52932, 58208,
                 62181, 64341, 65210]


def choose_lanes(changed):
    return 2 if changed >= 2048 else 1 if changed >= 1024 else 0


def choose_base(changed_exponents):
    enough = max(1, len(changed_exponents) // 256)
    high = sorted(changed_exponents, reverse=True)[enough - 1]
    return max(0, high - 14)


def rate_code(k, n):
    for r in range(1, 88):
        h = (weight_of_code(r) + weight_of_code(r + 1)) // 2
        if (ONE - survival(h)) * n >= ONE * k:
            return r
    return 88


def level(count):
    k, n = count
    if n == 0:
        return 0
    for l, border in enumerate(LEVEL_BORDERS):
        if 65536 * k <= n * border:
            return l
    return 15


class Counts:
    """Each count is [how many, of how many]."""

    def __init__(self):
        def pairs(n):
            return [[0, 0] for _ in range(n)]
        self.changed = [pairs(16) for _ in range(5)]  # of row and class
        self.same = [pairs(16) for _ in range(5)]
        self.q1, self.q2, self.m = pairs(16), pairs(15), [0, 0]

    @staticmethod
    def add(pair, yes):
        pair[0] += yes
        pair[1] += 1


def counted_changes(changes):
    return changes[::4] if len(changes) > 4096 else changes


def count_rates(counts, changes, classes, rows, directions):
    """With history."""
    for row, c in zip(rows, classes):
        counts.changed[row][c][1] += 1
    for at, d in changes:
        row, c = rows[at], classes[at]
        counts.changed[row][c][0] += 1
        counts.add(counts.same[row][c], (d < 0) == directions[at])


def estimate_rates(counts, changes, classes):
    """Without history: from some elements and changes for all where there are many."""
    each, of_many = 4 if len(changes) > 4096 else 1, len(classes) > BLOCK
    for at, _ in counted_changes(changes):
        counts.changed[0][classes[at]][0] += each
    for first in range(0, len(classes), 512 * 8 if of_many else 512):
        for c in classes[first:first + 512]:
            counts.changed[0][c][1] += 1
    for pair in counts.changed[0]:
        if of_many:
            pair[1] = 8 * pair[1] + 4
        if each > 1:
            pair[0] = max(pair[0], 1)
        if of_many or each > 1:
            pair[1] = max(pair[1], pair[0] + 1)


def count_differences(counts, changes, width, classes):
    for at, d in counted_changes(changes):
        c, length = classes[at], abs(d).bit_length()
        for j in range(1, min(length, 8 * width - 1) + 1):
            x = c + j - 1
            if j == 1:
                counts.add(counts.q1[c], length > 1)
            elif x <= 15:
                counts.add(counts.q2[x - 1], length > j)
        if 2 <= length < 8 * width:
            counts.add(counts.m, abs(d) >> length - 2 & 1)


class Choice:
    """Parameters as levels and rate codes; a rate of None means that its mask bit is 0."""

    def __init__(self, counts):
        self.rate = [[level(c) if c[0] else None for c in row] for row in counts.changed]
        self.rate[0] = [rate_code(*c) if c[0] else None for c in counts.changed[0]]
        self.same = [[level(c) for c in row] for row in counts.same]
        self.q1 = [level(c) for c in counts.q1]
        self.q2 = [level(c) for c in counts.q2]
        self.m = level(counts.m)

    def scramble(self, draw):
        """Others that can code the same changes: where there is a rate, it stays one."""
        for row in range(5):
            for c in range(16):
                if self.rate[row][c] is not None or draw.random() < .3:
                    self.rate[row][c] = draw.randrange(1, 89) if row == 0 else draw.randrange(16)
                self.same[row][c] = draw.randrange(16)
        self.q1 = [draw.randrange(16) for _ in self.q1]
        self.q2 = [draw.randrange(16) for _ in self.q2]
        self.m = draw.randrange(16)

    def weight(self, row, c):
        rate = self.rate[row][c]
        if rate is None:
            return 0
        return H[rate] if row > 0 else weight_of_code(rate)


def put_levels(bits, levels):
    stored = len(levels)
    while stored > 0 and levels[stored - 1] == 0:
        stored -= 1
    bits.put(stored, 5)
    for l in levels[:stored]:
        bits.put(l, 4)


def put_parameters(bits, choice, depth):
    for row in range(ROW_OF_AGE[depth] + 1):
        mask = [c for c in range(16) if choice.rate[row][c] is not None]
        bits.put(sum(1 << c for c in mask), 16)
        for c in mask:
            if row == 0:
                bits.put(choice.rate[row][c], 7)
            else:
                bits.put(choice.rate[row][c], 4)
                bits.put(choice.same[row][c], 4)
    put_levels(bits, choice.q1)
    put_levels(bits, choice.q2)
    bits.put(choice.m, 4)


# tight: streams


def put_difference(coder, d, choice, width, row, c, direction):
    def decide(p, yes):
        coder.decision(p, yes)
        coder.normalise()

    if row == 0:
        coder.decision(EVEN, d < 0)
    else:
        decide(P[choice.same[row][c]], (d < 0) == direction)
    size, most = abs(d), 8 * width
    length = size.bit_length()
    for j in range(1, most):
        decide(longer_probability(choice, c, j), length > j)
        if length == j:
            break
    if 2 <= length < most:
        decide(P[choice.m], size >> length - 2 & 1 == 1)
        left = length - 2
        while left > 0:
            k = min(left, 16)
            left -= k
            coder.raw(k, size >> left & (1 << k) - 1)
            coder.normalise()


def lane_stream(changed, elements, choice, width, classes, rows, directions):
    coder, s = Coder(), 0

    def put_rest():  # skip, or end
        coder.interval(0, survival(s))
        coder.normalise()

    for at in elements:
        if s >= 8 * OCTAVE:
            put_rest()
            s = 0
        h = choice.weight(rows[at], classes[at])
        if at in changed:
            coder.interval(survival(s + h), survival(s))
            put_difference(coder, changed[at], choice, width, rows[at], classes[at],
                           directions[at])
            s = 0
        else:
            s += h
    put_rest()
    return coder.finish()


def encode_tight(changes, old, width, function, history=(), draw=None, lanes=None):
    """`history`: fast payloads of the deltas that led to `old`, newest first, empty where the
    chunk did not change. With `draw` (a random.Random) the parameters are any that a decoder must
    accept, not the format's choice; without it `lanes` sets the field of that name alone. REQUIRES:
    at least one change."""
    n, depth = len(old) // width, len(history)
    e = exponents(old, width, function)
    lane_bits = choose_lanes(len(changes)) if lanes is None else lanes
    base = choose_base([e[at] for at, _ in counted_changes(changes)])
    if draw:
        base = draw.choice((0, base, max(0, base - 3), base + 5))
        lane_bits = draw.randrange(3)
    classes = [class_of(x, base) for x in e]
    past = [decode_fast(h, len(old), width) if h else [] for h in history]
    rows, directions = rows_and_directions(past, n)
    counts = Counts()
    if depth > 0:
        count_rates(counts, changes, classes, rows, directions)
    else:
        estimate_rates(counts, changes, classes)
    count_differences(counts, changes, width, classes)
    choice = Choice(counts)
    if draw:
        choice.scramble(draw)
    changed = dict(changes)
    streams = [lane_stream(changed, elements, choice, width, classes, rows, directions)
               for elements in lanes_of(n, lane_bits)]
    head = bytes([3, TIGHT, width, function | lane_bits << 4, base, depth])
    if depth > 0:
        head += context_of(history).to_bytes(4, "little")
    bits = BitWriter()
    put_parameters(bits, choice, depth)
    put_columns(bits, [(len(s),) for s in streams])
    return head + bits.finish() + b"".join(streams)
