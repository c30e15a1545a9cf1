// Everything below a directory as text, to show that a program has changed none of it. Plain
// functions. Cost: reads every file.
#pragma once

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "common/base/checksum.h"
#include "common/base/status.h"

namespace deltawire::testing {

/// Inode, mode, owner and times of a file or directory, and its bytes' hash or its link's target.
inline std::string DescribeFile(const std::filesystem::path& path) {
  struct stat info;
  REQUIRE(::lstat(path.c_str(), &info) == 0);
  std::string content;
  if (S_ISLNK(info.st_mode)) content = std::filesystem::read_symlink(path).native();
  if (S_ISREG(info.st_mode)) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    content = fmt::format("{:016x}", Xxh3(AsBytes(bytes)));
  }
  return fmt::format("inode {} mode {:o} of {}:{} changed {}.{:09} {}", info.st_ino, info.st_mode,
                     info.st_uid, info.st_gid, info.st_ctim.tv_sec, info.st_ctim.tv_nsec, content);
}

inline std::map<std::string, std::string> SnapshotOf(const std::filesystem::path& dir) {
  std::map<std::string, std::string> all = {{".", DescribeFile(dir)}};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    all[entry.path().lexically_relative(dir).native()] = DescribeFile(entry.path());
  }
  return all;
}

}  // namespace deltawire::testing
