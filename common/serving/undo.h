// Takes a delta of a chunk back. Threads: any; scratch memory of the thread's own.
#pragma once

#include "common/base/bytes.h"
#include "kernels/kernels.h"

namespace deltawire {

/// `bytes` are what `payload`, in the codec fast, has made of a chunk of their size: they and their
/// `digest` become those of before. The digest follows from the payload, and so does not know of
/// bytes that went bad before. Where it fails, `bytes` are lost.
kernels::DecodeStatus UndoDelta(const kernels::Backend& backend, const kernels::DigestKey& key,
                                Bytes payload, unsigned width, MutableBytes bytes,
                                uint64_t& digest);

}  // namespace deltawire
