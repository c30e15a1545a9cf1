"""Applies transformers' own tables backwards, from a model's parameters to the names on disk.

Since transformers 5 a model's experts are packed into two tensors, while checkpoints have three for
each expert; other parameters are renamed, transposed or joined. `save_pretrained` applies these
tables backwards, and so does this, for a few tensors at a time. It works without transformers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any


class Conversion:
    """The conversion of one model's class. `shapes`: of its tensors, by name."""

    def __init__(self, model: Any):
        from transformers import core_model_loading  # pylint: disable=import-outside-toplevel

        self._revert = core_model_loading.revert_weight_conversion
        self._model = _WithTables(model)
        self.shapes: dict[str, tuple[int, ...]] = {
            n: tuple(t.shape) for n, t in model.state_dict().items()}
        tables = [c.reverse_transform() for c in self._model.tables[::-1]]
        converts = core_model_loading.WeightConverter
        self._converters = [c for c in tables if isinstance(c, converts)]
        self._renamings = [c for c in tables if not isinstance(c, converts)]
        self._apply = core_model_loading.apply_converters
        self._rename = core_model_loading.apply_renamings
        self._keys: dict[str, str] = {}
        self._groups: dict[str, list[str]] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._model.tables

    def renamed(self, name: str) -> str | None:
        """Returns the name on disk of a tensor that is only renamed, or None if it is converted."""
        if self._key(name):
            return None
        return self._rename(name, self._renamings)

    def group(self, name: str, held: Collection[str]) -> tuple[str, ...]:
        """Returns those of `held` that are converted together with it. REQUIRES: `renamed` is None.
        `held` is the same in all calls, except for `name`."""
        if self._groups is None:
            self._groups = {}
            for one in held:
                self._groups.setdefault(self._key(one), []).append(one)
        return tuple(self._groups.get(self._key(name), (name,)))

    def revert(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Converts one group's tensors, and returns them by their names on disk."""
        return self._revert(self._model, dict(tensors))

    def _key(self, name: str) -> str:
        """Returns the same key for tensors that are converted together; "" if no converter accepts
        it."""
        if name not in self._keys:
            renamed, pattern = self._apply(name, self._converters)
            self._keys[name] = renamed if pattern is not None else ""
        return self._keys[name]


class _WithTables:
    """A model with its tables set: transformers would walk through its modules for each call."""

    def __init__(self, model: Any):
        self._of = model
        tables = getattr(model, "_weight_conversions", None)
        if tables is None:
            from transformers import (  # pylint: disable=import-outside-toplevel
                conversion_mapping,
                core_model_loading,
            )

            tables = [
                c for c in conversion_mapping.get_model_conversion_mapping(model, add_legacy=False)
                if not isinstance(c, core_model_loading.PrefixChange)]
        self._weight_conversions = self.tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def conversions_of(model: Any, hf_dir: str | os.PathLike[str] | None, only_if_loaded: bool
                   ) -> Iterator[Conversion]:
    """Yields the model's conversion, or else those of the classes that the checkpoint's config.json
    names, and of its language model alone. `only_if_loaded`: none if this process does not use
    transformers."""
    if only_if_loaded and "transformers" not in sys.modules:
        return
    try:
        from transformers.core_model_loading import (  # pylint: disable=import-outside-toplevel
            revert_weight_conversion as _,
        )
    except ImportError:
        return  # before transformers 5 no tensor was packed
    if hasattr(model, "config") and hasattr(model, "state_dict"):
        makers = [lambda: model]
    elif hf_dir is not None:
        makers = [lambda: _by_architecture(hf_dir), lambda: _of_text(hf_dir)]
    else:
        return
    for make in makers:
        try:
            found = Conversion(make())
        except Exception:  # pylint: disable=broad-exception-caught
            continue  # later the tensors are refused by their names
        if not found.is_empty:
            yield found


def _config(hf_dir: str | os.PathLike[str]) -> Any:
    import transformers  # pylint: disable=import-outside-toplevel

    return transformers.AutoConfig.from_pretrained(os.fspath(hf_dir), local_files_only=True)


def _by_architecture(hf_dir: str | os.PathLike[str]) -> Any:
    import torch  # pylint: disable=import-outside-toplevel
    import transformers  # pylint: disable=import-outside-toplevel

    config = _config(hf_dir)
    with torch.device("meta"):
        return getattr(transformers, config.architectures[0])(config)


def _of_text(hf_dir: str | os.PathLike[str]) -> Any:
    import torch  # pylint: disable=import-outside-toplevel
    import transformers  # pylint: disable=import-outside-toplevel

    config = _config(hf_dir)
    text = config.get_text_config()
    if text is config:
        raise ValueError("the model is a text model")
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(text)


def ignored_by(model: Any, hf_dir: str | os.PathLike[str] | None) -> list[str]:
    """Returns patterns of the names that the model's class leaves in a checkpoint unloaded. Empty
    if this process does not use transformers."""
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return []
    found: list[str] = []
    for kind in [type(model)] if model is not None else _classes(transformers, hf_dir):
        found += getattr(kind, "_keys_to_ignore_on_load_unexpected", None) or []
    return found


def _classes(transformers: Any, hf_dir: str | os.PathLike[str] | None) -> Iterator[Any]:
    try:
        config = _config(hf_dir)
        yield getattr(transformers, config.architectures[0])
        yield transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config.get_text_config())]
    except Exception:  # pylint: disable=broad-exception-caught
        return  # of another library
