// A pull's sink with frames in an order that only a broken or hostile sender makes: memory that a
// stream still fills must not be freed, and no delta may be applied to other bytes than its own.
#include "receiver/pull/pull_sink.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "common/layout/root.h"
#include "receiver/buffer/recovery.h"
#include "tests/support/temp_dir.h"

namespace deltawire::receiver::pull_sink_test {
namespace {

constexpr uint64_t kSeed = 5;

/// A buffer of one chunk at version 1, and frames that take it further.
struct Setup {
  explicit Setup(uint64_t elements = 1000, uint32_t buffers = 1) {
    Layout layout = *Layout::Create({{"w", DType::kBF16, {elements}}});
    auto lock = std::make_shared<DirLock>(*DirLock::Acquire(dir.path()));
    buffer = *CreateBuffer(dir.path(), lock, std::move(layout), kSeed,
                           {.buffers = buffers, .huge_pages = false});
    REQUIRE(*buffer->update().Begin());
    buffer->bases().MarkUnknown(0);
    std::memset(buffer->bases().chunk(0).data(), 0x3c, buffer->bases().chunk(0).size());
    buffer->bases().Set(0, 1, Digest(buffer->bases().chunk(0)));
    const uint64_t digest = buffer->bases().digest(0);
    REQUIRE(buffer->update()
                .Commit({.id = {1, 1}, .root = RootOf({&digest, 1}, Coverage::All(1))}, {})
                .ok());
    sink = std::make_unique<PullSink>(*buffer, gate, 1 << 20, rates);
  }
  uint64_t Digest(Bytes bytes) const { return kernels::Best().digest(buffer->key(), bytes); }

  wire::FrameHeader Full(Bytes bytes, uint64_t version) const {
    wire::FrameHeader h;
    h.type = wire::FrameType::kChunkFull;
    h.payload_bytes = static_cast<uint32_t>(bytes.size());
    h.epoch = 1;
    h.version = version;
    h.digest_after = Digest(bytes);
    return h;
  }
  /// The frame that takes the buffer's bytes to `after`, and its payload.
  wire::FrameHeader Delta(Bytes after, std::vector<std::byte>* payload) const {
    const Bytes before = buffer->bases().bytes(0);
    payload->resize(kernels::MaxEncodedBytes(before.size(), 2));
    const auto r =
        kernels::Best().diff_encode(buffer->key(), before, after, 2, Digest(before), *payload);
    payload->resize(r.bytes);
    wire::FrameHeader h;
    h.type = wire::FrameType::kChunkDelta;
    h.payload_bytes = static_cast<uint32_t>(r.bytes);
    h.epoch = 1;
    h.version = 2;
    h.digest_before = Digest(before);
    h.digest_after = r.digest_after;
    return h;
  }
  std::vector<std::byte> Changed(size_t at) const {
    std::vector<std::byte> bytes(buffer->bases().bytes(0).begin(), buffer->bases().bytes(0).end());
    bytes[at] ^= std::byte{1};
    return bytes;
  }

  bool NamedEndsIn(const std::vector<std::byte>& bytes) const {
    std::ifstream file(dir.path() / "model.safetensors", std::ios::binary);
    const std::string all(std::istreambuf_iterator<char>(file), {});
    return all.size() > bytes.size() &&
           std::memcmp(all.data() + all.size() - bytes.size(), bytes.data(), bytes.size()) == 0;
  }

  TempDir dir;
  CoderRates rates;
  std::unique_ptr<Buffer> buffer;
  BufferGate gate{{.model = "m"}};
  std::unique_ptr<PullSink> sink;
  ThreadPool pool{2};
};

void Fill(MutableBytes to, Bytes from) {
  REQUIRE(to.size() == from.size());
  std::memcpy(to.data(), from.data(), from.size());
}

TEST_CASE("a second frame of a chunk that is still coming in ends the pull") {
  Setup s;
  std::vector<std::byte> payload;
  const wire::FrameHeader delta = s.Delta(s.Changed(10), &payload);
  const auto first = s.sink->Begin(delta);
  REQUIRE(first.ok());
  const wire::FrameHeader full = s.Full(s.Changed(20), 3);
  CHECK(s.sink->Begin(full).status().code() == StatusCode::kDataLoss);
  CHECK(s.sink->Begin(delta).status().code() == StatusCode::kDataLoss);
  Fill(*first, payload);  // a sanitizer sees it if this memory has been freed
  CHECK(s.sink->Finish(delta).ok());
  CHECK(s.sink->Begin(full).ok());  // frames one after the other are allowed
}

TEST_CASE("a whole chunk after a staged delta is what the chunk becomes") {
  Setup s;
  std::vector<std::byte> payload;
  const wire::FrameHeader delta = s.Delta(s.Changed(10), &payload);
  const auto staged = s.sink->Begin(delta);
  REQUIRE(staged.ok());
  Fill(*staged, payload);
  REQUIRE(s.sink->Finish(delta).ok());
  const std::vector<std::byte> whole = s.Changed(20);
  const wire::FrameHeader full = s.Full(whole, 3);
  const auto place = s.sink->Begin(full);
  REQUIRE(place.ok());
  Fill(*place, whole);
  REQUIRE(s.sink->Finish(full).ok());
  const auto bad = s.sink->Apply(s.pool);
  REQUIRE(bad.ok());
  CHECK(bad->empty());
  CHECK(std::memcmp(s.buffer->bases().bytes(0).data(), whole.data(), whole.size()) == 0);
  CHECK(s.buffer->bases().digest(0) == full.digest_after);
}

TEST_CASE("with two buffers a delta is applied while the pull runs, with one only after it") {
  const uint32_t buffers = GENERATE(1, 2);
  CAPTURE(buffers);
  Setup s(1000, buffers);
  const std::vector<std::byte> before(s.buffer->bases().bytes(0).begin(),
                                      s.buffer->bases().bytes(0).end());
  const std::vector<std::byte> after = s.Changed(40);
  s.sink->BeginRound({}, nullptr, s.buffer->at_once());
  std::vector<std::byte> payload;
  const wire::FrameHeader delta = s.Delta(after, &payload);
  auto to = s.sink->Begin(delta);
  REQUIRE(to.ok());
  Fill(*to, payload);
  REQUIRE(s.sink->Finish(delta).ok());
  CHECK(s.buffer->update().begun() == (buffers == 2));
  CHECK(s.sink->to_apply() == (buffers == 1));
  CHECK_FALSE(s.buffer->updating());  // what has the name is the old version, and whole
  CHECK(s.NamedEndsIn(before));
  CHECK(s.buffer->bases().digest(0) == s.Digest(buffers == 2 ? after : before));
}

TEST_CASE("a delta for other bytes is refused before it is staged") {
  Setup s;
  std::vector<std::byte> payload;
  wire::FrameHeader delta = s.Delta(s.Changed(10), &payload);
  ++delta.digest_before;
  CHECK(s.sink->Begin(delta).status().code() == StatusCode::kDataLoss);
}

TEST_CASE("a pull names no chunk as held whose staged delta cannot be applied") {
  Setup s;
  std::vector<std::byte> payload;
  const wire::FrameHeader delta = s.Delta(s.Changed(10), &payload);
  const auto staged = s.sink->Begin(delta);
  REQUIRE(staged.ok());
  const wire::Have::Entry base = s.buffer->bases().have().chunks[0];
  wire::Have::Entry named = base;
  SECTION("its stream broke, and abandoned nothing") {}
  SECTION("it has come") {
    Fill(*staged, payload);
    REQUIRE(s.sink->Finish(delta).ok());
    named = {delta.version, delta.digest_after, 0};
  }
  SECTION("the bytes that it starts from were found corrupt") {
    Fill(*staged, payload);
    REQUIRE(s.sink->Finish(delta).ok());
    s.buffer->files().slot(s.buffer->files().front()).bytes(0)[3] ^= std::byte{1};
    REQUIRE(s.buffer->bases().Withdraw(std::vector<uint32_t>{0}).ok());
    named = {};
  }
  wire::Have have = s.buffer->bases().have();
  s.sink->staged().Overlay(have);
  CHECK(have.chunks[0] == named);
}

TEST_CASE("a whole chunk is taken by its own digest in pieces of any size") {
  const uint64_t seed = 12;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (size_t trial = 0; trial < 20; ++trial) {
    Setup s(100'001);
    std::vector<std::byte> whole(s.buffer->bases().bytes(0).size());
    for (std::byte& b : whole) b = static_cast<std::byte>(random());
    const wire::FrameHeader full = s.Full(whole, 2);
    const bool wrong = trial % 2 != 0;
    CAPTURE(trial);
    if (wrong) whole[random() % whole.size()] ^= std::byte{0x40};
    const auto place = s.sink->Begin(full);
    REQUIRE(place.ok());
    for (size_t at = 0; at < whole.size();) {
      const size_t n =
          std::min<size_t>(whole.size() - at, 1 + random() % (trial < 10 ? 20000 : 99));
      std::memcpy(place->data() + at, &whole[at], n);
      s.sink->Arrived(full, at += n);
    }
    REQUIRE(s.sink->Finish(full).ok());
    CHECK(s.buffer->bases().known(0) == !wrong);
    const auto bad = s.sink->Apply(s.pool);
    REQUIRE(bad.ok());
    CHECK(bad->size() == (wrong ? 1 : 0));
    CHECK(s.sink->tally().mismatched().size() == (wrong ? 1 : 0));
  }
}

TEST_CASE("after a whole chunk with a wrong digest, only another whole chunk is applied") {
  Setup s;
  std::vector<std::byte> good = s.Changed(20), payload;
  const wire::FrameHeader full = s.Full(good, 2);
  const auto send = [&s](const wire::FrameHeader& header, Bytes bytes) {
    const auto place = s.sink->Begin(header);
    REQUIRE(place.ok());
    Fill(*place, bytes);
    REQUIRE(s.sink->Finish(header).ok());
  };
  std::vector<std::byte> flipped = good;
  flipped[999] ^= std::byte{1};
  wire::FrameHeader delta = s.Delta(s.Changed(10), &payload);
  delta.digest_before = full.digest_after;
  send(full, flipped);
  send(delta, payload);
  const bool again = GENERATE(false, true);
  if (again) send(full, good);
  const auto bad = s.sink->Apply(s.pool);
  REQUIRE(bad.ok());
  CHECK(*bad == (again ? std::vector<uint32_t>{} : std::vector<uint32_t>{0}));
  CHECK(s.buffer->bases().known(0) == again);
  CHECK(s.sink->tally().mismatched() == std::set<uint32_t>{0});
}

}  // namespace
}  // namespace deltawire::receiver::pull_sink_test
