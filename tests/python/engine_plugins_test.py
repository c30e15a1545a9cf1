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
    stand_ins,
    state,
    torch,
)

from deltawire.engine.vllm import deltawire_call  # noqa: E402


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
        self.make_workers()
        self.assert_done(self.attach())

    def make_workers(self, drafts: list | None = None) -> None:
        """As of a server that was started anew. `drafts`: of a checkpoint of their own."""
        self.workers = []
        for rank, model in enumerate(self.models):
            self.workers.append(stand_ins.Worker(rank, model, drafts[rank] if drafts else None))
            config = self.workers[-1].vllm_config
            config.speculative_config.draft_model_config.model = "/models/draft"

    def call(self, name: str, **options) -> list:
        """The answers of all ranks; a refusal as an exception, with its reason."""
        answers = self.ranks.run(lambda rank: deltawire_call(
            self.workers[rank], name, "a-nonce-of-a-test", **options))
        return [a if not isinstance(a, dict) or a["ok"] else RuntimeError(a["reason"])
                for a in answers]

    def followed(self, draft: bool = False) -> list:
        followers = [worker._deltawire_follower for worker in self.workers]
        return [f._draft if draft else f._served for f in followers]

    def attach(self, **options) -> list:
        return self.call("attach", directory=self.directory, **options)

    def prepare(self) -> list:
        return self.call("prepare")

    def update(self, **info) -> list:
        return self.call("rollback" if info.pop("rollback", False) else "apply", **info)

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
        self.assert_refused(self.update(rollback=True, check=True), "unexpected keyword argument")
        self.assert_refused(self.update(rollback=True, version=2), "version 2 was asked for")
        self.assert_done(self.update(rollback=True))
        self.assert_states(first)
        self.assert_refused(self.update(rollback=True), "no update was applied")
        self.assert_done(self.prepare())
        self.assert_done(self.update())
        self.assert_newest()

    def prove(self, version: int) -> list:
        """By the whole name of what was held when a name was asked for last."""
        return self.call("prove", **{**self.names, "version": version})

    def name(self) -> None:
        self.names = self.call("held")[0]["held"]

    def test_memory_is_proven_to_be_a_version(self):
        self.begin()
        self.name()
        self.assert_done(self.prove(1))
        self.assert_refused(self.prove(2), "and not version 2")
        self.next_version()
        self.assert_done(self.prepare())
        self.assert_done(self.prove(1))
        self.assert_done(self.update())
        self.assert_refused(self.prove(1), "and not version 1")
        self.name()
        self.assert_done(self.prove(2))
        # By its bytes, and not by what the client believes.
        self.models[1].qk.data += 1
        self.assert_refused(self.prove(2), "rank 1: the engine's memory has drifted in ")
        # Who attaches to nothing has not attached.
        self.make_workers()
        self.assert_refused(self.prove(2), "attach comes first")

    def test_a_refused_attach_leaves_no_older_client_at_work(self):
        self.begin(1)
        self.models[0].qk.data += 1  # as after a load of other weights, which deltawire did not see
        before = self.states()
        self.assert_refused(self.attach(), "cannot be updated in place")
        self.next_version()
        self.assert_refused(self.prepare(), "attach comes first")
        self.assert_refused(self.update(), "attach comes first")
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
        self.assertEqual(self.call("held")[1]["held"]["version"], 1)
        self.assert_done(self.call("check"))
        self.models[1].norm.data[1] += 1
        self.models[0].o.data[1] += 1
        for result in self.call("check"):
            self.assertEqual(
                str(result),
                "rank 1: the engine's memory has drifted in norm; the engine's memory has drifted "
                "in o, which several ranks have parts of; the next update takes what has drifted "
                "from the receiver's buffer")
        self.assert_done(self.prepare())
        self.assert_done(self.update(check=True))
        self.assert_newest()
        self.assert_done(self.call("detach"))
        self.assertIsNone(self.call("held")[0]["held"])
        self.assert_refused(self.call("check"), "attach comes first")

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
        self.make_workers()
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
        self.make_workers()
        with self.assertLogs("vllm.deltawire", "INFO") as logged:
            self.assert_done(self.attach())
        self.assertIn("not the checkpoint's: a part of embed, head, latent.turned",
                      logged.output[0])
        self.name()
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

    def test_a_draft_model_follows_a_directory_of_its_own(self):
        self.begin()
        self.follow_draft()
        self.make_workers(self.drafts)
        self.assert_done(self.attach())
        self.assert_refused(self.call("prepare", draft=True), "with a draft_directory")
        self.assert_done(self.call("attach", draft_directory=self.draft_directory))
        self.assertTrue(all(followed.client for followed in self.followed()))
        before = self.states()
        for version, name in ((2, "norm"), (3, "o")):
            self.draft_weights[name] += 1
            self.draft_rig.publish(self.draft_weights)
            self.assert_done(self.call("prepare", draft=True))
            drafts = [state(draft) for draft in self.drafts]
            self.assert_done(self.call("apply", version=version, draft=True))
        self.assert_states(before)
        wanted = [self.make(rank) for rank in range(len(self.drafts))]
        for fresh, draft in zip(wanted, self.drafts, strict=True):
            fresh.load_weights(self.draft_weights.items())
            for name, value in state(fresh).items():
                self.assertTrue(torch.equal(value, state(draft)[name]), name)
        self.assert_done(self.call("rollback", draft=True))
        for draft, old in zip(self.drafts, drafts, strict=True):
            for name, value in old.items():
                self.assertTrue(torch.equal(value, state(draft)[name]), name)
        # The server names what its own model holds, not the draft's version.
        self.assertTrue(all(followed.client._record for followed in self.followed()))
        self.assertTrue(all(f.client._record is None for f in self.followed(draft=True)))
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
        self.make_workers()
        self.assert_done(self.attach())
        self.name()
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
        self.assert_refused(results, "rank 0 could not take its share back: the engine has moved its "
                            "parameters since the attach; attach again: half of an update stays")
        self.assert_refused(self.prove(1), "rank 0: attach comes first")
        self.assert_refused(self.prepare(), "rank 0: attach comes first")
        self.assert_refused(self.update(rollback=True), "comes first")

    def test_an_update_that_is_given_up_is_forgotten(self):
        self.begin()
        before = self.states()
        self.next_version()
        self.assert_done(self.prepare())
        self.assert_done(self.call("discard"))
        self.assert_refused(self.update(), "no update is prepared")
        for followed in self.followed():
            self.assertIn("no update is prepared", followed.client.apply().reason)
        self.assert_states(before)
        self.assert_done(self.prepare())
        self.assert_done(self.update())
        self.assert_newest()


if __name__ == "__main__":
    unittest.main()
