// Logging set-up for a process: one spdlog logger to stderr, one line per event.
// Lines name the model and version they are about. Thread-safe after InitLogging.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

#include "common/base/status.h"

namespace deltawire {

/// `program` is put in front of each line; `level` is trace, debug, info, warn, error or off.
Status InitLogging(std::string_view program, std::string_view level);

}  // namespace deltawire
