// The model that the ranks of tests/integration/rank_test.cc write together, and its content: byte
// i of the data section in version v is RankByte(v, i). Owner: none; pure functions. Threads: any.
// Cost: constant. Errors: none.
#pragma once

#include <string>

#include "common/layout/layout.h"

namespace deltawire::testing {

inline Layout RankLayout() {
  std::vector<TensorMeta> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back({"layers." + std::to_string(i) + ".weight", DType::kBF16, {1025, 512}});
  }
  tensors.push_back({"norm.weight", DType::kF32, {77}});
  return *Layout::Create(std::move(tensors));
}

inline std::byte RankByte(uint64_t version, uint64_t i) {
  return static_cast<std::byte>((i * 2654435761u >> 13) + (i % 97 == 0 ? version : 0));
}

/// First byte of rank `rank`'s share of a tensor of `bytes` bytes; the share ends where the next
/// begins.
inline uint64_t ShareBegin(uint64_t bytes, uint32_t rank, uint32_t world) {
  return bytes * rank / world;
}

}  // namespace deltawire::testing
