#!/usr/bin/env python3
"""A real vLLM follows a real receiver: each committed version answers, with nothing reloaded.

A trainer changes some elements of a tiny model and publishes; the receiver commits; vLLM prepares
while it serves, pauses, writes what changed, and resumes. At the end the engine's own checksums
must be those of a second vLLM that was started on the last version's checkpoint. Requests run all
the time, and none may fail. Before each update come calls that are refused, after which all ranks
must be in step. With --breaks things break around the server then, which must stay at one version.

Usage: vllm_test.py [--model NAME] [--ranks N] [--stages N] [--replicas N] [--async-scheduling]
                    [--draft] [--versions N] [--computed] [--packed-experts] [--breaks]
(DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import os
import time

import engine_python

engine_python.require("torch", "vllm")

import vllm_breaks  # noqa: E402
from policy import (  # noqa: E402
    LATENT_MODELS,
    MODELS,
    PLAIN_LATENT,
    PROMPT,
    Policy,
    Predicting,
    Requests,
    check,
    report_pauses,
)
from vllm_server import VllmServer  # noqa: E402


def follow(server: VllmServer, version: int) -> float:
    """Brings the engine to `version`; returns the seconds for which it was paused."""
    server.denied("apply", version=version)
    server.denied("prove", version=version, epoch=0, lineage="0" * 32, root="0" * 16)
    server.do("prepare")
    begin = time.monotonic()
    server.post("/pause?mode=keep")
    server.do("apply", version=version)
    server.post("/reset_prefix_cache")
    server.name_version(version)
    server.post("/resume")
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="dense")
    parser.add_argument("--ranks", type=int, default=1, help="of tensor parallelism")
    parser.add_argument("--stages", type=int, default=1, help="of pipeline parallelism")
    parser.add_argument("--replicas", type=int, default=1, help="of data parallelism")
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--draft", action="store_true",
                        help="of multi-token prediction, from the served checkpoint")
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--computed", action="store_true",
                        help="the engine holds fp32, so that its loader computes every tensor")
    parser.add_argument("--packed-experts", action="store_true",
                        help="vLLM packs them after its load, as it does on a CPU")
    parser.add_argument("--breaks", action="store_true")
    arguments = parser.parse_args()
    if arguments.packed_experts:
        os.environ["DELTAWIRE_TEST_PACKED_EXPERTS"] = "1"  # of all servers
    with Policy(Predicting if arguments.draft else MODELS[arguments.model]) as policy:
        run(policy, arguments)


def attach(server: VllmServer, policy: Policy, arguments: argparse.Namespace) -> None:
    info: dict = {"directory": str(policy.directory)}
    refused = None
    if arguments.computed or arguments.draft:  # GLM computes its gates in fp32
        refused, option = "loader_tensors=True lets it", "loader_tensors"
    elif arguments.packed_experts:
        refused, option = "changes them after loading", "second_instance"
    if refused is not None:
        text = server.denied("attach", **info)
        check(refused in text, f"by the loader's moves alone it is refused: {text[:200]}")
        info[option] = True
    untaken = server.do("attach", **info)["untaken"]
    copies = ["model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight"]
    check(sorted(untaken) == (copies if arguments.draft else []),
          f"the engine has every tensor of the version, but {untaken}")
    if arguments.draft or arguments.packed_experts:
        text = server.denied("reload", directory=str(policy.directory))
        check("vLLM's own reload" in text, f"it does not reload: {text}")


def run(policy: Policy, arguments: argparse.Namespace) -> None:
    versions = arguments.versions
    options = ["--tensor-parallel-size", str(arguments.ranks),
               "--pipeline-parallel-size", str(arguments.stages),
               "--data-parallel-size", str(arguments.replicas),
               "--async-scheduling" if arguments.async_scheduling else "--no-async-scheduling"]
    if arguments.computed:
        options += ["--dtype", "float32"]
    if arguments.draft:
        options += ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}']
    if arguments.model in LATENT_MODELS:
        options += ["--attention-backend", PLAIN_LATENT]
    with VllmServer(policy.directory, policy.root / "vllm.log", *options) as server:
        server.replicas = arguments.replicas
        for call in ("prepare", "check", "no-such-call"):
            server.denied(call)
        attach(server, policy, arguments)
        first = server.logprobs(PROMPT)
        with Requests(server) as requests:
            pauses = [follow(server, policy.publish()) for _ in range(1, versions)]
            if arguments.breaks:
                vllm_breaks.run(server, policy, arguments.ranks)
        check(not requests.failures, f"{requests.answered} requests beside {versions - 1} updates, "
              f"none failed {requests.failures[:1]}")
        check(server.version() == str(policy.version),
              f"the engine says that it serves version {policy.version}")
        if arguments.draft:
            server.denied("attach", draft_directory=str(policy.directory))
        held = server.do("check")["held"]
        check(held["version"] == policy.version and server.do("prove", **held)["ok"],
              f"the engine's memory has the digests of the committed version: {held}")
        last = server.logprobs(PROMPT)
        sums = server.checksums() if arguments.replicas == 1 else {}
        report_pauses(pauses, requests)
    with VllmServer(policy.directory, policy.root / "fresh.log", *options) as fresh:
        check(last != first, "the last version answers otherwise than the first")
        theirs = fresh.logprobs(PROMPT)
        check(theirs == last,
              "logprobs equal those of a fresh engine on the last version's checkpoint")
        if sums:
            check(sums == fresh.checksums(), f"{len(sums)} checksums equal the fresh engine's own")


if __name__ == "__main__":
    main()
