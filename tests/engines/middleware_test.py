#!/usr/bin/env python3
"""deltawire.engine.middleware in real HTTP servers: in uvicorn, and in a vLLM or an SGLang that
follows a receiver.

Responses must name what the receiver committed and the engine's ranks hold; a request that an
update overtakes must name both versions, and vLLM's own record of the versions of its tokens must
say the same; a request may wait for a version.

Usage: middleware_test.py vllm|sglang   (DELTAWIRE_BIN_DIR, and deltawire's package on the path)
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time

import engine_python

ENGINE = sys.argv[1]
engine_python.require("torch", "uvicorn", ENGINE)
import uvicorn  # noqa: E402
from daemons import DEADLINE_S, free_port  # noqa: E402
from policy import PROMPT, Policy, check, dense  # noqa: E402
from sglang_server import SglangServer  # noqa: E402
from vllm_server import VllmServer  # noqa: E402

from deltawire.engine.middleware import LONGEST_WAIT_MS, VersionMiddleware  # noqa: E402

TOKENS = 240
COUNTED = 2000


class Answer:
    def __init__(self, answer: http.client.HTTPResponse, begun: threading.Event | None = None):
        """`begun` is set when the first line of the body is here."""
        self.status, self.version = answer.status, answer.headers.get("deltawire-version")
        self.body = answer.readline()
        if begun is not None:
            begun.set()
        self.body += answer.read()

    @property
    def versions(self) -> list[int]:
        return [int(item.split(";")[0]) for item in (self.version or "").split(", ") if item]


def ask(port: int, path: str, body: dict | None = None, begun: threading.Event | None = None,
        **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        named = {n.replace("_", "-"): v for n, v in headers.items()}
        connection.request("GET" if body is None else "POST", path,
                           None if body is None else json.dumps(body),
                           {"Content-Type": "application/json"} | named)
        return Answer(connection.getresponse(), begun)
    finally:
        connection.close()


class Vllm(VllmServer):
    def __init__(self, policy: Policy):
        super().__init__(policy.directory, policy.root / "vllm.log", "--middleware",
                         "deltawire.engine.middleware.VersionMiddleware")
        self._directory = str(policy.directory)

    def attach(self) -> None:
        self.do("attach", directory=self._directory)

    def update(self, version: int) -> None:
        self.do("prepare")
        self.post("/pause?mode=keep")
        self.do("apply", version=version)
        self.post("/reset_prefix_cache")
        self.name_version(version)
        self.post("/resume")

    def generate(self, count: int, begun: threading.Event | None = None, **headers: str) -> Answer:
        """With `begun`, as a stream."""
        return ask(self.port, "/inference/v1/generate", {
            "token_ids": PROMPT, "stream": begun is not None,
            "sampling_params": {"temperature": 0, "max_tokens": count, "ignore_eos": True,
                                "detokenize": False}}, begun, **headers)

    @staticmethod
    def check_spans(answer: Answer, versions: set[str]) -> None:
        spans = json.loads(answer.body)["choices"][0]["weight_versions"]
        print(f"vLLM's spans: {spans}", flush=True)
        said = {span["version"] for span in spans}
        check(said <= {"default", *versions} and len(said) == 2,
              "vLLM's own spans are of these two")


class Sglang(SglangServer):
    """Its HTTP server has the middleware by deltawire's entry point."""

    def __init__(self, policy: Policy):
        super().__init__(policy.directory, policy.root / "sglang.log")
        self._directory = f"deltawire:{policy.directory}"

    def attach(self) -> None:
        self.post("/weights_checker", {"action": f"{self._directory}?prepare"})

    def update(self, version: int) -> None:  # pylint: disable=arguments-renamed
        super().update(f"{self._directory}?version={version}")

    def generate(self, count: int, begun: threading.Event | None = None, **headers: str) -> Answer:
        """With `begun`, as a stream."""
        return ask(self.port, "/generate", {
            "input_ids": PROMPT, "stream": begun is not None, "sampling_params": {
                "temperature": 0, "max_new_tokens": count, "ignore_eos": True}}, begun, **headers)

    @staticmethod
    def check_spans(answer: Answer, versions: set[str]) -> None:
        """Without a name from the start on, SGLang has nothing to compare with."""


class Later:
    """What a function returns, from a thread of its own."""

    def __init__(self, function, *arguments, **more):
        self._answers: list = []
        self._thread = threading.Thread(
            target=lambda: self._answers.append(function(*arguments, **more)))
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def get(self):
        self._thread.join(DEADLINE_S)
        return self._answers[0]


async def hello(scope, receive, send):
    if scope["type"] != "http":  # uvicorn asks for a lifespan, and goes on without
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


class Uvicorn:
    """An application in a real server; a context manager."""

    def __init__(self, app):
        self.port = free_port()
        self._server = uvicorn.Server(uvicorn.Config(
            app, host="127.0.0.1", port=self.port, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Uvicorn:
        self._thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("uvicorn ended")
            if time.monotonic() > deadline:
                raise RuntimeError(f"uvicorn has not started within {DEADLINE_S} s")
            time.sleep(0.01)
        return self

    def __exit__(self, *_) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)

    def seconds(self) -> float:
        """For one request of a connection that stays."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        begin = time.perf_counter()
        for _ in range(COUNTED):
            connection.request("GET", "/")
            connection.getresponse().read()
        connection.close()
        return (time.perf_counter() - begin) / COUNTED


def run_uvicorn() -> None:
    with Uvicorn(hello) as plain, Uvicorn(VersionMiddleware(hello)) as with_it:
        answer = ask(with_it.port, "/")
        check((answer.status, answer.version, answer.body) == (200, None, b"hi"),
              "uvicorn: an engine that deltawire does not know has no version")
        refused = ask(with_it.port, "/", deltawire_want_version="3")
        check(refused.status == 409 and b"not known" in refused.body,
              "uvicorn: a version that is asked for is refused there")
        plain.seconds()
        costs = sorted(with_it.seconds() - plain.seconds() for _ in range(5))
        print(f"the middleware takes {1e6 * costs[2]:.0f} us of a request, without ranks",
              flush=True)


def run_engine(policy: Policy) -> None:
    with {"vllm": Vllm, "sglang": Sglang}[ENGINE](policy) as server:
        check(server.generate(4).version is None, "nothing is claimed before an attach")
        server.attach()
        committed = policy.receiver.status()["committed"]
        answer = server.generate(4)
        print(f"deltawire-version: {answer.version}", flush=True)
        check(answer.versions == [1] and committed["lineage"][:8] in answer.version,
              "a response names the state that the receiver committed")
        check_overtaken(server, policy)
        check_waits(server, policy)


def check_overtaken(server: Vllm | Sglang, policy: Policy) -> None:
    """Two requests whose tokens are of two versions: the one came before the other, which streams,
    and the update begins when this one has its first token."""
    version = policy.publish()
    begun = threading.Event()
    overtaken = Later(server.generate, TOKENS)
    streamed = Later(server.generate, TOKENS, begun)
    check(begun.wait(DEADLINE_S), "a stream has begun")
    server.update(version)
    answer = overtaken.get()
    check(answer.versions == [version - 1, version],
          f"a response that an update overtook names both: {answer.version}")
    server.check_spans(answer, {str(version - 1), str(version)})
    answer = streamed.get()
    tail = answer.body.rstrip().splitlines()[-1].decode()
    check(answer.versions == [version - 1] and tail.startswith(": deltawire-version ")
          and f"{version};" in tail, f"a stream's last line says what came: {tail}")
    check(server.generate(4).versions == [version], "the next response is of the new one alone")


def check_waits(server: Vllm | Sglang, policy: Policy) -> None:
    held = policy.version
    refused = server.generate(4, deltawire_want_version=f">={held + 1}")
    check(refused.status == 409 and refused.versions == [held],
          f"409 for a version that is not there: {json.loads(refused.body)['error']['message']}")
    waits = Later(server.generate, 4, deltawire_want_version=f">={held + 1}",
                  deltawire_wait_ms=str(LONGEST_WAIT_MS))
    policy.publish()
    check(not waits.is_done, "a committed version is not a served one: the request waits")
    server.update(policy.version)
    check(waits.get().versions == [held + 1], "the waiting request is answered by its version")
    exact = server.generate(4, deltawire_want_version=waits.get().version)
    check(exact.status == 200, "a state may be asked for as a response names it")


if __name__ == "__main__":
    run_uvicorn()
    with Policy(dense) as running:
        run_engine(running)
