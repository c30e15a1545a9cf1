// What senders' groups have decided: recorded at the very step in which a file of decisions gets
// its name. Members may commit these states and no others, and no sender may take one back. Owner:
// the process; RunHistory forgets them. Threads: one. Cost: a few dozen identities. Errors: texts.
#pragma once

#include <string>

#include "common/base/group_word.h"
#include "common/base/identity.h"

namespace deltawire::simulation {

bool WasDecided(const Identity& state);
size_t DecidedCount();
/// An error's text, or "": whether the word that `member` is told beside `newest` takes back a
/// decision that it was told before.
std::string NoteTold(const std::string& member, const GroupWord& word, const Identity& newest);
/// Also begins to record.
void ForgetDecided();

}  // namespace deltawire::simulation
