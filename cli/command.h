// The parts that all subcommands share: the entry in the table, common options, exit codes. A
// command declares its options on a CLI::App and sets a callable that does the work. If that
// returns an error, Finish prints it in one line and chooses the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "common/base/status.h"

namespace deltawire::cli {

/// The exit codes that `deltawire --help` documents.
enum class Exit : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 3,
  kDiffers = 4,
  kInterrupted = 130,
};

/// A command's work. Main calls it after all options were read.
using Run = std::function<StatusOr<Exit>()>;

/// Declares one subcommand (or a few related ones) on `app`, and sets `*run` when it is chosen.
using Declare = void (*)(CLI::App& app, Run* run);

void DeclarePublish(CLI::App& app, Run* run);    // publish.cc
void DeclareStatus(CLI::App& app, Run* run);     // status.cc
void DeclareTop(CLI::App& app, Run* run);        // top.cc
void DeclareSync(CLI::App& app, Run* run);       // sync.cc
void DeclareWait(CLI::App& app, Run* run);       // wait.cc
void DeclareWatch(CLI::App& app, Run* run);      // watch.cc
void DeclareVerify(CLI::App& app, Run* run);     // verify.cc
void DeclareControl(CLI::App& app, Run* run);    // control.cc: pause, resume, ...
void DeclareInspect(CLI::App& app, Run* run);    // inspect.cc
void DeclareDiff(CLI::App& app, Run* run);       // diff.cc
void DeclarePlan(CLI::App& app, Run* run);       // plan.cc
void DeclareConvert(CLI::App& app, Run* run);    // convert.cc
void DeclareDemo(CLI::App& app, Run* run);       // demo.cc
void DeclareDoctor(CLI::App& app, Run* run);     // doctor.cc
void DeclareLimits(CLI::App& app, Run* run);     // limits.cc
void DeclareBenchLink(CLI::App& app, Run* run);  // bench_link.cc
void DeclareCerts(CLI::App& app, Run* run);      // certs.cc
void DeclareSimulate(CLI::App& app, Run* run);   // simulate.cc
void DeclareVersion(CLI::App& app, Run* run);    // version.cc
void DeclareHelp(CLI::App& app, Run* run);       // help.cc: help, completion

/// Options that several commands share. A command adds those that it uses.
struct Common {
  std::string sender = "127.0.0.1:7700";
  std::string receiver = "127.0.0.1:7710";
  std::string socket = "/dev/shm/deltawire/trainer.sock";
  std::string model;
  double timeout_seconds = 10;
  static constexpr double kLeastTimeout = 0.1;  ///< for commands that must have a limit
  bool json = false;

  /// Adds the option for the credentials file that DialSender and DialReceiver use. AddSender and
  /// AddReceiver call it.
  static void AddCredentials(CLI::App& app);
  void AddSender(CLI::App& app);
  void AddReceiver(CLI::App& app);
  void AddSocket(CLI::App& app);
  void AddModel(CLI::App& app, const std::string& when_empty);
  void AddTimeout(CLI::App& app, double seconds, const std::string& help, double least = 0);
  void AddJson(CLI::App& app);

  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  }
};

/// Returns the command of that name, or a usage error that suggests one.
StatusOr<const CLI::App*> FindCommand(const CLI::App& app, const std::string& name);

int Main(int argc, char** argv);

}  // namespace deltawire::cli
