// A receiver's machine: a directory and the process that keeps it in step, with the real Replica.
// Owner: the world. Threads: one. Check() holds the directory against the ledger, at any step.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "receiver/replica.h"
#include "tests/simulation/control.h"
#include "tests/simulation/ledger.h"

namespace deltawire::simulation {

struct ReceiverSettings {
  uint32_t buffers = 1;
  uint32_t streams = 2;
  uint64_t staging_bytes = 1 << 20;
  uint64_t history_bytes = 0;
  uint64_t scrub_bytes_per_s = 0;
  UpstreamOptions upstream;
};

class ReceiverNode : public Node {
 public:
  ReceiverNode(Network& network, const Ledger& ledger, std::vector<SenderNode*> senders,
               std::string node_name, std::filesystem::path directory,
               const ReceiverSettings& settings, Random random);

  void Start();
  /// In its own fiber, as by SIGTERM.
  void Stop();
  void SetPaused(bool paused);
  const std::filesystem::path& directory() const { return directory_; }
  const ReceiverSettings& settings() const { return settings_; }
  receiver::Replica* replica() const { return replica_; }

  /// Empty, or what is wrong: a named file must be one offered version, at any time.
  std::string Check();
  /// The bytes under the name; nothing when there is no name.
  std::optional<Content> Named() const;
  uint64_t changes() const { return changes_; }  ///< of the named bytes

 private:
  void Main();
  Bytes Data(Bytes file) const;

  Network& network_;
  const Ledger& ledger_;
  const std::vector<SenderNode*> senders_;
  const std::filesystem::path directory_;
  const ReceiverSettings settings_;
  Random random_;
  uint64_t starts_ = 0;
  receiver::Replica* replica_ = nullptr;
  bool stopping_ = false;
  uint64_t last_hash_ = 0;
  uint64_t changes_ = 0;
};

}  // namespace deltawire::simulation
