// The last offloads of a model that have ended, for ranks and waiters that ask for one after its
// end. OffloadSession owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <set>

#include "common/base/status.h"
#include "common/delta/version_info.h"
#include "sender/agent/offload/offload_request.h"

namespace deltawire::sender {

class EndedOffloads {
 public:
  struct Ended {
    OffloadName name;
    std::set<uint32_t> ranks;  ///< that had begun it, or know of its end
    Status why;                ///< OK: published
    VersionInfo info;          ///< of a published version
  };

  void Add(Ended ended);
  /// Returns the offload of `lease`, or null if it ended long ago or never was.
  const Ended* Find(uint64_t lease) const;
  /// Returns the last offload of `version` that failed, or null.
  const Ended* FindFailed(uint64_t version) const;
  /// Returns the end of an abandoned offload that the request would have joined, once for each
  /// rank, which may then begin the version anew. OK if there is none.
  Status MissedEnd(const OffloadRequest& request);

 private:
  std::deque<Ended> ended_;  // the newest at the back
};

}  // namespace deltawire::sender
