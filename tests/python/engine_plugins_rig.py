"""What the tests of deltawire's plug-ins share: models of several ranks, and what must hold of them.

Importing it puts stand-ins in the place of vLLM and SGLang.
"""

from __future__ import annotations

import threading
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("deltawire")

import engine_stand_ins as stand_ins  # noqa: E402

stand_ins.install()

from deltawire.engine import EngineClient, Outcome  # noqa: E402
from engine_rig import EngineRig, state  # noqa: E402
from engine_test import HIDDEN, ROWS, Engine, checkpoint  # noqa: E402


class Alone(Engine):
    """The only rank: it has all of o."""

    def __init__(self, rank: int = 0):
        super().__init__(rank)
        self.o = torch.nn.Parameter(torch.full((HIDDEN, 2 * ROWS), 7.0, dtype=torch.bfloat16),
                                    requires_grad=False)

    def load_one(self, name, value):
        if name == "o":
            self.o.data.copy_(value)
        else:
            super().load_one(name, value)


class Computing(Engine):
    """Its loader keeps the square of a tensor."""

    def load_one(self, name, value):
        super().load_one(name, value * value if name == "norm" else value)


class Latent(torch.nn.Module):
    """As vLLM's latent attention: after a load it computes a parameter that no checkpoint has."""

    def __init__(self, made_of: torch.nn.Parameter):
        super().__init__()
        self._made_of = [made_of]
        self.turned = torch.nn.Parameter(torch.empty(made_of.t().shape, dtype=made_of.dtype),
                                         requires_grad=False)
        self.fails = 0

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        assert dtype == torch.bfloat16
        if self.fails:
            self.fails -= 1
            raise RuntimeError("planted after the load")
        self.turned.data.copy_(self._made_of[0].t())


class WithLatent(Engine):
    def __init__(self, rank: int = 0):
        super().__init__(rank)
        self.latent = Latent(self.o)

    def load_weights(self, pairs):
        super().load_weights(pairs)
        self.latent.process_weights_after_loading(torch.bfloat16)


class PostLoad(Engine):
    """As SGLang's latent attention: its loader computes from parameters when all are loaded."""

    def __init__(self, rank: int = 0):
        super().__init__(rank)
        self.turned = torch.nn.Parameter(
            torch.empty(self.o.t().shape, dtype=self.o.dtype), requires_grad=False)

    def load_weights(self, pairs):
        names = []
        super().load_weights((names.append(name) or (name, value)) for name, value in pairs)
        if "o" in names:
            self.post_load_weights()

    def post_load_weights(self):
        self.turned.data.copy_(self.o.t())


class Plugin(EngineRig):
    """A model for each rank, with version 1 in it."""

    make: type[Engine] | None = None

    def begin(self, world_size: int = 2, seed: int = 1) -> None:
        """`seed`: of the weights that the models have loaded; those of version 1 are of 1."""
        self.make = self.make or (Engine if world_size > 1 else Alone)
        self.ranks = stand_ins.start(world_size)
        self.weights = checkpoint(1)
        self.directory = str(self.start(self.weights))
        self.models = [self.make(rank) for rank in range(world_size)]
        for model in self.models:
            model.load_weights(checkpoint(seed).items())

    def next_version(self) -> None:
        self.weights["k"][5] += 1
        self.weights["o"] += 1
        self.weights["norm"] += 1
        self.publish(self.weights)

    def other_shapes(self) -> None:
        """The trainer begins anew with another model: a tensor fewer, and one of another shape."""
        del self.weights["norm"]
        self.weights["k"] = torch.cat([self.weights["k"], self.weights["k"]])
        self.trainer.register(self.weights.items(), replace=True)
        self.version = 0
        self.publish(self.weights)
        self.receiver.sync()  # to this model's first version, and not the other's

    def states(self) -> list[dict]:
        return [state(model) for model in self.models]

    def assert_states(self, wanted: list[dict]) -> None:
        for model, one in zip(self.models, wanted, strict=True):
            for name, value in one.items():
                self.assertTrue(torch.equal(value, state(model)[name]), name)

    def assert_newest(self) -> None:
        fresh = [self.make(model.rank) for model in self.models]
        for model in fresh:
            model.load_weights(self.weights.items())
        self.assert_states([state(model) for model in fresh])

    def assert_refused(self, results: list, why: str) -> None:
        for result in results:
            self.assertIsInstance(result, Exception)
            self.assertIn(why, str(result))

    def assert_done(self, results: list) -> None:
        for result in results:
            self.assertNotIsInstance(result, Exception, str(result))

    def fails_on_the_last_rank(self, step: str) -> None:
        """A step of the client's answers there that it was not done, and does nothing."""
        real = getattr(EngineClient, step)

        def planted(client):
            if self.ranks.rank_in_group == self.ranks.world_size - 1:
                return Outcome(False, "a planted fault")
            return real(client)

        self.enterContext(unittest.mock.patch.object(EngineClient, step, planted))

    def commits_between_the_ranks(self):
        """A context in which a version is committed when one of two ranks has prepared."""
        committed = threading.Event()
        real = EngineClient.prepare

        def prepare(client):
            if self.ranks.rank_in_group == 0:
                outcome = real(client)
                self.next_version()
                committed.set()
                return outcome
            self.assertTrue(committed.wait(stand_ins.LIMIT_S))
            return real(client)

        return unittest.mock.patch.object(EngineClient, "prepare", prepare)
