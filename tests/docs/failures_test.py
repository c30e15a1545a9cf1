"""docs/failures.md: each message that it quotes is one of the code's own, each has a cause and what
to do, and the options that it names exist.

A quoted message is matched with the literals of the sources, with adjacent ones joined: its parts
in angle brackets with what the code fills in, and `...` with anything.
"""

from __future__ import annotations

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "failures.md"
FOLDERS = ("cli", "common", "kernels", "proto", "python", "receiver", "sender")
LITERAL = r'f?"(?:[^"\\\n]|\\.)*"'
FILLED = re.compile(r"\{\{|\}\}|\{[^{}]*\}|%[a-z]")
# Texts that gRPC makes, and that reach the user as they are.
OF_GRPC = {"Deadline Exceeded"}
HOLE = "\0"
FEWEST = 30
SHORTEST = 12  # characters of a message that the code must have in one piece


def as_pattern(text: str) -> str:
    """With a hole for each thing that the code fills in; holes side by side are one."""
    text = FILLED.sub(lambda m: m[0][0] if m[0] in ("{{", "}}") else HOLE, text)
    return re.sub(r"\0(?:\s*\0)+", HOLE, " ".join(text.split()))


def literals() -> set[str]:
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".cc", ".h", ".py"):
                continue
            for run in re.finditer(rf"(?:{LITERAL}\s*)+", path.read_text("utf-8")):
                parts = [p[p.index('"') + 1 : -1] for p in re.findall(LITERAL, run[0])]
                found.add(as_pattern("".join(parts).replace('\\"', '"').replace("\\n", " ")))
    return found


def quoted(text: str) -> list[str]:
    found = re.findall(r"^(?:\* |  or )``(.*?)``$", text, re.MULTILINE | re.DOTALL)
    return [" ".join(message.split()) for message in found]


def pieces(message: str) -> list[str]:
    """What must be in one literal, in this order."""
    holes = re.sub(r"\0(?:\s*\0)+", HOLE, re.sub(r"<[^<>]+>", HOLE, message))
    return [piece.strip() for piece in holes.split("...") if piece.strip()]


def stands_in(message: str, texts: set[str]) -> bool:
    wanted = ".*".join(re.escape(piece) for piece in pieces(message))
    return any(re.search(wanted, text) for text in texts)


class FailuresTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = DOCUMENT.read_text("utf-8")
        cls.messages = quoted(cls.text)
        cls.literals = literals() | OF_GRPC

    def test_each_message_is_the_codes(self):
        for message in self.messages:
            with self.subTest(message):
                longest = max(len(part) for piece in pieces(message) for part in piece.split(HOLE))
                self.assertGreaterEqual(longest, SHORTEST, "too little to be searched for")
                self.assertTrue(stands_in(message, self.literals), "no source says this")

    def test_every_entry_is_whole(self):
        entries = re.split(r"^\* ", self.text, flags=re.MULTILINE)[1:]
        self.assertEqual(sum(len(quoted(f"* {e}")) for e in entries), len(self.messages))
        self.assertGreaterEqual(len(entries), FEWEST)
        for entry in entries:
            with self.subTest(entry[:60]):
                self.assertGreaterEqual(len(quoted(f"* {entry}")), 1)
                self.assertEqual(entry.count("\n  * Cause: "), 1)
                self.assertEqual(entry.count("\n  * What to do: "), 1)

    def test_the_options_exist(self):
        # Options of daemons' files are named without dashes there.
        known = {name.replace("_", "-") for text in self.literals
                 for name in re.findall(r"--([a-z][a-z-]+)", text)}  # fmt: skip
        advice = re.sub(r"``.*?``", "", self.text, flags=re.DOTALL)
        named = set(re.findall(r"`[^`]*?--([a-z][a-z-]+)", advice))
        self.assertGreater(len(named), 8)
        self.assertEqual(named - known, set())

    def test_what_the_comparison_finds(self):
        texts = {
            as_pattern('model \\"{}\\": {} is gone; it has {:.2f} of {}{}'.replace('\\"', '"'))
        }
        self.assertTrue(stands_in('model "<model>": <version> is gone ...', texts))
        self.assertTrue(stands_in("... is gone; it has <n> of <n>", texts))
        self.assertFalse(stands_in('model "<model>": <version> has gone', texts))
        self.assertFalse(stands_in("it has 5 of <n>", texts))
        self.assertFalse(stands_in("... it has <n> ... is gone", texts))


if __name__ == "__main__":
    unittest.main()
