// A walk over the changes of a fast payload, block by block, for callers whose elements are not
// adjacent. The caller owns the scratch. Costs as much as decode_apply without its memory traffic.
#pragma once

#include "kernels/cpu/tight.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {

/// Implements kernels::Backend::changes with a backend's own block reader.
DecodeStatus VisitChanges(const BlockOps& ops, Bytes payload, size_t raw_bytes, unsigned width,
                          MutableBytes scratch, ChangeVisitor visit, void* context);

}  // namespace deltawire::kernels
