"""Runs a script again with the Python that has the trainer's packages, where the own one lacks them."""

import os
import sys


def again_or_skip(error):
    """Call when an import failed: replaces this process with DELTAWIRE_MEGATRON_PYTHON, which has today's
    megatron-core, or else with DELTAWIRE_TRAINER_PYTHON; without either it skips."""
    other = os.environ.get("DELTAWIRE_MEGATRON_PYTHON") or os.environ.get("DELTAWIRE_TRAINER_PYTHON")
    if other and not os.environ.get("DELTAWIRE_TRAINER_TRIED"):
        os.execve(other, [other, "-B", *sys.argv], {**os.environ, "DELTAWIRE_TRAINER_TRIED": "1"})
    print(f"SKIPPED: {error}")
    sys.exit(0)
