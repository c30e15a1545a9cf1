"""Makes CUDA pin the sender's memory for torch's copies, if this library has no CUDA code.

torch's copies to pageable memory go through the driver's staging, at a part of the link's rate, and
block the program. A half stays pinned, and mapped, until the sender has made its memory anew, or
until `close`. One thread at a time may use it. If the driver fails, copies go unpinned, and one log
line says why. Not run on a device.
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
    ours: bool  # to be unpinned by this process


class PinnedHalves:
    """The sender's halves that this process has asked CUDA to pin."""

    def __init__(self) -> None:
        self._halves: dict[int, _Half] = {}
        self._streams: dict[Any, Any] = {}
        self._asked: tuple[Any, bool] = (None, False)  # the last offload, and the answer for it
        self._said = False

    def copy(self, offload: _core.Offload, place: Any, local: Any) -> None:
        """Copies `local`, on a CUDA device, to `place`, in the offload's memory; returns when the
        bytes are there. REQUIRES: one dtype; all work on `local` is done."""
        import torch

        # If torch cannot send it in one piece, it uses a temporary of its own, which is pageable.
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
            # Readers of the memory, and an abandon of the offload, do not know of the stream.
            stream.synchronize()

    def close(self) -> None:
        """Unpins all halves. REQUIRES: no copy runs."""
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
            # The runtime keeps the error for the next caller that asks for its last one: the
            # program's next kernel would raise it.
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
