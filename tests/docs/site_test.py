"""The site of docs/ is made without a warning, its links lead somewhere, and it works offline."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "site"))

import check_site  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


class CheckTest(unittest.TestCase):
    """What the check of a site must find and what it must let pass."""

    def found(self, body: str) -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            site = pathlib.Path(folder).resolve()
            (site / "b.html").write_text('<h1 id="here">B</h1>', "utf-8")
            page = site / "a.html"
            page.write_text(body, "utf-8")
            pages = {path: check_site.read(path) for path in site.glob("*.html")}
            wrong = [check_site.wrong_link(site, page, link, fetched, pages)
                     for link, fetched in pages[page].links]  # fmt: skip
        return next((w for w in wrong if w), None)

    def test_violations(self):
        for body in (
            '<a href="gone.html">x</a>',
            '<a href="b.html#gone">x</a>',
            '<a href="#gone">x</a>',
            '<img src="gone.svg">',
            '<img src="https://example.org/a.svg">',
            '<script src="//example.org/a.js"></script>',
            '<link rel="stylesheet" href="https://example.org/a.css">',
        ):
            with self.subTest(body):
                self.assertIsNotNone(self.found(body))

    def test_allowed(self):
        for body in (
            '<a href="b.html">x</a>',
            '<a href="b.html#here">x</a>',
            '<a id="top" href="#top">x</a>',
            '<a href="https://example.org/gone.html">x</a>',
            '<img src="data:image/png;base64,AA==">',
        ):
            with self.subTest(body):
                self.assertIsNone(self.found(body))


class PictureTest(unittest.TestCase):
    """The recorded demo that the README shows."""

    def test_it_is_small_and_needs_nothing_else(self):
        readme = (ROOT / "README.md").read_text("utf-8")
        self.assertIn("](docs/demo.svg)", readme)
        text = (ROOT / "docs" / "demo.svg").read_text("utf-8")
        self.assertLess(len(text.encode()), 60 << 10)
        root = xml.etree.ElementTree.fromstring(text)
        said = "\n".join("".join(line.itertext()) for line in root.iter(SVG + "text"))
        self.assertRegex(said, r"^\$ \./run demo")
        self.assertRegex(said, r"\d+ versions verified bit for bit")
        self.assertNotIn("href", text)
        self.assertNotIn("url(", text)
        self.assertEqual(list(root.iter(SVG + "script")), [])


class SiteTest(unittest.TestCase):
    def test_the_site_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-B", "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
                cwd=ROOT, capture_output=True, text=True, check=False,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            said = io.StringIO()
            sys.argv = ["check_site.py", folder]
            with contextlib.redirect_stdout(said):
                status = check_site.main()
            print(said.getvalue(), flush=True)
            self.assertEqual(status, 0, said.getvalue())


if __name__ == "__main__":
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "google")):
        print("SKIPPED: no MkDocs in this Python; ./run makes one where a package index answers")
        sys.exit(0)
    unittest.main()
