// Waits for the next event of an attachment, as the stream of a receiver does, but in the caller's
// own thread. Owner: none; a free function. Threads: one for each attachment, whose callback for
// news (OnNews) it replaces. Cost: a wait on a condition. Errors: TakeEvent's.
#pragma once

#include <memory>
#include <utility>

#include "common/base/bell.h"
#include "common/serving/attachments.h"

namespace deltawire::testing {

inline StatusOr<SenderEvent> NextEvent(Attachments& attachments, uint64_t token) {
  const auto bell = std::make_shared<Bell>();
  attachments.OnNews(token, [bell] { bell->Ring(); });
  while (true) {
    DW_ASSIGN_OR_RETURN(Attachments::Due due, attachments.TakeEvent(token));
    if (due.event) return *std::move(due.event);
    bell->WaitUntil(due.again);
  }
}

}  // namespace deltawire::testing
