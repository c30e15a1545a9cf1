"""The rooms table as data: who may include whom (CONTRIBUTING.md, "Rooms").

A room is a folder; a file belongs to the room with the longest matching path. Every room may include
itself. A name in `rooms` that is a room is that room alone, without the rooms in it; one that is none
(`common`, `sender/export`) is every room in that folder, and "" is everything. `outside` are names in
THIRD_PARTY; the standard library and the headers of SYSTEM are free to all.
"""

from typing import NamedTuple

# Third-party headers by path prefix.
THIRD_PARTY = {
    "absl": ("absl/",),
    "asio": ("boost/",),
    "catch2": ("catch2/",),
    "civetweb": ("CivetServer.h", "civetweb.h"),
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
    rooms: tuple = ()
    outside: tuple = ()


BASE = "common/base"
GROUND = ("absl", "fmt", "spdlog")  # what common/base itself stands on
MESSAGES = ("grpc", "protobuf")  # what proto itself stands on
ANYTHING = Room(rooms=("",), outside=tuple(THIRD_PARTY))

ROOMS = {
    "common/base": Room(outside=GROUND + ("xxhash",)),  # also the thread pool
    "common/layout": Room(rooms=(BASE,), outside=GROUND + ("json",)),
    "common/delta": Room(rooms=(BASE, "common/layout", "kernels"), outside=GROUND + ("zstd",)),
    "common/wire": Room(rooms=(BASE, "common/layout"), outside=GROUND),
    "common/shm": Room(rooms=(BASE, "common/layout"), outside=GROUND + ("json",)),
    "common/security": Room(rooms=(BASE,), outside=GROUND + ("openssl", "tomlplusplus")),
    "common/net": Room(
        rooms=(BASE, "common/security", "common/wire"), outside=GROUND + ("asio", "openssl")
    ),
    # Served pulls over a StateSource, for the sender's agent and for a receiver that relays.
    "common/serving": Room(
        rooms=(BASE, "common/layout", "common/delta", "common/wire", "common/net", "kernels"),
        outside=GROUND,
    ),
    # Foretells a fleet's times by the rules that its daemons go by.
    "common/plan": Room(
        rooms=(
            BASE, "common/layout", "common/delta", "common/net", "common/serving", "common/wire",
            "kernels",
        ),
        outside=GROUND + ("tomlplusplus",),
    ),
    "common/config": Room(rooms=(BASE, "kernels"), outside=GROUND + ("cli11",)),
    "common/daemon": Room(outside=("systemd",)),
    "common/metrics": Room(rooms=(BASE,), outside=GROUND + ("civetweb", "prometheus")),
    # What CPU and CUDA share stands at the top, so that neither's folder includes from the other's.
    "kernels": Room(rooms=("kernels/cpu", "kernels/cpu/highway")),  # chooses among them
    "kernels/cpu": Room(rooms=("kernels",)),
    "kernels/cpu/highway": Room(rooms=("kernels", "kernels/cpu"), outside=("hwy",)),
    "kernels/cuda": Room(rooms=("kernels",), outside=("cuda",)),
    # Messages, and what every program shares of serving and translating them.
    "proto": Room(
        rooms=(BASE, "common/layout", "common/delta", "common/security"),
        outside=GROUND + MESSAGES,
    ),
    # What directs daemons, in messages and in JSON.
    "proto/client": Room(
        rooms=(BASE, "common/config", "common/security", "proto"),
        outside=GROUND + MESSAGES + ("json",),
    ),
    # The service for receivers, over what common/serving grants.
    "proto/serving": Room(
        rooms=(
            BASE, "common/layout", "common/delta", "common/net", "common/security",
            "common/serving", "common/wire", "proto",
        ),
        outside=GROUND + MESSAGES,
    ),
    "sender/agent": Room(
        rooms=("common", "kernels", "proto", "proto/serving"), outside=GROUND + MESSAGES
    ),
    "sender/export/client": Room(rooms=("common", "kernels", "proto"), outside=GROUND + MESSAGES),
    # What is known of a trainer's layouts; pure but for reading files.
    "sender/export/mcore": Room(
        rooms=(BASE, "common/layout", "kernels"), outside=GROUND + ("json", "muparser", "tomlplusplus")
    ),
    "sender/export/shards": Room(
        rooms=(BASE, "common/layout", "common/shm", "kernels", "sender/export/mcore"),
        outside=GROUND + ("json",),
    ),
    "sender/export/gather": Room(
        rooms=(BASE, "kernels", "kernels/cuda"), outside=GROUND + ("cuda", "gloo", "nccl")
    ),
    "sender/export/device": Room(
        rooms=(BASE, "common/layout", "kernels", "sender/export/gather", "sender/export/mcore"),
        outside=GROUND + ("cuda",),
    ),
    # Where shards, ways to gather them and the agent's halves come together.
    "sender/export/megatron": Room(
        rooms=(
            "common", "kernels", "sender/export/client", "sender/export/mcore",
            "sender/export/gather", "sender/export/device",
        ),
        outside=GROUND,
    ),
    "sender/export/abi": Room(
        rooms=("common", "kernels", "proto/client", "sender/export"), outside=GROUND
    ),
    "receiver": Room(
        rooms=(
            "common", "kernels", "proto", "proto/serving", "receiver/engine", "receiver/relay"
        ),
        outside=GROUND + MESSAGES,
    ),
    # Serves what replicas have committed; knows of them what receiver/downstream.h says.
    "receiver/relay": Room(rooms=("common", "kernels", "receiver"), outside=GROUND),
    # Knows of the replica only what daemon.cc hands it; speaks HTTP, and no gRPC.
    "receiver/engine": Room(
        rooms=(BASE, "common/config", "common/security", "receiver/disk_delta"),
        outside=GROUND + ("asio", "json", "openssl"),
    ),
    "receiver/disk_delta": Room(
        rooms=(BASE, "common/layout"), outside=GROUND + ("json", "zstd")
    ),
    # What runs in an engine's process: nothing that opens a socket.
    "receiver/engine_client": Room(
        rooms=(BASE, "common/layout", "common/delta", "common/shm", "kernels"), outside=GROUND
    ),
    "receiver/engine_client/abi": Room(
        rooms=(BASE, "common/layout", "kernels", "receiver/engine_client"), outside=GROUND
    ),
    # `deltawire publish` is a trainer, so it uses the trainer's library; the demo needs models.
    "cli": Room(
        rooms=("common", "kernels", "proto", "proto/client", "sender/export", "cli/synth"),
        outside=GROUND + MESSAGES + ("cli11", "json", "ncurses"),
    ),
    # A model and a trainer that nobody has: for the demo, and for benchmarks and tests.
    "cli/synth": Room(rooms=(BASE, "common/layout"), outside=GROUND + ("json",)),
    # Both sides over their C ABIs alone: docs/decisions.md.
    "python": Room(
        rooms=("sender/export/abi", "receiver/engine_client/abi"), outside=("pybind11",)
    ),
    "bench": ANYTHING,
    "tests": ANYTHING,
}

# Under `#ifdef DELTAWIRE_SIMULATION` alone: what the simulation puts in a header's place.
SIMULATED = {
    ("common/base/of_this_thread.h", "simulated_thread_local.h"),
    ("common/base/sync.h", "simulated_sync.h"),
}
