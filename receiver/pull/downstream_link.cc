#include "receiver/pull/downstream_link.h"

#include <utility>

namespace deltawire::receiver {

DownstreamLink::DownstreamLink(Downstream* downstream, uint64_t payload_limit)
    : downstream_(downstream) {
  if (downstream_ != nullptr) {
    forwarding_ = std::make_unique<Forwarding>(*downstream_, payload_limit);
  }
}

void DownstreamLink::Serve(Buffer& buffer, std::shared_ptr<const Delta> delta,
                           const Identity& from) {
  if (downstream_ == nullptr) return;
  auto file = buffer.Serve();
  serve_again_ = file != nullptr &&
                 !downstream_->ServeCommitted(buffer, std::move(file), std::move(delta), from);
}

void DownstreamLink::RecheckChunks(std::span<const uint32_t> chunks) const {
  if (downstream_ != nullptr && !chunks.empty()) downstream_->RecheckChunks(chunks);
}

void DownstreamLink::EndForwarding(const Status& why) {
  if (forwarding_ != nullptr) forwarding_->End(why);
}

void DownstreamLink::ReportNews(const RelayNews& news) const {
  if (downstream_ != nullptr) downstream_->ReportNews(news);
}

void DownstreamLink::DiscardModel() {
  if (downstream_ != nullptr) downstream_->DiscardModel();
}

}  // namespace deltawire::receiver
