"""The endpoints of a vLLM server that an update takes (docs/engine.md), over HTTP.

The server is started with `--weight-transfer-config '{"backend": "deltawire"}'` and
VLLM_SERVER_DEV_MODE=1. Errors: `deltawire.Error` with the server's own words. Not thread-safe.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.request
from typing import Any

from deltawire import DeadlineError, Error
from deltawire._server_access import ServerAccess

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_LONGEST_REASON = 2000
#: How vLLM may hold requests for a pause.
_PAUSES = ("abort", "wait", "keep")


class _Answered(Error):
    """The server has answered with `status`, which is not 2xx."""

    def __init__(self, text: str, status: int):
        super().__init__(text)
        self.status = status


class VllmServer:
    """`url`: like http://127.0.0.1:8000. `timeout`: seconds for one request. `pause_mode`: what
    becomes of requests that run when it is paused, in vLLM's words. The others: `ServerAccess`."""

    def __init__(self, url: str, timeout: float = 1800.0, *,
                 token_file: str | os.PathLike[str] | None = None,
                 ca_file: str | os.PathLike[str] | None = None,
                 insecure_plaintext: bool = False, pause_mode: str = "keep"):
        if pause_mode not in _PAUSES:
            raise Error(f"pause_mode {pause_mode!r} is none of vLLM's: {', '.join(_PAUSES)}")
        try:
            self._access = ServerAccess(url, token_file, ca_file, insecure_plaintext)
        except (ValueError, OSError) as error:
            raise Error(str(error)) from None
        self.url = url.rstrip("/")
        self._timeout, self._pause_mode = timeout, pause_mode
        self._open = True  # an update may be open that was not ended, also another process's
        self._keeps_encoder_outputs = False

    def wait_until_up(self) -> None:
        """Returns when the server answers."""
        end = time.monotonic() + self._timeout
        while True:
            try:
                self._request("GET", "/health", None)
                return
            except Error as error:
                if time.monotonic() > end:
                    raise DeadlineError(
                        f"vLLM is not up after {self._timeout:.0f} s: {error}") from None
            time.sleep(_LOOK_S)

    def attach(self, directory: str) -> None:
        """Every worker finds its layout, and proves that its memory is what is committed."""
        self._clear()
        self._post("/init_weight_transfer_engine", {"init_info": {"directory": directory}})

    def prepare(self) -> None:
        """Finds and checks the way to what is committed; requests go on meanwhile."""
        self._clear()
        self._open = True
        self._post("/start_weight_update")

    def pause(self) -> None:
        self._post(f"/pause?mode={self._pause_mode}")

    def apply(self, version: int) -> None:
        """Writes what was prepared, which must be `version`."""
        self._post("/update_weights", {"update_info": {"version": version}})
        self._post("/finish_weight_update", {"weight_version": str(version)})
        self._open = False

    def name_version(self, version: int) -> None:
        """Tells the server the name of what it holds."""
        self._post("/update_weight_version", {"new_version": str(version)})

    def forget_prefixes(self) -> bool:
        """Drops cached keys and values of older weights; False when running requests hold them. What
        encoders have made of images and sounds goes, too, where the server has a request for it."""
        dropped = bool(self._post("/reset_prefix_cache")["success"])
        try:
            self._post("/reset_encoder_cache")
        except _Answered as answer:
            if answer.status != 404:
                raise
            if not self._keeps_encoder_outputs:
                self._keeps_encoder_outputs = True
                logger.info("%s has no /reset_encoder_cache: what a multimodal model's encoder has "
                            "computed with older weights stays in its cache", self.url)
        return dropped

    def resume(self) -> None:
        self._post("/resume")

    def _clear(self) -> None:
        """vLLM begins no update while another one is open."""
        if self._open:
            try:
                self._post("/finish_weight_update")
            except Error:
                pass  # there was none; where nobody answers, the next call says so
            self._open = False

    def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._request("POST", path, body or {})

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        request = urllib.request.Request(
            self.url + path, data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}, method=method)
        try:
            with self._access.open(request, timeout=self._timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace").strip()[:_LONGEST_REASON]
            hint = ("; the server needs VLLM_SERVER_DEV_MODE=1 for this endpoint"
                    if error.code == 404 else "")
            raise _Answered(f"{self.url}{path} answered {error.code}: "
                            f"{self._access.quoted(reason, error.code)}{hint}",
                            error.code) from None
        except ValueError as error:
            raise Error(f"{self.url}{path} was not asked: {error}") from None
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            raise Error(f"{self.url}{path} did not answer: {error!r}") from None
        try:
            return json.loads(text) if text else None
        except ValueError:
            said = text[:_LONGEST_REASON].decode(errors="replace")
            raise Error(f"{self.url}{path} answered no JSON, so it is no vLLM: {said}") from None
