// An event for an attached receiver: a new version, a request, or a beat that repeats the newest
// version.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/assignment.h"
#include "common/base/fields.h"
#include "common/base/group_word.h"
#include "common/base/incoming_news.h"
#include "common/base/relay_news.h"
#include "common/delta/version_info.h"

namespace deltawire {

struct SenderEvent {
  uint64_t number = 0;  ///< 1, 2, 3, ... within the attachment
  VersionInfo newest;
  uint64_t sync_request = 0;
  bool force_full = false;
  RelayNews relay;                       ///< from a relay
  GroupWord group;                       ///< for a member of a group
  std::optional<Assignment> assignment;  ///< for a receiver that names a site
  IncomingNews incoming;
};

template <FieldsOf<SenderEvent> T>
void ForEachField(T& event, const auto& f) {
  f("number", event.number);
  f("newest", event.newest);
  f("sync_request", event.sync_request);
  f("force_full", event.force_full);
  f("relay", event.relay);
  f("group", event.group);
  f("assignment", event.assignment);
  f("incoming", event.incoming);
}

}  // namespace deltawire
