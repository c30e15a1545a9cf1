"""torchtitan: a checkpoint manager that also publishes the model, each rank to its machine's sender.

    config.checkpoint = PublishingCheckpoints.Config(enable=True, every=10)  # in a recipe

Versions are steps, by the names and with the small files of `hf_assets_path`.
"""

from dataclasses import dataclass

import deltawire
import torch.distributed as dist
from torchtitan.components.checkpointer import MODEL, CheckpointManager


class PublishingCheckpoints(CheckpointManager):
    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        every: int = 1
        endpoint: str = "/dev/shm/deltawire"

    def __init__(self, config, **parts):
        super().__init__(config, **parts)
        self.every, self.weights = config.every, deltawire.WeightManager(
            config.endpoint, "policy", dist.get_rank(), dist.get_world_size())

    def _save(self, curr_step, last_step=False):
        if curr_step % self.every == 0 or last_step:
            state = self.sd_adapter.to_hf(self.states[MODEL].state_dict())
            if not self.weights.tensors_meta:
                self.weights.register(state, hf_dir=self.sd_adapter.hf_assets_path)
            self.weights.offload_fsdp(state, curr_step)
            self.weights.wait_published(curr_step)
        return super()._save(curr_step, last_step)
