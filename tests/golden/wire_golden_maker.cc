// Writes wire version 4's golden files or the fuzz target's corpus into a directory, or prints the
// worked example of docs/wire_format.md. It stays for whoever adds a wire version; the golden files
// of a released version are never made again.
//   wire_golden_maker DIRECTORY | --corpus DIRECTORY | --example
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tests/golden/wire_samples.h"

namespace {

namespace samples = deltawire::wire::samples;

int WriteAll(const std::vector<samples::Golden>& files, const std::filesystem::path& directory) {
  for (const samples::Golden& g : files) {
    const auto path = directory / g.name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(g.bytes.data()),
              static_cast<std::streamsize>(g.bytes.size()));
    if (!out.flush()) {
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc == 2 && first == "--example") {
    std::fputs(samples::DocumentExample().c_str(), stdout);
    return 0;
  }
  if (argc == 3 && first == "--corpus") return WriteAll(samples::FuzzCorpus(), argv[2]);
  if (argc == 2 && !first.starts_with("-")) return WriteAll(samples::GoldenFiles(), argv[1]);
  std::fputs("usage: wire_golden_maker DIRECTORY | --corpus DIRECTORY | --example\n", stderr);
  return 2;
}
