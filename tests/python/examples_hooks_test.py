"""The examples that hook OpenRLHF and torchtitan, against the published packages; and prime-rl's files.

Usage: examples_hooks_test.py openrlhf | torchtitan | prime_rl. None trains here: OpenRLHF wants DeepSpeed,
Ray, vLLM and GPUs, torchtitan's trainer a GPU, and prime-rl is on no index. OpenRLHF's functions that
the example replaces are compared with its source, and the example's are called as it calls them; vLLM's
worker is a stand-in around a real EngineClient. torchtitan's own checkpoint manager is run over a model
that FSDP2 has cut in two. Of prime-rl the directories are made that its filesystem broadcast makes.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib.util
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("transformers")

from deltawire import control  # noqa: E402
from deltawire.engine import EngineClient  # noqa: E402
from deltawire.integrations import StepPublisher  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "python" / "examples"


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tiny():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(3)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)).to(torch.bfloat16)


def change(module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.add_(torch.randn(local.shape).to(local.dtype))


class Worker:
    """A vLLM engine with one worker, which answers the calls of deltawire's plug-in."""

    def __init__(self, model, directory: pathlib.Path):
        self.model, self.directory, self.calls, self.client = model, directory, [], None

    def load(self, weights) -> None:
        own = dict(self.model.named_parameters())
        for name, tensor in weights:
            own[name].data.copy_(tensor)

    async def collective_rpc(self, method: str, kwargs: dict) -> list[dict]:
        """The example names a directory of its own, for which the test's stands."""
        assert method == "deltawire_call", method
        call = kwargs["call"]
        if call == "reload":
            from safetensors.torch import load_file

            self.load(load_file(self.directory / "model.safetensors").items())
            outcome = True
        elif call == "attach":
            self.client = EngineClient(self.directory)
            outcome = self.client.attach(self.model, self.load)
        else:
            outcome = self.client.prepare() if call == "prepare" else self.client.apply()
            assert self.client.committed.version == kwargs["version"], kwargs
        self.calls.append(call)
        return [{"ok": bool(outcome), "reason": getattr(outcome, "reason", "")}]

    async def pause_generation(self, mode: str) -> None:
        self.calls.append(f"pause {mode}")

    async def reset_prefix_cache(self) -> None:
        self.calls.append("reset")

    async def resume_generation(self) -> None:
        self.calls.append("resume")


class OpenRlhf(unittest.TestCase):
    def source(self, path: str) -> ast.Module:
        root = pathlib.Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])
        return ast.parse((root / path).read_text())

    def method(self, path: str, owner: str, name: str):
        classes = [n for n in self.source(path).body if isinstance(n, ast.ClassDef) and n.name == owner]
        found = [n for n in classes[0].body if getattr(n, "name", "") == name]
        self.assertEqual(len(found), 1, f"{owner}.{name}")
        return found[0]

    def test_what_the_example_replaces(self):
        ours = {node.name: node for node in ast.parse((EXAMPLES / "openrlhf_ppo.py").read_text()).body
                if hasattr(node, "name")}
        theirs = self.method("trainer/ray/ppo_actor.py", "PolicyModelActor", "broadcast_to_vllm")
        self.assertEqual(len(theirs.args.args), len(ours["publish"].args.args))
        theirs = self.method("trainer/ray/vllm_engine.py", "RolloutRayActor", "update_weight")
        self.assertIsInstance(theirs, type(ours["update"]))  # async
        self.assertEqual([a.arg for a in theirs.args.args], ["self", "name", "dtype", "shape", "empty_cache"])
        self.assertIn("self.llm.collective_rpc", ast.unparse(theirs))

    def test_what_the_example_asks_for(self):
        actor = ast.unparse(self.source("trainer/ray/ppo_actor.py"))
        for text in ("self.trainer = ActorPPOTrainer(", "self.strategy = strategy", "self.vllm_engines = vllm_engines",
                     "model = self.actor.model.module", "self.trainer.broadcast_to_vllm()"):
            self.assertIn(text, actor)
        self.method("utils/deepspeed/deepspeed.py", "DeepspeedStrategy", "is_rank_0")
        engine = ast.unparse(self.source("trainer/ray/vllm_engine.py"))
        for text in ("self.llm.reset_prefix_cache()", "self.llm.pause_generation(mode='keep')",
                     "self.llm.resume_generation()", "@ray.remote"):
            self.assertIn(text, engine)
        launched = ast.unparse(self.source("cli/train_ppo_ray.py"))
        self.assertIn("__name__ == '__main__'", launched)
        self.assertIn("args.actor.model_name_or_path", launched)

    def test_versions_from_the_trainer_into_the_engine(self):
        fake = types.ModuleType("ray")
        fake.get = lambda refs: [asyncio.run(ref) for ref in refs]
        with unittest.mock.patch.dict(sys.modules, {"ray": fake}), support.Cluster() as cluster, \
                tempfile.TemporaryDirectory() as base:
            ours = example("openrlhf_ppo")
            receiver = cluster.follow("policy")
            ours.StepPublisher = functools.partial(StepPublisher, endpoint=cluster.endpoint)
            ours.Sender = lambda _, model: control.Sender(cluster.control, model=model)
            trained, engine = tiny(), types.SimpleNamespace(llm=Worker(tiny(), receiver.directory))
            trained.save_pretrained(base)

            engine.update_weight = types.SimpleNamespace(remote=functools.partial(ours.update, engine))
            strategy = types.SimpleNamespace(
                is_rank_0=lambda: True,
                args=types.SimpleNamespace(actor=types.SimpleNamespace(model_name_or_path=base)))
            actor = types.SimpleNamespace(trainer=types.SimpleNamespace(
                strategy=strategy, vllm_engines=[engine],
                actor=types.SimpleNamespace(model=types.SimpleNamespace(module=trained))))
            for version in (1, 2, 3):
                change(trained)
                ours.publish(actor)
                self.assertEqual(actor.steps.version, version)
                for name, tensor in trained.state_dict().items():
                    self.assertTrue(torch.equal(tensor, engine.llm.model.state_dict()[name]), name)
            steps = ["pause keep", "{}", "{}", "reset", "resume"]
            first = [text.format(call) for text, call in zip(steps, ("", "reload", "attach", "", ""))]
            later = [text.format(call) for text, call in zip(steps, ("", "prepare", "apply", "", ""))]
            self.assertEqual(engine.llm.calls, first + later + later)


def rank_main(rank: int, world: int, store: str, endpoint: str, base: str, out: str) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

    class Adapter(BaseStateDictAdapter):
        """Names of torchtitan's kind."""

        fqn_to_index_mapping, hf_assets_path = None, base

        def __init__(self):
            pass

        def to_hf(self, state_dict):
            return {name.removeprefix("own."): tensor for name, tensor in state_dict.items()}

        def from_hf(self, hf_state_dict):
            return {"own." + name: tensor for name, tensor in hf_state_dict.items()}

        def get_hf_storage_reader(self, path, from_quantized=False):
            raise NotImplementedError

    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    module = torch.nn.Module()
    module.own = tiny()
    fully_shard(module, mesh=init_device_mesh("cpu", (world,)))
    config = example("torchtitan_checkpoints").PublishingCheckpoints.Config(
        enable=True, every=2, endpoint=endpoint, interval=1000, keep_latest_k=0)
    manager = config.build(
        dataloader=None, model_parts=[module], optimizers=None, lr_schedulers=None, states={},
        sd_adapter=Adapter(), base_folder=out)
    for step in (1, 2, 3, 4, 5):
        torch.manual_seed(step)
        change(module)
        manager.save(step, last_step=step == 5)
    manager.close()
    state = {name: t.full_tensor() for name, t in Adapter().to_hf(module.state_dict()).items()}
    if rank == 0:
        torch.save(state, f"{out}/state.pt")
    dist.barrier()
    dist.destroy_process_group()


class Torchtitan(unittest.TestCase):
    def test_its_checkpoint_manager_over_two_ranks(self):
        with support.Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
            base = pathlib.Path(folder) / "base"
            tiny().save_pretrained(base)
            receiver = cluster.follow("policy")
            command = [sys.executable, __file__, "rank"]
            ranks = [support.spawn([*command, str(rank), "2", f"{folder}/store", cluster.endpoint,
                                    str(base), folder]) for rank in range(2)]
            for rank in ranks:
                self.assertEqual(rank.wait(timeout=120), 0)
            receiver.await_version(5)
            want = torch.load(f"{folder}/state.pt")
            got = cluster.content("policy")
            self.assertEqual(set(got), set(want))
            for name, tensor in want.items():
                self.assertEqual(got[name][2], tensor.view(torch.int16).numpy().tobytes(), name)
            self.assertTrue((pathlib.Path(folder) / "checkpoint" / "step-5").is_dir())


class PrimeRl(unittest.TestCase):
    def test_the_directories_of_its_filesystem_broadcast(self):
        from safetensors.torch import save_file

        with support.Cluster() as cluster, tempfile.TemporaryDirectory() as run:
            receiver = cluster.follow("policy")
            broadcasts = pathlib.Path(run) / "broadcasts"
            broadcasts.mkdir()
            watching = support.spawn([str(support.programs() / "deltawire"), "publish", "--watch", str(broadcasts),
                                      "--model", "policy", "--socket", f"{cluster.endpoint}/trainer.sock"])
            self.addCleanup(watching.wait)
            self.addCleanup(watching.kill)  # first
            model = tiny()
            for step in (1, 2):
                change(model)
                directory = broadcasts / f"step_{step}"
                directory.mkdir()
                save_file(model.state_dict(), directory / "model.safetensors")
                (directory / "STABLE").touch()
                receiver.await_version(step)
                got = cluster.content("policy")
                for name, tensor in model.state_dict().items():
                    self.assertEqual(got[name][2], tensor.view(torch.int16).numpy().tobytes(), name)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
    else:
        package = sys.argv.pop(1)
        if package != "prime_rl" and importlib.util.find_spec(package) is None:
            support.skip(f"{sys.executable} has no {package}")
        unittest.main(defaultTest={"openrlhf": "OpenRlhf", "torchtitan": "Torchtitan", "prime_rl": "PrimeRl"}[package])
