"""slime: the hook after a disk update has been written, for engines that share no disk with it.

    --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir /dev/shm/slime
    --custom-update-weight-post-write-path deltawire.integrations.slime.publish
    --custom-config-path deltawire.yaml

with, in deltawire.yaml, what differs from `Settings` (`deltawire_directory` has no default). slime
calls the hook on every training rank when all of them have written `version_dir`, and has the
engines load `version_dir` after it. The hook publishes that checkpoint. On the engines' nodes it
waits until the receiver there has committed it, and makes `version_dir` a link to the receiver's
directory; so it does on Ray's other nodes that have such a directory, for engines of several nodes.
A real folder of that name is the trainer's on the hook's own node alone, and refused elsewhere. If
training nodes have disks of their own, and each has written a share of the files, the hook first
brings them to its node.
Read against slime's sources of November 2026; the hook has run with Ray 2.60, slime has not.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deltawire import Error
from deltawire.integrations import _checkpoint
from deltawire.integrations._directory import Expected, ReceiverDirectory
from deltawire.integrations._publisher import Publisher

_PREFIX = "deltawire_"
_VERSION = re.compile(r"weight_v(\d+)")
_PIECE = 64 << 20  # bytes of a file in memory at a time, on its way from another node


@dataclass(frozen=True)
class Settings:
    """Each is an attribute `deltawire_NAME` of slime's `args`. `directory`: the receiver's, of this
    model, on the nodes that have engines. The rest is as in `Publisher`."""

    directory: str
    endpoint: str = "/dev/shm/deltawire"
    model: str = "policy"
    timeout: float = 1800.0

    @classmethod
    def of(cls, args: Any) -> Settings:
        found = {name[len(_PREFIX):]: value for name, value in vars(args).items()
                 if name.startswith(_PREFIX)}
        unknown = found.keys() - cls.__dataclass_fields__.keys()
        if unknown or "directory" not in found:
            raise Error("slime's arguments have "
                        + (f"{_PREFIX}{sorted(unknown)[0]}, which is no setting" if unknown else
                           f"no {_PREFIX}directory")
                        + f"; there are {', '.join(_PREFIX + n for n in cls.__dataclass_fields__)}")
        return cls(**found)


def publish(args: Any, version_dir: str, rollout_engines: Sequence[Any]) -> None:
    """The hook. Returns when the engines' nodes have the version under the name `version_dir`."""
    settings = Settings.of(args)
    if _rank() != 0:  # slime waits for all ranks after the hook
        return
    match = _VERSION.fullmatch(os.path.basename(os.path.normpath(version_dir)))
    if not match or not _checkpoint.weight_files(version_dir):
        raise Error(f"{version_dir} is no checkpoint of a full update (weight_vNNNNNN with "
                    "*.safetensors); use --update-weight-mode full")
    version_dir = os.path.abspath(version_dir)
    complete(version_dir)
    with contextlib.closing(Publisher(settings.endpoint, settings.model, version_dir,
                                      settings.timeout)) as publisher:
        # slime counts from 1 in each run, a sender goes on.
        version = max(int(match[1]), publisher.open() + 1)
        published = publisher.publish(_checkpoint.tensors(version_dir), version)
    on_nodes(rollout_engines, settings, version_dir, Expected.of(published))


def complete(version_dir: str) -> None:
    """Brings the files that the index names and that other nodes have written to this one, and
    removes these files there, so that `version_dir` can become a link. Other files stay, and so does
    a file that has changed since it was read."""
    missing = [p for p in _checkpoint.weight_files(version_dir) if not os.path.exists(p)]
    if not missing:
        return
    ray, start = _tasks()
    here = _node(None)
    others = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here]

    # These go to their nodes by value, since a node without an engine need not have this package.
    def marks(paths: list[str]) -> dict[str, tuple[int, ...]]:
        import os  # pylint: disable=import-outside-toplevel,redefined-outer-name,reimported

        # A link leads to a receiver's directory, which holds an earlier version.
        found = [path for path in paths if os.path.exists(path)
                 and not os.path.islink(path) and not os.path.islink(os.path.dirname(path))]
        stats = {path: os.stat(path) for path in found}
        return {path: (s.st_size, s.st_mtime_ns, s.st_dev, s.st_ino) for path, s in stats.items()}

    def piece(path: str, at: int, size: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(size)

    def remove(folder: str, read: list[tuple[str, tuple[int, ...]]]) -> None:
        import contextlib  # pylint: disable=import-outside-toplevel,redefined-outer-name,reimported
        import os  # pylint: disable=import-outside-toplevel,redefined-outer-name,reimported

        for path, mark in read:
            s = os.lstat(path)
            if mark == (s.st_size, s.st_mtime_ns, s.st_dev, s.st_ino):
                os.unlink(path)
        with contextlib.suppress(OSError):  # files of another owner are in it
            os.rmdir(folder)

    shares = dict(zip(others, ray.get([start(marks, node, missing) for node in others])))
    for path in missing:
        holders = [node for node in others if path in shares[node]]
        if len(holders) != 1:
            raise Error(f"{path} is named by the index, is not on this node, and is on "
                        + (f"{len(holders)} others: remove {version_dir} where another run has "
                           "left it" if holders else "no other of Ray's nodes: give "
                           "--update-weight-disk-dir a disk that training nodes share, or use "
                           "--megatron-to-hf-mode bridge, which writes all files on one node"))
        whole = shares[holders[0]][path][0]
        with open(f"{path}.part", "wb") as file:
            for at in range(0, whole, _PIECE):
                file.write(ray.get(start(piece, holders[0], path, at, min(_PIECE, whole - at))))
            if file.tell() != whole:
                raise Error(f"{path} shrank on another node while it was read from there")
        os.replace(f"{path}.part", path)
    ray.get([start(remove, node, version_dir, list(shares[node].items()))
             for node in others if shares[node]])


def follow(is_trainers: bool, settings: Settings, version_dir: str, expected: Expected) -> str:
    """On one node: waits for that version and makes `version_dir` a link to the receiver's directory.
    `is_trainers`: the node is the one whose `version_dir` was published. Returns what was done."""
    if not is_trainers:
        with contextlib.suppress(OSError):
            os.rmdir(version_dir)  # slime makes it on all training nodes, and may write on one
    is_folder = os.path.isdir(version_dir) and not os.path.islink(version_dir)
    if is_folder and not is_trainers:
        raise Error(f"{version_dir} is a folder on this node, and the trainer's is on another: "
                    "engines would load what some other run has left there; remove it, or, where "
                    "the nodes share this disk, use slime without the hook")
    ReceiverDirectory(settings.directory).wait(expected, settings.timeout)
    if is_folder:
        return "the trainer's own checkpoint is there"
    target = os.path.abspath(settings.directory)
    folder, name = os.path.split(version_dir)
    os.makedirs(folder, exist_ok=True)
    for entry in os.scandir(folder):
        # Links of earlier versions lead to the same directory, which has moved on.
        if entry.is_symlink() and _VERSION.fullmatch(entry.name) and entry.name != name:
            os.unlink(entry.path)
    new = os.path.join(folder, f".{name}.new")
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(target, new)
    os.replace(new, version_dir)
    return f"{version_dir} is version {expected.version}"


def on_nodes(engines: Sequence[Any], settings: Settings, version_dir: str, expected: Expected
             ) -> dict[str, str]:
    """Runs `follow` once on each of Ray's nodes with engines, and on each other one that has the
    receiver's directory. Returns what was done, by node; raises what one of them raises."""
    ray, start = _tasks()

    def has_directory(directory: str) -> bool:
        # Within a function, so that it goes to the node by value: a node that is neither the
        # trainer's nor an engine's, such as Ray's head, need not have this package.
        import os  # pylint: disable=import-outside-toplevel,redefined-outer-name,reimported

        return os.path.isdir(directory)

    wanted = set(ray.get([engine.__ray_call__.remote(_node) for engine in engines]))
    others = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in wanted]
    found = ray.get([start(has_directory, node, settings.directory) for node in others])
    wanted.update(node for node, has in zip(others, found) if has)
    here = _node(None)
    nodes = sorted(wanted)
    done = ray.get([
        start(follow, node, node == here, settings, version_dir, expected) for node in nodes])
    return dict(zip(nodes, done))


def _tasks() -> tuple[Any, Callable[..., Any]]:
    """Returns Ray, and a function that starts `function(*arguments)` on a node."""
    try:
        import ray  # pylint: disable=import-outside-toplevel
        from ray.util.scheduling_strategies import (  # pylint: disable=import-outside-toplevel
            NodeAffinitySchedulingStrategy,
        )
    except ImportError as error:
        raise ImportError("the hook reaches other nodes by Ray, which cannot be imported: "
                          f"{error}") from error

    def start(function: Any, node: str, *arguments: Any) -> Any:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(num_cpus=0)(function).options(
            scheduling_strategy=there).remote(*arguments)

    return ray, start


def _node(_: Any) -> str:
    """The node of the actor that runs this."""
    import ray  # pylint: disable=import-outside-toplevel

    return ray.get_runtime_context().get_node_id()


def _rank() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return 0
    return torch.distributed.get_rank()
