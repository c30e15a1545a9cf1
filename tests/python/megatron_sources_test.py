"""offload_megatron without Megatron, from tensors in host memory and from tensors that are read by
callbacks, as those on a device are when the library has no CUDA. What a receiver holds is compared
byte by byte."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time
import types
import unittest
from unittest import mock

import support

deltawire = support.need("deltawire")
from deltawire import _core, _megatron  # noqa: E402
from deltawire._megatron_job import MegatronJob  # noqa: E402

CONFIG = {
    "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 384,
    "num_experts": 4, "moe_intermediate_size": 32, "mlp_only_layers": [0],
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QKV = 4 * 16 + 2 * 2 * 16
# Megatron's parameters of that model on one rank, with TransformerEngine's names.
SHAPES = {
    "embedding.word_embeddings.weight": (384, 64),
    "decoder.final_layernorm.weight": (64,),
    "output_layer.weight": (384, 64),
    "decoder.layers.0.mlp.linear_fc1.layer_norm_weight": (64,),
    "decoder.layers.0.mlp.linear_fc1.weight": (192, 64),
    "decoder.layers.0.mlp.linear_fc2.weight": (64, 96),
    "decoder.layers.1.pre_mlp_layernorm.weight": (64,),
    "decoder.layers.1.mlp.router.weight": (4, 64),
}
for _e in range(4):
    SHAPES[f"decoder.layers.1.mlp.experts.linear_fc1.weight{_e}"] = (64, 64)
    SHAPES[f"decoder.layers.1.mlp.experts.linear_fc2.weight{_e}"] = (64, 32)
for _l in range(2):
    _at = f"decoder.layers.{_l}.self_attention."
    SHAPES[_at + "linear_qkv.layer_norm_weight"] = (64,)
    SHAPES[_at + "linear_qkv.weight"] = (QKV, 64)
    SHAPES[_at + "linear_proj.weight"] = (64, 64)
    SHAPES[_at + "q_layernorm.weight"] = (16,)
    SHAPES[_at + "k_layernorm.weight"] = (16,)


class OtherDevice:
    """A tensor that Python holds, on a device that the library knows nothing of."""

    device = types.SimpleNamespace(type="other", index=0)

    def __init__(self, content: bytes, shape):
        self.content, self.shape = content, shape


class Reader:
    """Stands in for DeviceReader, which needs torch; records the size of each read."""

    asked: list[int] = []
    fail_at = None

    def __init__(self, tensor):
        self._content = tensor.content

    def __call__(self, offset, to):
        if self.fail_at == len(self.asked):
            raise ValueError("the device is gone")
        self.asked.append(len(to))
        to[:] = self._content[offset : offset + len(to)]


class Model:
    config = types.SimpleNamespace()

    def __init__(self, tensors):
        self._tensors = tensors

    def named_parameters(self):
        return self._tensors.items()

    def named_modules(self):
        return []


class State:
    """Megatron's parallel_state; sizes and ranks by the dimension ("tensor"), else 1 and 0."""

    def __init__(self, sizes=None, ranks=None):
        self._sizes, self._ranks = sizes or {}, ranks or {}

    def __getattr__(self, name):
        dimension = name.removeprefix("get_").split("_parallel_")[0].removesuffix("_model")
        if name.endswith("_world_size"):
            return lambda: self._sizes.get(dimension, 1)
        return lambda: self._ranks.get(dimension, 0)


class HostTensor:
    """A bf16 tensor in host memory."""

    def __init__(self, content, shape):
        self.shape = shape
        self._memory = ctypes.create_string_buffer(content, len(content))
        self.address = ctypes.addressof(self._memory)


def contents(seed: int, shapes=None) -> dict[str, bytes]:
    rng = random.Random(seed)
    return {name: rng.randbytes(2 * _product(shape)) for name, shape in (shapes or SHAPES).items()}


def halved(name, shape):
    """A parameter's shape on one of two tensor-parallel ranks; experts are whole on both."""
    if "layernorm" in name or "layer_norm" in name or "router" in name or "experts" in name:
        return shape
    if "linear_proj" in name or "linear_fc2" in name:
        return shape[0], shape[1] // 2
    # The vocabulary is padded to a multiple of 128 rows on each rank.
    return (256 if shape[0] == 384 else shape[0] // 2), *shape[1:]


def _product(shape):
    out = 1
    for n in shape:
        out *= n
    return out


def source_of(name, tensor):
    return types.SimpleNamespace(address=tensor.address, dtype="BF16", shape=tensor.shape)


def meta_of(name, tensor):
    return types.SimpleNamespace(dtype="BF16", shape=tensor.shape)


def on_ranks(count, run):
    """What run(rank) returns or raises, each rank in a thread of its own."""
    done = [None] * count

    def one(rank):
        try:
            done[rank] = run(rank)
        except Exception as error:  # it is what the test looks at
            done[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


class SourcesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())
        cls.hf = cls.cluster.root / "hf"
        cls.hf.mkdir()
        (cls.hf / "config.json").write_text(json.dumps(CONFIG))

    def setUp(self):
        Reader.asked, Reader.fail_at = [], None
        for name, fake in {
            "source_of": source_of,
            "meta_of": meta_of,
            "is_cuda": lambda t: isinstance(t, OtherDevice),
            "DeviceReader": Reader,
        }.items():
            self.enterContext(mock.patch.object(_megatron, name, fake))
        self.model = self.id().rsplit(".", 1)[-1]

    def manager(self, model=None, **options):
        return deltawire.WeightManager(self.cluster.endpoint, model=model or self.model, **options)

    def offload(self, manager, seed, version, kind, state=None, shapes=None, **options):
        shapes = shapes or SHAPES
        made = {name: kind(c, shapes[name]) for name, c in contents(seed, shapes).items()}
        options["parallel"] = {"spec": "te"}
        return manager.offload_megatron(
            Model(made), state or State(), options.pop("hf", self.hf), version, **options
        )

    def host_content(self, seed):
        """What a receiver holds when the same bytes are offloaded from host memory, as a model of
        another name."""
        self.offload(self.manager("host-" + self.model), seed, seed, HostTensor)
        return self.cluster.content("host-" + self.model)

    def test_read_tensors_become_the_bytes_of_host_tensors(self):
        manager = self.manager()
        for seed in (1, 2):
            done = self.offload(manager, seed, seed, OtherDevice)
            self.assertEqual(done.tensors, len(SHAPES))
            self.assertEqual(self.cluster.content(self.model), self.host_content(seed))
        self.assertEqual(sum(Reader.asked), 2 * 2 * sum(map(_product, SHAPES.values())))
        self.assertTrue(any(any(t[2]) for t in self.cluster.content(self.model).values()))

    def test_what_a_reader_raises_is_raised_and_the_next_version_goes_through(self):
        manager = self.manager()
        Reader.fail_at = 5
        with self.assertRaisesRegex(ValueError, "the device is gone"):
            self.offload(manager, 1, 1, OtherDevice)
        Reader.fail_at = None
        self.offload(manager, 2, 2, OtherDevice)
        self.assertEqual(self.cluster.content(self.model), self.host_content(2))

    def test_what_is_copied_in_the_background_may_be_changed(self):
        want = {seed: self.host_content(seed) for seed in (1, 2)}
        for kind in (HostTensor, OtherDevice):
            manager = self.manager(f"{self.model}-{kind.__name__}")
            for seed in (1, 2):
                made = {name: kind(c, SHAPES[name]) for name, c in contents(seed).items()}
                begun = manager.offload_megatron(Model(made), State(), self.hf, seed,
                                                 parallel={"spec": "te"}, wait=False)
                for tensor in made.values():
                    if kind is HostTensor:
                        ctypes.memset(tensor.address, 0xFF, len(tensor._memory))
                    else:
                        tensor.content = bytes(len(tensor.content))
                self.assertEqual(begun.result().tensors, len(SHAPES))
                self.assertEqual(begun.wait().version, seed)
                self.assertEqual(self.cluster.content(manager._model), want[seed])
        group = deltawire.Gather(f"file:{self.cluster.root}", "job-beside", interface="lo")
        for options, said in (({"gather": group}, "talk to one another"), ({"notify": False}, "nobody can say")):
            with self.assertRaisesRegex(deltawire.Error, said):
                self.offload(manager, 3, 3, HostTensor, wait=False, **options)

    def test_a_gather_reads_by_buckets(self):
        want = self.host_content(3)
        for number, size in enumerate((4096, "auto")):
            with self.subTest(size):
                Reader.asked = []
                group = deltawire.Gather(
                    f"file:{self.cluster.root}", f"job-{number}", interface="lo", bucket_bytes=size
                )
                manager = self.manager(f"{self.model}-{number}")
                self.offload(manager, 3, 3, OtherDevice, gather=group)
                self.assertEqual(self.cluster.content(f"{self.model}-{number}"), want)
                if size != "auto":
                    self.assertLessEqual(max(Reader.asked), size)

    def test_a_rank_does_not_publish_its_part_as_the_whole(self):
        shapes = {name: halved(name, shape) for name, shape in SHAPES.items()}
        for rank in (0, 1):
            with self.subTest(rank):
                state = State({"tensor": 2}, {"tensor": rank})
                manager = self.manager(f"{self.model}-{rank}")
                with self.assertRaisesRegex(deltawire.Error, f"this is rank {rank} of 2"):
                    self.offload(manager, 1, 1, HostTensor, state, shapes)
                # Nothing is registered yet, or this layout would be refused.
                self.assertEqual(manager.register([("w", "F32", (1,))]), 0)

    def test_a_gather_by_a_manager_that_is_one_of_several_is_refused(self):
        group = deltawire.Gather(f"file:{self.cluster.root}", "job-several", interface="lo")
        manager = self.manager(world=2)
        with self.assertRaisesRegex(deltawire.Error, "rank 0 of 2, .* without rank and world"):
            self.offload(manager, 1, 1, HostTensor, gather=group)

    def test_other_families_make_another_plan(self):
        job = MegatronJob(0)
        config = {"spec": "te"}
        families = self.cluster.root / "families"
        families.mkdir()
        file = families / "own.toml"
        text = 'family = "own"\nextends = "qwen3_moe"\nmatch = { when = "0" }\n'
        file.write_text(text)
        first = job.plan(self.hf, config, "own", [families])
        self.assertIs(job.plan(self.hf, config, "own", [families]), first)
        renamed = text + '[texts]\nrouter = "mlp.other_router."\n'
        other = self.cluster.root / "other-families"
        other.mkdir()
        (other / "own.toml").write_text(renamed)
        second = job.plan(self.hf, config, "own", [other])
        self.assertNotEqual(second.tensors_meta(), first.tensors_meta())
        # The same directory, and the file in it has changed.
        self.assertEqual(
            job.plan(self.hf, config, "own", [families]).tensors_meta(), first.tensors_meta()
        )
        file.write_text(renamed)
        self.assertEqual(
            job.plan(self.hf, config, "own", [families]).tensors_meta(), second.tensors_meta()
        )

    def test_a_plan_does_not_write_into_another_layout(self):
        plan = _core.Megatron(str(self.hf), json.dumps({"spec": "te"}), "", [], 0)
        params = []
        held = [(n, HostTensor(c, SHAPES[n])) for n, c in contents(1).items()]
        for name, tensor in held:
            params.append((0, name, "BF16", tensor.shape, tensor.address, _core.HOST_MEMORY, None))
        client = _core.Client(self.cluster.endpoint, self.model, 0, 1, 30_000, 0)
        # As many tensors, each with a row more, so that no byte is written beyond the end.
        other = [(n, d, (s[0] + 1, *s[1:])) for n, d, s in plan.tensors_meta()]
        client.register(other, [], None, False, False)
        with self.assertRaisesRegex(deltawire.RefusedError, "another model than this plan's"):
            plan.place(client.begin(1, 0), 0, params)
        where = f"file:{self.cluster.root}"
        group = _core.Collective(
            0, 1, 0, where, "job-layout", "lo", "", 20_000, _core.COLLECTIVE_GLOO, 0
        )
        with self.assertRaisesRegex(deltawire.RefusedError, "another model than this plan's"):
            plan.gather(group, client.begin(2, 0), 0, params, 1 << 20)

    def test_a_model_that_was_registered_since_is_not_taken_for_the_plans(self):
        manager = self.manager()
        self.offload(manager, 1, 1, HostTensor).wait()
        metas = [(m.name, m.dtype, (m.shape[0] + 1, *m.shape[1:])) for m in manager.tensors_meta]
        manager.register(metas, replace=True)
        with self.assertRaisesRegex(deltawire.RefusedError, "registered"):
            self.offload(manager, 2, 2, HostTensor)

    def test_what_fails_on_one_rank_before_a_gather_is_an_error_for_all_at_once(self):
        config = json.dumps({"spec": "te", "dp": 3})
        plans = [_core.Megatron(str(self.hf), config, "", [], 1) for _ in range(3)]
        held = {n: HostTensor(c, SHAPES[n]) for n, c in contents(1).items()}
        wide = "decoder.final_layernorm.weight"
        double = HostTensor(bytes(4 * 64), SHAPES[wide])
        client = _core.Client(self.cluster.endpoint, self.model, 0, 1, 30_000, 0)
        plans[0].register(client, None, False)
        offload = client.begin(1, 0)
        where = f"file:{self.cluster.root}"
        good = [(0, n, "BF16", t.shape, t.address, _core.HOST_MEMORY, None)
                for n, t in held.items()]  # fmt: skip
        beyond = [(*p[:5], 1_000_000, None) for p in good]
        rounded = [
            (0, n, "F32", s, double.address, d, r) if n == wide else (0, n, t, s, a, d, r)
            for _, n, t, s, a, d, r in good
        ]
        for job, params, other, says in (
            ("device", beyond, None, "is said to lie on device 1000000"),
            ("offload", good, offload, "rank 0 alone has an offload"),
            ("dtype", rounded, None, f"{wide} is F32 .* would round its values"),
        ):
            def run(rank):
                group = _core.Collective(
                    rank, 3, 0, where, f"job-{job}", "lo", "", 60_000, _core.COLLECTIVE_GLOO, 0
                )
                # What the root does here is the first thing that all ranks do in a gather too.
                if rank == 0:
                    group.check(None)
                fails = rank == 1
                plans[rank].gather(
                    group, other if fails else None, rank, params if fails else good, 1 << 20
                )

            with self.subTest(job):
                started = time.monotonic()
                for error in on_ranks(3, run):
                    self.assertRegex(str(error), says)
                self.assertLess(time.monotonic() - started, 30)  # and not the group's 60

    def test_a_group_survives_a_sender_that_is_away(self):
        with support.Cluster() as cluster:
            managers = [
                deltawire.WeightManager(cluster.endpoint, model="away", timeout=3) for _ in (0, 1)
            ]
            group = deltawire.Gather(f"file:{cluster.root}", "job-away", interface="lo", timeout=60)

            def offload(version):
                """Both ranks of a job, each of which has the whole model."""
                return on_ranks(2, lambda rank: self.offload(
                    managers[rank], version, version, HostTensor,
                    State({"data": 2}, {"data": rank}), gather=group,
                ))  # fmt: skip

            one, other = offload(1)
            self.assertEqual(other.tensors, len(SHAPES), one)
            one.wait()
            cluster.kill("deltawire-sender")
            one, other = offload(2)
            self.assertIsInstance(one, deltawire.Error)
            self.assertRegex(str(other), "rank 0 of 2 has failed: .*no sender listens at")
            cluster.start_sender(cluster.root / "s")
            one, other = offload(3)
            self.assertEqual(other.tensors, len(SHAPES), f"{one}, {other}")
            self.assertEqual(one.wait(60).version, 3)

    def test_a_device_that_is_not_there_is_refused_by_name(self):
        manager = self.manager()
        self.offload(manager, 1, 1, HostTensor)
        plan = manager._registered
        params = [
            (0, name, "BF16", shape, 4096, 1_000_000, None) for name, shape in SHAPES.items()
        ]
        with self.assertRaisesRegex(deltawire.Error, "is said to lie on device 1000000"):
            plan.check(0, params)
        self.assertIsInstance(_core.gpu_available(), bool)

    def test_gathers_that_make_no_sense_are_refused(self):
        where = f"file:{self.cluster.root}"
        with self.assertRaisesRegex(deltawire.Error, "nvlink"):
            deltawire.Gather(where, "job-k", kind="nvlink").kind_number()
        with self.assertRaisesRegex(deltawire.Error, '"half"'):
            deltawire.Gather(where, "job-b", bucket_bytes="half").bucket_size()
        nccl = deltawire.Gather(where, "job-n", interface="lo", kind="nccl", device=1_000_000)
        with self.assertRaisesRegex(deltawire.Error, "CUDA|no gather over NCCL here"):
            self.offload(self.manager(), 1, 1, HostTensor, gather=nccl)

    def test_without_the_plugin_nccl_is_said_to_be_missing(self):
        # The library is copied to a folder of its own, where the plug-in is not beside it.
        maps = pathlib.Path("/proc/self/maps").read_text().split()
        library = pathlib.Path(next(m for m in maps if "libdeltawire_export.so" in m))
        alone = self.cluster.root / "alone"
        alone.mkdir()
        shutil.copy(library, alone / "libdeltawire_export.so.2")
        code = (
            "from deltawire import _core, Error\n"
            "try:\n"
            f"    _core.Collective(0, 1, 0, 'file:{alone}', 'job', 'lo', '', 20000,"
            " _core.COLLECTIVE_NCCL, 0)\n"
            "except Error as error:\n"
            "    print(error)\n"
        )
        environment = {**os.environ, "LD_LIBRARY_PATH": str(alone)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        self.assertIn("no gather over NCCL here", done.stdout, done.stderr)
        self.assertIn(str(alone / "libdeltawire_nccl.so"), done.stdout)
        self.assertIn("or gather over Gloo", done.stdout)


if __name__ == "__main__":
    unittest.main()
