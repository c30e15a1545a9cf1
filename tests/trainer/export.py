"""The seam between the harness and what writes HF directories.

`export(mode, ...)` is called by all ranks with this rank's model chunks, as a trainer holds them.
When it returns, `out` is an HF directory that `transformers` can load.
"""
import importlib.util
import pathlib
import shutil

import torch

import dump
import reference_export


def available(mode):
    """None when `mode` can run here, else why not."""
    if mode == "reference":
        return None
    if importlib.util.find_spec("deltawire") is None:
        return "there is no Python module deltawire"
    import deltawire

    if not hasattr(deltawire, "offload_megatron"):
        return "the Python module deltawire has no offload_megatron"
    return None


def export(mode, models, parallel_state, hf_config_dir, out, *, family, hf, layout, version=1):
    """`hf_config_dir` holds config.json and a checkpoint of equal names and shapes. Collective."""
    why = available(mode)
    if why:
        raise NotImplementedError(why)
    {"reference": _reference, "deltawire": _deltawire}[mode](
        models, parallel_state, pathlib.Path(hf_config_dir), pathlib.Path(out),
        family=family, hf=hf, layout=layout, version=version,
    )
    torch.distributed.barrier()


def _reference(models, parallel_state, hf_config_dir, out, *, family, hf, layout, version):
    from safetensors.torch import save_file

    dumps = dump.gather(models, parallel_state)
    if torch.distributed.get_rank() == 0:
        out.mkdir(exist_ok=True)
        shutil.copy(hf_config_dir / "config.json", out)
        tensors = reference_export.hf_tensors(dumps, family, hf, layout)
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def _deltawire(models, parallel_state, hf_config_dir, out, *, family, hf, layout, version):
    import deltawire

    # A copy of the base checkpoint, over which all versions are written.
    if torch.distributed.get_rank() == 0 and not out.exists():
        shutil.copytree(hf_config_dir, out)
    torch.distributed.barrier()
    deltawire.offload_megatron(models, parallel_state, str(out), version)
