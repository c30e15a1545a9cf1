// Writes tests/golden/delta_v1_*: make_delta_golden <directory>. Run it once for a new format
// version; files of a released version never change. Cases are described in the manifest,
// delta_v1.json, which the C++ test and the Python decoder read.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test {
namespace {

constexpr uint64_t kKeySeed = 0x0123456789abcdef;

void Write(const std::filesystem::path& path, Bytes bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::exit(1);
  }
}

nlohmann::json WriteCase(const std::filesystem::path& dir, const std::string& name, unsigned width,
                         Bytes old_data, Bytes new_data) {
  const DigestKey key(kKeySeed);
  const Buffer payload = Encode(Scalar(), key, old_data, new_data, width);
  Write(dir / ("delta_v1_" + name + "_old.bin"), old_data);
  Write(dir / ("delta_v1_" + name + "_new.bin"), new_data);
  Write(dir / ("delta_v1_" + name + "_payload.bin"), payload);
  const auto hex = [](uint64_t v) {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(v));
    return std::string(text);
  };
  return {{"name", name},
          {"width", width},
          {"changed", CountChanged(old_data, new_data, width)},
          {"digest_old", hex(Scalar().digest(key, old_data))},
          {"digest_new", hex(Scalar().digest(key, new_data))}};
}

/// Gaps of every length class, and differences on both sides of every border.
nlohmann::json WriteSparse(const std::filesystem::path& dir, unsigned width) {
  Random random(width);
  const size_t elements = 2400 / width + 1100;
  Buffer a(elements * width), b(elements * width);
  a.Fill(random);
  std::memcpy(b.data(), a.data(), a.size());
  const int64_t differences[] = {1,   -1,  2,    127, -127, 128,   -128,      129,
                                 255, 256, -256, 300, -3,   32767, INT64_MIN, 5};
  size_t at = 0, i = 0;
  for (const size_t gap : {0, 0, 1, 7, 253, 254, 255, 256, 0, 3, 2, 1, 0, 0, 4, 1}) {
    at += gap;
    StoreAt(b, at, width, LoadAt(a, at, width) + static_cast<uint64_t>(differences[i++]));
    ++at;
  }
  StoreAt(b, elements - 1, width, LoadAt(a, elements - 1, width) + 1);
  return WriteCase(dir, "w" + std::to_string(width), width, a, b);
}

int Run(const std::filesystem::path& dir) {
  nlohmann::json cases = nlohmann::json::array();
  for (const unsigned width : kWidths) cases.push_back(WriteSparse(dir, width));
  for (const unsigned width : kWidths) {
    Random random(100 + width);
    Buffer a(40 * width + (width == 1 ? 3 : 0)), b(a.size());
    a.Fill(random);
    b.Fill(random);
    cases.push_back(WriteCase(dir, "raw_w" + std::to_string(width), width, a, b));
  }
  // Blocks: sparse, same, raw. Quiet bytes, so that the files compress to nothing.
  Buffer a(2 * kBlockElements + 50), b(a.size());
  for (size_t i = 100; i < 30000; i += 1000) b.data()[i] = static_cast<std::byte>(i / 100);
  for (size_t i = 2 * kBlockElements; i < b.size(); ++i) b.data()[i] = std::byte{0xff};
  cases.push_back(WriteCase(dir, "blocks", 1, a, b));
  const nlohmann::json manifest = {
      {"format", 1}, {"key_seed", kKeySeed}, {"cases", std::move(cases)}};
  std::ofstream(dir / "delta_v1.json") << manifest.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace deltawire::kernels::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_delta_golden <directory>\n");
    return 2;
  }
  return deltawire::kernels::test::Run(argv[1]);
}
