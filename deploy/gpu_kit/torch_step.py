"""A trainer's tensors of real torch, on a GPU, into a sender that diffs on it.

The library's own CUDA runtime and torch's are in one process. Without torch or a device the tensors
are host memory, and the sender's CPU diffs. Every byte of the sender's half is compared.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = "libdeltawire_export.so.2"
HOST, WHOLE, BLOCK = -1, 2, 3
COLUMNS = 1024


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("data_dir", ctypes.c_char_p),
                ("model", ctypes.c_char_p), ("rank", ctypes.c_uint32), ("world", ctypes.c_uint32),
                ("timeout_ms", ctypes.c_uint32), ("copy_threads", ctypes.c_uint32),
                ("publisher", ctypes.c_char_p)]


class Meta(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("dtype", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("ndim", ctypes.c_uint32)]


class Register(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("tensors", ctypes.POINTER(Meta)),
                ("tensor_count", ctypes.c_size_t), ("side_files", ctypes.c_void_p),
                ("side_file_count", ctypes.c_size_t), ("hf_dir", ctypes.c_char_p),
                ("replace", ctypes.c_int), ("keep_side_files", ctypes.c_int)]


class Block(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("data", ctypes.c_void_p),
                ("element_bytes", ctypes.c_uint32), ("ndim", ctypes.c_uint32),
                ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("start", ctypes.POINTER(ctypes.c_uint64))]


class HostTensor:
    """Numbers of 2 bytes in this machine's memory, where torch or a device is missing."""

    device, elements = HOST, None

    def __init__(self, rows: int, seed: int) -> None:
        self.data = bytearray(random.Random(seed).randbytes(rows * COLUMNS * 2))
        self.memory = (ctypes.c_char * len(self.data)).from_buffer(self.data)

    def address(self) -> int:
        return ctypes.addressof(self.memory)

    def step(self) -> None:
        for at in range(0, len(self.data), 200):
            self.data[at] ^= 1

    def strides(self) -> list[int]:
        return [2 * COLUMNS, 2]

    def is_in(self, address: int) -> bool:
        return ctypes.string_at(address, len(self.data)) == bytes(self.data)


class TorchTensor:
    """The same on device 0. Every second one is a view of a wider one, as a column shard is."""

    device = 0

    def __init__(self, torch, rows: int, seed: int) -> None:
        self.torch = torch
        wide = torch.randint(-32768, 32767, (rows, COLUMNS * (1 + seed % 2)), dtype=torch.int16,
                             device="cuda:0")
        self.tensor = wide[:, :COLUMNS]

    def address(self) -> int:
        return self.tensor.data_ptr()

    def step(self) -> None:
        self.tensor[:, ::100] += 1

    def strides(self) -> list[int]:
        return [2 * n for n in self.tensor.stride()]

    def is_in(self, address: int) -> bool:
        memory = (ctypes.c_char * (self.tensor.numel() * 2)).from_address(address)
        there = self.torch.frombuffer(memory, dtype=self.torch.int16).reshape(self.tensor.shape)
        return self.torch.equal(there.to("cuda:0"), self.tensor)


def make_tensors(mib: int) -> list:
    rows = max(1, mib // 2 // 8) << 10  # of 2 KiB; eight tensors
    try:
        import torch

        if torch.cuda.is_available():
            return [TorchTensor(torch, rows, seed) for seed in range(8)]
        print("torch sees no device: the tensors are host memory")
    except ImportError:
        print("no torch: the tensors are host memory")
    return [HostTensor(max(1, rows // 16), seed) for seed in range(8)]


class Trainer:
    """One rank that has all of each tensor, or two ranks in this process: with half of each
    tensor's rows, as FSDP2 cuts them, or of its columns, as Megatron cuts every second one."""

    def __init__(self, data_dir: pathlib.Path, tensors: list, cut: str = "whole") -> None:
        self.library = ctypes.CDLL(str(HERE / "bin" / LIBRARY))
        self.library.dw_last_error.restype = ctypes.c_char_p
        self.library.dw_offload_diffed_on.restype = ctypes.c_char_p
        self.library.dw_draw_attempt.restype = ctypes.c_uint64
        self.tensors, self.cut = tensors, cut
        self.world = 1 if cut == "whole" else 2
        self.shape = (ctypes.c_uint64 * 2)(self.rows(), COLUMNS)
        metas = (Meta * len(tensors))(*[
            Meta(ctypes.sizeof(Meta), b"model.layers.%d.weight" % i, b"BF16", self.shape, 2)
            for i in range(len(tensors))])
        register = Register(ctypes.sizeof(Register), metas, len(tensors))
        self.clients = []
        for rank in range(self.world):
            options = Options(ctypes.sizeof(Options), str(data_dir).encode(), cut.encode(), rank,
                              self.world, 20_000, 0, None)
            client = ctypes.c_void_p()
            self.must(self.library.dw_client_create(ctypes.byref(options), ctypes.byref(client)))
            self.must(self.library.dw_client_register(client, ctypes.byref(register), None))
            self.clients.append(client)

    def rows(self) -> int:
        first = self.tensors[0]
        return len(first.data) // 2 // COLUMNS if first.device == HOST else first.tensor.shape[0]

    def must(self, code: int) -> None:
        if code != 0:
            raise SystemExit(f"FAILED: {self.library.dw_last_error().decode()}")

    def block(self, tensor, rank: int) -> Block:
        """The rank's shard of a tensor, and where it lies in it."""
        start, shape = [0, 0], [self.rows(), COLUMNS]
        if self.world > 1:
            dim = 0 if self.cut == "rows" else 1
            start[dim] = shape[dim] * rank // 2
            shape[dim] = shape[dim] * (rank + 1) // 2 - start[dim]
        strides = tensor.strides()
        address = tensor.address() + start[0] * strides[0] + start[1] * strides[1]
        return Block(ctypes.sizeof(Block), address, 2, 2, (ctypes.c_uint64 * 2)(*shape),
                     (ctypes.c_int64 * 2)(*strides), (ctypes.c_uint64 * 2)(*start))

    def write(self, begun: ctypes.c_void_p, rank: int, diff: bool) -> None:
        count, device = len(self.tensors), self.tensors[0].device
        share = WHOLE if self.world == 1 else BLOCK
        blocks = (Block * count)(*[self.block(tensor, rank) for tensor in self.tensors])
        if diff and device != HOST:
            indices = (ctypes.c_uint32 * count)(*range(count))
            self.must(self.library.dw_offload_diff_device(
                begun, indices, blocks, ctypes.c_size_t(count), device, share))
            return
        for i, block in enumerate(blocks):
            self.must(self.library.dw_offload_write(begun, i, ctypes.byref(block), share)
                      if device == HOST else self.library.dw_offload_write_device(
                          begun, i, ctypes.byref(block), device, share))

    def offload(self, version: int, diff: bool) -> None:
        """Times from the first byte to the last. The half is compared before it is ready, or with
        `diff`, where the device hands over what has changed, when it is published."""
        attempt = ctypes.c_uint64(self.library.dw_draw_attempt())
        begun = [ctypes.c_void_p() for _ in self.clients]
        for client, offload in zip(self.clients, begun):
            self.must(self.library.dw_offload_begin_attempt(
                client, ctypes.c_uint64(version), attempt, ctypes.byref(offload)))
        if self.tensors[0].device != HOST:
            self.tensors[0].torch.cuda.synchronize()
        start = time.perf_counter()
        for rank, offload in enumerate(begun):
            self.write(offload, rank, diff)
        seconds = time.perf_counter() - start
        said = self.library.dw_offload_diffed_on(begun[0]).decode()
        if not diff:
            self.compare(begun[0], version)
        for offload in begun:
            self.must(self.library.dw_offload_ready(offload))
        self.must(self.library.dw_wait_published(self.clients[0], ctypes.c_uint64(version), 0, None))
        if diff:
            self.compare(begun[0], version)
        for offload in begun:
            self.library.dw_offload_destroy(offload)
        size = self.rows() * COLUMNS * 2 * len(self.tensors) / 1e9
        print(f"{self.cut}, version {version}{', diffed' * diff}: {size:.3f} GB in "
              f"{seconds * 1e3:.1f} ms, {size / seconds:.2f} GB/s, and compared"
              f"{'; by ' * bool(said)}{said}", flush=True)
        for tensor in self.tensors:
            tensor.step()

    def compare(self, begun: ctypes.c_void_p, version: int) -> None:
        for i, tensor in enumerate(self.tensors):
            data, size = ctypes.c_void_p(), ctypes.c_uint64()
            self.must(self.library.dw_offload_tensor(begun, i, ctypes.byref(data),
                                                     ctypes.byref(size)))
            if not tensor.is_in(data.value):
                raise SystemExit(f"WRONG: tensor {i} of {self.cut}, version {version}, in the "
                                 "sender's half")

    def close(self) -> None:
        for client in self.clients:
            self.library.dw_client_destroy(client)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="for the sender's log")
    args = parser.parse_args()
    data_dir = pathlib.Path(f"/dev/shm/deltawire-gpu-kit-{os.getpid()}")
    args.dir.mkdir(parents=True, exist_ok=True)
    log = args.dir / "log.txt"
    with open(log, "wb") as out:
        sender = subprocess.Popen(
            [HERE / "bin" / "deltawire-sender", "--data-dir", data_dir, "--control-listen",
             "127.0.0.1:0", "--bulk-listen", "127.0.0.1:0", "--gpu", "auto"],
            stdout=out, stderr=out)
    try:
        tensors = make_tensors(args.mib)
        for cut in ("whole", "rows", "columns"):
            trainer = Trainer(data_dir, tensors if cut == "whole" else tensors[:2], cut)
            for version in range(1, 9):
                # The first version that is diffed goes whole, and its bytes become the base.
                trainer.offload(version, diff=version > 4 if cut == "whole" else version > 1)
            trainer.close()
        said = [line for line in log.read_text().splitlines() if "diffs run on" in line]
        print(said[0] if said else "the sender did not say where its diffs run")
        if tensors[0].device != HOST and not any("diffs run on the CPU" not in s for s in said):
            raise SystemExit("FAILED: the tensors are on a device, but the sender diffs on the CPU")
        return 0
    finally:
        sender.send_signal(signal.SIGTERM)
        sender.wait(20)
        shutil.rmtree(data_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
