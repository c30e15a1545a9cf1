#!/usr/bin/env python3
"""verl's CheckpointEngineManager over deltawire: an actor of two ranks, a rollout of two workers.

    verl_checkpoint_engine.py --endpoint /dev/shm/deltawire --directory /dev/shm/policy

verl's own manager, worker groups and rollout workers run in Ray's processes on a CPU, configured as
in docs/howto/rl_frameworks.md, which also has the commands for the sender and the receiver. Two
ends are this example's, since verl's need a GPU: the actor, which is no model in training but some
tensors that change a little at each step, and the rollout's server adapter, which keeps what verl
hands it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import tempfile
from typing import Any

import ray
import torch
from safetensors.torch import save_file
from verl.checkpoint_engine.base import (
    CheckpointEngineManager,
    CheckpointEngineRegistry,
    CheckpointEngineWorker,
)
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig

RANKS = WORKERS = 2
CHANGED = 0.01


def weights_of(step: int) -> dict[str, torch.Tensor]:
    """Returns the tensors after this step of training; the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    weights = {f"layers.{i}.weight": torch.randn(256, 256, generator=generator) for i in range(4)}
    for _ in range(step):
        for tensor in weights.values():
            hit = torch.rand(tensor.shape, generator=generator) < CHANGED
            tensor += hit * torch.randn(tensor.shape, generator=generator)
    return {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}


def checksum(weights: dict[str, torch.Tensor]) -> int:
    """Returns a checksum of every bit and its place."""
    total = 0
    for name in sorted(weights):
        bits = weights[name].contiguous().view(torch.int16).flatten().to(torch.int64)
        total = (total * 31 + int((bits * torch.arange(1, len(bits) + 1)).sum())) % 2**61
    return total


class Actor(Worker):
    """The two methods of verl's ActorRolloutRefWorker, without a model engine."""

    def __init__(self, config: CheckpointEngineConfig):
        super().__init__()
        import_external_libs(config.custom_backend_module)
        self._engine = CheckpointEngineRegistry.new(
            config.backend, is_master=self.rank == 0,
            bucket_size=config.update_weights_bucket_megabytes << 20,
            **config.engine_kwargs[config.backend])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto"):
        del mode
        return await self._engine.send_weights(
            iter(weights_of(global_steps).items()), global_steps=global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any):
        return getattr(self._engine, method)(*args, **kwargs)


class Adapter:
    """A stand-in for verl's server adapter, which would load the tensors into vLLM or SGLang."""

    replica_rank, is_leader_rank = 0, True

    def __init__(self, kept: pathlib.Path):
        self._kept = kept

    async def update_weights(self, weights: Any, global_steps: int, wire_format: str) -> None:
        got = {name: tensor async for name, tensor in weights}
        (self._kept / f"{os.environ['RANK']}.json").write_text(
            json.dumps({"step": global_steps, "format": wire_format, "checksum": checksum(got)}))


class Replica:
    """One rollout replica: its workers, and the interface of its server."""

    def __init__(self, workers: list[Any]):
        self.workers = workers

    async def _nothing(self, **_: Any) -> None:
        """Does nothing, because no server runs here."""

    abort_all_requests = release_kv_cache = resume_kv_cache = resume_generation = _nothing


def group_of(worker: type, ranks: int, *arguments: Any) -> RayWorkerGroup:
    return RayWorkerGroup(
        resource_pool=RayResourcePool([ranks], use_gpu=False, max_colocate_count=1),
        ray_cls_with_init=RayClassWithInitArgs(ray.remote(worker), *arguments), device_name="cpu")


def run(options: argparse.Namespace, hf_dir: pathlib.Path, kept: pathlib.Path) -> None:
    config = CheckpointEngineConfig(
        backend="deltawire", custom_backend_module="deltawire.integrations.verl",
        update_weights_bucket_megabytes=64, engine_kwargs={"deltawire": {
            "directory": options.directory, "endpoint": options.endpoint, "model": options.model,
            "hf_dir": str(hf_dir), "timeout": 120.0}})
    rollout = RolloutConfig(name="vllm", checkpoint_engine=config)
    actors = group_of(Actor, RANKS, config)
    workers = group_of(CheckpointEngineWorker, WORKERS, rollout, None, Adapter(kept))
    manager = CheckpointEngineManager(config, actors, [Replica(workers.workers)])
    for step in range(1, options.steps + 1):
        metrics = manager.update_weights(global_steps=step)
        wanted = {"step": step, "format": "named_tensors", "checksum": checksum(weights_of(step))}
        for worker in range(WORKERS):
            got = json.loads((kept / f"{worker}.json").read_text())
            if got != wanted:
                raise SystemExit(f"worker {worker} has {got}, and the actor {wanted}")
        print(f"step {step}: {WORKERS} workers have version {metrics['deltawire/version']}, of "
              f"which {metrics['deltawire/delta_bytes']} of {metrics['deltawire/model_bytes']} "
              "bytes were sent", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", default="/dev/shm/deltawire", help="the sender's")
    parser.add_argument("--directory", default="/dev/shm/policy", help="the receiver's")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # otherwise Ray leaves a token in the home
    with tempfile.TemporaryDirectory(prefix="deltawire-verl-") as scratch:
        hf_dir, kept = pathlib.Path(scratch) / "hf", pathlib.Path(scratch) / "kept"
        hf_dir.mkdir()
        kept.mkdir()
        (hf_dir / "config.json").write_text("{}")
        save_file(weights_of(0), hf_dir / "model.safetensors")
        ray.init(num_cpus=RANKS + WORKERS, include_dashboard=False, log_to_driver=False)
        try:
            run(options, hf_dir, kept)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
