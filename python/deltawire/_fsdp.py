"""Where a DTensor's local shard belongs in the whole tensor, from its mesh and placements.

Works on any object with .shape, .placements and .device_mesh; nothing is communicated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deltawire._errors import TensorError
from deltawire._tensors import shape_text


@dataclass(frozen=True)
class Place:
    """The block of the whole tensor that a rank holds, and whether it is the one to write it."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    writes: bool  # one of several replicas does


def _cut(start: int, size: int, parts: int, part: int) -> tuple[int, int]:
    """Part `part` of a range as torch.chunk cuts it: equal ones, then a rest, then empty ones."""
    each = -(-size // parts)
    first = min(part * each, size)
    return start + first, min(each, size - first)


def check_parts(name: str, tensor: Any, rank: int, world: int) -> None:
    """Raises where a DTensor is cut into more blocks than there are ranks that write, by the manager
    of this rank."""
    parts = 1
    for axis, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            parts *= int(tensor.device_mesh.size(axis))
    if parts > world:
        raise TensorError(
            f'tensor "{name}" is cut over {parts} ranks, and the manager is rank {rank} of {world}: '
            "make it on every rank, with the job's rank and world",
            name,
        )


def place_of(name: str, tensor: Any) -> Place:
    """The place of a DTensor's local shard.

    Raises TensorError for partial sums and for placements that are no block of the tensor.
    """
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    ranges = [(0, int(n)) for n in tensor.shape]
    if coordinate is None:  # this rank is outside the tensor's mesh
        return Place(tuple(0 for _ in ranges), tuple(0 for _ in ranges), False)
    writes = True
    first = all(int(at) == 0 for at in coordinate)
    shards: list[tuple[int, int, Any]] = []  # in the order in which the tensor was cut
    outer: list[tuple[int, int, Any]] = []
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            writes = writes and coordinate[axis] == 0
        elif placement.is_partial():
            raise TensorError(
                f'tensor "{name}" is a partial sum over mesh dimension {axis}; redistribute it to '
                "Replicate or Shard first",
                name,
            )
        elif hasattr(placement, "split_factor"):
            # FSDP over tensor parallelism: cut last, though its mesh dimension comes first.
            outer.insert(0, (axis, placement.dim, placement))
        else:
            shards.append((axis, placement.dim, placement))
    for axis, dim, _ in shards + outer:
        dim %= len(ranges)
        ranges[dim] = _cut(*ranges[dim], mesh.size(axis), coordinate[axis])
    # A rank that has none of a tensor's rows does not write it: another may have all of them. A
    # tensor without any element has one writer too.
    empty = any(size == 0 for _, size in ranges)
    writes = first if 0 in tuple(tensor.shape) else writes and not empty
    place = Place(tuple(r[0] for r in ranges), tuple(r[1] for r in ranges), writes)
    local = tuple(tensor.to_local().shape)
    if local != place.shape and not (0 in local and 0 in place.shape):
        raise TensorError(
            f'tensor "{name}": the local shard is {shape_text(local)}, by its placements '
            f"{tensor.placements} it would be {shape_text(place.shape)}; redistribute it to plain "
            "Shard placements first",
            name,
        )
    return place
