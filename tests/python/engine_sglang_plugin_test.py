"""deltawire's plug-in for SGLang over stand-ins for the engine: what one rank, or all of them, do
when something is refused. Daemons and files are real; tests/engines has the engine itself.
"""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
import types
import unittest
import unittest.mock

from engine_plugins_rig import (  # first: it puts the stand-ins in their places, or skips
    Computing,
    Engine,
    Plugin,
    PostLoad,
    stand_ins,
)

from deltawire.engine import EngineClient, _served, sglang  # noqa: E402


class OrderTest(unittest.TestCase):
    def test_an_order_is_its_path(self):
        for text in ("version=7", "version=7&threads=4&prepare", "version=7&plans=/a%20b&check",
                     "version=7&plans=&rollback",
                     "version=7&root=00000000000000ab&prepare", "version=7&loader_tensors&prepare", "version=7&check_every=8&prepare"):
            with self.subTest(text):
                order = sglang.Order.parse(f"deltawire:/d?{text}")
                self.assertEqual(order.path(7), f"deltawire:/d?{text}")
                self.assertEqual(sglang.Order.parse(order.path(7)), order)
        self.assertIsNone(sglang.Order.parse("/models/policy"))

    def test_what_cannot_be_an_order_is_refused(self):
        for text, why in (("/d?later", "no option later"), ("d", "from / on"),
                          ("/d?threads=-1", "no option threads=-1"),
                          ("/d?plans=here", "no option plans=here"),
                          ("/d?root=ab", "no option root=ab"),
                          ("/d?loader_tensors=1", "no option loader_tensors=1"),
                          ("/d?version=7&rollback&check", "are two orders")):
            with self.subTest(text), self.assertRaisesRegex(sglang.Refused, why):
                sglang.Order.parse(f"deltawire:{text}")


class VersionTest(unittest.TestCase):
    def test_a_version_without_the_hooks_refuses_every_order(self):
        for version, is_too_old in (("0.5.15.post1", True), ("0.5.20", True), ("0.5.21", False),
                                    ("0.6.0rc1", False), ("unknown", False)):
            with unittest.mock.patch.object(stand_ins.sys.modules["sglang"], "__version__", version):
                self.assertEqual(bool(sglang._too_old()), is_too_old, version)
        obj = types.SimpleNamespace(model_path="deltawire:/d?version=7")
        done, why, _ = asyncio.run(sglang._refuse_order(None, None, obj))
        self.assertFalse(done)
        self.assertIn("take 0.5.21 or a later one", why)
        with self.assertRaisesRegex(sglang.Refused, "cannot be updated in place"):
            sglang._refuse_check(None, None, "deltawire:/d?version=7&prepare")
        self.assertEqual(sglang._refuse_check(lambda *a: a, "runner", "checksum"),
                         ("runner", "checksum"))


class SglangTest(Plugin):
    def begin(self, world_size: int = 2, seed: int = 1) -> None:
        super().begin(world_size, seed)
        self.runners = [stand_ins.Runner(model) for model in self.models]
        self.addCleanup(sglang._followers.clear)

    def update(self, options: str = "") -> list:
        """(success, message) of each rank."""
        path = f"deltawire:{self.directory}" + (f"?{options}" if options else "")
        return self.ranks.run(lambda rank: sglang._update(None, self.runners[rank], path))

    def assert_done(self, results: list) -> None:
        for result in results:
            self.assertTrue(result[0], result)

    def assert_refused(self, results: list, why: str) -> None:
        for success, message in results:
            self.assertFalse(success)
            self.assertIn(why, message)

    def test_versions_and_a_rollback(self):
        self.begin()
        first = self.states()
        self.assert_done(self.update())
        self.next_version()
        self.assert_done(self.update("version=2&check"))
        self.assert_newest()
        self.assert_refused(self.update("version=1&rollback&check"), "are two orders")
        self.assert_newest()
        self.assert_done(self.update("version=1&rollback"))
        self.assert_states(first)
        self.assert_done(self.update())
        self.assert_newest()

    def test_a_number_with_other_bytes_is_refused(self):
        self.begin()
        self.assert_done(self.update())
        first = self.states()
        self.next_version()
        root = f"{EngineClient(self.directory).committed.root:016x}"
        other = "0123456789abcdef"
        wrong = f"version 2 of root {other} was asked for"
        self.assert_refused(self.update(f"version=2&root={other}"), wrong)
        self.assert_states(first)
        self.assert_done(self.update(f"version=2&root={root}"))
        self.assert_refused(self.update(f"version=2&root={other}"), wrong)
        self.assert_refused(self.update(f"version=1&root={other}&rollback"),
                            f"version 1 of root {other} was asked for")
        self.assert_newest()
        for asked, why in ((f"version=2&root={other}", f"and not version 2 of root {other}"),
                           ("version=1", "and not version 1")):
            for refusal in self.check(f"{asked}&check"):
                self.assertIn(why, str(refusal))

    def test_what_a_loader_computes_from_parameters_is_computed_anew(self):
        self.make = PostLoad
        self.begin()
        before = self.states()
        self.assert_done(self.update())
        self.next_version()
        self.assert_done(self.update("version=2&check"))
        self.assert_newest()
        self.assert_done(self.update("version=1&rollback"))
        self.assert_states(before)

    def test_a_checkpoint_of_which_the_engine_has_only_a_part_is_refused(self):
        self.make = Engine  # of two ranks, the first alone
        self.begin(1)
        for _ in range(2):
            self.assert_refused(self.update(), "holds only a part of o, so the checkpoint is")

    def test_a_part_of_a_checkpoint_is_refused_before_its_other_bytes_are(self):
        self.make = Engine  # of two ranks, the first alone
        self.begin(1, seed=2)
        self.assert_refused(self.update(), "holds only a part of o")

    def test_a_model_that_was_attached_to_is_not_attached_to_other_shapes(self):
        self.begin()
        self.assert_done(self.update())
        before = self.states()
        self.other_shapes()
        for _ in range(2):
            self.assert_refused(self.update(), "tensors of other names, types or shapes by now than "
                                "when this model was attached to: norm, k; start the engine anew")
        self.assert_states(before)

    def test_an_attach_that_the_ranks_refused_does_not_bind_the_model_to_its_tensors(self):
        self.make = Engine  # of two ranks, the first alone
        self.begin(1)
        self.assert_refused(self.update(), "holds only a part of o")
        self.other_shapes()
        for success, message in self.update():
            self.assertFalse(success)
            self.assertNotIn("this model was attached to", message)

    def test_a_server_with_a_draft_model_is_refused(self):
        """A reload brings both models to one directory, so it is wrong where there are two."""
        self.begin(1)
        self.runners[0].spec_algorithm = types.SimpleNamespace(
            is_none=lambda: False, is_ngram=lambda: False)
        for path, why in ((None, "a reload of the directory brings both"),
                          ("/models/policy", "a reload of the directory brings both"),
                          ("/models/draft", "/models/draft is none of this directory, and every "
                                            "update of SGLang's goes into both models; start the "
                                            "engine anew")):
            stand_ins.speculation.speculative_draft_model_path = path
            self.assert_refused(self.update(), why)
        stand_ins.speculation.speculative_draft_model_path = None

    def test_ranks_that_see_different_versions_write_nothing(self):
        self.begin()
        self.assert_done(self.update())
        before = self.states()
        self.next_version()
        with self.commits_between_the_ranks():
            self.assert_refused(self.update(), "the ranks see different versions")
        self.assert_states(before)
        self.assert_done(self.update("version=3"))
        self.assert_newest()

    def test_what_one_rank_cannot_write_is_taken_back_by_the_others(self):
        self.begin()
        self.assert_done(self.update())
        before = self.states()
        self.next_version()
        self.fails_on_the_last_rank("apply")
        self.assert_refused(self.update(), "rank 1: a planted fault")
        self.assert_states(before)

    def test_what_the_engines_own_hooks_raise_is_a_refusal_and_nothing_stays(self):
        self.begin()
        self.assert_done(self.update())
        before = self.states()
        self.next_version()
        for where in ("begin", "end"):
            with self.subTest(where):
                self.runners[1].fail_at = where
                with self.assertLogs("deltawire", "ERROR"):
                    self.assert_refused(self.update(), f"rank 1: planted at the {where}")
                self.assert_states(before)
        self.assert_done(self.update())
        self.assert_newest()

    def test_hooks_that_also_fail_while_it_is_taken_back_end_the_server(self):
        self.begin(1)
        self.assert_done(self.update())
        self.next_version()
        runner = self.runners[0]

        def fails(run_post_load):
            raise RuntimeError("planted for good")

        with (unittest.mock.patch.object(runner, "end_weight_update", fails),
              self.assertLogs("deltawire", "ERROR")):
            raised = self.update()[0]
        self.assertIsInstance(raised, RuntimeError)
        self.assertNotIsInstance(raised, sglang.Refused)

    def test_parameters_that_a_hook_has_moved_are_attached_to_anew(self):
        self.begin(1)
        self.assert_done(self.update())
        self.next_version()
        model, runner = self.models[0], self.runners[0]
        at = model.qk.data

        def moves():
            model.qk.data = at.clone()

        with unittest.mock.patch.object(runner, "begin_weight_update", moves):
            self.assert_refused(self.update(), "has moved its parameters")
        self.assert_refused(self.update(), "it loaded another version")  # version 2 is committed
        model.load_weights(self.weights.items())
        self.assert_done(self.update())
        self.next_version()
        self.assert_done(self.update())
        self.assert_newest()

    def test_a_moved_model_that_cannot_be_attached_to_is_of_no_known_version(self):
        self.begin(1)
        served = _served.Served()
        self.addCleanup(served.close)
        self.assert_done(self.update())
        self.assertEqual(served.read().state.version, 1)
        for parameter in self.models[0].parameters():
            parameter.data = parameter.data + 1
        self.assert_refused(self.update(), "have other bytes in the engine")
        self.assertEqual(served.read().states, ())

    def test_another_number_of_threads_than_the_attachs_is_refused(self):
        self.begin(1)
        self.assert_done(self.update("threads=2"))
        self.next_version()
        self.assert_refused(self.update("threads=3"), "attached with 2, which stays")
        self.assert_done(self.update("threads=2"))
        self.next_version()
        self.assert_done(self.update())
        self.assert_newest()

    def test_what_the_loader_computes_follows_where_it_is_asked_for(self):
        self.make = Computing
        self.begin()
        self.assert_refused(self.update(), "loader_tensors=True lets it")
        self.assert_done(self.update("loader_tensors"))
        before = self.states()
        self.next_version()
        self.assert_done(self.update("version=2&check"))  # the attach's choice stays
        self.assert_newest()
        self.assert_done(self.update("version=1&rollback"))
        self.assert_states(before)

    def check(self, options: str) -> list:
        """Of each rank what /weights_checker is told: a refusal, or None."""
        path = f"deltawire:{self.directory}?{options}"
        return self.ranks.run(lambda rank: sglang._check(None, self.runners[rank], path))

    def test_drift_is_found_and_put_right_by_the_next_update(self):
        self.begin()
        self.assert_done(self.update("check_every=2"))
        self.models[1].o.data[1] += 1  # of which each rank has a half
        for result in self.check("check"):
            self.assertIn("has drifted in o, which several ranks have parts of", str(result))
        self.assertEqual(self.check("prepare"), [None] * 2)
        results = self.update("version=1")  # of the same version
        self.assert_done(results)
        self.assertIn("what had drifted was put right", results[0][1])
        self.assert_newest()
        self.assertEqual(self.check("check"), [None] * 2)
        self.models[0].norm.data[1] += 1
        refused = 0
        for version in (2, 3):
            self.next_version()
            if self.check(f"version={version}&prepare") != [None] * 2:
                refused += 1
                self.assertEqual(self.check(f"version={version}&prepare"), [None] * 2)
            self.assert_done(self.update(f"version={version}"))
        self.assertEqual(refused, 1)
        self.assert_done(self.update("version=3&check"))
        self.assert_newest()

    def test_drift_is_not_put_right_by_another_version_than_was_asked_for(self):
        self.begin()
        self.assert_done(self.update("check_every=0"))
        self.models[1].norm.data[1] += 1
        drifted = self.states()
        self.assertIn("has drifted", str(self.check("check")[0]))
        self.next_version()
        # Only version 2 is there to take it from.
        self.assert_refused(self.update("version=1"), "has drifted, and version 2")
        self.assert_states(drifted)
        self.assert_done(self.update("version=2"))
        self.assert_newest()

    def test_all_memory_may_be_asked_to_be_compared_in_fewer_versions(self):
        self.begin()
        for _ in range(4):
            self.assert_done(self.update("check_every=8"))
        self.assert_done(self.update("check_every=2"))

    def test_layouts_are_kept_for_the_next_start(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.begin()
        for plan in ("kept", "used"):
            sglang._followers.clear()
            with self.assertLogs("deltawire.engine.sglang", "INFO") as logged:
                self.assert_done(self.update(f"plans={folder}"))
            self.assertEqual([line.endswith(f", plan: {plan}") for line in logged.output],
                             [True] * 2, logged.output)
        self.assertEqual(len(list(pathlib.Path(folder).iterdir())), 2)  # one for each rank


if __name__ == "__main__":
    unittest.main()
