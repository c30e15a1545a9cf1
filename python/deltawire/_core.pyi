from collections.abc import Callable, Sequence
from typing import Any

__version__: str
SHARE_NONE: int
SHARE_PART: int
SHARE_WHOLE: int
SHARE_BLOCK: int
COLLECTIVE_GLOO: int
COLLECTIVE_NCCL: int
HOST_MEMORY: int
DAEMON_SENDER: int
DAEMON_RECEIVER: int
BUCKET_AUTO: int

def draw_attempt() -> int: ...

def gpu_available() -> bool: ...
def why_no_gpu() -> str: ...

def describe_dlpack(
    capsule: Any,
) -> tuple[int, int, int, int, list[int], list[int] | None, int]: ...

class BufferView:
    def __init__(self, buffer: Any) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def strides(self) -> list[int]: ...

class Mapping:
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def in_use(self) -> bool: ...
    def close(self) -> None: ...

#: Tensor, address, bytes of an element, shape, strides in bytes, and the block's start.
Block = tuple[int, int, int, Sequence[int], Sequence[int] | None, Sequence[int] | None]

class Offload:
    def write(
        self,
        tensor: int,
        address: int,
        element_bytes: int,
        shape: Sequence[int],
        strides: Sequence[int] | None,
        start: Sequence[int] | None,
        share: int,
        device: int,
    ) -> None: ...
    def diff(self, blocks: Sequence[Block], share: int, device: int) -> None: ...
    def mark_written(self, tensors: Sequence[int], share: int) -> None: ...
    def mark_block(
        self, tensor: int, start: Sequence[int] | None, shape: Sequence[int]
    ) -> None: ...
    def mark_unchanged(self, tensors: Sequence[int]) -> None: ...
    def ready(self) -> None: ...
    def check(self) -> None: ...
    def abandon(self, reason: str) -> None: ...
    def memory(self, tensor: int) -> tuple[int, int]: ...
    def mapping(self) -> Mapping: ...
    def close(self) -> None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def diffed_on(self) -> str: ...
    @property
    def waited_seconds(self) -> float: ...

class Client:
    def __init__(
        self, endpoint: str, model: str, rank: int, world: int, timeout_ms: int, copy_threads: int
    ) -> None: ...
    def register(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        side_files: Sequence[tuple[str, bytes]],
        hf_dir: str | None,
        replace: bool,
        keep_side_files: bool,
        owned: Sequence[tuple[int, int]] = (),
    ) -> dict[str, Any]: ...
    def begin(self, version: int, attempt: int, job: str = "") -> Offload: ...
    def wait_published(self, version: int, timeout_ms: int) -> dict[str, Any]: ...

Param = tuple[
    int, str, str, Sequence[int], int, int, Callable[[int, memoryview], None] | None
]

class Collective:
    def __init__(
        self,
        rank: int,
        size: int,
        root: int,
        rendezvous: str,
        job: str,
        interface: str,
        address: str,
        timeout_ms: int,
        kind: int,
        device: int,
    ) -> None: ...
    def check(self, failure: str | None) -> None: ...
    def close(self) -> None: ...

class Megatron:
    def __init__(
        self,
        hf_dir: str,
        parallel: str,
        family: str,
        family_dirs: Sequence[str],
        threads: int,
    ) -> None: ...
    def tensors_meta(self) -> list[tuple[str, str, list[int]]]: ...
    def register(
        self, client: Client, ranks: Sequence[int] | None, replace: bool
    ) -> int: ...
    def check(self, rank: int, params: Sequence[Param]) -> None: ...
    def place(
        self, offload: Offload, rank: int, params: Sequence[Param], diff: bool = False
    ) -> int: ...
    def gather(
        self,
        collective: Collective,
        offload: Offload | None,
        rank: int,
        params: Sequence[Param],
        bucket_bytes: int,
    ) -> dict[str, Any]: ...

class ControlCall:
    def next(self) -> str | None: ...
    def cancel(self) -> None: ...

class Control:
    def __init__(
        self, daemon: int, address: str, credentials: str | None, timeout_ms: int
    ) -> None: ...
    def start(self, method: str, request: str, timeout_ms: int) -> ControlCall: ...
