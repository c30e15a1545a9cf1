"""deltawire.engine's plan cache: a plan saves the search and not the proof. docs/plan_cache.md."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("deltawire")

from deltawire.engine import EngineClient, PlanCache, _plans  # noqa: E402
from engine_layouts_test import Layouts, Module, draw, each  # noqa: E402
from engine_rig import state  # noqa: E402

ROWS, COLUMNS = 16, 12


def load_one(model, name, value):
    if name == "A_log":
        model.A.data.copy_(-torch.exp(value))
    elif name == "turned":
        model.w.data[:, :ROWS].copy_(value.t())
    else:
        model.w.data[:, ROWS:].copy_(torch.cat([value[1:], value[:1]]))


def module(load=None):
    return Module(load or each(load_one), A=(ROWS, torch.float32),
                  w=(COLUMNS, 2 * ROWS, torch.float32))


def checkpoint(seed: int) -> dict:
    return draw(seed, {"A_log": (ROWS,), "turned": (ROWS, COLUMNS), "rolled": (COLUMNS, ROWS)},
                torch.float32)


class Plans(Layouts):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.weights = self.checkpoint()
        self.directory = self.start(self.weights)

    def checkpoint(self) -> dict:
        return checkpoint(1)

    def cache(self, **key) -> PlanCache:
        key = {"engine": "small", "version": "1.0", "layout": "tp 0/1", **key}
        return PlanCache(folder=self.folder / "plans", **key)

    def attach(self, load=None, loader_tensors=True, **key):
        model = module(load)
        model.load_weights(self.weights.items())
        client = EngineClient(self.directory)
        outcome = client.attach(model, model.load_weights, loader_tensors=loader_tensors,
                                plans=self.cache(**key))
        return model, client, outcome

    def kept(self) -> pathlib.Path:
        """A plan was found without a file, and is kept; the only file."""
        _, _, outcome = self.attach()
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual(outcome.plan, "kept")
        self.assertGreater(outcome.trace_seconds, 0)
        files = list((self.folder / "plans").iterdir())
        self.assertEqual(len(files), 1)
        return files[0]

    def replaced(self, file: pathlib.Path) -> None:
        """The file is not believed, and a good one takes its place."""
        bad = file.read_bytes()
        model, client, outcome = self.attach()
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual(outcome.plan, "kept")
        self.assertNotEqual(file.read_bytes(), bad)
        self.follows(self.weights, module, model, client, versions=1)
        _, _, outcome = self.attach()
        self.assertEqual(outcome.plan, "used")

    def rewrite(self, file: pathlib.Path, change) -> None:
        """Changes a plan's content, and makes its checksum right."""
        content = json.loads(file.read_text())
        del content["sha256"]
        change(content)
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        content["sha256"] = hashlib.sha256(text).hexdigest()
        file.write_text(json.dumps(content))


class MovedPlansTest(Plans):
    def checkpoint(self) -> dict:
        weights = checkpoint(1)
        del weights["A_log"]
        return weights

    def test_a_plan_of_moved_tensors_alone_is_proven(self):
        file = self.kept()

        def exchange(content):
            """Each tensor's place is the other's: nothing leaves the memory, or meets there."""
            for box in content["boxes"]:
                box[5] += ROWS if box[0] == 0 else -ROWS

        self.rewrite(file, exchange)
        self.replaced(file)


class PlansTest(Plans):
    def test_a_plan_saves_the_search(self):
        self.kept()
        loaded = []

        def load(model, pairs):
            for name, value in pairs:
                loaded.append((name, value.device.type))
                load_one(model, name, value)

        model, client, outcome = self.attach(load)
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual((outcome.plan, outcome.trace_seconds), ("used", 0))
        self.assertEqual(outcome.by_numbers, ["rolled"])
        self.assertEqual(outcome.by_loader, ["A_log"])
        # After the engine's own load only the proof of what it computes: twice, with true values.
        self.assertEqual(loaded[3:], [("A_log", "cpu")] * 2)
        self.follows(self.weights, module, model, client)

    def test_a_plan_is_for_one_engine_version_and_layout(self):
        self.kept()
        for key in ({"engine": "other"}, {"version": "1.1"}, {"layout": "tp 1/2"}):
            with self.subTest(key=key):
                _, _, outcome = self.attach(**key)
                self.assertTrue(outcome, outcome.reason)
                self.assertEqual(outcome.plan, "kept")
        self.assertEqual(len(list((self.folder / "plans").iterdir())), 4)

    def test_a_file_that_is_torn_is_replaced(self):
        file = self.kept()
        good = file.read_bytes()
        content = json.loads(good)
        content["boxes"].pop()  # what the proof cannot see
        for name, bad in (("cut", good[: len(good) // 2]), ("empty", b""), ("no JSON", b"\xff\0"),
                          ("a box less", json.dumps(content).encode()),
                          ("no object", b"[1]"), ("no plan", b"{}"),
                          ("a digit", good.replace(b'"bytes":', b'"bytes":1', 1))):
            with self.subTest(name):
                file.write_bytes(bad)
                self.replaced(file)

    def test_a_plan_with_wrong_content_is_replaced(self):
        file = self.kept()

        def other_place(content):
            for box in content["boxes"]:
                box[5] = (box[5] + 1) % 3

        def outside(content):
            content["boxes"][0][5] = 10**9

        def no_number(content):
            content["boxes"][0][2][0] = True

        def other_tensor(content):
            content["boxes"][0][0] = 99

        def other_engine(content):
            content["key"]["engine"] = "other"

        def other_format(content):
            content["format"] += "1"

        def other_memory(content):
            content["storages"][0]["bytes"] += 4

        for change in (other_place, outside, no_number, other_tensor, other_engine, other_format,
                       other_memory):
            with self.subTest(change.__name__):
                self.rewrite(file, change)
                self.replaced(file)

    def test_a_plan_of_a_loader_that_has_changed_is_replaced(self):
        file = self.kept()
        before = file.read_bytes()

        def load(model, name, value):
            load_one(model, name, value.flip(0) if name == "turned" else value)

        _, _, outcome = self.attach(each(load))
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual(outcome.plan, "kept")
        self.assertNotEqual(file.read_bytes(), before)

    def test_a_plan_does_not_allow_what_the_caller_does_not(self):
        self.kept()
        _, client, outcome = self.attach(loader_tensors=False)
        self.assertFalse(outcome)
        self.assertIn("A_log: ", outcome.reason)
        self.assertFalse(client.held)

    def test_other_weights_are_not_adopted_by_a_plan(self):
        self.kept()
        model = module()
        model.load_weights(checkpoint(2).items())
        outcome = EngineClient(self.directory).attach(
            model, model.load_weights, loader_tensors=True, plans=self.cache())
        self.assertFalse(outcome)
        self.assertIn("have other bytes", outcome.reason)

    def test_a_file_that_others_can_write_is_not_read(self):
        file = self.kept()
        file.chmod(0o606)
        _, _, outcome = self.attach()
        self.assertEqual(outcome.plan, "kept")
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a file away")
    def test_a_file_of_another_user_is_not_read(self):
        file = self.kept()
        os.chown(file, 12345, -1)
        _, _, outcome = self.attach()
        self.assertEqual(outcome.plan, "kept")
        self.assertEqual(file.stat().st_uid, 0)

    def test_a_plan_that_is_too_large_is_neither_read_nor_kept(self):
        file = self.kept()
        size = file.stat().st_size
        with unittest.mock.patch.object(_plans, "_MOST_BYTES", size):
            _, _, outcome = self.attach()
            self.assertEqual(outcome.plan, "used")
        with unittest.mock.patch.object(_plans, "_MOST_BYTES", size - 1):
            _, _, outcome = self.attach()
            self.assertTrue(outcome, outcome.reason)
            self.assertIn(f"its {size} bytes are more than would be read", outcome.plan)
        self.assertEqual(file.stat().st_size, size)

    def test_where_nothing_can_be_kept_the_attach_goes_on(self):
        (self.folder / "plans").write_text("no folder")
        _, _, outcome = self.attach()
        self.assertTrue(outcome, outcome.reason)
        self.assertIn("the plan was not kept: ", outcome.plan)

    def test_a_writer_that_dies_leaves_the_old_plan(self):
        file = self.kept()
        good = file.read_bytes()
        # A process that ends just before the new content gets its name.
        program = (
            "import os, pathlib, sys\n"
            "from deltawire.engine import _plans\n"
            "os.replace = lambda *_: os._exit(9)\n"
            "_plans._write(pathlib.Path(sys.argv[1]), b'half')\n")
        died = subprocess.run([sys.executable, "-c", program, file], env=os.environ)
        self.assertEqual(died.returncode, 9)
        self.assertEqual(file.read_bytes(), good)
        _, _, outcome = self.attach()
        self.assertEqual(outcome.plan, "used")

    def test_the_default_folder_is_the_caches(self):
        old = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = str(self.folder)
        try:
            model = module()
            model.load_weights(self.weights.items())
            before = state(model)
            outcome = EngineClient(self.directory).attach(
                model, model.load_weights, loader_tensors=True,
                plans=PlanCache("small", "1.0", "tp 0/1"))
            self.assertEqual(outcome.plan, "kept")
            self.assert_state(model, before)
            self.assertEqual(len(list((self.folder / "deltawire" / "plans").iterdir())), 1)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if old is not None:
                os.environ["XDG_CACHE_HOME"] = old


if __name__ == "__main__":
    unittest.main()
