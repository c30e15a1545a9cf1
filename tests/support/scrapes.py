"""What a daemon answers to Prometheus, and the stages that a version of a pair has."""

from __future__ import annotations

import re
import time
import urllib.request

from daemons import DEADLINE_S

# The stages that one version of a pair with an engine of the kind `exec` has, once each.
STAGES = {
    "sender": {
        "deltawire_sender_stage_seconds":
            "wait offload diff publish connect encode send deliver".split(),
    },
    "receiver": {
        "deltawire_receiver_stage_seconds":
            "queue ahead transfer stage readers apply commit".split(),
        "deltawire_receiver_engine_stage_seconds": ["load"],
    },
}  # fmt: skip


def scrape(port: int) -> str:
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            if time.monotonic() > end:
                raise


def series(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def ended(text: str) -> dict[str, dict[str, int]]:
    """family -> stage -> how often the stage has ended."""
    found: dict[str, dict[str, int]] = {}
    for line in series(text):
        if match := re.match(r'([a-z_]+)_count\{.*stage="([a-z]+)".*\} (\d+)', line):
            found.setdefault(match[1], {})[match[2]] = int(match[3])
    return found


def scrape_all(name: str, port: int) -> str:
    """When every stage of STAGES has ended: an engine, or a receiver's report, comes a bit later."""
    end = time.monotonic() + DEADLINE_S
    wanted = {family: dict.fromkeys(stages, 1) for family, stages in STAGES[name].items()}
    while ended(text := scrape(port)) != wanted:
        if time.monotonic() > end:
            raise AssertionError(f"{name}: {ended(text)}, and not {wanted}")
    return text
