// The safetensors header: parse one of any origin, write ours (padded so that data starts on a
// page). Pure functions over bytes; nothing is allocated on a claim the file's size does not back.
// Source of the rules: the safetensors format (u64-LE header length, JSON, then the data section).
// Errors name the file and, where there is one, the tensor. Cost: one JSON pass.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/layout/layout.h"

namespace deltawire {

inline constexpr uint64_t kMaxSafetensorsHeader = 512ull << 20;
inline constexpr uint64_t kDataAlignment = 4096;

/// A tensor as found in a file: [begin, end) in the data section.
struct StoredTensor {
  TensorMeta meta;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in rising order of offset
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
  uint64_t data_offset = 0;                     ///< of the data section in the file
};

/// `prefix` is the start of the file (at least the 8 bytes and the JSON), `file_size` its whole
/// size. Refuses: a length beyond the file or the limit, JSON that is malformed, too deep or has
/// duplicate keys, unknown dtypes, overflowing shapes, offsets that overlap, leave holes, run out
/// of the file or disagree with the shape.
StatusOr<SafetensorsHeader> ParseSafetensorsHeader(Bytes prefix, uint64_t file_size,
                                                   std::string_view file);

/// The 8 bytes of length and the JSON of `layout`, padded with spaces to kDataAlignment.
std::string BuildSafetensorsHeader(const Layout& layout,
                                   const std::map<std::string, std::string>& metadata = {});

}  // namespace deltawire
