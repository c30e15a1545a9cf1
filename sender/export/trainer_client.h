// The trainer's client: registers a model, writes versions into the inactive half, publishes them.
// Owner: one per writing process (rank). Threads: one caller. Maps the half while an Offload lives.
// Errors: the agent's, with the socket's path; an Offload that is dropped before Ready publishes
// nothing. Cost of a write: one memcpy into shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/state_id.h"
#include "common/base/status.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"

namespace deltawire {

struct PublishedVersion {
  StateId id;
  uint64_t model_bytes = 0;
  uint64_t delta_bytes = 0;
  uint64_t full_bytes = 0;
  uint64_t elements = 0;
  uint64_t changed_elements = 0;
  double trainer_wait_seconds = 0;
  double offload_seconds = 0;
  double publish_seconds = 0;
  int64_t ready_unix_nanos = 0;
};

class TrainerClient {
 public:
  /// `socket` is the agent's trainer socket. Connects lazily; calls wait up to `timeout` for it.
  TrainerClient(std::string socket, std::string model, uint32_t rank = 0, uint32_t world = 1,
                std::chrono::milliseconds timeout = std::chrono::seconds(30));
  ~TrainerClient();

  /// Sizes the buffers. Returns what is published already (epoch 0: nothing).
  /// `owned`: the chunks of `layout` that this agent publishes where other nodes' agents have the
  /// rest (sorted, disjoint; empty: all). There is no memory behind other chunks: do not write
  /// them.
  StatusOr<StateId> Register(const Layout& layout, const std::vector<SideFile>& side_files,
                             bool replace = false, const std::vector<ChunkRange>& owned = {});

  /// One version on its way. Write tensors in any order from any thread, then Ready.
  class Offload {
   public:
    ~Offload();
    /// Memory of tensor `t`, to be written in place; say Written when it is done.
    MutableBytes tensor(size_t t);
    /// Copies `data` (of exactly the tensor's size) into place, what is owned of it, and says
    /// Written.
    Status Write(size_t t, Bytes data);
    /// The bytes of these tensors are final. The agent may diff them already.
    Status Written(std::span<const uint32_t> tensors);
    /// Carried over from the published version by the agent.
    void Unchanged(size_t t);
    /// This rank is done; returns when the agent has taken note.
    Status Ready();
    /// Seconds that BeginOffload waited for the half.
    double waited_seconds() const;

   private:
    friend class TrainerClient;
    struct State;
    explicit Offload(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };

  /// REQUIRES: Register. The client outlives the offload.
  StatusOr<std::unique_ptr<Offload>> Begin(uint64_t version);
  StatusOr<PublishedVersion> WaitPublished(uint64_t version);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire
