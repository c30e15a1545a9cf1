#include "common/delta/codec_choice.h"

#include <algorithm>
#include <limits>

#include "common/delta/pull_stats.h"

namespace deltawire {
namespace {

// The estimates are rough, so a codec must promise at least this gain over fast; otherwise chunks
// would switch back and forth.
constexpr double kWorthwhile = 0.95;

double Seconds(double bytes, double per_second) {
  return per_second > 0 ? bytes / per_second : std::numeric_limits<double>::infinity();
}

// Code that counts forms uses a codec's number as the index.
static_assert(FormCounts::kFast == static_cast<size_t>(kernels::Codec::kFast));
static_assert(FormCounts::kTight == static_cast<size_t>(kernels::Codec::kTight));
static_assert(FormCounts::kDense == static_cast<size_t>(kernels::Codec::kDense));

}  // namespace

kernels::Codec ChooseCodec(const CodecChoiceInputs& in) {
  if (in.link_bytes_per_s <= 0) return kernels::Codec::kFast;
  const auto fast = static_cast<double>(in.fast_bytes);
  double best = Seconds(fast, in.link_bytes_per_s) * kWorthwhile;
  kernels::Codec choice = kernels::Codec::kFast;
  const auto consider = [&](kernels::Codec codec, double ratio, bool made, double work,
                            double encode, double decode) {
    if (ratio <= 0) return;
    const double seconds = std::max({made ? 0 : Seconds(work, encode), Seconds(work, decode),
                                     Seconds(fast * ratio, in.link_bytes_per_s)});
    if (seconds >= best) return;
    best = seconds;
    choice = codec;
  };
  consider(kernels::Codec::kTight, in.tight_ratio, in.tight_made,
           TightWork(in.chunk_bytes, in.fast_bytes), in.encode.tight, in.decode.tight);
  if (fast >= kDenseFromShare * static_cast<double>(in.chunk_bytes)) {
    consider(kernels::Codec::kDense, in.dense_ratio, in.dense_made, DenseWork(in.chunk_bytes),
             in.encode.dense, in.decode.dense);
  }
  return choice;
}

}  // namespace deltawire
