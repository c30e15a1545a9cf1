#include "receiver/pull/forwarding.h"

#include "common/base/log.h"
#include "common/serving/side_file_set.h"

namespace deltawire::receiver {

void Forwarding::Open(const Buffer& buffer, const Identity& target, wire::Have base, bool whole) {
  base_ = std::move(base);
  whole_ = whole;
  incoming_ = std::make_shared<IncomingVersion>(target, base_, payload_limit_, encoded_);
  incoming_->SetHistory({}, history_);
  waited_for_ = downstream_.ServeIncoming(buffer, incoming_);
}

void Forwarding::NoteGrant(const Buffer& buffer, const Identity& ends_at, uint32_t history) {
  history_ = history;
  if (incoming_ == nullptr || ends_at.empty() || ends_at == incoming_->identity()) return;
  incoming_->Abandon(
      Errorf(StatusCode::kAborted, "{} comes instead; pull again", ToString(ends_at)));
  Open(buffer, ends_at, std::move(base_), whole_);
}

void Forwarding::SetHistory(const std::vector<StateId>& history) {
  if (incoming_ != nullptr) incoming_->SetHistory(history, history_);
}

void Forwarding::Complete(net::PullEnd end, std::vector<SideFile> side_files) {
  std::shared_ptr<const SideFileSet> set;
  if (whole_ || end.side_files_hash != 0) {
    auto made = MakeSideFileSet(std::move(side_files));
    if (whole_ && made.ok()) end.side_files_hash = (*made)->hash;
    if (!made.ok() || (*made)->hash != end.side_files_hash) {
      LogWarn(
          "{} is served to other receivers when it is committed: its side files are not those "
          "that its sender names",
          ToString(end.identity));
      return;
    }
    set = *std::move(made);
  }
  incoming_->Complete(end, std::move(set));
}

void Forwarding::End(const Status& why) {
  if (incoming_ == nullptr) return;
  // By kAborted, whatever went wrong, receivers that wait for this version pull here again.
  incoming_->Abandon(Errorf(StatusCode::kAborted, "{} did not come: {}; pull again",
                            ToString(incoming_->identity()), MessageOf(why)));
  incoming_.reset();
  downstream_.EndIncoming();
}

}  // namespace deltawire::receiver
