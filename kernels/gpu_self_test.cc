// The test that a device must pass before it is used: it must give the CPU's bytes for every kind
// of data in diffs.
#include <algorithm>
#include <cstring>

#include "kernels/gpu.h"

namespace deltawire::kernels {
namespace {

constexpr unsigned kWidths[] = {1, 2, 4, 8};
constexpr double kDensities[] = {0, 0.001, 0.05, 1};
// Narrow elements fill more than one block. Wide ones are few, since they only add their width.
constexpr size_t kManyElements = kBlockElements + 777, kFewElements = 5001;

/// A fixed pseudo-random sequence, so that every machine tests the same data.
class Sequence {
 public:
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1p-53 < p; }

 private:
  uint64_t state_ = 1;
};

struct Expected {
  EncodeResult result;
  std::vector<std::byte> payload;
};

/// Three versions of a small model and the two steps between them.
class Fixture {
 public:
  Fixture() {
    uint64_t offset = 0;
    for (const unsigned width : kWidths) {
      for (size_t i = 0; i < std::size(kDensities); ++i) {
        const size_t elements = width <= 2 ? kManyElements : kFewElements;
        const auto bytes = static_cast<uint32_t>(elements * width);
        chunks_.push_back({offset, bytes, width});
        offset += (bytes + 63) / 64 * 64;
      }
    }
    versions_[0].resize(offset);
    for (std::byte& b : versions_[0]) b = static_cast<std::byte>(sequence_.Next());
    for (const GpuChunk& chunk : chunks_) {
      digests_[0].push_back(Scalar().digest(key_, Of(versions_[0], chunk)));
    }
    for (size_t step = 0; step < kSteps; ++step) MakeStep(step);
  }

  GpuStatus Run(GpuMode mode, int device) {
    GpuOptions options;
    options.mode = mode;
    options.device = device;
    options.slab_bytes = kMaxChunkBytes;
    options.slabs = 1;
    std::unique_ptr<GpuDiffer> differ;
    GpuStatus status = GpuDiffer::Create(options, key_, chunks_, &differ);
    // In resident mode the second step starts from the base that the first one left on the device.
    for (size_t step = 0; status.ok() && step < kSteps; ++step) status = RunStep(*differ, step);
    return status;
  }

 private:
  static constexpr size_t kSteps = 2;

  static Bytes Of(const std::vector<std::byte>& version, const GpuChunk& chunk) {
    return Bytes(version).subspan(chunk.offset, chunk.bytes);
  }

  void MakeStep(size_t step) {
    std::vector<std::byte>& after = versions_[step + 1];
    after = versions_[step];
    std::vector<std::byte> room;
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const GpuChunk& chunk = chunks_[c];
      Change(chunk, kDensities[c % std::size(kDensities)], &after[chunk.offset]);
      room.resize(MaxEncodedBytes(chunk.bytes, chunk.width));
      Expected e;
      e.result = Scalar().diff_encode(key_, Of(versions_[step], chunk), Of(after, chunk),
                                      chunk.width, digests_[step][c], room);
      e.payload.assign(room.begin(), room.begin() + static_cast<ptrdiff_t>(e.result.bytes));
      digests_[step + 1].push_back(e.result.digest_after);
      expected_[step].push_back(std::move(e));
    }
  }

  /// Changes elements, mostly by one up or down, and sometimes to a random value.
  void Change(const GpuChunk& chunk, double density, std::byte* data) {
    for (size_t i = 0; i < chunk.bytes / chunk.width; ++i) {
      if (!sequence_.Chance(density)) continue;
      uint64_t v = 0;
      std::memcpy(&v, data + i * chunk.width, chunk.width);
      const uint64_t random = sequence_.Next();
      v = random % 8 == 0 ? random : random % 2 == 0 ? v + 1 : v - 1;
      std::memcpy(data + i * chunk.width, &v, chunk.width);
    }
  }

  GpuStatus RunStep(GpuDiffer& differ, size_t step) {
    std::vector<uint32_t> which(chunks_.size());
    for (uint32_t c = 0; c < which.size(); ++c) which[c] = c;
    size_t right = 0;
    std::string wrong;
    GpuStatus status = differ.Diff(versions_[step], versions_[step + 1], which, digests_[step],
                                   [&](uint32_t c, const EncodeResult& found, Bytes payload) {
                                     const Expected& e = expected_[step][c];
                                     const bool same =
                                         found.changed == e.result.changed &&
                                         found.digest_before == e.result.digest_before &&
                                         found.digest_after == e.result.digest_after &&
                                         std::ranges::equal(payload, e.payload);
                                     right += same;
                                     if (!same && wrong.empty()) wrong = Name(c);
                                   });
    if (status.ok() && right != chunks_.size()) {
      status = {GpuError::kDevice, "the self-test's diff " + wrong + " is not the CPU's"};
    }
    return status;
  }

  std::string Name(uint32_t c) const {
    return "of " + std::to_string(chunks_[c].width) + "-byte elements, of which " +
           std::to_string(kDensities[c % std::size(kDensities)]) + " change,";
  }

  const DigestKey key_{1};
  Sequence sequence_;
  std::vector<GpuChunk> chunks_;
  std::vector<std::byte> versions_[kSteps + 1];
  std::vector<uint64_t> digests_[kSteps + 1];
  std::vector<Expected> expected_[kSteps];
};

}  // namespace

GpuStatus GpuSelfTest(int device) {
  Fixture fixture;
  const GpuStatus status = fixture.Run(GpuMode::kHostStaged, device);
  return status.ok() ? fixture.Run(GpuMode::kResident, device) : status;
}

}  // namespace deltawire::kernels
