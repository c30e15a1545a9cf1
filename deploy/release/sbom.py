"""What a release is made of, as SPDX 2.3 in JSON: each file, and what is linked or bundled in it.

    sbom.py FOLDER VERSION      in a Python with deploy/wheel/requirements.txt

Writes FOLDER/deltawire-VERSION.spdx.json about Debian's packages, the wheel and the tarball that
are there. Versions and licenses are those of the packages that this machine has installed, which
the release was built with. SOURCE_DATE_EPOCH dates it. spdx-tools must find nothing wrong with it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import urllib.parse
import zipfile

import licenses

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEBIAN_NAME = re.compile(r"^[a-z0-9][a-z0-9+.-]+")
OWN = re.compile(r"^(deltawire|libdeltawire|python3-deltawire)")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def identifier(kind: str, name: str) -> str:
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name.replace("+", "plus"))


def installed(package: str) -> tuple[str, str] | None:
    """(version, architecture) of a package that is installed here."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version} ${Architecture}\n", package],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = [line.split() for line in done.stdout.splitlines()]
    return next(((row[1], row[2]) for row in rows if row[0] == "installed"), None)


def needs_of_package(path: pathlib.Path) -> set[str]:
    """The Debian packages that one of ours depends on, without our own."""
    said = output("dpkg-deb", "--field", str(path), "Depends")
    names = {m.group(0) for part in re.split(r"[,|]", said) if (m := DEBIAN_NAME.match(part.strip()))}
    return {name for name in names if not OWN.match(name)}


def bundled_in_wheel(path: pathlib.Path) -> set[str]:
    with zipfile.ZipFile(path) as wheel:
        listed = next(n for n in wheel.namelist() if n.endswith("/sboms/auditwheel.cdx.json"))
        parts = json.loads(wheel.read(listed))["components"]
    return {part["name"] for part in parts if part["purl"].startswith("pkg:deb/")}


def bundled_in_tarball(path: pathlib.Path) -> set[str]:
    with tarfile.open(path) as tar:
        names = [pathlib.PurePath(n).name for n in tar.getnames() if n.startswith("deltawire/lib/")]
    found = set()
    for name in names:
        said = subprocess.run(["dpkg-query", "-S", f"*/{name}"], capture_output=True, text=True, check=False)
        owners = {owner.split(":")[0] for owner in said.stdout.splitlines()}
        if not owners:
            sys.exit(f"sbom: no package here has {name}, which {path.name} brings")
        found |= owners
    return found


def compiled_in() -> set[str]:
    """What leaves its headers in the programs: the development packages that a build asks for."""
    sections = (ROOT / "deploy" / "apt-packages.txt").read_text().split("\n\n")
    others = ("# Tests", "# Packages")  # which no program is compiled with
    rows = [row for s in sections if not s.startswith(others) for row in s.splitlines()]
    return {row.strip() for row in rows if re.fullmatch(r"[\w.+-]+-dev", row.strip())}


class Document:
    def __init__(self, version: str):
        self.version = version
        self.packages: dict[str, dict] = {}
        self.relations: set[tuple[str, str, str]] = set()
        self.root = self._add("product", "deltawire", version, "Apache-2.0", "NOASSERTION")

    def _add(self, kind: str, name: str, version: str, declared: str, supplier: str, **more) -> str:
        key = identifier(kind, name)
        self.packages[key] = {
            "SPDXID": key, "name": name, "versionInfo": version, "supplier": supplier,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "copyrightText": "NOASSERTION",
            "licenseConcluded": "NOASSERTION", "licenseDeclared": declared, **more,
        }  # fmt: skip
        return key

    def artifact(self, path: pathlib.Path) -> str:
        checksum = {"algorithm": "SHA256", "checksumValue": digest(path)}
        key = self._add("file", path.name, self.version, "Apache-2.0", "NOASSERTION",
                        packageFileName=path.name, checksums=[checksum])  # fmt: skip
        self.relations.add((self.root, "DISTRIBUTION_ARTIFACT", key))
        return key

    def debian(self, package: str) -> str | None:
        """A package of Debian, if it is installed here."""
        known = installed(package)
        if known is None:
            return None
        version, architecture = known
        found = licenses.of_package(package)
        locator = (f"pkg:deb/debian/{urllib.parse.quote(package)}@{urllib.parse.quote(version)}"
                   f"?arch={architecture}")  # fmt: skip
        more = {"licenseComments": found.why} if found.why else {}
        return self._add("debian", package, version, found.declared, "Organization: Debian", externalRefs=[
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
        ], **more)  # fmt: skip

    def cuda(self, version: str) -> str:
        """NVIDIA's runtime, which is linked statically."""
        return self._add("nvidia", "cuda-cudart-static", version, "NOASSERTION", "Organization: NVIDIA",
                         licenseComments="the CUDA Toolkit End User License Agreement")  # fmt: skip

    def relate(self, key: str, relation: str, packages: set[str]) -> None:
        for package in packages:
            other = self.debian(package)
            if other is not None:
                self.relations.add((key, relation, other))

    def as_json(self) -> str:
        relations = {("SPDXRef-DOCUMENT", "DESCRIBES", self.root), *self.relations}
        body = json.dumps([self.packages, sorted(relations)], sort_keys=True)
        made = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
        unique = hashlib.sha256(body.encode()).hexdigest()
        return json.dumps({
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"deltawire-{self.version}",
            "documentNamespace": f"https://deltawire.example/spdx/{self.version}/{unique}",
            "creationInfo": {"created": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
                             "creators": ["Tool: deltawire-release"]},
            "packages": [self.packages[key] for key in sorted(self.packages)],
            "relationships": [
                {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                for a, kind, b in sorted(relations)
            ],
        }, indent=1) + "\n"  # fmt: skip


def problems(path: pathlib.Path) -> list[str]:
    """What spdx-tools has against a document."""
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    return [m.validation_message for m in validate_full_spdx_document(parse_file(str(path)), "SPDX-2.3")]


def cuda_of(path: pathlib.Path) -> str | None:
    """The version of the CUDA runtime in an artifact's programs, as its build noted it."""
    if path.name.endswith(".deb") and not re.match("deltawire-sender|lib", path.name):
        return None
    build = ROOT / "build" / ("wheel" if path.suffix == ".whl" else "package") / "CMakeCache.txt"
    said = build.read_text() if build.exists() else ""
    note = re.search(r"^DELTAWIRE_CUDA_NOTE:INTERNAL=nvcc ([0-9.]+)", said, re.M)
    return note.group(1) if note else None


def make(folder: pathlib.Path, version: str) -> pathlib.Path:
    document = Document(version)
    made = [p for p in sorted(folder.iterdir()) if p.suffix in (".deb", ".whl", ".gz")]
    if not made:
        sys.exit(f"sbom: {folder} has no package, wheel or tarball")
    document.relate(document.root, "DEPENDS_ON", compiled_in())
    for path in made:
        key = document.artifact(path)
        version_of_cuda = cuda_of(path)
        if version_of_cuda:
            document.relations.add((key, "STATIC_LINK", document.cuda(version_of_cuda)))
        if path.suffix == ".deb":
            document.relate(key, "DEPENDS_ON", needs_of_package(path))
        elif path.suffix == ".whl":
            document.relate(key, "CONTAINS", bundled_in_wheel(path))
        else:
            document.relate(key, "CONTAINS", bundled_in_tarball(path))
    target = folder / f"deltawire-{version}.spdx.json"
    target.write_text(document.as_json())
    wrong = problems(target)
    if wrong:
        sys.exit(f"sbom: {target} is not SPDX 2.3:\n" + "\n".join(wrong[:20]))
    unsaid = sum(p["licenseDeclared"] == "NOASSERTION" for p in document.packages.values())
    print(f"{target.name}: {len(document.packages)} packages, {unsaid} without a declared license, "
          f"{len(document.relations)} relations; spdx-tools finds nothing wrong")  # fmt: skip
    return target


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[1]), sys.argv[2])
