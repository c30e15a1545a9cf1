#include "sender/export/client/written_marks.h"

#include <utility>

#include "absl/cleanup/cleanup.h"

namespace deltawire {
namespace {

// The size of a batch: small enough to overlap with the copying, large enough to make few calls.
constexpr uint64_t kBatchBytes = uint64_t{64} << 20;
// Tensors may be tiny, so a message's entries are limited as well.
constexpr size_t kBatchEntries = size_t{1} << 16;

}  // namespace

WrittenMarks::WrittenMarks(v1::TrainerService::Stub& stub, Writer writer, Prepare prepare)
    : stub_(stub), writer_(std::move(writer)), prepare_(std::move(prepare)) {}

WrittenMarks::~WrittenMarks() {
  std::unique_lock lock(mu_);
  tensors_.clear();
  chunks_.clear();
  payloads_.clear();
  if (call_ != nullptr) call_->context.TryCancel();
  cv_.wait(lock, [this] { return call_ == nullptr; });
}

grpc::Status WrittenMarks::AddTensors(std::span<const uint32_t> tensors, uint64_t bytes) {
  std::lock_guard lock(mu_);
  tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
  bytes_ += bytes;
  SendSome(false);
  return failure_;
}

grpc::Status WrittenMarks::AddChunks(std::span<const WrittenBytes> chunks) {
  std::lock_guard lock(mu_);
  for (const WrittenBytes& c : chunks) {
    chunks_[c.chunk] += c.bytes;
    bytes_ += c.bytes;
  }
  SendSome(false);
  return failure_;
}

grpc::Status WrittenMarks::AddPayloads(std::span<const DiffedChunk> payloads) {
  std::lock_guard lock(mu_);
  payloads_.insert(payloads_.end(), payloads.begin(), payloads.end());
  for (const DiffedChunk& p : payloads) bytes_ += p.bytes;
  SendSome(false);
  return failure_;
}

grpc::Status WrittenMarks::Flush() {
  std::unique_lock lock(mu_);
  flushing_ = true;
  const absl::Cleanup flushed = [this] { flushing_ = false; };  // still under the lock
  SendSome(true);
  cv_.wait(lock, [this] { return call_ == nullptr; });
  return failure_;
}

void WrittenMarks::SendSome(bool all) {
  const size_t entries = tensors_.size() + chunks_.size() + payloads_.size();
  const bool enough = bytes_ >= kBatchBytes || entries >= kBatchEntries || (all && entries > 0);
  if (call_ != nullptr || !enough || !failure_.ok()) return;
  // Set it as the running call only when nothing can fail that would keep it from ending.
  auto call = std::make_unique<Call>();
  v1::MarkWrittenRequest& request = call->request;
  request.set_model(writer_.model);
  request.set_lease(writer_.lease);
  request.set_rank(writer_.rank);
  request.set_sole(writer_.sole);
  request.mutable_tensors()->Assign(tensors_.begin(), tensors_.end());
  for (const auto& [chunk, bytes] : chunks_) {
    request.add_chunks(chunk);
    request.add_chunk_bytes(bytes);
  }
  for (const DiffedChunk& p : payloads_) {
    request.add_payload_chunks(p.chunk);
    request.add_payload_offsets(p.offset);
    request.add_payload_lengths(p.length);
    request.add_payload_bytes(p.bytes);
    request.add_payload_digests(p.digest_after);
    request.add_payload_runs(p.run);
    request.add_payload_steps(p.step);
  }
  prepare_(call->context);
  payloads_.clear();
  tensors_.clear();
  chunks_.clear();
  bytes_ = 0;
  call_ = std::move(call);
  stub_.async()->MarkWritten(&call_->context, &request, &call_->response,
                             [this](const grpc::Status& status) { Done(status); });
}

void WrittenMarks::Done(const grpc::Status& status) {
  std::lock_guard lock(mu_);
  call_.reset();
  if (failure_.ok()) failure_ = status;
  SendSome(flushing_);
  cv_.notify_all();
}

}  // namespace deltawire
