"""Pins the sender's memory through torch. STAND-INS, not run on a device: torch.cuda is pretended,
and tensors in host memory say that they are on a device. The sender, its memory, and when that is
mapped are real."""

from __future__ import annotations

import unittest
import warnings
from unittest import mock

import support

support.use_trainer_python()
torch = support.need("torch")
deltawire = support.need("deltawire")
from deltawire import _core, _device, _stream, _writing  # noqa: E402


class OnCuda(torch.Tensor):
    device = property(lambda self: torch.device("cuda", 1))


def on_cuda(tensors):
    return {n: t.clone().as_subclass(OnCuda) for n, t in tensors.items()}


def mapped(address: int, size: int) -> bool:
    """Whether shared memory of this process begins at `address`, and has `size` bytes there."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            first, last = (int(a, 16) for a in line.split()[0].split("-"))
            if first <= address and address + size <= last and line.split()[1].endswith("s"):
                return True
    return False


class FakeCuda:
    """torch.cuda as far as it is used, and what it was asked."""

    def __init__(self, refuses: int = 0):
        self.refuses = refuses
        self.pinned: dict[int, int] = {}
        self.events: list[str] = []

    def __enter__(self):
        self._patches = [
            mock.patch.object(torch.cuda, name, value)
            for name, value in (("cudart", lambda: self), ("Stream", lambda device: self),
                                ("stream", self.on_stream), ("current_stream", lambda device: self))
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_):
        for patch in self._patches:
            patch.stop()

    def on_stream(self, stream):
        self.events.append("stream")
        return mock.MagicMock()

    def synchronize(self):
        self.events.append("synchronize")

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        self.events.append("register")
        assert mapped(address, size) and flags == 1 and address not in self.pinned
        if not self.refuses:
            self.pinned[address] = size
        return self.refuses

    def cudaHostUnregister(self, address):  # noqa: N802
        self.events.append("unregister")
        assert mapped(address, self.pinned.pop(address)), "it is unmapped already"
        return 0

    def count(self, event):
        return self.events.count(event)


class PinningTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def setUp(self):
        _device.say_way()  # says once that there is no CUDA here, before a test counts messages
        self.model = self.id().rsplit(".", 1)[-1]
        self.manager = deltawire.WeightManager(self.cluster.endpoint, model=self.model)
        torch.manual_seed(3)
        self.tensors = {"w": torch.randn(700, 900), "v": torch.randn(33), "e": torch.zeros(0, 2)}

    def publish(self, version):
        self.tensors["w"] += version
        self.manager.offload(on_cuda(self.tensors), version).wait()
        for name, (_, shape, data) in self.cluster.content(self.model).items():
            want = self.tensors[name].to(self.stored)
            self.assertEqual((shape, data), (tuple(want.shape), want.view(torch.uint8).numpy()
                                             .tobytes() if want.numel() else b""), name)

    stored = torch.float32

    def test_what_is_read_from_the_senders_memory_is_not_diffed_on_the_gpu(self):
        table = torch.randn(40, 30).as_subclass(OnCuda)
        tied = {"embed.weight": table, "head.weight": table, **on_cuda({"w": torch.randn(5, 7)})}
        extra = {**tied, "w.copy": tied["w"].clone()}
        for given, options, wanted in (
                (tied, {"gpu_base": True}, {"embed.weight": False, "w": True}),
                (tied, {}, {"embed.weight": False, "w": False}),
                (extra, {"gpu_base": True, "ignore_extra": "tied"},
                 {"embed.weight": False, "w": False})):
            with self.subTest(options):
                model = f"{self.model}-{len(wanted)}-{'-'.join(options)}"
                manager = deltawire.WeightManager(self.cluster.endpoint, model=model, **options)
                manager.register(tied)
                diffed = {}

                def by_device(offload, index, local, where, share, diffed=diffed):
                    diffed.setdefault(sorted(wanted)[index], False)

                def refuse(self, blocks, share, device, diffed=diffed):
                    diffed.update((sorted(wanted)[b[0]], True) for b in blocks)
                    raise deltawire.Error("there is no device")

                with FakeCuda(), mock.patch.object(_writing, "copy_by_device", by_device), \
                        mock.patch.object(_stream, "on_our_cuda", lambda local: True), \
                        mock.patch.object(_core.Offload, "diff", refuse), \
                        warnings.catch_warnings(action="ignore"):
                    manager.offload(given, 1).wait()
                    manager._halves.close()  # pylint: disable=protected-access
                self.assertEqual(diffed, wanted)

    def test_why_the_librarys_own_cuda_is_not_used_is_said_once(self):
        _device.why_no_gpu.cache_clear()
        _device.say_way.cache_clear()
        why = "CUDA: the NVIDIA driver here knows CUDA 12.4 at most, and this program has 13.0"
        with FakeCuda(), mock.patch.object(_core, "why_no_gpu", lambda: why), \
                self.assertLogs("deltawire._device", "WARNING") as log:
            for version in range(1, 4):
                self.publish(version)
        self.assertEqual(len(log.output), 1)
        self.assertIn(why, log.output[0])

    def test_each_half_is_pinned_once_and_until_it_is_made_anew(self):
        with FakeCuda() as cuda:
            for version in range(1, 5):
                self.publish(version)
            self.assertEqual(cuda.count("register"), 2)
            self.assertEqual((cuda.count("unregister"), len(cuda.pinned)), (0, 2))
            self.tensors = {"w": torch.randn(1000, 2000), "v": torch.randn(3)}
            self.manager.register(self.tensors, replace=True)
            for version in range(1, 4):
                self.publish(version)
            self.assertEqual((cuda.count("register"), cuda.count("unregister")), (4, 2))
            self.manager.close()
            self.assertEqual(cuda.pinned, {})
            self.publish(4)  # the manager may be used again
            self.assertEqual(len(cuda.pinned), 1)
            del self.manager
            self.assertEqual(cuda.pinned, {})

    def test_a_copy_runs_on_a_stream_of_its_own_and_is_done_before_it_is_told(self):
        with FakeCuda() as cuda:
            self.manager.register(self.tensors, dtype="bfloat16")
            self.stored = torch.bfloat16
            copy_ = torch.Tensor.copy_

            def copying(place, source, non_blocking=False):
                cuda.events.append("copy" if non_blocking else "blocking copy")
                return copy_(place, source.as_subclass(torch.Tensor))

            with mock.patch.object(torch.Tensor, "copy_", copying), \
                    self.assertLogs("deltawire", "WARNING") as log:
                self.publish(1)
            self.assertEqual(len(log.output), 1, log.output)  # of the casts
            steps = [e for e in cuda.events if e != "register"]
            # Work of the caller's, the cast, then the copy with its wait; nothing for `e`.
            one = ["synchronize", "synchronize", "stream", "copy", "synchronize"]
            self.assertEqual(steps, one + one + ["synchronize", "synchronize"])
            self.manager.close()

    def test_what_the_driver_refuses_is_said_once_and_copied_all_the_same(self):
        with FakeCuda(refuses=2) as cuda:
            with self.assertLogs("deltawire", "WARNING") as log:
                for version in range(1, 5):
                    self.publish(version)
            self.assertEqual(len(log.output), 1)
            self.assertRegex(log.output[0], "not pinned: .* cudaHostRegister failed with 2")
            self.assertEqual((cuda.count("register"), cuda.count("stream")), (2, 0))
            self.manager.close()
            self.assertEqual(cuda.count("unregister"), 0)

    def test_without_the_runtime_in_torch_copies_are_made_as_ever(self):
        with FakeCuda(), mock.patch.object(torch.cuda, "cudart", side_effect=RuntimeError("none")):
            with self.assertLogs("deltawire", "WARNING") as log:
                self.publish(1)
                self.publish(2)
        self.assertEqual(len(log.output), 1)


if __name__ == "__main__":
    unittest.main()
