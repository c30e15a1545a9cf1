#!/usr/bin/env python3
"""TRL's AsyncGRPOTrainer over deltawire: a tiny Qwen3 learns to answer in ASCII.

    trl_async_grpo.py make /tmp/tiny             writes the model and a tokenizer, random
    trl_async_grpo.py train --checkpoint /tmp/tiny --server http://127.0.0.1:8000 \\
        --directory /dev/shm/policy

docs/howto/rl_frameworks.md has the commands for the sender, the receiver and vLLM. All of it runs
on a CPU: there a few lines of torch do what TRL's attention kernel does on a GPU (Flash Attention
3), and TRL is not asked how fast the GPU is.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import types

import torch

VOCABULARY = 320
SEED = 20261123


# The checkpoint --------------------------------------------------------------------------------


def make(folder: pathlib.Path) -> None:
    """Makes a random model of 1.6 M parameters, and a tokenizer with a token for each byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from trl.chat_template_utils import qwen3_chat_template

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special += [f"<|unused_{i}|>" for i in range(VOCABULARY - len(alphabet) - len(special))]
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = qwen3_chat_template
    fast.save_pretrained(folder)

    torch.manual_seed(SEED)
    Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128, max_position_embeddings=512,
        tie_word_embeddings=False, eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id)).to(torch.bfloat16).save_pretrained(folder)


# What TRL needs on a CPU -----------------------------------------------------------------------


def attention_of_segments(query, key, value, ends_q, ends_k, *_, softmax_scale=None, causal=True,
                          window_size=(-1, -1), **unused):
    """Computes flash_attn_varlen_func, one segment after the other: the last query of a segment
    sees all of its keys."""
    assert causal and window_size == (-1, -1) and not unused
    groups = query.shape[1] // key.shape[1]
    parts = []
    for q0, q1, k0, k1 in zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:], strict=True):
        q = query[q0:q1].transpose(0, 1)
        k, v = (x[k0:k1].transpose(0, 1).repeat_interleave(groups, 0) for x in (key, value))
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        parts.append(torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=softmax_scale).transpose(0, 1))
    return torch.cat(parts)


def use_a_cpu() -> None:
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    packing._flash_attn = lambda: types.SimpleNamespace(  # pylint: disable=protected-access
        flash_attn_varlen_func=attention_of_segments)


# The training ----------------------------------------------------------------------------------


def ascii_share(completion_ids, **_) -> list[float]:
    """The reward: the share of a completion's tokens that are printable ASCII. TRL calls it in a
    separate process."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    wanted = {i for i, c in enumerate(alphabet) if "!" <= c <= "~"}
    return [sum(t in wanted for t in ids) / max(1, len(ids)) for ids in completion_ids]


def train(options: argparse.Namespace, weight_transfer) -> list[dict]:
    """Returns TRL's log, a dictionary for each step."""
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    class Steps(TrainerCallback):
        def __init__(self):
            self.logs = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "reward" in logs:
                self.logs.append(dict(logs))
                print(f"step {state.global_step}: reward {logs['reward']:.3f}, version "
                      f"{weight_transfer.version}, sync {logs['perf/weight_sync_s']:.2f} s",
                      flush=True)

    if not torch.cuda.is_available():
        use_a_cpu()
    words = ("apples", "bread", "cheese", "dates")
    prompts = [[{"role": "user", "content": f"Write about {word}."}] for word in words]
    steps = Steps()
    trainer = AsyncGRPOTrainer(
        model=str(options.checkpoint),
        reward_funcs=ascii_share,
        args=AsyncGRPOConfig(
            output_dir=str(options.output), seed=SEED, max_steps=options.steps,
            learning_rate=options.learning_rate, per_device_train_batch_size=32, token_budget=-1,
            num_generations=8, max_completion_length=32, max_inflight_tasks=32, max_staleness=2,
            vllm_server_base_url=options.server, use_cpu=not torch.cuda.is_available(),
            bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no",
            disable_tqdm=True),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(options.checkpoint),
        callbacks=[steps],
        weight_transfer=weight_transfer)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return steps.logs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("folder", type=pathlib.Path)
    training = commands.add_parser("train")
    training.add_argument("--checkpoint", type=pathlib.Path, required=True)
    training.add_argument("--server", default="http://127.0.0.1:8000", help="vLLM's URL")
    training.add_argument("--directory", default="/dev/shm/policy",
                          help="the receiver's, as vLLM sees it")
    training.add_argument("--endpoint", default="/dev/shm/deltawire", help="the sender's")
    training.add_argument("--receiver", help="HOST:PORT, where it is on another machine")
    training.add_argument("--output", type=pathlib.Path, default=pathlib.Path("/tmp/trl-output"))
    training.add_argument("--steps", type=int, default=10)
    training.add_argument("--learning-rate", type=float, default=3e-3)
    options = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    if options.command == "make":
        make(options.folder)
        return
    from deltawire.integrations.trl import WeightTransfer

    train(options, WeightTransfer(
        options.server, options.directory, endpoint=options.endpoint, model="policy",
        hf_dir=options.checkpoint, receiver=options.receiver))


if __name__ == "__main__":
    main()
