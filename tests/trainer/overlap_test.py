#!/usr/bin/env python3
"""Megatron-core's distributed optimizer, whose gather of parameters is left to the next forward.

After a step with overlap_param_gather a rank has the new values of its own shard alone. Two
trainers of the same weights and gradients run side by side: one gathers in its step, and what the
other one publishes must be that one's parameters, bit by bit. So must be the outputs of the next
forward, whatever was published and when.

Usage: overlap_test.py [FAMILY]...
"""
import importlib.util
import logging
import os
import sys
import tempfile
import time
import traceback
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from layouts import Layout  # noqa: E402

# Several chunks in Float16Module and stages without bucketing; experts with buckets of their own.
CASES = (
    ("llama", Layout(pp=2, vpp=2, dp=2), True),
    ("qwen3-moe", Layout(dp=4, ep=2), False),
)
BUCKET = 20_000  # elements: several buckets a chunk
LENGTH, BATCH = 6, 2


class Trainer:
    """This rank's chunks, their DDP and the optimizer. Not a model that learns: every chunk gets
    inputs of its own, so that stages need not wait for each other."""

    def __init__(self, name, layout, bf16, overlap):
        import models
        from families import FAMILIES
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        family = FAMILIES[name]
        self.hf = family.config()
        self.chunks = models.build(family, self.hf, layout, 1, bf16)
        self.wrapped = models.wrap(
            self.chunks, self.chunks[0].config, bf16, True,
            overlap_grad_reduce=True, overlap_param_gather=overlap, bucket_size=BUCKET,
        )
        for wrapped in self.wrapped[:1]:
            groups = [*wrapped.bucket_groups, *wrapped.expert_parallel_bucket_groups]
            assert len(groups) > 1 or not self.chunks[0].pre_process, "there is one bucket"
        config = OptimizerConfig(
            optimizer="adam", lr=0.02, clip_grad=0.0, bf16=bf16, use_distributed_optimizer=True,
            params_dtype=self.chunks[0].config.params_dtype, overlap_param_gather=overlap,
        )
        self.optimizer = get_megatron_optimizer(config, self.wrapped)

    def forward(self, seed):
        """The outputs of all chunks. Collective within a stage."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, self.hf.vocab_size, (BATCH, LENGTH), generator=generator)
        hidden = torch.randn(LENGTH, BATCH, self.hf.hidden_size, generator=generator)
        positions = torch.arange(LENGTH).unsqueeze(0).expand(BATCH, -1)
        mask = torch.ones(LENGTH, LENGTH).triu(1).bool().reshape(1, 1, LENGTH, LENGTH)
        outputs = []
        for chunk, wrapped in zip(self.chunks, self.wrapped):
            if not chunk.pre_process:
                chunk.set_input_tensor(hidden.to(chunk.config.params_dtype).requires_grad_())
            outputs.append(wrapped(tokens, positions, mask))
        return outputs

    def gradients(self, seed):
        """Computes and reduces them."""
        import torch

        for wrapped in self.wrapped:
            wrapped.zero_grad_buffer()
        self.optimizer.zero_grad()
        for output in self.forward(seed):
            weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
            (output.float() * weights).mean().backward()
        for wrapped in self.wrapped:
            wrapped.finish_grad_sync()

    def step(self):
        assert self.optimizer.step()[0]


def after_the_step(trainer, publish):
    trainer.step()
    publish(trainer.wrapped)


def before_the_step(trainer, publish):
    """Publishes once more what was published last."""
    publish(trainer.wrapped)
    trainer.step()


def with_gathers_under_way(trainer, publish):
    """As pipelines begin them, with align_param_gather."""
    trainer.step()
    for wrapped in trainer.wrapped:
        wrapped.start_param_sync()
    publish(trainer.wrapped)


def with_one_gather_under_way(trainer, publish):
    """As where a forward broke off."""
    trainer.step()
    trainer.wrapped[0].bucket_groups[-1].start_param_sync()
    publish(trainer.wrapped)


def without_wrappers(trainer, publish):
    trainer.step()
    publish(trainer.chunks)


def without_hooks(trainer, publish):
    trainer.step()
    for wrapped in trainer.wrapped:
        wrapped.disable_forward_pre_hook(param_sync=False)
    publish(trainer.wrapped)
    for wrapped in trainer.wrapped:
        wrapped.enable_forward_pre_hook()


WAYS = (
    after_the_step,
    before_the_step,
    with_gathers_under_way,
    with_one_gather_under_way,
    without_wrappers,
    without_hooks,
)


def train(rank, name, layout, bf16, base, out):
    """One rank; returns how many parameters were old before the first version was published."""
    import dump
    import export
    import models
    import torch
    from checks import Mismatch, compare_bytes
    from families import FAMILIES
    from reference_export import hf_tensors

    parallel_state = models.initialize(layout)
    gathering, overlapping = (Trainer(name, layout, bf16, late) for late in (False, True))
    model = dict(family=FAMILIES[name], hf=gathering.hf, layout=layout)
    stale = None
    for version, way in enumerate(WAYS, start=1):
        for trainer in (gathering, overlapping):
            trainer.gradients(100 * version + rank)
        if way is not before_the_step:
            gathering.step()
        dumps = dump.gather(gathering.wrapped, parallel_state)

        def publish(chunks):
            nonlocal stale
            if stale is None:
                stale = len(different(gathering, overlapping))
            export.export(
                "place", chunks, parallel_state, base, out, version=version, **model
            )
            if rank == 0:
                compare_bytes(hf_tensors(dumps, **model), out, f"{version}, {way.__name__}")

        way(overlapping, publish)
        if way is before_the_step:
            gathering.step()
        with torch.no_grad():
            outputs = [trainer.forward(7) for trainer in (gathering, overlapping)]
        for chunk, (expected, found) in enumerate(zip(*outputs)):
            if not torch.equal(expected, found):
                raise Mismatch(f"{way.__name__}: the next forward of chunk {chunk} is another one")
        names = different(gathering, overlapping)
        if names:
            raise Mismatch(f"{way.__name__}: still old after the next forward: {names[:4]}")
    export.finish()
    refused(overlapping.wrapped)
    return stale


def refused(wrapped):
    """Buckets that are also the gradients' would be gathered as if they held parameters."""
    import deltawire
    from checks import Mismatch
    from deltawire._megatron_ddp import finish_param_gathers

    wrapped[0].ddp_config.reuse_grad_buf_for_mxfp8_param_ag = True
    try:
        finish_param_gathers(wrapped)
    except deltawire.Error as error:
        if "reuse_grad_buf_for_mxfp8_param_ag" in str(error):
            return
    raise Mismatch("a gather through the gradients' buffer was not refused")


def different(one, other):
    import torch

    pairs = zip(
        (p for c in one.chunks for p in c.named_parameters()),
        (p for c in other.chunks for _, p in c.named_parameters()),
    )
    return [name for (name, a), b in pairs if not torch.equal(a, b)]


def check(name, layout, bf16):
    import processes
    import torch
    from checks import Mismatch, write_base

    with tempfile.TemporaryDirectory() as folder:
        base, out = os.path.join(folder, "base"), os.path.join(folder, "out")
        dtype = torch.bfloat16 if bf16 else torch.float32
        processes.run(1, write_base, name, base, dtype)
        stale = processes.run(layout.world, train, name, layout, bf16, base, out)
        if not all(stale):
            raise Mismatch(f"nothing was old before the first version was published: {stale}")
        return sum(stale)


def main():
    if importlib.util.find_spec("deltawire") is None:
        print("SKIPPED: there is no Python module deltawire")  # before torch's slow import
        return 0
    try:
        import megatron.core.distributed
        import megatron.core.models.gpt.gpt_layer_specs
        import megatron.core.models.gpt.gpt_model
        import megatron.core.optimizer  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"SKIPPED: this Python lacks a trainer's packages: {error}")
        return 0
    import cpu_patches
    import export

    why = export.available("place")
    if why:
        print(f"SKIPPED: {why}")
        return 0
    cpu_patches.apply()
    cpu_patches.apply_to_optimizer()
    torch.set_num_threads(1)
    failures = 0
    for name, layout, bf16 in CASES:
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        started = time.monotonic()
        try:
            stale = check(name, layout, bf16)
            seconds = f"{time.monotonic() - started:.1f} s"
            print(f"{name} {layout.name}: {stale} old parameters gathered ({seconds})", flush=True)
        except Exception:
            failures += 1
            print(f"FAILED: {name} {layout.name}:\n{traceback.format_exc()}", flush=True)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
