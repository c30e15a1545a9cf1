// Simple encodings to compare with: the first that one would write (a list of pairs), and those of
// comparable projects (gaps and values behind zstd). One thread encodes and applies each tensor by
// tensor, by plain loops. Owner: a case. Memory: the encoded forms of the largest tensor and of all
// together. Errors: kInternal from zstd, kDataLoss when the bytes are wrong.
#pragma once

#include <zstd.h>

#include <memory>
#include <vector>

#include "bench/delta/workload.h"

namespace deltawire::bench {

/// Two lists with one entry per change: where it is, and what stands there now.
struct Lists {
  std::vector<std::byte> where, what;
};

struct ReferenceKind {
  const char* name;
  const char* about;     ///< for people
  unsigned where_bytes;  ///< 4: indices; less: gaps, where the largest number says "it goes on"
  bool exclusive;        ///< old XOR new instead of the new value
  bool compressed;       ///< both lists, by zstd level 1
};
inline constexpr ReferenceKind kPairs = {"pairs", "u32 index + new value", 4, false, false};
/// kPairs, `gaps_zstd` and `xor_zstd`.
std::span<const ReferenceKind> AllReferences();

/// Encodes and applies by one kind.
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

/// The same over a workload.
class ReferenceRunner {
 public:
  ReferenceRunner(const Workload& w, const ReferenceKind& kind)
      : workload_(w), name_(kind.name), reference_(kind) {}

  StatusOr<double> Encode();  ///< seconds
  /// Seconds from old to new bytes in `work`, which is checked but not put back. Encodes before,
  /// where nobody has. REQUIRES: work holds the old bytes.
  StatusOr<double> Apply(MutableBytes work);
  StatusOr<uint64_t> bytes();  ///< of all lists

 private:
  Status Encoded() { return lists_.empty() ? Encode().status() : absl::OkStatus(); }
  const Workload& workload_;
  const std::string name_;
  Reference reference_;
  std::vector<Lists> lists_;  // of each tensor
};

}  // namespace deltawire::bench
