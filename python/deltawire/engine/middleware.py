"""An ASGI middleware that adds to every response the version of the weights that made it.

    vllm serve ... --middleware deltawire.engine.middleware.VersionMiddleware

A response has the header `deltawire-version`, a list (RFC 8941) of one or two states:

    deltawire-version: 8;epoch=1;lineage="1f2e3d4c";root="0123456789abcdef"

One: all of the response was computed with it. Two: the engine changed from the first to the second
during the request, and the response is of both, or of one of them. No header: unknown. A stream has
it at its beginning; if it has changed by the end, a last comment line repeats it.

A request may ask: `deltawire-want-version: 8`, `>=8`, or a state as a response names it. If the
engine holds another one, the request waits for up to `deltawire-wait-ms` (0), and then the answer
is 409.

It runs on the event loop's thread, and costs some 50 microseconds for a request to an engine of one
rank. docs/integrations.md has the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from deltawire.engine._served import Reading, Served, State

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)

VERSION_HEADER = b"deltawire-version"
WANT_HEADER = b"deltawire-want-version"
WAIT_HEADER = b"deltawire-wait-ms"
LONGEST_WAIT_MS = 600_000
#: The pause between looks at the held version, for all waiting requests together.
_LOOK_S = 0.005
_STREAM = b"text/event-stream"
_WANTED = re.compile(r"(>=)?\s*(\d{1,20})((?:\s*;\s*[a-z]+=\"?[0-9a-f]+\"?)*)")
_PARAMETER = re.compile(r"([a-z]+)=\"?([0-9a-f]+)\"?")


class _BadRequest(ValueError):
    """A header that cannot be parsed; the message says which."""


@dataclass(frozen=True)
class _Wanted:
    """The version that a request asks for."""

    text: str
    version: int
    or_newer: bool
    parameters: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0

    @staticmethod
    def of(headers: Iterable[tuple[bytes, bytes]]) -> _Wanted | None:
        """Returns None if a request asks for nothing. Raises _BadRequest."""
        found = {name: value.decode("latin-1").strip() for name, value in headers
                 if name in (WANT_HEADER, WAIT_HEADER)}
        text = found.get(WANT_HEADER)
        if text is None:
            return None
        match = _WANTED.fullmatch(text)
        parameters = dict(_PARAMETER.findall(match[3])) if match else {}
        if not match or parameters.keys() - {"epoch", "lineage", "root"}:
            raise _BadRequest(f"{WANT_HEADER.decode()}: {text} is no version; it is like 8, >=8 or "
                              "a state as a response names it")
        wait = found.get(WAIT_HEADER, "0")
        if not re.fullmatch(r"\d{1,9}", wait) or int(wait) > LONGEST_WAIT_MS:
            raise _BadRequest(f"{WAIT_HEADER.decode()}: {wait} is no number of milliseconds up to "
                              f"{LONGEST_WAIT_MS}")
        return _Wanted(text, int(match[2]), bool(match[1]), parameters, int(wait) / 1000)

    def is_met_by(self, reading: Reading) -> bool:
        """Returns whether all ranks hold a matching state and none is changing."""
        state = reading.state
        if state is None:
            return False
        right = state.version >= self.version if self.or_newer else state.version == self.version
        return right and all(
            state.lineage.startswith(value) if name == "lineage" else
            state.epoch == int(value) if name == "epoch" and value.isdecimal() else
            name == "root" and f"{state.root:016x}" == value
            for name, value in self.parameters.items())


def _named(begin: Reading, end: Reading) -> list[State]:
    """Returns the versions of a response between two readings, or nothing if one of them is
    unknown."""
    if not begin.states or not end.states:
        return []
    if begin.changes == end.changes and end.state is not None:
        return [end.state]
    return [begin.states[0], end.states[-1]]


def _text(states: Iterable[State]) -> bytes:
    return ", ".join(str(s) for s in states).encode()


class VersionMiddleware:
    """A pure ASGI middleware: bodies and disconnects pass through unchanged."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]):
        self._app = app
        self._served = Served()
        self._look: asyncio.Future[Reading] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            wanted = _Wanted.of(scope["headers"])
        except _BadRequest as error:
            await _refuse(send, 400, str(error), [])
            return
        begin = self._served.read()
        if wanted is not None and not wanted.is_met_by(begin):
            begin = await self._wait(wanted, begin)
            if not wanted.is_met_by(begin):
                await _refuse(send, 409, _why_not(wanted, begin), begin.states)
                return
        await self._app(scope, receive, _Response(self._served, begin, send))

    async def _wait(self, wanted: _Wanted, reading: Reading) -> Reading:
        """Waits until the version is held, or the request's time is over; returns the last
        reading."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wanted.wait_s
        while not wanted.is_met_by(reading) and loop.time() < end:
            if self._look is None:
                self._look = loop.create_future()
                loop.call_later(_LOOK_S, self._look_again)
            # One look serves all waiting requests, so the end of one request must not end it.
            reading = await asyncio.shield(self._look)
        return reading

    def _look_again(self) -> None:
        look, self._look = self._look, None
        if look is not None and not look.done():
            look.set_result(self._served.read())


class _Response:
    """The `send` of one request: adds the engine's versions at the response's beginning and end."""

    def __init__(self, served: Served, begin: Reading, send: Send):
        self._served, self._begin, self._send = served, begin, send
        self._said: Reading | None = None  # at a stream's headers

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = self._with_header(message)
        elif message["type"] == "http.response.body" and self._said is not None:
            if not message.get("more_body", False):
                message = self._with_comment(message)
        await self._send(message)

    def _with_header(self, message: Message) -> Message:
        now = self._served.read()
        headers = list(message.get("headers", ()))
        if _takes_comments({name.lower(): value for name, value in headers}):
            self._said = now
        states = _named(self._begin, now)
        if states:
            headers.append((VERSION_HEADER, _text(states)))
        return {**message, "headers": headers}

    def _with_comment(self, message: Message) -> Message:
        now = self._served.read()
        if now.changes == self._said.changes:
            return message
        states = _named(self._begin, now)
        said = _text(states) if states else b"unknown"
        comment = b": " + VERSION_HEADER + b" " + said + b"\n\n"
        return {**message, "body": message.get("body", b"") + comment}


def _takes_comments(headers: dict[bytes, bytes]) -> bool:
    """Returns whether a line may follow the body: a stream without a length, not compressed."""
    return (headers.get(b"content-type", b"").startswith(_STREAM)
            and headers.keys().isdisjoint((b"content-length", b"content-encoding")))


def _why_not(wanted: _Wanted, reading: Reading) -> str:
    if not reading.states:
        held = "what the engine holds is not known: deltawire is not attached to all of its ranks"
    elif reading.state is None:
        held = "the engine is going from one to the other of: " + _text(reading.states).decode()
    else:
        held = f"the engine holds {reading.state}"
    return f"version {wanted.text} was asked for; {held}"


async def _refuse(send: Send, status: int, message: str, states: Iterable[State]) -> None:
    """Sends an answer whose body has the form of OpenAI's and vLLM's errors."""
    body = json.dumps({"error": {"message": f"deltawire: {message}", "type": "deltawire_version",
                                 "param": None, "code": status}}).encode()
    headers = [(b"content-type", b"application/json"),
               (b"content-length", str(len(body)).encode())]
    states = list(states)
    if states:
        headers.append((VERSION_HEADER, _text(states)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def register_sglang() -> None:
    """Adds the middleware to SGLang's HTTP server, as the entry point `sglang.srt.plugins`: SGLang
    has no option for middlewares."""
    from sglang.srt.plugins.hook_registry import (  # pylint: disable=import-outside-toplevel
        HookRegistry,
        HookType,
    )

    HookRegistry.register("sglang.srt.entrypoints.http_server._setup_and_run_http_server",
                          _add_to_sglang, HookType.BEFORE)


def _add_to_sglang(*args: Any, **kwargs: Any) -> None:
    """Runs before SGLang's function, with its arguments, of which the server's come first."""
    from sglang.srt.entrypoints import http_server  # pylint: disable=import-outside-toplevel

    server_args = kwargs["server_args"] if "server_args" in kwargs else next(iter(args), None)
    workers = getattr(server_args, "tokenizer_worker_num", 1)
    if workers > 1:
        # Their HTTP servers are separate processes, which import the application anew.
        logger.warning("deltawire: with %d tokenizer processes no response says its version, and "
                       "%s is not looked at; start the server with --tokenizer-worker-num 1",
                       workers, WANT_HEADER.decode())
        return
    http_server.app.add_middleware(VersionMiddleware)
