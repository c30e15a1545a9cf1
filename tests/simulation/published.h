// The states that senders made their newest, as recorded by the replacement of
// VersionStore::Install (link_replacements.cc). Receivers may commit these and no others. Owner:
// the process; RunHistory forgets them. Threads: one. Cost: a few dozen identities. Errors: none.
#pragma once

#include "common/base/identity.h"

namespace deltawire::simulation {

/// True if `whole` is what the one sender published, or of two `senders` what their parts of one
/// version and one attempt make together.
bool WasPublished(const Identity& whole, size_t senders);
void ForgetPublished();

}  // namespace deltawire::simulation
