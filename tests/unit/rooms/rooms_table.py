"""The rooms table as data: who may include whom (CONTRIBUTING.md, "Rooms").

A room is a folder; a file belongs to the room with the longest matching path. Every room may include
itself. `rooms` are prefixes of project paths, `outside` names in THIRD_PARTY; the standard library and
the system's headers are free to all.
"""

from typing import NamedTuple

# Third-party headers by path prefix. A header that is none of these counts as std or system.
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
    "openssl": ("openssl/",),
    "prometheus": ("prometheus/",),
    "protobuf": ("google/protobuf/",),
    "pybind11": ("pybind11/",),
    "spdlog": ("spdlog/",),
    "xxhash": ("xxhash.h",),
    "tomlplusplus": ("toml++/",),
    "zstd": ("zstd.h", "zstd_errors.h", "zdict.h"),
    "cuda": ("cuda", "cub/", "thrust/"),
}


class Room(NamedTuple):
    rooms: tuple = ()
    outside: tuple = ()
    never: tuple = ()  # not even where `rooms` would allow it


BASE = "common/base"
GROUND = ("absl", "fmt", "spdlog")  # what common/base itself stands on
DAEMON = GROUND + ("asio", "cli11", "grpc", "json", "openssl", "prometheus", "protobuf")
ANYTHING = Room(rooms=("",), outside=tuple(THIRD_PARTY))

ROOMS = {
    "common/base": Room(outside=GROUND + ("xxhash",)),  # also the thread pool
    "common/layout": Room(rooms=(BASE,), outside=GROUND + ("json",)),
    "common/delta": Room(rooms=(BASE, "common/layout", "kernels"), outside=GROUND + ("zstd",)),
    "common/wire": Room(rooms=(BASE, "common/layout"), outside=GROUND),
    "common/shm": Room(rooms=(BASE, "common/layout"), outside=GROUND + ("json",)),
    "common/net": Room(rooms=(BASE, "common/wire"), outside=GROUND + ("asio", "openssl")),
    "common/config": Room(rooms=(BASE,), outside=GROUND + ("cli11",)),
    "common/metrics": Room(rooms=(BASE,), outside=GROUND + ("prometheus",)),
    "kernels": Room(),
    "kernels/cpu": Room(rooms=("kernels",), outside=("hwy",)),
    "kernels/cuda": Room(rooms=("kernels",), outside=("cuda",)),
    # Messages, and what every program shares of serving and translating them.
    "proto": Room(rooms=(BASE, "common/layout"), outside=GROUND + ("grpc", "protobuf")),
    "sender": Room(rooms=("common", "kernels", "proto"), outside=DAEMON),
    "sender/export": Room(
        rooms=("common", "kernels", "proto"),
        outside=DAEMON + ("cuda", "gloo", "nccl"),
        never=("sender",),
    ),
    # What is known of a trainer's layouts; pure but for reading files.
    "sender/export/mcore": Room(
        rooms=(BASE, "common/layout", "kernels"), outside=GROUND + ("json", "muparser", "tomlplusplus")
    ),
    "receiver": Room(rooms=("common", "kernels", "proto"), outside=DAEMON, never=("sender",)),
    # `deltawire publish` is a trainer, so it uses the trainer's library; the demo needs models.
    "cli": Room(
        rooms=("common", "kernels", "proto", "sender/export", "bench/synth"), outside=DAEMON
    ),
    # Over the C ABI alone: docs/decisions.md.
    "python": Room(rooms=("sender/export",), outside=("pybind11",)),
    "bench/synth": Room(rooms=("common",), outside=GROUND + ("json",)),
    "bench": ANYTHING,
    "tests": ANYTHING,
}

# Under `#ifdef DELTAWIRE_SIMULATION` alone: what the simulation puts in a header's place.
SIMULATED = {
    ("common/base/of_this_thread.h", "simulated_thread_local.h"),
    ("common/base/sync.h", "simulated_sync.h"),
}
