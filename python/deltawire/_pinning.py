"""Has CUDA pin the sender's memory for torch's copies, where this library has no CUDA of its own.

torch's copies to pageable memory go through the driver's staging, at a part of the link's rate, and
hold up the program. Owner: a manager; a half stays pinned, and mapped, until the sender has made
its memory anew, or `close`. Threads: one at a time. Errors are values of the driver's: such copies
are made as ever, and one line of the log says why. Not run on a device.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from deltawire import _core
from deltawire._errors import RefusedError

logger = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: for all of the process's devices
_ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered


@dataclass
class _Half:
    mapping: _core.Mapping
    pinned: bool
    ours: bool  # to unpin


class PinnedHalves:
    """Halves of the sender that this process has asked CUDA to pin."""

    def __init__(self) -> None:
        self._halves: dict[int, _Half] = {}
        self._streams: dict[Any, Any] = {}
        self._asked: tuple[Any, bool] = (None, False)  # for which offload last, and the answer
        self._said = False

    def copy(self, offload: _core.Offload, place: Any, local: Any) -> None:
        """Copies `local`, on a CUDA device, to `place`, in the offload's memory; returns when the
        bytes are there. REQUIRES: one dtype; all work on `local` is done."""
        import torch

        # What torch cannot send in one piece it sends to a temporary of its own, which is pageable.
        if not place.is_contiguous() or not self._pinned(offload, local.device):
            place.copy_(local)
            return
        stream = self._streams.get(local.device)
        if stream is None:
            stream = self._streams[local.device] = torch.cuda.Stream(local.device)
        try:
            with torch.cuda.stream(stream):
                local = local.contiguous()
                place.copy_(local, non_blocking=True)
        finally:
            # Whoever reads the memory, or gives the offload up, does not know of the stream.
            stream.synchronize()

    def close(self) -> None:
        """Unpins all. REQUIRES: no copy runs."""
        for half in self._halves.values():
            self._unpin(half)
        self._halves.clear()
        self._asked = (None, False)

    def _pinned(self, offload: _core.Offload, device: Any) -> bool:
        if self._asked[0] is not offload:
            self._asked = (offload, self._ask(offload, device))
        return self._asked[1]

    def _ask(self, offload: _core.Offload, device: Any) -> bool:
        for address in [a for a, h in self._halves.items() if not h.mapping.in_use]:
            self._unpin(self._halves.pop(address))
        try:
            mapping = offload.mapping()
        except RefusedError as error:
            self._say(str(error))
            return False
        half = self._halves.get(mapping.address)
        if half is None:
            half = self._halves[mapping.address] = self._pin(mapping, device)
        return half.pinned

    def _pin(self, mapping: _core.Mapping, device: Any) -> _Half:
        import torch

        try:
            runtime = torch.cuda.cudart()
            code = int(runtime.cudaHostRegister(mapping.address, mapping.bytes, _PORTABLE))
            why = "" if code in (0, _ALREADY) else f"cudaHostRegister failed with {code}"
        except (AttributeError, RuntimeError, AssertionError) as error:
            code, why = -1, str(error)
        if why:
            self._say(f"{mapping.bytes} bytes of the sender's memory: {why}")
        if code != 0:
            # The runtime keeps the error for whoever asks for its last one: the program's next
            # kernel would raise it.
            try:
                torch.empty(1, device=device).fill_(1)
            except (RuntimeError, AssertionError):
                pass
        return _Half(mapping, not why, code == 0)

    def _unpin(self, half: _Half) -> None:
        if half.ours:
            import torch

            try:
                code = int(torch.cuda.cudart().cudaHostUnregister(half.mapping.address))
                why = f"with {code}" if code != 0 else ""
            except (RuntimeError, AssertionError) as error:
                why = f"with: {error}"
            if why:
                logger.warning("cudaHostUnregister of the sender's memory failed %s", why)
        half.mapping.close()

    def _say(self, why: str) -> None:
        if not self._said:
            self._said = True
            logger.warning("a GPU's tensors are copied to memory that is not pinned: %s", why)
