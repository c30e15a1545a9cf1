// One rank's file of a shard directory (docs/shard_format.md): the rank's parameters, and the
// file's marks, which are checked before any of its bytes are used. The file is mapped, not read.
// Errors name the file, the values found and the values expected.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/shm/mapped_file.h"
#include "sender/export/mcore/transfer.h"
#include "sender/export/shards/weight_file.h"

namespace deltawire {

/// "rank_00007.safetensors".
std::string RankFileName(uint32_t rank);

/// A rank file's description of itself, under "__metadata__".
struct RankMarks {
  uint32_t rank = 0;
  uint32_t world = 1;
  std::string family;
  std::string parallel;  ///< JSON, on one line
  /// 16 hex digits that identify the HF weights from which all files of the directory are cut.
  std::string model;
  uint64_t digest = 0;  ///< XXH3-64 of the data section

  WeightFile::Metadata ToMetadata() const;
  /// Returns nullopt for a file without marks. Incomplete marks, or marks of another version, are
  /// kInvalidArgument.
  static StatusOr<std::optional<RankMarks>> From(const WeightFile::Metadata& metadata);
};

class RankFile {
 public:
  static StatusOr<RankFile> Open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// nullopt: another program wrote the file.
  const std::optional<RankMarks>& marks() const { return marks_; }
  const std::vector<mcore::LiveParam>& params() const { return params_; }
  /// Returns the bytes of params()[i], mapped for reading only.
  Bytes data(size_t i) const { return data_[i]; }
  /// Fails with kDataLoss unless the data section has the digest in the marks. It reads the whole
  /// file. REQUIRES: marks().
  Status CheckDigest() const;

 private:
  RankFile() = default;
  std::filesystem::path path_;
  Mapping map_;
  uint64_t data_offset_ = 0;
  std::optional<RankMarks> marks_;
  std::vector<mcore::LiveParam> params_;
  std::vector<Bytes> data_;
};

}  // namespace deltawire
