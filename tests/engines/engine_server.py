"""A real inference server on this machine's CPU, over its own HTTP endpoints."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

from daemons import DEADLINE_S, end, free_port, spawn

LOOK_EVERY_S = 0.2
HERE = pathlib.Path(__file__).resolve().parent


class EngineServer:
    """A context manager: the server is up inside. `options` are the server's own; `key` is the one
    that it wants, which each call shows."""

    def __init__(self, model: pathlib.Path, log: pathlib.Path, *options: str, key: str = ""):
        self.port = free_port()
        self.log = log
        self.plant = log.with_suffix(".plant")  # see planted_faults.py
        self._model, self._options, self._key = model, options, key
        self._process: subprocess.Popen | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What is set besides this process's own environment."""
        raise NotImplementedError

    def logprobs(self, tokens: list[int], count: int = 8):
        """Greedy tokens after `tokens`, and the logarithms of their probabilities."""
        raise NotImplementedError

    def __enter__(self) -> EngineServer:
        with open(self.log, "w") as log:
            self._process = spawn(
                [*self.command(), *self._options],
                env=os.environ | {"DELTAWIRE_TEST_PLANT": str(self.plant)} | self.environment(),
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._await_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await_up(self) -> None:
        """Returns when the server is healthy; raises with its log when it ends or is late."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.get("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                pass
            try:
                self._process.wait(LOOK_EVERY_S)
                what = "ended"
            except subprocess.TimeoutExpired:
                if time.monotonic() < end:
                    continue
                what = f"was not up in {DEADLINE_S} s"
            raise RuntimeError(f"the server {what}:\n{self.log.read_text()[-4000:]}")

    def __exit__(self, *_) -> None:
        end(self._process, patience_s=20)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # whom it has started
        except ProcessLookupError:
            pass

    def ended(self, seconds: float) -> bool:
        """Whether the server's first process ends within so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def get(self, path: str):
        return self._call(path, None, DEADLINE_S)

    def post(self, path: str, body: dict | None = None, limit: float = DEADLINE_S):
        return self._call(path, json.dumps(body or {}).encode(), limit)

    def refused(self, path: str, body: dict) -> tuple[int, str]:
        """The code and the text of an answer that must be an error."""
        try:
            answer = self.post(path, body)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        raise AssertionError(f"{path} {body} was answered with {answer}")

    def open(self, path: str, body: bytes | None, limit: float):
        """The answer, to be read from."""
        shown = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=body,
            headers={"Content-Type": "application/json"} | shown), timeout=limit)

    def _call(self, path: str, body: bytes | None, limit: float):
        with self.open(path, body, limit) as answer:
            text = answer.read()
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text.decode()
