#!/usr/bin/env python3
"""TRL's AsyncGRPOTrainer trains a tiny Qwen3 with a real vLLM, over deltawire.

After every step the SHA-256 of each of vLLM's parameters, by vLLM's own checker, must be that of
the trainer's tensors. The reward must go where it goes when vLLM reloads a saved checkpoint at each
step; TRL's own transfer needs NCCL and thus GPUs. What the example does is what is tested.

Usage: trl_test.py [--steps N]   (DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import sys
import tempfile

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
try:
    import torch
    import trl  # noqa: F401  # pylint: disable=unused-import
    import vllm  # noqa: F401  # pylint: disable=unused-import
except ImportError as error:
    print(f"SKIPPED: {error}; ./run test --engines makes a Python with vLLM and TRL")
    sys.exit(0)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "examples")]
import trl_async_grpo as example  # noqa: E402
from daemons import DEADLINE_S, Daemons  # noqa: E402
from policy import check  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from vllm_server import VllmServer  # noqa: E402

from deltawire.integrations.trl import WeightTransfer  # noqa: E402

#: By how much the mean of the last third of the steps exceeds that of the first; 0.08 to 0.1 was
#: seen, where the rewards of one policy differ by 0.03 from step to step.
RISE = 0.05
#: vLLM's fused parameters, and the checkpoint's tensors that they are made of.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Server(VllmServer):
    """With a tokenizer, under the name by which TRL asks for the model."""

    def __init__(self, model: pathlib.Path, name: str, log: pathlib.Path, *options: str):
        # On a CPU vLLM fails when it cuts the prompt of a request that has a seed, so none is cut.
        super().__init__(model, log, *options, "--served-model-name", name, "--max-num-seqs", "32",
                         "--max-num-batched-tokens", "8192", "--no-enable-prefix-caching")

    def command(self) -> list[str]:
        return [a for a in super().command() if a != "--skip-tokenizer-init"]

    def environment(self) -> dict[str, str]:
        # A CPU takes longer for a step than vLLM keeps a connection by default.
        return super().environment() | {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def checksums(self) -> dict[str, str]:
        found = self.post("/weight_checker", {"action": "checksum"})["checksums"]
        return {name.rpartition(":")[2]: value for name, value in found.items()}


def sha256_of(weights: dict[str, torch.Tensor], name: str) -> str:
    """Of vLLM's parameter `name`, made from the trainer's tensors."""
    for fused, parts in FUSED.items():
        if fused in name:
            whole = torch.cat([weights[name.replace(fused, part)] for part in parts])
            break
    else:
        whole = weights[name]
    return hashlib.sha256(whole.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()


class Checked:
    """A transfer, and after each version a look into vLLM's memory."""

    def __init__(self, transfer, server: Server):
        self._transfer, self._server = transfer, server
        self._weights: dict[str, torch.Tensor] = {}
        self.compared = 0

    def __getattr__(self, name: str):
        return getattr(self._transfer, name)

    def send_weights(self, iterator) -> None:
        self._weights = {n: t.detach().to(torch.bfloat16, copy=True) for n, t in iterator}
        self._transfer.send_weights(iter(self._weights.items()))

    def resume(self) -> None:
        self._transfer.resume()  # vLLM computes checksums only while it is not paused
        found = self._server.checksums()
        wrong = [n for n, value in found.items() if value != sha256_of(self._weights, n)]
        if wrong or not found:
            raise SystemExit(f"FAILED: vLLM has other bytes than the trainer in {wrong}")
        self.compared += len(found)


class Reload:
    """The reference: vLLM reloads a checkpoint that is saved at each step."""

    def __init__(self, server: Server, folder: pathlib.Path):
        self._server, self._folder = server, folder
        self.version = 0

    def init_weight_transfer(self) -> None:
        pass

    def pause(self) -> None:
        self._server.post("/pause?mode=keep")

    def send_weights(self, iterator) -> None:
        save_file({n: t.detach().to(torch.bfloat16) for n, t in iterator},
                  self._folder / "model.safetensors")
        self._server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {
            "weights_path": str(self._folder), "is_checkpoint_format": True}})
        self.version += 1

    def resume(self) -> None:
        self._server.post("/resume")

    def destroy(self) -> None:
        pass


def options_of(root: pathlib.Path, server: Server, steps: int) -> argparse.Namespace:
    return argparse.Namespace(checkpoint=root / "hf", server=server.url, output=root / "output",
                              steps=steps, learning_rate=3e-3)


def over_deltawire(root: pathlib.Path, steps: int) -> list[float]:
    with Daemons(root) as daemons:
        sender = daemons.start_sender(root / "sender")
        receiver = daemons.start_receiver([sender], "policy", root / "policy")
        with Server(root / "hf", str(root / "hf"), root / "deltawire.log") as server:
            transfer = Checked(WeightTransfer(
                server.url, receiver.directory, endpoint=root / "sender", hf_dir=root / "hf",
                timeout=DEADLINE_S), server)
            logs = example.train(options_of(root, server, steps), transfer)
            last = transfer.published
            print(f"{transfer.compared} checksums compared; the last delta has {last.delta_bytes} "
                  f"bytes, the model {last.model_bytes}")
            check(transfer.version == steps + 1, f"{steps + 1} versions reached vLLM bit by bit")
            check(server.get("/weight_info")["weight_version"] == str(steps + 1),
                  "vLLM names the last one")
    return [log["reward"] for log in logs]


def over_reloads(root: pathlib.Path, steps: int) -> list[float]:
    folder = root / "saved"
    folder.mkdir()
    with Server(root / "hf", str(root / "hf"), root / "reload.log") as server:
        logs = example.train(options_of(root, server, steps),
                             Checked(Reload(server, folder), server))
    return [log["reward"] for log in logs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="deltawire-engines-") as scratch:
        root = pathlib.Path(scratch)
        example.make(root / "hf")
        ours, theirs = over_deltawire(root, steps), over_reloads(root, steps)
    for what, rewards in (("deltawire", ours), ("reloads", theirs)):
        print(f"rewards over {what}: {' '.join(f'{r:.3f}' for r in rewards)}", flush=True)
    few = max(1, steps // 3)
    begins, ends = ([sum(r[part]) / few for r in (ours, theirs)]
                    for part in (slice(few), slice(-few, None)))
    check(all(end > begin + RISE for begin, end in zip(begins, ends, strict=True)),
          f"the reward rises over both: from {begins[0]:.3f} to {ends[0]:.3f} and from "
          f"{begins[1]:.3f} to {ends[1]:.3f}")
    # Neither run repeats itself: TRL draws each request's seed at random, and is asynchronous.
    check(abs(ends[0] - ends[1]) < 0.15, "and to the same place")


if __name__ == "__main__":
    main()
