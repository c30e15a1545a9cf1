// The number of a published state: versions rise within an epoch, and a rollback starts the next
// epoch. It identifies bytes only within one lineage (identity.h).
#pragma once

#include <spdlog/fmt/fmt.h>

#include <compare>
#include <cstdint>
#include <string>

namespace deltawire {

/// Epoch 0 means "no state"; published states have epoch >= 1.
struct StateId {
  uint64_t epoch = 0;
  uint64_t version = 0;
  // clang-tidy mistakes the code that the compiler generates for this operator for ours.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const StateId&, const StateId&) = default;
};

/// "version 7", or after a rollback "version 7 (epoch 2)"; "nothing" for epoch 0.
inline std::string ToString(StateId id) {
  if (id.epoch == 0) return "nothing";
  if (id.epoch == 1) return fmt::format("version {}", id.version);
  return fmt::format("version {} (epoch {})", id.version, id.epoch);
}

}  // namespace deltawire
