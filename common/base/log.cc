#include "common/base/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>

namespace deltawire {
namespace {

/// A line of usual length takes some 400 bytes of the queue.
constexpr size_t kQueuedLines = 8192;

/// How long the end of the process waits for its lines to be written.
constexpr std::chrono::seconds kEndWait{1};

using ColorSink = spdlog::sinks::stderr_color_sink_mt;

/// spdlog checks the terminal and TERM, but not NO_COLOR, which turns colors off unless it is
/// empty.
spdlog::color_mode Colors() {
  const char* const refused = std::getenv("NO_COLOR");
  return refused != nullptr && *refused != '\0' ? spdlog::color_mode::never
                                                : spdlog::color_mode::automatic;
}

/// A sink that signals its first flush, by which time all earlier lines are written. Only
/// EndLogging flushes it.
class StderrSink : public ColorSink {
 public:
  StderrSink() : ColorSink(Colors()) {}
  void flush() override {
    ColorSink::flush();
    if (!told_.exchange(true)) flushed_.set_value();
  }
  std::future<void> flushed() { return flushed_.get_future(); }

 private:
  std::atomic<bool> told_{false};
  std::promise<void> flushed_;
};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

Status InitLogging(std::string_view program, std::string_view level) {
  const std::string name(level);
  const auto parsed = spdlog::level::from_str(name);
  if (parsed == spdlog::level::off && name != "off") {
    return Errorf(StatusCode::kInvalidArgument,
                  "log level \"{}\" is unknown: use trace, debug, info, warn, error or off", name);
  }
  spdlog::init_thread_pool(kQueuedLines, 1);
  auto logger = spdlog::async_factory_nonblock::create<StderrSink>(std::string(program));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%-5l%$ %n: %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

int EndLogging(int code) {
  const auto logger = spdlog::default_logger();
  const auto sink = std::dynamic_pointer_cast<StderrSink>(logger->sinks().front());
  if (!sink) return code;  // InitLogging was not called
  const std::future<void> flushed = sink->flushed();
  logger->flush();
  // _exit would hang under the thread sanitizer: it flushes stderr, which the writer holds.
  if (flushed.wait_for(kEndWait) != std::future_status::ready) std::_Exit(code);
  return code;
}

void LogFormatted(LogLevel level, fmt::string_view format, fmt::format_args args) {
  const auto at = ToSpdlog(level);
  if (spdlog::should_log(at)) spdlog::log(at, fmt::vformat(format, args));
}

}  // namespace deltawire
