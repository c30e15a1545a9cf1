"""A rolling upgrade, with the programs of two releases: senders and receivers of both, mixed, and each
replaced by the other while versions are published.

    upgrade_check.py OLD_BIN NEW_BIN [--unlike]
                                 folders with deltawire-sender, deltawire-receiver, deltawire

Where both speak one wire version, every mixture must bring every version, byte for byte. Where they
do not, the receiver must keep what it has, say which versions they speak, and go on as soon as both
ends are of one release. With --unlike it is as if NEW_BIN spoke another wire version: between unlike
ends each stream's first frames have another number on the way, which both ends' own code refuses.
"""

from __future__ import annotations

import json
import pathlib
import signal
import socket
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
REFUSAL = "speaks wire version"
VERSION_AT = 4  # in a frame's header (docs/wire_format.md)
PROXY_HOST = "127.0.0.2"


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


class Proxy:
    """The sender's bulk port at another address. `unlike()` says whether first frames are changed."""

    def __init__(self, port: int, unlike):
        self._port, self._unlike = port, unlike
        self._listening = socket.create_server((PROXY_HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except ConnectionError:
                near.close()
                continue
            except OSError:
                return
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, a: socket.socket, b: socket.socket) -> None:
        at, unlike = 0, self._unlike()
        try:
            while data := bytearray(a.recv(1 << 16)):
                if unlike and at <= VERSION_AT < at + len(data):
                    data[VERSION_AT - at] += 1
                at += len(data)
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            a.close()
            b.close()


class Pair:
    """A sender and a receiver, each of which can be replaced in place, and who publishes meanwhile."""

    def __init__(self, root: pathlib.Path, sender: pathlib.Path, receiver: pathlib.Path, unlike: bool):
        self.root = root
        self._bulk = free_port()
        self._replaced: set[str] = set()
        self._proxy = Proxy(self._bulk, lambda: len(self._replaced) == 1) if unlike else None
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
                       "--bulk-listen", f"127.0.0.1:{self._bulk}",
                       *(["--advertise-host", PROXY_HOST] if self._proxy else [])],
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
        self._replaced.add(daemon)
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

    def refuses(self, least: int) -> None:
        """It says why, and keeps what it has, `least` or newer, while two more are published."""
        self.until("the receiver says why it cannot pull", lambda: REFUSAL in json.dumps(self.status()))
        held, goal = self.committed(), self.published + 2
        assert held >= least, (held, least, self.status())
        self.until("two more are published", lambda: self.published >= goal)
        assert self.committed() == held, (held, self.status())
        assert REFUSAL in json.dumps(self.status()), self.status()

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
        if self._proxy:
            self._proxy.close()


def upgraded(pair: Pair, order: tuple[str, str], new: pathlib.Path, same: bool) -> None:
    """Both are old at first; one after the other is replaced."""
    pair.moves_on()
    least = pair.committed()
    pair.replace(order[0], new)
    if same:
        pair.moves_on()
    else:
        pair.refuses(least)
    pair.replace(order[1], new)
    pair.moves_on()


def run(name: str, sender: pathlib.Path, receiver: pathlib.Path, steps, unlike: bool = False) -> None:
    shm = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="deltawire-upgrade-", dir=shm if shm.is_dir() else None) as folder:
        pair = Pair(pathlib.Path(folder), sender, receiver, unlike)
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
    unlike = sys.argv[3:] == ["--unlike"]
    old, new = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    speaks = [formats(p) for p in (old, new)]
    for side, said in zip(("old", "new"), speaks):
        print(f"{side}: {said['program']}, wire format {said['wire_format']}, delta format {said['delta_format']}")
    same = speaks[0]["wire_format"] == speaks[1]["wire_format"]
    if same and speaks[0]["delta_format"] != speaks[1]["delta_format"]:
        sys.exit("the delta format was changed without the wire version (docs/operations.md, Upgrades)")
    same = same and not unlike
    if same:
        run("an old sender and a new receiver", old, new, Pair.moves_on)
        run("a new sender and an old receiver", new, old, Pair.moves_on)
    for order in (("sender", "receiver"), ("receiver", "sender")):
        run(f"upgraded in place, the {order[0]} first" + ("" if same else ", refused until both are new"),
            old, old, lambda pair, order=order: upgraded(pair, order, new, same), unlike)  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 3 and sys.argv[3:] != ["--unlike"]:
        sys.exit(__doc__)
    main()
