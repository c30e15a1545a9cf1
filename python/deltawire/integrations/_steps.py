"""Publishes a trainer's module every so many steps, for training loops that call back.

One object on every rank. Not thread-safe. Errors: `deltawire.Error`, on the rank that has it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import Any

from deltawire import Error, WeightManager
from deltawire._attempt import distributed
from deltawire._names import base_of
from deltawire._tensors import is_dtensor
from deltawire._zero3 import is_partitioned

logger = logging.getLogger(__name__)


class StepPublisher:
    """`every`: steps of the optimizer from one version to the next. `endpoint`, `model`, `timeout`,
    `keep_dtype`: as in `WeightManager`; `hf_dir`, `dtype`: as in `register`. Without `hf_dir`,
    receivers get the module's own config.json, if it has one.

    Versions are steps, and count on from what the sender has where a run begins anew. A plain or
    DDP module is published by the first rank, FSDP2's shards by all ranks of one node, and the
    partitions of DeepSpeed ZeRO-3 are gathered.
    """

    def __init__(
        self,
        every: int,
        *,
        endpoint: str | os.PathLike[str] = "/dev/shm/deltawire",
        model: str = "policy",
        hf_dir: str | os.PathLike[str] | None = None,
        dtype: Any = None,
        timeout: float = 1800.0,
        keep_dtype: Collection[str] = (),
    ):
        if every < 1:
            raise Error(f"every is {every}, and counts the steps between two versions: give 1 or more")
        self.every = every
        self._hf_dir, self._dtype = hf_dir, dtype
        self._options = {"endpoint": endpoint, "model": model, "timeout": timeout,
                         "keep_dtype": keep_dtype}
        self._weights: WeightManager | None = None
        self._step = 0  # that was published last
        self.version = 0  # of this trainer, the last one

    def stepped(self, module: Any, step: int) -> None:
        """After each step, on all ranks."""
        if step % self.every == 0:
            self._publish(module, step)

    def ended(self, module: Any, step: int) -> None:
        """At the end, on all ranks: publishes the last step, and waits until it is published."""
        if step:
            self._publish(module, step)
        if self._weights is None:
            return
        if self.version and self._talks:
            done = self._weights.wait_published(self.version)
            logger.info("version %d is the trainer's last step, %d", done.version, step)
        self._weights.close()
        self._weights = None
        self._step = 0  # a run that follows may end with the same step

    def _publish(self, module: Any, step: int) -> None:
        if step == self._step:
            return
        if self._weights is None:
            self._open(module)
        elif self._talks and self._step:
            # A rank that is ahead of the others would abandon the version that they still write.
            self._weights.wait_published(self.version)
        if self._zero3:
            version = self._agreed(max(step, self.version + 1))
            self._weights.offload_zero3(module, version)
        elif self._sharded:
            version = max(step, self.version + 1)
            self._weights.offload_fsdp(module, version)
        else:
            version = max(step, self.version + 1)
            if self._talks:
                self._weights.offload(module, version)
        self._step, self.version = step, version
        logger.info("step %d is version %d", step, version)

    def _open(self, module: Any) -> None:
        """Registers the model; `version` is then what the sender has."""
        group = distributed()
        rank, world = (group.get_rank(), group.get_world_size()) if group else (0, 1)
        self._zero3 = is_partitioned(module)
        self._sharded = any(is_dtensor(p) for p in module.parameters())
        # The second: of the parameters that use_orig_params shows, which are views of a shard.
        if not self._sharded and any(hasattr(p, "_is_flat_param") or hasattr(p, "_fsdp_flattened")
                                     for p in module.parameters()):
            raise Error("the module is cut by FSDP1, whose flat parameters have no names; use FSDP2 "
                        "(fsdp_version: 2 in accelerate's configuration)")
        self._talks = self._sharded or rank == 0
        place = {"rank": rank, "world": world} if self._sharded else {}
        self._weights = WeightManager(**self._options, **place)
        if self._talks:
            side = None
            config = getattr(base_of(module), "config", None)
            if self._hf_dir is None and hasattr(config, "to_json_string"):
                side = {"config.json": config.to_json_string()}
            self.version = self._weights.register(module, side_files=side, hf_dir=self._hf_dir,
                                                  dtype=self._dtype)

    @staticmethod
    def _agreed(version: int) -> int:
        """The first rank's, who alone has asked the sender."""
        group = distributed()
        if group is None:
            return version
        told = [version]
        group.broadcast_object_list(told, src=0)
        return told[0]
