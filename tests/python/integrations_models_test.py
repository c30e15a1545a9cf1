"""deltawire.integrations with models of transformers, as trainers stream them.

The streams are made as TRL 1.16 (`_iter_vllm_named_params`) and verl 0.9.1 make theirs; with TRL
installed, integrations_frameworks_test.py takes TRL's own.
"""

from __future__ import annotations

import unittest

import support

support.use_trainer_python()
from integrations_rig import LIMIT_S, Case, raw  # noqa: E402  # or a skip

transformers = support.need("transformers")

import deltawire  # noqa: E402
import torch  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def mixtral():
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(num_local_experts=3, **SMALL))


def qwen3_moe():
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(num_experts=3, moe_intermediate_size=24, **SMALL))


def qwen3(tied: bool):
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(tie_word_embeddings=tied, **SMALL))


class ModelCase(Case):
    """`start` saves a model as the checkpoint that the run starts from."""

    def start(self, model, **more) -> Publisher:
        self.trained = model
        self.base = self.cluster.root / f"base-{self.model}"
        model.save_pretrained(self.base)
        if more:
            self.save(load_file(self.base / "model.safetensors") | more, self.base)
        publisher = Publisher(**self.arguments | {"hf_dir": self.base})
        self.addCleanup(publisher.close)
        publisher.open()
        return publisher

    def step(self, seed: int):
        """Changes what is trained, as an optimizer does."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.trained.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator))

    def saved(self) -> dict[str, torch.Tensor]:
        """What transformers saves of it now."""
        at = self.cluster.root / f"saved-{self.model}"
        self.trained.save_pretrained(at)
        return load_file(at / "model.safetensors")


class PackedExpertsTest(ModelCase):
    def test_packed_experts_arrive_as_the_checkpoint_has_them(self):
        for make in (mixtral, qwen3_moe):
            with self.subTest(make.__name__):
                self.model = make.__name__
                self.arguments["model"] = self.model
                self.receiver = self.cluster.follow(self.model)
                publisher = self.start(make())
                names = {n for n, _ in self.trained.named_parameters()}
                self.assertFalse(names >= self.saved().keys())  # they are packed
                for version in (1, 2):
                    self.step(version)
                    publisher.publish((n, p.detach()) for n, p in self.trained.named_parameters())
                    self.assert_receiver_has(self.saved(), version)

    def test_what_does_not_fit_the_checkpoint_s_experts_is_refused(self):
        publisher = self.start(qwen3_moe())
        stream = {n: p.detach() for n, p in self.trained.named_parameters()}
        packed = "model.layers.1.mlp.experts.gate_up_proj"
        for wrong, error, name in (
                (stream[packed][:2], deltawire.MissingTensorError, "layers.1.mlp.experts.2.gate"),
                (stream[packed][:, :40], deltawire.ShapeError, "layers.1.mlp.experts.0.gate"),
                (torch.zeros(4, 48, 32), deltawire.ExtraTensorError, packed)):
            with self.subTest(name), self.assertRaisesRegex(error, name):
                publisher.publish((stream | {packed: wrong}).items())
        publisher.publish(stream.items())
        self.assert_receiver_has(self.saved(), 1)


class AdapterTest(ModelCase):
    def test_an_adapter_that_is_not_merged_is_refused_with_what_to_set(self):
        """verl's collect_lora_params and replace_lora_wrapper name the base's layers so."""
        publisher = self.start(qwen3(tied=False))
        for added in ("base_layer.weight", "lora_A.weight", "lora_B.default.weight"):
            stream = {n.replace("q_proj.weight", f"q_proj.{added}"): p.detach()
                      for n, p in self.trained.named_parameters()}
            with (self.subTest(added),
                  self.assertRaisesRegex(deltawire.ExtraTensorError, r"model\.lora\.merge=True")):
                publisher.publish(stream.items())


if __name__ == "__main__":
    unittest.main()
