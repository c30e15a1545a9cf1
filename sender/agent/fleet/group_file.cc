#include "sender/agent/fleet/group_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "common/base/log.h"
#include "common/base/unique_fd.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kGroupsFirstLine = "deltawire groups 1";
constexpr size_t kMostBytes = 16 << 20;
// The beginnings of the lines after the first.
constexpr std::string_view kLineage = "lineage ", kGroup = "group ", kMember = "member ",
                           kChecksum = "xxh3 ";

Status Bad(std::string_view what) {
  return Errorf(StatusCode::kDataLoss, "the file of groups {}", what);
}

/// Takes the text up to the next newline off `rest`. Returns nullopt when `rest` has no newline.
std::optional<std::string_view> TakeLine(std::string_view& rest) {
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return line;
}

std::string_view TakeWord(std::string_view& rest) {
  const size_t end = std::min(rest.find(' '), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return word;
}

template <int base = 10>
bool TakeNumber(std::string_view& rest, uint64_t& value) {
  const std::string_view word = TakeWord(rest);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  return error == std::errc() && end == word.data() + word.size() && !word.empty();
}

/// "NAME standing|named ROUND EPOCH VERSION ROOT ATTEMPT".
StatusOr<KeptGroup> ParseGroup(std::string_view line, const Hash128& lineage) {
  KeptGroup group;
  group.name = TakeWord(line);
  const std::string_view kind = TakeWord(line);
  group.standing = kind == "standing";
  Identity& state = group.decision.state;
  state.lineage = lineage;
  const bool whole = TakeNumber(line, group.decision.round) && TakeNumber(line, state.id.epoch) &&
                     TakeNumber(line, state.id.version) && TakeNumber<16>(line, state.root) &&
                     TakeNumber<16>(line, state.attempt) && line.empty();
  if (whole && !group.name.empty() && (group.standing || kind == "named")) return group;
  return Bad("has a line that begins with \"group\" and is not as docs/groups.md says");
}

}  // namespace

std::string GroupFileText(const KeptGroups& kept) {
  std::string text = fmt::format("{}\n{}{}\n", kGroupsFirstLine, kLineage, kept.lineage.Hex());
  for (const KeptGroup& g : kept.groups) {
    const Identity& state = g.decision.state;
    text += fmt::format("{}{} {} {} {} {} {:016x} {:016x}\n", kGroup, g.name,
                        g.standing ? "standing" : "named", g.decision.round, state.id.epoch,
                        state.id.version, state.root, state.attempt);
    for (const std::string& id : g.members) text += fmt::format("{}{}\n", kMember, id);
  }
  return text + fmt::format("{}{:016x}\n", kChecksum, Xxh3(AsBytes(text)));
}

StatusOr<KeptGroups> ParseGroupFile(std::string_view text) {
  const size_t sum = text.rfind(kChecksum);
  if (sum == std::string_view::npos ||
      text.substr(sum) !=
          fmt::format("{}{:016x}\n", kChecksum, Xxh3(AsBytes(text.substr(0, sum))))) {
    return Bad("does not match its checksum");
  }
  std::string_view rest = text.substr(0, sum);
  if (TakeLine(rest) != kGroupsFirstLine) return Bad("is not of format 1");
  KeptGroups kept;
  const auto lineage = TakeLine(rest);
  if (!lineage || !lineage->starts_with(kLineage)) return Bad("names no lineage");
  const auto parsed = Hash128::FromHex(lineage->substr(kLineage.size()));
  if (!parsed) return Bad("names no lineage");
  kept.lineage = *parsed;
  while (const auto line = TakeLine(rest)) {
    if (line->starts_with(kGroup)) {
      DW_ASSIGN_OR_RETURN(KeptGroup group, ParseGroup(line->substr(kGroup.size()), kept.lineage));
      kept.groups.push_back(std::move(group));
    } else if (line->starts_with(kMember) && line->size() > kMember.size() &&
               !kept.groups.empty()) {
      kept.groups.back().members.emplace_back(line->substr(kMember.size()));
    } else {
      return Bad("has a line that is neither a group's nor a member's");
    }
  }
  if (!rest.empty()) return Bad("has a line without an end");
  return kept;
}

Status WriteGroupFile(const fs::path& path, const KeptGroups& kept) {
  const fs::path hidden = path.native() + ".new";
  const std::string text = GroupFileText(kept);
  std::string_view left = text;
  {
    const UniqueFd fd(::open(hidden.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (fd.get() < 0) return ErrnoError(fmt::format("create {}", hidden.native()));
    while (!left.empty()) {
      const ssize_t n = ::write(fd.get(), left.data(), left.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoError(fmt::format("write {}", hidden.native()));
      left.remove_prefix(static_cast<size_t>(n));
    }
    if (::fsync(fd.get()) != 0) return ErrnoError(fmt::format("fsync {}", hidden.native()));
  }
  // The decision stands from here on.
  if (::rename(hidden.c_str(), path.c_str()) != 0) {
    return ErrnoError(fmt::format("rename {} to {}", hidden.native(), path.native()));
  }
  const UniqueFd directory(::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A failure of this cannot take the decision back, since a crash may follow the rename anyway.
  if (directory.get() < 0 || ::fsync(directory.get()) != 0) {
    LogWarn("{}: fsync of its directory: {}; a crash of the machine may lose the last decision",
            path.native(), std::strerror(errno));
  }
  return absl::OkStatus();
}

StatusOr<KeptGroups> ReadGroupFile(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 && errno == ENOENT) return KeptGroups{};
  if (fd.get() < 0) return ErrnoError(fmt::format("open {}", path.native()));
  std::string text;
  char piece[16384];
  while (true) {
    const ssize_t n = ::read(fd.get(), piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(fmt::format("read {}", path.native()));
    if (n == 0) break;
    text.append(piece, static_cast<size_t>(n));
    if (text.size() > kMostBytes) return Bad("is too large");
  }
  auto kept = ParseGroupFile(text);
  if (!kept.ok()) return Annotate(kept.status(), path.native());
  return kept;
}

}  // namespace deltawire::sender
