"""deltawire.engine with torch: a model that loads its weights in all ways that engines usually do.

The model stands in for an engine; its loader uses the same operations on parameters as vLLM's and
SGLang's do (tests/engines has the real ones). Daemons and files are real.
"""

from __future__ import annotations

import unittest

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("deltawire")

from deltawire.engine import EngineClient  # noqa: E402
from engine_rig import EngineRig, state  # noqa: E402

HIDDEN, ROWS, VOCAB, EXPERTS = 48, 40, 30, 3


def checkpoint(seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=generator).to(dtype)

    weights = {
        "embed": draw(VOCAB, HIDDEN),
        "norm": draw(HIDDEN, dtype=torch.float32),
        "o": draw(HIDDEN, 2 * ROWS),
        "q": draw(ROWS, HIDDEN),
        "k": draw(ROWS, HIDDEN),
    }
    for e in range(EXPERTS):
        weights[f"expert.{e}.up"] = draw(ROWS, HIDDEN)
    return weights


class Engine(torch.nn.Module):
    """One rank of two: fused q and k, half of o's columns, stacked and transposed experts, a
    vocabulary padded by zeros, and a head tied to the embedding."""

    def __init__(self, rank: int = 0):
        super().__init__()
        self.rank = rank

        def parameter(*shape, dtype=torch.bfloat16):
            # No checkpoint has a 7, so an element that a load does not write shows.
            return torch.nn.Parameter(torch.full(shape, 7.0, dtype=dtype), requires_grad=False)

        self.embed = parameter(64, HIDDEN)
        self.head = self.embed
        self.qk = parameter(2 * ROWS, HIDDEN)
        self.o = parameter(HIDDEN, ROWS)
        self.experts = parameter(EXPERTS, HIDDEN, ROWS)
        self.norm = parameter(HIDDEN, dtype=torch.float32)

    def load_weights(self, pairs):
        for name, value in pairs:
            self.load_one(name, value)

    def load_one(self, name, value):
        if name == "embed":
            self.embed[: value.shape[0]].data.copy_(value)
            self.embed[value.shape[0] :].data.fill_(0)
        elif name in ("q", "k"):
            self.qk.data.narrow(0, ROWS * (name == "k"), ROWS).copy_(value)
        elif name == "o":
            self.o.data.copy_(value.narrow(1, self.rank * ROWS, ROWS))
        elif name == "norm":
            self.norm.data.copy_(value)
        else:
            self.experts.data[int(name.split(".")[1])].copy_(value.t())


class Wide(torch.nn.Module):
    """Long pieces of memory: whole matrices side by side, and rows of halves of one."""

    ROWS, COLUMNS = 60, 5000

    def __init__(self):
        super().__init__()

        def parameter(*shape, dtype):
            return torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)

        self.joined = parameter(2 * self.ROWS, self.COLUMNS, dtype=torch.bfloat16)
        self.middle = parameter(self.ROWS, self.COLUMNS // 2, dtype=torch.float32)
        self.turned = parameter(self.COLUMNS, self.ROWS, dtype=torch.bfloat16)

    @classmethod
    def checkpoint(cls) -> dict:
        draw = torch.Generator().manual_seed(5)
        shape = cls.ROWS, cls.COLUMNS
        return {name: torch.randn(shape, generator=draw).to(dtype) for name, dtype in (
            ("a", torch.bfloat16), ("b", torch.bfloat16), ("c", torch.float32),
            ("d", torch.bfloat16))}

    def load_weights(self, pairs):
        for name, value in pairs:
            if name in "ab":
                self.joined.data.narrow(0, self.ROWS * (name == "b"), self.ROWS).copy_(value)
            elif name == "c":
                self.middle.data.copy_(value.narrow(1, self.COLUMNS // 4, self.COLUMNS // 2))
            else:
                self.turned.data.copy_(value.t())


class EngineTest(EngineRig):
    def attached(self, directory, rank=0, weights=None):
        model = Engine(rank)
        model.load_weights(weights.items())
        client = EngineClient(directory)
        outcome = client.attach(model, model.load_weights)
        self.assertTrue(outcome, outcome.reason)
        return model, client, outcome

    def test_changes_reach_long_pieces_of_memory_and_are_taken_back(self):
        weights = Wide.checkpoint()
        directory = self.start(weights)
        model = Wide()
        model.load_weights(weights.items())
        client = EngineClient(directory)
        self.assertTrue(client.attach(model, model.load_weights))
        generator = torch.Generator().manual_seed(6)
        for share in (0.0001, 0.01, 0.3):
            before = state(model)
            for tensor in weights.values():
                hit = torch.rand(tensor.shape, generator=generator) < share
                tensor[hit] += 0.5
            self.publish(weights)
            prepared = client.prepare()
            self.assertTrue(prepared and prepared.update.deltas == 1, prepared.reason)
            self.assertTrue(client.apply())
            fresh = Wide()
            fresh.load_weights(weights.items())
            wanted = state(fresh)
            for name, value in state(model).items():
                self.assertTrue(torch.equal(value, wanted[name]), f"{name}, {share}")
            self.assertTrue(client.check())
            self.assertTrue(client.rollback())
            for name, value in state(model).items():
                self.assertTrue(torch.equal(value, before[name]), f"{name}, {share}, back")
            self.assertTrue(client.prepare())
            self.assertTrue(client.apply())

    def test_both_ranks_follow_every_version(self):
        weights = checkpoint(1)
        directory = self.start(weights)
        ranks = [self.attached(directory, rank, weights) for rank in (0, 1)]
        for model, client, outcome in ranks:
            self.assertEqual(client.held.version, 1)
            # The embedding's padded rows come from the loader, not from the checkpoint.
            self.assertEqual(outcome.unmapped, [("embed, head", (64 - VOCAB) * HIDDEN * 2)])
        generator = torch.Generator().manual_seed(2)
        for version in range(2, 8):
            for tensor in weights.values():
                hit = torch.rand(tensor.shape, generator=generator) < 0.05
                tensor += (hit * 0.5).to(tensor.dtype)
            self.publish(weights)
            for model, client, _ in ranks:
                before = state(model)
                prepared = client.prepare()
                self.assertTrue(prepared, prepared.reason)
                self.assertEqual(prepared.update.deltas, 1)
                self.assertGreater(prepared.update.changes, 0)
                self.assertEqual(state(model).keys(), before.keys())
                for name, value in state(model).items():
                    self.assertTrue(torch.equal(value, before[name]), f"{name} before the apply")
                self.assertTrue(client.apply())
                self.assertEqual(client.held.version, version)
                fresh = Engine(model.rank)
                fresh.load_weights(weights.items())
                for name, value in state(fresh).items():
                    self.assertTrue(torch.equal(value, state(model)[name]), f"{name} at {version}")
                self.assertTrue(client.check())

    def test_one_memory_that_torch_has_twice_is_changed_once_or_refused(self):
        class Tied(Engine):
            """Its head and its embedding are two tensors of one array."""

            def __init__(self, rank: int = 0):
                super().__init__(rank)
                memory = torch.zeros(64 * HIDDEN, dtype=torch.int16).numpy()
                self.embed, self.head = (
                    torch.nn.Parameter(torch.from_numpy(memory).view(torch.bfloat16).view(
                        64, HIDDEN), requires_grad=False) for _ in range(2))

            def load_one(self, name, value):
                if name == "head":
                    self.head[: value.shape[0]].data.copy_(value)
                else:
                    super().load_one(name, value)

        weights = checkpoint(6)
        directory = self.start(weights)
        model = Tied()
        model.load_weights(weights.items())
        self.assertNotEqual(model.embed.untyped_storage()._cdata,
                            model.head.untyped_storage()._cdata)
        client = EngineClient(directory)
        outcome = client.attach(model, model.load_weights)
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual(outcome.unmapped, [("embed, head", (64 - VOCAB) * HIDDEN * 2)])
        weights["embed"][3] += 1
        self.publish(weights)
        self.assertTrue(client.prepare() and client.apply())
        self.assertTrue(torch.equal(model.head[:VOCAB], weights["embed"]))
        self.assertTrue(client.check())

        def loads_both(pairs):
            for name, value in pairs:
                model.load_one(name, value)
                if name == "embed":
                    model.load_one("head", value)

        twice = client.attach(model, loads_both)
        self.assertFalse(twice)
        self.assertIn("claimed twice", twice.reason)

    def test_rollback_and_drift(self):
        weights = checkpoint(3)
        directory = self.start(weights)
        model, client, _ = self.attached(directory, weights=weights)
        before = state(model)
        weights["k"][5] += 1
        self.publish(weights)
        self.assertTrue(client.prepare() and client.apply())
        self.assertFalse(torch.equal(model.qk, before["qk"]))
        self.assertTrue(client.rollback())
        for name, value in before.items():
            self.assertTrue(torch.equal(value, state(model)[name]), name)
        again = client.rollback()
        self.assertFalse(again)
        self.assertIn("no update was applied", again.reason)
        model.experts.data[1, 2, 3] += 1
        found = client.check()
        self.assertFalse(found)
        self.assertIn("expert.1.up", found.reason)
        # What has drifted is put right by the next update.
        prepared = client.prepare()
        self.assertEqual(prepared.update.chunks_healed, 1)
        self.assertTrue(client.heals)
        self.assertTrue(client.apply() and client.check())
        self.assertFalse(client.heals)
        fresh = Engine()
        fresh.load_weights(weights.items())
        for name, value in state(fresh).items():
            self.assertTrue(torch.equal(value, state(model)[name]), name)

    def test_other_weights_are_not_adopted(self):
        weights = checkpoint(4)
        directory = self.start(weights)
        model = Engine()
        model.load_weights(checkpoint(5).items())
        client = EngineClient(directory)
        outcome = client.attach(model, model.load_weights)
        self.assertFalse(outcome)
        self.assertIn("8 tensors have other bytes", outcome.reason)
        self.assertFalse(client.held)
        self.assertFalse(client.prepare())

    def refused(self, load_one):
        """Attaches with a loader that must be refused, and returns the reason. No parameter may
        have changed."""
        weights = checkpoint(6)
        directory = self.start(weights)
        model = Engine()
        model.load_weights(weights.items())
        before = state(model)

        def load(pairs):
            for name, value in pairs:
                if not load_one(model, name, value):
                    model.load_one(name, value)

        addresses = {n: p.data_ptr() for n, p in model.named_parameters()}
        outcome = EngineClient(directory).attach(model, load)
        self.assertFalse(outcome)
        for name, value in before.items():
            self.assertTrue(torch.equal(value, state(model)[name]), name)
        self.assertEqual(addresses, {n: p.data_ptr() for n, p in model.named_parameters()})
        return outcome.reason

    def test_a_loader_that_computes_is_refused(self):
        def negated(model, name, value):
            if name == "norm":
                model.norm.data.copy_(-torch.exp(value))
            return name == "norm"

        self.assertIn("norm: ", self.refused(negated))

    def test_a_loader_that_casts_is_refused(self):
        def cast(model, name, value):
            if name == "q":
                model.norm.data.narrow(0, 0, HIDDEN).copy_(value[0])
            return name == "q"

        self.assertIn("a cast from torch.bfloat16 to torch.float32", self.refused(cast))

    def test_a_loader_that_replaces_memory_is_refused_and_undone(self):
        def replaced(model, name, value):
            if name == "norm":
                model.norm.data = torch.zeros(HIDDEN)
            return name == "norm"

        self.assertIn("replaced a parameter's memory", self.refused(replaced))

    def test_a_loader_that_fails_is_refused(self):
        def failing(model, name, value):
            del model, value
            if name == "o":
                raise ValueError("no such layer")
            return False

        self.assertIn("o: no such layer", self.refused(failing))

    def test_a_layout_that_moves_after_the_load_is_refused(self):
        weights = checkpoint(7)
        directory = self.start(weights)
        model = Engine()
        model.load_weights(weights.items())
        model.experts.data.copy_(model.experts.data.flip(2))  # as packing for a kernel does
        outcome = EngineClient(directory).attach(model, model.load_weights)
        self.assertFalse(outcome)
        self.assertIn("it moves or changes them after loading", outcome.reason)

    def test_an_attach_that_is_interrupted_leaves_nothing_bound(self):
        weights = checkpoint(8)
        directory = self.start(weights)
        model, client, _ = self.attached(directory, weights=weights)
        before = state(model)

        class Interrupted:
            """In the place of a plan cache, after the memory is bound and proven."""

            def find(self, *_):
                return None

            def key(self, *_):
                return {}

            def keep(self, *_):
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            client.attach(model, model.load_weights, plans=Interrupted())
        self.assertFalse(client.held)
        weights["k"][5] += 1
        self.publish(weights)
        self.assertFalse(client.prepare())
        self.assertFalse(client.apply())
        for name, value in before.items():
            self.assertTrue(torch.equal(value, state(model)[name]), name)

    def test_parameters_that_have_moved_since_the_attach_are_not_written(self):
        weights = checkpoint(9)
        directory = self.start(weights)
        model, client, _ = self.attached(directory, weights=weights)
        weights["k"][5] += 1
        self.publish(weights)
        self.assertTrue(client.is_at_home())
        self.assertTrue(client.prepare())
        found = model.qk.data
        model.qk.data = found.clone()  # as an engine's offload and return does
        before = state(model)
        self.assertFalse(client.is_at_home())
        for step in (client.apply, client.prepare, client.rollback, client.check):
            done = step()
            self.assertFalse(done)
            self.assertIn("has moved its parameters", done.reason)
        for name, value in before.items():
            self.assertTrue(torch.equal(value, state(model)[name]), name)
        self.assertEqual(client.held.version, 1)
        model.load_weights(weights.items())
        self.assertTrue(client.attach(model, model.load_weights))
        self.assertEqual(client.held.version, 2)
        self.assertTrue(client.prepare() and client.apply() and client.check())


if __name__ == "__main__":
    unittest.main()
