#include "common/base/identity.h"

namespace deltawire {

std::string DescribeFully(const Identity& identity) {
  if (identity.empty()) return "nothing";
  return fmt::format("{} (lineage {}, root {:016x})", ToString(identity.id),
                     identity.lineage.Hex().substr(0, 8), identity.root);
}

}  // namespace deltawire
