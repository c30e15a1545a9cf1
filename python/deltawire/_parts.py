"""The plan of a sharded model: each chunk's owner, and the pieces that ranks exchange.

Every rank computes the same plan from the same descriptions, and proves that every byte is written
exactly once. It consists of pure functions over shapes, and numbers of ranks and nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from deltawire._errors import Error, TensorError
from deltawire._tensors import DTYPE_BYTES, TensorMeta, shape_text

CHUNK_BYTES = 2 << 20  # part of the wire contract
WHOLE, ABSENT = -1, -2  # instead of a cut's number

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A block of elements of a tensor."""

    start: Shape
    shape: Shape

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def cut_of(start: int, size: int, parts: int, part: int) -> tuple[int, int]:
    """Returns part `part` of a range as torch.chunk cuts it: equal ones, then a rest, then empty
    ones."""
    each = -(-size // parts)
    first = min(part * each, size)
    return start + first, min(each, size - first)


def boxes_of(shape: Shape, first: int, last: int) -> Iterator[Box]:
    """Yields the elements [first, last) of a row-major tensor as few boxes, in their order."""
    if first >= last:
        return
    if not shape:
        yield Box((), ())
        return
    inner = math.prod(shape[1:])
    row, end = first // inner, last // inner
    if row * inner < first:  # a row without its first elements
        stop = min(last, (row + 1) * inner)
        yield from _below(row, boxes_of(shape[1:], first - row * inner, stop - row * inner))
        row += 1
    if row < end:
        yield Box((row, *(0 for _ in shape[1:])), (end - row, *shape[1:]))
    if row <= end and max(first, end * inner) < last:
        yield from _below(end, boxes_of(shape[1:], 0, last - end * inner))


def _below(row: int, boxes: Iterator[Box]) -> Iterator[Box]:
    for box in boxes:
        yield Box((row, *box.start), (1, *box.shape))


def pieces_of(shape: Shape, block: Box, first: int, last: int) -> list[Box]:
    """Returns the part of `block` in the elements [first, last) of its tensor."""
    found = []
    for box in boxes_of(shape, first, last):
        start = tuple(max(a, b) for a, b in zip(box.start, block.start))
        size = tuple(
            min(a + n, b + m) - s
            for a, n, b, m, s in zip(box.start, box.shape, block.start, block.shape, start))
        if all(n > 0 for n in size):
            found.append(Box(start, size))
    return found


@dataclass(frozen=True)
class Cut:
    """The cut of a tensor over a mesh of ranks: `ranks` row-major in `mesh`; for each mesh
    dimension the tensor's dimension that it cuts, or None for replicas; and the order of the
    cuts."""

    ranks: tuple[int, ...]
    mesh: Shape
    dims: tuple[int | None, ...]
    order: tuple[int, ...]

    @cached_property
    def replicas(self) -> list[list[tuple[int, Shape]]]:
        """Returns groups of ranks that together have the whole tensor, each rank with its
        coordinate."""
        groups: dict[Shape, list[tuple[int, Shape]]] = {}
        for rank, at in zip(self.ranks, itertools.product(*(range(n) for n in self.mesh))):
            copy = tuple(i for i, dim in zip(at, self.dims) if dim is None)
            groups.setdefault(copy, []).append((rank, at))
        return list(groups.values())

    def block(self, shape: Shape, at: Shape) -> Box:
        """Returns the block of the rank at that coordinate."""
        ranges = [(0, n) for n in shape]
        for axis in self.order:
            dim = self.dims[axis]
            if dim is not None:
                ranges[dim] = cut_of(*ranges[dim], self.mesh[axis], at[axis])
        return Box(tuple(r[0] for r in ranges), tuple(r[1] for r in ranges))


@dataclass
class Description:
    """One rank's share of each registered tensor: a number of `cuts`, WHOLE or ABSENT."""

    cuts: list[Cut] = field(default_factory=list)
    of: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """The part that `source` has of a chunk (counted within the tensor) that another node owns."""

    tensor: int
    chunk: int
    source: int
    target: int


@dataclass
class _Spread:
    """One tensor over the nodes. `runs`: first chunk, last + 1, node. `foreign`: chunk, source and
    owning node of each piece to send."""

    blocks: dict[int, Box]
    runs: list[tuple[int, int, int]]
    foreign: list[tuple[int, int, int]]


class Plan:
    """The plan of one rank. `described`: ranks of equal descriptions, with them. `nodes`: each
    node's ranks. TensorError names a tensor that the ranks' shards do not cover exactly once."""

    def __init__(
        self,
        metas: Sequence[TensorMeta],
        described: Sequence[tuple[Sequence[int], Description]],
        nodes: Sequence[Sequence[int]],
        rank: int,
    ):
        self._metas, self._nodes, self._rank = metas, nodes, rank
        self._node_of = {r: i for i, ranks in enumerate(nodes) for r in ranks}
        self._node = self._node_of[rank]
        self._spreads: dict[tuple[Shape, int, Cut, int], _Spread] = {}
        self._proven: set[tuple[Shape, Cut]] = set()
        self._load: dict[tuple[Cut, ...], list[int]] = {}
        self._of: list[_Spread | None] = []
        #: The rank that gives each whole tensor. A tensor that no rank gives belongs to the first.
        self._writers: list[int] = []
        #: The pieces of tensors that this rank sends or receives, in the order of all ranks.
        self.pieces: list[Piece] = []
        #: Tensors that no rank gives.
        self.absent: set[int] = set()
        self.owned: list[list[tuple[int, int]]] = [[] for _ in nodes]
        #: Tensors of which this rank sends pieces.
        self.sends: set[int] = set()
        for index, meta in enumerate(metas):
            spread, writer = self._spread_of(index, meta, described)
            self._of.append(spread)
            self._writers.append(writer)
        self._give_to_each()
        first = 0
        for index, meta in enumerate(metas):
            for begin, end, node in self._runs(index):
                self._add(node, first + begin, first + end)
            spread = self._of[index]
            for chunk, source, node in () if spread is None else spread.foreign:
                target = nodes[node][(index + chunk) % len(nodes[node])]
                if rank in (source, target):
                    self.pieces.append(Piece(index, chunk, source, target))
                    if source == rank:
                        self.sends.add(index)
            first += self._chunks(index)
        if first == 0:
            raise Error("no tensor of the model has any element, so no node has a part of it")

    @property
    def part(self) -> list[tuple[int, int]]:
        """Returns the chunks of this rank's node: the first and the last + 1 of each range."""
        return self.owned[self._node]

    def block(self, index: int) -> Box | None:
        """Returns this rank's block of a tensor; None: nothing, or all of it."""
        spread = self._of[index]
        return None if spread is None else spread.blocks.get(self._rank)

    def writes_whole(self, index: int) -> bool:
        """Returns whether this rank alone writes the tensor, which is not cut."""
        return self._of[index] is None and self._writers[index] == self._rank

    def is_cut(self, index: int) -> bool:
        return self._of[index] is not None

    def local(self, index: int) -> list[Box] | None:
        """Returns the parts of its block that this rank writes itself; None: all of it."""
        spread, block = self._of[index], self.block(index)
        if spread is None or block is None:
            return []
        if len(spread.runs) == 1 and spread.runs[0][2] == self._node:
            return None
        meta = self._metas[index]
        per = CHUNK_BYTES // DTYPE_BYTES[meta.dtype]
        total = math.prod(meta.shape)
        return [box for begin, end, node in spread.runs if node == self._node
                for box in pieces_of(meta.shape, block, begin * per, min(end * per, total))]

    def boxes(self, piece: Piece) -> list[Box]:
        """Returns the blocks of a piece, in the order in which their bytes are sent."""
        meta, spread = self._metas[piece.tensor], self._of[piece.tensor]
        assert spread is not None
        per = CHUNK_BYTES // DTYPE_BYTES[meta.dtype]
        total = math.prod(meta.shape)
        return pieces_of(meta.shape, spread.blocks[piece.source], piece.chunk * per,
                         min((piece.chunk + 1) * per, total))

    def _chunks(self, index: int) -> int:
        meta = self._metas[index]
        return -(-math.prod(meta.shape) * DTYPE_BYTES[meta.dtype] // CHUNK_BYTES)

    def _runs(self, index: int) -> list[tuple[int, int, int]]:
        spread = self._of[index]
        if spread is None:
            return [(0, self._chunks(index), self._node_of[self._writers[index]])]
        return spread.runs

    def _give_to_each(self) -> None:
        """Gives each node a chunk, if there are enough, because receivers follow every node's
        sender."""
        counts = [0] * len(self._nodes)
        for index in range(len(self._metas)):
            for begin, end, node in self._runs(index):
                counts[node] += end - begin
        for node, count in enumerate(counts):
            if count:
                continue
            rich = max(range(len(counts)), key=counts.__getitem__)
            cut = [i for i, spread in enumerate(self._of)
                   if spread is not None and any(run[2] == rich for run in spread.runs)]
            if counts[rich] < 2 or not cut:
                continue
            spread, meta = self._of[cut[-1]], self._metas[cut[-1]]
            assert spread is not None
            self._of[cut[-1]] = _given(spread, meta, rich, node, self._node_of)
            counts[rich] -= 1
            counts[node] += 1

    def _add(self, node: int, first: int, last: int) -> None:
        ranges = self.owned[node]
        if first == last:
            return
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))

    def _spread_of(
        self,
        index: int,
        meta: TensorMeta,
        described: Sequence[tuple[Sequence[int], Description]],
    ) -> tuple[_Spread | None, int]:
        cuts: dict[Cut, set[int]] = {}
        whole: list[int] = []
        for ranks, said in described:
            number = said.of[index]
            if number == WHOLE:
                whole.extend(ranks)
            elif number != ABSENT:
                cuts.setdefault(said.cuts[number], set()).update(ranks)
        if whole and cuts:
            other = min(min(ranks) for ranks in cuts.values())
            raise TensorError(
                f'tensor "{meta.name}" is whole at rank {min(whole)} and a shard at rank {other}; '
                "give it alike on all ranks", meta.name)
        if not cuts and not whole:
            self.absent.add(index)
        if not cuts:
            return None, min(whole, default=self._nodes[0][0])
        for cut, ranks in cuts.items():
            self._prove(meta, cut, ranks)
        # Replicas have the same bytes, so they take turns: each node's sender gets its share.
        choices = tuple(sorted(cuts, key=lambda cut: cut.ranks))
        loads = self._load.setdefault(choices, [0] * sum(len(c.replicas) for c in choices))
        chosen = min(range(len(loads)), key=loads.__getitem__)
        loads[chosen] += math.prod(meta.shape) * DTYPE_BYTES[meta.dtype]
        for cut in choices:
            if chosen < len(cut.replicas):
                return self._spread(meta, cut, chosen), -1
            chosen -= len(cut.replicas)
        raise AssertionError("no replica")

    def _prove(self, meta: TensorMeta, cut: Cut, ranks: set[int]) -> None:
        absent = [r for r in cut.ranks if r not in ranks]
        if absent:
            raise TensorError(
                f'tensor "{meta.name}" is cut over ranks {_some(cut.ranks)}, and rank {absent[0]} '
                "does not give its shard, or cuts it otherwise; give the same state dict on all "
                "ranks of its mesh", meta.name)
        if (meta.shape, cut) in self._proven:
            return
        for replica in cut.replicas:
            _prove_tiles(meta, [cut.block(meta.shape, at) for _, at in replica])
        self._proven.add((meta.shape, cut))

    def _spread(self, meta: TensorMeta, cut: Cut, replica: int) -> _Spread:
        width = DTYPE_BYTES[meta.dtype]
        key = meta.shape, width, cut, replica
        if key not in self._spreads:
            blocks = {rank: cut.block(meta.shape, at) for rank, at in cut.replicas[replica]}
            self._spreads[key] = _spread(
                meta, {r: b for r, b in blocks.items() if b.elements}, self._node_of)
        return self._spreads[key]


def _given(spread: _Spread, meta: TensorMeta, giver: int, node: int,
           node_of: Mapping[int, int]) -> _Spread:
    """Returns the same with the last chunk of `giver` owned by `node`."""
    at = max(i for i, run in enumerate(spread.runs) if run[2] == giver)
    begin, end, _ = spread.runs[at]
    runs = spread.runs[:at] + [(end - 1, end, node)] + spread.runs[at + 1:]
    if begin < end - 1:
        runs.insert(at, (begin, end - 1, giver))
    per = CHUNK_BYTES // DTYPE_BYTES[meta.dtype]
    last = min(end * per, math.prod(meta.shape))
    foreign = [f for f in spread.foreign if f[0] != end - 1]
    foreign += [(end - 1, rank, node) for rank, block in sorted(spread.blocks.items())
                if node_of[rank] != node
                and pieces_of(meta.shape, block, (end - 1) * per, last)]
    return _Spread(spread.blocks, runs, sorted(foreign))


def _some(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")


def _prove_tiles(meta: TensorMeta, blocks: Sequence[Box]) -> None:
    """Proves that every element is in exactly one block, by the cells between all blocks' ends."""
    some = [b for b in blocks if b.elements]
    ends = [sorted({0, n, *(b.start[d] for b in some), *(b.start[d] + b.shape[d] for b in some)})
            for d, n in enumerate(meta.shape)]
    place = [{end: i for i, end in enumerate(e)} for e in ends]
    seen: set[Shape] = set()
    count = 0
    for b in some:
        ranges = [range(p[s], p[s + n]) for p, s, n in zip(place, b.start, b.shape)]
        for cell in itertools.product(*ranges):
            if cell in seen:
                raise TensorError(f'tensor "{meta.name}" of shape {shape_text(meta.shape)}: two '
                                  "ranks have the same elements of it", meta.name)
            seen.add(cell)
        count += b.elements
    if count != math.prod(meta.shape):
        raise TensorError(
            f'tensor "{meta.name}" of shape {shape_text(meta.shape)}: the ranks have {count} of its '
            f"{math.prod(meta.shape)} elements", meta.name)


def _spread(meta: TensorMeta, blocks: Mapping[int, Box], node_of: Mapping[int, int]) -> _Spread:
    width = DTYPE_BYTES[meta.dtype]
    total = math.prod(meta.shape)
    chunks = -(-total * width // CHUNK_BYTES)
    per = CHUNK_BYTES // width
    nodes = {node_of[r] for r in blocks}
    if len(nodes) <= 1 or chunks == 0:
        node = min(nodes) if nodes else 0
        return _Spread(dict(blocks), [(0, chunks, node)] if chunks else [], [])
    counts: list[dict[int, int]] = [{} for _ in range(chunks)]  # elements by node
    holders: list[list[int]] = [[] for _ in range(chunks)]
    strides = [math.prod(meta.shape[d + 1:]) for d in range(len(meta.shape))]
    for rank, block in sorted(blocks.items()):
        first = sum(s * n for s, n in zip(block.start, strides))
        last = 1 + first + sum((n - 1) * s for n, s in zip(block.shape, strides))
        dense = last - first == block.elements
        for c in range(first // per, (last - 1) // per + 1):
            begin, end = c * per, min((c + 1) * per, total)
            here = (min(last, end) - max(first, begin) if dense else
                    sum(b.elements for b in pieces_of(meta.shape, block, begin, end)))
            if here:
                node = node_of[rank]
                counts[c][node] = counts[c].get(node, 0) + here
                holders[c].append(rank)
    runs: list[tuple[int, int, int]] = []
    foreign: list[tuple[int, int, int]] = []
    for c, of_node in enumerate(counts):
        most = max(of_node.values())  # columns cut at odd places differ little
        tied = sorted(node for node, n in of_node.items() if 2 * n > most)
        owner = tied[c * len(tied) // chunks]
        if runs and runs[-1][2] == owner:
            runs[-1] = (runs[-1][0], c + 1, owner)
        else:
            runs.append((c, c + 1, owner))
        foreign += [(c, r, owner) for r in holders[c] if node_of[r] != owner]
        if sum(of_node.values()) != min(per, total - c * per):
            raise TensorError(f'tensor "{meta.name}": chunk {c} would not be written once',
                              meta.name)
    return _Spread(dict(blocks), runs, foreign)
