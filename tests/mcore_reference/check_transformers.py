"""Compares hub.py's names and shapes with what transformers itself writes with save_pretrained.

save_pretrained turns the names in memory back into the hub's. Tiny models, random weights. Left out:
MTP blocks and the vision part. Where transformers 5 writes another form than the published files have
(the hub's form counts), `as_written` says so.
DELTAWIRE_TRAINER_PYTHON may name a Python that has transformers.
Usage: check_transformers.py [configs per family]
"""

import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mcore_reference.families import ARCHITECTURES, FAMILIES, random_config  # noqa: E402
from mcore_reference.hub import HubFile, hf_tensors  # noqa: E402
from mcore_reference.model import VISION_PREFIX, Model, language_of  # noqa: E402
from mcore_reference.trainer_python import again_or_skip  # noqa: E402

# Models of others' code, or of a class that wants a vision part's every size; and DeepSeek-V4, whose names
# it saves are neither its own nor the published ones.
NOT_SAVED = ("sarvam_mla", "deepseek_v4", "exaone4_5", "qwen2_audio", "qwen2_5_omni", "qwen3_asr", "glm4v_moe",
             "step3p7", "gemma4", "gemma4_dense", "nemotron_vl", "qwen3_omni_moe", "llama_nemotron", "step3p5", "mimo", "bailing_moe_v2",
             "kimi_k25", "sarvam_moe")
TINY_VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2,
                   spatial_merge_size=1, temporal_patch_size=1, num_position_embeddings=4,
                   deepstack_visual_indexes=[0], embed_dim=8, mlp_ratio=1)
TINY_SIGLIP = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                   image_size=8, patch_size=4, vision_use_head=False)

TINY_PIXTRAL = dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                    num_attention_heads=2, head_dim=4, image_size=8, patch_size=4)


def saved_tensors(transformers, family, config):
    """name -> shape of the file that transformers writes; None: it has no such model."""
    config = json.loads(json.dumps(config))
    if config["model_type"] == "kimi_k2":
        config["model_type"] = "deepseek_v3"  # the same class, from the repository's own code
    if "attention_head_dim" in config:
        config["head_dim"] = config.pop("attention_head_dim")  # as older configs of their own code call it
    if "vision_config" in config:
        hidden = config["text_config"]["hidden_size"]
        config["vision_config"] = (TINY_SIGLIP | {"hidden_size": 2 * (config["vision_config"]["hidden_size"] // 2)}
                                   if family == "gemma3" else
                                   config["vision_config"] or TINY_VISION | {"out_hidden_size": hidden})
        if family == "mistral3":
            config["vision_config"] = TINY_PIXTRAL
        elif family == "minimax_m3_vl":
            config["vision_config"] = TINY_SIGLIP
        elif family == "llama4":
            config["vision_config"] = TINY_SIGLIP | {"vision_output_dim": 8, "projector_input_dim": 8,
                                                     "projector_output_dim": 8}
        if family == "gemma3":
            config["mm_tokens_per_image"] = 4
        elif family == "qwen2_vl":
            config["vision_config"]["hidden_size"] = hidden
    elif family == "qwen2_vl":
        config["vision_config"] = TINY_VISION | {"hidden_size": config["hidden_size"]}
    # Ids beyond a tiny vocabulary are refused.
    for part in (config, language_of(config)):
        part.update(pad_token_id=0, bos_token_id=0, eos_token_id=0, max_position_embeddings=64)
        if part.get("head_dim", 0) is None:
            del part["head_dim"]  # published with null; transformers 5 wants it absent
    if family == "qwen2_vl" and "text_config" not in config:
        # Published flat; from keywords transformers 5 ties such a model whatever the flag says.
        top = ("model_type", "architectures", "tie_word_embeddings", "vision_config")
        config["text_config"] = {key: config.pop(key) for key in list(config) if key not in top}
        config["text_config"]["tie_word_embeddings"] = config["tie_word_embeddings"]
    if "text_config" in config and family in ("mistral3", "llama4"):
        config["text_config"]["model_type"] = {"mistral3": "mistral", "llama4": "llama4_text"}[family]
    model_type = config.pop("model_type")
    parsed = transformers.AutoConfig.for_model(model_type, **config)
    model = getattr(transformers, ARCHITECTURES[family])(parsed)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="1GB")
        data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def language_only(tensors, model):
    """Without modules that are HF's own wherever they are."""
    if model.has_tower:
        return tensors
    vision = tuple(VISION_PREFIX.get(model.model_type, {})) + ("model.vision_tower.",)
    return {name: shape for name, shape in tensors.items() if not name.startswith(vision)}


def without_mtp(tensors, model):
    own = tuple(model.hf_layer(model.layers + k) for k in range(model.mtp_layers)) + ("mtp.",)
    return {name: shape for name, shape in tensors.items() if not name.startswith(own)}


def as_written(family, config):
    """hub.py's tensors in the form that transformers 5 writes."""
    tensors = hf_tensors(config, HubFile(packed=family == "qwen3_vl_moe", resaved=True))  # Qwen3.5-MoE: published packed
    return {name: shape for name, (shape, _) in tensors.items()}


def in_its_words(config):
    """A config of MiMo-V2-Flash without the fields that only the published code reads."""
    model = Model(config)
    kinds = {True: "sliding_attention", False: "full_attention"}
    layers = range(model.layers)
    mine = {key: value for key, value in config.items() if not key.startswith(("hybrid", "moe_layer", "swa", "add_"))}
    return mine | {"num_key_value_heads": 1, "layer_types": [kinds[model.is_sliding(i)] for i in layers],
                   "mlp_layer_types": ["sparse" if model.mlp(i) == "moe" else "dense" for i in layers]}


def main():
    try:
        import torch
        import transformers
    except ImportError as error:
        again_or_skip(error)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    bad = 0
    for family in (name for name in FAMILIES if name not in NOT_SAVED):
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
            config = random_config(family, random.Random(seed))
            if family == "mimo_v2_flash":
                config = in_its_words(config)
            model = Model(config)
            mine = without_mtp(language_only(as_written(family, config), model), model)
            try:
                theirs = saved_tensors(transformers, family, config)
            except Exception as error:  # whatever transformers dislikes of the config: shown, counted
                print(f"{family} seed {seed}: transformers: {type(error).__name__}: {error}")
                bad += 1
                continue
            theirs = language_only(theirs, model)
            differing = sorted(name for name in mine.keys() | theirs.keys()
                               if mine.get(name) != theirs.get(name))
            if differing:
                bad += 1
                print(f"{family} seed {seed}: {len(differing)} differ of {len(mine)}")
                for name in differing[:6]:
                    print(f"   {name}: here {mine.get(name)}, transformers {theirs.get(name)}")
            else:
                print(f"{family} seed {seed}: {len(mine)} tensors agree")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
