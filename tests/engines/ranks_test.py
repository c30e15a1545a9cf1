#!/usr/bin/env python3
"""A receiver drives a real vLLM or SGLang of several ranks, and is killed again and again.

Requests run beside it, and none may fail. After each step the status must say that the engine
serves the committed version, without a failed call, and every rank's memory must have its digests.
At the end logprobs equal those of a server that was started on the last version. With --breaks
answers of the engine are lost, its calls come twice, one rank is slow, has no memory, and is killed,
two receivers drive the engine at once, one is started anew 20 times in a row, and the engine sleeps.

Usage: ranks_test.py one|tp|pp|dp|sglang [--async-scheduling] [--versions N] [--restarts N]
                     [--skew SECONDS] [--breaks]
(DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

import engine_python

ENGINE = "sglang" if "sglang" in sys.argv[1:2] else "vllm"
engine_python.require("torch", ENGINE)

from daemons import DEADLINE_S, until  # noqa: E402
from engine_server import EngineServer  # noqa: E402
from policy import (  # noqa: E402
    PROMPT,
    SEED,
    Policy,
    Requests,
    check,
    dense,
    experts,
    report_pauses,
    report_times,
)
from sglang_server import SglangServer  # noqa: E402
from unkind_gateway import Gateway  # noqa: E402
from vllm_server import VllmServer  # noqa: E402

#: The model and the server's options. SGLang: two ranks of tensor parallelism.
TOPOLOGIES = {
    "one": (dense, []),
    "tp": (dense, ["--tensor-parallel-size", "2"]),
    "pp": (dense, ["--pipeline-parallel-size", "2"]),
    "dp": (experts, ["--data-parallel-size", "2"]),
    "sglang": (dense, []),
}


#: The calls of an update, by words that no other request has.
CALLS = ("/pause", '"call":"prepare"', '"call":"apply"', "/reset_prefix_cache", '"call":"prove"',
         "/update_weight_version", "/resume") if ENGINE == "vllm" else (
             "&prepare", "/pause_generation", "/update_weights_from_disk", "/continue_generation")
#: A receiver's life, at most, in a row of restarts.
SHORT_LIFE_S = 1.0
IN_A_ROW = 20
#: Requests that are timed while nothing is updated.
QUIET = 20


class Fleet:
    """A receiver and the vLLM that it drives, through a gateway."""

    def __init__(self, policy: Policy, server: EngineServer, gateway: Gateway):
        self.policy, self.server, self.gateway = policy, server, gateway
        policy.receiver_options = ["--engine", f"{ENGINE}=http://127.0.0.1:{gateway.port}",
                                   "--engine-timeout-ms", str(1000 * DEADLINE_S)]
        self.pauses: list[float] = []  # seconds, of each version that was awaited
        self.may_reload = policy.make is not experts  # vLLM packs experts once, at its first load

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
        self.pauses.append(status["last_pause_seconds"])
        self.compare()

    def compare(self) -> None:
        code, said = self.policy.receiver.verify_engines()
        check(code == 0, f"all memory of all ranks is compared: {said.strip()}")

    def recovers(self, what: str) -> None:
        """It comes to what is committed, on every rank, whatever has failed before."""
        self.policy.receiver.await_served(self.policy.version)
        code, said = self.policy.receiver.verify_engines()
        check(code == 0 and not self.status()["paused"] and bool(self.server.logprobs(PROMPT)),
              f"{what}: it serves version {self.policy.version}, and {said.strip()}")

    def log_lines(self, words: str) -> int:
        """Lines of the receivers' logs that have these words."""
        return sum(words in line for log in self.policy.root.glob("deltawire-receiver-*.log")
                   for line in log.read_text().splitlines())


def make_server(policy: Policy, log: str, options: list[str]) -> EngineServer:
    if ENGINE == "sglang":
        return SglangServer(policy.directory, policy.root / log, ranks=2)
    return VllmServer(policy.directory, policy.root / log, *options)


def quiet(server: EngineServer) -> list[float]:
    """Returns the seconds that requests take without updates."""
    took = []
    for _ in range(QUIET):
        begin = time.monotonic()
        server.logprobs(PROMPT)
        took.append(time.monotonic() - begin)
    return took


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


def in_a_row(fleet: Fleet) -> None:
    """At any moment of the course, so lives are of random length."""
    lives = random.Random(SEED)
    begin = time.monotonic()
    for i in range(IN_A_ROW):
        if i % 4 == 0:
            fleet.policy.publish()
        time.sleep(lives.uniform(0, SHORT_LIFE_S))
        fleet.restart()
    took = time.monotonic() - begin
    fleet.recovers(f"{IN_A_ROW} restarts of the receiver in {took:.0f} s")


def unkind_answers(fleet: Fleet) -> None:
    for fault in (fleet.gateway.lose, fleet.gateway.repeat):
        for call in CALLS:
            fault(call)
            fleet.policy.publish()
            fleet.policy.receiver.await_served(fleet.policy.version)
            check(fleet.gateway.met.is_set(), f"{fault.__name__} {call}")
        fleet.recovers(f"after each call of an update had one {fault.__name__}")


def slow_rank(fleet: Fleet) -> None:
    fleet.server.plant.write_text("slow")
    for _ in range(3):
        fleet.policy.publish()
        fleet.policy.receiver.await_served(fleet.policy.version)
    fleet.recovers("the second rank is slow")
    fleet.server.plant.unlink()


def no_memory(fleet: Fleet) -> None:
    """A server whose own reload would leave wrong weights goes on with the version before."""
    fleet.server.plant.write_text("memory")
    since, old = fleet.log_lines("a planted lack of memory"), fleet.policy.version
    fleet.policy.publish()
    if ENGINE == "sglang":  # it attaches by a prepare, so nothing can be compared
        fleet.policy.receiver.await_served(fleet.policy.version)
        check(not fleet.status()["paused"] and bool(fleet.server.logprobs(PROMPT)),
              f"one rank has no memory to prepare in: {fleet.status()['error']}")
    elif fleet.may_reload:
        fleet.recovers("one rank has no memory to prepare in, so the engine has read the directory")
    else:
        until(lambda: fleet.status()["state"] == "behind", "the engine is behind")
        status = fleet.status()
        check(int(status["served"]["version"]) == old and not status["paused"]
              and fleet.server.version() == str(old) and bool(fleet.server.logprobs(PROMPT)),
              f"one replica has no memory to prepare in, and all go on with version {old}: "
              f"{status['error']}")
    check(fleet.log_lines("a planted lack of memory") > since, "the receiver's log says why")
    fleet.server.plant.unlink()
    fleet.policy.publish()
    fleet.recovers("it has memory again")
    check(not fleet.status()["error"], "and it is updated in place")


def two_receivers(fleet: Fleet) -> None:
    """Of the same model, each with its own directory: both hand it the same versions."""
    policy = fleet.policy
    other = policy.daemons.start_receiver(
        [policy.sender], "policy", policy.root / "second" / "policy", *policy.receiver_options)
    for _ in range(5):
        policy.publish()
    other.await_version(policy.version)
    other.await_served(policy.version)
    fleet.recovers("two receivers drive it")
    policy.daemons.kill("deltawire-receiver")
    policy.start_receiver()
    policy.publish()
    fleet.recovers("one of them is left")


def sleeps(fleet: Fleet) -> None:
    """Of the workers' share there is a stand-in (topology_aids.py)."""
    for level in (1, 2) if fleet.may_reload else (1,):
        fleet.server.post(f"/sleep?level={level}&mode=keep")
        fleet.policy.publish()
        until(lambda: fleet.status()["state"] == "asleep", "the status says that it sleeps")
        check(not int(fleet.status()["served"]["epoch"]), "it sleeps, and nothing is served")
        fleet.server.post("/wake_up")
        fleet.recovers(f"it slept at level {level}, and is awake")


def killed_rank(fleet: Fleet) -> None:
    fleet.server.plant.write_text("kill one")
    fleet.policy.publish()
    check(fleet.server.ended(DEADLINE_S), "one rank was killed in a write, and the server ends")
    fleet.server.plant.unlink()
    fleet.server.__exit__()
    fleet.server.__enter__()
    fleet.recovers("the server was started anew")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topology", choices=sorted(TOPOLOGIES))
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--skew", default="0.1", help="seconds, of the second replica's calls")
    parser.add_argument("--breaks", action="store_true")
    arguments = parser.parse_args()
    make, options = TOPOLOGIES[arguments.topology]
    options = [*options, "--async-scheduling" if arguments.async_scheduling else
               "--no-async-scheduling"]
    os.environ["DELTAWIRE_TEST_SKEW_S"] = arguments.skew
    with Policy(make) as policy:
        with (make_server(policy, "engine.log", options) as server,
              Gateway(server.port) as gateway):
            first = server.logprobs(PROMPT)
            fleet = Fleet(policy, server, gateway)
            report_times("request without updates", quiet(server))
            with Requests(server) as requests:
                drive(fleet, arguments.versions, arguments.restarts)
                report_pauses(fleet.pauses, requests)
                if arguments.breaks:
                    for break_ in (in_a_row, unkind_answers, slow_rank, no_memory):
                        break_(fleet)
                    if ENGINE == "vllm":  # SGLang 0.5.23 ends when two updates come at once
                        two_receivers(fleet)
            check(not requests.failures, f"{requests.answered} requests beside "
                  f"{policy.version - 1} versions and {arguments.restarts} restarts of the "
                  f"receiver, none failed {requests.failures[:1]}")
            if arguments.breaks:
                if ENGINE == "vllm":
                    sleeps(fleet)
                killed_rank(fleet)
            last = server.logprobs(PROMPT)
            check(last != first, "the last version answers otherwise than the first")
        with make_server(policy, "fresh.log", options) as fresh:
            check(fresh.logprobs(PROMPT) == last,
                  "logprobs equal those of a fresh engine on the last version's checkpoint")


if __name__ == "__main__":
    main()
