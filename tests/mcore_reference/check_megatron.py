"""Compares the reference with Megatron-Core's own code where it is installed.

Layer numbers, layout strings, rank grids; and, with every rank of a small world built in turn on fake
process groups and the CPU, the names and shapes that mcore's specs really give a model. The TE spec is
built with stand-ins for TransformerEngine's own modules.
DELTAWIRE_TRAINER_PYTHON may name a Python that has megatron.core.
Usage: check_megatron.py [seeds per family [first seed]]
"""

import contextlib
import inspect
import os
import pathlib
import sys
import types
import unittest
import warnings
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
warnings.filterwarnings("ignore")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from mcore_reference.trainer_python import again_or_skip  # noqa: E402

try:
    import megatron.core  # noqa: F401
    import numpy  # noqa: F401
except ImportError as missing:
    again_or_skip(missing)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants  # noqa: E402
from megatron.core.models.gpt import gpt_layer_specs  # noqa: E402
from megatron.core.ssm import gated_delta_net  # noqa: E402
from megatron.core.transformer import dot_product_attention, transformer_layer  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import (  # noqa: E402
    PipelineParallelLayerLayout)
from megatron.core.transformer.transformer_config import (MLATransformerConfig,  # noqa: E402
                                                          TransformerConfig)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from mcore_reference.case import random_case  # noqa: E402
from mcore_reference.families import FAMILIES  # noqa: E402
from mcore_reference.model import GDN, MOE, Model  # noqa: E402
from mcore_reference.parallel import Parallel, Placement, layout_stages, padded_vocab  # noqa: E402
from mcore_reference.te_stand_ins import instead_of_transformer_engine  # noqa: E402

try:
    from mcore_reference import hybrid_stand_ins
except ImportError:  # before 0.19
    hybrid_stand_ins = None

SEEDS, FIRST_SEED = 3, 0
CORE = ".".join(megatron.core.__version__.split(".")[:2])
MINOR = int(CORE.split(".")[1])
# The first release that takes MTP layers on a stage without the loss: those before refuse the layout, or
# build these layers with the loss all the same.
MTP_WITHOUT_LOSS = 16
# The first release that puts a norm of its own before MLA's undivided query projection, with TE, and refuses
# such a projection without TE. No HF model has that norm, so an export refuses it.
SECOND_Q_NORM = 18
# Norms after attention and MLP are not mcore's own but added by those who train these models.
NOT_BUILT = {"gemma2", "gemma3_text", "gemma3", "glm4", "exaone4", "olmo2", "olmo3"}
# Norms over all heads and the biases of one linear alone are trainers' modules too; norms with biases and
# the indexer of sparse attention are other options than transformer_config() below gives, and other models
# than GPTModel, or layers that differ in size.
NOT_BUILT |= {"minimax_m2", "olmoe", "starcoder2", "seed_oss", "nemotron", "deepseek_v32", "glm_moe_dsa",
              "granite4_h", "llama_nemotron", "step3p5", "step3p7", "gemma4_text", "gemma4", "gemma4_dense_text", "gemma4_dense", "nemotron_vl", "mimo_v2_flash",
              "falcon_h1", "deepseek_v4", "exaone4_5"}


def described(case):
    return f"family={case.family} seed={case.seed} {case.parallel} {case.config}"


def divides_by_zero(x):
    """A split that mcore's get_transformer_layer_offset fails on, though it is legal."""
    return x.pp == 2 and x.vpp > 1 and x.first_stage_layers and x.last_stage_layers


class Numbers(unittest.TestCase):
    def test_layers_of_each_chunk(self):
        compared = 0
        for family in FAMILIES:
            for seed in range(FIRST_SEED, FIRST_SEED + 10 * SEEDS):
                case = random_case(family, seed)
                x, model = case.parallel, Model(case.config)
                if x.pp == 1 or divides_by_zero(x):
                    continue
                config = types.SimpleNamespace(
                    num_layers=model.layers, pipeline_model_parallel_size=x.pp,
                    virtual_pipeline_model_parallel_size=x.vpp if x.vpp > 1 else None,
                    num_layers_in_first_pipeline_stage=x.first_stage_layers or None,
                    num_layers_in_last_pipeline_stage=x.last_stage_layers or None,
                    account_for_embedding_in_pipeline_split=x.account_for_embedding,
                    account_for_loss_in_pipeline_split=x.account_for_loss,
                    pipeline_model_parallel_layout=PipelineParallelLayerLayout(x.layout, x.pp)
                    if x.layout else None)
                with mock.patch.object(parallel_state, "get_virtual_pipeline_model_parallel_world_size",
                                       lambda: config.virtual_pipeline_model_parallel_size):
                    for (p, v), held in Placement(model, x).layers.items():
                        if not held:
                            continue
                        with mock.patch.object(parallel_state, "get_pipeline_model_parallel_rank",
                                               lambda: p):
                            theirs = transformer_layer.get_transformer_layer_offset(
                                config, v if x.vpp > 1 else None, p)
                        self.assertEqual(held[0], theirs, f"chunk {p, v} {described(case)}")
                        compared += 1
        self.assertGreater(compared, 100)

    def test_layout_strings(self):
        for text in ("Ettt|(tt|)*29,m|L", "Et*3|(tt|t)*2,L", "E|t*2|(|t)*3tmm|L"):
            theirs = PipelineParallelLayerLayout.parse_str_to_list(text)
            letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
            self.assertEqual(layout_stages(text),
                             ["".join(letters[kind.name] for kind in stage) for stage in theirs])

    def test_rank_grids(self):
        for family in ("llama", "mixtral", "deepseek_v3"):
            for seed in range(FIRST_SEED, FIRST_SEED + 10 * SEEDS):
                case = random_case(family, seed)
                x = case.parallel
                dense = parallel_state.RankGenerator(
                    tp=x.tp, ep=1, dp=x.dp, pp=x.pp, cp=x.cp, order="tp-cp-ep-dp-pp")
                expert = parallel_state.RankGenerator(
                    tp=x.etp, ep=x.ep, dp=x.expert_dp, pp=x.pp, cp=1, order="tp-cp-ep-dp-pp")
                for generator, grid, axes in ((dense, x.dense_coordinates, ("tp", "cp", "dp", "pp")),
                                              (expert, x.expert_coordinates, ("tp", "ep", "dp", "pp"))):
                    for place, axis in enumerate(axes):
                        for group in generator.get_ranks(axis):
                            found = [grid(rank) for rank in group]
                            self.assertEqual([c[place] for c in found], list(range(len(group))))
                            others = {c[:place] + c[place + 1:] for c in found}
                            self.assertEqual(len(others), 1, described(case))


def transformer_config(model, x):
    """mcore's configuration of a case."""
    moe = [int(model.mlp(layer) == MOE) for layer in range(model.layers)]
    options = dict(
        num_layers=model.layers, hidden_size=model.hidden, num_attention_heads=model.heads,
        ffn_hidden_size=model.ffn or 4 * model.hidden, gated_linear_unit=True,
        add_bias_linear=model.mlp_bias or model.kind == "gpt_oss", add_qkv_bias=model.qkv_bias,
        normalization="RMSNorm", bias_dropout_fusion=False, qk_layernorm=model.qk_norm or model.mla,
        tensor_model_parallel_size=x.tp, pipeline_model_parallel_size=x.pp,
        virtual_pipeline_model_parallel_size=x.vpp if x.vpp > 1 else None,
        expert_model_parallel_size=x.ep, expert_tensor_parallel_size=x.etp,
        num_layers_in_first_pipeline_stage=x.first_stage_layers or None,
        num_layers_in_last_pipeline_stage=x.last_stage_layers or None,
        account_for_embedding_in_pipeline_split=x.account_for_embedding,
        account_for_loss_in_pipeline_split=x.account_for_loss,
        pipeline_model_parallel_layout=x.layout or None, pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16, bf16=True, use_cpu_initialization=True,
        mtp_num_layers=model.mtp_layers or None,
        softmax_type="learnable" if model.sinks else "vanilla")
    if model.experts and any(moe):
        options.update(
            num_moe_experts=model.experts, moe_ffn_hidden_size=model.expert_ffn, moe_layer_freq=moe,
            moe_grouped_gemm=x.experts == "grouped", moe_router_load_balancing_type="none", moe_router_topk=2,
            moe_router_enable_expert_bias=model.correction_bias, add_bias_linear=model.kind == "gpt_oss",
            moe_router_score_function="sigmoid" if model.correction_bias else "softmax",
            moe_shared_expert_intermediate_size=model.shared_ffn or None,
            moe_shared_expert_gate=model.shared_gate, moe_token_dispatcher_type="alltoall")
    if model.mla:
        return MLATransformerConfig(
            **options, multi_latent_attention=True, q_lora_rank=model.q_lora, kv_lora_rank=model.kv_lora,
            qk_head_dim=model.nope, qk_pos_emb_head_dim=model.rope, v_head_dim=model.v_dim,
            rope_type="rope")
    options.update(num_query_groups=model.groups, kv_channels=model.head_dim)
    if model.gated_attention:
        options.update(
            attention_output_gate=True, experimental_attention_variant="gated_delta_net",
            linear_attention_freq=[int(model.attention(i) == GDN) for i in range(model.layers)],
            linear_conv_kernel_dim=model.gdn_kernel, linear_key_head_dim=model.gdn_k_dim,
            linear_value_head_dim=model.gdn_v_dim, linear_num_key_heads=model.gdn_k_heads,
            linear_num_value_heads=model.gdn_v_heads)
    return TransformerConfig(**options)


def without_a_gpu():
    """What building, as against running, a model need not have."""
    init = dot_product_attention.DotProductAttention.__init__
    known = inspect.signature(init).parameters
    yield mock.patch("torch.cuda.current_device", lambda: "cpu")
    yield mock.patch("torch.Tensor.cuda", lambda self: self)
    yield mock.patch("torch.cuda.Stream", lambda *_, **__: None)
    tracker = types.SimpleNamespace(fork=contextlib.nullcontext)
    yield mock.patch.multiple(getattr(gated_delta_net, "common", gated_delta_net), HAVE_FLA=True,
                              get_cuda_rng_tracker=lambda: tracker)
    if hasattr(gated_delta_net, "gdn"):  # since 0.18
        yield mock.patch.object(gated_delta_net.gdn, "chunk_gated_delta_rule", object())
    yield instead_of_transformer_engine()
    # MLA hands its attention k_channels and v_channels, which the local one does not take.
    yield mock.patch.object(
        dot_product_attention.DotProductAttention, "__init__",
        lambda self, *args, **options: init(
            self, *args, **{key: value for key, value in options.items() if key in known}))


def last_layer_spec(config, model, te):
    """Of the decoder's last layer, of which MTP blocks are made, wherever that layer is."""
    if not model.gated_attention:
        return gpt_layer_specs.get_gpt_decoder_layer_specs(config, te, config.normalization)[-1]
    everything = mock.patch.multiple(variants, get_transformer_layer_offset=lambda *_, **__: 0,
                                     get_num_layers_to_build=lambda *_, **__: model.layers)
    with everything, mock.patch.object(config, "pipeline_model_parallel_layout", None):
        return variants.get_transformer_block_with_experimental_attention_variant_spec(
            config).layer_specs[-1]


def shapes_of(chunk):
    return {name: tuple(tensor.shape) for name, tensor in chunk.state_dict().items()
            if tensor is not None and not name.endswith("_extra_state")}


def built(case, rank):
    """chunk -> {name: shape} of the model that mcore builds for a rank."""
    x, model = case.parallel, Model(case.config)
    dist.init_process_group("fake", rank=rank, world_size=x.world, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            x.tp, x.pp, virtual_pipeline_model_parallel_size=x.vpp if x.vpp > 1 else None,
            context_parallel_size=x.cp, expert_model_parallel_size=x.ep,
            expert_tensor_parallel_size=x.etp, create_gloo_process_groups=False)
        out, place, p = {}, Placement(model, x), parallel_state.get_pipeline_model_parallel_rank()
        if model.pattern:
            return {0: shapes_of(hybrid_stand_ins.build(model, x, p))}
        config = transformer_config(model, x)
        for v in range(x.vpp):
            stage = v if x.vpp > 1 else None
            te = x.spec == "te"
            if model.gated_attention:
                spec = variants.get_transformer_block_with_experimental_attention_variant_spec(
                    config, vp_stage=stage)
            else:
                spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, te, vp_stage=stage)
            mtp = None
            if (p, v) == place.mtp:
                layer = last_layer_spec(config, model, te)
                mtp = gpt_layer_specs.get_gpt_mtp_block_spec(config, layer, te, vp_stage=stage)
            chunk = GPTModel(
                config, spec, vocab_size=padded_vocab(model.vocab, x), max_sequence_length=16,
                pre_process=(p, v) == place.embedding, post_process=(p, v) == place.loss,
                share_embeddings_and_output_weights=model.tied, position_embedding_type="rope",
                mtp_block_spec=mtp, vp_stage=stage)
            out[v] = shapes_of(chunk)
        return out
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def mtp_without_loss(spec):
    """GLM-4.5 with its MTP layer on a stage that does not compute the loss, with a head of its own and
    tied. Random layouts have this rarely, and it is the one in which versions differ by a parameter:
    whether that stage has an output layer, besides its copy of the embedding."""
    if MINOR < MTP_WITHOUT_LOSS:
        return
    parallel = Parallel(tp=2, pp=3, ep=2, layout="Et*2|t*2m|L", spec=spec, core_version=CORE,
                        experts="sequential" if spec == "local" else "grouped")
    for tied in (False, True):
        yield random_case("glm4_moe", FIRST_SEED, parallel=parallel, change=lambda language: language.update(
            num_hidden_layers=4, num_nextn_predict_layers=1, first_k_dense_replace=1, hidden_size=24,
            num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied))


class Models(unittest.TestCase):
    def test_names_and_shapes_of_the_local_spec(self):
        self.check("local")

    def test_names_and_shapes_of_the_te_spec(self):
        self.check("te")

    def check(self, spec):
        compared = {}
        for family in FAMILIES:
            if family in NOT_BUILT or (family == "nemotron_h" and (hybrid_stand_ins is None or spec == "local")):
                continue
            for case in self.cases(family, spec):
                held, x = case.shards(), case.parallel
                with self.subTest(family=family), contextlib.ExitStack() as stack:
                    for patch in without_a_gpu():
                        stack.enter_context(patch)
                    # One data-parallel copy: the others are alike.
                    ranks = [r for r in range(x.world) if x.dense_coordinates(r)[2] == 0]
                    for rank in ranks[:: max(1, len(ranks) // 6)]:
                        try:
                            theirs = built(case, rank)
                        except Exception as error:
                            raise AssertionError(f"{error}: rank {rank} {described(case)}") from error
                        for v in range(x.vpp):
                            self.compare(case, rank, v, theirs[v], held[rank, v])
                        kind = family
                        if any("mtp." in name for name in theirs[x.vpp - 1]):
                            kind += " with MTP"
                            if rank // (x.tp * x.cp * x.dp) != x.pp - 1:
                                kind += " without the loss"
                                self.assertNotIn("output_layer.weight", theirs[x.vpp - 1])
                        compared[kind] = compared.get(kind, 0) + 1
        print("ranks compared:", compared)

    def cases(self, family, spec):
        if family == "glm4_moe":
            yield from mtp_without_loss(spec)
        found, seed = 0, FIRST_SEED
        while found < SEEDS and seed < FIRST_SEED + 40 * SEEDS:
            case = random_case(family, seed)
            seed += 1
            x, m = case.parallel, Model(case.config)
            refused = m.kind == "gpt_oss" and x.etp > 1  # by mcore 0.16
            # Cases that another version builds, or that this one cannot divide.
            newer = x.mla_down_fusion or divides_by_zero(x) or x.minor < 15 or (x.minor >= 19) != (MINOR >= 19)
            if m.mla and m.q_lora is None and spec == "local":
                refused = refused or MINOR >= SECOND_Q_NORM
            last = m.layers - 1  # MTP blocks are made like it
            custom = m.mtp_layers and (m.attention(last), m.mlp(last)) != (
                m.attention(m.layers), m.mlp(m.layers))
            if m.pattern:
                custom = not hybrid_stand_ins.can_build(m, x)
            if x.spec == spec and not (refused or newer or custom):
                found += 1
                yield case

    def compare(self, case, rank, v, theirs, held):
        m = Model(case.config)
        mine = {name.removeprefix(m.mcore_prefix): array.shape for name, array in held.items()
                if not name.startswith(("visual.", "vision_", "audio_tower.", "multi_modal_projector.", "mm_projector.",
                                        "patch_merge", "thinker.visual.", "thinker.audio_model."))}
        inner = ".mtp_model_layer." if MINOR >= 19 else ".transformer_layer."
        mine = {name.replace(f".{case.parallel.mtp_inner}.", inner): s for name, s in mine.items()}
        if m.mla and m.q_lora is None and MINOR >= SECOND_Q_NORM:
            layers = [name for name in mine if name.endswith("self_attention.linear_q_proj.weight")]
            mine |= {name.replace(".weight", ".layer_norm_weight"): (m.hidden,) for name in layers}
        differing = [f"{name}: here {mine.get(name)}, Megatron {theirs.get(name)}"
                     for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]
        self.assertEqual(differing, [], f"rank {rank} chunk {v} {described(case)}")


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:3]]
    SEEDS, FIRST_SEED = numbers + [SEEDS, FIRST_SEED][len(numbers):]
    unittest.main(argv=sys.argv[:1])
