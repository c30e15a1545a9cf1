// Waits for the next event of an attachment, as the stream of a receiver does, but in the caller's
// own thread. Owner: none; a free function. Threads: one for each attachment, whose callback for
// news (OnNews) it replaces. Cost: a wait on a condition. Errors: TakeEvent's.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "common/base/sync.h"
#include "common/serving/attachments.h"

namespace deltawire::testing {

inline StatusOr<SenderEvent> NextEvent(Attachments& attachments, uint64_t token) {
  struct Bell {
    Mutex mu;
    CondVar cv;
    bool rung = false;
  };
  // News may still come when this has returned.
  const auto bell = std::make_shared<Bell>();
  attachments.OnNews(token, [bell] {
    std::lock_guard lock(bell->mu);
    bell->rung = true;
    bell->cv.notify_all();
  });
  while (true) {
    DW_ASSIGN_OR_RETURN(Attachments::Due due, attachments.TakeEvent(token));
    if (due.event) return *std::move(due.event);
    std::unique_lock lock(bell->mu);
    bell->cv.wait_until(lock, due.again, [&] { return bell->rung; });
    bell->rung = false;
  }
}

}  // namespace deltawire::testing
