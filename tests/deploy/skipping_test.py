"""tests/support/skipping.py: what ctest is told of tests that pass, skip and fail; and
deploy/apt-packages-tests.txt, which has the programs for lack of which they skip themselves.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import skipping  # noqa: E402

HEAD = f"import sys, unittest\nsys.path.insert(0, {str(SUPPORT)!r})\nimport skipping\n"
PASSES = "    def test_a(self): pass\n"
SKIPS = "    def test_b(self): self.skipTest('no such tool')\n"
FAILS = "    def test_c(self): self.fail('wrong')\n"


class SkippingTest(unittest.TestCase):
    def status(self, body: str) -> int:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "a_test.py")
            path.write_text(HEAD + body)
            done = subprocess.run([sys.executable, "-B", path], capture_output=True, text=True, check=False)
        if done.returncode == skipping.SKIPPED:
            self.assertRegex(done.stdout, "(?m)^SKIPPED: .*no such tool$")
        return done.returncode

    def test_each_mixture(self):
        for cases, wanted in ((PASSES, 0), (PASSES + SKIPS, skipping.SKIPPED), (SKIPS, skipping.SKIPPED),
                              (SKIPS + FAILS, 1), (FAILS, 1), ("    pass\n", 1)):  # fmt: skip
            with self.subTest(cases):
                body = f"class A(unittest.TestCase):\n{cases}skipping.main()\n"
                self.assertEqual(self.status(body), wanted)

    def test_before_any_case(self):
        self.assertEqual(self.status("skipping.leave('no such tool')\n"), skipping.SKIPPED)

    def test_the_number_is_ctests(self):
        text = (SUPPORT.parent / "CMakeLists.txt").read_text()
        self.assertIn(f"set(DELTAWIRE_SKIP_CODE {skipping.SKIPPED})", text)


class ToolsTest(unittest.TestCase):
    # What deploy/apt-packages.txt brings, and what Debian does not have.
    ELSEWHERE = {"ip", "unshare", "dpkg-shlibdeps", "patchelf", "kustomize", "kubectl"}

    def listed(self) -> dict[str, str]:
        """program -> the test that wants it."""
        text = (ROOT / "deploy" / "apt-packages-tests.txt").read_text()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        found = [re.fullmatch(r"[a-z0-9.+-]+ +# ([a-z-]+): (tests/\S+)", line) for line in lines]
        self.assertNotIn(None, found, lines)
        return {match[1]: match[2] for match in found}

    def test_each_is_wanted_by_its_test(self):
        for program, path in self.listed().items():
            with self.subTest(program):
                self.assertIn(f'"{program}"', (ROOT / path).read_text())

    def test_each_that_a_test_looks_for_is_listed(self):
        known = {*self.listed(), *self.ELSEWHERE}
        looks = re.compile(r'which\("([a-z-]+)"|in \(("[^)]+")\):\n +if shutil\.which\(')
        wanted = set()
        for path in (ROOT / "tests").rglob("*.py"):
            for one, several in looks.findall(path.read_text()):
                wanted |= {one} if one else set(re.findall(r'"([a-z-]+)"', several))
        self.assertIn("slurmd", wanted)
        self.assertEqual(wanted - known, set())


if __name__ == "__main__":
    unittest.main()
