"""The examples of trainers' frameworks run, with a sender and a receiver of their own.

Usage: examples_test.py FRAMEWORK (megatron, verl, nemo_rl, slime); a skip where it is not installed. Each
example compares by itself what arrived; here the receiver's versions are counted, too. TRL's runs
with a real vLLM: tests/engines/trl_test.py.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import re
import sys

import support

support.use_trainer_python()

from daemons import DEADLINE_S, run  # noqa: E402  # found by `support`

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "python" / "examples"
STEPS = 4

#: FRAMEWORK -> what is imported of it, and its example.
CASES = {
    "megatron": ("megatron.core.models.gpt", "megatron_ranks.py"),
    "verl": ("verl.checkpoint_engine.base", "verl_checkpoint_engine.py"),
    "nemo_rl": ("nemo_rl.utils.checkpoint_engines.base", "nemo_rl_refit.py"),
    "slime": ("ray", "slime_disk_update.py"),  # slime itself is not needed, and on no index
}


def main() -> None:
    module, script = CASES[sys.argv[1]]
    try:
        importlib.import_module(module)
    except ImportError as error:
        support.skip(f"{sys.executable} cannot import {module}: {error}")
    with support.Cluster() as cluster:
        receiver = cluster.follow("policy")
        if sys.argv[1] == "megatron":
            said = run(sys.executable, "-B", "-m", "torch.distributed.run", "--standalone",
                       "--nproc-per-node", 2, EXAMPLES / script, timeout=4 * DEADLINE_S,
                       env={**os.environ, "DELTAWIRE_ENDPOINT": cluster.endpoint})
        else:
            said = run(sys.executable, "-B", EXAMPLES / script, "--endpoint", cluster.endpoint,
                       "--directory", receiver.directory, "--steps", STEPS,
                       timeout=2 * DEADLINE_S)
        print(said, flush=True)
        steps = [int(n) for n in re.findall(r"^step (\d+): ", said, re.MULTILINE)]
        if steps != list(range(1, STEPS + 1)):
            raise SystemExit(f"FAILED: the example printed the steps {steps}")
        receiver.await_version(STEPS)
        committed = int(receiver.status()["committed"]["version"])
        if committed != STEPS:
            raise SystemExit(f"FAILED: the receiver is at version {committed} after {STEPS} steps")


if __name__ == "__main__":
    main()
