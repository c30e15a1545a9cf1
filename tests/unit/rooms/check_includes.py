"""Checks every #include and every header's opening against the rooms table.

    check_includes.py ROOT     exit 1 and one line a violation
"""

import pathlib
import re
import sys

from rooms_table import ROOMS, SIMULATED, SYSTEM, THIRD_PARTY

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Programs in C (tests/install) are users of an installed library, and include its headers.
SOURCES = {".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp"}
MAX_OPENING_LINES = 5


def room_of(path: str) -> str | None:
    """The room with the longest prefix of `path`, or None."""
    parts = path.split("/")
    for n in range(len(parts) - 1, 0, -1):
        if (name := "/".join(parts[:n])) in ROOMS:
            return name
    return None


def third_party(header: str) -> str | None:
    # The longest prefix wins: spdlog/fmt/ is fmt, spdlog/ is spdlog.
    hits = [
        (len(p), name) for name, ps in THIRD_PARTY.items() for p in ps if header.startswith(p)
    ]
    return max(hits)[1] if hits else None


def system(header: str) -> bool:
    return "." not in header or header in SYSTEM or f"{header.split('/')[0]}/" in SYSTEM


def rooms_named(name: str) -> set[str]:
    """The rooms that a name in `rooms` stands for; see rooms_table.py."""
    if name in ROOMS:
        return {name}
    return {room for room in ROOMS if name == "" or room.startswith(name + "/")}


def allowed_inside(own: str, header: str) -> bool:
    there = room_of(header)
    return there == own or any(there in rooms_named(name) for name in ROOMS[own].rooms)


def check_include(path: str, bracket: str, header: str) -> str | None:
    """What is wrong with `path` including `header`, or None."""
    if (path, header) in SIMULATED:
        return None
    own = room_of(path)
    if own is None:
        return "lies in no room: add its folder to tests/unit/rooms/rooms_table.py"
    if room_of(header) is not None:
        if not allowed_inside(own, header):
            return f"room {own} may not include {header}"
        return None if bracket == '"' else f'write "{header}": <> is for other projects'
    outside = third_party(header)
    if outside is not None:
        if outside in ROOMS[own].outside:
            return None
        return f"room {own} may not include {outside} ({header})"
    if bracket == '"':
        return f'"{header}" is no path from the project root'
    if system(header):
        return None
    return f"<{header}> is neither in THIRD_PARTY nor in SYSTEM of tests/unit/rooms/rooms_table.py"


def check_header_opening(path: str, text: str) -> str | None:
    """A header opens with a short comment, then #pragma once.

    A Highway `-inl.h` is compiled once per instruction set on purpose: it has a guard that toggles.
    """
    lines = text.splitlines()
    comment = 0
    while comment < len(lines) and lines[comment].startswith("//"):
        comment += 1
    if comment == 0:
        return "opens without a comment that says what it is"
    if comment > MAX_OPENING_LINES:
        return f"opens with {comment} comment lines, at most {MAX_OPENING_LINES} are wanted"
    once = comment < len(lines) and lines[comment].strip() == "#pragma once"
    if not once and not ("HWY_TARGET_TOGGLE" in text and path.endswith("-inl.h")):
        return "has no #pragma once right after its opening comment"
    return None


def check_file(path: str, text: str) -> list[str]:
    found = []
    if path.endswith((".h", ".hpp", ".cuh")) and (wrong := check_header_opening(path, text)):
        found.append(f"{path}: {wrong}")
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            if wrong := check_include(path, *match.groups()):
                found.append(f"{path}:{number}: {wrong}")
    return found


def source_files(root: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        p
        for top in root.iterdir()
        if top.is_dir() and top.name != "build" and not top.name.startswith(".")
        for p in top.rglob("*")
        if p.suffix in SOURCES and p.is_file()
    )


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    files = source_files(root)
    found = []
    for file in files:
        found += check_file(file.relative_to(root).as_posix(), file.read_text("utf-8"))
    for line in found:
        print(line)
    print(f"{len(files)} files, {len(found)} violations")
    # A scan that sees nothing must not pass.
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
