"""Runs one family under one layout; compares exported names, shapes and bytes, and the logits."""
import os
import pathlib
import tempfile

import torch

import dump
import export
import models
import processes
import reference_export
from families import FAMILIES

LIMIT = 1e-5  # the largest difference of logits that passes, relative to the largest logit (fp32)
BATCH, LENGTH = 2, 12


class Mismatch(Exception):
    """What an export got wrong."""


def tokens_of(hf, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, hf.vocab_size, (BATCH, LENGTH), generator=generator)


def write_base(rank, name, folder, dtype):
    """Writes a checkpoint by `transformers`: the names, shapes and dtypes to export into."""
    from transformers import AutoModelForCausalLM

    hf = FAMILIES[name].config()
    model = AutoModelForCausalLM.from_config(hf, dtype=dtype)
    model.save_pretrained(folder)
    if getattr(hf, "num_nextn_predict_layers", 0):
        add_mtp_layers(hf, folder, dtype)


def add_mtp_layers(hf, folder, dtype):
    """Adds layers that predict further tokens, behind the last one as in DeepSeek-V3's files."""
    from safetensors.torch import save_file

    tensors = tensors_of(folder)
    template = f"model.layers.{hf.num_hidden_layers - 1}."
    for k in range(hf.num_nextn_predict_layers):
        prefix = f"model.layers.{hf.num_hidden_layers + k}."
        for name, tensor in list(tensors.items()):
            if name.startswith(template):
                tensors[prefix + name[len(template) :]] = tensor.clone()
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{prefix}{norm}.weight"] = torch.zeros(hf.hidden_size, dtype=dtype)
        shape = (hf.hidden_size, 2 * hf.hidden_size)
        tensors[f"{prefix}eh_proj.weight"] = torch.zeros(shape, dtype=dtype)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def is_mtp(key, config):
    parts = str(key).split(".")
    return parts[:2] == ["model", "layers"] and int(parts[2]) >= config.num_hidden_layers


def train(rank, name, layout, seed, mode, base, out, bf16, distributed_optimizer):
    """One rank of the trainer: returns the logits on the last stage's ranks, else None.

    The reference exports one version. Any other mode first exports a version of other weights, and
    then, over it, the one whose logits are compared; both must equal the reference's bit for bit.
    """
    family = FAMILIES[name]
    hf = family.config()
    parallel_state = models.initialize(layout)
    chunks = models.build(family, hf, layout, seed, bf16)
    wrapped = models.wrap(chunks, chunks[0].config, bf16, distributed_optimizer)
    versions = [seed] if mode == "reference" else [seed + 1000, seed]
    for version, weights in enumerate(versions, start=1):
        for chunk in chunks:
            models.randomize(chunk, weights)
        export.export(
            mode, wrapped, parallel_state, base, out,
            family=family, hf=hf, layout=layout, version=version,
        )
        if mode != "reference":
            dumps = dump.gather(wrapped, parallel_state)
            if rank == 0:
                compare_bytes(reference_export.hf_tensors(dumps, family, hf, layout), out, version)
    export.finish()
    return None if bf16 else models.logits(chunks, hf, layout, tokens_of(hf, seed))


def compare_bytes(expected, out, version):
    found = tensors_of(out)
    wrong = sorted(set(expected) ^ set(found))
    if wrong:
        raise Mismatch(f"version {version}: {len(wrong)} tensors missing or surplus: {wrong[:8]}")
    for name, tensor in sorted(expected.items()):
        # The exported file decides the dtype, and the reference's values are rounded to it.
        if tensor.shape != found[name].shape:
            raise Mismatch(f"version {version}: {name} is {tuple(found[name].shape)}")
        unequal = tensor.to(found[name].dtype) != found[name]
        if unequal.any():
            first = tuple(unequal.nonzero()[0].tolist())
            raise Mismatch(
                f"version {version}: {int(unequal.sum())} of {unequal.numel()} elements of {name} "
                f"are wrong, the first at {first}"
            )


def load_and_run(rank, name, seed, folder):
    """The logits of what was exported, by `transformers`; refuses missing and surplus tensors."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = sorted(str(key) for key in report[kind] if not is_mtp(key, model.config))
        if keys:
            raise Mismatch(f"{kind} of {name}: {keys[:8]}")
    model.eval()
    with torch.no_grad():
        return model(tokens_of(model.config, seed)).logits


def tensors_of(folder):
    from safetensors.torch import load_file

    result = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        result.update(load_file(path))
    return result


def compare_headers(base, out):
    """Names, shapes and dtypes must be those that `transformers` itself writes."""
    expected = {name: (tuple(t.shape), t.dtype) for name, t in tensors_of(base).items()}
    found = {name: (tuple(t.shape), t.dtype) for name, t in tensors_of(out).items()}
    if expected != found:
        wrong = sorted(set(expected.items()) ^ set(found.items()), key=str)
        raise Mismatch(f"{len(wrong)} names, shapes or dtypes differ, as {wrong[:8]}")
    return len(found)


def check(name, layout, mode="reference", seed=1, distributed_optimizer=True, keep=None):
    """Exports and compares; returns (tensors, relative difference of the logits)."""
    with tempfile.TemporaryDirectory() as folder:
        base, out = os.path.join(folder, "base"), os.path.join(folder, "out")
        processes.run(1, write_base, name, base, torch.float32)
        results = processes.run(
            layout.world, train, name, layout, seed, mode, base, out, False, distributed_optimizer
        )
        count = compare_headers(base, out)
        loaded = processes.run(1, load_and_run, name, seed, out)[0]
        worst = 0.0
        for rank, logits in enumerate(results):
            if logits is None:
                continue
            difference = (logits - loaded).abs().max() / loaded.abs().max()
            if not difference <= LIMIT:
                raise Mismatch(
                    f"{name} {layout.name} seed {seed}: rank {rank}'s logits differ by "
                    f"{float(difference):.2e} of the largest from those of transformers"
                )
            worst = max(worst, float(difference))
        if keep is not None:
            keep.update(tensors_of(out))
        return count, worst


def check_bf16(name, layout, mode="reference", seed=1):
    """Checks that a model in Float16Module and DDP exports its weights, rounded to bf16, bitwise.

    Logits are not compared, since two implementations in bf16 do not agree to 1e-5.
    """
    fp32 = {}
    check(name, layout, "reference", seed, keep=fp32)
    with tempfile.TemporaryDirectory() as folder:
        base, out = os.path.join(folder, "base"), os.path.join(folder, "out")
        processes.run(1, write_base, name, base, torch.bfloat16)
        processes.run(layout.world, train, name, layout, seed, mode, base, out, True, True)
        count = compare_headers(base, out)
        found = tensors_of(out)
        for tensor, value in fp32.items():
            if not torch.equal(found[tensor].float(), value.bfloat16().float()):
                where = f"{name} {layout.name} seed {seed}"
                raise Mismatch(f"{where}: {tensor} is not its fp32 rounded")
        return count
