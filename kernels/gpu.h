// The GPU's side of the ground floor: diff + encode, decode + apply, digest and place over many
// chunks a call, with the bytes that the scalar backend gives. Always compiled; built without CUDA
// every call says kNotBuilt. Owner of a GpuDiffer: who owns the halves, which outlive it. One
// thread at a time. Errors: a GpuStatus; after one, do the same call on the CPU. No CUDA types.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire::kernels {

enum class GpuError : uint8_t {
  kNone,
  kNotBuilt,  ///< this program has no CUDA code
  kNoDevice,  ///< no driver, no device, or one older than the code
  kMemory,    ///< device or pinned memory ran out
  kDevice,    ///< any other CUDA error
  kArgument,  ///< the call's own mistake
};

struct GpuStatus {
  GpuError error = GpuError::kNone;
  std::string message;  ///< what was tried and what CUDA said; empty when ok
  bool ok() const { return error == GpuError::kNone; }
};

struct GpuInfo {
  std::string name;
  uint64_t memory_bytes = 0;
  int major = 0, minor = 0;  ///< compute capability
};

/// Describes device `device` if this program can use it.
GpuStatus FindGpu(int device, GpuInfo* info);

/// Memory of device `device`, in bytes: what is free now, and all of it.
GpuStatus GpuMemory(int device, uint64_t* free_bytes, uint64_t* total_bytes);

/// Device memory. Its spans may stand wherever a GPU call takes bytes, and nowhere else.
class GpuBuffer {
 public:
  static GpuStatus Create(size_t bytes, std::unique_ptr<GpuBuffer>* buffer);
  ~GpuBuffer();
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  MutableBytes bytes() const { return bytes_; }

 private:
  explicit GpuBuffer(MutableBytes bytes) : bytes_(bytes) {}
  MutableBytes bytes_;
};

/// Copies between host and device memory, in any direction; done when it returns.
GpuStatus GpuCopy(MutableBytes to, Bytes from);

/// Runs the copies, each as Backend::place_convert, between two pieces of device memory; done when
/// it returns. REQUIRES: no byte is written twice, none written is read.
GpuStatus GpuPlace(std::span<const StridedCopy> copies, Bytes src, MutableBytes dst,
                   const Convert& convert = {});

/// Pins host memory, so that copies run at the link's full rate and beside the kernels.
class GpuPin {
 public:
  static GpuStatus Create(Bytes memory, std::unique_ptr<GpuPin>* pin);
  ~GpuPin();
  GpuPin(const GpuPin&) = delete;
  GpuPin& operator=(const GpuPin&) = delete;

 private:
  explicit GpuPin(const void* memory) : memory_(memory) {}
  const void* memory_;
};

/// Work on one device, in order and beside whatever else runs there. The memory that it was given
/// lives until Wait. Leaves the thread's current device as it was. Not run on a device yet.
class GpuQueue {
 public:
  static GpuStatus Create(int device, std::unique_ptr<GpuQueue>* queue);
  /// Waits for what is queued.
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  /// Pins `host` for this device, and says where kernels find it. kDevice: pinned, but out of their
  /// reach.
  GpuStatus Pin(MutableBytes host, std::unique_ptr<GpuPin>* pin);
  GpuStatus Mapped(MutableBytes pinned, MutableBytes* mapped);
  /// Queues a copy between host and this device's memory, in any direction.
  GpuStatus Copy(MutableBytes to, Bytes from);
  /// Queues a copy as Backend::place_convert, between memory of this device or Mapped memory.
  GpuStatus Place(const StridedCopy& copy, Bytes src, MutableBytes dst, const Convert& convert);
  /// Until all of it is done, also after an error; which is then told again.
  GpuStatus Wait();

 private:
  struct Impl;
  explicit GpuQueue(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

enum class GpuMode : uint8_t {
  kHostStaged,  ///< old and new bytes travel to the device
  kResident,    ///< the old bytes are there (one half of device memory); only new ones travel
};

/// A range of one tensor, as Backend takes it.
struct GpuChunk {
  uint64_t offset = 0;  ///< in a half
  uint32_t bytes = 0;   ///< > 0, a multiple of width, <= kMaxChunkBytes
  uint32_t width = 1;
};

struct GpuOptions {
  GpuMode mode = GpuMode::kHostStaged;
  int device = 0;
  size_t slab_bytes = size_t{32} << 20;  ///< per step of the pipeline; >= kMaxChunkBytes
  size_t slabs = 3;                      ///< steps under way at once; each takes about 4 slabs
};

/// Called once a chunk, in no certain order, on the calling thread. `payload` is gone afterwards.
/// result.digest_before is that of the old bytes which the device read (from a digest of the new
/// ones, which the device takes beside the diff): where it is not the one given, nothing of the
/// result is to be believed.
using GpuEncoded = std::function<void(uint32_t chunk, const EncodeResult& result, Bytes payload)>;

/// A payload to apply, and what came of it.
struct GpuApplyItem {
  uint32_t chunk = 0;
  Bytes payload;  ///< fast, validated
  uint64_t digest_before = 0;
  uint64_t digest_after = 0;
  DecodeStatus status = DecodeStatus::kOk;
};

class GpuDiffer {
 public:
  /// `chunks` are all of a half's, in any order; calls name them by index. Takes
  /// about slabs * 4 * slab_bytes of device memory, and a half's bytes more when resident.
  static GpuStatus Create(const GpuOptions& options, const DigestKey& key,
                          std::span<const GpuChunk> chunks, std::unique_ptr<GpuDiffer>* differ);
  ~GpuDiffer();
  GpuDiffer(const GpuDiffer&) = delete;
  GpuDiffer& operator=(const GpuDiffer&) = delete;

  /// Backend::diff_encode of the chunks `which` (each once) from `before` to `after`, whole
  /// halves. digests_before[i] is chunk i's, for all chunks. In resident mode `after` is the new
  /// base; a chunk whose base on the device has another digest is taken from `before` first, so
  /// rollbacks and abandoned publishes need no call of their own.
  /// On an error some chunks may have been handed to `encoded` already.
  GpuStatus Diff(Bytes before, Bytes after, std::span<const uint32_t> which,
                 std::span<const uint64_t> digests_before, const GpuEncoded& encoded);

  /// Backend::digest of the chunks `which` of a half into digests[i] for chunk i. In resident
  /// mode they are the new base.
  GpuStatus Digest(Bytes half, std::span<const uint32_t> which, std::span<uint64_t> digests);

  /// Backend::decode_apply of the items (each chunk once) to `half`; in resident mode to the base
  /// on the device, and `half` is left alone.
  GpuStatus Apply(MutableBytes half, std::span<GpuApplyItem> items);

  /// Resident mode: copies chunk i's base to its place in `half`.
  GpuStatus ReadBase(MutableBytes half, std::span<const uint32_t> which);

  /// Device memory held.
  uint64_t device_bytes() const;

 private:
  struct Impl;
  explicit GpuDiffer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Diffs fixed data of every width and some densities in both modes, and compares with the scalar
/// backend. kDevice when anything differs, which the message names. Takes tens of milliseconds and
/// some 100 MiB of device memory.
GpuStatus GpuSelfTest(int device);

}  // namespace deltawire::kernels
