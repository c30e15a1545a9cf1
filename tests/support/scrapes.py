"""What a daemon answers to Prometheus, and the stages that a version of a pair has."""

from __future__ import annotations

import json
import pathlib
import re
import tempfile
import time
import urllib.request

from daemons import DEADLINE_S, Daemons, free_port, run

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


def scrape_pair(programs: pathlib.Path) -> dict[str, str]:
    """What a sender and a receiver with an engine answer when they have moved a version."""
    shm = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="deltawire-metrics-", dir=shm if shm.is_dir() else None
    ) as at:
        root = pathlib.Path(at)
        with Daemons(root, programs) as daemons:
            ports = {"sender": free_port(), "receiver": free_port()}
            control = daemons.start_sender(
                root / "s", "--metrics-listen", f"127.0.0.1:{ports['sender']}"
            )
            receiver = daemons.start_receiver(
                [control], "m", root / "r", "--metrics-listen", f"127.0.0.1:{ports['receiver']}",
                "--engine", "exec=/bin/true",
            )  # fmt: skip
            model = root / "model"
            model.mkdir()
            header = json.dumps({"t": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}})
            content = len(header).to_bytes(8, "little") + header.encode() + bytes(64)
            (model / "model.safetensors").write_bytes(content)
            run(programs / "deltawire", "publish", model, "--model", "m", "--version", 1,
                "--socket", root / "s" / "trainer.sock")  # fmt: skip
            receiver.await_version(1)
            return {side: scrape_all(side, port) for side, port in ports.items()}
