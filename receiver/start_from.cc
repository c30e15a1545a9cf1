#include "receiver/start_from.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "common/base/sync.h"
#include "common/layout/model_dir.h"

namespace deltawire::receiver {
namespace {

/// No state of a sender's: senders compare the digests alone.
constexpr uint64_t kNoVersion = 0;

/// The memory of tensor `t`, whose chunks are neighbours.
MutableBytes TensorIn(Buffer& buffer, size_t t) {
  const uint64_t bytes = buffer.layout().bytes(t);
  if (bytes == 0) return {};
  return {buffer.chunk(buffer.chunks().first_of_tensor(t)).data(), bytes};
}

Status Bring(const ModelDir& dir, size_t stored, Buffer& buffer, size_t t) {
  const ChunkTable& chunks = buffer.chunks();
  DW_RETURN_IF_ERROR(dir.Read(stored, TensorIn(buffer, t)));
  const kernels::Backend& backend = kernels::Best();
  for (uint32_t c = chunks.first_of_tensor(t); c < chunks.end_of_tensor(t); ++c) {
    buffer.SetChunk(c, kNoVersion, backend.digest(buffer.key(), buffer.chunk(c)));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<StartedFrom> StartFrom(const std::filesystem::path& from, Buffer& buffer, ThreadPool& pool,
                                const std::function<bool()>& stop) {
  DW_ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(from, ModelDir::Access::kRead));
  struct Pair {
    size_t ours = 0, stored = 0;
  };
  StartedFrom result;
  std::vector<Pair> pairs;
  const Layout& layout = buffer.layout();
  for (size_t t = 0; t < layout.size(); ++t) {
    const auto stored = dir.layout().Find(layout.tensor(t).name);
    if (stored && dir.layout().tensor(*stored) == layout.tensor(t)) {
      pairs.push_back({t, *stored});
    } else {
      ++result.others;
    }
  }
  if (pairs.empty()) return result;
  DW_ASSIGN_OR_RETURN(const bool begun, buffer.BeginUpdate());
  if (!begun) {
    return Errorf(StatusCode::kUnavailable, "{} is open elsewhere", buffer.directory().string());
  }
  for (uint32_t c = 0; c < buffer.chunks().size(); ++c) buffer.MarkUnknown(c);
  Mutex mu;
  pool.ParallelFor(pairs.size(), [&](size_t i) {
    if (stop()) return;
    const Status brought = Bring(dir, pairs[i].stored, buffer, pairs[i].ours);
    std::lock_guard lock(mu);
    result.first_error.Update(brought);
    if (!brought.ok()) return;
    ++result.tensors;
    result.bytes += layout.bytes(pairs[i].ours);
  });
  return result;
}

}  // namespace deltawire::receiver
