"""A running model's memory as deltawire sees it: its storages, and its state while a loader runs.

A loader is foreign code. Run over tensors that are not the weights, it may leave them in the
model's attributes, or replace parameters; `Unchanged` restores all of that. It makes one pass over
the modules' attributes and the dicts and lists in them, and does not see deeper levels.
"""
from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch


@dataclasses.dataclass
class Storage:
    """The memory of live parameters. Several parameters may share one."""

    names: list[str]
    keeper: torch.Tensor  # one of the parameters, which keeps the memory alive
    itemsize: int
    #: False for buffers and other tensors: they matter only if a loader writes to them.
    parameter: bool = True
    #: (name, dtype, offset, shape, strides) of each view of it.
    views: list[tuple] = dataclasses.field(default_factory=list)
    #: Tensors of the same memory by other handles of torch, as of one array given to torch twice.
    others: list[torch.Tensor] = dataclasses.field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.keeper.untyped_storage().nbytes()

    def named(self) -> str:
        return ", ".join(self.names)


def _tensors(model: torch.nn.Module):
    """Yields (name, tensor, is it a parameter) of all that a loader could write to through the
    model."""
    for name, tensor in model.named_parameters(remove_duplicate=False):
        yield name, tensor, True
    for name, tensor in model.named_buffers(remove_duplicate=False):
        yield name, tensor, False
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{prefix}.{name}" if prefix else name, value, False


def live_storages(model: torch.nn.Module) -> tuple[list[Storage], dict[int, int]]:
    """Returns the storages of all the model's tensors, parameters first, and their index by torch's
    handle. One memory with two handles is one storage, or changes would be added twice."""
    storages: list[Storage] = []
    index: dict[int, int] = {}
    ranges: dict[tuple[int, int], int] = {}
    for name, tensor, parameter in _tensors(model):
        if not tensor.numel() or tensor.layout != torch.strided:
            continue
        memory = tensor.untyped_storage()
        handle, place = memory._cdata, (memory.data_ptr(), memory.nbytes())
        if handle not in index:
            # Memory without an address, as on torch's meta device, is not the same for that.
            index[handle] = ranges.setdefault(place, len(storages)) if place[0] else len(storages)
            if index[handle] < len(storages):
                storages[index[handle]].others.append(tensor.detach())
            else:
                storages.append(Storage([], tensor.detach(), tensor.element_size(), parameter))
        at = storages[index[handle]]
        at.names.append(name)
        at.views.append((name, str(tensor.dtype), tensor.storage_offset(), tuple(tensor.shape),
                         tensor.stride()))
    return storages, index


class Snapshot:
    """The present attributes of a model's modules, the content of the dicts and lists in them, and
    the memory of its parameters."""

    def __init__(self, model: torch.nn.Module):
        self._attributes = []
        self._lists = []
        seen: set[int] = set()
        for name, module in model.named_modules():
            self._attributes.append((name, False, vars(module), dict(vars(module))))
            for own in (module._parameters, module._buffers, module._modules):
                self._attributes.append((name, True, own, dict(own)))
                seen.add(id(own))
            for key, value in vars(module).items():
                # Layers often share one dict.
                if not isinstance(value, (dict, list)) or id(value) in seen:
                    continue
                seen.add(id(value))
                where = f"{name}.{key}" if name else key
                if isinstance(value, dict):
                    self._attributes.append((where, False, value, dict(value)))
                else:
                    self._lists.append((where, value, list(value)))
        self._data = [(t, t.data) for _, t, _ in _tensors(model)]

    def changes(self) -> list[Change | ListChange]:
        """Returns the changes of attributes, and of the content of their dicts and lists."""
        changes: list[Change | ListChange] = []
        for where, registered, own, before in self._attributes:
            for name in {**before, **own}:
                change = Change(f"{where}.{name}" if where else str(name), registered, own, name,
                                before.get(name, _NOTHING), own.get(name, _NOTHING))
                if change.before is not change.after:
                    changes.append(change)
        for where, own, before in self._lists:
            if len(own) != len(before) or any(a is not b for a, b in zip(own, before)):
                changes.append(ListChange(where, own, before, list(own)))
        return changes

    def put_memory_back(self) -> bool:
        """Undoes every later `parameter.data = ...`. Returns whether there was one."""
        found = False
        for tensor, data in self._data:
            now = tensor.data
            if (now.data_ptr(), now.shape, now.stride()) != (
                    data.data_ptr(), data.shape, data.stride()):
                tensor.data = data
                found = True
        return found


_NOTHING = object()


class Change(NamedTuple):
    """An attribute, or an entry of a dict, that a loader has set or deleted."""

    where: str
    registered: bool  # with torch: a parameter, a buffer or a module
    attributes: dict[Any, Any]
    name: Any
    before: Any
    after: Any

    def holds_tensor(self) -> bool:
        return _holds_tensor(self.before) or _holds_tensor(self.after)

    def undo(self) -> None:
        """Undoes the change, unless other code has changed it again."""
        if self.attributes.get(self.name, _NOTHING) is not self.after:
            return
        if self.before is _NOTHING:
            del self.attributes[self.name]
        else:
            self.attributes[self.name] = self.before


class ListChange(NamedTuple):
    """A list that a loader has changed."""

    where: str
    own: list[Any]
    before: list[Any]
    after: list[Any]
    registered: bool = False

    def holds_tensor(self) -> bool:
        stays = {id(v) for v in self.before} & {id(v) for v in self.after}
        return any(_holds_tensor(v) for v in self.before + self.after if id(v) not in stays)

    def undo(self) -> None:
        """Undoes the change, unless other code has changed it again."""
        if len(self.own) == len(self.after) and all(
                a is b for a, b in zip(self.own, self.after)):
            self.own[:] = self.before


REPLACED = "the loader replaced a parameter's memory; it was put back"


class Unchanged:
    """A context in which a loader runs for its trace. Afterwards every module has the attributes,
    their dicts and lists the entries, and every parameter and buffer the memory, that they had
    before. `findings` has the restored changes that matter: replaced memory, and tensors that the
    loader would have kept elsewhere."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self.findings: list[str] = []

    def __enter__(self) -> Unchanged:
        self._before = Snapshot(self._model)
        self._grad = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        return self

    def __exit__(self, *_) -> None:
        torch.set_grad_enabled(self._grad)
        findings = []
        for change in self._before.changes():
            if change.registered:
                findings.append(REPLACED)
            elif change.holds_tensor():
                findings.append(f"the loader keeps a tensor beside the parameters: {change.where}")
            change.undo()
        if self._before.put_memory_back():
            findings.append(REPLACED)
        self.findings = list(dict.fromkeys(findings))
        del self._before


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return False
    return any(isinstance(v, torch.Tensor) for v in value)
