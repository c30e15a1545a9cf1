#include "sender/export/shards/weight_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/write_error.h"
#include "common/layout/safetensors.h"

namespace deltawire {
namespace {

/// Flushes a file to disk and reads it back. It must contain `header`, followed by `data_bytes`
/// bytes with the digest `data_digest`.
Status SealFile(int fd, const std::filesystem::path& path, std::string_view header,
                uint64_t data_bytes, uint64_t data_digest) {
  const auto failed = [&](const char* what) {
    return ErrnoError(fmt::format("{} {}", what, path.native()));
  };
  if (::fsync(fd) != 0) return failed("write");
  // Drop cached pages, so that the reads below come from the disk.
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);

  std::vector<std::byte> block(
      std::min<uint64_t>(size_t{4} << 20, std::max<uint64_t>(header.size(), data_bytes)));
  const uint64_t end = header.size() + data_bytes;
  Xxh3Stream data;
  for (uint64_t at = 0; at < end;) {
    // Read the header separately first.
    const uint64_t stop = at < header.size() ? header.size() : end;
    const ssize_t n = ::pread(fd, block.data(), std::min<uint64_t>(block.size(), stop - at),
                              static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("read back");
    const Bytes got = Bytes(block).first(static_cast<size_t>(n));
    const bool same = n > 0 && (at >= header.size() ||
                                std::memcmp(got.data(), header.data() + at, got.size()) == 0);
    if (!same) {
      return Errorf(StatusCode::kDataLoss, "{} reads otherwise than it was written; check the disk",
                    path.native());
    }
    if (at >= header.size()) data.Update(got);
    at += got.size();
  }
  if (data.Digest() == data_digest) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{} reads otherwise than it was written; check the disk",
                path.native());
}

}  // namespace

StatusOr<WeightFile> WeightFile::Create(const std::filesystem::path& path, Layout layout,
                                        const Metadata& metadata) {
  WeightFile file(path, std::move(layout));
  const std::string header = BuildSafetensorsHeader(file.layout_, metadata);
  const uint64_t bytes = header.size() + file.layout_.total_bytes();
  DW_ASSIGN_OR_RETURN(FileBuilder builder, FileBuilder::Start(path, bytes));
  DW_ASSIGN_OR_RETURN(file.map_, Mapping::Map(builder.fd(), bytes, /*writable=*/true, path));
  DW_RETURN_IF_ERROR(builder.Allocate());
  std::memcpy(file.map_.base(), header.data(), header.size());
  DW_RETURN_IF_ERROR(builder.Publish());
  file.fd_ = builder.TakeFd();
  file.header_bytes_ = header.size();
  return file;
}

uint64_t WeightFile::Digest() const {
  return Xxh3({map_.base() + header_bytes_, layout_.total_bytes()});
}

Status WeightFile::Mark(const Metadata& metadata) {
  const std::string header = BuildSafetensorsHeader(layout_, metadata);
  if (header.size() != header_bytes_) {
    return Errorf(StatusCode::kInternal, "{}: a header of {} bytes where {} were reserved",
                  path_.native(), header.size(), header_bytes_);
  }
  std::memcpy(map_.base(), header.data(), header.size());
  return absl::OkStatus();
}

Status WeightFile::Seal(uint64_t digest) {
  const std::string header(reinterpret_cast<const char*>(map_.base()), header_bytes_);
  if (::msync(map_.base(), map_.bytes(), MS_SYNC) != 0) {
    return WriteError(path_);
  }
  map_ = Mapping();
  return SealFile(fd_.get(), path_, header, layout_.total_bytes(), digest);
}

Status WriteSealed(const std::filesystem::path& path, std::string_view content) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd.get() < 0) return ErrnoError(fmt::format("create {}", path.native()));
  for (std::string_view rest = content; !rest.empty();) {
    const ssize_t n = ::write(fd.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError(path);
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return SealFile(fd.get(), path, content, 0, Xxh3({}));
}

}  // namespace deltawire
