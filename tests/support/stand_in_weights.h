// A model's weights in an engine's memory, followed by the real engine client. Owner: a stand-in of
// an engine. Threads: one at a time. Cost: the model's bytes. Errors: as the engines' own loaders.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "receiver/engine_client/engine_weights.h"

namespace deltawire::testing {

class StandInWeights {
 public:
  explicit StandInWeights(std::filesystem::path directory) : directory_(std::move(directory)) {}

  void Forget();
  /// Reads all of the directory. `halfway` is called in the middle, with the files open.
  Status Load(const std::function<void()>& halfway);
  /// As a loader that dies in the middle.
  void Tear();
  /// As memory that was given back: what is there when it comes again is anything.
  void Drop();
  Status Attach(const std::string& directory);
  void Detach() { client_.reset(); }
  /// As the plug-ins: what has drifted is told once, and healed by the next update.
  Status Check();
  void Corrupt(size_t byte);

  engine::EngineWeights* client() { return client_.get(); }
  std::vector<std::byte> all() const;
  bool whole() const { return whole_; }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  const std::filesystem::path directory_;
  std::vector<std::vector<std::byte>> memory_;  // by tensor
  bool whole_ = false;
  bool told_ = false;
  std::unique_ptr<engine::EngineWeights> client_;
};

}  // namespace deltawire::testing
