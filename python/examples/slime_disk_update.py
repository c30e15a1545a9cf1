#!/usr/bin/env python3
"""slime's disk update with deltawire's hook: checkpoints are written, engines on Ray read them.

    slime_disk_update.py --endpoint /dev/shm/deltawire --directory /dev/shm/policy

slime itself is not run: it is on no package index, and trains with Megatron on GPUs. This is the
part of it that the hook lives in: at each step the whole checkpoint goes into a folder
`weight_vNNNNNN`, the function that --custom-update-weight-post-write-path names is called with
slime's arguments, that folder and the handles of the engines, and then each engine loads the
folder by its name. Here an engine is an actor of Ray that reads safetensors. The sender and the
receiver must run already; see docs/howto/rl_frameworks.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import tempfile

import ray
import torch
from safetensors.torch import load_file, save_file

HOOK = "deltawire.integrations.slime.publish"
ENGINES = 2
CHANGED = 0.01


class Engine:
    """A stand-in for slime's actor around an SGLang server."""

    def update_weights_from_disk(self, model_path: str) -> dict[str, torch.Tensor]:
        """Returns the loaded tensors, for the comparison."""
        return load_file(pathlib.Path(model_path) / "model.safetensors")


def named(path: str):
    """Returns the function that one of slime's --custom-...-path options names."""
    module, _, function = path.rpartition(".")
    return getattr(importlib.import_module(module), function)


def write(weights: dict[str, torch.Tensor], folder: pathlib.Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(weights, folder / "model.safetensors")


def run(options: argparse.Namespace, disk: pathlib.Path) -> None:
    # The options of docs/howto/rl_frameworks.md, read by slime's parser.
    args = argparse.Namespace(
        update_weight_mode="full", update_weight_transport="disk", update_weight_disk_dir=str(disk),
        custom_update_weight_post_write_path=HOOK, deltawire_directory=options.directory,
        deltawire_endpoint=options.endpoint, deltawire_model=options.model, deltawire_timeout=120.0)
    hook = named(args.custom_update_weight_post_write_path)
    engines = [ray.remote(num_cpus=0)(Engine).remote() for _ in range(ENGINES)]
    weights = {f"layers.{i}.weight": torch.randn(256, 256).to(torch.bfloat16) for i in range(4)}
    for step in range(1, options.steps + 1):
        for tensor in weights.values():
            tensor += ((torch.rand(tensor.shape) < CHANGED) * torch.randn(tensor.shape)).to(
                tensor.dtype)
        folder = disk / f"weight_v{step:06d}"
        write(weights, folder)
        hook(args, str(folder), engines)
        # On this node the folder is the checkpoint itself; on others it is a link here by now.
        for name in (str(folder), options.directory):
            for got in ray.get([e.update_weights_from_disk.remote(name) for e in engines]):
                wrong = [n for n, t in weights.items() if not torch.equal(got[n], t)]
                if wrong:
                    raise SystemExit(f"step {step}: an engine has other weights in {wrong}")
        print(f"step {step}: {ENGINES} engines have loaded {folder.name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", default="/dev/shm/deltawire", help="the sender's")
    parser.add_argument("--directory", default="/dev/shm/policy", help="the receiver's")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(1)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # otherwise Ray leaves a token in the home
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory(prefix="deltawire-slime-") as scratch:
            run(options, pathlib.Path(scratch))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
