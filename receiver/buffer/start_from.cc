#include "receiver/buffer/start_from.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/sync.h"
#include "common/layout/model_dir.h"

namespace deltawire::receiver {
namespace {

/// The version of chunks that no sender has sent. Senders compare only their digests.
constexpr uint64_t kNoVersion = 0;
constexpr std::chrono::milliseconds kStopSlice{50};

/// The reads from a directory, shared with the threads that make them: one of them may hang in the
/// kernel until the process ends, so nobody joins them. They touch the buffer only while counted.
struct Reading {
  struct Pair {
    size_t ours = 0, stored = 0;
  };
  Mutex mu;
  CondVar news;
  std::optional<StatusOr<ModelDir>> dir;  // once it is open
  std::vector<Pair> pairs;
  size_t next = 0;
  size_t running = 0;   // threads
  size_t touching = 0;  // threads that use the buffer
  bool abandoned = false;
  StartedFrom result;
};

/// Begins a use of the buffer; false: it may be gone.
bool BeginTouch(Reading& reading) {
  std::lock_guard lock(reading.mu);
  if (reading.abandoned) return false;
  ++reading.touching;
  return true;
}

void EndTouch(Reading& reading) {
  std::lock_guard lock(reading.mu);
  --reading.touching;
  reading.news.notify_all();
}

/// Reads the tensor by chunks. False: the reading was abandoned.
StatusOr<bool> ReadTensor(Reading& reading, Reading::Pair pair, Buffer& buffer,
                          std::vector<std::byte>& scratch) {
  const ModelDir& dir = **reading.dir;
  uint64_t offset = 0;
  const kernels::Backend& backend = kernels::Best();
  if (!BeginTouch(reading)) return false;
  const ChunkTable& chunks = buffer.chunks();
  const uint32_t end = chunks.end_of_tensor(pair.ours);
  for (uint32_t c = chunks.first_of_tensor(pair.ours); c < end; ++c) {
    scratch.resize(chunks[c].bytes);
    EndTouch(reading);
    const Status read = dir.Read(pair.stored, offset, scratch);
    if (!BeginTouch(reading)) return false;
    if (!read.ok()) {
      EndTouch(reading);
      return read;
    }
    const MutableBytes to = buffer.bases().chunk(c);
    std::memcpy(to.data(), scratch.data(), to.size());
    buffer.bases().Set(c, kNoVersion, backend.digest(buffer.key(), to));
    offset += to.size();
  }
  EndTouch(reading);
  return true;
}

void ReadTensors(const std::shared_ptr<Reading>& reading, Buffer& buffer) {
  std::vector<std::byte> scratch;
  std::unique_lock lock(reading->mu);
  while (!reading->abandoned && reading->next < reading->pairs.size()) {
    const Reading::Pair pair = reading->pairs[reading->next++];
    lock.unlock();
    const auto brought = ReadTensor(*reading, pair, buffer, scratch);
    lock.lock();
    if (brought.ok() && !*brought) break;
    reading->result.first_error.Update(brought.status());
    if (!brought.ok()) continue;
    ++reading->result.tensors;
    reading->result.bytes += (*reading->dir)->layout().bytes(pair.stored);
  }
  --reading->running;
  reading->news.notify_all();
}

/// Waits until `done` (under the lock) or `stop`; returns whether it is done.
template <typename Done>
bool Await(Reading& reading, const std::function<bool()>& stop, const Done& done) {
  std::unique_lock lock(reading.mu);
  while (!done()) {
    lock.unlock();
    if (stop()) {
      lock.lock();
      reading.abandoned = true;
      reading.news.wait(lock, [&] { return reading.touching == 0; });
      return false;
    }
    lock.lock();
    reading.news.wait_for(lock, kStopSlice, done);
  }
  return true;
}

}  // namespace

StatusOr<StartedFrom> StartFrom(const std::filesystem::path& from, Buffer& buffer, size_t threads,
                                const std::function<bool()>& stop) {
  const auto reading = std::make_shared<Reading>();
  std::thread([reading, from] {
    auto opened = ModelDir::Open(from, ModelDir::Access::kRead);
    std::lock_guard lock(reading->mu);
    reading->dir = std::move(opened);
    reading->news.notify_all();
  }).detach();
  const Status ending = Errorf(StatusCode::kCancelled, "the receiver is stopping");
  if (!Await(*reading, stop, [&] { return reading->dir.has_value(); })) return ending;
  DW_RETURN_IF_ERROR(reading->dir->status());
  const Layout& stored = (*reading->dir)->layout();
  const Layout& layout = buffer.layout();
  for (size_t t = 0; t < layout.size(); ++t) {
    const auto at = stored.Find(layout.tensor(t).name);
    if (at && stored.tensor(*at) == layout.tensor(t)) {
      reading->pairs.push_back({t, *at});
    } else {
      ++reading->result.others;
    }
  }
  if (reading->pairs.empty()) return reading->result;
  DW_ASSIGN_OR_RETURN(const bool begun, buffer.update().Begin());
  if (!begun) {
    return Errorf(StatusCode::kUnavailable, "another process has the weights in {} open",
                  buffer.directory().string());
  }
  for (uint32_t c = 0; c < buffer.chunks().size(); ++c) buffer.bases().MarkUnknown(c);
  threads = std::max<size_t>(1, threads);
  reading->running = threads;
  for (size_t i = 0; i < threads; ++i) {
    std::thread([reading, &buffer] { ReadTensors(reading, buffer); }).detach();
  }
  if (!Await(*reading, stop, [&] { return reading->running == 0; })) return ending;
  return reading->result;
}

}  // namespace deltawire::receiver
