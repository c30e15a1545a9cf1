// The trainer's client: registers a model, writes versions into the inactive half, publishes them.
// Owner: one per writing process (rank). Threads: one caller. Maps the half while an Offload lives.
// Errors: the agent's, with the socket's path. An Offload that is dropped before Ready, or whose
// process dies, is abandoned at once for all ranks. Cost of a write: one memcpy into shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "sender/export/client/chunk_bytes.h"

namespace deltawire {

class HalfMapping;

struct PublishedVersion {
  Identity identity;
  uint64_t model_bytes = 0;
  uint64_t delta_bytes = 0;
  uint64_t full_bytes = 0;
  uint64_t elements = 0;
  uint64_t changed_elements = 0;
  double trainer_wait_seconds = 0;
  double offload_seconds = 0;
  double publish_seconds = 0;
  int64_t ready_unix_nanos = 0;
  int64_t published_unix_nanos = 0;
};

/// Who writes a tensor's bytes. kPart: other ranks may write parts of it too, so it is final when
/// all ranks are ready. kWhole: this rank alone, and it is final now (the agent may diff it at
/// once). kCounted: several ranks, none another's bytes, and each says which it has Finished: the
/// agent diffs a chunk when all of it is.
enum class Share : uint8_t { kPart, kWhole, kCounted };

/// An n-dimensional block in the trainer's memory, and where in a tensor it belongs.
struct StridedSource {
  const std::byte* data = nullptr;
  unsigned element_bytes = 0;        ///< must be the tensor's
  std::span<const uint64_t> shape;   ///< as many dimensions as the tensor has
  std::span<const int64_t> strides;  ///< bytes, any sign; empty: contiguous in row-major order
  std::span<const uint64_t> start;   ///< of the block in the tensor; empty: its first element
};

struct RegisterOptions {
  bool replace = false;          ///< drop a registered model of another layout
  bool keep_side_files = false;  ///< leave those that are registered; the ones given are ignored
  /// The layout's chunks that this agent publishes where other nodes' agents have the rest: sorted,
  /// disjoint; empty: all. There is no memory behind other chunks: do not write them.
  std::vector<ChunkRange> owned = {};
};

class TrainerClient {
 public:
  /// `socket` is the agent's trainer socket, or its data directory. Connects lazily; calls wait up
  /// to `timeout` for it.
  TrainerClient(std::string socket, std::string model, uint32_t rank = 0, uint32_t world = 1,
                std::chrono::milliseconds timeout = std::chrono::seconds(30));
  ~TrainerClient();

  /// Sizes the buffers. Returns what is published already (epoch 0: nothing).
  StatusOr<Identity> Register(const Layout& layout, const std::vector<SideFile>& side_files,
                              RegisterOptions options = {});
  const std::optional<Layout>& layout() const;         ///< as registered
  void SetTimeout(std::chrono::milliseconds timeout);  ///< of the calls from now on
  /// Threads that Copy uses, with its caller; 0: four, or the cores if there are fewer. Not while
  /// an Offload lives.
  void SetCopyThreads(size_t threads);
  /// Who the agent says is publishing, where another publisher asks. ThisProcess() unless it is
  /// set.
  void SetPublisher(std::string publisher);

  /// One version on its way. Write tensors in any order from any thread, then Ready. The version is
  /// published when all ranks are ready; they need not wait for one another.
  class Offload {
   public:
    ~Offload();
    /// The whole data section, all ranks' alike: tensor `t` lies at layout.offset(t).
    MutableBytes data();
    /// The file that data() lies in, mapped for as long as this lives; kept from offload to
    /// offload. Null where the agent owns a part: there is no memory behind the rest.
    std::shared_ptr<HalfMapping> whole_mapping() const;
    /// Memory of tensor `t`, to be written in place; say Written when it is done.
    MutableBytes tensor(size_t t);
    /// Copies `data` (of exactly the tensor's size) into place, what is owned of it, and says
    /// Written.
    Status Write(size_t t, Bytes data, Share share = Share::kPart);
    /// Copies a block, all of it owned, into its place, on the client's copy threads; does not say
    /// Written.
    Status Copy(size_t t, const StridedSource& source);
    /// These bytes of tensor `t` are final, and this rank alone writes them. Say Written(kCounted)
    /// as well. kFailedPrecondition, and the offload is over, when ranks name more bytes than there
    /// are. From any thread; returns before the agent is told.
    Status Finished(uint32_t t, const Destination& bytes);
    /// The same of a block of `shape` elements at `start`; empty: at the tensor's first.
    Status FinishedBlock(uint32_t t, std::span<const uint64_t> start,
                         std::span<const uint64_t> shape);
    /// This rank has written its share of these tensors. One rank in all: the bytes are final and
    /// the agent may diff them already.
    Status Written(std::span<const uint32_t> tensors, Share share = Share::kPart);
    /// Carried over from the published version by the agent.
    void Unchanged(size_t t);
    /// This rank is done; returns when the agent has taken note. kAborted with the reason when
    /// another rank has died or given up meanwhile.
    Status Ready();
    /// kAborted with the reason once the offload is over for all ranks; looks at what the agent has
    /// said, without a call.
    Status Check() const;
    /// Gives the version up for all ranks; they are told the reason. Nothing is published.
    void Abandon(const std::string& reason);
    /// Seconds that BeginOffload waited for the half.
    double waited_seconds() const;
    /// Of this offload: as given to Begin, or as the agent drew it.
    uint64_t attempt() const;

   private:
    friend class TrainerClient;
    struct State;
    explicit Offload(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };

  /// `attempt` ties the parts of one offload together: the same number (DrawAttempt) from every
  /// rank at every agent, another one for each offload. 0: the agent draws one for its own ranks,
  /// which an agent that owns a part of the model refuses. kFailedPrecondition names the publisher
  /// that writes the model already. REQUIRES: Register. The client outlives the offload.
  StatusOr<std::unique_ptr<Offload>> Begin(uint64_t version, uint64_t attempt = 0);
  /// Waits up to the client's timeout, or `timeout` when it is given. kAborted, with the reason, as
  /// soon as the offload that this client begun for `version` is abandoned.
  StatusOr<PublishedVersion> WaitPublished(uint64_t version,
                                           std::chrono::milliseconds timeout = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire
