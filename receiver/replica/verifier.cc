#include "receiver/replica/verifier.h"

#include <mutex>

#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

constexpr uint64_t kSliceBytes = 64 << 20;
constexpr size_t kMaxBadTensors = 100;

}  // namespace

void Verifier::CheckSlice(const BufferHome& home) {
  if (pass_ && !requests_.checking()) pass_.reset();  // its callers have gone
  if (!pass_ && !requests_.BeginCheck()) return;
  if (!pass_ || pass_->buffer_number != home.number()) {
    pass_ =
        Pass{.buffer_number = home.number(), .began = pass_ ? pass_->began : SteadyClock::now()};
  }
  StatusOr<VerifyResult> found =
      Errorf(StatusCode::kFailedPrecondition,
             "model \"{}\": no whole version is committed; sync first", model_);
  if (home.buffer() != nullptr && !home.buffer()->committed().empty()) {
    if (CheckSome(*home.buffer())) return;
    found = Result(*home.buffer());
  }
  const Pass pass = *std::exchange(pass_, std::nullopt);
  if (found.ok() && !pass.corrupt.empty()) {
    LogError("model {}: verify: {} chunks disagree with their digest", model_, pass.corrupt.size());
  }
  if (requests_.EndCheck(found)) corrupt_.Merge({pass.corrupt.begin(), pass.corrupt.end()});
}

bool Verifier::CheckSome(const Buffer& buffer) {
  const ChunkTable& chunks = buffer.chunks();
  const uint32_t first = pass_->next;
  uint32_t& next = pass_->next;
  for (uint64_t bytes = 0; next < chunks.size() && bytes < kSliceBytes; ++next) {
    bytes += chunks[next].bytes;
  }
  Mutex mu;
  pool_.ParallelFor(next - first, [&](size_t i) {
    const auto c = first + static_cast<uint32_t>(i);
    if (IsIntact(buffer, c)) return;
    std::lock_guard guard(mu);
    pass_->corrupt.insert(c);
  });
  return next < chunks.size();
}

VerifyResult Verifier::Result(const Buffer& buffer) const {
  VerifyResult result;
  result.committed = buffer.committed();
  result.chunks = buffer.chunks().size();
  result.bytes = buffer.layout().total_bytes();
  result.seconds = SecondsSince(pass_->began);
  result.bad_chunks = pass_->corrupt.size();
  std::set<uint32_t> tensors;
  for (const uint32_t c : pass_->corrupt) tensors.insert(buffer.chunks()[c].tensor);
  for (const uint32_t t : tensors) {
    if (result.bad_tensors.size() == kMaxBadTensors) break;
    result.bad_tensors.push_back(buffer.layout().tensor(t).name);
  }
  return result;
}

}  // namespace deltawire::receiver
