"""deltawire.integrations against the frameworks' own classes, and data through them.

Usage: integrations_frameworks_test.py FRAMEWORK (trl, verl, nemo_rl, ray); a skip where it is not
installed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import unittest

import support

support.use_trainer_python()
from integrations_rig import Case, changed, raw  # noqa: E402  # or a skip

from deltawire import Error  # noqa: E402
from deltawire.integrations import nemo_rl, slime, trl, verl  # noqa: E402
from deltawire.integrations._publisher import Publisher  # noqa: E402


class FrameworkCase(Case):
    def assert_fits(self, theirs: type, ours: type):
        """Every public method of `theirs` can be called on `ours` in the same way."""
        for name, method in inspect.getmembers(theirs, inspect.isroutine):
            if name.startswith("_") or name not in vars(theirs):
                continue
            with self.subTest(method=name):
                mine = getattr(ours, name)
                self.assertEqual(inspect.iscoroutinefunction(mine),
                                 inspect.iscoroutinefunction(method)
                                 and not inspect.isasyncgenfunction(mine))
                self.assert_callable_alike(inspect.signature(method), inspect.signature(mine))
        self.assertFalse(inspect.isabstract(ours))

    def assert_callable_alike(self, theirs: inspect.Signature, ours: inspect.Signature):
        wanted = [p for p in theirs.parameters.values() if p.kind != p.VAR_KEYWORD]
        for p in wanted:
            self.assertIn(p.name, ours.parameters)
            self.assertEqual(ours.parameters[p.name].kind, p.kind)
        names = {p.name for p in wanted}
        if len(wanted) == len(theirs.parameters):  # else they are the implementation's own
            for p in ours.parameters.values():
                self.assertTrue(p.name in names or p.default is not p.empty, p.name)


class TrlFrameworkTest(FrameworkCase):
    def test_the_protocol(self):
        from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol

        self.assert_fits(WeightTransferProtocol, trl.WeightTransfer)

    def test_its_stream_of_a_model_with_frozen_tied_and_packed_parameters(self):
        """The trainer's own generator over a model; the trainer needs a server to be made whole."""
        import accelerate
        import torch
        import transformers
        from safetensors.torch import load_file
        from trl.experimental.async_distillation import async_distillation_trainer
        from trl.experimental.async_grpo import async_grpo_trainer

        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            num_experts=3, moe_intermediate_size=24, vocab_size=64, hidden_size=32, head_dim=8,
            intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=True))
        base = self.cluster.root / f"base-{self.model}"
        model.save_pretrained(base)
        model.model.layers[0].requires_grad_(False)
        model.model.norm.requires_grad_(False)
        publisher = Publisher(**self.arguments | {"hf_dir": base})
        self.addCleanup(publisher.close)
        publisher.open()
        kinds = [async_grpo_trainer.AsyncGRPOTrainer,
                 async_distillation_trainer.AsyncDistillationTrainer]
        for version, kind in enumerate(kinds + kinds, 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(torch.randn(parameter.shape))
            trainer = object.__new__(kind)
            trainer.model, trainer.accelerator = model, accelerate.Accelerator(cpu=True)
            stream = trainer._streaming_iter()
            publisher.publish(stream, module=trl._module_behind(stream))
            model.save_pretrained(base.with_name(f"saved-{self.model}"))
            self.assert_receiver_has(
                load_file(base.with_name(f"saved-{self.model}") / "model.safetensors"), version)


class VerlFrameworkTest(FrameworkCase):
    def test_the_abstract_class(self):
        from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

        self.assert_fits(CheckpointEngine, verl.DeltawireCheckpointEngine)
        self.assertIs(CheckpointEngineRegistry.get("deltawire"), verl.DeltawireCheckpointEngine)

    def engines(self, **more):
        """The checkpoint engines of an actor of two ranks, and of a rollout of two workers."""
        from verl.checkpoint_engine.base import CheckpointEngineRegistry

        kwargs = self.arguments | {"directory": str(self.receiver.directory)} | more

        def new(**more):
            return CheckpointEngineRegistry.new("deltawire", bucket_size=1 << 20, **kwargs, **more)

        return [new(is_master=True), new(is_master=False)], [new(), new()]

    async def update(self, actors, rollouts, step, weights=None, refused=False):
        """The calls of verl's CheckpointEngineManager.update_weights, without its processes."""
        async def receive(engine):
            return raw({n: t async for n, t in engine.receive_weights(global_steps=step)})

        metadata = [e.prepare() for e in actors + rollouts]
        topologies = type(actors[0]).build_topology(2, 2, metadata)
        for engines, topology in zip((actors, rollouts), topologies, strict=True):
            for i, engine in enumerate(engines):
                engine.init_process_group(**{k: v[i] for k, v in topology.items()})
        sent = [e.send_weights(iter((weights or self.weights).items()), global_steps=step)
                for e in actors]
        received = [] if refused else [receive(e) for e in rollouts]  # else they would wait
        *done, metrics, nothing = await asyncio.gather(*received, *sent)
        for engine in actors + rollouts:
            engine.finalize()
        return done, (metrics, nothing)

    def assert_refused(self, error: str, *engines, **update):
        with self.assertRaisesRegex(Error, error):
            asyncio.run(self.update(*engines, **update, refused=True))

    def test_versions_from_an_actor_of_two_ranks_to_a_rollout_of_two_workers(self):
        engines = self.engines()
        for version in (1, 2, 3):
            self.weights = changed(self.weights, version)
            received, (metrics, nothing) = asyncio.run(self.update(*engines, step=1))
            self.assertEqual(received, [raw(self.weights)] * 2)
            self.assertEqual((metrics["deltawire/version"], nothing), (version, None))

    def test_versions_are_verl_s_steps_where_that_is_asked_for(self):
        engines = self.engines(version_of_step_0=1)
        for step in (0, 1, 7):
            self.weights = changed(self.weights, step)
            received, (metrics, _) = asyncio.run(self.update(*engines, step=step))
            self.assertEqual(received, [raw(self.weights)] * 2)
            self.assertEqual(metrics["deltawire/version"], step + 1)
        # A run that goes back: resumed from step 5 of the one before.
        resumed = self.engines(version_of_step_0=1)
        self.assert_refused("step 5 is version 6, and the sender has 8 .* higher", *resumed, step=5)
        resumed = self.engines(version_of_step_0=101)
        asyncio.run(self.update(*resumed, step=5))
        self.assert_receiver_has(self.weights, 106)
        for step, first, error in ((None, 1, "names no global_steps"), (0, 0, "begin with 1")):
            self.assert_refused(error, *self.engines(version_of_step_0=first), step=step)

    def test_a_state_dict_with_a_tied_head_and_one_with_an_adapter(self):
        """As verl's FSDP engine takes them; peft, which that imports, is not needed here."""
        import torch
        import transformers
        from safetensors.torch import load_file

        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            num_experts=3, moe_intermediate_size=24, vocab_size=64, hidden_size=32, head_dim=8,
            intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=True))
        base = self.cluster.root / f"base-{self.model}"
        model.save_pretrained(base)
        engines = self.engines(hf_dir=base)
        # full_tensor() gives each name memory of its own.
        gathered = {n: t.clone() for n, t in model.state_dict().items()}
        self.assertIn("lm_head.weight", gathered)
        received, _ = asyncio.run(self.update(*engines, step=1, weights=gathered))
        self.assertEqual(received, [raw(load_file(base / "model.safetensors"))] * 2)
        # As verl's replace_lora_wrapper names them.
        wrapped = {n.replace("q_proj.weight", "q_proj.base_layer.weight"): t
                   for n, t in gathered.items()}
        self.assert_refused(r"actor_rollout_ref\.model\.lora\.merge=True", *engines, step=2,
                            weights=wrapped)
        gathered["lm_head.weight"] = torch.zeros(64, 32)
        self.assert_refused('"lm_head.weight" is not registered, and it is no copy', *engines,
                            step=2, weights=gathered)


class NemoRlFrameworkTest(FrameworkCase):
    def engines(self, count: int):
        from nemo_rl.utils.checkpoint_engines.base import create_checkpoint_engine

        Publisher(**self.arguments).open()  # returns when the sender is up
        kwargs = self.arguments | {"directory": str(self.receiver.directory),
                                   "release_after_refit": False}
        return [create_checkpoint_engine(
            "deltawire.integrations.nemo_rl:DeltawireCheckpointEngine",
            bucket_size_bytes=1 << 12, engine_kwargs=kwargs) for _ in range(count)]

    def test_the_abstract_class(self):
        from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine

        self.assert_fits(CheckpointEngine, nemo_rl.DeltawireCheckpointEngine)

    def test_refits_from_two_policy_ranks_to_two_workers(self):
        """The calls of NeMo RL's CheckpointEngineWeightSynchronizer, without its processes."""
        policies, workers = self.engines(2), self.engines(2)

        def connect():
            metadata = [e.prepare() for e in policies + workers]
            sizes = {"train_world_size": 2, "rollout_world_size": 2, "metadata": metadata}
            for rank, (policy, worker) in enumerate(zip(policies, workers, strict=True)):
                policy.init_policy_process_group(worker_rank=rank, **sizes)
                worker.init_rollout_process_group(rollout_rank=rank, **sizes)

        async def receive(engine):
            batches = [raw(batch) async for batch in engine.receive_weight_batches()]
            self.assertGreater(len(batches), 1)
            return {name: value for batch in batches for name, value in batch.items()}

        async def refit():
            sent = [e.send_weights(iter(self.weights.items())) for e in policies]
            return await asyncio.gather(*(receive(e) for e in workers), *sent)

        connect()
        for version in (1, 2, 3, 4):
            if version == 3:  # as with release_after_refit
                for engine in policies + workers:
                    engine.finalize()
                connect()
            self.weights = changed(self.weights, version)
            self.assertEqual(asyncio.run(refit())[:2], [raw(self.weights)] * 2)


class RayFrameworkTest(Case):
    """slime's hook with the real Ray, on one node."""

    def test_the_hook_publishes_what_slime_wrote_and_links_it_where_engines_are(self):
        import ray

        class Engine:
            """In the place of slime's actor for an SGLang server: only its node matters."""

        os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token in the home directory
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        self.addCleanup(ray.shutdown)
        engines = [ray.remote(num_cpus=0)(Engine).remote() for _ in range(2)]
        folder = self.cluster.root / f"{self.model}-disk"
        folder.mkdir()
        for step in (1, 2):
            self.weights = changed(self.weights, step)
            version_dir = folder / f"weight_v{step:06d}"
            self.save(self.weights, version_dir)
            slime.publish(self.slime_args(), str(version_dir), engines)
            self.assert_receiver_has(self.weights, step)
        settings = slime.Settings.of(self.slime_args())
        elsewhere = folder / "elsewhere" / "weight_v000002"  # where the trainer wrote nothing
        self.assertEqual(list(slime.on_nodes(engines, settings, str(elsewhere), self.newest()).values()),
                         [f"{elsewhere} is version 2"])
        self.assertEqual(elsewhere.resolve(), self.receiver.directory.resolve())


#: FRAMEWORK -> what is imported of it, and its tests.
CASES = {
    "trl": ("trl", TrlFrameworkTest),
    "verl": ("verl", VerlFrameworkTest),
    "nemo_rl": ("nemo_rl.utils.checkpoint_engines.base", NemoRlFrameworkTest),
    "ray": ("ray", RayFrameworkTest),
}


def main() -> None:
    module, case = CASES[sys.argv[1]]
    try:
        importlib.import_module(module)
    except ImportError as error:
        support.skip(f"{sys.executable} cannot import {module}: {error}")
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())


if __name__ == "__main__":
    main()
