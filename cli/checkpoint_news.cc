#include "cli/checkpoint_news.h"

#include "cli/left_out.h"
#include "common/base/status.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::vector<std::string> CheckpointNews::Begin(const std::string& model) const {
  const std::string weights =
      inside_.empty() ? "*.safetensors" : (inside_ / "*.safetensors").string();
  std::vector<std::string> lines = {
      fmt::format("watching {} for new checkpoints of {}: directories with a name like step-120 "
                  "that hold {}; Ctrl-C ends it",
                  parent_.string(), model, weights)};
  if (HoldsWeights(parent_)) {
    lines.push_back(fmt::format(
        "{} itself holds *.safetensors: only the directories in it are published; to publish it, "
        "leave out --watch",
        parent_.string()));
  }
  return lines;
}

std::vector<std::string> CheckpointNews::Of(const CheckpointScanner::Found& found) {
  using Reason = PendingCheckpoint::Reason;
  ++scans_;
  seen_any_ |= !found.complete.empty() || !found.pending.empty();
  std::vector<std::string> lines, without;
  for (const PendingCheckpoint& p : found.pending) {
    if (!said_.emplace(p.name, p.reason).second) continue;
    switch (p.reason) {
      case Reason::kNoWeights:
        without.push_back(inside_.empty() ? p.name : (fs::path(p.name) / inside_).string());
        break;
      case Reason::kBeingWritten:
        lines.push_back(fmt::format("waiting for {}: it is still being written", p.name));
        break;
      case Reason::kShardsMissing:
        lines.push_back(fmt::format("waiting for {}: it has {}", p.name, p.detail));
        break;
      case Reason::kUnreadable:
        lines.push_back(fmt::format("waiting for {}: it is not complete: {}", p.name, p.detail));
        break;
    }
  }
  if (!without.empty()) {
    lines.push_back(fmt::format("waiting for {}: no *.safetensors there yet", NamesText(without)));
  }
  // Whether a checkpoint is complete shows in the second scan at the earliest.
  if (scans_ > 1 && !seen_any_ && !said_none_) {
    said_none_ = true;
    lines.push_back(
        fmt::format("waiting for the first checkpoint: {} has none yet", parent_.string()));
  }
  return lines;
}

std::string CheckpointNews::LeftOut(const std::vector<Checkpoint>& found) {
  std::vector<std::string> names;
  for (size_t i = 0; i + 1 < found.size(); ++i) names.push_back(found[i].path.string());
  return fmt::format(
      "left out: {}: older than {}, and of the checkpoints at the start only the "
      "newest is published",
      NamesText(names), found.back().path.string());
}

}  // namespace deltawire::cli
