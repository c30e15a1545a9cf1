#include "common/delta/codec_choice.h"

#include <algorithm>
#include <limits>

namespace deltawire {
namespace {

// Estimates are not that good: another codec must promise a gain, or chunks would flutter.
constexpr double kWorthwhile = 0.95;

double Seconds(double bytes, double per_second) {
  return per_second > 0 ? bytes / per_second : std::numeric_limits<double>::infinity();
}

}  // namespace

kernels::Codec ChooseCodec(const CodecChoiceInputs& in) {
  if (in.link_bytes_per_s <= 0) return kernels::Codec::kFast;
  const auto chunk = static_cast<double>(in.chunk_bytes);
  const auto fast = static_cast<double>(in.fast_bytes);
  double best = Seconds(fast, in.link_bytes_per_s) * kWorthwhile;
  kernels::Codec choice = kernels::Codec::kFast;
  const auto consider = [&](kernels::Codec codec, double ratio, bool made, double encode,
                            double decode) {
    if (ratio <= 0) return;
    const double seconds = std::max({made ? 0 : Seconds(chunk, encode), Seconds(chunk, decode),
                                     Seconds(fast * ratio, in.link_bytes_per_s)});
    if (seconds >= best) return;
    best = seconds;
    choice = codec;
  };
  consider(kernels::Codec::kTight, in.tight_ratio, in.tight_made, in.encode.tight, in.decode.tight);
  if (fast >= kDenseFromShare * chunk) {
    consider(kernels::Codec::kDense, in.dense_ratio, in.dense_made, in.encode.dense,
             in.decode.dense);
  }
  return choice;
}

}  // namespace deltawire
