"""Counts what ctest ran, for `./run test`.

    count_tests.py BUILD_DIR STATUS     prints "PASSED FAILED SKIPPED"

BUILD_DIR/test.xml is ctest's JUnit report, STATUS its exit status. A sanitizer's report in
BUILD_DIR/report.* counts as a failure, since a daemon that a test kills cannot fail that test by its
own exit status. What else went wrong is said on standard error.
"""

import pathlib
import sys
import xml.etree.ElementTree

# A test that should have run and did not: its program is missing, or one that it depends on failed.
UNABLE = ("Unable", "Missing", "Required", "Fixture", "Failed")


def count(folder: pathlib.Path, status: int) -> tuple[int, int, int]:
    passed = failed = skipped = 0
    report = folder / "test.xml"
    for case in xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ():
        reason = case.find("skipped")
        if case.get("status") == "run":
            passed += 1
        elif case.get("status") == "fail" or reason is not None and reason.get("message", "").startswith(UNABLE):
            failed += 1
        else:
            skipped += 1
    for sanitizer in sorted(folder.glob("report.*")):
        said = sanitizer.read_text(errors="replace")
        if said:
            print(said, file=sys.stderr)
            failed += 1
    if status != 0 and failed == 0:
        print(f"== ctest itself failed (exit status {status}); its log: {folder}/test.log", file=sys.stderr)
        failed = 1
    return passed, failed, skipped


if __name__ == "__main__":
    print(*count(pathlib.Path(sys.argv[1]), int(sys.argv[2])))
