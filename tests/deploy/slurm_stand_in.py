#!/usr/bin/env python3
"""Stands in for srun, scontrol, squeue and scancel where there is no Slurm.

Every node is this machine. It knows the options that deploy/slurm/deltawire.sbatch uses, and fails
on others. As Slurm's own, srun starts the command once for each node, tells it the node's name, ends
the other tasks if one fails, and kills all of them where it gets SIGTERM itself. The steps that run
are files in the folder SLURM_STAND_IN.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

KNOWN = ("--job-name", "--overlap", "--mem", "--nodes", "--ntasks", "--ntasks-per-node", "--nodelist",
         "--kill-on-bad-exit")  # fmt: skip


def srun(arguments: list[str]) -> int:
    options = {}
    while arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).partition("=")
        if name not in KNOWN:
            sys.exit(f"srun's stand-in does not know {name}")
        options[name] = value
    nodes = options["--nodelist"].split(",")
    assert len(nodes) == int(options["--nodes"]) == int(options["--ntasks"]), options
    tasks = [
        subprocess.Popen(
            arguments, env={**os.environ, "SLURMD_NODENAME": node}, start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        for node in nodes
    ]  # fmt: skip

    def tell(number) -> None:
        for task in tasks:
            try:
                os.killpg(task.pid, number)
            except ProcessLookupError:
                pass

    signal.signal(signal.SIGTERM, lambda *_: tell(signal.SIGKILL))
    signal.signal(signal.SIGUSR1, lambda *_: tell(signal.SIGTERM))  # from scancel, below
    step = steps() / f"{os.getpid()}.{options['--job-name']}"
    step.touch()
    worst, left = 0, len(tasks)
    while left:
        _, status = os.wait()
        left -= 1
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and not worst:
            worst = code if code > 0 else 128 - code
            tell(signal.SIGTERM)
    step.unlink()
    return worst


def steps() -> pathlib.Path:
    return pathlib.Path(os.environ["SLURM_STAND_IN"])


def main() -> int:
    name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
    if name == "srun":
        return srun(arguments)
    if name == "scontrol" and arguments[:2] == ["show", "hostnames"]:
        print(arguments[2].replace(",", "\n"))
        return 0
    if name == "squeue" and "--steps" in arguments and "--format=%i %j" in arguments:
        for step in steps().iterdir():
            print(*step.name.split("."))
        return 0
    if name == "scancel" and arguments[:2] == ["--quiet", "--signal=TERM"]:
        os.kill(int(arguments[2]), signal.SIGUSR1)
        return 0
    sys.exit(f"{name}'s stand-in does not know {arguments}")


if __name__ == "__main__":
    sys.exit(main())
