"""Parts of a checkpoint that a trainer does not have: written once, then carried over."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from deltawire import _checkpoint
from deltawire._errors import Error
from deltawire._names import Names
from deltawire._tensors import TensorMeta

logger = logging.getLogger(__name__)


class SideParts:
    """The tensors `names` of the checkpoint `hf_dir`, over the versions of one registration."""

    def __init__(self, hf_dir: str | os.PathLike[str] | None, names: Collection[str]):
        self._hf_dir, self.names = hf_dir, frozenset(names)
        self._is_there = False  # whether the sender's newest version has them

    def of_version(self, writes: bool) -> tuple[frozenset[str], Iterable[tuple[str, Any]]]:
        """Returns names that the sender carries over, and tensors to write. `writes`: this rank
        does."""
        if self._is_there or not writes:
            return (self.names if writes else frozenset()), ()
        return frozenset(), self._tensors()

    def written(self, is_sure: bool) -> None:
        """Ends a version for this rank. `is_sure`: the version can no longer be abandoned."""
        self._is_there = is_sure

    def _tensors(self) -> Iterator[tuple[str, Any]]:
        if not self.names or self._hf_dir is None:
            return
        found = 0
        for pair in _checkpoint.sources(self._hf_dir, self.names):
            found += 1
            yield pair
        if found != len(self.names):
            raise Error(f"{os.fspath(self._hf_dir)} has only {found} of the {len(self.names)} "
                        "tensors left that it had when the model was registered; register again")


@contextlib.contextmanager
def no_collections(pauses: bool = True) -> Iterator[None]:
    """Pauses Python's garbage collection of cycles. Tens of thousands of new names would trigger
    passes over all objects of a trainer, which take longer than the reconciliation."""
    was = gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def checkpoint_of(hf_dir: str | os.PathLike[str] | None) -> tuple[list[TensorMeta], bool]:
    """Returns the weights in `hf_dir`, and whether names are compared with them."""
    if hf_dir is None or not os.path.isdir(hf_dir):  # the library reports a wrong path
        return [], False
    return _checkpoint.present(hf_dir)


def log_names(model: str, rank: int, names: Names, hf_dir: str | os.PathLike[str] | None,
              compared: bool) -> None:
    if rank != 0:
        return
    if compared:
        logger.info("model %s: %s", model, names.report.line())
    elif hf_dir is None:
        logger.info("model %s: %d tensors by the names that they were given with; without hf_dir "
                    "nothing compared them", model, names.report.tensors)
    else:
        logger.info("model %s: %d tensors by the names that they were given with; not all weights "
                    "are in %s, so nothing compared them", model, names.report.tensors,
                    os.fspath(hf_dir))
