#include "receiver/replica/buffer_home.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/shm/delta_file.h"
#include "common/shm/mapped_file.h"
#include "receiver/buffer/buffer_names.h"
#include "receiver/buffer/catch_up.h"
#include "receiver/buffer/recovery.h"
#include "receiver/buffer/start_from.h"

namespace deltawire::receiver {

StatusOr<std::unique_ptr<BufferHome>> BufferHome::Open(const ReplicaOptions& options,
                                                       ThreadPool& pool, CoderRates& rates) {
  DW_RETURN_IF_ERROR(CheckDirectory(options.directory));
  DW_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(options.directory, options.file_group));
  std::unique_ptr<BufferHome> home(new BufferHome(options, pool, rates, std::move(lock)));
  auto buffer = RecoverBuffer(options.directory, home->lock_, home->BufferOptions());
  if (absl::IsResourceExhausted(buffer.status()) || absl::IsInternal(buffer.status())) {
    return Annotate(buffer.status(),
                    fmt::format("model {}: its buffer cannot be taken up", options.model));
  }
  if (!buffer.ok() && !absl::IsNotFound(buffer.status())) {
    LogWarn("model {}: {}; replacing its files and pulling the model whole", options.model,
            MessageOf(buffer.status()));
  }
  if (buffer.ok()) {
    home->buffer_ = std::move(*buffer);
    home->NoteLayout();
    home->NoteWhole();
  }
  return home;
}

BufferHome::BufferHome(const ReplicaOptions& options, ThreadPool& pool, CoderRates& rates,
                       DirLock lock)
    : options_(options),
      pool_(pool),
      rates_(rates),
      lock_(std::make_shared<DirLock>(std::move(lock))),
      delta_files_(options.directory / kDeltaFolder, options.delta_file_bytes) {}

Buffer::Options BufferHome::BufferOptions() const {
  return {.buffers = options_.buffers,
          .huge_pages = options_.huge_pages,
          .pool = &pool_,
          .unsafe_in_place = options_.unsafe_in_place};
}

bool BufferHome::IsInPlace() const {
  std::error_code ignored;
  return lock_->IsInPlace() && std::filesystem::exists(options_.directory / kState, ignored);
}

bool BufferHome::IsStale(const Layout& layout) const {
  if (buffer_ == nullptr) return false;
  if (!IsInPlace()) {
    buffer_->files().Remove();
    return true;
  }
  if (buffer_->layout().fingerprint() == layout.fingerprint()) return false;
  LogWarn("model {}: the sender has another layout now: {}; pulling the model whole",
          options_.model, DescribeChange(buffer_->layout(), layout));
  return true;
}

void BufferHome::Destroy() {
  {
    MutexLock lock(mu_);
    facts_.fingerprint.clear();
    facts_.last_whole = {};
  }
  sink_.reset();
  buffer_.reset();
}

StatusOr<bool> BufferHome::Make(ModelDescription& description, BufferGate& gate,
                                const std::function<bool()>& stop) {
  if (buffer_ == nullptr) {
    if (!lock_->IsInPlace()) {
      DW_ASSIGN_OR_RETURN(DirLock again, DirLock::Acquire(options_.directory, options_.file_group));
      lock_ = std::make_shared<DirLock>(std::move(again));
      WarnIfOnDisk(options_.directory);
    }
    const uint64_t bytes = description.layout.total_bytes();
    DW_ASSIGN_OR_RETURN(buffer_,
                        CreateBuffer(options_.directory, lock_, std::move(description.layout),
                                     description.digest_seed, BufferOptions()));
    LogInfo("model {}: {} allocated in {}", options_.model, HumanBytes(bytes),
            options_.directory.string());
    ++number_;
    NoteLayout();
    if (!options_.start_from.empty()) TakeFirstBytes(stop);
  }
  if (sink_ != nullptr) return false;
  sink_ = std::make_unique<PullSink>(*buffer_, gate, options_.staging_bytes, rates_);
  sink_->applied().SetKeep(buffer_->buffers() == 2 || delta_files_.enabled());
  if (const Status taken = delta_files_.Start(*buffer_); !taken.ok()) {
    LogWarn("model {}: {}", options_.model, MessageOf(taken));
  }
  const std::string why = WhyBuffers();
  {
    MutexLock lock(mu_);
    facts_.buffers = buffer_->buffers();
    facts_.why_buffers = why;
  }
  const bool leases = buffer_->lease_problem().empty() && !options_.unsafe_in_place;
  LogLine(leases ? LogLevel::kInfo : LogLevel::kWarn, "model {}: {} of its weights: {}",
          options_.model, buffer_->buffers() == 2 ? "two buffers" : "one buffer", why);
  return true;
}

void BufferHome::TakeFirstBytes(const std::function<bool()>& stop) {
  const auto start = SteadyClock::now();
  const std::string from = options_.start_from.string();
  LogInfo("model {}: taking its first bytes from {}", options_.model, from);
  const size_t readers = std::min<size_t>(pool_.size(), 8);
  const auto taken = StartFrom(options_.start_from, *buffer_, readers, stop);
  // The sender then sends all chunks, as without this option.
  if (!taken.ok()) {
    LogWarn("model {}: nothing was taken from {}: {}", options_.model, from,
            MessageOf(taken.status()));
    return;
  }
  LogInfo("model {}: {} of {} tensors, {}, taken from {} in {}", options_.model, taken->tensors,
          buffer_->layout().size(), HumanBytes(taken->bytes), from,
          HumanSeconds(SecondsSince(start)));
  if (!taken->first_error.ok()) {
    LogWarn("model {}: {}: {}", options_.model, from, MessageOf(taken->first_error));
  }
  if (taken->others > 0) {
    LogWarn("model {}: {} of the tensors are missing in {}, or have another shape or type there",
            options_.model, taken->others, from);
  }
}

void BufferHome::NoteLayout() {
  MutexLock lock(mu_);
  facts_.model_bytes = buffer_->layout().total_bytes();
  facts_.fingerprint = buffer_->layout().fingerprint().Hex();
}

void BufferHome::NoteWhole() {
  const Identity whole = buffer_->last_whole();
  MutexLock lock(mu_);
  facts_.last_whole = whole;
}

BufferFacts BufferHome::facts() const {
  MutexLock lock(mu_);
  return facts_;
}

std::string BufferHome::WhyBuffers() const {
  std::string why = options_.buffers != 0     ? "as configured"
                    : buffer_->buffers() == 2 ? "memory has room for the model twice"
                                              : "memory has no room for the model twice";
  if (options_.unsafe_in_place) return why + "; changed under whoever reads them";
  if (!buffer_->lease_problem().empty()) {
    why += "; every version in a fresh file: " + buffer_->lease_problem();
  }
  return why;
}

void BufferHome::WriteDelta() {
  const Status left = delta_files_.Put(*buffer_, buffer_->committed(), sink_->applied().All());
  if (!left.ok()) {
    LogWarn("model {}: engines have to read this version whole: {} {}", options_.model,
            MessageOf(left), ToString(TraceOf(buffer_->committed())));
  }
  if (!CanCatchUp(*buffer_)) sink_->applied().Clear();
}

}  // namespace deltawire::receiver
