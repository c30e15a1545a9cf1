#include "sender/export/rendezvous_dir.h"

#include <gloo/rendezvous/file_store.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace deltawire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view kFilePrefix = "file:";
constexpr size_t kMissingNamed = 8;

bool IsWord(const std::string& job) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !job.empty() && job != "." && job != ".." && std::all_of(job.begin(), job.end(), good);
}

}  // namespace

struct RendezvousDir::Impl {
  explicit Impl(std::string dir) : path(std::move(dir)), store(path) {}

  bool Has(const std::string& key) {
    try {
      store.wait({key}, milliseconds(1));  // zero would be for ever
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  const std::string path;
  gloo::rendezvous::FileStore store;
};

RendezvousDir::RendezvousDir(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RendezvousDir::RendezvousDir(RendezvousDir&&) noexcept = default;
RendezvousDir& RendezvousDir::operator=(RendezvousDir&&) noexcept = default;
RendezvousDir::~RendezvousDir() = default;

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
  const fs::path dir = base / job;
  fs::create_directory(dir, ec);
  if (ec) return ErrnoError("mkdir " + dir.string(), ec.value());
  try {
    return RendezvousDir(std::make_unique<Impl>(dir.string()));
  } catch (const std::exception& e) {
    return Errorf(StatusCode::kInternal, "rendezvous directory {}: {}", dir.string(), e.what());
  }
}

Status RendezvousDir::Set(const std::string& key, std::span<const char> value) {
  if (impl_->Has(key)) {
    return Errorf(
        StatusCode::kAlreadyExists,
        "rendezvous directory {} has '{}' already: take a new job name, or give every rank "
        "its own number",
        impl_->path, key);
  }
  try {
    impl_->store.set(key, {value.begin(), value.end()});
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return Errorf(StatusCode::kInternal, "writing '{}' into rendezvous directory {}: {}", key,
                  impl_->path, e.what());
  }
}

StatusOr<std::vector<std::vector<char>>> RendezvousDir::WaitForAll(
    const std::vector<std::string>& keys, Clock::time_point deadline) {
  std::vector<std::vector<char>> values;
  for (size_t k = 0; k < keys.size(); ++k) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      impl_->store.wait({keys[k]},
                        std::clamp(left, milliseconds(1), milliseconds(std::chrono::hours(24))));
      values.push_back(impl_->store.get(keys[k]));
    } catch (const std::exception& e) {
      std::string missing;
      size_t count = 0;
      for (size_t m = k; m < keys.size() && count < kMissingNamed; ++m) {
        if (impl_->Has(keys[m])) continue;
        missing += (count++ == 0 ? "" : ", ") + keys[m];
      }
      if (count == 0) {
        return Errorf(StatusCode::kInternal, "reading '{}' from rendezvous directory {}: {}",
                      keys[k], impl_->path, e.what());
      }
      return Errorf(StatusCode::kDeadlineExceeded,
                    "{}{} did not come to rendezvous directory {} in time", missing,
                    count == kMissingNamed ? " and maybe more" : "", impl_->path);
    }
  }
  return values;
}

std::optional<std::string> RendezvousDir::Find(const std::string& key) {
  if (!impl_->Has(key)) return std::nullopt;
  try {
    const std::vector<char> value = impl_->store.get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace deltawire
