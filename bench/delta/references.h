// What is written where nobody thinks long, and what peers do: pair lists, gaps and values behind
// zstd. Each is encoded and applied tensor by tensor with one thread, by plain loops.
// Owner: one workload's cases, which outlives it. Memory: the encoded forms of the largest tensor
// and of all tensors together. Errors: kInternal from zstd, kDataLoss when the bytes are wrong.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "bench/delta/workload.h"

namespace deltawire::bench {

class Reference {
 public:
  virtual ~Reference() = default;
  virtual std::string_view name() const = 0;
  /// What it is, for people.
  virtual std::string_view about() const = 0;
  /// Encodes one tensor into `out`; the size is exact, capacity is kept.
  virtual Status Encode(Bytes old_data, Bytes new_data, unsigned width,
                        std::vector<std::byte>& out) = 0;
  virtual Status Apply(Bytes payload, unsigned width, MutableBytes data) = 0;
};

/// u32 index and new value of every change, as two arrays. One loop, one store a change.
std::unique_ptr<Reference> MakePairs();
/// Gaps of one byte (255: go on), then new values; both through zstd level 1.
std::unique_ptr<Reference> MakeByteGaps();
/// Gaps of 16 bits (65535: go on), then old XOR new of the changed elements; both through zstd 1.
std::unique_ptr<Reference> MakeXor();

/// Runs one reference over a workload.
class ReferenceRunner {
 public:
  ReferenceRunner(const Workload& w, std::unique_ptr<Reference> reference);
  std::string_view name() const { return reference_->name(); }
  std::string_view about() const { return reference_->about(); }

  StatusOr<double> Encode();  ///< seconds
  /// Seconds from old to new bytes in `work`, which is checked but not put back.
  /// REQUIRES: Encode ran; work holds the old bytes.
  StatusOr<double> Apply(MutableBytes work);
  uint64_t bytes() const;  ///< of all payloads

 private:
  const Workload& workload_;
  std::unique_ptr<Reference> reference_;
  std::vector<std::vector<std::byte>> payloads_;  // of a tensor
};

}  // namespace deltawire::bench
