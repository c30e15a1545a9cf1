"""deltawire.engine with parameters on a GPU, which is pretended.

No device and no CUDA of torch's is here. The engine library is built over a runtime that pretends
to be CUDA's (tests/unit/kernels/fake_cuda.cc), and has "device" memory that only its queued work
can touch. What torch would say of a parameter's place is stood in for: the trace runs over parameters
in this machine's memory, and their storages name a copy on the device. All between is the product:
what `attach` makes of devices and streams, the extension, the C ABI, and the code around kernels,
which run as their emulation.

Usage: engine_device_test.py LIBRARY
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
import types
import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
LIBRARY = pathlib.Path(sys.argv.pop())
if not LIBRARY.exists():
    support.skip(f"{LIBRARY} is not built: CUDA's headers are missing")
# Loaded first, it is what the extension finds by its name.
pretended = ctypes.CDLL(str(LIBRARY))
support.need("deltawire")

from deltawire.engine import EngineClient, _attach, _model, _trace  # noqa: E402
from engine_rig import EngineRig  # noqa: E402
from engine_test import Engine, checkpoint  # noqa: E402

cuda = types.SimpleNamespace()  # what a test needs of the pretended runtime (pretended_device.cc)
for name, result, *arguments in (
        ("allocate", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t),
        ("free", None, ctypes.c_void_p),
        ("copy", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
        ("stream", ctypes.c_void_p, ctypes.c_int),
        ("fail_in", None, ctypes.c_int)):
    function = getattr(pretended, f"dw_engine_pretended_{name}")
    function.restype, function.argtypes = result, arguments
    setattr(cuda, name, function)


class OnDevice:
    """What a parameter's detached tensor says of itself, with its memory on the device."""

    def __init__(self, tensor: torch.Tensor, device: torch.device):
        self.device, self._host = device, tensor.untyped_storage()
        self._bytes = self._host.nbytes()
        self._at = cuda.allocate(device.index if device.index in (0, 1) else 0, self._bytes)
        assert not cuda.copy(self._at, self._host.data_ptr(), self._bytes)

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self._at, nbytes=lambda: self._bytes)

    def look(self) -> None:
        """Brings what is on the device to the parameter in this machine's memory."""
        assert not cuda.copy(self._host.data_ptr(), self._at, self._bytes)

    def close(self) -> None:
        cuda.free(self._at)


class Squares(Engine):
    """Its loader keeps the square of a tensor."""

    def load_one(self, name, value):
        super().load_one(name, value * value if name == "norm" else value)


class WithTable(Engine):
    """Has something beside the parameters, which is nobody's weights."""

    def __init__(self, rank: int = 0):
        super().__init__(rank)
        self.register_buffer("table", torch.ones(8))


class PretendedGpuTest(EngineRig):
    def attach(self, model, *, device="cuda:0", stays=(), **options):
        """`stays`: names of what is left in this machine's memory."""
        self.model = model
        self.model.load_weights(self.weights.items())
        self.client = EngineClient(self.directory)
        self.moved: dict[tuple, OnDevice] = {}
        def live_storages(of):
            storages, index = _model.live_storages(of)
            for storage in storages:
                if not set(storage.names) & set(stays):
                    key = tuple(storage.names)
                    if key not in self.moved:
                        self.moved[key] = OnDevice(storage.keeper, torch.device(device))
                        self.addCleanup(self.moved[key].close)
                    storage.keeper = self.moved[key]
            return storages, index

        index = torch.device(device).index or 0
        self.stream = unittest.mock.Mock(
            cuda_stream=cuda.stream(index if index in (0, 1) else 0))
        for module in (_trace, _attach):
            self.enterContext(unittest.mock.patch.object(module, "live_storages", live_storages))
        self.enterContext(unittest.mock.patch.object(
            torch.cuda, "current_stream", lambda of: self.stream))
        return self.client.attach(model, model.load_weights, **options)

    def begin(self):
        self.weights = checkpoint(1)
        self.directory = self.start(self.weights)

    def next_version(self):
        self.weights["k"][5] += 1
        self.weights["o"] += 1
        self.weights["expert.1.up"][2, 3] -= 1
        self.weights["norm"] += 1
        self.publish(self.weights)

    def done(self, outcome):
        self.assertTrue(outcome, outcome.reason)
        return outcome

    def refused(self, outcome, why):
        self.assertFalse(outcome)
        self.assertIn(why, outcome.reason)

    def assert_holds(self, weights):
        """The device does; the parameters in this machine's memory are only what is looked at."""
        for moved in self.moved.values():
            moved.look()
        wanted = type(self.model)(self.model.rank)
        wanted.load_weights(weights.items())
        for name, value in wanted.named_parameters():
            self.assertTrue(torch.equal(value, self.model.get_parameter(name)), name)

    def copied(self):
        return {name: value.clone() for name, value in self.weights.items()}

    def test_versions_go_to_the_device_and_back(self):
        self.begin()
        for device in ("cuda:0", "cuda:1"):
            for rank in (0, 1):
                with self.subTest(device=device, rank=rank):
                    attached = self.done(self.attach(Engine(rank), device=device))
                    self.assertEqual(attached.unmapped, [("embed, head", 34 * 48 * 2)])
                    self.stream.synchronize.assert_called_once()
                    before = self.copied()
                    self.next_version()
                    self.assertEqual(self.done(self.client.prepare()).update.deltas, 1)
                    self.assert_holds(before)
                    self.done(self.client.apply())
                    self.assert_holds(self.weights)
                    self.done(self.client.check())
                    self.done(self.client.rollback())
                    self.assert_holds(before)
                    self.done(self.client.prepare())
                    self.done(self.client.apply())
                    self.assert_holds(self.weights)

    def test_drift_on_the_device_is_found_and_healed(self):
        self.begin()
        self.done(self.attach(Engine()))
        other = torch.full((3,), 9.0, dtype=torch.bfloat16)
        at = self.moved[("qk",)].untyped_storage().data_ptr()
        self.assertEqual(cuda.copy(at + 64, other.data_ptr(), other.nbytes), 0)
        self.refused(self.client.check(), "the engine's memory has drifted in q")
        self.assertEqual(self.done(self.client.prepare()).update.chunks_healed, 1)
        self.done(self.client.apply())
        self.assert_holds(self.weights)

    def test_an_error_before_the_write_changes_nothing_and_one_in_it_ends_the_memory(self):
        self.begin()
        self.done(self.attach(Engine()))
        before = self.copied()
        self.next_version()
        cuda.fail_in(0)
        self.refused(self.client.prepare(), "")
        cuda.fail_in(-1)
        self.assert_holds(before)
        self.refused(self.client.apply(), "no update is prepared")
        self.done(self.client.prepare())
        cuda.fail_in(2)
        self.refused(self.client.apply(), "start the engine anew")
        cuda.fail_in(-1)
        self.assertFalse(self.client.held)
        self.refused(self.client.prepare(), "not known")

    def test_other_bytes_on_the_device_are_named(self):
        self.begin()
        self.weights["q"][3] += 1  # of what the engine loads
        self.refused(self.attach(Engine()), "other bytes in the engine")
        self.assertFalse(self.client.held)

    def test_what_is_no_weight_may_be_elsewhere_and_a_parameter_may_not(self):
        self.begin()
        self.done(self.attach(WithTable(), stays=("table",)))
        self.assert_holds(self.weights)
        self.refused(self.attach(Engine(), stays=("norm",)),
                     "parameters in several places: embed on cuda:0, and norm on cpu")

    def test_a_device_that_cannot_be_used_is_named(self):
        self.begin()
        self.refused(self.attach(Engine(), device="cuda:7"),
                     "parameters that no update can reach: embed on cuda:7: ")
        self.refused(self.attach(Engine(), device="xpu:0"),
                     "parameters that no update can reach: embed on xpu:0")

    def test_a_loader_that_computes_is_refused_there(self):
        self.begin()
        self.refused(self.attach(Squares(), loader_tensors=True),
                     "on a GPU the loader updates no tensors: norm")


if __name__ == "__main__":
    unittest.main()
