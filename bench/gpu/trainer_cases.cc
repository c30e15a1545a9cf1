#include <algorithm>

#include "bench/gpu/suite.h"
#include "bench/harness/parallel.h"
#include "common/delta/delta.h"
#include "kernels/place_pieces.h"
#include "sender/export/client/gpu_base.h"

namespace deltawire::bench {
namespace {

/// The goal: 25 ms for 16 GB with 1% changed.
constexpr double kDiffSecondsPerByte = 0.025 / 16e9;
constexpr uint64_t kDigestSeed = 7;

/// The shards of the first of two ranks: FSDP2's, which are half of each tensor's rows, or
/// Megatron's, which are half of every second matrix's columns.
std::vector<DevicePiece> ShardsOf(const Layout& layout, bool columns, Bytes data) {
  std::vector<DevicePiece> shards;
  for (uint32_t t = 0; t < layout.size(); ++t) {
    const TensorMeta& tensor = layout.tensor(t);
    const uint64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const uint64_t row = layout.bytes(t) / std::max<uint64_t>(rows, 1);
    kernels::GpuPiece piece{.copy = {}, .convert = {}, .src = data};
    piece.copy.src_offset = static_cast<int64_t>(layout.offset(t));
    if (columns && t % 2 == 0 && tensor.shape.size() == 2 && tensor.shape[1] % 2 == 0) {
      piece.copy.run_bytes = row / 2;
      piece.copy.dims = 1;
      piece.copy.counts[0] = rows;
      piece.copy.src_strides[0] = piece.copy.dst_strides[0] = static_cast<int64_t>(row);
    } else {
      piece.copy.run_bytes = (rows + 1) / 2 * row;
    }
    if (piece.copy.run_bytes > 0) shards.push_back({t, 0, piece});
  }
  return shards;
}

/// A rank's diff of its shards against the base that its GPU keeps, into the half.
class TrainerRank {
 public:
  TrainerRank(GpuSuite& suite, std::string operation, bool columns)
      : suite_(suite),
        operation_(std::move(operation)),
        columns_(columns),
        base_(suite.pair().chunks, kDigestSeed) {
    for (const DevicePiece& p : ShardsOf(suite.pair().layout, columns, {})) {
      bytes_ += kernels::CopiedBytes(p.piece.copy);
    }
  }

  uint64_t bytes() const { return bytes_; }

  /// Makes the old version the base, which is not timed, and diffs the new one.
  StatusOr<double> Diff() {
    DW_ASSIGN_OR_RETURN(const Bytes before, suite_.OnDevice(GpuSuite::kOld));
    DW_ASSIGN_OR_RETURN(const Bytes after, suite_.OnDevice(GpuSuite::kNew));
    DW_ASSIGN_OR_RETURN(const GpuSuite::Half half, suite_.half());
    const Layout& layout = suite_.pair().layout;
    ++version_;
    base_.Begin(std::nullopt, version_, version_);
    (void)base_.Write(ShardsOf(layout, columns_, before), half.bytes);
    Identity published;
    published.id.version = published.attempt = version_;
    ++version_;
    base_.Begin(published, version_, version_);
    const std::vector<DevicePiece> shards = ShardsOf(layout, columns_, after);
    const auto start = SteadyClock::now();
    const std::vector<DiffedChunk> diffed = base_.Write(shards, half.bytes);
    const double seconds = SecondsSince(start);
    if (!described_) fmt::print("     {}: {}\n", suite_.NameOf(operation_), base_.Describe());
    described_ = true;
    suite_.Expect(operation_, AreTheCpus(diffed, half.bytes) && CoverShards(diffed, shards));
    if (diffed.empty()) return absl::InternalError("nothing was diffed: " + base_.Describe());
    return seconds;
  }

 private:
  /// Compares payloads and digests with those of the CPU's vectors, and some with the oracle's.
  bool AreTheCpus(const std::vector<DiffedChunk>& diffed, Bytes half) const {
    return ForAll(suite_.pool(), diffed.size(),
                  [&](size_t i) {
                    const DiffedChunk& d = diffed[i];
                    const Chunk& chunk = suite_.pair().chunks[d.chunk];
                    const kernels::Backend& cpu =
                        i % kByOracle == 0 ? kernels::Scalar() : kernels::Best();
                    std::vector<std::byte> before(d.length), after(d.length), found(d.bytes);
                    GatherRuns(d, suite_.pair().OldOf(chunk), before);
                    GatherRuns(d, suite_.pair().NewOf(chunk), after);
                    GatherRuns(d, half.subspan(chunk.offset, chunk.bytes), found);
                    std::vector<std::byte> wanted(kernels::MaxEncodedBytes(d.length, chunk.width));
                    const kernels::EncodeResult made = cpu.diff_encode(
                        key_, before, after, chunk.width, cpu.digest(key_, before), wanted);
                    const bool same = made.bytes == d.bytes &&
                                      made.digest_after == d.digest_after &&
                                      std::ranges::equal(found, Bytes(wanted).first(d.bytes));
                    return same ? absl::OkStatus() : absl::DataLossError("");
                  })
        .ok();
  }
  /// Whether payloads, and the copies that are left, have each byte of the shards once.
  bool CoverShards(const std::vector<DiffedChunk>& diffed,
                   const std::vector<DevicePiece>& shards) const {
    uint64_t covered = 0;
    for (const DiffedChunk& d : diffed) covered += d.length;
    for (const DevicePiece& p : shards) {
      for (const kernels::StridedCopy& copy :
           OutsideOf(diffed, suite_.pair().chunks, p.tensor, p.piece.copy, p.piece.convert)) {
        covered += kernels::CopiedBytes(copy);
      }
    }
    return covered == bytes_;
  }

  GpuSuite& suite_;
  const std::string operation_;
  const bool columns_;
  const kernels::DigestKey key_{kDigestSeed};
  GpuBase base_;
  uint64_t bytes_ = 0, version_ = 0;
  bool described_ = false;
};

}  // namespace

void TrainerCases(GpuSuite& suite) {
  const double density = static_cast<double>(suite.pair().changed) /
                         static_cast<double>(std::max<uint64_t>(suite.pair().elements, 1));
  for (const bool columns : {false, true}) {
    const std::string operation = columns ? "trainer/megatron" : "trainer/fsdp2";
    TrainerRank rank(suite, operation, columns);
    const auto bytes = static_cast<double>(rank.bytes());
    suite.Measure(
        {.operation = operation,
         .work = [&] { return rank.Diff(); },
         .beside = Beside::kDeviceCopy,
         .bytes = rank.bytes(),
         .ratio_at_least = kDiffOfCopy,
         .seconds_at_most = density <= kWantedUpToDensity ? bytes * kDiffSecondsPerByte : 0});
  }
}

}  // namespace deltawire::bench
