// Readers for files that hold secrets or name them. Errors are kNotFound, kPermissionDenied, and
// kFailedPrecondition for a secret that others may read. A message names the file and never its
// content.
#pragma once

#include <string>

#include "common/base/status.h"

namespace deltawire::security {

/// Reads a whole file of at most 1 MiB.
StatusOr<std::string> ReadTextFile(const std::string& file);
/// Reads a key or token; fails when the file's mode lets all users read it.
StatusOr<std::string> ReadSecretFile(const std::string& file);
/// Reads a token file's one line, without the line's end: 16 to 4096 visible ASCII characters.
StatusOr<std::string> ReadTokenFile(const std::string& file);
/// Reads a key that another server has issued, of any length from 1 on.
StatusOr<std::string> ReadKeyFile(const std::string& file);

/// Resolves `path` against the directory of `file`, unless it is absolute.
std::string BesideFile(const std::string& file, const std::string& path);

}  // namespace deltawire::security
