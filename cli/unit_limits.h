// The memory and descriptors that a daemon's systemd unit needs for its models. They are summed
// part by part from the options and the models' sizes (docs/operations.md, "Sizing").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/options.h"

namespace deltawire::cli {

struct ModelSize {
  std::string name;
  uint64_t bytes = 0;  ///< of all tensors
  uint64_t tensors = 0;
  uint64_t chunks = 0;
  uint64_t side_file_bytes = 0;
};

struct ServedReceivers {
  uint32_t count = 8;
  uint32_t streams = 4;  ///< of each receiver's pull
};

struct UnitLimits {
  struct Part {
    std::string what;
    uint64_t bytes = 0;
  };
  std::vector<Part> parts;  ///< upper bounds, in print order
  uint64_t memory_max = 0;  ///< all parts and the margin, in whole MiB
  uint64_t descriptors = 0;
};

/// The share of the total that is added for memory that no part counts.
inline constexpr double kMargin = 0.1;

UnitLimits LimitsOfSender(const SenderOptions& options, const std::vector<ModelSize>& models,
                          const ServedReceivers& served);
/// `served` counts only if the receiver serves others. With `buffers = auto` it has two.
UnitLimits LimitsOfReceiver(const ReceiverOptions& options, const std::vector<ModelSize>& models,
                            const ServedReceivers& served);

}  // namespace deltawire::cli
