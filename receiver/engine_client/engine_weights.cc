#include "receiver/engine_client/engine_weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "kernels/element_width.h"
#include "receiver/engine_client/prepared_update.h"

namespace deltawire::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kState = ".deltawire.state";
constexpr std::chrono::milliseconds kLookEvery{2};

/// Refuses a byte of memory that two boxes claim through two storages: a difference would be added
/// to it twice. The layout program does not see that, since to it storages are but numbers.
Status RefuseMemoryTwice(const Layout& layout, const Binding& binding) {
  std::vector<uint32_t> by_address;
  for (uint32_t s = 0; s < binding.storages.size(); ++s) {
    if (binding.storages[s].bytes > 0) by_address.push_back(s);
  }
  std::sort(by_address.begin(), by_address.end(), [&](uint32_t a, uint32_t b) {
    return std::less<>()(binding.memory[a], binding.memory[b]);
  });
  // Storages whose memory overlaps are joined into one, and their boxes' places with them. Storages
  // that overlap no other are left out.
  std::vector<Storage> joined;
  std::map<uint32_t, std::pair<uint32_t, uint64_t>> places;  // in joined: number and offset
  for (size_t first = 0, next = 0; first < by_address.size(); first = next) {
    const std::byte* begin = binding.memory[by_address[first]];
    Storage all{"", 0};
    for (next = first; next < by_address.size(); ++next) {
      const uint32_t s = by_address[next];
      const auto offset = static_cast<uint64_t>(binding.memory[s] - begin);
      if (next > first && offset >= all.bytes) break;
      all.name += (next > first ? " and " : "") + binding.storages[s].name;
      all.bytes = std::max(all.bytes, offset + binding.storages[s].bytes);
      places[s] = {static_cast<uint32_t>(joined.size()), offset};
    }
    if (next == first + 1) {
      places.erase(by_address[first]);
    } else {
      joined.push_back(std::move(all));
    }
  }
  if (joined.empty()) return absl::OkStatus();
  std::vector<Box> boxes;
  for (Box box : binding.boxes) {
    const auto place = places.find(box.storage);
    if (place == places.end()) continue;
    box.storage = place->second.first;
    box.copy.dst_offset += static_cast<int64_t>(place->second.second);
    boxes.push_back(box);
  }
  return Annotate(LayoutProgram::Create(layout, std::move(joined), boxes).status(),
                  "storages with one memory");
}

template <typename T, bool kBack>
void AddTo(std::byte* place, uint64_t difference) {
  T value;
  std::memcpy(&value, place, sizeof value);
  const auto step = static_cast<T>(difference);
  value = static_cast<T>(kBack ? value - step : value + step);
  std::memcpy(place, &value, sizeof value);
}

/// Adds a block's changes at the places of one box. `first`: the tensor's byte of the block.
template <typename T, bool kBack>
void AddBlock(Finder& finder, uint64_t first, const kernels::BlockChanges& changes) {
  constexpr size_t kBatch = 64, kAhead = 16;
  constexpr uint64_t kLongRun = 4096;
  const std::span at = changes.at;
  std::byte* places[kBatch];
  for (size_t from = 0, end; from < at.size(); from = end) {
    const uint64_t byte = first + at[from] * sizeof(T);
    std::byte* const place = finder.At(byte);
    const uint64_t left = place == nullptr ? 0 : finder.LeftAt(byte);
    if (left >= kLongRun) {
      // Nothing but sums, so that the processor has many lines of memory on their way by itself.
      const uint64_t limit = at[from] + left / sizeof(T);
      const uint16_t* const last = at.data() + at.size();
      end = at.size();
      if (at.back() >= limit) {
        end = static_cast<size_t>(std::lower_bound(at.data() + from, last, limit) - at.data());
      }
      const auto place_of = [&](size_t i) { return place + (at[i] - at[from]) * sizeof(T); };
      for (size_t i = from; i < end; ++i) {
        __builtin_prefetch(place_of(std::min(i + kAhead, end - 1)), 1);
        AddTo<T, kBack>(place_of(i), changes.differences[i]);
      }
      continue;
    }
    // Places first and then sums, for the same reason.
    end = std::min(from + kBatch, at.size());
    for (size_t i = from; i < end; ++i) {
      places[i - from] = finder.At(first + at[i] * sizeof(T));
      if (places[i - from] != nullptr) __builtin_prefetch(places[i - from], 1);
    }
    for (size_t i = from; i < end; ++i) {
      if (places[i - from] != nullptr) AddTo<T, kBack>(places[i - from], changes.differences[i]);
    }
  }
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
      pool_(threads) {}

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
  // As HeldBuffer goes by the name.
  struct stat named;
  if (::stat((directory_ / HeldBuffer::kFileName).c_str(), &named) != 0 || !state_.IsCurrent())
    return {};
  for (uint32_t s = 0; s < state_.shape().slots; ++s) {
    const StateReader::Slot slot = state_.slot(s);
    if (slot.inode == named.st_ino && slot.phase == SlotPhase::kWhole) return slot.identity;
  }
  return {};
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
  if (binding.memory.size() != binding.storages.size()) {
    return Errorf(StatusCode::kInvalidArgument, "{} storages and {} addresses",
                  binding.storages.size(), binding.memory.size());
  }
  DW_ASSIGN_OR_RETURN(LayoutProgram program,
                      LayoutProgram::Create(layout_, binding.storages, binding.boxes));
  DW_RETURN_IF_ERROR(RefuseMemoryTwice(layout_, binding));
  // Nothing of what was bound before is left, whatever comes.
  prepared_.reset();
  applied_.reset();
  drifted_.clear();
  held_ = {};
  device_.reset();  // it knows the program
  program_.emplace(std::move(program));
  memory_ = binding.memory;
  if (binding.device >= 0) {
    uint32_t largest = 0;
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      largest = std::max(largest, static_cast<uint32_t>(chunks_[i].bytes));
    }
    auto device = DeviceMemory::Create(binding.device, binding.stream, *program_, layout_.size(),
                                       memory_, largest);
    if (!device.ok()) {
      memory_.clear();
      program_.reset();
      return device.status();
    }
    device_ = *std::move(device);
  }
  return absl::OkStatus();
}

StatusOr<Comparison> EngineWeights::Adopt() {
  if (!program_) return absl::FailedPreconditionError("no memory is bound");
  DW_ASSIGN_OR_RETURN(const HeldBuffer held, HeldBuffer::Open(directory_, state_));
  const Bytes data = held.data();
  if (data.size() < layout_.total_bytes()) {
    return Errorf(StatusCode::kDataLoss, "{}: the weights are cut short", directory_.native());
  }
  std::atomic<uint64_t> bytes{0};
  std::vector<uint8_t> bad(chunks_.size(), 0);
  ForEachIndex(chunks_.size(), [&](size_t i) {
    uint64_t mine = 0;
    ForEachRun(static_cast<uint32_t>(i), Access::kRead, [&](uint64_t at, MutableBytes live) {
      const std::byte* want = data.data() + chunks_[static_cast<uint32_t>(i)].offset + at;
      if (std::memcmp(live.data(), want, live.size()) != 0) bad[i] = 1;
      mine += live.size();
    });
    bytes += mine;
  });
  DW_RETURN_IF_ERROR(DeviceStatus());
  if (!held.StillHolds()) return absl::UnavailableError("another version was committed meanwhile");
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

void EngineWeights::Scatter(uint32_t chunk, Bytes payload, Way way, Scratch& scratch) const {
  const Chunk& c = chunks_[chunk];
  const uint64_t begin = c.offset - layout_.offset(c.tensor);
  const uint64_t end = begin + c.bytes;
  std::vector<Finder>& finders = scratch.finders;
  finders.clear();
  for (const OrderedBox& box : program_->boxes(c.tensor)) {
    if (box.first() >= end || box.last() <= begin) continue;
    finders.emplace_back(box, memory_[box.storage()]);
  }
  if (finders.empty()) return;
  kernels::WithWidth(c.width, [&]<typename T>(T) {
    struct Context {
      std::vector<Finder>& finders;
      uint64_t begin;
      bool backwards;
    } context{finders, begin, way == Way::kBackwards};
    const auto add = [](void* raw, const kernels::BlockChanges& changes) {
      auto& ctx = *static_cast<Context*>(raw);
      const uint64_t first = ctx.begin + changes.first * sizeof(T);
      for (Finder& finder : ctx.finders) {
        if (ctx.backwards) {
          AddBlock<T, true>(finder, first, changes);
        } else {
          AddBlock<T, false>(finder, first, changes);
        }
      }
    };
    // Prepare has validated it.
    (void)backend_.changes(payload, c.bytes, c.width,
                           std::as_writable_bytes(std::span(scratch.changes)), add, &context);
  });
}

void EngineWeights::Exchange(uint32_t chunk, std::byte* other) const {
  std::byte piece[4096];  // stays in the nearest cache
  ForEachRun(chunk, Access::kWrite, [&](uint64_t, MutableBytes live) {
    while (!live.empty()) {
      const size_t n = std::min(live.size(), sizeof piece);
      std::memcpy(piece, live.data(), n);
      std::memcpy(live.data(), other, n);
      std::memcpy(other, piece, n);
      other += n;
      live = live.subspan(n);
    }
  });
}

void EngineWeights::ForEachIndex(size_t count, const std::function<void(size_t)>& fn) const {
  if (device_ == nullptr) return pool_.ParallelFor(count, fn);
  for (size_t i = 0; i < count; ++i) fn(i);  // a device has one piece of staging
}

Status EngineWeights::DeviceStatus() const {
  return device_ == nullptr ? absl::OkStatus() : device_->TakeStatus();
}

Status EngineWeights::LoadOnDevice(const Prepared& p) const {
  std::vector<DeviceMemory::Change> changes;
  for (size_t i = 0; i < p.delta_chunks.size(); ++i) {
    const Chunk& c = chunks_[p.delta_chunks[i]];
    changes.push_back({.tensor = c.tensor,
                       .first_byte = c.offset - layout_.offset(c.tensor),
                       .bytes = static_cast<uint32_t>(c.bytes),
                       .width = c.width,
                       .payloads = p.deltas[i]});
  }
  return device_->Load(changes);
}

Status EngineWeights::Write(Prepared& p, Way way) {
  if (device_ != nullptr) return WriteOnDevice(p, way);
  // Nothing in this loop can fail: what it reads was checked, and the memory that it needs is
  // there. Whatever ends this process in its middle ends the engine's memory with it.
  const size_t whole = p.from_buffer.size();
  pool_.ParallelFor(whole + p.delta_chunks.size(), [&](size_t i) {
    if (i < whole) return Exchange(p.from_buffer[i], p.other[i].get());
    p.scratches->With([&](Scratch& scratch) {
      // Sums do not depend on the order.
      for (const Bytes payload : p.deltas[i - whole]) {
        Scatter(p.delta_chunks[i - whole], payload, way, scratch);
      }
    });
  });
  return absl::OkStatus();
}

Status EngineWeights::WriteOnDevice(Prepared& p, Way way) {
  // First, since it waits for all that the engine has queued.
  Status status = device_->Add(way == Way::kBackwards);
  for (size_t i = 0; status.ok() && i < p.from_buffer.size(); ++i) {
    Exchange(p.from_buffer[i], p.other[i].get());
    status = device_->TakeStatus();
  }
  if (status.ok()) return status;
  held_ = {};
  prepared_.reset();
  applied_.reset();
  return Annotate(status, "the device has failed within an update; start the engine anew");
}

void EngineWeights::Discard() { prepared_.reset(); }

Status EngineWeights::Apply() {
  if (prepared_ == nullptr) return absl::FailedPreconditionError("no update is prepared");
  Prepared& p = *prepared_;
  DW_RETURN_IF_ERROR(Write(p, Way::kForwards));
  applied_ = std::move(prepared_);
  digests_.swap(p.digests_after);
  for (const uint32_t chunk : p.healed) drifted_.erase(chunk);
  held_ = p.info.to;
  return absl::OkStatus();
}

Status EngineWeights::Rollback() {
  if (applied_ == nullptr) return absl::FailedPreconditionError("no update was applied");
  Prepared& p = *applied_;
  DW_RETURN_IF_ERROR(Write(p, Way::kBackwards));
  digests_.swap(p.digests_before);
  // The old bytes are back, so the chunks that the update had healed have drifted again.
  drifted_.insert(p.healed.begin(), p.healed.end());
  held_ = p.info.from;
  applied_.reset();
  return absl::OkStatus();
}

StatusOr<uint64_t> EngineWeights::DigestOf(uint32_t chunk) const {
  if (held_.empty()) return absl::FailedPreconditionError("what the memory holds is not known");
  if (chunk < digests_.size()) return digests_[chunk];
  return Errorf(StatusCode::kInvalidArgument, "chunk {} of {}", chunk, digests_.size());
}

}  // namespace deltawire::engine
