"""Tests that run the programs as a user types them, and read what they print.

A case has a folder of its own in /dev/shm, `root`. Threads: one at a time.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
import unittest

from daemons import programs


def checkpoint(folder: pathlib.Path, step: int, elements: int = 1 << 16) -> pathlib.Path:
    """Makes `folder`: one tensor of `elements` bytes, each of them `step`."""
    folder.mkdir()
    header = {"w": {"dtype": "U8", "shape": [elements], "data_offsets": [0, elements]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes([step]) * elements
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text("{}")
    return folder


class ToolCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deltawire-tool-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def tool(self, *command: object, program: str = "deltawire") -> tuple[int, str]:
        """Its exit code, and all that it prints, with each space or end of line as one space."""
        done = subprocess.run(list(map(str, (programs() / program, *command))), check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        return done.returncode, " ".join(done.stdout.split())

    def says(self, answer: tuple[int, str], code: int, *words: str) -> None:
        self.assertEqual(answer[0], code, answer[1])
        for word in words:
            self.assertIn(word, answer[1])
