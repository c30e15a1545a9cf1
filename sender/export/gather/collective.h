// What a trainer's ranks do together where they share no memory: agree on small metadata, and
// gather bytes to one rank, the root. Owner: one per rank; handles and buffers may outlive it.
// Threads: one caller; transfers go on beside it. Cost: a gather copies nothing in user space.
// Errors: every wait has a deadline. kUnavailable and kDeadlineExceeded name the rank that is
// missing, as far as known, and break the collective: each later call returns them at once.
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

/// Memory that a Collective can send from or receive into; freed with the object.
class CollectiveBuffer {
 public:
  virtual ~CollectiveBuffer() = default;
  virtual MutableBytes bytes() = 0;
};

/// A gather on its way. Dropped before Wait, it breaks the collective: peers must not wait for it.
class PendingGather {
 public:
  virtual ~PendingGather() = default;
  /// On the root: all parts are there, readable by the host. Elsewhere: `mine` may be overwritten.
  /// Once only.
  virtual Status Wait(std::chrono::steady_clock::time_point deadline) = 0;
};

class Collective {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  enum class BufferUse { kSend, kReceive };

  /// What one rank may give to AllGather, in bytes.
  static constexpr uint64_t kMaxMetadataBytes = 64ULL << 20;

  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int root() const = 0;

  /// Returns when every rank has called it.
  virtual Status Barrier(Deadline deadline) = 0;

  /// What every rank gave, by rank; sizes may differ and be zero.
  virtual StatusOr<std::vector<std::vector<std::byte>>> AllGather(Bytes mine,
                                                                  Deadline deadline) = 0;

  /// Begins to move every rank's `mine` to the root. There, `parts[r]` receives the bytes of rank r
  /// (parts[root] stays as it is: the root has its own bytes already); elsewhere `parts` is empty.
  /// Ranks with nothing to give call it with nothing, or not at all. Several may be under way:
  /// every rank starts them in the same order and under the same slots. The deadline is for the
  /// start alone, which waits only where the library must set up connections. REQUIRES:
  /// parts[r].size() is what rank r gives for this `slot` (agree on it first); the memory lives
  /// until Wait, satisfies CanSendFrom and is, on the root, of a kReceive buffer.
  virtual StatusOr<std::unique_ptr<PendingGather>> StartGather(uint32_t slot, Bytes mine,
                                                               std::span<const MutableBytes> parts,
                                                               Deadline deadline) = 0;

  /// Memory for StartGather. kReceive is readable by the host; kSend need not be (see Copy).
  virtual StatusOr<std::unique_ptr<CollectiveBuffer>> NewBuffer(BufferUse use, uint64_t bytes) = 0;

  /// Whether StartGather can take `bytes` as they lie, and whether the host can read them.
  virtual bool CanSendFrom(Bytes bytes) const = 0;
  virtual bool CanRead(Bytes bytes) const = 0;

  struct CopyJob {
    MutableBytes to;
    Bytes from;
  };
  /// Copies between any memory that sources and NewBuffer come from; done when it returns.
  virtual Status Copy(std::span<const CopyJob> jobs, Deadline deadline) = 0;

  /// The CUDA device that its buffers lie on and sources may lie on; -1: host memory only.
  virtual int device() const { return -1; }

  /// Gives up, for every rank: the peers' waits end with an error that says `why` (not OK). Does
  /// nothing on a collective that is broken already.
  virtual void Abort(const Status& why) = 0;
};

}  // namespace deltawire
