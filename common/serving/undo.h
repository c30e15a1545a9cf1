// Takes a delta of a chunk back. Stateless; the chunk and its digest are the caller's. Threads:
// any, each with scratch memory of its own. Cost: about that of applying the delta. Errors:
// DecodeStatus.
#pragma once

#include "common/base/bytes.h"
#include "kernels/kernels.h"

namespace deltawire {

/// `bytes` are what `payload`, a fast payload, has made of a chunk; this restores the chunk's bytes
/// and `digest` from before. The digest is computed from the payload, so bytes that went bad
/// earlier go unnoticed. After an error `bytes` are undefined.
kernels::DecodeStatus UndoDelta(const kernels::Backend& backend, const kernels::DigestKey& key,
                                Bytes payload, unsigned width, MutableBytes bytes,
                                uint64_t& digest);

}  // namespace deltawire
