"""The version stands in CMakeLists.txt, and everything that names one follows it.

    version_test.py BUILD
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DELTAWIRE_BIN_DIR", ""))
sys.path.insert(0, str(ROOT / "tests" / "support"))

import skipping  # noqa: E402

# Where the version is written out because a reader copies it from there; all are compared below.
WRITTEN_OUT = re.compile(r"newTag: ([0-9.]+)\}|deltawire-(?:receiver|sender):([0-9]+(?:\.[0-9]+)+)")


def version() -> str:
    found = re.findall(r"^project\(deltawire VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert len(found) == 1, found
    return found[0]


def said(*command: object) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


class VersionTest(unittest.TestCase):
    def test_it_is_semantic(self):
        self.assertRegex(version(), r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$")

    def test_the_changelogs_top_entry_is_about_it(self):
        top = re.search(r"^## (\S+) (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        self.assertEqual(top.group(1), version())
        self.assertRegex(top.group(2), r"^\((not released yet|\d{4}-\d\d-\d\d)\)$")

    def test_the_programs_say_it(self):
        for daemon in ("deltawire-sender", "deltawire-receiver"):
            self.assertEqual(said(BIN / daemon, "--version").strip(), f"deltawire {version()}")
        self.assertEqual(json.loads(said(BIN / "deltawire", "version", "--json"))["program"], version())

    def test_the_python_package_says_it(self):
        packages = pathlib.Path(BUILD) / "python"
        metadata = [p.read_text() for p in packages.glob("deltawire-*.dist-info/METADATA")]
        if not metadata:
            self.skipTest("this build has no Python package")
        self.assertIn(f"\nVersion: {version()}\n", metadata[0])
        code = "import deltawire; print(deltawire.__version__)"
        environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), version(), done.stderr)

    def test_where_it_is_written_out_it_is_this_one(self):
        found = []
        for folder in ("deploy", "docs"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix in (".md", ".yaml"):
                    found += [(path.name, a or b) for a, b in WRITTEN_OUT.findall(path.read_text())]
        self.assertGreaterEqual(len(found), 4)
        self.assertEqual({v for _, v in found}, {version()}, found)

    def test_packages_images_and_releases_take_it_from_there(self):
        packages = (ROOT / "cmake" / "DeltawirePackages.cmake").read_text()
        self.assertNotRegex(packages, r"CPACK_(DEBIAN_)?PACKAGE_VERSION")  # the project's is CPack's default
        build = (ROOT / "deploy" / "containers" / "build.sh").read_text()
        self.assertRegex(build, r"version=\$\(dpkg-deb --field .* Version\)")
        self.assertIn('--build-arg "VERSION=$version"', build)
        image = (ROOT / "deploy" / "containers" / "Containerfile").read_text()
        self.assertIn('LABEL org.opencontainers.image.version="${VERSION}"', image)
        for script in ("tarball.sh", "release/release.sh"):
            read = said("bash", "-c", f"cd '{ROOT}'; eval \"$(grep '^version=' deploy/{script})\"; echo $version")
            self.assertEqual(read.strip(), version(), script)


if __name__ == "__main__":
    BUILD = sys.argv.pop(1)
    skipping.main()
