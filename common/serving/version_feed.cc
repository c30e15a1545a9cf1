#include "common/serving/version_feed.h"

#include <algorithm>

namespace deltawire {
namespace {

using Topic = ModelWatchers::Topic;

// Published versions by which HasPublished recognizes a part. Receivers remember as many.
constexpr size_t kRemembered = 64;

}  // namespace

VersionFeed::VersionFeed(ModelWatchers& watchers,
                         std::function<void(const std::string& model)> changed)
    : watchers_(watchers), changed_(std::move(changed)) {}

void VersionFeed::Publish(const std::string& model, const VersionInfo& info, bool in_order) {
  {
    MutexLock lock(mu_);
    if (!Record(models_[model], info, in_order)) return;
  }
  changed_(model);
  watchers_.Notify(model, Topic::kVersions);
}

bool VersionFeed::Record(Model& model, const VersionInfo& info, bool in_order) {
  model.ended = absl::OkStatus();
  Change& newest = model.state.newest;
  const bool known = newest.serial != 0;
  if (!in_order && known && IsLater(newest.info.identity, info.identity)) return false;
  // A part with equal bytes may be published again under another attempt, which is news for
  // receivers of several agents.
  if (known && newest.info.identity == info.identity &&
      newest.info.identity.attempt == info.identity.attempt &&
      newest.info.side_files_hash == info.side_files_hash) {
    return false;
  }
  newest = {next_serial_++, info};
  // A version that is published again with other bytes was abandoned, and so were those after it.
  // With equal bytes receivers need not fetch it, and stay at the attempt before.
  std::erase_if(model.recent, [&](const Identity& old) {
    return old.lineage == info.identity.lineage && old.id >= info.identity.id &&
           old.root != info.identity.root;
  });
  model.recent.push_back(info.identity);
  if (model.recent.size() > kRemembered) model.recent.pop_front();
  return true;
}

void VersionFeed::SetRelay(const std::string& model, const RelayNews& relay) {
  MutexLock lock(mu_);
  models_[model].state.relay = relay;
}

void VersionFeed::SetIncoming(const std::string& model, const IncomingNews& incoming) {
  const bool any = !incoming.version.empty();
  {
    MutexLock lock(mu_);
    State& state = models_[model].state;
    state.incoming = incoming;
    state.incoming_serial = any ? next_serial_++ : 0;
  }
  if (any) changed_(model);
}

void VersionFeed::Forget(const std::string& model, const Status& ended) {
  {
    MutexLock lock(mu_);
    models_[model] = {.state = {}, .recent = {}, .ended = ended};
  }
  if (!ended.ok()) changed_(model);
  watchers_.Notify(model, Topic::kVersions);
}

StatusOr<const VersionFeed::Model*> VersionFeed::Find(const std::string& model) const {
  DW_RETURN_IF_ERROR(stopped_);
  const auto it = models_.find(model);
  if (it == models_.end()) return nullptr;
  DW_RETURN_IF_ERROR(it->second.ended);
  return &it->second;
}

StatusOr<VersionFeed::State> VersionFeed::StateOf(const std::string& model) const {
  MutexLock lock(mu_);
  DW_ASSIGN_OR_RETURN(const Model* known, Find(model));
  return known == nullptr ? State{} : known->state;
}

StatusOr<std::optional<VersionFeed::Change>> VersionFeed::ChangeAfter(const std::string& model,
                                                                      uint64_t seen) const {
  MutexLock lock(mu_);
  DW_ASSIGN_OR_RETURN(const Model* known, Find(model));
  if (known == nullptr) return std::optional<Change>();
  const Change& newest = known->state.newest;
  if (newest.serial == seen || newest.info.identity.empty()) return std::optional<Change>();
  return std::optional<Change>(newest);
}

bool VersionFeed::HasPublished(const std::string& model, const Identity& committed) const {
  MutexLock lock(mu_);
  const auto it = models_.find(model);
  if (it == models_.end() || it->second.recent.empty() || committed.attempt == 0) return false;
  const std::deque<Identity>& recent = it->second.recent;
  const Identity& newest = recent.back();
  return std::ranges::any_of(recent, [&](const Identity& published) {
    return published.lineage == newest.lineage && published.id.epoch == newest.id.epoch &&
           published.id.version == committed.id.version && published.attempt == committed.attempt;
  });
}

void VersionFeed::Stop(const Status& why) {
  MutexLock lock(mu_);
  stopped_.Update(why);
}

Status VersionFeed::stopped() const {
  MutexLock lock(mu_);
  return stopped_;
}

}  // namespace deltawire
