"""What breaks around a vLLM that follows (breaks.py), and what only vLLM is asked."""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterator

import breaks
from policy import Policy, check
from vllm_server import VllmServer

INIT, START, UPDATE, FINISH = ("/init_weight_transfer_engine", "/start_weight_update",
                               "/update_weights", "/finish_weight_update")
#: The plug-in's own lines; vLLM has many more of where an error was raised.
OURS = "[vllm.py:"


class VllmWatch(breaks.Watch):
    """As a program that drives vLLM by the calls of docs/engine.md."""

    def lines(self, reason: str) -> int:
        return sum(OURS in line and "deltawire: " in line and reason in line
                   for line in self.server.log.read_text().splitlines())

    def ask(self, version: int | None) -> tuple[int, str]:
        return self.update_refused({"version": version})

    def update_refused(self, info: dict) -> tuple[int, str]:
        with self.session():
            try:
                self.server.post(START)
            except urllib.error.HTTPError as error:
                text = error.read().decode()
                if "comes first" not in text:
                    return error.code, text
                return self.server.refused(INIT, self.init())
            with self.paused():
                return self.server.refused(UPDATE, {"update_info": info})

    def init(self) -> dict:
        return {"init_info": {"directory": str(self.policy.directory)}}

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """What was begun inside is given up at the end."""
        try:
            yield
        finally:
            with contextlib.suppress(urllib.error.HTTPError):  # none is open
                self.server.post(FINISH)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.server.post("/pause?mode=keep")
        try:
            yield
        finally:
            self.server.post("/resume")

    def load(self) -> None:
        with self.paused():
            self.server.post("/shutdown_weight_transfer_engine")
            self.server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {
                "weights_path": str(self.policy.directory), "is_checkpoint_format": True}})
            self.drop_cache()
            self.server.post("/update_weight_version", {"new_version": str(self.policy.version)})

    def drop_cache(self) -> None:
        said = self.server.post("/reset_prefix_cache?reset_running_requests=true")
        check(said["success"], "what older weights have computed is gone")

    def update(self) -> str:
        try:
            self.server.post(START)
        except urllib.error.HTTPError:  # it follows no longer: another receiver, another writer
            with contextlib.suppress(urllib.error.HTTPError):
                self.server.post(FINISH)
            self.server.post(INIT, self.init())
            self.server.post(START)
        with self.paused():
            self.server.post(UPDATE, {"update_info": {
                "version": self.policy.version, "check": True}})
            self.server.post(FINISH, {"weight_version": str(self.policy.version)})
            self.drop_cache()
        return ""


def run(server: VllmServer, policy: Policy) -> None:
    watch = VllmWatch(server, policy)
    wrong_orders(watch)
    back_and_forth(watch)
    proof_without_a_session(watch)
    breaks.run(watch)


def wrong_orders(watch: VllmWatch) -> None:
    watch.refuses("a version that nobody has", "version 999 was asked for", 999)
    for what, info, reason in (
            ("a rollback of nothing", {"rollback": True}, "no update was applied"),
            ("a rollback with a check", {"rollback": True, "check": True}, "is not checked")):
        before = watch.lines(reason)
        watch.stays(what, reason, before, watch.update_refused(info))
    nowhere = "/dev/shm/deltawire-no-such"
    before = watch.lines(nowhere)
    watch.stays("a directory that never was", nowhere, before, watch.server.refused(
        INIT, {"init_info": {"directory": nowhere}}))
    watch.follows("attached again")


def back_and_forth(watch: VllmWatch) -> None:
    """A rollback comes before the update is finished, and its version was named to nobody."""
    before = watch.sums
    watch.policy.publish()
    with watch.paused():
        watch.server.post(START)
        watch.server.post(UPDATE, {"update_info": {"version": watch.policy.version}})
        watch.server.post(UPDATE, {"update_info": {"rollback": True}})
        watch.server.post(FINISH)
    check(watch.server.checksums() == before and watch.server.version() == watch.version,
          f"a rollback makes the memory what it was, and the version stays {watch.version}")
    watch.follows("forth again")


def proof_without_a_session(watch: VllmWatch) -> None:
    """vLLM ends the session of an update that is refused, and with it the way back. What the memory
    is can be proven all the same."""
    held = watch.policy.version
    watch.policy.publish()
    with watch.paused():
        watch.server.post(START)
        watch.server.refused(UPDATE, {"update_info": {"version": 999}})
        _, text = watch.server.refused(UPDATE, {"update_info": {"rollback": True}})
        check("start_weight_update must be called" in text, "no rollback without a session")
        watch.server.post(INIT, {"init_info": {"prove": held}})
        _, text = watch.server.refused(INIT, {"init_info": {"prove": watch.policy.version}})
        check(f"and not version {watch.policy.version}" in text,
              f"without a session the memory is proven to be version {held}")
    watch.follows("forth after a proof")
