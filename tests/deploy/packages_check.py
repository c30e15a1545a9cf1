"""Debian packages as an operator meets them: lintian, and a life in a root that was made for it.

    packages_check.py DIRECTORY [RELEASE]      as root; wants lintian and mmdebstrap

The root has what Debian's minimal installation has. In it the packages are installed, both daemons
run as their user from the sample configurations, a version is published and committed, the packages
are installed again, removed and purged; what is left then is what was there before. No systemd runs
in the root, so units are not started there; packages_inside.sh has the steps.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

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


def check_lintian(packages: list[pathlib.Path]) -> None:
    run("lintian", "--fail-on", "error,warning", "--allow-root", *packages)
    print(f"lintian: nothing to say of {len(packages)} packages")


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


def files(root: pathlib.Path) -> set[str]:
    found = set()
    for folder, folders, names in os.walk(root):
        at = "/" + str(pathlib.Path(folder).relative_to(root))
        found |= {os.path.normpath(f"{at}/{name}") for name in folders + names}
    return {path for path in found if not NOISE.search(path)}


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


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    release = sys.argv[2] if len(sys.argv) > 2 else ""
    if not release:
        release = re.search(
            r"^VERSION_CODENAME=(.*)$", pathlib.Path("/etc/os-release").read_text(), re.MULTILINE
        ).group(1)
    packages = sorted(directory.glob("*.deb"))
    assert packages, f"{directory} has no packages"
    check_lintian(packages)
    check_sizes(packages)
    check_life(packages, release)


if __name__ == "__main__":
    main()
