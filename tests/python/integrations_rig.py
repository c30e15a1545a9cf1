"""What the tests of deltawire.integrations share: a model, and a receiver that follows it."""

from __future__ import annotations

import argparse
import pathlib
import unittest
import zlib

import support

torch = support.need("torch")
support.need("safetensors")
support.need("deltawire")

from daemons import DEADLINE_S, until  # noqa: E402  # found by `support`
from safetensors.torch import save_file  # noqa: E402

from deltawire import Published, RefusedError, control  # noqa: E402
from deltawire.integrations._directory import Expected, ReceiverDirectory  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402

HIDDEN, ROWS = 48, 40
LIMIT_S = float(DEADLINE_S)


def checkpoint(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (30, HIDDEN), "q": (ROWS, HIDDEN), "k": (ROWS, HIDDEN), "norm": (HIDDEN,)}
    return {name: torch.randn(*shape, generator=generator).to(
        torch.float32 if name == "norm" else torch.bfloat16) for name, shape in shapes.items()}


class Engine(torch.nn.Module):
    """An engine's model: q and k are one parameter."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Parameter(torch.zeros(30, HIDDEN, dtype=torch.bfloat16), False)
        self.qk = torch.nn.Parameter(torch.zeros(2 * ROWS, HIDDEN, dtype=torch.bfloat16), False)
        self.norm = torch.nn.Parameter(torch.zeros(HIDDEN), False)

    def load_weights(self, pairs):
        for name, value in pairs:
            if name in ("q", "k"):
                self.qk.data.narrow(0, ROWS * (name == "k"), ROWS).copy_(value)
            else:
                getattr(self, name).data.copy_(value)


def raw(tensors) -> dict[str, tuple]:
    """name -> (dtype, shape, bytes)."""
    return {n: (t.dtype, tuple(t.shape),
                t.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            for n, t in dict(tensors).items()}


def changed(weights: dict, seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {n: t + (torch.rand(t.shape, generator=generator) < 0.05).to(t.dtype)
            for n, t in weights.items()}


class Case(unittest.TestCase):
    """A sender, and for each test a model, a checkpoint of it and a receiver that follows. The
    receiver holds what an earlier run has left, under a number that the test uses again, or under a
    higher one."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def setUp(self):
        self.model = self.id().rsplit(".", 1)[-1]
        self.weights = checkpoint(1)
        self.hf_dir = self.cluster.root / f"hf-{self.model}"
        self.save(self.weights, self.hf_dir)
        self.receiver = self.cluster.follow(self.model)
        self.arguments = {"endpoint": self.cluster.endpoint, "model": self.model,
                          "hf_dir": self.hf_dir, "timeout": LIMIT_S}
        self.leave_predecessor((1, 9)[zlib.crc32(self.model.encode()) % 2])

    def leave_predecessor(self, version: int):
        publisher = Publisher(**self.arguments)
        publisher.open()
        published = publisher.publish(checkpoint(0).items(), version)
        self.wait(published)
        del publisher
        self.unregister()

    def unregister(self):
        """The sender forgets the model, as it does where its node starts anew."""
        def done():
            try:
                return sender.unregister(self.model)
            except RefusedError:  # it sees the trainer's end a moment later
                return None

        with control.Sender(self.cluster.control) as sender:
            until(done, "the model is unregistered")

    def wait(self, published: Published):
        """What the receiver's directory holds once that is committed there."""
        return ReceiverDirectory(self.receiver.directory).wait(Expected.of(published), LIMIT_S)

    def save(self, weights, folder: pathlib.Path):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        save_file(weights, folder / "model.safetensors")

    def newest(self) -> Expected:
        """What the sender has published."""
        with control.Sender(self.cluster.control, model=self.model) as sender:
            newest = sender.status()["models"][0]["newest"]["id"]
        return Expected(newest["version"], newest["lineage"], newest["epoch"],
                        int(newest["root"], 16))

    def assert_receiver_has(self, weights, version: int):
        directory = ReceiverDirectory(self.receiver.directory)
        expected = self.newest()
        self.assertEqual(expected.version, version)
        found = directory.wait(expected, LIMIT_S)
        self.assertEqual(raw(directory.tensors(found)), raw(weights))

    def slime_args(self, **extra):
        """What slime hands to its hook."""
        return argparse.Namespace(deltawire_directory=str(self.receiver.directory),
                                  deltawire_endpoint=self.cluster.endpoint,
                                  deltawire_model=self.model, deltawire_timeout=LIMIT_S,
                                  update_weight_disk_dir="/elsewhere", **extra)
