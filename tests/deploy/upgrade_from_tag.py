"""The rolling upgrade of upgrade_check.py, from the last release: its programs are built from its tag.

    upgrade_from_tag.py NEW_BIN [REVISION]

The tag is the newest vMAJOR.MINOR.PATCH before this commit, or REVISION is any commit. The sources go
to build/previous/REVISION and are built there by their own ./run, which installs nothing; a later run
takes that build up again. Skipped, and counted so, where nothing was released yet.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402
from daemons import run  # noqa: E402

PROGRAMS = ("deltawire", "deltawire-sender", "deltawire-receiver")


def git(*words: str) -> str:
    return run("git", "-C", ROOT, *words).strip()


def last_release() -> str:
    """Its tag. That of this very commit is the release under test, not the one before it."""
    here = git("tag", "--points-at", "HEAD").splitlines()
    merged = git("tag", "--merged", "HEAD", "--sort=-version:refname", "v*").splitlines()
    tags = [tag for tag in merged if re.fullmatch(r"v\d+\.\d+\.\d+", tag) and tag not in here]
    if not tags:
        skipping.leave("no release has a tag yet, so there is nothing to upgrade from")
    return tags[0]


def build(revision: str) -> pathlib.Path:
    """The folder of that revision's programs."""
    tree = ROOT / "build" / "previous" / revision
    if not (tree / ".git").exists():
        run("git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, tree)
    run("git", "-C", tree, "checkout", "--quiet", "--detach", git("rev-parse", f"{revision}^{{commit}}"))
    # What this build was told of its tools is not meant for another one's.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DELTAWIRE_")}
    done = subprocess.run([tree / "run", "build", "release", *PROGRAMS],
                          env={**environment, "DELTAWIRE_NO_INSTALL": "1"}, check=False)  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"building {revision} failed: {tree}/build/release/build.log")
    return tree / "build" / "release" / "bin"


def main() -> None:
    if not (ROOT / ".git").exists():
        skipping.leave("these sources are no git repository, so no release can be taken from it")
    revision = sys.argv[2] if len(sys.argv) > 2 else last_release()
    print(f"upgrading from {revision}", flush=True)
    old = build(revision)
    check = [sys.executable, "-B", HERE.parent / "upgrade_check.py", old, sys.argv[1]]
    sys.exit(subprocess.run(check, check=False).returncode)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main()
