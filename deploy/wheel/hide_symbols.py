"""Renames the symbols of a wheel's libraries, in these libraries and in all that use them.

The loader gives a name to whoever defined it first in the process's global scope, and a symbol that
is "unique" (a static of an inline function) to whoever defined it first anywhere: a gRPC, protobuf
or Gloo of other code would then run in the place of ours, with another layout of its classes. The wheel's programs use the same libraries, so they get the same names.
"""

from __future__ import annotations

import pathlib
import subprocess
import tempfile

PREFIX = "deltawire_"
# What the tag of a wheel lets every process have; a weak copy of such a symbol keeps its name, since
# others are bound to the system's by name and version.
SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libz.so.1")


def defined(library: str | pathlib.Path) -> set[str]:
    said = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", str(library)],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    rows = (line.split() for line in said.splitlines())
    # An absolute symbol is the name of a version, not of something in memory.
    return {row[0].split("@")[0] for row in rows if row[1] != "A"}


def system_library(name: str) -> str:
    said = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def hide(wheel: pathlib.Path, patchelf: str) -> int:
    """Renames in the unpacked `wheel`; returns how many symbols there were."""
    files = sorted(wheel.glob("*.libs/*")) + sorted(wheel.glob("deltawire/**/*.so"))
    files += sorted(wheel.glob("deltawire/bin/*"))
    # Python itself looks for the one that an extension begins with.
    ours = {s for s in set().union(*map(defined, files)) if not s.startswith("PyInit_")}
    ours -= set().union(*(defined(system_library(name)) for name in SYSTEM))
    with tempfile.NamedTemporaryFile("w", prefix="deltawire-symbols-") as names:
        names.writelines(f"{symbol} {PREFIX}{symbol}\n" for symbol in sorted(ours))
        names.flush()
        subprocess.run([patchelf, "--rename-dynamic-symbols", names.name, *map(str, files)], check=True)
    return len(ours)
