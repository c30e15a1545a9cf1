#include "bench/loopback/references.h"

#include <atomic>
#include <limits>

#include "common/base/human.h"

namespace deltawire::bench {
namespace {

template <typename Span>
Span Slice(Span data, const Chunk& chunk) {
  return data.subspan(chunk.offset, chunk.bytes);
}

}  // namespace

double CopyTensors(const Layout& layout, Bytes from, MutableBytes to, ThreadPool& pool) {
  const auto start = SteadyClock::now();
  pool.ParallelFor(layout.size(), [&](size_t t) {
    if (layout.bytes(t) == 0) return;
    std::memcpy(&to[layout.offset(t)], &from[layout.offset(t)], layout.bytes(t));
  });
  return SecondsSince(start);
}

double ApplyReference::Compare(Bytes a, Bytes b) const {
  std::atomic<size_t> different{0};
  const auto start = SteadyClock::now();
  pool_.ParallelFor(chunks_.size(), [&](size_t i) {
    const Chunk& c = chunks_[static_cast<uint32_t>(i)];
    if (std::memcmp(&a[c.offset], &b[c.offset], c.bytes) != 0) ++different;
  });
  return SecondsSince(start);
}

void ApplyReference::Encode(Bytes old_data, Bytes new_data) {
  pool_.ParallelFor(chunks_.size(), [&](size_t i) {
    const Chunk& c = chunks_[static_cast<uint32_t>(i)];
    Payload& p = payloads_[i];
    p.bytes.resize(kernels::MaxEncodedBytes(c.bytes, c.width));
    const kernels::EncodeResult found = kernels::Best().diff_encode_checked(
        key_, Slice(old_data, c), Slice(new_data, c), c.width, p.bytes);
    p.digest_before = found.digest_before;
    p.digest_after = found.digest_after;
    p.bytes.resize(found.bytes);
    p.bytes.shrink_to_fit();
  });
}

StatusOr<double> ApplyReference::Apply(MutableBytes data) {
  std::atomic<size_t> wrong{0};
  const auto start = SteadyClock::now();
  pool_.ParallelFor(chunks_.size(), [&](size_t i) {
    const Payload& p = payloads_[i];
    if (p.bytes.empty()) return;
    const Chunk& c = chunks_[static_cast<uint32_t>(i)];
    uint64_t digest = 0;
    const auto status = kernels::Best().decode_apply(key_, p.bytes, Slice(data, c), c.width,
                                                     p.digest_before, &digest);
    if (status != kernels::DecodeStatus::kOk || digest != p.digest_after) ++wrong;
  });
  const double seconds = SecondsSince(start);
  if (wrong != 0) return Errorf(StatusCode::kInternal, "{} chunks applied wrongly", wrong.load());
  return seconds;
}

std::string WhyNoPairs(Bytes data) {
  if (data.size() % 2 != 0) return "the model has an odd number of bytes";
  if (data.size() / 2 > std::numeric_limits<uint32_t>::max()) return "more than 2^32 words";
  return "";
}

StatusOr<double> NaivePairs(Bytes new_data, TcpPeer& peer) {
  const Bytes old_data = peer.landed();
  std::vector<std::byte> pairs;
  const auto start = SteadyClock::now();
  for (size_t i = 0; i < new_data.size(); i += 2) {
    const auto value = LoadLe<uint16_t>(&new_data[i]);
    if (value == LoadLe<uint16_t>(&old_data[i])) continue;
    const size_t at = pairs.size();
    pairs.resize(at + kPairBytes);
    StoreLe(&pairs[at], static_cast<uint32_t>(i / 2));
    StoreLe(&pairs[at + 4], value);
  }
  const double diff = SecondsSince(start);

  const auto word_of = [&](size_t at) { return size_t{LoadLe<uint32_t>(&pairs[at])} * 2; };
  std::vector<uint16_t> before;  // to put the peer's old values back
  for (size_t at = 0; at < pairs.size(); at += kPairBytes) {
    before.push_back(LoadLe<uint16_t>(&old_data[word_of(at)]));
  }
  DW_ASSIGN_OR_RETURN(const double send_and_apply, peer.SendPairs(pairs));
  size_t unlike = 0;
  for (size_t k = 0; k < before.size(); ++k) {
    const size_t word = word_of(k * kPairBytes);
    unlike += LoadLe<uint16_t>(&old_data[word]) != LoadLe<uint16_t>(&new_data[word]);
    StoreLe(&peer.landed()[word], before[k]);
  }
  if (unlike != 0) return Errorf(StatusCode::kInternal, "{} pairs did not arrive", unlike);
  return diff + send_and_apply;
}

}  // namespace deltawire::bench
