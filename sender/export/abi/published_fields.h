// The fields of a dw_published by their names, for bindings that make an object of it.
#pragma once

#include "common/delta/version_fields.h"
#include "sender/export/abi/deltawire_export.h"

namespace deltawire {

/// Calls f(name, value) for each field but struct_size.
template <typename F>
void ForEachField(const dw_published& published, const F& f) {
#define DW_FIELD(name) f(#name, published.name);
  DW_FIELD(epoch)
  DW_FIELD(version)
  DW_FIELD(lineage)
  DW_FIELD(root)
  DW_FIELD(attempt)
  DW_VERSION_FIELDS(DW_FIELD)
#undef DW_FIELD
}

}  // namespace deltawire
