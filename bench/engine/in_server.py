"""The pause of a real vLLM server that serves a Qwen3 of 0.6B, as its requests see it.

Started by bench_engine, in a Python that has vLLM. Streams run all the time. Each version changes
1 % of all elements, and a receiver's calls apply it to the server. The rows are the time from
/pause to the answer of /resume, and the longest gap between two tokens of a stream during an
update, beside the usual gap. The notes have p50 and p99.
"""

import json
import statistics
import threading
import time

import script
from in_engine import published  # this adds tests/engines to the path
from vllm_server import VllmServer  # noqa: E402

VERSIONS_A_RUN = 4
TOKENS, PROMPT = 200, [3, 17, 99, 250, 7]
LIMIT_S = 300


class Streams:
    """Runs two requests at a time until the context ends, and records their tokens' times."""

    def __init__(self, server):
        self._server, self._stop = server, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]
        self.gaps: list[tuple[float, float]] = []  # (begin, end) between two tokens
        self.failures: list[str] = []
        self.first = threading.Event()

    def _run(self):
        body = json.dumps({"token_ids": PROMPT, "stream": True, "sampling_params": {
            "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True,
            "detokenize": False}}).encode()
        while not self._stop.is_set():
            try:
                self._one(body)
            except Exception as error:  # pylint: disable=broad-except  # any failure counts
                self.failures.append(repr(error))

    def _one(self, body):
        last = None
        with self._server.open("/inference/v1/generate", body, LIMIT_S) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                now = time.monotonic()
                if last is not None:
                    self.gaps.append((last, now))
                last = now
                self.first.set()
                if self._stop.is_set():
                    return

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        self.first.wait(LIMIT_S)
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def follow(server, version):
    """Acts as the receiver's hook for vLLM; returns (begin, end) of the pause."""
    server.do("prepare")
    begin = time.monotonic()
    server.post("/pause?mode=keep")
    server.do("apply", version=version)
    server.post("/reset_prefix_cache?reset_running_requests=true&reset_external=true")
    server.name_version(version)
    server.post("/resume")
    return begin, time.monotonic()


def quantiles(seconds):
    ordered = sorted(seconds)
    p50, p99 = (1e3 * ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms of {len(ordered)}"


def measure(options, root, receiver, trainer, publish):
    with VllmServer(receiver.directory, root / "vllm.log") as server:
        server.do("attach", directory=str(receiver.directory))
        pauses = []
        with Streams(server) as streams:
            for i in range(options.warmups + VERSIONS_A_RUN * options.runs):
                trainer.step()
                pause = follow(server, publish())
                if i >= options.warmups:
                    pauses.append(pause)
        if streams.failures:
            raise RuntimeError(f"{len(streams.failures)} requests failed: {streams.failures[0]}")
        server.do("check")
    overtaken = [max((end - begin for begin, end in streams.gaps if begin < p[1] and end > p[0]),
                     default=0.0) for p in pauses]
    overtaken = [gap for gap in overtaken if gap]
    usual = [end - begin for begin, end in streams.gaps
             if not any(begin < p[1] and end > p[0] for p in pauses)]
    script.say(case="vllm", metric="pause", unit="s", runs=[end - begin for begin, end in pauses],
               note=quantiles([end - begin for begin, end in pauses]))
    script.say(case="vllm", metric="gap", unit="s", runs=overtaken,
               note=f"{quantiles(overtaken)}; without an update {quantiles(usual)}, median "
                    f"{1e3 * statistics.median(usual):.0f} ms")


def main():
    options = script.parse_options()
    trainer, daemons = published(options)
    with daemons as (root, receiver, publish):
        measure(options, root, receiver, trainer, publish)


if __name__ == "__main__":
    main()
