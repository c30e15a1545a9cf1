"""Maps a trainer's tensor names to those of the checkpoint that its run starts from.

Wrappers add parts to names, transformers 5 packs and renames parameters, and a text class has no
`language_model.` before its layers. A name that fits the checkpoint is never changed. Any other one
is mapped only to a tensor of the same shape. Not thread-safe.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltawire import _checkpoint
from deltawire._conversion import Conversion, conversions_of, ignored_by
from deltawire._errors import (
    DTypeError,
    ExtraTensorError,
    MissingTensorError,
    ShapeError,
    TensorError,
)
from deltawire._tensors import TensorMeta, is_dtensor, shape_of, shape_text

logger = logging.getLogger(__name__)

# Parts that wrappers put anywhere into a name: DDP, torch.compile, FSDP1, activation checkpointing,
# and PEFT beside an adapter's matrices.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
             "base_layer")
_WRAPPED = re.compile(rf"(?:^|\.)(?:{'|'.join(_WRAPPERS)})(?:\.|$)")
_PEFT = "base_model.model."
_SAVED = "modules_to_save.default."
_ADAPTER = re.compile(r"(^|\.)lora_[A-Za-z_]+(\.|$)")
# Parts that only say where a language model is in a multimodal model.
_CONTAINERS = frozenset({"model", "language_model", "text_model", "thinker", "llm"})
# Parts of a checkpoint that text models and their trainers leave out: encoders and their
# connectors, speech, and heads that predict several tokens.
_SIDE_PARTS = re.compile(
    r"vision|visual|image|video|audio|speech|multi_?modal|mm_|projector|connector|aligner|merger"
    r"|talker|code2wav|token2wav|^mtp|nextn|eagle|medusa")
_TIED = ("lm_head.weight", "embed_tokens.weight", "wte.weight", "shared.weight")
_WIDE = ("F64", "F32", "F16", "BF16")
_NAMED = 3  # names of each side in a message
_COMPARED = 2000  # candidates for a nearest match

NOT_MERGED = (
    'tensor "{}" is of a LoRA adapter that is not merged, so engines would go on with the base: '
    "call merge_adapter() and give the module itself, merge_and_unload() and give what it returns, "
    "or publish the adapter alone by publish_lora (verl: actor_rollout_ref.model.lora.merge=True)")


def is_adapter(name: str) -> bool:
    """Returns whether the name is one that PEFT gives to an adapter's own tensor."""
    return _ADAPTER.search(name) is not None


def cleaned(name: str) -> str:
    """Returns a name without the parts that wrappers and PEFT have put into it."""
    if "_" in name or "module." in name:
        if _SAVED in name:
            name = name.replace(_SAVED, "")
        while name.startswith(("module.", "_orig_mod.")):
            name = name.partition(".")[2]
        name = name.removeprefix(_PEFT)
        if _WRAPPED.search(name):
            name = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    return name


def _within(name: str) -> str:
    """Returns a name without its leading containers."""
    parts = name.split(".")
    at = 0
    while at < len(parts) - 1 and parts[at] in _CONTAINERS:
        at += 1
    return ".".join(parts[at:])


def part_of(name: str) -> str:
    """Returns the part of a model that a tensor is in: "visual", "layers.61", "lm_head"."""
    first, _, rest = _within(name).partition(".")
    number = rest.partition(".")[0]
    return f"{first}.{number}" if number.isdigit() else first


def side_parts(disk: Collection[str], given: Collection[str],
               hf_dir: str | os.PathLike[str] | None, model: Any = None) -> dict[str, list[str]]:
    """Returns the checkpoint's names, by part, for parts that the trainer lacks wholly and that a
    text model does not have, and for those that the model's class does not load. `given`: names of
    the checkpoint that the trainer has."""
    has = {part_of(name) for name in given}
    layers = _layers_of(hf_dir)
    found: dict[str, list[str]] = {}
    absent: dict[str, bool] = {}
    ignored = [re.compile(p) for p in ignored_by(model, hf_dir)] if disk else []
    for name in disk:
        part = part_of(name)
        if part not in absent:
            number = part.removeprefix("layers.")
            beyond = layers is not None and number.isdigit() and int(number) >= layers
            absent[part] = part not in has and (
                beyond or _SIDE_PARTS.search(part) is not None)
        if absent[part] or any(p.search(name) for p in ignored):
            found.setdefault(part, []).append(name)
    return found


def _layers_of(hf_dir: str | os.PathLike[str] | None) -> int | None:
    parts = _checkpoint.config_parts(hf_dir) if hf_dir is not None else []
    for part in reversed(parts):
        if isinstance(part.get("num_hidden_layers"), int):
            return part["num_hidden_layers"]
    return None


@dataclass(frozen=True)
class Group:
    """Tensors that transformers converts together. `members`: as the model of `way` has them.
    `targets`: a result -> its name in the checkpoint."""

    way: Conversion
    members: tuple[str, ...]
    targets: Mapping[str, str]


#: The rule for one tensor: its names in the checkpoint, or its group and its name there.
Rule = tuple[str, ...] | tuple[Group, str]


@dataclass
class Report:
    """The results of a reconciliation, for one log line."""

    tensors: int = 0
    converted: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    copied: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    carried: Mapping[str, list[str]] = field(default_factory=dict)

    def line(self) -> str:
        said = [f"{self.tensors} tensors"]
        if self.converted:
            said.append(f"{self.converted} names through transformers' conversion")
        if self.removed:
            said.append("prefix " + ", ".join(f"`{p}`" for p in sorted(self.removed)) + " removed")
        said += [f"{moved} ({n})" for moved, n in sorted(self.moved.items())]
        if self.left_out:
            said.append(f"left out as tied: {_some(self.left_out)}")
        if self.copied:
            said.append(f"copied from what they are tied to: {_some(self.copied)}")
        if self.carried:
            count = sum(len(names) for names in self.carried.values())
            said.append(f"{count} tensors of the checkpoint stay as they are: "
                        + ", ".join(f"`{_prefix(part, names)}`"
                                    for part, names in self.carried.items()))
        return "; ".join(said)


class Names:
    """A map from a trainer's names to the checkpoint's. `disk`: the checkpoint's tensors. `hf_dir`:
    its config.json names the model's class if `model`, a PreTrainedModel, is unknown. `held`:
    yields all that the trainer has, by cleaned names; None: that of the model's class. `by_disk`: a
    tensor that fits by name and shape is as in the checkpoint, whatever transformers would convert
    it to."""

    def __init__(self, disk: Iterable[TensorMeta], hf_dir: str | os.PathLike[str] | None,
                 model: Any = None, held: Callable[[], dict[str, tuple[int, ...]]] | None = None,
                 by_disk: bool = False):
        self._disk = {m.name: m for m in disk}
        self._hf_dir, self._by_disk = hf_dir, by_disk
        self._held: Any = held
        self.model = model
        self.report = Report(tensors=len(self._disk))
        #: Second names in the checkpoint that get the same tensor, by the first name.
        self.copies: dict[str, list[str]] = {}
        self._by_inner: dict[str, list[str]] | None = None
        self._ways: list[Conversion] | None = None
        self._heads: dict[str, list[str]] = {}
        self._rules: dict[tuple[str, tuple[int, ...]], Rule | None] = {}

    def rule(self, name: str, shape: Sequence[int]) -> Rule | None:
        """Returns the rule, or None if nothing in the checkpoint comes from the tensor."""
        key = name, tuple(shape)
        if key not in self._rules:
            self._rules[key] = self._found(*key)
        return self._rules[key]

    def targets(self, name: str, shape: Sequence[int]) -> tuple[str, ...]:
        """Returns the checkpoint's names that the tensor contributes to, or its own name if there
        are none."""
        rule = self.rule(name, shape) if self._disk else None
        if rule is None:
            return (name,)
        return tuple(rule[0].targets.values()) if isinstance(rule[0], Group) else rule

    def becomes(self, name: str, tensor: Any) -> list[tuple[str, bool]]:
        """Returns the checkpoint's tensors that one tensor contributes to, each with whether it is
        that tensor, whole or as a shard."""
        rule = self.rule(name, tensor.shape)
        if rule is not None and isinstance(rule[0], Group):
            return [(target, False) for target in rule[0].targets.values()]
        target = name if rule is None else rule[0]
        return [(n, True) for n in (*self.copies.get(target, ()), target)]

    def known(self, name: str) -> tuple[str, ...]:
        """Returns `targets` of a tensor that was given before, in any shape."""
        return next((self.targets(n, s) for n, s in self._rules if n == name), (name,))

    def parts(self, name: str, tensor: Any) -> list[tuple[str, Any]]:
        """Returns the checkpoint's tensors that come from one tensor alone, or the tensor itself if
        it is unknown."""
        rule = self.rule(name, tensor.shape) if self._disk else None
        if rule is None:
            return [(name, tensor)]
        if isinstance(rule[0], Group):
            alone = len(rule[0].members) == 1
            return _converted(rule[0], {rule[1]: tensor}) if alone else [(name, tensor)]
        return [(target, tensor) for target in rule]

    def converted(self, stream: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yields `stream` by the checkpoint's names. Keeps a tensor only until its group is
        complete. MissingTensorError: a group stays incomplete."""
        waiting: dict[tuple[str, ...], tuple[Group, dict[str, Any]]] = {}
        for name, tensor in stream:
            shape = shape_of(name, tensor)
            rule = None if shape is None else self.rule(name, shape)
            if rule is None or not isinstance(rule[0], Group):
                target = name if rule is None else rule[0]
                for copy in self.copies.get(target, ()):
                    yield copy, tensor
                one = [tensor]
                del tensor  # so that only its consumer holds it while the stream makes the next one
                yield target, one.pop()
            else:
                group, member = rule
                have = waiting.setdefault(group.members, (group, {}))[1]
                have[member] = tensor.full_tensor() if is_dtensor(tensor) else tensor
                del tensor
                if len(have) == len(group.members):
                    del waiting[group.members]
                    yield from _converted(group, have)
                del have
        for group, have in waiting.values():
            missing = next(m for m in group.members if m not in have)
            raise MissingTensorError(
                f'tensor "{missing}" was not given, and the checkpoint has it joined with '
                f'"{next(iter(have))}"; give both', missing)

    def _found(self, name: str, shape: tuple[int, ...]) -> Rule | None:
        there = self._disk.get(name)
        if there is not None and there.shape == shape and (
                self._by_disk or not _may_be_turned(shape)):
            return (name,)
        inner = cleaned(name)
        target = self._target(inner, shape)
        if target is None or (_may_be_turned(shape) and not self._by_disk):
            for way in self._conversions(target is not None):
                rule = self._by_conversion(way, inner, shape)
                if rule is not None:
                    return rule
        if target is None:
            return (name,) if there is not None else None
        self._note(name, inner, target)
        return (target,)

    def _conversions(self, fits: bool) -> list[Conversion]:
        if self._ways is None:
            self._ways = list(conversions_of(self.model, self._hf_dir, only_if_loaded=fits))
        return self._ways

    def _by_conversion(self, way: Conversion, name: str, shape: tuple[int, ...]) -> Rule | None:
        if callable(self._held):
            self._held = self._held()
        held = self._held if self._held is not None else way.shapes
        if held.get(name) != shape:
            if self._held is None and name in held:
                held = {**held, name: shape}  # judged by its results
            else:
                return None
        renamed = way.renamed(name)
        if renamed is not None:
            target = None if renamed == name else self._target(renamed, shape)
            if target is not None:
                self.report.converted += 1
                return (target,)
            return None
        members = way.group(name, held)
        try:
            made = way.revert({m: _without_memory(held[m]) for m in members})
        except Exception as error:  # pylint: disable=broad-exception-caught
            logger.debug("transformers cannot turn back %s: %r", members, error)
            return None
        targets = {}
        for part, tensor in made.items():
            target = self._target(part, tuple(tensor.shape), anyhow=self._held is None)
            if target is None:
                return None
            targets[part] = target
        self.report.converted += 1
        return Group(way, members, targets), name

    def _target(self, name: str, shape: tuple[int, ...], anyhow: bool = False) -> str | None:
        """Returns the checkpoint's name of a tensor. `anyhow`: in any shape; a wrong one is refused
        with both shapes when it is written."""
        if name in self._disk:
            return name if anyhow or self._disk[name].shape == shape else None
        if self._by_inner is None:
            self._by_inner = {}
            for there in self._disk:
                self._by_inner.setdefault(_within(there), []).append(there)
        found = self._by_inner.get(_within(name), ())
        if len(found) != 1 or not (anyhow or self._disk[found[0]].shape == shape):
            return None
        return found[0]

    def _note(self, name: str, inner: str, target: str) -> None:
        if inner != name:
            # Most names differ only in their first parts, which are the same for many.
            head = name[: -len(inner)] if name.endswith(inner) else name
            if head not in self._heads:
                parts = [f"{p}." for p in _WRAPPERS if p in head.split(".")]
                if _PEFT in head:
                    parts.append(_PEFT)
                self._heads[head] = parts or [_SAVED]
            for part in self._heads[head]:
                self.report.removed[part] += 1
        if inner != target:
            tail = _within(target)
            before, after = inner.removesuffix(tail), target.removesuffix(tail)
            while before and after and before.partition(".")[0] == after.partition(".")[0]:
                before, after = before.partition(".")[2], after.partition(".")[2]
            self.report.moved[f"`{inner.removesuffix(tail)}*` is "
                              f"`{target.removesuffix(tail)}*` there"] += 1


def _converted(group: Group, tensors: dict[str, Any]) -> list[tuple[str, Any]]:
    first = next(iter(tensors))
    try:
        made = group.way.revert({name: t.detach() for name, t in tensors.items()})
    except Exception as error:
        raise ExtraTensorError(
            f'tensor "{first}" is not in the checkpoint, and transformers cannot turn it into '
            f"tensors that are: {type(error).__name__}: {error}", first) from error
    return [(group.targets.get(part, part), tensor) for part, tensor in made.items()]


def _may_be_turned(shape: tuple[int, ...]) -> bool:
    """Returns whether experts may be transposed under the checkpoint's own name (Qwen3-VL-MoE)."""
    return len(shape) > 2 and shape[-1] == shape[-2]


def _without_memory(shape: Sequence[int]) -> Any:
    import torch  # pylint: disable=import-outside-toplevel

    return torch.empty(tuple(shape), device="meta")


@dataclass(frozen=True)
class Reconciled:
    """A layout as the checkpoint has it. `metas`: in the given dtypes, by the checkpoint's names,
    without `carried`, which the trainer does not have. `tied`: given names that are left out, with
    the name of the same memory. `compared`: given names that are left out, and whose bytes must be
    a registered tensor's in each version. `said`: as in `stored`."""

    metas: list[TensorMeta]
    names: Names
    tied: dict[str, str]
    said: set[str]
    compared: frozenset[str]
    carried: list[TensorMeta]
    compares: bool = False  # with a checkpoint, or with the form in which the model is saved


def reconcile(
    given: Sequence[TensorMeta],
    tied: Mapping[str, str],
    said: Collection[str],
    disk: Sequence[TensorMeta],
    hf_dir: str | os.PathLike[str] | None,
    model: Any = None,
    skips: bool | Collection[str] = False,
) -> Reconciled:
    """Maps all `given` tensors, and `tied` ones (second names -> the given name of the same
    memory), to the checkpoint's. TensorError names tensors that have no place there, or that are
    there and not given. `skips`: as `ignore_extra`."""
    by_given = {m.name: m for m in given}
    everything = [(m.name, m) for m in given] + [(n, by_given[of]) for n, of in tied.items()]
    there = {m.name: m for m in disk}
    if all(m.name in said and m.name in there for m in given):  # taken from the checkpoint
        names = Names(disk, hf_dir, model, by_disk=True)
    else:
        names = Names(disk, hf_dir, model, lambda: {cleaned(n): m.shape for n, m in everything})
    targets: dict[str, list[str]] = {}
    metas: dict[str, TensorMeta] = {}
    kept: set[str] = set()
    unmapped: list[tuple[str, TensorMeta]] = []
    for name, meta in everything:
        if (name in there and there[name].shape == meta.shape and name not in metas
                and not _may_be_turned(meta.shape)):
            targets[name] = [name]
            metas[name] = meta if meta.name == name else TensorMeta(name, meta.dtype, meta.shape)
            if name in said:
                kept.add(name)
            continue
        rule = names.rule(name, meta.shape)
        if rule is None:
            unmapped.append((name, meta))
            continue
        is_group = isinstance(rule[0], Group)
        targets[name] = list(rule[0].targets.values() if is_group else rule)
        for target in targets[name]:
            _check_shape(name, None if is_group else meta.shape, there[target], hf_dir)
            if not is_group and target in metas:
                raise ExtraTensorError(
                    f'tensor "{name}" is "{target}" in {_where(hf_dir)}, as another given '
                    "tensor is; give one of the two", name)
            metas[target] = (there[target] if there[target].dtype == meta.dtype else
                             TensorMeta(target, meta.dtype, there[target].shape))
            if name in said:
                kept.add(target)
    _refuse_unquantized([m for n, m in metas.items() if n not in kept], there, hf_dir)
    left: dict[str, str] = {}
    compared: list[str] = []
    extra: list[str] = []
    by_memory: dict[str, str] = {}
    for name, of in tied.items():
        for one, other in ((name, of), (of, name)):
            if other in targets and len(targets[other]) == 1:
                by_memory.setdefault(one, targets[other][0])
    says_tied = hf_dir is not None and _checkpoint.says_tied(hf_dir)
    for name, meta in unmapped:
        if name in by_memory:
            left[name] = by_memory[name]
        elif skips is True or (skips is not False and name in skips):
            continue
        elif says_tied and name.endswith(_TIED) and any(
                n.endswith(_TIED) and m.shape == meta.shape for n, m in metas.items()):
            compared.append(name)
        else:
            extra.append(name)
    missing = [n for n in there if n not in metas]
    if missing and hf_dir is not None and says_tied:
        for name in [n for n in missing if n.endswith(_TIED)]:
            of = next((n for n, m in metas.items() if n.endswith(_TIED) and n != name
                       and m.shape == there[name].shape
                       and _checkpoint.equal(hf_dir, n, name)), None)
            if of is not None:
                names.copies.setdefault(of, []).append(name)
                names.report.copied.append(name)
                metas[name] = TensorMeta(name, metas[of].dtype, metas[of].shape)
                missing.remove(name)
    aside = side_parts(missing, metas, hf_dir, model) if missing and not extra else {}
    carried = {n for part in aside.values() for n in part}
    missing = [n for n in missing if n not in carried]
    if extra or missing:
        raise _unfit(extra, missing, len(everything), there, hf_dir)
    names.report.carried, names.report.left_out = aside, [*left, *compared]
    return Reconciled(list(metas.values()), names, left, kept, frozenset(compared),
                      [there[n] for n in there if n in carried])


def as_given(metas: Sequence[TensorMeta], tied: Mapping[str, str], said: Collection[str],
             model: Any) -> Reconciled:
    """Returns the layout without a checkpoint: by the names under which `model` saves, or as
    given."""
    names = Names((), None)
    names.report.tensors = len(metas)
    if model is None:
        return Reconciled(list(metas), names, dict(tied), set(said), frozenset(), [])
    shapes = {cleaned(m.name): m.shape for m in metas}
    dtypes = {cleaned(m.name): m.dtype for m in metas}
    way = next(conversions_of(model, None, only_if_loaded=True), None)
    made: dict[str, TensorMeta] = {}
    for name, shape in shapes.items():
        saved = name if way is None else way.renamed(name)
        if saved is not None:
            made[saved] = TensorMeta(saved, dtypes[name], shape)
        elif way is not None and (members := way.group(name, shapes))[0] == name:
            parts = way.revert({m: _without_memory(shapes[m]) for m in members})
            made |= {n: TensorMeta(n, dtypes[name], tuple(t.shape)) for n, t in parts.items()}
    return reconcile(metas, tied, said, list(made.values()), None, model)


def _refuse_unquantized(metas: Iterable[TensorMeta], there: Mapping[str, TensorMeta],
                        hf_dir: str | os.PathLike[str] | None) -> None:
    """Raises DTypeError if the checkpoint has fp8 where the trainer has wider numbers: no cast finds
    the scale that goes with them."""
    for meta in metas:
        if there[meta.name].dtype in ("F8_E4M3", "F8_E5M2") and meta.dtype in _WIDE:
            raise DTypeError(
                f'tensor "{meta.name}" is {there[meta.name].dtype} in {_where(hf_dir)}, and '
                f"{meta.dtype} here: engines of that checkpoint want fp8 and its scale; give hf_dir the "
                "checkpoint in bf16, or quantize the tensor and give its scale, too", meta.name)


def _check_shape(name: str, shape: tuple[int, ...] | None, there: TensorMeta,
                 hf_dir: str | os.PathLike[str] | None) -> None:
    if shape is None or shape == there.shape:
        return
    hint = ("; DeepSpeed ZeRO-3 leaves such placeholders in the module: call offload_zero3"
            if shape == (0,) else
            "; give hf_dir a checkpoint of this model (save_pretrained writes one)")
    raise ShapeError(f'tensor "{name}" has shape {shape_text(shape)}, and "{there.name}" in '
                     f"{_where(hf_dir)} has {shape_text(there.shape)}{hint}", name)


def _where(hf_dir: str | os.PathLike[str] | None) -> str:
    return "what the model is saved as" if hf_dir is None else os.fspath(hf_dir)


def _unfit(extra: list[str], missing: list[str], count: int, there: Collection[str],
           hf_dir: str | os.PathLike[str] | None) -> TensorError:
    adapters = [n for n in extra if is_adapter(n)]
    if adapters:
        return ExtraTensorError(NOT_MERGED.format(adapters[0]), adapters[0])
    where = _where(hf_dir)
    said = []
    if extra:
        near = nearest(extra[0], missing or there)
        said.append(f"{len(extra)} of {count} given tensors are not there ({_some(extra)})"
                    + (f'; nearest to "{extra[0]}" is "{near}"' if near else ""))
    if missing:
        near = "" if extra else nearest(missing[0], [])
        said.append(f"{len(missing)} of its {len(there)} tensors are not given ({_some(missing)})"
                    + near)
    kind = ExtraTensorError if extra else MissingTensorError
    return kind(
        f"the model's names do not fit those in {where}: {'; '.join(said)}; give hf_dir the "
        "checkpoint that the run starts from, or leave it out to publish the names as they are",
        (extra or missing)[0])


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the most similar of `names`, or ""."""
    last = name.split(".")[-2:]
    some = [n for n in names if n.split(".")[-2:] == last] or list(names)
    found = difflib.get_close_matches(name, some[:_COMPARED], 1, 0.4)
    return found[0] if found else ""


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(f'"{n}"' for n in names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _prefix(part: str, names: Sequence[str]) -> str:
    common = os.path.commonprefix(list(names)) if len(names) > 1 else names[0]
    at = common.find(part)
    return common if len(names) == 1 else common[: at + len(part)] + ".*"


# Modules ---------------------------------------------------------------------------------------


def is_module(given: Any) -> bool:
    return callable(getattr(given, "state_dict", None)) and callable(
        getattr(given, "named_parameters", None))


def unwrapped(module: Any) -> Any:
    """Returns the module without torch.compile and DDP."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = module.module
        if inner is None:
            return module
        module = inner


def base_of(module: Any) -> Any:
    """Returns the model that contains the adapters, or the module itself."""
    module = unwrapped(module)
    return module.get_base_model() if hasattr(module, "peft_config") else module


def unmerged(module: Any) -> str | None:
    """Returns a layer of a PEFT model whose adapter is not merged; "" if all are; None for other
    models."""
    if not hasattr(unwrapped(module), "peft_config"):
        return None
    for layer, part in module.named_modules():
        if hasattr(part, "base_layer") and not getattr(part, "merged", True):
            return layer
    return ""


def is_of_base(name: str) -> bool:
    """Returns whether a PEFT model's tensor belongs to the model that contains its adapters."""
    return not is_adapter(name) and "original_module." not in name


def tensors_of(module: Any) -> dict[str, Any]:
    """Returns a module's state dict, or for a PEFT model the merged base's. ExtraTensorError: an
    adapter is not merged."""
    state = module.state_dict()
    layer = unmerged(module)
    if layer:
        name = next((n for n in state if n.startswith(f"{layer}.") and is_adapter(n)), layer)
        raise ExtraTensorError(NOT_MERGED.format(name), name)
    return state if layer is None else {n: t for n, t in state.items() if is_of_base(n)}
