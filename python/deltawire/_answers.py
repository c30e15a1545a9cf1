"""The daemons' answers as classes; made by python/make_answers.py from proto/deltawire/v1.

Each has the fields of the message of its name there, which says what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltawire._answer import Answer


@dataclass(frozen=True, eq=False)
class Identity(Answer):
    epoch: int = 0
    version: int = 0
    lineage: str = ""
    root: str = ""
    attempt: str = ""


@dataclass(frozen=True, eq=False)
class VersionInfo(Answer):
    id: Identity = Identity()
    model_bytes: int = 0
    delta_bytes: int = 0
    full_bytes: int = 0
    elements: int = 0
    changed_elements: int = 0
    trainer_wait_seconds: float = 0.0
    offload_seconds: float = 0.0
    publish_seconds: float = 0.0
    ready_unix_nanos: int = 0
    published_unix_nanos: int = 0
    rollback: bool = False
    side_files_hash: str = ""


@dataclass(frozen=True, eq=False)
class CodecCount(Answer):
    codec: str = ""
    chunks: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class TensorChange(Answer):
    name: str = ""
    elements: int = 0
    changed_elements: int = 0
    delta_bytes: int = 0
    full_bytes: int = 0


@dataclass(frozen=True, eq=False)
class ChunkRange(Answer):
    first: int = 0
    last: int = 0


@dataclass(frozen=True, eq=False)
class GroupMemberStatus(Answer):
    receiver_id: str = ""
    state: str = ""
    message: str = ""


@dataclass(frozen=True, eq=False)
class GroupOutcome(Answer):
    name: str = ""
    round: int = 0
    committed: bool = False
    target: Identity = Identity()
    message: str = ""
    members: int = 0
    late: int = 0
    prepare_seconds: float = 0.0
    spread_seconds: float = 0.0
    word_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class GroupStatus(Answer):
    name: str = ""
    standing: bool = False
    phase: str = ""
    round: int = 0
    target: Identity = Identity()
    committed: Identity = Identity()
    members: tuple[GroupMemberStatus, ...] = ()
    last: GroupOutcome = GroupOutcome()
    commits: int = 0
    aborts: int = 0


@dataclass(frozen=True, eq=False)
class SenderModelStatus(Answer):
    model: str = ""
    fingerprint: str = ""
    tensors: int = 0
    chunks: int = 0
    model_bytes: int = 0
    newest: VersionInfo = VersionInfo()
    offloading_version: int = 0
    log_bytes: int = 0
    log_limit_bytes: int = 0
    oldest_base: int = 0
    receivers: int = 0
    active_pulls: int = 0
    bytes_sent: int = 0
    pulls_cut: int = 0
    directory: str = ""
    sent: tuple[CodecCount, ...] = ()
    scrubbed_bytes: int = 0
    scrub_mismatches: int = 0
    scrub_repaired: int = 0
    damaged_chunks: int = 0
    changes: tuple[TensorChange, ...] = ()
    owned: tuple[ChunkRange, ...] = ()
    owned_chunks: int = 0
    owned_bytes: int = 0
    pulls_refused: int = 0
    receivers_silent: int = 0
    groups: tuple[GroupStatus, ...] = ()
    newcomer_pulls: int = 0
    held_back_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class RateLimits(Answer):
    all: int = 0
    per_site: int = 0
    per_receiver: int = 0


@dataclass(frozen=True, eq=False)
class SenderStatusResponse(Answer):
    program_version: str = ""
    uptime_seconds: float = 0.0
    plaintext_exposed: bool = False
    bulk_address: str = ""
    kernels: str = ""
    models: tuple[SenderModelStatus, ...] = ()
    security: str = ""
    unix_nanos: int = 0
    rate_limits: RateLimits = RateLimits()


@dataclass(frozen=True, eq=False)
class PullStats(Answer):
    chunks_full: int = 0
    chunks_delta: int = 0
    chunks_unchanged: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    transfer_seconds: float = 0.0
    apply_seconds: float = 0.0
    repaired_chunks: int = 0
    chunks_tight: int = 0
    chunks_dense: int = 0
    refused_chunks: int = 0
    history_chunks: int = 0
    streams: int = 0
    round_trip_seconds: float = 0.0
    best_bytes_per_s: float = 0.0
    ahead_seconds: float = 0.0
    ahead_bytes: int = 0


@dataclass(frozen=True, eq=False)
class LinkStatus(Answer):
    bytes_per_s: float = 0.0
    round_trip_seconds: float = 0.0
    sent_again_ratio: float = 0.0
    congestion_control: str = ""


@dataclass(frozen=True, eq=False)
class ReceiverInfo(Answer):
    receiver_id: str = ""
    model: str = ""
    peer: str = ""
    committed: Identity = Identity()
    phase: str = ""
    message: str = ""
    attached_seconds: float = 0.0
    last_pull: PullStats = PullStats()
    site: str = ""
    serve_address: str = ""
    follows: str = ""
    assigned: str = ""
    not_handed_out: str = ""
    link: LinkStatus = LinkStatus()
    served: Identity = Identity()
    engines: int = 0


@dataclass(frozen=True, eq=False)
class SyncProgress(Answer):
    receiver_id: str = ""
    phase: str = ""
    target: Identity = Identity()
    bytes_done: int = 0
    bytes_total: int = 0
    message: str = ""
    stats: PullStats = PullStats()
    group: GroupOutcome = GroupOutcome()


@dataclass(frozen=True, eq=False)
class WaitCommittedUpdate(Answer):
    newest: Identity = Identity()
    attached: int = 0
    committed: int = 0
    behind: tuple[str, ...] = ()
    version: int = 0
    served: bool = False


@dataclass(frozen=True, eq=False)
class UnregisterModelResponse(Answer):
    directory: str = ""
    freed_bytes: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AgentStatus(Answer):
    sender: str = ""
    newest: Identity = Identity()
    owned_chunks: int = 0
    owned_bytes: int = 0
    owned: tuple[ChunkRange, ...] = ()
    attached: bool = False
    in_use: str = ""


@dataclass(frozen=True, eq=False)
class EngineStatus(Answer):
    name: str = ""
    kind: str = ""
    state: str = ""
    served: Identity = Identity()
    error: str = ""
    paused: bool = False
    attempts: int = 0
    last_pause_seconds: float = 0.0
    pause_seconds: float = 0.0
    updates: int = 0
    failures: int = 0
    served_unix_nanos: int = 0
    drifts: int = 0
    unverified: bool = False


@dataclass(frozen=True, eq=False)
class ReceiverModelStatus(Answer):
    model: str = ""
    directory: str = ""
    sender: str = ""
    attached: bool = False
    following: bool = False
    committed: Identity = Identity()
    newest: Identity = Identity()
    phase: str = ""
    message: str = ""
    model_bytes: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    commits: int = 0
    bytes_received: int = 0
    repaired_chunks: int = 0
    last_pull: PullStats = PullStats()
    fingerprint: str = ""
    staging_limit_bytes: int = 0
    scrubbed_bytes: int = 0
    scrub_mismatches: int = 0
    history_deltas: int = 0
    history_bytes: int = 0
    agents: tuple[AgentStatus, ...] = ()
    buffers: int = 0
    buffers_why: str = ""
    readers: str = ""
    reader_wait_seconds: float = 0.0
    worst_reader_wait_seconds: float = 0.0
    root_mismatches: int = 0
    lost_attachments: int = 0
    files_put_back: int = 0
    served: Identity = Identity()
    engines: tuple[EngineStatus, ...] = ()
    group: str = ""
    prepared: Identity = Identity()


@dataclass(frozen=True, eq=False)
class ReceiverStatusResponse(Answer):
    program_version: str = ""
    uptime_seconds: float = 0.0
    plaintext_exposed: bool = False
    receiver_id: str = ""
    kernels: str = ""
    models: tuple[ReceiverModelStatus, ...] = ()
    security: str = ""
    unix_nanos: int = 0


@dataclass(frozen=True, eq=False)
class SyncUpdate(Answer):
    phase: str = ""
    target: Identity = Identity()
    bytes_done: int = 0
    bytes_total: int = 0
    stats: PullStats = PullStats()


@dataclass(frozen=True, eq=False)
class EngineCheck(Answer):
    name: str = ""
    error: str = ""
    drifted: bool = False


@dataclass(frozen=True, eq=False)
class VerifyResponse(Answer):
    committed: Identity = Identity()
    chunks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    bad_chunks: int = 0
    bad_tensors: tuple[str, ...] = ()
    repaired: bool = False
    engines: tuple[EngineCheck, ...] = ()


@dataclass(frozen=True, eq=False)
class CommitInfo(Answer):
    id: Identity = Identity()
    stats: PullStats = PullStats()
    committed_unix_nanos: int = 0
    directory: str = ""


@dataclass(frozen=True, eq=False)
class ServedInfo(Answer):
    engine: str = ""
    kind: str = ""
    id: Identity = Identity()
    served_unix_nanos: int = 0
    pause_seconds: float = 0.0
    all: Identity = Identity()
    oldest: Identity = Identity()
