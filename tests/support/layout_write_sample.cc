// Writes a safetensors file with every dtype, odd names, scalars and empty tensors, and
// PATH.expected with what a reader must find: a line "name-in-hex dtype shape index" per tensor.
// Usage: layout_write_sample PATH
#include <spdlog/fmt/fmt.h>

#include <cstdio>

#include "tests/support/layout_files.h"

int main(int argc, char** argv) {
  using namespace deltawire;
  if (argc != 2) {
    fmt::print(stderr, "usage: layout_write_sample PATH\n");
    return 2;
  }
  std::vector<TensorMeta> tensors;
  for (const DType t : AllDTypes()) {
    tensors.push_back({fmt::format("matrix.{}", DTypeName(t)), t, {3, 5}});
    tensors.push_back({fmt::format("empty.{}", DTypeName(t)), t, {2, 0}});
    tensors.push_back({fmt::format("scalar.{}", DTypeName(t)), t, {}});
  }
  tensors.push_back({"quote\" backslash\\ slash/ tab\t newline\n", DType::kBF16, {7}});
  tensors.push_back({"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", DType::kU8, {1, 1, 1, 1}});
  const auto layout = Layout::Create(tensors);
  if (!layout.ok()) {
    fmt::print(stderr, "{}\n", MessageOf(layout.status()));
    return 1;
  }
  std::string expected;
  for (size_t i = 0; i < layout->size(); ++i) {
    const TensorMeta& t = layout->tensor(i);
    for (const char c : t.name) expected += fmt::format("{:02x}", static_cast<unsigned char>(c));
    expected += fmt::format(" {} [{}] {}\n", DTypeName(t.dtype), fmt::join(t.shape, ","), i);
  }
  WriteFile(argv[1], FileOfLayout(*layout));
  WriteFile(std::string(argv[1]) + ".expected", expected);
  return 0;
}
