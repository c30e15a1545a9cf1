"""Keeps a loader in the thread that called it.

A mode of torch sees only its own thread. A loader's writes from another thread would go past
shadows into live memory, and could not be undone. So starting a thread is an error, raised at the
start, before the thread runs. Threads that other threads start are allowed. Python before 3.12 does
not report new threads, hence the detour over `threading.Thread.start`, which lasts as long as the
context.
"""

from __future__ import annotations

import threading

_own = threading.local()
_lock = threading.Lock()
_start = threading.Thread.start
_contexts = 0  # of all threads; guarded by _lock


def _refuse(thread: threading.Thread) -> None:
    if getattr(_own, "alone", False):
        raise RuntimeError("the loader starts threads, and what they write cannot be followed")
    _start(thread)


class Alone:
    """A context in which this thread starts no other one. It must not be entered twice at once."""

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
