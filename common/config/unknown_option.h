// The error for an option that a program does not have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace deltawire {

/// Returns a message about the first of `arguments` that looks like an option of `app` but is none:
/// `there is no option --reciever; did you mean "--receiver"?`. Returns "" if all are known.
std::string UnknownOption(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace deltawire
