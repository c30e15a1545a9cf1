"""SIGKILLs at random moments for everybody: a trainer, its sender, a relay, a leaf behind it and a
receiver of its own. After each, and with nothing done but to start again who was killed, all are at
the newest version, byte for byte.

    fleet_kill_test.py [CYCLES] [--seed N]

Versions, victims and delays are drawn by the seed, which a failure prints with the cycle. When the
kernel runs whom is not drawn, so a seed repeats the circumstances and not the whole run.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import skipping  # noqa: E402
from daemons import free_port, listens, programs, read_safetensors, spawn, until  # noqa: E402
from versions import Versions, Witness  # noqa: E402

MODEL = "policy"
MODEL_BYTES = 12_000_000  # nine chunks
PATIENCE_S = 60
LONGEST_DELAY_S = 0.5  # a cycle of which nobody is killed takes about as long


class Node:
    """A daemon that is killed and started again, with the same addresses and files."""

    def __init__(self, root: pathlib.Path, name: str, program: str, *options: object):
        self.name = name
        self.log = root / f"{name}.log"
        self.control = free_port()
        self.directory = root / name
        self.kills = 0
        self._command = [str(programs() / program), *map(str, options),
                         "--control-listen", f"127.0.0.1:{self.control}"]  # fmt: skip
        self.start()

    def start(self) -> None:
        with open(self.log, "a") as log:
            self._child = spawn(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        assert self._child.poll() is None, f"{self.name} has ended with {self._child.returncode}"
        self._child.kill()
        self._child.wait()
        self.kills += 1


def ask(role: str, port: int) -> dict:
    """What the daemon says of the model; {} while it does not answer."""
    command = [str(programs() / "deltawire"), "status", "--json", f"--{role}", f"127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = json.loads(done.stdout).get(role, {}) if done.stdout else {}
    return next((m for m in said.get("models", []) if m["model"] == MODEL), {})


def identity(of: dict) -> tuple[str, ...]:
    return tuple(str(of.get(part)) for part in ("lineage", "epoch", "version", "root"))


class Fleet:
    def __init__(self, root: pathlib.Path, draw: random.Random):
        self.draw = draw
        self.versions = Versions(root, draw.randrange(1 << 32), MODEL_BYTES)
        self.trainer_socket = root / "sender/trainer.sock"
        (root / "sender").mkdir()
        self.sender = Node(root, "sender", "deltawire-sender", "--data-dir", root / "sender",
                           "--bulk-listen", f"127.0.0.1:{free_port()}")  # fmt: skip
        origin = f"127.0.0.1:{self.sender.control}"
        self.relay = self._receiver(root, "relay", origin, "--buffers", 2,
                                    "--bulk-listen", f"127.0.0.1:{free_port()}")  # fmt: skip
        by_relay = f"127.0.0.1:{self.relay.control},{origin}"
        self.leaf = self._receiver(root, "leaf", by_relay, "--buffers", 2)
        self.plain = self._receiver(root, "plain", origin, "--buffers", 1)
        self.receivers = [self.relay, self.leaf, self.plain]
        self.trainer: subprocess.Popen | None = None
        self.trainer_kills = 0
        self.witnesses = [Witness(r.directory / "model.safetensors", self.versions, pause_s=0.2)
                          for r in self.receivers]  # fmt: skip

    def _receiver(self, root: pathlib.Path, name: str, senders: str, *options: object) -> Node:
        return Node(root, name, "deltawire-receiver", "--sender", senders,
                    "--model", f"{MODEL}={root / name}", *options)  # fmt: skip

    def begin_publish(self) -> None:
        """Of the newest version, by a trainer that may be killed."""
        version = self.versions.newest
        command = [str(programs() / "deltawire"), "publish", str(self.versions.path(version)),
                   "--model", MODEL, "--socket", str(self.trainer_socket)]  # fmt: skip
        self.trainer = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def end_publish(self) -> None:
        """A trainer that was killed, or whose sender was, publishes again."""
        version = self.versions.newest
        said = ""

        def published() -> bool:
            nonlocal said
            said = self.trainer.communicate()[1] or said
            newest = ask("sender", self.sender.control).get("newest", {})
            if int(newest.get("id", {}).get("version", 0)) == version:
                return True
            self.begin_publish()
            return False

        try:
            until(published, f"version {version} is published", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {said}") from error

    def publish(self) -> None:
        self.versions.next(self.draw.choice((0.0002, 0.01, 0.1)))
        self.begin_publish()
        self.end_publish()
        shutil.rmtree(self.versions.path(self.versions.newest))

    def kill(self, victim: str) -> Node | None:
        if victim != "trainer":
            node = next(n for n in (self.sender, *self.receivers) if n.name == victim)
            node.kill()
            return node
        if self.trainer.poll() is None:
            self.trainer_kills += 1
            self.trainer.kill()
        return None

    def cycle(self) -> str:
        """What was done, once all are at the newest version again."""
        draw = self.draw
        kind = draw.choice(("delta", "delta", "fold", "full"))
        late = draw.choice(self.receivers) if kind != "delta" else None
        if late is not None:
            late.kill()
        if kind == "full":
            shutil.rmtree(late.directory)
        for _ in range(draw.randint(1, 3) if kind == "fold" else 0):
            self.publish()
        self.versions.next(draw.choice((0.0002, 0.01, 0.1)))
        if late is not None:
            late.start()
        self.begin_publish()
        victims = draw.sample(("trainer", "sender", "relay", "leaf", "plain"), draw.choice((1, 1, 2)))
        delays = [round(10 ** draw.uniform(-3, 0) * LONGEST_DELAY_S, 4) for _ in range(2)]
        time.sleep(delays[0])  # the moment of the kill
        dead = [node for victim in victims if (node := self.kill(victim)) is not None]
        time.sleep(delays[1])  # for which they are away
        for node in dead:
            node.start()
        self.end_publish()
        shutil.rmtree(self.versions.path(self.versions.newest))
        self.check()
        return f"{kind}{f' of {late.name}' if late else ''}, {' and '.join(victims)} after {delays} s"

    def check(self) -> None:
        version = self.versions.newest
        newest = identity(ask("sender", self.sender.control)["newest"]["id"])
        for node in self.receivers:
            committed = lambda: identity(ask("receiver", node.control).get("committed", {}))
            until(lambda: committed() == newest, f"{node.name} has {newest}", PATIENCE_S)
            held = self.versions.of(read_safetensors(node.directory / "model.safetensors"))
            assert held == version, f"{node.name} holds version {held} instead of {version}"
        for witness in self.witnesses:
            assert not witness.fault, witness.fault


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cycles", type=int, nargs="?", default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if programs() is None:
        skipping.leave("DELTAWIRE_BIN_DIR does not name the programs")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="deltawire-kills-", dir="/dev/shm") as folder:
        root = pathlib.Path(folder)
        fleet = Fleet(root, random.Random(options.seed))
        cycle = 0
        try:
            until(lambda: listens(fleet.trainer_socket), "the sender listens")
            fleet.publish()
            fleet.check()
            for cycle in range(1, options.cycles + 1):
                did = fleet.cycle()
                print(f"{time.monotonic() - began:6.1f} s  cycle {cycle}: {did}", flush=True)
            for witness in fleet.witnesses:
                witness.stop()
        except BaseException:
            print(f"cycle {cycle}; repeat it with {options.cycles} --seed {options.seed}")
            for log in sorted(root.glob("*.log")):
                print(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-80:]))
            raise
        kills = {n.name: n.kills for n in (fleet.sender, *fleet.receivers)}
        print(f"{options.cycles} cycles, {fleet.versions.newest} versions, killed: "
              f"{dict(kills, trainer=fleet.trainer_kills)}; "
              f"{sum(w.reads for w in fleet.witnesses)} reads beside them, none torn")  # fmt: skip


if __name__ == "__main__":
    main()
