"""vLLM's weight-transfer backend `deltawire`, which transfers nothing but explains where to call.

Its session can only answer by an exception. After one on any rank but the last, vLLM takes replies
that it has not read for those of later calls. So the last rank raises the explanation at the first
call, and no session begins.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed import parallel_state
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)


class DeltawireEngine(WeightTransferEngine[WeightTransferInitInfo, WeightTransferUpdateInfo]):
    """The backend's engine, which vLLM makes for each worker."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = WeightTransferUpdateInfo
    supports_draft_weight_update = False

    def parse_init_info(self, init_dict: dict[str, Any]) -> WeightTransferInitInfo:
        """Replaces the base's method, which raises on all ranks."""
        del init_dict
        return WeightTransferInitInfo()

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        self._refuse()

    def start_weight_update(self) -> None:
        self._refuse()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._refuse()

    def receive_weights(self, update_info: WeightTransferUpdateInfo) -> None:
        self._refuse()

    def finish_weight_update(self) -> None:
        """Does nothing, because nothing was begun."""

    def shutdown(self) -> None:
        """Does nothing, because nothing was begun."""

    @staticmethod
    def _refuse() -> None:
        if all(group().is_last_rank for group in (parallel_state.get_tp_group,
                                                  parallel_state.get_pp_group)):
            raise RuntimeError(
                "deltawire takes its calls by /collective_rpc, method deltawire_call; where a "
                "receiver has made this one, it is of an earlier release than the plug-in")
