// The agents' side files, kept across pulls so that they travel only when they change. A Puller
// owns it; its driving thread alone uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/layout/model_dir.h"

namespace deltawire::receiver {

class SideFileCache {
 public:
  explicit SideFileCache(size_t agents) : parts_(agents) {}
  void Put(size_t agent, uint64_t hash, std::vector<SideFile> files);
  bool Has(size_t agent, uint64_t hash) const {
    return parts_[agent].known && parts_[agent].hash == hash;
  }
  /// The side files of all agents. Where several have a file of one name, the first agent's counts.
  std::vector<SideFile> Merged() const;

 private:
  struct AgentFiles {
    bool known = false;
    uint64_t hash = 0;
    std::vector<SideFile> files;
  };
  std::vector<AgentFiles> parts_;
};

}  // namespace deltawire::receiver
