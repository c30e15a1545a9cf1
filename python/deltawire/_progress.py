"""Reports the progress of a version's writing, to a function of the caller's or as a tqdm bar."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

_EVERY_S = 10.0  # between two log lines, without tqdm


@dataclass(frozen=True)
class Progress:
    """The progress after one tensor. `tensors` of `of` were written, by this rank or another, or
    left to others. `bytes_written` by this rank counts finished copies."""

    version: int
    tensor: str
    tensors: int
    of: int
    bytes_written: int


Wanted = Callable[[Progress], None] | Literal[True] | None


@contextlib.contextmanager
def shown(wanted: Wanted, model: str, rank: int) -> Iterator[Callable[[Progress], None] | None]:
    """Yields the report function for the tensors of one version. `wanted`: as in WeightManager."""
    if wanted is None or (wanted is True and rank != 0):
        yield None
    elif wanted is not True:
        yield wanted
    else:
        with _bar(model) as show:
            yield show


@contextlib.contextmanager
def _bar(model: str) -> Iterator[Callable[[Progress], None]]:
    try:
        from tqdm.auto import tqdm  # pylint: disable=import-outside-toplevel
    except ImportError:
        yield _Lines(model).show
        return
    with tqdm(unit=" tensors", desc=model, leave=False) as bar:

        def show(progress: Progress) -> None:
            bar.total = progress.of
            bar.set_postfix_str(f"{progress.bytes_written / 1e9:.1f} GB", refresh=False)
            bar.update(progress.tensors - bar.n)

        yield show


class _Lines:
    def __init__(self, model: str):
        self._model, self._said = model, time.monotonic()

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._said < _EVERY_S:
            return
        self._said = time.monotonic()
        logger.info("model %s: version %d: %d of %d tensors, %.1f GB written", self._model,
                    progress.version, progress.tensors, progress.of, progress.bytes_written / 1e9)
