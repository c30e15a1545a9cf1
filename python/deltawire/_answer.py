"""A daemon's answer: typed attributes, and a mapping for programs that expect a dict."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

_A = TypeVar("_A", bound="Answer")


class Answer(Mapping[str, Any]):
    """An immutable answer. A field that the daemon has left out has its type's zero. A field that a
    newer daemon has added is only in the mapping."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def of(cls: type[_A], told: Mapping[str, Any]) -> _A:
        """Makes the answer from JSON."""
        makers = _makers(cls)
        answer = cls(**{n: makers[n](v) for n, v in told.items() if n in makers})
        object.__setattr__(answer, "_told", told)
        return answer

    def as_dict(self) -> dict[str, Any]:
        """Returns the plain dict, for `json.dumps`."""
        return {name: _plain(self[name]) for name in self}

    def __getitem__(self, name: str) -> Any:
        if name in self.__dataclass_fields__:
            return getattr(self, name)
        return self._more()[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.__dataclass_fields__
        yield from (n for n in self._more() if n not in self.__dataclass_fields__)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    def _more(self) -> Mapping[str, Any]:
        return self.__dict__.get("_told", {})


@functools.cache
def _makers(kind: type[Answer]) -> dict[str, Any]:
    """Returns a maker for each field, from its JSON."""
    made: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if name not in kind.__dataclass_fields__:
            continue
        inner = typing.get_args(hint)
        if inner:
            one = inner[0].of if issubclass(inner[0], Answer) else inner[0]
            made[name] = functools.partial(_tuple, one)
        else:
            made[name] = hint.of if issubclass(hint, Answer) else _as_told
    return made


def _tuple(one: Any, values: Any) -> tuple[Any, ...]:
    return tuple(one(v) for v in values)


def _as_told(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Answer):
        return value.as_dict()
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
