"""NeMo RL: a checkpoint engine for `refit_transport`, for policies and vLLM on different nodes.

    policy.generation:
      refit_transport: "deltawire.integrations.nemo_rl:DeltawireCheckpointEngine"
      refit_cfg:
        "deltawire.integrations.nemo_rl:DeltawireCheckpointEngine":
          directory: /dev/shm/deltawire/policy
          hf_dir: checkpoints/base

NeMo RL calls `prepare` and `init_*_process_group` once (or, with `release_after_refit`, for each
refit), and then for each refit `send_weights` on all policy workers and `receive_weight_batches`
on all vLLM workers. The first policy rank publishes. Read against the file
nemo_rl/utils/checkpoint_engines/base.py of October 2026; not run, as no release has it yet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import AsyncGenerator, Collection, Generator
from typing import Any

from deltawire import Error
from deltawire.integrations._directory import Expected, ReceiverDirectory
from deltawire.integrations._framework import framework_class
from deltawire.integrations._publisher import Publisher

CheckpointEngine = framework_class(
    "the checkpoint engine", "nemo_rl.utils.checkpoint_engines.base:CheckpointEngine")


class DeltawireCheckpointEngine(CheckpointEngine):
    """One worker's end. `bucket_size` and `release_after_refit` are NeMo RL's; the rest is as in
    `deltawire.integrations.verl`."""

    #: Nothing of a GPU's memory is held that would have to be given back.
    cleanup_after_load = False

    def __init__(
        self,
        bucket_size: int,
        *,
        directory: str | os.PathLike[str],
        endpoint: str | os.PathLike[str] = "/dev/shm/deltawire",
        model: str = "policy",
        hf_dir: str | os.PathLike[str],
        timeout: float = 1800.0,
        release_after_refit: bool = False,
        bf16_to_fp16: bool = False,
        keep_dtype: Collection[str] = (),
    ):
        del release_after_refit  # nothing is held that finalize does not release
        self._batch_bytes = bucket_size
        self._arguments = (endpoint, model, hf_dir, timeout, bf16_to_fp16, keep_dtype)
        self._directory = ReceiverDirectory(directory)
        self._timeout = timeout
        self._publisher: Publisher | None = None
        self._publishes = False
        self._last = Expected(0, "")  # of the last refit that was begun

    def prepare(self) -> dict[str, Any]:
        """A worker beside the sender says what is published; which of them is the policy's first
        rank is known only later."""
        told: dict[str, Any] = {"rank": _rank(), "published": None}
        endpoint = os.fspath(self._arguments[0])
        if os.path.exists(endpoint):
            if self._publisher is None:
                self._publisher = Publisher(*self._arguments)
            self._publisher.open(needs_layout=True)
            after = self._publisher.next()
            told |= {"published": after.version - 1, "lineage": after.lineage, "epoch": after.epoch}
        return told

    def init_policy_process_group(
        self,
        *,
        worker_rank: int,
        train_world_size: int,
        rollout_world_size: int,
        metadata: list[Any],
    ) -> None:
        del train_world_size, rollout_world_size
        self._begin_after(metadata)
        self._publishes = worker_rank == 0

    def init_rollout_process_group(
        self,
        *,
        rollout_rank: int,
        train_world_size: int,
        rollout_world_size: int,
        metadata: list[Any],
    ) -> None:
        del rollout_rank, train_world_size, rollout_world_size
        self._begin_after(metadata)

    def _begin_after(self, metadata: list[Any]) -> None:
        """Both sides count refits from what was published then, the policy's metadata first."""
        first = metadata[0]
        if first["published"] is None:
            raise Error(f"the policy's first rank finds no sender at {self._arguments[0]}: start "
                        "deltawire-sender on its node")
        self._last = Expected(first["published"], first["lineage"], first["epoch"])

    def _begin(self) -> Expected:
        self._last = dataclasses.replace(self._last, version=self._last.version + 1)
        return self._last

    def finalize(self) -> None:
        """The publisher stays, for the next refit's `prepare`: to read a checkpoint's headers, and
        to make the class of its model anew, would take seconds of each refit."""
        if self._publisher is not None:
            self._publisher.close()
        self._publishes = False

    async def send_weights(self, weights: Generator[tuple[str, Any], None, None]) -> None:
        """All ranks go through `weights`, whose tensors are gathered on the way."""
        expected = self._begin()
        if not self._publishes:
            for _ in weights:
                pass
            return
        self._publisher.publish(weights, expected.version)

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """Yields all tensors of the refit's version, on the CPU, some `bucket_size` at a time."""
        found = await asyncio.to_thread(self._directory.wait, self._begin(), self._timeout)
        batch: list[tuple[str, Any]] = []
        size = 0
        for name, tensor in self._directory.tensors(found):
            if batch and size + tensor.nbytes > self._batch_bytes:
                yield batch
                batch, size = [], 0
            batch.append((name, tensor))
            size += tensor.nbytes
        if batch:
            yield batch


def _rank() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return 0
    return torch.distributed.get_rank()
