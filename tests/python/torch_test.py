"""The Python package with torch tensors: every dtype, every memory order, ties, other devices."""

from __future__ import annotations

import json
import math
import pathlib
import signal
import tempfile
import unittest
from unittest import mock

import support

support.use_trainer_python()
torch = support.need("torch")
deltawire = support.need("deltawire")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from deltawire import _writing  # noqa: E402
from deltawire._fsdp import Place  # noqa: E402
from deltawire._megatron import DeviceReader  # noqa: E402
from deltawire._tensors import DTYPE_BYTES  # noqa: E402

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
}


class OnCuda(torch.Tensor):
    """A stand-in: a tensor in host memory that says it is on CUDA device 1."""

    device = property(lambda self: torch.device("cuda", 1))


def raw(tensor) -> bytes:
    """The tensor's bytes in row-major order, by torch alone."""
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def save_zeros(folder: pathlib.Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """A checkpoint of these dtypes and shapes."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + DTYPE_BYTES[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(end))


class TorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def manager(self, **options):
        self.model = self.id().rsplit(".", 1)[-1]
        return deltawire.WeightManager(self.cluster.endpoint, model=self.model, **options)

    def check(self, want):
        got = self.cluster.content(self.model)
        self.assertEqual(set(got), set(want))
        for name, tensor in want.items():
            self.assertEqual(got[name], (DTYPES[tensor.dtype], tuple(tensor.shape), raw(tensor)), name)

    def test_every_dtype(self):
        torch.manual_seed(1)
        bits = torch.randint(0, 256, (24, 16), dtype=torch.uint8)
        want = {
            name: (bits & 1 if dtype == torch.bool else bits).view(dtype)
            for dtype, name in DTYPES.items()
        }
        want["scalar"] = torch.tensor(1.5, dtype=torch.bfloat16)
        want["empty"] = torch.zeros(0, 3)
        self.manager().offload(want, 1).wait()
        self.check(want)
        with self.assertRaises(deltawire.DTypeError):
            self.manager().register({"c": torch.zeros(2, dtype=torch.complex128)})

    def test_every_memory_order(self):
        torch.manual_seed(2)
        base = torch.randn(60, 70, 80)
        want = {
            "transposed": base[0].T,
            "big_transposed": torch.randn(1500, 1100).bfloat16().t(),
            "permuted": base.permute(2, 0, 1),
            "sliced": base[::3, 5:50, ::2],
            "expanded": base[:1].expand(4, 70, 80),
            "channels_last": torch.randn(2, 8, 9, 10).to(memory_format=torch.channels_last),
            "parameter": torch.nn.Parameter(base[1]),
            "conjugated": torch.randn(5, dtype=torch.complex64).conj(),
            "negated": torch.randn(5, dtype=torch.complex64).conj().imag,
        }
        self.manager().offload(want, 1).wait()
        self.check(want)

    def test_a_module_with_tied_weights(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = torch.nn.Embedding(50, 8)
                self.head = torch.nn.Linear(8, 50, bias=False)
                self.head.weight = self.embed.weight

        module = Tied().bfloat16()
        manager = self.manager()
        for version in (1, 2):
            manager.offload(module.state_dict().items(), version).wait()
            self.check({"embed.weight": module.embed.weight})
            with torch.no_grad():
                module.embed.weight += 1
        self.assertEqual(manager.tied, {"head.weight": "embed.weight"})

    def test_a_tie_that_is_broken_later_is_an_error_that_names_the_tensor(self):
        embed = torch.randn(50, 8).bfloat16()
        manager = self.manager()
        manager.register({"embed.weight": embed, "lm_head.weight": embed})
        copies = {"embed.weight": embed, "lm_head.weight": embed.clone()}
        apart = {"embed.weight": embed, "lm_head.weight": embed + 1}
        last = {"embed.weight": embed, "lm_head.weight": embed.clone()}
        last["lm_head.weight"][-1, -1] += 1
        version = 0
        for ends in (lambda t: t, lambda t: dict(reversed(t.items()))):
            version += 1
            manager.offload(ends(copies), version).wait()
            self.check({"embed.weight": embed})
            for broken in (apart, last):
                with self.assertRaisesRegex(deltawire.TensorError, '"lm_head.weight" was registered '
                                            'as another name of "embed.weight"'):
                    manager.offload(ends(broken), version + 1)
        # What is carried over is not compared.
        manager.offload({"lm_head.weight": embed}, version + 1, unchanged=["embed.weight"]).wait()

    def test_of_tied_names_the_one_stays_that_engines_look_for(self):
        weight = torch.zeros(50, 8)
        tied = {"lm_head.weight": weight, "model.embed_tokens.weight": weight, "x": torch.ones(2)}
        manager = self.manager()
        manager.offload(tied, 1).wait()
        self.check({"model.embed_tokens.weight": weight, "x": tied["x"]})
        self.assertEqual(manager.tied, {"lm_head.weight": "model.embed_tokens.weight"})
        with tempfile.TemporaryDirectory() as folder:
            save_zeros(pathlib.Path(folder), {"lm_head.weight": ("F32", [50, 8]), "x": ("F32", [2])})
            manager.register(tied, hf_dir=folder, replace=True)
        self.assertEqual([m.name for m in manager.tensors_meta], ["lm_head.weight", "x"])

    def test_temporaries_at_one_address_are_not_tied(self):
        values = {f"t{i}": torch.full((1000,), float(i)) for i in range(8)}

        def cast():  # each result may take the memory of the one before
            for name, tensor in values.items():
                yield name, tensor.to(torch.bfloat16)

        manager = self.manager()
        manager.offload(cast, 1).wait()
        self.assertEqual(manager.tied, {})
        self.check({n: v.to(torch.bfloat16) for n, v in values.items()})

    def test_tensors_without_a_block_of_numbers_are_refused_by_name(self):
        with FakeTensorMode():
            fake = torch.ones(3, 3)
        rows = [torch.ones(2, 3), torch.ones(1, 3)]
        square = torch.eye(3)
        for tensor, what in (
            (square.to_sparse(), "sparse"),
            (square.to_sparse_csr(), "sparse"),
            (torch.nested.nested_tensor(rows), "nested"),
            (torch.nested.nested_tensor(rows, layout=torch.jagged), "nested"),
            (torch.nn.LazyLinear(3).weight, "no shape yet"),
            (square.to("meta"), "no data"),
            (fake, "no data"),
            (square.to(torch.complex128), "safetensors has no name for"),
            (torch.zeros(3, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "no whole bytes"),
        ):
            for register in (False, True):
                manager = self.manager()
                if register:
                    manager.register([("a", "F32", (3, 3))], replace=True)
                with self.subTest(what, register=register), self.assertRaisesRegex(
                        deltawire.TensorError, f'tensor "a" .*{what}') as said:
                    manager.offload({"a": tensor}, 1)
                self.assertEqual(said.exception.tensor, "a")
        for dtype in ("F4", "F6_E2M3", "float4_e2m1fn_x2"):
            with self.assertRaisesRegex(deltawire.DTypeError, "no whole bytes"):
                deltawire.TensorMeta.of(("a", dtype, (4,)))

    def test_a_background_offload_copies_tensors_that_then_change(self):
        manager = self.manager()
        for version in (1, 2):
            table = torch.randn(7, 5) + version
            given = {"embed.weight": table, "lm_head.weight": table, "turned": torch.randn(4, 6).t(),
                     "half": torch.randn(3, 2).bfloat16(), "scalar": torch.tensor(version)}
            want = {n: t.clone() for n, t in given.items() if n != "lm_head.weight"}
            if version == 1:
                manager.register(given, dtype=None)
            self.cluster.sender_process.send_signal(signal.SIGSTOP)
            try:
                handle = manager.offload(given if version == 1 else iter(given.items()), version,
                                         wait=False)
                for tensor in given.values():
                    tensor.zero_()
            finally:
                self.cluster.sender_process.send_signal(signal.SIGCONT)
            handle.wait()
            self.check(want)

    def test_a_conjugate_is_no_other_name_of_its_tensor(self):
        manager = self.manager()
        table = torch.randn(3, 4, dtype=torch.complex64)
        given = {"a": table, "b": table.conj(), "c": table}
        want = {"a": table, "b": table.conj().resolve_conj()}
        manager.register(given)
        self.assertEqual(dict(manager.tied), {"c": "a"})
        manager.offload(given, 1).wait()
        self.check(want)
        manager.offload(given, 2, wait=False).wait()
        self.check(want)
        with self.assertRaisesRegex(deltawire.TensorError, '"c" was registered as another name'):
            manager.offload({**given, "c": table.conj()}, 3)

    def test_memory_that_generated_tensors_have_in_turn_is_not_remembered(self):
        places, buffer = {}, torch.empty(6)
        for i in range(5):
            meta = deltawire.TensorMeta.of((f"t{i}", "F32", (2, 3)))
            self.assertIsNone(_writing._same_memory(places, meta, buffer.view(2, 3)))
        self.assertEqual([len(held) for held in places.values()], [1])

    def test_a_model_without_data_registers_its_layout(self):
        manager = self.manager()
        manager.register({"a": torch.ones(3, 3, device="meta")})
        manager.offload({"a": torch.eye(3)}, 1).wait()
        self.check({"a": torch.eye(3)})

    def test_what_torch_copies_for_other_devices(self):
        """Takes the path of tensors on a GPU, which torch's copy_ reads, here from host memory."""
        manager = self.manager()
        want = {"a": torch.randn(5, 6), "b": torch.randn(4, 4).to(torch.float8_e4m3fn)}
        manager.register(want)
        offload = manager._client.begin(1, 0)
        a, b = manager.tensors_meta
        rows = [(Place((0, 0), (2, 6), True), want["a"][:2]), (Place((2, 0), (3, 6), True), want["a"][2:])]
        for place, local in rows:
            self.assertEqual(_writing.copy_by_torch(offload, 0, a, local, place), local.nbytes)
        _writing.copy_by_torch(offload, 1, b, want["b"], Place((), (4, 4), True))
        offload.mark_written([0, 1], 2)
        offload.ready()
        manager.wait_published(1)
        self.check(want)

    def test_a_tensor_on_a_cuda_device_is_the_devices_to_write_and_else_torchs(self):
        """No device here: the tensors only say that they are on one, and CUDA that it is there."""
        manager = self.manager()
        base = torch.randn(6, 5)
        manager.register({"a": torch.empty(5, 6), "b": torch.empty(2, 2)})
        offload = manager._client.begin(1, 0)
        a, b = manager.tensors_meta
        rows = base.t()[1:3].as_subclass(OnCuda)
        with mock.patch.object(_writing, "has_cuda", lambda: True), \
                mock.patch.object(torch.cuda, "current_stream") as stream:
            taken = mock.Mock()
            self.assertEqual(_writing.copy(taken, 0, a, rows, Place((1, 0), (2, 6), True), 3), 48)
            taken.write.assert_called_once_with(
                0, rows.data_ptr(), 4, [2, 6], [4, 20], (1, 0), 3, 1)
            taken.mark_block.assert_not_called()
            stream.assert_called_once_with(torch.device("cuda", 1))
            stream.return_value.synchronize.assert_called_once_with()

            with self.assertWarnsRegex(UserWarning, "not pinned"):
                for start, count in ((0, 1), (1, 2), (3, 2)):
                    part = base.t()[start : start + count].as_subclass(OnCuda)
                    _writing.copy(offload, 0, a, part, Place((start, 0), (count, 6), True), 3)
                part = torch.ones(2, 2).as_subclass(OnCuda)
                _writing.copy(offload, 1, b, part, Place((), (2, 2), True), 2)
        offload.ready()
        manager.wait_published(1)
        self.check({"a": base.t(), "b": torch.ones(2, 2)})

    def masters(self):
        """fp32 with every kind of number: ties of bf16 and fp16, subnormal ones, infinities."""
        torch.manual_seed(11)
        ties = (torch.arange(0x3f800000, 0x3f800000 + 300 * 0x800, 0x800, dtype=torch.int32))
        odd = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 6e-8, 65504.0, 65519.9, 3.4e38, float("inf"),
                            float("-inf")])
        return {
            "norm": torch.cat([ties.view(torch.float32), odd]),
            "w": torch.randn(300, 129) * torch.logspace(-40, 38, 129),
            "t": torch.randn(1100, 700).t(),
            "strided": torch.randn(30, 40, 10)[::3, 5:, ::2],
            "parameter": torch.nn.Parameter(torch.randn(17, 5)),
            "empty": torch.zeros(0, 4),
            "scalar": torch.tensor(1.00390625),
            "steps": torch.tensor(3),
        }

    def test_masters_are_cast_to_the_dtype_that_register_says(self):
        masters = self.masters()
        for dtype in (torch.bfloat16, "float16", "F64"):
            manager = self.manager()
            manager.register(masters, dtype=dtype, replace=True)
            with self.assertLogs("deltawire", "WARNING") as log:
                for version in (1, 2):  # says so once
                    manager.offload(masters, version).wait()
            name = {torch.bfloat16: "BF16", "float16": "F16"}.get(dtype, dtype)
            self.assertEqual(len(log.output), 1, log.output)
            self.assertIn(f"7 from F32 to {name}", log.output[0])
            to = {v: k for k, v in DTYPES.items()}[name]
            self.check({n: t if n == "steps" else t.detach().to(to) for n, t in masters.items()})

    def test_masters_are_cast_to_the_dtype_that_the_first_offload_says(self):
        masters = {"w": torch.randn(40, 30).half(), "v": torch.randn(7), "i": torch.ones(2).int()}
        manager = self.manager()
        with self.assertLogs("deltawire", "WARNING") as log:
            manager.offload(masters, 1, dtype="bfloat16").wait()
        self.assertIn("1 from F16 to BF16, 1 from F32 to BF16", log.output[0])
        want = {"w": masters["w"].bfloat16(), "v": masters["v"].bfloat16(), "i": masters["i"]}
        self.check(want)
        manager.offload({**want, "v": masters["v"].double()}, 2).wait()
        self.check(want)
        with self.assertRaisesRegex(deltawire.DTypeError, '"w" is registered as BF16, and dtype'):
            manager.offload(masters, 3, dtype="float32")
        again = self.manager()
        again.register([("w", "BF16", (40, 30)), ("v", "BF16", (7,)), ("i", "I32", (2,))])
        with self.assertRaisesRegex(deltawire.DTypeError, 'have it cast .register with dtype="BF16"'):
            again.offload(masters, 3)
        again.offload(masters, 3, dtype="bfloat16").wait()
        self.check(want)

    def test_what_a_cast_would_lose_is_refused(self):
        manager = self.manager()
        manager.register({"a": torch.ones(2).half(), "i": torch.ones(2).int()}, dtype="float16")
        for name, tensor in (("a", torch.ones(2).bfloat16()), ("a", torch.ones(2).int()),
                             ("a", torch.ones(2).to(torch.float8_e4m3fn)), ("i", torch.ones(2))):
            given = {"a": torch.ones(2), "i": torch.ones(2).int()} | {name: tensor}
            with self.assertRaisesRegex(deltawire.DTypeError, "are not cast one to the other"):
                manager.offload(given, 1)
        with self.assertRaisesRegex(deltawire.DTypeError, "only torch tensors are cast"):
            manager.offload({"a": torch.ones(2).numpy(), "i": torch.ones(2).int()}, 1)
        with self.assertRaisesRegex(deltawire.TensorError, "sparse"):
            manager.offload({"a": torch.ones(2).to_sparse(), "i": torch.ones(2).int()}, 1)
        for dtype, why in (("float16", "not cast to F16"), ("int8", "dtype is I8")):
            with self.assertRaisesRegex(deltawire.DTypeError, why):
                self.manager().register({"a": torch.ones(2).bfloat16()}, dtype=dtype)

    def test_hf_dir_says_what_masters_are_stored_as(self):
        folder = self.cluster.root / self.id()
        folder.mkdir()
        config = folder / "config.json"
        layout = lambda m: {t.name: t.dtype for t in m.tensors_meta}  # noqa: E731
        masters = {"w": torch.randn(3, 5), "bias": torch.randn(4), "i": torch.ones(2).int()}

        config.write_text('{"text_config": {"torch_dtype": "bfloat16"}}')
        manager = self.manager()
        manager.register(masters, hf_dir=folder)
        self.assertEqual(layout(manager), {"w": "BF16", "bias": "BF16", "i": "I32"})
        manager.offload(masters, 1).wait()
        self.check({"w": masters["w"].bfloat16(), "bias": masters["bias"].bfloat16(),
                    "i": masters["i"]})
        # A trainer that holds bf16 keeps what it holds in fp32; and nothing becomes larger.
        manager.register({**masters, "w": masters["w"].bfloat16()}, hf_dir=folder, replace=True)
        self.assertEqual(layout(manager), {"w": "BF16", "bias": "F32", "i": "I32"})
        config.write_text('{"dtype": "float32"}')
        manager.register({"w": masters["w"].bfloat16()}, hf_dir=folder, replace=True)
        self.assertEqual(layout(manager), {"w": "BF16"})
        config.write_text("{}")
        manager.register(masters, hf_dir=folder, replace=True)
        self.assertEqual(layout(manager), {"w": "F32", "bias": "F32", "i": "I32"})

        config.write_text('{"dtype": "float16"}')  # the weights say more
        save_zeros(folder, {"w": ("BF16", [3, 5]), "bias": ("F32", [4]), "i": ("F8_E5M2", [2])})
        manager.register(masters, hf_dir=folder, replace=True)
        self.assertEqual(layout(manager), {"w": "BF16", "bias": "F32", "i": "I32"})
        said = [("w", "F32", (3, 5)), ("bias", "BF16", (4,)), ("i", "I32", (2,))]
        manager.register(said, hf_dir=folder, replace=True)
        self.assertEqual(layout(manager), {"w": "F32", "bias": "BF16", "i": "I32"})
        manager.offload(masters, 1).wait()
        self.check({**masters, "bias": masters["bias"].bfloat16()})

    def test_what_checkpoints_have_in_fp32_stays_so_where_config_json_alone_is_known(self):
        """DeepSeek-V3's config.json says bfloat16, and its e_score_correction_bias is in fp32."""
        folder = self.cluster.root / self.id()
        folder.mkdir()
        (folder / "config.json").write_text('{"torch_dtype": "bfloat16"}')
        layout = lambda m: {t.name: t.dtype for t in m.tensors_meta}  # noqa: E731
        bias, norm = ("model.layers.{}.mlp.gate.e_score_correction_bias",
                      "model.layers.{}.input_layernorm.weight")
        masters = {"w": torch.randn(3, 5), "model.layers.0.linear_attn.A_log": torch.randn(4),
                   **{bias.format(i): torch.randn(8) for i in (3, 4)},
                   **{norm.format(i): torch.randn(6) for i in (3, 4)}}
        fp32 = [n for n in masters if n.endswith(("A_log", "e_score_correction_bias"))]
        manager = self.manager()
        manager.register(masters, hf_dir=folder)
        self.assertEqual(layout(manager),
                         {n: "F32" if n in fp32 else "BF16" for n in masters})
        with self.assertLogs("deltawire", "WARNING") as log:
            manager.offload(masters, 1).wait()
        self.assertIn("3 from F32 to BF16; of these routers and vectors", log.output[0])
        self.assertTrue(log.output[0].endswith(
            "keep_dtype names them: model.layers.*.input_layernorm.weight F32 to BF16 (2)"))
        want = {n: t if n in fp32 else t.bfloat16() for n, t in masters.items()}
        self.check(want)
        # Who says a dtype means all; what a checkpoint has goes before config.json.
        manager.register(masters, dtype="bfloat16", replace=True)
        self.assertEqual(set(layout(manager).values()), {"BF16"})
        save_zeros(folder, {n: ("F32" if n in fp32[1:] else "BF16", list(t.shape))
                            for n, t in masters.items()})
        manager.register(masters, hf_dir=folder, replace=True)
        self.assertEqual(layout(manager),
                         {n: "F32" if n in fp32[1:] else "BF16" for n in masters})
        (folder / "model.safetensors").unlink()
        (folder / "config.json").write_text('{"torch_dtype": "bfloat17"}')
        with self.assertRaisesRegex(deltawire.DTypeError, f"{folder}/config.json has the dtype"):
            manager.register(masters, hf_dir=folder, replace=True)

    def test_keep_dtype_goes_before_everything_that_would_cast(self):
        masters = {"w": torch.randn(3, 5), "a.norm": torch.randn(4), "b.norm": torch.randn(4),
                   "bias": torch.randn(4)}
        manager = self.manager(keep_dtype=("*.norm", "bias"))
        manager.offload(masters, 1, dtype="bfloat16").wait()
        manager.offload(masters, 2, dtype="bfloat16").wait()
        self.check({n: t.bfloat16() if n == "w" else t for n, t in masters.items()})
        with self.assertRaisesRegex(deltawire.Error, "is a list of names"):
            self.manager(keep_dtype="bias")
        # Entries say names and shapes; what is cast is said by `dtype`, but for what is kept.
        entries = [("model.norm.weight", "F32", (4,)), ("w.weight", "F32", (8, 8))]
        manager = self.manager(keep_dtype=["*norm.weight"])
        manager.register(entries, dtype="bfloat16", replace=True)
        self.assertEqual({m.name: m.dtype for m in manager.tensors_meta},
                         {"model.norm.weight": "F32", "w.weight": "BF16"})
        with self.assertLogs("deltawire", "WARNING") as log:
            self.manager(keep_dtype=["*.norm"]).register(entries, dtype="bfloat16", replace=True)
        self.assertIn("'*.norm', which is the name of no tensor", log.output[0])

    def test_what_the_library_reads_of_other_devices_in_pieces(self):
        torch.manual_seed(5)
        bits = torch.randint(0, 256, (24, 16), dtype=torch.uint8)
        for dtype in DTYPES:
            tensor = (bits & 1 if dtype == torch.bool else bits).view(dtype)
            want = raw(tensor)
            read = DeviceReader(tensor)
            for offset, size in ((0, len(want)), (0, 1), (7, 64), (len(want) - 3, 3)):
                got = bytearray(b"\xa5" * (size + 2))
                read(offset, memoryview(got)[1 : size + 1])
                self.assertEqual(got, b"\xa5" + want[offset : offset + size] + b"\xa5", dtype)
        scalar = bytearray(4)
        DeviceReader(torch.nn.Parameter(torch.tensor(2.5)))(0, memoryview(scalar))
        self.assertEqual(bytes(scalar), raw(torch.tensor(2.5)))


if __name__ == "__main__":
    unittest.main()
