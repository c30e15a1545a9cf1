"""Debian packages as an operator meets them: lintian, and a life in a root that was made for it.

    packages_check.py DIRECTORY [--release NAME] [--fresh] [Lintian|Life]...      default: both

Nothing is built: `./run package` makes the packages. Lintian wants lintian; Life wants root, mmdebstrap
and a mirror of Debian's packages. A case that lacks something is skipped, and says what; with
--fresh, also where the packages are older than the last commit, so that no old ones pass for it.

The root has what Debian's minimal installation has, of this machine's release or the one that is
named. In it the packages are installed, both daemons run as their user from the sample
configurations, a version is published and committed, the packages are installed again, removed and
purged; what is left then is what was there before. No systemd runs in the root, so units are not
started there; packages_inside.sh has the steps.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import skipping  # noqa: E402
from daemons import run  # noqa: E402

MOST_INSTALLED_MB = 60
# Written by tools that every installation of a package uses, or left by systemd's own package, which
# comes and goes with the daemons.
NOISE = re.compile(
    r"^/(var/(lib/(dpkg|apt|systemd|ucf)|cache|log|backups)|proc|dev|tmp|run|debs)(/|$)"
    r"|^/etc/(ld\.so\.cache|passwd-?|group-?|shadow-?|gshadow-?|subuid-?|subgid-?|\.pwd\.lock)$"
    r"|^/(etc/(machine-id|mtab)|root/\.ssh|var/lib/private)$"
    r"|__pycache__|^/inside\.sh$"
)


def check_sizes(packages: list[pathlib.Path]) -> None:
    total = 0
    for package in packages:
        name, size = run(
            "dpkg-deb", "--showformat=${Package} ${Installed-Size}", "--show", package
        ).split()
        total += int(size)
        print(f"  {name:24} {int(size) / 1024:6.1f} MB")
    print(f"  {'all, installed':24} {total / 1024:6.1f} MB")
    assert total / 1024 <= MOST_INSTALLED_MB, total


def sources() -> list[str]:
    """Where this machine gets its packages from."""
    apt = pathlib.Path("/etc/apt")
    found = [apt / "sources.list", *apt.glob("sources.list.d/*.list")]
    found += apt.glob("sources.list.d/*.sources")
    return [str(path) for path in found if path.is_file()]


def no_mirror() -> str | None:
    """Why no root can be made of Debian's packages; None if one can."""
    if os.geteuid() != 0:
        return "making a root wants root"
    if shutil.which("mmdebstrap") is None:
        return "no mmdebstrap on this machine"
    with tempfile.TemporaryDirectory() as folder:
        asked = subprocess.run(
            ["apt-get", "-qq", "download", "base-files"], cwd=folder, capture_output=True, check=False
        )
    return None if asked.returncode == 0 else "no mirror of Debian's packages answers"


def last_commit() -> float:
    """When it was made; 0 in a tree without git."""
    done = subprocess.run(["git", "-C", str(HERE), "log", "-1", "--format=%ct"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    return float(done.stdout) if done.returncode == 0 else 0.0


def files(root: pathlib.Path) -> set[str]:
    found = set()
    for folder, folders, names in os.walk(root):
        at = "/" + str(pathlib.Path(folder).relative_to(root))
        found |= {os.path.normpath(f"{at}/{name}") for name in folders + names}
    return {path for path in found if not NOISE.search(path)}


def this_release() -> str:
    text = pathlib.Path("/etc/os-release").read_text()
    return re.search(r"^VERSION_CODENAME=(.*)$", text, re.MULTILINE)[1]


def check_life(packages: list[pathlib.Path], release: str) -> None:
    with tempfile.TemporaryDirectory(prefix="deltawire-root-") as name:
        root = pathlib.Path(name, "root")
        # The lists of packages stay, since dependencies are installed in it.
        run("mmdebstrap", "--variant=minbase", "--include=python3-minimal",
            "--skip=cleanup/apt/lists", release, root, *sources())  # fmt: skip
        shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
        (root / "debs").mkdir()
        for package in packages:
            shutil.copy(package, root / "debs")
        shutil.copy(HERE / "packages_inside.sh", root / "inside.sh")
        before = files(root)
        script = (
            f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev &&"
            f" mount -t tmpfs tmpfs {root}/dev/shm && exec chroot {root} /bin/sh /inside.sh"
        )
        said = run("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script)
        print("".join(f"  {line}\n" for line in said.splitlines() if line.startswith("ok ")), end="")
        left = files(root) - before
        assert not left, f"a purge left {sorted(left)}"
        print("a purge leaves nothing")


class Packages(unittest.TestCase):
    options: argparse.Namespace

    def setUp(self):
        self.packages = sorted(self.options.directory.glob("*.deb"))
        if not self.packages:
            self.skipTest(f"no packages in {self.options.directory}; `./run package` makes them")
        made = min(package.stat().st_mtime for package in self.packages)
        print(f"{len(self.packages)} packages, made {time.ctime(made)}", flush=True)
        if self.options.fresh and made < last_commit():
            self.skipTest("the packages are older than the last commit; `./run package` makes new ones")


class Lintian(Packages):
    def test_it_has_nothing_to_say(self):
        if shutil.which("lintian") is None:
            self.skipTest("no lintian on this machine")
        run("lintian", "--fail-on", "error,warning", "--allow-root", *self.packages)

    def test_sizes(self):
        check_sizes(self.packages)


class Life(Packages):
    def test_installed_used_and_purged(self):
        why = no_mirror()
        if why is not None:
            self.skipTest(why)
        check_life(self.packages, self.options.release or this_release())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--release")
    parser.add_argument("--fresh", action="store_true")
    Packages.options = parser.parse_intermixed_args()
    skipping.main(Packages.options.cases or ["Lintian", "Life"])


if __name__ == "__main__":
    main()
