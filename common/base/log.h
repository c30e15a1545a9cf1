// The process's log: one spdlog logger to stderr. One line per event names the model and version
// that the event concerns. Thread-safe after InitLogging, whose one thread writes the lines: a
// caller only queues its line, so it may hold a lock. A level that is off costs one compare.
// log.cc formats the lines, because spdlog's own templates would compile fmt into every file that
// logs (5 s each).
#pragma once

#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace deltawire {

/// `program` is put in front of each line; `level` is trace, debug, info, warn, error or off. Where
/// stderr takes nothing and the queue is full (8,192 lines), the oldest lines are lost. A process
/// that ends by exit() or from main() has written all of its lines, and waits for stderr to take
/// them; one that is killed may not have.
Status InitLogging(std::string_view program, std::string_view level);

/// For the end of main(): returns `code` when all lines are written. Where stderr takes nothing for
/// a second, it ends the process with `code`, since exit() would wait for ever.
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
