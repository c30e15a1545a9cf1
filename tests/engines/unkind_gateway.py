"""A gateway between a receiver and an engine that loses answers, and that asks twice."""

from __future__ import annotations

import http.client
import http.server
import threading

from daemons import DEADLINE_S

#: Headers of one connection, which are not passed on.
_OF_A_CONNECTION = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Gateway:
    """A context manager. `port`: where it listens; `to`: the engine's."""

    def __init__(self, to: int):
        self._to = to
        self._lock = threading.Lock()
        self._fault: tuple[str, str] | None = None
        self.met = threading.Event()  # the next request that has the fault's words has come
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Gateway:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def lose(self, words: str) -> None:
        """The engine carries out the next request that has these words in its path or body, and its
        answer never comes: the connection is closed."""
        self._plan("lose", words)

    def repeat(self, words: str) -> None:
        """The engine gets the next such request twice, and its second answer is the one that comes."""
        self._plan("repeat", words)

    def _plan(self, what: str, words: str) -> None:
        with self._lock:
            self._fault = what, words
            self.met.clear()

    def _meets(self, request: str) -> str:
        with self._lock:
            if self._fault is None or self._fault[1] not in request:
                return ""
            what, self._fault = self._fault[0], None
        self.met.set()
        return what

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes):
        connection = http.client.HTTPConnection("127.0.0.1", self._to, timeout=DEADLINE_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _handler(gateway):  # pylint: disable=no-self-argument  # `self` is the request below
        class Handler(http.server.BaseHTTPRequestHandler):
            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name: value for name, value in self.headers.items()
                           if name.lower() not in _OF_A_CONNECTION}
                fault = gateway._meets(f"{self.path} {body.decode(errors='replace')}")
                self.close_connection = True
                try:
                    for _ in range(2 if fault == "repeat" else 1):
                        answer = gateway._ask(self.command, self.path, headers, body)
                    if fault != "lose":
                        self.answer(*answer)
                except OSError:
                    pass  # one of both ends is gone, which the other one sees

            def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in _OF_A_CONNECTION:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = pass_on

            def log_message(self, *_) -> None:
                pass

        return Handler
