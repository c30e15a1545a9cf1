// The demo command. This process is only a guard, and a child runs the demo. However the child ends
// (success, an error, a crash, Ctrl-C), the guard stops the daemons and removes the directory.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/demo_memory.h"
#include "cli/demo_run.h"
#include "cli/output.h"
#include "common/base/human.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

struct DemoOptions : Common {
  std::string size = "0.6b";
  std::string dir;
  DemoPlan plan;
};

StatusOr<fs::path> MakeDirectory(const std::string& wanted) {
  std::vector<fs::path> candidates = {"/dev/shm", fs::temp_directory_path()};
  if (!wanted.empty()) candidates = {fs::absolute(wanted)};
  Status failure;
  for (const fs::path& parent : candidates) {
    std::string pattern = (parent / "deltawire-demo-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) return fs::path(pattern);
    failure = ErrnoError("making a directory in " + parent.string());
  }
  return failure;
}

sigset_t GuardedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, s);
  return set;
}

[[noreturn]] void RunShow(const DemoPlan& plan, pid_t guard) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != guard) _exit(1);
  const Status shown = RunDemo(plan);
  if (!shown.ok()) {
    std::fflush(stdout);
    std::fprintf(stderr, "deltawire demo: %s\n", std::string(MessageOf(shown)).c_str());
  }
  std::fflush(nullptr);
  _exit(shown.ok() ? 0 : 1);
}

// Waits for the child to end, and kills it on a signal. The child's daemons die with it and become
// children of this process, which waits for them, too. Then no process writes into the directory.
Exit Guard(pid_t show) {
  const sigset_t signals = GuardedSignals();
  bool interrupted = false;
  int show_status = 0;
  for (bool ended = false; !ended;) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (signal != SIGCHLD) {
      interrupted = true;
      kill(show, SIGKILL);
    }
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != show) continue;
      ended = true;
      show_status = status;
    }
  }
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  if (interrupted) return Exit::kInterrupted;
  if (WIFSIGNALED(show_status)) {
    std::fprintf(stderr, "deltawire demo: killed by signal %d%s\n", WTERMSIG(show_status),
                 WTERMSIG(show_status) == SIGKILL ? " (out of memory?)" : "");
    return Exit::kFailed;
  }
  return WEXITSTATUS(show_status) == 0 ? Exit::kOk : Exit::kFailed;
}

StatusOr<Exit> Demo(DemoOptions& o) {
  auto shape = synth::FindModelShape(o.size);
  if (!shape.ok()) return UsageError("--size: " + std::string(MessageOf(shape.status())));
  o.plan.shape = *shape;
  o.plan.json = o.json;
  DW_ASSIGN_OR_RETURN(o.plan.directory, MakeDirectory(o.dir));
  std::error_code ignored;
  const Status fits = CheckFits(*shape, o.plan.receivers, o.plan.directory.parent_path());
  if (!fits.ok()) {
    fs::remove_all(o.plan.directory, ignored);
    return fits;
  }
  // The child inherits the mask, so only the guard reacts to signals from the terminal.
  const sigset_t signals = GuardedSignals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::fflush(nullptr);
  const pid_t guard = getpid();
  const pid_t show = fork();
  if (show < 0) return ErrnoError("fork");
  if (show == 0) RunShow(o.plan, guard);
  const Exit exit = Guard(show);
  if (!o.plan.keep) fs::remove_all(o.plan.directory, ignored);
  if (exit == Exit::kInterrupted) {
    std::fprintf(stderr, "%sdeltawire demo: interrupted; daemons ended, files %s\n",
                 isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "",
                 o.plan.keep ? ("kept in " + o.plan.directory.string()).c_str() : "removed");
  }
  return exit;
}

}  // namespace

void DeclareDemo(CLI::App& app, Run* run) {
  auto o = std::make_shared<DemoOptions>();
  CLI::App* sub = app.add_subcommand(
      "demo", "A trainer, a sender and receivers on this machine, every version compared");
  sub->add_option("--size", o->size, "Model: tiny, 0.6b or 1.7b")
      ->type_name("SIZE")
      ->capture_default_str();
  AddWhole(*sub, "--steps", o->plan.steps, "Training steps after the first version", 1, 100000)
      ->capture_default_str();
  AddWhole(*sub, "--receivers", o->plan.receivers, "Receivers", 1, 64)->capture_default_str();
  AddWhole(*sub, "--streams", o->plan.streams, "TCP streams per pull", 1, 64)
      ->capture_default_str();
  AddWhole(*sub, "--seed", o->plan.seed, "Seed of the weights")->capture_default_str();
  AddDirectory(*sub, "--dir", o->dir, "Work below this directory; default: /dev/shm");
  sub->add_flag("--keep", o->plan.keep, "Keep the files, but end the daemons");
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Demo(*o); }; });
}

}  // namespace deltawire::cli
