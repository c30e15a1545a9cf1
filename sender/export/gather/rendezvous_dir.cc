#include "sender/export/gather/rendezvous_dir.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

namespace deltawire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kFilePrefix = "file:";
constexpr size_t kMissingNamed = 8;
// The pause between two checks. inotify would not report changes made by other machines.
constexpr std::chrono::milliseconds kPoll{5};

bool IsWord(const std::string& job) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !job.empty() && job != "." && job != ".." && std::all_of(job.begin(), job.end(), good);
}

}  // namespace

StatusOr<RendezvousDir> RendezvousDir::Open(const std::string& where, const std::string& job) {
  if (!where.starts_with(kFilePrefix)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "rendezvous '{}': give file:DIR, a directory that all ranks share", where);
  }
  if (!IsWord(job)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "job name '{}': letters, digits, '.', '_' and '-' only, at least one", job);
  }
  const fs::path base = where.substr(kFilePrefix.size());
  std::error_code ec;
  if (!fs::is_directory(base, ec)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "rendezvous directory {} is not there: make it before the ranks start",
                  base.string());
  }
  RendezvousDir dir(base / job);
  fs::create_directory(dir.path_, ec);
  if (ec) return ErrnoError("mkdir " + dir.path_.string(), ec.value());
  return dir;
}

Status RendezvousDir::Set(const std::string& key, std::span<const char> value) {
  const fs::path path = path_ / key;
  const fs::path unfinished = path_ / fmt::format(".{}.{}", key, getpid());
  std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
  out.write(value.data(), static_cast<std::streamsize>(value.size()));
  out.close();
  if (!out) return ErrnoError("write " + unfinished.string());
  // With link the entry appears whole and never replaces another rank's.
  const int linked = link(unfinished.c_str(), path.c_str());
  const int error = errno;
  unlink(unfinished.c_str());
  if (linked == 0) return absl::OkStatus();
  if (error != EEXIST) return ErrnoError("link " + path.string(), error);
  return Errorf(StatusCode::kAlreadyExists,
                "rendezvous directory {} has '{}' already: take a new job name, or give every rank "
                "its own number",
                path_.string(), key);
}

StatusOr<std::vector<std::string>> RendezvousDir::WaitForAll(const std::vector<std::string>& keys,
                                                             Clock::time_point deadline) {
  std::vector<std::string> values;
  while (values.size() < keys.size()) {
    if (auto value = Find(keys[values.size()])) {
      values.push_back(std::move(*value));
      continue;
    }
    if (Clock::now() < deadline) {
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    std::string missing;
    size_t count = 0;
    for (size_t k = values.size(); k < keys.size() && count < kMissingNamed; ++k) {
      if (!Find(keys[k])) missing += (count++ == 0 ? "" : ", ") + keys[k];
    }
    return Errorf(StatusCode::kDeadlineExceeded,
                  "{}{} did not come to rendezvous directory {} in time", missing,
                  count == kMissingNamed ? " and maybe more" : "", path_.string());
  }
  return values;
}

std::optional<std::string> RendezvousDir::Find(const std::string& key) const {
  std::ifstream in(path_ / key, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace deltawire
