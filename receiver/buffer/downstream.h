// The interface by which a replica reports its versions to the relay that serves them to other
// receivers (receiver/relay), so that the replica knows nothing of serving. The daemon owns it, and
// it outlives the replica. Calls come from the replica's driving thread, MakeWay and News also from
// others. A version that cannot be served is committed all the same.
#pragma once

#include <memory>
#include <span>

#include "common/base/relay_news.h"
#include "common/delta/delta.h"
#include "common/serving/incoming_version.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/served_file.h"

namespace deltawire::receiver {

class Downstream {
 public:
  virtual ~Downstream() = default;
  /// `buffer` is at a committed state, whose bytes `file` has. `delta` leads to it from `from`,
  /// which was committed before; null: none is known. The buffer is valid during the call only.
  /// False: the state could not be served, and the caller is to try again soon.
  virtual bool ServeCommitted(const Buffer& buffer, std::shared_ptr<ServedFile> file,
                              std::shared_ptr<const Delta> delta, const Identity& from) = 0;
  /// A pull begins, whose incoming `version` may be served while it comes. It replaces the one
  /// before. The buffer is valid during the call only. Returns whether any receiver is attached
  /// that may pull the version.
  virtual bool ServeIncoming(const Buffer& buffer, std::shared_ptr<IncomingVersion> version) = 0;
  /// The pull that ServeIncoming announced has ended.
  virtual void EndIncoming() = 0;
  /// Reports the version that this daemon, or a relay that it pulls from, is fetching, and the path
  /// of relays that its versions come through.
  virtual void ReportNews(const RelayNews& news) = 0;
  /// The buffer is dropped, and one of another layout will follow.
  virtual void DiscardModel() = 0;
  /// An update is about to change `file`. Returns when all its leases are returned, or when a
  /// reader cannot be made to stop.
  virtual void MakeWay(ServedFile& file) = 0;
  /// These chunks of the committed state may have lost their digest.
  virtual void RecheckChunks(std::span<const uint32_t> chunks) = 0;
};

}  // namespace deltawire::receiver
