"""What stands for vLLM's server in the tests of TRL's transfer; tests/engines has the real one."""

from __future__ import annotations

import http.server
import json
import ssl
import threading

from integrations_rig import Engine

from deltawire.engine import EngineClient


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
        self.paused = self.active = False
        self.update = None
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
        if path == "/update_weights" and path == self.refuse:
            self.active = False  # vLLM's session ends with an error
        if path == self.refuse:
            raise RuntimeError("refused by the test")
        if path == "/init_weight_transfer_engine":
            self.client = EngineClient(body["init_info"]["directory"])
            attached = self.client.attach(self.model, self.model.load_weights)
            assert attached, attached.reason
        elif path == "/start_weight_update":
            assert not self.active, "an update is active already"
            prepared = self.client.prepare()
            assert prepared, prepared.reason
            self.update, self.active = prepared.update, True
        elif path == "/finish_weight_update":
            assert self.active, "no update is active"
            self.active = False
        elif path in ("/pause", "/resume"):
            self.paused = path == "/pause"
        elif path == "/update_weights":
            assert self.active and self.paused
            assert self.update.to.version == body["update_info"]["version"]
            done = self.client.apply()
            assert done, done.reason
        return {"success": True}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self._lets_in():
            self._answer(200, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path, _, query = self.path.partition("?")
        if not self._lets_in():
            return
        if path in self.server.unknown:
            self._answer(404, {"detail": "Not Found"})
            return
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
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass
