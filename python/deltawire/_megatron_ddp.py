"""Finishes the gather of parameters that Megatron leaves to the next forward.

With overlap_param_gather a step of the distributed optimizer updates only the shard that a rank
owns. The rest of each parameter stays stale until forward pre-hooks gather its bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deltawire._errors import Error

# The place where Megatron's DistributedDataParallel makes its forward pre-hooks.
_HOOK = "DistributedDataParallel._make_forward_pre_hook."


def finish_param_gathers(models: Any) -> None:
    """Gathers the parameters of all chunks, as a forward would. Collective: every rank of the
    chunks' data-parallel groups calls it, after the optimizer's step and on the thread that trains.
    It skips chunks without overlap, whose step has gathered."""
    chunks = models if isinstance(models, Sequence) else [models]
    finished: list[Any] = []
    for number, model in enumerate(chunks):
        for wrapper in _wrappers(number, model):
            if not any(wrapper is other for other in finished):
                _finish(number, wrapper)
                finished.append(wrapper)


def _overlaps(wrapper: Any) -> bool:
    config = getattr(wrapper, "ddp_config", None)
    if config is None or getattr(config, "use_megatron_fsdp", False):
        return False
    return bool(
        getattr(config, "use_distributed_optimizer", False)
        and getattr(config, "overlap_param_gather", False)
    )


def _wrappers(number: int, model: Any) -> Iterator[Any]:
    """Yields the owner of this chunk's overlapped gather, if there is one: one of the chunk's
    wrappers or, for a bare chunk, the owner of its forward pre-hooks."""
    at = model
    while hasattr(at, "named_parameters"):
        if _overlaps(at):
            yield at
            return
        at = getattr(at, "module", None)
    for _, module in model.named_modules():
        for hook in getattr(module, "_forward_pre_hooks", {}).values():
            if not getattr(hook, "__qualname__", "").startswith(_HOOK):
                continue
            owners = [c.cell_contents for c in hook.__closure__ or () if _overlaps(c.cell_contents)]
            if not owners:
                raise Error(
                    f"model chunk {number} was given without its DistributedDataParallel, which "
                    "gathers parameters within the next forward (overlap_param_gather); give the "
                    "chunk as the optimizer knows it, in its wrapper"
                )
            yield owners[0]
            return


def _finish(number: int, wrapper: Any) -> None:
    if getattr(wrapper.ddp_config, "reuse_grad_buf_for_mxfp8_param_ag", False):
        raise Error(
            f"model chunk {number} gathers parameters through the gradients' buffer "
            "(reuse_grad_buf_for_mxfp8_param_ag), where they are quantised; switch that off"
        )
    if not hasattr(wrapper, "start_param_sync"):
        raise Error(
            f"model chunk {number} has overlap_param_gather, and its wrapper has no "
            "start_param_sync, by which the gather is finished; switch the overlap off, or use a "
            "newer megatron-core"
        )
    groups = [*wrapper.bucket_groups, *getattr(wrapper, "expert_parallel_bucket_groups", ())]
    ahead = [group for group in groups if not group.param_gather_dispatched]
    # Waits for running gathers, and starts all others at once.
    wrapper.start_param_sync(force_sync=True)
    # A bucket counts as gathered until gradients are reduced again. If the caller publishes before
    # the step, the next forward would skip the gather that this step needs. So unmark the buckets
    # that it would have gathered anyway.
    for group in ahead:
        group.param_gather_dispatched = False
