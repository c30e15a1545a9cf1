"""Turns a trainer's tensors into those of the checkpoint, where transformers packs or renames them.

Since transformers 5 a model's experts are packed into two tensors, while checkpoints have three for
each expert. transformers itself has the way back, which `save_pretrained` takes; it is taken here
for one tensor at a time. What comes out is compared with the registered layout as every tensor is.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from deltawire._errors import ExtraTensorError


class CheckpointNames:
    """`registered`: the layout's names. `hf_dir`: its config.json tells the model's class where no
    `model`, a PreTrainedModel, is given. Keeps no tensor."""

    def __init__(self, registered: Collection[str], hf_dir: str | os.PathLike[str] | None):
        self._registered, self._hf_dir = registered, hf_dir
        self.model: Any = None
        self._made: Any = False  # of the checkpoint's config; False: not tried

    def parts(self, name: str, tensor: Any) -> list[tuple[str, Any]]:
        """The tensor itself where its name is registered, or where nothing is known of it."""
        if name in self._registered:
            return [(name, tensor)]
        model = self.model if hasattr(self.model, "config") else self._of_config()
        revert = _way_back()
        if model is None or revert is None:
            return [(name, tensor)]
        try:
            parts = revert(model, {name: tensor.detach()})
        except Exception as error:
            raise ExtraTensorError(
                f'tensor "{name}" is not registered, and transformers cannot turn it into tensors '
                f"of the checkpoint: {type(error).__name__}: {error}", name) from error
        if all(part in self._registered for part in parts):
            return list(parts.items())
        return [(name, tensor)]

    def _of_config(self) -> Any:
        """The model without memory; None where transformers does not know it."""
        if self._made is False:
            self._made = None
            if self._hf_dir is not None and _way_back() is not None:
                try:
                    self._made = _without_memory(self._hf_dir)
                except Exception:  # then the tensor is refused by its name
                    pass
        return self._made


def _way_back() -> Any:
    try:
        from transformers.core_model_loading import (  # pylint: disable=import-outside-toplevel
            revert_weight_conversion,
        )
    except ImportError:
        return None  # before transformers 5 nothing was packed
    return revert_weight_conversion


def _without_memory(hf_dir: str | os.PathLike[str]) -> Any:
    import torch  # pylint: disable=import-outside-toplevel
    import transformers  # pylint: disable=import-outside-toplevel

    config = transformers.AutoConfig.from_pretrained(hf_dir, local_files_only=True)
    kind = getattr(transformers, config.architectures[0])
    with torch.device("meta"):
        return kind(config)
