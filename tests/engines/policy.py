"""What the engines' tests share: a tiny policy in training, with its sender and receiver, requests
that run beside its updates, and the question whether something holds."""

from __future__ import annotations

import json
import pathlib
import tempfile
import threading
import time

import delta_file_decoder
import deltawire
import torch
from daemons import DEADLINE_S, Daemons
from engine_server import EngineServer
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
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


def smaller() -> torch.nn.Module:
    """A layer fewer, and wider ones: of what is left engines load as much as fits, and say nothing."""
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE | dict(
        num_hidden_layers=1, intermediate_size=640)))


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def qwen2() -> torch.nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE | dict(hidden_size=512)))


def experts() -> torch.nn.Module:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2))


def padded_experts() -> torch.nn.Module:
    """vLLM pads the 80 to 96 where it packs experts for a CPU."""
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=80, num_experts=8, num_experts_per_tok=2))


def mixtral() -> torch.nn.Module:
    return MixtralForCausalLM(MixtralConfig(
        **SHAPE, num_local_experts=4, num_experts_per_tok=2))


def gpt_oss() -> torch.nn.Module:
    return GptOssForCausalLM(GptOssConfig(
        **SHAPE | dict(head_dim=64), num_local_experts=4, num_experts_per_tok=2, sliding_window=128,
        rope_parameters=dict(YARN, beta_slow=1.0, truncate=False)))


# SGLang has rotary embeddings for latent attention on a CPU only with YaRN.
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
            original_max_position_embeddings=128, beta_fast=32.0, beta_slow=1.0)
LATENT = SHAPE | dict(
    num_key_value_heads=4, head_dim=64, moe_intermediate_size=128, n_routed_experts=4,
    num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=512,
    qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64,
    rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))


def latent() -> torch.nn.Module:
    """Latent attention: engines compute matrices from kv_b_proj that no checkpoint has."""
    return DeepseekV2ForCausalLM(DeepseekV2Config(
        **LATENT, n_group=1, topk_group=1, topk_method="greedy", scoring_func="softmax",
        moe_layer_freq=1, q_lora_rank=None))


def latent_v3() -> torch.nn.Module:
    """DeepSeek-V3's shape: queries are latent, too, and a bias per expert corrects the routing."""
    return DeepseekV3ForCausalLM(DeepseekV3Config(
        **LATENT, q_lora_rank=128, n_group=2, topk_group=1, topk_method="noaux_tc",
        scoring_func="sigmoid", moe_layer_freq=1, num_nextn_predict_layers=0))


class Predicting(torch.nn.Module):
    """A GLM whose checkpoint has a layer for multi-token prediction, which engines load as a draft
    model. As in published checkpoints it has copies of the embedding and of the head."""

    def __init__(self):
        super().__init__()
        config = Glm4MoeConfig(
            **SHAPE, moe_intermediate_size=128, n_routed_experts=4, num_experts_per_tok=2,
            n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
            partial_rotary_factor=0.5, use_qk_norm=True)
        config.num_nextn_predict_layers = 1
        self.model = Glm4MoeForCausalLM(config)

    def save_pretrained(self, folder: pathlib.Path) -> None:
        self.model.save_pretrained(folder)
        layers, hidden = SHAPE["num_hidden_layers"], SHAPE["hidden_size"]
        weights = load_file(folder / "model.safetensors")
        last, own = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
        weights |= {own + name.removeprefix(last): tensor.clone()
                    for name, tensor in weights.items() if name.startswith(last)}
        norm = weights["model.norm.weight"]
        weights |= {own + name: norm.clone() for name in (
            "enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
        weights[own + "eh_proj.weight"] = (0.02 * torch.randn(hidden, 2 * hidden)).to(norm.dtype)
        weights[own + "embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        weights[own + "shared_head.head.weight"] = weights["lm_head.weight"].clone()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})


#: Latent attention in vLLM: where a CPU has AMX, vLLM would pack kv_b_proj and drop it.
PLAIN_LATENT = "CPU_MLA"
LATENT_MODELS = ("latent", "latent_v3")
MODELS = {make.__name__: make for make in (
    dense, llama, qwen2, experts, mixtral, gpt_oss, latent, latent_v3)}
#: Whose experts vLLM packs on a CPU after the load.
PACKED_MODELS = {make.__name__: make for make in (experts, padded_experts, mixtral, gpt_oss)}


def draft() -> torch.nn.Module:
    """A draft model for `dense`: one layer."""
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE | dict(num_hidden_layers=1)))


class Adapter(torch.nn.Module):
    """A LoRA adapter of `dense` in PEFT's names and files, without the package."""

    RANK = 8

    def __init__(self):
        super().__init__()
        hidden, wide = SHAPE["hidden_size"], SHAPE["num_attention_heads"] * SHAPE["head_dim"]
        for layer in range(SHAPE["num_hidden_layers"]):
            at = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
            for part, shape in (("A", (self.RANK, hidden)), ("B", (wide, self.RANK))):
                self.register_parameter(f"{at}.lora_{part}.weight".replace(".", "/"),
                                        torch.nn.Parameter(0.2 * torch.randn(shape)))

    def save_pretrained(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        save_file({name.replace("/", "."): value.detach() for name, value in self.named_parameters()},
                  folder / "model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": self.RANK, "lora_alpha": 16,
            "target_modules": ["q_proj"], "bias": "none", "base_model_name_or_path": ""}))


def in_bfloat16(model: torch.nn.Module) -> torch.nn.Module:
    """All but what its published checkpoints have in fp32."""
    kept = {name: buffer.float() for name, buffer in model.named_buffers()
            if name.endswith("e_score_correction_bias")}
    model = model.to(torch.bfloat16)
    for name, buffer in kept.items():
        module, _, attribute = name.rpartition(".")
        model.get_submodule(module).register_buffer(attribute, buffer)
    return model


class Policy:
    """A model in training; `version` is committed in the receiver's directory. A context manager:
    everything lies below `root` and goes with it."""

    def __init__(self, make):
        """`make`: one of MODELS, `draft` or `Adapter`."""
        self.make = make
        self.version = 0
        self.receiver_options: list[str] = []  # of the next one that is started

    def __enter__(self) -> Policy:
        self._scratch = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="deltawire-engines-")
        self.root = pathlib.Path(self._scratch.name)
        torch.manual_seed(SEED)
        self._random = torch.Generator().manual_seed(SEED)
        self.daemons = Daemons(self.root)
        self.sender = self.daemons.start_sender(self.root / "sender")
        self.start_receiver()
        self._trainer = deltawire.WeightManager(self.root / "sender", model="policy")
        self._register(self.make, self.root / "hf")
        return self

    def __exit__(self, *error) -> None:
        self.daemons.__exit__(*error)
        self._scratch.cleanup()

    def become(self, make) -> None:
        """The trainer begins anew, with another model under the same name."""
        self._register(make, self.root / "other", replace=True)

    def _register(self, make, folder: pathlib.Path, **options) -> None:
        in_bfloat16(make()).save_pretrained(folder)
        self._weights = load_file(folder / "model.safetensors")
        self._trainer.register(self._weights.items(), hf_dir=folder, **options)
        self._offload()

    @property
    def directory(self) -> pathlib.Path:
        return self.root / "policy"

    def sizes(self) -> dict[str, int]:
        """Bytes of each tensor."""
        return {name: tensor.nbytes for name, tensor in self._weights.items()}

    def start_receiver(self) -> None:
        """It has the version when this returns."""
        self.receiver = self.daemons.start_receiver(
            [self.sender], "policy", self.directory, *self.receiver_options)
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
        self.failures: list[str] = []
        self.took: list[float] = []  # seconds, of those that were answered

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                self._server.logprobs(PROMPT)
                self.took.append(time.monotonic() - begin)
            except Exception as error:  # pylint: disable=broad-except  # any failure is the finding
                self.failures.append(repr(error))

    @property
    def answered(self) -> int:
        return len(self.took)

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


def report_times(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p50, p99 = (1e3 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    print(f"{what}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {1e3 * ordered[-1]:.0f} ms, "
          f"of {len(ordered)}", flush=True)


def report_pauses(pauses: list[float], requests: Requests) -> None:
    """`pauses`: seconds, one for each update."""
    report_times("pause of an update", pauses)
    report_times("request beside updates", requests.took)
