"""TRL: the `weight_transfer` of `AsyncGRPOTrainer` (and of `AsyncDistillationTrainer`).

    from deltawire.integrations.trl import WeightTransfer

    trainer = AsyncGRPOTrainer(
        model="checkpoints/base", args=AsyncGRPOConfig(vllm_server_base_url=url, ...), ...,
        weight_transfer=WeightTransfer(url, "/dev/shm/deltawire/policy", hf_dir="checkpoints/base"))

Checked with TRL 1.16.0 (`WeightTransferProtocol`). TRL makes its calls on the main process alone,
in this order: `init_weight_transfer`, and for each version `pause`, `send_weights`, `resume`; at
the end `destroy`. Imports neither TRL nor torch.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from deltawire import DeadlineError, Error, Published, UnavailableError
from deltawire.control import Identity, Receiver
from deltawire.integrations._directory import Expected, ReceiverDirectory
from deltawire.integrations._publisher import Publisher, gone_through
from deltawire.integrations._vllm_http import CallRefused, VllmServer

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_CONNECT_S = 10.0


class WeightTransfer:
    """Brings each of TRL's versions over a sender and a receiver into a vLLM server.

    `server_url`: of the vLLM server, as in AsyncGRPOConfig. `directory`: the receiver's, of this
    model, as the server's machine sees it. `endpoint`: the sender's data directory or trainer
    socket on this machine. `hf_dir`: the checkpoint that the run starts from, as in `Publisher`.
    `receiver`: HOST:PORT of the receiver's control address, with `credentials`, a file of an
    operator's keys (None: DELTAWIRE_CREDENTIALS names it, if it is set); None: the directory is on
    this machine. `timeout`: seconds for each wait. `module`: the model
    that is trained, by which frozen and tied parameters are known, which TRL does not send; None:
    the one of the trainer whose generator `send_weights` is given. `pause_mode`: what
    becomes of requests that run when the server is paused, vLLM's abort, wait or keep. `token_file`:
    of the key that the server, or a gateway before it, wants; `ca_file`: PEM certificates that an
    https server's must come from, instead of the system's; a key goes over plaintext to other
    machines only with `insecure_plaintext`. `bf16_to_fp16`, `keep_dtype`: as in
    `Publisher`. `attach_options`:
    such as {"second_instance": True}, of docs/engine.md. A server that cannot take deltas in place
    reads the directory at each version; a warning says why.

    Versions count on from what the sender has published; `version` is the last one.
    """

    def __init__(
        self,
        server_url: str,
        directory: str | os.PathLike[str],
        *,
        endpoint: str | os.PathLike[str] = "/dev/shm/deltawire",
        model: str = "policy",
        hf_dir: str | os.PathLike[str] | None = None,
        receiver: str | None = None,
        credentials: str | os.PathLike[str] | None = None,
        timeout: float = 1800.0,
        module: Any = None,
        pause_mode: str = "keep",
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        insecure_plaintext: bool = False,
        bf16_to_fp16: bool = False,
        keep_dtype: Collection[str] = (),
        attach_options: Mapping[str, Any] | None = None,
    ):
        self.module = module
        self._server = VllmServer(
            server_url, timeout, token_file=token_file, ca_file=ca_file,
            insecure_plaintext=insecure_plaintext, pause_mode=pause_mode,
            attach_options=attach_options)
        self._path = os.fspath(directory)
        self._directory = ReceiverDirectory(directory)
        self._publisher_arguments = (endpoint, model, hf_dir, timeout, bf16_to_fp16, keep_dtype)
        self._model, self._receiver, self._timeout = model, receiver, timeout
        self._credentials = credentials or os.environ.get("DELTAWIRE_CREDENTIALS") or None
        self._publisher: Publisher | None = None
        self._attached = self._reads = self._paused = self._warned = False
        self.published: Published | None = None  # by this trainer, the last one
        self._version = 0

    @property
    def version(self) -> int:
        """The version that the server answers with; 0 before the first."""
        return self._version

    def init_weight_transfer(self) -> None:
        """Waits for the server. If a version is published, the server must have been started from
        it (from the receiver's directory), and is attached to it. A server that a trainer has left
        paused goes on then: its memory was compared with that version."""
        self._server.wait_until_up()
        self._publisher = Publisher(*self._publisher_arguments)
        published = self._publisher.open()
        if published and (expected := self._publisher.expected()):
            self._await_commit(expected)
            published = expected.version
            self._attach(published)
            self._server.forget_prefixes()
            self._server.resume()
            self._paused = False
            self._version = published

    def pause(self) -> None:
        """Nothing yet: requests go on while the version is published, pulled and prepared. The
        server is paused in `send_weights`, for as long as the engine's memory is written."""

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        """Returns when the server holds the new version, and is paused. Goes through all of
        `iterator` in any case: the other ranks gather its tensors with this one."""
        if self._publisher is None:
            with gone_through(iterator := iter(iterator)):
                raise Error("init_weight_transfer comes before send_weights")
        module = self.module if self.module is not None else _module_behind(iterator)
        published = self._publisher.publish(iterator, module=module)
        self._await_commit(Expected.of(published))
        if self._attached and not self._reads:
            # A refusal here raises while the server goes on with the version before.
            self._server.prepare()
        self._server.pause()
        self._paused = True
        if self._reads:
            self._read(published.version)
        elif self._attached:
            # The server stays paused when this raises: without an answer nobody knows what it
            # holds.
            self._server.apply(published.version)
        else:
            # Nothing was published before: the server was started from the checkpoint that the
            # trainer has loaded. Attaching compares every byte.
            self._attach(published.version)
        if not self._server.forget_prefixes() and not self._warned:
            self._warned = True
            logger.warning("vLLM keeps the prefix cache of older weights while requests run; start "
                           "it with --no-enable-prefix-caching")
        self.published, self._version = published, published.version
        logger.info("version %d: %d of %d elements changed, %d bytes of delta", published.version,
                    published.changed_elements, published.elements, published.delta_bytes)

    def resume(self) -> None:
        if self._paused:
            self._server.resume()
            self._paused = False

    def destroy(self) -> None:
        """The server goes on with the last version; after a failed `send_weights` it stays as it
        is."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _attach(self, version: int) -> None:
        """The server holds `version` when this returns, by what it has loaded or by reading it."""
        try:
            self._server.attach(self._path)
        except CallRefused as refused:
            if refused.answer["anew"]:
                raise
            logger.warning("%s; it reads the directory at each version", refused)
            self._reads = True
            self._server.pause()
            self._paused = True
            self._read(version)
        else:
            self._server.name_version(version)
        self._attached = True

    def _read(self, version: int) -> None:
        """The server, which is paused, reads the directory."""
        self._server.reload(self._path)
        self._server.name_version(version)

    def _await_commit(self, expected: Expected) -> None:
        if self._receiver is None:
            self._directory.wait(expected, self._timeout)
            return
        end = time.monotonic() + self._timeout
        gone = ""  # why it could not be reached, of which a last try may have no time to hear
        while True:
            left = max(0.1, end - time.monotonic())
            try:
                with Receiver(self._receiver, model=self._model, credentials=self._credentials,
                              timeout=min(_CONNECT_S, left)) as receiver:
                    held = receiver.sync(timeout=left).target
                if expected.is_at(_identity(held)):
                    return
                gone = ""
                why = f"it has committed version {held.version} of lineage {held.lineage[:8]}"
            except UnavailableError as error:
                why = gone = str(error)
            except DeadlineError as error:
                why = f"{error}; before: {gone}" if gone else str(error)
            except Error as error:
                raise Error(f"the receiver at {self._receiver} did not commit version "
                            f"{expected.version}: {error}") from None
            # A receiver that is being restarted, or has not heard of the sender's new history, is
            # waited for; what it refuses is final.
            if time.monotonic() > end:
                raise DeadlineError(f"the receiver at {self._receiver} did not commit version "
                                    f"{expected.version}: {why}")
            time.sleep(_LOOK_S)


def _identity(held: Identity) -> types.SimpleNamespace:
    return types.SimpleNamespace(version=held.version, epoch=held.epoch, lineage=held.lineage,
                                 root=int(held.root, 16))


def _module_behind(iterator: Iterable[tuple[str, Any]]) -> Any:
    """TRL's trainer hands over a generator of its own, and no model. None: it is another's."""
    if not inspect.isgenerator(iterator) or iterator.gi_frame is None:
        return None
    model = getattr(inspect.getgeneratorlocals(iterator).get("self"), "model", None)
    return model if callable(getattr(model, "named_parameters", None)) else None
