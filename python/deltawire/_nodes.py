"""A sharded job over several nodes, each with a sender that owns a part of the model.

Ranks meet over torch.distributed's default group: all of them call, in the same order. Bytes in a
chunk of another node's part go there point to point, with at most two chunks in memory. Not
thread-safe. An error on one rank is raised on all, before any of them is ready.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from deltawire import _core
from deltawire._attempt import distributed, draw_attempt
from deltawire._errors import AbandonedError, Error, told
from deltawire._fsdp import Place, block_of, cut_of, view_of
from deltawire._names import Names
from deltawire._parts import ABSENT, WHOLE, Box, Cut, Description, Piece, Plan
from deltawire._tensors import TensorMeta, is_dtensor, torch_dtype

_PATIENCE_S = 120.0  # wait for ranks that still write when the others are done
_ASKED_EVERY = timedelta(milliseconds=200)
_SENT_AT_ONCE = 2


class Nodes:
    """The nodes of a job. `node_ranks`: the job's ranks on this node."""

    def __init__(self, node_ranks: Collection[int]):
        group = distributed()
        if group is None:
            raise Error("node_ranks is for a job of torch.distributed, which is not initialized; "
                        "call torch.distributed.init_process_group first")
        self._group = group
        self.rank, self._world = group.get_rank(), group.get_world_size()
        self._here = tuple(int(r) for r in node_ranks)
        if self.rank not in self._here:
            raise Error(f"rank {self.rank} is none of node_ranks; give the job's ranks on this node")
        self.plan: Plan | None = None
        self._described: list[bytes] = []  # of each rank, at the plan's making
        self._settled = ""  # the last offload's key

    @property
    def place(self) -> tuple[int, int]:
        """Returns rank and world among those that write to this node's sender."""
        return self._here.index(self.rank), len(self._here)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def describe(self, metas: Sequence[TensorMeta], state: Mapping[str, Any], names: Names | None,
                 carried: Collection[str]) -> Description:
        """Describes this rank's share of each of `metas`. `carried`: the tensors that only the
        first rank has."""
        index = {meta.name: i for i, meta in enumerate(metas)}
        said = Description([], [ABSENT] * len(metas))
        numbers: dict[Cut, int] = {}
        for name, tensor in state.items():
            for target, is_same in [(name, True)] if names is None else names.becomes(name, tensor):
                at = index.get(target)
                if at is None:
                    continue
                if not (is_same and is_dtensor(tensor)):
                    said.of[at] = WHOLE
                    continue
                cut = cut_of(name, tensor)
                block_of(name, tensor, cut)
                said.of[at] = numbers.setdefault(cut, len(numbers))
        if self.is_first:
            for name in carried:
                said.of[index[name]] = WHOLE
        said.cuts = list(numbers)
        return said

    def agree(self, failure: BaseException | None = None, *more: Any) -> list[tuple[Any, ...]]:
        """Returns all ranks' values. Raises on all if one has failed."""
        said: list[Any] = [None] * self._world
        self._group.all_gather_object(said, (None if failure is None else told(failure), *more))
        for rank, (words, *_) in enumerate(said):
            if words is not None:
                if failure is not None:
                    raise failure
                raise AbandonedError(f"rank {rank} has failed: {words}")
        return [tuple(rest) for _, *rest in said]

    def register(self, metas: Sequence[TensorMeta], description: Description | None,
                 failure: BaseException | None) -> Plan:
        """Plans from all ranks' descriptions, and proves the plan."""
        mine = b"" if description is None else _digest(metas, description)
        said = self.agree(failure, mine, self._here)
        assert description is not None
        digests, nodes = [d for d, _ in said], [n for _, n in said]
        self._check_nodes(nodes)
        # Ranks of one mesh have the same description, and one of them sends it to the others.
        told_by = {digest: rank for rank, digest in reversed(list(enumerate(digests)))}
        tells = told_by[mine] == self.rank
        everything = self.agree(None, (list(metas), description) if tells else None)
        described = []
        try:
            for digest, rank in told_by.items():
                its_metas, its = everything[rank][0]
                if its_metas != list(metas):
                    raise Error(f"rank {rank} registers other tensors than rank {self.rank}; "
                                "register the same list on all ranks (hf_dir= names it)")
                described.append(([r for r, d in enumerate(digests) if d == digest], its))
            plan = Plan(metas, described, sorted(set(nodes)), self.rank)
        except Error as error:
            self.agree(error)
            raise
        self.agree()
        self.plan, self._described = plan, digests
        return plan

    def begin(self, metas: Sequence[TensorMeta], description: Description | None,
              keep: Collection[str], version: int, attempt: int,
              failure: BaseException | None) -> int:
        """Returns the attempt of all ranks' offload, of the same version by the same plan."""
        mine = b"" if description is None else _digest(metas, description)
        drawn = (attempt or draw_attempt()) if self.is_first else 0
        settled, self._settled = self._settled, ""
        said = self.agree(failure, mine, version, sorted(keep), drawn)
        if settled and self.is_first:  # all have read it
            with contextlib.suppress(RuntimeError, NotImplementedError):
                for key in (f"{settled}/written", f"{settled}/sent"):
                    self._store().delete_key(key)
                    self._store().delete_key(f"{key}/count")
        for rank, (digest, its_version, its_keep, _) in enumerate(said):
            if its_version != version or its_keep != sorted(keep):
                raise Error(f"rank {rank} offloads version {its_version}, and rank {self.rank} "
                            f"version {version}, or other tensors are unchanged there; give the "
                            "same on all ranks")
            if digest != self._described[rank]:
                raise Error(f"rank {rank} gives other tensors or shards than when the model was "
                            "registered; register again with replace=True on all ranks")
        self._settled = f"deltawire/{said[0][3]:016x}"
        return said[0][3]

    @contextlib.contextmanager
    def together(self, alive: Callable[[], None]) -> Iterator[Callable[[str], None]]:
        """Yields a function that returns when all ranks have reached a named step. If one has
        failed before, it raises on all. `alive` raises once this rank's offload is over."""
        steps = deque(("written", "sent"))

        def step(name: str) -> None:
            assert steps.popleft() == name
            self._meet(name, alive)

        try:
            yield step
        except BaseException as error:
            with contextlib.suppress(Exception):  # the store is gone with the job
                for name in steps:
                    self._store().compare_set(f"{self._settled}/{name}", "",
                                              f"rank {self.rank}: {told(error)}")
            raise

    def exchange(
        self,
        offload: _core.Offload | None,
        held: Mapping[int, tuple[Any, Box]],
        metas: Sequence[TensorMeta],
        keep: Collection[int],
        plan: Plan,
    ) -> int:
        """Sends this rank's pieces, and writes those that it receives; returns the bytes of these.
        `held`: the local shards by tensor. After an error it continues to the end, because other
        ranks wait for this one, and raises then."""
        failed: list[Exception] = []
        running: deque[tuple[Any, Any, Piece]] = deque()
        written = 0

        def finish() -> None:
            nonlocal written
            work, buffer, piece = running.popleft()
            try:
                work.wait()
                if piece.target == self.rank and not failed and offload is not None:
                    written += _write(offload, metas[piece.tensor], piece, plan.boxes(piece), buffer)
            except Exception as error:
                failed.append(error)

        for piece in plan.pieces:  # in one order on all ranks, so their waits form no cycle
            if piece.tensor in keep:
                continue
            if len(running) == _SENT_AT_ONCE:
                finish()
            meta = metas[piece.tensor]
            try:
                buffer = self._buffer(meta, plan.boxes(piece))
                if piece.source == self.rank:
                    if not failed:
                        _pack(buffer, meta, plan.boxes(piece), *held[piece.tensor])
                    work = self._group.isend(buffer, piece.target)
                else:
                    work = self._group.irecv(buffer, piece.source)
            except Exception as error:
                failed.append(error)
                continue
            running.append((work, buffer, piece))
        while running:
            finish()
        if failed:
            raise failed[0]
        return written

    def _buffer(self, meta: TensorMeta, boxes: Sequence[Box]) -> Any:
        import torch  # pylint: disable=import-outside-toplevel

        count = sum(box.elements for box in boxes)
        width = torch_dtype(meta.dtype).itemsize
        on_host = "cpu" in self._group.get_backend_config()
        device = "cpu" if on_host else torch.device("cuda", torch.cuda.current_device())
        return torch.empty(count * width, dtype=torch.uint8, device=device)

    def _meet(self, name: str, alive: Callable[[], None]) -> None:
        store, key = self._store(), f"{self._settled}/{name}"
        if store.add(f"{key}/count", 1) == self._world:
            store.compare_set(key, "", "all")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                store.wait([key], _ASKED_EVERY)
                break
            except RuntimeError:  # not yet
                alive()
                if time.monotonic() > deadline:
                    raise AbandonedError(
                        f"not all ranks have written their parts {_PATIENCE_S:.0f} s after rank "
                        f"{self.rank}; look at the others' logs") from None
        words = store.get(key).decode()
        if words != "all":
            raise AbandonedError(f"the version is abandoned: {words}")

    def _store(self) -> Any:
        return self._group.distributed_c10d._get_default_store()

    def _check_nodes(self, nodes: Sequence[tuple[int, ...]]) -> None:
        for rank, here in enumerate(nodes):
            for other in here:
                if not 0 <= other < self._world or nodes[other] != here:
                    raise Error(
                        f"rank {rank} says that its node has the ranks {list(here)}, and rank "
                        f"{other} does not; give all ranks of a node the same node_ranks")


def place_in(plan: Plan, index: int, tensor: Any) -> tuple[Place, int]:
    """Returns the place of a tensor, or of this rank's shard of it, in StreamWriter's form."""
    shape = tuple(int(n) for n in getattr(tensor, "shape", ()))
    if not plan.is_cut(index):
        return Place((), shape, plan.writes_whole(index)), _core.SHARE_WHOLE
    block, boxes = plan.block(index), plan.local(index)
    if block is None:
        return Place((), shape, False), _core.SHARE_NONE
    whole = block.shape == shape and boxes is None
    return (Place(block.start, block.shape, boxes is None or bool(boxes),
                  None if boxes is None else tuple(boxes)),
            _core.SHARE_WHOLE if whole else _core.SHARE_BLOCK)


def _digest(metas: Sequence[TensorMeta], description: Description) -> bytes:
    text = hashlib.blake2b(digest_size=16)
    text.update(repr([(m.name, m.dtype, m.shape) for m in metas]).encode())
    text.update(repr(description.cuts).encode())
    text.update(array("i", description.of).tobytes())
    return text.digest()


def _pack(buffer: Any, meta: TensorMeta, boxes: Sequence[Box], local: Any, block: Box) -> None:
    import torch  # pylint: disable=import-outside-toplevel

    flat = buffer.view(torch_dtype(meta.dtype))
    at = 0
    with torch.no_grad():
        for box in boxes:
            flat[at : at + box.elements].view(box.shape).copy_(view_of(local, block.start, box))
            at += box.elements


def _write(offload: _core.Offload, meta: TensorMeta, piece: Piece, boxes: Sequence[Box],
           buffer: Any) -> int:
    buffer = buffer.cpu()
    width = torch_dtype(meta.dtype).itemsize
    address = buffer.data_ptr()
    for box in boxes:
        offload.write(piece.tensor, address, width, box.shape, None, box.start, _core.SHARE_BLOCK,
                      _core.HOST_MEMORY)
        address += box.elements * width
    return buffer.numel()
