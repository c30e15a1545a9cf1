"""A receiver writes chains of versions to a disk, and a reader that shares nothing with it pulls them.

The reader follows what engines do that take such chains (docs/disk_delta.md): it finds the newest
whole version, patches its own checkpoint in place, and compares each tensor's checksum.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import struct
import subprocess
import unittest

import support
from daemons import programs, read_safetensors

np = support.need("numpy")
xxhash = support.need("xxhash")
zstandard = support.need("zstandard")
deltawire = support.need("deltawire")

MODEL = "policy"


def version_dir(run: pathlib.Path, version: int) -> pathlib.Path:
    return run / f"weight_v{version:06d}"


def index_of(directory: pathlib.Path) -> dict:
    if not directory.is_dir():
        raise FileNotFoundError(directory)
    path = directory / "model.safetensors.index.json"
    return json.loads(path.read_text()) if path.exists() else {}


def is_delta(directory: pathlib.Path) -> bool:
    return "delta_encoding" in index_of(directory).get("metadata", {})


class Puller:
    """A host's own checkpoint, brought forwards by what lies in a run's directory."""

    def __init__(self, checkpoint: pathlib.Path):
        self.checkpoint = checkpoint
        self.version = None
        self.patched = 0

    def pull(self, run: pathlib.Path, target: int) -> None:
        start = target
        while start > (self.version or 0) and is_delta(version_dir(run, start)):
            start -= 1
        if self.version is None or start > self.version:
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            shutil.copytree(version_dir(run, start), self.checkpoint)
            self.version = start
        for version in range(self.version + 1, target + 1):
            self._patch(version_dir(run, version))
            self.version = version

    def _patch(self, directory: pathlib.Path) -> None:
        meta = index_of(directory)["metadata"]
        assert int(meta["base_version"]) == self.version, meta
        assert meta["compression_format"] == "zstd" and meta["checksum_format"] == "xxh3-128", meta
        path = self.checkpoint / "model.safetensors"
        content = bytearray(path.read_bytes())
        (length,) = struct.unpack_from("<Q", content)
        places = json.loads(content[8 : 8 + length])
        for file in sorted(directory.glob("*.safetensors")):
            delta = file.read_bytes()
            (delta_length,) = struct.unpack_from("<Q", delta)
            header = json.loads(delta[8 : 8 + delta_length])
            checksums = header.pop("__metadata__", {})
            for name, entry in header.items():
                begin, end = (8 + delta_length + at for at in entry["data_offsets"])
                assert entry["dtype"] == "U8" and entry["shape"] == [end - begin], entry
                first, last = (8 + length + at for at in places[name]["data_offsets"])
                region = np.frombuffer(content, np.uint8)[first:last]
                plain = zstandard.ZstdDecompressor().decompress(delta[begin:end])
                plain = np.frombuffer(plain, np.uint8)
                if meta["delta_encoding"] == "xor":
                    region ^= plain
                else:
                    count = int.from_bytes(plain[:4].tobytes(), "little")
                    positions = np.frombuffer(plain[4 : 4 + 4 * count].tobytes(), "<u4")
                    region[positions] = plain[4 + 4 * count :]
                assert xxhash.xxh3_128(region.tobytes()).hexdigest() == checksums[name], name
                self.patched += 1
        path.write_bytes(content)


class DiskDeltaTest(unittest.TestCase):
    def follow(self, encoding: str, versions: int, keep: int) -> None:
        with support.Cluster() as cluster:
            out = cluster.root / "out"
            receiver = cluster.follow(
                MODEL, "--engine", f"disk-delta={out} {encoding} keep={keep}"
            )
            manager = deltawire.WeightManager(cluster.endpoint, model=MODEL)
            tensors = {f"t{i}": np.full(20_000 + 7 * i, 7, np.uint16) for i in range(8)}
            rng = np.random.default_rng(5)
            puller = Puller(cluster.root / "local")
            for version in range(1, versions + 1):
                for tensor in list(tensors.values())[version % 3 :: 3]:
                    at = rng.integers(0, tensor.size, 200)
                    tensor[at] = rng.integers(0, 1 << 16, 200)
                manager.offload(tensors, version).wait()
                receiver.await_version(version)
                if version % 3:
                    continue  # the puller skips versions, as a busy engine does
                self.await_served(cluster, receiver, version)
                run, name = (out / "latest").read_text().strip().split("/")
                puller.pull(out / run, int(name.removeprefix("weight_v")))
                got = read_safetensors(puller.checkpoint / "model.safetensors")
                for tensor, value in tensors.items():
                    self.assertEqual(got[tensor][2], value.tobytes(), (version, tensor))
                self.assertLessEqual(len(list((out / run).iterdir())), 2 * (keep + 1))
            self.assertGreater(puller.patched, 0)

    def await_served(self, cluster, receiver, version: int) -> None:
        subprocess.run(
            [str(programs() / "deltawire"), "wait", "--served", "--version", str(version),
             "--receiver", receiver.address, "--model", MODEL, "--timeout", "60"],
            check=True, capture_output=True,
        )  # fmt: skip

    def test_xor(self):
        self.follow("xor", 12, 64)

    def test_overwrite_with_few_versions_kept(self):
        self.follow("overwrite", 24, 4)


if __name__ == "__main__":
    unittest.main()
