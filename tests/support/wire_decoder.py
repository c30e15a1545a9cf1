#!/usr/bin/env python3
"""Plain decoder of the bulk protocol, wire version 4: docs/wire_format.md, table by table.

A second implementation to check the first one against. Standard library only; checksums are
checked when the `xxhash` package is there, else only their places are. Raises Refused.
    wire_decoder.py FILE...    prints the frames of each file, one JSON object a line
"""

import json
import struct
import sys

try:
    import xxhash
except ImportError:
    xxhash = None

MAGIC = b"DWF1"
WIRE_VERSION = 4
HEADER = struct.Struct("<4sBBHIIQQQQQQ")
HEADER_BYTES = 64
HELLO = struct.Struct("<16sQQHHI")
HAVE = struct.Struct("<QQQQQIB3s")
HAVE_STATE = struct.Struct("<QQ")
HAVE_ENTRY = struct.Struct("<QQ")
END = struct.Struct("<QQQQQ")
ERROR = struct.Struct("<II")
XXH3_OF_NOTHING = 0x2D06800538D394C2
UNKNOWN = 2**64 - 1
assert HEADER.size == HEADER_BYTES and HELLO.size == 40 and HAVE.size == 48 and END.size == 40

# type: name, fields that it uses, largest payload
CHUNK_MAX = (8 << 20) + 4096
TYPES = {
    1: ("Hello", (), 8192),
    2: ("Welcome", (), 0),
    3: ("Have", (), 256 << 20),
    4: ("ChunkFull", ("chunk", "epoch", "version", "digest_after"), CHUNK_MAX),
    5: ("ChunkDelta", ("chunk", "epoch", "version", "digest_before", "digest_after"), CHUNK_MAX),
    6: ("End", ("epoch", "version"), 40),
    7: ("Ping", (), 0),
    8: ("Error", (), 8192),
}


class Refused(Exception):
    """The bytes are not a frame or payload of wire version 4."""


def require(ok, why):
    if not ok:
        raise Refused(why)


def xxh3(data):
    """XXH3-64, or None where it cannot be computed."""
    return xxhash.xxh3_64_intdigest(data) if xxhash else None


def decode_header(data):
    require(len(data) == HEADER_BYTES, f"header of {len(data)} bytes")
    (magic, wire_version, kind, reserved, chunk, payload_bytes, epoch, version, digest_before,
     digest_after, payload_xxh3, header_xxh3) = HEADER.unpack(data)
    require(magic == MAGIC, f"magic {magic!r}")
    require(wire_version == WIRE_VERSION, f"wire version {wire_version}")
    require(xxh3(data[:56]) in (None, header_xxh3), "header checksum")
    require(kind in TYPES, f"type {kind}")
    require(reserved == 0, f"reserved {reserved:#x}")
    name, used, limit = TYPES[kind]
    fields = {"chunk": chunk, "epoch": epoch, "version": version, "digest_before": digest_before,
              "digest_after": digest_after}
    for field, value in fields.items():
        require(value == 0 or field in used, f"{name} with {field} {value}")
    require(payload_bytes <= limit, f"{name} with a payload of {payload_bytes} bytes")
    if name == "ChunkFull":  # its payload is checked against digest_after
        require(payload_xxh3 == 0, "checksum of a whole chunk")
    else:
        require(payload_bytes or payload_xxh3 == XXH3_OF_NOTHING, "checksum of no payload")
    return {"wire_version": wire_version, "type": name, **fields, "payload_bytes": payload_bytes, "payload_xxh3": payload_xxh3}


def decode_hello(data):
    require(len(data) in (HELLO.size, HELLO.size + 32), f"Hello of {len(data)} bytes")
    ticket, low, high, stream, streams, reserved = HELLO.unpack_from(data)
    require(reserved == 0, f"Hello reserved {reserved:#x}")
    require(1 <= streams <= 64 and stream < streams, f"stream {stream} of {streams}")
    return {"ticket": ticket.hex(), "fingerprint": f"{high:016x}{low:016x}", "stream": stream,
            "streams": streams, "proof": data[HELLO.size:].hex()}


def decode_have(data):
    require(len(data) >= HAVE.size, f"Have of {len(data)} bytes")
    epoch, version, low, high, root, count, history, reserved = HAVE.unpack_from(data)
    require(reserved == bytes(3), f"Have reserved {reserved.hex()}")
    require(history <= 8, f"Have history {history}")
    entries_at = HAVE.size + HAVE_STATE.size * history
    depths_at = entries_at + HAVE_ENTRY.size * count
    require(len(data) == depths_at + (count if history else 0),
            f"Have of {count} chunks and {history} deltas, {len(data)} bytes")
    depths = list(data[depths_at:]) or [0] * count
    require(all(d <= history for d in depths), "Have: a depth above its history")
    return {"epoch": epoch, "version": version, "lineage": f"{high:016x}{low:016x}", "root": root,
            "chunks": [list(e) for e in HAVE_ENTRY.iter_unpack(data[entries_at:depths_at])],
            "history": [list(e) for e in HAVE_STATE.iter_unpack(data[HAVE.size:entries_at])],
            "depths": depths}


def decode_end(data):
    require(len(data) == END.size, f"End of {len(data)} bytes")
    low, high, root, attempt, side_files_hash = END.unpack(data)
    return {"lineage": f"{high:016x}{low:016x}", "root": root, "attempt": attempt,
            "side_files_hash": side_files_hash}


def decode_error(data):
    require(len(data) >= ERROR.size, f"Error of {len(data)} bytes")
    code, size = ERROR.unpack_from(data)
    require(size <= 4096 and len(data) == ERROR.size + size, f"Error says {size}, has {len(data)} bytes")
    require(1 <= code <= 16, f"Error code {code}")
    try:
        return {"code": code, "message": data[ERROR.size:].decode("utf-8")}
    except UnicodeDecodeError as e:
        raise Refused("Error message is not UTF-8") from e


PAYLOADS = {"Hello": decode_hello, "Have": decode_have, "End": decode_end, "Error": decode_error}


def decode_frames(data):
    """All frames of a byte string: (header, payload) where the payload is decoded if it can be."""
    frames = []
    while data:
        header = decode_header(data[:HEADER_BYTES])
        payload = data[HEADER_BYTES:HEADER_BYTES + header["payload_bytes"]]
        require(len(payload) == header["payload_bytes"], "payload cut short")
        if header["type"] != "ChunkFull":
            require(xxh3(payload) in (None, header["payload_xxh3"]), "payload checksum")
        data = data[HEADER_BYTES + len(payload):]
        frames.append((header, PAYLOADS.get(header["type"], bytes.hex)(payload)))
    return frames


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as f:
            for header, payload in decode_frames(f.read()):
                print(json.dumps({**header, "payload": payload}))


if __name__ == "__main__":
    main()
