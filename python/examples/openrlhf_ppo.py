"""OpenRLHF's PPO with weights through deltawire: openrlhf_ppo.py ARGUMENTS OF train_ppo_ray

A sender runs beside the trainer's first rank, and beside each vLLM a receiver with the directory
/dev/shm/policy. All of Ray's workers have deltawire.
"""

import runpy

import ray
from deltawire.control import Sender
from deltawire.integrations import StepPublisher


def publish(actor):  # PolicyModelActor.broadcast_to_vllm, on every rank
    trainer, strategy = actor.trainer, actor.trainer.strategy
    if not hasattr(actor, "steps"):
        actor.steps = StepPublisher(1, hf_dir=strategy.args.actor.model_name_or_path)
    actor.steps.stepped(trainer.actor.model.module, actor.steps.version + 1)
    if strategy.is_rank_0():
        Sender("127.0.0.1:7700", model="policy").wait_committed(actor.steps.version)
        ray.get([engine.update_weight.remote(actor.steps.version, None, None)
                 for engine in trainer.vllm_engines])


async def update(engine, version, *_):  # RolloutRayActor.update_weight, once a version
    follows, engine.follows = vars(engine).get("follows"), True
    options = {"version": version} if follows else {"directory": "/dev/shm/policy"}
    await engine.llm.pause_generation(mode="keep")
    for call in ("prepare", "apply") if follows else ("reload", "attach"):
        said = await engine.llm.collective_rpc("deltawire_call", kwargs={
            "call": call, "nonce": f"{call} {version}", **options})
        assert said[0]["ok"], said[0]["reason"]
    await engine.llm.reset_prefix_cache()
    await engine.llm.resume_generation()


if __name__ == "__main__":
    from openrlhf.trainer.ray import ppo_actor, vllm_engine

    for cls, name, ours in ((ppo_actor.PolicyModelActor, "broadcast_to_vllm", publish),
                            (vllm_engine.RolloutRayActor, "update_weight", update)):
        setattr(cls.__ray_metadata__.modified_class, name, ours)
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
