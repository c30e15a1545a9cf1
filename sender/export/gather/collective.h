// Communication of a trainer's ranks that share no memory: they agree on small metadata, and gather
// bytes to one rank, the root, without a copy in user space. Each rank has one, with one caller;
// handles and buffers may outlive it. Every wait has a deadline. kUnavailable and kDeadlineExceeded
// name the missing rank, if known, and break the collective: each later call returns them at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace deltawire {

/// Memory that a Collective can send from or receive into. The destructor frees it.
class CollectiveBuffer {
 public:
  virtual ~CollectiveBuffer() = default;
  virtual MutableBytes bytes() = 0;
};

/// A gather under way. Destroying it before Wait breaks the collective, so that no peer waits for
/// it.
class PendingGather {
 public:
  virtual ~PendingGather() = default;
  /// On the root, returns when all parts have arrived, readable by the host. Elsewhere, returns
  /// when `mine` may be overwritten. Call once.
  virtual Status Wait(std::chrono::steady_clock::time_point deadline) = 0;
};

class Collective {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  enum class BufferUse { kSend, kReceive };

  /// The largest AllGather contribution of one rank, in bytes.
  static constexpr uint64_t kMaxMetadataBytes = 64ULL << 20;

  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int root() const = 0;

  virtual Status Barrier(Deadline deadline) = 0;

  /// Returns each rank's bytes, by rank. Sizes may differ and be zero.
  virtual StatusOr<std::vector<std::vector<std::byte>>> AllGather(Bytes mine,
                                                                  Deadline deadline) = 0;

  /// Begins to transfer every rank's `mine` to the root. There, `parts[r]` receives the bytes of
  /// rank r; parts[root] stays unchanged, because the root has its own bytes already. Elsewhere
  /// `parts` is empty. A rank without bytes passes nothing, or makes no call. Several gathers may
  /// be under way: every rank starts them in the same order and with the same slots. The deadline
  /// covers only the start, which waits only if the library must set up connections. REQUIRES:
  /// parts[r].size() is the size of rank r's bytes for this `slot` (agree on it first); the memory
  /// lives until Wait, satisfies CanSendFrom and, on the root, belongs to a kReceive buffer.
  virtual StatusOr<std::unique_ptr<PendingGather>> StartGather(uint32_t slot, Bytes mine,
                                                               std::span<const MutableBytes> parts,
                                                               Deadline deadline) = 0;

  /// Allocates memory for StartGather. The host can read kReceive memory; kSend needs Copy.
  virtual StatusOr<std::unique_ptr<CollectiveBuffer>> NewBuffer(BufferUse use, uint64_t bytes) = 0;

  /// Returns whether StartGather can send `bytes` without a copy, or whether the host can read
  /// them.
  virtual bool CanSendFrom(Bytes bytes) const = 0;
  virtual bool CanRead(Bytes bytes) const = 0;

  struct CopyJob {
    MutableBytes to;
    Bytes from;
  };
  /// Copies between any memory of sources and of NewBuffer. Done when it returns.
  virtual Status Copy(std::span<const CopyJob> jobs, Deadline deadline) = 0;

  /// Returns the CUDA device of its buffers and possible sources, or -1 for host memory only.
  virtual int device() const { return -1; }

  /// Breaks the collective for every rank: the peers' waits end with an error that contains `why`.
  /// No effect on a broken collective. REQUIRES: `why` is not OK.
  virtual void Abort(const Status& why) = 0;
};

}  // namespace deltawire
