// Both daemons as real child processes, and a trainer that plays its part, for integration tests.
// Owner: the test case. Everything lives below a TempDir on tmpfs and dies with the objects
// (children are killed when the test process ends in any way). Not thread-safe.
// Waits are on conditions with a deadline; a missed deadline fails the test with the daemons' logs.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "common/layout/layout.h"
#include "common/shm/state_file.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/eventually.h"

namespace deltawire::testing {

/// A fresh directory below /dev/shm (or the temporary directory), removed at the end.
class ShmDir {
 public:
  ShmDir();
  ~ShmDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A TCP port of 127.0.0.1 that the kernel gives to nobody else while this process lives; who is
/// told of it listens there with SO_REUSEADDR, as the daemons do.
uint16_t FreePort();

/// Runs `program`, which lies beside this one; throws where that fails.
std::unique_ptr<cli::ChildProcess> Spawn(const std::string& program, std::vector<std::string> args,
                                         const std::filesystem::path& log);

std::string ReadText(const std::filesystem::path& path);
/// Resident memory of a live process that is its own, in bytes: shared memory does not count.
uint64_t AnonymousBytes(pid_t pid);
/// How many threads a live process has.
size_t ThreadsOf(pid_t pid);

/// The file of credentials that channels to daemons show, of those that are made from now on;
/// empty: plaintext, and nothing is shown.
void ShowAs(const std::string& credentials);
/// A channel that reconnects quickly.
std::shared_ptr<grpc::Channel> Channel(const std::string& address);

/// deltawire-sender with a directory, ports and a socket that survive Restart.
class SenderProcess {
 public:
  explicit SenderProcess(const std::filesystem::path& root, std::vector<std::string> extra = {});
  void Start();
  void Restart() {
    child_->Kill();
    Start();
  }
  /// With other further arguments from now on.
  void Restart(std::vector<std::string> extra) {
    extra_ = std::move(extra);
    Restart();
  }
  cli::ChildProcess& child() { return *child_; }
  const std::string& control() const { return control_; }
  uint16_t bulk_port() const { return bulk_port_; }
  std::string socket() const { return (dir_ / "trainer.sock").string(); }
  std::filesystem::path dir() const { return dir_; }
  std::filesystem::path log() const { return log_; }
  v1::SenderService::Stub& orchestrator() { return *orchestrator_; }
  v1::PullService::Stub& pulls() { return *pulls_; }
  v1::SenderModelStatus Status(const std::string& model);
  /// Returns what the version is called in its new epoch.
  StatusOr<v1::VersionInfo> Rollback(const std::string& model, uint64_t version);

 private:
  const std::filesystem::path dir_, log_;
  const std::string control_;
  const uint16_t bulk_port_;
  std::vector<std::string> extra_;
  std::unique_ptr<cli::ChildProcess> child_;
  std::unique_ptr<v1::SenderService::Stub> orchestrator_;
  std::unique_ptr<v1::PullService::Stub> pulls_;
};

class ReceiverProcess {
 public:
  ReceiverProcess(const std::filesystem::path& root, const std::string& id,
                  const std::string& sender_control, const std::string& model,
                  std::vector<std::string> extra = {},
                  const std::filesystem::path& start_from = {});
  void Start();
  void Restart() {
    child_->Kill();
    Start();
  }
  cli::ChildProcess& child() { return *child_; }
  const std::string& control() const { return control_; }
  std::filesystem::path dir() const { return dir_; }  ///< of the model
  std::filesystem::path log() const { return log_; }
  v1::ReceiverService::Stub& stub() { return *stub_; }
  v1::ReceiverModelStatus Status();
  /// Waits until `version` (or a newer one) is committed.
  bool WaitCommitted(uint64_t version,
                     std::chrono::milliseconds deadline = std::chrono::seconds(60));
  /// Pauses the model, or resumes it.
  absl::Status SetPaused(bool paused);
  /// Returns everything that was told until the model had committed.
  StatusOr<std::vector<v1::SyncUpdate>> Sync(bool force_full = false);
  StatusOr<v1::VerifyResponse> Verify(bool repair);

 private:
  const std::string id_, model_, sender_control_;
  const std::filesystem::path dir_, start_from_, log_;
  const std::string control_;
  const std::vector<std::string> extra_;
  std::unique_ptr<cli::ChildProcess> child_;
  std::unique_ptr<v1::ReceiverService::Stub> stub_;
};

/// Plays the trainer: a model of mixed dtypes in plain memory that changes a little per step.
class Trainer {
 public:
  /// About `megabytes` of bf16 plus a few small tensors of other dtypes.
  Trainer(std::string socket, std::string model, size_t megabytes, uint64_t seed);

  /// Changes `fraction` of all elements by small amounts.
  void Step(double fraction = 0.01);
  /// Offloads the present content as `version`; starts over when the sender went away.
  StatusOr<VersionInfo> Publish(uint64_t version,
                                std::chrono::milliseconds deadline = std::chrono::seconds(60));
  /// Once, without retries. `skip` tensors are neither written nor declared.
  StatusOr<VersionInfo> TryPublish(uint64_t version, const std::vector<size_t>& skip = {},
                                   const std::vector<size_t>& unchanged = {});
  const Layout& layout() const { return layout_; }
  std::vector<std::byte>& content() { return content_; }
  TrainerClient& client() { return *client_; }

  /// "" when the directory's tensors are this content, else which differ.
  std::string Compare(const std::filesystem::path& directory) const;

 private:
  const std::string socket_, model_;
  Layout layout_;
  std::vector<std::byte> content_;
  std::mt19937_64 random_;
  std::unique_ptr<TrainerClient> client_;
};

}  // namespace deltawire::testing
