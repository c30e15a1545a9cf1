"""tests/support/skipping.py: what ctest is told of tests that pass, skip and fail."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import unittest

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


if __name__ == "__main__":
    unittest.main()
