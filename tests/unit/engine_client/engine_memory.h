// An engine's memory for FakeLayout(6), whose tensors have 500 bf16 elements each, laid out as
// loaders do it, and an oracle that walks the boxes run by run. Owner: a test case. One thread.
#pragma once

#include <cstring>
#include <vector>

#include "receiver/engine_client/engine_weights.h"
#include "tests/support/strided_runs.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::engine {

/// A box from its fields; `src` and `dst` are its offsets in the tensor and in the storage.
inline Box MakeBox(uint32_t tensor, uint32_t storage, std::vector<uint64_t> counts, int64_t src,
                   std::vector<int64_t> src_strides, int64_t dst, std::vector<int64_t> dst_strides,
                   size_t run_bytes) {
  Box box{.tensor = tensor, .storage = storage, .copy = {}};
  box.copy.src_offset = src;
  box.copy.dst_offset = dst;
  box.copy.run_bytes = run_bytes;
  box.copy.dims = counts.size();
  for (size_t d = 0; d < counts.size(); ++d) {
    box.copy.counts[d] = counts[d];
    box.copy.src_strides[d] = src_strides[d];
    box.copy.dst_strides[d] = dst_strides[d];
  }
  return box;
}

struct EngineMemory {
  EngineMemory() {
    storages = {{"qkv", 2400}, {"experts", 2000}, {"down", 600}};
    // t0 and t1 stand one behind the other with padding; t2 (20 x 25) is transposed. Of t3, which
    // is cut for tensor parallelism, there are the columns 5 to 14 of 25. t4 stands there whole,
    // and its first 100 bytes a second time. t5 belongs to another rank.
    boxes.push_back(MakeBox(0, 0, {}, 0, {}, 0, {}, 1000));
    boxes.push_back(MakeBox(1, 0, {}, 0, {}, 1200, {}, 1000));
    boxes.push_back(MakeBox(2, 1, {20, 25}, 0, {50, 2}, 0, {2, 40}, 2));
    boxes.push_back(MakeBox(3, 2, {20}, 10, {50}, 100, {20}, 20));
    boxes.push_back(MakeBox(4, 1, {}, 0, {}, 1000, {}, 1000));
    boxes.push_back(MakeBox(4, 0, {}, 0, {}, 2200, {}, 100));
    for (const Storage& s : storages) memory.emplace_back(s.bytes, std::byte{0x5a});
  }
  Binding binding() {
    Binding b{storages, {}, boxes};
    for (auto& m : memory) b.memory.push_back(m.data());
    return b;
  }
  /// The memory once it holds `chunks`. Bytes outside of all boxes stay as they are.
  std::vector<std::vector<std::byte>> With(const receiver::FakeAgent::Chunks& chunks) const {
    auto out = memory;
    for (const Box& box : boxes) {
      testing::ForEachRunOf(box.copy, [&](uint64_t src, uint64_t dst) {
        std::memcpy(out[box.storage].data() + dst, chunks[box.tensor].data() + src,
                    box.copy.run_bytes);
      });
    }
    return out;
  }
  void Load(const receiver::FakeAgent::Chunks& chunks) {
    const auto loaded = With(chunks);
    for (size_t s = 0; s < memory.size(); ++s) memory[s] = loaded[s];
  }
  bool Holds(const receiver::FakeAgent::Chunks& chunks) const { return memory == With(chunks); }

  std::vector<Storage> storages;
  std::vector<Box> boxes;
  std::vector<std::vector<std::byte>> memory;
};

}  // namespace deltawire::engine
