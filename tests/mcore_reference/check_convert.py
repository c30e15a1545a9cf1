"""deltawire convert against the reference: shards to HF, HF to shards, over random combinations.

usage: check_convert.py DELTAWIRE CASES [FIRST_SEED|today] [FAMILY...]
Every case is one family, config, checkpoint and parallel layout, drawn from (family, seed), which is
printed when the case fails; `today` draws other seeds every day. Three things must hold: the reference's shards become exactly the
reference's HF tensors; those become the shards again, byte for byte (but for what is padding or a copy);
and `deltawire plan` finds every byte written once.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

if __package__ in (None, ""):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mcore_reference.case import random_case, seeds_that_show
from mcore_reference.families import FAMILIES
from mcore_reference.model import VISION_PREFIX
from mcore_reference.parallel import Placement
from mcore_reference.values import PAD
from mcore_reference.write import (differences, read_hf, read_safetensors, read_shards, write_hf,
                                   write_shards)


def deltawire(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"deltawire {' '.join(map(str, args))}: exit {done.returncode}\n"
                             f"{done.stdout[:3000]}{done.stderr[:3000]}")


def written_name(name, model_type, parallel):
    """The one name that deltawire must give the reference's parameter `name`.

    Only what Parallel.NOT_IN_JSON chooses, and vision, may be called otherwise by the reference: all of
    these spellings are read, and which one is written follows from parallel.json.
    """
    newer = parallel.minor >= 19
    for prefix in VISION_PREFIX.get(model_type, {}).values():
        if model_type == "qwen2_vl" and name.startswith(prefix):
            return ("visual." if newer else "vision_model.") + name.removeprefix(prefix)
    for other, written in (
        (f".{parallel.mtp_inner}.", ".mtp_model_layer." if newer else ".transformer_layer."),
        (".self_attention.linear_qkv_down_proj.layer_norm_weight", ".input_layernorm.weight"),
        (".post_attention_layernorm.weight", ".self_attention.linear_proj.post_layernorm.weight"),
        (".post_feedforward_layernorm.weight", ".mlp.linear_fc2.post_layernorm.weight"),
    ):
        name = name.replace(other, written)
    return name


def plus_one(array):
    """bf16 or fp32 bits: one is added in fp32, and the sum rounded once, to nearest even."""
    if array.dtype == np.uint32:
        return (array.view(np.float32) + np.float32(1)).view(np.uint32)
    total = ((array.astype(np.uint32) << 16).view(np.float32) + np.float32(1)).view(np.uint32)
    return ((total + 0x7FFF + (total >> 16 & 1)) >> 16).astype(np.uint16)


def shard_differences(wanted, folder, model_type, parallel, from_hf=True):
    """What our shards lack, hold otherwise or have too much. Padding is zero there; a held copy is in
    step. from_hf: they were made from HF values."""
    found = {}
    problems = []
    for path in sorted(folder.glob("rank_*.safetensors")):
        rank = int(path.stem.split("_")[1])
        for name, array in read_safetensors(path).items():
            chunk, name = name.split("/", 1)
            found[rank, int(chunk.removeprefix("chunk")), name] = array
    for (rank, chunk), params in wanted.items():
        for name, array in params.items():
            name = written_name(name, model_type, parallel)
            ours = found.pop((rank, chunk, name), None)
            where = f"rank {rank} chunk {chunk} {name}"
            if ours is None:
                problems.append(f"{where}: missing")
            elif name.endswith("linear_qkv_down_proj.weight") and ours.shape != array.shape:
                continue  # whole on every rank or cut: both are read, and whole is written
            elif ours.shape != array.shape or ours.dtype != array.dtype:
                problems.append(f"{where}: {ours.dtype}{ours.shape}, wanted "
                                f"{array.dtype}{array.shape}")
            elif name.endswith(("output_layer.weight", "word_embeddings.weight")):
                # Padding, and copies that the reference makes stale on purpose.
                stale = (ours ^ array) == 1
                padding = (ours == 0) & ((array == PAD[array.dtype]) | (array ^ 1 == PAD[array.dtype]))
                off = (ours != array) & ~padding & ~stale
                if off.any():
                    problems.append(f"{where}: {int(off.sum())} elements differ")
            elif name.endswith("out_norm.weight") and from_hf:
                # HF holds this + 1 in bf16, from which the trainer's finer value does not come back.
                if not np.array_equal(plus_one(ours), plus_one(array)):
                    problems.append(f"{where}: makes other HF values")
            elif not np.array_equal(ours, array):
                problems.append(f"{where}: {int((ours != array).sum())} of {array.size} differ")
    problems += [f"rank {k[0]} chunk {k[1]} {k[2]}: not the trainer's" for k in found]
    return problems


def check(program, family, seed, folder, named=""):
    """named: a part that some name of the shards which deltawire writes must have."""
    case = random_case(family, seed)
    shards, back, out = folder / "shards", folder / "back", folder / "out"
    wanted = case.shards()
    write_hf(folder / "hf", case.config, case.hf)
    write_shards(shards, case.parallel, wanted)
    deltawire(program, "plan", "--hf", folder / "hf", "--parallel", parallel_text(shards))
    # The reference's files are another program's: they do not say which rank they are.
    deltawire(program, "convert", shards, out, "--hf", folder / "hf", "--unmarked")
    problems = differences(case.hf, read_hf(out))
    if not problems:
        deltawire(program, "convert", folder / "hf", back, "--parallel", parallel_text(shards))
        problems = shard_differences(wanted, back, case.config["model_type"], case.parallel)
        if not any(named in name for held in read_shards(back).values() for name in held):
            problems.append(f"no name has {named}")
    if not problems and any(name.endswith("out_norm.weight") for held in wanted.values() for name in held):
        # From shards to shards not even these norms are rounded.
        deltawire(program, "convert", shards, folder / "kept", "--hf", folder / "hf", "--unmarked",
                  "--parallel", parallel_text(shards))
        problems = shard_differences(wanted, folder / "kept", case.config["model_type"], case.parallel,
                                     from_hf=False)
    if not problems:
        # From one parallel layout to another, without the checkpoint: the shards know it.
        whole, again = folder / "whole", folder / "again"
        deltawire(program, "convert", back, whole, "--parallel", "tp=1")
        deltawire(program, "convert", whole, again, "--max-shard-size", "4KB")
        problems = differences(case.hf, read_hf(again))
    if not problems:
        # What lies there is replaced as a whole.
        (out / "model.safetensors.index.json").write_text("{}")
        deltawire(program, "convert", back, out, "--replace")
        problems = differences(case.hf, read_hf(out))
        problems += [f"{p.name} was left" for p in out.glob("*.index.json")]
    return case, problems


def parallel_text(shards):
    fields = json.loads((shards / "parallel.json").read_text())
    items = [f"{k}={str(v).lower() if isinstance(v, bool) else v}"
             for k, v in fields.items() if v not in (0, "", False, None)]
    return ",".join(items)


def mtp_without_loss(tied, older):
    """MTP layers on a stage that does not compute the loss: rare among random layouts. Versions before
    0.15 gave that stage an output layer, tied or not."""
    def shows(model, x):
        place = Placement(model, x)
        return (place.mtp not in (None, place.loss) and bool(model.tied) == tied
                and (x.minor < 15) == older)
    return shows


def newer_names():
    """(family, seed, named): cases of version 0.19, with names in which it differs, or might. The trainer's own
    shards have MTP layers by the older and by the newer name, and vision as VISION_PREFIX says, so both
    are read as well."""
    for family in ("deepseek_v3", "glm4_moe", "qwen3_next"):
        for inner in ("transformer_layer", "mtp_model_layer"):
            seed, = seeds_that_show(family, lambda m, x: x.minor >= 19 and m.mtp_layers > 0
                                    and x.mtp_inner == inner, 1)
            yield family, seed, ".mtp_model_layer."
    for family, named in (("qwen2_vl", "visual."), ("qwen3_vl", "vision_model.decoder.layers.0.mlp."),
                          ("qwen3_vl_moe", "vision_model.merger.patch_norm."),
                          ("qwen3_5", "vision_model.decoder.layers.0.self_attention.linear_qkv."),
                          ("gemma3", "multi_modal_projector.proj.weight")):
        for cut in (False, True):
            seed, = seeds_that_show(family, lambda m, x: x.minor >= 19 and (x.tp > 2) == cut, 1)
            yield family, seed, named
    # The norm before MLA's undivided query projection keeps its name.
    for family in ("deepseek_v2", "moonlight"):
        seed, = seeds_that_show(family, lambda m, x: x.minor >= 19 and m.q_lora is None
                                and x.spec == "te", 1)
        yield family, seed, ".input_layernorm.weight"


def main():
    program, cases = sys.argv[1], int(sys.argv[2])
    given = sys.argv[3] if len(sys.argv) > 3 else "0"
    first = int(time.time() // 86400) * 10 if given == "today" else int(given)
    families = sys.argv[4:] or list(FAMILIES)
    todo = [(families[i % len(families)], first + i // len(families), "") for i in range(cases)]
    if len(sys.argv) <= 4:
        for older in (False, True):
            for family, tied in (("deepseek_v3", False), ("glm4_moe", True)):
                todo += [(family, seed, "")
                         for seed in seeds_that_show(family, mtp_without_loss(tied, older), 1)]
        todo += newer_names()
    failed, seen = 0, set()
    for family, seed, named in todo:
        with tempfile.TemporaryDirectory() as folder:
            try:
                case, problems = check(program, family, seed, pathlib.Path(folder), named)
            except AssertionError as error:
                case, problems = None, [str(error)]
        if case is not None:
            seen.add((family, str(case.parallel)))
        if problems:
            failed += 1
            print(f"FAILED {family} seed {seed}: repeat with `check_convert.py DELTAWIRE 1 {seed} "
                  f"{family}`")
            for problem in problems[:8]:
                print(f"  {problem}")
    print(f"{len(todo) - failed} of {len(todo)} cases agree: {len(families)} families, "
          f"{len(seen)} combinations of family and parallel layout")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
