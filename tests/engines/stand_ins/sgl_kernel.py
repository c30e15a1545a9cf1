"""A stand-in for SGLang's kernels, which have no build for a CPU on the package index.

SGLang imports names from `sgl_kernel` and from modules in it, and with its torch-native backend on
a CPU calls none of them. Here every name exists, and a call raises. Only for tests/engines.
"""

import sys
import types

#: Modules that SGLang imports from.
MODULES = ("elementwise", "flash_attn", "kvcacheio", "mamba", "quantization", "scalar_type",
           "speculative", "utils")


class Absent:
    """A function, or something with attributes, that is not there."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, *_, **__):
        raise RuntimeError(f"{self._name} was called, and is a stand-in of the tests")


class StandIn(types.ModuleType):
    __path__: list = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


for _name in (__name__, *(f"{__name__}.{module}" for module in MODULES)):
    _module = StandIn(_name, __doc__)
    _module.__spec__, _module.__file__ = __spec__, __file__
    sys.modules[_name] = _module
