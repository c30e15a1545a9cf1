"""The Python package with torch tensors: every dtype, every memory order, ties, other devices."""

from __future__ import annotations

import unittest
from unittest import mock

import support

support.use_trainer_python()
torch = support.need("torch")
deltawire = support.need("deltawire")

from deltawire import _writing  # noqa: E402
from deltawire._fsdp import Place  # noqa: E402
from deltawire._megatron import DeviceReader  # noqa: E402

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
}


class OnCuda(torch.Tensor):
    """A stand-in: a tensor in host memory that says it is on CUDA device 1."""

    device = property(lambda self: torch.device("cuda", 1))


def raw(tensor) -> bytes:
    """The tensor's bytes in row-major order, by torch alone."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


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
            self.manager().register({"c": torch.zeros(2, dtype=torch.complex64)})

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
            "conjugated": torch.view_as_real(torch.randn(5, dtype=torch.complex64).conj().resolve_conj()),
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

    def test_temporaries_at_one_address_are_not_tied(self):
        values = {f"t{i}": torch.full((1000,), float(i)) for i in range(8)}

        def cast():  # each result may take the memory of the one before
            for name, tensor in values.items():
                yield name, tensor.to(torch.bfloat16)

        manager = self.manager()
        manager.offload(cast, 1).wait()
        self.assertEqual(manager.tied, {})
        self.check({n: v.to(torch.bfloat16) for n, v in values.items()})

    def test_sparse_tensors_are_refused(self):
        manager = self.manager()
        manager.register([("a", "F32", (3, 3))])
        with self.assertRaisesRegex(deltawire.TensorError, "sparse"):
            manager.offload({"a": torch.eye(3).to_sparse()}, 1)

    def test_what_torch_copies_for_other_devices(self):
        """Takes the path of tensors on a GPU, which torch's copy_ reads, here from host memory."""
        manager = self.manager()
        want = {"a": torch.randn(5, 6), "b": torch.randn(4, 4).to(torch.float8_e4m3fn)}
        manager.register(want)
        offload = manager._client.begin(1, 0)
        a, b = manager.tensors_meta
        rows = [(Place((0, 0), (2, 6), True), want["a"][:2]), (Place((2, 0), (3, 6), True), want["a"][2:])]
        for place, local in rows:
            _writing.copy_by_torch(offload, 0, a, local, place)
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
