"""Installs into an empty prefix, builds a C program against the package, runs it with what is there.

    install_test.py BUILD CONSUMER CMAKE

The program publishes through the installed library to the installed sender; the installed receiver
follows, and its safetensors file is read back here, byte by byte. A second program directs both, as
an orchestrator. A third one is an engine: its memory follows the receiver through the engine's
installed library.
"""

import pathlib
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from daemons import Daemons  # noqa: E402


def run(*args, **more):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{args}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def follow(binary, root):
    """What the receiver held when the first program had published; the second one runs then."""
    with Daemons(root, binary) as daemons:
        control = daemons.start_sender(root / "s")
        run(root / "consumer" / "publish", root / "s")  # the data directory stands for the socket
        receiver = daemons.start_receiver([control], "m", root / "r")
        receiver.await_version(3)
        run(root / "consumer" / "direct", control, receiver.address)
        content = receiver.content()
        run(root / "consumer" / "engine", root / "s", receiver.directory)
        return content


def check_units(prefix):
    """Each starts a program that is where the prefix of the installation has put it."""
    units = sorted((prefix / "lib" / "systemd" / "system").glob("*.service"))
    assert len(units) == 4, units
    for unit in units:
        program = re.search(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE).group(1)
        assert pathlib.Path(program).parent == prefix / "bin", f"{unit.name} starts {program}"
        assert pathlib.Path(program).is_file(), f"{unit.name}: there is no {program}"


def main():
    build, consumer, cmake = sys.argv[1:]
    shm = pathlib.Path("/dev/shm")
    where = shm if shm.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="deltawire-install-", dir=where) as name:
        root = pathlib.Path(name)
        prefix = root / "prefix"
        run(cmake, "--install", build, "--prefix", prefix)
        for file in ("share/deltawire/examples/sender.toml", "include/deltawire/deltawire_export.h",
                     "include/deltawire/deltawire_engine.h",
                     "share/doc/deltawire/docs/schemas/status.json"):
            assert (prefix / file).is_file(), f"{file} was not installed"
        check_units(prefix)
        run(cmake, "-S", consumer, "-B", root / "consumer", f"-DCMAKE_PREFIX_PATH={prefix}")
        run(cmake, "--build", root / "consumer")
        tensors, side = follow(prefix / "bin", root), root / "r" / "config.json"
        want = struct.pack("<12f", *(1.5 + i for i in range(12)))
        assert tensors["matrix"][2] == want, "the matrix differs"
        assert tensors["scalar"][2] == struct.pack("<q", -5), "the scalar differs"
        assert side.read_text() == "{}", "the side file differs"
    print("OK")


main()
