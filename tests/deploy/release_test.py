"""`./run release`: what it refuses, and what it says a release is made of.

Runs in a Python with deploy/wheel/requirements.txt, whose spdx-tools judge the SBOM.
"""

from __future__ import annotations

import importlib.util
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
import skipping  # noqa: E402
import stand_in_packages  # noqa: E402
from daemons import programs  # noqa: E402

COPIED = ("run", "CMakeLists.txt", "CHANGELOG.md", "cmake/progress.sh", "deploy/apt-packages.txt",
          "deploy/install_packages.sh", "deploy/package.sh", "deploy/tarball.sh",
          "deploy/release/release.sh", "deploy/wheel/wheel.sh", "tests/support/pythons.sh")  # fmt: skip
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
    """In a repository of its own that has this tree's scripts and little else, and programs on PATH that
    only say what they are asked."""

    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="deltawire-release-")))
        self.tree, self.programs, self.asked = folder / "tree", folder / "bin", folder / "asked"
        self.tree.mkdir()
        self.programs.mkdir()
        self.asked.write_text("")
        for name in COPIED:
            (self.tree / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copy(ROOT / name, self.tree / name)
        git(self.tree, "init", "-q")
        self.commit()

    def commit(self):
        git(self.tree, "add", "-A")
        git(self.tree, "commit", "-q", "--allow-empty", "-m", "a tree")

    def stand_in(self, path: pathlib.Path, then: str):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >>{self.asked}\n{then}\n')
        path.chmod(0o755)

    def release(self, *arguments: str, fails: bool = True, **environment: str) -> str:
        environment = {"DELTAWIRE_NO_INSTALL": "1", "DELTAWIRE_WHEEL_PYTHON": sys.executable, **environment}
        done = subprocess.run(
            [self.tree / "run", "release", *arguments], capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", **environment},
        )  # fmt: skip
        self.assertEqual(done.returncode != 0, fails, done.stdout + done.stderr)
        return done.stderr

    def test_what_is_missing_is_installed_before_anything_needs_it(self):
        self.stand_in(self.programs / "dpkg-query", "exit 1")
        self.stand_in(self.programs / "apt-get", "exit 1")
        self.stand_in(self.programs / "sudo", 'exec "$@"')
        said = self.release("--rehearsal", DELTAWIRE_NO_INSTALL="", DELTAWIRE_WHEEL_PYTHON="")
        self.assertIn("installing packages failed", said)
        asked = self.asked.read_text().splitlines()
        install = next(line.split() for line in asked if line.startswith("apt-get -y install"))
        self.assertLessEqual({"help2man", "dpkg-dev", "file", "python3-venv"}, set(install))

    def test_images_without_the_packages_that_they_are_made_of(self):
        self.assertIn("./run release packages images", self.release("--rehearsal", "images"))

    def test_images_that_cannot_be_made_are_no_release(self):
        self.stand_in(self.programs / "buildah", "exit 0")
        self.stand_in(self.programs / "cmake", "mkdir -p build/package/bin")
        self.stand_in(self.programs / "cpack", "mkdir packages && : >packages/deltawire-sender_1.deb")
        self.stand_in(self.tree / "deploy" / "containers" / "build.sh", "echo no base today; exit 1")
        self.commit()
        said = self.release("--rehearsal", "images", "packages")
        self.assertIn("no base today", said)
        self.assertIn("making the images failed", said)

    def test_the_tarball_has_the_programs_of_this_commit(self):
        self.stand_in(self.programs / "cmake", "mkdir -p build/package/bin")
        self.stand_in(self.tree / "deploy" / "bundle.sh", "exit 1")
        self.stand_in(self.tree / "build" / "package" / "bin" / "deltawire", "exit 0")
        (self.tree / ".gitignore").write_text("/build/\n")
        self.commit()
        self.release("--rehearsal", "tarball")
        asked = [line.split()[:3] for line in self.asked.read_text().splitlines()]
        self.assertIn(["cmake", "--build", "--preset"], asked)
        self.assertEqual(asked[-1][0], "bundle.sh")

    def test_another_time_is_the_same_but_for_images_and_leaves_nothing(self):
        self.stand_in(self.programs / "buildah", "exit 0")
        self.stand_in(self.programs / "cmake", "mkdir -p build/package/bin")
        self.stand_in(self.programs / "cpack", "mkdir packages && echo $BYTES >packages/deltawire_1.deb")
        self.stand_in(self.tree / "deploy" / "containers" / "build.sh",
                      'mkdir -p "$4" && date +%N >"$4/deltawire-sender.tar"')  # fmt: skip
        (self.tree / "deploy" / "release" / "sbom.py").write_text("")
        (self.tree / ".gitignore").write_text("/build/\n")
        self.commit()
        left = self.tree.parent / "left"
        left.mkdir()
        self.release("--rehearsal", "--twice", "packages", "images", fails=False, TMPDIR=str(left))
        self.assertEqual(list(left.iterdir()), [])
        # The second time the compiler fails.
        self.stand_in(self.programs / "cmake", f"mkdir -p build/package/bin; [ $PWD = {self.tree} ]")
        self.release("--rehearsal", "--twice", "packages", TMPDIR=str(left))
        self.assertEqual(list(left.iterdir()), [])

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


class Presets(unittest.TestCase):
    def test_what_is_handed_out_has_cuda_for_all_devices(self):
        presets = {p["name"]: p for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        for name in ("package", "wheel"):
            self.assertEqual(presets[name]["cacheVariables"]["DELTAWIRE_CUDA_FOR_ALL"], "ON", name)
            self.assertNotIn("DELTAWIRE_CUDA", presets[name]["cacheVariables"], name)


class Sbom(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("dpkg-shlibdeps") is None:
            raise unittest.SkipTest("no dpkg-shlibdeps on this machine")
        if importlib.util.find_spec("spdx_tools") is None:
            raise unittest.SkipTest("no spdx-tools (deploy/wheel/requirements.txt)")
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
        self.assertNotIn("dpkg-dev", packages)
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
    skipping.main()
