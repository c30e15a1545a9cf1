#include "common/delta/codec_choice.h"

#include <algorithm>
#include <limits>

namespace deltawire {
namespace {

// The estimates are rough, so another codec must promise at least this gain over fast. Otherwise
// chunks would switch back and forth.
constexpr double kWorthwhile = 0.95;

// A pull whose coders were busy for this share of its time tells little about the link. The share
// is well below 1, since a small pull's stages hardly overlap.
constexpr double kCodersBound = 0.4;

double Seconds(double bytes, double per_second) {
  return per_second > 0 ? bytes / per_second : std::numeric_limits<double>::infinity();
}

}  // namespace

bool CodersBound(double coding_seconds, double threads, double decode_seconds,
                 double longest_seconds) {
  return coding_seconds / threads + decode_seconds > kCodersBound * longest_seconds;
}

kernels::Codec ChooseCodec(const CodecChoiceInputs& in) {
  if (in.link_bytes_per_s <= 0) return kernels::Codec::kFast;
  const auto fast = static_cast<double>(in.fast_bytes);
  double best = Seconds(fast, in.link_bytes_per_s) * kWorthwhile;
  kernels::Codec choice = kernels::Codec::kFast;
  for (const Coder& coder : Coders()) {
    const kernels::Codec codec = coder.codec;
    if (in.ratio[codec] <= 0) continue;
    if (fast < coder.from_share * static_cast<double>(in.chunk_bytes)) continue;
    const double work = coder.work(in.chunk_bytes, in.fast_bytes);
    const double seconds = std::max({in.made[codec] ? 0 : Seconds(work, in.encode[codec]),
                                     Seconds(work, in.decode[codec]),
                                     Seconds(fast * in.ratio[codec], in.link_bytes_per_s)});
    if (seconds >= best) continue;
    best = seconds;
    choice = codec;
  }
  return choice;
}

}  // namespace deltawire
