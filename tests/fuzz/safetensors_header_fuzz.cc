// Fuzz target: any bytes as a safetensors file. A header that is accepted must survive being
// written and read again; a refusal must name the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "common/layout/chunks.h"
#include "common/layout/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltawire;
  const Bytes file{reinterpret_cast<const std::byte*>(data), size};
  auto header = ParseSafetensorsHeader(file, size, "input");
  if (!header.ok()) {
    if (!MessageOf(header.status()).starts_with("input: ")) std::abort();
    return 0;
  }
  std::vector<TensorMeta> tensors;
  for (const StoredTensor& t : header->tensors) {
    if (t.end > size - header->data_offset) std::abort();
    tensors.push_back(t.meta);
  }
  const auto layout = Layout::Create(std::move(tensors));
  if (!layout.ok() || layout->total_bytes() != size - header->data_offset) std::abort();
  if (!ChunkTable::Create(*layout).ok()) std::abort();

  const std::string ours = BuildSafetensorsHeader(*layout, header->metadata);
  const auto again =
      ParseSafetensorsHeader(AsBytes(ours), ours.size() + layout->total_bytes(), "ours");
  if (!again.ok() || again->metadata != header->metadata) std::abort();
  if (again->tensors.size() != layout->size()) std::abort();
  for (size_t i = 0; i < layout->size(); ++i) {
    if (again->tensors[i].meta != layout->tensor(i)) std::abort();
    if (again->tensors[i].begin != layout->offset(i)) std::abort();
  }
  return 0;
}
