"""deltawire's plug-in for vLLM over stand-ins for the engine: what one rank, or all of them, do when
something is refused. Daemons and files are real; tests/engines has the engine itself.
"""

from __future__ import annotations

import pathlib
import tempfile
import unittest
import unittest.mock

from engine_plugins_rig import (  # first: it puts the stand-ins in their places, or skips
    Computing,
    Engine,
    EngineRig,
    Plugin,
    WithLatent,
    checkpoint,
    state,
    torch,
)

from deltawire.engine.vllm import DeltawireEngine, InitInfo, WorkerExtension  # noqa: E402


class DraftRig(EngineRig):
    """A second trainer beside a test's own."""

    def id(self) -> str:
        return self.name

    def start_as(self, name: str, weights):
        self.name = name
        return self.start(weights)


class VllmTest(Plugin):
    def begin(self, world_size: int = 2, seed: int = 1) -> None:
        super().begin(world_size, seed)
        self.workers = [DeltawireEngine(model) for model in self.models]
        self.assert_done(self.attach())

    def attach(self, **options) -> list:
        info = InitInfo(self.directory, **options)
        return self.ranks.run(lambda rank: self.workers[rank].init_transfer_engine(info))

    def prepare(self) -> list:
        return self.ranks.run(lambda rank: self.workers[rank].start_weight_update())

    def update(self, **info) -> list:
        return self.ranks.run(lambda rank: self.workers[rank].update_weights(info))

    def test_versions_and_a_rollback(self):
        self.begin()
        first = self.states()
        self.next_version()
        self.assert_done(self.prepare())
        self.assert_states(first)
        self.assert_refused(self.update(version=7), "version 7 was asked for")
        self.assert_done(self.update(version=2, check=True))
        self.assert_newest()
        self.assert_refused(self.update(), "no update is prepared")
        self.assert_refused(self.update(rollback=True, check=True), "a rollback is not checked")
        self.assert_refused(self.update(rollback=True, version=2), "version 2 was asked for")
        self.assert_done(self.update(rollback=True))
        self.assert_states(first)
        self.assert_refused(self.update(rollback=True), "no update was applied")
        self.assert_done(self.prepare())
        self.assert_done(self.update())
        self.assert_newest()

    def prove(self, version: int) -> list:
        info = InitInfo(prove=version)
        return self.ranks.run(lambda rank: self.workers[rank].init_transfer_engine(info))

    def test_memory_is_proven_to_be_a_version_without_a_session(self):
        self.begin()
        self.assert_done(self.prove(1))
        self.assert_refused(self.prove(2), "and not version 2")
        self.next_version()
        self.assert_done(self.prepare())
        self.assert_done(self.prove(1))
        self.assert_done(self.update())
        self.assert_refused(self.prove(1), "and not version 1")
        self.assert_done(self.prove(2))
        # By its bytes, and not by what the client believes.
        self.models[1].qk.data += 1
        self.assert_refused(self.prove(2), "rank 1: the engine's memory has drifted in ")
        # Who attaches to nothing has not attached.
        self.workers = [DeltawireEngine(model) for model in self.models]
        self.assert_refused(self.prove(2), "/init_weight_transfer_engine comes first")

    def test_a_refused_attach_leaves_no_older_client_at_work(self):
        self.begin(1)
        self.models[0].qk.data += 1  # as after a load of other weights, which deltawire did not see
        before = self.states()
        self.assert_refused(self.attach(), "cannot be updated in place")
        self.next_version()
        self.assert_refused(self.prepare(), "/init_weight_transfer_engine comes first")
        self.assert_refused(self.update(), "/init_weight_transfer_engine comes first")
        self.assert_states(before)

    def test_an_attach_that_one_worker_refuses_is_none(self):
        self.begin()
        self.models[1].qk.data += 1
        self.assert_refused(self.attach(), "rank 1: this model cannot be updated in place")
        self.next_version()
        self.assert_refused(self.prepare(), "comes first")

    def test_a_checkpoint_of_which_the_engine_has_only_a_part_is_refused(self):
        self.make = Engine  # of two ranks, the first alone
        with self.assertRaisesRegex(AssertionError, "holds only a part of o, so the checkpoint is"):
            self.begin(1)
        self.assert_refused(self.prepare(), "comes first")

    def test_a_part_of_a_checkpoint_is_refused_before_its_other_bytes_are(self):
        self.make = Engine  # of two ranks, the first alone
        with self.assertRaisesRegex(AssertionError, "holds only a part of o.*start the engine anew"):
            self.begin(1, seed=2)

    def test_a_model_that_was_attached_to_is_not_attached_to_other_shapes(self):
        self.begin()
        before = self.states()
        self.other_shapes()
        self.assert_refused(self.prepare(), "the receiver has made its buffer anew")
        self.assert_refused(self.attach(), "tensors of other names, types or shapes by now than when "
                            "this model was attached to: norm, k; start the engine anew")
        self.assert_states(before)

    def test_an_attach_that_the_ranks_refused_does_not_bind_the_model_to_its_tensors(self):
        self.make = Engine  # of two ranks, the first alone
        with self.assertRaisesRegex(AssertionError, "holds only a part of o"):
            self.begin(1)
        self.other_shapes()
        for result in self.attach():
            self.assertIsInstance(result, Exception)
            self.assertNotIn("this model was attached to", str(result))

    def test_workers_that_have_prepared_different_versions_write_nothing(self):
        self.begin()
        before = self.states()
        self.next_version()
        with self.commits_between_the_ranks():
            self.assert_refused(self.prepare(), "the ranks see different versions")
        self.assert_refused(self.update(), "no update is prepared")
        self.assert_refused(self.update(version=2), "no update is prepared")
        self.assert_states(before)
        self.assert_done(self.prepare())
        self.assert_done(self.update(version=3))
        self.assert_newest()

    def test_a_worker_says_what_it_holds_and_whether_its_memory_has_drifted(self):
        self.begin()
        extensions = [WorkerExtension() for _ in self.workers]
        for extension, worker in zip(extensions, self.workers, strict=True):
            extension.weight_transfer_engine = worker
            self.assertIn("version 1", extension.deltawire_held())

        def check() -> set:
            return set(self.ranks.run(lambda rank: extensions[rank].deltawire_check()))

        self.assertEqual(check(), {""})
        self.models[1].norm.data[1] += 1
        self.models[0].o.data[1] += 1
        self.assertEqual(check(), {
            "deltawire: rank 1: the engine's memory has drifted in norm; the engine's memory has "
            "drifted in o, which several ranks have parts of; the next update takes what has "
            "drifted from the receiver's buffer"})
        self.assert_done(self.prepare())
        self.assert_done(self.update(check=True))
        self.assert_newest()
        self.workers[0].shutdown()
        self.assertEqual(extensions[0].deltawire_held(), "")
        self.assertEqual(check(),
                         {"deltawire: rank 0: /init_weight_transfer_engine comes first"})

    def test_drift_is_found_by_the_versions_that_pass_and_put_right_by_the_next(self):
        self.begin()
        self.assert_done(self.attach(check_every=4))
        for drifted, by in (("norm", 1), ("o", 0), ("qk", 1)):
            with self.subTest(drifted):
                getattr(self.models[by], drifted).data[3] += 1
                refused = []
                for _ in range(4):  # every part of the memory comes once in these
                    self.next_version()
                    results = self.prepare()
                    if isinstance(results[0], Exception):
                        refused.append(str(results[0]))
                        self.assert_refused(results, "the engine's memory has drifted in ")
                        self.assert_done(self.prepare())
                    self.assert_done(self.update())
                    # A chunk that comes by delta keeps its drift until it is found.
                    if refused:
                        self.assert_newest()
                self.assertEqual(len(refused), 1, refused)
                self.assertIn("k" if drifted == "qk" else drifted, refused[0])

    def test_memory_that_came_back_with_anything_in_it_is_put_right_by_one_update(self):
        self.begin()
        self.assert_done(self.attach(check_every=4))
        self.next_version()
        self.assert_done(self.prepare())
        self.assert_done(self.update())
        for model in self.models:
            model.load_weights(checkpoint(9).items())  # anything, as after vLLM's sleep of level 2
        self.next_version()
        self.assert_refused(self.prepare(), "the engine's memory has drifted in ")
        self.assert_done(self.prepare())
        self.assert_done(self.update())
        self.assert_newest()

    def test_no_part_of_the_memory_is_looked_at_where_that_is_not_wanted(self):
        self.begin()
        self.assert_done(self.attach(check_every=0))
        self.models[0].norm.data[3] += 1
        for _ in range(2):
            self.next_version()
            self.assert_done(self.prepare())
            self.assert_done(self.update())

    def test_what_one_worker_cannot_write_is_taken_back_by_the_others(self):
        self.begin()
        before = self.states()
        self.next_version()
        self.assert_done(self.prepare())
        self.fails_on_the_last_rank("apply")
        self.assert_refused(self.update(version=2), "rank 1: a planted fault")
        self.assert_states(before)

    def test_an_update_whose_check_finds_something_is_taken_back(self):
        self.begin()
        self.next_version()
        before = self.states()
        self.assert_done(self.prepare())
        self.models[1].embed.data[3] += 1
        before[1]["embed"][3] += 1
        self.assert_refused(self.update(check=True), "rank 1: the engine's memory has drifted")
        self.assert_states(before)

    def test_layouts_are_kept_for_the_next_start(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.begin()
        for plan in ("kept", "used"):
            with self.assertLogs("vllm.deltawire", "INFO") as logged:
                self.assert_done(self.attach(plans=folder))
            self.assertEqual([line.endswith(f", plan: {plan}") for line in logged.output],
                             [True] * 2, logged.output)
        self.assertEqual(len(list(pathlib.Path(folder).iterdir())), 2)  # one for each rank


    def test_what_the_loader_computes_follows_where_it_is_asked_for(self):
        self.make = Computing
        with self.assertRaisesRegex(AssertionError, "loader_tensors=True lets it"):
            self.begin()
        self.workers = [DeltawireEngine(model) for model in self.models]
        with self.assertLogs("vllm.deltawire", "INFO") as logged:
            self.assert_done(self.attach(loader_tensors=True))
        self.assertIn("1 tensors updated by the engine's loader", logged.output[0])
        before = self.states()
        self.next_version()
        self.assert_done(self.prepare())
        self.assert_done(self.update(check=True))
        self.assert_newest()
        self.assert_done(self.update(rollback=True))
        self.assert_states(before)


    def test_what_is_computed_from_weights_is_computed_anew(self):
        self.make = WithLatent
        super().begin()
        for model in self.models:  # vLLM computes it after its load, not in it
            model.load_weights = super(WithLatent, model).load_weights
        self.workers = [DeltawireEngine(model) for model in self.models]
        with self.assertLogs("vllm.deltawire", "INFO") as logged:
            self.assert_done(self.attach())
        self.assertIn("not the checkpoint's: a part of embed, head, latent.turned",
                      logged.output[0])
        before = self.states()
        self.next_version()
        self.assert_done(self.prepare())
        self.models[1].latent.fails = 1
        with self.assertLogs("deltawire", "ERROR"):
            self.assert_refused(self.update(), "rank 1: planted after the load")
        self.assert_states(before)
        self.assert_done(self.prove(1))
        self.assert_done(self.prepare())
        self.assert_done(self.update())
        self.assert_newest()
        self.assert_done(self.update(rollback=True))
        self.assert_states(before)


    def follow_draft(self) -> None:
        """The same kind of model in the place of the draft, with a trainer and a receiver of its
        own."""
        rig = DraftRig()
        rig.cluster = self.cluster
        self.draft_weights = checkpoint(7)
        self.draft_directory = str(rig.start_as(f"{self.id().rsplit('.', 1)[-1]}-draft",
                                                self.draft_weights))
        self.draft_rig = rig
        self.drafts = [self.make(rank) for rank in range(len(self.models))]
        for draft in self.drafts:
            draft.load_weights(self.draft_weights.items())

    def prepare_drafts(self) -> list:
        def start(rank: int) -> None:  # as vLLM's worker does for /start_draft_weight_update
            worker = self.workers[rank]
            worker.set_weight_update_target(self.drafts[rank], worker.model_config)
            try:
                worker.start_weight_update()
            except BaseException:
                worker.reset_weight_update_target()
                raise
        return self.ranks.run(start)

    def finish(self) -> None:
        for worker in self.workers:
            worker.finish_weight_update()
            worker.reset_weight_update_target()

    def test_a_draft_model_follows_a_directory_of_its_own(self):
        self.begin()
        self.follow_draft()
        self.assert_refused(self.prepare_drafts(), "with a draft_directory")
        info = InitInfo(draft_directory=self.draft_directory)
        self.assert_done(self.ranks.run(lambda r: self.workers[r].init_transfer_engine(info)))
        before = self.states()
        self.draft_weights["norm"] += 1
        self.draft_rig.publish(self.draft_weights)
        for draft in self.drafts:  # attached to where a version is not the committed one: refused
            draft.load_weights(self.draft_weights.items())
        self.assert_done(self.prepare_drafts())
        served = [worker._main.client for worker in self.workers]
        self.assert_refused(self.attach(), "an update of the draft model is open")
        self.assertEqual(served, [worker._main.client for worker in self.workers])
        self.assert_done(self.update(version=2))
        self.finish()
        self.draft_weights["o"] += 1
        self.draft_rig.publish(self.draft_weights)
        self.assert_done(self.prepare_drafts())
        drafts = [state(draft) for draft in self.drafts]
        self.assert_done(self.update(version=3))
        self.assert_states(before)
        wanted = [self.make(rank) for rank in range(len(self.drafts))]
        for fresh, draft in zip(wanted, self.drafts, strict=True):
            fresh.load_weights(self.draft_weights.items())
            for name, value in state(fresh).items():
                self.assertTrue(torch.equal(value, state(draft)[name]), name)
        self.assert_done(self.update(rollback=True))
        for draft, old in zip(self.drafts, drafts, strict=True):
            for name, value in old.items():
                self.assertTrue(torch.equal(value, state(draft)[name]), name)
        self.finish()
        # The server names what its own model holds, not the draft's version.
        self.assertTrue(all(w._main.client._record for w in self.workers))
        self.assertTrue(all(w._draft.client._record is None for w in self.workers))
        self.next_version()
        self.assert_done(self.prepare())
        self.assert_done(self.update(version=2))
        self.assert_newest()

    def test_parameters_that_a_failed_reload_has_left_without_memory_are_named(self):
        self.begin()
        for model in self.models:
            model.embed = torch.nn.Parameter(model.embed.to("meta"), requires_grad=False)
        # receiver/engine/http_hook.cc goes by these words.
        self.assert_refused(self.attach(), "start the engine anew: 1 parameters have no memory")

    def test_a_worker_that_cannot_take_its_share_back_says_so_and_is_attached_anew(self):
        self.make = WithLatent
        super().begin()
        for model in self.models:  # vLLM computes it after its load, not in it
            model.load_weights = super(WithLatent, model).load_weights
        self.workers = [DeltawireEngine(model) for model in self.models]
        self.assert_done(self.attach())
        self.next_version()
        self.assert_done(self.prepare())

        def moves(dtype):
            del dtype
            self.models[0].qk.data = self.models[0].qk.data.clone()

        self.models[1].latent.fails = 1
        with (unittest.mock.patch.object(self.models[0].latent, "process_weights_after_loading",
                                         moves),
              self.assertLogs("deltawire", "ERROR")):
            results = self.update()
        self.assert_refused(results, "rank 1: planted after the load")
        self.assertIn("could not take its share back: the engine has moved its parameters",
                      str(results[0]))
        self.assertIn("half of an update stays", str(results[0]))
        self.assertNotIn("half of an update stays", str(results[1]))
        self.assert_refused(self.prove(1), "rank 0: /init_weight_transfer_engine comes first")
        self.assert_refused(self.prepare(), "rank 0: /init_weight_transfer_engine comes first")
        self.assert_refused(self.update(rollback=True), "comes first")

    def test_an_update_that_is_given_up_is_forgotten(self):
        self.begin()
        before = self.states()
        self.next_version()
        self.assert_done(self.prepare())
        self.ranks.run(lambda rank: self.workers[rank].finish_weight_update())
        self.assert_refused(self.update(), "no update is prepared")
        for worker in self.workers:
            self.assertIn("no update is prepared", worker._main.client.apply().reason)
        self.assert_states(before)
        self.assert_done(self.prepare())
        self.assert_done(self.update())
        self.assert_newest()


if __name__ == "__main__":
    unittest.main()
