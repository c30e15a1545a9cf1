"""The common base of the suites' Python scripts: options, the tensors of a Qwen3, daemons, rows.

RunPythonScript (python_script.h) starts each script, with the package and this directory in
PYTHONPATH. A script prints a JSON line for each row, or "SKIPPED: why".
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support"))

from daemons import Daemons  # noqa: E402

try:
    import deltawire
    import torch
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

MODEL = "policy"


class Shape:
    """A Qwen3 of 0.6B; tiny: a small model like it."""

    def __init__(self, tiny):
        (self.layers, self.hidden, self.heads, self.groups, self.head, self.ffn, self.vocab) = (
            (2, 64, 4, 2, 16, 96, 300) if tiny else (28, 1024, 16, 8, 128, 3072, 151936))

    def tensors(self):
        """Returns random weights by their names in a checkpoint."""
        q, kv = self.heads * self.head, self.groups * self.head
        shapes = {"model.embed_tokens.weight": (self.vocab, self.hidden),
                  "model.norm.weight": (self.hidden,)}
        for i in range(self.layers):
            for name, shape in (
                    ("input_layernorm", (self.hidden,)),
                    ("post_attention_layernorm", (self.hidden,)),
                    ("self_attn.q_proj", (q, self.hidden)),
                    ("self_attn.k_proj", (kv, self.hidden)),
                    ("self_attn.v_proj", (kv, self.hidden)),
                    ("self_attn.o_proj", (self.hidden, q)),
                    ("self_attn.q_norm", (self.head,)),
                    ("self_attn.k_norm", (self.head,)),
                    ("mlp.gate_proj", (self.ffn, self.hidden)),
                    ("mlp.up_proj", (self.ffn, self.hidden)),
                    ("mlp.down_proj", (self.hidden, self.ffn))):
                shapes[f"model.layers.{i}.{name}.weight"] = shape
        return {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


def parse_options():
    """Parses options, makes torch repeatable, and limits its threads, which would spin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, action="append", default=[])
    parser.add_argument("--tiny", action="store_true")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    return parser.parse_args()


@contextlib.contextmanager
def started_daemons(options):
    """Yields a directory in memory, and a receiver there that follows the sender in `sender`."""
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="deltawire-bench-", dir=shm) as directory:
        root = pathlib.Path(directory)
        with Daemons(root, options.bin) as daemons:
            control = daemons.start_sender(root / "sender")
            yield root, daemons.start_receiver([control], MODEL, root / "received")


@contextlib.contextmanager
def published(options, tensors, config=None):
    """Yields (root, receiver, publish), with the tensors committed at the receiver as version 1.

    publish() commits the tensors' present content there, and returns the version. `config` is the
    content of config.json."""
    with started_daemons(options) as (root, receiver):
        manager = deltawire.WeightManager(root / "sender", MODEL, timeout=300)
        if config is not None:
            (root / "hf").mkdir()
            (root / "hf" / "config.json").write_text(json.dumps(config))
            manager.register(tensors.items(), hf_dir=root / "hf")
        versions = itertools.count(1)

        def publish():
            version = next(versions)
            manager.offload(tensors.items(), version=version)
            receiver.await_version(version)
            return version

        publish()
        yield root, receiver, publish


def own_memory():
    """Returns this process's private memory in bytes (RssAnon)."""
    with open("/proc/self/status") as status:
        return int(status.read().split("RssAnon:")[1].split()[0]) * 1024


class Watch:
    """The peak growth of the process's private memory inside the context, in MiB."""

    def __enter__(self):
        self._first = self.peak = own_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()
        self.beyond = (self.peak - self._first) / 2**20

    def _look(self):
        while not self._done.wait(0.001):
            self.peak = max(self.peak, own_memory())


def say(**row):
    print(json.dumps(row), flush=True)
