"""`./run release`: what it refuses, and what it says a release is made of.

Runs in a Python with deploy/wheel/requirements.txt, whose spdx-tools judge the SBOM.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(ROOT / "deploy" / "release"), str(HERE.parents[1] / "support")]

import licenses  # noqa: E402
import sbom  # noqa: E402
import stand_in_packages  # noqa: E402
from daemons import programs  # noqa: E402

try:
    import spdx_tools  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error} (deploy/wheel/requirements.txt)")
    sys.exit(0)

COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: {}

Files: debian/*
License: GPL-3+
"""


def git(folder: pathlib.Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Refusals(unittest.TestCase):
    """In a repository of its own that has this tree's `run` and little else."""

    def setUp(self):
        self.tree = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="deltawire-release-")))
        for name in ("run", "CMakeLists.txt", "CHANGELOG.md"):
            shutil.copy(ROOT / name, self.tree)
        git(self.tree, "init", "-q")
        self.commit()

    def commit(self):
        git(self.tree, "add", "-A")
        git(self.tree, "commit", "-q", "--allow-empty", "-m", "a tree")

    def release(self, *arguments: str) -> str:
        environment = {**os.environ, "DELTAWIRE_NO_INSTALL": "1", "DELTAWIRE_WHEEL_PYTHON": sys.executable}
        done = subprocess.run([self.tree / "run", "release", *arguments], env=environment,
                              capture_output=True, text=True, check=False)  # fmt: skip
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def test_a_tree_that_is_not_clean(self):
        (self.tree / "left-over.txt").write_text("x")
        said = self.release("--rehearsal")
        self.assertIn("not clean", said)
        self.assertIn("left-over.txt", said)

    def test_a_version_that_the_changelog_does_not_date(self):
        changelog = self.tree / "CHANGELOG.md"
        changelog.write_text("# Changes\n\n## 0.1.0 (not released yet)\n")
        self.commit()
        self.assertIn("--rehearsal goes without", self.release("no-such-part"))
        self.assertIn("there is no part no-such-part", self.release("--rehearsal", "no-such-part"))
        changelog.write_text("# Changes\n\n## 0.1.0 (2026-01-31)\n")
        self.commit()
        self.assertIn("there is no part no-such-part", self.release("no-such-part"))


class Sbom(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("dpkg-shlibdeps") is None:
            print("SKIPPED: no dpkg-shlibdeps on this machine")
            sys.exit(0)
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="deltawire-sbom-"))
        cls.folder = pathlib.Path(folder)
        cls.packages = stand_in_packages.make(programs(), cls.folder)
        os.environ["SOURCE_DATE_EPOCH"] = "1790000000"
        cls.path = sbom.make(cls.folder, "0.1.0")
        cls.document = json.loads(cls.path.read_text())

    def test_it_names_what_a_program_links_with_the_version_that_is_installed(self):
        packages = {p["name"]: p for p in self.document["packages"]}
        linked = next(name for name in packages if name.startswith("libgrpc++") and "-dev" not in name)
        self.assertEqual(packages[linked]["versionInfo"], sbom.installed(linked)[0])
        sender = next(p["SPDXID"] for p in self.document["packages"] if "deltawire-sender" in p["name"])
        self.assertIn({"spdxElementId": sender, "relationshipType": "DEPENDS_ON",
                       "relatedSpdxElement": packages[linked]["SPDXID"]}, self.document["relationships"])

    def test_it_has_every_files_checksum(self):
        sums = {p["packageFileName"]: p["checksums"][0]["checksumValue"]
                for p in self.document["packages"] if "packageFileName" in p}
        self.assertEqual(sums, {path.name: sbom.digest(path) for path in self.packages})

    def test_made_again_it_is_the_same(self):
        before = self.path.read_bytes()
        self.assertEqual(sbom.make(self.folder, "0.1.0").read_bytes(), before)

    def test_spdx_tools_refuse_what_is_wrong(self):
        self.assertEqual(sbom.problems(self.path), [])
        broken = self.folder / "broken.spdx.json"
        self.document["relationships"].append({
            "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
            "relatedSpdxElement": "SPDXRef-nothing",
        })  # fmt: skip
        broken.write_text(json.dumps(self.document))
        self.assertTrue(sbom.problems(broken))


class Licenses(unittest.TestCase):
    def test_names_that_spdx_has(self):
        for name, want in (("Apache-2", "Apache-2.0"), ("Expat", "MIT"),
                           ("Expat or GPL-2+", "(GPL-2.0-or-later OR MIT)"),
                           ("Zlib and Expat", "MIT AND Zlib")):  # fmt: skip
            self.assertEqual(licenses.of_text(COPYRIGHT.format(name)).declared, want)

    def test_others_are_not_guessed(self):
        found = licenses.of_text(COPYRIGHT.format("Expat and Something-Else"))
        self.assertEqual(found.declared, "NOASSERTION")
        self.assertIn("Something-Else", found.why)
        self.assertEqual(licenses.of_text("Licensed as beer.").declared, "NOASSERTION")


if __name__ == "__main__":
    unittest.main()
