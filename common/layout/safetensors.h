// The safetensors header: parses a header of any origin, and writes ours, padded so that the data
// starts on a page. Pure functions over bytes; no memory is taken for a size that the file cannot
// back. Source of the rules: the safetensors format (u64-LE header length, JSON, data section).
// Cost: one JSON pass. Errors name the file and, where there is one, the tensor.
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
  uint64_t data_offset = 0;                     ///< where the data section starts in the file
};

/// `prefix` is the start of the file (at least the 8 bytes of length and the JSON), `file_size` the
/// size of the whole file. Refuses a length beyond the file or the limit; JSON that is malformed,
/// nested too deeply or has duplicate keys; unknown dtypes; shapes that overflow; offsets that
/// overlap, leave holes, point beyond the file or disagree with the shape.
StatusOr<SafetensorsHeader> ParseSafetensorsHeader(Bytes prefix, uint64_t file_size,
                                                   std::string_view file);

/// The 8 bytes of length and the JSON of `layout`, padded with spaces to kDataAlignment.
std::string BuildSafetensorsHeader(const Layout& layout,
                                   const std::map<std::string, std::string>& metadata = {});

}  // namespace deltawire
