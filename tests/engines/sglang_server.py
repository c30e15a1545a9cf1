"""A real SGLang server."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator

from daemons import DEADLINE_S
from engine_server import HERE, EngineServer

UPDATE = "/update_weights_from_disk"


class SglangServer(EngineServer):
    def __init__(self, model: pathlib.Path, log: pathlib.Path, ranks: int = 1, key: str = ""):
        """`ranks`: of tensor parallelism. `key`: the server wants it for every call."""
        wanted = ["--api-key", key] if key else []
        super().__init__(model, log, "--tp-size", str(ranks), *wanted, key=key)
        self.ranks = ranks
        self.fault = log.with_suffix(".fault")  # see one_rank_fails.py

    def command(self) -> list[str]:
        return [sys.executable, "-m", "sglang.launch_server",
                "--model-path", str(self._model), "--served-model-name", "policy",
                "--device", "cpu", "--attention-backend", "torch_native",
                "--sampling-backend", "pytorch", "--disable-overlap-schedule",
                "--max-total-tokens", "4096", "--mem-fraction-static", "0.2",
                "--context-length", "256", "--max-running-requests", "4",
                "--skip-tokenizer-init", "--log-level", "warning", "--host", "127.0.0.1",
                "--watchdog-timeout", str(DEADLINE_S), "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        # Several ranks of one NUMA node need to be told which cores are theirs.
        cores = sorted(os.sched_getaffinity(0))
        bound = "|".join(str(cores[rank % len(cores)]) for rank in range(self.ranks))
        return ({"SGLANG_CPU_OMP_THREADS_BIND": bound} if self.ranks > 1 else {}) | {
            "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(HERE / "stand_ins"), str(HERE / "plugins"), str(HERE),
                 os.environ.get("PYTHONPATH", "")]),
            "DELTAWIRE_TEST_FAULT": str(self.fault)}

    def asks(self, tokens: list[int], count: int = 8) -> tuple[str, bytes]:
        return "/generate", json.dumps({
            "input_ids": tokens, "return_logprob": True, "sampling_params": {
                "temperature": 0, "max_new_tokens": count, "ignore_eos": True}}).encode()

    def logprobs(self, tokens: list[int], count: int = 8):
        path, body = self.asks(tokens, count)
        answer = self.post(path, json.loads(body))
        return answer["output_ids"], [p for p, *_ in answer["meta_info"]["output_token_logprobs"]]

    def stream(self, tokens: list[int], count: int) -> Iterator[dict]:
        """The answers to one request as it goes on; it runs once the first one is here."""
        body = {"input_ids": tokens, "stream": True, "sampling_params": {
            "temperature": 0, "max_new_tokens": count, "ignore_eos": True}}
        with self.open("/generate", json.dumps(body).encode(), DEADLINE_S) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))

    @contextlib.contextmanager
    def paused(self, mode: str = "retract") -> Iterator[None]:
        self.post("/pause_generation", {"mode": mode})
        try:
            yield
        finally:
            self.post("/continue_generation")

    def update(self, path: str, **more) -> str:
        """Weights from `path`; the server's message."""
        with self.paused():
            return self.post(UPDATE, {"model_path": path, **more})["message"]

    def version(self) -> str:
        """The version that the server says it serves."""
        return self.get("/model_info")["weight_version"]

    def header(self) -> str:
        """What a response says by deltawire's middleware."""
        with self.open("/model_info", None, DEADLINE_S) as answer:
            return answer.headers["deltawire-version"] or "nothing"

    def checksums(self) -> dict[str, str]:
        """Of each parameter, by the engine's own checker."""
        ranks = self.post("/weights_checker", {"action": "checksum"})["ranks"]
        return {f"{i}/{name}": value
                for i, rank in enumerate(ranks) for name, value in rank["checksums"].items()}
