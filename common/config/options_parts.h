// Parts of the daemons' options: engines, groups and rate limits. Options write to
// `o` when the CLI::App parses, so `o` outlives it. Errors are kInvalidArgument and begin with the
// option's name.
#pragma once

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/config/options.h"

namespace deltawire {

void AddEngines(CLI::App& app, ReceiverOptions& o);
/// Checks that each engine has one of the receiver's models, that none is named twice, and that no
/// token travels in plaintext to another machine.
Status CheckEngines(const ReceiverOptions& o);

/// CheckGroups of group_options.h checks them.
void AddGroups(CLI::App& app, SenderOptions& o);

void AddRateLimits(CLI::App& app, RateLimits* limits);

}  // namespace deltawire
