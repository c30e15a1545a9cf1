"""The cost of `EngineClient.attach` for a Qwen3 of 0.6B, by each way to find a layout.

Started by bench_engine (bench/harness/script.py). The model has an engine's fused parameters; its
loader uses vLLM's operations. Every attach has a new client, and the engine's memory and the
receiver's buffer are warm. Memory is the peak growth of the process's private memory, sampled every
millisecond; the receiver's buffer is shared and does not count.
"""

import ctypes
import time

from script import Shape, Watch, parse_options, published, say

import torch
from deltawire.engine import EngineClient, PlanCache

WANTED_S, WANTED_MIB = 1.0, 256.0


class Engine(torch.nn.Module):
    """An engine's model. `way` "moved": fused and copied, q and k permuted through a clone, like
    Llama 4's. "numbered": an index also reorders the rows of q and k in every layer. "computed":
    the norms are stored in fp32."""

    def __init__(self, shape, way):
        super().__init__()
        self.shape, self.way = shape, way
        norm = torch.float32 if way == "computed" else torch.bfloat16
        s = shape
        self.add("embed_tokens", (s.vocab, s.hidden))
        self.add("norm", (s.hidden,), norm)
        for i in range(s.layers):
            for name, size in (("input_layernorm", s.hidden),
                               ("post_attention_layernorm", s.hidden),
                               ("q_norm", s.head), ("k_norm", s.head)):
                self.add(f"{i}_{name}", (size,), norm)
            self.add(f"{i}_qkv", ((s.heads + 2 * s.groups) * s.head, s.hidden))
            self.add(f"{i}_o_proj", (s.hidden, s.heads * s.head))
            self.add(f"{i}_gate_up", (2 * s.ffn, s.hidden))
            self.add(f"{i}_down_proj", (s.hidden, s.ffn))

    def add(self, name, size, dtype=torch.bfloat16):
        value = torch.nn.Parameter(torch.zeros(size, dtype=dtype), requires_grad=False)
        self.register_parameter(name, value)

    def ordered(self, value):
        halves = value.view(-1, 2, self.shape.head // 2, self.shape.hidden)
        value = halves.transpose(1, 2).reshape(value.shape)
        return value[torch.arange(len(value)) ^ 1] if self.way == "numbered" else value

    def load_weights(self, pairs):
        s = self.shape
        q, kv = s.heads * s.head, s.groups * s.head
        places = {"q_proj": ("qkv", 0), "k_proj": ("qkv", q), "v_proj": ("qkv", q + kv),
                  "gate_proj": ("gate_up", 0), "up_proj": ("gate_up", s.ffn)}
        parameters = dict(self.named_parameters())
        for name, value in pairs:
            words = name.split(".")  # model.layers.7.mlp.up_proj.weight
            part = words[-2]
            fused, row = places.get(part, (part, 0))
            at = parameters[f"{words[2]}_{fused}" if words[1] == "layers" else fused]
            if part in ("q_proj", "k_proj"):
                value = self.ordered(value)
            at.data.narrow(0, row, value.shape[0]).copy_(value)


def measure(options, name, way, directory, weights, plans=None):
    engine = Engine(Shape(options.tiny), way)
    engine.load_weights(weights.items())
    seconds, cpu, memory = [], [], []
    for run in range(options.warmups + options.runs):
        client = EngineClient(directory)
        ctypes.CDLL(None).malloc_trim(0)  # memory freed by earlier runs must not hide this one's
        before = time.thread_time()
        with Watch() as watch:
            attached = client.attach(engine, engine.load_weights, loader_tensors=way == "computed",
                                     plans=plans)
        if not attached:
            raise RuntimeError(f"{name}: {attached.reason}")
        memory.append(watch.beyond)
        if run >= options.warmups:
            seconds.append(attached.seconds)
            cpu.append(time.thread_time() - before)
    note = (f"{attached.boxes} boxes; {len(attached.by_numbers)} tensors by numbers, "
            f"{len(attached.by_loader)} by the loader")
    say(case=name, metric="attach", unit="s", runs=seconds, at_most=WANTED_S, note=note)
    say(case=name, metric="cpu", unit="s", runs=cpu)
    say(case=name, metric="memory", unit="MiB", runs=memory, at_most=WANTED_MIB)


def main():
    options = parse_options()
    weights = Shape(options.tiny).tensors()
    with published(options, weights) as (root, receiver, _):
        plans = PlanCache("bench", "1", "tp 0/1", root / "plans")
        measure(options, "traced", "moved", receiver.directory, weights)
        measure(options, "traced_numbered", "numbered", receiver.directory, weights)
        measure(options, "traced_computed", "computed", receiver.directory, weights)
        measure(options, "plan", "numbered", receiver.directory, weights, plans)


if __name__ == "__main__":
    main()
