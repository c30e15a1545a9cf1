"""deltawire's plug-ins for vLLM and SGLang over stand-ins for these engines: what one rank, or all
of them, do when something is refused. Daemons and files are real; tests/engines has the engines.
"""

from __future__ import annotations

import pathlib
import tempfile
import threading
import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("deltawire")

import engine_stand_ins as stand_ins  # noqa: E402

stand_ins.install()

from deltawire.engine import EngineClient, Outcome, sglang  # noqa: E402
from deltawire.engine.vllm import DeltawireEngine, InitInfo  # noqa: E402
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

    def begin(self, world_size: int = 2) -> None:
        self.make = self.make or (Engine if world_size > 1 else Alone)
        self.ranks = stand_ins.start(world_size)
        self.weights = checkpoint(1)
        self.directory = str(self.start(self.weights))
        self.models = [self.make(rank) for rank in range(world_size)]
        for model in self.models:
            model.load_weights(self.weights.items())

    def next_version(self) -> None:
        self.weights["k"][5] += 1
        self.weights["o"] += 1
        self.weights["norm"] += 1
        self.publish(self.weights)

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


class DraftRig(EngineRig):
    """A second trainer beside a test's own."""

    def id(self) -> str:
        return self.name

    def start_as(self, name: str, weights):
        self.name = name
        return self.start(weights)


class VllmTest(Plugin):
    def begin(self, world_size: int = 2) -> None:
        super().begin(world_size)
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
        served = [worker._main.client for worker in self.workers]
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
        # An attach of the model meanwhile is not one of the draft.
        self.assert_done(self.attach())
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
        self.assertNotEqual(served, [worker._main.client for worker in self.workers])

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


class OrderTest(unittest.TestCase):
    def test_an_order_is_its_path(self):
        for text in ("version=7", "version=7&threads=4&prepare", "version=7&plans=/a%20b&check",
                     "version=7&plans=&rollback", "version=7&loader_tensors&prepare"):
            with self.subTest(text):
                order = sglang.Order.parse(f"deltawire:/d?{text}")
                self.assertEqual(order.path(7), f"deltawire:/d?{text}")
                self.assertEqual(sglang.Order.parse(order.path(7)), order)
        self.assertIsNone(sglang.Order.parse("/models/policy"))

    def test_what_cannot_be_an_order_is_refused(self):
        for text, why in (("/d?later", "no option later"), ("d", "from / on"),
                          ("/d?threads=-1", "no option threads=-1"),
                          ("/d?plans=here", "no option plans=here"),
                          ("/d?loader_tensors=1", "no option loader_tensors=1"),
                          ("/d?version=7&rollback&check", "are two orders")):
            with self.subTest(text), self.assertRaisesRegex(sglang.Refused, why):
                sglang.Order.parse(f"deltawire:{text}")


class SglangTest(Plugin):
    def begin(self, world_size: int = 2) -> None:
        super().begin(world_size)
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
