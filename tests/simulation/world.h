// All objects of one history, and the conditions that are checked after every step. Owner:
// RunHistory. Threads: fibers of one. Cost: see history.h. Errors: Scheduler::Fail.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/history.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"
#include "tests/simulation/reader.h"
#include "tests/simulation/receiver_node.h"
#include "tests/simulation/sender_node.h"
#include "tests/simulation/trainer.h"

namespace deltawire::simulation {

class World {
 public:
  World(const HistoryOptions& options, Random random);
  ~World();

  void Run();
  HistoryResult result() const { return result_; }

 private:
  void DrawSenders();
  void DrawReceivers();
  /// Whom receiver `i` follows: the senders, or in a world with relays a receiver before it.
  std::vector<HostNode*> DrawUpstreams(size_t i, ReceiverSettings& s);
  /// In some worlds all receivers are one group, for which every version is a round.
  void DrawGroup(SenderOptions& o);
  /// Called after every step: checks that named files are whole versions.
  void Observe(const char* what);
  void TroubleReceiver(ReceiverNode& receiver);
  /// The file system of some processes is full for a while.
  void TroubleFiles();
  /// Flips a bit of a published version in a sender's memory.
  void Rot(SenderNode& sender);
  void TroubleReader(Reader& reader);
  void AwaitReceivers();
  /// For a failure's report: how far the senders' groups are.
  std::string GroupText() const;
  /// Checks that a trainer that publishes without a pause, and so overtakes every pull, does not
  /// keep receivers from committing.
  void KeepPace();
  void Trouble();
  void Calm();
  void CheckPublished();
  /// No receiver changes a file that has a second name.
  void CheckKept(const ReceiverNode& receiver);
  /// Kills the processes of every node, which releases files and mappings.
  void SwitchOff();

  /// In calm every sender publishes a version within this time, and every receiver has it within
  /// the same time again.
  Time bound() const;

  const HistoryOptions options_;
  Random random_;
  Scheduler& scheduler_;
  Network network_;
  Ledger ledger_;
  std::vector<std::unique_ptr<SenderNode>> senders_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<std::unique_ptr<ReceiverNode>> receivers_;
  std::vector<std::unique_ptr<Reader>> readers_;
  uint64_t observed_ = 0;
  double kills_ = 0, replaces_ = 0, rots_ = 0, receivers_rot_ = 0, reboots_ = 0, full_ = 0;
  size_t receivers_drawn_ = 0;
  bool grouped_ = false;
  bool production_ = false;  // the time-outs are production's defaults
  bool relays_ = false;      // some receivers follow others
  bool calm_ = false;
  bool short_logs_ = false;  // some sender's log holds only a delta or two
  HistoryResult result_;
};

}  // namespace deltawire::simulation
