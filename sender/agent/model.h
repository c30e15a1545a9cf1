// One model on the trainer's node: its published states, the offloads of its ranks, and the
// publisher that makes states from them. The Agent and pulls share it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/stages.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/config/options.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "sender/agent/halves/model_home.h"
#include "sender/agent/halves/model_states.h"
#include "sender/agent/offload/offloads.h"
#include "sender/agent/publisher.h"

namespace deltawire::sender {

class Model final : public ModelStates {
 public:
  /// Makes `dir` and both halves for a new model, and draws its lineage. `owned`: the chunks of the
  /// layout that this agent publishes; only these take memory.
  static StatusOr<std::shared_ptr<Model>> Create(std::string name, std::filesystem::path dir,
                                                 Layout layout, Coverage owned,
                                                 std::vector<SideFile> side_files,
                                                 const SenderOptions& options, ThreadPool& pool,
                                                 StageObserver stages = {});
  /// Opens the model of an earlier process in `dir`. kNotFound when `dir` is not a sender's.
  static StatusOr<std::shared_ptr<Model>> Recover(std::string name, std::filesystem::path dir,
                                                  const SenderOptions& options, ThreadPool& pool,
                                                  StageObserver stages = {});
  ~Model() override;

  Offloads& offloads() { return offloads_; }
  const Offloads& offloads() const { return offloads_; }
  Publisher& publisher() { return publisher_; }
  const Publisher& publisher() const { return publisher_; }

  /// Stops the offloads of a model that loses its name. A running publish is abandoned, too, since
  /// no pull could ever take its version.
  void Drop(const Status& why);

 private:
  static StatusOr<std::shared_ptr<Model>> Make(std::unique_ptr<const ModelHome> home,
                                               const SenderOptions& options, ThreadPool& pool,
                                               StageObserver stages, bool restore);
  Model(std::unique_ptr<const ModelHome> home, const SenderOptions& options, uint64_t first_lease,
        ThreadPool& pool, StageObserver stages);

  Offloads offloads_;
  Publisher publisher_;
};

}  // namespace deltawire::sender
