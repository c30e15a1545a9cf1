// Starts a program for each version, without a shell. Exit code 0 means that the version is served.
// The program runs in a process group of its own, which is killed at the time limit. If the kernel
// or a debugger holds it even then, the hook does not wait, and starts no other until it is gone.
// Its output comes through a pipe, so that the log marks it as a program's.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"
#include "receiver/engine/engine_hook.h"
#include "receiver/engine/foreign_text.h"

namespace deltawire::receiver {
namespace {

using Result = EngineAnswer::Result;

using std::chrono::milliseconds;

/// The time for a killed program to end.
constexpr milliseconds kEndLimit{1000};
/// The time between two polls for the end of a program that a debugger holds.
constexpr milliseconds kLookEvery{5};

int PollLimit(SteadyClock::time_point end) {
  const auto left = std::chrono::ceil<milliseconds>(end - SteadyClock::now());
  return static_cast<int>(std::max(left, milliseconds(0)).count());
}

/// Attributes and file actions of posix_spawn, destroyed together.
struct SpawnSettings {
  explicit SpawnSettings(int output) {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    // The daemon blocks signals that the program may need. Its descriptors stay closed to the
    // program.
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
};

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// The output of one run of a program, by lines, in the log.
class Output {
 public:
  explicit Output(std::string name) : name_(std::move(name)) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
    fcntl(read_.get(), F_SETFL, O_NONBLOCK);
  }
  int write_end() const { return write_.get(); }
  int read_end() const { return read_.get(); }  // -1: no process writes any more
  void CloseWriteEnd() { write_ = UniqueFd(); }
  /// Reads the output that has arrived.
  void Read() {
    char bytes[4096];
    while (read_.get() >= 0) {
      const ssize_t n = read(read_.get(), bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) read_ = UniqueFd();
      for (ssize_t i = 0; i < n; ++i) {
        if (bytes[i] == '\n') {
          EndLine();
        } else if (line_.size() < kMostForeign) {
          line_ += bytes[i];
        }
      }
    }
  }
  /// Reads the rest. Returns the last line.
  const std::string& End() {
    Read();
    EndLine();
    if (lines_ > kMostLines) {
      LogInfo("engine {}: the program printed {} lines more", name_, lines_ - kMostLines);
    }
    return last_;
  }

 private:
  static constexpr size_t kMostLines = 100;  // of one run

  void EndLine() {
    if (line_.empty()) return;
    last_ = QuoteForeign(std::exchange(line_, {}));
    if (++lines_ <= kMostLines) LogInfo("engine {}: the program prints: {}", name_, last_);
  }

  const std::string name_;
  UniqueFd read_, write_;
  std::string line_, last_;
  size_t lines_ = 0;
};

class ExecHook : public EngineHook {
 public:
  ExecHook(const EngineOptions& options, EngineModel model)
      : name_(NameOf(options)),
        command_(options.command),
        model_(std::move(model)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~ExecHook() override {
    if (held_ != 0) waitpid(held_, nullptr, WNOHANG);
  }

  EngineAnswer Make(EngineCall, const Identity& to, milliseconds limit) override {
    if (cancelled_) return {Result::kUnsure, kStopping, {}};
    if (held_ != 0 && waitpid(held_, nullptr, WNOHANG) == 0) {
      return {Result::kRefused,
              fmt::format("process {} of an earlier call was killed and has not ended yet, so no "
                          "other is started",
                          held_),
              {}};
    }
    held_ = 0;
    std::vector<std::string> arguments = command_;
    std::vector<std::string> environment = Environment(to);
    Output output(name_);
    if (output.write_end() < 0) {
      return {
          Result::kRefused, std::string(MessageOf(ErrnoError("it cannot be started: pipe"))), {}};
    }
    const SpawnSettings settings(output.write_end());
    pid_t pid = 0;
    const int error =
        posix_spawn(&pid, command_.front().c_str(), &settings.actions, &settings.attributes,
                    Pointers(arguments).data(), Pointers(environment).data());
    if (error != 0) {
      return {
          Result::kRefused, std::string(MessageOf(ErrnoError("it cannot be started", error))), {}};
    }
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    output.CloseWriteEnd();
    const std::string ended = Await(process, output, limit);
    if (!ended.empty()) kill(-pid, SIGKILL);
    const std::optional<End> end = Reap(pid, process);
    const std::string& last = output.End();
    if (!end) {
      held_ = pid;
      if (ended.empty()) kill(-pid, SIGKILL);
      return {
          Result::kUnsure,
          fmt::format("{}, and process {} has not ended {} ms after it was killed: the kernel "
                      "or a debugger holds it (/proc/{}/status, stack)",
                      ended.empty() ? "its end was not told" : ended, pid, kEndLimit.count(), pid),
          {}};
    }
    if (!ended.empty()) return {Result::kUnsure, ended, {}};
    EngineAnswer answer = Judge(*end);
    if (!answer.done() && !last.empty()) answer.why += ": " + last;
    return answer;
  }

  void Cancel() override {
    cancelled_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
  }

 private:
  /// Returns the environment: variables that name the version, and the daemon's own, except those
  /// of the same names. Of two with one name the program would take the first.
  std::vector<std::string> Environment(const Identity& to) const {
    std::vector<std::string> all = {"DELTAWIRE_MODEL=" + model_.name,
                                    "DELTAWIRE_DIRECTORY=" + model_.directory.native(),
                                    fmt::format("DELTAWIRE_VERSION={}", to.id.version),
                                    fmt::format("DELTAWIRE_EPOCH={}", to.id.epoch),
                                    "DELTAWIRE_LINEAGE=" + to.lineage.Hex(),
                                    fmt::format("DELTAWIRE_ROOT={:016x}", to.root)};
    const auto ours = all;
    for (char** e = environ; *e != nullptr; ++e) {
      const std::string_view variable = *e;
      const std::string_view name = variable.substr(0, variable.find('=') + 1);
      const auto same = [&](const std::string& one) { return one.starts_with(name); };
      if (name.empty() || std::none_of(ours.begin(), ours.end(), same)) all.emplace_back(variable);
    }
    return all;
  }

  /// The end of a program: waitpid's status, or why it is not known.
  struct End {
    int status = 0;
    int error = 0;
  };

  static EngineAnswer Judge(const End& end) {
    if (end.error != 0) {
      return {Result::kUnsure,
              std::string(MessageOf(ErrnoError("its exit status is unknown", end.error))),
              {}};
    }
    if (WIFSIGNALED(end.status)) {
      return {Result::kUnsure, fmt::format("it was killed by signal {}", WTERMSIG(end.status)), {}};
    }
    if (WEXITSTATUS(end.status) == 0) return {};
    return {Result::kRefused, fmt::format("it exited with status {}", WEXITSTATUS(end.status)), {}};
  }

  /// Returns the end of a program that has ended, or was killed; nullopt: not within kEndLimit. The
  /// kernel or a debugger may hold it for longer.
  static std::optional<End> Reap(pid_t pid, const UniqueFd& process) {
    const auto limit = SteadyClock::now() + kEndLimit;
    while (true) {
      End end;
      const pid_t reaped = waitpid(pid, &end.status, WNOHANG);
      if (reaped == pid) return end;
      if (reaped < 0 && errno != EINTR) return End{.status = 0, .error = errno};
      if (SteadyClock::now() >= limit) return std::nullopt;
      pollfd wait = {process.get(), POLLIN, 0};
      const bool told = process.get() >= 0 && poll(&wait, 1, PollLimit(limit)) >= 0;
      if (!told || wait.revents != 0) {
        poll(nullptr, 0, static_cast<int>(kLookEvery.count()));
      }
    }
  }

  /// Waits for its end. Returns "" if it has ended, else why it waits no longer.
  std::string Await(const UniqueFd& process, Output& output, milliseconds limit) const {
    if (process.get() < 0) return std::string(MessageOf(ErrnoError("pidfd_open")));
    const auto end = SteadyClock::now() + limit;
    while (true) {
      const int left = PollLimit(end);
      if (left == 0) return fmt::format("it did not end within {} ms", limit.count());
      pollfd wait[] = {
          {process.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}, {output.read_end(), POLLIN, 0}};
      if (poll(wait, std::size(wait), left) < 0 && errno != EINTR) {
        return std::string(MessageOf(ErrnoError("poll")));
      }
      if (wait[1].revents != 0) return kStopping;
      if (wait[0].revents != 0) return "";
      if (wait[2].revents != 0) output.Read();
    }
  }

  const std::string name_;
  const std::vector<std::string> command_;
  const EngineModel model_;
  const UniqueFd wake_;  // readable once it was cancelled
  pid_t held_ = 0;       // a program that did not end when it was killed; 0: none
  std::atomic<bool> cancelled_{false};
};

}  // namespace

std::unique_ptr<EngineHook> MakeExecHook(const EngineOptions& options, const EngineModel& model) {
  return std::make_unique<ExecHook>(options, model);
}

}  // namespace deltawire::receiver
