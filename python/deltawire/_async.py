"""Runs a blocking call beside an event loop, in a separate thread.

The loop's default executor has few threads, and waits of hours would occupy all of them.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

_R = TypeVar("_R")


async def in_thread(call: Callable[[], _R], cancel: Callable[[], None] = lambda: None) -> _R:
    """Returns or raises what `call` does. If its task is cancelled, it calls `cancel`, which must
    end the call soon, and returns when the call has ended. No call outlives its caller."""
    # The import loads Python's OpenSSL, which a trainer without an event loop does not need.
    import asyncio  # pylint: disable=import-outside-toplevel

    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[_R | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def told(result: _R | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def run() -> None:
        result, failed = None, None
        try:
            result = context.run(call)
        except BaseException as error:
            failed = error
        try:
            loop.call_soon_threadsafe(told, result, failed)
        except RuntimeError:
            pass  # the loop is closed

    threading.Thread(target=run, name="deltawire-async", daemon=True).start()
    try:
        result, error = await asyncio.shield(done)
    except asyncio.CancelledError:
        cancel()
        while not done.done():  # also if the task is cancelled again
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(done)
        raise
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
