"""The units as systemd runs them: a machine is made, booted by systemd-nspawn, and switched off.

As root. The root is Debian's minimal one from the machine's own mirror, with systemd; in it are
packages of the build's programs (stand_in_packages.py), or those of a directory that is named. A unit
runs booted_inside.sh, which has the steps: start, publish, reload, SIGKILL, a watchdog that bites,
wrong options, a directory on a disk, an upgrade, removal and purge.

    booted_test.py [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

import skipping  # noqa: E402
import stand_in_packages  # noqa: E402
from daemons import end, programs, run, spawn  # noqa: E402
from packages_check import no_mirror, sources  # noqa: E402

RELEASE = "bookworm"
UNIT = """\
[Unit]
Description=deltawire's test
After=multi-user.target
[Service]
Type=oneshot
ExecStart=@shell@ /inside.sh
TimeoutStartSec=600
[Install]
WantedBy=multi-user.target
"""
LIMIT_S = 600


def missing() -> str | None:
    for name in ("systemd-nspawn", "dpkg-shlibdeps"):
        if shutil.which(name) is None:
            return f"no {name} on this machine"
    return no_mirror()


def debian(root: pathlib.Path, *others: str) -> None:
    """A root that boots, with packages of Debian's beside what these tests take, and apt's lists."""
    wanted = ("systemd", "systemd-sysv", "python3", "procps", "util-linux", *others)
    run("mmdebstrap", "--variant=minbase", "--skip=cleanup/apt/lists",
        f"--include={','.join(wanted)}", RELEASE, root, *sources())  # fmt: skip


def start_at_boot(root: pathlib.Path, script: pathlib.Path, shell: str) -> None:
    shutil.copy(script, root / "inside.sh")
    units = root / "etc/systemd/system"
    (units / "inside.service").write_text(UNIT.replace("@shell@", shell))
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/inside.service").symlink_to(
        "/etc/systemd/system/inside.service"
    )


def make_root(root: pathlib.Path) -> None:
    debian(root)
    for name, version in (("debs", "0.0.0+test"), ("newer", "0.0.1+test")):
        (root / name).mkdir()
        stand_in_packages.make(programs(), root / name, version)
    # Dependencies come from the mirror, so this is before the boot, with the host's network.
    run("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe", "-D", root, "sh", "-ec",
        "export DEBIAN_FRONTEND=noninteractive\n"
        "apt-get -y --no-install-recommends install /debs/*.deb")  # fmt: skip
    start_at_boot(root, HERE.parent / "booted_inside.sh", "/bin/sh")


def boots(root: pathlib.Path) -> bool:
    """Whether systemd comes up here at all: cgroups and namespaces may not be for this user."""
    log = root.parent / "boot.log"
    with log.open("w") as out:
        # A network of its own: the daemons' ports are those of the samples.
        machine = spawn(
            ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network",
             "--boot", "--console=pipe", "-D", str(root)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            machine.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            end(machine, patience_s=30)  # nspawn hands SIGTERM on as an orderly shutdown
    return (root / "check.log").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=pathlib.Path, help="make the machine here, and leave it")
    arguments = parser.parse_args()
    why = missing()
    if why is not None:
        skipping.leave(why)
    with tempfile.TemporaryDirectory(prefix="deltawire-booted-") as scratch:
        folder = arguments.keep or pathlib.Path(scratch)
        folder.mkdir(exist_ok=True)
        root = folder / "root"
        make_root(root)
        if not boots(root):
            tail = "\n".join((folder / "boot.log").read_text().splitlines()[-10:])
            skipping.leave(f"systemd does not come up in a container here:\n{tail}")
        said = (root / "check.log").read_text()
        print("".join(f"  {line}\n" for line in said.splitlines() if line.startswith("ok ")), end="")
        if said.splitlines()[-1:] != ["the end"]:
            journal = root / "journal.log"
            sys.exit(said + (journal.read_text() if journal.exists() else ""))


if __name__ == "__main__":
    main()
