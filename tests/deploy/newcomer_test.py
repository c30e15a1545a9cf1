"""The tutorial as a newcomer does it, without compiling: from a wheel, on a machine that has what the
tutorial asks for and nothing else.

    newcomer_test.py BUILD_DIR [FILES]      in a Python with deploy/wheel/requirements.txt

FILES is a directory with a wheel, such as build/release-VERSION; without it deploy/wheel/make.py makes
one of the build tree. As root: the machine is a root of Debian's packages, with iproute2 and
python3-venv, and each command block is run in it by tests/docs/commands_test.py.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

import skipping  # noqa: E402
from daemons import run  # noqa: E402
from packages_check import no_mirror, sources  # noqa: E402

RELEASE = "bookworm"
DOCUMENT = "docs/tutorial.md"
MOST_S = 15 * 60
# The root becomes a mount of its own, so that namespaces can be made in it.
ENTER = """
mount --bind "$1" "$1" && cd "$1"
mount -t proc proc proc && mount --rbind /dev dev && mount -t tmpfs tmpfs dev/shm && mount -t sysfs sys sys
exec chroot . env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DELTAWIRE_DOCS_WAY=release \\
  DELTAWIRE_BIN_DIR=/none/bin python3 -B "/project/tests/docs/commands_test.py" "$2"
"""


def make_files(build: pathlib.Path, scratch: pathlib.Path) -> pathlib.Path:
    """This build's wheel."""
    run(sys.executable, "-B", ROOT / "deploy/wheel/make.py", build, scratch / "files")
    return scratch / "files"


def make_machine(root: pathlib.Path, files: pathlib.Path) -> None:
    run("mmdebstrap", "--variant=minbase", "--include=iproute2,python3,python3-venv", RELEASE, root,
        *sources())  # fmt: skip
    project = root / "project"
    project.mkdir()
    (wheel,) = files.glob("deltawire-*.whl")
    shutil.copy(wheel, project)
    for name in ("tests/docs/commands_test.py", DOCUMENT):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)


def missing() -> str | None:
    if not (pathlib.Path(sys.executable).parent / "auditwheel").exists():
        return "no auditwheel beside this Python (deploy/wheel/requirements.txt)"
    return no_mirror()


def main() -> None:
    if (why := missing()) is not None:
        skipping.leave(why)
    with tempfile.TemporaryDirectory(prefix="deltawire-newcomer-") as folder:
        scratch = pathlib.Path(folder)
        files = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else make_files(pathlib.Path(sys.argv[1]), scratch)
        root = scratch / "root"
        make_machine(root, files)
        started = time.monotonic()
        said = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER, "sh", root,
                               DOCUMENT], env={**os.environ, "LC_ALL": "C.UTF-8"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
        took = time.monotonic() - started
        if "SKIPPED" in said.stdout:
            skipping.leave(said.stdout.strip())
        assert said.returncode == 0, said.stdout
        assert took < MOST_S, took
        print(said.stdout.splitlines()[-1])
        print(f"from a wheel: {took:.0f} s, without the reading")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main()
