// What a workload's changes cost in bits: our codecs, split into their parts, the entropy bounds,
// and folds against single deltas. Nothing here is timed.
// Plain values. Cost: some seconds per GB; folds encode every single delta once more.
// Errors: kInternal when a kernel refuses its own payload, kDataLoss when bytes come out wrong.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "bench/delta/bounds.h"
#include "bench/delta/engine.h"
#include "bench/delta/payload_parts.h"

namespace deltawire::bench {

struct CodecSize {
  uint64_t bytes = 0;
  /// Unset where a payload could not be read apart: why, in words.
  PayloadParts parts;
  std::string no_parts;
};

struct FoldSize {
  uint64_t fold = 0;     ///< bytes of one payload for all steps
  uint64_t singles = 0;  ///< bytes of the steps' own payloads
  double ratio() const { return static_cast<double>(fold) / static_cast<double>(singles); }
};

struct Sizes {
  Bounds bounds;
  CodecSize fast;
  std::optional<CodecSize> tight;          ///< unset: no such kernel
  std::optional<CodecSize> tight_history;  ///< unset: no past deltas, or no such kernel
  std::optional<uint64_t> dense;           ///< bytes; raw where it is no smaller. Unset: not tried
  uint64_t best = 0;                       ///< the smallest of all forms and raw, chunk by chunk
  std::map<std::string, uint64_t> chosen;  ///< changed chunks, by their smallest form
  std::optional<FoldSize> fold_fast, fold_tight;  ///< of all deltas; unset for a single one
};

StatusOr<Sizes> MeasureSizes(const Workload& w, const Engine& engine,
                             const kernels::Backend& kernels, const kernels::DigestKey& key,
                             ThreadPool& pool);

}  // namespace deltawire::bench
