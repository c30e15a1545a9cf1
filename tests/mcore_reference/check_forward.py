"""Runs one model twice on the CPU: transformers from the HF values, Megatron from the reference's shards.

One rank, local spec; the logits must agree. This ties the row formulas (QKV groups, gate and up, experts,
norms, padding) to what the two programs compute, not to anybody's description.
DELTAWIRE_TRAINER_PYTHON may name a Python that has both. Usage: check_forward.py [seeds [first seed]]
"""

import contextlib
import json
import pathlib
import random
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mcore_reference.trainer_python import again_or_skip  # noqa: E402

try:
    import megatron.core  # noqa: F401
    import numpy as np
    import transformers
except ImportError as missing:
    again_or_skip(missing)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

from mcore_reference import check_megatron as megatron_models  # noqa: E402
from mcore_reference.families import ARCHITECTURES, random_config  # noqa: E402
from mcore_reference.hub import hf_tensors  # noqa: E402
from mcore_reference.model import Model  # noqa: E402
from mcore_reference.parallel import Parallel, padded_vocab  # noqa: E402
from mcore_reference.shards import mcore_shards  # noqa: E402
from mcore_reference.values import round_to_bf16, widen  # noqa: E402
from mcore_reference.write import write_safetensors  # noqa: E402

# Families whose arithmetic needs no options beyond the sizes.
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "mixtral"]
SEEDS, FIRST_SEED = 2, 0
TOKENS = torch.tensor([[1, 5, 7, 3, 2, 9, 11]])


def small_numbers(config, seed):
    """Values that a model can run on, in bf16."""
    generator, out = np.random.default_rng(seed), {}
    for name, (shape, _) in hf_tensors(config).items():
        middle = 1 if "norm" in name and name.endswith(".weight") else 0
        numbers = (middle + 0.3 * generator.normal(size=shape)).astype(np.float32)
        out[name] = round_to_bf16(numbers.view(np.uint32))
    return out


def hf_logits(family, config, hf):
    config = {key: value for key, value in config.items() if value is not None}
    config.update(pad_token_id=0, bos_token_id=0, eos_token_id=0, max_position_embeddings=64,
                  norm_topk_prob=True, torch_dtype="float32", num_experts_per_tok=2)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        write_safetensors(pathlib.Path(folder) / "model.safetensors", hf)
        model = getattr(transformers, ARCHITECTURES[family]).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        return model.eval()(TOKENS).logits, model.config


def megatron_logits(config, held, read):
    """held: the one rank's tensors; read: transformers' view of the config, for what has defaults."""
    model, x = Model(config), Parallel(vocab_divisor=4, spec="local", experts="sequential")
    arithmetic = dict(
        params_dtype=torch.float32, bf16=False, activation_func=torch.nn.functional.silu,
        layernorm_epsilon=read.rms_norm_eps, hidden_dropout=0.0, attention_dropout=0.0,
        pipeline_dtype=torch.float32, moe_token_dispatcher_type="allgather",
        masked_softmax_fusion=False)
    plain = megatron_models.TransformerConfig
    with mock.patch.object(megatron_models, "TransformerConfig",
                           lambda **options: plain(**{**options, **arithmetic})):
        config = megatron_models.transformer_config(model, x)
    chunk = megatron_models.GPTModel(
        config, megatron_models.gpt_layer_specs.get_gpt_decoder_block_spec(config, False),
        vocab_size=padded_vocab(model.vocab, x), max_sequence_length=64,
        share_embeddings_and_output_weights=model.tied, position_embedding_type="rope",
        rotary_base=read.rope_parameters["rope_theta"])
    tensors = {name: torch.from_numpy(widen(array).view(np.float32)) for name, array in held.items()}
    outcome = chunk.load_state_dict(tensors, strict=False)
    assert not outcome.unexpected_keys, outcome
    assert all(name.endswith("_extra_state") for name in outcome.missing_keys), outcome
    length = TOKENS.shape[1]
    later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)[None, None]
    with torch.no_grad():
        return chunk.eval()(TOKENS, torch.arange(length)[None], later)[..., :model.vocab]


@contextlib.contextmanager
def one_rank():
    tracker = types.SimpleNamespace(fork=contextlib.nullcontext)
    dist.init_process_group("fake", rank=0, world_size=1, store=megatron_models.FakeStore())
    try:
        with contextlib.ExitStack() as stack:
            for patch in megatron_models.without_a_gpu():
                stack.enter_context(patch)
            stack.enter_context(mock.patch.object(
                tensor_parallel, "get_cuda_rng_tracker", lambda *_, **__: tracker))
            stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
            parallel_state.initialize_model_parallel(1, 1, create_gloo_process_groups=False)
            yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


class Forward(unittest.TestCase):
    def test_logits(self):
        transformers.logging.set_verbosity_error()
        for family in FAMILIES:
            for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
                config = random_config(family, random.Random(seed))
                hf = small_numbers(config, seed)
                with self.subTest(f"family={family} seed={seed} {config}"):
                    expected, read = hf_logits(family, config, hf)
                    x = Parallel(vocab_divisor=4, spec="local", experts="sequential")
                    held = mcore_shards(config, x, hf)[0, 0]
                    for name, array in held.items():  # padding is a NaN
                        held[name] = np.where(array == 0x7FFF, 0, array).astype(np.uint16)
                    with one_rank():
                        found = megatron_logits(config, held, read)
                        difference = float((expected - found).abs().max())
                        self.assertLess(difference, 1e-3 * float(expected.abs().max()))
                        # The comparison sees what it must: two rows of one group exchanged.
                        name = "decoder.layers.0.self_attention.linear_qkv.weight"
                        held[name] = held[name][[1, 0, *range(2, len(held[name]))]]
                        wrong = float((expected - megatron_logits(config, held, read)).abs().max())
                        self.assertGreater(wrong, 10 * difference)
                print(f"{family} seed {seed}: logits differ by {difference:.1e}, "
                      f"by {wrong:.1e} with two rows exchanged")


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:3]]
    SEEDS, FIRST_SEED = numbers + [SEEDS, FIRST_SEED][len(numbers):]
    unittest.main(argv=sys.argv[:1])
