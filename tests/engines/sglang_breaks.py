"""What breaks around an SGLang that follows (breaks.py), and what only SGLang is asked."""

from __future__ import annotations

import breaks
from policy import PROMPT, Policy, check
from sglang_server import UPDATE, SglangServer


class SglangWatch(breaks.Watch):
    def __init__(self, server: SglangServer, policy: Policy):
        super().__init__(server, policy)
        self.order, self.ranks = f"deltawire:{policy.directory}", server.ranks

    def lines(self, reason: str) -> int:
        return sum(reason in line and "deltawire" in line
                   for line in self.server.log.read_text().splitlines())

    def ask(self, version: int | None) -> tuple[int, str]:
        return self.order_refused(
            self.order if version is None else f"{self.order}?version={version}")

    def order_refused(self, path: str) -> tuple[int, str]:
        with self.server.paused():
            return self.server.refused(UPDATE, {"model_path": path})

    def refuses_order(self, what: str, path: str, reason: str) -> None:
        before = self.lines(reason)
        self.stays(what, reason, before, self.order_refused(path))

    def load(self) -> None:
        self.server.update(str(self.policy.directory), weight_version=str(self.policy.version))

    def update(self) -> str:
        message = self.server.update(self.order)
        self.server.post("/weights_checker", {"action": f"{self.order}?check"})
        return message


def run(server: SglangServer, policy: Policy) -> None:
    watch = SglangWatch(server, policy)
    wrong_orders(watch)
    running_requests(watch)
    back_and_forth(watch)
    breaks.run(watch)


def one_rank_fails(server: SglangServer, policy: Policy) -> None:
    """Of two: what the other has written must go again."""
    watch = SglangWatch(server, policy)
    policy.publish()
    server.fault.touch()
    watch.refuses("one rank could not write", "rank 1: a planted fault")
    server.fault.unlink()
    watch.follows("it can again")


def wrong_orders(watch: SglangWatch) -> None:
    watch.refuses("a version that nobody has", "version 999 was asked for", 999)
    watch.refuses_order("a directory that never was", "deltawire:/dev/shm/deltawire-no-such",
                        "/dev/shm/deltawire-no-such")
    watch.refuses_order("an option that there is not", f"{watch.order}?later", "no option later")
    watch.refuses_order("a rollback to anywhere", f"{watch.order}?rollback&version=1",
                        "a rollback leads to")
    code, text = watch.server.refused("/weights_checker", {"action": f"{watch.order}?rollback"})
    check(code == 400 and "either prepare or check" in text, "no rollback by /weights_checker")


def running_requests(watch: SglangWatch) -> None:
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


def back_and_forth(watch: SglangWatch) -> None:
    before, version = watch.sums, watch.version
    watch.policy.publish()
    watch.follows("forth")
    watch.server.update(f"{watch.order}?rollback&version={version}")
    check(watch.server.checksums() == before and watch.server.version() == version,
          f"a rollback makes the memory and the version what they were, {version}")
    watch.follows("forth again")
