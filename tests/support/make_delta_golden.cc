// Writes golden files of the delta format (tests/golden/delta_v2) with the scalar oracle:
//   make_delta_golden <directory>                     the frozen cases; once per format version
//   make_delta_golden <directory> --random SEED N     N others, to compare with the Python twin
// manifest.json names the cases. Each has a folder with the inputs base.bin (a pattern that
// repeats) and past.bin (fast payloads one after the other, newest first), and a file for each
// payload. tests/unit/kernels/golden_test.cc and tests/unit/kernels/delta_golden_test.py read them.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/delta/dense.h"
#include "tests/support/delta_case.h"

namespace deltawire::kernels::test {
namespace {

constexpr uint64_t kKeySeed = 0x0123456789abcdef;

Buffer EncodeDense(const DeltaCase& c, Bytes fast) {
  std::vector<std::byte> out;
  out.resize(DenseEncode(Scalar(), fast, c.old_data.size(), c.width, SIZE_MAX, out));
  return Buffer(out, 0);
}

class Writer {
 public:
  explicit Writer(std::filesystem::path dir) : dir_(std::move(dir)) {}

  /// Writes the files of one case. Of its base `pattern` elements are written; they repeat.
  void Add(const DeltaCase& c, size_t pattern, std::initializer_list<unsigned> depths,
           bool dense = false) {
    const Buffer fast = Encode(Scalar(), key_, c.old_data, c.new_data, c.width);
    const size_t elements = c.base.size() / c.width;
    std::filesystem::create_directories(dir_ / c.name);
    Write(c.name, "base", Bytes(c.base).first(std::min(pattern, elements) * c.width));
    Write(c.name, "fast", fast);
    nlohmann::json past = nlohmann::json::array(), tight = nlohmann::json::array();
    std::vector<std::byte> past_bytes;
    for (const Buffer& delta : c.past) {
      past.push_back(delta.size());
      past_bytes.insert(past_bytes.end(), Bytes(delta).begin(), Bytes(delta).end());
    }
    if (!c.past.empty()) Write(c.name, "past", past_bytes);
    for (const unsigned depth : depths) {
      const Buffer payload = EncodeTight(Scalar(), c, fast, depth);
      tight.push_back({{"depth", depth}, {"bytes", payload.size()}});
      if (payload.size() != 0) Write(c.name, "tight" + std::to_string(depth), payload);
    }
    if (dense) Write(c.name, "dense", EncodeDense(c, fast));
    cases_.push_back({{"name", c.name},
                      {"width", c.width},
                      {"elements", elements},
                      {"function", static_cast<int>(c.function)},
                      {"changed", CountChanged(c.old_data, c.new_data, c.width)},
                      {"digest_old", Hex(Scalar().digest(key_, c.old_data))},
                      {"digest_new", Hex(Scalar().digest(key_, c.new_data))},
                      {"past", past},
                      {"tight", tight},
                      {"dense", dense}});
  }

  void Finish() {
    const nlohmann::json manifest = {{"format", 2}, {"key_seed", kKeySeed}, {"cases", cases_}};
    std::ofstream(dir_ / "manifest.json") << manifest.dump(1) << "\n";
  }

 private:
  void Write(const std::string& name, const std::string& part, Bytes bytes) {
    const std::filesystem::path path = dir_ / name / (part + ".bin");
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      std::exit(1);
    }
  }
  static std::string Hex(uint64_t v) {
    std::array<char, 17> text;
    std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(v));
    return text.data();
  }

  std::filesystem::path dir_;
  const DigestKey key_{kKeySeed};
  nlohmann::json cases_ = nlohmann::json::array();
};

DeltaCase Pair(std::string name, unsigned width, const Buffer& a, const Buffer& b) {
  DeltaCase c{.name = std::move(name), .width = width};
  c.base = Buffer(a, 0);
  c.old_data = Buffer(a, 0);
  c.new_data = Buffer(b, 0);
  return c;
}

/// Adds gaps and differences of every length class, including the extreme ones.
void AddBorders(Writer& writer, unsigned width) {
  Random random(width);
  const size_t elements = 2400 / width + 1100;
  Buffer a(elements * width);
  a.Fill(random);
  Buffer b(a, 0);
  constexpr int64_t kMost = INT64_MAX;
  const unsigned unused = 64 - 8 * width;
  const int64_t differences[] = {
      1, -1, 2,  -2, 3, kMost >> unused, INT64_MIN >> unused, (kMost >> unused) - 1, 127, -128, -64,
      1, -1, 63, -3, 1};
  size_t at = 0, i = 0;
  for (const size_t gap : {0, 0, 1, 7, 253, 254, 255, 256, 0, 3, 2, 1, 0, 0, 4, 1}) {
    at += gap;
    StoreAt(b, at, width, LoadAt(a, at, width) + static_cast<uint64_t>(differences[i++]));
    ++at;
  }
  StoreAt(b, elements - 1, width, LoadAt(a, elements - 1, width) + 1);
  writer.Add(Pair("w" + std::to_string(width), width, a, b), elements, {0});
}

void AddRaw(Writer& writer, unsigned width) {
  Random random(100 + width);
  const size_t elements = width == 1 ? 43 : 40;
  Buffer a(elements * width), b(a.size());
  a.Fill(random);
  b.Fill(random);
  writer.Add(Pair("raw_w" + std::to_string(width), width, a, b), elements, {0});
}

/// Adds a sparse, an unchanged and a raw block.
void AddBlocks(Writer& writer) {
  Buffer a(2 * kBlockElements + 50), b(a.size());
  Random random(200);
  for (size_t i = 100; i < 30000; i += 1000) b.data()[i] = static_cast<std::byte>(i / 100);
  for (size_t i = 2 * kBlockElements; i < b.size(); ++i) {
    b.data()[i] = static_cast<std::byte>(random.Next() | 1);
  }
  writer.Add(Pair("blocks", 1, a, b), 1, {0});
}

/// Adds a case in which most elements change by little, as dense expects.
void AddDense(Writer& writer, unsigned width) {
  CaseShape s{"dense_w" + std::to_string(width), ClassFunction::kNone, width, 2000, 0.4, 0.3, 0};
  writer.Add(MakeDeltaCase(s, 2000, 20 + width), 2000, {0}, true);
}

void WriteFrozen(Writer& writer) {
  for (const unsigned width : kWidths) AddBorders(writer, width);
  for (const unsigned width : kWidths) AddRaw(writer, width);
  AddBlocks(writer);
  using F = ClassFunction;
  const auto add = [&](const CaseShape& shape, size_t pattern, uint64_t seed) {
    writer.Add(MakeDeltaCase(shape, pattern, seed), pattern, {0, 1, 2, 8});
  };
  add({"bf16", F::kBF16, 2, 12000, 0.01, 0.1, 8}, 1000, 1);
  add({"fp16", F::kF16, 2, 12000, 0.01, 0.1, 8}, 1000, 2);
  add({"fp32", F::kF32, 4, 12000, 0.01, 0.9, 8}, 1000, 3);
  add({"e4m3", F::kF8E4M3, 1, 12000, 0.01, 0.2, 8}, 1000, 4);
  add({"e5m2", F::kF8E5M2, 1, 12000, 0.01, 0.2, 8}, 1000, 5);
  add({"none_w2", F::kNone, 2, 3000, 0.05, 0.1, 8}, 3000, 6);
  add({"none_w8", F::kNone, 8, 8000, 0.05, 0, 8}, 500, 7);
  for (const unsigned width : kWidths) AddDense(writer, width);
  // Adds cases with four groups of one block, two groups of four blocks and one, one group of two
  // blocks.
  add({"groups4", F::kF8E4M3, 1, 3 * kBlockElements + 500, 0.017, 0.1, 8}, 2000, 8);
  add({"groups2", F::kBF16, 2, 4 * kBlockElements + 77, 0.003, 0.1, 8}, 2000, 9);
  add({"groups1", F::kBF16, 2, kBlockElements + 77, 0.0003, 0.1, 8}, 2000, 10);
}

void WriteRandom(Writer& writer, uint64_t seed, size_t count) {
  Random random(seed);
  for (size_t i = 0; i < count; ++i) {
    CaseShape s;
    s.name = "random" + std::to_string(i);
    s.function = static_cast<ClassFunction>(random.Below(6));
    s.width = s.function == ClassFunction::kNone ? kWidths[random.Below(4)] : WidthOf(s.function);
    s.elements = 1 + random.Below(i % 25 == 0 ? 150000 : size_t{1} << (1 + random.Below(13)));
    s.density = 0.5 / static_cast<double>(uint64_t{1} << random.Below(i % 25 == 0 ? 12 : 9));
    constexpr double kAny[] = {0, 0.02, 0.1, 0.9};
    s.any = kAny[random.Below(std::size(kAny))];
    s.depth = static_cast<unsigned>(random.Below(kMaxHistory + 1));
    DeltaCase c = MakeDeltaCase(s, s.elements, random.Next());
    if (CountChanged(c.old_data, c.new_data, c.width) == 0) {
      StoreAt(c.new_data, 0, s.width, LoadAt(c.new_data, 0, s.width) ^ 1);
    }
    writer.Add(c, s.elements, {0, s.depth}, i % 4 == 0);
  }
}

}  // namespace
}  // namespace deltawire::kernels::test

int main(int argc, char** argv) {
  using namespace deltawire::kernels::test;  // NOLINT(google-build-using-namespace): main only
  const bool random = argc == 5 && std::strcmp(argv[2], "--random") == 0;
  if (argc != 2 && !random) {
    std::fprintf(stderr, "usage: make_delta_golden <directory> [--random SEED N]\n");
    return 2;
  }
  Writer writer(argv[1]);
  if (random) {
    WriteRandom(writer, std::strtoull(argv[3], nullptr, 0), std::strtoull(argv[4], nullptr, 0));
  } else {
    WriteFrozen(writer);
  }
  writer.Finish();
  return 0;
}
