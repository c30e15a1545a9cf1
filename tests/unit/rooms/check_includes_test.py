"""The scan itself: what it must find and what it must let pass."""

import pathlib
import re
import unittest

from check_includes import check_file, room_of
from rooms_table import DAEMON, GROUND, ROOMS

CONTRIBUTING = pathlib.Path(__file__).resolve().parents[3] / "CONTRIBUTING.md"
# The names in CONTRIBUTING's table, where they are not the data's in other letters.
LIBRARIES = {
    "abseil status": "absl", "Beast": "asio", "libsystemd": "systemd", "nlohmann-json": "json",
    "prometheus-cpp": "prometheus", "toml++": "tomlplusplus",
}  # fmt: skip

OPENING = "// What this is.\n#pragma once\n"

FORBIDDEN = [
    ("common/base/a.cc", '#include "common/layout/layout.h"'),
    ("common/layout/a.cc", '#include "kernels/kernels.h"'),
    ("common/wire/a.cc", '#include "common/net/pull_client.h"'),
    ("common/net/a.cc", '#include "common/shm/buffer_file.h"'),
    ("common/delta/a.cc", '#include "proto/deltawire/v1/common.pb.h"'),
    ("common/net/a.cc", "#include <grpcpp/grpcpp.h>"),
    ("common/wire/a.cc", "#include <boost/asio.hpp>"),
    ("kernels/a.cc", '#include "common/base/bytes.h"'),
    ("kernels/a.cc", '#include "absl/status/status.h"'),
    ("kernels/a.cc", "#include <hwy/highway.h>"),
    ("kernels/a.cc", '#include "kernels/cuda/portable.h"'),
    ("kernels/cpu/a.cc", "#include <grpc/grpc.h>"),
    ("kernels/cpu/a.cc", "#include <hwy/highway.h>"),
    ("kernels/cpu/a.cc", '#include "kernels/cuda/bits.h"'),
    ("kernels/cpu/scalar/a.cc", '#include "kernels/cuda/bits.h"'),
    ("kernels/cpu/highway/a.cc", '#include "kernels/cuda/bits.h"'),
    ("kernels/cuda/a.cc", '#include "kernels/cpu/tight.h"'),
    ("proto/a.cc", '#include "common/net/pull_client.h"'),
    ("receiver/a.cc", '#include "sender/agent/agent.h"'),
    ("receiver/a.cc", '#include "sender/export/client/trainer_client.h"'),
    ("sender/agent/a.cc", '#include "receiver/apply.h"'),
    ("sender/export/client/a.cc", '#include "sender/agent/agent.h"'),
    ("cli/a.cc", '#include "sender/agent/agent.h"'),
    ("cli/a.cc", '#include "bench/loopback.h"'),
    ("cli/a.cc", '#include "kernels/cpu/tight.h"'),
    ("cli/a.cc", '#include "kernels/cuda/launch.h"'),
    ("bench/synth/a.cc", '#include "bench/report.h"'),
    ("common/base/a.cc", '#include "tests/support/temp_dir.h"'),
    ("sender/agent/a.cc", '#include "bench/synth/trace.h"'),
    ("common/base/a.cc", '  #  include "common/wire/frame.h"'),
    ("common/base/a.cc", '#include "bytes.h"'),
    ("common/base/a.cc", '#include "simulated_sync.h"'),
    ("common/base/a.cc", "#include <common/base/bytes.h>"),
    ("python/a.cc", '#include "receiver/engine_client/engine_weights.h"'),
    ("receiver/engine_client/abi/a.cc", '#include "sender/export/abi/c_abi.h"'),
    ("python/a.cc", '#include "proto/deltawire/v1/trainer.grpc.pb.h"'),
    ("sender/export/client/a.cc", "#include <pybind11/pybind11.h>"),
    ("nowhere/a.cc", "#include <vector>"),
]

ALLOWED = [
    ("common/base/a.cc", '#include "common/base/bytes.h"'),
    ("common/base/a.cc", "#include <xxhash.h>"),
    ("common/base/a.cc", "#include <sys/mman.h>"),
    ("common/delta/a.cc", '#include "kernels/kernels.h"'),
    ("common/config/a.cc", "#include <CLI/CLI.hpp>"),
    ("common/net/a.cc", "#include <boost/asio.hpp>"),
    ("kernels/cpu/highway/a.cc", "#include <hwy/highway.h>"),
    ("kernels/cpu/highway/a.cc", '#include "kernels/cpu/scalar/place.h"'),
    ("kernels/cpu/a.cc", '#include "kernels/kernels.h"'),
    ("kernels/cuda/a.cc", '#include "kernels/payload.h"'),
    ("kernels/a.cc", '#include "kernels/cpu/scalar/scalar.h"'),
    ("sender/export/client/a.cc", '#include "sender/export/client/trainer_client.h"'),
    ("sender/export/client/a.cc", '#include "proto/deltawire/v1/trainer.grpc.pb.h"'),
    ("cli/a.cc", '#include "sender/export/client/trainer_client.h"'),
    ("cli/a.cc", '#include "bench/synth/trace.h"'),
    ("tests/unit/base/a.cc", '#include "receiver/apply.h"'),
    ("bench/a.cc", '#include "sender/agent/agent.h"'),
    ("python/a.cc", '#include "sender/export/abi/deltawire_export.h"'),
    ("python/a.cc", '#include "receiver/engine_client/abi/deltawire_engine.h"'),
    ("python/a.cc", "#include <pybind11/pybind11.h>"),
    ("common/base/a.cc", '// #include "common/wire/frame.h"'),
]


class CheckIncludesTest(unittest.TestCase):
    def test_forbidden(self):
        for path, line in FORBIDDEN:
            with self.subTest(path=path, line=line):
                self.assertEqual(len(check_file(path, line + "\n")), 1)

    def test_allowed(self):
        for path, line in ALLOWED:
            with self.subTest(path=path, line=line):
                self.assertEqual(check_file(path, line + "\n"), [])

    def test_header_opening(self):
        good = OPENING + "#include <vector>\n"
        self.assertEqual(check_file("common/base/a.h", good), [])
        for text in (
            "#pragma once\n",
            "// What this is.\n#include <vector>\n",
            "// What this is.\n",
            "",
            "// a\n" * 6 + "#pragma once\n",
        ):
            with self.subTest(text=text):
                self.assertEqual(len(check_file("common/base/a.h", text)), 1)

    def test_highway_bodies_toggle(self):
        text = "// What this is.\n#if defined(A_INL_H) == defined(HWY_TARGET_TOGGLE)\n#endif\n"
        self.assertEqual(check_file("kernels/cpu/a-inl.h", text), [])
        self.assertEqual(len(check_file("kernels/cpu/a.h", text)), 1)

    def test_line_numbers(self):
        text = OPENING + '\n#include "receiver/apply.h"\n'
        self.assertTrue(check_file("sender/agent/a.h", text)[0].startswith("sender/agent/a.h:4: "))

    def test_contributing_has_the_same_table(self):
        # Messages and gRPC go with `proto`; the row of `kernels` has its inner rooms in words.
        implied = {*GROUND, "grpc", "protobuf"}
        rows = re.findall(r"^\| (`\w+.*?) \| (.*) \|$", CONTRIBUTING.read_text("utf-8"), re.M)
        table = {name: cell for head, cell in rows for name in re.findall(r"`([\w/]+)`", head)}
        self.assertEqual({r for r in ROOMS if not r.startswith("kernels/")}, ROOMS.keys() & table)
        for name in (ROOMS.keys() & table) - {"kernels", "bench", "tests"}:
            words = re.split(r"[,;] ", re.sub(r" \(.*?\)|`", "", table[name]))
            words = [w for w in words if not re.match(r"not |\W*never ", w)]
            inside, outside = set(), set()
            for word in words:
                paths = (word, f"common/{word}", f"sender/export/{word}", f"receiver/{word}")
                own = [p for p in paths if any(r.startswith(p) for r in ROOMS)]
                (inside if own else outside).add(own[0] if own else LIBRARIES.get(word, word.lower()))
            with self.subTest(name):
                self.assertEqual(inside, set(ROOMS[name].rooms))
                if ROOMS[name].outside != DAEMON:
                    self.assertEqual(outside - implied, {*ROOMS[name].outside} - implied)

    def test_longest_room_wins(self):
        self.assertEqual(room_of("kernels/cpu/a.h"), "kernels/cpu")
        self.assertEqual(room_of("kernels/cpus.h"), "kernels")
        self.assertIsNone(room_of("a.h"))


if __name__ == "__main__":
    unittest.main()
