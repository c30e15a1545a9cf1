"""The head of a test of a real engine: the way to tests/support, and a skip without the engine."""

from __future__ import annotations

import importlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))


def require(*packages: str) -> None:
    """Ends the test as skipped where one of these cannot be imported."""
    try:
        for package in packages:
            importlib.import_module(package)
    except ImportError as error:
        print(f"SKIPPED: {error}; ./run test --engines makes a Python with {packages[-1]}")
        sys.exit(0)
