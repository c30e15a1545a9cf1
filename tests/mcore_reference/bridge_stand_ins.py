"""Imports Megatron-Bridge's conversions where neither TransformerEngine nor most of what Bridge lists is installed.

The conversion of weights needs torch and megatron-core alone. Whatever else its modules import becomes an
empty stand-in, whose classes do nothing; a stand-in that a conversion needed would fail there.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

import megatron.core.distributed  # noqa: F401  before the stand-ins, which megatron-core would take too
import megatron.core.models.gpt  # noqa: F401
import megatron.core.transformer.transformer_config  # noqa: F401
import transformers  # noqa: F401

ABSENT = {"accelerate", "causal_conv1d", "datasets", "diffusers", "einops", "fast_hadamard_transform", "fla",
          "flashinfer", "hydra", "mamba_ssm", "mistral_common", "modelopt", "nvidia_resiliency_ext", "omegaconf",
          "open_clip", "peft", "PIL", "qwen_vl_utils", "requests", "tensorboard", "timm", "torchvision",
          "transformer_engine", "wandb", "transformers.modeling_attn_mask_utils"}


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


def _stand_in(name):
    return _Anything(name, (), {"__init__": lambda self, *_, **__: None,
                                "__call__": lambda self, *given, **_: given[0] if given else None})


class _Module(types.ModuleType):
    __path__ = []
    __version__ = "2.16.0"  # TransformerEngine's is asked for

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _stand_in(name))
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT or name in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def _package(name, path):
    """A package whose own __init__ is not run, since it imports all that Bridge has."""
    module = types.ModuleType(name)
    module.__path__, module.__file__ = [str(path)], str(path / "__init__.py")
    sys.modules[name] = module


def bridge_root():
    """Where Megatron-Bridge is installed; raises ImportError."""
    for place in importlib.util.find_spec("megatron").submodule_search_locations:
        if (pathlib.Path(place) / "bridge" / "models").is_dir():
            return pathlib.Path(place) / "bridge"
    raise ImportError("No module named 'megatron.bridge'")


def use_bridge():
    root = bridge_root()
    sys.meta_path.append(_Finder())  # last: what is installed is taken
    _package("megatron.bridge", root)
    _package("megatron.bridge.models", root / "models")
    mappings = importlib.import_module("megatron.bridge.models.conversion.param_mapping")
    for name in ("ColumnParallelMapping", "RowParallelMapping"):  # asked of the package by some
        setattr(sys.modules["megatron.bridge.models"], name, getattr(mappings, name))


def bridge(module, name):
    """The class `name` of megatron.bridge.models.MODULE."""
    return getattr(importlib.import_module(f"megatron.bridge.models.{module}"), name)
