#include "cli/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <fstream>

namespace deltawire::cli {
namespace {

// Runs between fork and exec in a copy of a multi-threaded process. It must not use a lock that
// another thread may have held.
[[noreturn]] void BecomeChild(char* const* argv, int log_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the prctl
  setpgid(0, 0);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execvp(argv[0], argv);
  constexpr char kFailed[] = "cannot be executed\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kFailed, sizeof kFailed - 1);
  _exit(127);
}

int ExitStatus(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace

StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Spawn(const std::string& name,
                                                            std::vector<std::string> command,
                                                            const std::filesystem::path& log) {
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoError("open " + log.string());
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(argv.data(), fd, parent);
  const int err = errno;
  close(fd);
  if (pid < 0) return ErrnoError("fork", err);
  return std::unique_ptr<ChildProcess>(new ChildProcess(name, log, pid));
}

ChildProcess::ChildProcess(std::string name, std::filesystem::path log, pid_t pid)
    : name_(std::move(name)), log_(std::move(log)), pid_(pid) {}

ChildProcess::~ChildProcess() { Kill(); }

Status ChildProcess::CheckRunning() {
  if (Running()) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{} has ended with status {}", name_, exit_status_);
}

int ChildProcess::Wait(std::chrono::milliseconds timeout) {
  if (ended_) return exit_status_;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (fd >= 0) {
    pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
    poll(&p, 1, static_cast<int>(timeout.count()));
    close(fd);
  }
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return -1;
  ended_ = true;
  exit_status_ = ExitStatus(status);
  return exit_status_;
}

void ChildProcess::Signal(int signal) const {
  if (!ended_) kill(pid_, signal);  // after waitpid, another process may have the pid
}

void ChildProcess::Stop(std::chrono::milliseconds grace) {
  Signal(SIGTERM);
  if (Wait(grace) < 0) Kill();
}

void ChildProcess::Kill() {
  if (ended_) return;
  kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  ended_ = true;
  exit_status_ = ExitStatus(status);
}

std::string ChildProcess::LogTail(size_t lines) const {
  std::ifstream in(log_);
  std::deque<std::string> tail;
  for (std::string line; std::getline(in, line);) {
    tail.push_back(line);
    if (tail.size() > lines) tail.pop_front();
  }
  std::string text;
  for (const std::string& line : tail) text += "    " + line + "\n";
  return text;
}

StatusOr<ReservedPort> ReservePort() {
  ReservedPort port{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  if (port.held.get() < 0) return ErrnoError("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int yes = 1;
  // Set SO_REUSEADDR after bind: if two sockets have it before, both can bind one port.
  const bool ok = bind(port.held.get(), generic, size) == 0 &&
                  getsockname(port.held.get(), generic, &size) == 0 &&
                  setsockopt(port.held.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0;
  if (!ok) return ErrnoError("finding a free port on 127.0.0.1");
  port.number = ntohs(address.sin_port);
  return port;
}

std::filesystem::path ProgramDirectory() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path(".") : self.parent_path();
}

}  // namespace deltawire::cli
