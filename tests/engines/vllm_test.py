#!/usr/bin/env python3
"""A real vLLM follows a real receiver: each committed version answers, with nothing reloaded.

A trainer changes some elements of a tiny Qwen3 and publishes; the receiver commits; vLLM prepares
while it serves, pauses, writes what changed, and resumes. At the end the engine's own checksums
must be those of a second vLLM that was started on the last version's checkpoint. Requests run all
the time, and none may fail.

Usage: vllm_test.py [--versions N]   (DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

try:
    import torch  # noqa: F401  # pylint: disable=unused-import
    import vllm  # noqa: F401  # pylint: disable=unused-import
except ImportError as error:
    print(f"SKIPPED: {error}; ./run test --engines makes a Python with vLLM")
    sys.exit(0)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from policy import PROMPT, Policy, Requests, check, dense, report_pauses  # noqa: E402
from vllm_server import VllmServer  # noqa: E402


def follow(server: VllmServer, version: int) -> float:
    """Brings the engine to `version`; returns the seconds for which it was paused."""
    server.post("/start_weight_update")
    begin = time.monotonic()
    server.post("/pause?mode=keep")
    server.post("/update_weights", {"update_info": {"version": version}})
    server.post("/finish_weight_update", {"weight_version": str(version)})
    server.post("/reset_prefix_cache")
    server.post("/resume")
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=50)
    versions = parser.parse_args().versions
    with Policy(dense) as policy:
        run(policy, versions)


def run(policy: Policy, versions: int) -> None:
    with VllmServer(policy.directory, policy.root / "vllm.log", "--weight-transfer-config",
                    '{"backend": "deltawire"}') as server:
        server.post("/init_weight_transfer_engine",
                    {"init_info": {"directory": str(policy.directory)}})
        first = server.logprobs(PROMPT)
        with Requests(server) as requests:
            pauses = [follow(server, policy.publish()) for _ in range(1, versions)]
        check(not requests.failures, f"{requests.answered} requests beside {versions - 1} updates, "
              f"none failed {requests.failures[:1]}")
        check(server.get("/weight_info")["weight_version"] == str(versions),
              f"the engine says that it serves version {versions}")
        server.post("/start_weight_update")
        server.post("/update_weights", {"update_info": {"version": versions, "check": True}})
        server.post("/finish_weight_update")
        check(True, "the engine's memory has the digests of the committed version")
        last = server.logprobs(PROMPT)
        sums = server.post("/weight_checker", {"action": "checksum"})["checksums"]
        report_pauses(pauses, requests)
    with VllmServer(policy.directory, policy.root / "fresh.log") as fresh:
        check(last != first, "the last version answers otherwise than the first")
        theirs = fresh.logprobs(PROMPT)
        check(theirs == last,
              "logprobs equal those of a fresh engine on the last version's checkpoint")
        theirs = fresh.post("/weight_checker", {"action": "checksum"})["checksums"]
        check(sums == theirs, f"{len(sums)} checksums equal the fresh engine's own")


if __name__ == "__main__":
    main()
