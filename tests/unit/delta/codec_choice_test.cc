// The choice of a codec by measured speeds, and how those are averaged.
#include "common/delta/codec_choice.h"

#include <catch2/catch.hpp>

#include "common/delta/class_function.h"
#include "common/delta/coder_rates.h"

namespace deltawire::codec_choice_test {
namespace {

using kernels::Codec;

// A chunk of 2 MiB that takes 25 kB as fast and 16 kB as tight. Tight takes 10 ms to encode or to
// decode, so it pays on links below 2.4 MB/s.
CodecChoiceInputs Typical(double link) {
  CodecChoiceInputs in;
  in.chunk_bytes = 2 << 20;
  in.fast_bytes = 25'000;
  in.link_bytes_per_s = link;
  in.encode[Codec::kTight] = in.decode[Codec::kTight] = 2.7e6;
  in.encode[Codec::kDense] = in.decode[Codec::kDense] = 400e6;
  in.ratio[Codec::kTight] = 0.65;
  in.ratio[Codec::kDense] = 0.9;
  return in;
}

}  // namespace

TEST_CASE("tight is for links slower than its coders") {
  CHECK(ChooseCodec(Typical(1e9)) == Codec::kFast);
  CHECK(ChooseCodec(Typical(3e6)) == Codec::kFast);
  CHECK(ChooseCodec(Typical(2e6)) == Codec::kTight);
  CHECK(ChooseCodec(Typical(1e3)) == Codec::kTight);
  CHECK(ChooseCodec(Typical(0)) == Codec::kFast);  // a speed of 0 is not known yet
}

TEST_CASE("each stage can be the slow one, and what is made already costs nothing to make") {
  auto in = Typical(10e6);
  in.encode[Codec::kTight] = 1e8;
  CHECK(ChooseCodec(in) == Codec::kFast);  // decoding is the slow stage
  in.decode[Codec::kTight] = 1e8;
  CHECK(ChooseCodec(in) == Codec::kTight);
  in.encode[Codec::kTight] = 1e6;
  CHECK(ChooseCodec(in) == Codec::kFast);
  in.made[Codec::kTight] = true;
  CHECK(ChooseCodec(in) == Codec::kTight);
  in.decode[Codec::kTight] = 0;  // the receiver did not say its speed
  CHECK(ChooseCodec(in) == Codec::kFast);
}

TEST_CASE("a codec that does not shrink, or is not there, is not chosen") {
  auto in = Typical(1e3);
  in.ratio[Codec::kTight] = 0.96;
  CHECK(ChooseCodec(in) == Codec::kFast);
  in.ratio[Codec::kTight] = 0;
  CHECK(ChooseCodec(in) == Codec::kFast);
}

TEST_CASE("dense is for chunks in which much changed") {
  auto in = Typical(50e6);
  in.fast_bytes = 1'500'000;
  in.ratio[Codec::kTight] = 0.9;
  in.ratio[Codec::kDense] = 0.5;
  CHECK(ChooseCodec(in) == Codec::kDense);
  in.fast_bytes = 400'000;
  in.link_bytes_per_s = 1e6;
  CHECK(ChooseCodec(in) == Codec::kTight);
}

TEST_CASE("a rate is an average over the chunks that are large enough to tell something") {
  CoderRate rate;
  CHECK(rate.per_s() == 0);
  rate.Add(1'000'000, 0.01);
  CHECK(rate.per_s() == Approx(1e8));
  rate.Add(10, 1.0);  // a chunk too small to tell anything
  CHECK(rate.per_s() == Approx(1e8));
  CHECK(rate.total_seconds() == Approx(1.01));
  for (int i = 0; i < 100; ++i) rate.Add(1'000'000, 0.02);
  CHECK(rate.per_s() == Approx(5e7).epsilon(0.01));

  // One chunk whose thread was interrupted for long moves the average little; a slower codec is
  // followed within some chunks.
  rate.Add(1'000'000, 5);
  CHECK(rate.per_s() > 4.5e7);
  for (int i = 0; i < 64; ++i) rate.Add(1'000'000, 0.2);
  CHECK(rate.per_s() == Approx(5e6).epsilon(0.05));

  CoderRates rates;
  for (int i = 0; i < 100; ++i) rates.AddSize(Codec::kTight, 1000, 500);
  CHECK(rates.ratio(Codec::kTight) == Approx(0.5).epsilon(0.01));
  rates.Calibrate(kernels::Best());
  CHECK(rates.encode[Codec::kDense].per_s() > 1e6);
  CHECK(rates.decode[Codec::kDense].per_s() > 1e6);
  CHECK(rates.encode[Codec::kTight].per_s() > 1e5);
  CHECK(rates.decode[Codec::kTight].per_s() > 1e5);
  CHECK(rates.encode[Codec::kDense].total_seconds() == 0);
  CHECK(rates.EncodeSpeeds(2)[Codec::kDense] == Approx(2 * rates.encode[Codec::kDense].per_s()));
}

TEST_CASE("five floating dtypes have a class function each, and all other dtypes none") {
  CHECK(ClassFunctionOf(DType::kBF16) == kernels::ClassFunction::kBF16);
  CHECK(ClassFunctionOf(DType::kF16) == kernels::ClassFunction::kF16);
  CHECK(ClassFunctionOf(DType::kF32) == kernels::ClassFunction::kF32);
  CHECK(ClassFunctionOf(DType::kF8E4M3) == kernels::ClassFunction::kF8E4M3);
  CHECK(ClassFunctionOf(DType::kF8E5M2) == kernels::ClassFunction::kF8E5M2);
  size_t without = 0;
  for (const DType t : AllDTypes()) without += ClassFunctionOf(t) == kernels::ClassFunction::kNone;
  CHECK(without == AllDTypes().size() - 5);
}

}  // namespace deltawire::codec_choice_test
