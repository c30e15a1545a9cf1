// Starts a program for each version, without a shell; its exit with 0 means that the version is
// served. It runs in a process group of its own, which is killed at the time limit.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"
#include "receiver/engine/engine_hook.h"

namespace deltawire::receiver {
namespace {

using Result = EngineAnswer::Result;

/// Attributes and file actions of posix_spawn, destroyed together.
struct SpawnSettings {
  SpawnSettings() {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    // The daemon blocks signals that the program may need, and its descriptors are no business of
    // the program's.
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
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

class ExecHook : public EngineHook {
 public:
  ExecHook(const EngineOptions& options, EngineModel model)
      : command_(options.command),
        model_(std::move(model)),
        cancelled_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  EngineAnswer Make(EngineCall, const Identity& to, std::chrono::milliseconds limit) override {
    std::vector<std::string> arguments = command_;
    std::vector<std::string> environment = Environment(to);
    const SpawnSettings settings;
    pid_t pid = 0;
    const int error =
        posix_spawn(&pid, command_.front().c_str(), &settings.actions, &settings.attributes,
                    Pointers(arguments).data(), Pointers(environment).data());
    if (error != 0) {
      return {
          Result::kRefused, std::string(MessageOf(ErrnoError("it cannot be started", error))), {}};
    }
    const std::string ended = Await(pid, limit);
    int status = 0;
    if (!ended.empty()) kill(-pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (!ended.empty()) return {Result::kUnsure, ended, {}};
    if (WIFSIGNALED(status)) {
      return {Result::kUnsure, fmt::format("it was killed by signal {}", WTERMSIG(status)), {}};
    }
    if (WEXITSTATUS(status) == 0) return {};
    return {Result::kRefused, fmt::format("it exited with status {}", WEXITSTATUS(status)), {}};
  }

  void Cancel() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(cancelled_.get(), &one, sizeof one);
  }

 private:
  /// Ours, and what tells the program which version it is about.
  std::vector<std::string> Environment(const Identity& to) const {
    std::vector<std::string> all;
    for (char** e = environ; *e != nullptr; ++e) all.emplace_back(*e);
    all.push_back("DELTAWIRE_MODEL=" + model_.name);
    all.push_back("DELTAWIRE_DIRECTORY=" + model_.directory.native());
    all.push_back(fmt::format("DELTAWIRE_VERSION={}", to.id.version));
    all.push_back(fmt::format("DELTAWIRE_EPOCH={}", to.id.epoch));
    all.push_back("DELTAWIRE_LINEAGE=" + to.lineage.Hex());
    all.push_back(fmt::format("DELTAWIRE_ROOT={:016x}", to.root));
    return all;
  }

  /// Waits for its end. "" when it has ended, else why it was not waited for any longer.
  std::string Await(pid_t pid, std::chrono::milliseconds limit) const {
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (process.get() < 0) return std::string(MessageOf(ErrnoError("pidfd_open")));
    const auto end = SteadyClock::now() + limit;
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock::now());
      if (left.count() <= 0) return fmt::format("it did not end within {} ms", limit.count());
      pollfd wait[2] = {{process.get(), POLLIN, 0}, {cancelled_.get(), POLLIN, 0}};
      if (poll(wait, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) {
        return std::string(MessageOf(ErrnoError("poll")));
      }
      if (wait[1].revents != 0) return "the receiver is stopping";
      if (wait[0].revents != 0) return "";
    }
  }

  const std::vector<std::string> command_;
  const EngineModel model_;
  const UniqueFd cancelled_;
};

}  // namespace

std::unique_ptr<EngineHook> MakeExecHook(const EngineOptions& options, const EngineModel& model) {
  return std::make_unique<ExecHook>(options, model);
}

}  // namespace deltawire::receiver
