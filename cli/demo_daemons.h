// The demo's sender and receivers: child processes on free loopback ports, ready when returned.
// They end with this object. If a daemon ends or does not answer in time, the error has the tail of
// its log.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "cli/connect.h"
#include "cli/demo_run.h"
#include "common/base/status.h"

namespace deltawire::cli {

class DemoDaemons {
 public:
  ~DemoDaemons() { Stop(); }
  /// Starts the sender alone.
  static StatusOr<std::unique_ptr<DemoDaemons>> Start(const DemoPlan& plan,
                                                      const std::string& model);
  /// Starts the receivers and waits until each is attached and has its memory. Register the model
  /// first, or they would ask for it again and again.
  Status StartReceivers(const DemoPlan& plan);

  const std::string& socket() const { return socket_; }
  const std::string& sender_address() const { return sender_address_; }
  size_t receivers() const { return receivers_.size(); }
  const std::filesystem::path& directory(size_t r) const { return directories_[r]; }
  const std::string& receiver_address(size_t r) const { return receivers_[r].address; }

  /// Waits until receiver `r` commits `version` or a newer one.
  StatusOr<v1::CommitInfo> WaitCommit(size_t r, uint64_t version);

  /// Ends all daemons and waits for them.
  void Stop();
  /// Returns `s`, extended with the daemons that have ended and the last lines of their logs.
  Status WithLogs(const Status& s);

 private:
  explicit DemoDaemons(std::string model) : model_(std::move(model)) {}
  Status StartSender(const DemoPlan& plan);
  Status StartReceiver(const DemoPlan& plan, uint32_t index);

  const std::string model_;
  std::string socket_, sender_address_;
  std::vector<ReservedPort> ports_;
  std::vector<Receiver> receivers_;
  std::vector<std::filesystem::path> directories_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
};

}  // namespace deltawire::cli
