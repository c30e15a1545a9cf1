"""tests/engines/README.md: each function that the table names is there, and something calls it."""

from __future__ import annotations

import pathlib
import re
import sys

TEST = re.compile(r"`(\w+\.py): (\w+)`")


def main() -> int:
    root = pathlib.Path(__file__).resolve().parents[2]
    tests = root / "tests" / "engines"
    table = (tests / "README.md").read_text("utf-8").splitlines()
    rows = [line.split("|")[1:-1] for line in table if line.startswith("|") and TEST.search(line)]
    texts = {path.name: path.read_text("utf-8") for path in tests.glob("*.py")}
    wrong = []
    named = 0
    for what, *engines in rows:
        for file, function in TEST.findall(" ".join(engines)):
            named += 1
            uses = sum(len(re.findall(rf"\b{function}\b", text)) for text in texts.values())
            if uses < 2 or f"def {function}(" not in texts.get(file, ""):
                wrong.append(f"{what.strip()}: {file} has no {function}, or does not call it")
    print(*wrong, f"{named} tests of {len(rows)} breaks, {len(wrong)} violations", sep="\n")
    # A table that is not understood must not pass.
    return 1 if wrong or not named else 0


if __name__ == "__main__":
    sys.exit(main())
