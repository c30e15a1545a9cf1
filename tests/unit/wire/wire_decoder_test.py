"""Golden files and the document's example, read by the Python decoder. Values are written out here,
so that a mistake shared by the C++ writer and reader does not pass."""

import argparse
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import wire_decoder as wd  # noqa: E402

ARGS = argparse.Namespace()

A7, B7, B9 = 0xA70000000000000A, 0xB70000000000000B, 0xB90000000000000B
C9, C10 = 0xC90000000000000C, 0xCA0000000000000C
HELLO = {"ticket": "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf", "stream": 0, "streams": 1,
         "proof": ""}
LINEAGE = "11e0a6e10000000211e0a6e100000001"
HAVE = {"epoch": 1, "version": 7, "lineage": LINEAGE, "root": 0x2007000000000007,
        "chunks": [[7, A7], [7, B7], [wd.UNKNOWN, 0]], "history": [[1, 6], [1, 5]],
        "depths": [2, 1, 0]}
END = {"lineage": LINEAGE, "root": 0x200A00000000000A, "attempt": 0xA77E00000000000A,
       "side_files_hash": 0x51DE000000000001}
OLD_VERSIONS = (1, 2, 3)
ERROR = {"code": 9, "message": "the receiver has version 12, the newest here is 10 \u2014 "
                               "check the sender's address"}
# file: type, chunk, epoch, version, digest_before, digest_after, payload bytes
HEADERS = {
    "hello": ("Hello", 0, 0, 0, 0, 0, 40),
    "welcome": ("Welcome", 0, 0, 0, 0, 0, 0),
    "have": ("Have", 0, 0, 0, 0, 0, 48 + 3 * 16 + 2 * 16 + 3),
    "ping": ("Ping", 0, 0, 0, 0, 0, 0),
    "chunk_delta": ("ChunkDelta", 1, 1, 9, B7, B9, 11),
    "chunk_full": ("ChunkFull", 2, 1, 9, 0, C9, 4),
    "chunk_lift": ("ChunkDelta", 2, 1, 10, C9, C10, 12),
    "end": ("End", 0, 1, 10, 0, 0, 40),
    "error": ("Error", 0, 0, 0, 0, 0, 8 + len(ERROR["message"].encode())),
}
FIELDS = ("type", "chunk", "epoch", "version", "digest_before", "digest_after", "payload_bytes")


def golden(name, version=wd.WIRE_VERSION):
    return pathlib.Path(ARGS.golden, f"wire_v{version}/{name}.bin").read_bytes()


def document_frames():
    text = pathlib.Path(ARGS.doc).read_text(encoding="utf-8")
    example = text.split("<!-- example begins -->")[1].split("<!-- example ends -->")[0]
    frames = []
    for title, body in re.findall(r"^# (\w+) .*\n((?:[0-9a-f]{4}  .*\n)+)", example, re.M):
        frames.append((title, bytes.fromhex("".join(l[6:] for l in body.splitlines()))))
    return frames


class GoldenTest(unittest.TestCase):
    def check_header(self, name, header):
        self.assertEqual([header[f] for f in FIELDS], list(HEADERS[name]), name)
        self.assertEqual(header["wire_version"], wd.WIRE_VERSION)

    def check_payload(self, name, payload):
        if name == "hello":
            fingerprint = payload.pop("fingerprint")
            self.assertIn(f"`{fingerprint}`", pathlib.Path(ARGS.doc).read_text(encoding="utf-8"))
        self.assertEqual(payload, {"hello": HELLO, "have": HAVE, "end": END, "error": ERROR}[name])

    def test_headers(self):
        for name in HEADERS:
            self.check_header(name, wd.decode_header(golden("header_" + name)))

    def test_payloads(self):
        proven = wd.decode_hello(golden("payload_hello_proof"))
        self.assertEqual(proven["proof"], bytes(range(0xC0, 0xE0)).hex())
        for name, decode in (("hello", wd.decode_hello), ("have", wd.decode_have),
                             ("end", wd.decode_end), ("error", wd.decode_error)):
            self.check_payload(name, decode(golden("payload_" + name)))

    def test_old_versions(self):
        for version in OLD_VERSIONS:
            for name in HEADERS:
                with self.assertRaisesRegex(wd.Refused, f"wire version {version}"):
                    wd.decode_header(golden("header_" + name, version))

    def test_document(self):
        frames = document_frames()
        self.assertEqual([title for title, _ in frames], list(HEADERS))
        stream = b"".join(data for _, data in frames)
        for (title, data), (header, payload) in zip(frames, wd.decode_frames(stream), strict=True):
            self.check_header(title, header)
            self.assertEqual(data[:64], golden("header_" + title))
            if isinstance(payload, dict):
                self.check_payload(title, payload)
                self.assertEqual(data[64:], golden("payload_" + title))


class RefusalTest(unittest.TestCase):
    def test_truncated_and_trailing(self):
        for name, decode in (("header_end", wd.decode_header), ("payload_hello", wd.decode_hello),
                             ("payload_have", wd.decode_have), ("payload_end", wd.decode_end),
                             ("payload_error", wd.decode_error)):
            data = golden(name)
            for bad in [data[:n] for n in range(len(data))] + [data + b"\0"]:
                with self.assertRaises(wd.Refused, msg=name):
                    decode(bad)

    def test_depth_beyond_history(self):
        data = bytearray(golden("payload_have"))
        data[-1] = 3
        with self.assertRaises(wd.Refused):
            wd.decode_have(bytes(data))

    def test_fields(self):
        # Byte to spoil in a Ping's header: magic, version, type, reserved, unused fields, length.
        for at in (0, 4, 5, 6, 7, 8, 12, 16, 24, 32, 40, 48):
            data = bytearray(golden("header_ping"))
            data[at] ^= 0x80
            with self.assertRaises(wd.Refused, msg=f"byte {at}"):
                wd.decode_header(bytes(data))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--golden", required=True)
    parser.add_argument("--doc", required=True)
    parser.parse_known_args(namespace=ARGS)
    unittest.main(argv=sys.argv[:1])
