// The other end of a ServedPull without sockets: what a pull is granted, and a receiver that takes
// its frames one by one and applies them. Owner: a test case; the model outlives the receiver.
// Threads: the test's. Errors: a frame that does not fit fails the case.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <vector>

#include "common/serving/served_pull.h"
#include "tests/unit/sender/published_model.h"

namespace deltawire::sender {

using test::PublishedModel;
inline constexpr uint32_t kChunks = 8;

inline PullTerms Terms(CoderRates& rates, uint16_t streams,
                       std::shared_ptr<const Published> pinned = {}) {
  PullTerms terms;
  terms.request.receiver_id = "r";
  terms.request.streams = streams;
  terms.coding.rates = &rates;
  terms.coding.link = std::make_shared<LinkEstimate>();
  terms.pinned = std::move(pinned);
  return terms;
}

/// Applies the frames as a receiver does.
class Receiver {
 public:
  explicit Receiver(const Model& model)
      : model_(model), bytes_(model.layout().total_bytes()), have_(Have()) {}

  wire::Have Have() const {
    wire::Have have;
    have.chunks.resize(model_.chunks().size());
    return have;
  }

  /// Takes one frame of `stream`, which may be its end. False when there is none yet.
  bool Step(ServedPull& session, uint16_t stream) {
    // The pull may call it when this receiver is no more.
    auto next = session.Next(stream, [woken = woken_, stream] { woken->insert(stream); });
    REQUIRE(next.status() == absl::OkStatus());
    if (!next->has_value()) return false;
    Apply(**next);
    return true;
  }

  void Apply(const net::OutFrame& frame) {
    const wire::FrameHeader& h = frame.header;
    if (h.type == wire::FrameType::kEnd) {
      ends_.push_back({h.epoch, h.version});
      return;
    }
    const Chunk& place = model_.chunks()[h.chunk];
    const MutableBytes to = MutableBytes(bytes_).subspan(place.offset, place.bytes);
    uint64_t digest = 0;
    if (h.type == wire::FrameType::kChunkFull) {
      ++whole_;
      REQUIRE(frame.payload.size() == to.size());
      std::memcpy(to.data(), frame.payload.data(), to.size());
    } else {
      REQUIRE(h.type == wire::FrameType::kChunkDelta);
      CHECK(Digest(to) == h.digest_before);
      std::vector<std::byte> decoded;
      Bytes fast = frame.payload;
      if (const Coder* coder = CoderOf(fast); coder != nullptr) {
        CodedChunk chunk{model_.backend(), place.bytes, place.width};
        chunk.old_data = to;
        decoded.resize(kernels::MaxEncodedBytes(place.bytes, place.width));
        size_t bytes = 0;
        REQUIRE(coder->decode(chunk, fast, decoded, &bytes) == kernels::DecodeStatus::kOk);
        fast = Bytes(decoded).first(bytes);
      }
      REQUIRE(model_.backend().decode_apply(model_.key(), fast, to, place.width, h.digest_before,
                                            &digest) == kernels::DecodeStatus::kOk);
    }
    CHECK(Digest(to) == h.digest_after);
  }

  /// Has the chunk's bytes from the start.
  void Set(uint32_t chunk, Bytes content) {
    const Chunk& place = model_.chunks()[chunk];
    const Bytes from = content.subspan(place.offset, place.bytes);
    std::ranges::copy(from, bytes_.begin() + static_cast<std::ptrdiff_t>(place.offset));
  }
  uint64_t Digest(Bytes bytes) const { return model_.backend().digest(model_.key(), bytes); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<StateId>& ends() const { return ends_; }
  size_t whole() const { return whole_; }
  std::set<uint16_t>& woken() { return *woken_; }

 private:
  const Model& model_;
  std::vector<std::byte> bytes_;
  wire::Have have_;
  std::vector<StateId> ends_;
  std::shared_ptr<std::set<uint16_t>> woken_ = std::make_shared<std::set<uint16_t>>();
  size_t whole_ = 0;
};

}  // namespace deltawire::sender
