"""deltawire.engine with engines that move weights after their load: packed, padded, put elsewhere.

Small modules do what vLLM does on a CPU and on some GPUs: blocks of rows are interleaved within a
parameter of the same shape, or in a larger one. Daemons and files are real.
"""

from __future__ import annotations

import unittest

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("deltawire")

from deltawire.engine import EngineClient  # noqa: E402
from deltawire.engine._second import Instance  # noqa: E402
from engine_rig import EngineRig, state  # noqa: E402

EXPERTS, ROWS, HIDDEN, BLOCK = 3, 32, 24, 16


def draw(seed: int, shapes: dict, dtype=torch.bfloat16) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(*s, generator=generator).to(dtype) for n, s in shapes.items()}


def packed(w: torch.Tensor) -> torch.Tensor:
    """Pairs of columns of a block of rows lie together, as matrix instructions want them."""
    blocks = w.view(EXPERTS, ROWS // BLOCK, BLOCK, HIDDEN // 2, 2)
    return blocks.transpose(2, 3).reshape(EXPERTS, ROWS, HIDDEN)


class Engine(torch.nn.Module):
    """Stacked experts, a norm in fp32, and `moved(model)`, which runs after the load."""

    def __init__(self, moved):
        super().__init__()
        self._moved = moved
        self.reset()

    def reset(self):
        self.experts = torch.nn.Parameter(
            torch.zeros(EXPERTS, ROWS, HIDDEN, dtype=torch.bfloat16), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(HIDDEN), requires_grad=False)

    def load_weights(self, pairs):
        for name, value in pairs:
            if name == "norm":
                self.norm.data.copy_(value)
            else:
                self.experts.data[int(name.split(".")[1])].copy_(value)

    def process(self):
        self._moved(self)

    def replace(self, value: torch.Tensor) -> None:
        self.experts = torch.nn.Parameter(value.contiguous(), requires_grad=False)


class SecondInstance(EngineRig):
    def setUp(self):
        self.weights = draw(1, {f"experts.{e}": (ROWS, HIDDEN) for e in range(EXPERTS)})
        self.weights["norm"] = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(2))
        self.made = 0

    def engine(self, moved) -> Engine:
        """Loaded with the weights as they are now."""
        model = Engine(moved)
        model.load_weights(self.weights.items())
        model.process()
        return model

    def attached(self, moved, with_second=True):
        def second() -> Instance:
            self.made += 1
            model = Engine(moved)
            return Instance(model, model.load_weights, model.process)

        self.directory = self.start(self.weights)
        model = self.engine(moved)
        before = state(model)
        client = EngineClient(self.directory)
        outcome = client.attach(model, model.load_weights, second=second if with_second else None)
        for name, value in before.items():
            self.assertTrue(torch.equal(value, state(model)[name]), f"{name} after the attach")
        return model, client, outcome

    def change(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for tensor in self.weights.values():
            hit = torch.rand(tensor.shape, generator=generator) < 0.2
            tensor += (hit * 0.5).to(tensor.dtype)
        self.publish(self.weights)

    def follows(self, moved):
        model, client, outcome = self.attached(moved)
        self.assertTrue(outcome, outcome.reason)
        for n in range(3):
            old = state(model)
            self.change(100 + n)
            self.assertTrue(client.prepare() and client.apply())
            self.assert_state(model, state(self.engine(moved)))
            self.assertTrue(client.check())
        self.assertTrue(client.rollback())
        self.assert_state(model, old)
        return outcome

    def assert_state(self, model, wanted):
        for name, value in wanted.items():
            same = torch.equal(value.view(torch.uint8), state(model)[name].view(torch.uint8))
            self.assertTrue(same, name)

    def refused(self, moved):
        _, client, outcome = self.attached(moved)
        self.assertFalse(outcome)
        self.assertFalse(client.held)
        return outcome.reason

    def test_experts_that_are_packed_in_the_same_shape(self):
        outcome = self.follows(lambda model: model.replace(packed(model.experts.data)))
        self.assertEqual(sorted(outcome.by_numbers), [f"experts.{e}" for e in range(EXPERTS)])
        self.assertEqual(outcome.boxes, EXPERTS + 1)
        self.assertEqual(self.made, 3)

    def test_experts_that_are_padded(self):
        def moved(model):
            wide = torch.zeros(EXPERTS, ROWS + 8, HIDDEN, dtype=torch.bfloat16)
            wide[:, :ROWS // 2] = model.experts.data[:, :ROWS // 2]
            wide[:, ROWS // 2 + 4:ROWS + 4] = model.experts.data[:, ROWS // 2:]
            model.replace(wide)

        outcome = self.follows(moved)
        self.assertEqual([name for name, _ in outcome.unmapped], ["experts"])

    def test_experts_that_are_kept_twice(self):
        def moved(model):
            model.replace(packed(model.experts.data))
            model.turned = model.experts.data.transpose(1, 2).contiguous()

        outcome = self.follows(moved)
        self.assertEqual(outcome.held["experts.0"], (2 * ROWS * HIDDEN, ROWS * HIDDEN))

    def test_zeros_that_are_moved_among_others(self):
        """They have the bits that they had before, where the loader had put them."""
        self.weights["experts.1"].zero_()
        outcome = self.follows(lambda model: model.replace(packed(model.experts.data)))
        self.assertEqual(len(outcome.by_numbers), EXPERTS)

    def test_nothing_is_made_where_the_loader_shows_all(self):
        outcome = self.follows(lambda model: None)
        self.assertEqual((outcome.by_numbers, self.made), ([], 0))

    def test_without_a_second_instance_it_is_refused(self):
        _, _, outcome = self.attached(
            lambda model: model.replace(packed(model.experts.data)), with_second=False)
        self.assertIn("moves or changes them after loading", outcome.reason)

    def computed(self, way):
        reason = self.refused(lambda model: model.replace(way(model.experts.data)))
        self.assertIn("computed from the checkpoint after the load", reason)

    def test_experts_that_are_negated(self):
        self.computed(lambda w: -packed(w))

    def test_experts_that_are_doubled(self):
        self.computed(lambda w: 2 * packed(w))

    def test_experts_that_are_all_positive_and_stay_so(self):
        for tensor in self.weights.values():
            tensor.abs_()
        self.computed(lambda w: packed(w).abs())

    def test_experts_that_are_added_up(self):
        self.computed(lambda w: w + w.flip(0))

    def test_what_is_cast_after_the_load(self):
        def moved(model):
            model.wide = packed(model.experts.data).float()
            model.replace(packed(model.experts.data))

        self.assertIn("wide is computed from the checkpoint after the load", self.refused(moved))

    def test_what_is_kept_where_nobody_can_see_it(self):
        hidden = []

        def moved(model):
            hidden.append(model.experts.data)
            model.replace(torch.empty(0, dtype=torch.bfloat16))

        self.assertIn("where deltawire cannot see them", self.refused(moved))

    def test_an_instance_that_fails(self):
        calls = []

        def moved(model):
            calls.append(model)
            if len(calls) > 1:
                raise ValueError("no memory for another one")
            model.replace(packed(model.experts.data))

        self.assertIn("no memory for another one", self.refused(moved))

    def test_an_instance_of_another_shape(self):
        calls = []

        def moved(model):
            calls.append(model)
            wide = torch.zeros(EXPERTS, ROWS + 8 * (len(calls) > 1), HIDDEN, dtype=torch.bfloat16)
            wide[:, :ROWS] = packed(model.experts.data)
            model.replace(wide)

        self.assertIn("another shape in a second instance", self.refused(moved))


if __name__ == "__main__":
    unittest.main()
