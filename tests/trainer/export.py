"""The seam between the harness and what writes HF directories.

`export(mode, ...)` is called by all ranks with this rank's model chunks, as a trainer holds them.
When it returns, `out` is an HF directory that `transformers` can load.
"""
import functools
import importlib.util
import pathlib
import shutil
import sys

import torch

import dump
import reference_export

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import daemons  # noqa: E402

MODEL = "policy"
NODES = 2


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
    write = _reference if mode == "reference" else functools.partial(_deltawire, mode)
    write(
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

    def __init__(self, out, mode):
        import deltawire

        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        root = out.parent / "daemons"
        nodes = NODES if mode == "nodes" else 1
        self.daemons = None
        if rank == 0:
            root.mkdir()
            self.daemons = daemons.Daemons(root)
            senders = [self.daemons.start_sender(root / f"sender-{i}") for i in range(nodes)]
            self.receiver = self.daemons.start_receiver(
                senders, MODEL, out, "--data-dir", str(root / "receiver"), "--no-follow"
            )
        # Pipeline ranks are the outermost, so a node has whole stages.
        node = rank * nodes // world
        mine = [r for r in range(world) if r * nodes // world == node]
        place = (mine.index(rank), len(mine)) if mode != "gather" else (0, 1)
        self.manager = deltawire.WeightManager(root / f"sender-{node}", MODEL, *place)
        self.options = {}
        if mode == "nodes":
            self.options["node_ranks"] = mine
        elif mode == "gather":
            # Buckets so small that several are needed, and two are under way at once.
            self.options["gather"] = deltawire.Gather(
                f"file:{out.parent}", job="gather", interface="lo", bucket_bytes=64 << 10
            )


_way = None


def _deltawire(
    mode, models, parallel_state, hf_config_dir, out, *, family, hf, layout, version
):
    global _way
    _way = _way or _Way(out, mode)
    done = _way.manager.offload_megatron(
        models, parallel_state, hf_config_dir, version, **_way.options
    )
    torch.distributed.barrier()  # all ranks of all nodes are ready
    if _way.daemons is not None:
        done.wait()
        try:
            _way.receiver.sync()
        except RuntimeError as error:
            raise RuntimeError(f"version {version}: {error}{_way.daemons.logs()}") from error


def finish():
    """Closes what the exports kept open; called after the last version."""
    global _way
    if _way is not None:
        _way.manager.close()
        if _way.daemons is not None:
            _way.daemons.close()
    _way = None
