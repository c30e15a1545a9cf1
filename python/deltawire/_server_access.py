"""The access to an engine's HTTP server: the key to send, and the issuer of its certificate.

Not thread-safe. `ValueError` and `OSError` name a file and never its content. If a key's file can
no longer be read, the last key is sent, as a receiver does, and a log line says so.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import urllib.parse
import urllib.request
from typing import Any

logger = logging.getLogger(__name__)

_MOST = 4096
_NOT_SHOWN = "[key]"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because they would send the key to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ServerAccess:
    """The access to one server. `url`: the server's. `token_file`: a file of one line, read for
    each request and sent as `Authorization: Bearer`. `ca_file`: PEM certificates that an https
    server's must come from; None: the system's. A key goes over plaintext only to this machine,
    unless `insecure_plaintext`."""

    def __init__(self, url: str, token_file: str | os.PathLike[str] | None = None,
                 ca_file: str | os.PathLike[str] | None = None, insecure_plaintext: bool = False):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"{url} is no URL of a server; it is like http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        if ca_file is not None and not tls:
            raise ValueError(f"{url} is no https://, so {os.fspath(ca_file)} would not be used")
        if token_file is not None and not (tls or insecure_plaintext or _loopback(parts.hostname)):
            raise ValueError(f"{url} is beyond loopback, where whoever is on the way would read the "
                             "key from a request in plaintext: use https://, or allow it by "
                             "insecure_plaintext where the network is trusted")
        self._token_file = None if token_file is None else os.fspath(token_file)
        handlers: list[Any] = [_NoRedirect()]
        if token_file is not None and not tls:
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy would see the key
        if tls:
            context = ssl.create_default_context(
                cafile=None if ca_file is None else os.fspath(ca_file))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)
        self._unread = ""  # why the last request could not read the file
        self._token = self._read()

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        """Works as urllib.request.urlopen."""
        self._read_again()
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return self._opener.open(request, timeout=timeout)

    def quoted(self, words: str, status: int) -> str:
        """Quotes a server's answer without the key that it got, and adds the remedy if it wants
        another key."""
        if self._token:
            words = words.replace(self._token, _NOT_SHOWN)
        if status not in (401, 403):
            return words
        if not self._token:
            return words + "; it wants an API key: give the file that has it"
        if self._unread:
            return words + f"; it does not take the last key of {self._token_file}, {self._unread}"
        return words + f"; it does not take the key in {self._token_file}"

    def _read_again(self) -> None:
        """Reads the key again. A file that is just being replaced must not end an update in the
        middle."""
        try:
            self._token, self._unread = self._read(), ""
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            if not self._unread:
                logger.warning("%s cannot be used (%s): the key that was read before stays in use; "
                               "each request tries again", self._token_file, why)
            self._unread = f"which cannot be used now ({why})"

    def _read(self) -> str:
        if self._token_file is None:
            return ""
        with open(self._token_file, encoding="latin-1") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MOST + 3).rstrip("\r\n")
        if mode & 0o007:
            raise ValueError(f"{self._token_file} holds a secret, and its mode {mode & 0o7777:04o} "
                             "lets every user of this machine at it: chmod 600, or 640 with a group "
                             "of its own")
        if not 1 <= len(text) <= _MOST or not all(" " < c <= "~" for c in text):
            raise ValueError(f"{self._token_file} is not one line of 1 to {_MOST} visible ASCII "
                             "characters")
        return text


def _loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
