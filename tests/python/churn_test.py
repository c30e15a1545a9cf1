"""Receivers join and die while versions are published: what a sender and a relay keep stays flat.

    churn_test.py [PUBLISHES]

Compared are anonymous memory, descriptors and threads of both daemons after a fifth of the publishes
and at the end. Every receiver that is killed leaves its connections, its pull and its place in the
sender's lists behind, and may come back under the same name or never.
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import sys
import time

import support

np = support.need("numpy")
deltawire = support.need("deltawire")

MODEL = "policy"
PUBLISHES = int(sys.argv[1]) if len(sys.argv) > 1 else 200
SEED = 5
JOINS_EVERY = 10  # publishes
MOST_ALIVE = 4
MIB = 1 << 20


class Use:
    """What a process holds: anonymous memory in bytes, descriptors, threads."""

    def __init__(self, pid: int):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        number = lambda name: int(re.search(rf"{name}:\s+(\d+)", status).group(1))
        self.memory = number("RssAnon") * 1024
        self.threads = number("Threads")
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))

    def __str__(self) -> str:
        return f"{self.memory / MIB:.1f} MiB, {self.descriptors} descriptors, {self.threads} threads"


class Joiners:
    """Receivers that come, follow for some versions and are killed."""

    def __init__(self, cluster: support.Cluster, upstreams: list[str]):
        self._cluster = cluster
        self._upstreams = upstreams
        self._draw = random.Random(SEED)
        self._alive: list[tuple[support.Receiver, int]] = []
        self.started = 0

    def turn(self) -> None:
        # Half of them under a name that was there before, which the directory's owner has given up.
        name = self._draw.choice((f"joiner-{self._draw.randrange(MOST_ALIVE)}", f"new-{self.started}"))
        if len(self._alive) == MOST_ALIVE or name in {r.directory.name for r, _ in self._alive}:
            self.kill(self._draw.randrange(len(self._alive)))
            return
        self.started += 1
        receiver = self._cluster.start_receiver(
            [self._draw.choice(self._upstreams)], MODEL, self._cluster.root / name, "--receiver-id", name
        )
        self._alive.append((receiver, self._cluster.pids()[-1]))

    def kill(self, which: int) -> None:
        receiver, pid = self._alive.pop(which)
        self._cluster.kill_one(pid)

    def kill_all(self) -> None:
        while self._alive:
            self.kill(0)


def settled(pids: dict[str, int]) -> dict[str, Use]:
    """What the daemons hold, once it has not grown smaller for a second: connections that have ended
    are closed when their timers say so."""
    held = {name: Use(pid) for name, pid in pids.items()}
    since = time.monotonic()
    while time.monotonic() < since + 1:
        for name, pid in pids.items():
            now = Use(pid)
            if (now.descriptors, now.threads) < (held[name].descriptors, held[name].threads):
                held[name], since = now, time.monotonic()
        time.sleep(0.05)
    return {name: Use(pid) for name, pid in pids.items()}


def main() -> None:
    with support.Cluster("--delta-log", "1MiB") as cluster:
        sender = cluster.pids()[0]
        bulk = f"127.0.0.1:{support.free_port()}"
        relay = cluster.follow(MODEL, "--bulk-listen", bulk, "--delta-log", "1MiB")
        pids = {"sender": sender, "relay": cluster.pids()[-1]}
        joiners = Joiners(cluster, [cluster.control, relay.address])
        draw = np.random.default_rng(SEED)
        weights = {f"w{i}": draw.integers(0, 1 << 16, 16 << 10, np.uint16) for i in range(4)}
        manager = deltawire.WeightManager(cluster.endpoint, model=MODEL)
        manager.register(weights)
        before: dict[str, Use] = {}
        for version in range(1, PUBLISHES + 1):
            for tensor in weights.values():
                tensor[draw.integers(0, tensor.size, 160)] += 1
            manager.offload(weights, version).wait()
            if version % JOINS_EVERY == 0:
                joiners.turn()
            if version == PUBLISHES // 5:
                joiners.kill_all()
                relay.await_version(version)
                before = settled(pids)
        joiners.kill_all()
        relay.await_version(PUBLISHES)
        after = settled(pids)
        assert relay.content()["w0"][2] == weights["w0"].tobytes()
    print(f"  {PUBLISHES} publishes, {joiners.started} receivers came and were killed")
    for name in pids:
        print(f"  {name}: after a fifth {before[name]}; at the end {after[name]}")
        assert after[name].descriptors <= before[name].descriptors + 4, name
        assert after[name].threads <= before[name].threads + 4, name  # gRPC's come and go
        assert after[name].memory <= before[name].memory + 16 * MIB, name


main()
