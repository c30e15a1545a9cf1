// A version that is still arriving at whoever will serve it: its name, and what has come of it, in
// the form in which it came. The receiving end feeds it, and served pulls send on from it. Owner:
// both, by shared_ptr. Threads: any; its lock is a leaf, and watchers are called without it. Cost:
// 28 bytes a chunk, payloads up to a limit, as much where they are coded anew, and copies of whole
// chunks that frames carry. Errors: why it was given up.
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
    kComplete,   ///< all have, and their digests make up the version's root
    kSettled,    ///< it is served as any other version now
    kAbandoned,  ///< it will not be complete here
  };

  /// One chunk, checked.
  struct Piece {
    wire::FrameHeader header;  ///< as it came
    /// A delta's payload as it came; null: the chunk came whole, and `whole` are its bytes where
    /// they lie.
    std::shared_ptr<const std::byte[]> payload;
    Bytes whole;
    /// The same delta in the codec fast; null: that is the codec in which it came.
    std::shared_ptr<const std::byte[]> fast;
    size_t fast_bytes = 0;
    /// For those who code it anew; null: it came whole, or coded otherwise. Set by Add.
    std::shared_ptr<const ChunkDelta> delta = nullptr;
  };

  /// Is notified when there may be more to send.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    /// A chunk has come; or, with `last`, none will any more.
    virtual void OnPiece(bool last) = 0;
  };

  /// `base`: what the receiving end holds, which is where the version's deltas begin.
  /// `payload_limit`: bytes of payloads that are kept; a chunk beyond this limit is served only
  /// when the version is settled. `encoded`: counts the payloads of encoded().
  IncomingVersion(
      const Identity& identity, wire::Have base, uint64_t payload_limit,
      std::shared_ptr<EncodedCache::Totals> encoded = std::make_shared<EncodedCache::Totals>());

  /// Root 0: the version is still being written, and only the end of its pulls says its root.
  const Identity& identity() const { return identity_; }
  IncomingNews news() const { return {identity_, starts_at_}; }

  // For the receiving end.
  /// `history`: the deltas that tight payloads may look back to, newest first, each named by the
  /// state before it. `wanted`: how many of them receivers should keep. REQUIRES: no chunk has
  /// come.
  void SetHistory(std::vector<StateId> history, uint32_t wanted);
  /// A frame is about to change bytes in place. If it belongs to another version, this one is given
  /// up.
  void Begins(const wire::FrameHeader& header);
  /// Adds a chunk that has come. A second piece of a chunk is dropped: it was only repaired here.
  void Add(Piece piece);
  /// Whether the chunks that came, with those that did not change, make up the version that `end`
  /// names.
  bool MakesUp(const net::PullEnd& end) const;
  /// REQUIRES: MakesUp(end).
  void Complete(const net::PullEnd& end, std::shared_ptr<const SideFileSet> side_files);
  /// `state` is this version, as it is served from now on. The bytes in place are read no more;
  /// payloads of deltas can be taken as before. Does nothing to a version that was given up.
  void Settle(std::shared_ptr<const Published> state);
  /// Drops what came, also from its pulls: they go on with the version as it is served. REQUIRES:
  /// Settle.
  void Release();
  /// Pulls of it end with `why`. The bytes in place are read no more when this returns, also where
  /// another thread gives the version up at the same time. A settled version stays settled.
  void Abandon(const Status& why);

  // For served pulls.
  struct Found {
    Step step = Step::kComing;
    std::optional<Piece> piece;              ///< the n-th that came
    std::shared_ptr<const Published> state;  ///< if settled
    Status why;                              ///< if abandoned
  };
  Found PieceAt(size_t n) const;
  Step step() const;
  /// Whether `state` is the one that its deltas start at.
  bool StartsAt(const Identity& state) const { return state == starts_at_; }
  /// A copy of a whole chunk's bytes, shared by the frames that carry it at the same time. Null:
  /// the bytes in place must not be read any more.
  std::shared_ptr<const std::byte[]> CopyOf(const Piece& piece);
  /// The digest that the chunk has in this version, as far as is known; nullopt: the chunk has not
  /// come.
  std::optional<uint64_t> digest(uint32_t chunk) const;
  /// Whether a receiver's `have` has every chunk of the version. REQUIRES: complete.
  bool Has(const std::vector<wire::Have::Entry>& have) const;
  /// Whether a receiver that holds `held`, after the deltas of `history`, has kept those that a
  /// payload of `depth` looks back to.
  bool SharesHistory(const Identity& held, const std::vector<StateId>& history, size_t depth) const;
  net::PullEnd end() const;
  std::shared_ptr<const SideFileSet> side_files() const;
  uint32_t history_wanted() const;
  /// Its pieces as they are coded anew for the way, once for all pulls.
  EncodedCache& encoded() { return encoded_; }
  void Watch(std::weak_ptr<Watcher> watcher);

 private:
  bool live() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return step_ <= Step::kComplete; }
  std::vector<std::shared_ptr<Watcher>> Watchers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Moves on to `step`, and waits for copies that are being made.

  const Identity identity_;
  const Identity starts_at_;  // the state that the deltas start at
  const uint64_t payload_limit_;
  EncodedCache encoded_;
  mutable CheckedMutex mu_;
  CondVar cv_;  // a copy was made
  Step step_ ABSL_GUARDED_BY(mu_) = Step::kComing;
  wire::Have base_ ABSL_GUARDED_BY(mu_);  // the digests as they will be, as far as chunks have come
  std::vector<uint8_t> came_ ABSL_GUARDED_BY(mu_);
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
