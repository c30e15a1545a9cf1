// Simple encodings to compare with: the first that one would write (a list of pairs), and those of
// comparable projects (gaps and values behind zstd). One thread encodes and applies each tensor by
// tensor, by plain loops. Owner: one workload's cases. Memory: the encoded forms of the largest
// tensor and of all together. Errors: kInternal from zstd, kDataLoss when the bytes are wrong.
#pragma once

#include <memory>
#include <vector>

#include "bench/delta/workload.h"

namespace deltawire::bench {

/// Two lists with one entry per change: where it is, and what stands there now.
struct Lists {
  std::vector<std::byte> where, what;
};

class Reference {
 public:
  virtual ~Reference() = default;
  /// Encodes one tensor into `out`; sizes are exact, capacity is kept.
  virtual Status Encode(Bytes old_data, Bytes new_data, unsigned width, Lists& out) = 0;
  virtual Status Apply(const Lists& lists, unsigned width, MutableBytes data) = 0;
};

struct ReferenceKind {
  const char* name;
  const char* about;  ///< for people
  std::unique_ptr<Reference> (*make)();
};

/// `pairs`: u32 index and new value of every change.
/// `gaps_zstd`: gaps of one byte (255: the gap goes on), and new values; both through zstd level 1.
/// `xor_zstd`: gaps of 16 bits (65535: it goes on), and old XOR new of what changed; likewise.
std::span<const ReferenceKind> AllReferences();

/// Runs one reference over a workload.
class ReferenceRunner {
 public:
  ReferenceRunner(const Workload& w, const ReferenceKind& kind)
      : workload_(w), kind_(kind), reference_(kind.make()), lists_(w.layout.size()) {}
  const ReferenceKind& kind() const { return kind_; }

  StatusOr<double> Encode();  ///< seconds
  /// Seconds from old to new bytes in `work`, which is checked but not put back.
  /// REQUIRES: Encode ran; work holds the old bytes.
  StatusOr<double> Apply(MutableBytes work);
  uint64_t bytes() const;  ///< of all lists

 private:
  const Workload& workload_;
  const ReferenceKind& kind_;
  const std::unique_ptr<Reference> reference_;
  std::vector<Lists> lists_;  // of each tensor
};

}  // namespace deltawire::bench
