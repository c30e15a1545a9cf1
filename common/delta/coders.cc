#include "common/delta/coders.h"

#include <algorithm>
#include <vector>

#include "common/base/of_this_thread.h"
#include "common/delta/dense.h"

namespace deltawire {
namespace {

using kernels::Bytes;
using kernels::Codec;
using kernels::DecodeStatus;
using kernels::MutableBytes;

struct Scratch {
  ScratchMemory tight, out;
  std::vector<std::byte> dense;
};

Scratch& ThreadScratch() { return OfThisThread<Scratch>(); }

// The kernel itself keeps to the limit, which is the fast payload's size.
Bytes EncodeTight(const CodedChunk& c, Bytes fast, size_t) {
  Scratch& s = ThreadScratch();
  const MutableBytes out = s.out.Sized(fast.size());
  size_t bytes = 0;
  const auto done = c.backend.tight_encode(c.old_data, fast, c.width, c.function, c.history,
                                           s.tight.Sized(kernels::kTightScratchBytes), out, &bytes);
  return done == DecodeStatus::kOk ? out.first(bytes) : Bytes();
}

DecodeStatus DecodeTight(const CodedChunk& c, Bytes payload, MutableBytes out, size_t* bytes) {
  return c.backend.tight_decode(c.old_data, payload, c.width, c.history,
                                ThreadScratch().tight.Sized(kernels::kTightScratchBytes), out,
                                bytes);
}

DecodeStatus ReadTightNeed(Bytes payload, HistoryNeed* need) {
  kernels::TightHead head;
  const DecodeStatus s = kernels::ReadTightHead(payload, &head);
  *need = {head.depth, head.context};
  return s;
}

// The cost of each change, and a small measured cost for each element.
double TightWork(size_t chunk_bytes, size_t fast_bytes) {
  return static_cast<double>(fast_bytes) + static_cast<double>(chunk_bytes) / 1024;
}

Bytes EncodeDense(const CodedChunk& c, Bytes fast, size_t limit) {
  std::vector<std::byte>& out = ThreadScratch().dense;
  const size_t bytes = DenseEncode(c.backend, fast, c.bytes, c.width, limit, out);
  return Bytes(out).first(bytes);
}

DecodeStatus DecodeDense(const CodedChunk& c, Bytes payload, MutableBytes out, size_t* bytes) {
  return DenseDecode(c.backend, payload, c.bytes, c.width, out, bytes);
}

double ChunkWork(size_t chunk_bytes, size_t) { return static_cast<double>(chunk_bytes); }

constexpr Coder kCoders[] = {
    // The speeds are those of format 3 at 1.3 % of bf16: 39 ns per change to encode and 36 to
    // decode. With history they are the rates of whole chunks, less the diff and the apply.
    {.codec = Codec::kTight,
     .encode = EncodeTight,
     .decode = DecodeTight,
     .needs_old = true,
     .read_need = ReadTightNeed,
     .work = TightWork,
     .usual_ratio = 0.65,
     .usual_speeds =
         {.encode = 34.5e6, .decode = 37e6, .history_encode = 8.3e6, .history_decode = 14e6}},
    // Gaps are cheaper than planes of zeros, so dense needs a changed share. The speeds lie in the
    // middle of the measurements.
    {.codec = Codec::kDense,
     .encode = EncodeDense,
     .decode = DecodeDense,
     .may_outgrow_fast = true,
     .work = ChunkWork,
     .usual_ratio = 0.9,
     .usual_speeds = {.encode = 0.15e9, .decode = 0.17e9},
     .from_share = 0.25},
};

constexpr size_t kFirst = kernels::FormOf(Codec::kFast) + 1;

// Every codec but fast has a row, at the index where CoderOf looks for it.
constexpr bool RowsByNumber() {
  for (size_t i = 0; i < std::size(kCoders); ++i) {
    if (kernels::FormOf(kCoders[i].codec) != kFirst + i) return false;
  }
  return kFirst + std::size(kCoders) == kernels::kForms;
}
static_assert(RowsByNumber());

}  // namespace

std::span<const Coder> Coders() { return kCoders; }

const Coder* CoderOf(Codec codec) {
  return codec == Codec::kFast ? nullptr : &kCoders[kernels::FormOf(codec) - kFirst];
}

const Coder* CoderOf(Bytes payload) {
  if (payload.size() < 2 || payload[0] != std::byte{kernels::kFormat}) return nullptr;
  const auto form = static_cast<size_t>(payload[1]);
  return form < kFirst || form >= kernels::kForms ? nullptr : &kCoders[form - kFirst];
}

}  // namespace deltawire
