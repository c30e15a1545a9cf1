"""Asks a daemon's gRPC health service as a kubelet does, with nothing but a socket.

HTTP/2 and HPACK are spoken just far enough for one call with literal headers; a library for gRPC
would be another package that this project's tests need.
"""

from __future__ import annotations

import socket
import struct

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    """A literal that is not indexed; both parts are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the daemon closed the connection")
        parts += part
    return parts


def answer(host: str, port: int, timeout: float = 5.0) -> bytes:
    """The message of grpc.health.v1.Health/Check for the whole server; OSError if there is none."""
    headers = b"".join(
        _header(name, value)
        for name, value in (
            (b":method", b"POST"), (b":scheme", b"http"),
            (b":path", b"/grpc.health.v1.Health/Check"), (b":authority", b"probe"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers"),
        )
    )  # fmt: skip
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(SETTINGS, 0, 0, b"")
            + _frame(HEADERS, END_HEADERS, 1, headers)
            + _frame(DATA, END_STREAM, 1, b"\x00" + struct.pack(">I", 0))
        )
        body = b""
        while True:
            size, kind, flags, stream = struct.unpack(">IBBI", b"\x00" + _exactly(connection, 9))
            payload = _exactly(connection, size)
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(_frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                connection.sendall(_frame(PING, ACK, 0, payload))
            elif kind == GOAWAY:
                raise ConnectionError(f"the daemon went away: {payload!r}")
            elif stream == 1 and kind == DATA:
                body += payload
            if stream == 1 and kind in (DATA, HEADERS) and flags & END_STREAM:
                return body[5:]  # after the message's flag and length


def serving(host: str, port: int) -> bool:
    try:
        return answer(host, port) == SERVING
    except OSError:
        return False
