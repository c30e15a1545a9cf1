"""The layout of a registered model: its tensors in order, and rules for other names.

A WeightManager owns it. Not thread-safe. Errors are TensorErrors that name the tensor.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from deltawire._casts import stored
from deltawire._errors import DTypeError, Error, ExtraTensorError, MissingTensorError
from deltawire._names import Names, Reconciled, as_given, reconcile
from deltawire._tensors import TensorMeta

_NAMED = 5  # tensors that a message names


class Layout:
    """The registered tensors. `metas`: in the order of their memory; empty before the model is
    registered. `index`: a tensor's place among them. `tied`: a second name -> the name in the
    model. `casts`: floats of other types are cast to the registered ones. `model`, `ignore_extra`,
    `keep_dtype`: as in WeightManager."""

    def __init__(
        self,
        model: str,
        ignore_extra: bool | Collection[str] | Literal["tied"],
        keep_dtype: Collection[str],
    ):
        if isinstance(keep_dtype, str):
            raise Error(f"keep_dtype is a list of names, as in keep_dtype=[{keep_dtype!r}]")
        self._model, self._keep_dtype = model, tuple(keep_dtype)
        #: Tensors of other names may be copies of registered ones, which shows at their writing.
        self.leaves_ties = ignore_extra == "tied"
        self._ignore_extra = False if self.leaves_ties else ignore_extra
        self.metas: list[TensorMeta] = []
        self.index: dict[str, int] = {}
        self.tied: dict[str, str] = {}
        self.casts = False
        #: The conversion of given tensors to registered ones; None: they have the same names.
        self.names: Names | None = None
        #: Given names that are left out as long as their bytes are a registered tensor's.
        self.compared: frozenset[str] = frozenset()

    def stored(
        self,
        metas: Sequence[TensorMeta],
        said: Collection[str],
        hf_dir: str | os.PathLike[str] | None,
        dtype: Any,
        disk: Sequence[TensorMeta] = (),
    ) -> list[TensorMeta]:
        """Returns the layout with which these tensors would be registered."""
        return stored(metas, said, hf_dir, dtype, self._keep_dtype, disk)

    def reconciled(
        self,
        metas: Sequence[TensorMeta],
        tied: Mapping[str, str],
        said: Collection[str],
        hf_dir: str | os.PathLike[str] | None,
        disk: Sequence[TensorMeta],
        model: Any,
    ) -> Reconciled:
        """Returns the same tensors by the names of `disk`, or without it by their own."""
        if disk and hf_dir is not None:
            return reconcile(metas, tied, said, disk, hf_dir, model, self._ignore_extra)
        return as_given(metas, tied, said, model)

    def set(
        self,
        metas: list[TensorMeta],
        tied: Mapping[str, str],
        casts: bool,
        names: Names | None = None,
        compared: Collection[str] = (),
    ) -> None:
        """Stores the layout after its registration at the sender."""
        self.metas, self.tied, self.casts = metas, dict(tied), casts
        self.names, self.compared = names, frozenset(compared)
        self.index = {m.name: i for i, m in enumerate(metas)}

    def cast_to(self, dtype: Any) -> None:
        """Enables casts of floats; raises unless the model is registered as `dtype` would be."""
        for was, now in zip(self.metas, self.stored(self.metas, (), None, dtype)):
            if was != now:
                raise DTypeError(
                    f'tensor "{was.name}" is registered as {was.dtype}, and dtype is {now.dtype}; '
                    "register with that dtype and replace=True",
                    was.name,
                )
        self.casts = True

    def has(self, name: str, tensor: Any) -> bool:
        """Returns whether the tensor is registered by this name, or is renamed to a registered
        one."""
        if name in self.index or self.names is None:
            return name in self.index
        return self.names.targets(name, tensor.shape)[0] in self.index

    def registered(self, names: Collection[str]) -> set[str]:
        """Returns the names as registered; raises as `find`."""
        found: set[str] = set()
        for name in names:
            targets = (name,) if name in self.index or self.names is None else (
                self.names.known(name))
            for target in targets:
                self.find(target)
                found.add(target)
        return found

    def converted(
        self, named: Iterable[tuple[str, Any]], more: Iterable[tuple[str, Any]]
    ) -> Iterator[tuple[str, Any]]:
        """Yields `named` by the registered names, then `more`."""
        if self.names is None:
            return iter(named)
        return itertools.chain(self.names.converted(named), more)

    def skips(self, name: str) -> bool:
        """Returns whether a tensor of that name is left out."""
        if name in self.index:
            return False
        extra = self._ignore_extra
        return name in self.tied or (extra if isinstance(extra, bool) else name in extra)

    def find(self, name: str) -> int:
        """Returns the tensor's place in `metas`."""
        index = self.index.get(name)
        if index is None:
            raise ExtraTensorError(
                f'tensor "{name}" is not registered with model "{self._model}"; register with it '
                "(replace=True), leave it out, or name it in ignore_extra if it is a tied duplicate",
                name,
            )
        return index

    def check_complete(self, given: Collection[str], keep: Collection[str]) -> None:
        """Raises unless each registered tensor was given or stays unchanged."""
        missing = [m.name for m in self.metas if m.name not in given and m.name not in keep]
        if not missing:
            return
        names = ", ".join(f'"{n}"' for n in missing[:_NAMED])
        raise MissingTensorError(
            f"{len(missing)} of {len(self.metas)} registered tensors were not given: "
            f"{names}{', ...' if len(missing) > _NAMED else ''}; give "
            "them, name them in `unchanged`, or register without them (replace=True)",
            missing[0],
        )
