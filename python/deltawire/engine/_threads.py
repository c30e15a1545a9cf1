"""Keeps a loader in the thread that called it.

A mode of torch sees what its own thread does. What a loader wrote from another one would go past
shadows into live memory, and could not be taken back; so a thread that is started meanwhile is an
error, raised where it is started, before it runs. Threads that other threads start are theirs.
Python before 3.12 tells nobody of a new thread, hence the detour over `threading.Thread.start`,
which lasts as long as the context.
"""

from __future__ import annotations

import threading

_own = threading.local()
_lock = threading.Lock()
_start = threading.Thread.start
_contexts = 0  # of all threads; under _lock


def _refuse(thread: threading.Thread) -> None:
    if getattr(_own, "alone", False):
        raise RuntimeError("the loader starts threads, and what they write cannot be followed")
    _start(thread)


class Alone:
    """A context in which this thread starts no other one. Not to be entered twice at once."""

    def __enter__(self) -> Alone:
        global _contexts  # pylint: disable=global-statement
        with _lock:
            _contexts += 1
            threading.Thread.start = _refuse
        _own.alone = True
        return self

    def __exit__(self, *_: object) -> None:
        global _contexts  # pylint: disable=global-statement
        _own.alone = False
        with _lock:
            _contexts -= 1
            if not _contexts:
                threading.Thread.start = _start
