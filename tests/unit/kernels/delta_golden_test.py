#!/usr/bin/env python3
"""The delta format by its second implementation (tests/support/delta_*coder.py): it must read the
golden files and the document's examples, and write the same bytes.

    delta_golden_test.py --golden DIR --doc FILE --maker PROGRAM [--seed S --cases N]

PROGRAM (make_delta_golden) makes the inputs of the golden files in a temporary directory, and N
random cases in another, which must hold as well.
"""

import argparse
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import delta_decoder as decoder
import delta_encoder as encoder
import delta_tight as tight_codec
from delta_decoder import Refused, need


# Cases and depths with tight payloads of foreign parameters; see make_delta_foreign.py.
FOREIGN = [("bf16", 0), ("bf16", 8), ("fp32", 2), ("e4m3", 1), ("none_w8", 8), ("lanes4", 2)]


def entry_of(directory, name):
    manifest = json.loads((directory / "manifest.json").read_text())
    return next(entry for entry in manifest["cases"] if entry["name"] == name)


class Case:
    """One case of a manifest; see tests/support/make_delta_golden.cc."""

    def __init__(self, directory, inputs, entry):
        self.directory, self.entry, self.name = directory, entry, entry["name"]
        self.width, self.n = entry["width"], entry["elements"]
        self.old = (inputs / self.name / "base.bin").read_bytes()
        past = (inputs / self.name / "past.bin").read_bytes() if entry["past"] else b""
        self.past = []
        for size in entry["past"]:  # newest first
            self.past.append(past[:size])
            past = past[size:]
        need(not past, "past is longer than the manifest says")
        for payload in reversed(self.past):
            if payload:
                self.old = decoder.apply(self.old, self.decode_fast(payload), self.width)
        self.fast = self.read("fast")

    def read(self, part):
        return (self.directory / self.name / (part + ".bin")).read_bytes()

    def decode_fast(self, payload):
        return decoder.decode_fast(payload, self.n * self.width, self.width)

    def check(self, digest):
        changes = self.decode_fast(self.fast)
        new = decoder.apply(self.old, changes, self.width)
        need(len(changes) == self.entry["changed"], "changed")
        need("%016x" % digest.of(self.old) == self.entry["digest_old"], "digest of old")
        need("%016x" % digest.of(new) == self.entry["digest_new"], "digest of new")
        need(encoder.differences(self.old, new, self.width) == changes, "differences")
        need(encoder.encode_fast(changes, self.n, self.width) == self.fast, "fast is another")
        check_damage(self.fast, self.decode_fast, changes)
        for tight in self.entry["tight"]:
            self.check_tight(changes, tight["depth"], tight["bytes"])

        if self.entry["dense"]:
            decode = lambda payload: decoder.decode_dense(payload, self.n * self.width, self.width)
            dense = self.read("dense")
            need(decode(dense) == changes, "dense decodes to another")
            check_damage(dense, decode, None)

    def check_tight(self, changes, depth, size):
        past = self.past[:depth]
        ours = encoder.encode_tight(changes, self.old, self.width, self.entry["function"], past)
        if size == 0:
            need(len(ours) >= len(self.fast), "tight would be smaller, depth %d" % depth)
            return
        theirs = self.read("tight%d" % depth)
        decode = lambda payload: tight_codec.decode_tight(payload, self.old, self.width, past)
        need(decode(theirs) == changes, "tight decodes to another, depth %d" % depth)
        need(ours == theirs, "tight is another, depth %d" % depth)
        if self.n < 10000:
            check_damage(theirs, decode, None)


def check_foreign(directory, inputs):
    for name, depth in FOREIGN:
        case = Case(directory, inputs, entry_of(directory, name))
        payload = case.read("foreign%d" % depth)
        changes = tight_codec.decode_tight(payload, case.old, case.width, case.past[:depth])
        need(changes == case.decode_fast(case.fast), "foreign parameters of " + name)
    print("%d payloads with foreign parameters" % len(FOREIGN))


def check_damage(payload, decode, changes):
    """Cut, it is refused; with a wrong bit refused or, where `changes` are given, another delta."""
    for cut in range(0, len(payload), 1 + len(payload) // 8):
        expect_refused(lambda: decode(payload[:cut]), "cut to %d bytes" % cut)
    expect_refused(lambda: decode(payload + b"\0"), "with a byte more")
    draw = random.Random(len(payload))
    for _ in range(8):
        damaged = bytearray(payload)
        bit = draw.randrange(8 * len(payload))
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            other = decode(bytes(damaged))
        except Refused:
            continue
        need(changes is None or other != changes, "bit %d does not matter" % bit)


def expect_refused(action, what):
    try:
        action()
    except Refused:
        return
    raise Refused("accepted " + what)


def check_directory(directory, inputs, least):
    manifest = json.loads((directory / "manifest.json").read_text())
    digest = decoder.Digest(manifest["key_seed"])
    need(manifest["format"] == 3 and len(manifest["cases"]) >= least, "manifest")
    failed = 0
    for entry in manifest["cases"]:
        try:
            Case(directory, inputs, entry).check(digest)
        except Refused as problem:
            print("FAIL %s: %s" % (entry["name"], problem))
            failed += 1
    print("%d cases of %s, %d failed" % (len(manifest["cases"]), directory.name, failed))
    return failed


def example(doc, title):
    """The bytes of the first fenced block below a heading; a line's comment starts after two
    spaces."""
    section = doc.read_text().split("\n### %s\n" % title, 1)[1]
    lines = section.split("```\n", 2)[1].splitlines()
    return bytes.fromhex("".join(line.split("  ")[0] for line in lines))


def check_doc(doc):
    old = b"\x80\x3f" * 300
    changes = [(0, 1), (2, -1), (259, -0x8000)]
    fast = example(doc, "fast, an example")
    need(decoder.decode_fast(fast, len(old), 2) == changes, "the example of fast")
    need(encoder.encode_fast(changes, 300, 2) == fast, "the example of fast is another")

    old = b"".join(b"\x80\x00" if i % 10 == 0 else b"\x80\x3f" for i in range(300))
    changes = [(50, 1), (100, -1), (130, 1), (250, 3)]
    tight = example(doc, "tight, an example")
    need(tight_codec.decode_tight(tight, old, 2) == changes, "the example of tight")
    need(encoder.encode_tight(changes, old, 2, 1) == tight, "the example of tight is another")

    dense = example(doc, "dense, an example")
    need(decoder.decode_dense(dense, 16, 2) == [(i, 1) for i in range(8)], "the example of dense")

    section = doc.read_text().split("\n### root, an example\n", 1)[1]
    digests = {}
    for row in re.findall(r"^\| (\d+) \| `(\w+)` \| `(\w+)` \| `(\w+)` \|$", section, re.MULTILINE):
        chunk, (digest, term, root) = int(row[0]), (int(field, 16) for field in row[1:])
        need(decoder.root_term(chunk, digest) == term, "the term of chunk %d" % chunk)
        record = struct.pack("<QQ", chunk, digest)
        need(tight_codec.xxh3(record) == term, "the term of chunk %d is not XXH3-64" % chunk)
        digests[chunk] = digest
        need(decoder.root_of(digests) == root, "the root of chunks 0 to %d" % chunk)
    need(len(digests) == 3, "the example of root has three chunks")
    print("4 examples of %s" % doc.name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--golden", type=pathlib.Path, required=True)
    parser.add_argument("--doc", type=pathlib.Path, required=True)
    parser.add_argument("--maker", required=True)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--cases", default="100")
    arguments = parser.parse_args()
    try:
        check_doc(arguments.doc)
        with tempfile.TemporaryDirectory() as temporary:
            inputs, made = pathlib.Path(temporary, "inputs"), pathlib.Path(temporary, "random")
            subprocess.run([arguments.maker, inputs], check=True)
            failed = check_directory(arguments.golden, inputs, 23)
            check_foreign(arguments.golden, inputs)
            subprocess.run([arguments.maker, made, "--random", arguments.seed, arguments.cases],
                           check=True)
            print("seed %s:" % arguments.seed)
            failed += check_directory(made, made, int(arguments.cases))
    except Refused as problem:
        print("FAIL %s" % problem)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
