"""The framework's class that a hook extends."""

from __future__ import annotations

import importlib
from typing import Any


def framework_class(what: str, *places: str) -> Any:
    """Returns the class at the first of `places` ("module:Class") that can be imported. If none can,
    returns one whose subclasses raise ImportError when they are made: `what` needs the framework."""
    for place in places:
        module, name = place.split(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:  # an older release may lack the class
            missing = error
    package = places[0].partition(":")[0].partition(".")[0]

    class Missing:
        def __new__(cls, *_: Any, **__: Any) -> Any:
            raise ImportError(f"{what} needs {package}, which cannot be imported ({missing})")

    return Missing
