// A one-line notice of what an interrupted command leaves behind, printed before the process ends.
// A command creates it before it starts any thread. Set may be called from any thread.
#pragma once

#include <mutex>
#include <string>

namespace deltawire::cli {

class InterruptNotice {
 public:
  /// Blocks SIGINT and SIGTERM in this thread and in threads that it starts. On either signal,
  /// prints "deltawire COMMAND: interrupted: " and the text, or nothing if the text is empty, and
  /// exits with 130 or 143. Stays in force until the process ends.
  static InterruptNotice& Of(const char* command);

  /// Sets the text. Call it before a step that an interruption would leave half done.
  void Set(std::string text);

 private:
  explicit InterruptNotice(const char* command) : command_(command) {}
  void Wait();

  const char* const command_;
  std::mutex mu_;
  std::string text_;
};

}  // namespace deltawire::cli
