#include "receiver/engine_client/bound_memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "kernels/element_width.h"
#include "receiver/engine_client/prepared_update.h"

namespace deltawire::engine {
namespace {

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

BoundMemory::BoundMemory(const Layout& layout, const ChunkTable& chunks,
                         const kernels::DigestKey& key, ThreadPool& pool)
    : layout_(layout), chunks_(chunks), key_(key), backend_(kernels::Best()), pool_(pool) {}

BoundMemory::~BoundMemory() = default;

StatusOr<LayoutProgram> BoundMemory::ProgramOf(const Layout& layout, const Binding& binding) {
  if (binding.memory.size() != binding.storages.size()) {
    return Errorf(StatusCode::kInvalidArgument, "{} storages and {} addresses",
                  binding.storages.size(), binding.memory.size());
  }
  DW_ASSIGN_OR_RETURN(LayoutProgram program,
                      LayoutProgram::Create(layout, binding.storages, binding.boxes));
  DW_RETURN_IF_ERROR(RefuseMemoryTwice(layout, binding));
  return program;
}

Status BoundMemory::Bind(const Binding& binding, LayoutProgram program) {
  device_.reset();  // it knows the program
  program_.emplace(std::move(program));
  memory_ = binding.memory;
  if (binding.device < 0) return absl::OkStatus();
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
  return absl::OkStatus();
}

void BoundMemory::ForEachIndex(size_t count, const std::function<void(size_t)>& fn) const {
  if (device_ == nullptr) return pool_.ParallelFor(count, fn);
  for (size_t i = 0; i < count; ++i) fn(i);  // a device has one piece of staging
}

Status BoundMemory::TakeStatus() const {
  return device_ == nullptr ? absl::OkStatus() : device_->TakeStatus();
}

template <typename Fn>
void BoundMemory::ForEachRun(uint32_t chunk, Access access, const Fn& fn) const {
  const Chunk& c = chunks_[chunk];
  const uint64_t begin = c.offset - layout_.offset(c.tensor);
  const uint64_t end = begin + c.bytes;
  for (const OrderedBox& box : program_->boxes(c.tensor)) {
    if (box.first() >= end || box.last() <= begin) continue;
    const bool fetch = device_ != nullptr && access != Access::kNowhere;
    std::byte* const fetched = fetch ? device_->Fetch(box, begin, end) : nullptr;
    for (Run run = box.RunAt(begin); run.bytes > 0 && run.tensor_offset < end;
         run = box.RunAt(run.tensor_offset + run.bytes)) {
      const uint64_t first = std::max(run.tensor_offset, begin);
      const uint64_t last = std::min(run.tensor_offset + run.bytes, end);
      std::byte* at =
          fetch ? fetched + (first - begin)
                : memory_[box.storage()] + run.storage_offset + (first - run.tensor_offset);
      fn(first - begin, MutableBytes(at, last - first));
    }
    if (fetch && access == Access::kWrite) device_->Store(box, begin, end);
  }
}

BoundMemory::Compared BoundMemory::Compare(uint32_t chunk, const std::byte* wanted) const {
  Compared found;
  ForEachRun(chunk, Access::kRead, [&](uint64_t at, MutableBytes live) {
    found.differs |= std::memcmp(live.data(), wanted + at, live.size()) != 0;
    found.bytes += live.size();
  });
  return found;
}

BoundMemory::Gathered BoundMemory::Gather(uint32_t chunk) const {
  const Chunk& c = chunks_[chunk];
  thread_local std::vector<std::byte> gathered;
  gathered.assign(c.bytes, std::byte{0});
  Gathered found;
  std::vector<bool> seen(program_->several(c.tensor) ? c.bytes / c.width : 0);
  ForEachRun(chunk, Access::kRead, [&](uint64_t at, MutableBytes live) {
    std::byte* mine = gathered.data() + at;
    if (!seen.empty()) {
      const auto first = seen.begin() + static_cast<ptrdiff_t>(at / c.width);
      const auto last = first + static_cast<ptrdiff_t>(live.size() / c.width);
      // If a tensor stands in several places, the first one counts, and the others must agree. Runs
      // of two boxes may overlap in part, so each element is compared.
      if (std::find(first, last, true) != last) {
        for (size_t e = 0; e < live.size() / c.width; ++e) {
          const size_t byte = e * c.width;
          if (first[static_cast<ptrdiff_t>(e)]) {
            found.differs |= std::memcmp(mine + byte, live.data() + byte, c.width) != 0;
          } else {
            std::memcpy(mine + byte, live.data() + byte, c.width);
            found.bytes += c.width;
          }
        }
        std::fill(first, last, true);
        return;
      }
      std::fill(first, last, true);
    }
    std::memcpy(mine, live.data(), live.size());
    found.bytes += live.size();
  });
  if (found.bytes == 0) return found;
  found.digest = backend_.digest(key_, gathered);
  if (found.bytes == c.bytes) return found;
  std::fill(gathered.begin(), gathered.end(), std::byte{0});
  ForEachRun(chunk, Access::kNowhere, [&](uint64_t at, MutableBytes live) {
    std::fill_n(gathered.begin() + static_cast<ptrdiff_t>(at), live.size(), std::byte{1});
  });
  found.places = backend_.digest(key_, gathered);
  return found;
}

size_t BoundMemory::BytesOf(uint32_t chunk) const {
  size_t bytes = 0;
  ForEachRun(chunk, Access::kNowhere, [&](uint64_t, MutableBytes live) { bytes += live.size(); });
  return bytes;
}

void BoundMemory::Pack(uint32_t chunk, const std::byte* whole, std::byte* to) const {
  ForEachRun(chunk, Access::kNowhere, [&](uint64_t at, MutableBytes live) {
    std::memcpy(to, whole + at, live.size());
    to += live.size();
  });
}

void BoundMemory::Scatter(uint32_t chunk, Bytes payload, Way way, Scratch& scratch) const {
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
    // EngineWeights::Prepare has validated it.
    (void)backend_.changes(payload, c.bytes, c.width,
                           std::as_writable_bytes(std::span(scratch.changes)), add, &context);
  });
}

void BoundMemory::Exchange(uint32_t chunk, std::byte* other) const {
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

Status BoundMemory::Load(const PreparedUpdate& p) const {
  if (device_ == nullptr) return absl::OkStatus();
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

Status BoundMemory::Write(PreparedUpdate& p, Way way) {
  const size_t whole = p.from_buffer.size();
  if (device_ != nullptr) {
    // First, since it waits for all that the engine has queued.
    Status status = device_->Add(way == Way::kBackwards);
    for (size_t i = 0; status.ok() && i < whole; ++i) {
      Exchange(p.from_buffer[i], p.other[i].get());
      status = device_->TakeStatus();
    }
    return status;
  }
  // Nothing in this loop can fail: what it reads was checked, and the memory that it needs is
  // there. If this process ends in the middle, so does the engine's memory.
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

}  // namespace deltawire::engine
