"""The calls of deltawire's plug-in for vLLM over an executor that is as strict as vLLM's own: replies
that nobody has read answer the next call. Daemons and files are real; tests/engines has the engine.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import unittest
import unittest.mock

from engine_plugins_rig import (  # first: it puts the stand-ins in their places, or skips
    Computing,
    Plugin,
    checkpoint,
    stand_ins,
    state,
    torch,
)
from daemons import until

from deltawire.engine import EngineClient, Outcome
from deltawire.engine import vllm as plugin  # noqa: E402


class Draft(torch.nn.Module):
    """Shares the embedding with the model that answers, and has a copy of a tensor."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.embed = model.embed
        self.own = torch.nn.Parameter(torch.zeros_like(model.norm), requires_grad=False)

    def load_weights(self, pairs):
        for name, value in pairs:
            if name == "embed":
                self.embed[: value.shape[0]].data.copy_(value)
            elif name == "norm":
                self.own.data.copy_(value)


class Experts(torch.nn.Module):
    """As vLLM's layer of experts, which it packs on a CPU."""

    def __init__(self):
        super().__init__()
        self.w13_weight = torch.nn.Parameter(torch.zeros(2, 2), requires_grad=False)


class Mamba(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.A = torch.nn.Parameter(torch.zeros(2), requires_grad=False)


def last_rank_cannot_write() -> contextlib.AbstractContextManager:
    """Of two."""
    real = EngineClient.apply

    def planted(client):
        last = stand_ins.here.groups["get_tp_group"].rank_in_group == 1
        return Outcome(False, "a planted fault") if last else real(client)

    return unittest.mock.patch.object(EngineClient, "apply", planted)


def last_rank_has_no_memory() -> contextlib.AbstractContextManager:
    real = EngineClient._prepare

    def planted(client):
        if stand_ins.here.groups["get_tp_group"].rank_in_group == 1:
            raise MemoryError("a planted lack of memory")
        return real(client)

    return unittest.mock.patch.object(EngineClient, "_prepare", planted)


class CallsTest(Plugin):
    def begin(self, world_size: int = 2, seed: int = 1, replicas: int = 1,
              draft: type[torch.nn.Module] | None = None) -> None:
        """`replicas`: each with a share of the ranks; replies of the first one are all that a
        server hands back. `draft`: made beside each rank's model."""
        super().begin(world_size, seed)
        plugin.register()
        size = world_size // replicas
        self.executors = []
        for replica in range(replicas):
            models = self.models[replica * size:(replica + 1) * size]
            workers = [stand_ins.Worker(rank, model, draft and draft(model), replica, replicas, size)
                       for rank, model in enumerate(models)]
            for worker, model in zip(workers, models, strict=True):
                worker.loads = lambda path, model=model: model.load_weights(self.weights.items())
            tp = stand_ins.Ranks(size)
            self.executors.append(self.enterContext(stand_ins.Executor(
                workers, lambda rank, tp=tp: {"get_tp_group": tp})))
        self.workers = [w for executor in self.executors for w in executor.workers]

    def call(self, name: str, nonce: str = "", **options) -> list[dict]:
        """As over /collective_rpc. Nothing may stay unread, on any rank."""
        nonce = nonce or secrets.token_hex(16)
        results = [executor.collective_rpc("deltawire_call", call=name, nonce=nonce, **options)
                   for executor in self.executors]
        for executor, answers in zip(self.executors, results, strict=True):
            self.assertEqual([r.qsize() for r in executor.replies], [0] * len(answers))
            self.assertEqual([(a["nonce"], a["rank"], a["ranks"]) for a in answers],
                             [(nonce, rank, len(answers)) for rank in range(len(answers))])
            self.assertEqual(len({(a["ok"], a["reason"], a["engine"]) for a in answers}), 1)
        return results[0]

    def done(self, name: str, **options) -> dict:
        answer = self.call(name, **options)[0]
        self.assertTrue(answer["ok"], answer["reason"])
        return answer

    def refused(self, name: str, why: str, **options) -> dict:
        answer = self.call(name, **options)[0]
        self.assertFalse(answer["ok"])
        self.assertIn(why, answer["reason"])
        return answer

    def settled(self, name: str, **options) -> list[dict]:
        nonce = secrets.token_hex(16)
        self.call(name, nonce, **options)
        return self.call("settle", of=nonce, replicas=len(self.executors))

    def test_versions_and_a_rollback(self):
        self.begin()
        self.assertEqual(self.done("attach", directory=self.directory)["held"]["version"], 1)
        first = self.states()
        for version in (2, 3):
            self.next_version()
            self.done("prepare", version=version)
            held = self.done("apply", version=version)["held"]
            self.assertEqual(held["version"], version)
            self.done("prove", part="next", **held)
            self.done("prove", **held)
            self.assert_newest()
        self.assertEqual(self.workers[0].model_runner.resets, 2)
        self.assertEqual(self.done("rollback", version=2)["held"]["version"], 2)
        self.refused("rollback", "no update was applied")
        self.done("prepare")
        self.done("apply", check=True)
        self.assert_newest()
        self.done("check")
        self.assertNotEqual(first[0]["norm"].tolist(), state(self.models[0])["norm"].tolist())

    def test_a_refusal_leaves_no_reply_unread(self):
        self.begin()
        self.refused("prepare", "attach comes first")
        self.refused("apply", "attach comes first", version=1)
        self.refused("check", "attach comes first")
        self.refused("no such call", "there is no call")
        self.refused("attach", "neither a directory")
        self.refused("attach", "unexpected keyword", directroy="/nowhere")
        self.refused("attach", "/nowhere", directory="/nowhere")
        self.done("discard")
        self.done("attach", directory=self.directory)
        self.refused("apply", "no update is prepared", version=1)
        self.refused("prepare", "version 9 was asked for", version=9)
        self.done("held")
        executor = self.executors[0]
        self.assertEqual(executor.collective_rpc("execute_model", reply_rank=1, step=4),
                         ["tokens of step 4 by rank 1"])

    def test_what_vllm_itself_raises_is_seen_by_the_nonce(self):
        """Why deltawire makes none of vLLM's session calls: the executor is as the real one."""
        self.begin()
        executor = self.executors[0]
        with self.assertRaisesRegex(RuntimeError, "without a matching start"):
            executor.collective_rpc("finish_weight_update")
        with self.assertRaisesRegex(RuntimeError, "without a matching start"):
            executor.collective_rpc("deltawire_call", call="held", nonce="first-nonce")
        answers = executor.collective_rpc("deltawire_call", call="held", nonce="second-nonce")
        self.assertEqual([a["nonce"] for a in answers], ["second-nonce", "first-nonce"])

    def test_a_rank_blocks_for_good_when_nobody_reads_its_replies(self):
        self.begin()
        executor = self.executors[0]
        for _ in range(stand_ins.RING + 1):
            with self.assertRaisesRegex(RuntimeError, "without a matching start"):
                executor.collective_rpc("finish_weight_update")
        # Rank 0 goes on; rank 1, which a step of the model needs, never takes it.
        executor.collective_rpc("execute_model", reply_rank=0, step=1)
        until(executor.replies[1].full, "rank 1 has filled its ring")
        self.assertEqual(self.workers[1].steps, [])

    def test_a_rank_that_cannot_write_has_the_others_take_theirs_back(self):
        self.begin()
        self.done("attach", directory=self.directory)
        before = self.states()
        self.next_version()
        self.done("prepare")
        with last_rank_cannot_write():
            answer = self.refused("apply", "rank 1: a planted fault")
        self.assertEqual(answer["held"]["version"], 1)
        self.assert_states(before)
        self.done("prove", **answer["held"])
        self.done("prepare")
        self.done("apply")
        self.assert_newest()

    def test_a_call_that_comes_twice_changes_nothing(self):
        """As by a gateway that sends a request again when its answer is late."""
        self.begin()
        self.done("attach", directory=self.directory)
        self.next_version()
        self.done("prepare", nonce="the-same-nonce")
        self.done("prepare", nonce="the-same-nonce")
        self.done("apply", nonce="another-nonce", version=2)
        answer = self.refused("apply", "no update is prepared", nonce="another-nonce", version=2)
        self.assertEqual(answer["held"]["version"], 2)  # by which a receiver knows that it was done
        self.done("prove", **answer["held"])
        self.assert_newest()

    def test_two_programs_that_drive_one_engine_write_no_version_twice(self):
        self.begin()
        self.done("attach", directory=self.directory)
        self.next_version()
        self.done("prepare")
        self.refused("attach", "it loaded another version", directory=self.directory)
        self.refused("apply", "no update is prepared")

    def test_what_is_as_it_was_is_followed_on_after_a_refused_attach(self):
        """As by a receiver after a rank that had no memory to prepare in."""
        self.begin()
        self.done("attach", directory=self.directory)
        for directory in (self.directory, "/nowhere"):
            self.next_version()
            with last_rank_has_no_memory():
                self.refused("prepare", "rank 1: a planted lack of memory")
            answer = self.refused("attach", directory if directory == "/nowhere" else
                                  "it loaded another version", directory=directory)
            self.done("prove", **answer["held"])
            self.done("prepare")
            self.done("apply", check=True)
            self.assert_newest()

    def test_what_has_changed_is_not_followed_on_after_a_refused_attach(self):
        self.begin()
        self.done("attach", directory=self.directory)
        self.next_version()
        self.models[1].norm.data[3] += 1
        answer = self.refused("attach", "it loaded another version", directory=self.directory)
        self.assertIsNone(answer["held"])
        self.refused("prepare", "attach comes first")

    def test_a_receiver_with_another_directory_is_followed_from_the_same_version_on(self):
        """The one before commits nothing more."""
        self.begin()
        self.done("attach", directory=self.directory)
        self.cluster.kill("deltawire-receiver")
        model = self.id().rsplit(".", 1)[-1]
        elsewhere = self.cluster.root / f"elsewhere-{model}"
        self.receiver = self.cluster.start_receiver([self.cluster.control], model, elsewhere)
        self.receiver.await_version(1)
        for version in (1, 2, 3):
            if version > 1:
                self.next_version()
            self.done("prepare", version=version, directory=str(elsewhere))
            self.done("apply", version=version, check=True)
            self.assert_newest()
        self.cluster.kill("deltawire-receiver")
        shutil.rmtree(elsewhere)  # and made anew
        self.receiver = self.cluster.start_receiver([self.cluster.control], model, elsewhere)
        self.receiver.await_version(3)
        self.done("prepare", version=3, directory=str(elsewhere))
        self.next_version()
        self.done("prepare", version=4, directory=str(elsewhere))
        self.done("apply", version=4, check=True)
        self.assert_newest()

    def test_a_rank_that_cannot_take_its_share_back_is_attached_anew(self):
        self.begin()
        self.done("attach", directory=self.directory)
        self.next_version()
        self.done("prepare")
        with (last_rank_cannot_write(),
              unittest.mock.patch.object(EngineClient, "rollback",
                                         lambda client: Outcome(False, "no way back"))):
            self.refused("apply", "rank 0 could not take its share back: no way back: half of")
        self.assertIsNone(self.call("held")[0]["held"])
        self.refused("prepare", "rank 0: attach comes first")

    def test_drift_is_said_by_all_ranks_and_healed(self):
        self.begin()
        self.done("attach", directory=self.directory, check_every=1)
        self.models[1].norm.data[3] += 1
        self.next_version()
        self.assertTrue(self.refused("prepare", "memory has drifted in norm")["drifted"])
        self.done("prepare")
        self.done("apply", check=True)
        self.assert_newest()

    def test_the_proof_is_of_a_root_and_not_of_a_number(self):
        self.begin()
        held = self.done("attach", directory=self.directory)["held"]
        self.done("prove", **held)
        self.refused("prove", "and not version 1 of root 0123456789abcdef",
                     **{**held, "root": "0123456789abcdef"})
        self.refused("prove", "the memory is", **{**held, "epoch": held["epoch"] + 1})
        self.models[0].o.data[1] += 1  # a chunk of which each rank has a part
        self.assertTrue(self.refused("prove", "which several ranks have parts of", **held)["drifted"])

    def test_a_proof_that_is_asked_for_again_finds_the_same(self):
        """As by a gateway that sends a request twice, whose first answer is lost."""
        self.begin()
        held = self.done("attach", directory=self.directory, check_every=1)["held"]
        self.models[1].norm.data[3] += 1
        for part in ("next", "next", "all", "all", "next"):
            words = "memory has drifted in norm"
            self.assertTrue(self.refused("prove", words, part=part, **held)["drifted"])
        self.next_version()
        self.done("prepare")  # it heals what was found, and does not find it again
        held = self.done("apply")["held"]
        for part in ("next", "all"):
            self.done("prove", part=part, **held)
        self.assert_newest()

    def test_a_reload_that_fails_on_one_rank_is_not_done(self):
        self.begin()
        self.done("attach", directory=self.directory)
        self.next_version()

        def fails(path):
            raise RuntimeError(f"{path} cannot be read by this rank")

        working, self.workers[1].loads = self.workers[1].loads, fails
        self.assertIsNone(self.refused("reload", "rank 1: ", directory=self.directory)["held"])
        self.refused("attach", "other bytes", directory=self.directory)
        # vLLM's next reload would say that it is done, whatever it has loaded.
        self.workers[1].loads = working
        answer = self.refused("reload", "start the engine anew", directory=self.directory)
        self.assertTrue(answer["anew"])
        self.models[1].load_weights(self.weights.items())  # by another way
        self.assertEqual(self.done("attach", directory=self.directory)["held"]["version"], 2)
        self.done("reload", directory=self.directory)
        self.assert_newest()

    def test_a_draft_of_the_same_checkpoint_follows_with_the_model(self):
        self.begin(draft=Draft)
        drafts = [worker.model_runner.get_draft_model() for worker in self.workers]
        for draft in drafts:
            draft.load_weights(self.weights.items())
        self.assertEqual(self.done("attach", directory=self.directory)["untaken"], [])
        for _ in range(2):
            self.next_version()
            self.done("prepare")
            self.done("apply", check=True)
            self.assert_newest()
            for draft in drafts:
                self.assertTrue(torch.equal(draft.own, self.weights["norm"]))
        drafts[1].own.data[1] += 1
        self.refused("check", "rank 1: the engine's memory has drifted in norm")
        self.done("prepare")
        self.done("apply")
        answer = self.refused("reload", "leaves the draft model at", directory=self.directory)
        self.assertTrue(answer["corrupts"] and answer["anew"])

    def test_a_draft_that_is_older_than_the_model_is_refused_and_named(self):
        self.begin(draft=Draft)
        drafts = [worker.model_runner.get_draft_model() for worker in self.workers]
        for draft in drafts:
            draft.load_weights(checkpoint(2).items())
        self.refused("attach", "2 tensors have other bytes in the engine than in version 1",
                     directory=self.directory)

    def test_a_reload_that_would_leave_wrong_weights_is_refused(self):
        self.begin()
        for make, words in ((Experts, "that it packs, as part"), (Mamba, "for part.A")):
            for model in self.models:
                model.part = make()
            answer = self.refused("reload", words, directory=self.directory)
            self.assertTrue(answer["corrupts"])

    def test_experts_that_are_moved_while_the_server_runs_are_refused(self):
        self.begin()
        for worker in self.workers:
            worker.parallel_config.enable_eplb = True
        self.assertTrue(self.refused("attach", "EPLB moves", directory=self.directory)["anew"])

    def test_tensors_that_no_part_of_the_engine_took_are_named(self):
        self.begin()
        loads = [model.load_weights for model in self.models]
        for model, load in zip(self.models, loads, strict=True):
            model.load_weights = lambda pairs, load=load: load(
                (name, value) for name, value in pairs if name not in ("norm", "expert.1.up"))
        self.assertEqual(sorted(self.done("attach", directory=self.directory)["untaken"]),
                         ["expert.1.up", "norm"])

    def test_stages_and_ranks_agree(self):
        self.begin(2)
        self.models += [self.make(rank) for rank in range(2)]
        tps, pps = ([stand_ins.Ranks(2) for _ in range(2)] for _ in range(2))

        def groups(rank: int) -> dict:
            return {"get_tp_group": tps[rank // 2], "get_pp_group": pps[rank % 2]}

        # The ranks of the second group are the stages.
        for group in pps:
            group.enter = lambda rank, group=group: setattr(group._own, "rank", rank // 2)
        self.executors = [self.enterContext(stand_ins.Executor([
            stand_ins.Worker(rank, model, ranks_of_replica=4)
            for rank, model in enumerate(self.models)], groups))]
        for model in self.models:
            model.load_weights(self.weights.items())
        self.done("attach", directory=self.directory)
        self.next_version()
        self.done("prepare")
        self.done("apply", check=True)
        self.refused("rollback", "version 7", version=7)
        self.models[2].qk.data[1] += 1
        self.refused("check", "rank 2: the engine's memory has drifted")

    def test_replicas_have_one_word(self):
        self.begin(2, replicas=2)  # each has a half of `o`
        self.assertEqual(self.settled("attach", directory=self.directory)[0]["reason"], "")
        before = self.states()
        self.next_version()
        self.assertTrue(self.settled("prepare")[0]["ok"])
        real = EngineClient.apply

        def planted(client):
            second = client is self.workers[1]._deltawire_follower._served.client
            return Outcome(False, "a planted fault") if second else real(client)

        with unittest.mock.patch.object(EngineClient, "apply", planted):
            answer = self.settled("apply")[0]
        self.assertEqual((answer["ok"], answer["reason"]), (False, "replica 1: a planted fault"))
        self.assert_states(before)
        self.assertTrue(self.settled("prepare")[0]["ok"])
        self.assertTrue(self.settled("apply")[0]["ok"])
        self.assert_newest()
        self.assertTrue(self.settled("check")[0]["ok"])
        self.models[1].o.data[1] += 1
        answer = self.settled("check")[0]
        self.assertIn("o, which several replicas have parts of", answer["reason"])
        self.assertTrue(answer["drifted"])
        self.assertTrue(self.settled("prepare")[0]["ok"])
        self.assertTrue(self.settled("apply")[0]["ok"])
        self.assert_newest()

    def test_replicas_follow_on_after_a_refused_attach(self):
        self.begin(2, replicas=2)
        self.assertTrue(self.settled("attach", directory=self.directory)[0]["ok"])
        # One of them cannot attach anew to what both have.
        real = EngineClient.attach

        def planted(client, model, *args, **options):
            if model is self.models[1]:
                raise MemoryError("a planted lack of memory")
            return real(client, model, *args, **options)

        with unittest.mock.patch.object(EngineClient, "attach", planted):
            answer = self.settled("attach", directory=self.directory)[0]
        self.assertEqual(answer["reason"], "replica 1: a planted lack of memory")
        self.next_version()
        answer = self.settled("attach", directory=self.directory)[0]
        self.assertIn("it loaded another version", answer["reason"])
        self.assertTrue(self.settled("prepare")[0]["ok"])
        self.assertTrue(self.settled("apply")[0]["ok"])
        self.assert_newest()

    def test_replicas_say_together_that_a_reload_would_leave_wrong_weights(self):
        self.begin(2, replicas=2)
        for model in self.models:
            model.part = Experts()
        answer = self.settled("reload", directory=self.directory)[0]
        self.assertIn("that it packs, as part", answer["reason"])
        self.assertTrue(answer["corrupts"])

    def test_a_reload_that_one_replica_has_made_has_touched_the_server(self):
        self.begin(2, replicas=2)
        self.models[0].part = Experts()
        answer = self.settled("reload", directory=self.directory)[0]
        self.assertIn("that it packs, as part", answer["reason"])
        self.assertEqual((answer["ok"], answer["corrupts"]), (False, False))

    def test_a_replica_that_cannot_be_reached_is_named(self):
        self.begin(2, replicas=2)
        del self.executors[1]
        nonce = secrets.token_hex(16)
        self.done("attach", nonce=nonce, directory=self.directory)
        answer = self.call("settle", of=nonce, replicas=2)[0]
        self.assertIn("replica 1 of 2 has not answered on this machine", answer["reason"])
        self.refused("prepare", "attach comes first")

    def test_a_replica_with_a_server_of_its_own_has_the_last_word(self):
        self.begin()
        for worker in self.workers:  # one of three, behind somebody's balancer
            worker.parallel_config.data_parallel_external_lb = True
            worker.parallel_config.data_parallel_size = 3
        for directory, reason in ((self.directory, ""), ("/nowhere", "/nowhere")):
            nonce = secrets.token_hex(16)
            self.assertEqual(self.call("attach", nonce, directory=directory, replicas=3)[0]
                             ["replicas"], 1)
            self.assertIn(reason, self.call("settle", of=nonce, replicas=3)[0]["reason"])

    def test_what_the_loader_computes_is_taken(self):
        self.make = Computing
        self.begin()
        for model in self.models:
            model.load_weights(checkpoint(1).items())
        self.refused("attach", "loader_tensors=True lets it", directory=self.directory)
        answer = self.done("attach", directory=self.directory, loader_tensors=True)
        self.assertEqual(answer["untaken"], [])

    def test_a_scrape_of_the_server_says_that_the_plug_in_is_there(self):
        plugin.register()
        self.assertEqual(stand_ins.gauges[-1], plugin.CALLS)

    def test_a_vllm_that_lacks_what_the_calls_need_is_left_alone(self):
        said = len(stand_ins.gauges)
        with (unittest.mock.patch.dict(stand_ins.sys.modules,
                                       {"vllm.v1.worker.worker_base": None}),
              self.assertLogs("vllm.deltawire", "WARNING") as logged):
            plugin.register()
        self.assertIn("cannot be updated in place, only by reloads", logged.output[0])
        self.assertEqual(len(stand_ins.gauges), said)

    def test_vllm_s_own_session_says_where_the_calls_are_and_is_none(self):
        self.begin()
        from deltawire.engine._vllm_backend import DeltawireEngine

        def start(rank: int) -> None:
            engine = DeltawireEngine(self.models[rank])
            engine.init_transfer_engine(engine.parse_init_info({"directory": self.directory}))

        first, last = self.ranks.run(start)
        self.assertIsNone(first)
        self.assertIn("deltawire takes its calls by /collective_rpc", str(last))


if __name__ == "__main__":
    unittest.main()
