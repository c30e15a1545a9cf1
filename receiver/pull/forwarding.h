// The forwarding of the version that a pull round brings, while it is still incoming: to the
// Downstream, its name, and each chunk once it is checked. A DownstreamLink owns it. Chunk calls
// come from IoThreads, the others from the replica's driving thread, never while chunks come. It
// takes the memory of an IncomingVersion.
#pragma once

#include <memory>

#include "common/net/pull_transport.h"
#include "common/serving/incoming_version.h"
#include "receiver/buffer/downstream.h"

namespace deltawire::receiver {

class Forwarding {
 public:
  /// `payload_limit`: see IncomingVersion.
  Forwarding(Downstream& downstream, uint64_t payload_limit)
      : downstream_(downstream), payload_limit_(payload_limit) {}
  ~Forwarding() { End(absl::AbortedError("the receiver ends")); }
  Forwarding(const Forwarding&) = delete;

  /// A pull of `target` begins; the receiver holds what `base` names. `whole`: the agents that send
  /// the parts have epochs of their own, and the version goes on under the whole's.
  void Open(const Buffer& buffer, const Identity& target, wire::Have base, bool whole);
  /// The upstream has granted the pull. `ends_at` is where it ends if nothing overtakes it, and
  /// empty where the upstream does not say.
  void NoteGrant(const Buffer& buffer, const Identity& ends_at, uint32_t history);
  /// The pull has named the history that is kept here.
  void SetHistory(const std::vector<StateId>& history);
  /// Whether a receiver was attached that may pull the version, when its pull began.
  bool waited_for() const { return waited_for_; }
  /// Abandons the version, unless it has been committed and served by now. Its pulls end.
  void End(const Status& why);

  // The chunk calls.
  void NoteFrame(const wire::FrameHeader& header) {
    if (incoming_ != nullptr) incoming_->AbandonUnlessOf(ForwardedHeader(header));
  }
  void AddPiece(IncomingVersion::Piece piece) {
    if (incoming_ == nullptr) return;
    piece.header = ForwardedHeader(piece.header);
    incoming_->Add(std::move(piece));
  }

  /// Whether the chunks that came, with those that were there, are all of the version of `end`.
  bool IsComplete(const net::PullEnd& end) const {
    return incoming_ != nullptr && incoming_->IsWhole(end);
  }
  /// All of the version has come. REQUIRES: IsComplete(end). `side_files`: those that `end` names,
  /// or those of its parts if it is made of several agents', since such an end names none.
  void Complete(net::PullEnd end, std::vector<SideFile> side_files);

 private:
  wire::FrameHeader ForwardedHeader(wire::FrameHeader header) const {
    if (whole_) header.epoch = incoming_->identity().id.epoch;
    return header;
  }

  Downstream& downstream_;
  const uint64_t payload_limit_;
  const std::shared_ptr<EncodedCache::Totals> encoded_ = std::make_shared<EncodedCache::Totals>();
  uint32_t history_ = 0;  // deltas that the upstream asked for last
  wire::Have base_;
  bool waited_for_ = false;
  bool whole_ = false;
  std::shared_ptr<IncomingVersion> incoming_;  // null: nothing is forwarded
};

}  // namespace deltawire::receiver
