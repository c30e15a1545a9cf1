// The part of EngineWeights that finds and checks the way to what is committed.
#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "common/layout/root.h"
#include "receiver/engine_client/prepared_update.h"

namespace deltawire::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPrepareLookEvery{2};
/// A receiver commits first and then begins to write the delta's file. One that keeps no file for
/// this version costs a wait of this length.
constexpr std::chrono::milliseconds kFileGrace{100};
/// The file that is being written then is waited for: what it takes to be written grows with its
/// size, and the other way is to read the whole buffer. A killed receiver may have left it so.
constexpr std::chrono::milliseconds kWriteGrace{1000};
constexpr uint64_t kSlowestWrite = uint64_t{64} << 20;  // bytes a second

}  // namespace

StatusOr<std::vector<fs::path>> EngineWeights::FindChain(const Identity& to) const {
  struct Link {
    fs::path path;
    Identity from, to;
  };
  std::vector<Link> links;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_ / kDeltaFolder, error)) {
    // One that is still being written has a hidden name. Its head may be there already, and with it
    // the chain would seem to end in a file that is not whole.
    if (entry.path().filename().native().starts_with('.')) continue;
    // A file may go between being listed and being read.
    const auto head = DeltaFile::Peek(entry.path());
    if (!head.ok() || !(head->fingerprint == layout_.fingerprint())) continue;
    links.push_back({entry.path(), head->from, head->to});
  }
  // Newest first: of two ways to one state (after a rollback) the later one.
  std::sort(links.begin(), links.end(),
            [](const Link& a, const Link& b) { return a.path > b.path; });
  std::vector<fs::path> chain;
  Identity at = to;
  while (!(at == held_)) {
    const auto link =
        std::find_if(links.begin(), links.end(), [&](const Link& l) { return l.to == at; });
    if (link == links.end()) {
      // Only the last link can be one that is still being written.
      return Errorf(at == to ? StatusCode::kNotFound : StatusCode::kOutOfRange,
                    "no chain of deltas leads there");
    }
    chain.insert(chain.begin(), link->path);
    at = link->from;
    // Each link once: a rollback and its return would be a circle.
    links.erase(link);
  }
  return chain;
}

StatusOr<std::vector<fs::path>> EngineWeights::AwaitChain(const Identity& to) const {
  const auto begun = SteadyClock::now();
  auto end = begun + kFileGrace;
  while (true) {
    // First, so that a file that is finished in between is found.
    if (const auto bytes = DeltaBeingWritten(directory_ / kDeltaFolder)) {
      const std::chrono::milliseconds write{1000 * *bytes / kSlowestWrite};
      // A little longer than it is there, and not for ever: a killed process may have left it.
      const auto now = SteadyClock::now();
      if (now < begun + kWriteGrace + write) end = std::max(end, now + kFileGrace);
    }
    auto chain = FindChain(to);
    std::error_code unreadable;
    const bool last =
        SteadyClock::now() >= end || !fs::exists(directory_ / kDeltaFolder, unreadable);
    if (chain.ok() || last || chain.status().code() != StatusCode::kNotFound) return chain;
    std::this_thread::sleep_for(kPrepareLookEvery);
  }
}

Status EngineWeights::CheckChain(Prepared& p) const {
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

void EngineWeights::MakeRoom(Prepared& p) const {
  std::vector<size_t> bytes(p.from_buffer.size(), 0);
  pool_.ParallelFor(bytes.size(), [&](size_t i) {
    ForEachRun(p.from_buffer[i], Access::kNowhere,
               [&](uint64_t, MutableBytes live) { bytes[i] += live.size(); });
  });
  for (const size_t n : bytes) p.other.push_back(std::make_unique_for_overwrite<std::byte[]>(n));
  if (p.delta_chunks.empty()) return;
  size_t boxes = 0;
  for (size_t t = 0; t < layout_.size(); ++t) boxes = std::max(boxes, program_->boxes(t).size());
  p.scratches = std::make_unique<Scratches>(pool_.size(), boxes);
}

Status EngineWeights::TakeFromBuffer(Prepared& p) const {
  if (p.from_buffer.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const HeldBuffer buffer, HeldBuffer::Open(directory_, state_));
  const auto meanwhile = [] {
    return absl::UnavailableError("another version was committed meanwhile");
  };
  if (!(buffer.identity() == p.info.to)) return meanwhile();
  if (buffer.data().size() < layout_.total_bytes()) {
    return Errorf(StatusCode::kDataLoss, "{}: the weights are cut short", directory_.native());
  }
  std::atomic<uint32_t> bad{~0u};
  pool_.ParallelFor(p.from_buffer.size(), [&](size_t i) {
    const uint32_t chunk = p.from_buffer[i];
    const Bytes bytes = buffer.data().subspan(chunks_[chunk].offset, chunks_[chunk].bytes);
    if (backend_.digest(key_, bytes) != p.digests_after[chunk]) bad = chunk;
    std::byte* to = p.other[i].get();
    ForEachRun(chunk, Access::kNowhere, [&](uint64_t at, MutableBytes live) {
      std::memcpy(to, bytes.data() + at, live.size());
      to += live.size();
    });
  });
  // Otherwise the copies are of other bytes than the digests: where the file system has no leases,
  // or somebody else wrote to the file.
  if (!buffer.StillHolds()) return meanwhile();
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
  auto p = std::make_unique<Prepared>();
  p->info.from = held_;
  p->info.to = committed();
  if (p->info.to.empty()) {
    DW_RETURN_IF_ERROR(RefuseOtherBuffer());
    return Errorf(StatusCode::kUnavailable, "{}: no version is committed now", directory_.native());
  }
  p->digests_before = digests_;
  bool by_delta = false;
  if (const auto chain = AwaitChain(p->info.to); chain.ok()) {
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
    DW_ASSIGN_OR_RETURN(const HeldBuffer buffer, HeldBuffer::Open(directory_, state_));
    auto from_buffer = std::make_unique<Prepared>();
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
      return absl::UnavailableError("another version was committed meanwhile");
    }
    p = std::move(from_buffer);
  }
  p->healed.assign(drifted_.begin(), drifted_.end());
  p->info.chunks_healed = p->healed.size();
  MakeRoom(*p);
  DW_RETURN_IF_ERROR(TakeFromBuffer(*p));
  if (device_ != nullptr) DW_RETURN_IF_ERROR(LoadOnDevice(*p));
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
  DW_ASSIGN_OR_RETURN(const HeldBuffer buffer, HeldBuffer::Open(directory_, state_));
  if (!(buffer.identity() == wanted)) {
    return Errorf(StatusCode::kUnavailable, "{} is wanted, and the receiver holds {} by now",
                  DescribeFully(wanted), DescribeFully(buffer.identity()));
  }
  if (buffer.data().size() < layout_.total_bytes()) {
    return Errorf(StatusCode::kDataLoss, "{}: the weights are cut short", directory_.native());
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
    return absl::UnavailableError("another version was committed meanwhile");
  }
  return Errorf(StatusCode::kDataLoss, "tensor {} has lost a digest in the receiver's buffer",
                layout_.tensor(tensor).name);
}

}  // namespace deltawire::engine
