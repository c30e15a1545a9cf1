// A receiver's request to pull, from the receiver to the daemon that serves it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/fields.h"
#include "common/base/identity.h"
#include "common/delta/codec_choice.h"

namespace deltawire {

struct PullRequest {
  std::string model;
  std::string receiver_id;
  std::string site;     ///< label of the receiver's site; empty: none
  Hash128 fingerprint;  ///< of the receiver's layout
  uint32_t streams = 1;
  CoderSpeeds decode;       ///< of the receiver, all streams together; 0: unknown
  uint64_t owned_hash = 0;  ///< of the part that the receiver expects; 0: the whole
  /// The state to end at; epoch 0: the newest. A root, attempt or lineage of 0 is not compared.
  Identity at;
  /// The incoming version to pull; epoch 0: a complete one. If `at` is set as well, it is the same
  /// version, and the pull ends there.
  Identity incoming;
  /// The limit on deltas that may come before `incoming` is published, without whole chunks. 0: no
  /// limit, and whole chunks may come too.
  uint64_t ahead_bytes = 0;
  std::vector<uint32_t> corrupt;  ///< chunks that arrived corrupt; at most wire::kMaxSuspects
};

/// All fields but `decode`.
template <FieldsOf<PullRequest> T>
void ForEachField(T& request, const auto& f) {
  f("model", request.model);
  f("receiver_id", request.receiver_id);
  f("site", request.site);
  f("fingerprint", request.fingerprint);
  f("streams", request.streams);
  f("owned_hash", request.owned_hash);
  f("at", request.at);
  f("incoming", request.incoming);
  f("ahead_bytes", request.ahead_bytes);
  f("suspects", request.corrupt);
}

}  // namespace deltawire
