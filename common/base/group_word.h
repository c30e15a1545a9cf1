// What the members of a group are told, and what a member answers (docs/groups.md). Both are states
// and not steps: the last one counts, whatever was lost before it.
// Owner: whoever holds the value. Threads: as any value. Cost: some hundred bytes. Errors: none.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/identity.h"

namespace deltawire {

struct GroupWord {
  std::string name;    ///< empty: the receiver is a member of no group
  uint64_t round = 0;  ///< rises with each round; 0: none yet
  /// The state of the open round, which members make ready and do not commit yet. Epoch 0: no round
  /// is open.
  Identity prepare;
  /// The last state that the group decided on: members go there, prepared or not. Epoch 0: none.
  Identity commit;

  friend bool operator==(const GroupWord&, const GroupWord&) = default;
};

struct GroupReport {
  uint64_t round = 0;     ///< the round that this answers
  bool prepared = false;  ///< all of GroupWord::prepare is here and checked
  std::string refusal;    ///< why it cannot be prepared, or committed now; empty: it can

  friend bool operator==(const GroupReport&, const GroupReport&) = default;
};

}  // namespace deltawire
