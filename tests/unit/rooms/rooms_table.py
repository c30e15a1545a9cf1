"""The rooms table: each room's purpose, and which rooms and libraries it may include.

    rooms_table.py [FOLDER]      prints the rooms whose path begins with FOLDER, or all

A room is a folder; a file belongs to the room with the longest matching path. Every room may include
itself. A name in `rooms` that is a room is that room alone, without the rooms in it; one that is none
(`common`, `sender/export`) is every room in that folder, and "" is everything. `outside` are names in
THIRD_PARTY; the standard library and the headers of SYSTEM are free to all.
"""

import sys
from typing import NamedTuple

# Third-party headers by path prefix.
THIRD_PARTY = {
    "absl": ("absl/",),
    "asio": ("boost/",),
    "catch2": ("catch2/",),
    "cli11": ("CLI/",),
    "fmt": ("fmt/", "spdlog/fmt/"),
    "gloo": ("gloo/",),
    "grpc": ("grpc/", "grpcpp/", "grpc++/"),
    "hwy": ("hwy/",),
    "json": ("nlohmann/",),
    "muparser": ("muParser.h",),
    "nccl": ("nccl.h",),
    "ncurses": ("curses.h",),
    "openssl": ("openssl/",),
    "prometheus": ("prometheus/",),
    "protobuf": ("google/protobuf/",),
    "pybind11": ("pybind11/",),
    "spdlog": ("spdlog/",),
    "systemd": ("systemd/",),
    "xxhash": ("xxhash.h", "xxh_x86dispatch.h"),
    "tomlplusplus": ("toml++/",),
    "zstd": ("zstd.h", "zstd_errors.h", "zdict.h"),
    "cuda": ("cuda", "cub/", "thrust/"),
}

# Headers of C, POSIX, Linux and the compiler, by name or folder. A header without a suffix is C++'s.
SYSTEM = (
    "arpa/", "linux/", "net/", "netinet/", "sys/", "cxxabi.h",
    "dirent.h", "dlfcn.h", "emmintrin.h", "fcntl.h", "grp.h", "limits.h", "malloc.h", "math.h",
    "netdb.h", "poll.h", "pthread.h", "pwd.h", "sched.h", "setjmp.h", "signal.h", "spawn.h", "stddef.h",
    "stdint.h", "stdio.h", "strings.h", "time.h", "ucontext.h", "unistd.h",
)  # fmt: skip


class Room(NamedTuple):
    purpose: str
    rooms: tuple = ()
    outside: tuple = ()


BASE = "common/base"
GROUND = ("absl", "fmt", "spdlog")  # what common/base itself stands on
MESSAGES = ("grpc", "protobuf")  # what proto itself stands on


def anything(purpose: str) -> Room:
    return Room(purpose, rooms=("",), outside=tuple(THIRD_PARTY))


ROOMS = {
    "common/base": Room(
        "status, bytes, log, clocks, threads, mutexes", outside=GROUND + ("xxhash",)
    ),
    "common/layout": Room(
        "dtypes, tensors_meta, safetensors headers, chunks, fingerprint",
        rooms=(BASE,), outside=GROUND + ("json",),
    ),
    "common/delta": Room(
        "deltas of a version, the delta log, codecs; what receivers and senders say of versions",
        rooms=(BASE, "common/layout", "kernels"), outside=GROUND + ("zstd",),
    ),
    "common/wire": Room(
        "frames of the bulk protocol to and from bytes; no I/O",
        rooms=(BASE, "common/layout"), outside=GROUND,
    ),
    "common/shm": Room(
        "buffer files, halves, their state file and lock",
        rooms=(BASE, "common/layout"), outside=GROUND + ("json",),
    ),
    "common/security": Room(
        "credentials, principals, roles",
        rooms=(BASE,), outside=GROUND + ("openssl", "tomlplusplus"),
    ),
    "common/net": Room(
        "streams, TLS, deadlines, the pull client and server",
        rooms=(BASE, "common/security", "common/wire"), outside=GROUND + ("asio", "openssl"),
    ),
    "common/serving": Room(
        "served pulls over a StateSource, for the sender's agent and for a relay",
        rooms=(BASE, "common/layout", "common/delta", "common/wire", "common/net", "kernels"),
        outside=GROUND,
    ),
    "common/plan": Room(
        "predicts a fleet's times by the rules that its daemons use",
        rooms=(
            BASE, "common/layout", "common/delta", "common/net", "common/serving", "common/wire",
            "kernels",
        ),
        outside=GROUND + ("tomlplusplus",),
    ),
    "common/config": Room(
        "options, parsed once into one const struct",
        rooms=(BASE, "kernels"), outside=GROUND + ("cli11",),
    ),
    "common/daemon": Room("signals, and messages to systemd", outside=("systemd",)),
    "common/metrics": Room(
        "counters, histograms, the metrics port",
        rooms=(BASE,), outside=GROUND + ("prometheus",),
    ),
    # What CPU and CUDA share stands at the top, so that neither's folder includes from the other's.
    "kernels": Room(
        "what CPU and CUDA share, and the dispatch between them",
        rooms=("kernels/cpu", "kernels/cpu/highway"),
    ),
    "kernels/cpu": Room("the format's rules, and the scalar oracle", rooms=("kernels",)),
    "kernels/cpu/highway": Room(
        "loops in vectors", rooms=("kernels", "kernels/cpu"), outside=("hwy",)
    ),
    "kernels/cuda": Room("the twins for CUDA", rooms=("kernels",), outside=("cuda",)),
    "proto": Room(
        "messages, and the code that serves, dials and translates them in every program",
        rooms=(BASE, "common/layout", "common/delta", "common/security"),
        outside=GROUND + MESSAGES,
    ),
    "proto/client": Room(
        "directs daemons, in messages and in JSON",
        rooms=(BASE, "common/config", "common/security", "proto"),
        outside=GROUND + MESSAGES + ("json",),
    ),
    "proto/serving": Room(
        "the service for receivers, over what common/serving grants",
        rooms=(
            BASE, "common/layout", "common/delta", "common/net", "common/security",
            "common/serving", "common/wire", "proto",
        ),
        outside=GROUND + MESSAGES,
    ),
    "sender/agent/halves": Room(
        "a model's halves on disk: which are leased, scrubbed or free, and its side files",
        rooms=(BASE, "common/config", "common/layout", "common/delta", "common/shm", "common/serving",
               "kernels"),
        outside=GROUND,
    ),
    "sender/agent/diff": Room(
        "one version's diff, on the CPU or a GPU, into an incoming version",
        rooms=(BASE, "common/config", "common/layout", "common/delta", "common/serving", "kernels"),
        outside=GROUND,
    ),
    "sender/agent/offload": Room(
        "offloads: which ranks write which half, and what they have written",
        rooms=("common", "kernels", "sender/agent/diff", "sender/agent/halves"), outside=GROUND,
    ),
    "sender/agent/fleet": Room(
        "which receivers commit together, and whom each of them follows",
        rooms=(BASE, "common/config", "common/plan", "common/serving"), outside=GROUND,
    ),
    # gRPC only here.
    "sender/agent": Room(
        "the sender's daemon: models, publishing, services",
        rooms=(
            "common", "kernels", "proto", "proto/serving", "sender/agent/diff",
            "sender/agent/fleet", "sender/agent/halves", "sender/agent/offload",
        ),
        outside=GROUND + MESSAGES,
    ),
    "sender/export/client": Room(
        "the trainer's side of the sender's socket",
        rooms=("common", "kernels", "proto"), outside=GROUND + MESSAGES,
    ),
    "sender/export/mcore": Room(
        "model families and layout plans; pure, except for reading files",
        rooms=(BASE, "common/layout", "kernels"),
        outside=GROUND + ("json", "muparser", "tomlplusplus"),
    ),
    "sender/export/shards": Room(
        "directories of shards",
        rooms=(BASE, "common/layout", "common/shm", "kernels", "sender/export/mcore"),
        outside=GROUND + ("json",),
    ),
    "sender/export/gather": Room(
        "gathers many ranks to one",
        rooms=(BASE, "kernels", "kernels/cuda"), outside=GROUND + ("cuda", "gloo", "nccl"),
    ),
    "sender/export/device": Room(
        "tensors on a GPU",
        rooms=(BASE, "common/layout", "kernels", "sender/export/gather", "sender/export/mcore"),
        outside=GROUND + ("cuda",),
    ),
    "sender/export/megatron": Room(
        "joins shards, the ways to gather them, and the agent's halves",
        rooms=(
            "common", "kernels", "sender/export/client", "sender/export/mcore",
            "sender/export/gather", "sender/export/device",
        ),
        outside=GROUND,
    ),
    "sender/export/abi": Room(
        "the trainer's shared library, with a C ABI",
        rooms=("common", "kernels", "proto/client", "sender/export"), outside=GROUND,
    ),
    # Never includes the sender. gRPC only here.
    "receiver": Room(
        "the receiver's daemon: services, status, and gRPC to senders",
        rooms=(
            "common", "kernels", "proto", "proto/serving", "receiver/attach", "receiver/buffer",
            "receiver/engine", "receiver/pull", "receiver/relay", "receiver/replica",
        ),
        outside=GROUND + MESSAGES,
    ),
    "receiver/buffer": Room(
        "the weight file: its slots, commits, readers and side files",
        rooms=(BASE, "common/layout", "common/delta", "common/shm", "common/serving", "common/wire",
               "kernels"),
        outside=GROUND,
    ),
    "receiver/attach": Room(
        "upstreams: the choice of one, what it announces, and groups",
        rooms=(BASE, "common/layout", "common/delta", "common/wire"), outside=GROUND,
    ),
    "receiver/pull": Room(
        "one pull: decodes what comes into the buffer, and forwards it",
        rooms=(
            BASE, "common/layout", "common/delta", "common/net", "common/serving", "common/wire",
            "receiver/attach", "receiver/buffer",
        ),
        outside=GROUND,
    ),
    "receiver/replica": Room(
        "one model at a receiver: follows, pulls, commits, verifies",
        rooms=("common", "receiver/attach", "receiver/buffer", "receiver/pull"), outside=GROUND,
    ),
    # Knows of replicas only what receiver/buffer/downstream.h says.
    "receiver/relay": Room(
        "serves what replicas have committed",
        rooms=("common", "kernels", "receiver/buffer"), outside=GROUND,
    ),
    # Knows of the replica only what daemon.cc hands it; speaks HTTP, and no gRPC.
    "receiver/engine": Room(
        "drives engines over HTTP",
        rooms=(BASE, "common/config", "common/security", "receiver/disk_delta"),
        outside=GROUND + ("asio", "json", "openssl"),
    ),
    "receiver/disk_delta": Room(
        "versions as a chain of files on a disk",
        rooms=(BASE, "common/layout"), outside=GROUND + ("json", "zstd"),
    ),
    "receiver/engine_client": Room(
        "what runs in an engine's process; opens no socket",
        rooms=(BASE, "common/layout", "common/delta", "common/shm", "kernels"), outside=GROUND,
    ),
    "receiver/engine_client/abi": Room(
        "the engine's shared library, with a C ABI",
        rooms=(BASE, "common/layout", "kernels", "receiver/engine_client"), outside=GROUND,
    ),
    # `deltawire publish` is a trainer, so it uses the trainer's library; the demo needs models.
    "cli": Room(
        "the deltawire tool",
        rooms=("common", "kernels", "proto", "proto/client", "sender/export", "cli/synth"),
        outside=GROUND + MESSAGES + ("cli11", "json", "ncurses"),
    ),
    "cli/synth": Room(
        "a made-up model and trainer, for the demo, benchmarks and tests",
        rooms=(BASE, "common/layout"), outside=GROUND + ("json",),
    ),
    # Both sides over their C ABIs alone: docs/decisions.md.
    "python": Room(
        "the Python extensions of trainers and engines",
        rooms=("sender/export/abi", "receiver/engine_client/abi"), outside=("pybind11",),
    ),
    "bench": anything("benchmarks; no other room includes it"),
    "tests": anything("tests; no other room includes it"),
}  # fmt: skip

# Under `#ifdef DELTAWIRE_SIMULATION` alone: what the simulation puts in a header's place.
SIMULATED = {
    ("common/base/of_this_thread.h", "simulated_thread_local.h"),
    ("common/base/sync.h", "simulated_sync.h"),
}


def table(folder: str = "") -> str:
    """The rooms under `folder`, each with its purpose and its own line of permitted includes."""
    lines = []
    for name, room in ROOMS.items():
        if not name.startswith(folder):
            continue
        rooms = ", ".join(room.rooms) if "" not in room.rooms else "every room"
        free = room.outside if set(room.outside) < set(THIRD_PARTY) else ("every library",)
        lines.append(f"{name}: {room.purpose}")
        lines.append(f"    rooms: {rooms or 'none'}; libraries: {', '.join(free) or 'none'}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(*sys.argv[1:2]))
