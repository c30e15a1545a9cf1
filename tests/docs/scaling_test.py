"""What `deltawire simulate` prints in docs/scaling.md is what it prints now.

    scaling_test.py            compares
    scaling_test.py --write    renews the outputs in the document

A block of text that begins with "$ deltawire simulate ..." has the command, run in the project's
root, and below it all that it prints. A row of the table of fleets has a file of docs/fleets, and
the main figures of its prediction.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "scaling.md"
BLOCK = re.compile(r"(?<=^```text\n)\$ deltawire (simulate [^\n]*)\n(.*?)(?=^```$)", re.M | re.S)
FLEETS = ROOT / "docs" / "fleets"
ROW = re.compile(r"^\| `(\w+\.toml)` \| .* \|$", re.M)
DELTA = r"^A delta: ([\d.]+ \w+) from"
MOST = r"^Most of it: (.*), [\d.]+ \w+, bound by (.*)$"
WHOLE = r"^The whole model: ([\d.]+ \w+)"


def printed(command: str) -> str:
    tool = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]).resolve() / "deltawire"
    words = [str(tool), *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60)
    if done.returncode:
        raise AssertionError(f"{command}: {done.stderr}")
    return done.stdout


def row(fleet: str) -> str:
    output = printed(f"simulate docs/fleets/{fleet}")
    found = [re.search(pattern, output, re.M) for pattern in (DELTA, MOST, WHOLE)]
    figures = [part for match in found for part in match.groups()]
    return f"| `{fleet}` | {' | '.join(figures)} |"


def renewed(text: str) -> str:
    text = BLOCK.sub(lambda m: f"$ deltawire {m[1]}\n{printed(m[1])}", text)
    return ROW.sub(lambda m: row(m[1]), text)


class ScalingTest(unittest.TestCase):
    def test_outputs_are_what_the_tool_prints(self):
        self.maxDiff = None
        text = DOCUMENT.read_text("utf-8")
        blocks = BLOCK.findall(text)
        self.assertGreaterEqual(len(blocks), 1)
        for command, output in blocks:
            with self.subTest(command):
                self.assertEqual(output, printed(command))

    def test_every_fleet_is_a_row(self):
        rows = {match[1]: match[0] for match in ROW.finditer(DOCUMENT.read_text("utf-8"))}
        self.assertEqual(sorted(rows), sorted(fleet.name for fleet in FLEETS.glob("*.toml")))
        for fleet, shown in rows.items():
            with self.subTest(fleet):
                self.assertEqual(shown, row(fleet))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        DOCUMENT.write_text(renewed(DOCUMENT.read_text("utf-8")), "utf-8")
    else:
        unittest.main()
