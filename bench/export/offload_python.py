"""The trainer's copy from Python: torch tensors on the CPU, offloaded while a receiver pulls.

Started by bench_export (PYTHONPATH has the package); prints a JSON line for each row, or
"SKIPPED: why". The reference is torch's copy_ of the same tensors into touched shared memory, in
pieces of 8 MiB by as many threads of this process, in turn with the offloads.
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support"))

from daemons import Daemons  # noqa: E402

try:
    import deltawire
    import torch
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

MODEL = "policy"
PIECE = 8 << 20


def qwen3_tensors(tiny):
    """Yields the names and shapes of Qwen3-0.6B's tensors; tiny: of a small model like it."""
    layers, hidden, heads, groups, head, ffn, vocab = (
        (2, 64, 4, 2, 16, 96, 300) if tiny else (28, 1024, 16, 8, 128, 3072, 151936))
    yield "model.embed_tokens.weight", (vocab, hidden)
    yield "model.norm.weight", (hidden,)
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (hidden,)
        yield p + "post_attention_layernorm.weight", (hidden,)
        yield p + "self_attn.q_proj.weight", (heads * head, hidden)
        yield p + "self_attn.k_proj.weight", (groups * head, hidden)
        yield p + "self_attn.v_proj.weight", (groups * head, hidden)
        yield p + "self_attn.o_proj.weight", (hidden, heads * head)
        yield p + "self_attn.q_norm.weight", (head,)
        yield p + "self_attn.k_norm.weight", (head,)
        yield p + "mlp.gate_proj.weight", (ffn, hidden)
        yield p + "mlp.up_proj.weight", (ffn, hidden)
        yield p + "mlp.down_proj.weight", (hidden, ffn)


class Reference:
    """Shared memory of the model's size, touched so that copies into it take no page faults."""

    def __init__(self, root, tensors):
        size = sum(t.nbytes for t in tensors.values())
        with open(root / "reference", "w+b") as file:
            file.truncate(size)
            self.map = mmap.mmap(file.fileno(), size)
        whole = torch.frombuffer(self.map, dtype=torch.uint8)
        whole.fill_(1)
        self.pieces, at = [], 0
        for tensor in tensors.values():
            from_ = tensor.view(-1).view(torch.uint8)
            to = whole[at:at + tensor.nbytes]
            self.pieces += zip(to.split(PIECE), from_.split(PIECE))
            at += tensor.nbytes

    def seconds(self, pool):
        """Copies all pieces; returns the seconds. Threads copy at once: copy_ frees the GIL."""
        start = time.perf_counter()
        for _ in pool.map(lambda piece: piece[0].copy_(piece[1]), self.pieces):
            pass
        return time.perf_counter() - start


def step(tensors, seed):
    """Changes the lowest bit of one element in 97."""
    for tensor in tensors.values():
        tensor.view(torch.int16).view(-1)[seed % 97::97] ^= 1


def check_received(receiver, tensors):
    """Brings the receiver to the newest version, which is the tensors, byte for byte."""
    receiver.sync()
    there = receiver.content()
    for name, tensor in tensors.items():
        if there[name][2] != tensor.view(-1).view(torch.uint8).numpy().tobytes():
            raise RuntimeError(f"{name} of the receiver is not the last version's")


def resident():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def measure(options, threads, tensors, reference, endpoint, first_version):
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    weights = deltawire.WeightManager(endpoint, MODEL, timeout=300, copy_threads=threads)
    size = sum(t.nbytes for t in tensors.values())
    rows = {"write": [], "wait": [], "copy": []}
    weights.offload(tensors, first_version).wait(300)  # registers, and maps the halves
    before = resident()
    for i in range(options.warmups + options.runs):
        version = first_version + 1 + i
        step(tensors, version)
        # Whichever runs first meets the receiver's pull of the version before, so they take turns.
        copied = reference.seconds(pool) if i % 2 == 0 else None
        done = weights.offload(tensors, version)
        copied = copied or reference.seconds(pool)
        done.wait(300)
        if i >= options.warmups:
            rows["write"].append(size / (done.seconds - done.waited_seconds) / 1e9)
            rows["wait"].append(done.waited_seconds)
            rows["copy"].append(size / copied / 1e9)
    memory = max(0, resident() - before) / 2**20
    say = lambda **row: print(json.dumps({"threads": threads, **row}), flush=True)
    say(metric="throughput", unit="GB/s", runs=rows["write"], reference="torch copy_",
        reference_runs=rows["copy"])
    say(metric="waited before", unit="s", runs=rows["wait"], note="for readers of the half")
    say(metric="memory", unit="MiB", runs=[memory], note="kept beyond the tensors")
    return version + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)  # torch's own threads would spin; the pool's take their place
    tensors = {name: torch.randn(shape, dtype=torch.bfloat16)
               for name, shape in qwen3_tensors(options.tiny)}
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="deltawire-bench-", dir=shm) as directory:
        root = pathlib.Path(directory)
        with Daemons(root, options.bin) as daemons:
            control = daemons.start_sender(root / "sender")
            receiver = daemons.start_receiver([control], MODEL, root / "received")
            reference = Reference(root, tensors)
            version = 1
            for threads in options.threads or [1]:
                version = measure(options, threads, tensors, reference, root / "sender", version)
            check_received(receiver, tensors)


if __name__ == "__main__":
    main()
