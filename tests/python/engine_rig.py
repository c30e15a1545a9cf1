"""What the tests of deltawire.engine share: a trainer, a receiver's directory, a model's state."""

from __future__ import annotations

import unittest

import deltawire
import support


def state(model) -> dict:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


class EngineRig(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def start(self, weights):
        """A trainer and the receiver's directory, with version 1 committed."""
        model = self.id().rsplit(".", 1)[-1]
        self.trainer = deltawire.WeightManager(self.cluster.endpoint, model=model)
        self.version = 0
        self.receiver = None
        self.trainer.register(weights.items())
        self.publish(weights, model)
        return self.receiver.directory

    def publish(self, weights, model=""):
        self.version += 1
        self.trainer.offload(weights.items(), version=self.version)
        if self.receiver is None:
            self.receiver = self.cluster.follow(model)
        self.receiver.await_version(self.version)
