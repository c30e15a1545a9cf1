"""How a test in Python ends that may skip cases and has one entry in ctest: it counts as skipped only
where no case failed and one was skipped, so that a skipped case neither hides a failed one nor passes.
"""

from __future__ import annotations

import sys
import unittest
from typing import NoReturn

SKIPPED = 77  # DELTAWIRE_SKIP_CODE of tests/CMakeLists.txt


def leave(why: str) -> NoReturn:
    """Before any case has run."""
    print(f"SKIPPED: {why}", flush=True)
    sys.exit(SKIPPED)


def main(cases: list[str] | None = None) -> NoReturn:
    """unittest's, of the cases that are named here or else by the command line; without any, of all."""
    named = sys.argv[1:] if cases is None else cases
    result = unittest.main(argv=[sys.argv[0], *named], exit=False, verbosity=2).result
    for case, why in result.skipped:
        print(f"SKIPPED: {case}: {why}", flush=True)
    if not result.wasSuccessful() or not (result.testsRun or result.skipped):
        sys.exit(1)
    sys.exit(SKIPPED if result.skipped else 0)
