"""A trainer's module at one version, by the names of the checkpoint that its run starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deltawire._names import Names, base_of, cleaned, is_of_base, unwrapped
from deltawire._tensors import is_dtensor


@dataclass(frozen=True)
class Live:
    """A parameter or buffer. `name`: as streams have it. `parts`: as the checkpoint has it."""

    name: str
    tensor: Any
    parts: tuple[str, ...]
    trains: bool
    is_buffer: bool

    @property
    def state(self) -> tuple[int, ...] | None:
        """Equal as long as nobody has written it in place, past torch's `.data`; None: not known.
        Of a buffer nobody says that it stays."""
        if self.trains or self.is_buffer:
            return None
        try:
            local = self.tensor.to_local() if is_dtensor(self.tensor) else self.tensor
            # pylint: disable=protected-access  # torch has no other name for these counters
            return id(self.tensor), self.tensor._version, local._version
        except RuntimeError:  # an inference tensor counts nothing
            return None


class Trained:
    """`live`: by the checkpoint's names. `ties`: a name in the checkpoint -> the name that a stream
    has the same parameter by. `whole`: every parameter has its place in the checkpoint, so what the
    module does not have by name it does not have at all."""

    def __init__(self, module: Any, names: Names, registered: Any):
        self.live: dict[str, Live] = {}
        self.ties: dict[str, str] = {}
        self.whole = True
        names.model = base_of(module)
        module = unwrapped(module)
        adapted = hasattr(module, "peft_config")
        seen: dict[int, tuple[str, ...]] = {}
        for name, tensor in module.named_parameters(remove_duplicate=False):
            if adapted and not is_of_base(name):
                continue
            name = cleaned(name)
            parts = names.targets(name, tensor.shape)
            first = seen.setdefault(id(tensor), parts)
            if first is not parts and len(first) == len(parts):
                self.ties.update(zip(parts, first))
            elif not all(part in registered for part in parts):
                self.whole = False
            for part in parts:
                self.live[part] = Live(name, tensor, parts, tensor.requires_grad, False)
        for name, tensor in module.named_buffers(remove_duplicate=False):
            name = cleaned(name)
            if name in registered:
                self.live[name] = Live(name, tensor, (name,), False, True)

