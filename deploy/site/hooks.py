"""MkDocs calls this file while it builds the site of docs/ (`hooks` in mkdocs.yml). It adds

* the reference pages that are made from the programs and the .proto files (reference.py), and
* a page for each file of the project that a document links to and that is not in docs/, so that
  no link of the site leads to another host or to nothing.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = "docs"
sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(ROOT / "tests" / "python"))

import reference  # noqa: E402
from markdown_test import SCHEME, prose  # noqa: E402

LINK = re.compile(r"(\]\(\s*)([^()\s]+)(\s*\))")
FENCE_LANGUAGES = {
    ".h": "cpp",
    ".proto": "proto",
    ".toml": "toml",
    ".py": "python",
    ".json": "json",
}
LIST_ITEM = re.compile(r"^ *(?:[*-]|\d+\.) ")
FENCE = re.compile(r"^\s*(```|~~~)")

# What tests/docs/commands_test.py reads.
TEST_MARK = re.compile(r"^<!-- test: .*?-->\n", re.MULTILINE | re.DOTALL)

# Where a file of the project is on the site: src_uri by the path from the project's root.
pages: dict[str, str] = {}


def outside(path: str) -> bool:
    """Whether MkDocs has no page or file of its own for this path of the project."""
    return not path.startswith(DOCS + "/") or (ROOT / path).is_dir()


def targets(path: str, text: str) -> list[tuple[str, str, str]]:
    """(link as written, path from the project's root, anchor) of each relative link of `text`."""
    found = []
    for match in LINK.finditer(prose(text)):
        link = match.group(2)
        name, _, anchor = link.partition("#")
        if name and not SCHEME.match(link):
            found.append(
                (link, posixpath.normpath(posixpath.join(posixpath.dirname(path), name)), anchor)
            )
    return found


def within(directory: str) -> str:
    """Where the listing of a directory counts as being, so that its links begin at its parent."""
    return posixpath.join(posixpath.dirname(directory), "listing")


def listing(path: str) -> str:
    names = sorted(p.name for p in (ROOT / path).iterdir() if p.is_file())
    lines = [f"# {path}", ""]
    lines += [f"* [{name}]({posixpath.basename(path)}/{name})" for name in names]
    return "\n".join(lines) + "\n"


def source_page(path: str) -> str:
    """The Markdown of the page that shows a file of the project."""
    file = ROOT / path
    if file.is_dir():
        return listing(path)
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        return text
    return f"# {path}\n\n````{FENCE_LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n"


def add_project_pages(config, files: Files) -> None:
    """A page for everything outside docs/ that a page links to, and for what these link to."""
    waiting = [
        (f"{DOCS}/{f.src_uri}", f.content_string) for f in files if f.src_uri.endswith(".md")
    ]
    while waiting:
        path, text = waiting.pop()
        for _, target, _ in targets(path, text):
            if target in pages or not outside(target) or not (ROOT / target).exists():
                continue
            directory = (ROOT / target).is_dir()
            name = target if target.endswith(".md") else target + ".md"
            pages[target] = "project/" + name
            content = source_page(target)
            files.append(File.generated(config, pages[target], content=content,
                                        inclusion=InclusionLevel.NOT_IN_NAV))  # fmt: skip
            if directory or target.endswith(".md"):
                waiting.append((within(target) if directory else target, content))


def on_files(files: Files, config) -> Files:
    programs = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"])
    for name, text in reference.all_pages(ROOT, programs).items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    pages.clear()
    add_project_pages(config, files)
    return files


def as_python_markdown_reads(text: str) -> str:
    """GitHub and GitLab begin a list right below a line of text, and an inner list two columns to
    the right; Python-Markdown wants an empty line before the one, and four columns before the
    other."""
    lines: list[str] = []
    fenced = inner = False
    for line in text.splitlines():
        fenced ^= bool(FENCE.match(line))
        before = lines[-1] if lines else ""
        item = not fenced and LIST_ITEM.match(line)
        inner = not fenced and line.startswith("  ") and bool(item or inner)
        if item and not inner and before.strip() and not before.startswith((" ", "|")):
            if not LIST_ITEM.match(before):
                lines.append("")
        lines.append("  " + line if inner and (item or line.startswith("    ")) else line)
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    uri = page.file.src_uri
    markdown = TEST_MARK.sub("", markdown)
    # Where the document is in the project decides what its links mean.
    origin = next((path for path, at in pages.items() if at == uri), f"{DOCS}/{uri}")
    if (ROOT / origin).is_dir():
        origin = within(origin)
    moved = {}
    for link, target, anchor in targets(origin, markdown):
        at = pages.get(target) or target.removeprefix(DOCS + "/")
        if target in pages or uri.startswith("project/"):
            there = posixpath.relpath(at, posixpath.dirname(uri) or ".")
            moved[link] = there + (f"#{anchor}" if anchor else "")
    out = []
    # splitlines() would leave out the last line of the blanked text, a fence's end.
    for line, kept in zip(markdown.splitlines(), prose(markdown).split("\n"), strict=True):
        out.append(line if not kept else
                   LINK.sub(lambda m: m[1] + moved.get(m[2], m[2]) + m[3], line))  # fmt: skip
    return as_python_markdown_reads("\n".join(out))
