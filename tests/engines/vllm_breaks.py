"""What breaks around a vLLM that follows (breaks.py), and what only vLLM is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import breaks
from policy import Policy, check
from vllm_server import VllmServer

#: The plug-in's own lines; vLLM has many more of where an error was raised.
OURS = "[_vllm_follower.py:"


class VllmWatch(breaks.Watch):
    """As a program that drives vLLM by the calls of docs/engine.md."""

    def lines(self, reason: str) -> int:
        return sum(OURS in line and "deltawire: " in line and reason in line
                   for line in self.server.log.read_text().splitlines())

    def ask(self, version: int | None) -> tuple[int, str]:
        return self.update_refused(version=version)

    def update_refused(self, **info) -> tuple[int, str]:
        """500 stands for a refusal, which is an answer of 200 here."""
        prepared = self.server.call("prepare")
        if not prepared["ok"]:
            if "comes first" not in prepared["reason"]:
                return 500, prepared["reason"]
            return 500, self.server.denied("attach", **self.init())
        with self.paused():
            reason = self.server.denied("apply", **info)
        self.server.do("discard")
        return 500, reason

    def init(self) -> dict:
        return {"directory": str(self.policy.directory)}

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.server.post("/pause?mode=keep")
        try:
            yield
        finally:
            self.server.post("/resume")

    def load(self) -> None:
        with self.paused():
            self.server.do("reload", **self.init())
            self.drop_cache()
            self.server.name_version(self.policy.version)

    def drop_cache(self) -> None:
        said = self.server.post("/reset_prefix_cache?reset_running_requests=true")
        check(said["success"], "what older weights have computed is gone")

    def update(self) -> str:
        # It may follow no longer: another receiver, another writer.
        if not self.server.call("prepare")["ok"]:
            self.server.do("attach", **self.init())
            self.server.do("prepare")
        with self.paused():
            self.server.do("apply", version=self.policy.version, check=True)
            self.server.name_version(self.policy.version)
            self.drop_cache()
        return ""


def run(server: VllmServer, policy: Policy, ranks: int) -> None:
    watch = VllmWatch(server, policy)
    watch.ranks = ranks
    wrong_orders(watch)
    if ranks > 1:
        one_rank_fails(watch)
    back_and_forth(watch)
    proofs(watch)
    breaks.run(watch)


def wrong_orders(watch: VllmWatch) -> None:
    watch.refuses("a version that nobody has", "version 999 was asked for", 999)
    before = watch.lines("no update was applied")
    watch.stays("a rollback of nothing", "no update was applied", before,
                (500, watch.server.denied("rollback")))
    nowhere = "/dev/shm/deltawire-no-such"
    before = watch.lines(nowhere)
    watch.stays("a directory that never was", nowhere, before,
                (500, watch.server.denied("attach", directory=nowhere)))
    watch.follows("attached again")


def one_rank_fails(watch: VllmWatch) -> None:
    """Where one rank cannot write, the others take theirs back."""
    watch.policy.publish()
    watch.server.plant.write_text("refuse")
    watch.refuses("one rank that cannot write", "a planted fault", watch.policy.version)
    watch.server.plant.unlink()
    watch.follows("every rank can write again")


def back_and_forth(watch: VllmWatch) -> None:
    """The version of what is rolled back was named to nobody."""
    before = watch.sums
    watch.policy.publish()
    with watch.paused():
        watch.server.do("prepare")
        watch.server.do("apply", version=watch.policy.version)
        watch.server.do("rollback")
    check(watch.server.checksums() == before and watch.server.version() == watch.version,
          f"a rollback makes the memory what it was, and the version stays {watch.version}")
    watch.follows("forth again")


def proofs(watch: VllmWatch) -> None:
    """Of the memory's version by its whole name, while nothing is under way."""
    held = watch.server.do("held")["held"]
    watch.policy.publish()
    watch.server.do("prepare")
    watch.server.do("prove", **held)
    text = watch.server.denied("prove", **{**held, "root": "0123456789abcdef"})
    check("of root 0123456789abcdef" in text, f"another root is refused: {text}")
    watch.follows("forth after a proof")
