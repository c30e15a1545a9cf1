// The messages between a group of receivers and its sender (docs/groups.md). Each is a whole state,
// so only the last one counts and a lost one does no harm.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/fields.h"
#include "common/base/identity.h"

namespace deltawire {

struct GroupWord {
  std::string name;    ///< empty: the receiver is in no group
  uint64_t round = 0;  ///< increases with each round; 0: none yet
  /// The state of the open round, which members prepare but do not commit yet. Epoch 0: no round is
  /// open.
  Identity prepare;
  /// The last state that the group decided on. Members move to it, prepared or not. Epoch 0: none.
  Identity commit;

  friend bool operator==(const GroupWord&, const GroupWord&) = default;
};

template <FieldsOf<GroupWord> T>
void ForEachField(T& word, const auto& f) {
  f("name", word.name);
  f("round", word.round);
  f("prepare", word.prepare);
  f("commit", word.commit);
}

struct GroupReport {
  uint64_t round = 0;     ///< the round that this answers
  bool prepared = false;  ///< all of GroupWord::prepare is here and checked
  std::string refusal;    ///< why it cannot be prepared or committed now; empty: it can

  friend bool operator==(const GroupReport&, const GroupReport&) = default;
};

template <FieldsOf<GroupReport> T>
void ForEachField(T& report, const auto& f) {
  f("round", report.round);
  f("prepared", report.prepared);
  f("refusal", report.refusal);
}

}  // namespace deltawire
