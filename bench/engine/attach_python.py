"""What `EngineClient.attach` takes for a Qwen3 of 0.6B, by each way that a layout is found.

Started by bench_engine (PYTHONPATH has the package); prints a JSON line for each row, or
"SKIPPED: why". The model has an engine's fused parameters; its loader uses vLLM's operations. Every
attach is of a new client, and the engine's memory and the receiver's buffer are warm. Memory
is the peak of what the process has for itself (RssAnon), beyond what it had before, sampled every
millisecond; the receiver's buffer is shared and does not count.
"""

import argparse
import ctypes
import json
import os
import pathlib
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support"))

from daemons import Daemons  # noqa: E402

try:
    import deltawire
    import torch
    from deltawire.engine import EngineClient, PlanCache
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

MODEL = "policy"
WANTED_S, WANTED_MIB = 1.0, 256.0


class Shape:
    def __init__(self, tiny):
        (self.layers, self.hidden, self.heads, self.groups, self.head, self.ffn, self.vocab) = (
            (2, 64, 4, 2, 16, 96, 300) if tiny else (28, 1024, 16, 8, 128, 3072, 151936))

    def tensors(self):
        yield "embed", (self.vocab, self.hidden)
        yield "norm", (self.hidden,)
        for i in range(self.layers):
            yield f"{i}.input_norm", (self.hidden,)
            yield f"{i}.post_norm", (self.hidden,)
            yield f"{i}.q", (self.heads * self.head, self.hidden)
            yield f"{i}.k", (self.groups * self.head, self.hidden)
            yield f"{i}.v", (self.groups * self.head, self.hidden)
            yield f"{i}.o", (self.hidden, self.heads * self.head)
            yield f"{i}.q_norm", (self.head,)
            yield f"{i}.k_norm", (self.head,)
            yield f"{i}.gate", (self.ffn, self.hidden)
            yield f"{i}.up", (self.ffn, self.hidden)
            yield f"{i}.down", (self.hidden, self.ffn)


class Engine(torch.nn.Module):
    """`way`: "moved": fused and copied, q and k permuted through a clone as Llama 4's are.
    "numbered": q and k also take another order of rows in every layer, by an index. "computed":
    the norms are kept in fp32."""

    def __init__(self, shape, way):
        super().__init__()
        self.shape, self.way = shape, way
        norm = torch.float32 if way == "computed" else torch.bfloat16
        s = shape
        self.add("embed", (s.vocab, s.hidden))
        self.add("norm", (s.hidden,), norm)
        for i in range(s.layers):
            for name, size in (("input_norm", s.hidden), ("post_norm", s.hidden),
                               ("q_norm", s.head), ("k_norm", s.head)):
                self.add(f"{i}.{name}", (size,), norm)
            self.add(f"{i}.qkv", ((s.heads + 2 * s.groups) * s.head, s.hidden))
            self.add(f"{i}.o", (s.hidden, s.heads * s.head))
            self.add(f"{i}.gate_up", (2 * s.ffn, s.hidden))
            self.add(f"{i}.down", (s.hidden, s.ffn))

    def add(self, name, size, dtype=torch.bfloat16):
        value = torch.nn.Parameter(torch.zeros(size, dtype=dtype), requires_grad=False)
        self.register_parameter(name.replace(".", "_"), value)

    def ordered(self, value):
        halves = value.view(-1, 2, self.shape.head // 2, self.shape.hidden)
        value = halves.transpose(1, 2).reshape(value.shape)
        return value[torch.arange(len(value)) ^ 1] if self.way == "numbered" else value

    def load_weights(self, pairs):
        s = self.shape
        q, kv = s.heads * s.head, s.groups * s.head
        places = {"q": ("qkv", 0), "k": ("qkv", q), "v": ("qkv", q + kv),
                  "gate": ("gate_up", 0), "up": ("gate_up", s.ffn)}
        parameters = dict(self.named_parameters())
        for name, value in pairs:
            layer, _, part = name.rpartition(".")
            fused, row = places.get(part, (part, 0))
            at = parameters[f"{layer}_{fused}" if layer else fused]
            if part in ("q", "k"):
                value = self.ordered(value)
            at.data.narrow(0, row, value.shape[0]).copy_(value)


class Watch:
    """The most memory of its own that the process had inside, in MiB beyond the beginning."""

    def __enter__(self):
        self._first = self.peak = self._now()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()
        self.beyond = (self.peak - self._first) / 1024

    def _look(self):
        while not self._done.wait(0.001):
            self.peak = max(self.peak, self._now())

    @staticmethod
    def _now():
        with open("/proc/self/status") as status:
            return int(status.read().split("RssAnon:")[1].split()[0])


def measure(options, name, way, directory, weights, plans=None):
    engine = Engine(Shape(options.tiny), way)
    engine.load_weights(weights.items())
    seconds, cpu, memory = [], [], []
    for run in range(options.warmups + options.runs):
        client = EngineClient(directory)
        ctypes.CDLL(None).malloc_trim(0)  # what earlier runs have left must not hide this one's
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
    print(json.dumps({"case": name, "metric": "attach", "unit": "s", "runs": seconds,
                      "at_most": WANTED_S, "note": note}), flush=True)
    print(json.dumps({"case": name, "metric": "cpu", "unit": "s", "runs": cpu}), flush=True)
    print(json.dumps({"case": name, "metric": "memory", "unit": "MiB", "runs": memory,
                      "at_most": WANTED_MIB}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    weights = {name: torch.randn(shape, dtype=torch.bfloat16)
               for name, shape in Shape(options.tiny).tensors()}
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="deltawire-bench-", dir=shm) as directory:
        root = pathlib.Path(directory)
        with Daemons(root, options.bin) as daemons:
            control = daemons.start_sender(root / "sender")
            receiver = daemons.start_receiver([control], MODEL, root / "received")
            trainer = deltawire.WeightManager(root / "sender", MODEL, timeout=300)
            trainer.offload(weights, 1).wait(300)
            receiver.await_version(1)
            plans = PlanCache("bench", "1", "tp 0/1", root / "plans")
            measure(options, "traced", "moved", receiver.directory, weights)
            measure(options, "traced_numbered", "numbered", receiver.directory, weights)
            measure(options, "traced_computed", "computed", receiver.directory, weights)
            measure(options, "plan", "numbered", receiver.directory, weights, plans)


if __name__ == "__main__":
    main()
