"""Makes a wheel of a build tree's Python package and programs, with every library that they need.

    make.py BUILD_DIR OUT_DIR      in a Python with requirements.txt; SOURCE_DATE_EPOCH dates it

Debian's static libraries are compiled for programs and do not go into a shared one, so the wheel
brings shared libraries: auditwheel copies them in and proves that nothing else is needed but what
its tag promises. `hide_symbols.py` then renames what they define, so that they never meet another
gRPC, protobuf or Gloo of the process (torch has a Gloo of its own).

The programs lie in `deltawire/bin`, where auditwheel leads them to the same libraries. Their scripts
on PATH are program.py under three names.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

import hide_symbols

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXTENSION = re.compile(r"_core\.cpython-(\d+)-(\w+)-linux-gnu\.so$")
PROGRAMS = ("deltawire", "deltawire-sender", "deltawire-receiver")
LIBRARIES = "deltawire.libs"  # auditwheel's name of the folder


def die(why: str) -> None:
    sys.exit(f"wheel: {why}")


def tool(name: str) -> str:
    """A program of this Python's environment."""
    path = pathlib.Path(sys.executable).parent / name
    if not path.exists():
        die(f"no {name} beside {sys.executable}: install deploy/wheel/requirements.txt there")
    return str(path)


def run(*command: object, **environment: str) -> str:
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": path, **environment})  # fmt: skip
    if done.returncode != 0:
        die(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(build: pathlib.Path, prefix: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Installs package, libraries and programs; returns where the package and the libraries are."""
    for component in ("python", "export", "engine", "cli", "sender", "receiver"):
        run("cmake", "--install", build, "--prefix", prefix, "--component", component, "--strip")
    packages = list(prefix.rglob("deltawire/__init__.py"))
    if len(packages) != 1:
        die(f"{build} has no Python package: it wants pybind11-dev and Python's headers when configured")
    library = next(prefix.rglob("libdeltawire_export.so.*"))
    return packages[0].parents[1], library.parent


def add_programs(prefix: pathlib.Path, site: pathlib.Path) -> None:
    """The programs, and a script for each, which pip puts on PATH."""
    info = next(site.glob("deltawire-*.dist-info"))
    scripts = site / f"{info.stem}.data" / "scripts"
    scripts.mkdir(parents=True)
    (site / "deltawire" / "bin").mkdir()
    for name in PROGRAMS:
        shutil.copy(prefix / "bin" / name, site / "deltawire" / "bin")
        shutil.copyfile(pathlib.Path(__file__).with_name("program.py"), scripts / name)
        (scripts / name).chmod(0o755)  # pip makes only such scripts executable


def describe(site: pathlib.Path) -> pathlib.Path:
    """Completes the package's dist-info to a wheel's; returns it."""
    info = next(site.glob("deltawire-*.dist-info"))
    names = [EXTENSION.search(p.name) for p in site.rglob("_core*.so")]
    tags = {f"cp{m[1]}-cp{m[1]}-linux_{m[2]}" for m in names if m}
    if len(names) != 2 or len(tags) != 1:
        die(f"the extensions below {site} are not two of one CPython")
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: deltawire\nRoot-Is-Purelib: false\nTag: {tags.pop()}\n"
    )
    licenses = info / "licenses"
    licenses.mkdir()
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, licenses)
    return info


def packages_of(info: pathlib.Path) -> dict[str, str]:
    """Debian's packages that the bundled libraries came from, and their versions, as auditwheel
    wrote them down."""
    listed = json.loads((info / "sboms" / "auditwheel.cdx.json").read_text())
    debian = [c for c in listed["components"] if c["purl"].startswith("pkg:deb/")]
    return {c["name"]: urllib.parse.unquote(c["version"]) for c in debian}


def add_licenses(site: pathlib.Path) -> None:
    """Every bundled library's license, by its Debian package."""
    info = next(site.glob("deltawire-*.dist-info"))
    packages = packages_of(info)
    if not packages:
        die("auditwheel names no package for what it bundles: the wheel is made on Debian")
    for package in packages:
        copyright_file = pathlib.Path("/usr/share/doc", package, "copyright")
        if not copyright_file.is_file():
            die(f"{copyright_file}, the license of a bundled library, is not there")
        shutil.copyfile(copyright_file, info / "licenses" / f"{package}.copyright")


def repair(site: pathlib.Path, libraries: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    """Bundles the libraries; returns the unpacked wheel, whose tag says what it still needs."""
    (work / "plain").mkdir()
    run(tool("wheel"), "pack", "-d", work / "plain", site)
    (plain,) = (work / "plain").iterdir()
    run(tool("auditwheel"), "repair", "--plat", "auto", "--only-plat", "-z", 1, "-w", work / "bundled", plain,
        LD_LIBRARY_PATH=str(libraries))  # fmt: skip
    (bundled,) = (work / "bundled").iterdir()
    run(tool("wheel"), "unpack", "-d", work / "unpacked", bundled)
    (unpacked,) = (work / "unpacked").iterdir()
    return unpacked


def epoch() -> str:
    """The time of the files in the wheel: when the commit was made, or, outside of git, now."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    commit = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True,
                            text=True, check=False)  # fmt: skip
    return commit.stdout.strip() or str(int(time.time()))


def make(build: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    os.environ["SOURCE_DATE_EPOCH"] = epoch()
    with tempfile.TemporaryDirectory(prefix="deltawire-wheel-") as name:
        work = pathlib.Path(name)
        installed, libraries = install(build, work / "prefix")
        site = work / "site"
        site.mkdir()
        for part in ("deltawire", next(installed.glob("deltawire-*.dist-info")).name):
            shutil.copytree(installed / part, site / part)
        add_programs(work / "prefix", site)
        describe(site)
        unpacked = repair(site, libraries, work)
        renamed = hide_symbols.hide(unpacked, tool("patchelf"))
        add_licenses(unpacked)
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("deltawire-*.whl"):
            old.unlink()
        run(tool("wheel"), "pack", "-d", out, unpacked)
        (wheel,) = out.glob("*.whl")
        size = sum(p.stat().st_size for p in unpacked.rglob("*") if p.is_file())
        count = len(list((unpacked / LIBRARIES).iterdir()))
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB ({size / 1e6:.1f} MB installed), "
          f"{count} libraries, {renamed} symbols renamed")  # fmt: skip
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve())
