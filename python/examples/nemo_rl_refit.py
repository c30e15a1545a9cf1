#!/usr/bin/env python3
"""NeMo RL's refit over deltawire: a policy of two workers, two generation workers.

    nemo_rl_refit.py --endpoint /dev/shm/deltawire --directory /dev/shm/policy

The engines are made by NeMo RL's own `create_checkpoint_engine`, configured as in
docs/howto/rl_frameworks.md, which also has the commands for the sender and the receiver. They are
called in the order of its CheckpointEngineWeightSynchronizer, here in one process: the policy is
some tensors that change a little at each step, and a generation worker keeps what it is handed. No
release on the package index has NeMo RL's part yet: it wants a checkout on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import tempfile
from typing import Any

import torch
from nemo_rl.utils.checkpoint_engines.base import create_checkpoint_engine
from safetensors.torch import save_file

TRANSPORT = "deltawire.integrations.nemo_rl:DeltawireCheckpointEngine"
POLICY = GENERATION = 2
BUCKET_BYTES = 1 << 18
CHANGED = 0.01


def trained(weights: dict[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: tensor + ((torch.rand(tensor.shape, generator=generator) < CHANGED)
                            * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
            for name, tensor in weights.items()}


async def received(engine: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() async for batch in engine.receive_weight_batches()
            for name, tensor in batch}


async def refit(policy: list, generation: list, weights: dict) -> list[dict]:
    sent = [engine.send_weights(iter(weights.items())) for engine in policy]
    done = await asyncio.gather(*map(received, generation), *sent)
    return done[:len(generation)]


def connect(policy: list, generation: list) -> None:
    metadata = [engine.prepare() for engine in policy + generation]
    sizes = {"train_world_size": len(policy), "rollout_world_size": len(generation),
             "metadata": metadata}
    for rank, engine in enumerate(policy):
        engine.init_policy_process_group(worker_rank=rank, **sizes)
    for rank, engine in enumerate(generation):
        engine.init_rollout_process_group(rollout_rank=rank, **sizes)


def run(options: argparse.Namespace, hf_dir: pathlib.Path, weights: dict) -> None:
    arguments = {"directory": options.directory, "endpoint": options.endpoint,
                 "model": options.model, "hf_dir": str(hf_dir), "timeout": 120.0}
    engines = [create_checkpoint_engine(
        TRANSPORT, bucket_size_bytes=BUCKET_BYTES, engine_kwargs=arguments)
        for _ in range(POLICY + GENERATION)]
    policy, generation = engines[:POLICY], engines[POLICY:]
    connect(policy, generation)
    for step in range(1, options.steps + 1):
        weights = trained(weights, step)
        for worker, got in enumerate(asyncio.run(refit(policy, generation, weights))):
            wrong = [n for n, t in weights.items() if n not in got or not torch.equal(got[n], t)]
            if wrong:
                raise SystemExit(f"step {step}: worker {worker} has other weights in {wrong}")
        print(f"step {step}: {len(generation)} generation workers have the policy's weights",
              flush=True)
    for engine in engines:
        engine.finalize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", default="/dev/shm/deltawire", help="the sender's")
    parser.add_argument("--directory", default="/dev/shm/policy", help="the receiver's")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(1)
    weights = {f"layers.{i}.weight": torch.randn(256, 256).to(torch.bfloat16) for i in range(4)}
    with tempfile.TemporaryDirectory(prefix="deltawire-nemo-rl-") as scratch:
        hf_dir = pathlib.Path(scratch)
        (hf_dir / "config.json").write_text("{}")
        save_file(weights, hf_dir / "model.safetensors")
        run(options, hf_dir, weights)


if __name__ == "__main__":
    main()
