"""A trainer and an engine's rank in one process, by what a wheel installed.

    wheel_inside.py ENDPOINT DIRECTORY [first|last]     publishes model "m" and follows DIRECTORY

Without the third argument no torch may be there, and nothing may be mapped but the wheel's own
libraries and what its tag promises; with it, torch is imported before deltawire or after.
"""

from __future__ import annotations

import array
import bz2  # noqa: F401  # this, hashlib and lzma bring libraries that Python itself links
import contextlib
import ctypes
import hashlib  # noqa: F401
import pathlib
import re
import sys
import time

with contextlib.suppress(ImportError):  # one case hides the system's liblzma
    import lzma  # noqa: F401

DEADLINE_S = 60
ROWS, COLUMNS, VERSIONS = 70, 31, 5
# What a manylinux tag lets every process have, and what only Python itself brings.
PROMISED = re.compile(r"^(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libz)\.so")
PYTHON_S = re.compile(r"/lib-dynload/|/libpython")


def mapped() -> set[str]:
    rows = (line.split() for line in pathlib.Path("/proc/self/maps").read_text().splitlines())
    return {row[-1] for row in rows if len(row) > 5 and ".so" in row[-1]}


def check_libraries(before: set[str], package: pathlib.Path) -> None:
    own = (f"{package}/", f"{package}.libs/")
    foreign = {path for path in mapped() - before if not path.startswith(own)}
    foreign = {p for p in foreign if not PROMISED.match(pathlib.Path(p).name) and not PYTHON_S.search(p)}
    assert not foreign, f"deltawire loaded {sorted(foreign)}"
    assert any("libgrpc++" in path for path in mapped() if path.startswith(own)), "no gRPC of its own"


def weights(version: int) -> dict[str, array.array]:
    """Tensors that differ from version to version in a few places."""
    matrix = array.array("f", range(ROWS * COLUMNS))
    for i in range(1, version + 1):
        matrix[i * 37 % len(matrix)] += i
    return {"counter": array.array("q", [version]), "matrix": matrix}


def opened(client_class, error_class, directory: str):
    """The client, once the receiver has committed a version."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return client_class(directory, 1)
        except error_class:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


class Memory:
    """An engine's memory: the tensors one after the other, the matrix transposed."""

    def __init__(self, tensors: list[tuple[str, str, list[int]]]):
        self.bytes = ctypes.create_string_buffer(8 + 4 * ROWS * COLUMNS)
        # (tensor, storage, counts, source's offset and strides, place's offset and strides)
        self.boxes = []
        for index, (name, _, _) in enumerate(tensors):
            if name == "counter":
                self.boxes.append((index, 0, [1], 0, [1], 0, [1]))
            else:
                self.boxes.append((index, 0, [ROWS, COLUMNS], 0, [COLUMNS, 1], 2, [1, ROWS]))

    def holds(self, values: dict[str, array.array]) -> bool:
        matrix = values["matrix"]
        transposed = array.array("f", (matrix[r * COLUMNS + c] for c in range(COLUMNS) for r in range(ROWS)))
        return self.bytes.raw == values["counter"].tobytes() + transposed.tobytes()

    def load(self, values: dict[str, array.array]) -> None:
        for c in range(COLUMNS):
            column = array.array("f", values["matrix"][c::COLUMNS]).tobytes()
            self.bytes[8 + 4 * c * ROWS : 8 + 4 * (c + 1) * ROWS] = column
        self.bytes[0:8] = values["counter"].tobytes()


def main() -> None:
    endpoint, directory, torch = (*sys.argv[1:], "")[:3]
    if torch == "first":
        import torch as _
    before = mapped()
    import deltawire
    from deltawire.engine import EngineClient, _core

    package = pathlib.Path(deltawire.__file__).parent
    if torch == "last":
        import torch as _
    if not torch:
        assert "torch" not in sys.modules and "numpy" not in sys.modules, "a heavy import"
        check_libraries(before, package)

    manager = deltawire.WeightManager(endpoint, model="m")

    def publish(version: int) -> dict[str, array.array]:
        values = weights(version)
        tensors = {"counter": values["counter"],
                   "matrix": memoryview(values["matrix"]).cast("B").cast("f", (ROWS, COLUMNS))}
        manager.offload(tensors.items(), version).wait()
        return values

    memory_values = publish(1)
    engine = opened(_core.EngineWeights, deltawire.Error, directory)
    client = EngineClient(directory)
    memory = Memory(engine.tensors)
    memory.load(memory_values)
    assert memory.holds(memory_values)
    engine.bind([("engine", ctypes.addressof(memory.bytes), len(memory.bytes))], memory.boxes)
    assert not engine.adopt().different and engine.held.version == 1
    for version in range(2, VERSIONS + 1):
        values = publish(version)
        assert client.wait(engine.held, DEADLINE_S).version == version
        # The delta's file comes after the commit; prepare does not wait for it on a busy machine.
        end = time.monotonic() + DEADLINE_S
        deltas = pathlib.Path(directory) / ".deltawire.deltas"
        while len(list(deltas.glob("[0-9]*"))) < version - 1:
            assert time.monotonic() < end, f"the delta of version {version} was not left"
        update = engine.prepare()
        assert update.deltas == 1 and update.changes > 0, (update.deltas, update.changes)
        engine.apply()
        assert memory.holds(values), f"version {version} is not in the engine's memory"
        found, _ = engine.check(0, engine.chunks)
        assert not found.different and engine.held.version == version
    print(f"ok: {VERSIONS} versions with deltawire {deltawire.__version__} in {package}")


main()
