// The stages of a version's way from the trainer to the engines, and the callback that is told how
// long each one took. Plain values. Threads: an observer is called from any thread, which holds no
// lock then. Cost: a call per stage and version. Errors: none.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace deltawire {

/// docs/operations.md, "Stages", has their beginnings and ends.
enum class Stage : uint8_t {
  // A sender's, once a version.
  kWait,
  kOffload,
  kDiff,
  kPublish,
  // A sender's, once a pull.
  kConnect,
  kEncode,
  kSend,
  kDeliver,
  // A receiver's, once a commit.
  kQueue,
  kAhead,
  kTransfer,
  kStage,
  kReaders,
  kApply,
  kCommit,
  // An engine's, once an update.
  kPrepare,
  kPause,
  kLoad,
};

/// "wait", "offload", ...
std::string_view ToString(Stage stage);

/// A stage that has ended. The texts live as long as the call.
struct StageEnd {
  Stage stage{};
  double seconds = 0;
  std::string_view model;
  std::string_view engine = {}, kind = {};  ///< of an engine's stage alone
};

/// Null: nobody wants to know.
using StageObserver = std::function<void(const StageEnd&)>;

}  // namespace deltawire
