#include "common/serving/undo.h"

#include "common/base/of_this_thread.h"

namespace deltawire {
namespace {

struct UndoScratch {
  ScratchMemory fold, negated;
};

}  // namespace

kernels::DecodeStatus UndoDelta(const kernels::Backend& backend, const kernels::DigestKey& key,
                                Bytes payload, unsigned width, MutableBytes bytes,
                                uint64_t& digest) {
  auto& scratch = OfThisThread<UndoScratch>();
  const MutableBytes fold = scratch.fold.Sized(kernels::FoldScratchBytes(width));
  const MutableBytes negated = scratch.negated.Sized(kernels::MaxEncodedBytes(bytes.size(), width));
  size_t size = 0;
  const auto done = backend.negate(payload, bytes.size(), width, fold, negated, &size);
  if (done != kernels::DecodeStatus::kOk) return done;
  return backend.decode_apply(key, negated.first(size), bytes, width, digest, &digest);
}

}  // namespace deltawire
