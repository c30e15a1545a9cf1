#!/usr/bin/env python3
"""A receiver drives a real vLLM of several ranks, and is killed again and again.

Requests run beside it, and none may fail. After each step the status must say that the engine
serves what is committed, without a failed call; at the end every rank's memory is compared with the
committed bytes, and logprobs equal those of a server that was started on the last version.

Usage: ranks_test.py tp|pp|dp [--async-scheduling] [--versions N] [--restarts N] [--skew SECONDS]
(DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import os
import time

import engine_python

engine_python.require("torch", "vllm")

from daemons import DEADLINE_S  # noqa: E402
from policy import PROMPT, Policy, Requests, check, dense, experts  # noqa: E402
from vllm_server import VllmServer  # noqa: E402

#: The model, the server's options, and how many ranks one engine has.
TOPOLOGIES = {
    "tp": (dense, ["--tensor-parallel-size", "2"]),
    "pp": (dense, ["--pipeline-parallel-size", "2"]),
    "dp": (experts, ["--data-parallel-size", "2"]),
}


class Fleet:
    """A receiver and the vLLM that it drives."""

    def __init__(self, policy: Policy, server: VllmServer):
        self.policy, self.server = policy, server
        self.failures = 0  # of calls, by receivers that were killed
        policy.receiver_options = ["--engine", f"vllm=http://127.0.0.1:{server.port}",
                                   "--engine-timeout-ms", str(1000 * DEADLINE_S)]

    def status(self) -> dict:
        return (self.policy.receiver.status().get("engines") or [{}])[0]

    def restart(self) -> None:
        self.policy.daemons.kill("deltawire-receiver")
        self.policy.start_receiver()

    def serves(self) -> None:
        self.policy.receiver.await_served(self.policy.version)
        status = self.status()
        failed = {name: status.get(name) for name in ("failures", "error", "paused")
                  if status.get(name) not in (None, 0, "0", "", False)}
        check(not failed, f"it serves version {self.policy.version}, and no call has failed: "
              f"{failed or status['state']}")


def drive(fleet: Fleet, versions: int, restarts: int) -> None:
    fleet.restart()
    begin = time.monotonic()
    fleet.serves()
    print(f"first contact: {time.monotonic() - begin:.1f} s", flush=True)
    for _ in range(versions):
        fleet.policy.publish()
        fleet.serves()
    for _ in range(restarts):
        fleet.restart()
        fleet.policy.publish()
        fleet.serves()
    code, said = fleet.policy.receiver.verify_engines()
    check(code == 0, f"all memory of all ranks is compared: {said.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topology", choices=sorted(TOPOLOGIES))
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--skew", default="0.1", help="seconds, of the second replica's calls")
    arguments = parser.parse_args()
    make, options = TOPOLOGIES[arguments.topology]
    options = [*options, "--async-scheduling" if arguments.async_scheduling else
               "--no-async-scheduling"]
    os.environ["DELTAWIRE_TEST_SKEW_S"] = arguments.skew
    with Policy(make) as policy:
        with VllmServer(policy.directory, policy.root / "vllm.log", *options) as server:
            first = server.logprobs(PROMPT)
            with Requests(server) as requests:
                drive(Fleet(policy, server), arguments.versions, arguments.restarts)
            check(not requests.failures, f"{requests.answered} requests beside "
                  f"{policy.version - 1} versions and {arguments.restarts} restarts of the "
                  f"receiver, none failed {requests.failures[:1]}")
            last = server.logprobs(PROMPT)
            check(last != first, "the last version answers otherwise than the first")
        with VllmServer(policy.directory, policy.root / "fresh.log", *options) as fresh:
            check(fresh.logprobs(PROMPT) == last,
                  "logprobs equal those of a fresh engine on the last version's checkpoint")


if __name__ == "__main__":
    main()
