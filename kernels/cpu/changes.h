// Calls a visitor for each change of a fast payload, block by block, for callers whose elements do
// not lie side by side. Pure; scratch is the caller's. Cost: decode_apply's, less its memory's.
#pragma once

#include "kernels/cpu/tight.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {

/// kernels::Backend::changes over a backend's own block reader.
DecodeStatus VisitChanges(const BlockOps& ops, Bytes payload, size_t raw_bytes, unsigned width,
                          MutableBytes scratch, ChangeVisitor visit, void* context);

}  // namespace deltawire::kernels
