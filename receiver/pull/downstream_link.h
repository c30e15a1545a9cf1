// The link from a replica to the Downstream that serves its versions to other receivers, if there
// is one. A Replica owns it; its driving thread alone uses it, except for ReportNews.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/relay_news.h"
#include "common/delta/delta.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/downstream.h"
#include "receiver/pull/forwarding.h"

namespace deltawire::receiver {

class DownstreamLink {
 public:
  /// `downstream`, which outlives this, may be null. `payload_limit`: see IncomingVersion.
  DownstreamLink(Downstream* downstream, uint64_t payload_limit);

  /// Whether there is a Downstream.
  bool serves() const { return downstream_ != nullptr; }
  /// Serves a version while it is incoming; null without a Downstream.
  Forwarding* forwarding() const { return forwarding_.get(); }
  /// Serves the committed version, to which `delta` leads from `from`; null: no delta is known.
  void Serve(Buffer& buffer, std::shared_ptr<const Delta> delta = nullptr,
             const Identity& from = {});
  /// Whether the Downstream could not serve the committed version, so that Serve must be repeated.
  bool serve_again() const { return serve_again_; }
  /// Reports chunks that have lost their digest.
  void RecheckChunks(std::span<const uint32_t> chunks) const;
  /// A pull has ended: abandons what came of it and was not committed.
  void EndForwarding(const Status& why);
  void ReportNews(const RelayNews& news) const;
  void DiscardModel();

 private:
  Downstream* const downstream_;
  std::unique_ptr<Forwarding> forwarding_;
  bool serve_again_ = false;
};

}  // namespace deltawire::receiver
