// The kernels on a GPU: diff + encode, decode + apply, digest and place over many chunks per call,
// with the same bytes as the scalar backend. Without CUDA every call returns kNotBuilt. It uses no
// CUDA types. The halves outlive a GpuDiffer, which is for one thread at a time. After an error,
// make the same call on the CPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire::kernels {

enum class GpuError : uint8_t {
  kNone,
  kNotBuilt,   ///< this program has no CUDA code
  kNoDevice,   ///< no driver, no device, or one too old for the code
  kOldDriver,  ///< a driver older than this program's CUDA
  kMemory,     ///< device or pinned memory ran out
  kDevice,     ///< any other CUDA error
  kArgument,   ///< the caller's mistake
};

struct GpuStatus {
  GpuError error = GpuError::kNone;
  std::string message;  ///< the attempt and CUDA's answer; empty when ok
  bool ok() const { return error == GpuError::kNone; }
};

struct GpuInfo {
  std::string name;
  uint64_t memory_bytes = 0;
  int major = 0, minor = 0;  ///< compute capability
};

/// Describes device number `device` if this program can use it. The error says so if there is no
/// driver, and has both versions for an old one.
GpuStatus FindGpu(int device, GpuInfo* info);

GpuStatus GpuMemory(int device, uint64_t* free_bytes, uint64_t* total_bytes);

/// Device memory. Pass its spans to GPU calls only; the CPU must not read or write them.
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

/// Copies between host and device memory, in any direction; the copy is complete on return.
GpuStatus GpuCopy(MutableBytes to, Bytes from);

/// Runs the copies, each as Backend::place_convert, between two pieces of device memory; they are
/// complete on return. REQUIRES: no byte is written twice, and no byte that is written is read.
GpuStatus GpuPlace(std::span<const StridedCopy> copies, Bytes src, MutableBytes dst,
                   const Convert& convert = {});

/// Pins host memory, so that copies run at the link's full rate and in parallel with kernels. Pins
/// of the same memory share the first one's registration. Thread-safe.
class GpuPin {
 public:
  static GpuStatus Create(Bytes memory, std::unique_ptr<GpuPin>* pin);
  ~GpuPin();
  GpuPin(const GpuPin&) = delete;
  GpuPin& operator=(const GpuPin&) = delete;

 private:
  explicit GpuPin(Bytes memory) : memory_(memory) {}
  const Bytes memory_;
};

/// A queue of work on one device, done in order and in parallel with other work there. It does not
/// change the thread's current device. REQUIRES: the memory passed to it lives until Wait. Like all
/// CUDA code here, it has not run on a device (docs/benchmarks.md#not-run-on-a-device).
class GpuQueue {
 public:
  static GpuStatus Create(int device, std::unique_ptr<GpuQueue>* queue);
  /// Waits for all queued work.
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  /// Pin pins `host` for this device; Mapped then returns the address by which kernels reach it.
  /// kDevice from Mapped means that the memory is pinned, but kernels cannot reach it.
  GpuStatus Pin(MutableBytes host, std::unique_ptr<GpuPin>* pin);
  GpuStatus Mapped(MutableBytes pinned, MutableBytes* mapped);
  /// Queues a copy between host and this device's memory, in any direction.
  GpuStatus Copy(MutableBytes to, Bytes from);
  /// Queues a copy as Backend::place_convert, between memory of this device or Mapped memory.
  GpuStatus Place(const StridedCopy& copy, Bytes src, MutableBytes dst, const Convert& convert);
  /// Waits until all queued work is done, even after an error, which it then returns again.
  GpuStatus Wait();

 private:
  struct Impl;
  explicit GpuQueue(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

enum class GpuMode : uint8_t {
  kHostStaged,  ///< old and new bytes are copied to the device
  kResident,    ///< the old bytes stay on the device (a half's size); only new bytes are copied
};

/// The place of the base of live bytes.
enum class GpuHome : uint8_t {
  kDevice,
  kHost,  ///< pinned host memory, from which each diff brings it, and to which it then goes back
};

struct GpuChunk {
  uint64_t offset = 0;  ///< in a half's data
  uint32_t bytes = 0;   ///< > 0, a multiple of width, <= kMaxChunkBytes
  uint32_t width = 1;
};

/// A copy, as Backend::place_convert, from `src` in device memory.
struct GpuPiece {
  StridedCopy copy;
  Convert convert;
  Bytes src;
};

/// A chunk's new bytes in device memory, where a trainer has them: `pieces` write the chunk at
/// `offset` of their common destination, each of its bytes once. Chunks that share `pieces` are
/// brought together.
struct GpuLive {
  uint32_t chunk = 0;
  std::span<const GpuPiece> pieces;
  uint64_t offset = 0;
};

struct GpuOptions {
  GpuMode mode = GpuMode::kHostStaged;
  int device = 0;
  size_t slab_bytes = size_t{32} << 20;  ///< per step of the pipeline; >= kMaxChunkBytes
  size_t slabs = 3;                      ///< parallel steps; each takes about 4 * slab_bytes
};

/// A callback, once per chunk, in no particular order, on the calling thread. `payload` is valid
/// during the call only. result.digest_before is the digest of the old bytes that the device read.
/// If it differs from the digest passed to Diff, the result is wrong and must not be used.
using GpuEncoded = std::function<void(uint32_t chunk, const EncodeResult& result, Bytes payload)>;

struct GpuApplyItem {
  uint32_t chunk = 0;
  Bytes payload;  ///< fast, validated
  uint64_t digest_before = 0;
  uint64_t digest_after = 0;
  DecodeStatus status = DecodeStatus::kOk;
};

class GpuDiffer {
 public:
  /// `chunks` are all chunks of a half, in any order; calls name them by index. Takes about slabs *
  /// 4 * slab_bytes of device memory, and in resident mode a half's bytes more.
  static GpuStatus Create(const GpuOptions& options, const DigestKey& key,
                          std::span<const GpuChunk> chunks, std::unique_ptr<GpuDiffer>* differ);
  ~GpuDiffer();
  GpuDiffer(const GpuDiffer&) = delete;
  GpuDiffer& operator=(const GpuDiffer&) = delete;

  /// Does Backend::diff_encode of the chunks `which` (each once) from `before` to `after`, which
  /// are whole halves. digests_before[i] is chunk i's digest, for all chunks. In resident mode the
  /// chunks of `after` become the new base. A chunk whose base on the device has another digest is
  /// copied from `before` first, so rollbacks and abandoned publishes need no call of their own. On
  /// an error `encoded` may already have been called for some chunks.
  GpuStatus Diff(Bytes before, Bytes after, std::span<const uint32_t> which,
                 std::span<const uint64_t> digests_before, const GpuEncoded& encoded);

  /// Sets digests[i] to Backend::digest of chunk i of `half`, for the chunks `which`. In resident
  /// mode these chunks become the new base.
  GpuStatus Digest(Bytes half, std::span<const uint32_t> which, std::span<uint64_t> digests);

  /// Resident mode, for live bytes, which lie on the device and in no half, so that the chunks'
  /// offsets do not count. Add takes further chunks, numbered on from those before, and allocates
  /// their base; of those with a base on the host, only the next two calls may name any. Adopt
  /// makes live bytes the base: digests[i] is that of live[i]. DiffLive is a Diff from the base to
  /// the live bytes, which become the base. It returns kArgument and does nothing if a chunk's base
  /// was never adopted, or was lost in an error. REQUIRES: each chunk once a call; destination
  /// strides are positive; all work on the live bytes is complete, and they do not change until the
  /// call returns.
  GpuStatus Add(std::span<const GpuChunk> chunks, GpuHome home = GpuHome::kDevice);
  GpuStatus Adopt(std::span<const GpuLive> live, std::span<uint64_t> digests);
  GpuStatus DiffLive(std::span<const GpuLive> live, const GpuEncoded& encoded);

  /// Does Backend::decode_apply of the items (each chunk once) to `half`. In resident mode it
  /// applies them to the base on the device, and `half` stays as it is.
  GpuStatus Apply(MutableBytes half, std::span<GpuApplyItem> items);

  /// In resident mode, copies the base of the chunks `which` to their places in `half`.
  GpuStatus ReadBase(MutableBytes half, std::span<const uint32_t> which);

  uint64_t device_bytes() const;

 private:
  struct Impl;
  explicit GpuDiffer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Diffs fixed data of every width and several densities in both modes, and compares the results
/// with the scalar backend's. Returns kDevice when one differs; the message names it. Takes tens of
/// milliseconds and about 100 MiB of device memory.
GpuStatus GpuSelfTest(int device);

}  // namespace deltawire::kernels
