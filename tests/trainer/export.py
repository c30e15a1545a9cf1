"""The seam between the harness and what writes HF directories.

`export(mode, ...)` is called by all ranks with this rank's model chunks, as a trainer holds them.
When it returns, `out` is an HF directory that `transformers` can load.
"""
import importlib.util
import pathlib
import shutil

import torch

import daemons
import dump
import reference_export


def available(mode):
    """None when `mode` can run here, else why not."""
    if mode == "reference":
        return None
    if importlib.util.find_spec("deltawire") is None:
        return "there is no Python module deltawire"
    if daemons.programs() is None:
        return "DELTAWIRE_BIN_DIR does not name the daemons"
    return None


def export(mode, models, parallel_state, hf_config_dir, out, *, family, hf, layout, version=1):
    """`hf_config_dir` holds config.json and a checkpoint of equal names and shapes. Collective."""
    why = available(mode)
    if why:
        raise NotImplementedError(why)
    {"reference": _reference, "place": _deltawire, "gather": _gather}[mode](
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


class _Way:
    """This rank's way into a sender, kept from version to version; rank 0 has the daemons."""

    def __init__(self, out, gather):
        import deltawire

        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        root = out.parent / "daemons"
        self.daemons = daemons.Daemons(root, out) if rank == 0 else None
        self.manager = deltawire.WeightManager(
            root / "sender", daemons.MODEL, *((0, 1) if gather else (rank, world))
        )
        self.gather = None
        if gather:
            # Buckets so small that several are needed, and two are under way at once.
            self.gather = deltawire.Gather(
                f"file:{out.parent}", job="gather", interface="lo", bucket_bytes=64 << 10
            )


_way = None


def _deltawire(
    models, parallel_state, hf_config_dir, out, *, family, hf, layout, version, gather=False
):
    global _way
    _way = _way or _Way(out, gather)
    done = _way.manager.offload_megatron(
        models, parallel_state, hf_config_dir, version, gather=_way.gather
    )
    if _way.daemons is not None:
        done.wait()
        _way.daemons.bring(version)


def _gather(*arguments, **named):
    _deltawire(*arguments, **named, gather=True)


def finish():
    """After the last version."""
    global _way
    if _way is not None:
        _way.manager.close()
        if _way.daemons is not None:
            _way.daemons.close()
    _way = None
