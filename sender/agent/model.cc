#include "sender/agent/model.h"

#include <sys/random.h>

#include <utility>

#include "common/base/call_end.h"

namespace deltawire::sender {
namespace fs = std::filesystem;

Model::Model(std::unique_ptr<const ModelHome> home, const SenderOptions& options,
             uint64_t first_lease, ThreadPool& pool, StageObserver stages)
    : ModelStates(std::move(home), options.delta_log_bytes, pool),
      offloads_(*this, options, first_lease),
      publisher_(*this, offloads_, options, std::move(stages)) {}

Model::~Model() { offloads_.Stop(Stopping("sender")); }

StatusOr<std::shared_ptr<Model>> Model::Make(std::unique_ptr<const ModelHome> home,
                                             const SenderOptions& options, ThreadPool& pool,
                                             StageObserver stages, bool restore) {
  // Random, since leases of different processes must differ. Half of the range leaves room to count
  // upwards.
  uint64_t lease = 0;
  if (getrandom(&lease, sizeof lease, 0) != sizeof lease) {
    return ErrnoError(fmt::format("getrandom for the leases of model \"{}\"", home->facts()->name));
  }
  std::shared_ptr<Model> model(
      new Model(std::move(home), options, lease >> 1, pool, std::move(stages)));
  if (restore) DW_RETURN_IF_ERROR(model->Restore());
  model->publisher_.Start();
  return model;
}

StatusOr<std::shared_ptr<Model>> Model::Create(std::string name, fs::path dir, Layout layout,
                                               Coverage owned, std::vector<SideFile> side_files,
                                               const SenderOptions& options, ThreadPool& pool,
                                               StageObserver stages) {
  DW_ASSIGN_OR_RETURN(auto home,
                      ModelHome::Create(std::move(name), std::move(dir), std::move(layout),
                                        std::move(owned), std::move(side_files), options, pool));
  return Make(std::move(home), options, pool, std::move(stages), false);
}

StatusOr<std::shared_ptr<Model>> Model::Recover(std::string name, fs::path dir,
                                                const SenderOptions& options, ThreadPool& pool,
                                                StageObserver stages) {
  DW_ASSIGN_OR_RETURN(auto home, ModelHome::Open(std::move(name), std::move(dir), options, pool));
  return Make(std::move(home), options, pool, std::move(stages), true);
}

void Model::Drop(const Status& why) {
  offloads_.Stop(why);
  offloads_.diff().AbortPublish();
}

}  // namespace deltawire::sender
