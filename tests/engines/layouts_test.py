#!/usr/bin/env python3
"""How the layouts of an engine's own model classes are found, for a tiny model of each family.

Each model is loaded by the engine's own loader, attached to, and brought through three versions in
place; each time every parameter must be, bit by bit, what the engine's own load of that version
gives. Prints a table: of the checkpoint's bytes, which share is moved as shapes show, which as
numbers show, and which the loader computes.

With --packed vLLM packs and pads experts after their load, as it does on a CPU, so that numbers in
other instances of the model must show where they end.

Usage: layouts_test.py vllm|sglang [--packed] [--model NAME]
(DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import subprocess
import sys

ENGINE = sys.argv[1]
try:
    import torch

    importlib.import_module("transformers")
    if importlib.util.find_spec(ENGINE) is None:
        raise ImportError(f"no module named {ENGINE}")
except ImportError as error:
    print(f"SKIPPED: {error}; ./run test --engines makes a Python with {ENGINE}")
    sys.exit(0)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import own_models  # noqa: E402
from daemons import free_port  # noqa: E402
from newer_families import NEWER_MODELS  # noqa: E402
from policy import (  # noqa: E402
    LATENT_MODELS,
    MODELS,
    PACKED_MODELS,
    PLAIN_LATENT,
    Policy,
    check,
)

from deltawire.engine import EngineClient  # noqa: E402

VERSIONS = 3
ALL_MODELS = MODELS | (NEWER_MODELS if ENGINE == "vllm" else {})
#: Parameters that the engine computes from others after its load; vllm_test.py follows them.
DERIVED = (".W_UV", ".W_UK_T")
#: Models that the engine cannot build on a CPU, and a part of its own words for it.
CANNOT: dict[str, dict[str, str]] = {
    "vllm": {}, "sglang": {"gpt_oss": "GptOssForCausalLM requires one of"}}


def same(mine: torch.Tensor, fresh: torch.Tensor) -> bool:
    return mine.shape == fresh.shape and torch.equal(
        mine.detach().contiguous().view(-1).view(torch.uint8),
        fresh.detach().contiguous().view(-1).view(torch.uint8))


def computed(model) -> dict[str, torch.Tensor]:
    """What SGLang's latent attention keeps of kv_b_proj once more, and is no parameter."""
    return {f"{name}.{part}": getattr(module, part) for name, module in model.named_modules()
            for part in ("w_kc", "w_vc") if isinstance(getattr(module, part, None), torch.Tensor)}


def follows(model, load, client: EngineClient, policy: Policy) -> int:
    """Returns how many parameters were compared at each version, beside the buffers."""
    mine = {n: p for n, p in model.named_parameters() if not n.endswith(DERIVED)}
    for _ in range(VERSIONS):
        policy.publish()
        for step in (client.prepare, client.apply, client.check):
            outcome = step()
            check(bool(outcome), f"{step.__name__}: {outcome.reason or 'done'}")
        if hasattr(model, "post_load_weights"):  # as SGLang's plug-in has it called
            model.post_load_weights()
        fresh = load()
        theirs = dict(fresh.named_parameters()) | dict(fresh.named_buffers()) | computed(fresh)
        now = mine | dict(model.named_buffers()) | computed(model)
        wrong = [name for name, parameter in now.items() if not same(parameter, theirs[name])]
        check(not wrong and bool(mine), f"version {policy.version}: {len(mine)} parameters are "
              f"what the engine's own load gives {wrong}")
    return len(mine)


def attach(client: EngineClient, model, loader, load, packed: bool):
    if not packed:
        return client.attach(model, loader, loader_tensors=True)
    from deltawire.engine.vllm import second_instance

    refused = client.attach(model, loader)
    check(not refused, f"by the loader alone it is refused: {refused.reason}")
    return client.attach(model, loader, second=second_instance(load.config, torch.device("cpu")))


def one(name: str, packed: bool) -> None:
    """Of one model. Prints a line of JSON at the end."""
    with Policy((ALL_MODELS | PACKED_MODELS)[name]) as policy:
        if ENGINE == "vllm":
            latent = {"attention_backend": PLAIN_LATENT} if name in LATENT_MODELS else {}
            load = own_models.vllm_models(policy.directory, free_port(), not packed, **latent)
        else:
            load = own_models.sglang_models(policy.directory)
        model = load()
        client = EngineClient(policy.directory)
        loader = model.load_weights
        if ENGINE == "sglang":
            from deltawire.engine.sglang import loader_of

            loader = loader_of(model)
        attached = attach(client, model, loader, load, packed)
        check(bool(attached), f"{name} is attached to: {attached.reason or attached.described()}")
        compared = follows(model, load, client, policy)
        sizes = policy.sizes()
        total = sum(sizes.values())
        numbers, loader = (100 * sum(sizes[t] for t in tensors) / total
                           for tensors in (attached.by_numbers, attached.by_loader))
        print(json.dumps([name, len(sizes), compared, attached.boxes, 100 - numbers - loader,
                          numbers, loader, 1e3 * (attached.seconds if packed else
                                                  attached.trace_seconds)]), flush=True)


def in_its_own_process(name: str, packed: bool) -> str:
    """A row of the table."""
    done = subprocess.run([sys.executable, "-B", __file__, ENGINE, "--model", name,
                           *(["--packed"] if packed else [])],
                          capture_output=True, text=True, check=False)
    cannot = CANNOT[ENGINE].get(name)
    if cannot is not None:
        check(done.returncode != 0 and cannot in done.stdout + done.stderr,
              f"{ENGINE} cannot build {name} on a CPU: {cannot}")
        return f"| `{name}` | not built: {cannot} |"
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
    check(done.returncode == 0, f"{name}: exact at {VERSIONS} versions")
    row = json.loads(done.stdout.splitlines()[-1])
    return ("| `{}` | {} | {} | {} | {:.1f} % | {:.1f} % | {:.1f} % | {:.0f} ms |").format(*row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("--packed", action="store_true", help="vLLM packs experts")
    parser.add_argument("--model", choices=sorted(ALL_MODELS | PACKED_MODELS),
                        help="this one alone, in this process")
    arguments = parser.parse_args()
    if arguments.model:
        one(arguments.model, arguments.packed)
        return
    took = "attach" if arguments.packed else "trace"
    print(f"{ENGINE}: model | tensors | parameters | boxes | trace | numbers | loader | {took} took")
    for name in PACKED_MODELS if arguments.packed else ALL_MODELS:
        print(in_its_own_process(name, arguments.packed), flush=True)


if __name__ == "__main__":
    main()
