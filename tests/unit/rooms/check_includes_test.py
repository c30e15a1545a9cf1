"""The scan itself: what it must find and what it must let pass."""

import unittest

from check_includes import check_file, room_of, rooms_named
from rooms_table import ROOMS, THIRD_PARTY, table

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
    ("cli/synth/a.cc", '#include "bench/report.h"'),
    ("common/base/a.cc", '#include "tests/support/temp_dir.h"'),
    ("cli/synth/a.cc", '#include "cli/publisher.h"'),
    ("cli/synth/a.cc", '#include "common/wire/frame.h"'),
    ("sender/agent/a.cc", '#include "cli/synth/trace.h"'),
    ("receiver/a.cc", '#include "cli/synth/trace.h"'),
    ("common/base/a.cc", '  #  include "common/wire/frame.h"'),
    ("common/base/a.cc", '#include "bytes.h"'),
    ("common/base/a.cc", '#include "simulated_sync.h"'),
    ("common/base/a.cc", "#include <common/base/bytes.h>"),
    ("python/a.cc", '#include "receiver/engine_client/engine_weights.h"'),
    ("receiver/engine_client/abi/a.cc", '#include "sender/export/abi/c_abi.h"'),
    ("python/a.cc", '#include "proto/deltawire/v1/trainer.grpc.pb.h"'),
    ("sender/export/client/a.cc", "#include <pybind11/pybind11.h>"),
    ("nowhere/a.cc", "#include <vector>"),
    # A folder's room does not have the rooms in it, nor has who may include that folder's room.
    ("receiver/a.cc", '#include "receiver/engine_client/engine_weights.h"'),
    ("receiver/a.cc", '#include "receiver/disk_delta/disk_delta.h"'),
    ("receiver/relay/a.cc", '#include "receiver/engine/engines.h"'),
    ("receiver/relay/a.cc", '#include "receiver/disk_delta/disk_delta.h"'),
    ("receiver/engine_client/a.cc", '#include "receiver/engine_client/abi/deltawire_engine.h"'),
    ("proto/a.cc", '#include "proto/serving/pull_service.h"'),
    ("sender/export/client/a.cc", '#include "proto/serving/pull_service.h"'),
    ("sender/export/megatron/a.cc", '#include "sender/export/abi/deltawire_export.h"'),
    ("kernels/cpu/a.cc", '#include "kernels/cpu/highway/highway.h"'),
    ("sender/agent/a.cc", '#include "kernels/cuda/launch.h"'),
    ("common/delta/a.cc", '#include "kernels/cpu/tight.h"'),
    ("receiver/a.cc", "#include <prometheus/registry.h>"),
    ("sender/agent/a.cc", "#include <boost/asio.hpp>"),
    # What nobody has named is not taken for the system's.
    ("common/base/a.cc", "#include <curl/curl.h>"),
    ("common/base/a.cc", "#include <numa.h>"),
    ("common/base/a.cc", "#include <curses.h>"),
    ("common/layout/a.cc", "#include <xxh_x86dispatch.h>"),
    ("common/base/a.hpp", "#include <vector>"),  # opens without a comment
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
    ("cli/a.cc", '#include "cli/synth/trace.h"'),
    ("tests/unit/base/a.cc", '#include "receiver/apply.h"'),
    ("cli/synth/a.cc", '#include "common/layout/layout.h"'),
    ("bench/a.cc", '#include "cli/synth/trace.h"'),
    ("bench/a.cc", '#include "sender/agent/agent.h"'),
    ("python/a.cc", '#include "sender/export/abi/deltawire_export.h"'),
    ("python/a.cc", '#include "receiver/engine_client/abi/deltawire_engine.h"'),
    ("python/a.cc", "#include <pybind11/pybind11.h>"),
    ("common/base/a.cc", '// #include "common/wire/frame.h"'),
    ("kernels/a.cc", '#include "kernels/cpu/highway/highway.h"'),
    ("sender/export/gather/a.cc", '#include "kernels/cuda/portable.h"'),
    ("receiver/a.cc", '#include "receiver/engine/engines.h"'),
    ("receiver/a.cc", '#include "proto/serving/pull_service.h"'),
    ("cli/a.cc", "#include <curses.h>"),
    ("cli/a.cc", "#include <netinet/tcp.h>"),
    ("common/base/a.cc", "#include <stdint.h>"),
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

    def test_the_printed_table_has_every_room_once_with_its_purpose(self):
        heads = [line for line in table().splitlines() if not line.startswith(" ")]
        self.assertEqual(heads, [f"{name}: {room.purpose}" for name, room in ROOMS.items()])
        self.assertEqual([name for name, room in ROOMS.items() if not room.purpose], [])
        self.assertEqual(len(table("kernels/cpu").splitlines()), 4)

    def test_benchmarks_and_tests_may_include_anything(self):
        for name in ("bench", "tests"):
            self.assertEqual(rooms_named(ROOMS[name].rooms[0]), ROOMS.keys())
            self.assertEqual({*ROOMS[name].outside}, THIRD_PARTY.keys())

    def test_names_of_the_table_are_rooms_and_libraries(self):
        for name, room in ROOMS.items():
            with self.subTest(name):
                self.assertEqual([n for n in room.rooms if not rooms_named(n)], [])
                self.assertLessEqual({*room.outside}, THIRD_PARTY.keys())

    def test_nobody_includes_benchmarks_and_tests_and_only_the_tool_draws_weights(self):
        for name in ROOMS.keys() - {"bench", "tests"}:
            granted = {room for n in ROOMS[name].rooms for room in rooms_named(n)}
            with self.subTest(name):
                self.assertLessEqual(granted & {"bench", "cli/synth", "tests"},
                                     {"cli/synth"} if name == "cli" else set())

    def test_the_receiver_never_includes_the_sender(self):
        for name in ROOMS:
            if name.split("/")[0] != "receiver":
                continue
            granted = {room for n in ROOMS[name].rooms for room in rooms_named(n)}
            with self.subTest(name):
                self.assertEqual([room for room in granted if room.startswith("sender/")], [])

    def test_longest_room_wins(self):
        self.assertEqual(room_of("kernels/cpu/a.h"), "kernels/cpu")
        self.assertEqual(room_of("kernels/cpus.h"), "kernels")
        self.assertIsNone(room_of("a.h"))


if __name__ == "__main__":
    unittest.main()
