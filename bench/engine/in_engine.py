"""An update of a Qwen3 of 0.6B in an engine's own model class, against the engine's own ways.

Started by bench_engine, in a Python that has the engine; the arguments are the engine's name and
script.py's. Without a server and requests, it measures an update within the pause. Each round
publishes a change of 1 % of all elements. Then deltawire prepares and applies it, vLLM applies the
same elements as a patch (`load_checkpoint_weight_patches`), and the engine reloads the directory,
with the page cache warm. All run in one process, with as many threads for deltawire as for torch
(`--threads`), on the same parameters, which at the end must have the digests of the last version.
"""

import functools
import pathlib
import sys
import time

ENGINE = sys.argv.pop(1)
HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "tests" / "engines"))

import own_models  # noqa: E402
import script  # noqa: E402
import torch  # noqa: E402
from daemons import free_port  # noqa: E402

from deltawire.engine import EngineClient  # noqa: E402

DENSITY = 0.01
#: In addition to the delta itself.
WANTED_MIB = 64.0
#: How often an apply fits into the time of each of the engine's own ways.
WANTED_RATIO = {"sparse patch": 8.0, "reload": 3.0}


class Trainer:
    """Changes 1 % of each tensor; `patch` has the same for vLLM's sparse patch."""

    def __init__(self, tiny: bool):
        self.weights = script.Shape(tiny).tensors()
        self._random = torch.Generator().manual_seed(1)
        self.patch: dict[str, torch.Tensor] = {}

    def step(self) -> None:
        for name, tensor in self.weights.items():
            count = max(1, int(tensor.numel() * DENSITY))
            at = torch.randint(tensor.numel(), (count,), generator=self._random).unique()
            flat = tensor.view(-1)
            flat[at] += (0.01 * torch.randn(len(at), generator=self._random)).to(tensor.dtype)
            self.patch[name] = at


def config_of(shape) -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
        "dtype": "bfloat16", "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.groups, "head_dim": shape.head, "vocab_size": shape.vocab,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True,
        "bos_token_id": 0, "eos_token_id": 1}


def vllm_ways(directory: pathlib.Path, trainer: Trainer):
    """Returns (model, {name: function})."""
    load = own_models.vllm_models(directory, free_port())
    model = load()
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.checkpoint_weight_patch import (
        CheckpointWeightPatch,
        load_checkpoint_weight_patches,
    )
    from vllm.model_executor.model_loader.reload.inplace import reload_weights

    def patches():
        return [CheckpointWeightPatch(name, tuple(t.shape), t.dtype, t.view(-1)[at],
                                      at.to(torch.int32))
                for (name, at), t in zip(trainer.patch.items(), trainer.weights.values())]

    def patch(made):
        load_checkpoint_weight_patches(model, made)

    def reload(_):
        with set_current_vllm_config(load.config), torch.device("cpu"):
            reload_weights(load.config, model, None, str(directory), True)

    return model, {"sparse patch": (patches, patch), "reload": (lambda: None, reload)}


def sglang_ways(directory: pathlib.Path, trainer: Trainer):
    del trainer
    runner = own_models.sglang_runner(directory)

    def reload(_):
        done, why = runner.weight_updater.update_weights_from_disk(str(directory), "auto")[:2]
        if not done:
            raise RuntimeError(why)

    return runner.model, {"reload": (lambda: None, reload)}


def timed(took: dict, name: str, function, *arguments) -> None:
    """Measures wall time, and CPU time of all threads, which other load disturbs less."""
    begin, cpu = time.perf_counter(), time.process_time()
    function(*arguments)
    took[name] = time.perf_counter() - begin
    took[f"cpu of {name}"] = time.process_time() - cpu


def done(outcome) -> float:
    if not outcome:
        raise RuntimeError(outcome.reason)
    return outcome.seconds


def rounds(options, directory: pathlib.Path, publish, trainer: Trainer) -> None:
    model, ways = (vllm_ways if ENGINE == "vllm" else sglang_ways)(directory, trainer)
    threads = max(options.threads, default=1)
    torch.set_num_threads(threads)
    client = EngineClient(directory, threads)
    say = functools.partial(script.say, case=ENGINE, threads=threads)
    attached = client.attach(model, model.load_weights)
    done(attached)
    say(metric="attach", unit="s", runs=[attached.seconds], at_most=1.0, note=attached.described())
    runs: dict[str, list[float]] = {}
    for i in range(options.warmups + options.runs):
        trainer.step()
        publish()
        took: dict[str, float] = {}
        with script.Watch() as watch:
            timed(took, "prepare", lambda: done(client.prepare()))
            timed(took, "apply", lambda: done(client.apply()))
        newest = max((directory / ".deltawire.deltas").glob("[0-9]*"),
                     key=lambda path: path.stat().st_mtime)
        took["memory"] = watch.beyond - newest.stat().st_size / 2**20
        for name, (make, way) in ways.items():
            made = make()
            timed(took, name, way, made)
        if i >= options.warmups:
            for name, value in took.items():
                runs.setdefault(name, []).append(value)
    done(client.check())
    for name in ways:
        say(metric="apply", unit="s", runs=runs["apply"], reference=name, reference_runs=runs[name],
            ratio_at_least=WANTED_RATIO[name])
        say(metric="cpu of apply", unit="s", runs=runs["cpu of apply"], reference=name,
            reference_runs=runs[f"cpu of {name}"])
    say(metric="prepare", unit="s", runs=runs["prepare"])
    say(metric="memory", unit="MiB", runs=runs["memory"], at_most=WANTED_MIB,
        note="of prepare and apply, beyond the delta file")


def published(options):
    """Returns a trainer with a committed first version, and script.published for it."""
    trainer = Trainer(options.tiny)
    return trainer, script.published(options, trainer.weights,
                                     config_of(script.Shape(options.tiny)))


def main():
    options = script.parse_options()
    trainer, daemons = published(options)
    with daemons as (_, receiver, publish):
        rounds(options, receiver.directory, publish, trainer)


if __name__ == "__main__":
    main()
