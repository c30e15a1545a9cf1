"""Compares the reference with Megatron-Bridge's conversions, in both directions, byte for byte.

Every rank of a small world is a process, joined by gloo. It holds the reference's shards under their names,
in modules of the classes by which Bridge tells how a parameter is cut; Bridge's own mappings, collectives
and layer numbers do the rest. Usage: check_bridge.py [cases per family [first seed [FAMILY...]]]
"""

import dataclasses
import fnmatch
import logging
import multiprocessing
import os
import pathlib
import queue
import random
import re
import sys
import tempfile
import traceback
import types
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
warnings.filterwarnings("ignore")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from mcore_reference.trainer_python import again_or_skip  # noqa: E402

try:
    import numpy as np
    from mcore_reference.bridge_stand_ins import bridge, bridge_root, use_bridge
    bridge_root()
except ImportError as missing:
    again_or_skip(missing)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.transformer.module import MegatronModule  # noqa: E402

from mcore_reference.case import random_case  # noqa: E402
from mcore_reference.families import random_config  # noqa: E402
from mcore_reference.hub import random_hub_file  # noqa: E402
from mcore_reference.model import Model, language_of  # noqa: E402
from mcore_reference.parallel import Parallel, Placement, random_parallel  # noqa: E402
from mcore_reference.shards import mcore_shards  # noqa: E402
from mcore_reference.values import PAD, add_one, round_to_bf16, widen  # noqa: E402

CASES, FIRST_SEED = 3, 0
MOST_RANKS = 4
DEADLINE_S = 60
# Fields that lead to parameters for which Bridge has no mapping: biases, dense layers among sparse ones.
WITHOUT = {"llama": ("attention_bias", "mlp_bias"), "qwen3_moe": ("mlp_only_layers", "decoder_sparse_step"),
           "qwen3_vl_moe": ("mlp_only_layers", "decoder_sparse_step"),
           "qwen3_omni_moe": ("mlp_only_layers", "decoder_sparse_step"),
           "step3p5": ("use_head_wise_attn_gate",), "step3p7": ("use_head_wise_attn_gate",),  # absent is true
           "qwen3_next": ("mlp_only_layers", "decoder_sparse_step")}
FAMILIES = {  # -> where Bridge has its conversion
    "llama": ("llama.llama_bridge", "LlamaBridge"),
    "mistral": ("mistral.mistral_bridge", "MistralBridge"),
    "qwen2": ("qwen.qwen2_bridge", "Qwen2Bridge"),
    "qwen3": ("qwen.qwen3_bridge", "Qwen3Bridge"),
    "qwen3_moe": ("qwen.qwen3_moe_bridge", "Qwen3MoEBridge"),
    "qwen3_next": ("qwen.qwen3_next_bridge", "Qwen3NextBridge"),
    "qwen3_5_text": ("qwen.qwen35_bridge", "Qwen35Bridge"),
    "qwen3_5_moe_text": ("qwen.qwen35_bridge", "Qwen35MoEBridge"),
    "qwen3_omni_moe": ("qwen_omni.qwen3_omni_bridge", "Qwen3OmniBridge"),
    "mimo_v2_flash": ("mimo_v2_flash.mimo_v2_flash_bridge", "MiMoV2FlashBridge"),
    "falcon_h1": ("falcon_h1.falconh1_bridge", "FalconH1Bridge"),
    "deepseek_v4": ("deepseek.deepseek_v4_bridge", "DeepSeekV4Bridge"),
    "sarvam_mla": ("sarvam.sarvam_mla_bridge", "SarvamMLABridge"),
    "qwen2_audio": ("qwen_audio.qwen2_audio_bridge", "Qwen2AudioBridge"),
    "qwen2_5_omni": ("qwen_omni.qwen25_omni_bridge", "Qwen25OmniBridge"),
    "qwen3_asr": ("qwen3_asr.qwen3_asr_bridge", "Qwen3ASRBridge"),
    "glm4v_moe": ("glm_vl.glm_45v_bridge", "GLM45VBridge"),
    "step3p7": ("stepfun.step37_bridge", "Step37Bridge"),
    "exaone4_5": ("exaone.exaone45.exaone45_bridge", "Exaone45Bridge"),
    "gemma4": ("gemma_vl.gemma4_vl_bridge", "Gemma4VLBridge"),
    "qwen2_vl": ("qwen_vl.qwen25_vl_bridge", "Qwen25VLBridge"),
    "qwen3_vl": ("qwen_vl.qwen3_vl_bridge", "Qwen3VLBridge"),
    "qwen3_vl_moe": ("qwen_vl.qwen3_vl_bridge", "Qwen3VLMoEBridge"),
    "qwen3_5": ("qwen_vl.qwen35_vl_bridge", "Qwen35VLBridge"),
    "qwen3_5_moe": ("qwen_vl.qwen35_vl_bridge", "Qwen35VLMoEBridge"),
    "deepseek_v2": ("deepseek.deepseek_v2_bridge", "DeepSeekV2Bridge"),
    "deepseek_v3": ("deepseek.deepseek_v3_bridge", "DeepSeekV3Bridge"),
    "moonlight": ("deepseek.deepseek_v3_bridge", "DeepSeekV3Bridge"),
    "kimi_k2": ("kimi.kimi_bridge", "KimiK2Bridge"),
    "glm4_moe": ("glm.glm45_bridge", "GLM45Bridge"),
    "glm4_moe_lite": ("glm.glm47_flash_bridge", "GLM47FlashBridge"),
    "glm_moe_dsa": ("glm_moe_dsa.glm5_bridge", "GLM5Bridge"),
    "gpt_oss": ("gpt_oss.gpt_oss_bridge", "GPTOSSBridge"),
    "gemma": ("gemma.gemma_bridge", "GemmaBridge"),
    "gemma2": ("gemma.gemma2_bridge", "Gemma2Bridge"),
    "gemma3_text": ("gemma.gemma3_bridge", "Gemma3ModelBridge"),
    "gemma3": ("gemma_vl.gemma3_vl_bridge", "Gemma3VLBridge"),
    "nemotron": ("nemotron.nemotron_bridge", "NemotronBridge"),
    "exaone4": ("exaone.exaone4.exaone4_bridge", "Exaone4Bridge"),
    "exaone_moe": ("exaone.exaone_moe.exaone_moe_bridge", "ExaoneMoeBridge"),
    "minimax_m2": ("minimax_m2.minimax_m2_bridge", "MiniMaxM2Bridge"),
    "bailing_moe_v2": ("bailing.bailing_moe2_bridge", "BailingMoeV2Bridge"),
    "sarvam_moe": ("sarvam.sarvam_moe_bridge", "SarvamMoEBridge"),
    "minimax_m3_vl": ("minimax_m3.minimax_m3_bridge", "MiniMaxM3Bridge"),
    "mimo": ("mimo.mimo_bridge", "MimoBridge"),
    "olmoe": ("olmoe.olmoe_bridge", "OlMoEBridge"),
    "ernie4_5_moe": ("ernie.ernie_45_bridge", "Ernie45Bridge"),
    "mistral3": ("ministral3.ministral3_bridge", "Ministral3Bridge"),
    "hy_v3": ("hy_v3.hy_v3_bridge", "HYV3Bridge"),
    "gemma4_text": ("gemma.gemma4_bridge", "Gemma4Bridge"),
    "gemma4_dense_text": ("gemma.gemma4_bridge", "Gemma4Bridge"),
    "gemma4_dense": ("gemma_vl.gemma4_vl_bridge", "Gemma4VLBridge"),
    "llama_nemotron": ("llama_nemotron.llama_nemotron_bridge", "LlamaNemotronBridge"),
    "step3p5": ("stepfun.step35_bridge", "Step35Bridge"),
    "nemotron_vl": ("nemotron_omni.nemotron_omni_bridge", "NemotronOmniBridge"),
    "nemotron_h": ("nemotronh.nemotron_h_bridge", "NemotronHBridge"),
}


def to_torch(array):
    array = np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.view(np.float32).copy())


def to_numpy(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy().view(np.uint32)


class Part(MegatronModule):
    """A module that holds what is given it. Bridge goes by the names of its subclasses."""

    def __init__(self, config):
        torch.nn.Module.__init__(self)
        self.config = config


KINDS = {name: type(name, (Part,), {}) for name in (
    "ColumnParallelLinear", "RowParallelLinear", "TELayerNormColumnParallelLinear", "WrappedTorchNorm")}


def kind_of(names, mine, whole):
    """The class of the module with these parameters: how they are cut is seen in their shapes."""
    if any(name.startswith("layer_norm") for name in names):
        return "TELayerNormColumnParallelLinear"
    if any(mine[name][0] != whole[name][0] for name in names):
        return "ColumnParallelLinear"
    if any(mine[name][1:2] != whole[name][1:2] for name in names):
        return "RowParallelLinear"
    return "WrappedTorchNorm"


def tree(held, whole, config_at, first_layer):
    """Modules with the tensors `held`, by name. whole: the shapes of the uncut ones. config_at(path): a
    module's config."""
    owners = {}
    for name in held:
        owner, _, own = name.rpartition(".")
        owners.setdefault(owner, []).append(own)
    root = Part(config_at(""))
    for owner, names in owners.items():
        at, path = root, ""
        for step in owner.split("."):
            path = f"{path}.{step}".lstrip(".")
            if step not in at._modules:
                full = lambda name: f"{path}.{name}"
                own = owners.get(path, [])
                kind = kind_of(own, {n: held[full(n)].shape for n in own},
                               {n: whole(full(n)) for n in own}) if own else None
                part = (KINDS[kind] if kind else Part)(config_at(path))
                if step.isdigit():
                    language_layers = path.removeprefix("thinker.").removeprefix("llava_model.").startswith(
                        ("decoder.layers.", "language_model.decoder.layers."))
                    part.layer_number = int(step) + 1 + (first_layer if language_layers else 0)
                at.add_module(step, part)
            at = at._modules[step]
        for name in names:
            tensor = to_torch(held[f"{owner}.{name}"])
            if name == "expert_bias":
                at.register_buffer(name, tensor)
            else:
                at.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return root


def config_of(model, x):
    """What Bridge's mappings ask of a module's config."""
    return types.SimpleNamespace(
        num_layers=model.layers, hidden_size=model.hidden, num_attention_heads=model.heads,
        num_query_groups=model.groups, kv_channels=None if model.mla else model.head_dim, v_head_dim=model.v_head_dim,
        ffn_hidden_size=model.ffn, gated_linear_unit=model.glu, num_moe_experts=model.experts or None,
        attention_output_gate=model.gated_attention or model.head_gate, share_embeddings_and_output_weights=bool(model.tied),
        pipeline_model_parallel_size=x.pp, tensor_model_parallel_size=x.tp, fp8=None, fp4=None,
        multi_latent_attention=model.mla, mtp_num_layers=model.mtp_layers or None,
        **({} if not model.gated_attention else dict(
            linear_num_key_heads=model.gdn_k_heads, linear_num_value_heads=model.gdn_v_heads,
            linear_key_head_dim=model.gdn_k_dim, linear_value_head_dim=model.gdn_v_dim)),
        **({} if not model.mamba else dict(
            mamba_num_heads=model.mamba_heads, mamba_head_dim=model.mamba_width // model.mamba_heads,
            mamba_num_groups=model.mamba_groups, mamba_state_dim=model.mamba_state)))


def layer_config(model, config, path):
    """The same of a module of a layer with sizes of its own."""
    found = re.match(r"(?:llava_model\.)?(?:language_model\.)?(decoder|mtp)\.layers\.(\d+)\.", path)
    if not found:
        return config
    own = model.at(int(found[2]) + (model.layers if found[1] == "mtp" else config.first_layer))
    return types.SimpleNamespace(**vars(config) | dict(
        num_attention_heads=own.heads, num_query_groups=own.groups, kv_channels=own.head_dim,
        ffn_hidden_size=own.ffn)) if own is not model else config


def tower_config(model, config):
    """The same of a module of the vision tower."""
    heads = model.vision.get("num_heads", 1)
    return types.SimpleNamespace(**vars(config) | dict(
        num_attention_heads=heads, num_query_groups=model.vision.get("num_key_value_heads", heads), hidden_size=model.vision.get("hidden_size"),
        kv_channels=model.vision.get("hidden_size", 0) // heads, attention_output_gate=False))


class State(dict):
    """An HF checkpoint as Bridge reads it."""

    @property
    def source(self):
        return types.SimpleNamespace(get_all_keys=lambda: list(self),
                                     has_glob=lambda glob: bool(fnmatch.filter(self, glob)))


def spaces(value):
    if isinstance(value, dict):
        return types.SimpleNamespace(**{key: spaces(item) for key, item in value.items()})
    return value


def uncut_shapes(case):
    """chunk -> {name: shape of the whole parameter}."""
    one = dataclasses.replace(case.parallel, tp=1, etp=1, cp=1, dp=case.parallel.ep, mla_fusion_sharded=False)
    shapes = {}
    for (rank, v), held in mcore_shards(case.config, one, case.hf).items():
        p = one.dense_coordinates(rank)[3]
        shapes[p, v] = {name: array.shape for name, array in held.items()}
    return shapes


def own_chunks(case, rank, edit):
    """This rank's chunks as modules, and the shards that they hold. edit: is handed each chunk's tensors."""
    x, model = case.parallel, Model(case.config)
    place, config = Placement(model, x), config_of(model, x)
    p, shards, shapes = x.dense_coordinates(rank)[3], case.shards(), uncut_shapes(case)
    eyes, chunks, held = tower_config(model, config), [], []
    for v in range(x.vpp):
        own = {name.replace(".transformer_layer.", ".mtp_model_layer."): array
               for name, array in shards[rank, v].items() if not name.startswith((
                   "visual.", "vision_tower.", "thinker.visual.", "thinker.audio_model.",
                   *(["vision_model."] if case.family == "step3p7" else [])))}
        edit(own)
        whole = {name.replace(".transformer_layer.", ".mtp_model_layer."): shape
                 for name, shape in shapes[p, v].items()}
        layers = place.layers[p, v]
        mine = types.SimpleNamespace(**vars(config) | {"first_layer": layers[0] if layers else 0})
        chunk = tree(own, lambda name: whole[name],
                     lambda path: eyes if path.startswith("vision_model") else layer_config(model, mine, path),
                     mine.first_layer)
        chunk.pre_process, chunk.mtp_process = (p, v) == place.embedding, (p, v) == place.mtp
        if "language_model" in chunk._modules:
            chunk.language_model.mtp_process = chunk.mtp_process
        chunks.append(chunk)
        held.append(own)
    return chunks, held


def is_padding(array):
    return (array == PAD[array.dtype]) | (array ^ 1 == PAD[array.dtype])


def both_ways(case, rank, edit):
    """Problems that this rank finds."""
    x, problems = case.parallel, []
    parallel_state.initialize_model_parallel(
        x.tp, x.pp, virtual_pipeline_model_parallel_size=x.vpp if x.vpp > 1 else None,
        expert_model_parallel_size=x.ep, expert_tensor_parallel_size=x.etp)
    hf = State({name: to_torch(array) for name, array in case.hf.items()})
    pretrained = types.SimpleNamespace(config=spaces(case.config), state=hf, model_name_or_path="reference")
    converter = bridge(*FAMILIES[case.family])()
    converter.hf_pretrained, converter.hf_config = pretrained, pretrained.config
    chunks, held = own_chunks(case, rank, edit)
    unmapped = [name for name, task in zip(converter._megatron_global_param_names_all_pp_ranks(chunks),
                                           converter.build_conversion_tasks(pretrained, chunks)) if not task]
    if unmapped:
        return [f"Traceback: unmapped {unmapped[:3]}"]
    found = {}
    for name, tensor in converter.stream_weights_megatron_to_hf(chunks, pretrained, show_progress=False):
        if name in found:
            problems.append(f"{name}: twice")
        found[name] = to_numpy(tensor)
    for name, array in case.hf.items():
        theirs = found.pop(name, None)
        if not_compared(case, name):
            continue
        if theirs is None:
            # Copies that HF's own classes do not read.
            if not (name.endswith((".shared_head.head.weight", ".shared_head.output.weight", ".embed_tokens.weight")) or
                    (name == "lm_head.weight" and Model(case.config).tied)):
                problems.append(f"{name}: Bridge has none")
        elif not same(array, theirs):
            problems.append(f"{name}: {theirs.dtype}{theirs.shape} here {array.dtype}{array.shape} differ")
    problems += [f"{name}: Bridge makes it" for name in found
                 if not name.endswith((".shared_head.head.weight", ".shared_head.output.weight", ".embed_tokens.weight"))]
    # The way back, into parameters of other values.
    for chunk in chunks:
        for tensor in chunk.state_dict().values():
            tensor.zero_()
    if not_read(case):
        return problems
    converter._with_progress_tracking = lambda tasks, *_: tasks
    converter.load_weights_hf_to_megatron(pretrained, chunks)
    for chunk, own in zip(chunks, held):
        for name, tensor in chunk.state_dict().items():
            theirs, array = to_numpy(tensor), own[name]
            if name.endswith("out_norm.weight"):
                theirs, array = (round_to_bf16(add_one(widen(values))) for values in (theirs, array))
            off = (theirs != array) & ~((theirs == 0) & is_padding(array)) & (theirs != array ^ 1)
            if off.any():
                problems.append(f"rank {rank} {name}: {int(off.sum())} of {off.size} differ")
    parallel_state.destroy_model_parallel()
    return problems


def not_read(case):
    """What Bridge writes but cannot read here: Qwen3-VL-MoE's published down_proj, and norms that it cuts on
    a device only."""
    published = any(name.endswith(".experts.down_proj") for name in case.hf)
    return (case.family == "qwen3_vl_moe" and published) or (case.family == "minimax_m2" and case.parallel.tp > 1)


def not_compared(case, name):
    """HF's own towers, which Bridge copies."""
    own = {"glm4v_moe": ["model.visual."], "gemma4": ["model.vision_tower."],
           "gemma4_dense": ["model.vision_tower."], "step3p7": ["vision_model."]}
    return name.startswith(("visual.", "vision_tower.", "thinker.visual.", "thinker.audio_tower.",
                            *own.get(case.family, [])))


def same(array, theirs):
    if array.dtype == np.uint32 and theirs.dtype == np.uint16:
        theirs = widen(theirs)
    return array.shape == theirs.shape and array.dtype == theirs.dtype and bool((array == theirs).all())


def as_bridge_takes(family):
    """Changes a config to what Bridge has mappings for. It is told by its own model how far the vocabulary is
    padded, so here it is not."""
    def change(language):
        language["vocab_size"] = 48
        for key in WITHOUT.get(family, ()):
            language.pop(key, None)
        if family == "exaone4":
            language["tie_word_embeddings"] = True
        if "per_layer_config" in language:  # Bridge reads what is published
            own = next(iter(language.pop("per_layer_config").values()))
            language["global_head_dim"] = own["head_dim"]
            language["num_global_key_value_heads"] = own.get("num_key_value_heads", language["num_key_value_heads"])
        if family.startswith("gemma4_dense") and not language["attention_k_eq_v"]:
            language["num_global_key_value_heads"] = language["num_key_value_heads"]
        if family == "nemotron_vl":  # and no latent experts
            model = Model({"model_type": "nemotron_h", **language})
            language["hybrid_override_pattern"], language["moe_latent_size"] = model.pattern, None
            language["vocab_size"] = 48
        if family == "nemotron_h":  # and no Mamba layers in MTP blocks
            model = Model({"model_type": family, **language})
            language["hybrid_override_pattern"] = model.pattern
            language["mtp_hybrid_override_pattern"] = model.mtp_pattern.replace("M", "")
            language.pop("mtp_layers_block_type", None)
    return change


def cases(family):
    """The first cases whose jobs are small and whose options Bridge has."""
    found, seed = 0, FIRST_SEED
    while found < CASES:
        rng = random.Random(f"bridge {family} {seed}")
        seed += 1
        parallel = small_parallel(family, seed - 1, rng)
        if parallel.world > 1:
            case = random_case(family, seed - 1, as_bridge_takes(family), parallel)
            if any(dtype == "F32" and name.endswith("linear_attn.norm.weight")
                   for name, (_, dtype) in case.listed.items()):
                continue  # Bridge adds 1 in bf16
            if "thinker_config" in case.config and case.config.get("tie_word_embeddings") and parallel.pp > 1:
                continue  # Bridge looks for the tied output layer a level too high
            found += 1
            yield case


def small_parallel(family, seed, rng):
    drawn = random.Random(f"{family} {seed}")
    config = random_config(family, drawn)
    as_bridge_takes(family)(language_of(config))
    model = Model(config)
    model.hub = random_hub_file(config, drawn)
    for _ in range(4000):
        x = random_parallel(model, rng, MOST_RANKS)
        if (x.spec == "te" and x.experts == "grouped" and x.cp == 1 and not (x.glu_interleave or x.shared_glu_interleave or x.mla_down_fusion)
                and x.world > 1):
            return dataclasses.replace(x, vocab_divisor=1, core_version="0.19", gemma_norms="linear")
    return Parallel()


def rank_main(case, rank, file, answers, edit):
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: None  # compared with the index of a tensor's device
    try:
        dist.init_process_group("gloo", rank=rank, world_size=case.parallel.world, init_method=f"file://{file}")
        answers.put((rank, both_ways(case, rank, edit)))
        dist.barrier()
    except BaseException:
        answers.put((rank, ["Traceback: ..." + traceback.format_exc()[-500:]]))
    answers.close()
    answers.join_thread()
    os._exit(0)  # without the exits of what was imported before the fork


def compare(case, edit=lambda own: None):
    """What Bridge does otherwise than the reference. edit: changes the shards that it is given."""
    context = multiprocessing.get_context("fork")
    answers, problems = context.Queue(), []
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_main, args=(case, rank, f"{folder}/store", answers, edit))
                 for rank in range(case.parallel.world)]
        for process in ranks:
            process.start()
        for _ in ranks:
            try:
                rank, found = answers.get(timeout=DEADLINE_S)
            except queue.Empty:
                found = [f"Traceback: a rank does not answer within {DEADLINE_S} s"]
            problems += found
            if found and "Traceback" in found[0]:
                break
        for process in ranks:
            if problems:
                process.terminate()
            process.join()
    return problems


def rows_exchanged(kind):
    """Exchanges the first and the last quarter of the rows of such a parameter."""
    def edit(own):
        for name in own:
            if name.endswith(kind):
                quarter = max(1, len(own[name]) // 4)
                middle = own[name][quarter:-quarter]
                own[name] = np.concatenate([own[name][-quarter:], middle, own[name][:quarter]])
    return edit


def experts_exchanged(own):
    for name in own:
        if name.endswith(".linear_fc2.weight0"):
            other = name.removesuffix("0") + "1"
            own[name], own[other] = own[other], own[name]


class Bridge(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        use_bridge()
        for place in FAMILIES.values():
            bridge(*place)  # imported before the ranks are forked

    def test_wrong_shards_are_noticed(self):
        case = next(case for case in cases("qwen3_moe") if case.parallel.tp > 1)
        for edit in (rows_exchanged("linear_qkv.weight"), rows_exchanged("linear_fc1.weight0"),
                     rows_exchanged("word_embeddings.weight"), experts_exchanged):
            self.assertNotEqual(compare(case, edit), [])

    def test_both_directions(self):
        compared = {}
        for family in sys.argv[3:] or FAMILIES:
            for case in cases(family):
                with self.subTest(family=family):
                    problems = compare(case)
                    self.assertEqual(problems[:6], [], f"{family} seed={case.seed} {case.parallel} {case.config}")
                    compared[family] = compared.get(family, 0) + 1
        print(f"{sum(compared.values())} cases agree with Bridge in both directions:", compared)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:3]]
    CASES, FIRST_SEED = numbers + [CASES, FIRST_SEED][len(numbers):]
    unittest.main(argv=sys.argv[:1])
