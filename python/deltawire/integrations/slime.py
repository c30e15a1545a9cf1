"""slime: the hook after a disk update has been written, for engines that share no disk with it.

    --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir /dev/shm/slime
    --custom-update-weight-post-write-path deltawire.integrations.slime.publish
    --custom-config-path deltawire.yaml

with, in deltawire.yaml, what differs from `Settings` (`deltawire_directory` has no default). slime
calls the hook on every training rank when all of them have written `version_dir`, and has the
engines load `version_dir` after it. The hook publishes that checkpoint. On the engines' nodes it
waits until the receiver there has committed it, and makes `version_dir` a link to the receiver's
directory; so it does on Ray's other nodes that have such a directory, for engines of several nodes.
A real folder of that name is the trainer's on the hook's own node alone, and refused elsewhere.
Read against slime's sources of November 2026; the hook has run with Ray 2.60, slime has not.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deltawire import Error
from deltawire.integrations import _checkpoint
from deltawire.integrations._directory import Expected, ReceiverDirectory
from deltawire.integrations._publisher import Publisher

_PREFIX = "deltawire_"
_VERSION = re.compile(r"weight_v(\d+)")


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
    with contextlib.closing(Publisher(settings.endpoint, settings.model, version_dir,
                                      settings.timeout)) as publisher:
        # slime counts from 1 in each run, a sender goes on.
        version = max(int(match[1]), publisher.open() + 1)
        published = publisher.publish(_checkpoint.tensors(version_dir), version)
    on_nodes(rollout_engines, settings, os.path.abspath(version_dir), Expected.of(published))


def follow(is_trainers: bool, settings: Settings, version_dir: str, expected: Expected) -> str:
    """On one node: waits for that version and makes `version_dir` a link to the receiver's directory.
    `is_trainers`: the node is the one whose `version_dir` was published. Returns what was done."""
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
    try:
        import ray  # pylint: disable=import-outside-toplevel
        from ray.util.scheduling_strategies import (  # pylint: disable=import-outside-toplevel
            NodeAffinitySchedulingStrategy,
        )
    except ImportError as error:
        raise ImportError("the hook reaches the engines' nodes by Ray, which cannot be imported: "
                          f"{error}") from error

    def has_directory(directory: str) -> bool:
        # Within a function, so that it goes to the node by value: a node that is neither the
        # trainer's nor an engine's, such as Ray's head, need not have this package.
        import os  # pylint: disable=import-outside-toplevel,redefined-outer-name,reimported

        return os.path.isdir(directory)

    def start(function: Any, node: str, *arguments: Any) -> Any:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(num_cpus=0)(function).options(
            scheduling_strategy=there).remote(*arguments)

    wanted = set(ray.get([engine.__ray_call__.remote(_node) for engine in engines]))
    others = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in wanted]
    found = ray.get([start(has_directory, node, settings.directory) for node in others])
    wanted.update(node for node, has in zip(others, found) if has)
    here = _node(None)
    nodes = sorted(wanted)
    done = ray.get([
        start(follow, node, node == here, settings, version_dir, expected) for node in nodes])
    return dict(zip(nodes, done))


def _node(_: Any) -> str:
    """The node of the actor that runs this."""
    import ray  # pylint: disable=import-outside-toplevel

    return ray.get_runtime_context().get_node_id()


def _rank() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return 0
    return torch.distributed.get_rank()
