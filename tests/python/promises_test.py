"""tests/README.md: each promise stands in the README, and each test that is named for it exists. A
bullet of the README that opens in bold is a promise, and the table quotes at least a part of it.

    promises_test.py ROOT
"""

from __future__ import annotations

import pathlib
import re
import sys

PROMISE = re.compile(r'^\* "(.+)"$', re.MULTILINE)
PROOF = re.compile(r"^  \* `(.+)`$", re.MULTILINE)
BOLD = re.compile(r"^\* \*\*.+(?:\n  .+)*", re.MULTILINE)
ENTRY = re.compile(r'^\* "(.+)"\n((?:  \* `.+`\n)+)', re.MULTILINE)


def as_words(text: str) -> str:
    """`text` without Markdown's emphasis and line breaks."""
    return " ".join(text.replace("*", "").split())


def test_titles(root: pathlib.Path) -> set[str]:
    found: set[str] = set()
    for path in (root / "tests").rglob("*.cc"):
        # A title may be written in several literals.
        for case in re.finditer(r'TEST_CASE\(\s*((?:"[^"]*"\s*)+)', path.read_text("utf-8")):
            found.add("".join(re.findall(r'"([^"]*)"', case.group(1))))
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    table = (root / "tests" / "README.md").read_text("utf-8")
    text = (root / "README.md").read_text("utf-8")
    readme, bullets = as_words(text), [as_words(b) for b in BOLD.findall(text)]
    titles = test_titles(root)
    promises = PROMISE.findall(table)
    wrong = [f'the README does not say "{p}"' for p in promises if as_words(p) not in readme]
    wrong += [f'"{p}" has no test' for p in set(promises) - {e[0] for e in ENTRY.findall(table)}]
    for bullet in bullets:
        if not any(as_words(p) in bullet for p in promises):
            wrong.append(f'the table quotes nothing of "{bullet}"')
    for proof in PROOF.findall(table):
        is_file = proof.startswith("tests/")
        if not ((root / proof).is_file() if is_file else proof in titles):
            wrong.append(f"there is no test {'file ' if is_file else ''}`{proof}`")
    for line in wrong:
        print(line)
    print(f"{len(promises)} promises, {len(wrong)} violations")
    # A table that is not understood must not pass.
    return 1 if wrong or not promises or not bullets else 0


if __name__ == "__main__":
    sys.exit(main())
