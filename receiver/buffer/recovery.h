// The making of a Buffer: anew, or from the files that an earlier process left in its directory, at
// whatever moment it was killed. Errors name the directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "common/base/status.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

/// An error if `dir` has weight files and no receiver made it. Changes nothing, so it comes before
/// the lock, which leaves a file.
Status CheckDirectory(const std::filesystem::path& dir);
/// Returns 2 when the filesystem (and the machine, if the filesystem lives in memory) has room for
/// two and a half models, counting what this buffer's files already take; else 1.
uint32_t ChooseBuffers(const std::filesystem::path& dir, uint64_t model_bytes);
/// Makes a new buffer and drops an earlier one, even one without its state file. An error if `dir`
/// holds weight files that are not a receiver's.
StatusOr<std::unique_ptr<Buffer>> CreateBuffer(const std::filesystem::path& dir,
                                               std::shared_ptr<DirLock> lock, Layout layout,
                                               uint64_t digest_seed,
                                               const Buffer::Options& options);
/// Takes up the files in `dir`, and compares every known chunk with its digest (at memory speed, on
/// the pool). kNotFound when `dir` has no buffer; kDataLoss when its files do not fit together.
/// After an error no file in a receiver's directory has the weights' name.
StatusOr<std::unique_ptr<Buffer>> RecoverBuffer(const std::filesystem::path& dir,
                                                std::shared_ptr<DirLock> lock,
                                                const Buffer::Options& options);

}  // namespace deltawire::receiver
