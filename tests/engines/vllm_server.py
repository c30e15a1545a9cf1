"""A real vLLM server."""

from __future__ import annotations

import os
import sys

from engine_server import HERE, EngineServer


class VllmServer(EngineServer):
    def command(self) -> list[str]:
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server",
                "--model", str(self._model), "--served-model-name", "policy",
                "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4",
                "--skip-tokenizer-init", "--enable-scale-out", "--host", "127.0.0.1",
                "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {
            "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING",
            "PYTHONPATH": os.pathsep.join(
                [str(HERE / "plugins"), str(HERE), os.environ.get("PYTHONPATH", "")])}

    def logprobs(self, tokens: list[int], count: int = 8):
        answer = self.post("/inference/v1/generate", {
            "token_ids": tokens,
            "sampling_params": {"temperature": 0, "max_tokens": count, "logprobs": 1,
                                "ignore_eos": True, "detokenize": False}})
        choice = answer["choices"][0]
        return choice["token_ids"], choice["logprobs"]["content"]
