#include "sender/agent/announcer.h"

namespace deltawire::sender {

void Announcer::AnnouncePublished(const Model& model) {
  {
    MutexLock lock(mu_);
    if (!models_.Has(model)) return;
    desk_.Announce(model);
  }
  if (!models_.Has(model)) return;
  if (const auto state = model.published(); state != nullptr) {
    groups_.Published(model.name(), state->info.identity);
  }
}

void Announcer::AnnounceIncoming(const Model& model) {
  MutexLock lock(mu_);
  if (!models_.Has(model)) return;
  VersionFeed& feed = desk_.attachments().feed();
  const auto incoming = model.offloads().incoming();
  // First the published version, which must be read after the incoming one. A receiver that only
  // learns that no version is incoming takes that version for abandoned and discards its chunks,
  // although it may just have been published.
  if (const auto state = model.published(); state != nullptr) {
    feed.Publish(model.name(), InfoOf(model, state.get()));
  }
  feed.SetIncoming(model.name(), incoming == nullptr ? IncomingNews{} : incoming->news());
}

void Announcer::Forget(const std::string& name, const Status& ended) {
  groups_.Forget(name);
  MutexLock lock(mu_);
  desk_.attachments().feed().Forget(name, ended);
}

}  // namespace deltawire::sender
