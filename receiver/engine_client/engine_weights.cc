#include "receiver/engine_client/engine_weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "common/layout/root.h"
#include "receiver/engine_client/delta_chain.h"
#include "receiver/engine_client/prepared_update.h"

namespace deltawire::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kState = ".deltawire.state";
constexpr std::chrono::milliseconds kLookEvery{2};

Status Overtaken() { return absl::UnavailableError("another version was committed meanwhile"); }
Status UnknownMemory() {
  return absl::FailedPreconditionError("the version in the engine's memory is not known");
}

}  // namespace

EngineWeights::EngineWeights(fs::path directory, StateReader state, Layout layout,
                             ChunkTable chunks, size_t threads)
    : directory_(std::move(directory)),
      state_(std::move(state)),
      layout_(std::move(layout)),
      chunks_(std::move(chunks)),
      key_(state_.shape().digest_seed),
      backend_(kernels::Best()),
      pool_(threads),
      memory_(layout_, chunks_, key_, pool_) {}

EngineWeights::~EngineWeights() = default;

StatusOr<std::unique_ptr<EngineWeights>> EngineWeights::Open(const fs::path& directory,
                                                             size_t threads) {
  DW_ASSIGN_OR_RETURN(StateReader state, StateReader::Open(directory / kState));
  DW_ASSIGN_OR_RETURN(const HeldBuffer held, HeldBuffer::Open(directory, state));
  DW_ASSIGN_OR_RETURN(Layout layout, held.ReadLayout());
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  if (chunks.size() != state.shape().chunks ||
      !(layout.fingerprint() == state.shape().fingerprint)) {
    return Errorf(StatusCode::kDataLoss, "{}: the weights and the state file are of two models",
                  directory.native());
  }
  return std::unique_ptr<EngineWeights>(new EngineWeights(
      directory, std::move(state), std::move(layout), std::move(chunks), threads));
}

Identity EngineWeights::committed() const {
  // By the file's name, as HeldBuffer does.
  struct stat named;
  if (::stat((directory_ / HeldBuffer::kFileName).c_str(), &named) != 0 || !state_.IsCurrent())
    return {};
  for (uint32_t s = 0; s < state_.shape().slots; ++s) {
    const StateReader::Slot slot = state_.slot(s);
    if (slot.inode == named.st_ino && slot.phase == SlotPhase::kWhole) return slot.identity;
  }
  return {};
}

StatusOr<HeldBuffer> EngineWeights::OpenBuffer() const {
  DW_ASSIGN_OR_RETURN(HeldBuffer buffer, HeldBuffer::Open(directory_, state_));
  if (buffer.data().size() >= layout_.total_bytes()) return buffer;
  return Errorf(StatusCode::kDataLoss, "{}: the weights are cut short", directory_.native());
}

Status EngineWeights::RefuseOtherBuffer() const {
  if (state_.IsCurrent()) return absl::OkStatus();
  std::error_code ignored;
  if (!fs::exists(directory_ / kState, ignored)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{}: the receiver's files are gone; open it again when they are back",
                  directory_.native());
  }
  return Errorf(StatusCode::kFailedPrecondition,
                "{}: the receiver has made its buffer anew, for another model or layout; open it "
                "again",
                directory_.native());
}

StatusOr<Identity> EngineWeights::WaitForOther(const Identity& known,
                                               std::chrono::milliseconds limit,
                                               const std::function<bool()>& gone) const {
  const auto end = SteadyClock::now() + limit;
  while (true) {
    DW_RETURN_IF_ERROR(RefuseOtherBuffer());
    const Identity now = committed();
    if (!now.empty() && !(now == known)) return now;
    if (gone && gone()) return absl::CancelledError("the caller has gone");
    if (SteadyClock::now() >= end) {
      return Errorf(StatusCode::kDeadlineExceeded, "{}: nothing newer than {} was committed",
                    directory_.native(), ToString(known));
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

Status EngineWeights::Bind(const Binding& binding) {
  DW_ASSIGN_OR_RETURN(LayoutProgram program, BoundMemory::ProgramOf(layout_, binding));
  // Nothing of the earlier binding is left, even if this one fails.
  prepared_.reset();
  applied_.reset();
  drifted_.clear();
  held_ = {};
  return memory_.Bind(binding, std::move(program));
}

StatusOr<Comparison> EngineWeights::Adopt() {
  if (!memory_.bound()) return absl::FailedPreconditionError("no memory is bound");
  DW_ASSIGN_OR_RETURN(const HeldBuffer held, OpenBuffer());
  std::atomic<uint64_t> bytes{0};
  std::vector<uint8_t> bad(chunks_.size(), 0);
  memory_.ForEachIndex(chunks_.size(), [&](size_t i) {
    const auto chunk = static_cast<uint32_t>(i);
    const auto found = memory_.Compare(chunk, held.data().data() + chunks_[chunk].offset);
    bad[i] = found.differs ? 1 : 0;
    bytes += found.bytes;
  });
  DW_RETURN_IF_ERROR(memory_.TakeStatus());
  if (!held.StillHolds()) return Overtaken();
  Comparison found{.identity = held.identity(), .bytes = bytes, .different = {}, .shares = {}};
  std::set<uint32_t> tensors;
  for (uint32_t i = 0; i < bad.size(); ++i) {
    if (bad[i] != 0) tensors.insert(chunks_[i].tensor);
  }
  for (const uint32_t t : tensors) found.different.push_back(layout_.tensor(t).name);
  if (!found.different.empty()) return found;
  digests_.resize(chunks_.size());
  for (uint32_t i = 0; i < chunks_.size(); ++i) digests_[i] = held.digest(i);
  held_ = held.identity();
  drifted_.clear();
  prepared_.reset();
  applied_.reset();
  return found;
}

Status EngineWeights::Write(PreparedUpdate& update, BoundMemory::Way way) {
  const Status written = memory_.Write(update, way);
  if (written.ok()) return written;
  held_ = {};
  prepared_.reset();
  applied_.reset();
  return Annotate(written, "the device has failed within an update; start the engine anew");
}

void EngineWeights::Discard() { prepared_.reset(); }

Status EngineWeights::Apply() {
  if (prepared_ == nullptr) return absl::FailedPreconditionError("no update is prepared");
  PreparedUpdate& p = *prepared_;
  DW_RETURN_IF_ERROR(Write(p, BoundMemory::Way::kForwards));
  applied_ = std::move(prepared_);
  digests_.swap(p.digests_after);
  for (const uint32_t chunk : p.healed) drifted_.erase(chunk);
  held_ = p.info.to;
  return absl::OkStatus();
}

Status EngineWeights::Rollback() {
  if (applied_ == nullptr) return absl::FailedPreconditionError("no update was applied");
  PreparedUpdate& p = *applied_;
  DW_RETURN_IF_ERROR(Write(p, BoundMemory::Way::kBackwards));
  digests_.swap(p.digests_before);
  // The old bytes are back, so the chunks that the update had healed have drifted again.
  drifted_.insert(p.healed.begin(), p.healed.end());
  held_ = p.info.from;
  applied_.reset();
  return absl::OkStatus();
}

StatusOr<uint64_t> EngineWeights::DigestOf(uint32_t chunk) const {
  if (held_.empty()) return UnknownMemory();
  if (chunk < digests_.size()) return digests_[chunk];
  return Errorf(StatusCode::kInvalidArgument, "chunk {} of {}", chunk, digests_.size());
}

StatusOr<Comparison> EngineWeights::Check(uint32_t first, uint32_t count) {
  if (held_.empty()) return UnknownMemory();
  if (first > chunks_.size() || count > chunks_.size() - first) {
    return Errorf(StatusCode::kInvalidArgument, "{} chunks from {} on, of {}", count, first,
                  chunks_.size());
  }
  std::vector<BoundMemory::Gathered> gathered(count);
  memory_.ForEachIndex(
      count, [&](size_t i) { gathered[i] = memory_.Gather(first + static_cast<uint32_t>(i)); });
  DW_RETURN_IF_ERROR(memory_.TakeStatus());
  Comparison found{.identity = held_, .bytes = 0, .different = {}, .shares = {}};
  std::set<uint32_t> tensors;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t chunk = first + i;
    const BoundMemory::Gathered& g = gathered[i];
    const Chunk& c = chunks_[chunk];
    found.bytes += g.bytes;
    const bool whole = g.bytes == c.bytes;
    if (g.differs || (whole && g.bytes > 0 && g.digest != digests_[chunk])) {
      drifted_.insert(chunk);
      tensors.insert(c.tensor);
    }
    if (g.bytes > 0 && !whole) found.shares.push_back({chunk, g.bytes, g.digest, g.places});
  }
  for (const uint32_t t : tensors) found.different.push_back(layout_.tensor(t).name);
  return found;
}

StatusOr<Comparison> EngineWeights::Judge(std::span<const Share> of_all_ranks) {
  if (held_.empty()) return UnknownMemory();
  std::map<uint32_t, Share> sums;
  for (const Share& share : of_all_ranks) {
    if (share.chunk >= chunks_.size()) {
      return Errorf(StatusCode::kInvalidArgument, "a share of chunk {} of {}", share.chunk,
                    chunks_.size());
    }
    Share& sum = sums[share.chunk];
    sum.bytes += share.bytes;
    sum.digest += share.digest;
    sum.places += share.places;
  }
  Comparison found{.identity = held_, .bytes = 0, .different = {}, .shares = {}};
  std::set<uint32_t> tensors;
  std::map<uint64_t, uint64_t> all_ones;  // by bytes: most chunks have the same number
  for (const auto& [chunk, sum] : sums) {
    const Chunk& c = chunks_[chunk];
    const uint64_t times = sum.bytes / c.bytes;
    auto ones = all_ones.find(c.bytes);
    if (ones == all_ones.end()) {
      const std::vector<std::byte> each(c.bytes, std::byte{1});
      ones = all_ones.emplace(c.bytes, backend_.digest(key_, each)).first;
    }
    if (sum.bytes != times * c.bytes || sum.places != times * ones->second) continue;
    found.bytes += c.bytes;
    if (sum.digest == times * digests_[chunk]) continue;
    drifted_.insert(chunk);
    tensors.insert(c.tensor);
  }
  for (const uint32_t t : tensors) found.different.push_back(layout_.tensor(t).name);
  return found;
}

Status EngineWeights::CheckChain(PreparedUpdate& p) const {
  std::map<uint32_t, std::vector<Bytes>> deltas;
  // A delta that is added to bytes that have drifted would keep the drift, so these come whole.
  std::set<uint32_t> whole = drifted_;
  p.digests_after = digests_;
  for (const DeltaFile& file : p.files) {
    for (const DeltaFileEntry& e : file.entries()) {
      uint64_t& digest = p.digests_after[e.chunk];
      if (digest != e.digest_before) {
        return Errorf(StatusCode::kDataLoss, "a delta of chunk {} is for other bytes", e.chunk);
      }
      digest = e.digest_after;
      if (e.whole() || whole.contains(e.chunk)) {
        whole.insert(e.chunk);
        deltas.erase(e.chunk);
        continue;
      }
      deltas[e.chunk].push_back(e.payload);
    }
  }
  for (auto& [chunk, payloads] : deltas) {
    p.delta_chunks.push_back(chunk);
    p.deltas.push_back(std::move(payloads));
  }
  p.from_buffer.assign(whole.begin(), whole.end());

  std::atomic<uint64_t> changes{0}, bytes{0};
  std::atomic<uint32_t> bad{~0u};
  pool_.ParallelFor(p.delta_chunks.size(), [&](size_t i) {
    const Chunk& c = chunks_[p.delta_chunks[i]];
    for (const Bytes payload : p.deltas[i]) {
      uint64_t changed = 0;
      if (backend_.validate(payload, c.bytes, c.width, &changed) != kernels::DecodeStatus::kOk) {
        bad = p.delta_chunks[i];
      }
      changes += changed;
      bytes += payload.size();
    }
  });
  if (bad != ~0u) {
    return Errorf(StatusCode::kDataLoss, "the delta of chunk {} is malformed", bad.load());
  }
  p.info.deltas = p.files.size();
  p.info.changes = changes;
  p.info.payload_bytes = bytes;
  p.info.chunks_by_delta = p.delta_chunks.size();
  return absl::OkStatus();
}

void EngineWeights::MakeRoom(PreparedUpdate& p) const {
  std::vector<size_t> bytes(p.from_buffer.size(), 0);
  pool_.ParallelFor(bytes.size(), [&](size_t i) { bytes[i] = memory_.BytesOf(p.from_buffer[i]); });
  for (const size_t n : bytes) p.other.push_back(std::make_unique_for_overwrite<std::byte[]>(n));
  if (p.delta_chunks.empty()) return;
  size_t boxes = 0;
  for (size_t t = 0; t < layout_.size(); ++t) boxes = std::max(boxes, program().boxes(t).size());
  p.scratches = std::make_unique<Scratches>(pool_.size(), boxes);
}

Status EngineWeights::TakeFromBuffer(PreparedUpdate& p) const {
  if (p.from_buffer.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const HeldBuffer buffer, OpenBuffer());
  if (!(buffer.identity() == p.info.to)) return Overtaken();
  std::atomic<uint32_t> bad{~0u};
  pool_.ParallelFor(p.from_buffer.size(), [&](size_t i) {
    const uint32_t chunk = p.from_buffer[i];
    const Bytes bytes = buffer.data().subspan(chunks_[chunk].offset, chunks_[chunk].bytes);
    if (backend_.digest(key_, bytes) != p.digests_after[chunk]) bad = chunk;
    memory_.Pack(chunk, bytes.data(), p.other[i].get());
  });
  // Otherwise the copies are of other bytes than the digests: where the file system has no leases,
  // or another process wrote to the file.
  if (!buffer.StillHolds()) return Overtaken();
  if (bad != ~0u) {
    return Errorf(StatusCode::kDataLoss,
                  "chunk {} of tensor {} has lost its digest in the receiver's buffer", bad.load(),
                  layout_.tensor(chunks_[bad].tensor).name);
  }
  p.info.chunks_whole = p.from_buffer.size();
  return absl::OkStatus();
}

StatusOr<UpdateInfo> EngineWeights::Prepare() {
  if (held_.empty()) {
    return absl::FailedPreconditionError(
        "what the engine's memory holds is not known; compare it with the buffer first (Adopt)");
  }
  prepared_.reset();
  applied_.reset();
  auto p = std::make_unique<PreparedUpdate>();
  p->info.from = held_;
  p->info.to = committed();
  if (p->info.to.empty()) {
    DW_RETURN_IF_ERROR(RefuseOtherBuffer());
    return Errorf(StatusCode::kUnavailable, "{}: no version is committed now", directory_.native());
  }
  p->digests_before = digests_;
  bool by_delta = false;
  if (const auto chain =
          AwaitDeltaChain(directory_ / kDeltaFolder, layout_.fingerprint(), held_, p->info.to);
      chain.ok()) {
    by_delta = true;
    for (const fs::path& path : *chain) {
      auto file = DeltaFile::Open(path);
      by_delta = by_delta && file.ok() && file->head().chunks == chunks_.size();
      if (!by_delta) break;
      p->files.push_back(*std::move(file));
    }
    by_delta = by_delta && CheckChain(*p).ok() &&
               RootOf(p->digests_after, Coverage::All(chunks_.size())) == p->info.to.root;
  }
  if (!by_delta) {
    // The buffer has every chunk. Those whose digests differ from the engine's are taken.
    DW_ASSIGN_OR_RETURN(const HeldBuffer buffer, OpenBuffer());
    auto from_buffer = std::make_unique<PreparedUpdate>();
    from_buffer->info = {.from = held_, .to = buffer.identity()};
    from_buffer->digests_before = digests_;
    from_buffer->digests_after.resize(chunks_.size());
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      from_buffer->digests_after[i] = buffer.digest(i);
      if (buffer.digest(i) != digests_[i] || drifted_.contains(i)) {
        from_buffer->from_buffer.push_back(i);
      }
    }
    if (!buffer.StillHolds() || RootOf(from_buffer->digests_after, Coverage::All(chunks_.size())) !=
                                    buffer.identity().root) {
      return Overtaken();
    }
    p = std::move(from_buffer);
  }
  p->healed.assign(drifted_.begin(), drifted_.end());
  p->info.chunks_healed = p->healed.size();
  MakeRoom(*p);
  DW_RETURN_IF_ERROR(TakeFromBuffer(*p));
  DW_RETURN_IF_ERROR(memory_.Load(*p));
  prepared_ = std::move(p);
  return prepared_->info;
}

std::vector<uint32_t> EngineWeights::ChangedTensors() const {
  if (prepared_ == nullptr) return {};
  std::set<uint32_t> changed;
  for (const uint32_t chunk : prepared_->delta_chunks) changed.insert(chunks_[chunk].tensor);
  for (const uint32_t chunk : prepared_->from_buffer) changed.insert(chunks_[chunk].tensor);
  return {changed.begin(), changed.end()};
}

Status EngineWeights::ReadTensor(State state, uint32_t tensor, MutableBytes to) const {
  if (tensor >= layout_.size() || to.size() != layout_.bytes(tensor)) {
    return Errorf(StatusCode::kInvalidArgument, "{} bytes for tensor {} of {}", to.size(), tensor,
                  layout_.size());
  }
  const bool prepared = state == State::kPrepared;
  if (prepared ? prepared_ == nullptr : held_.empty()) {
    return absl::FailedPreconditionError(prepared ? "no update is prepared"
                                                  : "what the memory holds is not known");
  }
  const Identity& wanted = prepared ? prepared_->info.to : held_;
  const std::vector<uint64_t>& digests = prepared ? prepared_->digests_after : digests_;
  DW_ASSIGN_OR_RETURN(const HeldBuffer buffer, OpenBuffer());
  if (!(buffer.identity() == wanted)) {
    return Errorf(StatusCode::kUnavailable, "{} is wanted, and the receiver holds {} by now",
                  DescribeFully(wanted), DescribeFully(buffer.identity()));
  }
  const uint64_t begin = layout_.offset(tensor);
  const uint32_t first = chunks_.first_of_tensor(tensor);
  std::atomic<bool> bad{false};
  pool_.ParallelFor(chunks_.end_of_tensor(tensor) - first, [&](size_t i) {
    const auto chunk = first + static_cast<uint32_t>(i);
    const Chunk& c = chunks_[chunk];
    const MutableBytes copied = to.subspan(c.offset - begin, c.bytes);
    std::memcpy(copied.data(), buffer.data().data() + c.offset, c.bytes);
    // The copy is judged, not the buffer, so nothing can come between.
    if (backend_.digest(key_, copied) != digests[chunk]) bad = true;
  });
  if (!bad) return absl::OkStatus();
  if (!buffer.StillHolds()) {
    return Overtaken();
  }
  return Errorf(StatusCode::kDataLoss, "tensor {} has lost a digest in the receiver's buffer",
                layout_.tensor(tensor).name);
}

}  // namespace deltawire::engine
