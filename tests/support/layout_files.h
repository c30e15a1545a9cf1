// Builders of safetensors files and random layouts for tests. Owner: none; free functions. Threads:
// any. Cost: the file in memory. Errors: std::runtime_error for files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/layout/safetensors.h"

namespace deltawire {

/// A safetensors file with any text as JSON: its length, the text, and `data_bytes` bytes of data.
inline std::string FileOfJson(std::string_view json, size_t data_bytes = 0) {
  std::string file(8, '\0');
  StoreLe<uint64_t>(reinterpret_cast<std::byte*>(file.data()), json.size());
  file += json;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i * 31 + 7);
  return file;
}

/// Byte `at` of tensor `tensor` in the files that these builders fill.
inline char SampleByte(size_t tensor, size_t at) {
  return static_cast<char>(tensor * 89 + at * 31 + 7);
}

/// A whole file of `layout`, filled with SampleByte counted from `first`.
inline std::string FileOfLayout(const Layout& layout, size_t first = 0) {
  std::string file = BuildSafetensorsHeader(layout);
  for (size_t t = 0; t < layout.size(); ++t) {
    for (size_t i = 0; i < layout.bytes(t); ++i) file += SampleByte(first + t, i);
  }
  return file;
}

inline void WriteFile(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

inline std::string ReadWholeFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A layout that Layout::Create accepts: odd names, every dtype, scalars and zero dimensions.
inline std::vector<TensorMeta> RandomTensors(std::mt19937& rng, size_t max_tensors = 40) {
  static const std::vector<std::string> kPieces = {"model.layers.",
                                                   "weight",
                                                   "\"",
                                                   "\\",
                                                   "/",
                                                   " ",
                                                   "\n",
                                                   "\x01",
                                                   "\x7f",
                                                   "{",
                                                   "},",
                                                   "\xc3\xa4",
                                                   "\xe2\x82\xac",
                                                   "\xf0\x9f\x98\x80",
                                                   std::string(1, '\0'),
                                                   "dtype",
                                                   "__metadata__"};
  const auto below = [&rng](size_t n) { return std::uniform_int_distribution<size_t>(0, n)(rng); };
  std::vector<TensorMeta> tensors(below(max_tensors));
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorMeta& t = tensors[i];
    for (size_t p = below(4) + 1; p > 0; --p) t.name += kPieces[below(kPieces.size() - 1)];
    t.name += std::to_string(i);
    t.dtype = AllDTypes()[below(AllDTypes().size() - 1)];
    for (size_t r = below(4); r > 0; --r) t.shape.push_back(below(7));
  }
  std::shuffle(tensors.begin(), tensors.end(), rng);
  return tensors;
}

}  // namespace deltawire
