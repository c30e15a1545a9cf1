"""docs/howto/services.md as its reader does it: each node is a machine that systemd-nspawn boots.

As root. Both machines begin as Debian's minimal root with systemd and without deltawire, joined by a
cable of their own and by nothing else. The packages that the guide installs are made of the build's
programs (stand_in_packages.py), once as the first version and once as the next; the libraries that
they want were fetched beforehand. guide_inside.sh is the terminal on a machine: a block of the guide
that is marked `booted` is run there as it stands, and must end and say as its mark demands.

    guide_test.py [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support"), str(HERE.parents[1] / "docs")]

import booted_test  # noqa: E402
import skipping  # noqa: E402
import stand_in_packages  # noqa: E402
from commands_test import BOOTED, Block, Document, parse  # noqa: E402
from daemons import end, programs, run, spawn, until  # noqa: E402

UNSHARE = ["unshare", "--mount", "--net"]
# What the namespaces and the cable take; in most containers it is refused.
PROBE = """
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip netns add probe
ip link add dw0 netns probe type veth peer name dw1
"""
BOOT_LIMIT_S = 60
BLOCK_LIMIT_S = 120


class Node:
    """A machine that boots, with a shell that keeps its directory and variables between blocks."""

    def __init__(self, name: str, root: pathlib.Path, shared: pathlib.Path, scratch: pathlib.Path):
        self.name = name
        self._desk = scratch / f"desk-{name}"  # the shell's orders, and what came of them
        self._desk.mkdir()
        self._count = 0
        self._log = scratch / f"boot-{name}.log"
        with self._log.open("w") as out:
            self._machine = spawn(
                ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit",
                 f"--network-namespace-path=/run/netns/{name}",
                 f"--bind={shared}:/shared", f"--bind={self._desk}:/desk",
                 "--boot", "--console=pipe", "-D", str(root)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_for_boot(self) -> None:
        until(lambda: (self._desk / "up").exists() or self._machine.poll() is not None,
              f"{self.name} has booted", BOOT_LIMIT_S)  # fmt: skip
        if not (self._desk / "up").exists():
            tail = "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-10:])
            raise RuntimeError(f"{self.name} did not come up:\n{tail}")

    def run(self, block: Block) -> None:
        """REQUIRES: wait_for_boot() has returned."""
        self._count += 1
        at = self._desk / str(self._count)
        wanted = block.options.get("status", "0").split("|")
        loose = wanted != ["0"]
        new = at.with_suffix(".new")
        new.write_text(("set +e\n" if loose else "") + block.text + "\n", "utf-8")
        new.rename(at.with_suffix(".sh"))
        done = at.with_suffix(".status")
        until(lambda: done.exists() or self._machine.poll() is not None, "the block ended",
              BLOCK_LIMIT_S)  # fmt: skip
        output = at.with_suffix(".log")
        said = output.read_text("utf-8", "replace") if output.exists() else ""
        status = done.read_text().strip() if done.exists() else "the machine's end"
        assert status in wanted, f"it ended with {status}:\n{said}"
        pattern = block.options.get("says")
        assert pattern is None or re.search(pattern, said), f'it does not say "{pattern}":\n{said}'

    def off(self) -> None:
        (self._desk / "off").touch()
        try:
            self._machine.wait(30)
        except subprocess.TimeoutExpired:
            end(self._machine, patience_s=10)

    def journal(self) -> str:
        path = self._desk / "journal"
        return path.read_text("utf-8", "replace") if path.exists() else ""


def missing() -> str | None:
    if shutil.which("ip") is None:
        return "no ip on this machine"
    why = booted_test.missing()
    if why is not None:
        return why
    probe = subprocess.run(
        [*UNSHARE, "sh", "-ec", PROBE], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        return f"no namespaces of our own here: {probe.stderr.strip()}"
    return None


def make_checkpoints(folder: pathlib.Path) -> None:
    """The guide's step-1 and step-2, of one tensor."""
    head = json.dumps({"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode()
    for step in (1, 2):
        at = folder / f"step-{step}"
        at.mkdir(parents=True)
        weights = struct.pack("<Q", len(head)) + head + bytes([step] * 36)
        (at / "model.safetensors").write_bytes(weights)
        (at / "config.json").write_text("{}")


def make_root(root: pathlib.Path, shared: pathlib.Path) -> None:
    """Of either machine: with the packages' dependencies in apt's cache, since no machine of the two
    reaches a mirror."""
    booted_test.debian(root)
    for name, version in (("debs", "0.0.0+test"), ("newer", "0.0.1+test")):
        (shared / name).mkdir(parents=True)
        stand_in_packages.make(programs(), shared / name, version)
    make_checkpoints(shared / "checkpoints")
    for daemon in stand_in_packages.DAEMONS:
        run("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe",
            f"--bind-ro={shared}:/shared", "-D", root, "sh", "-ec",
            f"apt-get -y --download-only install /shared/debs/deltawire-{daemon}_*.deb"
            " /shared/debs/deltawire-cli_*.deb")  # fmt: skip
    booted_test.start_at_boot(root, HERE.parent / "guide_inside.sh", "/bin/bash")


def lay_cable(nodes: dict[str, str]) -> None:
    """In namespaces of our own, which end with this process."""
    os.makedirs("/run/netns", exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    for name in nodes:
        run("ip", "netns", "add", name)
    first, second = nodes
    run("ip", "link", "add", "dw0", "netns", first, "type", "veth", "peer", "name", "dw0",
        "netns", second)  # fmt: skip
    for name, address in nodes.items():
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "dw0")
        run("ip", "-n", name, "link", "set", "dw0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")


def read(name: str, document: Document, nodes: dict[str, Node]) -> None:
    ran = 0
    for block in document.blocks:
        if block.kind == "skip":
            print(f"  not run: line {block.line}: {block.why}", flush=True)
            continue
        try:
            nodes[block.options["on"]].run(block)
        except AssertionError as error:
            raise AssertionError(f"{name}, line {block.line}: {block.text}\n{error}") from None
        if block.kind == "booted":
            ran += 1
            print(f"  ok line {block.line}, on {block.options['on']}", flush=True)
    assert ran > 0, f"{name} has no block for a machine that boots"
    print(f"{name}: {ran} blocks run", flush=True)


def read_guide(path: str, scratch: pathlib.Path) -> None:
    """REQUIRES: make_root() has made root and shared in `scratch`, and the network is our own."""
    document = parse((ROOT / path).read_text("utf-8"))
    lay_cable(document.nodes)
    nodes = {}
    for name in document.nodes:
        root = scratch / f"root-{name}"
        run("cp", "-a", "--reflink=auto", scratch / "root", root)
        (root / "etc/hostname").write_text(f"{name}\n")
        nodes[name] = Node(name, root, scratch / "shared", scratch)
    try:
        try:
            for node in nodes.values():
                node.wait_for_boot()
        except (AssertionError, RuntimeError) as error:
            skipping.leave(f"systemd does not come up in a container here: {error}")
        read(path, document, nodes)
    except AssertionError as error:
        for node in nodes.values():
            node.off()
        logs = "".join(f"--- the journal of {n.name}\n{n.journal()}" for n in nodes.values())
        sys.exit(f"{error}\n{logs}")
    finally:
        for node in nodes.values():
            node.off()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=pathlib.Path, help="make the machines here, and leave them")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside is not None:
        (path,) = BOOTED
        read_guide(path, arguments.inside)
        return
    why = missing()
    if why is not None:
        skipping.leave(why)
    with tempfile.TemporaryDirectory(prefix="deltawire-guide-") as scratch:
        folder = (arguments.keep or pathlib.Path(scratch)).resolve()
        folder.mkdir(exist_ok=True)
        make_root(folder / "root", folder / "shared")  # with this machine's network
        child = spawn([*UNSHARE, sys.executable, "-B", str(HERE), "--inside", str(folder)])
        sys.exit(child.wait())


if __name__ == "__main__":
    main()
