// Simple encodings to compare with: the obvious one (a list of pairs), and those of comparable
// projects (gaps and values behind zstd). One thread encodes and applies tensor by tensor, in plain
// loops. Memory holds the encoded forms of the largest tensor and of all together. Errors are
// kInternal from zstd, and kDataLoss for wrong bytes.
#pragma once

#include <zstd.h>

#include <memory>
#include <vector>

#include "bench/delta/workload.h"

namespace deltawire::bench {

/// Two lists with one entry per change: its place, and the new value.
struct Lists {
  std::vector<std::byte> where, what;
};

struct ReferenceKind {
  const char* name;
  const char* about;     ///< for people
  unsigned where_bytes;  ///< 4: indices; less: gaps, where the largest number means "continued"
  bool exclusive;        ///< old XOR new instead of the new value
  bool compressed;       ///< both lists, by zstd level 1
};
inline constexpr ReferenceKind kPairs = {"pairs", "u32 index + new value", 4, false, false};
/// Returns kPairs, `gaps_zstd` and `xor_zstd`.
std::span<const ReferenceKind> AllReferences();

class Reference {
 public:
  explicit Reference(const ReferenceKind& kind) : kind_(kind) {}
  /// Encodes one tensor into `out`; sizes are exact, capacity is kept.
  Status Encode(Bytes old_data, Bytes new_data, unsigned width, Lists& out);
  Status Apply(const Lists& lists, unsigned width, MutableBytes data);

 private:
  Status Pack(Bytes list, std::vector<std::byte>& out);
  StatusOr<Bytes> Unpack(Bytes packed, std::vector<std::byte>& room);

  const ReferenceKind kind_;
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> compress_{ZSTD_createCCtx(),
                                                                       ZSTD_freeCCtx};
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decompress_{ZSTD_createDCtx(),
                                                                         ZSTD_freeDCtx};
  Lists room_;
};

class ReferenceRunner {
 public:
  ReferenceRunner(const Workload& w, const ReferenceKind& kind)
      : workload_(w), name_(kind.name), reference_(kind) {}

  StatusOr<double> Encode();  ///< seconds
  /// Returns the seconds from old to new bytes in `work`, which is checked but not restored.
  /// Encodes first if that was not done. REQUIRES: work holds the old bytes.
  StatusOr<double> Apply(MutableBytes work);
  StatusOr<uint64_t> bytes();  ///< of all lists

 private:
  Status Encoded() { return lists_.empty() ? Encode().status() : absl::OkStatus(); }
  const Workload& workload_;
  const std::string name_;
  Reference reference_;
  std::vector<Lists> lists_;  // per tensor
};

}  // namespace deltawire::bench
