#include "cli/publisher.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "common/base/attempt.h"
#include "common/base/human.h"

namespace deltawire::cli {
namespace {

using Clock = std::chrono::steady_clock;

bool WorthAnotherTry(const Status& s) {
  return s.code() == StatusCode::kUnavailable || s.code() == StatusCode::kAborted;
}

StatusOr<VersionInfo> TryOnce(TrainerClient& client, const PublishTarget& target,
                              const Content& content, uint64_t version, uint64_t attempt,
                              const std::vector<uint64_t>& before, ThreadPool& pool,
                              Progress& progress) {
  DW_ASSIGN_OR_RETURN(
      const Identity published,
      client.Register(*content.layout, *content.side_files, {.replace = target.replace}));
  if (target.registered) target.registered();
  // Our earlier try may have succeeded although its answer did not arrive. The attempt
  // distinguishes it from another publisher's version of the same number.
  const bool through = published.id.version == version &&
                       std::find(before.begin(), before.end(), published.attempt) != before.end();
  if (through) return client.WaitPublished(version);
  return WriteVersion(client, content, version, attempt, pool, progress, target.again);
}

}  // namespace

StatusOr<VersionInfo> WriteVersion(TrainerClient& client, const Content& content, uint64_t version,
                                   uint64_t attempt, ThreadPool& pool, Progress& progress,
                                   bool again) {
  DW_ASSIGN_OR_RETURN(const auto offload, client.Begin(version, attempt, again));
  const Layout& layout = *content.layout;
  progress.Set(0, layout.total_bytes());
  std::mutex mu;
  Status failure;
  std::atomic<bool> failed{false};
  pool.ParallelFor(layout.size(), [&](size_t i) {
    if (failed) return;
    Status written = content.read(i, offload->tensor(i));
    const auto index = static_cast<uint32_t>(i);
    if (written.ok()) written = offload->Written({&index, 1});
    progress.Add(layout.bytes(i));
    if (written.ok()) return;
    std::lock_guard lock(mu);
    if (!failed.exchange(true)) failure = written;
  });
  if (failure.ok() && content.settled) failure = content.settled();
  if (!failure.ok()) {
    offload->Abandon(std::string(MessageOf(failure)));
    return failure;
  }
  DW_RETURN_IF_ERROR(offload->Ready());
  return client.WaitPublished(version);
}

StatusOr<VersionInfo> PublishVersion(const PublishTarget& target, const Content& content,
                                     uint64_t version, ThreadPool& pool, Progress& progress) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  const auto deadline = Clock::now() + target.timeout;
  std::vector<uint64_t> before;
  // Use one client for all tries: the sender recognizes it and lets a try replace the previous one.
  TrainerClient client(target.socket, target.model);
  while (true) {
    const uint64_t attempt = DrawAttempt();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    client.SetTimeout(std::max(left, std::chrono::milliseconds(1)));
    auto published = TryOnce(client, target, content, version, attempt, before, pool, progress);
    before.push_back(attempt);
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
