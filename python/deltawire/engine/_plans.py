"""Plans of engines' layouts, kept in files from one start of an engine to the next.

docs/plan_cache.md has the file format. A plan is never trusted: its boxes are checked against the
engine's memory as a fresh trace's are. A file that is torn, foreign or stale counts as none. Any
number of processes may share a folder; the last to write wins. `keep` returns its failure as text.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pathlib
import tempfile
from dataclasses import dataclass
from typing import Any

import torch

import deltawire
from deltawire.engine._geometry import MAX_DIMS, Box, Region
from deltawire.engine._model import Storage
from deltawire.engine._trace import Group

FORMAT = "deltawire plan 1"
#: More than any plan needs. Larger files are not read.
_MOST_BYTES = 1 << 28


@dataclass
class Plan:
    """The places of the elements, and the tensors that the loader must load itself."""

    boxes: list[Box]
    groups: list[Group]
    by_numbers: list[int]


def default_folder() -> pathlib.Path:
    """Returns $XDG_CACHE_HOME/deltawire/plans, or the same below ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = pathlib.Path(cache) if os.path.isabs(cache) else pathlib.Path.home() / ".cache"
    return root / "deltawire" / "plans"


class PlanCache:
    """Plans of one engine in one folder.

    `engine`, `version`: its name and release. `layout`: this rank's place among the ranks, e.g. "tp
    1/4, pp 0/1", or whatever else decides what a rank holds. `folder`: None for `default_folder()`;
    it is made when a plan is kept."""

    def __init__(self, engine: str, version: str, layout: str,
                 folder: str | os.PathLike[str] | None = None):
        self._engine, self._version, self._layout = engine, version, layout
        self._folder = folder

    def key(self, fingerprint: str, model: torch.nn.Module) -> dict[str, str]:
        """Returns a plan's key. It includes the model's source file, because an engine that was
        edited in place keeps its version."""
        kind = type(model)
        try:
            source = pathlib.Path(inspect.getsourcefile(kind) or "").read_bytes()
        except (OSError, TypeError):
            source = b""
        return {
            "engine": self._engine, "engine_version": self._version, "layout": self._layout,
            "fingerprint": fingerprint, "model": f"{kind.__module__}.{kind.__qualname__}",
            "model_source": hashlib.sha256(source).hexdigest(), "torch": str(torch.__version__),
            "deltawire": deltawire.__version__,
        }

    def path(self, key: dict[str, str]) -> pathlib.Path:
        folder = pathlib.Path(self._folder) if self._folder else default_folder()
        return folder / f"{hashlib.sha256(_text(key)).hexdigest()[:32]}.json"

    def find(self, key: dict[str, str], storages: list[Storage], tensors: int) -> Plan | None:
        """Returns the plan for this key and these storages, or None."""
        try:
            content = _read(self.path(key))
            said = content.pop("sha256")
            if said != hashlib.sha256(_text(content)).hexdigest() or content["format"] != FORMAT:
                return None
            if content["key"] != key or content["storages"] != _described(storages):
                return None
            return _plan(content, len(storages), tensors)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def keep(self, key: dict[str, str], plan: Plan, storages: list[Storage]) -> str:
        """Writes a plan in place of the present one. Returns "kept", or why not."""
        content: dict[str, Any] = {
            "format": FORMAT, "key": key, "storages": _described(storages), "boxes": plan.boxes,
            "groups": plan.groups, "by_numbers": plan.by_numbers,
        }
        content["sha256"] = hashlib.sha256(_text(content)).hexdigest()
        path, text = self.path(key), _text(content)
        if len(text) > _MOST_BYTES:
            return f"the plan was not kept: its {len(text)} bytes are more than would be read"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, text)
        except OSError as error:
            return f"the plan was not kept: {error}"
        return "kept"


def _text(content: dict[str, Any]) -> bytes:
    """Returns the canonical text of a content, from which checksums and names are made."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _described(storages: list[Storage]) -> list[dict[str, Any]]:
    """Returns the facts that must be the same for a plan's offsets to mean the same."""
    described = [{"bytes": s.nbytes, "parameter": s.parameter, "views": s.views} for s in storages]
    return json.loads(json.dumps(described))


def _read(path: pathlib.Path) -> dict[str, Any]:
    """Reads a file. Raises OSError, or ValueError unless it is a plan of this user."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > _MOST_BYTES or status.st_mode & 0o002:
            raise ValueError("too large, or everybody's to write")
        if status.st_uid not in (os.geteuid(), 0):
            raise ValueError("somebody else's")
        content = json.loads(file.read())
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content


def _write(path: pathlib.Path, text: bytes) -> None:
    """Writes a file. After a crash at any moment the name has the old content or the new one."""
    file, name = tempfile.mkstemp(dir=path.parent, prefix=".plan-")
    try:
        with os.fdopen(file, "wb") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _number(value: Any, least: int = 0, below: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value < below:
        raise ValueError(f"{value!r} is no number from {least} below {below}")
    return value


def _numbers(values: Any, least: int = 0) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError("no list")
    return tuple(_number(v, least) for v in values)


def _plan(content: dict[str, Any], storages: int, tensors: int) -> Plan:
    """Raises ValueError, KeyError or TypeError if the content is not a plan."""
    boxes = []
    for tensor, storage, counts, src, src_strides, dst, dst_strides in content["boxes"]:
        box = Box(_number(tensor, 0, tensors), _number(storage, 0, storages), _numbers(counts, 1),
                  _number(src), _numbers(src_strides), _number(dst), _numbers(dst_strides))
        if not len(box.counts) == len(box.src_strides) == len(box.dst_strides) <= MAX_DIMS:
            raise ValueError("a box of several dimensionalities")
        boxes.append(box)
    groups = []
    for members, why, regions, by_shapes in content["groups"]:
        found = []
        for storage, offset, counts, strides, width in regions:
            found.append(Region(_number(storage, 0, storages), _number(offset), _numbers(counts, 1),
                                _numbers(strides), _number(width, 1, 9)))
        groups.append(Group(tuple(_number(t, 0, tensors) for t in members), str(why), tuple(found),
                            bool(by_shapes)))
    return Plan(boxes, groups, [_number(t, 0, tensors) for t in content["by_numbers"]])
