#include "receiver/pull/side_file_cache.h"

#include <map>
#include <string>
#include <utility>

namespace deltawire::receiver {

void SideFileCache::Put(size_t agent, uint64_t hash, std::vector<SideFile> files) {
  parts_[agent] = {true, hash, std::move(files)};
}

std::vector<SideFile> SideFileCache::Merged() const {
  std::map<std::string, const SideFile*> first;
  for (const AgentFiles& part : parts_) {
    for (const SideFile& f : part.files) first.emplace(f.name, &f);
  }
  std::vector<SideFile> all;
  for (const auto& [name, file] : first) all.push_back(*file);
  return all;
}

}  // namespace deltawire::receiver
