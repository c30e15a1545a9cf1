"""WeightManager: registers a model, offloads versions of it, waits until they are published."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from deltawire import _core, _zero3
from deltawire._async import in_thread
from deltawire._attempt import agree_attempt, checked_endpoint, checked_version, job_of_store
from deltawire._background import Copies, Offloading, copied_params
from deltawire._errors import (
    AbandonedError,
    DeadlineError,
    Error,
    RefusedError,
    TensorError,
    told,
)
from deltawire._fsdp import Place, check_parts, place_of
from deltawire._gpu_diff import DiffLog
from deltawire._hub import checkpoint_dir, refused
from deltawire._layout import Layout
from deltawire._megatron import (
    Gather,
    Sources,
    check_place,
    check_root,
    job_rank,
    live_tensors,
    parallel_config,
)
from deltawire._megatron_ddp import finish_param_gathers
from deltawire._megatron_job import MegatronJob, telling
from deltawire._names import Reconciled, base_of, is_module, tensors_of
from deltawire._nodes import Nodes, place_in
from deltawire._overlap import Overlap, is_lazy
from deltawire._parts import Box
from deltawire._pinning import PinnedHalves
from deltawire._progress import Progress, Wanted, shown
from deltawire._side_parts import SideParts, checkpoint_of, log_names, no_collections
from deltawire._stream import StreamWriter
from deltawire._tensors import TensorMeta, is_dtensor
from deltawire._writing import (
    NamedTensors,
    is_source,
    json_text,
    metas_and_ties,
    pairs_of,
    settled,
    twice,
)

#: Seconds of one call of an asynchronous wait.
_SLICE_S = 0.2


@dataclass(frozen=True)
class Published:
    """A version that receivers can pull. Sizes in bytes, times in seconds."""

    epoch: int
    version: int
    model_bytes: int
    delta_bytes: int
    full_bytes: int
    elements: int
    changed_elements: int
    trainer_wait_seconds: float
    offload_seconds: float
    publish_seconds: float
    ready_unix_nanos: int
    lineage: str  # of the sender's model, 32 hex digits; versions rise within a lineage
    root: int  # digest over all bytes: equal identities mean equal bytes
    attempt: int
    published_unix_nanos: int


@dataclass(frozen=True)
class Offloaded:
    """What this rank has written of a version. `wait()` returns when the version is published."""

    version: int
    tensors: int  # tensors of which this rank wrote all or part
    bytes_written: int
    waited_seconds: float  # until nobody read the memory, before the first write
    seconds: float  # the whole call
    attempt: int  # of this offload; 0 on ranks that do not talk to a sender
    _manager: WeightManager = field(repr=False)

    def wait(self, timeout: float | None = None) -> Published:
        """Blocks until the version, or a newer one, is published."""
        return self._manager.wait_published(self.version, timeout)

    async def wait_async(self, timeout: float | None = None) -> Published:
        """`wait` beside an event loop. No other call of the manager may run meanwhile."""
        return await self._manager.wait_published_async(self.version, timeout)


class WeightManager:
    """Writes one rank's tensors into the sender's memory. Not thread-safe.

    `endpoint`: the sender's trainer socket or its data directory. `rank` of `world`: the processes
    that write a version together; it is published when all of them are ready. `timeout`: seconds
    that a call waits for the sender. `copy_threads`: 0: a few. `ignore_extra`: True, or names of
    given tensors that are not part of the model and are left out; "tied": those torch tensors whose
    bytes are, in the same version, those of a registered tensor. `overlap`: a generator's tensor
    is copied while the generator makes the next one, so two are held at once, and each must stay as
    it is until the next one is handed over: a collective that gathers into the same memory again
    would publish a mixture. Parameters, and what is not of torch, are copied before the generator
    goes on. False: so is everything. `keep_dtype`: names of tensors, or patterns such as
    "*norm.weight", that are registered in the dtype that they are given in, whatever `dtype` and
    `hf_dir` say. `job`: names one start of the job, the same text on all ranks and another one after
    a restart, so that no rank completes what a dead run has left. It matters with `world` > 1;
    ranks of torch.distributed need not give it. `node_ranks`: where the ranks of torch.distributed
    share several nodes, each with a sender of its own: those on this node, instead of `rank` and
    `world`. Then `register` and `offload_fsdp` are calls of all ranks, and a receiver follows all
    senders. `progress`: is called with a `Progress` for each tensor, on the thread that writes; True:
    shows a bar of tqdm on rank 0, or log lines where tqdm is not installed. Megatron has none.
    `gpu_base`: True makes a GPU keep a copy of what this rank writes from it, so that later versions
    are diffed there and only changes leave it. It takes the rank's bytes once more, in the
    registered dtype: on the GPU as long as an eighth of its memory stays free, and else in pinned
    host memory. Not run on a device.
    """

    def __init__(
        self,
        endpoint: str | os.PathLike[str] = "/dev/shm/deltawire",
        model: str = "policy",
        rank: int = 0,
        world: int = 1,
        timeout: float = 30.0,
        copy_threads: int = 0,
        ignore_extra: bool | Collection[str] | Literal["tied"] = False,
        overlap: bool = False,
        keep_dtype: Collection[str] = (),
        job: str = "",
        node_ranks: Collection[int] | None = None,
        progress: Wanted = None,
        gpu_base: bool = False,
    ):
        self._endpoint = checked_endpoint(endpoint)
        self._nodes = None if node_ranks is None else Nodes(node_ranks)
        if self._nodes is not None:
            if (rank, world) != (0, 1) and (rank, world) != self._nodes.place:
                raise Error(f"with node_ranks this is rank {self._nodes.place[0]} of "
                            f"{self._nodes.place[1]} at the node's sender; leave rank and world out")
            rank, world = self._nodes.place
        self._options = (timeout, copy_threads)
        self._client = _core.Client(
            self._endpoint, model, rank, world, max(1, round(timeout * 1000)), copy_threads
        )
        self._model, self._rank, self._world, self._job_name = model, rank, world, job
        self._layout = Layout(model, ignore_extra, keep_dtype)
        if self._layout.leaves_ties and world > 1:  # others write what a tensor may be a copy of
            raise Error(f'ignore_extra="tied" is for a model that one rank writes, not {world}')
        self._known: Mapping[str, Any] = {}  # what register was told of the published version
        self._overlap = overlap
        self._progress = progress
        self._side = SideParts(None, ())
        self._copies = Copies()
        self._background: Offloading | None = None  # the last one
        self._pending: _core.Offload | None = None  # written, but notify() is due
        self._adapters: dict[str, WeightManager] = {}
        self._job = MegatronJob(copy_threads)
        self._halves = PinnedHalves()
        # What is pinned must not be unmapped; at the program's end the driver sees to it.
        weakref.finalize(self, self._halves.close).atexit = False
        self._gpu_base, self._diff_log = gpu_base, DiffLog(model, rank)
        self._writer = StreamWriter(model, rank, self._layout, self._halves, gpu_base)
        self._registered: _core.Megatron | None = None  # the plan whose tensors are registered

    def __enter__(self) -> WeightManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Abandons an offload that awaits notify(), and waits for one in the background. The
        manager may be used again."""
        self._settle_last()
        self._copies = Copies()
        if self._pending is not None:
            self._pending.close()
            self._pending = None
        self._job.close()
        self._halves.close()
        for adapter in self._adapters.values():
            adapter.close()

    def _settle(self) -> None:
        if self._background is not None:
            self._background.settle()

    def _settle_last(self) -> None:
        """Before the next version, which may have the number of one that has failed."""
        self._settle()
        self._background = None

    @property
    def epoch(self) -> int:
        """Of the version that `register` has returned last."""
        return self._known.get("epoch", 0)

    @property
    def lineage(self) -> str:
        """The history in which the sender counts this model's versions, 32 hex digits, as
        `register` found it; "": not registered. A sender that makes the model anew draws another
        one, and uses version numbers again."""
        return self._known.get("lineage", "")

    @property
    def root(self) -> int:
        """The digest over all bytes of the version that `register` has returned last."""
        return self._known.get("root", 0)

    @property
    def tensors_meta(self) -> tuple[TensorMeta, ...]:
        """The registered tensors, in the order of their memory at both ends; empty before."""
        return tuple(self._layout.metas)

    @property
    def tied(self) -> Mapping[str, str]:
        """Names left out, since their tensor has another name too -> that name in the model."""
        return dict(self._layout.tied)

    def register(
        self,
        tensors: NamedTensors | Iterable[TensorMeta | tuple[str, Any, Iterable[int]]],
        side_files: Mapping[str, bytes | str] | None = None,
        hf_dir: str | os.PathLike[str] | None = None,
        replace: bool = False,
        dtype: Any = None,
    ) -> int:
        """Registers the model, sizing the sender's buffers; returns its published version, or 0.

        `tensors`: TensorMeta or (name, dtype, shape), or the tensors themselves with their names.
        Of tensors that share their memory one name becomes part of the model, as in a saved
        checkpoint: that of `hf_dir`'s weights, else the first that is not lm_head. Offloads check
        that the others are still equal to it. Receivers put `side_files` (name -> content) and the
        small files of `hf_dir` beside the weights (a directory, or a model's name in the local cache
        of the Hugging Face Hub); if neither is given, the sender keeps those that
        it has.
        `replace`: drop a model that is registered with another layout. `dtype`: what the tensors in
        F64, F32, F16 and BF16 are registered as, "bfloat16" say. Without it `hf_dir` decides for
        those that are given as tensors: each has the dtype of its namesake in the weights there, or
        if there are none that of config.json, unless some tensor has that already; but none becomes
        larger, and config.json leaves routers' correction biases and A_log as they are, which
        checkpoints and engines have in fp32 beside bf16. With either, offloads cast floats to the registered dtype while they are copied,
        rounding to nearest, ties to even. Integers, 8-bit floats, and bf16 for fp16 are never cast.
        """
        self._settle_last()
        if self._nodes is not None:
            return self._register_nodes(self._nodes, tensors, side_files, hf_dir, replace, dtype)
        hf_dir = None if hf_dir is None else checkpoint_dir(hf_dir)
        with no_collections(not is_lazy(tensors)):  # else one behind each step
            metas, given_metas, found = self._reconciled(tensors, hf_dir, dtype)
            version = self._registered_as(metas, side_files, hf_dir, replace)
        if hf_dir is None and dtype is None and metas == self._layout.metas == given_metas:
            return version  # as it was registered: nothing else was said of it
        self._set(metas, found, hf_dir, dtype)
        return version

    def _register_nodes(
        self,
        nodes: Nodes,
        tensors: Any,
        side_files: Mapping[str, bytes | str] | None,
        hf_dir: str | os.PathLike[str] | None,
        replace: bool,
        dtype: Any,
    ) -> int:
        """`register` by all ranks of several nodes: each registers its node's part."""
        failure, description = None, None
        metas: list[TensorMeta] = []
        try:
            hf_dir = None if hf_dir is None else checkpoint_dir(hf_dir)
            if not (isinstance(tensors, Mapping) or is_module(tensors)):
                raise Error("over several nodes give register the module or its state dict: where "
                            "its shards lie says which node has which part")
            metas, _, found = self._reconciled(tensors, hf_dir, dtype)
            carried = [m.name for m in found.carried]
            state = dict(pairs_of(tensors))
            description = nodes.describe(metas, state, found.names, carried)
        except Exception as error:
            failure = error
        plan = nodes.register(metas, description, failure)
        version: int | None = None
        try:
            if plan.part:
                version = self._registered_as(metas, side_files, hf_dir, replace, plan.part)
        except Exception as error:
            failure = error
        self._layout.set([], {}, casts=False)  # else only some ranks would register again
        versions = nodes.agree(failure, version)
        self._set(metas, found, hf_dir, dtype)
        return min(v for v, in versions if v is not None)

    def _reconciled(
        self, tensors: Any, hf_dir: str | os.PathLike[str] | None, dtype: Any
    ) -> tuple[list[TensorMeta], list[TensorMeta], Reconciled]:
        """What to register, what was given, and how one becomes the other."""
        model = base_of(tensors) if is_module(tensors) else None
        with no_collections(not is_lazy(tensors)):
            given_metas, given_tied, said = metas_and_ties(tensors)
        with no_collections():
            disk, compares = checkpoint_of(hf_dir)
            found = self._layout.reconciled(
                given_metas, given_tied, said, hf_dir, disk if compares else (), model)
            metas = self._layout.stored(found.metas, found.said, hf_dir, dtype, disk)
            metas += found.carried
            if compares:  # one layout, whoever registers the checkpoint's model
                place = {m.name: i for i, m in enumerate(disk)}
                metas.sort(key=lambda m: place[m.name])
        return metas, given_metas, replace(found, compares=compares or model is not None)

    def _set(self, metas: list[TensorMeta], found: Reconciled,
             hf_dir: str | os.PathLike[str] | None, dtype: Any) -> None:
        self._layout.set(
            metas, found.tied, hf_dir is not None or dtype is not None, found.names, found.compared)
        self._side = SideParts(hf_dir, [m.name for m in found.carried])
        log_names(self._model, self._rank, found.names, hf_dir, found.compares)

    def register_checkpoint(
        self, metas: Sequence[TensorMeta], hf_dir: str | os.PathLike[str]
    ) -> int:
        """`register` of tensors that the caller has read from `hf_dir`, and gives by their names
        there: nothing is read or compared again."""
        self._settle_last()
        version = self._registered_as(metas, None, hf_dir, False)
        self._layout.set(list(metas), {}, casts=True)
        self._side = SideParts(None, ())
        return version

    def _registered_as(
        self,
        metas: Sequence[TensorMeta],
        side_files: Mapping[str, bytes | str] | None,
        hf_dir: str | os.PathLike[str] | None,
        replace: bool,
        owned: Sequence[tuple[int, int]] = (),
    ) -> int:
        given = (side_files or {}).items()
        files = [(n, c.encode() if isinstance(c, str) else c) for n, c in given]
        with no_collections():
            tensors = [(m.name, m.dtype, m.shape) for m in metas]
        try:
            result = self._client.register(
                tensors,
                files,
                None if hf_dir is None else os.fspath(hf_dir),
                replace,
                not files and hf_dir is None,
                owned,
            )
        except RefusedError as error:
            raise refused(error, hf_dir) from None
        self._known = result
        self._registered = None
        self._side.written(False)
        return result["version"]

    @overload
    def offload(
        self, named_tensors: NamedTensors, version: int, unchanged: Collection[str] = (),
        notify: bool = True, attempt: int = 0, dtype: Any = None, wait: Literal[True] = True,
    ) -> Offloaded: ...

    @overload
    def offload(
        self, named_tensors: NamedTensors, version: int, unchanged: Collection[str] = (),
        notify: bool = True, attempt: int = 0, dtype: Any = None, *, wait: Literal[False],
    ) -> Offloading: ...

    def offload(
        self,
        named_tensors: NamedTensors,
        version: int,
        unchanged: Collection[str] = (),
        notify: bool = True,
        attempt: int = 0,
        dtype: Any = None,
        wait: bool = True,
    ) -> Offloaded | Offloading:
        """Writes a version: begin, copy, ready. Returns when this rank's part is done.

        `named_tensors`: (HF name, tensor) pairs, a mapping, or a callable that gives either. Of a
        generator's tensors one is held at a time; with `overlap` two, and while one is copied the
        generator, on this thread, makes the next one. The first call
        registers the model from it if `register` was not called, and then it must be iterable
        twice. `unchanged`: names that the sender carries over from the published version, which has
        to be this rank's last; they may be left out. With `world` > 1 each rank gives the tensors
        that it has, each of them whole.
        `notify=False`: this rank is ready only after `notify()`. `attempt`: a number that ties the
        ranks' parts together, the same on all ranks and different for each offload
        (`draw_attempt`); 0: the sender draws it for the first rank, and the others of its job join
        that offload. `dtype`: as in `register`, for the call that registers the model; a model that is
        registered must have it already. `wait=False`: returns an `Offloading` as soon as the tensors
        are copied into host memory of this process, and may be changed; a thread writes the version
        from there, and the manager's next call waits for that thread.

        Raises a TensorError that names the tensor when one is missing, unknown, or of another
        shape or dtype, and then abandons the version for all ranks. A RefusedError, once,
        where names are `unchanged` and this rank's last version was lost or rolled back.
        """
        version = checked_version(version)
        self._settle_last()
        if self._nodes is not None:
            raise Error("a manager with node_ranks publishes shards: use offload_fsdp")
        if not self._layout.metas:
            self.register(twice(named_tensors), dtype=dtype)
        elif dtype is not None:
            self._layout.cast_to(dtype)
        share = _core.SHARE_WHOLE if self._world == 1 else _core.SHARE_PART

        def place(name: str, tensor: Any) -> tuple[Place, int]:
            if is_dtensor(tensor):
                raise TensorError(
                    f'tensor "{name}" is a DTensor; use offload_fsdp, or give its full_tensor()',
                    name,
                )
            shape = tuple(int(n) for n in getattr(tensor, "shape", ()))
            return Place((), shape, True), share

        if is_source(named_tensors):
            named_tensors = named_tensors()
        pairs, partly = pairs_of(named_tensors), self._world > 1
        if wait:
            lazy = is_lazy(named_tensors)
            return self._offload(
                pairs, version, unchanged, notify, place, partly, attempt, self._overlap and lazy,
                lasting=not lazy)
        self._check_background(notify, False)
        copies, events = self._copies.take(pairs, not is_lazy(named_tensors))
        return self._begin_background(version, events, lambda: self._offload(
            iter(copies), version, unchanged, True, place, partly, attempt))

    def offload_fsdp(
        self,
        module_or_state_dict: Any,
        version: int,
        unchanged: Collection[str] = (),
        notify: bool = True,
        attempt: int = 0,
        dtype: Any = None,
        wait: bool = True,
    ) -> Offloaded | Offloading:
        """Writes a version of a sharded model: every rank writes its own rows, without gathering.

        Call it on every rank. A DTensor's shard (FSDP2, any dimension, uneven, 2-D meshes, HSDP)
        goes to its place in the whole tensor; the first of several replicas writes. Rank 0 alone
        writes tensors that are not DTensors (a full FSDP1 state dict, buffers). The first call
        registers the model with the whole tensors' shapes. `attempt`, `dtype`, `wait`: as in
        `offload`, but not over several nodes, whose ranks talk while they write;
        mixed precision has fp32 masters, which `dtype="bfloat16"` publishes as an engine wants
        them. A mapping of named_parameters() is no state dict: it may hold old, whole parameters of
        some forward.
        """
        version = checked_version(version)
        self._settle_last()
        given = module_or_state_dict
        state = given if isinstance(given, Mapping) else tensors_of(given)
        if not state:
            raise Error(
                f"rank {self._rank}: the state dict is empty; with rank0_only=True make the "
                "WeightManager on rank 0 alone, with world=1, and use offload there"
            )
        if not self._layout.metas:
            self.register(given, dtype=dtype)
        elif dtype is not None:
            self._layout.cast_to(dtype)
        if not wait:
            self._check_background(notify, self._nodes is not None)
        if self._nodes is not None:
            return self._offload_nodes(self._nodes, state, version, unchanged, notify, attempt)
        # A wrong rank or world is told before the version begins: ranks that all take themselves
        # for rank 0 would otherwise hear of each other's offload and not of the cause.
        for name, tensor in pairs_of(state):
            if self._layout.has(name, tensor) and is_dtensor(tensor):
                check_parts(name, tensor, self._rank, self._world)

        def place(name: str, tensor: Any) -> tuple[Place, int]:
            shape = tuple(int(n) for n in getattr(tensor, "shape", ()))
            if not is_dtensor(tensor):
                return Place((), shape, self._rank == 0), _core.SHARE_WHOLE
            where = place_of(name, tensor)
            # Ranks' blocks do not overlap, so the sender diffs a chunk when its blocks are
            # finished.
            return where, _core.SHARE_WHOLE if where.shape == shape else _core.SHARE_BLOCK

        if wait:
            return self._offload(
                pairs_of(state), version, unchanged, notify, place, partly=False, attempt=attempt
            )
        # Joined tensors are gathered here: the ranks' collectives stay on the thread that trains.
        named = self._layout.converted(pairs_of(state), ())
        copies, events = self._copies.take(named, True, shards=True)
        return self._begin_background(version, events, lambda: self._offload(
            iter(copies), version, unchanged, True, place, False, attempt, is_converted=True))

    def _check_background(self, notify: bool, others: bool) -> None:
        if not notify:
            raise Error("with wait=False nobody can say when to notify: leave notify=False out")
        if others:
            raise Error("ranks that talk to one another while they write do it on the thread that "
                        "trains: leave wait=False out")

    def _begin_background(
        self, version: int, events: Sequence[Any], write: Callable[[], Offloaded]
    ) -> Offloading:
        def settled_write() -> Offloaded:
            for event in events:
                event.synchronize()
            return write()

        self._background = Offloading(version, settled_write)
        return self._background

    def _offload_nodes(
        self,
        nodes: Nodes,
        state: Mapping[str, Any],
        version: int,
        unchanged: Collection[str],
        notify: bool,
        attempt: int,
    ) -> Offloaded:
        started = time.monotonic()
        layout = self._layout
        failure, description, keep = None, None, set[str]()
        try:
            keep = layout.registered(unchanged)
            description = nodes.describe(layout.metas, state, layout.names, self._side.names)
        except Exception as error:
            failure = error
        attempt = nodes.begin(layout.metas, description, keep, version, attempt, failure)
        plan = nodes.plan
        assert plan is not None
        kept = {layout.index[name] for name in keep}
        given = {m.name for i, m in enumerate(layout.metas) if i not in plan.absent}
        layout.check_complete(given, keep)
        _, supplied = self._side.of_version(nodes.is_first)
        current: list[_core.Offload] = []

        def alive() -> None:
            for offload in current:
                offload.check()

        def write(offload: _core.Offload | None) -> tuple[int, int]:
            held: dict[int, tuple[Any, Box]] = {}
            if offload is not None:
                current.append(offload)

            def place(name: str, tensor: Any) -> tuple[Place, int]:
                index = layout.index.get(name)
                if index is None:
                    return place_in(plan, layout.index[layout.tied[name]], tensor)
                block = plan.block(index)
                if index in plan.sends and block is not None:
                    held[index] = settled(tensor), block
                return place_in(plan, index, tensor)

            with Overlap(False) as copies, self._reported(version) as report:
                tensors, written = self._writer.write(
                    offload, layout.converted(iter(state.items()), supplied), keep, place, True,
                    copies, report)
            if offload is not None:
                offload.mark_unchanged(sorted(kept))
                # A tensor without elements is in no chunk, so no rank has a block of it.
                empty = [i for i, m in enumerate(layout.metas) if 0 in m.shape]
                offload.mark_written([i for i in empty if i not in kept], _core.SHARE_PART)
            step("written")
            written += nodes.exchange(offload, held, layout.metas, kept, plan)
            step("sent")
            return tensors, written

        with nodes.together(alive) as step:
            if plan.part:
                return self._offload_by(version, notify, started, attempt, write)
            tensors, _ = write(None)
            return Offloaded(version, tensors, 0, 0.0, time.monotonic() - started, 0, self)

    def offload_zero3(
        self, module: Any, version: int, bucket_bytes: int = 1 << 30, notify: bool = True
    ) -> Offloaded:
        """Writes a version of a module that DeepSpeed ZeRO-3 has partitioned.

        Call it on every rank, each with a manager of rank 0 and world 1: parameters of about
        `bucket_bytes` are gathered at a time, on all ranks, and the job's first rank writes them
        whole. `register(module, hf_dir=...)` on that rank compares the names with a checkpoint;
        without it the first call registers the module. If the first rank fails, it goes on
        gathering, raises, and the others raise an AbandonedError with its reason.
        """
        started, version = time.monotonic(), checked_version(version)
        self._settle_last()
        stream = _zero3.gathered(module, bucket_bytes)
        if _zero3.rank() != 0:
            for _ in stream:
                pass
            failure = _zero3.agree("")
            if failure:
                raise AbandonedError(f"the job's first rank has not written version {version}: "
                                     f"{failure}")
            return Offloaded(version, 0, 0, 0.0, time.monotonic() - started, 0, self)
        try:
            if not self._layout.metas:
                self.register(module)
            done = self.offload(stream, version, notify=notify)
        except Exception as error:
            for _ in stream:  # the others gather every parameter with this rank
                pass
            _zero3.agree(told(error))
            raise
        _zero3.agree("")
        return done

    def offload_megatron(
        self,
        models: Any,
        parallel_state: Any,
        hf_dir: str | os.PathLike[str],
        version: int,
        *,
        parallel: Mapping[str, Any] | None = None,
        family: str = "",
        families: Sequence[str | os.PathLike[str]] = (),
        node_ranks: Sequence[int] | None = None,
        gather: Gather | None = None,
        notify: bool = True,
        attempt: int | None = None,
        wait: bool = True,
    ) -> Offloaded | Offloading:
        """Writes a version of a Megatron job: every rank copies its shards to their HF places.

        Call it on every rank, with the manager's `rank` and `world` those of the job, or with one
        sender on each node: then `node_ranks` are the job's ranks on this node, the manager's
        `rank` and `world` count these ranks, and a receiver follows all senders. A node whose ranks
        hold only copies needs no sender: give an empty list there. `models`: the model chunks,
        wrapped or not; where the optimizer leaves the gather of parameters to the next forward
        (`overlap_param_gather`), it is finished first, a collective of the data-parallel groups:
        call it after the step, on the thread that trains. `parallel_state`:
        megatron.core.parallel_state, or an object with the same methods. `hf_dir`: the HF model
        directory; config.json is enough, and if it has weights, their names, order, shapes and
        dtypes are used. `parallel`: settings that override those of the models
        (docs/model_families.md). `families`: directories of further families. `gather`: for ranks
        that do not share the sender's memory; then only the rank `gather.root` talks to the sender
        (make its manager with rank 0 of world 1). If a rank fails before the gather, as the root
        does where no sender answers, all ranks get the error, and the next version may be gathered;
        if one fails within it, the group ends (give another `job`). `attempt`: a number that ties
        the parts of several senders together, the same on every rank of the job and different for
        each offload. Without it, the sender draws one; but with `node_ranks` the job's first rank
        draws it and torch.distributed hands it to the others, so every rank must make the call.
        `wait=False`: as in `offload`; not with `gather`, whose ranks talk while they write.

        The first call plans, proves that the ranks' shards make up every byte exactly once, and
        registers the model. Before the first byte each rank's parameters are compared with the plan;
        an error names those that are missing, unknown or of another shape or dtype.
        """
        started, version = time.monotonic(), checked_version(version)
        self._settle_last()
        if not wait:
            self._check_background(notify, gather is not None)
        if attempt is None:
            attempt = 0 if node_ranks is None else agree_attempt()
        config = {**parallel_config(models, parallel_state), **(parallel or {})}
        # First, so that a rank that fails on its own leaves no other one waiting in a collective.
        finish_param_gathers(models)
        rank = job_rank(parallel_state, config)
        root = gather is None or rank == gather.root
        if node_ranks is not None and len(node_ranks) == 0:
            root = False
        world = config["tp"] * config["cp"] * config["dp"] * config["pp"]
        if root and gather is None:
            # A rank that takes itself for the only one would publish its own part as all of it.
            writers = range(world) if node_ranks is None else node_ranks
            check_place(self._rank, self._world, rank, writers)

        def prepare() -> tuple[_core.Megatron, Sources]:
            plan = self._job.plan(checkpoint_dir(hf_dir), config, family, families)
            if root:
                self._register_plan(plan, node_ranks)
            sources = Sources(live_tensors(models))
            plan.check(rank, sources.params)
            return plan, sources

        if gather is not None:
            group = self._job.meeting(gather, rank, world)
            return self._gather(prepare, group, gather, rank, version, notify, started, attempt)
        plan, sources = prepare()
        if not root:
            seconds = time.monotonic() - started
            return Offloaded(version, len(sources.params), 0, 0.0, seconds, 0, self)

        if wait:
            return self._offload_by(version, notify, started, attempt, lambda offload: (
                len(sources.params),
                plan.place(offload, rank, sources.params, self._gpu_base)))
        params, memory = copied_params(sources.params, sources.held)

        def write(offload: _core.Offload) -> tuple[int, int]:
            placed = plan.place(offload, rank, params)
            memory.clear()
            return len(params), placed

        return self._begin_background(version, (), lambda: self._offload_by(
            version, True, started, attempt, write))

    def notify(self) -> None:
        """Tells the sender that this rank's part of the last `notify=False` offload is written."""
        self._settle()
        if self._pending is None:
            raise Error("nothing to notify: call offload(..., notify=False) first")
        try:
            self._pending.ready()
        finally:
            self._pending.close()
            self._pending = None

    def wait_published(self, version: int, timeout: float | None = None) -> Published:
        """Blocks until `version` or a newer one is published; `timeout` in seconds.

        Raises AbandonedError, with the reason, as soon as another rank dies, hangs or gives up. On
        the main thread Ctrl-C ends it at once, as it does where a sender is waited for.
        """
        version = self._awaited(version)
        self._settle()
        if self._background is not None and self._background.version == version:
            self._background.result()
        return self._wait_in_sender(version, timeout)

    def _awaited(self, version: int) -> int:
        """Refuses what cannot be waited for."""
        if self._nodes is not None and self._nodes.plan is not None and not self._nodes.plan.part:
            raise Error("no sender of this node has a part of the model, since its ranks hold only "
                        "copies; wait on another node")
        return checked_version(version, least=0)

    def _wait_in_sender(self, version: int, timeout: float | None) -> Published:
        millis = 0 if timeout is None else max(1, round(timeout * 1000))
        return Published(**self._client.wait_published(version, millis))

    async def wait_published_async(self, version: int, timeout: float | None = None) -> Published:
        """`wait_published` beside an event loop. A task that is cancelled leaves the manager free;
        until then no other call of the manager may run."""
        version = self._awaited(version)
        if (background := self._background) is not None:
            await background.settle_async()
            if background.version == version:
                background.result()
        end = time.monotonic() + (self._options[0] if timeout is None else timeout)
        while True:
            left = max(0.001, end - time.monotonic())
            try:
                # A thread in the library's call cannot be ended, so each call is short.
                return await in_thread(lambda: self._wait_in_sender(version, min(left, _SLICE_S)))
            except DeadlineError:
                if time.monotonic() >= end:
                    raise

    def publish_lora(
        self,
        adapter_named_tensors: NamedTensors,
        version: int,
        model: str | None = None,
        adapter_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        replace: bool = False,
    ) -> Published:
        """Publishes a LoRA adapter's tensors alone, as a small model of their own.

        `model`: the adapter's name at the sender, "<this model>-lora" if not given; never this
        model's. A model of another layout that is registered under a name that was given may be
        anything: RefusedError, unless `replace`.
        `adapter_config`: the content of adapter_config.json beside the weights, as a mapping or a
        file's path. Call it on one rank, with all of the adapter's tensors. Returns when the
        version is published.
        """
        name = model or f"{self._model}-lora"
        version = checked_version(version)
        if name == self._model:
            raise ValueError(f'publish_lora(model="{name}") would replace the base model of that '
                             "name; give the adapter a name of its own, or none")
        self._settle()
        if name not in self._adapters:
            timeout, threads = self._options
            self._adapters[name] = WeightManager(
                self._endpoint, name, timeout=timeout, copy_threads=threads
            )
        adapter = self._adapters[name]
        tensors = twice(adapter_named_tensors)
        metas, _, _ = metas_and_ties(tensors)
        if adapter_config is not None or tuple(metas) != adapter.tensors_meta:
            side = {}
            if adapter_config is not None:
                side["adapter_config.json"] = json_text(adapter_config)
            ours = model is None or bool(adapter.tensors_meta)
            adapter.register(tensors, side_files=side, replace=replace or ours)
        return adapter.offload(tensors, version).wait()

    # Megatron jobs -----------------------------------------------------------------------------

    def _register_plan(self, plan: _core.Megatron, node_ranks: Sequence[int] | None) -> None:
        if self._registered is plan:
            return
        plan.register(self._client, None if node_ranks is None else list(node_ranks), False)
        self._layout.set([TensorMeta.of(t) for t in plan.tensors_meta()], {}, casts=False)
        self._registered = plan

    def _gather(
        self,
        prepare: Callable[[], tuple[_core.Megatron, Sources]],
        group: _core.Collective,
        gather: Gather,
        rank: int,
        version: int,
        notify: bool,
        started: float,
        attempt: int,
    ) -> Offloaded:
        with telling(group) as agree:
            if rank == gather.root:
                check_root(self._rank, self._world, rank)
            plan, sources = prepare()
            bucket = gather.bucket_size()

            def run(offload: _core.Offload | None) -> tuple[int, int]:
                agree()
                done = plan.gather(group, offload, rank, sources.params, bucket)
                return len(sources.params), done["network_bytes"]

            if rank == gather.root:
                return self._offload_by(version, notify, started, attempt, run)
            tensors, sent = run(None)
            return Offloaded(version, tensors, sent, 0.0, time.monotonic() - started, 0, self)

    def _offload_by(
        self,
        version: int,
        notify: bool,
        started: float,
        attempt: int,
        write: Callable[[_core.Offload], tuple[int, int]],
    ) -> Offloaded:
        """Begins, calls `write`, gets ready; if one of these fails, abandons for all ranks."""
        if self._pending is not None:
            self._pending.close()
            self._pending = None
        job = self._job_name or (job_of_store() if self._world > 1 else "")
        offload = None
        try:
            offload = self._client.begin(version, attempt, job)
            attempt = offload.attempt
            tensors, written = write(offload)
            if notify:
                offload.ready()
            if self._gpu_base:
                self._diff_log.say(offload.diffed_on)
        except BaseException as error:
            if offload is not None:
                # The other ranks get the reason; if the agent is gone, there is nobody to tell.
                try:
                    offload.abandon(told(error))
                except Error:
                    pass
                offload.close()
            raise
        waited = offload.waited_seconds
        if notify:
            offload.close()
        else:
            self._pending = offload
        seconds = time.monotonic() - started
        return Offloaded(version, tensors, written, waited, seconds, attempt, self)

    @contextlib.contextmanager
    def _reported(self, version: int) -> Iterator[Callable[[str, int, int, int], None]]:
        with shown(self._progress, self._model, self._rank) as show:
            yield (lambda *_: None) if show is None else (
                lambda *done: show(Progress(version, *done)))

    # Steps of every offload -------------------------------------------------------------------

    def _offload(
        self,
        named: Iterator[tuple[str, Any]],
        version: int,
        unchanged: Collection[str],
        notify: bool,
        place: Callable[[str, Any], tuple[Place, int]],
        partly: bool,
        attempt: int,
        overlap: bool = False,
        is_converted: bool = False,
        lasting: bool = True,
    ) -> Offloaded:
        started = time.monotonic()
        keep = self._layout.registered(unchanged)
        carried, supplied = self._side.of_version(self._rank == 0)
        keep |= carried
        named = itertools.chain(named, supplied) if is_converted else (
            self._layout.converted(named, supplied))

        def write(offload: _core.Offload) -> tuple[int, int]:
            # No copy may run when the offload is given up.
            with Overlap(overlap) as copies, self._reported(version) as report:
                done = self._writer.write(
                    offload, named, keep, place, partly, copies, report, lasting)
            offload.mark_unchanged(sorted(self._layout.index[n] for n in keep))
            return done

        is_sure = False
        try:
            written = self._offload_by(version, notify, started, attempt, write)
            is_sure = self._world == 1 and notify
        finally:
            self._side.written(is_sure)
        return written
