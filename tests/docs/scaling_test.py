"""The figures of `deltawire simulate` in docs/scaling.md are what it prints now.

    scaling_test.py            compares
    scaling_test.py --write    renews the figures in the document

A row of the table of fleets has a file of docs/fleets, and the main figures of its prediction.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "scaling.md"
FLEETS = ROOT / "docs" / "fleets"
ROW = re.compile(r"^\| `(\w+\.toml)` \| .* \|$", re.M)
DELTA = r"^A delta: ([\d.]+ \w+) from"
MOST = r"^Most of it: (.*), [\d.]+ \w+, bound by (.*)$"
WHOLE = r"^The whole model: ([\d.]+ \w+)"


def row(fleet: str) -> str:
    tool = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]).resolve() / "deltawire"
    words = [tool, "simulate", FLEETS / fleet]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise AssertionError(f"{fleet}: {done.stderr}")
    found = [re.search(pattern, done.stdout, re.M) for pattern in (DELTA, MOST, WHOLE)]
    figures = [part for match in found for part in match.groups()]
    return f"| `{fleet}` | {' | '.join(figures)} |"


class ScalingTest(unittest.TestCase):
    def test_every_fleet_is_a_row(self):
        rows = {match[1]: match[0] for match in ROW.finditer(DOCUMENT.read_text("utf-8"))}
        self.assertEqual(sorted(rows), sorted(fleet.name for fleet in FLEETS.glob("*.toml")))
        for fleet, shown in rows.items():
            with self.subTest(fleet):
                self.assertEqual(shown, row(fleet))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        text = DOCUMENT.read_text("utf-8")
        DOCUMENT.write_text(ROW.sub(lambda m: row(m[1]), text), "utf-8")
    else:
        unittest.main()
