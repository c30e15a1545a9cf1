#include "receiver/buffer/delta_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "common/shm/delta_file.h"
#include "common/shm/dir_lock.h"
#include "common/shm/own_directory.h"

namespace deltawire::receiver {
namespace {

namespace fs = std::filesystem;

/// The last of `applied` (all of one chunk, in order) that lead from one digest to the other;
/// empty when they do not.
std::span<const AppliedDelta* const> Leading(std::span<const AppliedDelta* const> applied,
                                             uint64_t before, uint64_t after) {
  if (applied.empty() || applied.back()->digest_after != after) return {};
  for (size_t first = applied.size(); first-- > 0;) {
    if (applied[first]->digest_before == before) return applied.subspan(first);
    if (first == 0 || applied[first - 1]->digest_after != applied[first]->digest_before) break;
  }
  return {};
}

}  // namespace

DeltaFiles::DeltaFiles(fs::path directory, uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_(limit_bytes) {}

fs::path DeltaFiles::PathOf(uint64_t serial) const {
  return directory_ / fmt::format("{:012}", serial);
}

Status DeltaFiles::Start(const Buffer& buffer) {
  last_ = buffer.committed();
  digests_ = last_.empty() ? std::vector<uint64_t>() : buffer.CommittedDigests();
  files_.clear();
  bytes_ = 0;
  std::error_code error;
  if (!enabled()) {
    fs::remove_all(directory_, error);
    return absl::OkStatus();
  }
  // A reader of the weights may read their deltas: with the set-group-id bit the files in it
  // are the group's, too.
  const mode_t mode = FileModeIn(directory_.parent_path()) == 0600 ? 0700 : 02750;
  DW_RETURN_IF_ERROR(MakeOwnDirectory(directory_, mode));
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename().native();
    uint64_t serial = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), serial);
    std::error_code none;
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() ||
        !DeltaFile::Peek(entry.path()).ok()) {
      fs::remove(entry.path(), none);  // half made, or of another version of deltawire
      continue;
    }
    files_.push_back({serial, entry.file_size(none)});
    bytes_ += files_.back().bytes;
  }
  std::sort(files_.begin(), files_.end(),
            [](const File& a, const File& b) { return a.serial < b.serial; });
  if (!files_.empty()) next_serial_ = files_.back().serial + 1;
  while (files_.size() > kMaxFiles || bytes_ > limit_) DropOldest();
  return absl::OkStatus();
}

void DeltaFiles::DropOldest() {
  std::error_code error;
  fs::remove(PathOf(files_.front().serial), error);
  bytes_ -= files_.front().bytes;
  files_.pop_front();
}

Status DeltaFiles::Put(const Buffer& buffer, const Identity& to,
                       std::span<const AppliedDelta> applied) {
  if (!enabled()) return absl::OkStatus();
  std::vector<uint64_t> digests = buffer.CommittedDigests();
  const Identity from = std::exchange(last_, to);
  const std::vector<uint64_t> before = std::exchange(digests_, std::move(digests));
  if (from.empty() || from == to || before.size() != digests_.size()) return absl::OkStatus();

  std::map<uint32_t, std::vector<const AppliedDelta*>> by_chunk;
  for (const AppliedDelta& d : applied) by_chunk[d.chunk].push_back(&d);
  std::vector<DeltaFileEntry> entries;
  for (uint32_t i = 0; i < digests_.size(); ++i) {
    if (before[i] == digests_[i]) continue;
    const auto mine = by_chunk.find(i);
    const auto chain =
        Leading(mine == by_chunk.end() ? std::span<const AppliedDelta* const>()
                                       : std::span<const AppliedDelta* const>(mine->second),
                before[i], digests_[i]);
    for (const AppliedDelta* d : chain) {
      entries.push_back({i, d->digest_before, d->digest_after, d->payload});
    }
    if (chain.empty()) entries.push_back({i, before[i], digests_[i], {}});
  }

  const uint64_t bytes = DeltaFileBytes(entries);
  if (bytes > limit_) return absl::OkStatus();
  while (files_.size() >= kMaxFiles || bytes_ + bytes > limit_) DropOldest();
  DW_RETURN_IF_ERROR(WriteDeltaFile(PathOf(next_serial_),
                                    {.fingerprint = buffer.layout().fingerprint(),
                                     .digest_seed = buffer.key().seed(),
                                     .chunks = buffer.chunks().size(),
                                     .from = from,
                                     .to = to},
                                    entries));
  files_.push_back({next_serial_++, bytes});
  bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
