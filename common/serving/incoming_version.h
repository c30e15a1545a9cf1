// An incoming version at the sender or relay that will serve it: its chunks, in the form in which
// they arrived. The receiving end feeds it, and served pulls forward from it. It takes 28 bytes a
// chunk, payloads up to a limit, as much again for those that are encoded anew, and copies of whole
// chunks in frames. Thread-safe; watchers are called without its lock.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/base/incoming_news.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/delta.h"
#include "common/net/pull_transport.h"
#include "common/serving/encoded_cache.h"
#include "common/serving/version_store.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire {

class IncomingVersion {
 public:
  /// kComing -> kComplete -> kSettled; each but kSettled -> kAbandoned.
  enum class Step : uint8_t {
    kComing,     ///< chunks arrive
    kComplete,   ///< all have arrived, and their digests make the version's root
    kSettled,    ///< it is served like any other version
    kAbandoned,  ///< it will not be complete here
  };

  /// One chunk that was checked.
  struct Piece {
    wire::FrameHeader header;  ///< as it arrived
    /// A delta's payload as it arrived. Null: the chunk arrived whole, and its bytes in place are
    /// `whole`.
    std::shared_ptr<const std::byte[]> payload;
    Bytes whole;
    /// The same delta in the codec fast. Null: it arrived in that codec.
    std::shared_ptr<const std::byte[]> fast;
    size_t fast_bytes = 0;
    /// The input for another codec. Null: the chunk arrived whole, or not in fast. Set by Add.
    std::shared_ptr<const ChunkDelta> delta = nullptr;
  };

  /// An observer that may have more to send.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    /// A chunk has arrived; or, with `last`, no further one will.
    virtual void OnPiece(bool last) = 0;
  };

  /// `base`: the receiving end's chunks, at which the version's deltas begin. `payload_limit`: the
  /// bytes of payloads that are kept; a chunk beyond it is served once the version is settled.
  /// `encoded`: counts the payloads of encoded().
  IncomingVersion(
      const Identity& identity, wire::Have base, uint64_t payload_limit,
      std::shared_ptr<EncodedCache::Totals> encoded = std::make_shared<EncodedCache::Totals>());

  /// Root 0: the trainer is still writing the version; the end of its pulls names its root.
  const Identity& identity() const { return identity_; }
  IncomingNews news() const { return {identity_, starts_at_}; }

  // For the receiving end.
  /// `history`: the deltas that tight payloads may refer to, newest first, each named by the state
  /// before it. `wanted`: how many of them receivers should keep. REQUIRES: no chunk has arrived.
  void SetHistory(std::vector<StateId> history, uint32_t wanted);
  /// Abandons the version if a frame that is about to change bytes in place belongs to another one.
  void AbandonUnlessOf(const wire::FrameHeader& header);
  /// Adds a chunk that has arrived. A second piece of a chunk is ignored: it only repaired the
  /// chunk here.
  void Add(Piece piece);
  /// Whether the chunks that arrived and the unchanged ones are the version that `end` names.
  bool IsWhole(const net::PullEnd& end) const;
  /// REQUIRES: IsWhole(end).
  void Complete(const net::PullEnd& end, std::shared_ptr<const SideFileSet> side_files);
  /// Hands the version's pulls over to `state`, its published form. When this returns, nobody reads
  /// the bytes in place; payloads of deltas stay. Has no effect on an abandoned version.
  void Settle(std::shared_ptr<const Published> state);
  /// Discards the pieces. Pulls go on with the published form. REQUIRES: Settle.
  void Release();
  /// Ends the version's pulls with `why`. When this returns, nobody reads the bytes in place, even
  /// if another thread abandons the version at the same time. A settled version stays settled.
  void Abandon(const Status& why);

  // For served pulls.
  struct Found {
    Step step = Step::kComing;
    std::optional<Piece> piece;              ///< the n-th that arrived
    std::shared_ptr<const Published> state;  ///< if settled
    Status why;                              ///< if abandoned
  };
  Found PieceAt(size_t n) const;
  Step step() const;
  /// Whether the version's deltas start at `state`.
  bool StartsAt(const Identity& state) const { return state == starts_at_; }
  /// Copies a whole chunk's bytes. Frames that carry the chunk at the same time share the copy.
  /// Null: the bytes in place must not be read any more.
  std::shared_ptr<const std::byte[]> CopyOf(const Piece& piece);
  /// The chunk's digest in this version; nullopt: the chunk has not arrived.
  std::optional<uint64_t> digest(uint32_t chunk) const;
  /// Whether a receiver's `have` has every chunk of the version. REQUIRES: complete.
  bool Has(const std::vector<wire::Have::Entry>& have) const;
  /// Whether a receiver that holds `held`, after the deltas of `history`, has kept those that a
  /// payload of `depth` refers to.
  bool SharesHistory(const Identity& held, const std::vector<StateId>& history, size_t depth) const;
  net::PullEnd end() const;
  std::shared_ptr<const SideFileSet> side_files() const;
  uint32_t history_wanted() const;
  /// The pieces that are encoded anew, once for all pulls.
  EncodedCache& encoded() { return encoded_; }
  void Watch(std::weak_ptr<Watcher> watcher);

 private:
  bool live() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return step_ <= Step::kComplete; }
  std::vector<std::shared_ptr<Watcher>> Watchers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Identity identity_;
  const Identity starts_at_;  // the state that the deltas start at
  const uint64_t payload_limit_;
  EncodedCache encoded_;
  mutable CheckedMutex mu_;
  CondVar cv_;  // a copy was made
  Step step_ ABSL_GUARDED_BY(mu_) = Step::kComing;
  wire::Have base_ ABSL_GUARDED_BY(mu_);  // with the digests of the chunks that have arrived
  std::vector<uint8_t> arrived_ ABSL_GUARDED_BY(mu_);
  std::deque<Piece> pieces_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<const std::byte[]>> copies_ ABSL_GUARDED_BY(mu_);  // by chunk
  size_t copying_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t payload_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t history_wanted_ ABSL_GUARDED_BY(mu_) = 0;
  net::PullEnd end_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const SideFileSet> side_files_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Published> state_ ABSL_GUARDED_BY(mu_);
  Status why_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
