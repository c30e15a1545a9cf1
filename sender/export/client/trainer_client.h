// The trainer's client: registers a model, writes versions into the inactive half, publishes them.
// Each writing process (rank) has one, with one caller at a time. A write is one memcpy into shared
// memory. If an Offload is destroyed before Ready, or its process dies, the offload is abandoned at
// once for all ranks. Errors are the agent's, with the socket's path.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/delta/version_info.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "sender/export/client/gpu_base.h"
#include "sender/export/client/strided_copy.h"
#include "sender/export/client/written_bytes.h"

namespace deltawire {

class HalfMapping;

/// The ranks that write a tensor's bytes. kPart: other ranks may write parts of the tensor, too, so
/// it is final when all ranks are ready. kWhole: this rank alone, and the bytes are final now (the
/// agent may diff them at once). kCounted: several ranks write disjoint bytes, and each reports its
/// own by Finished; the agent diffs a chunk when all its bytes are reported.
enum class Share : uint8_t { kPart, kWhole, kCounted };

/// An n-dimensional block in the trainer's memory, and its position in a tensor.
struct StridedSource {
  const std::byte* data = nullptr;
  unsigned element_bytes = 0;        ///< must be the tensor's
  std::span<const uint64_t> shape;   ///< as many dimensions as the tensor has
  std::span<const int64_t> strides;  ///< bytes, any sign; empty: contiguous in row-major order
  std::span<const uint64_t> start;   ///< of the block in the tensor, elements; empty: 0
};

struct RegisterOptions {
  bool replace = false;          ///< discard a registered model of another layout
  bool keep_side_files = false;  ///< keep the registered ones, ignore those given
  /// The layout's chunks that this agent publishes, if other nodes' agents publish the rest:
  /// sorted, disjoint; empty: all. Do not write to other chunks: they have no memory.
  std::vector<ChunkRange> owned = {};
};

struct RegisteredModel {
  std::string name;
  Identity published;  ///< empty: none yet
  uint64_t total_bytes = 0;
  uint64_t highest_version = 0;  ///< ever published; versions above `published` were rolled back
};
/// Returns the models of the agent at `socket` (or data directory), by name. kUnimplemented: an
/// agent of an older release.
StatusOr<std::vector<RegisteredModel>> ListModels(const std::string& socket,
                                                  std::chrono::milliseconds timeout);

class TrainerClient {
 public:
  /// `socket` is the agent's trainer socket, or its data directory. The client connects lazily, and
  /// calls wait up to `timeout` for it.
  TrainerClient(std::string socket, std::string model, uint32_t rank = 0, uint32_t world = 1,
                std::chrono::milliseconds timeout = std::chrono::seconds(30));
  ~TrainerClient();

  /// Sizes the buffers. Returns the published version (epoch 0: none).
  StatusOr<Identity> Register(const Layout& layout, const std::vector<SideFile>& side_files,
                              RegisterOptions options = {});
  const std::optional<Layout>& layout() const;         ///< the registered one
  void SetTimeout(std::chrono::milliseconds timeout);  ///< for later calls
  /// Sets the threads of Copy, its caller included. 0: four, or one per core if there are fewer.
  /// REQUIRES: no Offload lives.
  void SetCopyThreads(size_t threads);
  /// Sets the name that the agent shows to other publishers. Default: ThisProcess().
  void SetPublisher(std::string publisher);
  /// Names one start of this rank's job: the same text at all its ranks, another one after a
  /// restart. Ranks of a world above 1 need it to find one another, or an attempt.
  void SetJob(std::string job);
  /// Calls `gone` ten times a second, on the caller's thread, while Register, Begin or
  /// WaitPublished waits for the agent's answer. True ends that call with kCancelled.
  void SetGone(std::function<bool()> gone);
  /// Calls `notice` with the reason and the remedy, on the caller's thread, when Register, Begin or
  /// WaitPublished begins to wait for an absent sender, once for each absence.
  void SetNotice(std::function<void(const std::string&)> notice);

  /// The offload of one version. Write tensors in any order from any thread, then call Ready. The
  /// version is published when all ranks are ready; they need not wait for one another.
  class Offload {
   public:
    ~Offload();
    /// Returns the whole data section, for all ranks. Tensor `t` is at layout.offset(t).
    MutableBytes data();
    /// Returns the file that contains data(), mapped at least as long as this lives, and kept for
    /// later offloads. Null if the agent owns a part: the rest has no memory.
    std::shared_ptr<HalfMapping> whole_mapping() const;
    /// Returns the memory of tensor `t`, to be written in place. Call Written afterwards.
    MutableBytes tensor(size_t t);
    /// Copies the owned bytes of `data` (of exactly the tensor's size) into place, and calls
    /// Written.
    Status Write(size_t t, Bytes data, Share share = Share::kPart);
    /// Copies a block into its place, on the client's copy threads. Does not call Written.
    /// REQUIRES: all of the block is owned.
    Status Copy(size_t t, const StridedSource& source);
    /// Returns the same copy, to tensor(t), for a device that runs it. REQUIRES: no dimension is 0.
    StatusOr<BlockCopy> CopyFor(size_t t, const StridedSource& source) const;
    /// Diffs the pieces where they lie, against copies that their devices keep. Returns what holds
    /// payloads now. For the rest, which OutsideOf finds, do as without it, and then call Diffed.
    /// It diffs nothing if other ranks may write the same bytes. REQUIRES: each byte once; one call
    /// at a time; all work on the pieces is complete.
    StatusOr<std::vector<DiffedChunk>> DiffOnGpu(std::span<const DevicePiece> pieces, Share share);
    /// Returns the parts of a copy into tensor `t` that lie outside of `diffed`.
    std::vector<kernels::StridedCopy> OutsideOf(std::span<const DiffedChunk> diffed, uint32_t t,
                                                const kernels::StridedCopy& copy,
                                                const kernels::Convert& convert) const;
    /// Reports that these places hold payloads. Returns before the agent knows.
    Status Diffed(std::span<const DiffedChunk> payloads);
    /// Describes where this rank's bytes were diffed, and why some went whole; empty: no GPU was
    /// asked to.
    std::string diffed_on() const;
    /// Reports that these bytes of tensor `t` are final, and that no other rank writes them. Call
    /// Written(kCounted) as well. kFailedPrecondition: the ranks report too many bytes, and the
    /// offload is over. Any thread may call it; it returns before the agent knows.
    Status Finished(uint32_t t, const Destination& bytes);
    /// Reports a block of `shape` elements at `start`; empty `start`: at the tensor's first
    /// element.
    Status FinishedBlock(uint32_t t, std::span<const uint64_t> start,
                         std::span<const uint64_t> shape);
    /// Says that this rank has written its share of these tensors. With a single rank the bytes are
    /// final, and the agent may diff them already.
    Status Written(std::span<const uint32_t> tensors, Share share = Share::kPart);
    /// Makes the agent carry the tensor over from the published version. If that is not the one
    /// that this client made ready last, and no wait has said so, Ready is kFailedPrecondition,
    /// once.
    void Unchanged(size_t t);
    /// Says that this rank is done, and returns when the agent has recorded it. kAborted with the
    /// reason: another rank has died or abandoned the offload. kFailedPrecondition, without a call:
    /// this is the only rank, and Finished did not get all bytes of a tensor that is only kCounted.
    Status Ready();
    /// Returns kAborted with the reason once the offload is over for all ranks. Makes no call, but
    /// uses the agent's latest report.
    Status Check() const;
    /// Abandons the version for all ranks, which get `reason`. Nothing is published.
    void Abandon(const std::string& reason);
    /// Returns how many seconds BeginOffload waited for the half.
    double waited_seconds() const;
    /// Returns the offload's attempt, as given to Begin or as the agent drew it.
    uint64_t attempt() const;

   private:
    friend class TrainerClient;
    struct State;
    struct BlockStrides {
      std::vector<int64_t> to, from;  // in bytes, of each dimension
      uint64_t first = 0;             // the block's first byte in the tensor
    };
    /// Counts the only rank's bytes, for CheckCounted.
    void CountHere(std::span<const WrittenBytes> counted);
    Status CheckCounted();
    Status CheckCarried();
    StatusOr<BlockStrides> StridesOf(size_t t, const StridedSource& source) const;
    explicit Offload(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };

  /// Begins an offload. `attempt` ties its parts together: every rank gives every agent the same
  /// number (DrawAttempt), and each offload another one. With 0 the agent draws one for its own
  /// ranks, which SetJob ties together; that is kInvalidArgument for an agent that owns a part of
  /// the model, and for several ranks without a job. kFailedPrecondition names the publisher that
  /// already writes the model. With `again`, `version` may be the published one, which then begins
  /// an epoch. REQUIRES: Register. The client outlives the offload.
  StatusOr<std::unique_ptr<Offload>> Begin(uint64_t version, uint64_t attempt = 0,
                                           bool again = false);
  /// Waits up to the client's timeout, or `timeout` if given. It asks once more if the connection
  /// breaks. kAborted, with the reason, as soon as this client's offload of `version` is abandoned.
  StatusOr<VersionInfo> WaitPublished(uint64_t version, std::chrono::milliseconds timeout = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire
