#!/usr/bin/env python3
"""A real SGLang follows a real receiver: each committed version answers, with nothing reloaded.

A trainer changes some elements of a tiny model and publishes; the receiver commits; SGLang prepares
while it serves, pauses, writes what changed, and goes on. At the end the engine's own checksums
must be those of a second SGLang that was started on the last version's checkpoint. Requests run all
the time, and none may fail. Then things break around the server, which must stay at one version.

Usage: sglang_test.py [--model NAME] [--ranks N] [--versions N] [--no-breaks]
(DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import argparse
import re
import time
from statistics import median

import engine_python

engine_python.require("torch", "sglang")

import sglang_breaks  # noqa: E402
from daemons import DEADLINE_S  # noqa: E402
from policy import MODELS, PROMPT, Policy, Requests, check, report_pauses  # noqa: E402
from sglang_server import UPDATE, SglangServer  # noqa: E402

WRITTEN = re.compile(r"written in ([0-9.]+) ms")


def follow(server: SglangServer, policy: Policy) -> tuple[float, float]:
    """Brings the engine to the policy's version; seconds that it was paused, and that the write
    took of them, as the server says."""
    order = f"deltawire:{policy.directory}"
    server.post("/weights_checker", {"action": f"{order}?prepare"})
    begin = time.monotonic()
    message = server.update(f"{order}?version={policy.version}")
    return time.monotonic() - begin, float(WRITTEN.search(message)[1]) / 1e3


def measured(server: SglangServer):
    """Tokens and logprobs, with nothing in the prefix cache."""
    # A request of its own start may still run there; nothing is flushed until then.
    server.post(f"/flush_cache?timeout={DEADLINE_S}")
    return server.logprobs(PROMPT)


def catch_up(server: SglangServer, policy: Policy) -> None:
    """A server that started on an older version cannot prove its layout until it reloads once."""
    policy.publish()
    order = f"deltawire:{policy.directory}"
    code, text = server.refused(UPDATE, {"model_path": order})
    check(code == 400 and "it loaded another version" in text,
          f"what the engine loaded is not what is committed: {code} {text}")
    server.update(str(policy.directory))
    server.post(UPDATE, {"model_path": order})  # nothing runs, so that the server's own pause does
    check(server.version() == "2", "it follows after one reload of the directory itself")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="dense")
    parser.add_argument("--ranks", type=int, default=1, help="of tensor parallelism")
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--no-breaks", action="store_true")
    arguments = parser.parse_args()
    with Policy(MODELS[arguments.model]) as policy:
        run(policy, arguments.ranks, arguments.versions, not arguments.no_breaks)


def run(policy: Policy, ranks: int, versions: int, breaks: bool) -> None:
    with SglangServer(policy.directory, policy.root / "sglang.log", ranks) as server:
        first = measured(server)
        catch_up(server, policy)
        with Requests(server) as requests:
            pauses = []
            for _ in range(2, versions):
                policy.publish()
                pauses.append(follow(server, policy))
            if ranks > 1:
                sglang_breaks.one_rank_fails(server, policy)
            if breaks:
                sglang_breaks.run(server, policy)
        check(not requests.failures, f"{requests.answered} requests beside {len(pauses)} updates, "
              f"none failed {requests.failures[:1]}")
        check(server.version() == str(policy.version),
              f"the engine says that it serves version {policy.version}")
        check(server.header().startswith(f"{policy.version};"),
              f"so does a response: {server.header()}")
        server.post("/weights_checker", {"action": f"deltawire:{policy.directory}?check"})
        check(True, "the engine's memory has the digests of the committed version")
        last, sums = measured(server), server.checksums()
        report_pauses([pause for pause, _ in pauses], requests)
        print(f"of which it wrote: median {1e3 * median(write for _, write in pauses):.1f} ms")
    with SglangServer(policy.directory, policy.root / "fresh.log", ranks) as fresh:
        check(last != first, "the last version answers otherwise than the first")
        check(measured(fresh) == last,
              "logprobs equal those of a fresh engine on the last version's checkpoint")
        check(sums == fresh.checksums(), f"{len(sums)} checksums equal the fresh engine's own")


if __name__ == "__main__":
    main()
