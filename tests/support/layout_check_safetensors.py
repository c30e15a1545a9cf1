"""Loads a file that BuildSafetensorsHeader wrote with the published `safetensors` reader.

Usage: layout_check_safetensors.py LAYOUT_WRITE_SAMPLE
Exit code 77 means skipped: the reader is not installed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import safetensors
except ImportError:
    print("skipped: this Python has no safetensors package")
    sys.exit(77)


def sample_bytes(tensor: int, count: int) -> bytes:
    """The bytes that tests/support/layout_files.h puts into tensor number `tensor`."""
    return bytes((tensor * 89 + i * 31 + 7) & 0xFF for i in range(count))


def check(path: pathlib.Path) -> int:
    """Compares names, dtypes, shapes and bytes; returns how many tensors agreed."""
    found = dict(safetensors.deserialize(path.read_bytes()))
    lines = pathlib.Path(f"{path}.expected").read_text().splitlines()
    assert len(found) == len(lines), f"{len(found)} tensors read, {len(lines)} written"
    for line in lines:
        name_hex, dtype, shape, index = line.split(" ")
        name = bytes.fromhex(name_hex).decode()
        got = found[name]
        assert str(got["dtype"]) == dtype, (name, got["dtype"], dtype)
        assert list(got["shape"]) == json.loads(shape), (name, got["shape"], shape)
        assert bytes(got["data"]) == sample_bytes(int(index), len(got["data"])), name
    return len(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "model.safetensors"
        subprocess.run([sys.argv[1], str(path)], check=True)
        header_bytes = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        assert header_bytes % 4096 == 0, header_bytes
        count = check(path)
    print(f"safetensors {safetensors.__version__} read {count} tensors as written")


if __name__ == "__main__":
    main()
