#include "common/security/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "common/base/unique_fd.h"

namespace deltawire::security {
namespace {

constexpr size_t kMost = size_t{1} << 20;
constexpr size_t kLeastToken = 16, kMostToken = 4096;

StatusOr<std::string> Read(const std::string& file, bool secret) {
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError("open " + file);
  struct stat at {};
  if (fstat(fd.get(), &at) != 0) return ErrnoError("stat " + file);
  if (!S_ISREG(at.st_mode)) {
    return Errorf(StatusCode::kInvalidArgument, "{} is not a regular file", file);
  }
  if (secret && (at.st_mode & S_IRWXO) != 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} holds a secret, and its mode {:04o} lets every user of this machine at it: "
                  "chmod 600, or 640 with a group of its own",
                  file, static_cast<unsigned>(at.st_mode & 07777));
  }
  std::string text(kMost + 1, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("read " + file);
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  if (have > kMost) {
    return Errorf(StatusCode::kInvalidArgument, "{} has more than {} bytes", file, kMost);
  }
  text.resize(have);
  return text;
}

/// Reads a secret file's one line, of `least` to kMostToken visible characters. `hint` ends the
/// error message.
StatusOr<std::string> ReadLine(const std::string& file, size_t least, std::string_view hint) {
  DW_ASSIGN_OR_RETURN(std::string text, Read(file, true));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  if (text.size() < least || text.size() > kMostToken ||
      !std::all_of(text.begin(), text.end(), visible)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{} is not one line of {} to {} visible ASCII characters{}", file, least,
                  kMostToken, hint);
  }
  return text;
}

}  // namespace

StatusOr<std::string> ReadTextFile(const std::string& file) { return Read(file, false); }

StatusOr<std::string> ReadSecretFile(const std::string& file) { return Read(file, true); }

StatusOr<std::string> ReadTokenFile(const std::string& file) {
  return ReadLine(file, kLeastToken, "; `deltawire certs --token` makes a token");
}

StatusOr<std::string> ReadKeyFile(const std::string& file) { return ReadLine(file, 1, ""); }

std::string BesideFile(const std::string& file, const std::string& path) {
  return (std::filesystem::path(file).parent_path() / path).lexically_normal().string();
}

}  // namespace deltawire::security
