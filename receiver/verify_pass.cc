#include "receiver/verify_pass.h"

#include <mutex>

#include "common/base/human.h"

namespace deltawire::receiver {
namespace {

constexpr uint64_t kSliceBytes = 64 << 20;
constexpr size_t kMaxBadTensors = 100;

}  // namespace

bool VerifyPass::Slice(const Buffer& buffer, uint64_t buffer_number, ThreadPool& pool) {
  if (buffer_number_ != buffer_number) {
    buffer_number_ = buffer_number;
    next_ = 0;
    corrupt_.clear();
  }
  const ChunkTable& chunks = buffer.chunks();
  const uint32_t first = next_;
  for (uint64_t bytes = 0; next_ < chunks.size() && bytes < kSliceBytes; ++next_) {
    bytes += chunks[next_].bytes;
  }
  Mutex mu;
  pool.ParallelFor(next_ - first, [&](size_t i) {
    const auto c = first + static_cast<uint32_t>(i);
    if (buffer.Intact(c)) return;
    std::lock_guard guard(mu);
    corrupt_.insert(c);
  });
  return next_ < chunks.size();
}

VerifyResult VerifyPass::Result(const Buffer& buffer) const {
  VerifyResult result;
  result.committed = buffer.committed();
  result.chunks = buffer.chunks().size();
  result.bytes = buffer.layout().total_bytes();
  result.seconds = SecondsSince(began_);
  result.bad_chunks = corrupt_.size();
  std::set<uint32_t> tensors;
  for (const uint32_t c : corrupt_) tensors.insert(buffer.chunks()[c].tensor);
  for (const uint32_t t : tensors) {
    if (result.bad_tensors.size() == kMaxBadTensors) break;
    result.bad_tensors.push_back(buffer.layout().tensor(t).name);
  }
  return result;
}

}  // namespace deltawire::receiver
