"""What the engines' tests share: a tiny policy in training, with its sender and receiver, requests
that run beside its updates, and the question whether something holds."""

from __future__ import annotations

import pathlib
import tempfile
import threading
import time

import delta_file_decoder
import deltawire
import torch
from daemons import DEADLINE_S, Daemons
from engine_server import EngineServer
from safetensors.torch import load_file
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

PROMPT = [3, 17, 99, 250, 7]
SEED = 20261122
# A head of 128: at 64 vLLM's attention kernel may use instructions that a virtual CPU lacks.
SHAPE = dict(
    vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=128, max_position_embeddings=512,
    tie_word_embeddings=False, dtype="bfloat16")


def dense() -> torch.nn.Module:
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE))


def experts() -> torch.nn.Module:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2))


def latent() -> torch.nn.Module:
    """Latent attention: engines compute matrices from kv_b_proj that no checkpoint has."""
    return DeepseekV2ForCausalLM(DeepseekV2Config(
        **SHAPE | dict(num_key_value_heads=4, head_dim=32), moe_intermediate_size=128,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1,
        n_group=1, topk_group=1, topk_method="greedy", scoring_func="softmax", moe_layer_freq=1,
        q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64,
        # SGLang has rotary embeddings for a CPU only with YaRN.
        rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=4.0, mscale=1.0, mscale_all_dim=1.0,
            original_max_position_embeddings=128, beta_fast=32, beta_slow=1)))


class Policy:
    """A model in training; `version` is committed in the receiver's directory. A context manager:
    everything lies below `root` and goes with it."""

    def __init__(self, make):
        """`make`: dense, experts or latent."""
        self._make = make
        self.version = 0

    def __enter__(self) -> Policy:
        self._scratch = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="deltawire-engines-")
        self.root = pathlib.Path(self._scratch.name)
        torch.manual_seed(SEED)
        self._random = torch.Generator().manual_seed(SEED)
        self._make().to(torch.bfloat16).save_pretrained(self.root / "hf")
        self._weights = load_file(self.root / "hf" / "model.safetensors")
        self.daemons = Daemons(self.root)
        self._sender = self.daemons.start_sender(self.root / "sender")
        self.start_receiver()
        self._trainer = deltawire.WeightManager(self.root / "sender", model="policy")
        self._trainer.register(self._weights.items(), hf_dir=self.root / "hf")
        self._offload()
        return self

    def __exit__(self, *error) -> None:
        self.daemons.__exit__(*error)
        self._scratch.cleanup()

    @property
    def directory(self) -> pathlib.Path:
        return self.root / "policy"

    def start_receiver(self) -> None:
        """It has the version when this returns."""
        self.receiver = self.daemons.start_receiver([self._sender], "policy", self.directory)
        self.receiver.await_version(self.version)

    def publish(self) -> int:
        """Changes about one element in a hundred of every tensor; returns the version that has
        them, which is committed."""
        for tensor in self._weights.values():
            hit = torch.rand(tensor.shape, generator=self._random) < 0.01
            step = torch.randn(tensor.shape, generator=self._random) * 0.02
            tensor += (hit * step).to(tensor.dtype)
        self._offload()
        return self.version

    def _offload(self) -> None:
        self._trainer.offload(self._weights.items(), version=self.version + 1)
        self.receiver.await_version(self.version + 1)
        self.version += 1

    def delta_file(self) -> pathlib.Path:
        """The file of the last version's delta; it is there some milliseconds after the commit."""
        end = time.monotonic() + DEADLINE_S
        while True:
            for path in (self.directory / ".deltawire.deltas").glob("[0-9]*"):
                if delta_file_decoder.read(path.read_bytes()).to.version == self.version:
                    return path
            if time.monotonic() > end:
                raise RuntimeError(f"no delta file of version {self.version}")


class Requests:
    """Requests that go on until the context ends; none of them may fail."""

    def __init__(self, server: EngineServer):
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


def check(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}", flush=True)


def report_pauses(pauses: list[float], requests: Requests) -> None:
    """`pauses`: seconds, one for each update."""
    ordered = sorted(pauses)
    print(f"pause of an update: median {1e3 * ordered[len(ordered) // 2]:.0f} ms, longest "
          f"{1e3 * ordered[-1]:.0f} ms; longest request {1e3 * requests.longest:.0f} ms",
          flush=True)
