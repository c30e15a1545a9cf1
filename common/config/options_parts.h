// Parts of the daemons' options that belong together: a receiver's engines, and a sender's groups.
// Functions on a CLI::App, whose options write to `o` when it parses; `o` outlives it. Threads:
// one. Errors: kInvalidArgument that begins with the option's name.
#pragma once

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/config/options.h"

namespace deltawire {

void AddEngines(CLI::App& app, ReceiverOptions& o);
/// That each engine has one of the receiver's models, none is named twice, and no key goes over
/// another machine's wire in plaintext.
Status CheckEngines(const ReceiverOptions& o);

/// Their check is CheckGroups of group_options.h.
void AddGroups(CLI::App& app, SenderOptions& o);

}  // namespace deltawire
