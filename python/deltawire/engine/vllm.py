"""vLLM's weight-transfer backend `deltawire`: applies what a receiver committed, in place.

Start the server with `--weight-transfer-config '{"backend": "deltawire"}'` and, once, post
`{"init_info": {"directory": "/dev/shm/deltawire/MODEL"}}` to `/init_weight_transfer_engine`. Then
for each version: `/start_weight_update` (prepares and checks; requests go on), `/pause`,
`/update_weights {"update_info": {}}` (writes), `/finish_weight_update {"weight_version": ...}`,
`/resume`. Each worker does its own share. vLLM finds the backend by the entry point
`vllm.general_plugins`; nothing of vLLM is changed.

Tried with vLLM 0.32. Errors are raised: vLLM answers them with a code of 500, and the parameters
are then what they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from deltawire.engine._client import EngineClient, Outcome

BACKEND = "deltawire"


def register() -> None:
    """The plug-in's entry point; vLLM calls it in every process, more than once."""
    from vllm.distributed.weight_transfer.factory import (  # pylint: disable=C0415
        WeightTransferEngineFactory,
    )

    # pylint: disable-next=protected-access  # there is no public way to ask
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "deltawire.engine.vllm", "DeltawireEngine")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """`directory`: the receiver's, of the model that this server serves."""

    directory: str
    threads: int = 1


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """`version`: refuse when another one was prepared. `rollback`: undo the last update instead.
    `check`: compare all of the memory with the version's digests afterwards."""

    version: int | None = None
    rollback: bool = False
    check: bool = False


class DeltawireEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A worker's weights, followed by an EngineClient."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._client: EngineClient | None = None
        self._prepared: Outcome | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        client = EngineClient(init_info.directory, init_info.threads)
        attached = client.attach(self.model, self.model.load_weights)
        if not attached:
            raise ValueError(f"deltawire cannot update this model in place: {attached.reason}")
        self._client = client

    def start_weight_update(self) -> None:
        self._prepared = self._require().prepare()
        if not self._prepared:
            raise RuntimeError(f"deltawire: {self._prepared.reason}")

    def update_weights(self, update_info: dict) -> None:
        # The base's also synchronises torch's accelerator, which a CPU has not.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        client = self._require()
        if update_info.rollback:
            done = client.rollback()
        else:
            update = self._prepared.update if self._prepared else None
            if update_info.version is not None and (
                    update is None or update.to.version != update_info.version):
                raise ValueError(f"deltawire: version {update_info.version} was asked for and "
                                 f"{update.to if update else 'nothing'} is prepared")
            done = client.apply()
        self._prepared = None
        if done and update_info.check:
            done = client.check()
        if not done:
            raise RuntimeError(f"deltawire: {done.reason}")

    def finish_weight_update(self) -> None:
        self._prepared = None

    def shutdown(self) -> None:
        self._client = None

    def _require(self) -> EngineClient:
        if self._client is None:
            raise RuntimeError("deltawire: /init_weight_transfer_engine comes first")
        return self._client
