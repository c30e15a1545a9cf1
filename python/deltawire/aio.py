"""`deltawire.control` for asyncio: the same methods, to be awaited, and watches for `async for`.

    from deltawire.aio import Receiver, Sender

    async with Sender("10.0.0.1:7700", model="policy", credentials="me.toml") as sender:
        await sender.wait_committed(version=120, at_least=8, timeout=60)
        async with await sender.watch() as versions:
            async for news in versions:
                print(news.id.version)

A task that is cancelled ends its call at the daemon, and goes on when the call is over.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from deltawire import control
from deltawire._async import in_thread

__all__ = ["Answers", "Receiver", "Sender"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Answers(AsyncIterator[_T], Generic[_T]):
    """The answers of a call that streams; a context manager that ends the call."""

    def __init__(self, answers: control.Answers[_T]):
        self._answers = answers

    async def __anext__(self) -> _T:
        end: Any = object()  # no coroutine may raise StopIteration
        answer = await in_thread(lambda: next(self._answers, end), self._answers.cancel)
        if answer is end:
            raise StopAsyncIteration
        return answer

    def cancel(self) -> None:
        """Ends the call."""
        self._answers.cancel()

    async def __aenter__(self) -> Answers[_T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._answers.__exit__()


async def _run(call: Callable[[], _T]) -> _T:
    """In a thread; its calls at the daemon end where the task is cancelled."""
    calls = control.OpenCalls()
    token = control.open_calls.set(calls)  # the thread has a copy of this context
    try:
        return await in_thread(call, calls.cancel)
    finally:
        control.open_calls.reset(token)


def _awaited(of: Callable[Concatenate[Any, _P], _T]
             ) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    @functools.wraps(of)
    async def method(self: Any, *args: _P.args, **options: _P.kwargs) -> _T:
        return await _run(lambda: of(self._daemon, *args, **options))

    return method


def _watched(of: Callable[Concatenate[Any, _P], control.Answers[_T]]
             ) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, Answers[_T]]]:
    @functools.wraps(of)
    async def method(self: Any, *args: _P.args, **options: _P.kwargs) -> Answers[_T]:
        return Answers(await _run(lambda: of(self._daemon, *args, **options)))

    return method


class _Daemon:
    """Arguments as in `deltawire.control`."""

    _OF: type[control.Sender] | type[control.Receiver]
    call = _awaited(control.Sender.call)  # of both kinds
    stream = _watched(control.Sender.stream)
    model = _awaited(control.Sender.model)

    def __init__(self, address: str, *, model: str | None = None,
                 credentials: str | os.PathLike[str] | None = None, timeout: float = 10.0):
        self._daemon = self._OF(address, model=model, credentials=credentials, timeout=timeout)

    def close(self) -> None:
        """Closes the connection when the calls that still run have ended."""
        self._daemon.close()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Sender(_Daemon):
    """`deltawire.control.Sender`."""

    _OF = control.Sender
    status = _awaited(control.Sender.status)
    changes = _awaited(control.Sender.changes)
    receivers = _awaited(control.Sender.receivers)
    watch = _watched(control.Sender.watch)
    sync = _awaited(control.Sender.sync)
    wait_committed = _awaited(control.Sender.wait_committed)
    rollback = _awaited(control.Sender.rollback)
    unregister = _awaited(control.Sender.unregister)


class Receiver(_Daemon):
    """`deltawire.control.Receiver`."""

    _OF = control.Receiver
    status = _awaited(control.Receiver.status)
    sync = _awaited(control.Receiver.sync)
    watch = _watched(control.Receiver.watch)
    watch_served = _watched(control.Receiver.watch_served)
    wait = _awaited(control.Receiver.wait)
    verify = _awaited(control.Receiver.verify)
    pause = _awaited(control.Receiver.pause)
    resume = _awaited(control.Receiver.resume)
