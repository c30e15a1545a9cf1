// What a replica tells whoever serves its versions to other receivers (receiver/relay), so that the
// replica knows nothing of serving. Owner: the daemon; it outlives the replica. Threads: calls come
// from the replica's driving thread, MakeWay and News also from others. Errors: none; a
// version that cannot be served on is committed all the same.
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
  virtual bool Committed(const Buffer& buffer, std::shared_ptr<ServedFile> file,
                         std::shared_ptr<const Delta> delta, const Identity& from) = 0;
  /// A pull begins whose `version` may be served on while it comes. It takes the place of the one
  /// that came before. The buffer is valid during the call only. Returns whether a receiver is
  /// there that may take the version.
  virtual bool Coming(const Buffer& buffer, std::shared_ptr<IncomingVersion> version) = 0;
  /// The pull that Coming told of has ended.
  virtual void Gone() = 0;
  /// Reports what this daemon, or a relay that it pulls from, is fetching, and the path of relays
  /// that its versions come through.
  virtual void News(const RelayNews& news) = 0;
  /// The buffer is dropped, and one of another layout will follow.
  virtual void Dropped() = 0;
  /// An update is about to change `file`. Returns when nobody reads it any more, or when a reader
  /// cannot be made to stop.
  virtual void MakeWay(ServedFile& file) = 0;
  /// These chunks of the committed state may have lost their digest.
  virtual void Distrusted(std::span<const uint32_t> chunks) = 0;
};

}  // namespace deltawire::receiver
