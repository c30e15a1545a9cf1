#include "cli/publisher.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "common/base/human.h"

namespace deltawire::cli {
namespace {

using Clock = std::chrono::steady_clock;

bool WorthAnotherTry(const Status& s) {
  return s.code() == StatusCode::kUnavailable || s.code() == StatusCode::kAborted;
}

StatusOr<PublishedVersion> TryOnce(const PublishTarget& target, const Content& content,
                                   uint64_t version, bool again, std::chrono::milliseconds timeout,
                                   ThreadPool& pool, Progress& progress) {
  TrainerClient client(target.socket, target.model, 0, 1, timeout);
  DW_ASSIGN_OR_RETURN(const StateId published, client.Register(*content.layout, *content.side_files,
                                                               {.replace = target.replace}));
  // The try before may have got through although its answer was lost.
  if (again && published.version == version) return client.WaitPublished(version);
  return WriteVersion(client, content, version, pool, progress);
}

}  // namespace

StatusOr<PublishedVersion> WriteVersion(TrainerClient& client, const Content& content,
                                        uint64_t version, ThreadPool& pool, Progress& progress) {
  DW_ASSIGN_OR_RETURN(const auto offload, client.Begin(version));
  const Layout& layout = *content.layout;
  progress.Set(0, layout.total_bytes());
  std::mutex mu;
  Status failure;
  std::atomic<bool> failed{false};
  pool.ParallelFor(layout.size(), [&](size_t i) {
    if (failed) return;
    const Status written = offload->Write(i, content.data(i));
    progress.Add(layout.bytes(i));
    if (written.ok()) return;
    std::lock_guard lock(mu);
    if (!failed.exchange(true)) failure = written;
  });
  DW_RETURN_IF_ERROR(failure);
  DW_RETURN_IF_ERROR(offload->Ready());
  return client.WaitPublished(version);
}

StatusOr<PublishedVersion> PublishVersion(const PublishTarget& target, const Content& content,
                                          uint64_t version, ThreadPool& pool, Progress& progress) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  const auto deadline = Clock::now() + target.timeout;
  for (bool again = false;; again = true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    auto published = TryOnce(target, content, version, again,
                             std::max(left, std::chrono::milliseconds(1)), pool, progress);
    if (published.ok() || !WorthAnotherTry(published.status()) ||
        Clock::now() + kPause >= deadline) {
      return published;
    }
    progress.Stage(fmt::format("publish {} version {}: the sender went away, trying again",
                               target.model, version));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace deltawire::cli
