#include "sender/agent/halves/owned_file.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/write_error.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOwnedFirstLine = "deltawire owned 1";

Status CorruptFile(const fs::path& path, std::string_view what) {
  return Errorf(StatusCode::kDataLoss, "{} {}; register the model anew", path.native(), what);
}

}  // namespace

Status WriteOwnedFile(const fs::path& path, const Coverage& coverage) {
  std::error_code ec;
  if (coverage.all()) {
    fs::remove(path, ec);
    return ec ? Errorf(StatusCode::kInternal, "remove {}: {}", path.native(), ec.message())
              : absl::OkStatus();
  }
  std::string text = fmt::format("{}\nchunks {}\n", kOwnedFirstLine, coverage.chunks());
  for (const ChunkRange& r : coverage.ranges()) text += fmt::format("{} {}\n", r.first, r.last);
  text += fmt::format("xxh3 {:016x}\n", Xxh3(AsBytes(text)));
  const fs::path hidden = path.native() + ".new";
  std::ofstream out(hidden, std::ios::binary);
  out << text;
  out.close();
  if (!out) return WriteError(hidden);
  fs::rename(hidden, path, ec);
  if (ec) return Errorf(StatusCode::kInternal, "rename {}: {}", hidden.native(), ec.message());
  return absl::OkStatus();
}

StatusOr<Coverage> ReadOwnedFile(const fs::path& path, uint32_t chunks) {
  std::error_code ec;
  if (!fs::exists(path, ec)) return Coverage::All(chunks);
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (in.bad()) return ErrnoError(fmt::format("read {}", path.native()));
  const size_t sum = text.rfind("xxh3 ");
  if (sum == std::string::npos ||
      text.substr(sum) != fmt::format("xxh3 {:016x}\n", Xxh3(AsBytes(text).first(sum)))) {
    return CorruptFile(path, "does not match its checksum");
  }
  std::istringstream lines(text.substr(0, sum));
  std::string line, word;
  uint32_t of = 0;
  if (!std::getline(lines, line) || line != kOwnedFirstLine || !(lines >> word >> of) ||
      word != "chunks" || of != chunks) {
    return CorruptFile(path,
                       fmt::format("is not of format 1, or not of a model of {} chunks", chunks));
  }
  std::vector<ChunkRange> ranges;
  for (ChunkRange r; lines >> r.first >> r.last;) ranges.push_back(r);
  if (!lines.eof() || ranges.empty()) return CorruptFile(path, "has a line that is no range");
  auto coverage = Coverage::Create(ranges, chunks);
  if (!coverage.ok()) return CorruptFile(path, MessageOf(coverage.status()));
  return coverage;
}

}  // namespace deltawire::sender
