// A model's directory: its layout, the chunks that this agent publishes, both halves, their state
// file and the side files. This holds the directory's DirLock. Only the halves and the side files
// change. Errors name the directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/config/options.h"
#include "common/delta/version_info.h"
#include "common/serving/model_facts.h"
#include "common/shm/dir_lock.h"
#include "sender/agent/halves/halves.h"
#include "sender/agent/halves/side_file_store.h"

namespace deltawire::sender {

class ModelHome {
 public:
  // Entries of the directory, beside the halves, their state (halves.h) and the groups' file.
  static constexpr const char* kOwnedName = ".deltawire.owned";
  static constexpr const char* kSideDir = "side";

  /// Makes the directory and both halves for a new model, and draws its lineage. `owned`: the
  /// chunks of the layout that this agent publishes; only these take memory.
  static StatusOr<std::unique_ptr<ModelHome>> Create(std::string name, std::filesystem::path dir,
                                                     Layout layout, Coverage owned,
                                                     std::vector<SideFile> side_files,
                                                     const SenderOptions& options,
                                                     ThreadPool& pool);
  /// Opens the directory of an earlier process. kNotFound when `dir` is no model's.
  static StatusOr<std::unique_ptr<ModelHome>> Open(std::string name, std::filesystem::path dir,
                                                   const SenderOptions& options, ThreadPool& pool);

  const std::shared_ptr<const ModelFacts>& facts() const { return facts_; }
  const std::filesystem::path& directory() const { return dir_; }
  Halves& halves() const { return *halves_; }
  SideFileStore& side_files() const { return *side_files_; }

  static SideFileStore::Use UseOf(uint32_t half) {
    return half == 0 ? SideFileStore::Use::kHalf0 : SideFileStore::Use::kHalf1;
  }
  /// Returns false if the files are not in the directory any more, so that a process that opens
  /// them by name finds none, or others.
  bool IsInPlace() const;

 private:
  ModelHome(std::shared_ptr<const ModelFacts> facts, std::filesystem::path dir, DirLock lock)
      : facts_(std::move(facts)),
        dir_(std::move(dir)),
        lock_(std::move(lock)),
        side_files_(std::make_unique<SideFileStore>(dir_ / kSideDir)) {}
  Halves::Context HalvesContext(const SenderOptions& options, ThreadPool& pool) const;

  const std::shared_ptr<const ModelFacts> facts_;
  const std::filesystem::path dir_;
  DirLock lock_;
  const std::unique_ptr<SideFileStore> side_files_;
  std::unique_ptr<Halves> halves_;
};

}  // namespace deltawire::sender
