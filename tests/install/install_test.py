"""Installs into an empty prefix, builds a C program against the package, runs it with what is there.

    install_test.py BUILD CONSUMER CMAKE

The program publishes through the installed library to the installed sender; the installed receiver
follows, and its safetensors file is read back here, byte by byte.
"""

import json
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 60


def run(*args, **more):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{args}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"waited {DEADLINE_S} s for {what}")
        time.sleep(0.005)  # between two looks; nothing announces it


_reserved = []


def free_port():
    """A port that the kernel gives to nobody else while this process lives."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # once bound: the daemon may listen
    _reserved.append(s)
    return s.getsockname()[1]


def read_safetensors(path):
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    header.pop("__metadata__", None)
    return {name: data[slice(*t["data_offsets"])] for name, t in header.items()}


def follow(binary, root):
    """Sender, C program, receiver; what the receiver holds in the end."""
    control = f"127.0.0.1:{free_port()}"
    sender = subprocess.Popen(
        [binary / "deltawire-sender", "--data-dir", root / "s", "--control-listen", control]
        + ["--bulk-listen", "127.0.0.1:0"]
    )
    receiver = None
    try:
        run(root / "consumer" / "publish", root / "s")  # the data directory stands for the socket
        receiver = subprocess.Popen(
            [binary / "deltawire-receiver", "--sender", control, "--model", f"m={root / 'r'}"]
            + ["--control-listen", "127.0.0.1:0"]
        )
        wait_for((root / "r" / "model.safetensors").exists, "the receiver's commit")
        return read_safetensors(root / "r" / "model.safetensors"), root / "r" / "config.json"
    finally:
        for child in (receiver, sender):
            if child is not None:
                child.terminate()
                child.wait()


def main():
    build, consumer, cmake = sys.argv[1:]
    shm = pathlib.Path("/dev/shm")
    where = shm if shm.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="deltawire-install-", dir=where) as name:
        root = pathlib.Path(name)
        prefix = root / "prefix"
        run(cmake, "--install", build, "--prefix", prefix)
        for file in ("etc/deltawire/sender.toml", "include/deltawire/deltawire_export.h"):
            assert (prefix / file).is_file(), f"{file} was not installed"
        run(cmake, "-S", consumer, "-B", root / "consumer", f"-DCMAKE_PREFIX_PATH={prefix}")
        run(cmake, "--build", root / "consumer")
        tensors, side = follow(prefix / "bin", root)
        want = struct.pack("<12f", *(1.5 + i for i in range(12)))
        assert tensors["matrix"] == want, "the matrix differs"
        assert tensors["scalar"] == struct.pack("<q", -5), "the scalar differs"
        assert side.read_text() == "{}", "the side file differs"
    print("OK")


main()
