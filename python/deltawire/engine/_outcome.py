"""What the steps of an engine client answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltawire.engine import _core

#: So many names are spelt out in a reason.
_NAMED = 5
#: How a reason begins that names tensors whose memory is no longer what was written to it. The
#: receiver knows these words (receiver/engine/http_hook.cc).
DRIFTED = "the engine's memory has drifted in "
#: How a reason ends that no reload of the directory would help against, and the receiver has none
#: made then (receiver/engine/http_hook.cc).
ANEW = "start the engine anew"


@dataclass
class Outcome:
    """Whether a step was done. It is truthy when it was; else `reason` says why not."""

    ok: bool
    reason: str = ""
    seconds: float = 0.0
    #: Of `prepare`: what the update is.
    update: _core.UpdateInfo | None = None

    def __bool__(self) -> bool:
        return self.ok


@dataclass
class Attached(Outcome):
    """What `attach` found of the engine's memory."""

    boxes: int = 0
    mapped_bytes: int = 0
    #: (parameter, bytes) that the boxes do not have: padding, or what the loader computes.
    unmapped: list[tuple[str, int]] = field(default_factory=list)
    trace_seconds: float = 0.0
    #: Tensors that the loader computes with: updates hand them to it, whole.
    by_loader: list[str] = field(default_factory=list)
    #: Tensors whose way shapes do not show, found by their elements' numbers.
    by_numbers: list[str] = field(default_factory=list)
    #: (elements that have a place here, all) of each tensor that has boxes. More where some have
    #: several places; fewer where other ranks must have the rest. Also of a model that was refused
    #: because other bytes are there.
    held: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    #: With a plan cache: "used", "kept" (for the next time), or why neither.
    plan: str = ""

    def described(self) -> str:
        """What was found, in one line of an engine's log."""
        found = f"{self.boxes} boxes, {self.seconds:.3f} s"
        for tensors, way in ((self.by_numbers, "found by numbers"),
                             (self.by_loader, "updated by the engine's loader")):
            if tensors:
                found += f", {len(tensors)} tensors {way}"
        if self.unmapped:
            found += f", not the checkpoint's: a part of {some(name for name, _ in self.unmapped)}"
        return found + (f", plan: {self.plan}" if self.plan else "")


def some(names: Iterable[str]) -> str:
    """The first few of them."""
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
