// Errors about options that a program does not have. Pure functions of a CLI::App. Threads: one.
// Cost: linear in the options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace deltawire {

/// The first of `arguments` that looks like an option and is none of `app`'s, with a suggestion:
/// `there is no option --reciever; did you mean "--receiver"?`. "": all are known.
std::string UnknownOption(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace deltawire
