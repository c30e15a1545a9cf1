"""Real daemons on real hosts, as far as the network goes: namespaces, links with rates, delays,
losses and cuts, and every committed byte compared with what was published by code of the test's own.

    network_test.py [--seed N] [--seeds N] [CASE ...]

Rates, delays, TCP's congestion control and what is published are drawn by the seed, which a failure
prints. Packets come when the kernel sends them, so a seed repeats the circumstances and not the
whole run.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

import networks  # noqa: E402
import skipping  # noqa: E402
from versions import Versions, Witness  # noqa: E402

MBIT = 1_000_000
SEED = int(os.environ.get("DELTAWIRE_NETWORK_SEED", "1"))


class Case(unittest.TestCase):
    def setUp(self):
        self.began = time.monotonic()
        # By the case's name, too: two cases of one seed have nothing in common.
        self.draw = random.Random(f"{SEED} {self.id()}")
        folder = tempfile.TemporaryDirectory(prefix="deltawire-network-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.net = networks.Network(pathlib.Path(folder.name))
        # Not by enterContext, which hands a context no error, so that no log would be printed.
        self.addCleanup(lambda: self.net.close(failed=self.failed()))
        self.witnesses: list[Witness] = []

    def run(self, result=None):
        faults = lambda: len(result.failures) + len(result.errors)
        before = faults()
        # True also in a cleanup: a fault is in the result before the cleanups begin.
        self.failed = lambda: faults() > before
        super().run(result)
        if self.failed():
            print(f"seed {SEED}: repeat it with --seed {SEED} {self.id().partition('.')[2]}")
        return result

    def say(self, text: str) -> None:
        print(f"  {time.monotonic() - self.began:5.1f} s: {text}", flush=True)

    def versions(self, model_bytes: int) -> Versions:
        return Versions(self.net.root, self.draw.randrange(1 << 32), model_bytes)

    def witness(self, node: networks.Node, versions: Versions) -> None:
        self.witnesses.append(Witness(node.data / "receiver/model.safetensors", versions))
        self.addCleanup(self.witnesses[-1].stop)

    def check(self, node: networks.Node, versions: Versions, version: int) -> None:
        self.assertEqual(versions.of(node.content()), version, node.name)


class Wan(Case):
    """A far site: little bandwidth, long delays, lost, late and double packets."""

    LOSS = 0.01  # of the packets, each way

    def patience(self, model_bytes: int, delay_ms: float, streams: int) -> float:
        """Seconds for a version, also if all of it has to be sent. Losses keep Reno, the slowest, at
        1.22 / sqrt(LOSS) packets a round trip and stream, whatever the link's rate (Mathis et al.).
        Four times as long may pass, and a minute for what is not sending."""
        a_round = streams * 1460 * 1.22 / self.LOSS**0.5
        return 60 + 4 * model_bytes / a_round * 2 * delay_ms / 1000

    def test_versions_cross_a_bad_link_unharmed(self):
        rate = self.draw.choice([50, 100, 200]) * MBIT
        delay = self.draw.randint(20, 100)
        streams = self.draw.choice([1, 4, 8])
        trainer, engine = self.net.nodes("trainer", "engine")
        link = self.net.emulate(
            trainer, engine, "10.1.0", rate=rate, delay_ms=delay, loss=self.LOSS, reorder=0.02,
            reorder_depth=self.draw.randint(3, 30), duplicate=0.005, seed=self.draw.randrange(1 << 31),
        )  # fmt: skip
        versions = self.versions(6_000_000)
        wanted = self.draw.choice(networks.CONTROLS)
        (control,) = {node.congestion_control(wanted) for node in (trainer, engine)}
        patience = self.patience(versions.model_bytes, delay, streams)
        self.say(f"{rate // MBIT} Mbit/s, {delay} ms each way, {streams} streams, {control}; a version "
                 f"may take {patience:.0f} s")  # fmt: skip
        sender = trainer.start_sender()
        engine.start_receiver("--sender", sender, "--streams", streams)
        self.witness(engine, versions)
        for share in (0, 0.01, 0.002, 0.3, 0.01):
            trainer.publish(versions.next(share), versions.newest)
            seconds = engine.await_version(versions.newest, patience)
            self.check(engine, versions, versions.newest)
            pull = engine.status()["last_pull"]
            self.say(f"version {versions.newest}: {pull['payload_bytes']} bytes in {seconds:.2f} s, "
                     f"{pull['chunks_full']} chunks whole, {pull['chunks_delta']} as delta")  # fmt: skip
        # Each overtakes the pull of the one before.
        for _ in range(4):
            trainer.publish(versions.next(0.05), versions.newest)
        engine.await_version(versions.newest, patience)
        self.check(engine, versions, versions.newest)
        report = link.report()
        self.say(f"{report}; the file was read {self.witnesses[0].reads} times")
        for way in ("a_to_b", "b_to_a"):
            for what in ("lost", "reordered", "duplicated"):
                self.assertGreater(report[way][what], 0, f"{way}: nothing {what}")
            self.assertEqual(report[way]["refused"], 0)

    def test_a_link_on_which_a_piece_takes_longer_than_the_time_limit(self):
        """Bytes come all the time, but no stream has as many as it reads at once within a second."""
        trainer, engine = self.net.nodes("trainer", "engine")
        self.net.emulate(trainer, engine, "10.1.0", rate=4 * MBIT, delay_ms=10)
        versions = self.versions(2_000_000)
        timeout = ["--stream-timeout-ms", 1000]
        sender = trainer.start_sender(*timeout)
        trainer.publish(versions.next(), versions.newest)
        engine.start_receiver("--sender", sender, *timeout)
        self.say(f"committed after {engine.await_version(1, 30):.1f} s, sent at once 4.0 s")
        self.check(engine, versions, 1)
        status = engine.status()
        self.assertEqual(status["last_pull"]["payload_bytes"], versions.model_bytes)
        self.assertEqual(status["message"], "")
        # Pieces of an attempt that broke off would count here.
        self.assertLess(status["bytes_received"], 1.01 * versions.model_bytes)


class Partition(Case):
    """The link is cut in the middle of something, and healed."""

    NOTICE_S = 5  # of silence, with --stream-timeout-ms 2000
    COME_BACK_S = 15  # from the healing to the commit

    def setUp(self):
        super().setUp()
        self.trainer, self.engine = self.net.nodes("trainer", "engine")
        self.link = self.net.emulate(self.trainer, self.engine, "10.1.0", rate=8 * MBIT,
                                     delay_ms=self.draw.randint(1, 30),
                                     seed=self.draw.randrange(1 << 31))  # fmt: skip
        self.sent = 0

    def mark(self) -> None:
        self.sent = self.link.report()["a_to_b"]["bytes_out"]

    def cut_after(self, share: float, expected: int) -> None:
        """Cuts the link when so much of a pull of `expected` bytes has passed it."""
        passed = lambda: self.link.report()["a_to_b"]["bytes_out"] - self.sent > share * expected
        networks.until(passed, "the pull has begun")
        self.link.cut()
        self.say(f"cut after {share:.0%} of {expected} bytes")

    def heal(self) -> None:
        self.link.heal()
        self.healed = time.monotonic()
        self.say("healed")

    def await_commit(self, versions: Versions) -> None:
        self.engine.await_version(versions.newest, self.COME_BACK_S)
        self.say(f"committed {time.monotonic() - self.healed:.2f} s after the healing")
        self.check(self.engine, versions, versions.newest)

    def await_message(self) -> None:
        cut = time.monotonic()
        status = networks.until(
            lambda: s if (s := self.engine.status()).get("message") else None,
            "the receiver's status says that something is wrong", self.NOTICE_S,
        )  # fmt: skip
        self.say(f'noticed after {time.monotonic() - cut:.1f} s: "{status["message"]}"')

    def test_a_cut_in_a_full_pull_and_in_a_delta(self):
        versions = self.versions(4_000_000)
        timeout = ["--stream-timeout-ms", 2000]
        sender = self.trainer.start_sender(*timeout)
        self.trainer.publish(versions.next(), versions.newest)
        self.mark()
        self.engine.start_receiver("--sender", sender, *timeout)
        self.witness(self.engine, versions)
        for expected in (versions.model_bytes, 250_000):
            self.cut_after(self.draw.uniform(0.2, 0.8), expected)
            self.await_message()
            self.assertNotEqual(self.engine.committed(), versions.newest)
            self.heal()
            self.await_commit(versions)
            self.mark()
            self.trainer.publish(versions.next(0.3), versions.newest)
        self.engine.await_version(versions.newest)
        self.check(self.engine, versions, versions.newest)

    def test_a_version_published_while_nothing_gets_through(self):
        """With the daemons' own time limits: the control connection is given up, and made anew."""
        versions = self.versions(500_000)
        sender = self.trainer.start_sender()
        self.trainer.publish(versions.next(), versions.newest)
        self.engine.start_receiver("--sender", sender)
        self.witness(self.engine, versions)
        self.engine.await_version(versions.newest)
        # So short that nobody notices; TCP sends again what was lost.
        self.link.cut()
        self.trainer.publish(versions.next(), versions.newest)
        time.sleep(2)  # the link is dead for this long
        self.heal()
        self.await_commit(versions)
        self.link.cut()
        self.trainer.publish(versions.next(), versions.newest)
        networks.until(lambda: not self.engine.status()["attached"], "the receiver lets go", 20)
        self.say(f'let go: "{self.engine.status()["message"]}"')
        self.trainer.publish(versions.next(), versions.newest)
        self.heal()
        self.await_commit(versions)


class Group(Case):
    """Eight members of a group at a far site: none commits before the word, and all do soon after."""

    MEMBERS = 8

    def test_members_commit_within_two_round_trips(self):
        delay = self.draw.randint(10, 50)
        round_trip = 2 * delay / 1000
        trainer = self.net.node("trainer")
        members = self.net.nodes(*(f"node{i}" for i in range(self.MEMBERS)))
        router = self.net.site("router", "10.2.0", members)
        self.net.emulate(trainer, router, "10.1.0", rate=100 * MBIT, delay_ms=delay,
                         seed=self.draw.randrange(1 << 31))  # fmt: skip
        trainer.ip("route", "add", "10.2.0.0/24", "via", "10.1.0.2")
        versions = self.versions(500_000)
        names = ",".join(node.name for node in members)
        sender = trainer.start_sender("--group", f"g={names}")
        trainer.publish(versions.next(), versions.newest)
        for node in members:
            node.start_receiver("--sender", sender, "--buffers", 2)
        spreads = []
        for share in (0.01, 0.002, 0.3, 0.01):
            sync = ["sync", "--group", "g", "--sender", sender, "--timeout", 60, "--json"]
            group = json.loads(trainer.tool(*sync))["group"]
            self.assertEqual((group["members"], group["late"]), (self.MEMBERS, 0))
            for node in members:
                self.check(node, versions, versions.newest)
            spreads.append(group["spread_seconds"])
            self.say(f"version {versions.newest}: {1000 * spreads[-1]:.1f} ms between the first and the "
                     f"last, {1000 * group['word_seconds']:.1f} ms from the word; a round trip has "
                     f"{1000 * round_trip:.0f} ms")  # fmt: skip
            before = versions.newest
            trainer.publish(versions.next(share), versions.newest)
            for node in members:
                # It has heard of the version, and stays.
                heard = lambda node=node: node.status()["newest"]["version"] == versions.newest
                networks.until(heard, f"{node.name} hears of version {versions.newest}")
                self.assertEqual(node.committed(), before)
        self.assertLessEqual(sorted(spreads)[len(spreads) // 2], 2 * round_trip + 0.005)


class Newcomers(Case):
    """Receivers that join while one follows, all behind one uplink that is too narrow for them."""

    def test_a_follower_goes_before_newcomers(self):
        trainer = self.net.node("trainer")
        follower, *newcomers = self.net.nodes(*(f"node{i}" for i in range(6)))
        router = self.net.site("router", "10.2.0", [follower, *newcomers])
        uplink = self.net.veth(trainer, router, "10.1.0", bits_per_s=100 * MBIT)
        trainer.ip("route", "add", "10.2.0.0/24", "via", "10.1.0.2")
        versions = self.versions(30_000_000)
        sender = trainer.start_sender()
        trainer.publish(versions.next(), versions.newest)
        follower.start_receiver("--sender", sender)
        follower.await_version(1)

        def seconds() -> float:
            trainer.publish(versions.next(0.05), versions.newest)
            follower.await_version(versions.newest)
            return follower.status()["last_pull"]["seconds"]

        def at_sender() -> dict:
            status = ["status", "--json", "--sender", sender, "--receiver", "127.0.0.1:1"]
            done = subprocess.run(trainer.within(networks.programs() / "deltawire", *status),
                                  capture_output=True, text=True, check=False)  # fmt: skip
            return json.loads(done.stdout)["sender"]["models"][0]

        alone = seconds()
        for node in newcomers:
            node.start_receiver("--sender", sender)
        networks.until(lambda: at_sender()["newcomer_pulls"] == len(newcomers), "all have joined")
        # From what they pull the sender sees how much it can send.
        crossed = lambda: router.counters(uplink)["rx"]["bytes"]
        enough = crossed() + 6_000_000
        networks.until(lambda: crossed() > enough, "newcomers pull", 20)
        beside = seconds()
        held_back = at_sender()["held_back_seconds"]
        joined = [node.committed() for node in newcomers]
        self.say(f"a pull of a delta took the follower {alone:.2f} s alone and {beside:.2f} s beside "
                 f"{len(newcomers)} newcomers, whose streams waited {held_back:.1f} s")  # fmt: skip
        self.assertGreater(held_back, 0)
        self.assertIn(0, joined, "it was over before the follower's delta")
        for node in newcomers:
            node.await_version(versions.newest, 60)
            self.check(node, versions, versions.newest)
        self.say("all newcomers have it")
        self.check(follower, versions, versions.newest)


class Tree(Case):
    """A site behind one slow uplink: a relay, and receivers that follow it."""

    LEAVES = 7

    def setUp(self):
        super().setUp()
        self.trainer = self.net.node("trainer")
        self.relay, *self.leaves = self.net.nodes(*(f"node{i}" for i in range(self.LEAVES + 1)))
        self.router = self.net.site("router", "10.2.0", [self.relay, *self.leaves])
        self.uplink = self.net.veth(self.trainer, self.router, "10.1.0", bits_per_s=100 * MBIT)
        self.trainer.ip("route", "add", "10.2.0.0/24", "via", "10.1.0.2")
        self.all = [self.relay, *self.leaves]

    def crossed(self) -> int:
        """Bytes that the uplink has carried to the site, headers included."""
        return self.router.counters(self.uplink)["rx"]["bytes"]

    def start_relay(self, sender: str) -> str:
        return self.relay.start_receiver("--sender", sender, serve=True)

    def start_leaves(self, relay: str, sender: str) -> None:
        for leaf in self.leaves:
            leaf.start_receiver("--sender", f"{relay},{sender}")

    def await_all(self, version: int, nodes: list[networks.Node]) -> None:
        for node in nodes:
            node.await_version(version)

    def measured(self, what) -> tuple[float, int]:
        """Seconds that `what` took, and the bytes that crossed the uplink meanwhile."""
        crossed, began = self.crossed(), time.monotonic()
        what()
        return time.monotonic() - began, self.crossed() - crossed

    def compare(self, what: str, one: tuple[float, int], eight: tuple[float, int]) -> float:
        """The bytes of eight against those of one."""
        self.say(f"{what}: {eight[0]:.2f} s against {one[0]:.2f} s of one receiver "
                 f"({eight[0] / one[0]:.2f} times); {eight[1]} bytes crossed the uplink against "
                 f"{one[1]} ({eight[1] / one[1]:.3f} times)")  # fmt: skip
        return eight[1] / one[1]

    def test_eight_cost_the_uplink_as_much_as_one(self):
        versions = self.versions(12_000_000)
        sender = self.trainer.start_sender()

        def publish(nodes: list[networks.Node], share: float = 0.01) -> None:
            self.trainer.publish(versions.next(share), versions.newest)
            self.await_all(versions.newest, nodes)

        def one() -> None:
            self.start_relay(sender)
            self.relay.await_version(1)

        def eight() -> None:
            relay = self.start_relay(sender)
            self.relay.await_version(2)
            self.start_leaves(relay, sender)
            self.await_all(2, self.all)

        self.trainer.publish(versions.next(), versions.newest)
        alone = self.measured(one), self.measured(lambda: publish([self.relay]))
        networks.end(self.relay.receiver)
        self.relay.forget()
        together = self.measured(eight), self.measured(lambda: publish(self.all))
        for node in self.all:
            self.check(node, versions, 3)
        self.assertLessEqual(self.compare("a new fleet", alone[0], together[0]), 1.05)
        # Beside so little each leaf's questions to the sender count.
        self.assertLessEqual(self.compare("a delta", alone[1], together[1]), 1.5)

    def test_a_fleet_that_starts_at_once(self):
        versions = self.versions(12_000_000)
        sender = self.trainer.start_sender()
        self.trainer.publish(versions.next(), versions.newest)

        def start() -> None:
            self.start_leaves(self.start_relay(sender), sender)
            self.await_all(1, self.all)

        seconds, crossed = self.measured(start)
        self.say(f"all have version 1 after {seconds:.2f} s; "
                 f"{crossed / versions.model_bytes:.2f} models crossed the uplink")  # fmt: skip
        for node in self.all:
            self.check(node, versions, 1)
        # One, or a few more where the machine is so busy that patience ends; without it, all eight.
        self.assertLess(crossed, 4 * versions.model_bytes)

    def test_leaves_go_on_without_their_relay(self):
        versions = self.versions(12_000_000)
        sender = self.trainer.start_sender()
        self.trainer.publish(versions.next(), versions.newest)
        relay = self.start_relay(sender)
        self.relay.await_version(1)
        self.start_leaves(relay, sender)
        for leaf in self.leaves:
            self.witness(leaf, versions)
        # While they pull from it: some have the whole version then, some a part or nothing.
        some = self.draw.randint(0, self.LEAVES - 1)
        if some:
            self.leaves[some].await_version(1)
        else:
            time.sleep(self.draw.uniform(0, 0.3))  # any moment of the pull
        self.relay.receiver.kill()
        self.say(f"the relay is dead; {[leaf.committed() for leaf in self.leaves]} are committed")
        began = time.monotonic()
        self.await_all(1, self.leaves)
        self.say(f"all have version 1 after {time.monotonic() - began:.2f} s")
        began = time.monotonic()
        self.trainer.publish(versions.next(), versions.newest)
        self.await_all(2, self.leaves)
        self.say(f"all have version 2 after {time.monotonic() - began:.2f} s")
        for leaf in self.leaves:
            self.check(leaf, versions, 2)
            self.assertEqual(leaf.status()["agents"][0]["in_use"], sender)

    def start_assigned(self, nodes: list[networks.Node], sender: str) -> None:
        for node in nodes:
            node.start_receiver("--sender", sender, "--site", "west", serve=True)

    def followed(self, sender: str, attached: int) -> dict[str, str]:
        """Whom each receiver follows, "" the sender, once all that are attached follow whom they
        are told to."""

        def ask() -> dict | None:
            status = json.loads(self.trainer.tool("status", "--json", "--sender", sender))
            receivers = status["sender"]["receivers"]
            settled = all(r["follows"] == r["assigned"] for r in receivers)
            if len(receivers) != attached or not settled:
                return None
            return {r["receiver_id"]: r["follows"] for r in receivers}

        return networks.until(ask, f"{attached} receivers follow whom they are told to")

    def test_a_sender_that_assigns(self):
        versions = self.versions(12_000_000)
        sender = self.trainer.start_sender("--fan-out", "3")

        def publish(nodes: list[networks.Node]) -> None:
            self.trainer.publish(versions.next(), versions.newest)
            self.await_all(versions.newest, nodes)

        def start(nodes: list[networks.Node]) -> None:
            self.start_assigned(nodes, sender)
            self.await_all(versions.newest, nodes)

        self.trainer.publish(versions.next(), versions.newest)
        alone = self.measured(lambda: start([self.relay])), self.measured(
            lambda: publish([self.relay])
        )
        networks.end(self.relay.receiver)
        self.relay.forget()
        together = self.measured(lambda: start(self.all)), self.measured(
            lambda: publish(self.all)
        )
        tree = self.followed(sender, 8)
        self.say(f"who follows whom: {tree}")
        self.assertEqual(list(tree.values()).count(""), 1)
        self.assertLessEqual(self.compare("a new fleet", alone[0], together[0]), 1.1)
        # Beside so little each receiver's beats to the sender count.
        self.assertLessEqual(self.compare("a delta", alone[1], together[1]), 1.6)
        # The one that crosses the link dies while all follow it.
        root = next(node for node in self.all if not tree[node.name])
        left = [node for node in self.all if node is not root]
        for node in left:
            self.witness(node, versions)
        root.receiver.kill()
        seconds, crossed = self.measured(lambda: publish(left))
        self.say(f"without {root.name} all have the version after {seconds:.2f} s; {crossed} bytes")
        tree = self.followed(sender, 7)
        self.assertEqual(list(tree.values()).count(""), 1)
        self.assertLess(crossed, versions.model_bytes)
        self.start_assigned([root], sender)
        root.await_version(versions.newest)
        self.assertEqual(list(self.followed(sender, 8).values()).count(""), 1)
        publish(self.all)
        for node in self.all:
            self.check(node, versions, versions.newest)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seeds", type=int, default=1, help="so many, one after the other")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    if options.seeds > 1:
        for seed in range(options.seed, options.seed + options.seeds):
            print(f"seed {seed}", flush=True)
            command = [sys.executable, "-B", __file__, "--seed", str(seed), *options.cases]
            if status := subprocess.run(command, check=False).returncode:
                sys.exit(status)
        return
    os.environ["DELTAWIRE_NETWORK_SEED"] = str(options.seed)
    networks.enter()
    skipping.main(options.cases)


if __name__ == "__main__":
    main()
