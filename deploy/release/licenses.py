"""The licenses of an installed Debian package, as SPDX names them, from its machine-readable copyright
file. Names that SPDX does not have are not guessed."""

from __future__ import annotations

import dataclasses
import pathlib
import re

DOCUMENTS = pathlib.Path("/usr/share/doc")
# Debian's short names, in lower case, that are another word for an SPDX identifier.
KNOWN = {
    "0bsd": "0BSD",
    "apache-2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsl-1.0": "BSL-1.0",
    "cc0-1.0": "CC0-1.0",
    "cc0": "CC0-1.0",
    "expat": "MIT",
    "gpl-1": "GPL-1.0-only",
    "gpl-1+": "GPL-1.0-or-later",
    "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later",
    "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later",
    "isc": "ISC",
    "lgpl-2": "LGPL-2.0-only",
    "lgpl-2+": "LGPL-2.0-or-later",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3": "LGPL-3.0-only",
    "lgpl-3+": "LGPL-3.0-or-later",
    "mit": "MIT",
    "zlib": "Zlib",
}


@dataclasses.dataclass(frozen=True)
class Licenses:
    declared: str  # an SPDX expression, or NOASSERTION
    why: str = ""  # what the file says, where that is not an expression


def of_text(text: str) -> Licenses:
    if not re.match(r"\s*Format:\s*\S*copyright-format", text, re.IGNORECASE):
        return Licenses("NOASSERTION", "its copyright file is not machine-readable")
    named = set()
    for paragraph in re.split(r"\n\s*\n", text):
        # The packaging's own license is not what the library is under.
        files = re.search(r"^Files:\s*(.*)", paragraph, re.MULTILINE)
        if not files or files.group(1).strip() == "debian/*":
            continue
        found = re.search(r"^License:[ \t]*(.+)", paragraph, re.MULTILINE)
        named.add(found.group(1).strip() if found else "")
    expressions = set()
    for part in (part for name in named for part in re.split(r"\s+and\s+", name)):
        alternatives = {KNOWN.get(word.lower().rstrip(",")) for word in re.split(r"\s+or\s+", part)}
        if None in alternatives:
            return Licenses("NOASSERTION", f"Debian names: {'; '.join(sorted(named))}")
        joined = " OR ".join(sorted(alternatives))
        expressions.add(f"({joined})" if len(alternatives) > 1 else joined)
    if not expressions:
        return Licenses("NOASSERTION", "its copyright file names no license")
    return Licenses(" AND ".join(sorted(expressions)))


def of_package(package: str) -> Licenses:
    path = DOCUMENTS / package / "copyright"
    if not path.is_file():
        return Licenses("NOASSERTION", "it has no copyright file here")
    return of_text(path.read_text(errors="replace"))
