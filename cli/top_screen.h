// The picture that `deltawire top` draws: the lines of a terminal of a given size, from the
// daemons' answers at two moments. A daemon that did not answer is a line of the picture.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "proto/deltawire/v1/receiver.pb.h"
#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire::cli {

struct SenderAnswer {
  std::string address;
  StatusOr<v1::SenderStatusResponse> status = absl::UnknownError("not asked yet");
  v1::ListReceiversResponse attached;
};

struct ReceiverAnswer {
  std::string address;
  StatusOr<v1::ReceiverStatusResponse> status = absl::UnknownError("not asked yet");
};

/// The daemons' last answers.
struct TopLook {
  std::chrono::steady_clock::time_point at;
  int64_t unix_nanos = 0;
  std::vector<SenderAnswer> senders;
  std::vector<ReceiverAnswer> receivers;
};

enum class TopOrder : uint8_t { kBehind, kSlowest, kName, kTree };
inline constexpr int kTopOrders = 4;

/// The user's choices of what to see.
struct TopView {
  std::string model;  ///< empty: the first one
  TopOrder order = TopOrder::kBehind;
  size_t scroll = 0;  ///< receivers above the first shown one; TopScreen limits it
  bool help = false;
  bool paused = false;
  double interval = 1;
};

enum class TopStyle : uint8_t { kPlain, kTitle, kHeading, kWarning };

struct TopLine {
  std::string text;
  TopStyle style = TopStyle::kPlain;
};

/// Returns the models that the senders and receivers name, each once, sorted by name.
std::vector<std::string> TopModels(const TopLook& look);

/// Returns `rows` lines of at most `columns` columns. Rates are the growth since `before`, and are
/// left out without it.
std::vector<TopLine> TopScreen(const TopLook& now, const TopLook* before, TopView& view,
                               size_t rows, size_t columns);

/// Returns the newest version's time by stage, from the trainer's last write to the commit of the
/// slowest receiver that has it, with the longest stage marked: "publish 15 ms, transfer 70 ms
/// (most), apply+commit 10 ms". Returns "" if no receiver has it.
std::string StagesText(const v1::SenderModelStatus& model,
                       const v1::ListReceiversResponse& attached);

}  // namespace deltawire::cli
