"""What `compatibility.py` must find and what it must let pass: each break is planted in an API of
this test's own, and one in a copy of the tree's.

    compatibility_test.py PROTOC
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import compatibility as api

PROTOC = "protoc"
SAMPLE = """\
syntax = "proto3";
package sample.v1;

message Thing {
  reserved 7, 20 to 29;
  reserved "gone";
  uint64 size = 1;
  string name = 2;
  repeated uint32 parts = 3;
  optional bool sure = 4;
  Inner inner = 5;
  oneof which {
    string left = 8;
    string right = 9;
  }
  map<string, uint64> counts = 10;
  message Inner {
    double seconds = 1;
  }
}
message Other {
  Thing thing = 1;
}
enum Level {
  LEVEL_NONE = 0;
  LEVEL_LOW = 1;
  LEVEL_HIGH = 2;
}
service Things {
  rpc Get(Other) returns (Thing);
  rpc Watch(Other) returns (stream Thing);
}
service More {
  rpc Put(Thing) returns (Other);
}
"""
# What is done to the sample (old text, new text, ...), and the one line that must be said of it.
BREAKS = {
    "a field is removed": (
        ("  uint64 size = 1;\n", ""),
        'field sample.v1.Thing.size (1) is gone without `reserved 1; reserved "size";`',
    ),
    "a field is removed, its number alone reserved": (
        ("  uint64 size = 1;\n", "  reserved 1;\n"),
        'field sample.v1.Thing.size (1) is gone without `reserved "size";`',
    ),
    "a field is removed, its name alone reserved": (
        ("  uint64 size = 1;\n", '  reserved "size";\n'),
        "field sample.v1.Thing.size (1) is gone without `reserved 1;`",
    ),
    "a field takes another number": (
        ("  uint64 size = 1;\n", "  uint64 size = 11;\n"),
        'field sample.v1.Thing.size (1) is gone without `reserved 1; reserved "size";`',
    ),
    "a number is used again": (
        ("uint64 size = 1;", "uint64 extent = 1;"),
        "field sample.v1.Thing 1 was `size single uint64 json=size` and is"
        " `extent single uint64 json=extent`",
    ),
    "a reserved number is used": (
        ("reserved 7, 20 to 29;", "string again = 7; reserved 20 to 29;"),
        "sample.v1.Thing does not reserve 7 to 7 any more",
    ),
    "a range of reserved numbers gets a hole": (
        ("20 to 29;", "20 to 24, 26 to 29;"),
        "sample.v1.Thing does not reserve 20 to 29 any more",
    ),
    "a reserved name is used": (
        ('  reserved "gone";\n', "  string gone = 12;\n"),
        'sample.v1.Thing does not reserve "gone" any more',
    ),
    "a type changes": (
        ("uint64 size", "int64 size"),
        "field sample.v1.Thing 1 was `size single uint64 json=size` and is"
        " `size single int64 json=size`",
    ),
    "a type changes to another of the same size": (
        ("uint64 size", "fixed64 size"),
        "field sample.v1.Thing 1 was `size single uint64 json=size` and is"
        " `size single fixed64 json=size`",
    ),
    "a message's type changes": (
        ("Inner inner = 5", "Other inner = 5"),
        "field sample.v1.Thing 5 was `inner single sample.v1.Thing.Inner json=inner` and is"
        " `inner single sample.v1.Other json=inner`",
    ),
    "a map's value changes": (
        ("map<string, uint64>", "map<string, uint32>"),
        "field sample.v1.Thing.CountsEntry 2 was `value single uint64 json=value` and is"
        " `value single uint32 json=value`",
    ),
    "a single field is repeated": (
        ("string name", "repeated string name"),
        "field sample.v1.Thing 2 was `name single string json=name` and is"
        " `name repeated string json=name`",
    ),
    "a repeated field is single": (
        ("repeated uint32 parts", "uint32 parts"),
        "field sample.v1.Thing 3 was `parts repeated uint32 json=parts` and is"
        " `parts single uint32 json=parts`",
    ),
    "a field's presence goes": (
        ("optional bool sure", "bool sure"),
        "field sample.v1.Thing 4 was `sure optional bool json=sure` and is"
        " `sure single bool json=sure`",
    ),
    "a JSON name changes": (
        ("string name = 2;", 'string name = 2 [json_name = "label"];'),
        "field sample.v1.Thing 2 was `name single string json=name` and is"
        " `name single string json=label`",
    ),
    "a field moves into a oneof": (
        ("  string name = 2;\n", "", "    string left = 8;", "string name = 2; string left = 8;"),
        "field sample.v1.Thing 2 was `name single string json=name` and is"
        " `name single string json=name oneof=which`",
    ),
    "a message is removed": (
        ("  Inner inner = 5;\n", '  reserved 5; reserved "inner";\n',
         "  message Inner {\n    double seconds = 1;\n  }\n", ""),
        "message sample.v1.Thing.Inner is gone",
    ),
    "a value of an enum is removed": (
        ("  LEVEL_HIGH = 2;\n", ""),
        'value sample.v1.Level.LEVEL_HIGH (2) is gone without `reserved 2; reserved "LEVEL_HIGH";`',
    ),
    "a value of an enum is renamed": (
        ("LEVEL_HIGH", "LEVEL_MOST"),
        "value sample.v1.Level 2 was `LEVEL_HIGH` and is `LEVEL_MOST`",
    ),
    "an enum is removed": (
        ("enum Level {\n  LEVEL_NONE = 0;\n  LEVEL_LOW = 1;\n  LEVEL_HIGH = 2;\n}\n", ""),
        "enum sample.v1.Level is gone",
    ),
    "an RPC is removed": (
        ("  rpc Get(Other) returns (Thing);\n", ""), "rpc sample.v1.Things.Get is gone"
    ),
    "an RPC is renamed": (("rpc Get(", "rpc Fetch("), "rpc sample.v1.Things.Get is gone"),
    "an RPC's request changes": (
        ("rpc Get(Other)", "rpc Get(Thing)"),
        "rpc sample.v1.Things.Get was `(sample.v1.Other) returns (sample.v1.Thing)` and is"
        " `(sample.v1.Thing) returns (sample.v1.Thing)`",
    ),
    "an RPC's answer changes": (
        ("rpc Get(Other) returns (Thing)", "rpc Get(Other) returns (Other)"),
        "rpc sample.v1.Things.Get was `(sample.v1.Other) returns (sample.v1.Thing)` and is"
        " `(sample.v1.Other) returns (sample.v1.Other)`",
    ),
    "an RPC's answer becomes a stream": (
        ("rpc Get(Other) returns (Thing)", "rpc Get(Other) returns (stream Thing)"),
        "rpc sample.v1.Things.Get was `(sample.v1.Other) returns (sample.v1.Thing)` and is"
        " `(sample.v1.Other) returns (stream sample.v1.Thing)`",
    ),
    "an RPC's stream becomes one answer": (
        ("returns (stream Thing)", "returns (Thing)"),
        "rpc sample.v1.Things.Watch was `(sample.v1.Other) returns (stream sample.v1.Thing)` and is"
        " `(sample.v1.Other) returns (sample.v1.Thing)`",
    ),
    "an RPC's request becomes a stream": (
        ("rpc Put(Thing)", "rpc Put(stream Thing)"),
        "rpc sample.v1.More.Put was `(sample.v1.Thing) returns (sample.v1.Other)` and is"
        " `(stream sample.v1.Thing) returns (sample.v1.Other)`",
    ),
    "a service is removed": (
        ("service More {\n  rpc Put(Thing) returns (Other);\n}\n", ""),
        "service sample.v1.More is gone",
    ),
    "the package is renamed": (
        ("package sample.v1;", "package sample.v2;"),
        "package sample.v1 is gone, and all that was in it",
    ),
}
ALLOWED = {
    "nothing": (),
    "a field": ("uint64 size = 1;", "uint64 size = 1; uint64 extent = 11;"),
    "a field in a new oneof": ("uint64 size = 1;", "uint64 size = 1; oneof n { bool m = 11; }"),
    "a message": ("enum Level", "message New { Thing thing = 1; }\nenum Level"),
    "an enum": ("enum Level", "enum New { NEW_NONE = 0; }\nenum Level"),
    "a value of an enum": ("LEVEL_LOW = 1;", "LEVEL_LOW = 1; LEVEL_MOST = 3;"),
    "an RPC": ("rpc Get(", "rpc List(Other) returns (stream Other);\n  rpc Get("),
    "a service": ("service Things", "service New {}\nservice Things"),
    "a comment, and another order": (
        "  uint64 size = 1;\n  string name = 2;",
        "  string name = 2;  // a name\n  uint64 size = 1;",
    ),
    "a field is removed as it should be": (
        "  uint64 size = 1;\n", '  reserved 1; reserved "size";\n'
    ),
    "a value of an enum is removed as it should be": (
        "  LEVEL_HIGH = 2;\n", '  reserved 2; reserved "LEVEL_HIGH";\n'
    ),
    "reserved numbers grow": ("reserved 7, 20 to 29;", "reserved 7, 18 to 30;"),
    "reserved numbers are cut in two": ("20 to 29;", "20 to 24, 25 to 29;"),
}


class CompatibilityTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def facts(self, text: str) -> api.Facts:
        proto = self.root / "proto" / "sample.proto"
        proto.parent.mkdir(exist_ok=True)
        proto.write_text(text, "utf-8")
        return api.facts_of_tree(self.root, PROTOC)

    def changed(self, edits: tuple[str, ...]) -> list[str]:
        text = SAMPLE
        for old, new in zip(edits[::2], edits[1::2]):
            self.assertEqual(text.count(old), 1, f"{old!r} is not there once")
            text = text.replace(old, new)
        # Through the baseline's own form, which must lose nothing.
        return api.breaks(api.read(api.write(self.facts(SAMPLE))), self.facts(text))

    def test_each_break_is_found(self):
        for name, (edits, said) in BREAKS.items():
            with self.subTest(name):
                self.assertEqual(self.changed(edits), [said])

    def test_additions_pass(self):
        for name, edits in ALLOWED.items():
            with self.subTest(name):
                self.assertEqual(self.changed(edits), [])

    def test_the_baseline_keeps_every_fact(self):
        facts = self.facts(SAMPLE)
        self.assertEqual(api.read(api.write(facts)), facts)
        self.assertEqual(len(facts), 29)

    def test_a_break_in_the_tree_ends_with_an_error(self):
        shutil.copytree(api.ROOT / "proto", self.root / "proto")
        baseline = self.root / "api.txt"
        command = [sys.executable, "-B", api.__file__, "--protoc", PROTOC, "--root", self.root]

        def run(what: str) -> subprocess.CompletedProcess:
            return subprocess.run([*command, what, baseline], capture_output=True, text=True)

        self.assertEqual(run("renew").returncode, 0)
        self.assertEqual(run("check").returncode, 0)
        common = self.root / "proto" / "deltawire" / "v1" / "common.proto"
        text = common.read_text("utf-8")
        self.assertEqual(text.count("string dtype = 2;"), 1)
        common.write_text(text.replace("string dtype = 2;", "string dtype = 4;"), "utf-8")
        done = run("check")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("field deltawire.v1.TensorMeta.dtype (2) is gone", done.stdout)
        baseline.write_text("# nothing\n", "utf-8")
        self.assertEqual(run("check").returncode, 1)


if __name__ == "__main__":
    PROTOC = sys.argv.pop(1)
    unittest.main()
