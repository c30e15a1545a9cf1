"""register's names with models of transformers: what is published is what `save_pretrained` writes.

The table takes each class through each wrapper that people train with. Every cell is equal to the
saved checkpoint in names, dtypes, shapes and bytes, or a refusal that names a tensor.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
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
HAS_PEFT = importlib.util.find_spec("peft") is not None
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


# The table ---------------------------------------------------------------------------------------


def causal(kind: str, **config):
    return lambda: getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**config)).bfloat16()


def of_config(name: str, config: str, **more):
    return lambda: getattr(transformers, name)(
        getattr(transformers, config)(**more)).bfloat16()


def text_of(vision, name: str):
    """A text class that trains the text of a multimodal checkpoint."""
    def make():
        whole = vision()
        make.base = whole
        return getattr(transformers, name)(whole.config.get_text_config()).bfloat16()
    return make


EXPERTS = MIXED | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
                   "first_k_dense_replace": 1}
LATENT = {k: v for k, v in EXPERTS.items() if k != "head_dim"} | {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "num_key_value_heads": 4}
PATCHES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
           "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
QWEN_EYES = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
             "out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}}
qwen3_vl = of_config("Qwen3VLForConditionalGeneration", "Qwen3VLConfig",
                     text_config=SMALL | ROPE, vision_config=QWEN_EYES)
HYBRID = SMALL | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                  "linear_num_value_heads": 2, "linear_key_head_dim": 8,
                  "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}
qwen35 = of_config(
    "Qwen3_5ForConditionalGeneration", "Qwen3_5Config",
    text_config=HYBRID | {"rope_parameters": ROPE["rope_parameters"] | {
        "partial_rotary_factor": 1.0}},
    vision_config={k: v for k, v in QWEN_EYES.items() if k != "deepstack_visual_indexes"})

MODELS = {
    "Llama": causal("Llama", **SMALL),
    "Llama, tied": causal("Llama", tie_word_embeddings=True, **SMALL),
    "Mistral": causal("Mistral", **SMALL),
    "Qwen2": causal("Qwen2", **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "Qwen3": qwen3,
    "Qwen3, tied": lambda: qwen3(tied=True),
    "Phi3": causal("Phi3", pad_token_id=0, **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "Olmo2": causal("Olmo2", pad_token_id=0, **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "Glm4": causal("Glm4", pad_token_id=0, **SMALL),
    "GPT2": causal("GPT2", vocab_size=64, n_embd=32, n_layer=2, n_head=4)
    if hasattr(transformers, "GPT2ForCausalLM") else of_config(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=64, n_embd=32, n_layer=2, n_head=4),
    "Gemma2": causal("Gemma2", **SMALL),
    "Gemma3 text": of_config("Gemma3ForCausalLM", "Gemma3TextConfig", **SMALL),
    "Gemma3 with images": gemma3_vision,
    "Gemma3 text of images": text_of(gemma3_vision, "Gemma3ForCausalLM"),
    "Mixtral": causal("Mixtral", num_local_experts=4, **SMALL),
    "Qwen2 MoE": causal("Qwen2Moe", num_experts=4, shared_expert_intermediate_size=24,
                        **{k: v for k, v in MIXED.items() if k != "head_dim"}),
    "Qwen3 MoE": qwen3_moe,
    "Qwen3 MoE, tied": lambda: qwen3_moe(tie_word_embeddings=True),
    "DeepSeek V3": causal("DeepseekV3", **LATENT),
    "GLM4 MoE": causal("Glm4Moe", **EXPERTS),
    "GPT-OSS": causal("GptOss", num_local_experts=4, num_experts_per_tok=2, **SMALL),
    "OLMoE": causal("Olmoe", num_experts=4, num_experts_per_tok=2,
                    **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "Qwen3-VL": qwen3_vl,
    "Qwen3-VL MoE, square experts": of_config(
        "Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeConfig", vision_config=QWEN_EYES,
        text_config=MIXED | ROPE | {"num_experts": 4, "moe_intermediate_size": 16}),
    "Qwen3.5 with images": qwen35,
    "Qwen3.5 text of images": text_of(qwen35, "Qwen3_5ForCausalLM"),
    "Llava": of_config("LlavaForConditionalGeneration", "LlavaConfig", image_token_index=63,
                       text_config=SMALL | {"model_type": "llama"},
                       vision_config=PATCHES | {"model_type": "clip_vision_model"}),
}


def checkpointed(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    apply_activation_checkpointing(
        model, check_fn=lambda m: type(m).__name__.endswith(("DecoderLayer", "Block")))
    return model


def live(model) -> dict:
    """Parameters by the names that they have in wrapped layers, and buffers that are saved."""
    found = dict(model.named_parameters(remove_duplicate=False))
    inner = {n.replace("_checkpoint_wrapped_module.", "") for n in found}
    return found | {n: t for n, t in model.state_dict().items() if n not in inner}


class TableTest(Case):
    """One model at the sender, registered anew for each cell. One process has the one rank."""

    def publish(self, given, hf_dir, by: str = "offload"):
        weights = deltawire.WeightManager(self.cluster.endpoint, self.model)
        version = weights.register(given, hf_dir=hf_dir, replace=True)
        getattr(weights, by)(given, version + 1).wait()
        weights.close()

    def wrappers(self, hf_dir):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        def fsdp2(model):
            self.publish(fully_shard(model, mesh=init_device_mesh("cpu", (1,))), hf_dir,
                         "offload_fsdp")

        def zero3(model):
            with Partitions(model).imported():
                self.publish(model, hf_dir, "offload_zero3")

        def merged(model):
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", r=2))
            with self.assertRaises(deltawire.TensorError):
                self.publish(model, hf_dir)
            model.merge_adapter()
            self.publish(model, hf_dir)

        yield "plain", lambda m: self.publish(m.state_dict(), hf_dir)
        yield "compile", lambda m: self.publish(torch.compile(m).state_dict(), hf_dir)
        yield "DDP", lambda m: self.publish(
            torch.nn.parallel.DistributedDataParallel(m).state_dict(), hf_dir)
        yield "checkpointing", lambda m: self.publish(live(checkpointed(m)), hf_dir)
        yield "ZeRO-3", zero3
        if HAS_PEFT:
            yield "merged LoRA", merged
        yield "FSDP2", fsdp2

    def test_each_class_through_each_wrapper_is_what_is_saved(self):
        store = torch.distributed.FileStore(str(self.cluster.root / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        counts = collections.Counter()
        for label, make in MODELS.items():
            torch.manual_seed(1)
            model = make()
            state = model.state_dict()
            hf_dir = self.cluster.root / label.replace(" ", "-")
            base = getattr(make, "base", model)
            base.save_pretrained(hf_dir)
            want = raw(load_file(hf_dir / "model.safetensors"))
            row = []
            for wrapper, publish in self.wrappers(hf_dir):
                fresh = type(model)(model.config).bfloat16()
                fresh.load_state_dict(state)
                try:
                    publish(fresh)
                except deltawire.TensorError as error:
                    self.assertTrue(error.tensor, (label, wrapper))
                    row.append(f"{wrapper}: refused")
                    counts["refused"] += 1
                    self.refusals.append(f"{label}, {wrapper}: {error}")
                    continue
                got = raw(self.held())
                own = want if base is model else self.with_text(want, base, model)
                with self.subTest(f"{label}, {wrapper}"):
                    self.assertEqual(got.keys(), own.keys())
                    self.assertEqual([n for n in own if got[n] != own[n]], [])
                row.append(f"{wrapper}: equal")
                counts["equal"] += 1
            print(f"{label}: {', '.join(row)}")
        print(f"{counts['equal']} cells equal, {counts['refused']} refused"
              + ("" if HAS_PEFT else "; merged LoRA was left out: no peft here"))
        for refusal in self.refusals:
            print("refused:", refusal[:300])
        self.assertEqual(counts["refused"], 0)

    refusals: list[str] = []

    def with_text(self, want, base, model):
        """The checkpoint of `base` with the text of `model`."""
        text = raw(model.state_dict())
        ends = {n: t for n, t in text.items() if n != HEAD or HEAD in want}
        new = dict(want)
        for name, value in ends.items():
            inner = name.removeprefix("model.")
            there = [n for n in want if n.endswith("language_model." + inner)
                     or n.endswith("language_model.model." + inner) or n == name]
            self.assertEqual(len(there), 1, (name, there))
            new[there[0]] = value
        return new


if __name__ == "__main__":
    unittest.main()
