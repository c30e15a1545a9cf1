"""Loads a LoRA adapter that a receiver has committed into a vLLM server: a program for `exec=`.

    deltawire-receiver --model tuned=/dev/shm/deltawire/tuned \\
        --engine "tuned:exec=/usr/bin/python3 -m deltawire.engine.adapter http://127.0.0.1:8000"

An adapter is a separate model, published from a PEFT directory. For each version this program makes
a folder of links with PEFT's names, and makes the server load the adapter from there, under the
model's name or `--name`. vLLM loads it between two of its steps and distinguishes cached keys and
values by the folder, so nothing is paused and no old prefix is reused. A running request continues
with the new weights, over the keys and values of the old ones. Folders stay for a thousand
versions, because running requests name them.

The receiver starts it, and holds the directory meanwhile, with DELTAWIRE_MODEL, DELTAWIRE_DIRECTORY
and DELTAWIRE_VERSION. It exits with 0 when the version is served. The server needs --enable-lora
and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and with --api-key its key, by --token-file. Tried with vLLM
0.32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import stat
import sys
import urllib.error
import urllib.request

from deltawire._server_access import ServerAccess

#: A receiver's name for the file of weights, and PEFT's.
_WEIGHTS, _PEFT = "model.safetensors", "adapter_model.safetensors"
_LONGEST_REASON = 2000
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ELSE = ("move it away (if the server runs, its requests may still name versions in it), or give "
         "--links another folder")
#: The number of older versions' folders that stay, more than a running request can need.
_KEPT = 1000


def own(folder: pathlib.Path) -> None:
    """Makes a folder on the path to the usual links. Raises RuntimeError if another user owns it,
    or if it is not a folder: in /dev/shm any user can have made it, and could choose what the
    server loads. If it is this user's and others can write to it, as older versions made it under
    umask 002, it is closed to them and stays, because running requests name its content."""
    with contextlib.suppress(FileExistsError):  # an existing folder is checked below
        folder.mkdir(mode=0o700)
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise RuntimeError(f"{folder} is no folder that this user made ({error.strerror}); {_ELSE}"
                           ) from None
    try:
        found = os.fstat(at)
        if found.st_uid != os.getuid():
            raise RuntimeError(f"{folder} is of another user ({found.st_uid}), who would choose what "
                               f"the server loads; {_ELSE}")
        if found.st_mode & _OTHERS_WRITE:
            os.fchmod(at, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
            print(f"adapter: {folder} could be written by others than this user (mode "
                  f"{stat.S_IMODE(found.st_mode):04o}), and is closed to them now", file=sys.stderr)
    finally:
        os.close(at)


def own_links(links: pathlib.Path, folder: pathlib.Path) -> None:
    """Checks each folder from `links` to a version's, from above, because another user may have put
    a folder into a writable one. Raises as `own`."""
    own(links)
    at = links
    for part in folder.relative_to(links).parts:
        at = at / part
        own(at)
    for entry in folder.iterdir():
        if entry.lstat().st_uid != os.getuid():
            raise RuntimeError(f"{entry} is of another user, and the server would load it; {_ELSE}")


def forget(versions: pathlib.Path, version: int) -> None:
    """Removes the folders that no request can name any more. Failures are tried again the next
    time."""
    numbers = [(re.fullmatch(r"v(\d+)", folder.name), folder) for folder in versions.iterdir()]
    # Count them: versions may be a trainer's steps, not all of which are published.
    older = sorted((int(n[1]), folder) for n, folder in numbers if n and int(n[1]) < version)
    for _, folder in older[:-_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def link(directory: pathlib.Path, folder: pathlib.Path) -> None:
    """Makes `folder`, with a link to each of the directory's files."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in directory.iterdir():
        if file.name.startswith("."):
            continue
        new = folder / f".{file.name}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(file)
        new.replace(folder / (_PEFT if file.name == _WEIGHTS else file.name))


def load(server: str, name: str, folder: pathlib.Path, seconds: float,
         access: ServerAccess) -> None:
    """Makes the server load the folder. Raises RuntimeError with the server's own text."""
    request = urllib.request.Request(
        f"{server.rstrip('/')}/v1/load_lora_adapter", headers={"Content-Type": "application/json"},
        data=json.dumps({"lora_name": name, "lora_path": str(folder),
                         "load_inplace": True}).encode())
    try:
        with access.open(request, timeout=seconds):
            return
    except urllib.error.HTTPError as error:
        reason = error.read().decode(errors="replace").strip()[:_LONGEST_REASON]
        hint = ("; it needs --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                if error.code == 404 else "")
        raise RuntimeError(f"{request.full_url} answered {error.code}: "
                           f"{access.quoted(reason, error.code)}{hint}") from None
    except OSError as error:
        raise RuntimeError(f"{request.full_url} did not answer: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", help="vLLM's URL")
    parser.add_argument("--name", default=os.environ.get("DELTAWIRE_MODEL"),
                        help="of the adapter in requests; else the receiver's of the model")
    usual = pathlib.Path(f"/dev/shm/deltawire-adapters-{os.getuid()}")
    parser.add_argument("--links", type=pathlib.Path, default=usual,
                        help="the folder in which links are made (%(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for the load")
    parser.add_argument("--token-file", help="of the server's API key, one line")
    parser.add_argument("--ca-file", help="PEM certificates that an https server's must come from; "
                        "else the system's")
    parser.add_argument("--insecure-plaintext", action="store_true",
                        help="show the key to another machine without https, too")
    options = parser.parse_args()
    directory, version = (os.environ.get(f"DELTAWIRE_{n}") for n in ("DIRECTORY", "VERSION"))
    if not (options.name and directory and version):
        parser.error("DELTAWIRE_MODEL, DELTAWIRE_DIRECTORY and DELTAWIRE_VERSION come from the "
                     "receiver, which starts this program (--engine exec=)")
    versions = options.links / options.name
    folder = versions / f"v{version}"
    try:
        if options.links == usual:
            own_links(usual, folder)
        access = ServerAccess(options.server, options.token_file, options.ca_file,
                              options.insecure_plaintext)
        link(pathlib.Path(directory), folder)
        load(options.server, options.name, folder, options.timeout, access)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"adapter {options.name}: version {version} is not served: {error}")
    # A request reads the adapter from the folder that it began with, whenever vLLM 0.32 changes a
    # step's adapters; without it the engine ends. All folders lead to the same files.
    forget(versions, int(version))


if __name__ == "__main__":
    main()
