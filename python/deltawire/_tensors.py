"""Finds the memory of tensors of all kinds, without copying it and without importing their library.

A `Source` is an address with dtype, shape and byte strides; it keeps the memory alive.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deltawire import _core
from deltawire._errors import DTypeError, TensorError

DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "C64": 8,
}

# Names in torch, numpy and ml_dtypes.
_BY_NAME = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
}
# Widths that safetensors names and that are not whole bytes.
_PACKED = re.compile(r"F4|F6_\w+|float4_\w+|float6_\w+")
_NAMES = {dtype: name for name, dtype in _BY_NAME.items()}
# Keys: DLPack's type code and bits.
_BY_DLPACK = {
    (2, 64): "F64",
    (2, 32): "F32",
    (2, 16): "F16",
    (4, 16): "BF16",
    (0, 64): "I64",
    (0, 32): "I32",
    (0, 16): "I16",
    (0, 8): "I8",
    (1, 64): "U64",
    (1, 32): "U32",
    (1, 16): "U16",
    (1, 8): "U8",
    (6, 8): "BOOL",
    (5, 64): "C64",
    (10, 8): "F8_E4M3",
    (11, 8): "F8_E4M3FNUZ",
    (12, 8): "F8_E5M2",
    (13, 8): "F8_E5M2FNUZ",
    (14, 8): "F8_E8M0",
}
_DLPACK_CPU = (1, 3)  # plain and pinned host memory
# Kinds of a buffer's format character; with the item size they give the dtype.
_FLOATS, _SIGNED, _UNSIGNED = "efd", "bhilqn", "BHILQN"


@dataclass
class Source:
    """Elements in this process's memory. `strides` are in bytes; None: contiguous, row-major."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    owner: Any  # must live while the address is used

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class TensorMeta:
    """One entry of tensors_meta: a name, a safetensors dtype, a shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            _refuse_packed(self.dtype, self.name)
            raise DTypeError(
                f'tensor "{self.name}": "{self.dtype}" is no safetensors dtype; '
                f"known are {', '.join(DTYPE_BYTES)}",
                self.name,
            )

    @classmethod
    def of(cls, entry: Any) -> TensorMeta:
        """Makes it from a TensorMeta, or (name, dtype, shape) with a dtype of any library."""
        if isinstance(entry, TensorMeta):
            return entry
        name, dtype, shape = entry
        return cls(name, dtype_name(dtype, name), tuple(int(n) for n in shape))


def dtype_name(dtype: Any, tensor: str) -> str:
    """Returns the safetensors name of a dtype of torch, numpy or ml_dtypes, or of its name
    there."""
    text = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if text in DTYPE_BYTES:
        return text
    if text not in _BY_NAME:
        _refuse_packed(text, tensor)
        raise DTypeError(
            f'tensor "{tensor}" has dtype {dtype}, which safetensors has no name for; cast it first',
            tensor,
        )
    return _BY_NAME[text]


def _refuse_packed(dtype: str, tensor: str) -> None:
    if _PACKED.fullmatch(dtype):
        raise DTypeError(
            f'tensor "{tensor}" is {dtype}, whose numbers are no whole bytes; give its bytes, '
            "view(torch.uint8), as checkpoints in MXFP4 and NVFP4 have them",
            tensor,
        )


def torch_dtype(name: str) -> Any:
    """Returns torch's dtype of a safetensors name."""
    import torch

    return getattr(torch, _NAMES[name])


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _is_plain(tensor: Any) -> bool:
    """Returns whether it is a torch tensor without a subclass."""
    torch = sys.modules.get("torch")
    return torch is not None and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def is_dtensor(tensor: Any) -> bool:
    """Returns whether it is a torch DTensor: only a program that has imported them has any."""
    if _is_plain(tensor):
        return False
    return is_torch(tensor) and hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def meta_of(name: str, tensor: Any) -> TensorMeta:
    """Returns name, dtype and (global) shape, and touches no data."""
    if is_torch(tensor):
        _refuse_kind(name, tensor)
        if not tensor.numel() and hasattr(tensor, "ds_id"):
            raise TensorError(
                f'tensor "{name}" is a placeholder of DeepSpeed ZeRO-3, whose ranks have its parts; '
                "call offload_zero3(module, version) on every rank",
                name,
            )
        return TensorMeta(name, dtype_name(tensor.dtype, name), tuple(tensor.shape))
    source = source_of(name, tensor)
    return TensorMeta(name, source.dtype, source.shape)


def _refuse_kind(name: str, tensor: Any) -> None:
    """Raises for a torch tensor that is not a block of numbers."""
    kind = ""
    if tensor.is_nested:
        kind = "is a nested tensor; give its parts, or to_padded_tensor()"
    elif tensor.layout != sys.modules["torch"].strided or tensor.is_quantized:
        kind = "is sparse or quantized; make it dense first, by to_dense() or dequantize()"
    elif not _is_plain(tensor) and hasattr(tensor, "materialize"):
        kind = "is a lazy parameter that has no shape yet; run the module once before"
    if kind:
        raise TensorError(f'tensor "{name}" {kind}', name)


def shape_of(name: str, tensor: Any) -> Any:
    """Returns None for other objects. TensorError: a torch tensor without a shape."""
    if is_torch(tensor):
        _refuse_kind(name, tensor)
    return getattr(tensor, "shape", None)


def refuse_without_data(name: str, tensor: Any) -> None:
    """Raises TensorError for a torch tensor with a shape but no bytes: it can only be
    registered."""
    if is_torch(tensor) and (tensor.is_meta or type(tensor).__name__ == "FakeTensor"):
        raise TensorError(
            f'tensor "{name}" has no data (device {tensor.device}, {type(tensor).__name__}); load '
            "the weights, or to_empty(device=...) and initialize it, before it is published",
            name,
        )


def is_cuda(tensor: Any) -> bool:
    return is_torch(tensor) and tensor.device.type != "cpu"


def source_of(name: str, tensor: Any) -> Source:
    """Returns the memory of a tensor in host memory."""
    if isinstance(tensor, Source):
        return tensor
    if is_torch(tensor):
        return _of_torch(name, tensor)
    if hasattr(tensor, "__array_interface__") and hasattr(tensor, "dtype"):
        return _of_numpy(name, tensor)
    if hasattr(tensor, "__dlpack__"):
        return _of_dlpack(name, tensor)
    try:
        view = _core.BufferView(tensor)
    except (TypeError, BufferError):
        raise TensorError(
            f'tensor "{name}" is a {type(tensor).__name__}; wanted is a torch tensor, a numpy '
            "array, or something with DLPack or the buffer protocol",
            name,
        ) from None
    return Source(
        view.address, _buffer_dtype(name, view), tuple(view.shape), tuple(view.strides), view
    )


def _of_torch(name: str, tensor: Any) -> Source:
    _refuse_kind(name, tensor)
    tensor = tensor.detach()
    tensor = tensor.resolve_conj().resolve_neg()  # lazy bits become bytes; nothing else is copied
    width = tensor.element_size()
    return Source(
        tensor.data_ptr(),
        dtype_name(tensor.dtype, name),
        tuple(tensor.shape),
        tuple(s * width for s in tensor.stride()),
        tensor,
    )


def _of_numpy(name: str, array: Any) -> Source:
    if not array.dtype.isnative:
        raise DTypeError(
            f'tensor "{name}" is big-endian ({array.dtype}); swap its bytes first', name
        )
    address = array.__array_interface__["data"][0]
    dtype = dtype_name(array.dtype, name)
    return Source(address, dtype, tuple(array.shape), tuple(array.strides), array)


def _of_dlpack(name: str, tensor: Any) -> Source:
    capsule = tensor.__dlpack__()
    address, code, bits, lanes, shape, strides, device = _core.describe_dlpack(capsule)
    if device not in _DLPACK_CPU:
        raise TensorError(
            f'tensor "{name}" lies on another device (DLPack type {device}); hand it over as a '
            "torch tensor, or copy it to the host first",
            name,
        )
    dtype = _BY_DLPACK.get((code, bits))
    if dtype is None or lanes != 1:
        raise DTypeError(
            f'tensor "{name}" has DLPack type {code} of {bits} bits and {lanes} lanes, which '
            "safetensors has no name for",
            name,
        )
    width = DTYPE_BYTES[dtype]
    in_bytes = None if strides is None else tuple(s * width for s in strides)
    return Source(address, dtype, tuple(shape), in_bytes, (tensor, capsule))


def _buffer_dtype(name: str, view: Any) -> str:
    kind = view.format.lstrip("@=<")
    bits = view.itemsize * 8
    if kind == "?":
        return "BOOL"
    for kinds, prefix in ((_FLOATS, "F"), (_SIGNED, "I"), (_UNSIGNED, "U")):
        if kind in kinds and len(kind) == 1:
            return f"{prefix}{bits}"
    raise DTypeError(f'tensor "{name}" has buffer format "{view.format}", which is unknown', name)


def shape_text(shape: Sequence[int]) -> str:
    return "[" + ", ".join(str(n) for n in shape) + "]"
