#!/usr/bin/env python3
"""Layouts that megatron-core refuses are refused by `deltawire plan`, and the others are planned.

megatron-core itself is asked: for every case its config and the model chunks of every pipeline rank
are built, in one process with a process group that only claims to have other members. Prints
"SKIPPED: ..." where megatron-core is missing.
"""
import contextlib
import io
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from layouts import Layout  # noqa: E402


def cases(families):
    """Yields (what the case is about, family, layout); some layouts are legal, some are not."""
    base = families.FAMILIES["llama"]

    def llama(**more):
        return families.Family(lambda: families.llama(**more), base.options)

    few = families.FAMILIES["llama-few-groups"]
    moe, mla = families.FAMILIES["qwen3-moe"], families.FAMILIES["deepseek-v3"]
    mtp = families.FAMILIES["deepseek-v3-mtp"]
    four_heads = llama(num_attention_heads=4, num_key_value_heads=4, hidden_size=64)
    six_heads = llama(num_attention_heads=6, num_key_value_heads=3, hidden_size=96)
    for tp in (1, 2, 3, 4, 6, 8):
        yield "heads", four_heads, Layout(tp=tp)
        yield "groups", six_heads, Layout(tp=tp)
        yield "groups", few, Layout(tp=tp)
        yield "MLA's heads", mla, Layout(tp=tp, etp=1)
        yield "experts' heads", moe, Layout(tp=tp, etp=1)
    for ep in (2, 3, 4, 16):
        yield "experts of a dense model", base, Layout(dp=ep, ep=ep)
        yield "experts", moe, Layout(dp=ep, ep=ep)
    for etp in (2, 3, 4, 5):
        yield "cut experts", moe, Layout(dp=etp, etp=etp)
    for pp, vpp in ((2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (2, 3), (1, 2), (4, 2)):
        yield "stages", base, Layout(pp=pp, vpp=vpp)
    for pp, first, last in ((2, 1, None), (2, 3, 1), (2, 1, 2), (3, 1, 1), (3, 2, 2), (3, 4, None),
                            (2, None, 4), (4, 2, None), (1, 4, None)):
        yield "uneven stages", base, Layout(pp=pp, first=first, last=last)
    for pp, embedding, loss in ((2, True, False), (5, True, False), (3, True, True), (6, True, True)):
        yield "counted stages", base, Layout(
            pp=pp, account_for_embedding=embedding, account_for_loss=loss
        )
    for pp, stages in (
        (2, "Ett|ttL"), (2, "tEt|ttL"), (2, "Ett|tLt"), (2, "tt|EttL"), (3, "E|tttt|L"),
        (2, "Ett|tttL"), (2, "EttL|tt"), (4, "E|tt|tt|L"), (2, "E|tttt||L"), (2, "Ettt|tmL"),
        (2, "EEtt|ttL"), (2, "Ettt|t"), (2, "|EttttL"), (3, "Ett|tt|"),
    ):
        yield "layouts", base, Layout(pp=pp, vpp=(stages.count("|") + 1) // pp, stages=stages)
    for pp, stages in (
        (2, "Ett|ttmL"), (3, "Ett|ttm|L"), (3, "Et|tttm|L"), (2, "Ettttm|L"), (2, "Etttt|mL"),
        (2, "Ettm|ttL"), (2, "Ett|mttL"), (3, "Ett|tt|mL"), (2, "Ett|tt|m|L"), (2, "Et|t|t|tmL"),
        (2, "Et|t|ttm|L"), (2, "Ett|ttL"), (2, "Ett|ttmmL"), (2, "Ett|ttLm"), (1, "EttttmL"),
        (3, "Etttt|m|L"), (2, "E|tttt|m|L"), (2, "E|ttttm||L"),
    ):
        yield "MTP's place", mtp, Layout(pp=pp, vpp=(stages.count("|") + 1) // pp, stages=stages)
    for pp, vpp in ((1, 1), (2, 1), (2, 2)):
        yield "MTP without a layout", mtp, Layout(pp=pp, vpp=vpp)


def asked(family, hf, layout):
    """megatron-core's reason to refuse the layout, or None. A child process finds out, because
    process groups can be made only once per process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            pipe.write(refusal(family, hf, layout) or "")
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if status != 0:
        raise SystemExit(f"the child that asked for {layout.name} ended with status {status}")
    return said or None


def refusal(family, hf, layout):
    import torch
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import models

    for stage in range(layout.pp):
        rank = stage * layout.tp * layout.cp * layout.dp
        torch.distributed.init_process_group(
            backend="fake", rank=rank, world_size=layout.world, store=FakeStore()
        )
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                models.initialize(layout, create_gloo_process_groups=False)
                models.build(family, hf, layout, seed=1)
        except Exception as refusal:  # whatever kind: the trainer would not start
            return f"{type(refusal).__name__}: {refusal}".splitlines()[0]
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()
    return None


def parallel_of(layout):
    keys = dict(tp=layout.tp, pp=layout.pp, vpp=layout.vpp, ep=layout.ep, etp=layout.expert_tp,
                cp=layout.cp, dp=layout.dp, vocab_divisor=8, spec="local", experts="sequential")
    if layout.stages is not None:
        keys["layout"] = layout.stages
    if layout.first is not None:
        keys["first_stage_layers"] = layout.first
    if layout.last is not None:
        keys["last_stage_layers"] = layout.last
    for key in ("account_for_embedding", "account_for_loss"):
        if getattr(layout, key):
            keys[key] = True
    return json.dumps(keys)


def planned(directory, layout):
    """deltawire's reason to refuse the layout, or None."""
    deltawire = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]) / "deltawire"
    done = subprocess.run(
        [deltawire, "plan", "--hf", directory, "--parallel", parallel_of(layout)],
        capture_output=True, text=True, check=False,
    )
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip()


def main():
    try:
        import megatron.core  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as missing:
        print(f"SKIPPED: {missing}")
        return 0
    import cpu_patches
    import families

    cpu_patches.apply()
    wrong, refused, legal = [], 0, 0
    for about, family, layout in cases(families):
        hf = family.config()
        with tempfile.TemporaryDirectory() as directory:
            hf.save_pretrained(directory)
            theirs, ours = asked(family, hf, layout), planned(directory, layout)
        refused, legal = refused + (theirs is not None), legal + (theirs is None)
        same = (theirs is None) == (ours is None)
        if not same or "-v" in sys.argv:
            print(f"{'same ' if same else 'WRONG'}  {about}, {hf.model_type}, {layout.name}\n"
                  f"    megatron-core: {theirs or 'takes it'}\n    deltawire:     {ours or 'takes it'}")
        if not same:
            wrong.append(layout)
    print(f"{refused} refused and {legal} taken by megatron-core; deltawire differs in {len(wrong)}")
    return 1 if wrong or not refused or not legal else 0


if __name__ == "__main__":
    sys.exit(main())
