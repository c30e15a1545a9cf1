"""Publishes a framework's stream of named tensors: a layout first, then a version for each stream.

Frameworks hand over each version as an iterator that can be gone through once, while a model's
layout must be known before the first byte. It is the checkpoint's that the run starts from.
Not thread-safe. Errors: `deltawire.Error`; the published version then stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from deltawire import Error, Published, WeightManager
from deltawire._tensors import dtype_name
from deltawire.integrations import _checkpoint

#: Among these a tensor is cast to the checkpoint's dtype, as an engine's loader does.
_CAST = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Publisher:
    """The one process of a job that talks to the sender.

    `endpoint`: the sender's data directory or trainer socket. `hf_dir`: the checkpoint that the run
    starts from. Its weights' headers give the layout, and its small files go to the receivers.
    Without it, or without weights in it, the first version's tensors give the layout, and are held
    in host memory once. `timeout`: seconds for each wait.
    """

    def __init__(
        self,
        endpoint: str | os.PathLike[str],
        model: str,
        hf_dir: str | os.PathLike[str] | None = None,
        timeout: float = 1800.0,
    ):
        self._weights = WeightManager(endpoint, model, timeout=timeout)
        self._hf_dir, self._timeout = hf_dir, timeout
        self._dtypes: dict[str, str] = {}
        self._published = 0

    @property
    def published(self) -> int:
        """The version that the sender has, as far as this process knows; 0: none."""
        return self._published

    def open(self) -> int:
        """Registers the model if its layout is known; returns the published version, or 0."""
        metas = _checkpoint.metas(self._hf_dir) if self._hf_dir is not None else []
        if metas:
            self._dtypes = {m.name: m.dtype for m in metas}
            self._published = self._weights.register(metas, hf_dir=self._hf_dir)
        return self._published

    def publish(self, tensors: Iterable[tuple[str, Any]], version: int | None = None) -> Published:
        """Returns when `version`, or else the next one, can be pulled by receivers. Goes through
        `tensors` once, holding one at a time."""
        if not self._dtypes:
            tensors = [(name, t.detach().to("cpu", copy=True)) for name, t in tensors]
            self._published = self._weights.register(tensors, hf_dir=self._hf_dir)
            self._dtypes = {m.name: m.dtype for m in self._weights.tensors_meta}
        wanted = self._published + 1 if version is None else version
        if wanted <= self._published:
            raise Error(f"version {wanted} was to be published, and the sender has "
                        f"{self._published} already; does another trainer publish this model?")
        published = self._weights.offload(self._cast(tensors), wanted).wait(self._timeout)
        self._published = published.version
        if published.version != wanted:
            raise Error(f"the sender has version {published.version} after {wanted} was offloaded: "
                        "another trainer publishes this model")
        return published

    def close(self) -> None:
        self._weights.close()

    def _cast(self, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Floats to the registered dtype; what else does not fit is refused by `offload`."""
        for name, tensor in tensors:
            wanted = self._dtypes.get(name, "")
            given = dtype_name(tensor.dtype, name)
            if given != wanted and given in _CAST and wanted in _CAST:
                import torch  # pylint: disable=import-outside-toplevel

                tensor = tensor.detach().to(getattr(torch, _CAST[wanted]))
            yield name, tensor
