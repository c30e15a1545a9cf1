#!/usr/bin/env python3
"""A receiver drives a real vLLM or SGLang by its own hooks, and things around them break.

Requests run beside the updates. Then the receiver is killed in updates, the engine's memory drifts,
the receiver's files are cut short and lost while it is down, the trainer begins anew with other
shapes, the engine's loader raises in the middle of a load, it is killed in the middle of a write,
and the sender is killed. SGLang wants a key for every call.
Each time the engine must come to serve the committed version wholly (after a loader that raised,
when it is started anew), or go on with the one before; nothing that is half of both may answer, and
the receiver's log must say what happened. With
--packed vLLM keeps its weights in its CPU layout, which cannot be updated in place.

Usage: fleet_test.py vllm|sglang [--packed] [--ranks N] [--versions N]
(DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import urllib.error

import engine_python

ENGINE = sys.argv[1]
engine_python.require("torch", ENGINE)

from daemons import DEADLINE_S  # noqa: E402
from policy import PROMPT, Policy, Requests, check, dense, smaller  # noqa: E402
from sglang_server import SglangServer  # noqa: E402
from vllm_server import VllmServer  # noqa: E402

#: A paused engine answers nothing, however long one waits; so long is waited.
SILENCE_S = 3
KILLS = 5
#: SGLang wants it for every call. vLLM's own key is not for the calls that a receiver makes.
KEY = "the-key-of-the-engine"


class Packed(VllmServer):
    """As vLLM is on a CPU: with the plug-ins of this project, but not those of its tests."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"VLLM_PLUGINS": "deltawire"}


def make_server(policy: Policy, log: str, packed: bool = False, ranks: int = 1):
    if ENGINE == "sglang":
        return SglangServer(policy.directory, policy.root / log, ranks, key=KEY)
    return (Packed if packed else VllmServer)(
        policy.directory, policy.root / log, "--tensor-parallel-size", str(ranks))


class Fleet:
    """A receiver, and the engine that it drives."""

    def __init__(self, policy: Policy, packed: bool = False, ranks: int = 1):
        self.policy, self.ranks = policy, ranks
        self.server = make_server(policy, "engine.log", packed, ranks)
        policy.daemons.kill("deltawire-receiver")
        engine = f"{ENGINE}=http://127.0.0.1:{self.server.port}"
        if ENGINE == "sglang":
            key = policy.root / "engine.key"
            key.touch(0o600)
            key.write_text(KEY + "\n")
            engine += f" token_file={key}"
        policy.receiver_options = ["--engine", engine,
                                   "--engine-timeout-ms", str(1000 * DEADLINE_S)]
        policy.start_receiver()

    def status(self) -> dict:
        """Of the engine, by the receiver."""
        return (self.policy.receiver.status().get("engines") or [{}])[0]

    def await_status(self, **wanted) -> dict:
        end = time.monotonic() + DEADLINE_S
        while True:
            status = self.status()
            if all(status.get(name) == value for name, value in wanted.items()):
                return status
            if time.monotonic() > end:
                raise SystemExit(f"FAILED: the engine did not become {wanted}: {status}")
            time.sleep(0.05)

    def log_lines(self) -> list[str]:
        """What the receivers' logs say of the engine."""
        return [line for path in sorted(self.policy.root.glob("deltawire-receiver-*.log"))
                for line in path.read_text().splitlines() if f":{self.server.port}" in line
                and "control" not in line]

    def serves(self, what: str) -> None:
        """The engine comes to what is committed."""
        self.policy.receiver.await_served(self.policy.version)
        check(self.server.version() == str(self.policy.version) and bool(
            self.server.logprobs(PROMPT)), f"{what}: it serves version {self.policy.version}")

    def says(self, since: int, words: str) -> None:
        lines = [line for line in self.log_lines()[since:] if words in line]
        check(len(lines) >= 1, f"the receiver's log has a line of it: {lines[:1]}")

    def answers_nothing(self) -> None:
        try:
            answer = self.server.open(*self.server.asks(PROMPT), SILENCE_S)
            check(False, f"the engine is paused, and answers {answer.read()[:200]}")
        except (TimeoutError, urllib.error.URLError) as error:
            check(True, f"the engine is paused, and answers nothing: {error}")


def kill_receivers(fleet: Fleet) -> None:
    for _ in range(KILLS):
        fleet.policy.publish()
        fleet.policy.daemons.kill("deltawire-receiver")
        fleet.policy.start_receiver()
    fleet.serves(f"{KILLS} receivers were killed in updates")


def drift(fleet: Fleet) -> None:
    """Something else than deltawire writes to the engine's weights, while requests run."""
    code, said = fleet.policy.receiver.verify_engines()
    check(code == 0 and said.endswith(": all good\n"), f"no memory has drifted: {said}")
    sums, since = fleet.server.checksums(), len(fleet.log_lines())
    fleet.server.plant.write_text("drift")
    code, said = fleet.policy.receiver.verify_engines()
    check(code == 4 and "memory has drifted in" in said, f"drift is found: {said}")
    fleet.serves("its memory had drifted")
    check(fleet.status()["drifts"] == 1 and fleet.server.checksums() == sums,
          "it is counted, and the checksums are what they were")
    fleet.says(since, "memory has drifted in")


def lose_files(fleet: Fleet) -> None:
    """While no receiver watches over them."""
    policy, directory = fleet.policy, fleet.policy.directory
    policy.publish()
    policy.daemons.kill("deltawire-receiver")
    os.truncate(directory / "model.safetensors", 100_000)
    policy.start_receiver()
    policy.publish()
    fleet.serves("the weights' file was cut short")
    policy.daemons.kill("deltawire-receiver")
    shutil.rmtree(directory)
    policy.start_receiver()
    fleet.serves("the directory was gone")
    policy.publish()
    fleet.serves("and it follows")


def other_shapes(fleet: Fleet) -> None:
    """No engine can take them while it runs."""
    server, policy, since = fleet.server, fleet.policy, len(fleet.log_lines())
    old, sums, last = server.version(), server.checksums(), server.logprobs(PROMPT)
    policy.become(smaller)
    status = fleet.await_status(state="behind")
    check("names, types or shapes" in status["error"] and "start the engine anew" in status["error"],
          f"the status says why: {status['error']}")
    check(int(status["served"]["version"]) == int(old) and not status["paused"],
          f"it serves on: {status}")
    check((server.version(), server.checksums(), server.logprobs(PROMPT)) == (old, sums, last),
          f"the engine answers from version {old}, and no byte of it has changed")
    fleet.says(since, "names, types or shapes")
    restart(fleet)
    fleet.serves("the engine was started anew")
    policy.publish()
    fleet.serves("and follows")


def break_loader(fleet: Fleet) -> None:
    """The engine is attached to anew, by a loader that raises; so is its own reload."""
    server, policy, said = fleet.server, fleet.policy, len(fleet.log_lines())
    if ENGINE == "vllm":
        server.do("detach")
    else:
        server.update(str(policy.directory), weight_version=str(policy.version))
    server.plant.write_text("loader")
    policy.publish()
    if ENGINE == "vllm":
        status = fleet.await_status(state="paused")
        check("start the engine anew" in status["error"],
              f"the loader raises: {status['error']}")
        server.plant.unlink()
        policy.publish()  # vLLM calls its next reload done, and would answer from half of one
        status = fleet.await_status(state="paused")
        check(status["paused"] and not int(status["served"]["epoch"]),
              f"no later version is loaded into it: {status}")
        fleet.answers_nothing()
        restart(fleet)
    else:
        check(server.ended(DEADLINE_S), "the loader raises, and SGLang ends, as it does then")
        restart(fleet)
    fleet.serves("the loader is whole again")
    fleet.says(said, "planted fault in the loader")


def restart(fleet: Fleet) -> None:
    fleet.server.plant.unlink(missing_ok=True)
    fleet.server.__exit__()
    fleet.server.__enter__()


def kill_engine(fleet: Fleet) -> None:
    server, said = fleet.server, len(fleet.log_lines())
    server.plant.write_text("kill")
    fleet.policy.publish()
    check(server.ended(DEADLINE_S), "the engine was killed in the middle of a write, and is gone")
    fleet.await_status(state="unreachable")
    fleet.says(said, "load")
    restart(fleet)
    fleet.serves("the engine was started again")
    fleet.policy.publish()
    fleet.serves("and follows")


def kill_sender(fleet: Fleet) -> None:
    fleet.policy.daemons.kill("deltawire-sender")
    check(fleet.server.version() == str(fleet.policy.version)
          and bool(fleet.server.logprobs(PROMPT)), "no sender: the engine serves on")


def run(policy: Policy, versions: int, ranks: int) -> None:
    fleet = Fleet(policy, ranks=ranks)
    with fleet.server as server:
        with Requests(server) as requests:
            for _ in range(versions):
                policy.publish()
                policy.receiver.await_served(policy.version)
            fleet.serves(f"{versions} versions")
            kill_receivers(fleet)
            drift(fleet)
            lose_files(fleet)
        check(not requests.failures, f"{requests.answered} requests beside that, none failed "
              f"{requests.failures[:1]}")
        status = fleet.status()
        print(f"paused for {1e3 * status['last_pause_seconds']:.0f} ms in the last update; "
              f"longest request {1e3 * max(requests.took):.0f} ms", flush=True)
        other_shapes(fleet)
        break_loader(fleet)
        kill_engine(fleet)
        kill_sender(fleet)
        compare(policy, server, ranks)
    check(all(KEY not in log.read_text() for log in policy.root.glob("deltawire-*.log")),
          "no log of deltawire's has the engine's key")
    for line in fleet.log_lines():
        print(line)


def compare(policy: Policy, server, ranks: int) -> None:
    last, sums = server.logprobs(PROMPT), server.checksums()
    server.__exit__()
    with make_server(policy, "fresh.log", ranks=ranks) as fresh:
        check(fresh.logprobs(PROMPT) == last and fresh.checksums() == sums,
              f"{len(sums)} checksums, and the logprobs, equal those of a fresh engine")


def run_packed(policy: Policy, versions: int, ranks: int) -> None:
    fleet = Fleet(policy, True, ranks)
    with fleet.server as server:
        first = server.logprobs(PROMPT)
        for _ in range(versions):
            policy.publish()
            policy.receiver.await_served(policy.version)
        fleet.serves(f"{versions} versions")
        error = fleet.status()["error"]
        check("cannot be updated in place, so it reads the directory" in error,
              f"the status says why: {error}")
        last = server.logprobs(PROMPT)
    with make_server(policy, "fresh.log", True, ranks) as fresh:
        check(first != last == fresh.logprobs(PROMPT),
              "logprobs equal those of a fresh engine on the last version")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--ranks", type=int, default=1, help="of tensor parallelism")
    parser.add_argument("--versions", type=int, default=10)
    arguments = parser.parse_args()
    with Policy(dense) as policy:
        (run_packed if arguments.packed else run)(
            policy, arguments.versions, arguments.ranks)


if __name__ == "__main__":
    main()
