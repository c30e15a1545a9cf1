"""What breaks around an SGLang that follows: after each refusal the server serves on, with one
version, whose weights are untouched; after each repair it follows again."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import struct
from collections.abc import Iterator

import deltawire
from policy import PROMPT, Policy, check
from sglang_server import UPDATE, SglangServer


class Watch:
    """One server and what it is known to hold."""

    def __init__(self, server: SglangServer, policy: Policy):
        self.server, self.policy = server, policy
        self.order = f"deltawire:{policy.directory}"
        self._remember()

    def _remember(self) -> None:
        self.version, self.sums = self.server.version(), self.server.checksums()

    def lines(self, reason: str) -> int:
        """Lines of the server's log that have the reason."""
        return sum(reason in line and "deltawire" in line
                   for line in self.server.log.read_text().splitlines())

    def refuses(self, what: str, path: str, reason: str) -> None:
        before = self.lines(reason)
        with self.server.paused():
            code, text = self.server.refused(UPDATE, {"model_path": path})
        check(code == 400 and reason in text, f"{what}: {code} {text}")
        check(self.lines(reason) == before + self.server.ranks,
              "the reason is one line of the server's log, of each rank")
        check(self.server.version() == self.version and self.server.checksums() == self.sums
              and bool(self.server.logprobs(PROMPT)),
              f"the server serves on with version {self.version}, which is untouched")

    def reloads(self) -> None:
        """The server loads the whole directory by itself."""
        self.server.update(str(self.policy.directory), weight_version=str(self.policy.version))
        self._remember()

    def follows(self, what: str) -> str:
        """The server's message."""
        message = self.server.update(self.order)
        self.server.post("/weights_checker", {"action": f"{self.order}?check"})
        self._remember()
        check(self.version == str(self.policy.version), f"{what}: {message}")
        return message


def run(server: SglangServer, policy: Policy) -> None:
    watch = Watch(server, policy)
    wrong_orders(watch)
    running_requests(watch)
    missing_directory(watch)
    short_delta_file(watch)
    back_and_forth(watch)
    another_writer(watch)
    killed_receiver(watch)
    new_receiver(watch)
    killed_sender(watch)


def one_rank_fails(server: SglangServer, policy: Policy) -> None:
    """Of two: what the other has written must go again."""
    watch = Watch(server, policy)
    policy.publish()
    server.fault.touch()
    watch.refuses("one rank could not write", watch.order, "rank 1: a planted fault")
    server.fault.unlink()
    watch.follows("it can again")


def wrong_orders(watch: Watch) -> None:
    watch.refuses("a version that nobody has", f"{watch.order}?version=999",
                  "version 999 was asked for")
    watch.refuses("a directory that never was", "deltawire:/dev/shm/deltawire-no-such",
                  "/dev/shm/deltawire-no-such")
    watch.refuses("an option that there is not", f"{watch.order}?later", "no option later")
    watch.refuses("a rollback to anywhere", f"{watch.order}?rollback&version=1",
                  "a rollback leads to")
    code, text = watch.server.refused("/weights_checker", {"action": f"{watch.order}?rollback"})
    check(code == 400 and "either prepare or check" in text, "no rollback by /weights_checker")


def running_requests(watch: Watch) -> None:
    """A pause that keeps requests in their place keeps their cache, too."""
    server, old = watch.server, watch.version
    watch.policy.publish()
    answers = server.stream(PROMPT, 200)
    next(answers)
    with server.paused("in_place"):
        code, text = server.refused(UPDATE, {"model_path": watch.order})
        check(code == 400 and "requests are running" in text, f"requests run: {code} {text}")
        check(server.version() == old and server.checksums() == watch.sums, "nothing is written")
        server.post(UPDATE, {"model_path": watch.order, "flush_cache": False})
    spans = [span["version"] for span in list(answers)[-1]["meta_info"]["weight_versions"]]
    check(spans == [old, str(watch.policy.version)],
          f"a request that goes on meanwhile says so: versions {', '.join(spans)}")
    watch.follows("and again, which writes nothing")


def missing_directory(watch: Watch) -> None:
    directory, away = watch.policy.directory, watch.policy.root / "away"
    watch.policy.publish()
    directory.rename(away)
    watch.refuses("the receiver's directory is gone", f"{watch.order}?version="
                  f"{watch.policy.version}", str(directory))
    away.rename(directory)
    watch.follows("the directory is back")


def short_delta_file(watch: Watch) -> None:
    watch.policy.publish()
    newest = watch.policy.delta_file()
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    check("0 deltas" in watch.follows("a delta file that is cut short: the buffer has all of it"),
          "nothing was taken from that file")


def back_and_forth(watch: Watch) -> None:
    before, version = watch.sums, watch.version
    watch.policy.publish()
    watch.follows("forth")
    watch.server.update(f"{watch.order}?rollback&version={version}")
    check(watch.server.checksums() == before and watch.server.version() == version,
          f"a rollback makes the memory and the version what they were, {version}")
    watch.follows("forth again")


def another_writer(watch: Watch) -> None:
    watch.policy.publish()
    watch.reloads()
    watch.policy.publish()
    watch.refuses("weights that the engine loaded by itself, of an older version", watch.order,
                  "it loaded another version")
    watch.reloads()
    watch.follows("after a reload of the committed version")


def killed_receiver(watch: Watch) -> None:
    """Nobody repairs its directory then: a running receiver finds a changed byte by itself."""
    watch.policy.publish()
    newest = watch.policy.delta_file()
    watch.policy.daemons.kill("deltawire-receiver")
    weights = watch.policy.directory / "model.safetensors"
    with (flipped(newest, newest.stat().st_size - 1),
          flipped(weights, first_byte(weights, "lm_head.weight"))):
        watch.refuses("a changed byte in the delta file, and one in the buffer", watch.order,
                      "has lost its digest")
    watch.follows("the bytes are back, and the receiver is not")
    watch.refuses("no receiver, no next version",
                  f"{watch.order}?version={watch.policy.version + 1}", "was asked for and")
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
    check("of 1 deltas" in watch.follows("its next version"), "which comes as a delta")


def killed_sender(watch: Watch) -> None:
    watch.policy.daemons.kill("deltawire-sender")
    try:
        watch.policy.publish()
        check(False, "no sender takes a version")
    except deltawire.Error as error:
        check(True, f"no sender takes a version: {error}")
    watch.refuses("no sender, no next version",
                  f"{watch.order}?version={watch.policy.version + 1}", "was asked for and")


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
