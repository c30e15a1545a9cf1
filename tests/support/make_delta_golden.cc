// Writes cases of the delta format with the scalar oracle:
//   make_delta_golden <directory>                     the golden ones (delta_golden_cases.h)
//   make_delta_golden <directory> --random SEED N     N others, to compare with the Python twin
// manifest.json names the cases. Each has a folder with a file for each payload, and with the
// inputs base.bin and past.bin (fast payloads one after the other, newest first). Once per format
// version, manifest and payloads of the golden cases become a folder of tests/golden; the inputs
// are made again by every test: tests/unit/kernels/golden_test.cc and delta_golden_test.py.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/delta/dense.h"
#include "tests/support/delta_golden_cases.h"

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

  void Add(const GoldenCase& golden) {
    const DeltaCase& c = golden.c;
    const Buffer fast = Encode(Scalar(), key_, c.old_data, c.new_data, c.width);
    std::filesystem::create_directories(dir_ / c.name);
    Write(c.name, "base", c.base);
    Write(c.name, "fast", fast);
    nlohmann::json past = nlohmann::json::array(), tight = nlohmann::json::array();
    std::vector<std::byte> past_bytes;
    for (const Buffer& delta : c.past) {
      past.push_back(delta.size());
      past_bytes.insert(past_bytes.end(), Bytes(delta).begin(), Bytes(delta).end());
    }
    if (!c.past.empty()) Write(c.name, "past", past_bytes);
    for (const unsigned depth : golden.depths) {
      const Buffer payload = EncodeTight(Scalar(), c, fast, depth);
      tight.push_back({{"depth", depth}, {"bytes", payload.size()}});
      if (payload.size() != 0) Write(c.name, "tight" + std::to_string(depth), payload);
    }
    if (golden.dense) Write(c.name, "dense", EncodeDense(c, fast));
    cases_.push_back({{"name", c.name},
                      {"width", c.width},
                      {"elements", c.base.size() / c.width},
                      {"function", static_cast<int>(c.function)},
                      {"changed", CountChanged(c.old_data, c.new_data, c.width)},
                      {"digest_old", Hex(Scalar().digest(key_, c.old_data))},
                      {"digest_new", Hex(Scalar().digest(key_, c.new_data))},
                      {"past", past},
                      {"tight", tight},
                      {"dense", golden.dense}});
  }

  void Finish() {
    const nlohmann::json manifest = {{"format", 3}, {"key_seed", kKeySeed}, {"cases", cases_}};
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
    writer.Add({std::move(c), {0, s.depth}, i % 4 == 0});
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
    for (const GoldenCase& golden : GoldenCases()) writer.Add(golden);
  }
  writer.Finish();
  return 0;
}
