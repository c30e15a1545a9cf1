"""Packages of a build tree's own programs, where `./run package` was not run.

They have the names, scripts, units and dependencies of the real ones (deploy/debian,
cmake/DeltawirePackages.cmake), and no manual pages or copyright files. For tests only.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1] / "support"))

from daemons import run  # noqa: E402

DAEMONS = ("sender", "receiver")


def libraries(program: pathlib.Path, scratch: pathlib.Path) -> str:
    """The packages that `program` links to, with their versions, as dpkg-shlibdeps finds them."""
    (scratch / "debian").mkdir(exist_ok=True)
    (scratch / "debian" / "control").write_text(
        "Source: deltawire\n\nPackage: deltawire\nArchitecture: any\n"
    )
    return re.search(
        r"shlibs:Depends=(.*)", run("dpkg-shlibdeps", "-O", f"-e{program}", cwd=scratch)
    ).group(1)


def daemon_files(daemon: str, stage: pathlib.Path) -> None:
    units = ROOT / "deploy" / "systemd"
    for source, target in (
        (units / "deltawire.sysusers.conf", f"lib/sysusers.d/deltawire-{daemon}.conf"),
        (units / "deltawire.tmpfiles.conf", f"lib/tmpfiles.d/deltawire-{daemon}.conf"),
        (units / f"deltawire-{daemon}.service", f"lib/systemd/system/deltawire-{daemon}.service"),
        (units / f"deltawire-{daemon}@.service", f"lib/systemd/system/deltawire-{daemon}@.service"),
        (units / "data-dir.conf.example",
         f"share/deltawire/examples/{daemon}-data-dir.conf.example"),
        (ROOT / "configs" / f"{daemon}.toml", f"share/deltawire/examples/{daemon}.toml"),
    ):  # fmt: skip
        path = stage / "usr" / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)
    for script in ("postinst", "prerm", "postrm"):
        text = (ROOT / "deploy" / "debian" / f"{script}.daemon.in").read_text()
        path = stage / "DEBIAN" / script
        path.write_text(text.replace("@daemon@", daemon))
        path.chmod(0o755)


def make(
    programs: pathlib.Path, folder: pathlib.Path, version: str = "0.0.0+test"
) -> list[pathlib.Path]:
    """Packages of the daemons and the command line that are in `programs`, in `folder`."""
    made = []
    for name in ("deltawire-sender", "deltawire-receiver", "deltawire-cli"):
        with tempfile.TemporaryDirectory() as scratch:
            stage = pathlib.Path(scratch, "stage")
            (stage / "DEBIAN").mkdir(parents=True)
            (stage / "usr" / "bin").mkdir(parents=True)
            daemon = name.removeprefix("deltawire-")
            program = stage / "usr" / "bin" / (name if daemon in DAEMONS else "deltawire")
            run("strip", "--strip-unneeded", "-o", program, programs / program.name)
            program.chmod(0o755)
            depends = libraries(program, pathlib.Path(scratch))
            if daemon in DAEMONS:
                daemon_files(daemon, stage)
                depends += ", systemd | systemd-standalone-sysusers"
            architecture = run("dpkg", "--print-architecture").strip()
            (stage / "DEBIAN" / "control").write_text(
                f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n"
                f"Maintainer: Nobody <nobody@deltawire.example>\nDepends: {depends}\n"
                f"Description: {name}, of a test\n"
            )
            path = folder / f"{name}_{version}_{architecture}.deb"
            run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", stage, path)
            made.append(path)
    return made
