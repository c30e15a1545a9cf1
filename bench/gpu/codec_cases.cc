#include <algorithm>
#include <cstring>

#include "bench/gpu/suite.h"
#include "bench/harness/parallel.h"

namespace deltawire::bench {
namespace {

using kernels::GpuDiffer;
using kernels::GpuMode;

constexpr double kDigestOfCopy = 0.6;

/// The operations of one differ. Each leads from the old version to the new one.
class Codec {
 public:
  Codec(GpuSuite& suite, GpuMode mode) : suite_(suite), mode_(mode) {}

  Status Make() {
    if (differ_ != nullptr) return absl::OkStatus();
    return FromGpu(
        GpuDiffer::Create({.mode = mode_}, suite_.pair().key, suite_.chunks(), &differ_));
  }

  StatusOr<double> Digest(const char* operation) {
    DW_RETURN_IF_ERROR(Make());
    DW_ASSIGN_OR_RETURN(const Bytes old_data, suite_.OnDevice(GpuSuite::kOld));
    std::vector<uint64_t> digests(suite_.all().size());
    DW_ASSIGN_OR_RETURN(const double seconds, TimedOnGpu([&] {
                          return differ_->Digest(old_data, suite_.all(), digests);
                        }));
    suite_.Expect(operation, digests == suite_.digests(GpuSuite::kOld));
    return seconds;
  }

  StatusOr<double> Diff(const char* operation, Bytes before, Bytes after) {
    return Measure(operation, [=, this](const kernels::GpuEncoded& encoded) {
      return differ_->Diff(before, after, suite_.all(), suite_.digests(GpuSuite::kOld), encoded);
    });
  }

  /// As a trainer does: from a base on the device to tensors there, payloads to their chunks'
  /// places in a half.
  StatusOr<double> DiffLive(const char* operation) {
    DW_ASSIGN_OR_RETURN(const Bytes after, suite_.OnDevice(GpuSuite::kNew));
    DW_ASSIGN_OR_RETURN(const GpuSuite::Half half, suite_.half());
    kernels::GpuPiece all;
    all.copy.run_bytes = after.size();
    all.src = after;
    std::vector<kernels::GpuLive> live;
    for (const uint32_t i : suite_.all()) {
      live.push_back({i, {&all, 1}, suite_.chunks()[i].offset});
    }
    return Measure(operation, [&](const kernels::GpuEncoded& encoded) {
      return differ_->DiffLive(live, [&](uint32_t i, const kernels::EncodeResult& r, Bytes p) {
        const kernels::GpuChunk& chunk = suite_.chunks()[i];
        if (WorthSending(p.size(), chunk.bytes)) {
          std::ranges::copy(p, half.bytes.subspan(chunk.offset).begin());
        }
        encoded(i, r, p);
      });
    });
  }

  StatusOr<double> Apply(const char* operation) {
    DW_RETURN_IF_ERROR(MakeBase());
    DW_ASSIGN_OR_RETURN(const GpuSuite::Half half, suite_.half());
    std::vector<kernels::GpuApplyItem> items;
    for (const ChunkDelta& entry : suite_.pair().deltas.back()->chunks()) {
      items.push_back({entry.chunk, entry.payload, entry.digest_before});
    }
    CopyInParts(suite_.host(GpuSuite::kOld), half.bytes, suite_.pool());
    DW_ASSIGN_OR_RETURN(const double seconds,
                        TimedOnGpu([&] { return differ_->Apply(half.bytes, items); }));
    if (mode_ == GpuMode::kResident) {
      DW_RETURN_IF_ERROR(FromGpu(differ_->ReadBase(half.bytes, suite_.all())));
    }
    const bool decoded = std::ranges::all_of(items, [&](const kernels::GpuApplyItem& item) {
      return item.status == kernels::DecodeStatus::kOk &&
             item.digest_after == suite_.digests(GpuSuite::kNew)[item.chunk];
    });
    suite_.Expect(operation, decoded && suite_.Holds(half.bytes, GpuSuite::kNew));
    return seconds;
  }

 private:
  /// Times `diff` from the old version to the new one, and first compares its payloads.
  template <typename Diff>
  StatusOr<double> Measure(const char* operation, const Diff& diff) {
    DW_RETURN_IF_ERROR(MakeBase());
    if (!payloads_checked_) {
      payloads_checked_ = true;
      std::vector<std::vector<std::byte>> payloads(suite_.all().size());
      DW_RETURN_IF_ERROR(FromGpu(diff([&](uint32_t i, const kernels::EncodeResult&, Bytes p) {
        payloads[i].assign(p.begin(), p.end());
      })));
      suite_.Expect(operation, AreTheCpus(payloads));
      DW_RETURN_IF_ERROR(MakeBase());
    }
    size_t wrong = 0;
    DW_ASSIGN_OR_RETURN(const double seconds, TimedOnGpu([&] {
                          return diff([&](uint32_t i, const kernels::EncodeResult& r, Bytes p) {
                            wrong += r.digest_before != suite_.digests(GpuSuite::kOld)[i] ||
                                     r.digest_after != suite_.digests(GpuSuite::kNew)[i] ||
                                     p.size() != PayloadOf(i).size();
                          });
                        }));
    suite_.Expect(operation, wrong == 0);
    return seconds;
  }
  /// Makes the old version, digested on the device, a resident differ's base.
  Status MakeBase() {
    DW_RETURN_IF_ERROR(Make());
    if (mode_ != GpuMode::kResident) return absl::OkStatus();
    return Digest("a resident base's digest").status();
  }
  Bytes PayloadOf(uint32_t chunk) const {
    return Workload::PayloadOf(*suite_.pair().deltas.back(), chunk);
  }
  /// Compares the payloads bit by bit with those of the CPU's vectors, and some of them with the
  /// oracle's.
  bool AreTheCpus(const std::vector<std::vector<std::byte>>& payloads) const {
    return ForAll(suite_.pool(), payloads.size(),
                  [&](size_t i) {
                    const kernels::GpuChunk& c = suite_.chunks()[i];
                    bool same =
                        std::ranges::equal(payloads[i], PayloadOf(static_cast<uint32_t>(i)));
                    if (i % kByOracle == 0) {
                      std::vector<std::byte> room(kernels::MaxEncodedBytes(c.bytes, c.width));
                      const auto made = kernels::Scalar().diff_encode(
                          suite_.pair().key, suite_.host(GpuSuite::kOld).subspan(c.offset, c.bytes),
                          suite_.host(GpuSuite::kNew).subspan(c.offset, c.bytes), c.width,
                          suite_.digests(GpuSuite::kOld)[i], room);
                      same &= std::ranges::equal(payloads[i], Bytes(room).first(made.bytes));
                    }
                    return same ? absl::OkStatus() : absl::DataLossError("");
                  })
        .ok();
  }

  GpuSuite& suite_;
  const GpuMode mode_;
  std::unique_ptr<GpuDiffer> differ_;
  bool payloads_checked_ = false;
};

/// Halves in host memory.
void HostCases(GpuSuite& suite, Codec& codec, const char* diff, const char* apply,
               Beside beside_apply) {
  suite.Measure({.operation = diff,
                 .work =
                     [&, diff] {
                       return codec.Diff(diff, suite.host(GpuSuite::kOld),
                                         suite.host(GpuSuite::kNew));
                     },
                 .beside = Beside::kCopyToDevice});
  suite.Measure({.operation = apply,
                 .work = [&, apply] { return codec.Apply(apply); },
                 .beside = beside_apply});
}

void ResidentCases(GpuSuite& suite) {
  Codec codec(suite, GpuMode::kResident);
  constexpr const char* kOnDevice = "diff_encode/on-device";
  constexpr const char* kLive = "diff_encode/live";
  suite.Measure({.operation = kOnDevice,
                 .work = [&]() -> StatusOr<double> {
                   DW_ASSIGN_OR_RETURN(const Bytes before, suite.OnDevice(GpuSuite::kOld));
                   DW_ASSIGN_OR_RETURN(const Bytes after, suite.OnDevice(GpuSuite::kNew));
                   return codec.Diff(kOnDevice, before, after);
                 },
                 .beside = Beside::kDeviceCopy,
                 .ratio_at_least = kDiffOfCopy});
  suite.Measure({.operation = kLive,
                 .work = [&] { return codec.DiffLive(kLive); },
                 .beside = Beside::kDeviceCopy,
                 .ratio_at_least = kDiffOfCopy});
  HostCases(suite, codec, "diff_encode/resident", "decode_apply/resident", Beside::kDeviceCopy);
}

void StagedCases(GpuSuite& suite) {
  Codec codec(suite, GpuMode::kHostStaged);
  constexpr const char* kDigest = "digest/on-device";
  suite.Measure({.operation = kDigest,
                 .work = [&] { return codec.Digest(kDigest); },
                 .beside = Beside::kDeviceCopy,
                 .ratio_at_least = kDigestOfCopy});
  HostCases(suite, codec, "diff_encode/host-staged", "decode_apply/host-staged",
            Beside::kCopyToDevice);
}

}  // namespace

void CodecCases(GpuSuite& suite) {
  ResidentCases(suite);
  StagedCases(suite);
}

}  // namespace deltawire::bench
