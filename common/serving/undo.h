// Undoes a delta of a chunk, at about the cost of applying it. Thread-safe, with scratch memory for
// each thread.
#pragma once

#include "common/base/bytes.h"
#include "kernels/kernels.h"

namespace deltawire {

/// Restores a chunk's `bytes` and `digest` from before `payload`, a fast payload, was applied. The
/// digest is computed from the payload, so it does not show corrupt bytes. After an error `bytes`
/// are undefined.
kernels::DecodeStatus UndoDelta(const kernels::Backend& backend, const kernels::DigestKey& key,
                                Bytes payload, unsigned width, MutableBytes bytes,
                                uint64_t& digest);

}  // namespace deltawire
