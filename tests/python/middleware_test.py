"""deltawire.engine.middleware with a plain ASGI application, and real processes as ranks.

Usage: middleware_test.py [unittest's], or, as a rank: middleware_test.py --rank R --world N
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
import types
import unittest
import unittest.mock

import support
from daemons import until  # noqa: E402  # found by `support`

support.use_trainer_python()
deltawire = support.need("deltawire")

from deltawire.engine import _served, middleware  # noqa: E402

LINEAGE = "0123456789abcdef" * 2
LIMIT_S = 60


def identity(version: int):
    return types.SimpleNamespace(version=version, epoch=3, lineage=LINEAGE, root=0xABC0 + version)


def item(version: int) -> str:
    return f'{version};epoch=3;lineage="01234567";root="{0xABC0 + version:016x}"'


def rank_main(arguments: list[str]) -> None:
    """A rank: carries out one line of its input after the other, and answers each with a line."""
    rank, world = int(arguments[1]), int(arguments[3])
    if "--orphan" in arguments:
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        until(lambda: os.getppid() != parent, "the parent has ended")
    _served._rank_and_world = lambda: (rank, world)  # what torch says in an engine
    record = _served.Record()
    print("ready", flush=True)
    for line in sys.stdin:
        what, *versions = line.split()
        if what == "fork":
            child = os.fork()
            if child == 0:
                record.holds(identity(99))  # a copy's word is none
                signal.pause()
            print(child, flush=True)
            continue
        getattr(record, what)(*(identity(int(v)) for v in versions))
        print("done", flush=True)


class Rank:
    """A process with a record. A context manager."""

    def __init__(self, rank: int = 0, world: int = 1, *options: str, **environment: str):
        command = [sys.executable, __file__, "--rank", str(rank), "--world", str(world), *options]
        self._process = support.spawn(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | environment)
        self._answer("ready")

    def say(self, line: str) -> Rank:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._answer("done")
        return self

    def fork(self) -> int:
        """A child of the rank, which does nothing; its process."""
        self._process.stdin.write("fork\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def _answer(self, expected: str) -> None:
        assert self._process.stdout.readline().strip() == expected

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process.stdout.close()


class Answer:
    """What one request was answered with."""

    def __init__(self, messages: list):
        self.status = messages[0]["status"]
        self.headers = {n.decode(): v.decode() for n, v in messages[0]["headers"]}
        self.body = b"".join(m.get("body", b"") for m in messages[1:])
        self.version = self.headers.get("deltawire-version")


class App:
    """An application that answers when it may."""

    def __init__(self, content_type: bytes = b"application/json"):
        self.content_type = content_type
        self.headers = []
        self.may_answer, self.may_end = asyncio.Event(), asyncio.Event()
        self.calls = 0

    async def __call__(self, scope, receive, send):
        self.calls += 1
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", self.content_type), *self.headers]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b""})


async def request(server, **headers: str) -> Answer:
    messages = []

    async def send(message):
        messages.append(message)

    async def receive():
        raise AssertionError("the middleware takes nothing of the request's body")

    raw = [(n.replace("_", "-").encode(), v.encode()) for n, v in headers.items()]
    await server({"type": "http", "headers": raw}, receive, send)
    return Answer(messages)


class MiddlewareTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.app = App()
        self.server = middleware.VersionMiddleware(self.app)
        self.addCleanup(self.server._served.close)

    async def begun(self, calls: int = 1) -> asyncio.Task:
        """A request that the application has and does not answer yet."""
        task = asyncio.create_task(request(self.server))
        deadline = time.monotonic() + LIMIT_S
        while self.app.calls < calls:
            self.assertLess(time.monotonic(), deadline)
            await asyncio.sleep(0)
        return task

    def rank(self, *arguments, **environment) -> Rank:
        return self.enterContext(Rank(*arguments, **environment))

    async def ask(self, **headers: str) -> Answer:
        self.app.may_answer.set()
        self.app.may_end.set()
        return await asyncio.wait_for(request(self.server, **headers), LIMIT_S)

    async def test_a_response_names_what_the_engine_holds(self):
        self.assertIsNone((await self.ask()).version)
        rank = self.rank()
        self.assertIsNone((await self.ask()).version)  # attached to nothing yet
        rank.say("holds 7")
        self.assertEqual((await self.ask()).version, item(7))
        rank.say("changing 7 8").say("holds 8")
        answer = await self.ask()
        self.assertEqual((answer.status, answer.version), (200, item(8)))
        self.assertEqual(answer.body, b"data: 1\n\n")

    async def test_a_response_that_an_update_overtakes_names_both(self):
        rank = self.rank().say("holds 7")
        task = await self.begun()
        rank.say("changing 7 8").say("holds 8")
        self.app.may_answer.set()
        self.app.may_end.set()
        self.assertEqual((await task).version, f"{item(7)}, {item(8)}")

    async def test_an_update_and_its_rollback_do_not_look_like_nothing(self):
        rank = self.rank().say("holds 7")
        task = await self.begun()
        rank.say("changing 7 8").say("holds 8").say("changing 8 7").say("holds 7")
        self.app.may_answer.set()
        self.app.may_end.set()
        self.assertEqual((await task).version, f"{item(7)}, {item(7)}")

    async def test_the_new_version_is_claimed_when_all_ranks_hold_it(self):
        first, second = self.rank(0, 2), self.rank(1, 2)
        first.say("holds 7")
        self.assertIsNone((await self.ask()).version)
        second.say("holds 7")
        self.assertEqual((await self.ask()).version, item(7))
        first.say("changing 7 8")
        self.assertEqual((await self.ask(deltawire_want_version=">=8")).status, 409)
        first.say("holds 8")
        answer = await self.ask(deltawire_want_version="8")
        # What the first rank holds is what comes; the old one is what the other still holds.
        self.assertEqual((answer.status, answer.version), (409, f"{item(7)}, {item(8)}"))
        second.say("changing 7 8")
        self.assertEqual((await self.ask()).version, f"{item(7)}, {item(8)}")
        second.say("holds 8")
        self.assertEqual((await self.ask(deltawire_want_version="8")).version, item(8))
        # And back: now the old one is 8.
        second.say("changing 8 7").say("holds 7")
        self.assertEqual((await self.ask()).version, f"{item(8)}, {item(7)}")

    async def test_a_request_between_two_ranks_changes_is_named_with_the_old_state(self):
        first, second = self.rank(0, 2).say("holds 7"), self.rank(1, 2).say("holds 7")
        first.say("changing 7 8").say("holds 8")
        task = await self.begun()
        second.say("changing 7 8").say("holds 8")
        self.app.may_answer.set()
        self.app.may_end.set()
        self.assertEqual((await task).version, f"{item(7)}, {item(8)}")

    async def test_nothing_is_claimed_for_a_rank_that_is_missing_or_dead(self):
        rank = self.rank(1, 2).say("holds 7")
        self.assertIsNone((await self.ask()).version)
        other = self.rank(0, 2).say("holds 7")
        self.assertEqual((await self.ask()).version, item(7))
        other.kill()
        self.assertIsNone((await self.ask()).version)
        again = self.rank(0, 2).say("holds 8")  # the restarted rank loaded what was committed then
        self.assertIn(item(8), (await self.ask()).version)
        self.assertEqual((await self.ask(deltawire_want_version="8")).status, 409)
        rank.say("changing 7 8").say("holds 8")
        again.say("holds 8")
        self.assertEqual((await self.ask()).version, item(8))

    async def test_a_child_of_a_rank_does_not_keep_its_word_alive(self):
        rank = self.rank().say("holds 7")
        child = rank.fork()
        self.addCleanup(os.kill, child, signal.SIGKILL)
        self.assertEqual((await self.ask()).version, item(7))
        rank.kill()
        self.assertIsNone((await self.ask()).version)

    async def test_records_of_other_servers_are_none_of_ours(self):
        with Rank(0, 1, "--orphan") as stranger:
            stranger.say("holds 9")
            self.assertIsNone((await self.ask()).version)
        self.rank().say("holds 7")
        self.assertEqual((await self.ask()).version, item(7))

    async def test_a_name_in_the_environment_joins_processes_without_a_common_parent(self):
        with unittest.mock.patch.dict(os.environ, DELTAWIRE_SERVER="one"):
            named = middleware.VersionMiddleware(self.app)
        self.addCleanup(named._served.close)
        self.app.may_answer.set()
        self.app.may_end.set()
        self.rank(DELTAWIRE_SERVER="two").say("holds 6")
        self.assertIsNone((await request(named)).version)
        with Rank(0, 1, "--orphan", DELTAWIRE_SERVER="one") as rank:
            rank.say("holds 9")
            self.assertEqual((await request(named)).version, item(9))

    async def test_what_a_request_may_ask_for(self):
        self.rank().say("holds 7")
        for wanted in ("7", ">=7", ">= 6", item(7), '7;epoch=3', '7;lineage="0123"', ">=1;epoch=3"):
            with self.subTest(wanted):
                answer = await self.ask(deltawire_want_version=wanted)
                self.assertEqual((answer.status, answer.version), (200, item(7)))
        calls = self.app.calls
        for wanted in ("8", "6", ">=8", item(7).replace("epoch=3", "epoch=4"),
                       item(7).replace("01234567", "11234567"), '7;root="000000000000abc8"'):
            with self.subTest(wanted):
                answer = await self.ask(deltawire_want_version=wanted)
                self.assertEqual((answer.status, answer.version), (409, item(7)))
                error = json.loads(answer.body)["error"]
                self.assertEqual(error["code"], 409)
                self.assertIn(f"the engine holds {item(7)}", error["message"])
        for headers in ({"deltawire_want_version": "seven"}, {"deltawire_want_version": "7;size=1"},
                        {"deltawire_want_version": "-7"}, {"deltawire_want_version": "<=7"},
                        {"deltawire_want_version": "7", "deltawire_wait_ms": "soon"},
                        {"deltawire_want_version": "7", "deltawire_wait_ms": "600001"}):
            with self.subTest(headers):
                answer = await self.ask(**headers)
                self.assertEqual(answer.status, 400)
                message = json.loads(answer.body)["error"]["message"]
                self.assertIn(list(headers.values())[-1], message)
        self.assertEqual(self.app.calls, calls)  # no refused request came through

    async def test_requests_wait_for_their_version_together_and_no_longer_than_asked(self):
        rank = self.rank().say("holds 7")
        tasks = [asyncio.create_task(
            self.ask(deltawire_want_version=want, deltawire_wait_ms=str(1000 * LIMIT_S)))
                 for want in ("8", ">=8", ">=8", "9")]
        late = await self.ask(deltawire_want_version="8", deltawire_wait_ms="50")
        self.assertEqual((late.status, late.version), (409, item(7)))
        self.assertFalse(any(t.done() for t in tasks))
        tasks.pop(2).cancel()  # its end is not the others'
        rank.say("changing 7 8")
        await self.ask(deltawire_want_version="8", deltawire_wait_ms="50")
        self.assertFalse(any(t.done() for t in tasks))
        rank.say("holds 8")
        for task in tasks[:2]:
            self.assertEqual((await task).version, item(8))
        rank.say("holds 9")
        self.assertEqual((await tasks[2]).version, item(9))

    async def test_a_stream_says_at_its_end_what_changed_since_its_begin(self):
        rank = self.rank().say("holds 7")
        self.app.content_type = b"text/event-stream; charset=utf-8"
        self.assertEqual((await self.ask()).body, b"data: 1\n\n")
        self.app.may_end.clear()
        task = await self.begun(2)
        rank.say("changing 7 8").say("holds 8")
        self.app.may_end.set()
        answer = await task
        self.assertEqual(answer.version, item(7))
        self.assertEqual(answer.body,
                         f"data: 1\n\n: deltawire-version {item(7)}, {item(8)}\n\n".encode())

    async def test_a_stream_to_which_no_line_can_be_added_stays_as_it_is(self):
        """A comment would be more than the length that was said, or no gzip."""
        rank = self.rank().say("holds 7")
        self.app.content_type = b"text/event-stream"
        self.app.may_answer.set()
        for calls, header in enumerate(((b"Content-Length", b"9"), (b"content-encoding", b"gzip"))):
            with self.subTest(header):
                self.app.headers = [header]
                self.app.may_end.clear()
                task = await self.begun(calls + 1)
                rank.say("changing 7 8").say("holds 8")
                self.app.may_end.set()
                self.assertEqual((await task).body, b"data: 1\n\n")

    async def test_sglang_gets_it_where_one_process_answers_all_requests(self):
        """By stand-ins for SGLang's application and arguments; tests/engines has the real ones."""
        added = []
        server = types.SimpleNamespace(app=types.SimpleNamespace(add_middleware=added.append))
        names = {"sglang": None, "sglang.srt": None,
                 "sglang.srt.entrypoints": types.SimpleNamespace(http_server=server)}
        with unittest.mock.patch.dict(sys.modules, names):
            middleware._add_to_sglang(types.SimpleNamespace(tokenizer_worker_num=1), "manager")
            self.assertEqual(added, [middleware.VersionMiddleware])
            with self.assertLogs("deltawire", "WARNING") as logged:
                middleware._add_to_sglang(
                    server_args=types.SimpleNamespace(tokenizer_worker_num=4))
        self.assertEqual(len(added), 1)
        self.assertIn("--tokenizer-worker-num 1", logged.output[0])

    async def test_what_is_no_http_request_passes(self):
        seen = []

        async def app(scope, receive, send):
            seen.append((scope, receive, send))

        server = middleware.VersionMiddleware(app)
        for kind in ("lifespan", "websocket"):
            await server({"type": kind}, 1, 2)
        self.assertEqual(seen, [({"type": "lifespan"}, 1, 2), ({"type": "websocket"}, 1, 2)])

    async def test_a_folder_that_others_can_write_is_not_believed(self):
        self.rank().say("holds 7")
        folder = _served.directory()
        os.chmod(folder, 0o777)
        try:
            self.assertIsNone((await self.ask()).version)
            with self.assertRaisesRegex(OSError, "others"):
                _served.Record()
        finally:
            os.chmod(folder, 0o700)

    async def test_a_dead_rank_s_file_goes_with_the_next_record(self):
        rank = self.rank().say("holds 7")
        rank.kill()
        before = set(os.listdir(_served.directory()))
        again = _served.Record()
        self.addCleanup(again.close)
        self.assertTrue(before - set(os.listdir(_served.directory())))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[1:])
    else:
        # unittest's debug mode reports each callback that takes long; starting a process does.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        unittest.main()
