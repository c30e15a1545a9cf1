"""register's names with models of transformers: what is published is what `save_pretrained` writes.

The table takes each class through each wrapper that people train with. Every cell is equal to the
saved checkpoint in names, dtypes, shapes and bytes, or a refusal that names a tensor.
"""

from __future__ import annotations

import contextlib
import sys
import types
import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
transformers = support.need("transformers")
deltawire = support.need("deltawire")

from deltawire.integrations._publisher import Publisher  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

transformers.utils.logging.disable_progress_bar()

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
MIXED = SMALL | {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def qwen3(tied: bool = False):
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(tie_word_embeddings=tied, **SMALL)).bfloat16()


def qwen3_moe(**more):
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(num_experts=4, **MIXED | more)).bfloat16()


def gemma3_vision():
    return transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(
        text_config=SMALL, mm_tokens_per_image=4, vision_config={
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 14})).bfloat16()


def raw(tensors) -> dict[str, tuple]:
    return {n: (t.dtype, tuple(t.shape), t.detach().contiguous().reshape(-1).view(
        torch.uint8).numpy().tobytes()) for n, t in tensors.items()}


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def setUp(self):
        torch.manual_seed(0)
        self.model = self.id().rsplit(".", 1)[-1]
        self.base = self.cluster.root / f"base-{self.model}"

    def manager(self, **options):
        weights = deltawire.WeightManager(self.cluster.endpoint, self.model, **options)
        self.addCleanup(weights.close)
        return weights

    def held(self) -> dict:
        self.cluster.content(self.model)
        return load_file(self.cluster.root / f"r-{self.model}" / "model.safetensors")

    def saved(self, model, **more) -> dict:
        model.save_pretrained(self.base)
        tensors = load_file(self.base / "model.safetensors") | more
        if more:
            save_file(tensors, self.base / "model.safetensors", {"format": "pt"})
        return tensors

    def assert_held(self, want):
        self.assertEqual(raw(self.held()), raw(want))


class NamesTest(Case):
    def test_wrappers_leave_no_part_in_a_name(self):
        model = qwen3()
        want = self.saved(model)
        weights = self.manager()
        version = 0
        for before, after in (("", "_orig_mod.model."), ("", "module.model."),
                              ("", "_fsdp_wrapped_module.model."),
                              ("model.", "module._orig_mod.model."),
                              ("mlp.", "mlp._orig_mod."),
                              ("layers.0.", "layers.0._checkpoint_wrapped_module.")):
            version += 1
            with self.subTest(after):
                state = {(n.replace(before, after) if before else
                          after.replace("model.", n)): t for n, t in model.state_dict().items()}
                self.assertFalse(state.keys() <= want.keys())
                with self.assertLogs("deltawire", "INFO") as logged:
                    weights.register(state, hf_dir=self.base)
                self.assertRegex(logged.output[0], "25 tensors; prefix `.*` removed")
                weights.offload(state, version).wait()
                self.assert_held(want)

    def test_packed_experts_come_out_as_on_disk(self):
        model = qwen3_moe()
        want = self.saved(model)
        weights = self.manager()
        with self.assertLogs("deltawire", "INFO") as logged:
            weights.register(model.state_dict(), hf_dir=self.base)
        self.assertIn("4 names through transformers' conversion", logged.output[0])
        weights.offload(iter(model.state_dict().items()), 1).wait()
        self.assert_held(want)

    def test_packed_masters_are_cast_like_the_rest(self):
        model = qwen3_moe()
        want = self.saved(model)
        weights = self.manager(keep_dtype=["*.mlp.gate.weight"])
        weights.register(model.float().state_dict(), hf_dir=self.base)
        with self.assertLogs("deltawire", "WARNING") as logged:
            weights.offload(model.state_dict(), 1).wait()
        self.assertIn("from F32 to BF16", logged.output[0])
        gates = {n for n in want if n.endswith("mlp.gate.weight")}
        self.assertEqual(len(gates), 2)
        self.assert_held({n: t.float() if n in gates else t for n, t in want.items()})

    def test_a_log_line_names_routers_that_are_cast(self):
        model = qwen3_moe()
        self.saved(model)
        weights = self.manager()
        weights.register(model.float().state_dict(), hf_dir=self.base)
        with self.assertLogs("deltawire", "WARNING") as logged:
            weights.offload(model.state_dict(), 1).wait()
        self.assertIn("model.layers.*.mlp.gate.weight F32 to BF16 (2)", logged.output[0])

    def test_a_text_class_trains_the_text_of_a_vision_checkpoint(self):
        vision = gemma3_vision()
        text = transformers.Gemma3ForCausalLM(vision.config.text_config).bfloat16()
        want = self.saved(vision)
        weights = self.manager()
        with self.assertLogs("deltawire", "INFO") as logged:
            weights.register(text.state_dict(), hf_dir=self.base)
        self.assertRegex(logged.output[0], r"`model\.\*` is `language_model\.model\.\*` there .*"
                         r"stay as they are: `multi_modal_projector\.\*`, `vision_tower\.\*`")
        for version in (1, 2, 3):
            with torch.no_grad():
                text.model.norm.weight.add_(1)
            weights.offload(text.state_dict(), version).wait()
            want |= {f"language_model.{n}": t for n, t in text.state_dict().items() if n != HEAD}
            self.assert_held(want)

    def test_hooks_know_a_text_class_without_its_module(self):
        vision = gemma3_vision()
        text = transformers.Gemma3ForCausalLM(vision.config.text_config).bfloat16()
        want = self.saved(vision)
        publisher = Publisher(self.cluster.endpoint, self.model, self.base)
        self.addCleanup(publisher.close)
        publisher.open()
        for _ in range(2):
            with torch.no_grad():
                text.model.norm.weight.add_(1)
            publisher.publish(iter(text.named_parameters()))
            want |= {f"language_model.{n}": t for n, t in text.named_parameters()}
            self.assert_held(want)

    def test_what_predicts_more_tokens_stays_as_it_is(self):
        model = qwen3()
        want = self.saved(model, **{"mtp.fc.weight": torch.ones(4, 4),
                                    "model.layers.2.eh_proj.weight": torch.ones(2, 8)})
        for weights in (self.manager(), self.manager()):  # another trainer begins anew
            version = weights.register(model.state_dict(), hf_dir=self.base)
            weights.offload(model.state_dict(), version + 1).wait()
            weights.offload(model.state_dict(), version + 2).wait()
            self.assert_held(want)

    def test_what_has_no_place_is_refused_by_names_of_both_sides(self):
        model = qwen3()
        self.saved(model)
        state = model.state_dict()
        state["model.layers.0.mlp.ga_te_proj.weight"] = state.pop(
            "model.layers.0.mlp.gate_proj.weight")
        with self.assertRaisesRegex(
                deltawire.TensorError,
                '1 of 25 given tensors are not there .*ga_te_proj.*nearest .*gate_proj.*'
                "1 of its 25 tensors are not given") as caught:
            self.manager().register(state, hf_dir=self.base)
        self.assertEqual(caught.exception.tensor, "model.layers.0.mlp.ga_te_proj.weight")
        state = {n: t for n, t in model.state_dict().items() if "layers.1." not in n}
        with self.assertRaisesRegex(deltawire.TensorError, "11 of its 25 tensors are not given"):
            self.manager().register(state, hf_dir=self.base)

    def test_every_shape_is_compared(self):
        self.saved(qwen3())
        state = qwen3().state_dict()
        state[EMBED] = torch.zeros(65, 32)
        with self.assertRaisesRegex(deltawire.TensorError,
                                    rf'"{EMBED}" has shape \[65, 32\].*\[64, 32\]'):
            self.manager().register(state, hf_dir=self.base)

    def test_without_a_checkpoint_one_line_says_that_nothing_was_compared(self):
        with self.assertLogs("deltawire", "INFO") as logged:
            self.manager().register({"module.a": torch.ones(2)})
        self.assertEqual(len(logged.output), 1)
        self.assertIn("without hf_dir nothing compared them", logged.output[0])

    def test_a_transformers_module_is_published_as_it_is_saved(self):
        model = qwen3_moe(tie_word_embeddings=True)
        want = self.saved(model)
        self.manager().offload(model, 1).wait()
        self.assert_held(want)
        self.manager().offload(torch.compile(model), 2).wait()
        self.assert_held(want)

    def test_ties_are_found_whichever_side_lists_the_head(self):
        model = qwen3(tied=True)
        state = model.state_dict()
        copies = {n: t.clone() for n, t in state.items()}
        version = 0
        for more in ({}, {HEAD: state[EMBED].clone()}):
            want = self.saved(model, **more)
            self.assertEqual(HEAD in want, bool(more))
            weights = self.manager()
            for given in (state, copies, {n: t for n, t in copies.items() if n != HEAD},
                          {HEAD: state[HEAD], **state}):
                version += 1
                weights.register(given, hf_dir=self.base, replace=True)
                weights.offload(given, version).wait()
                self.assert_held(want)

    def test_a_head_that_is_tied_no_more_is_not_dropped(self):
        model = qwen3(tied=True)
        self.saved(model)
        state = {n: t.clone() for n, t in model.state_dict().items()}
        weights = self.manager()
        weights.register(state, hf_dir=self.base)
        weights.offload(state, 1).wait()
        state[HEAD] += 1
        with self.assertRaisesRegex(deltawire.TensorError, HEAD):
            weights.offload(state, 2)

    def test_an_adapter_that_is_not_merged_is_refused(self):
        self.saved(qwen3())
        state = {f"base_model.model.{n}": t for n, t in qwen3().state_dict().items()}
        adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
        with self.assertRaisesRegex(deltawire.TensorError, "merge_adapter.*publish_lora"):
            self.manager().register(state | {adapter: torch.ones(4, 32)}, hf_dir=self.base)
        self.manager().register(state, hf_dir=self.base)


    def test_hooks_keep_dtypes(self):
        model = qwen3_moe()
        want = self.saved(model)
        publisher = Publisher(self.cluster.endpoint, self.model, self.base,
                              keep_dtype=["*.mlp.gate.weight", "*norm.weight"])
        self.addCleanup(publisher.close)
        publisher.open()
        publisher.publish(iter(model.float().named_parameters()))
        self.assert_held({n: t.float() if n.endswith(("mlp.gate.weight", "norm.weight")) else t
                          for n, t in want.items()})


class Partitions:
    """NOT DeepSpeed's: what its ZeRO-3 leaves in a module, and `deepspeed.zero` that gathers it."""

    gathers = 0

    def __init__(self, module):
        self.whole = {}
        for p in module.parameters():
            self.whole[id(p)] = p.data
            p.ds_shape, p.ds_numel, p.ds_id = p.shape, p.numel(), id(p)
            p.data = torch.empty(0, dtype=p.dtype)

    @contextlib.contextmanager
    def GatheredParameters(self, params):  # pylint: disable=invalid-name
        self.gathers += 1
        for p in params:
            p.data = self.whole[p.ds_id]
        yield
        for p in params:
            p.data = torch.empty(0, dtype=p.dtype)

    @contextlib.contextmanager
    def imported(self):
        package = types.ModuleType("deepspeed")
        package.zero = types.ModuleType("deepspeed.zero")
        package.zero.GatheredParameters = self.GatheredParameters
        with unittest.mock.patch.dict(
                sys.modules, {"deepspeed": package, "deepspeed.zero": package.zero}):
            yield


class PartitionsTest(Case):
    def test_a_placeholder_is_refused_by_name_everywhere(self):
        model = qwen3()
        self.saved(model)
        Partitions(model)
        state = model.state_dict()
        calls = {
            "register with hf_dir": lambda w: w.register(state, hf_dir=self.base),
            "register": lambda w: w.register(state),
            "offload a state dict": lambda w: w.offload(state, 1),
            "offload parameters": lambda w: w.offload(list(model.named_parameters()), 1),
            "offload_fsdp": lambda w: w.offload_fsdp(dict(model.named_parameters()), 1),
            "a hook": lambda w: self.hook(iter(state.items())),
            "a hook with the module": lambda w: self.hook(model.named_parameters()),
        }
        for label, call in calls.items():
            with self.subTest(label), self.assertRaises(deltawire.TensorError) as caught:
                call(self.manager())
            self.assertIn("offload_zero3", str(caught.exception))
            self.assertIn(caught.exception.tensor, state)
        weights = self.manager()
        weights.register(qwen3().state_dict(), replace=True)
        with self.assertRaisesRegex(deltawire.TensorError, "offload_zero3"):
            weights.offload(model.named_parameters, 1)

    def hook(self, stream):
        publisher = Publisher(self.cluster.endpoint, self.model, self.base)
        self.addCleanup(publisher.close)
        publisher.open()
        publisher.publish(stream)

    def test_partitions_are_gathered_in_buckets(self):
        for tied in (False, True):
            model = qwen3_moe(tie_word_embeddings=tied)
            want = self.saved(model)
            weights = self.manager()
            parts = Partitions(model)
            with parts.imported():
                version = weights.register(model, hf_dir=self.base, replace=True)
                weights.offload_zero3(model, version + 1, bucket_bytes=20_000).wait()
                self.assertIn(parts.gathers, range(3, 12))
                self.assert_held(want)
                self.assertEqual({p.numel() for p in model.parameters()}, {0})

    def test_a_first_rank_that_fails_gathers_to_the_end(self):
        model = qwen3()
        weights = self.manager()
        parts = Partitions(model)
        with parts.imported():
            weights.offload_zero3(model, 1, bucket_bytes=1).wait()
            all_of_them = parts.gathers
            with self.assertRaisesRegex(deltawire.Error, "version"):
                weights.offload_zero3(model, 1, bucket_bytes=1)
            self.assertEqual(parts.gathers, 2 * all_of_them)


if __name__ == "__main__":
    unittest.main()
