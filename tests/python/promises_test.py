"""tests/README.md maps promises to tests. Each section of it names a page and quotes its promises: a
quotation stands on that page word for word, and each test that is named for it exists. Every bullet of
PAGES that opens in bold is a promise, so the map quotes at least a part of it.

    promises_test.py ROOT     checks the map, and tests the check itself
"""

from __future__ import annotations

import pathlib
import re
import sys
import unittest

PAGES = ("README.md", "docs/how_it_works.md")
SECTION = re.compile(r"^## Promises of \[.+?\]\(\.\./(.+?)\)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r'^\* "(.+)"$', re.MULTILINE)
PROOF = re.compile(r"^  \* `(.+)`$", re.MULTILINE)
BOLD = re.compile(r"^\* \*\*.+(?:\n  .+)*", re.MULTILINE)
ENTRY = re.compile(r'^\* "(.+)"\n((?:  \* `.+`\n)+)', re.MULTILINE)


def as_words(text: str) -> str:
    """`text` without Markdown's emphasis and line breaks."""
    return " ".join(text.replace("*", "").split())


def check_section(page: str, text: str, section: str) -> list[str]:
    """Errors of the map's `section` on `page`, whose text is `text`."""
    said, promises = as_words(text), PROMISE.findall(section)
    wrong = [f'{page} does not say "{p}"' for p in promises if as_words(p) not in said]
    wrong += [f'"{p}" has no test' for p in set(promises) - {e[0] for e in ENTRY.findall(section)}]
    for bullet in map(as_words, BOLD.findall(text) if page in PAGES else []):
        if not any(as_words(p) in bullet for p in promises):
            wrong.append(f'the map quotes no part of "{bullet}"')
    return wrong


def test_titles(root: pathlib.Path) -> set[str]:
    found: set[str] = set()
    for path in (root / "tests").rglob("*.cc"):
        # A title may be written in several literals.
        for case in re.finditer(r'TEST_CASE\(\s*((?:"[^"]*"\s*)+)', path.read_text("utf-8")):
            found.add("".join(re.findall(r'"([^"]*)"', case.group(1))))
    return found


class CheckTest(unittest.TestCase):
    """What the check must find and what it must let pass."""

    def found(self, page: str, promise: str) -> int:
        return len(check_section(page, "* **One\n  two.** Three.\n", promise))

    def test_violations(self):
        for promise in ("", '* "Three."\n', '* "one"\n  * `t`\n* "One two"\n  * `t`\n'):
            with self.subTest(promise):
                self.assertEqual(self.found(PAGES[1], promise), 1)

    def test_allowed(self):
        self.assertEqual(self.found(PAGES[1], '* "One two. Three"\n  * `t`\n'), 0)
        self.assertEqual(self.found("docs/other.md", ""), 0)


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    check = unittest.defaultTestLoader.loadTestsFromTestCase(CheckTest)
    if not unittest.TextTestRunner().run(check).wasSuccessful():
        return 1
    sections = dict(SECTION.findall((root / "tests" / "README.md").read_text("utf-8")))
    titles = test_titles(root)
    wrong = [f"the map has no promise of {p}" for p in PAGES if not PROMISE.findall(sections.get(p, ""))]
    for page, section in sections.items():
        wrong += check_section(page, (root / page).read_text("utf-8"), section)
    for proof in [p for section in sections.values() for p in PROOF.findall(section)]:
        is_file = proof.startswith("tests/")
        if not ((root / proof).is_file() if is_file else proof in titles):
            wrong.append(f"there is no test {'file ' if is_file else ''}`{proof}`")
    for line in wrong:
        print(line)
    count = sum(len(PROMISE.findall(section)) for section in sections.values())
    print(f"{count} promises on {len(sections)} pages, {len(wrong)} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
