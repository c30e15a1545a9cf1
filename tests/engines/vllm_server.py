"""A real vLLM server on this machine's CPU, over its own HTTP endpoints."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

from daemons import die_with_parent, free_port

UP_S = 300


class VllmServer:
    """A context manager: the server is up inside. `options` are the server's own."""

    def __init__(self, model: pathlib.Path, log: pathlib.Path, *options: str):
        self.url = f"http://127.0.0.1:{free_port()}"
        self._model, self._log, self._options = model, log, options
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> VllmServer:
        here = pathlib.Path(__file__).resolve().parent
        environment = dict(
            os.environ, VLLM_SERVER_DEV_MODE="1", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="WARNING",
            PYTHONPATH=os.pathsep.join([str(here / "plugins"), str(here),
                                        os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server",
                   "--model", str(self._model), "--served-model-name", "policy",
                   "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4",
                   "--skip-tokenizer-init", "--enable-scale-out", "--host", "127.0.0.1",
                   "--port", self.url.rsplit(":", 1)[1], *self._options]
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent)
        end = time.monotonic() + UP_S
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"vLLM ended:\n{self._log.read_text()[-4000:]}")
            try:
                self.get("/health")
                return self
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > end:
                    raise RuntimeError(f"vLLM is not up:\n{self._log.read_text()[-4000:]}")
                time.sleep(0.2)

    def __exit__(self, *_) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def post(self, path: str, body: dict | None = None, limit: float = 120):
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=limit) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def logprobs(self, tokens: list[int], count: int = 8):
        """Greedy tokens after `tokens`, and the logarithms of their probabilities."""
        answer = self.post("/inference/v1/generate", {
            "token_ids": tokens,
            "sampling_params": {"temperature": 0, "max_tokens": count, "logprobs": 1,
                                "ignore_eos": True, "detokenize": False}})
        choice = answer["choices"][0]
        return choice["token_ids"], choice["logprobs"]["content"]
