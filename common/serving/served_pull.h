// One receiver's pull: what the receiver holds, what it was sent, and each stream's next frame.
// A chunk stays on the stream that took it. The first publish that overtakes the pull pins its end:
// unsent chunks go out at that version, sent ones are lifted to it by delta, later versions wait.
// Owner: the PullDesk and the bulk streams, by shared_ptr. Threads: all methods from any.
// Cost: 36 bytes per chunk while it runs; ChunkBytes' copies. Errors name model and receiver.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/stages.h"
#include "common/base/sync.h"
#include "common/delta/coder_rates.h"
#include "common/delta/pull_stats.h"
#include "common/net/pull_server.h"
#include "common/serving/admission.h"
#include "common/serving/chunk_bytes.h"
#include "common/serving/chunk_encoder.h"
#include "common/serving/incoming_version.h"
#include "common/serving/link_estimate.h"
#include "common/serving/payload_elsewhere.h"
#include "common/serving/state_source.h"

namespace deltawire {

/// How a pull's chunks are coded.
struct PullCoding {
  std::optional<kernels::Codec> codec = kernels::Codec::kFast;  ///< none: chosen chunk by chunk
  uint32_t history = 0;
  CoderRates* rates = nullptr;         ///< the coders' speeds in this process
  std::shared_ptr<LinkEstimate> link;  ///< the link to this receiver
  CoderSpeeds decode;                  ///< of the receiver, all threads; 0: unknown
  double encode_threads = 1;           ///< threads that may code for this pull at once
};

/// The terms under which a pull was granted.
struct PullTerms {
  std::string receiver_id;
  std::string peer;  ///< the address that asked for it
  uint16_t streams = 1;
  PullCoding coding;
  /// The state to end at, from StateSource::At; null: the newest state at the start, or the first
  /// one that overtakes the pull.
  std::shared_ptr<const Published> pinned;
  /// A version that is still coming: what has come of it goes out first. Null: none.
  std::shared_ptr<IncomingVersion> incoming;
  /// Of these, while the version is not published, only deltas, and so many bytes of them at most;
  /// 0: all that comes.
  uint64_t ahead_bytes = 0;
  /// The pull ends at that version, and a newer one does not overtake it. REQUIRES: `incoming`.
  bool ends_at_incoming = false;
  Identity granted;                ///< the state to end at, if none overtakes it: for the log
  std::vector<uint32_t> suspects;  ///< chunks whose bytes came with another digest before
  /// A frame that reads a half for longer than this is late, and the frames after it are copied.
  std::chrono::milliseconds late_after{62};
  /// All streams must arrive within this time. Have may arrive later, by as long as it takes at
  /// 64 KiB/s.
  std::chrono::milliseconds ticket_life{30000};
  /// Of the receiver's pulls together, and of all pulls of its site; null: no limit.
  std::shared_ptr<TokenBucket> rate, site_rate;
  std::shared_ptr<Admission> admission;  ///< null: no pull goes before another
  StageObserver stages;                  ///< told of the pull when it has ended as it should
  std::string principal;  ///< who asked for it; empty: the sender knows no principals
  /// Whether a stream comes from whoever asked for the pull; null: a ticket is proof enough.
  std::function<Status(const wire::Hello&, const net::StreamPeer&)> admits;
};

class ServedPull : public net::PullSession, public IncomingVersion::Watcher {
 public:
  ServedPull(std::shared_ptr<StateSource> model, PullTerms terms);
  ~ServedPull() override;

  uint32_t chunks() const override { return model_->chunks().size(); }
  std::array<TokenBucket*, 2> rates() override {
    return {terms_.rate.get(), terms_.site_rate.get()};
  }
  net::LinkFigures link() override { return {.bytes_per_s = terms_.coding.link->bytes_per_s()}; }
  void Measured(const net::TcpFacts& facts) override { terms_.coding.link->AddFacts(facts); }
  std::chrono::nanoseconds AwaitOthers(size_t bytes) override;
  bool held_back() override;
  size_t PieceBytes(size_t most) override;
  void HeldBack(std::chrono::nanoseconds time) override;
  void Moved(uint64_t bytes) override;
  void Waited(uint16_t stream, uint64_t queued, uint64_t left) override;
  Status Start(const wire::Have& have) override;
  StatusOr<std::optional<net::OutFrame>> Next(uint16_t stream, std::function<void()> wake) override;
  void StreamOpened(uint16_t stream, std::function<void()> cut) override;
  void StreamClosed(uint16_t stream, const Status& why) override;
  void Came(bool all) override;

  /// OK when the stream comes from whoever asked for the pull, else kPermissionDenied.
  Status Admits(const wire::Hello& hello, const net::StreamPeer& peer) const {
    return terms_.admits ? terms_.admits(hello, peer) : absl::OkStatus();
  }
  /// kInvalidArgument when the stream is out of range or was there before.
  Status Reserve(uint16_t stream, uint16_t streams);
  /// Ends the pull: its streams are closed.
  void Cut(const Status& why);
  /// Cuts the pull if one of its streams still reads `half`; returns whether it did.
  bool CutIfReading(uint32_t half, std::string_view why);
  /// Cuts the pull if its ticket's life is over and a stream, or Have, has not arrived; returns
  /// whether it did. When all streams have arrived, Have gets the time that a slow link needs.
  bool CutIfLate(SteadyClock::time_point now);
  /// `newest` has been published: from now on what leads back to it is kept, until the pull has
  /// pinned its end.
  void Overtaken(const Published& newest);
  /// Cuts the pull if the VersionStore has given up the state that it ends at; returns whether it
  /// did.
  bool CutIfGivenUp();

  const std::string& receiver_id() const { return terms_.receiver_id; }
  const std::string& peer() const { return terms_.peer; }
  const std::string& principal() const { return terms_.principal; }
  const std::shared_ptr<StateSource>& model() const { return model_; }
  uint64_t bytes_sent() const;
  /// Of bytes_sent, those that were sent on as they came, before their version was complete.
  uint64_t bytes_ahead() const { return bytes_ahead_; }
  FormCounts sent() const;
  /// When a stream was last opened or asked for a frame; before that, when the pull was granted.
  SteadyClock::time_point last_heard() const;
  /// True when no stream is open, and either all have ended, the pull failed, or its ticket's life
  /// is over.
  bool Finished(SteadyClock::time_point now) const;

 private:
  std::chrono::milliseconds HaveTime() const;
  using Callbacks = std::vector<std::function<void()>>;  // to be called without the lock

  /// A chunk that its stream sends when another thread has made its payload.
  struct Deferred {
    uint32_t chunk = 0;
    bool lift = false;
    std::shared_ptr<PayloadElsewhere> payload;
    /// Of a version that is still coming: what is asked for again when the payload is made.
    std::optional<IncomingVersion::Piece> piece = {};
  };
  struct Stream {
    bool reserved = false;
    bool open = false;
    bool closed = false;
    std::function<void()> cut;
    std::function<void()> wake;
    std::vector<uint32_t> early;  // chunks that it took before the pull was overtaken
    size_t lifted = 0;            // how many of `early` were lifted
    std::vector<Deferred> deferred;
    bool making = false;              // makes a frame, and may yet defer its chunk
    std::optional<uint32_t> reading;  // half that its present frame may read
    // For a whole chunk that the socket is taking: since when, and its bytes.
    std::optional<SteadyClock::time_point> handed_over;
    uint64_t handed_bytes = 0;
    // For the link's estimate.
    std::optional<SteadyClock::time_point> first_frame, idle_since;
    double idle_seconds = 0;
    uint64_t idle_bytes = 0;  // that the kernel sent meanwhile
    double coding_seconds = 0;
    double seconds = 0;  // from the first frame to the close, without idle time
  };

  struct Task {
    uint32_t chunk = 0;
    ChunkPlan plan;
    ChunkHistory history;
    bool lift = false;
    std::shared_ptr<PayloadElsewhere> elsewhere = {};  // set where there is no frame yet
    std::optional<uint32_t> half = {};                 // the half that its frame is sent from
    bool whole = false;                                // its frame carries the whole chunk
  };
  /// The state that the next frame is planned from. Of a pinned pull, the lease is null once the
  /// half is written to.
  LeasedState Lease() const;
  /// Whether frames are made from `state` now. Pins the first state that overtakes the pull.
  /// REQUIRES: mu_ held.
  bool AcceptOrPin(const std::shared_ptr<const Published>& state);
  /// REQUIRES: mu_ held.
  void PinEnd(const std::shared_ptr<const Published>& state);
  /// The version of terms_.incoming is published, as `state`. REQUIRES: mu_ held.
  void PinSettled(const std::shared_ptr<const Published>& state);
  /// The next chunk of this stream that needs bytes; sets end_ when no stream has any left.
  /// REQUIRES: mu_ held.
  std::optional<Task> NextTask(Stream& stream, const Published& now, Callbacks& wakes);
  std::optional<Task> NextLift(Stream& stream, const Published& now);
  /// What the receiver lacks of a chunk; nullopt: nothing. REQUIRES (here and below): mu_ held.
  std::optional<Task> Plan(Stream& stream, uint32_t chunk, const Published& now);
  std::optional<Task> PlanLift(uint32_t chunk, const Published& now) const;
  // Of chunks whose payloads others are making (served_pull_deferred.cc).
  void Defer(Stream& stream, const Task& task);
  /// One whose payload is made.
  std::optional<Task> NextDeferred(Stream& stream, const Published& now);
  /// Has `wake` called when one of the stream's is made; false when one is already.
  static bool AwaitDeferred(Stream& stream, const std::function<void()>& wake);
  /// The same for those of a version that is still coming.
  static bool AwaitMade(Stream& stream, const std::function<void()>& wake);
  bool defers() const;
  /// Makes the task's frame; nullopt when a fold cancels out, or with task.elsewhere. REQUIRES: mu_
  /// not held, since copying and folding take time.
  StatusOr<std::optional<net::OutFrame>> MakeFrame(Task& task, LeasedState leased);
  StatusOr<std::optional<net::OutFrame>> MakeDelta(Task& task, const LeasedState& leased);
  // Of a version that is still coming (served_pull_ahead.cc).
  struct AheadTask {
    IncomingVersion::Piece piece;
    bool as_fast = false;      // the receiver lacks what the payload looks back to
    wire::Have::Entry before;  // what the receiver had of the chunk
    std::shared_ptr<PayloadElsewhere> making = {};  // set where the frame may come to nothing
    // Where it is coded anew: how, and against what.
    kernels::Codec codec = kernels::Codec::kFast;
    ChunkHistory history = {};
    LeasedState base = {};
  };
  /// What Next returns while the version is coming; nullopt once it is served as any other.
  std::optional<StatusOr<std::optional<net::OutFrame>>> NextAhead(
      uint16_t index, const std::function<void()>& wake);
  /// The next chunk that has come and that the receiver can use; else what that means for the pull.
  /// REQUIRES: mu_ held.
  /// `base`: what the version's deltas start at, if a codec may look at it. REQUIRES: mu_ held.
  std::optional<AheadTask> TakeAhead(Stream& stream, const LeasedState& base, Callbacks& wakes);
  /// One whose payload another thread was making. REQUIRES: mu_ held.
  std::optional<AheadTask> TakeMade(Stream& stream, const LeasedState& base);
  /// The task is this stream's. REQUIRES: mu_ held.
  void Took(Stream& stream, AheadTask& task);
  /// Whether a piece of the chunk is of use to the receiver, and in which form. REQUIRES: mu_ held.
  bool Fits(AheadTask& task) const;
  /// Chooses the codec as for a published version. False: the chunk is better coded once it is
  /// served as any other. REQUIRES: mu_ held.
  bool ChooseAhead(AheadTask& task, const LeasedState& base, IncomingVersion::Step step) const;
  /// The state that codecs other than fast need for what is coming; none where none is used.
  LeasedState LeaseBase() const;
  /// Nullopt: the chunk's bytes must not be read any more, or another thread makes its payload.
  std::optional<net::OutFrame> MakeAhead(const AheadTask& task);
  std::optional<ChunkPayload> CodeAhead(const AheadTask& task) const;
  kernels::History CodedHistory(const AheadTask& task) const;
  /// What became of the task's frame, and the time that it took. REQUIRES: mu_ not held.
  void Made(Stream& stream, const AheadTask& task, bool made, double seconds);
  StatusOr<net::OutFrame> MakeFull(Task& task, const LeasedState& leased);
  net::OutFrame MakeEnd() const;
  kernels::Codec Choose(const ChunkEncoder::Job& job, size_t fast_bytes) const;
  /// How much of the model this pull brings, to see who goes first. REQUIRES: mu_ held.
  PullClass Classify(const Published* end) const;
  /// Whether the pull was granted while the trainer still wrote its version.
  bool unwritten() const {
    return terms_.incoming != nullptr && terms_.incoming->identity().root == 0;
  }
  /// The pull takes no one's turn any more.
  void LeaveAdmission();
  ChunkHistory HistoryOf(uint32_t chunk, const Published& now) const;
  /// The pull is about to pin a state whose half may be written over, so the model must keep what
  /// leads back to the newest one. REQUIRES: mu_ held, and so of NeedNoWayBack.
  void NeedWayBack();
  void NeedNoWayBack();
  bool Suspect(uint32_t chunk) const;
  void Count(size_t form, size_t bytes);
  void CountDecode(kernels::Codec codec, uint32_t chunk, size_t fast_bytes);
  void FrameTaken(Stream& stream);  // REQUIRES: mu_ held
  void EstimateLink();              // REQUIRES: mu_ held
  /// How a pull went whose streams have all sent their End. REQUIRES (here and below): mu_ held.
  struct Course {
    double connect = 0, encode = 0, send = 0;  // seconds
  };
  std::optional<Course> Ended() const;
  void LogEnd(const Status& why) const;
  Callbacks TakeWakes();
  Callbacks Cuts() const;

  const std::shared_ptr<StateSource> model_;
  const PullTerms terms_;
  const ChunkEncoder encoder_;
  const SteadyClock::time_point created_;
  ChunkBytes bytes_;

  mutable Mutex mu_;
  bool started_ = false;
  Status failed_;
  Identity held_;
  std::vector<StateId> held_before_;
  std::vector<wire::Have::Entry> have_;
  std::vector<Stream> streams_;
  uint32_t cursor_ = 0;
  bool ahead_ = false;                              // frames are of terms_.incoming
  size_t taken_ = 0;                                // pieces of it that a stream has looked at
  uint64_t ahead_taken_ = 0;                        // bytes of payloads, against terms_.ahead_bytes
  std::optional<SteadyClock::time_point> settled_;  // when the version was served as any other
  std::vector<uint8_t> sent_ahead_;                 // by chunk
  std::shared_ptr<const Published> first_;  // state that frames are made from before pinned_
  uint64_t first_serial_ = 0;               // of first_, also when that is null again
  std::shared_ptr<const Published> pinned_;
  std::shared_ptr<const void> pin_;
  std::shared_ptr<const Published> end_;
  SteadyClock::time_point last_heard_;
  bool needs_way_back_ = false;
  std::atomic<uint64_t> admitted_{0};  // its name in the Admission; 0: none
  std::atomic<bool> newcomer_{false};
  std::atomic<uint64_t> bytes_sent_{0}, bytes_ahead_{0};
  std::array<std::atomic<uint64_t>, kernels::kForms> form_chunks_{}, form_bytes_{};
  std::atomic<double> decode_seconds_{0};  // of the receiver, all threads, by what it said
  uint64_t refused_bases_ = 0;
};

}  // namespace deltawire
