"""A reader that knows nothing of deltawire: a loop of safetensors' own loader, which maps the file.

stock_reader.py DIRECTORY SEED prints a line per pass, until it or the process that started it is
killed: "read VERSION", "missing" (there is no such file), or "torn WHAT".
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
import time

import safetensors

# A version writes its number to every STRIDE-th element of every tensor, and changes nothing else.
STRIDE = 61


def one_pass(path: pathlib.Path, rng: random.Random) -> str:
    seen: dict[str, set[int]] = {}
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            for name in file.keys():
                seen[name] = set(file.get_tensor(name)[::STRIDE].tolist())
                if rng.random() < 0.05:
                    time.sleep(rng.random() * 0.02)
    except FileNotFoundError:
        return "missing"
    versions = set().union(*seen.values())
    if len(versions) == 1:
        return f"read {versions.pop()}"
    return f"torn {({name: sorted(found) for name, found in seen.items()})}"


def main() -> None:
    path = pathlib.Path(sys.argv[1]) / "model.safetensors"
    rng = random.Random(int(sys.argv[2]))
    starter = os.getppid()
    while os.getppid() == starter:  # a test that was killed leaves no reader behind
        print(one_pass(path, rng), flush=True)
        time.sleep(rng.random() * 0.02)


if __name__ == "__main__":
    main()
