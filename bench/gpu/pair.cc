#include "bench/gpu/pair.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace deltawire::bench {
namespace {

constexpr uint64_t kChunk = uint64_t{2} << 20;
constexpr double kPi = 3.14159265358979323846;

kernels::Bytes Slice(kernels::Bytes half, const kernels::GpuChunk& chunk) {
  return half.subspan(chunk.offset, chunk.bytes);
}

double Uniform(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

/// One chunk of both versions.
void Draw(kernels::MutableBytes before, kernels::MutableBytes after, double density,
          uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto limit = static_cast<uint64_t>(std::min(density, 1.0) * 0x1p32);
  for (size_t at = 0; at + 2 <= before.size(); at += 2) {
    const double normal =
        std::sqrt(-2 * std::log(Uniform(random))) * std::cos(2 * kPi * Uniform(random));
    const auto weight = static_cast<float>(0.02 * normal);
    const auto old_bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(weight) >> 16);
    uint16_t new_bits = old_bits;
    const uint64_t dice = random();
    if ((dice & 0xffffffff) < limit) {
      const auto step = static_cast<uint16_t>((dice >> 32 & 15) == 0 ? 2 + (dice >> 36) % 7 : 1);
      new_bits = static_cast<uint16_t>((dice >> 63) != 0 ? old_bits + step : old_bits - step);
    }
    std::memcpy(before.data() + at, &old_bits, 2);
    std::memcpy(after.data() + at, &new_bits, 2);
  }
}

Status ReadInto(const std::string& path, kernels::MutableBytes to) {
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
  if (file) return absl::OkStatus();
  return Errorf(StatusCode::kInvalidArgument, "{}: cannot read {} bytes of it", path, to.size());
}

}  // namespace

Status FromGpu(const kernels::GpuStatus& status) {
  if (status.ok()) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}", status.message);
}

PinnedHalf::PinnedHalf(size_t bytes) : data_(std::make_unique<std::byte[]>(bytes)), size_(bytes) {
  (void)kernels::GpuPin::Create({data_.get(), bytes}, &pin_);
}

Pair::Pair(size_t bytes, unsigned width) : halves_{PinnedHalf(bytes), PinnedHalf(bytes)} {
  for (uint64_t at = 0; at < bytes; at += kChunk) {
    all_.push_back(static_cast<uint32_t>(chunks_.size()));
    chunks_.push_back({at, static_cast<uint32_t>(std::min(kChunk, bytes - at)), width});
  }
}

void Pair::Describe(ThreadPool& pool) {
  const kernels::Backend& backend = kernels::Best();
  const size_t n = chunks_.size();
  for (size_t v = 0; v < 2; ++v) {
    digests_[v].resize(n);
    deltas_[v].payloads.resize(n);
    std::vector<uint64_t> changed(n);
    pool.ParallelFor(n, [&](size_t i) {
      const kernels::GpuChunk& c = chunks_[i];
      std::vector<std::byte> out(kernels::MaxEncodedBytes(c.bytes, c.width));
      digests_[v][i] = backend.digest(key_, Slice(half(v), c));
      const kernels::EncodeResult r = backend.diff_encode(
          key_, Slice(half(v), c), Slice(half(1 - v), c), c.width, digests_[v][i], out);
      changed[i] = r.changed;
      deltas_[v].payloads[i].assign(out.begin(), out.begin() + static_cast<ptrdiff_t>(r.bytes));
    });
    for (size_t i = 0; i < n; ++i) {
      deltas_[v].changed += changed[i];
      deltas_[v].bytes += deltas_[v].payloads[i].size();
    }
  }
}

std::unique_ptr<Pair> Pair::Drawn(size_t bytes, double density, uint64_t seed, ThreadPool& pool) {
  auto pair = std::unique_ptr<Pair>(new Pair(bytes, 2));
  pool.ParallelFor(pair->chunks_.size(), [&](size_t i) {
    const kernels::GpuChunk& c = pair->chunks_[i];
    Draw(pair->halves_[0].bytes().subspan(c.offset, c.bytes),
         pair->halves_[1].bytes().subspan(c.offset, c.bytes), density, seed * 1000003 + i);
  });
  pair->Describe(pool);
  return pair;
}

StatusOr<std::unique_ptr<Pair>> Pair::FromFiles(const std::string& old_path,
                                                const std::string& new_path, unsigned width,
                                                ThreadPool& pool) {
  std::error_code old_error, new_error;
  const uint64_t bytes = std::filesystem::file_size(old_path, old_error);
  const uint64_t other = std::filesystem::file_size(new_path, new_error);
  if (old_error || new_error || bytes != other || bytes == 0 || bytes % width != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{} and {}: not two files of one size that is a multiple of {} bytes", old_path,
                  new_path, width);
  }
  auto pair = std::unique_ptr<Pair>(new Pair(bytes, width));
  DW_RETURN_IF_ERROR(ReadInto(old_path, pair->halves_[0].bytes()));
  DW_RETURN_IF_ERROR(ReadInto(new_path, pair->halves_[1].bytes()));
  pair->Describe(pool);
  return pair;
}

}  // namespace deltawire::bench
