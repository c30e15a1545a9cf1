"""The state of a Megatron job that a WeightManager keeps from version to version."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deltawire import _core
from deltawire._errors import Error, told
from deltawire._megatron import Gather


@contextlib.contextmanager
def telling(group: _core.Collective) -> Iterator[Callable[[], None]]:
    """Yields a function that each rank calls once, when it is ready for the joint part. It raises
    if another rank has failed. An error before that call is reported to the others, which would
    otherwise wait for this rank; after it, the group itself reports."""
    agreed = False

    def agree() -> None:
        nonlocal agreed
        agreed = True
        group.check(None)

    try:
        yield agree
    except Exception as error:
        if not agreed:
            with contextlib.suppress(Error):  # the group is broken, so the others know
                group.check(told(error))
        raise


def _texts(directory: str) -> list[tuple[str, bytes]]:
    """Returns a directory's family files. The plan reports those that cannot be read."""
    try:
        return [(p.name, p.read_bytes()) for p in sorted(pathlib.Path(directory).glob("*.toml"))]
    except OSError:
        return []


class MegatronJob:
    """The plan of one hf_dir and parallel config, and the meeting of the ranks that gather. Not
    thread-safe. `close` ends the meeting, and the next gather starts another one."""

    def __init__(self, threads: int):
        self._threads = threads
        self._key: tuple[Any, ...] | None = None
        self._plan: _core.Megatron | None = None
        self._meeting: tuple[Gather, _core.Collective] | None = None

    def plan(
        self,
        hf_dir: str | os.PathLike[str],
        parallel: Mapping[str, Any],
        family: str,
        families: Sequence[str | os.PathLike[str]],
    ) -> _core.Megatron:
        """Returns the last plan if its arguments were the same, else a new one, which is proven."""
        settings = json.dumps(dict(parallel))
        dirs = [os.fspath(d) for d in families]
        texts = [_texts(d) for d in dirs]
        key = os.fspath(hf_dir), json.dumps(dict(parallel), sort_keys=True), family, dirs, texts
        if self._plan is None or self._key != key:
            self._plan = _core.Megatron(os.fspath(hf_dir), settings, family, dirs, self._threads)
            self._key = key
        return self._plan

    def meeting(self, gather: Gather, rank: int, world: int) -> _core.Collective:
        """Returns the last meeting if it used the same `gather`, else all ranks meet anew."""
        if self._meeting is None or self._meeting[0] != gather:
            meeting = _core.Collective(
                rank,
                world,
                gather.root,
                gather.rendezvous,
                gather.job,
                gather.interface,
                gather.address,
                max(1, round(gather.timeout * 1000)),
                gather.kind_number(),
                gather.cuda_device(),
            )
            self._meeting = (gather, meeting)
        return self._meeting[1]

    def close(self) -> None:
        if self._meeting is not None:
            self._meeting[1].close()
            self._meeting = None
