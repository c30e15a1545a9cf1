#include "common/base/trace.h"

#include "common/base/bytes.h"
#include "common/base/checksum.h"

namespace deltawire {

TraceId TraceOf(uint64_t version, uint64_t attempt) {
  std::byte text[16];
  StoreLe<uint64_t>(text, version);
  StoreLe<uint64_t>(text + 8, attempt);
  return {Xxh3(text)};
}

TraceId TraceOf(const Identity& identity) {
  if (identity.empty()) return {};
  if (identity.attempt != 0) return TraceOf(identity.id.version, identity.attempt);
  return TraceOf(identity.id.version, identity.lineage.lo ^ identity.id.epoch);
}

std::string ToString(TraceId trace) { return fmt::format("trace={:016x}", trace.value); }

}  // namespace deltawire
