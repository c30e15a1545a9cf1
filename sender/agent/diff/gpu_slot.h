// The GPU that diffs one model, or none. It has the halves' memory pinned, so it is made anew when
// a half gets other memory. A GPU whose result was wrong once is not used again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "sender/agent/diff/gpu_diff.h"

namespace deltawire::sender {

class GpuSlot {
 public:
  /// Begins to pin both halves; null if there is no GPU to use. `where` as of GpuDiff::Create.
  using Make = std::function<std::unique_ptr<GpuDiff>(std::string* where)>;
  explicit GpuSlot(Make make);

  /// Null: the CPU diffs.
  std::shared_ptr<GpuDiff> diff() const;
  /// Whether the GPU diffs the next version.
  bool diffs() const;
  /// Lets go of the halves' memory, of which one half is about to be replaced.
  void Unpin();
  /// Begins to pin the halves' memory after Unpin.
  void PinAnew();
  GpuDiff::Counts counts() const;
  /// The place where diffs run, in GpuDiff::Create's words; empty: no GPU was asked for.
  std::string where() const;

 private:
  /// kNone -> kPinned (made with a usable GPU); kPinned -> kUnpinned (Unpin) -> kPinned or kNone
  /// (PinAnew).
  enum class State : uint8_t { kNone, kPinned, kUnpinned };

  const Make make_;
  mutable CheckedMutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNone;
  std::string where_ ABSL_GUARDED_BY(mu_);              // before diff_, which is made with it
  std::shared_ptr<GpuDiff> diff_ ABSL_GUARDED_BY(mu_);  // of kPinned
  GpuDiff::Counts before_ ABSL_GUARDED_BY(mu_);         // of those that were unpinned
};

}  // namespace deltawire::sender
