// A fake of the CUDA runtime for machines without a device, with two of them. "Device" memory
// begins as rubbish, and only queued work and cudaMemcpy can touch it; of strided copies, only
// those of the same device, queued while it is the current one. Work that is queued on a stream
// runs in its order, and at any time: at once, during any later call, when somebody waits, or after
// the stream was destroyed; streams get on in any order. A failure stays in cudaGetLastError until
// that is asked, and some failures stay for good. Kernels are the CPU emulation; strided copies may
// write only to registered host memory. So code around the kernels cannot break CUDA's rules
// unseen.
#include "tests/unit/kernels/fake_cuda.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/element_width.h"
#include "tests/unit/kernels/cuda_emulation.h"

struct CUstream_st {
  int device = 0;
  std::vector<std::function<void()>> work;
};

namespace deltawire::kernels::test {
namespace {

std::recursive_mutex mu;  // of all that follows
int fail_in = -1, calls = 0, lack_in = -1, lacked = 0;
Lack lack = Lack::kOnce;
bool sticks = false;
cudaError_t stuck = cudaSuccess;
thread_local cudaError_t last_error = cudaSuccess;
std::mt19937 chance(1);
unsigned times_on = 0;  // since SeedCuda
Wrong wrong = Wrong::kNothing;
unsigned wrong_chunk = 0;
int allocations = 0, placements = 0, device_allocations = 0;
size_t free_memory = 0;         // of each device; 0: 3 GiB
volatile uint8_t unpinned = 0;  // what was read last of memory that was unregistered
int driver_version = CUDART_VERSION;
std::atomic<bool> pinning_held = false;
bool refuse_pinning = false, refuse_mapping = false;
constexpr int kDevices = 2;
thread_local int current_device = 0;
bool used[kDevices] = {};
std::map<const uint8_t*, size_t> device_memory, pinned_memory, registered;
std::map<const uint8_t*, int> device_of;  // of the blocks of device_memory
std::vector<CUstream_st*> streams;        // in the order in which they were made
std::vector<CUstream_st*> destroyed;      // those with work left
CUstream_st null_stream;

cudaError_t Say(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void GetOn();

/// The result of a call that can fail. FailCudaCallIn counts down to the call that does.
cudaError_t Outcome() {
  ++calls;
  used[current_device] = true;
  GetOn();
  if (stuck == cudaSuccess && fail_in >= 0 && fail_in-- == 0) {
    if (sticks) stuck = cudaErrorUnknown;
    return Say(cudaErrorUnknown);
  }
  return Say(stuck);
}

CUstream_st& Of(cudaStream_t stream) { return stream == nullptr ? null_stream : *stream; }

constexpr size_t kPage = 4096;
uint8_t* PageOf(const uint8_t* data) {
  return const_cast<uint8_t*>(data) - reinterpret_cast<uintptr_t>(data) % kPage;
}

/// Makes device memory accessible for as long as it lives.
class OnTheDevice {
 public:
  OnTheDevice() { Protect(PROT_READ | PROT_WRITE); }
  ~OnTheDevice() { Protect(PROT_NONE); }

 private:
  static void Protect(int protection) {
    for (const auto& [data, size] : device_memory) {
      uint8_t* const page = PageOf(data);
      (void)mprotect(page, static_cast<size_t>(data + size - page), protection);
    }
  }
};

/// REQUIRES: on the device.
void RunSome(CUstream_st& stream, size_t steps) {
  if (stuck != cudaSuccess) return stream.work.clear();
  const auto end = stream.work.begin() + static_cast<long>(std::min(steps, stream.work.size()));
  for (auto step = stream.work.begin(); step != end; ++step) (*step)();
  stream.work.erase(stream.work.begin(), end);
}

void RunAll(CUstream_st& stream) {
  if (stream.work.empty()) return;
  const OnTheDevice here;
  RunSome(stream, stream.work.size());
}

void EndDestroyed() {
  std::erase_if(destroyed, [](CUstream_st* stream) {
    if (!stream->work.empty()) return false;
    delete stream;
    return true;
  });
}

/// Time has gone by: some streams have got on, in any order.
void GetOn() {
  // Ever more seldom: to make the device's memory accessible takes long.
  if (chance() % (8 + times_on / 2) != 0) return;
  ++times_on;
  std::vector<CUstream_st*> all = streams;
  all.insert(all.end(), destroyed.begin(), destroyed.end());
  all.push_back(&null_stream);
  std::erase_if(all, [](const CUstream_st* stream) { return stream->work.empty(); });
  if (all.empty()) return;
  std::shuffle(all.begin(), all.end(), chance);
  const OnTheDevice here;
  for (CUstream_st* stream : all) {
    if (chance() % 2 == 0) RunSome(*stream, 1 + chance() % 8);
  }
  EndDestroyed();
}

void RunEverything() {
  RunAll(null_stream);
  for (CUstream_st* stream : streams) RunAll(*stream);
  for (CUstream_st* stream : destroyed) RunAll(*stream);
  EndDestroyed();
}

void Queue(cudaStream_t stream, std::function<void()> step) {
  Of(stream).work.push_back(std::move(step));
  GetOn();
}

bool Holds(const std::map<const uint8_t*, size_t>& blocks, const uint8_t* p, size_t bytes) {
  auto after = blocks.upper_bound(p);
  if (after == blocks.begin()) return false;
  --after;
  return p + bytes <= after->first + after->second;
}

[[noreturn]] void End(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::abort();
}

/// The memory that a kernel of one device can reach. It lives while the kernel runs, and remembers
/// the block that was touched last.
class KernelMemory {
 public:
  explicit KernelMemory(int device) : device_(device) {}
  /// Ends the test program unless the kernel can reach these bytes.
  void Check(const uint8_t* p, size_t bytes) {
    if (p >= first_ && p + bytes <= last_) return;
    const auto& blocks = Holds(registered, p, bytes) ? registered : device_memory;
    if (!Holds(blocks, p, bytes)) {
      End("a kernel touches memory that is neither a device's nor registered");
    }
    const auto& [first, size] = *std::prev(blocks.upper_bound(p));
    if (&blocks == &device_memory && device_of.at(first) != device_) {
      End("a kernel touches another device's memory");
    }
    first_ = first;
    last_ = first + size;
  }

 private:
  const int device_;
  const uint8_t *first_ = nullptr, *last_ = nullptr;
};

/// A lack of memory does not stick.
cudaError_t AllocationOutcome() {
  const cudaError_t before = stuck;
  const cudaError_t error = Outcome();
  if (before != cudaSuccess || error == cudaSuccess) return error;
  stuck = cudaSuccess;
  return Say(cudaErrorMemoryAllocation);
}

/// Whether memory of that kind is lacking now.
bool IsLacking(bool on_device) {
  if (lack_in < 0) return false;
  if (lack == (on_device ? Lack::kPinned : Lack::kDevice)) return false;
  if (lack_in > 0) {
    --lack_in;
    return false;
  }
  ++lacked;
  if (lack == Lack::kOnce) lack_in = -1;
  return true;
}

/// A file full of rubbish, of which blocks of memory are private copies: only the pages that are
/// touched cost anything.
constexpr size_t kRubbish = size_t{4} << 20;
int RubbishFile() {
  static const int file = [] {
    const int made = memfd_create("rubbish", MFD_CLOEXEC);
    const std::vector<uint8_t> rubbish(kRubbish, 0xdb);
    if (made < 0 || write(made, rubbish.data(), kRubbish) != static_cast<ssize_t>(kRubbish)) {
      End("there is no memory for the pretended device");
    }
    return made;
  }();
  return file;
}

/// Returns whole pages of rubbish, and one behind them that nobody may touch; null: there is no
/// memory.
uint8_t* Map(size_t bytes, int protection) {
  void* const made =
      mmap(nullptr, bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  auto* const first = static_cast<uint8_t*>(made);
  for (size_t at = 0; at < bytes; at += kRubbish) {
    if (mmap(first + at, std::min(kRubbish, bytes - at), protection, MAP_PRIVATE | MAP_FIXED,
             RubbishFile(), 0) == MAP_FAILED) {
      munmap(made, bytes + kPage);
      return nullptr;
    }
  }
  return first;
}

/// A block ends where its pages end, so that nobody gets far beyond it unseen.
cudaError_t Allocate(void** memory, size_t bytes, std::map<const uint8_t*, size_t>& blocks,
                     int protection) {
  if (const cudaError_t error = AllocationOutcome(); error != cudaSuccess) return error;
  if (IsLacking(&blocks == &device_memory)) return Say(cudaErrorMemoryAllocation);
  constexpr size_t kAlignment = 256;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t pages = (bytes + kPage - 1) / kPage * kPage;
  uint8_t* const made = Map(pages, protection);
  if (made == nullptr) return Say(cudaErrorMemoryAllocation);
  blocks[made + pages - bytes] = bytes;
  *memory = made + pages - bytes;
  ++allocations;
  return cudaSuccess;
}

cudaError_t AllocateOnDevice(void** memory, size_t bytes) {
  const cudaError_t error = Allocate(memory, bytes, device_memory, PROT_NONE);
  if (error != cudaSuccess) return error;
  device_of[static_cast<uint8_t*>(*memory)] = current_device;
  ++device_allocations;
  return cudaSuccess;
}

cudaError_t Free(void* memory, std::map<const uint8_t*, size_t>& blocks) {
  if (memory == nullptr) return cudaSuccess;
  if (stuck != cudaSuccess) return Say(stuck);
  RunEverything();  // freeing waits for the device
  const auto block = blocks.find(static_cast<uint8_t*>(memory));
  if (block == blocks.end()) return Say(cudaErrorInvalidValue);
  uint8_t* const page = PageOf(block->first);
  munmap(page, static_cast<size_t>(block->first + block->second + kPage - page));
  device_of.erase(block->first);
  blocks.erase(block);
  --allocations;
  return cudaSuccess;
}

template <typename T>
const T* Elements(const uint8_t* data, uint32_t block) {
  return reinterpret_cast<const T*>(data) + block * gpu::kBlock;
}

void EncodeBlocks(const gpu::EncodeBatch& batch) {
  const auto shared = std::make_unique<gpu::EncodeShared>();
  SerialTeam team(batch.block_count);
  for (uint32_t i = 0; i < batch.block_count; ++i) {
    const gpu::DeviceBlock block = batch.blocks[i];
    const gpu::DeviceChunk& chunk = batch.chunks[block.chunk];
    WithWidth(chunk.width, [&]<typename T>(T) {
      const uint32_t elements = chunk.bytes / sizeof(T) - block.index * gpu::kBlock;
      const auto byte = static_cast<uint32_t>(block.index * gpu::kBlock * sizeof(T));
      batch.rows[i] = gpu::EncodeBlock<T>(team, *shared, Elements<T>(chunk.before, block.index),
                                          Elements<T>(chunk.after, block.index),
                                          std::min(gpu::kBlock, elements), byte, batch.key,
                                          chunk.slot + byte / 4);
    });
  }
}

void PlanChunks(const gpu::EncodeBatch& batch) {
  uint64_t offset = 0;
  for (uint32_t c = 0; c < batch.chunk_count; ++c) {
    const gpu::DeviceChunk& chunk = batch.chunks[c];
    gpu::RowSummary sum;
    gpu::ChunkOut out;
    out.digest_after = chunk.digest_before;
    for (uint32_t b = chunk.first_block; b < chunk.first_block + chunk.blocks; ++b) {
      batch.stream_at[b] = sum.stream_bytes;
      sum.Add(batch.rows[b]);
      out.digest_after += batch.rows[b].digest;
    }
    batch.plans[c] = gpu::PlanTable(sum, chunk.blocks);
    out.bytes = batch.plans[c].payload_bytes;
    out.changed = batch.plans[c].changed;
    out.offset = offset;
    offset += (out.bytes + gpu::kAlign - 1) / gpu::kAlign * gpu::kAlign;
    batch.results[c] = out;
  }
}

void Gather(const gpu::EncodeBatch& batch) {
  for (uint32_t i = 0; i < batch.block_count; ++i) {
    const gpu::DeviceBlock block = batch.blocks[i];
    const gpu::DeviceChunk& chunk = batch.chunks[block.chunk];
    const gpu::TablePlan& plan = batch.plans[block.chunk];
    if (plan.payload_bytes == 0) continue;
    uint8_t* out = batch.out + batch.results[block.chunk].offset;
    for (uint32_t b = 0; block.index == 0 && b < plan.bytes; ++b) {
      out[b] = gpu::TableByte(plan, batch.rows + chunk.first_block, chunk.bytes / chunk.width,
                              chunk.width, b);
    }
    const gpu::BlockOut& row = batch.rows[i];
    out += plan.bytes + batch.stream_at[i];
    if (row.raw == 0) {
      std::memcpy(out, chunk.slot + block.index * (gpu::kBlock / 4 * chunk.width), row.bytes);
      continue;
    }
    WithWidth(chunk.width, [&]<typename T>(T) {
      for (size_t e = 0; e < row.bytes / sizeof(T); ++e) {
        StoreElement<T>(out, e,
                        static_cast<T>(Elements<T>(chunk.after, block.index)[e] -
                                       Elements<T>(chunk.before, block.index)[e]));
      }
    });
  }
}

void GetWrong(const gpu::EncodeBatch& batch) {
  gpu::ChunkOut& result = batch.results[wrong_chunk % batch.chunk_count];
  if (wrong == Wrong::kDigest) ++result.digest_after;
  if (wrong == Wrong::kChanged) ++result.changed;
  if (wrong == Wrong::kPayload && result.bytes > 0) {
    batch.out[result.offset + result.bytes / 2] ^= 4;
  }
}

void ApplyBlocks(const gpu::ApplyBatch& batch) {
  const auto shared = std::make_unique<gpu::DecodeShared>();
  SerialTeam team(batch.block_count);
  for (uint32_t i = 0; i < batch.block_count; ++i) {
    const gpu::ApplyBlockIn& block = batch.blocks[i];
    const gpu::DeviceChunk& chunk = batch.chunks[block.chunk];
    const gpu::BlockIn in{batch.payloads + block.stream_at, block.changed, block.large,
                          block.bytes};
    WithWidth(chunk.width, [&]<typename T>(T) {
      const uint32_t elements = chunk.bytes / sizeof(T) - block.index * gpu::kBlock;
      uint64_t digest = 0;
      const bool ok = gpu::ApplyBlock<T>(
          team, *shared, in, const_cast<T*>(Elements<T>(chunk.after, block.index)),
          std::min(gpu::kBlock, elements),
          static_cast<uint32_t>(block.index * gpu::kBlock * sizeof(T)), batch.key, &digest);
      batch.results[i] = {digest, ok ? 1u : 0u};
    });
  }
}

/// A sink that ends the test program where a place is no memory of the device.
template <typename T>
struct CheckedPlaces {
  gpu::AtPlaces<T> places;
  KernelMemory* memory;

  uint64_t operator()(uint32_t element, T d) const {
    for (uint32_t b = 0; b < places.count; ++b) {
      const uint8_t* at =
          gpu::PlaceOf(places.boxes[b], places.first_byte + uint64_t{element} * sizeof(T));
      if (at != nullptr) memory->Check(at, sizeof(T));
    }
    return places(element, d);
  }
};

void ScatterBlocks(const gpu::ScatterBatch& batch, int device) {
  const auto shared = std::make_unique<gpu::DecodeShared>();
  SerialTeam team(batch.block_count);
  KernelMemory memory(device);
  for (uint32_t i = 0; i < batch.block_count; ++i) {
    const gpu::ApplyBlockIn& block = batch.blocks[i];
    const gpu::ScatterChunk& chunk = batch.chunks[block.chunk];
    const gpu::BlockIn in{batch.payloads + block.stream_at, block.changed, block.large,
                          block.bytes};
    WithWidth(chunk.width, [&]<typename T>(T) {
      const uint32_t first = block.index * gpu::kBlock;
      const CheckedPlaces<T> sink{{batch.boxes + chunk.first_box, chunk.boxes,
                                   chunk.first_byte + uint64_t{first} * sizeof(T), batch.backwards},
                                  &memory};
      const auto elements = static_cast<uint32_t>(chunk.bytes / sizeof(T)) - first;
      uint64_t none = 0;
      if (!gpu::DecodeBlock<T>(team, *shared, in, std::min(gpu::kBlock, elements), sink, &none)) {
        ++*batch.malformed;
      }
    });
  }
}

}  // namespace

void FailCudaCallIn(int after) { fail_in = after; }
int LackCudaMemoryIn(int after, Lack of) {
  lack_in = after;
  lack = of;
  return std::exchange(lacked, 0);
}
int FlipCudaCopies(const void* bytes, size_t size, const void* keep) {
  const std::lock_guard lock(mu);
  RunEverything();
  const OnTheDevice here;
  int flipped = 0;
  for (const auto* const blocks : {&device_memory, &pinned_memory}) {
    for (const auto& [data, length] : *blocks) {
      auto* const first = const_cast<uint8_t*>(data);
      for (uint8_t* at = first;; at += size) {
        at = static_cast<uint8_t*>(
            memmem(at, length - static_cast<size_t>(at - first), bytes, size));
        if (at == nullptr) break;
        if (at == keep) continue;
        at[size / 2] ^= 8;
        ++flipped;
      }
    }
  }
  return flipped;
}
size_t CudaBytes() {
  size_t bytes = 0;
  for (const auto* const blocks : {&device_memory, &pinned_memory}) {
    for (const auto& block : *blocks) bytes += block.second;
  }
  return bytes;
}
void StickCudaErrors(bool stick) {
  const std::lock_guard lock(mu);
  sticks = stick;
  if (stick) return;
  stuck = last_error = cudaSuccess;
}
void SeedCuda(unsigned seed) {
  chance.seed(seed);
  times_on = 0;
}
int CudaCalls() { return calls; }
void PlantWrong(Wrong what, unsigned chunk) {
  wrong = what;
  wrong_chunk = chunk;
}
void RefusePinning(bool refuse) { refuse_pinning = refuse; }
void HoldPinning(bool hold) {
  pinning_held = hold;
  pinning_held.notify_all();
}
void RefuseMapping(bool refuse) { refuse_mapping = refuse; }
void PretendDriver(int version) { driver_version = version; }
int CudaAllocations() { return allocations; }
int CudaRegistrations() { return static_cast<int>(registered.size()); }
bool CudaRegistered(const void* memory, size_t bytes) {
  const auto* const begin = static_cast<const uint8_t*>(memory);
  const auto after = registered.lower_bound(begin + bytes);
  return after != registered.begin() && begin < std::prev(after)->first + std::prev(after)->second;
}
int CudaPlacements() { return placements; }
void PretendFreeMemory(size_t bytes) { free_memory = bytes; }
int CudaDeviceAllocations() { return device_allocations; }
bool HasCudaContext(int device) { return used[device]; }
void EndCudaContexts() { std::ranges::fill(used, false); }
OnFakeDevice::OnFakeDevice(int device) { current_device = device; }
OnFakeDevice::~OnFakeDevice() { current_device = 0; }

}  // namespace deltawire::kernels::test

using namespace deltawire::kernels::test;  // NOLINT: the functions below stand in for a C library

namespace deltawire::kernels::gpu {

void LaunchEncode(const EncodeBatch& batch, cudaStream_t stream) {
  const std::lock_guard lock(mu);
  if (Outcome() != cudaSuccess) return;
  Queue(stream, [batch] {
    EncodeBlocks(batch);
    PlanChunks(batch);
    Gather(batch);
    GetWrong(batch);
  });
}
void LaunchApply(const ApplyBatch& batch, cudaStream_t stream) {
  const std::lock_guard lock(mu);
  if (Outcome() != cudaSuccess) return;
  Queue(stream, [batch] { ApplyBlocks(batch); });
}
void LaunchScatter(const ScatterBatch& batch, cudaStream_t stream) {
  const std::lock_guard lock(mu);
  if (Outcome() != cudaSuccess) return;
  const int device = stream == nullptr ? current_device : stream->device;  // each has a default one
  if (device != current_device) End("a kernel is started on a stream of another device");
  Queue(stream, [batch, device] { ScatterBlocks(batch, device); });
}
void LaunchDigest(const DeviceChunk* chunks, uint32_t count, const KeyView& key, uint64_t* digests,
                  cudaStream_t stream) {
  const std::lock_guard lock(mu);
  if (Outcome() != cudaSuccess) return;
  Queue(stream, [=] {
    for (uint32_t i = 0; i < count * kSlices; ++i) {
      const DeviceChunk& chunk = chunks[i / kSlices];
      for (uint32_t lane = 0; lane < kDigestLanes; ++lane) {
        digests[i / kSlices] += DigestLane(chunk.after, chunk.bytes, key, i % kSlices, lane);
      }
    }
  });
}
void LaunchPlace(const PlacePlan& plan, const uint8_t* src, uint8_t* dst, cudaStream_t stream) {
  const std::lock_guard lock(mu);
  if (Outcome() != cudaSuccess) return;
  const int device = Of(stream).device;
  if (device != current_device) End("a kernel is started on a stream of another device");
  Queue(stream, [=] {
    ++placements;
    KernelMemory read(device), written(device);
    for (uint64_t i = 0; i < plan.units; ++i) {
      if (plan.shifted_run != 0) {
        const PlacePiece piece = PieceOf(plan, i, reinterpret_cast<uintptr_t>(dst));
        if (piece.bytes == 0) continue;
        read.Check(src + piece.src, piece.bytes);
        written.Check(dst + piece.dst, piece.bytes);
        MovePiece(src + piece.src, dst + piece.dst, piece.bytes);
        continue;
      }
      const PlaceStep step = PlaceUnit(plan, i);
      read.Check(src + step.src, plan.unit);
      written.Check(dst + step.dst, plan.dst_unit);
      if (plan.from == Number::kNone) {
        std::memcpy(dst + step.dst, src + step.src, plan.unit);
      } else {
        ConvertUnit(plan, src + step.src, dst + step.dst);
      }
    }
  });
}

}  // namespace deltawire::kernels::gpu

namespace {
int PrimaryCtxGetState(int device, unsigned* flags, int* active) {
  const std::lock_guard lock(mu);
  *flags = 0;
  *active = used[device] ? 1 : 0;
  return 0;
}
}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (driver_version < CUDART_VERSION) return Say(cudaErrorInsufficientDriver);
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return Say(cudaErrorInvalidDevice);
  const std::lock_guard lock(mu);
  current_device = device;
  used[device] = true;
  return cudaSuccess;
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* how) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* how) {
#endif
  const bool known = symbol == std::string_view("cuDevicePrimaryCtxGetState");
  *function = known ? reinterpret_cast<void*>(&PrimaryCtxGetState) : nullptr;
  *how = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const std::lock_guard lock(mu);
  *free_bytes = free_memory == 0 ? size_t{3} << 30 : free_memory;
  *total_bytes = size_t{8} << 30;
  return Outcome();
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = stuck;
  return error;
}
const char* cudaGetErrorString(cudaError_t) { return "made to fail"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const std::lock_guard lock(mu);
  return AllocateOnDevice(memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  const std::lock_guard lock(mu);
  return Allocate(memory, bytes, pinned_memory, PROT_READ | PROT_WRITE);
}
cudaError_t cudaFree(void* memory) {
  const std::lock_guard lock(mu);
  return Free(memory, device_memory);
}
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard lock(mu);
  return Free(memory, pinned_memory);
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  pinning_held.wait(true);
  const std::lock_guard lock(mu);
  if (refuse_pinning) return Say(cudaErrorMemoryAllocation);
  if (const cudaError_t error = Outcome(); error != cudaSuccess) return error;
  if (CudaRegistered(memory, bytes)) return Say(cudaErrorHostMemoryAlreadyRegistered);
  registered[static_cast<uint8_t*>(memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  const std::lock_guard lock(mu);
  const auto known = registered.find(static_cast<uint8_t*>(memory));
  // The runtime looks at the pages, so they must still be there.
  if (known != registered.end()) {
    unpinned = static_cast<volatile uint8_t*>(memory)[0];
    unpinned = static_cast<volatile uint8_t*>(memory)[known->second - 1];
  }
  const bool erased = registered.erase(static_cast<uint8_t*>(memory)) == 1;
  return Say(stuck != cudaSuccess ? stuck : erased ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  const std::lock_guard lock(mu);
  if (refuse_mapping || !Holds(registered, static_cast<uint8_t*>(host), 1)) {
    return Say(cudaErrorNotSupported);
  }
  *device = host;
  return Outcome();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(mu);
  if (stuck != cudaSuccess) return Say(stuck);
  *stream = new CUstream_st{.device = current_device, .work = {}};
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  // Its work goes on.
  const std::lock_guard lock(mu);
  std::erase(streams, stream);
  destroyed.push_back(stream);
  GetOn();
  return Say(stuck);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(mu);
  RunAll(Of(stream));
  return Outcome();
}
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(mu);
  RunEverything();
  return Outcome();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const std::lock_guard lock(mu);
  for (const void* end : {static_cast<const void*>(to), from}) {
    const auto* const p = static_cast<const uint8_t*>(end);
    if (Holds(registered, p, 1) && !Holds(registered, p, bytes)) {
      End("a copy goes beyond the end of registered memory");
    }
  }
  if (const cudaError_t error = Outcome(); error != cudaSuccess) return error;
  Queue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const std::lock_guard lock(mu);
  if (const cudaError_t error = Outcome(); error != cudaSuccess) return error;
  const OnTheDevice here;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mu);
  if (const cudaError_t error = Outcome(); error != cudaSuccess) return error;
  Queue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

}  // extern "C"
