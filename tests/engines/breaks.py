"""What breaks around an engine that follows, whichever it is: after each refusal the server serves on,
with one version, whose weights are untouched; after each repair it follows again."""

from __future__ import annotations

import abc
import contextlib
import json
import os
import pathlib
import shutil
import struct
from collections.abc import Iterator

import deltawire
from engine_server import EngineServer
from policy import PROMPT, Policy, check


class Watch(abc.ABC):
    """One server and what it is known to hold."""

    def __init__(self, server: EngineServer, policy: Policy):
        self.server, self.policy = server, policy
        self._remember()

    def _remember(self) -> None:
        self.version, self.sums = self.server.version(), self.server.checksums()

    @abc.abstractmethod
    def lines(self, reason: str) -> int:
        """Lines of the server's log by which deltawire gives the reason."""

    @abc.abstractmethod
    def ask(self, version: int | None) -> tuple[int, str]:
        """The answer to an update that must be refused. None: to what is committed."""

    @abc.abstractmethod
    def load(self) -> None:
        """The server loads the whole directory by itself."""

    @abc.abstractmethod
    def update(self) -> str:
        """Brings the server to what is committed, and has it compare all of its memory. What it
        says of that."""

    #: Lines of the log for a refusal.
    ranks = 1

    def stays(self, what: str, reason: str, before: int, answer: tuple[int, str]) -> None:
        """`before`: lines with the reason before the call that was answered so."""
        code, text = answer
        check(code in (400, 500) and reason in text, f"{what}: {code} {text[:300]}")
        check(self.lines(reason) == before + self.ranks,
              "the reason is one line of the server's log, of each rank")
        check(self.server.version() == self.version and self.server.checksums() == self.sums
              and bool(self.server.logprobs(PROMPT)),
              f"the server serves on with version {self.version}, which is untouched")

    def refuses(self, what: str, reason: str, version: int | None = None) -> None:
        before = self.lines(reason)
        self.stays(what, reason, before, self.ask(version))

    def reloads(self) -> None:
        self.load()
        self._remember()

    def follows(self, what: str) -> str:
        message = self.update()
        self._remember()
        check(self.version == str(self.policy.version), f"{what}: {message or self.version}")
        return message


def run(watch: Watch) -> None:
    missing_directory(watch)
    short_delta_file(watch)
    another_writer(watch)
    killed_receiver(watch)
    new_receiver(watch)
    killed_sender(watch)


def missing_directory(watch: Watch) -> None:
    directory, away = watch.policy.directory, watch.policy.root / "away"
    watch.policy.publish()
    watch.policy.daemons.kill("deltawire-receiver")  # a running one makes its directory anew
    directory.rename(away)
    watch.refuses("the receiver's directory is gone", str(directory), watch.policy.version)
    away.rename(directory)
    watch.policy.start_receiver()
    watch.follows("the directory is back")


def short_delta_file(watch: Watch) -> None:
    watch.policy.publish()
    newest = watch.policy.delta_file()
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    message = watch.follows("a delta file that is cut short: the buffer has all of it")
    check(not message or "0 deltas" in message, "nothing was taken from that file")


def another_writer(watch: Watch) -> None:
    watch.policy.publish()
    watch.reloads()
    watch.policy.publish()
    watch.refuses("weights that the engine loaded by itself, of an older version",
                  "it loaded another version")
    watch.reloads()
    watch.follows("after a reload of the committed version")


def killed_receiver(watch: Watch) -> None:
    """Nobody repairs its directory then: a running receiver finds a changed byte by itself."""
    watch.policy.publish()
    newest = watch.policy.delta_file()
    watch.policy.daemons.kill("deltawire-receiver")
    weights = watch.policy.directory / "model.safetensors"
    with flipped(newest, newest.stat().st_size - 1):
        with flipped(weights, first_byte(weights, "lm_head.weight")):
            watch.refuses("a changed byte in the delta file, and one in the buffer",
                          "has lost its digest")
        with cut(weights):
            watch.refuses("a changed byte in the delta file, and a buffer that is cut short",
                          str(watch.policy.directory))
    watch.follows("the bytes are back, and the receiver is not")
    watch.refuses("no receiver, no next version", "was asked for", watch.policy.version + 1)
    watch.policy.start_receiver()
    watch.policy.publish()
    watch.follows("a receiver is back")


def new_receiver(watch: Watch) -> None:
    """As after the end of a container with its memory."""
    watch.policy.daemons.kill("deltawire-receiver")
    shutil.rmtree(watch.policy.directory)
    watch.policy.start_receiver()
    watch.follows("another receiver has fetched the version that the engine holds")
    watch.policy.publish()
    message = watch.follows("its next version")
    check(not message or "of 1 deltas" in message, "which comes as a delta")


def killed_sender(watch: Watch) -> None:
    watch.policy.daemons.kill("deltawire-sender")
    try:
        watch.policy.publish()
        check(False, "no sender takes a version")
    except deltawire.Error as error:
        check(True, f"no sender takes a version: {error}")
    watch.refuses("no sender, no next version", "was asked for", watch.policy.version + 1)


def first_byte(weights: pathlib.Path, tensor: str) -> int:
    """Where the tensor's data begins in a safetensors file."""
    with open(weights, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return 8 + length + json.loads(file.read(length))[tensor]["data_offsets"][0]


@contextlib.contextmanager
def flipped(path: pathlib.Path, at: int) -> Iterator[None]:
    """One bit of one byte is another one inside."""
    def flip() -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
    flip()
    try:
        yield
    finally:
        flip()


@contextlib.contextmanager
def cut(path: pathlib.Path) -> Iterator[None]:
    """Only the first half of the file is there inside; it stays the same file."""
    content = path.read_bytes()
    os.truncate(path, len(content) // 2)
    try:
        yield
    finally:
        with open(path, "r+b") as file:
            file.write(content)
