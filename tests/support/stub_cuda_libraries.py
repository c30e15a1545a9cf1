#!/usr/bin/env python3
"""Makes an installed torch load without the CUDA libraries that only a GPU would use.

The index's torch for x86-64 names cuBLAS, cuDNN, NCCL and others as needed libraries: some 4 GB
that the tests of the trainer's side, on CPU and Gloo, never call. For each that is not installed
this writes a library of the same name, with the symbols that torch asks for and nothing behind
them: a call traps. Needs `nm`, `readelf` and a C compiler. Only for a throw-away virtual
environment.

Usage: stub_cuda_libraries.py SITE_PACKAGES
"""
import collections
import pathlib
import re
import subprocess
import sys

FOREIGN = re.compile(r"^lib(cu|nv|nccl)")  # the libraries of CUDA, by their names
SYMBOL = re.compile(r"^(__)?(cu|nv|nccl)\w+$", re.IGNORECASE)  # and their symbols


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", str(library)))


def symbols(library, which):
    """(name, version) of the dynamic symbols; version is "" where there is none."""
    for line in run("nm", "-D", which, str(library)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def main(site):
    folder = site / "torch" / "lib"
    own = sorted(folder.glob("*.so*"))
    present = {path.name for path in site.glob("nvidia/**/*.so*")} | {path.name for path in own}
    foreign = {name for lib in own for name in needed(lib) if FOREIGN.match(name)}
    missing = sorted(foreign - present - {"libcuda.so.1"})
    if not missing:
        return
    defined = {
        name
        for lib in [*own, *site.glob("nvidia/**/*.so*")]
        for name, _ in symbols(lib, "--defined-only")
    }
    wanted = {
        (name, version)
        for lib in own
        for name, version in symbols(lib, "--undefined-only")
        if SYMBOL.match(name) and name not in defined
    }
    # A version is named after its library; what has none, or another name (NVSHMEM), is found in
    # whichever library defines it, but a version must be in the one that the reference names.
    by_version = collections.defaultdict(set)
    for name, version in wanted:
        by_version[version].add(name)
    nvshmem = next((lib for lib in missing if lib.startswith("libnvshmem")), missing[0])
    for lib in missing:
        versions = {lib: by_version.get(lib, set())}
        if lib == nvshmem:
            for version, names in by_version.items():
                if version not in missing:
                    versions[version] = names
        source = folder / f"{lib}.stub.c"
        script = folder / f"{lib}.stub.map"
        source.write_text(
            "".join(
                f"void {name}(void) {{ __builtin_trap(); }}\n"
                for names in versions.values()
                for name in sorted(names)
            )
        )
        # An anonymous version may not stand beside named ones: the unversioned go into the first.
        unversioned = versions.pop("", set())
        first = next(iter(versions))
        versions[first] = versions[first] | unversioned
        nodes = (
            (version, " ".join(f"{name};" for name in sorted(names)) or "*;")
            for version, names in versions.items()
        )
        script.write_text("".join(f"{node} {{ global: {names} }};\n" for node, names in nodes))
        run(
            "cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{lib}",
            f"-Wl,--version-script,{script}", "-o", str(folder / lib), str(source),
        )
        source.unlink()
        script.unlink()
    print(f"stand-ins for {len(missing)} libraries: {' '.join(missing)}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
