"""What stands for vLLM's server in the tests of TRL's transfer; tests/engines has the real one."""

from __future__ import annotations

import http.server
import json
import pathlib
import ssl
import threading

import torch
from daemons import read_safetensors
from integrations_rig import Engine

from deltawire.engine import EngineClient

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


class ServerStandIn(http.server.ThreadingHTTPServer):
    """NOT vLLM: its endpoints over one model of this process and the real EngineClient, to see the
    order of the calls and what a refusal leads to. With `tls`, it speaks it; it wants `key` of each
    request, as a gateway would."""

    def __init__(self, model: Engine, tls: ssl.SSLContext | None = None, key: str = ""):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tls, self.key, self.pauses, self.unknown = tls, key, [], ()
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.model, self.client = model, None
        self.calls: list[str] = []
        self.refuse = ""
        self.paused = False
        self.update = None
        self.plugged = True  # the plug-in is there
        self.stale: list[dict] = []  # replies that nobody has read
        self.why_not = ""  # the model cannot be updated in place
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()

    def answer(self, path: str, body: dict) -> dict:
        """`path`: of the request, or the name of the plug-in's call."""
        if path == self.refuse and path.startswith("/"):
            raise RuntimeError("refused by the test")
        if path in ("/pause", "/resume"):
            self.paused = path == "/pause"
        if path.startswith("/"):
            return {"success": True}
        assert self.plugged, f"{path} of a server without the plug-in"
        self.options = {k: v for k, v in body["kwargs"].items() if k not in ("call", "nonce")}
        reason = "refused by the test" if path == self.refuse else self.step(path)
        self.stale.append({
            "nonce": body["kwargs"]["nonce"], "rank": 0, "ranks": 1, "replicas": 1,
            "ok": not reason, "reason": reason, "drifted": "drifted" in reason, "anew": False,
            "held": {"version": self.client.held.version} if self.client else None})
        return {"results": [self.stale.pop(0)]}

    def step(self, call: str) -> str:
        """What speaks against it."""
        if call == "attach":
            if self.why_not:
                return self.why_not
            self.client = EngineClient(self.options["directory"])
            attached = self.client.attach(self.model, self.model.load_weights)
            return attached.reason
        if call == "prepare":
            prepared = self.client.prepare()
            self.update = prepared.update
            return prepared.reason
        assert self.paused, f"{call} while it computes"
        if call == "prove":
            return "" if self.options["version"] == self.client.held.version else "another version"
        if call == "reload":
            content = read_safetensors(pathlib.Path(self.options["directory"], "model.safetensors"))
            self.model.load_weights((name, torch.frombuffer(
                bytearray(data), dtype=DTYPES[dtype]).view(shape))
                for name, (dtype, shape, data) in content.items())
            return ""
        assert call == "apply" and self.update.to.version == self.options["version"]
        return self.client.apply().reason


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if not self._lets_in():
            return
        if self.path == "/metrics":
            self._write(200, b"# of vLLM\n" + b"deltawire_plugin_calls 1.0\n" * self.server.plugged)
        else:
            self._answer(200, {"world_size": 1})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path, _, query = self.path.partition("?")
        if not self._lets_in():
            return
        if path in self.server.unknown:
            self._answer(404, {"detail": "Not Found"})
            return
        if path == "/collective_rpc":
            path = body["kwargs"]["call"]
        self.server.calls.append(path)
        if path == "/pause":
            self.server.pauses.append(query)
        try:
            self._answer(200, self.server.answer(path, body))
        except Exception as error:  # pylint: disable=broad-except  # as vLLM answers what is raised
            self._answer(500, {"error": str(error)})

    def _lets_in(self) -> bool:
        shown = self.headers.get("Authorization", "")
        if not self.server.key or shown == f"Bearer {self.server.key}":
            return True
        self._answer(401, {"error": f"Unauthorized: {shown}"})
        return False

    def _answer(self, status: int, body: dict):
        self._write(status, json.dumps(body).encode())

    def _write(self, status: int, body: bytes):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
