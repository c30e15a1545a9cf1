// The process's log: one spdlog logger to stderr. One line per event names the model and version.
// Thread-safe after InitLogging, whose one thread writes the lines. A caller only queues its line,
// so it may hold a lock. A disabled level costs one compare. log.cc formats the lines, because
// spdlog's own templates would compile fmt into every file that logs (5 s each).
#pragma once

#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace deltawire {

/// `program` is the prefix of each line; `level` is trace, debug, info, warn, error or off. When
/// stderr blocks and the queue is full (8,192 lines), the oldest lines are lost. A process that
/// ends by exit() or from main() waits until stderr has taken all lines. A killed process can lose
/// some.
Status InitLogging(std::string_view program, std::string_view level);

/// Returns `code` at the end of main(), when all lines are written. If stderr blocks for a second,
/// it ends the process with `code`, because exit() would hang.
int EndLogging(int code);

enum class LogLevel { kDebug, kInfo, kWarn, kError };

void LogFormatted(LogLevel level, fmt::string_view format, fmt::format_args args);

template <typename... Args>
void LogLine(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  LogFormatted(level, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogFormatted(LogLevel::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogFormatted(LogLevel::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogWarn(fmt::format_string<Args...> format, Args&&... args) {
  LogFormatted(LogLevel::kWarn, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogFormatted(LogLevel::kError, format, fmt::make_format_args(args...));
}

}  // namespace deltawire
