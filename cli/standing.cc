#include "cli/standing.h"

namespace deltawire::cli {

Standing StandingOf(const Identity& held, const Identity& newest, bool part) {
  if (held.empty() || newest.empty()) return {};
  const bool lineages = !part && held.lineage != Hash128() && newest.lineage != Hash128();
  if (lineages && held.lineage != newest.lineage) return {Relation::kOtherLineage, 0};
  if (held.id == newest.id) {
    const bool roots = lineages && held.root != newest.root;
    return {roots ? Relation::kOtherBytes : Relation::kSame, 0};
  }
  const bool behind = held.id < newest.id;
  const Relation relation = behind ? Relation::kBehind : Relation::kAhead;
  if (held.id.epoch != newest.id.epoch) return {relation, 0};
  return {relation,
          behind ? newest.id.version - held.id.version : held.id.version - newest.id.version};
}

std::string BehindText(const Standing& standing) {
  switch (standing.relation) {
    case Relation::kUnknown:
      return "-";
    case Relation::kSame:
      return "0";
    case Relation::kBehind:
      return standing.versions == 0 ? "epoch" : std::to_string(standing.versions);
    case Relation::kAhead:
      return "ahead";
    case Relation::kOtherLineage:
      return "lineage";
    case Relation::kOtherBytes:
      return "BYTES";
  }
  return "-";
}

std::string Warning(const Standing& standing, const Identity& held, const Identity& newest) {
  const std::string both =
      fmt::format("holds {}, the sender has {}", DescribeFully(held), DescribeFully(newest));
  switch (standing.relation) {
    case Relation::kAhead:
      return both + ": the sender has lost versions that it had published";
    case Relation::kOtherLineage:
      return both +
             ": the sender has started a new lineage; the receiver follows it with its next pull";
    case Relation::kOtherBytes:
      return both + ": the same number with other bytes; `deltawire sync --full` fetches them";
    default:
      return "";
  }
}

}  // namespace deltawire::cli
