"""verl: the checkpoint engine `deltawire`, for trainers and rollouts on different nodes.

    actor_rollout_ref.rollout.checkpoint_engine:
      backend: deltawire
      custom_backend_module: deltawire.integrations.verl
      engine_kwargs: {deltawire: {directory: /dev/shm/deltawire/policy, hf_dir: checkpoints/base}}

verl imports the module on every worker and calls, for each version: `prepare`, `build_topology` (on
the driver), `init_process_group`, then `send_weights` and `receive_weights` at once, `finalize`.
The actor's first rank publishes; every rollout worker waits for its node's receiver and hands all
tensors to verl, which loads them into the engine. Run with verl 0.9.1's
manager and workers on a CPU; its trainer and engines were not run.
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
from deltawire.integrations._publisher import Publisher, gone_through

_VERL = "verl.checkpoint_engine.base"
CheckpointEngine = framework_class("the checkpoint engine", f"{_VERL}:CheckpointEngine")

_DEVICE = "cuda"  # of this worker, as verl has chosen it


class DeltawireCheckpointEngine(CheckpointEngine):
    """One worker's end. `bucket_size` and `is_master` are verl's: the master is the actor's first
    rank. `endpoint`, `model`, `timeout`, `bf16_to_fp16`, `keep_dtype`: as in `Publisher`. `hf_dir`: the
    checkpoint that the run starts from, with its weights: the layout comes from there, and so the version that
    the sender has. `directory`: the receiver's, of this model, on every node with rollout workers.
    `version_of_step_0`: versions are verl's `global_steps` plus this number, 1 for most, as verl
    begins with step 0 and versions with 1; None: they count on from what is published."""

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        directory: str | os.PathLike[str],
        hf_dir: str | os.PathLike[str],
        endpoint: str | os.PathLike[str] = "/dev/shm/deltawire",
        model: str = "policy",
        timeout: float = 1800.0,
        version_of_step_0: int | None = None,
        bf16_to_fp16: bool = False,
        keep_dtype: Collection[str] = (),
    ):
        self._bucket_bytes = bucket_size
        self._publisher = (Publisher(endpoint, model, hf_dir, timeout, bf16_to_fp16, keep_dtype)
                           if is_master else None)
        self._directory = ReceiverDirectory(directory)
        self._opened = False
        self._timeout = timeout
        self._next = Expected(0, "")
        self._step_0 = version_of_step_0

    def prepare(self) -> dict[str, Any]:
        """The master says which version comes next, and in which history."""
        if self._publisher is None:
            return {}
        if not self._opened:
            self._publisher.open(needs_layout=True)
            self._opened = True
        after = self._publisher.next()
        return {"version": after.version, "lineage": after.lineage, "epoch": after.epoch}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        masters = [m for m in metadata if m]
        if len(masters) != 1:
            raise Error(f"{len(masters)} of {len(metadata)} workers are the master, which "
                        "publishes; one must be")
        return ({name: [value] * actor_wg_world_size for name, value in masters[0].items()},
                {name: [value] * rollout_world_size for name, value in masters[0].items()})

    def init_process_group(self, version: int, lineage: str,  # pylint: disable=arguments-differ
                           epoch: int) -> None:
        self._next = Expected(version, lineage, epoch)

    def finalize(self) -> None:
        """Nothing is held between two versions."""

    async def send_weights(
        self,
        weights: Generator[tuple[str, Any], None, None],
        global_steps: int | None = None,
    ) -> dict[str, float] | None:
        """Returns figures for verl's metrics on the master. All ranks go through `weights`, whose
        tensors are gathered on the way."""
        if self._publisher is None:
            for _ in weights:
                pass
            return None
        with gone_through(weights := iter(weights)):
            version = self._version_of(global_steps)
            has = self._publisher.published
            if self._step_0 is not None and version <= has:
                raise Error(f"step {global_steps} is version {version}, and the sender has {has} "
                            "already; a run that begins anew or goes back to an earlier step needs "
                            "a higher version_of_step_0, or a sender without the model")
        published = self._publisher.publish(weights, version)
        return {
            "deltawire/version": published.version,
            "deltawire/delta_bytes": published.delta_bytes,
            "deltawire/model_bytes": published.model_bytes,
            "deltawire/changed_fraction": published.changed_elements / max(1, published.elements),
            "deltawire/offload_s": published.offload_seconds,
            "deltawire/publish_s": published.publish_seconds,
        }

    async def receive_weights(
        self,
        global_steps: int | None = None,
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yields all tensors of the version, on the CPU, as soon as the receiver has it; those that
        verl's bucket does not hold on the GPU, where verl hands them to the engine apart."""
        expected = dataclasses.replace(self._next, version=self._version_of(global_steps))
        # A wait in the event loop would hold up the worker's other calls.
        found = await asyncio.to_thread(self._directory.wait, expected, self._timeout)
        for name, tensor in self._directory.tensors(found):
            yield name, self._as_sent(tensor)

    def _as_sent(self, tensor: Any) -> Any:
        """verl sends what is larger than its bucket by a handle of CUDA's, which no CPU tensor has.
        """
        if tensor.nbytes <= self._bucket_bytes or not sys.modules["torch"].cuda.is_available():
            return tensor
        return tensor.to(_DEVICE)

    def _version_of(self, step: int | None) -> int:
        if self._step_0 is None:
            return self._next.version  # counted on from what was published, across restarts too
        if step is None:
            raise Error("verl names no global_steps for this version; leave version_of_step_0 out")
        if step + self._step_0 < 1:
            raise Error(f"step {step} would be version {step + self._step_0}, and versions begin "
                        f"with 1: version_of_step_0 is {self._step_0}, and must be higher")
        return step + self._step_0


_registry = getattr(sys.modules.get(_VERL), "CheckpointEngineRegistry", None)
if _registry is not None:
    _registry.register("deltawire")(DeltawireCheckpointEngine)
