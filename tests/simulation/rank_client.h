// A trainer rank's client, in place of sender/export/client/trainer_client.cc: the same calls in
// the same order, with what that client keeps between them, and without gRPC. Owner: the rank; it
// dies with the rank's process. Threads: a fiber of the rank's process, and one for each
// attendance. Cost: two mapped halves. Errors: the sender's, and the network's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/offload_calls.h"
#include "tests/simulation/sender_node.h"

namespace deltawire::simulation {

class RankClient {
 public:
  struct Settings {
    std::string name;  ///< the node from which it calls
    std::string job;   ///< the same for all ranks of one start of the job
    uint32_t rank = 0, world = 1;
    uint64_t client = 0;  ///< its random number
    Time timeout{0};      ///< of every call
  };
  RankClient(Network& network, SenderNode& sender, Settings settings);
  ~RankClient();
  RankClient(const RankClient&) = delete;

  struct Attendance {
    Status status;
    bool noted = false, done = false;
    std::shared_ptr<Connection> connection;
  };
  /// A granted half. The mapping lives as long as the client.
  struct Offload {
    uint64_t version = 0, lease = 0, attempt = 0;
    Identity published;  ///< from which the agent carries over what is declared unchanged
    std::byte* data = nullptr;
    std::shared_ptr<Attendance> attendance;
    /// An error once the offload is over, as far as this rank has heard.
    Status Check() const { return attendance->status; }
  };
  /// Shows anew that this process uses the model, as after each registration.
  void ShowUse();
  /// BeginOffload, then maps the half, then attends. `granted` is called between the first two.
  StatusOr<Offload> Begin(uint64_t version, uint64_t attempt, const std::string& fingerprint,
                          const std::function<void(uint64_t lease)>& granted);
  /// A mark that is lost or refused delays a diff, and no more.
  void MarkWritten(const Offload& offload, const sender::WrittenNotice& notice);
  Status Ready(const Offload& offload, const std::vector<uint32_t>& written,
               const std::vector<uint32_t>& unchanged);
  void Abandon(const Offload& offload, const std::string& reason);
  StatusOr<VersionInfo> WaitPublished(uint64_t version);

 private:
  Status AwaitSender(Time deadline);
  StatusOr<std::byte*> Map(const std::filesystem::path& path);
  Status CheckCarried(const Offload& offload, const std::vector<uint32_t>& unchanged);
  Status MapAndAttend(const sender::OffloadGrant& grant, Offload& offload);
  Status Attend(Offload& offload);
  /// Makes a call whose answers come in the background: the first one notes it, the second ends it.
  std::shared_ptr<Attendance> Open(const OffloadCall& call);
  StatusOr<VersionInfo> AskPublished(const OffloadCall& call, Time deadline);
  template <typename R>
  StatusOr<R> Ask(std::function<StatusOr<R>(sender::Model&, const std::function<bool()>&)> ask);

  struct Mapping {
    std::string path;
    ino_t inode = 0;
    std::byte* base = nullptr;
    size_t bytes = 0;
  };

  Network& network_;
  SenderNode& sender_;
  const Settings settings_;
  std::shared_ptr<Attendance> use_;
  std::vector<Mapping> mappings_;  // two at most
  uint64_t last_version_ = 0, last_lease_ = 0, last_attempt_ = 0;
  uint64_t ready_version_ = 0, ready_attempt_ = 0;  // 0: none, or it is known to be lost
};

}  // namespace deltawire::simulation
