// The stages of a version's way from the trainer to the engines, and the callback that receives
// each stage's duration. It is called from any thread, with no lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace deltawire {

/// The beginning and end of each are in docs/operations.md, "Stages".
enum class Stage : uint8_t {
  // A sender's, once per version.
  kWait,
  kOffload,
  kDiff,
  kPublish,
  // A sender's, once per pull.
  kConnect,
  kEncode,
  kSend,
  kDeliver,
  // A receiver's, once per commit.
  kQueue,
  kAhead,
  kTransfer,
  kStage,
  kReaders,
  kApply,
  kCommit,
  // An engine's, once per update.
  kPrepare,
  kPause,
  kLoad,
};

std::string_view ToString(Stage stage);

/// A stage that has ended. The texts are valid only during the call.
struct StageEnd {
  Stage stage{};
  double seconds = 0;
  std::string_view model;
  std::string_view engine = {}, kind = {};  ///< of an engine's stage only
};

/// May be null.
using StageObserver = std::function<void(const StageEnd&)>;

}  // namespace deltawire
