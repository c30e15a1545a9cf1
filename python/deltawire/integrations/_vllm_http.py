"""The endpoints of a vLLM server that an update takes (docs/engine.md), over HTTP.

The server is started with VLLM_SERVER_DEV_MODE=1, and has deltawire's plug-in. Errors:
`deltawire.Error` with the server's own words. Not thread-safe.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from deltawire import DeadlineError, Error
from deltawire._server_access import ServerAccess

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_LONGEST_REASON = 2000
#: How vLLM may hold requests for a pause.
_PAUSES = ("abort", "wait", "keep")
#: How the line of the server's metrics begins that says that the plug-in is there; with several API
#: servers it has labels.
_PLUGIN = ("deltawire_plugin_calls ", "deltawire_plugin_calls{")
#: What an attach can be told (docs/engine.md).
_ATTACH = ("check_every", "loader_tensors", "plans", "second_instance", "threads")


class _Answered(Error):
    """The server has answered with `status`, which is not 2xx."""

    def __init__(self, text: str, status: int):
        super().__init__(text)
        self.status = status


class CallRefused(Error):
    """The engine's ranks have refused a call, and say why. `answer`: all of it."""

    def __init__(self, text: str, answer: dict[str, Any]):
        super().__init__(text)
        self.answer = answer


class VllmServer:
    """`url`: like http://127.0.0.1:8000. `timeout`: seconds for one request. `pause_mode`: what
    becomes of requests that run when it is paused, in vLLM's words. `attach_options`: of
    docs/engine.md. The others: `ServerAccess`."""

    def __init__(self, url: str, timeout: float = 1800.0, *,
                 token_file: str | os.PathLike[str] | None = None,
                 ca_file: str | os.PathLike[str] | None = None,
                 insecure_plaintext: bool = False, pause_mode: str = "keep",
                 attach_options: Mapping[str, Any] | None = None):
        if pause_mode not in _PAUSES:
            raise Error(f"pause_mode {pause_mode!r} is none of vLLM's: {', '.join(_PAUSES)}")
        self._attach_options = dict(attach_options or {})
        if unknown := self._attach_options.keys() - set(_ATTACH):
            raise Error(f"attach_options has {', '.join(sorted(unknown))}; there are "
                        f"{', '.join(_ATTACH)}")
        try:
            self._access = ServerAccess(url, token_file, ca_file, insecure_plaintext)
        except (ValueError, OSError) as error:
            raise Error(str(error)) from None
        self.url = url.rstrip("/")
        self._timeout, self._pause_mode = timeout, pause_mode
        self._replicas = 0  # behind this address; 0: not asked yet
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
        """Every worker finds its layout, and proves that its memory is what is committed. Raises
        CallRefused."""
        self._replicas = 0  # it may be another process than before
        self._call("attach", directory=directory, **self._attach_options)

    def prepare(self) -> None:
        """Finds and checks the way to what is committed; requests go on meanwhile. What has drifted
        is healed by the update. Raises CallRefused."""
        try:
            self._call("prepare")
        except CallRefused as refused:
            if not refused.answer["drifted"]:
                raise
            logger.warning("%s: %s", self.url, refused)
            self._call("prepare")

    def pause(self) -> None:
        self._post(f"/pause?mode={self._pause_mode}")

    def apply(self, version: int) -> None:
        """Writes what was prepared, which must be `version`, has the engine prove it over another part
        of its memory each time, and names it. Raises CallRefused."""
        held = self._call("apply", version=version)["held"]
        self._call("prove", part="next", **(held or {}))
        self.name_version(version)

    def reload(self, directory: str) -> None:
        """The server reads the whole directory by itself. Raises CallRefused."""
        self._call("reload", directory=directory)

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

    def _call(self, call: str, **options: Any) -> dict[str, Any]:
        """A call of the plug-in's, and the answer. Raises CallRefused."""
        if not self._replicas:
            self._replicas = self._find_replicas()
        nonce = secrets.token_hex(16)
        if self._replicas > 1:
            options["replicas"] = self._replicas
        answer = self._ask(call, nonce, options)
        if self._replicas > 1 and answer["replicas"] != 1:
            # The server hands back what the first replica says.
            answer = self._ask("settle", secrets.token_hex(16),
                               {"of": nonce, "replicas": self._replicas})
        if not answer["ok"]:
            raise CallRefused(f"{self.url}: {call}: {answer['reason']}", answer)
        return answer

    def _ask(self, call: str, nonce: str, options: dict[str, Any]) -> dict[str, Any]:
        said = self._post("/collective_rpc", {
            "method": "deltawire_call", "kwargs": {"call": call, "nonce": nonce, **options}})
        answers = said.get("results") if isinstance(said, dict) else None
        if not isinstance(answers, list) or not answers or any(
                not isinstance(a, dict) or a.get("nonce") != nonce or a.get("rank") != rank
                or a.get("ranks") != len(answers) for rank, a in enumerate(answers)):
            raise Error(f"{self.url}: {call}: the engine's replies are out of step since a call of "
                        "somebody's that failed; start the engine anew")
        return answers[0]

    def _find_replicas(self) -> int:
        """How many replicas the address stands for. A worker without the plug-in would raise at a
        call, and vLLM then hands out wrong replies, so the metrics are looked at first."""
        metrics = self._text("GET", "/metrics", None)
        if not any(line.startswith(_PLUGIN) for line in metrics.splitlines()):
            raise Error(f"{self.url} has no deltawire plug-in, or one of an earlier release; install "
                        "deltawire in vLLM's Python, and start it anew")
        try:
            sizes = [self._request("GET", f"/get_world_size?include_dp={with_all}", None)
                     ["world_size"] for with_all in ("true", "false")]
        except _Answered as answer:
            if answer.status != 404:
                raise
            return 1
        return sizes[0] // sizes[1]

    def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._request("POST", path, body or {})

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        text = self._text(method, path, body)
        try:
            return json.loads(text) if text else None
        except ValueError:
            said = text[:_LONGEST_REASON]
            raise Error(f"{self.url}{path} answered no JSON, so it is no vLLM: {said}") from None

    def _text(self, method: str, path: str, body: dict[str, Any] | None) -> str:
        request = urllib.request.Request(
            self.url + path, data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}, method=method)
        try:
            with self._access.open(request, timeout=self._timeout) as answer:
                return answer.read().decode(errors="replace")
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
