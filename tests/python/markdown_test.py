"""The documents: no line above 100 columns, no two sections of one name, and every relative link leads
to a file and a heading.

    markdown_test.py ROOT

checks every Markdown file below ROOT that git does not ignore, and tests the scan itself.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

MAX_COLUMNS = 100
FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)? *$")
INLINE_CODE = re.compile(r"(`+).*?\1", re.DOTALL)
# [text](target), ![text](target "title") and [name]: target
LINK = re.compile(r"\]\(\s*<?([^()\s>]+)>?[^()]*\)|^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)", re.MULTILINE)
SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:")


def prose(text: str) -> str:
    """`text` with its fenced blocks blanked, line numbers kept."""
    lines, fence = [], None
    for line in text.splitlines():
        mark = FENCE.match(line)
        inside = fence is not None
        if mark and fence in (None, mark.group(1)):
            fence = None if inside else mark.group(1)
        lines.append("" if inside or mark else line)
    return "\n".join(lines)


def anchors(text: str) -> set[str]:
    """What `#...` may name in `text`: its headings as GitHub and GitLab spell them."""
    found: set[str] = set()
    for line in prose(text).splitlines():
        if heading := HEADING.match(line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1))
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            again = 0
            while (name := f"{slug}-{again}" if again else slug) in found:
                again += 1
            found.add(name)
    return found


def check_columns(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS} are wanted"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]


def check_links(root: pathlib.Path, path: str, text: str) -> list[str]:
    found = []
    plain = INLINE_CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), prose(text))
    for link in LINK.finditer(plain):
        target = link.group(1) or link.group(2)
        if SCHEME.match(target):
            continue
        number = plain.count("\n", 0, link.start(1 if link.group(1) else 2)) + 1
        name, _, anchor = target.partition("#")
        file = (root / path).parent / name if name else root / path
        if not file.exists():
            found.append(f"{path}:{number}: {target}: there is no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")):
            found.append(f"{path}:{number}: {target}: there is no such heading")
    return found


def check_sections(path: str, text: str) -> list[str]:
    """Two sections of one name: a reader who was sent to it reads one of them."""
    found, seen = [], set()
    for number, line in enumerate(prose(text).splitlines(), 1):
        if line.startswith("## "):
            if line in seen:
                found.append(f"{path}:{number}: there is a section {line[3:]!r} already")
            seen.add(line)
    return found


def check_file(root: pathlib.Path, path: str) -> list[str]:
    text = (root / path).read_text("utf-8")
    return check_columns(path, text) + check_links(root, path, text) + check_sections(path, text)


def markdown_files(root: pathlib.Path) -> list[str] | None:
    """The Markdown files that git tracks or would track; None when `root` is no checkout."""
    listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    try:
        command = ["git", "-C", str(root), *listing]
        out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return sorted({name for name in out.split("\0") if name and (root / name).is_file()})


class ScanTest(unittest.TestCase):
    """What the scan must find and what it must let pass."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs").mkdir()
        (self.root / "docs" / "b.md").write_text("# One `two`, three\n## Same\n## Same\n", "utf-8")

    def found(self, text: str) -> list[str]:
        (self.root / "a.md").write_text(text, "utf-8")
        return check_file(self.root, "a.md")

    def test_violations(self):
        for text in (
            "x" * 101,
            "```\n" + "x" * 101 + "\n```",
            "[gone](gone.md)",
            "[gone](docs/gone.md#one-two-three)",
            "[two\nlines](gone.md)",
            "![picture](gone.png 'title')",
            "[name]: gone.md",
            "[b](docs/b.md#two)",
            "[b](docs/b.md#same-2)",
            "[self](#nothing)",
            "## Same\n## Other\n## Same",
            "```\n# Heading\n```\n[not a heading](#heading)",
        ):
            with self.subTest(text=text):
                self.assertEqual(len(self.found(text)), 1)

    def test_allowed(self):
        for text in (
            "é" * 100,
            "[b](docs/b.md), [folder](docs), [heading](docs/b.md#one-two-three)",
            "[first](docs/b.md#same) [second](docs/b.md#same-1)",
            "# Here\n[self](#here)",
            "## A\n### Same\n## B\n### Same\n```\n## A\n```",
            "[web](https://example.org/gone.md) [mail](mailto:a@example.org)",
            "`[code](gone.md)`\n```\n[code](gone.md)\n```",
        ):
            with self.subTest(text=text):
                self.assertEqual(self.found(text), [])

    def test_line_numbers(self):
        self.assertTrue(self.found("\n\n[a](gone.md)")[0].startswith("a.md:3: "))


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    scan = unittest.defaultTestLoader.loadTestsFromTestCase(ScanTest)
    if not unittest.TextTestRunner().run(scan).wasSuccessful():
        return 1
    files = markdown_files(root)
    if files is None:
        print("SKIPPED: no git checkout, so no list of its files")
        return 0
    found = [line for file in files for line in check_file(root, file)]
    for line in found:
        print(line)
    print(f"{len(files)} files, {len(found)} violations")
    # A scan that sees nothing must not pass.
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
