#include "common/shm/delta_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "common/base/unique_fd.h"

namespace deltawire {
namespace {

// The byte table is in docs/delta_file.md. Little-endian, as bytes.h asserts.

constexpr char kMagic[9] = "DWDELTA1";
constexpr uint32_t kFormatVersion = 1;

struct StoredIdentity {
  uint64_t lineage_hi;
  uint64_t lineage_lo;
  uint64_t epoch;
  uint64_t version;
  uint64_t root;
  uint64_t reserved[2];
};

struct Header {
  char magic[8];
  uint32_t format;
  uint32_t header_bytes;
  uint64_t file_bytes;
  uint64_t fingerprint_hi;
  uint64_t fingerprint_lo;
  uint64_t digest_seed;
  uint32_t chunks;
  uint32_t entries;
  StoredIdentity from;
  StoredIdentity to;
  uint64_t reserved[2];
  uint64_t checksum;
};
constexpr size_t kHeaderBytes = 8 + 4 + 4 + 8 + 2 * 8 + 8 + 4 + 4 + 2 * 56 + 2 * 8 + 8;
static_assert(sizeof(Header) == kHeaderBytes && kHeaderBytes == 192);
constexpr size_t kCheckedHeaderBytes = kHeaderBytes - sizeof(Header::checksum);

struct Entry {
  uint32_t chunk;
  uint32_t kind;
  uint64_t digest_before;
  uint64_t digest_after;
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(Entry) == 40);
enum Kind : uint32_t { kWhole = 0, kFast = 1 };

StoredIdentity Stored(const Identity& i) {
  return {i.lineage.hi, i.lineage.lo, i.id.epoch, i.id.version, i.root, {}};
}

Identity IdentityOf(const StoredIdentity& s) {
  return {.lineage = {.hi = s.lineage_hi, .lo = s.lineage_lo},
          .id = {s.epoch, s.version},
          .root = s.root};
}

bool ReservedAreZero(const Header& h) {
  uint64_t all = h.reserved[0] | h.reserved[1];
  for (const StoredIdentity* i : {&h.from, &h.to}) all |= i->reserved[0] | i->reserved[1];
  return all == 0;
}

uint64_t ChecksumOf(Bytes file) {
  Xxh3Stream sum;
  sum.Update(file.first(kCheckedHeaderBytes));
  sum.Update(file.subspan(kHeaderBytes));
  return sum.Digest();
}

Status NotOne(const std::filesystem::path& path, std::string_view why) {
  return Errorf(StatusCode::kDataLoss,
                "{} is not a delta file of this version of deltawire, or incomplete: {}",
                path.native(), why);
}

StatusOr<DeltaFileHead> HeadOf(const std::filesystem::path& path, const Header& h,
                               uint64_t file_bytes) {
  if (std::memcmp(h.magic, kMagic, sizeof h.magic) != 0) return NotOne(path, "another magic");
  if (h.format != kFormatVersion || h.header_bytes != kHeaderBytes) {
    return NotOne(path, fmt::format("format {}", h.format));
  }
  if (h.file_bytes != file_bytes) return NotOne(path, "it was cut short");
  if (!ReservedAreZero(h)) return NotOne(path, "a reserved field is set");
  if (h.entries > (file_bytes - kHeaderBytes) / sizeof(Entry)) {
    return NotOne(path, "it has no room for its entries");
  }
  return DeltaFileHead{.fingerprint = {.hi = h.fingerprint_hi, .lo = h.fingerprint_lo},
                       .digest_seed = h.digest_seed,
                       .chunks = h.chunks,
                       .from = IdentityOf(h.from),
                       .to = IdentityOf(h.to)};
}

StatusOr<std::vector<DeltaFileEntry>> ReadEntries(const std::filesystem::path& path, Bytes file,
                                                  uint32_t count, uint32_t chunks) {
  std::vector<DeltaFileEntry> entries;
  entries.reserve(count);
  uint64_t at = kHeaderBytes + uint64_t{count} * sizeof(Entry);
  for (uint32_t i = 0; i < count; ++i) {
    Entry e;
    std::memcpy(&e, file.data() + kHeaderBytes + i * sizeof e, sizeof e);
    if (e.chunk >= chunks) return NotOne(path, "an entry of a chunk that the model has not");
    if (e.kind == kWhole
            ? e.offset != 0 || e.bytes != 0
            : e.kind != kFast || e.offset != at || e.bytes == 0 || e.bytes > file.size() - at) {
      return NotOne(path, fmt::format("entry {} is malformed", i));
    }
    if (!entries.empty()) {
      const DeltaFileEntry& before = entries.back();
      const bool chained = e.chunk == before.chunk && e.kind == kFast && !before.whole() &&
                           e.digest_before == before.digest_after;
      if (e.chunk <= before.chunk && !chained) return NotOne(path, "its entries are out of order");
    }
    entries.push_back({e.chunk, e.digest_before, e.digest_after,
                       e.kind == kWhole ? Bytes() : file.subspan(at, e.bytes)});
    at += e.bytes;
  }
  if (at != file.size()) return NotOne(path, "bytes that no entry names");
  return entries;
}

}  // namespace

uint64_t DeltaFileBytes(std::span<const DeltaFileEntry> entries) {
  uint64_t bytes = kHeaderBytes + entries.size() * sizeof(Entry);
  for (const DeltaFileEntry& e : entries) bytes += e.payload.size();
  return bytes;
}

Status WriteDeltaFile(const std::filesystem::path& path, const DeltaFileHead& head,
                      std::span<const DeltaFileEntry> entries) {
  const uint64_t bytes = DeltaFileBytes(entries);
  DW_ASSIGN_OR_RETURN(FileBuilder builder, FileBuilder::Start(path, bytes));
  DW_RETURN_IF_ERROR(builder.Allocate());
  DW_ASSIGN_OR_RETURN(Mapping map, Mapping::Map(builder.fd(), bytes, true, path));
  uint64_t at = kHeaderBytes + entries.size() * sizeof(Entry);
  for (size_t i = 0; i < entries.size(); ++i) {
    const DeltaFileEntry& from = entries[i];
    const Entry e{.chunk = from.chunk,
                  .kind = from.whole() ? kWhole : kFast,
                  .digest_before = from.digest_before,
                  .digest_after = from.digest_after,
                  .offset = from.whole() ? 0 : at,
                  .bytes = from.payload.size()};
    std::memcpy(map.base() + kHeaderBytes + i * sizeof e, &e, sizeof e);
    if (from.whole()) continue;
    std::memcpy(map.base() + at, from.payload.data(), from.payload.size());
    at += from.payload.size();
  }
  Header h{};
  h.format = kFormatVersion;
  h.header_bytes = kHeaderBytes;
  h.file_bytes = bytes;
  h.fingerprint_hi = head.fingerprint.hi;
  h.fingerprint_lo = head.fingerprint.lo;
  h.digest_seed = head.digest_seed;
  h.chunks = head.chunks;
  h.entries = static_cast<uint32_t>(entries.size());
  h.from = Stored(head.from);
  h.to = Stored(head.to);
  std::memcpy(h.magic, kMagic, sizeof h.magic);
  std::memcpy(map.base(), &h, sizeof h);
  h.checksum = ChecksumOf({map.base(), bytes});
  std::memcpy(map.base(), &h, sizeof h);
  return builder.Publish();
}

std::optional<uint64_t> DeltaBeingWritten(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().native();
    if (!name.starts_with('.') || !name.ends_with(".new")) continue;  // FileBuilder's hidden name
    const uint64_t bytes = entry.file_size(error);
    if (!error) return bytes;
  }
  return std::nullopt;
}

StatusOr<DeltaFileHead> DeltaFile::Peek(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat file;
  if (fd.get() < 0 || ::fstat(fd.get(), &file) != 0) {
    return ErrnoError(fmt::format("open {}", path.native()));
  }
  Header h;
  if (::pread(fd.get(), &h, sizeof h, 0) != sizeof h) return NotOne(path, "it was cut short");
  return HeadOf(path, h, static_cast<uint64_t>(file.st_size));
}

StatusOr<DeltaFile> DeltaFile::Open(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0) {
    return ErrnoError(fmt::format("open {}", path.native()));
  }
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (bytes < kHeaderBytes) return NotOne(path, "it was cut short");
  DeltaFile file;
  DW_ASSIGN_OR_RETURN(file.map_, Mapping::Map(fd.get(), bytes, false, path));
  const Bytes all(file.map_.base(), bytes);
  Header h;
  std::memcpy(&h, all.data(), sizeof h);
  DW_ASSIGN_OR_RETURN(file.head_, HeadOf(path, h, bytes));
  if (h.checksum != ChecksumOf(all)) return NotOne(path, "its checksum is another");
  DW_ASSIGN_OR_RETURN(file.entries_, ReadEntries(path, all, h.entries, h.chunks));
  return file;
}

}  // namespace deltawire
