"""Readers that are not ours, started and killed at random, while versions are published.

    stock_reader_test.py [PUBLISHES]

No reader may see two versions in one file or die of a truncated one. With two buffers none may find
the file missing once it was there.
"""

from __future__ import annotations

import pathlib
import random
import signal
import subprocess
import sys
import time

import support

np = support.need("numpy")
support.need("safetensors")
deltawire = support.need("deltawire")

from stock_reader import STRIDE  # noqa: E402

MODEL = "policy"
READERS = 2
PUBLISHES = int(sys.argv[1]) if len(sys.argv) > 1 else 200
SEED = 11


class Readers:
    """Keeps READERS readers running, and kills each of them after up to two seconds."""

    def __init__(self, directory: pathlib.Path, log: pathlib.Path, seed: int):
        self._directory, self._log = directory, log
        self._random = random.Random(seed)
        self._running: list[tuple[subprocess.Popen, float]] = []
        self.started = 0

    def turn(self) -> None:
        now = time.monotonic()
        for child, end in self._running:
            if now < end:
                assert child.poll() is None, f"a reader ended with {child.returncode}"
        for child, end in [r for r in self._running if now >= r[1]]:
            self._end(child)
        self._running = [r for r in self._running if r[1] > now]
        while len(self._running) < READERS:
            self.started += 1
            with open(self._log, "a") as log:
                command = [sys.executable, str(pathlib.Path(__file__).with_name("stock_reader.py"))]
                command += [str(self._directory), str(SEED + self.started)]
                child = support.spawn(command, stdout=log)
            self._running.append((child, now + 0.5 + 1.5 * self._random.random()))

    def _end(self, child: subprocess.Popen) -> None:
        assert child.poll() is None, f"a reader ended with {child.returncode}"
        child.send_signal(self._random.choice([signal.SIGKILL, signal.SIGTERM]))
        child.wait()

    def stop(self) -> list[str]:
        for child, _ in self._running:
            self._end(child)
        # A reader writes each line with one call, so a killed one leaves no part of a line.
        return self._log.read_text().splitlines()


def run(buffers: int) -> None:
    print(f"buffers {buffers}, seed {SEED}", flush=True)
    with support.Cluster() as cluster:
        receiver = cluster.follow(MODEL, "--buffers", str(buffers))
        manager = deltawire.WeightManager(cluster.endpoint, model=MODEL)
        tensors = {f"t{i}": np.full(20_000 + 7 * i, 7, np.uint16) for i in range(8)}
        readers = None
        started = time.monotonic()
        for version in range(1, PUBLISHES + 1):
            for tensor in tensors.values():
                tensor[::STRIDE] = version
            manager.offload(tensors, version).wait()
            if readers is None:
                receiver.await_version(1)
                readers = Readers(receiver.directory, cluster.root / "readers.txt", SEED)
            readers.turn()
        seconds = time.monotonic() - started
        # With one buffer the receiver waits while anybody reads, so the readers have to stop first.
        lines = readers.stop()
        receiver.await_version(PUBLISHES)
        status = receiver.status()
    read = [line for line in lines if line.startswith("read ")]
    missing = [at for at, line in enumerate(lines) if line == "missing"]
    torn = [line for line in lines if line.startswith("torn")]
    print(
        f"  {PUBLISHES} publishes in {seconds:.1f} s, {status['commits']} commits; "
        f"{readers.started} readers, {len(read)} passes over {len(set(read))} versions, "
        f"{len(missing)} opens found no file, {len(torn)} saw two versions; the receiver waited "
        f"for readers {status['worst_reader_wait_seconds']:.3f} s at most",
        flush=True,
    )
    assert not torn, torn[0]
    assert read, "no reader has read anything"
    assert buffers == 1 or not missing, f"{len(missing)} opens found no file"


for buffers in (1, 2):
    run(buffers)
