"""deltawire.integrations with models of transformers, as trainers stream them.

The streams are made as TRL 1.16 (`_iter_vllm_named_params`) and verl 0.9.1 make theirs; with TRL
installed, integrations_frameworks_test.py takes TRL's own.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import unittest
import unittest.mock

import support

support.use_trainer_python()
from integrations_rig import Case  # noqa: E402  # or a skip

transformers = support.need("transformers")

import deltawire  # noqa: E402
import torch  # noqa: E402
from deltawire.integrations import trl  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

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
            weights = load_file(self.base / "model.safetensors")
            save_file(weights | more, self.base / "model.safetensors")
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


class MastersTest(ModelCase):
    def test_by_config_json_alone_types_are_those_that_transformers_loads(self):
        """Of an fp32 trainer; transformers has a router's correction bias in fp32 beside bf16."""
        latent = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                  "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_shared_experts": 1}
        for name, config in (
                ("DeepseekV3ForCausalLM", transformers.DeepseekV3Config(
                    q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4,
                    v_head_dim=8, **latent, **{k: v for k, v in SMALL.items() if k != "head_dim"})),
                ("Glm4MoeForCausalLM", transformers.Glm4MoeConfig(**latent, **SMALL)),
                ("Qwen3ForCausalLM", transformers.Qwen3Config(**SMALL))):
            with self.subTest(name):
                masters = getattr(transformers, name)(config).float()
                at = self.cluster.root / f"{self.model}-{name}"
                masters.save_pretrained(at / "whole")
                loaded = type(masters).from_pretrained(at / "whole", dtype=torch.bfloat16)
                config.dtype = torch.bfloat16  # as a published one says; saving has set fp32
                config.save_pretrained(at)
                weights = deltawire.WeightManager(self.cluster.endpoint, name)
                self.addCleanup(weights.close)
                weights.register(masters.state_dict(), hf_dir=at)
                want = {n: {torch.float32: "F32", torch.bfloat16: "BF16"}[t.dtype]
                        for n, t in loaded.state_dict().items()}
                self.assertEqual("F32" in want.values(), "e_score_correction_bias" in str(want))
                self.assertEqual({m.name: m.dtype for m in weights.tensors_meta}, want)


class Trainer:
    """NOT TRL's: what its generator does (`AsyncGRPOTrainer._streaming_iter`)."""

    def __init__(self, model):
        self.model = model

    def stream(self):
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                continue
            full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            yield name, full.detach()


class LeftOutTest(ModelCase):
    HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"

    def publish(self, publisher, version: int, seed: int = 0):
        self.step(seed or version)
        stream = Trainer(self.trained).stream()
        published = publisher.publish(stream, module=trl._module_behind(stream))
        self.assertEqual(published.version, version)
        return published

    def freeze(self, *names: str):
        for name, parameter in self.trained.named_parameters():
            if name.startswith(names):
                parameter.requires_grad_(False)

    def test_frozen_parameters_are_the_checkpoint_s_and_then_carried_over(self):
        publisher = self.start(qwen3(tied=False))
        self.freeze(self.EMBED, "model.layers.0.")
        with self.assertLogs("deltawire.integrations", "INFO") as logged:
            for version in (1, 2, 3):
                self.publish(publisher, version)
                self.assert_receiver_has(self.saved(), version)
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], "frozen, and carried over .*embed_tokens.* more")

    def test_a_parameter_may_be_thawed_and_frozen_between_versions(self):
        publisher = self.start(qwen3(tied=False))
        embed = self.trained.get_parameter(self.EMBED)
        for version, trains in enumerate((False, True, True, False, False, True), 1):
            embed.requires_grad_(trains)
            self.publish(publisher, version)
            self.assert_receiver_has(self.saved(), version)
        embed.requires_grad_(False)
        for version in (7, 8):
            with torch.no_grad():  # as a frozen copy is moved on that no optimizer has
                embed.mul_(2)
            self.publish(publisher, version)
            self.assert_receiver_has(self.saved(), version)

    def test_another_run_begins_with_its_own_frozen_parameters(self):
        self.publish(self.start(qwen3(tied=False)), 1)  # trains all of them
        self.trained = transformers.Qwen3ForCausalLM.from_pretrained(self.base)
        self.freeze("model.")
        second = Publisher(**self.arguments | {"hf_dir": self.base})
        self.addCleanup(second.close)
        self.assertEqual(second.open(), 1)
        self.publish(second, 2)
        self.assert_receiver_has(self.saved(), 2)

    def test_after_a_rollback_to_another_run_s_version_nothing_is_carried_over(self):
        self.publish(self.start(qwen3(tied=False)), 1)  # trains all of them
        self.trained = transformers.Qwen3ForCausalLM.from_pretrained(self.base)
        self.freeze("model.")
        second = Publisher(**self.arguments | {"hf_dir": self.base})
        self.addCleanup(second.close)
        second.open()
        self.publish(second, 2)
        tool = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]) / "deltawire"
        subprocess.run([tool, "rollback", "--model", self.model, "--version", "1", "--sender",
                        self.cluster.control], check=True, capture_output=True)
        self.publish(second, 3)
        self.assert_receiver_has(self.saved(), 3)

    def test_after_an_error_nothing_is_carried_over(self):
        publisher = self.start(qwen3(tied=False))
        self.freeze(self.EMBED)
        self.publish(publisher, 1)
        with self.assertRaises(deltawire.MissingTensorError):
            publisher.publish(iter(()), module=self.trained)
        with unittest.mock.patch.object(
                publisher._weights, "offload", side_effect=publisher._weights.offload) as offload:
            self.publish(publisher, 2)
            self.publish(publisher, 3)
        carried = [call.kwargs["unchanged"] for call in offload.call_args_list]
        self.assertEqual(carried, [frozenset(), {self.EMBED}])
        self.assert_receiver_has(self.saved(), 3)

    def test_a_tied_head_of_the_checkpoint_is_a_copy_in_each_version(self):
        model = qwen3(tied=True)
        head = model.get_input_embeddings().weight.detach().clone()
        publisher = self.start(model, **{self.HEAD: head})
        for version in (1, 2):
            self.publish(publisher, version)
            now = self.saved()
            self.assert_receiver_has(now | {self.HEAD: now[self.EMBED].clone()}, version)
        self.step(3)
        # Without the module config.json says so, and the checkpoint's bytes agree.
        publisher.publish(Trainer(model).stream())
        now = self.saved()
        self.assert_receiver_has(now | {self.HEAD: now[self.EMBED].clone()}, 3)

    def test_a_head_that_differs_is_not_tied_by_config(self):
        model = qwen3(tied=True)
        head = model.get_input_embeddings().weight.detach() + 1
        publisher = self.start(model, **{self.HEAD: head})
        with self.assertRaisesRegex(deltawire.MissingTensorError, f'"{self.HEAD}", and nothing'):
            publisher.publish(Trainer(model).stream())

    def test_what_the_model_does_not_have_stays_as_the_checkpoint_has_it(self):
        more = {"mtp.0.weight": torch.randn(8, 4)}
        publisher = self.start(qwen3(tied=False), **more)
        for version in (1, 2):
            self.publish(publisher, version)
            self.assert_receiver_has(self.saved() | more, version)
        self.trained.strange = torch.nn.Linear(4, 8)  # may be the same under another name
        self.trained.strange.requires_grad_(False)
        stream = Trainer(self.trained).stream()
        with self.assertRaisesRegex(deltawire.MissingTensorError, '"mtp.0.weight", and the trainer'
                                    "'s model has none of that name, but others"):
            publisher.publish(stream, module=self.trained)

    def test_what_is_missing_for_another_reason_is_refused(self):
        publisher = self.start(qwen3(tied=False))
        stream = [p for p in Trainer(self.trained).stream() if p[0] != self.EMBED]
        with self.assertRaisesRegex(deltawire.MissingTensorError,
                                    f'"{self.EMBED}", and nothing says .* `module`'):
            publisher.publish(stream)
        with self.assertRaisesRegex(deltawire.MissingTensorError,
                                    f'"{self.EMBED}", though .* has them trainable'):
            publisher.publish(stream, module=self.trained)
        self.publish(publisher, 1)
        self.assert_receiver_has(self.saved(), 1)

    def test_a_frozen_parameter_that_the_trainer_sends_is_not_dropped(self):
        publisher = self.start(qwen3(tied=False))
        self.freeze(self.EMBED)
        self.publish(publisher, 1)
        everything = dict(self.trained.named_parameters())
        with self.assertRaisesRegex(deltawire.Error, "frozen, .* and the trainer sends it"):
            publisher.publish(iter(everything.items()), module=self.trained)
        publisher.publish(iter(everything.items()), module=self.trained)
        self.assert_receiver_has(self.saved(), 2)

    def test_a_frozen_shard_is_compared_with_the_checkpoint(self):
        """FSDP2 itself, on one rank: no other rank joins in gathering what is not sent."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        store = torch.distributed.FileStore(str(self.cluster.root / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        publisher = self.start(qwen3(tied=False))
        want = self.saved()
        self.freeze(self.EMBED)
        fully_shard(self.trained, mesh=init_device_mesh("cpu", (1,)))
        self.assertIsInstance(self.trained.get_parameter(self.EMBED), DTensor)
        for version in (1, 2):
            stream = Trainer(self.trained).stream()
            publisher.publish(stream, module=trl._module_behind(stream))
            self.assert_receiver_has(want, version)
        with torch.no_grad():
            self.trained.get_parameter(self.EMBED).mul_(2)
        with self.assertRaisesRegex(deltawire.MissingTensorError,
                                    f'"{self.EMBED}", and frozen with other values than'):
            publisher.publish(Trainer(self.trained).stream(), module=self.trained)


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
