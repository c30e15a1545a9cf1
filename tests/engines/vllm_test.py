#!/usr/bin/env python3
"""A real vLLM follows a real receiver: each committed version answers, with nothing reloaded.

A trainer changes some elements of a tiny Qwen3 and publishes; the receiver commits; vLLM prepares
while it serves, pauses, writes what changed, and resumes. At the end the engine's own checksums
must be those of a second vLLM that was started on the last version's checkpoint. Requests run all
the time, and none may fail.

Usage: vllm_test.py [--versions N]   (DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import threading
import time

try:
    import torch
    import vllm  # noqa: F401  # pylint: disable=unused-import
    from safetensors.torch import load_file
    from transformers import Qwen3Config, Qwen3ForCausalLM
except ImportError as error:
    print(f"SKIPPED: {error}; ./run test --engines makes a Python with vLLM")
    sys.exit(0)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import deltawire  # noqa: E402
from daemons import Daemons  # noqa: E402
from vllm_server import VllmServer  # noqa: E402

PROMPT = [3, 17, 99, 250, 7]
SEED = 20261122


def make_model(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(SEED)
    # A head of 128: at 64 vLLM's attention kernel may use instructions that a virtual CPU lacks.
    config = Qwen3Config(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128, max_position_embeddings=512,
        tie_word_embeddings=False, dtype="bfloat16")
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def train(weights: dict[str, torch.Tensor], random: torch.Generator) -> None:
    """Changes about one element in a hundred of every tensor."""
    for tensor in weights.values():
        hit = torch.rand(tensor.shape, generator=random) < 0.01
        step = torch.randn(tensor.shape, generator=random) * 0.02
        tensor += (hit * step).to(tensor.dtype)


class Requests:
    """Requests that go on until the context ends; counts those that failed."""

    def __init__(self, server: VllmServer):
        self._server, self._stop = server, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered, self.failures, self.longest = 0, [], 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                self._server.logprobs(PROMPT)
                self.answered += 1
            except Exception as error:  # pylint: disable=broad-except  # any failure is the finding
                self.failures.append(repr(error))
            self.longest = max(self.longest, time.monotonic() - begin)

    def __enter__(self) -> Requests:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()


def follow(server: VllmServer, version: int) -> float:
    """Brings the engine to `version`; seconds that it was paused."""
    server.post("/start_weight_update")
    begin = time.monotonic()
    server.post("/pause?mode=keep")
    server.post("/update_weights", {"update_info": {"version": version}})
    server.post("/finish_weight_update", {"weight_version": str(version)})
    server.post("/reset_prefix_cache")
    server.post("/resume")
    return time.monotonic() - begin


def check(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=50)
    versions = parser.parse_args().versions
    random = torch.Generator().manual_seed(SEED)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="deltawire-engines-") as scratch:
        root = pathlib.Path(scratch)
        weights = make_model(root / "hf")
        with Daemons(root) as daemons:
            sender = daemons.start_sender(root / "sender")
            receiver = daemons.start_receiver([sender], "policy", root / "policy")
            trainer = deltawire.WeightManager(root / "sender", model="policy")
            trainer.register(weights.items(), hf_dir=root / "hf")
            trainer.offload(weights.items(), version=1)
            receiver.await_version(1)
            run(root, receiver, trainer, weights, random, versions)


def run(root, receiver, trainer, weights, random, versions) -> None:
    with VllmServer(receiver.directory, root / "vllm.log", "--weight-transfer-config",
                    '{"backend": "deltawire"}') as server:
        server.post("/init_weight_transfer_engine",
                    {"init_info": {"directory": str(receiver.directory)}})
        first = server.logprobs(PROMPT)
        pauses = []
        with Requests(server) as requests:
            for version in range(2, versions + 1):
                train(weights, random)
                trainer.offload(weights.items(), version=version)
                receiver.await_version(version)
                pauses.append(follow(server, version))
        check(not requests.failures, f"{requests.answered} requests beside {versions - 1} updates, "
              f"none failed {requests.failures[:1]}")
        check(server.get("/weight_info")["weight_version"] == str(versions),
              f"the engine says that it serves version {versions}")
        server.post("/start_weight_update")
        server.post("/update_weights", {"update_info": {"version": versions, "check": True}})
        server.post("/finish_weight_update")
        check(True, "the engine's memory has the digests of the committed version")
        last = server.logprobs(PROMPT)
        sums = server.post("/weight_checker", {"action": "checksum"})["checksums"]
        pauses.sort()
        print(f"pause of an update: median {1e3 * pauses[len(pauses) // 2]:.0f} ms, longest "
              f"{1e3 * pauses[-1]:.0f} ms; longest request {1e3 * requests.longest:.0f} ms")
    with VllmServer(receiver.directory, root / "fresh.log") as fresh:
        check(last != first, "the last version answers otherwise than the first")
        theirs = fresh.logprobs(PROMPT)
        check(theirs == last,
              "logprobs equal those of a fresh engine on the last version's checkpoint")
        theirs = fresh.post("/weight_checker", {"action": "checksum"})["checksums"]
        check(sums == theirs, f"{len(sums)} checksums equal the fresh engine's own")


if __name__ == "__main__":
    main()
