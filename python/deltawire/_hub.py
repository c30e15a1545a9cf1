"""Finds the directory of `hf_dir`: a path, or a name in the Hugging Face Hub's local cache.

Uses no network. Raises CheckpointError, with the remedy for a Python program.
"""

from __future__ import annotations

import logging
import os
import re

from deltawire._errors import CheckpointError, RefusedError

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_CODE = "is code that an engine may execute"


def checkpoint_dir(hf_dir: str | os.PathLike[str]) -> str:
    """Returns `hf_dir` if it is a directory, else the snapshot of `main` of the model that it
    names."""
    given = os.fspath(hf_dir)
    if os.path.isdir(given):
        return given
    if os.path.exists(given):
        raise CheckpointError(f"hf_dir {given} is a file; give the directory that it is in")
    if not _NAME.fullmatch(given):
        raise CheckpointError(f"hf_dir {given or repr(given)} is no directory; give the checkpoint "
                              "that the run starts from, or leave it out")
    cache = _cache()
    model = os.path.join(cache, "models--" + given.replace("/", "--"))
    found = _snapshot(model)
    if found is None:
        raise CheckpointError(
            f"hf_dir {given} is neither a directory nor in the cache {cache}; download it first, "
            f'with huggingface_hub.snapshot_download("{given}"), or give the path of a directory')
    logger.info("hf_dir %s is %s", given, found)
    return found


def refused(error: RefusedError, hf_dir: str | os.PathLike[str] | None) -> RefusedError:
    """Rewrites the error for a Python program if the sender refuses a file of `hf_dir`."""
    if hf_dir is None or _CODE not in str(error):
        return error
    return CheckpointError(
        f"{error}. From Python: give hf_dir a directory without *.py, *.pyc and *.so (links to "
        f"the other files of {os.fspath(hf_dir)} do), unless engines need trust_remote_code")


def _cache() -> str:
    """Returns the cache's directory, as huggingface_hub finds it."""
    said = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if said:
        return os.path.expanduser(said)
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")


def _snapshot(model: str) -> str | None:
    snapshots = os.path.join(model, "snapshots")
    try:
        with open(os.path.join(model, "refs", "main"), encoding="utf-8") as file:
            names = [file.read().strip()]
    except OSError:  # only a revision was downloaded
        names = sorted(os.listdir(snapshots)) if os.path.isdir(snapshots) else []
    found = [p for n in names if n and os.path.isdir(p := os.path.join(snapshots, n))]
    return found[0] if len(found) == 1 else None
