"""The results of an engine client's steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltawire.engine import _core

#: The names that a reason spells out.
_NAMED = 5
#: The beginning of a reason that names drifted tensors. The receiver knows this text
#: (receiver/engine/http_hook.cc).
DRIFTED = "the engine's memory has drifted in "
#: The end of a reason for which a reload of the directory would not help. The receiver then makes
#: none (receiver/engine/http_hook.cc).
ANEW = "start the engine anew"


@dataclass
class Outcome:
    """The result of a step. It is truthy on success; otherwise `reason` says why not."""

    ok: bool
    reason: str = ""
    seconds: float = 0.0
    #: The update of `prepare`.
    update: _core.UpdateInfo | None = None

    def __bool__(self) -> bool:
        return self.ok


@dataclass
class Attached(Outcome):
    """The result of `attach`."""

    boxes: int = 0
    mapped_bytes: int = 0
    #: (parameter, bytes) without boxes: padding, or memory that the loader computes.
    unmapped: list[tuple[str, int]] = field(default_factory=list)
    trace_seconds: float = 0.0
    #: Tensors that the loader computes with: updates pass them to it, whole.
    by_loader: list[str] = field(default_factory=list)
    #: Tensors that were found by their elements' numbers, because shapes do not show their path.
    by_numbers: list[str] = field(default_factory=list)
    #: (elements that have a place here, all) of each tensor that has boxes. It is more if some have
    #: several places, and fewer if other ranks must have the rest. Also set for a model that was
    #: refused because its bytes differ.
    held: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    #: With a plan cache: "used", "kept" (for the next time), or why neither.
    plan: str = ""

    def described(self) -> str:
        """Returns the result in one line of an engine's log."""
        found = f"{self.boxes} boxes, {self.seconds:.3f} s"
        for tensors, way in ((self.by_numbers, "found by numbers"),
                             (self.by_loader, "updated by the engine's loader")):
            if tensors:
                found += f", {len(tensors)} tensors {way}"
        if self.unmapped:
            found += f", not the checkpoint's: a part of {some(name for name, _ in self.unmapped)}"
        return found + (f", plan: {self.plan}" if self.plan else "")


def some(names: Iterable[str]) -> str:
    """Returns the first few of them."""
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
