#!/usr/bin/env python3
"""Models beside the one that a vLLM server serves: its draft model, and a LoRA adapter.

Each is a model of its own, with a trainer, a receiver and versions. The draft of speculative
decoding is written in place through the plug-in; whatever it holds, the answers must stay those of
the served model, which follows its own versions in between. The receiver has vLLM load the adapter
at each commit; its answers must be those of a server that was started with the last version.

Usage: other_models_test.py [--versions N]
(DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import json
import sys

import engine_python

engine_python.require("torch", "vllm")

from daemons import DEADLINE_S  # noqa: E402
from policy import PROMPT, Adapter, Policy, Requests, check, dense, draft  # noqa: E402
from vllm_server import VllmServer  # noqa: E402


def follow(server: VllmServer, policy: Policy, draft: bool) -> None:
    version = policy.publish()
    server.do("prepare", draft=draft)
    server.do("apply", version=version, check=True, draft=draft)


def run_draft(versions: int) -> None:
    with Policy(dense) as policy, Policy(draft) as drafted:
        speculation = json.dumps({"method": "draft_model", "model": str(drafted.directory),
                                  "num_speculative_tokens": 3})
        with VllmServer(policy.directory, policy.root / "vllm.log",
                        "--speculative-config", speculation) as server:
            server.do("attach", directory=str(policy.directory),
                      draft_directory=str(drafted.directory))
            first, sums = server.logprobs(PROMPT), server.checksums()
            with Requests(server) as requests:
                for _ in range(versions):
                    follow(server, drafted, True)
            check(not requests.failures, f"{requests.answered} requests beside {versions} updates "
                  f"of the draft model, each compared with its digests; none failed "
                  f"{requests.failures[:1]}")
            check(server.checksums() == sums and server.logprobs(PROMPT)[0] == first[0],
                  "the served model has the same bytes, and answers the same tokens")
            follow(server, policy, False)
            check(server.checksums() != sums, "the served model follows its own version")
            follow(server, drafted, True)
            last, sums = server.logprobs(PROMPT), server.checksums()
        with VllmServer(policy.directory, policy.root / "fresh.log") as fresh:
            check(fresh.checksums() == sums and fresh.logprobs(PROMPT)[0] == last[0],
                  "as a fresh engine without a draft model does")


def run_adapter(versions: int) -> None:
    with Policy(dense) as policy, Policy(Adapter) as adapter:
        lora = ("--enable-lora", "--max-lora-rank", str(Adapter.RANK))
        with VllmServer(policy.directory, policy.root / "vllm.log", *lora) as server:
            plain = server.logprobs(PROMPT)
            adapter.daemons.kill("deltawire-receiver")
            links = adapter.root / "links"
            adapter.receiver_options = ["--engine", (
                f"exec={sys.executable} -m deltawire.engine.adapter "
                f"http://127.0.0.1:{server.port} --name tuned --links {links} "
                f"--timeout {DEADLINE_S}"), "--engine-timeout-ms", str(1000 * DEADLINE_S)]
            adapter.start_receiver()
            adapter.receiver.await_served(adapter.version)
            server.adapter = "tuned"
            first = server.logprobs(PROMPT)
            with Requests(server) as requests:
                for _ in range(versions):
                    adapter.receiver.await_served(adapter.publish())
            check(not requests.failures, f"{requests.answered} requests of the adapter beside "
                  f"{versions} versions of it, none failed {requests.failures[:1]}")
            last = server.logprobs(PROMPT)
            check(len({str(answer) for answer in (plain, first, last)}) == 3,
                  "the model, the first version and the last one answer otherwise")
            server.adapter = None
            check(server.logprobs(PROMPT) == plain, "the model itself answers as before")
        with VllmServer(policy.directory, policy.root / "fresh.log", *lora, "--lora-modules",
                        f"tuned={links / 'tuned' / f'v{adapter.version}'}") as fresh:
            fresh.adapter = "tuned"
            check(fresh.logprobs(PROMPT) == last,
                  "logprobs equal those of a server that was started with the last version")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=10)
    versions = parser.parse_args().versions
    run_draft(versions)
    run_adapter(versions)


if __name__ == "__main__":
    main()
