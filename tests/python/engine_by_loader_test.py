"""deltawire.engine with tensors that the engine's loader computes with, and updates itself.

Small modules compute as engines' loaders do: -exp(A_log), casts, quantised blocks, numbers taken
out of tensors. Daemons and files are real.
"""

from __future__ import annotations

import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
deltawire = support.need("deltawire")

from deltawire.engine import EngineClient  # noqa: E402
from engine_layouts_test import Layouts, Module, each  # noqa: E402
from engine_rig import state  # noqa: E402

ROWS, COLUMNS = 16, 12


def checkpoint(seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "A_log": drawn(ROWS),
        "linear": drawn(ROWS, COLUMNS).to(torch.bfloat16),
        "norm": drawn(COLUMNS).to(torch.bfloat16),
        "quantised": drawn(ROWS, COLUMNS).to(torch.bfloat16),
        "scale": torch.tensor(1.5),
        "temperature": torch.tensor(2.5),
    }


def load_one(model, name, value):
    if name == "A_log":
        model.A.data.copy_(-torch.exp(value.float()))
    elif name == "linear":
        model.linear.data.copy_(value)
    elif name == "norm":
        model.norm.data.copy_(value)  # a cast
    elif name == "quantised":
        largest = value.float().abs().amax(dim=1, keepdim=True) / 127
        model.blocks.data.copy_((value.float() / largest).round().to(torch.int8))
        model.scales.data.copy_(largest)
    elif name == "scale":
        model.scale.data.fill_(value.item())
    else:
        model.temperature = 2 * value.item()
        model.divided.data.fill_(1 / model.temperature)


def engine(load=None):
    model = Module(
        load or each(load_one), A=(ROWS, torch.float32), linear=(ROWS, COLUMNS, torch.bfloat16),
        norm=(COLUMNS, torch.float32), blocks=(ROWS, COLUMNS, torch.int8),
        scales=(ROWS, 1, torch.float32), scale=(1, torch.float32), divided=(1, torch.float32))
    model.temperature = 0.0
    return model


COMPUTED = ["A_log", "norm", "quantised", "scale", "temperature"]


class ByLoaderTest(Layouts):
    def engine_with(self, load_one_too, weights=None):
        """Attaches an engine whose loader asks this one first, with the loader allowed."""
        def load(model, pairs):
            for name, value in pairs:
                if not load_one_too(model, name, value):
                    load_one(model, name, value)

        return self.attached(weights or checkpoint(1), lambda: engine(load), loader_tensors=True)

    def test_is_refused_with_names_unless_it_is_allowed(self):
        model, client, outcome = self.attached(checkpoint(2), engine)
        self.assertFalse(outcome)
        for name in COMPUTED[:3]:
            self.assertIn(f"{name}: ", outcome.reason)
        self.assertIn("loader_tensors=True", outcome.reason)
        self.assertFalse(client.held)
        self.assertEqual(model.temperature, 5.0)

    def test_follows_and_goes_back(self):
        weights = checkpoint(3)
        model, client, outcome = self.attached(weights, engine, loader_tensors=True)
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual(sorted(outcome.by_loader), COMPUTED)
        self.assertEqual(outcome.mapped_bytes, ROWS * COLUMNS * 2)  # the linear weight's
        self.assertEqual(model.temperature, 5.0)
        self.follows(weights, engine, model, client)
        self.assertEqual(model.temperature, 2 * weights["temperature"].item())
        before = model.temperature
        weights["temperature"] += 1
        self.publish(weights)
        self.assertTrue(client.prepare() and client.apply())
        self.assertEqual(model.temperature, before + 2)
        self.assertTrue(client.rollback())
        self.assertEqual(model.temperature, before)

    def test_only_what_has_changed_is_loaded(self):
        weights = checkpoint(4)
        loaded = []

        def note(model, name, value):
            del model, value
            loaded.append(name)
            return False

        model, client, outcome = self.engine_with(note, weights)
        self.assertTrue(outcome, outcome.reason)
        loaded.clear()
        weights["linear"] += 1
        weights["norm"][2] += 1
        self.publish(weights)
        self.assertTrue(client.prepare())
        self.assertEqual(loaded, [])
        self.assertTrue(client.apply())
        self.assertEqual(loaded, ["norm"])
        self.assertEqual(model.norm[2].item(), weights["norm"][2].item())
        weights["linear"] += 1
        self.publish(weights)
        self.assertTrue(client.prepare() and client.apply())
        self.assertEqual(loaded, ["norm"])

    def test_a_loader_that_fails_leaves_everything_as_it_was(self):
        weights = checkpoint(5)
        broken = []

        def fails(model, name, value):
            if name == "quantised" and broken:
                model.blocks.data.copy_(torch.zeros(ROWS, COLUMNS, dtype=torch.int8))
                model.temperature = 99.0
                raise ValueError("out of luck")
            return False

        model, client, outcome = self.engine_with(fails, weights)
        self.assertTrue(outcome, outcome.reason)
        before = state(model)
        for tensor in weights.values():
            tensor += 1
        self.publish(weights)
        self.assertTrue(client.prepare())
        broken.append(True)
        applied = client.apply()
        self.assertFalse(applied)
        self.assertIn("out of luck", applied.reason)
        self.assert_state(model, before)
        self.assertEqual((model.temperature, client.held.version), (5.0, 1))
        self.assertFalse(client.rollback())
        broken.clear()
        # Half of an update is none: it must be prepared anew.
        again = client.apply()
        self.assertIn("no update is prepared", again.reason)
        self.assert_state(model, before)
        self.assertTrue(client.prepare() and client.apply())
        self.assertEqual(model.scale.item(), weights["scale"].item())
        after = state(model)
        self.assertFalse(client.apply())
        self.assert_state(model, after)
        self.assertEqual(client.held.version, 2)

    def test_a_load_that_is_interrupted_is_undone(self):
        weights = checkpoint(12)
        interrupt = []

        def stops(model, name, value):
            del value
            if name == "quantised" and interrupt:
                model.scales.data.zero_()
                raise KeyboardInterrupt
            return False

        model, client, outcome = self.engine_with(stops, weights)
        self.assertTrue(outcome, outcome.reason)
        before = state(model)
        weights["quantised"] += 1
        self.publish(weights)
        self.assertTrue(client.prepare())
        interrupt.append(True)
        with self.assertRaises(KeyboardInterrupt):
            client.apply()
        self.assert_state(model, before)

    def test_a_write_that_is_interrupted_takes_back_what_the_loader_did(self):
        weights = checkpoint(13)
        model, client, outcome = self.attached(weights, engine, loader_tensors=True)
        self.assertTrue(outcome, outcome.reason)
        before = state(model)
        for tensor in weights.values():
            tensor += 1
        self.publish(weights)
        self.assertTrue(client.prepare())
        real = client._weights
        stops = unittest.mock.Mock(wraps=real, held=real.held)
        stops.apply.side_effect = KeyboardInterrupt
        with (unittest.mock.patch.object(client, "_weights", stops),
              self.assertRaises(KeyboardInterrupt)):
            client.apply()
        self.assert_state(model, before)
        self.assertTrue(client.prepare() and client.apply())
        self.assertTrue(client.check())

    def test_a_refused_step_leaves_all_of_the_last_update_undoable(self):
        weights = checkpoint(14)
        model, client, outcome = self.attached(weights, engine, loader_tensors=True)
        self.assertTrue(outcome, outcome.reason)
        before = state(model)
        for tensor in weights.values():
            tensor += 1
        self.publish(weights)
        self.assertTrue(client.prepare() and client.apply())
        at = model.linear.data
        model.linear.data = at.clone()
        for step in (client.prepare, client.rollback, client.apply):
            self.assertIn("has moved its parameters", step().reason)
        model.linear.data = at
        client.discard()  # of nothing
        self.assertTrue(client.rollback())
        self.assert_state(model, before)
        self.assertEqual(client.held.version, 1)

    def test_what_was_prepared_and_given_up_is_prepared_anew(self):
        weights = checkpoint(15)
        model, client, outcome = self.attached(weights, engine, loader_tensors=True)
        self.assertTrue(outcome, outcome.reason)
        before = state(model)
        for tensor in weights.values():
            tensor += 1
        self.publish(weights)
        self.assertTrue(client.prepare())
        client.discard()
        self.assertIn("no update is prepared", client.apply().reason)
        self.assert_state(model, before)
        self.assertTrue(client.prepare() and client.apply())
        self.assertEqual(client.held.version, 2)
        self.assertTrue(client.check())

    def test_a_loader_that_writes_elsewhere_than_before_is_stopped(self):
        weights = checkpoint(6)
        astray = []

        def strays(model, name, value):
            if name == "norm" and astray:
                model.linear.data[0].copy_(value)
                return True
            return False

        model, client, outcome = self.engine_with(strays, weights)
        self.assertTrue(outcome, outcome.reason)
        before = state(model)
        weights["norm"] += 1
        self.publish(weights)
        astray.append(True)
        self.assertTrue(client.prepare())
        applied = client.apply()
        self.assertFalse(applied)
        self.assertIn("other parts of linear", applied.reason)
        self.assert_state(model, before)

    def test_a_loader_that_replaces_memory_is_undone(self):
        weights = checkpoint(7)
        replacing = []

        def replaces(model, name, value):
            if name == "norm" and replacing:
                model.norm.data = value.float()
                return True
            return False

        model, client, outcome = self.engine_with(replaces, weights)
        self.assertTrue(outcome, outcome.reason)
        before, address = state(model), model.norm.data_ptr()
        weights["norm"] += 1
        self.publish(weights)
        replacing.append(True)
        self.assertTrue(client.prepare())
        applied = client.apply()
        self.assertFalse(applied)
        self.assertIn("replaced a parameter's memory", applied.reason)
        self.assertEqual(model.norm.data_ptr(), address)
        self.assert_state(model, before)

    def not_repeated(self, load_one_too, weights=None):
        _, client, outcome = self.engine_with(load_one_too, weights)
        self.assertFalse(outcome)
        self.assertFalse(client.held)
        self.assertFalse(client.prepare())
        return outcome.reason

    def test_a_loader_that_adds_up_is_refused(self):
        def adds(model, name, value):
            if name == "norm":
                # The first load finds zeros, so the memory is what it should be.
                if bool((model.norm.data == 7).all()):
                    model.norm.data.zero_()
                model.norm.data.add_(value)
            return name == "norm"

        self.assertIn("norm: ", self.not_repeated(adds))

    def test_a_loader_that_loads_only_once_is_refused(self):
        done = []

        def once(model, name, value):
            if name == "scale" and not done:
                done.append(True)
                return False
            return name == "scale" and value.item() == 1.5

        self.assertIn("looks at it and writes nothing", self.not_repeated(once))

    def test_a_loader_that_keeps_what_it_has_looked_at_is_refused(self):
        kept = []

        def keeps(model, name, value):
            del model
            if name == "scale":
                kept.append([value])
            return False

        self.assertIn("the loader keeps scale in memory", self.not_repeated(keeps))

    def test_what_is_changed_after_the_load_is_refused(self):
        def load(model, pairs):
            each(load_one)(model, list(pairs))

        directory = self.start(checkpoint(8))
        model = engine(load)
        model.load_weights(checkpoint(8).items())
        model.blocks.data.copy_(model.blocks.data.flip(0))  # as packing for a kernel does
        before = state(model)
        outcome = EngineClient(directory).attach(model, model.load_weights, loader_tensors=True)
        self.assertFalse(outcome)
        self.assertIn("quantised: loading it again does not give what blocks holds", outcome.reason)
        self.assert_state(model, before)

    def test_a_load_over_anothers_memory_is_refused(self):
        def over(model, name, value):
            if name == "scale":
                model.linear.data[0, 0].fill_(value.item())
            return name == "scale"

        weights = checkpoint(9)
        weights["scale"] = weights["linear"][0, 0].float().clone()
        self.assertIn("its load also writes where linear is", self.not_repeated(over, weights))

    def test_drift_is_found(self):
        model, client, outcome = self.attached(checkpoint(10), engine, loader_tensors=True)
        self.assertTrue(outcome, outcome.reason)
        self.assertTrue(client.check())
        model.scales.data[3] += 1
        found = client.check()
        self.assertFalse(found)
        self.assertIn("quantised", found.reason)
        # The loader makes it anew, with the next update and if nothing else is new in that.
        self.assertTrue(client.prepare() and client.heals)
        self.assertTrue(client.apply() and client.check())
        self.assertTrue(client.rollback())
        self.assertFalse(client.check())
        self.assertTrue(client.prepare() and client.apply() and client.check())
        model.scales.data[3] += 1

        def gone(prepared):
            del prepared

            def read(*_):
                raise deltawire.UnavailableError("the receiver has gone on meanwhile")
            return read

        # What cannot be computed again is not judged.
        with unittest.mock.patch.object(client._attachment, "read", gone):
            self.assertTrue(client.check())

    def test_a_version_that_the_receiver_has_left_is_not_prepared(self):
        weights = checkpoint(11)
        model, client, outcome = self.attached(weights, engine, loader_tensors=True)
        self.assertTrue(outcome, outcome.reason)
        before = state(model)
        weights["A_log"] += 1
        self.publish(weights)
        self.assertTrue(client.prepare())
        # What was prepared stays good, whatever the receiver commits meanwhile.
        wanted = -torch.exp(weights["A_log"])
        weights["A_log"] += 1
        self.publish(weights)
        self.assertTrue(client.apply())
        self.assertTrue(torch.equal(model.A, wanted))
        self.assertEqual(client.held.version, 2)
        self.assertTrue(client.rollback())
        self.assert_state(model, before)


if __name__ == "__main__":
    unittest.main()
