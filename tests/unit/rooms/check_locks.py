"""check_locks.py CLANG ROOT [planted]: has clang's thread-safety analysis check the sources that hold
a CheckedMutex (common/base/checked_mutex.h) and include no generated header, all in one go. `planted`:
checks instead that the analysis finds each of some mistakes."""

import pathlib
import subprocess
import sys
import tempfile

FLAGS = [
    "-std=c++20",
    "-fsyntax-only",
    "-DSPDLOG_FMT_EXTERNAL",
    "-Wthread-safety",
    "-Wthread-safety-beta",  # the order of locks
    "-Wno-thread-safety-negative",
    "-Werror",
]
ROOMS = ["common", "sender/agent", "receiver"]
HEAD = """#include "common/base/checked_mutex.h"
using namespace deltawire;
struct Counter {
  CheckedMutex outer ABSL_ACQUIRED_BEFORE(mu);
  CheckedMutex mu;
  CondVar cv;
  int value ABSL_GUARDED_BY(mu) = 0;
  void Add() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { ++value; }
  void Tell() ABSL_LOCKS_EXCLUDED(mu);
"""
RIGHT = """
  void Right() {
    MutexLock lock(mu);
    while (value == 0) cv.wait(lock);
    cv.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return value > 0; });
    lock.unlock();
    Tell();
    lock.lock();
    Add();
    {
      const MutexUnlock unlocked(mu);
      Tell();
    }
    Add();
  }
"""
# Each mistake with a part of the message.
PLANTED = {
    "void Wrong() { ++value; }": "requires holding mutex 'mu'",
    "void Wrong() { Add(); }": "requires holding mutex 'mu'",
    "void Wrong() { MutexLock lock(mu); Tell(); }": "cannot call function 'Tell' while mutex 'mu' is held",
    "void Wrong() { MutexLock lock(mu); lock.unlock(); ++value; }": "requires holding mutex 'mu'",
    "void Wrong() { MutexLock lock(mu); const MutexUnlock unlocked(mu); ++value; }": "requires holding",
    "void Wrong() { MutexLock lock(mu); MutexLock again(mu); }": "that is already held",
    "void Wrong() { MutexLock a(mu); MutexLock b(outer); }": "mutex 'outer' must be acquired before 'mu'",
}


def check(clang: str, root: pathlib.Path, text: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as source:
        source.write(text)
        source.flush()
        run = subprocess.run([clang, *FLAGS, f"-I{root}", source.name], capture_output=True, text=True)
    return "" if run.returncode == 0 else run.stderr


def planted(clang: str, root: pathlib.Path) -> None:
    end = "};\n"
    if said := check(clang, root, HEAD + RIGHT + end):
        sys.exit(f"clang finds fault with code that is right:\n{said}")
    for wrong, message in PLANTED.items():
        said = check(clang, root, HEAD + wrong + end)
        if message not in said:
            sys.exit(f"clang does not say \"{message}\" of: {wrong}\n{said}")
    print(f"{len(PLANTED)} mistakes found")


def main(clang: str, root: pathlib.Path) -> None:
    sources = []
    for room in ROOMS:
        for source in sorted((root / room).rglob("*.cc")):
            texts = [path.read_text() for path in (source, source.with_suffix(".h")) if path.exists()]
            if any("MutexLock" in text or "CheckedMutex" in text for text in texts):
                sources.append(source.relative_to(root))
    if said := check(clang, root, "".join(f'#include "{source}"\n' for source in sources)):
        sys.exit(said)
    print(f"{len(sources)} sources checked")


if __name__ == "__main__":
    (planted if sys.argv[3:] == ["planted"] else main)(sys.argv[1], pathlib.Path(sys.argv[2]).resolve())
