"""A rolling upgrade, with the programs of two releases: senders and receivers of both, mixed, and each
replaced by the other while versions are published.

    upgrade_check.py OLD_BIN NEW_BIN      folders with deltawire-sender, deltawire-receiver, deltawire

Where both speak one wire version, every mixture must bring every version, byte for byte. Where they
do not, the receiver must keep what it has, say which versions they speak, and go on as soon as both
ends are of one release.
"""

from __future__ import annotations

import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

from daemons import DEADLINE_S, Receiver, free_port, spawn  # noqa: E402

ELEMENTS = 200_000
REFUSAL = "the peer speaks wire version"


def content(version: int) -> bytes:
    """The tensor at a version: a few elements differ from version to version."""
    values = bytearray(struct.pack(f"<{ELEMENTS}I", *range(ELEMENTS)))
    for k in range(1, version + 1):
        struct.pack_into("<I", values, 4 * (k * 7919 % ELEMENTS), k)
    return bytes(values)


def checkpoint(folder: pathlib.Path, version: int) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    data = content(version)
    header = json.dumps({"w": {"dtype": "U32", "shape": [ELEMENTS], "data_offsets": [0, len(data)]}})
    raw = header.encode() + b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return folder


def formats(programs: pathlib.Path) -> dict:
    said = subprocess.run([programs / "deltawire", "version", "--json"], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


class Pair:
    """A sender and a receiver, each of which can be replaced in place, and who publishes meanwhile."""

    def __init__(self, root: pathlib.Path, sender: pathlib.Path, receiver: pathlib.Path):
        self.root = root
        self.control, self.address = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.published = 0
        self.wrong = ""
        self._running: dict[str, subprocess.Popen] = {}
        self._stop = threading.Event()
        self._of = {"sender": sender, "receiver": receiver}
        for daemon in ("sender", "receiver"):
            self._start(daemon)
        self._publisher = threading.Thread(target=self._publish, daemon=True)
        self._publisher.start()

    def _start(self, daemon: str) -> None:
        options = {
            "sender": ["--data-dir", self.root / "s", "--control-listen", self.control,
                       "--bulk-listen", "127.0.0.1:0"],
            "receiver": ["--sender", self.control, "--model", f"m={self.root / 'r'}",
                         "--control-listen", self.address],
        }[daemon]  # fmt: skip
        with open(self.root / f"{daemon}.log", "a") as log:
            command = [self._of[daemon] / f"deltawire-{daemon}", *options]
            self._running[daemon] = spawn(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)

    def replace(self, daemon: str, programs: pathlib.Path) -> None:
        """Stops it as a service manager does, and starts the other release's in its place."""
        self._end(daemon)
        self._of[daemon] = programs
        self._start(daemon)

    def _end(self, daemon: str) -> None:
        child = self._running.pop(daemon)
        child.send_signal(signal.SIGTERM)
        child.wait(DEADLINE_S)

    def _publish(self) -> None:
        """A version after the other; one that fails, because the sender is being replaced, again."""
        while not self._stop.is_set():
            version = self.published + 1
            source = checkpoint(self.root / "checkpoint", version)
            command = [self._of["sender"] / "deltawire", "publish", source, "--model", "m", "--version",
                       str(version), "--socket", self.root / "s" / "trainer.sock"]  # fmt: skip
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
            if done.returncode == 0:
                self.published = version
            else:
                self.wrong = done.stdout + done.stderr

    def status(self) -> dict:
        receiver = Receiver(self._of["receiver"] / "deltawire", "m", self.root / "r")
        receiver.address = self.address
        return receiver.status()

    def committed(self) -> int:
        return int(self.status().get("committed", {}).get("version", 0))

    def until(self, what: str, done) -> None:
        end = time.monotonic() + DEADLINE_S
        while not done():
            if time.monotonic() > end:
                raise AssertionError(f"not within {DEADLINE_S} s: {what}; published {self.published}, "
                                     f"{self.status()}; the last failure: {self.wrong}")  # fmt: skip
            time.sleep(0.02)

    def moves_on(self) -> None:
        """Until two versions that are published from now on are committed."""
        goal = self.published + 2
        self.until(f"version {goal} is committed", lambda: self.committed() >= goal)

    def refuses(self) -> None:
        held = self.committed()
        self.until("the receiver says why it cannot pull", lambda: REFUSAL in json.dumps(self.status()))
        assert self.committed() == held, (held, self.status())

    def finish(self) -> None:
        """The receiver's file is the last version, byte for byte."""
        self._stop.set()
        self._publisher.join()
        self.until("the last version", lambda: self.committed() == self.published)
        found = Receiver(pathlib.Path(), "m", self.root / "r").content()["w"][2]
        assert found == content(self.published), f"version {self.published} has other bytes"

    def close(self) -> None:
        self._stop.set()
        for daemon in list(self._running):
            self._end(daemon)
        self._publisher.join()


def upgraded(pair: Pair, order: tuple[str, str], new: pathlib.Path, same: bool) -> None:
    """Both are old at first; one after the other is replaced."""
    pair.moves_on()
    pair.replace(order[0], new)
    if same:
        pair.moves_on()
    else:
        pair.refuses()
    pair.replace(order[1], new)
    pair.moves_on()


def run(name: str, sender: pathlib.Path, receiver: pathlib.Path, steps) -> None:
    shm = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="deltawire-upgrade-", dir=shm if shm.is_dir() else None) as folder:
        pair = Pair(pathlib.Path(folder), sender, receiver)
        try:
            steps(pair)
            pair.finish()
        except BaseException:
            for log in sorted(pathlib.Path(folder).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-4000:]}")
            raise
        finally:
            pair.close()
        print(f"ok {name}: {pair.published} versions", flush=True)


def main() -> None:
    old, new = (pathlib.Path(a).resolve() for a in sys.argv[1:])
    speaks = [formats(p) for p in (old, new)]
    for side, said in zip(("old", "new"), speaks):
        print(f"{side}: {said['program']}, wire format {said['wire_format']}, delta format {said['delta_format']}")
    same = speaks[0]["wire_format"] == speaks[1]["wire_format"]
    if same and speaks[0]["delta_format"] != speaks[1]["delta_format"]:
        sys.exit("the delta format was changed without the wire version (docs/operations.md, Upgrades)")
    if same:
        run("an old sender and a new receiver", old, new, Pair.moves_on)
        run("a new sender and an old receiver", new, old, Pair.moves_on)
    for order in (("sender", "receiver"), ("receiver", "sender")):
        run(f"upgraded in place, the {order[0]} first" + ("" if same else ", refused until both are new"),
            old, old, lambda pair, order=order: upgraded(pair, order, new, same))  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
