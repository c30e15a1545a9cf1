"""The place of a DTensor's local shard in the whole tensor, from its mesh and placements.

Works on any object with .shape, .placements and .device_mesh, without communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deltawire._errors import TensorError
from deltawire._parts import Box, Cut
from deltawire._tensors import shape_text


@dataclass(frozen=True)
class Place:
    """The block of the whole tensor that a rank holds, and whether this rank writes it."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    writes: bool  # true for one of several replicas
    boxes: tuple[Box, ...] | None = None  # its blocks for this node's sender; None: all

    def parts(self, local: Any) -> Iterator[tuple[Any, Place]]:
        """Yields the blocks of `local` for this node's sender."""
        if self.boxes is None:
            yield local, self
            return
        for box in self.boxes:
            yield view_of(local, self.start, box), Place(box.start, box.shape, True)


def view_of(local: Any, begins: Sequence[int], box: Box) -> Any:
    """Returns a box of a tensor as a view of `local`, a block that begins there."""
    for dim, (start, size) in enumerate(zip(box.start, box.shape)):
        local = local.narrow(dim, start - begins[dim], size)
    return local


def check_parts(name: str, tensor: Any, rank: int, world: int) -> None:
    """Raises if a DTensor is cut into more blocks than there are writing ranks, on this rank's
    manager."""
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


def cut_of(name: str, tensor: Any) -> Cut:
    """Returns how a DTensor is cut over all ranks of its mesh.

    Raises TensorError for partial sums and for placements that are not a block of the tensor.
    """
    mesh = tensor.device_mesh
    rank = len(tensor.shape)
    dims: list[int | None] = []
    inner: list[int] = []  # mesh dimensions in the order of the cuts
    outer: list[int] = []
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            dims.append(None)
            continue
        if placement.is_partial():
            raise TensorError(
                f'tensor "{name}" is a partial sum over mesh dimension {axis}; redistribute it to '
                "Replicate or Shard first",
                name,
            )
        dims.append(placement.dim % rank)
        if hasattr(placement, "split_factor"):
            # FSDP over tensor parallelism: cut last, although its mesh dimension comes first.
            outer.insert(0, axis)
        else:
            inner.append(axis)
    ranks = tuple(int(r) for r in mesh.mesh.flatten().tolist())
    return Cut(ranks, tuple(int(n) for n in mesh.mesh.shape), tuple(dims), (*inner, *outer))


def block_of(name: str, tensor: Any, cut: Cut) -> Box | None:
    """Returns this rank's block of a DTensor, or None outside of the tensor's mesh."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    block = cut.block(tuple(int(n) for n in tensor.shape), tuple(int(at) for at in coordinate))
    local = tuple(tensor.to_local().shape)
    if local != block.shape and not (0 in local and 0 in block.shape):
        raise TensorError(
            f'tensor "{name}": the local shard is {shape_text(local)}, by its placements '
            f"{tensor.placements} it would be {shape_text(block.shape)}; redistribute it to plain "
            "Shard placements first",
            name,
        )
    return block


def place_of(name: str, tensor: Any) -> Place:
    """Returns the place of a DTensor's local shard. Raises as `cut_of` and `block_of`."""
    cut = cut_of(name, tensor)
    block = block_of(name, tensor, cut)
    if block is None:
        return Place(tuple(0 for _ in tensor.shape), tuple(0 for _ in tensor.shape), False)
    at = tensor.device_mesh.get_coordinate()
    # A rank without any of a tensor's rows does not write it: another may have all of them. A
    # tensor without elements has one writer, too.
    if 0 in tuple(tensor.shape):
        writes = all(int(i) == 0 for i in at)
    else:
        writes = block.elements > 0 and all(
            dim is not None or int(i) == 0 for i, dim in zip(at, cut.dims))
    return Place(block.start, block.shape, writes)
