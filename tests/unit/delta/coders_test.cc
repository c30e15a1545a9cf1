// What every codec must do, checked for each row of the coders' table: its payloads name it, stay
// within their limit, decode to the fast payload that they were made from, and are refused when
// they are cut.
#include "common/delta/coders.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "tests/support/delta_case.h"

namespace deltawire::coders_test {
namespace {

using namespace kernels::test;
using kernels::Best;
using kernels::Bytes;
using kernels::ClassFunction;
using kernels::DecodeStatus;

const CaseShape kShapes[] = {
    {"a tensor's end", ClassFunction::kBF16, 2, 700, 0.1, 0.1, 0},
    {"one block", ClassFunction::kBF16, 2, 60'000, 0.02, 0.05, 4},
    {"several blocks", ClassFunction::kF32, 4, 200'000, 0.01, 0.1, 8},
    {"bytes that mostly change", ClassFunction::kF8E4M3, 1, 100'000, 0.6, 0.02, 1},
    {"no numbers", ClassFunction::kNone, 8, 30'000, 0.05, 0.5, 2},
};

/// A fast payload, and the other inputs that coders may use.
struct Case {
  explicit Case(const CaseShape& shape)
      : data(MakeDeltaCase(shape, 1000, 0xC0DE5)),
        past(data.Deltas(shape.depth)),
        fast(Encode(Best(), kernels::DigestKey(1), data.old_data, data.new_data, data.width)) {}
  CodedChunk For(const Coder& coder) const {
    CodedChunk chunk{Best(), data.old_data.size(), data.width, data.function};
    if (coder.needs_old) chunk.old_data = data.old_data;
    if (coder.read_need != nullptr) chunk.history = {past, ContextOf(past)};
    return chunk;
  }

  DeltaCase data;
  std::vector<Bytes> past;
  Buffer fast;
};

DecodeStatus Decode(const Coder& coder, const CodedChunk& chunk, Bytes payload,
                    std::vector<std::byte>* fast) {
  fast->assign(kernels::MaxEncodedBytes(chunk.bytes, chunk.width), std::byte{0});
  size_t bytes = 0;
  const DecodeStatus s = coder.decode(chunk, Buffer(payload, 0), *fast, &bytes);
  fast->resize(bytes);
  return s;
}

}  // namespace

TEST_CASE("forms have names of their own, and codecs but fast a coder") {
  std::set<std::string> names;
  for (const char* name : kernels::kFormNames) names.insert(name);
  CHECK(names.size() == kernels::kForms);
  CHECK(CoderOf(kernels::Codec::kFast) == nullptr);
  CHECK(Coders().size() == kernels::kForms - 2);
  for (const Coder& coder : Coders()) CHECK(CoderOf(coder.codec) == &coder);
}

TEST_CASE("payloads of every codec come back as the fast payload that they were made from") {
  for (const Coder& coder : Coders()) {
    size_t made = 0;
    for (const CaseShape& shape : kShapes) {
      CAPTURE(kernels::NameOf(coder.codec), shape.name);
      const Case c(shape);
      const CodedChunk chunk = c.For(coder);
      const size_t limit = coder.limit(chunk.bytes, c.fast.size());
      const Bytes there = coder.encode(chunk, c.fast, limit);
      if (there.empty()) continue;
      ++made;
      const Buffer payload(there, 0);
      CHECK(payload.size() < limit);
      REQUIRE(CoderOf(Bytes(payload)) == &coder);
      if (coder.read_need != nullptr) {
        HistoryNeed need;
        REQUIRE(coder.read_need(payload, &need) == DecodeStatus::kOk);
        CHECK(need.depth == shape.depth);
        CHECK(need.context == (shape.depth == 0 ? 0 : chunk.history.context));
      }
      std::vector<std::byte> back;
      REQUIRE(Decode(coder, chunk, payload, &back) == DecodeStatus::kOk);
      CHECK(Equal(back, c.fast));
    }
    CHECK(made >= 3);
  }
}

TEST_CASE("payloads of every codec are refused when cut, and for another width or codec") {
  for (const Coder& coder : Coders()) {
    CAPTURE(kernels::NameOf(coder.codec));
    const Case c({"small", ClassFunction::kBF16, 2, 5000, 0.05, 0.02, 2});
    const CodedChunk chunk = c.For(coder);
    const Bytes there = coder.encode(chunk, c.fast, coder.limit(chunk.bytes, c.fast.size()));
    REQUIRE(!there.empty());
    const Buffer payload(there, 0);
    std::vector<std::byte> back;
    for (size_t n = 0; n < payload.size(); ++n) {
      CAPTURE(n);
      CHECK(Decode(coder, chunk, Bytes(payload).first(n), &back) != DecodeStatus::kOk);
    }
    for (size_t at = 0; at < kernels::kHeadBytes; ++at) {  // the bytes of format, codec and width
      CAPTURE(at);
      Buffer bad(payload, 0);
      bad.data()[at] ^= std::byte{1};
      CHECK(Decode(coder, chunk, bad, &back) == DecodeStatus::kMalformed);
    }
  }
}

TEST_CASE("raw, fast and unknown payloads have no coder") {
  const auto coder_of = [](std::vector<uint8_t> bytes) {
    return CoderOf(std::as_bytes(std::span(bytes)));
  };
  CHECK(coder_of({}) == nullptr);
  CHECK(coder_of({kernels::kFormat}) == nullptr);
  CHECK(coder_of({kernels::kFormat, 0}) == nullptr);
  CHECK(coder_of({kernels::kFormat, 1}) == nullptr);
  CHECK(coder_of({kernels::kFormat, 2}) == CoderOf(kernels::Codec::kTight));
  CHECK(coder_of({kernels::kFormat + 1, 2}) == nullptr);
  CHECK(coder_of({kernels::kFormat, kernels::kForms}) == nullptr);
}

}  // namespace deltawire::coders_test
