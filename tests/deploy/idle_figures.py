"""What a pair of daemons takes while nothing happens: a share of a core, and memory beyond buffers.

    idle_figures.py [--mib 256] [--seconds 60]

Prints a table: with scrubbing as it is by default, and without. Memory is what belongs to the process
alone and what it maps of files but its models' (smaps). For docs/operations.md, "Sizing".
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

from daemons import Daemons, programs, run  # noqa: E402


def write_model(folder: pathlib.Path, mib: int) -> pathlib.Path:
    size = mib << 20
    header = {"t": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _ in range(mib):
            out.write(os.urandom(1 << 20))
    return folder


def processor_seconds(pid: int) -> float:
    """Of all threads. /proc/PID/stat counts whole ticks, which short wake-ups are not worth."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) * 1e-9


def memory_beyond_buffers(pid: int) -> float:
    """MiB: resident pages of all mappings but those of safetensors files."""
    kib, ours = 0, True
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = ".safetensors" not in line
        elif ours and line.startswith("Rss:"):
            kib += int(line.split()[1])
    return kib / 1024


def measure(root: pathlib.Path, model: pathlib.Path, seconds: float, options: list[str]) -> list:
    root.mkdir()
    with Daemons(root) as daemons:
        sender = daemons.start_sender(root / "s", *options)
        # One buffer: after a commit a second one is brought up, which is not idling.
        receiver = daemons.start_receiver([sender], "m", root / "r", "--buffers", "1", *options)
        run(programs() / "deltawire", "publish", model, "--model", "m", "--version", 1,
            "--socket", root / "s" / "trainer.sock")  # fmt: skip
        receiver.await_version(1)
        before = [processor_seconds(pid) for pid in daemons.pids()]
        start = time.monotonic()
        time.sleep(seconds)  # what is measured is what happens in this time
        passed = time.monotonic() - start
        return [
            (100 * (processor_seconds(pid) - was) / passed, memory_beyond_buffers(pid))
            for pid, was in zip(daemons.pids(), before)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of the model")
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    shm = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="deltawire-idle-", dir=shm) as name:
        root = pathlib.Path(name)
        model = write_model(root / "model", arguments.mib)
        print("| | sender | receiver |\n|---|---|---|")
        for what, options in (("default", []), ("scrub-bytes-per-s = 0", ["--scrub-bytes-per-s", "0"])):
            pair = measure(root / what.partition(" ")[0], model, arguments.seconds, options)
            cells = " | ".join(f"{share:.2f} % of a core, {mib:.1f} MiB" for share, mib in pair)
            print(f"| {what} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
