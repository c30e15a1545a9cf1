// Everything of one history, and what must hold in it after every step.
// Owner: RunHistory. Threads: fibers of one. Errors: Scheduler::Fail, with the seed to the reader.
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
  /// After every step: what is named is whole.
  void Observe(const char* what);
  void TroubleReceiver(ReceiverNode& receiver);
  /// A bit of what a sender has published turns over in its memory.
  void Rot(SenderNode& sender);
  void TroubleReader(Reader& reader);
  void AwaitReceivers();
  /// A trainer that publishes without a pause overtakes every pull, and keeps nobody from
  /// committing.
  void KeepPace();
  void Trouble();
  void Calm();
  void CheckPublished();
  /// The processes of every node are killed: files and mappings go.
  void SwitchOff();

  const HistoryOptions options_;
  Random random_;
  Scheduler& scheduler_;
  Network network_;
  Ledger ledger_;
  std::vector<std::vector<ChunkRange>> owned_;
  std::vector<std::unique_ptr<SenderNode>> senders_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<std::unique_ptr<ReceiverNode>> receivers_;
  std::vector<std::unique_ptr<Reader>> readers_;
  uint64_t observed_ = 0;
  double kills_ = 0, replaces_ = 0, rots_ = 0;
  bool calm_ = false;
  bool short_logs_ = false;  // some sender's holds a delta or two
  HistoryResult result_;
};

}  // namespace deltawire::simulation
