// Reading files that hold secrets or name them. Pure but for reading; no state.
// Errors: kNotFound, kPermissionDenied; kFailedPrecondition for a secret that others may read.
// A message names the file and never what is in it.
#pragma once

#include <string>

#include "common/base/status.h"

namespace deltawire::security {

/// The whole file, at most 1 MiB of it.
StatusOr<std::string> ReadTextFile(const std::string& file);
/// The same for a key or token: refused when its mode lets everybody read it.
StatusOr<std::string> ReadSecretFile(const std::string& file);
/// A token file's one line, without the line's end: 16 to 4096 visible ASCII characters.
StatusOr<std::string> ReadTokenFile(const std::string& file);
/// The same of a key that somebody else's server has given out, of whatever length from 1 on.
StatusOr<std::string> ReadKeyFile(const std::string& file);

/// `path`, taken from the directory of `file` unless it is absolute.
std::string BesideFile(const std::string& file, const std::string& path);

}  // namespace deltawire::security
