"""Publishes a framework's stream of named tensors: a layout first, then a version for each stream.

Frameworks hand over each version as an iterator that can be gone through once, while a model's
layout must be known before the first byte. It is the checkpoint's that the run starts from.
Not thread-safe. Errors: `deltawire.Error`, after the whole stream; the published version stays,
unless the wait alone was too long.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from deltawire import DTypeError, Error, Published, TensorMeta, WeightManager
from deltawire._casts import as_trained
from deltawire._errors import ExtraTensorError
from deltawire._hub import checkpoint_dir
from deltawire._names import NOT_MERGED, Names, is_adapter, is_of_base, unmerged
from deltawire._side_parts import log_names
from deltawire._tensors import dtype_name, torch_dtype
from deltawire.integrations import _checkpoint
from deltawire.integrations._directory import Expected
from deltawire.integrations._left_out import LeftOut


@contextlib.contextmanager
def gone_through(tensors: Iterator[tuple[str, Any]]) -> Iterator[None]:
    """Goes through the rest of `tensors` where the body raises. A trainer's ranks gather each
    tensor together, so one that stops would leave the others waiting for it."""
    try:
        yield
    except Exception:
        for _ in tensors:
            pass
        raise


class Publisher:
    """The one process of a job that talks to the sender.

    `endpoint`: the sender's data directory or trainer socket. `hf_dir`: the checkpoint that the run
    starts from. Its weights' headers give the layout, and its small files go to the receivers.
    Without it, or without weights in it, the first version's tensors give the layout, and are held
    in host memory once. `timeout`: seconds for each wait. `bf16_to_fp16`: a trainer in bf16 may
    feed a checkpoint in fp16: what is smaller than 6e-8 becomes 0, and what fp16 cannot hold is an
    error. `keep_dtype`: names of the checkpoint's tensors, or patterns such as "*.mlp.gate.weight",
    that are published in fp32, as trainers hold them, where the checkpoint has 16 bits.
    """

    def __init__(
        self,
        endpoint: str | os.PathLike[str],
        model: str,
        hf_dir: str | os.PathLike[str] | None = None,
        timeout: float = 1800.0,
        bf16_to_fp16: bool = False,
        keep_dtype: Collection[str] = (),
    ):
        hf_dir = None if hf_dir is None else checkpoint_dir(hf_dir)
        self._bf16_to_fp16, self._keep_dtype = bf16_to_fp16, keep_dtype
        self._weights = WeightManager(endpoint, model, timeout=timeout, ignore_extra="tied")
        self._hf_dir, self._timeout, self._model = hf_dir, timeout, model
        self._said = False
        self._dtypes: dict[str, str] = {}
        self._names = Names((), hf_dir)
        self._left_out = LeftOut((), self._names, hf_dir)
        self._read: tuple[_checkpoint.Seen, list[TensorMeta]] | None = None  # by `open`
        self._published = 0
        self._at: Expected | None = None  # what this process has published last
        self._unsure = False  # an offload has failed, whose version may be published all the same

    @property
    def published(self) -> int:
        """The version that the sender has, as far as this process knows; 0: none. After an error
        the sender is asked."""
        if self._unsure:
            self._ask()
        return self._published

    def expected(self) -> Expected | None:
        """The version that the sender has now; None: none. It is asked, since it may have been
        started anew. REQUIRES: `open` has found the layout."""
        self._ask()
        weights = self._weights
        if not self._published:
            return None
        return Expected(self._published, weights.lineage, weights.epoch, weights.root)

    def next(self) -> Expected:
        """The version after that one, in the epoch and lineage of now. REQUIRES: as `expected`."""
        self._ask()
        weights = self._weights
        return Expected(self._published + 1, weights.lineage, max(1, weights.epoch))

    def _ask(self) -> None:
        self._published = self._weights.register(self._weights.tensors_meta)
        self._unsure = False

    def open(self, needs_layout: bool = False) -> int:
        """Registers the model if its layout is known; returns the published version, or 0.
        `needs_layout`: for callers that must know that version now; Error where `hf_dir` has no
        weights. A checkpoint that is as it was the last time is not read again."""
        if self._hf_dir is None:
            return self._published
        if self._read is None or not self._read[0].holds():
            self._read = None
            seen = _checkpoint.Seen(self._hf_dir)
            metas = as_trained(_checkpoint.present(self._hf_dir)[0], self._keep_dtype)
        else:
            seen, metas = self._read
        if needs_layout and not metas:
            raise Error(f"{self._hf_dir} has no *.safetensors, and the model's layout comes from "
                        "there; give hf_dir the checkpoint that the run starts from")
        if metas:
            self._published = self._weights.register_checkpoint(metas, self._hf_dir)
            if self._read is None:
                self._registered(metas)
                self._read = seen, metas
            else:
                self._left_out.given_up()
        return self._published

    def publish(self, tensors: Iterable[tuple[str, Any]], version: int | None = None,
                module: Any = None) -> Published:
        """Returns when `version`, or else the next one, can be pulled by receivers. Goes through
        `tensors` once, holding one at a time, and also to their end before it raises. `module`: the
        trainer's, which tells why the stream leaves tensors out."""
        stream = iter(tensors)
        with gone_through(stream):
            return self._publish(stream, version, module)

    def _publish(self, stream: Iterator[tuple[str, Any]], version: int | None,
                 module: Any) -> Published:
        if not self._dtypes:
            held = [(name, t.detach().to("cpu", copy=True)) for name, t in stream]
            self._published = self._weights.register(held, hf_dir=self._hf_dir)
            self._registered(self._weights.tensors_meta)
            stream = iter(held)
        has = self.published
        wanted = has + 1 if version is None else version
        if wanted <= has:
            raise Error(f"version {wanted} was to be published, and the sender has {has} already; "
                        "does another trainer publish this model?")
        if self._left_out.carries and not self._is_newest():
            self._left_out.given_up()
        carried = self._left_out.begin(module)
        whole = self._left_out.completed(self._parts(stream, module))
        try:
            published = self._weights.offload(
                self._cast(whole), wanted, unchanged=carried).wait(self._timeout)
        except BaseException:
            self._left_out.given_up()
            # What was written may be published after a wait was given up, or ended by a signal;
            # offered again, it would be refused for ever.
            self._unsure = True
            raise
        self._published = published.version
        self._at = Expected.of(published)
        self._left_out.published()
        if not self._said and self._read is not None:
            self._said = True
            log_names(self._model, 0, self._names, self._hf_dir, True)
        if published.version != wanted:
            self._left_out.given_up()
            raise Error(f"the sender has version {published.version} after {wanted} was offloaded: "
                        "another trainer publishes this model")
        return published

    def close(self) -> None:
        """Gives back what is pinned. It may be opened again, and then knows its checkpoint."""
        self._weights.close()

    def _is_newest(self) -> bool:
        """Whether the sender still has what this process has published last: a rollback, or the
        sender's restart, may have brought another trainer's version back."""
        return self.expected() == self._at

    def _registered(self, metas: Iterable[TensorMeta]) -> None:
        metas = list(metas)
        self._dtypes = {m.name: m.dtype for m in metas}
        self._names = Names(metas, self._hf_dir)
        self._left_out = LeftOut(metas, self._names, self._hf_dir)

    def _cast(self, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """bf16 to a checkpoint's fp16, if that is allowed; `offload` casts what else it may."""
        for name, tensor in tensors:
            wanted = self._dtypes.get(name, "")
            given = dtype_name(tensor.dtype, name)
            if (given, wanted) == ("BF16", "F16"):
                tensor = self._as_fp16(name, tensor.detach())
            yield name, tensor

    def _as_fp16(self, name: str, tensor: Any) -> Any:
        if not self._bf16_to_fp16:
            raise DTypeError(
                f'tensor "{name}" is bf16, and fp16 in {self._hf_dir}: numbers beyond 65504 would '
                "become infinite, and those below 6e-8 zero; give hf_dir a checkpoint in bf16, "
                "train in fp16 or fp32, or allow it by bf16_to_fp16", name)
        cast = tensor.to(torch_dtype("F16"))
        if not (cast.isfinite() == tensor.isfinite()).all():
            raise DTypeError(f'tensor "{name}" has numbers that fp16 does not hold, and is fp16 in '
                             f"{self._hf_dir}; give hf_dir a checkpoint in bf16", name)
        return cast

    def _parts(self, tensors: Iterable[tuple[str, Any]], module: Any) -> Iterator[tuple[str, Any]]:
        return self._names.converted(self._merged(tensors, module))

    def _merged(self, tensors: Iterable[tuple[str, Any]], module: Any
                ) -> Iterator[tuple[str, Any]]:
        is_merged = module is not None and unmerged(module) == ""
        for name, tensor in tensors:
            if is_merged and not is_of_base(name):
                continue
            if not is_merged and name not in self._dtypes and (is_adapter(name) or ".base_layer." in name):
                raise ExtraTensorError(NOT_MERGED.format(name), name)
            yield name, tensor
