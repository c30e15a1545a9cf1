#!/usr/bin/env python3
"""Megatron-core's own models, cut in every way, against the same weights in `transformers`.

Both are the published packages, on CPU and Gloo: random models of each family run under a layout of
tensor, pipeline, virtual, expert and context parallelism, are exported into an HF directory, loaded
by `transformers`, and must give the same logits.

Usage: megatron_test.py [--mode reference|place|gather|nodes] SET|FAMILY[:LAYOUT]...
Sets: short, gathered, nodes, wrong, bf16, long; --list names all families and layouts.
"""
import argparse
import importlib.util
import logging
import os
import sys
import time
import traceback
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# torch.compile's workers have nothing to do in models of a few kilobytes.
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from layouts import DENSE, MOE, Layout  # noqa: E402

# Every family once, under a layout that moves most of its tensors.
CUT = Layout(tp=2, pp=2)
CHUNKS = Layout(tp=2, pp=2, vpp=2)
UNEVEN = Layout(pp=3, first=1, last=1)
EXPERTS = Layout(tp=2, pp=2, ep=2, etp=1)
SHORT = (
    ("llama", CUT),
    ("llama", CHUNKS),
    ("llama", Layout(pp=2, vpp=2, stages="Et|tt|t|L")),
    ("llama-few-groups", Layout(tp=4)),
    ("mistral", UNEVEN),
    ("qwen2", CUT),
    ("qwen3", UNEVEN),
    ("qwen3-tied", CHUNKS),
    ("qwen3-moe", EXPERTS),
    ("qwen3-moe", Layout(dp=4, ep=2, etp=2)),
    ("qwen2-moe", EXPERTS),
    ("mixtral", EXPERTS),
    ("deepseek-v2", EXPERTS),
    ("deepseek-v3", EXPERTS),
    ("deepseek-v3-replicated", Layout(tp=2, ep=2, etp=1)),
    ("deepseek-v3-mtp", EXPERTS),
    ("moonlight", EXPERTS),
    ("glm-4.5", EXPERTS),
    ("gpt-oss", EXPERTS),
)
# megatron-core since 0.18 builds an MLA query projection that has no low rank, and MLA's replicated down
# projections, with TransformerEngine only.
ONLY_WITH_TE = ("deepseek-v2", "deepseek-v3-replicated", "moonlight")
# Gathered instead of placed: one family for each kind of layout.
GATHERED = (
    ("llama", CHUNKS),
    ("qwen3-tied", UNEVEN),
    ("qwen3-moe", EXPERTS),
    ("deepseek-v3-mtp", EXPERTS),
    ("gpt-oss", EXPERTS),
)
# Two nodes that share no memory: whole stages, or with one stage whole experts, on each.
NODES = (
    ("llama", CHUNKS),
    ("qwen3-tied", CUT),
    ("qwen3-moe", EXPERTS),
    ("qwen3-moe", Layout(dp=2, ep=2, etp=1)),
    ("deepseek-v3-mtp", EXPERTS),
)
FEW_GROUPS = (Layout(tp=4), Layout(tp=4, pp=2))
BF16 = (
    ("qwen2", Layout(tp=2, pp=2)),
    ("deepseek-v3", Layout(tp=2, ep=2, etp=1)),
)


def layouts_of(name):
    from families import FAMILIES

    if name == "llama-few-groups":
        return FEW_GROUPS
    if name == "gpt-oss":  # megatron-core: "Bias in Moe is only supported when ETP==1"
        return [layout for layout in MOE if layout.expert_tp == 1]
    return MOE if FAMILIES[name].moe else DENSE


def cases_of(what):
    from families import FAMILIES

    if what == "short":
        return SHORT
    if what == "gathered":
        return GATHERED
    if what == "nodes":
        return NODES
    if what == "long":
        return [(name, layout) for name in FAMILIES for layout in layouts_of(name)]
    name, _, wanted = what.partition(":")
    found = [layout for layout in layouts_of(name) if wanted in ("", layout.name)]
    if not found:
        raise SystemExit(f"{name} has no layout {wanted}; see --list")
    return [(name, layout) for layout in found]


def wrong_exports():
    """Returns tuples of (what is wrong, family, layout, function of reference_export, wrong version
    of that function)."""
    import reference_export as right
    import torch

    def plain_gate_up(shards):
        return right.rows(shards).chunk(2, dim=0)

    def all_q_first(fused, hf):
        heads, groups = hf.num_attention_heads, hf.num_key_value_heads
        width = fused.shape[0] // (heads + 2 * groups)
        sizes = (heads * width, groups * width, groups * width)
        return dict(zip("qkv", fused.split(sizes)))

    def backwards(shards):
        return torch.cat(shards[::-1], dim=1)

    def experts_by_place(entries, family, layout, count):
        turned = {(layout.ep - 1 - ep, i, name): t for (ep, i, name), t in entries.items()}
        return experts(turned, family, layout, count)

    experts = right.experts
    cut = Layout(tp=2)
    return (
        ("gate and up not regrouped", "llama", cut, "gate_up", plain_gate_up),
        ("QKV split as if not by group", "llama", cut, "split_qkv", all_q_first),
        ("columns of ranks in the wrong order", "llama", cut, "columns", backwards),
        ("expert groups in the wrong order", "qwen3-moe", Layout(dp=2, ep=2), "experts",
         experts_by_place),
    )  # fmt: skip


def run_wrong(checks):
    """Returns how many exports with right shapes and wrong values the harness did not notice."""
    import reference_export

    failures = 0
    for what, name, layout, function, version in wrong_exports():
        right = getattr(reference_export, function)
        setattr(reference_export, function, version)
        try:
            checks.check(name, layout)
            print(f"FAILED: not noticed: {what}")
            failures += 1
        except checks.Mismatch as mismatch:
            print(f"noticed: {what}: {mismatch}")
        finally:
            setattr(reference_export, function, right)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", default=["short"])
    parser.add_argument("--mode", choices=("reference", "place", "gather", "nodes"), default="reference")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.mode != "reference" and importlib.util.find_spec("deltawire") is None:
        print("SKIPPED: there is no Python module deltawire")  # before torch's slow import
        return 0
    try:
        import megatron.core
        import torch
        import transformers
    except ImportError as error:
        print(f"SKIPPED: this Python lacks a trainer's packages: {error}")
        return 0
    import export
    from families import FAMILIES, NOT_ON_CPU

    if arguments.list:
        for name in FAMILIES:
            print(name, *(layout.name for layout in layouts_of(name)))
        return 0
    why = export.available(arguments.mode)
    if why:
        print(f"SKIPPED: {why}")
        return 0
    versions = (torch.__version__, megatron.core.__version__, transformers.__version__)
    print("torch {}, megatron-core {}, transformers {}".format(*versions), flush=True)

    # Imported here, before the forks, so that it happens once.
    import megatron.core.distributed  # noqa: F401
    import megatron.core.models.gpt.gpt_layer_specs  # noqa: F401
    import megatron.core.models.gpt.gpt_model  # noqa: F401

    import checks
    import cpu_patches

    cpu_patches.apply()
    torch.set_num_threads(1)
    failures = 0
    for what in arguments.what:
        if what == "wrong":
            failures += run_wrong(checks)
            continue
        if what == "long":
            for thing, reason in NOT_ON_CPU.items():
                print(f"not on CPU: {thing}: {reason}")
        for name, layout in BF16 if what == "bf16" else cases_of(what):
            started = time.monotonic()
            label = f"{name} {layout.name}"
            if name in ONLY_WITH_TE and int(megatron.core.__version__.split(".")[1]) >= 18:
                print(f"{label}: left out, this megatron-core wants transformer-engine for it")
                continue
            try:
                if what == "bf16":
                    count = checks.check_bf16(name, layout, arguments.mode, arguments.seed)
                    result = f"{count} tensors, bf16 to the bit"
                else:
                    count, worst = checks.check(name, layout, arguments.mode, arguments.seed)
                    result = f"{count} tensors, logits within {worst:.1e}"
                print(f"{label}: {result} ({time.monotonic() - started:.1f} s)", flush=True)
            except Exception:
                failures += 1
                print(f"FAILED: {label}, seed {arguments.seed}:")
                print(traceback.format_exc(), flush=True)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
