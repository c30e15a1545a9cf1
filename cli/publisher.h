// A trainer for one version, used by `publish` and `demo`: it registers, writes every tensor, and
// waits until the version is published. The pool's threads write the tensors, with one copy of the
// model. After a sender's restart it tries again until the timeout.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cli/output.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "sender/export/client/trainer_client.h"

namespace deltawire::cli {

/// The content to publish. `read(i, to)` fills `to` with tensor i of `layout`; many threads call it
/// at once. `settled`, if set, is called after the last read. An error from it means that the
/// tensors were not all of one state, and the version is not published.
struct Content {
  const Layout* layout = nullptr;
  const std::vector<SideFile>* side_files = nullptr;
  std::function<Status(size_t, MutableBytes)> read;
  std::function<Status()> settled = {};
};

struct PublishTarget {
  std::string socket;
  std::string model;
  std::chrono::milliseconds timeout{0};
  bool replace = false;  ///< discard a registered model of another layout
  bool again = false;    ///< the published version's number may be published again
  /// Called each time the model has been registered. May be null.
  std::function<void()> registered = {};
};

StatusOr<VersionInfo> PublishVersion(const PublishTarget& target, const Content& content,
                                     uint64_t version, ThreadPool& pool, Progress& progress);

/// Makes one offload with a client that has registered already. With `attempt` 0 the sender draws
/// the attempt.
StatusOr<VersionInfo> WriteVersion(TrainerClient& client, const Content& content, uint64_t version,
                                   uint64_t attempt, ThreadPool& pool, Progress& progress,
                                   bool again = false);

/// Returns the bytes that a receiver one version behind fetches: the delta and the whole chunks.
inline uint64_t TransferBytes(const VersionInfo& v) { return v.delta_bytes + v.full_bytes; }

}  // namespace deltawire::cli
