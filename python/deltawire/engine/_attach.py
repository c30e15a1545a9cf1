"""Finds an engine's layout for `EngineClient.attach` and proves it: trace, numbers, loader."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

from deltawire import Error
from deltawire.engine import _codes, _core, _second, _trace, _ways
from deltawire.engine._by_loader import ByLoader
from deltawire.engine._geometry import Box
from deltawire.engine._model import Storage, live_storages
from deltawire.engine._outcome import ANEW, Attached, some
from deltawire.engine._plans import Plan, PlanCache
from deltawire.engine._trace import Group, Tensors

#: torch's dtypes by safetensors' names.
_TORCH_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
}


#: The checkpoint's tensors at each model's last attach. If the names and shapes of another
#: checkpoint happen to fit, an engine would load it silently, or fail in the middle.
_proven: weakref.WeakKeyDictionary[torch.nn.Module, Tensors] = weakref.WeakKeyDictionary()


def proven(model: torch.nn.Module) -> Tensors | None:
    """Returns the checkpoint's tensors at the model's last attach, for `set_proven`."""
    return _proven.get(model)


def set_proven(model: torch.nn.Module, tensors: Tensors | None) -> None:
    """Takes back an attach that succeeded on this rank and that all ranks together refuse."""
    if tensors is None:
        _proven.pop(model, None)
    else:
        _proven[model] = tensors


class Refused(Exception):
    """The engine's memory cannot be updated in place; the text has the reason."""


class Attachment:
    """An engine's memory, bound to a receiver's directory. It keeps that memory alive."""

    def __init__(self, weights: Any, model: torch.nn.Module, load: Callable[[Iterable], Any],
                 allow_loader: bool, second: Callable[[], _second.Instance] | None,
                 beside: tuple[torch.nn.Module, Callable[[Iterable], Any]] | None = None):
        self._weights, self._model, self._load = weights, model, load
        self._allow_loader, self._second, self._beside = allow_loader, second, beside
        self._different: list[str] = []  # tensors that differed between a plan and the live memory
        self.tensors: Tensors = [
            (name, getattr(torch, _TORCH_DTYPES[dtype]), tuple(shape))
            for name, dtype, shape in weights.tensors]
        self.storages: list[Storage] = []
        self.by_loader: ByLoader | None = None

    def attach(self, plans: PlanCache | None) -> Attached:
        """Returns whether the memory is bound now and is the client's held version."""
        begin = time.perf_counter()
        result = Attached(False)
        try:
            self._refuse_other_tensors()
            if plans is None or not self._use_plan(plans, result):
                plan = self._find_and_prove(result)
                if plans is not None:
                    result.plan = plans.keep(self._key(plans), plan, self.storages)
            result.ok = True
            _proven[self._model] = self.tensors
        except (Refused, Error) as error:
            result.reason = str(error)
            self._weights.bind([], [])
        except BaseException:  # e.g. Ctrl-C, or a fault in a plan cache
            self._weights.bind([], [])
            raise
        result.seconds = time.perf_counter() - begin
        return result

    def read(self, prepared: bool) -> Callable[[int, int, int], None]:
        """Returns a function that fills memory with a tensor: (tensor, address, bytes)."""
        def fill(tensor: int, address: int, nbytes: int) -> None:
            self._weights.read(prepared, tensor, address, nbytes)
        return fill

    def _refuse_other_tensors(self) -> None:
        known = dict.fromkeys(_proven.get(self._model, self.tensors))
        now = dict.fromkeys(self.tensors)
        if other := known.keys() ^ now.keys():
            names = dict.fromkeys(name for tensors in (known, now) for name, *rest in tensors
                                  if (name, *rest) in other)
            raise Refused("the checkpoint has tensors of other names, types or shapes by now than "
                          f"when this model was attached to: {some(names)}; {ANEW}")

    def _key(self, plans: PlanCache) -> dict[str, str]:
        return plans.key(self._weights.fingerprint, self._model)

    def _use_plan(self, plans: PlanCache, result: Attached) -> bool:
        """Returns whether an earlier plan fits this memory, and is proven by it."""
        self.storages, _ = live_storages(self._model)
        plan = plans.find(self._key(plans), self.storages, len(self.tensors))
        if plan is None:
            return False
        try:
            self._prove(plan, result)
        except (Refused, Error):
            # A trace may refuse the model as well, with a better reason.
            result.held = {}
            return False
        result.plan = "used"
        return True

    def _find_and_prove(self, result: Attached) -> Plan:
        plan = None
        try:
            plan = self._find(result)
            self._prove(plan, result)
            return plan
        except Refused as refused:
            if self._second is None:
                raise
            why = str(refused)
        plan = self._find_in_second(plan, why)
        self._prove(plan, result)
        return plan

    def _find_in_second(self, plan: Plan | None, why: str) -> Plan:
        """Makes another plan if the loader alone does not show the layout. `plan`: the loader's;
        `why`: the reason for which that was refused."""
        every = range(len(self.tensors))
        chosen: set[int] = set(every)
        if plan is not None and (self._different or plan.groups):
            names = set(self._different)
            wrong = {t for t in every if self.tensors[t][0] in names}
            # Also follow tensors that share memory with these: their bits may match by chance, as
            # zeros do.
            places = {box.storage for box in plan.boxes if box.tensor in wrong}
            chosen = wrong | {t for group in plan.groups for t in group.tensors} | {
                box.tensor for box in plan.boxes if box.storage in places}
        try:
            boxes = _second.follow(self._second, self.tensors, chosen, self.storages)
        except _second.Lost as lost:
            raise Refused(f"{why}; and by a second instance of the model: {lost}") from None
        kept = [box for box in plan.boxes if box.tensor not in chosen] if plan is not None else []
        numbers = [t for t in plan.by_numbers if t not in chosen] if plan is not None else []
        return Plan(kept + boxes, [], numbers + sorted(chosen))

    def _find(self, result: Attached) -> Plan:
        begin = time.perf_counter()
        found = _trace.trace(self._model, self._load, self.tensors)
        result.trace_seconds = time.perf_counter() - begin
        self.storages = found.storages
        if found.problems:
            raise Refused("the loader cannot be followed: " + some(found.problems))
        plan = Plan(self._without_what_is_shared(found.boxes), [], [])
        self._device(plan)
        #: The first group of each way, and its boxes.
        known: dict[Hashable, tuple[Group, list[Box] | None]] = {}
        for group in found.groups:
            boxes = self._follow(group, found.ways.get(group.tensors), known)
            if boxes is None:
                plan.groups.append(group)
            else:
                plan.boxes += boxes
                plan.by_numbers += group.tensors
        return plan

    def _without_what_is_shared(self, boxes: list[Box]) -> list[Box]:
        """Leaves each place one writer: of two models, the answering one gets the shared places."""
        if self._beside is None:
            return boxes
        model, load = self._beside
        alone = _trace.trace(model, load, self.tensors)
        if alone.problems:
            raise Refused("the loader cannot be followed: " + some(alone.problems))
        places = {s.keeper.untyped_storage().data_ptr(): i for i, s in enumerate(self.storages)}
        own = [places.get(s.keeper.untyped_storage().data_ptr(), -1) for s in alone.storages]
        answering = {box._replace(storage=own[box.storage]) for box in alone.boxes}
        shared = set(own)
        # If two tensors are copied to one place, the later one stays.
        last = {(b.storage, b.counts, b.dst_offset, b.dst_strides): b for b in boxes
                if b.storage not in shared}
        return [*last.values(), *(b for b in dict.fromkeys(boxes) if b in answering)]

    def _follow(self, group: Group, way: Hashable, known: dict) -> list[Box] | None:
        """Returns the boxes of one of the trace's groups, or None if there are none."""
        if way is not None and way in known:
            like, boxes = known[way]
            same = None if boxes is None else _ways.moved(boxes, like, group)
            if boxes is None or same is not None:
                return same
        boxes = _codes.follow(self._model, self._load, self.tensors, self.storages, group)
        if way is not None:
            known.setdefault(way, (group, boxes))
        return boxes

    def _device(self, plan: Plan) -> torch.device | None:
        """Returns the GPU with the plan's memory, or None for this machine's memory. Raises Refused
        if it is in several places, or if no update could reach it."""
        used = {box.storage for box in plan.boxes}
        places: dict[torch.device, str] = {}
        for i, storage in enumerate(self.storages):
            if storage.parameter or i in used:
                places.setdefault(storage.keeper.device, storage.names[0])
        (place, name), *others = places.items() or [(torch.device("cpu"), "")]
        if others:
            raise Refused(f"parameters in several places: {name} on {place}, and "
                          + some(f"{n} on {p}" for p, n in others))
        if place.type == "cpu":
            return None
        if place.type != "cuda":
            raise Refused(f"parameters that no update can reach: {name} on {place}")
        try:
            _core.find_device(place.index or 0)
        except Error as error:
            raise Refused(f"parameters that no update can reach: {name} on {place}: {error}"
                          ) from None
        if plan.groups:
            raise Refused("on a GPU the loader updates no tensors: "
                          + some(self._reasons(plan.groups)))
        return place

    def _prove(self, plan: Plan, result: Attached) -> None:
        """Binds the plan's boxes, and compares all of them with the committed version."""
        if plan.groups and not self._allow_loader:
            raise Refused("the loader cannot be followed: " + some(self._reasons(plan.groups))
                          + " (loader_tensors=True lets it load such tensors itself)")
        device = self._device(plan)
        on, stream = -1, 0
        storages = [(s.named(), s.keeper.untyped_storage().data_ptr(), s.nbytes)
                    for s in self.storages]
        if device is not None:
            # The model's other storages may be on other devices, but no box is in them.
            storages = [storage if s.keeper.device == device else (storage[0], 0, 0)
                        for storage, s in zip(storages, self.storages)]
            current = torch.cuda.current_stream(device)
            current.synchronize()  # a load may still be running there
            on, stream = device.index or 0, current.cuda_stream
        self._weights.bind(storages, [tuple(box) for box in plan.boxes], on, stream)
        compared = self._weights.adopt()
        result.boxes, result.mapped_bytes = len(plan.boxes), compared.bytes
        result.unmapped = self._unmapped(plan.boxes)
        self._different = list(compared.different)
        result.held = self._held(plan.boxes)
        if compared.different:
            raise Refused(
                f"{len(compared.different)} tensors have other bytes in the engine than in "
                f"{compared.identity}: it moves or changes them after loading, or it loaded "
                f"another version: {some(compared.different)}")
        if not compared.bytes and not plan.groups:
            raise Refused("the engine holds none of the checkpoint's tensors")
        self.by_loader = None
        if plan.groups:
            by_loader = ByLoader(self._model, self._load, self.tensors, self.storages, plan.groups)
            why = by_loader.prove(plan.boxes, self.read(False))
            if why:
                raise Refused("the loader does not repeat itself: " + why)
            self.by_loader = by_loader
            result.by_loader = by_loader.names
        result.by_numbers = [self.tensors[t][0] for t in plan.by_numbers]

    def _reasons(self, groups: list[Group]) -> list[str]:
        return [f"{self.tensors[t][0]}: {g.why}" for g in groups for t in g.tensors]

    def _held(self, boxes: list[Box]) -> dict[str, tuple[int, int]]:
        elements: dict[int, int] = {}
        for box in boxes:
            elements[box.tensor] = elements.get(box.tensor, 0) + math.prod(box.counts)
        return {self.tensors[t][0]: (held, math.prod(self.tensors[t][2]))
                for t, held in elements.items()}

    def _unmapped(self, boxes: list[Box]) -> list[tuple[str, int]]:
        """Returns the unmapped bytes of parameters, and of other tensors with some of the
        checkpoint."""
        used = {box.storage for box in boxes}
        names = {s.named() for i, s in enumerate(self.storages) if s.parameter or i in used}
        return [(name, left) for name, left in self._weights.unmapped if name in names]
