// One receiver's pull: what it holds, what it was sent, and the next frame for each of its streams.
// A chunk stays on the stream that took it. When a publish overtakes the pull, chunks not yet sent
// go out new and those sent are lifted by delta; a pinned pull ends where it was told to.
// Owner: the agent's pull table and the bulk streams, by shared_ptr.
// Threads: all methods from any. Cost: 36 bytes per chunk while it runs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/config/options.h"
#include "common/net/pull_server.h"
#include "sender/chunk_encoder.h"
#include "sender/link_estimate.h"
#include "sender/model.h"

namespace deltawire::sender {

/// How a pull's chunks are coded.
struct PullCoding {
  CodecPolicy policy = CodecPolicy::kFast;
  uint32_t history = 0;
  CoderRates* rates = nullptr;         ///< of this process
  std::shared_ptr<LinkEstimate> link;  ///< to this receiver
  CoderSpeeds decode;                  ///< of the receiver, all threads; 0: like this sender's
  double encode_threads = 1;           ///< that may code for this pull at once
};

/// Sums per form: index 0 is whole chunks, the others are the codecs' numbers.
struct CodecCounts {
  static constexpr size_t kForms = 4;
  static constexpr const char* kNames[kForms] = {"raw", "fast", "tight", "dense"};
  std::array<uint64_t, kForms> chunks{}, bytes{};
  CodecCounts& operator+=(const CodecCounts& other);
};

class PullSession : public net::PullSession {
 public:
  /// `pinned`: the state to end at, from Model::At; null: the newest, whatever it is by then.
  PullSession(std::shared_ptr<Model> model, std::string receiver_id, uint16_t streams,
              PullCoding coding, std::shared_ptr<const Published> pinned);

  uint32_t chunks() const override { return model_->chunks().size(); }
  Status Start(const wire::Have& have) override;
  StatusOr<std::optional<net::OutFrame>> Next(uint16_t stream, std::function<void()> wake) override;
  void StreamOpened(uint16_t stream, std::function<void()> cut) override;
  void StreamClosed(uint16_t stream, const Status& why) override;

  /// kInvalidArgument when the stream is out of range or was there before.
  Status Reserve(uint16_t stream, uint16_t streams);
  /// Ends the pull: its streams are closed.
  void Cut(const Status& why);
  /// Cuts it if one of its streams still reads `half`. True when it did.
  bool CutIfReading(uint32_t half);

  const std::string& receiver_id() const { return receiver_id_; }
  const std::shared_ptr<Model>& model() const { return model_; }
  uint64_t bytes_sent() const;
  CodecCounts sent() const;
  /// No stream is open, and either all have ended or nobody came in time.
  bool Finished(std::chrono::steady_clock::time_point now) const;

 private:
  struct Stream {
    bool reserved = false;
    bool open = false;
    bool closed = false;
    std::function<void()> cut;
    std::function<void()> wake;
    std::vector<uint32_t> chunks;     // that this stream has taken
    uint64_t lifted_to = 0;           // serial of the state that all of them are at
    std::optional<uint32_t> reading;  // half that the frame being made or sent may read
    // For the link's estimate.
    std::optional<std::chrono::steady_clock::time_point> first_frame, idle_since;
    double idle_seconds = 0;
    double coding_seconds = 0;
    double seconds = 0;  // first frame -> closed, without idling
  };

  struct Task {
    uint32_t chunk = 0;
    ChunkPlan plan;
    ChunkHistory history;
    std::optional<uint32_t> half = {};  // that its frame is sent from
  };
  /// What the next frame is planned from. Pinned, the lease is null once the bytes are gone.
  LeasedState Lease() const;
  /// Under the lock: the next chunk of this stream that needs bytes; sets end_ when none ever will.
  std::optional<Task> NextTask(Stream& stream, const Published& now);
  /// Without the lock, since hashing and folding take time. Empty when a fold cancels out.
  StatusOr<std::optional<net::OutFrame>> MakeFrame(Task& task, const LeasedState& leased);
  StatusOr<std::optional<net::OutFrame>> MakeDelta(Task& task, const LeasedState& leased);
  StatusOr<net::OutFrame> MakeFull(Task& task, const LeasedState& leased);
  /// The bytes of a pinned state's chunk that no lease of its own half promises.
  StatusOr<LeasedState> LeaseElsewhere(uint32_t chunk) const;
  kernels::Codec Choose(const ChunkEncoder::Job& job, size_t fast_bytes) const;
  ChunkHistory HistoryOf(uint32_t chunk, const Published& now) const;
  Status CheckDamage(const Task& task, const Published& now) const;
  void Count(size_t form, size_t bytes);
  void EstimateLink();  // REQUIRES: mu_ held
  void WakeOthers(const Stream& but);

  const std::shared_ptr<Model> model_;
  const std::string receiver_id_;
  const PullCoding coding_;
  const std::shared_ptr<const Published> pinned_;
  const ChunkEncoder encoder_;
  const std::chrono::steady_clock::time_point created_;

  mutable std::mutex mu_;
  bool started_ = false;
  Status failed_;
  StateId held_;
  std::vector<StateId> held_before_;
  std::vector<wire::Have::Entry> have_;
  std::vector<uint64_t> sent_serial_;
  std::vector<Stream> streams_;
  uint32_t cursor_ = 0;
  std::optional<StateId> end_;
  std::atomic<uint64_t> bytes_sent_{0};
  std::array<std::atomic<uint64_t>, CodecCounts::kForms> form_chunks_{}, form_bytes_{};
  std::atomic<double> tight_work_{0};  // that the receiver has to decode
  uint64_t refused_bases_ = 0;
};

}  // namespace deltawire::sender
