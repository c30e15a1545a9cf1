#include "bench/gpu/cases.h"

#include <chrono>
#include <cstring>

namespace deltawire::bench {
namespace {

using kernels::Bytes;
using kernels::GpuBuffer;
using kernels::GpuDiffer;
using kernels::GpuMode;
using kernels::MutableBytes;

constexpr const char* kDeviceCopy = "device copy";
constexpr const char* kLinkCopy = "host link copy";

/// Seconds of one GPU call.
template <typename F>
StatusOr<double> Timed(F call) {
  const auto start = std::chrono::steady_clock::now();
  DW_RETURN_IF_ERROR(FromGpu(call()));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Times `call` into the series.
template <typename F>
Status Time(Series& series, std::string_view name, F call) {
  DW_ASSIGN_OR_RETURN(const double seconds, Timed(call));
  series.Add(name, seconds);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<GpuBuffer>> OnDevice(Bytes bytes) {
  std::unique_ptr<GpuBuffer> buffer;
  DW_RETURN_IF_ERROR(FromGpu(GpuBuffer::Create(bytes.size(), &buffer)));
  DW_RETURN_IF_ERROR(FromGpu(kernels::GpuCopy(buffer->bytes(), bytes)));
  return buffer;
}

StatusOr<std::unique_ptr<GpuDiffer>> MakeDiffer(const GpuCases& cases, GpuMode mode) {
  kernels::GpuOptions options = cases.options;
  options.mode = mode;
  std::unique_ptr<GpuDiffer> differ;
  DW_RETURN_IF_ERROR(
      FromGpu(GpuDiffer::Create(options, cases.pair->key(), cases.pair->chunks(), &differ)));
  return differ;
}

/// Everything that the codec cases run on.
struct Bench {
  const Pair& pair;
  std::unique_ptr<GpuDiffer> staged, resident;
  std::unique_ptr<GpuBuffer> halves[2];  ///< both versions, on the device
  std::unique_ptr<GpuBuffer> copy;
  std::unique_ptr<PinnedHalf> host;

  kernels::GpuStatus Diff(GpuDiffer& differ, size_t from, Bytes before, Bytes after) const {
    return differ.Diff(before, after, pair.all(), pair.digests(from),
                       [](uint32_t, const kernels::EncodeResult&, Bytes) {});
  }
  std::vector<kernels::GpuApplyItem> Items(size_t from) const {
    std::vector<kernels::GpuApplyItem> items;
    for (const uint32_t i : pair.all()) {
      const auto& payload = pair.deltas(from).payloads[i];
      if (!payload.empty()) items.push_back({i, payload, pair.digests(from)[i]});
    }
    return items;
  }
};

StatusOr<Bench> MakeBench(const GpuCases& cases) {
  Bench bench{*cases.pair, nullptr, nullptr, {}, nullptr, nullptr};
  DW_ASSIGN_OR_RETURN(bench.staged, MakeDiffer(cases, GpuMode::kHostStaged));
  DW_ASSIGN_OR_RETURN(bench.resident, MakeDiffer(cases, GpuMode::kResident));
  for (size_t v = 0; v < 2; ++v) {
    DW_ASSIGN_OR_RETURN(bench.halves[v], OnDevice(cases.pair->half(v)));
  }
  DW_ASSIGN_OR_RETURN(bench.copy, OnDevice(cases.pair->half(0)));
  bench.host = std::make_unique<PinnedHalf>(cases.pair->size());
  std::memcpy(bench.host->bytes().data(), cases.pair->half(0).data(), cases.pair->size());
  return bench;
}

Status CheckDiff(const Bench& bench, GpuDiffer& differ, size_t from) {
  size_t wrong = 0;
  DW_RETURN_IF_ERROR(FromGpu(differ.Diff(
      bench.pair.half(from), bench.pair.half(1 - from), bench.pair.all(), bench.pair.digests(from),
      [&](uint32_t i, const kernels::EncodeResult& r, Bytes payload) {
        const auto& expected = bench.pair.deltas(from).payloads[i];
        wrong += r.digest_after != bench.pair.digests(1 - from)[i] ||
                 payload.size() != expected.size() ||
                 (!expected.empty() &&
                  std::memcmp(payload.data(), expected.data(), expected.size()) != 0);
      })));
  if (wrong == 0) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "diff_encode: {} chunks differ from the CPU's", wrong);
}

Status CheckApply(const Bench& bench, GpuDiffer& differ, bool resident, size_t from) {
  auto items = bench.Items(from);
  DW_RETURN_IF_ERROR(FromGpu(differ.Apply(bench.host->bytes(), items)));
  size_t wrong = 0;
  for (const auto& item : items) {
    wrong += item.status != kernels::DecodeStatus::kOk ||
             item.digest_after != bench.pair.digests(1 - from)[item.chunk];
  }
  if (resident) {
    DW_RETURN_IF_ERROR(FromGpu(differ.ReadBase(bench.host->bytes(), bench.pair.all())));
  }
  const bool same = std::memcmp(bench.host->bytes().data(), bench.pair.half(1 - from).data(),
                                bench.pair.size()) == 0;
  if (wrong == 0 && same) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "decode_apply: {} chunks differ from the CPU's", wrong);
}

Status CheckAll(const Bench& bench) {
  const Pair& pair = bench.pair;
  std::vector<uint64_t> digests(pair.all().size());
  DW_RETURN_IF_ERROR(FromGpu(bench.resident->Digest(pair.half(0), pair.all(), digests)));
  if (digests != pair.digests(0)) {
    return Errorf(StatusCode::kInternal, "digest: not the CPU's");
  }
  for (const size_t from : {0, 1}) {
    DW_RETURN_IF_ERROR(CheckDiff(bench, *bench.staged, from));
    DW_RETURN_IF_ERROR(CheckDiff(bench, *bench.resident, from));
  }
  for (const size_t from : {0, 1}) {
    DW_RETURN_IF_ERROR(CheckApply(bench, *bench.staged, false, from));
  }
  for (const size_t from : {0, 1}) {
    DW_RETURN_IF_ERROR(CheckApply(bench, *bench.resident, true, from));
  }
  return absl::OkStatus();
}

Status References(const Bench& bench, Series& series) {
  DW_RETURN_IF_ERROR(Time(series, kDeviceCopy, [&] {
    return kernels::GpuCopy(bench.copy->bytes(), bench.halves[0]->bytes());
  }));
  return Time(series, kLinkCopy,
              [&] { return kernels::GpuCopy(bench.copy->bytes(), bench.pair.half(0)); });
}

/// The resident base alternates between the versions; `from` is where it stands.
Status Round(const Bench& bench, size_t from, Series& series) {
  const Pair& pair = bench.pair;
  const size_t to = 1 - from;
  DW_RETURN_IF_ERROR(References(bench, series));
  DW_RETURN_IF_ERROR(Time(series, "diff_encode/host-staged", [&] {
    return bench.Diff(*bench.staged, from, pair.half(from), pair.half(to));
  }));
  DW_RETURN_IF_ERROR(Time(series, "diff_encode/resident", [&] {
    return bench.Diff(*bench.resident, from, pair.half(from), pair.half(to));
  }));
  DW_RETURN_IF_ERROR(Time(series, "diff_encode/on-device", [&] {
    return bench.Diff(*bench.resident, to, bench.halves[to]->bytes(), bench.halves[from]->bytes());
  }));
  auto items = bench.Items(from);
  DW_RETURN_IF_ERROR(
      Time(series, "decode_apply/resident", [&] { return bench.resident->Apply({}, items); }));
  items = bench.Items(from);
  DW_RETURN_IF_ERROR(Time(series, "decode_apply/host-staged",
                          [&] { return bench.staged->Apply(bench.host->bytes(), items); }));
  std::vector<uint64_t> digests(pair.all().size());
  return Time(series, "digest/on-device",
              [&] { return bench.staged->Digest(bench.halves[0]->bytes(), pair.all(), digests); });
}

void Add(const GpuCases& cases, const Series& series, const char* name, const char* reference) {
  const double gigabytes = static_cast<double>(cases.pair->size()) / 1e9;
  Row row;
  row.name = std::string(name) + "/" + cases.trace;
  row.metric = "throughput";
  row.unit = "GB/s";
  row.value = Rate(series.Of(name), gigabytes);
  row.reference = reference;
  row.reference_value = Rate(series.Of(reference), gigabytes);
  cases.report->Add(std::move(row));
}

}  // namespace

Status CodecCases(const GpuCases& cases) {
  DW_ASSIGN_OR_RETURN(const Bench bench, MakeBench(cases));
  DW_RETURN_IF_ERROR(CheckAll(bench));
  size_t from = 0;
  DW_ASSIGN_OR_RETURN(const Series series, Measure(cases.rounds, [&](Series& s) {
                        const Status status = Round(bench, from, s);
                        from = 1 - from;
                        return status;
                      }));
  Add(cases, series, "diff_encode/host-staged", kLinkCopy);
  Add(cases, series, "diff_encode/resident", kLinkCopy);
  Add(cases, series, "diff_encode/on-device", kDeviceCopy);
  Add(cases, series, "decode_apply/host-staged", kLinkCopy);
  Add(cases, series, "decode_apply/resident", kDeviceCopy);
  Add(cases, series, "digest/on-device", kDeviceCopy);
  return absl::OkStatus();
}

Status PlaceCases(const GpuCases& cases) {
  constexpr size_t kRun = 2048;  // a row of one shard
  const Pair& pair = *cases.pair;
  const size_t rows = pair.size() / (2 * kRun), bytes = rows * 2 * kRun;
  if (rows == 0) return absl::OkStatus();
  const auto shard = static_cast<int64_t>(rows * kRun);
  kernels::StridedCopy copy;
  copy.run_bytes = kRun;
  copy.dims = 2;
  copy.counts[0] = 2, copy.src_strides[0] = shard, copy.dst_strides[0] = kRun;
  copy.counts[1] = rows, copy.src_strides[1] = kRun, copy.dst_strides[1] = 2 * kRun;

  const Bytes src = pair.half(0).first(bytes);
  PinnedHalf wanted(bytes), placed(bytes);
  kernels::Best().place(copy, src, wanted.bytes());
  DW_ASSIGN_OR_RETURN(const auto from, OnDevice(src));
  DW_ASSIGN_OR_RETURN(const auto to, OnDevice(src));
  const auto staged = [&]() -> kernels::GpuStatus {
    auto status = kernels::GpuCopy(from->bytes(), src);
    if (status.ok()) status = kernels::GpuPlace({&copy, 1}, from->bytes(), to->bytes());
    if (status.ok()) status = kernels::GpuCopy(placed.bytes(), to->bytes());
    return status;
  };
  DW_RETURN_IF_ERROR(FromGpu(staged()));
  if (std::memcmp(placed.bytes().data(), wanted.bytes().data(), bytes) != 0) {
    return Errorf(StatusCode::kInternal, "place: not the CPU's bytes");
  }
  DW_ASSIGN_OR_RETURN(const Series series, Measure(cases.rounds, [&](Series& s) -> Status {
                        DW_RETURN_IF_ERROR(Time(s, kDeviceCopy, [&] {
                          return kernels::GpuCopy(to->bytes(), from->bytes());
                        }));
                        DW_RETURN_IF_ERROR(Time(
                            s, kLinkCopy, [&] { return kernels::GpuCopy(from->bytes(), src); }));
                        DW_RETURN_IF_ERROR(Time(s, "place/resident", [&] {
                          return kernels::GpuPlace({&copy, 1}, from->bytes(), to->bytes());
                        }));
                        return Time(s, "place/host-staged", staged);
                      }));
  Add(cases, series, "place/resident", kDeviceCopy);
  Add(cases, series, "place/host-staged", kLinkCopy);
  return absl::OkStatus();
}

}  // namespace deltawire::bench
