// The safetensors header: a parser for a header of any origin, and a writer for ours, padded so
// that the data starts on a page. The parser allocates no memory for a size that the file cannot
// back. The rules are the safetensors format's (u64-LE header length, JSON, data section). Errors
// name the file and the tensor, if there is one.
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

/// A tensor in a file, at [begin, end) of the data section.
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

/// Parses `prefix`, the start of the file: at least the 8 bytes of length and the JSON. `file_size`
/// is the size of the whole file. Rejects a length beyond the file or the limit; JSON that is
/// malformed, nested too deeply or has duplicate keys; unknown dtypes; shapes that overflow;
/// offsets that overlap, leave holes, point beyond the file or disagree with the shape.
StatusOr<SafetensorsHeader> ParseSafetensorsHeader(Bytes prefix, uint64_t file_size,
                                                   std::string_view file);

/// Returns the 8 bytes of length and the JSON of `layout`, padded with spaces to kDataAlignment.
std::string BuildSafetensorsHeader(const Layout& layout,
                                   const std::map<std::string, std::string>& metadata = {});

}  // namespace deltawire
