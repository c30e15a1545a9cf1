// The CUDA twins of the kernels: diff + encode, decode + apply, digest, place. First a case's bytes
// are compared with the CPU's; then it is timed beside a copy within the device or a copy over the
// host link. See bench/README.md for what each case is.
#include <CLI/CLI.hpp>
#include <bit>
#include <cstring>
#include <numeric>

#include "bench/delta/workload.h"
#include "bench/harness/bench.h"
#include "bench/harness/parallel.h"
#include "kernels/gpu.h"

namespace deltawire::bench {
namespace {

using kernels::GpuBuffer;
using kernels::GpuDiffer;
using kernels::GpuMode;

constexpr const char* kDeviceCopy = "device copy";
constexpr const char* kLinkCopy = "host link copy";

/// OK, or kInternal with CUDA's message.
Status FromGpu(const kernels::GpuStatus& status) {
  if (status.ok()) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}", status.message);
}

Status Time(Series& series, std::string_view name,
            const std::function<kernels::GpuStatus()>& call) {
  return series.Time(name, [&] { return FromGpu(call()); });
}

StatusOr<std::unique_ptr<GpuBuffer>> OnDevice(Bytes bytes) {
  std::unique_ptr<GpuBuffer> buffer;
  DW_RETURN_IF_ERROR(FromGpu(GpuBuffer::Create(bytes.size(), &buffer)));
  DW_RETURN_IF_ERROR(FromGpu(kernels::GpuCopy(buffer->bytes(), bytes)));
  return buffer;
}

/// One of the pair's versions, and what the CPU makes of it.
struct Half {
  Bytes bytes;
  std::vector<uint64_t> digests;
  std::shared_ptr<const Delta> to_other;
  std::unique_ptr<GpuBuffer> on_device;
};

/// Everything that the codec cases run on.
struct Rig {
  std::vector<kernels::GpuChunk> chunks;
  std::vector<uint32_t> all;
  Half halves[2];
  std::unique_ptr<GpuDiffer> staged, resident;
  std::unique_ptr<GpuBuffer> copy;
  HugeBuffer host;  ///< the half that Apply changes: version 0 or 1, in turn as rounds go by
  std::unique_ptr<kernels::GpuPin> pin;

  std::vector<kernels::GpuApplyItem> Items(size_t from) const {
    std::vector<kernels::GpuApplyItem> items;
    for (const ChunkDelta& entry : halves[from].to_other->chunks()) {
      items.push_back({entry.chunk, entry.payload, entry.digest_before});
    }
    return items;
  }
};

void Describe(Half& half, Bytes other, const Workload& pair, ThreadPool& pool) {
  half.digests.resize(pair.chunks.size());
  pool.ParallelFor(pair.chunks.size(), [&](size_t i) {
    const Chunk& c = pair.chunks[static_cast<uint32_t>(i)];
    half.digests[i] = kernels::Best().digest(pair.key, half.bytes.subspan(c.offset, c.bytes));
  });
  half.to_other = DiffAll(pair.key, pair.chunks, half.bytes, other, pool);
}

StatusOr<std::unique_ptr<GpuDiffer>> MakeDiffer(const Rig& rig, const Workload& pair,
                                                GpuMode mode) {
  std::unique_ptr<GpuDiffer> differ;
  DW_RETURN_IF_ERROR(FromGpu(GpuDiffer::Create({.mode = mode}, pair.key, rig.chunks, &differ)));
  return differ;
}

StatusOr<Rig> MakeRig(const Workload& pair, ThreadPool& pool) {
  Rig rig;
  for (uint32_t i = 0; i < pair.chunks.size(); ++i) {
    const Chunk& c = pair.chunks[i];
    rig.chunks.push_back({c.offset, c.bytes, c.width});
  }
  rig.all.resize(rig.chunks.size());
  std::iota(rig.all.begin(), rig.all.end(), 0);
  rig.halves[0].bytes = pair.old_data.data();
  rig.halves[1].bytes = pair.new_data.data();
  for (const size_t v : {0, 1}) {
    Describe(rig.halves[v], rig.halves[1 - v].bytes, pair, pool);
    DW_ASSIGN_OR_RETURN(rig.halves[v].on_device, OnDevice(rig.halves[v].bytes));
  }
  DW_ASSIGN_OR_RETURN(rig.staged, MakeDiffer(rig, pair, GpuMode::kHostStaged));
  DW_ASSIGN_OR_RETURN(rig.resident, MakeDiffer(rig, pair, GpuMode::kResident));
  DW_ASSIGN_OR_RETURN(rig.copy, OnDevice(rig.halves[0].bytes));
  DW_ASSIGN_OR_RETURN(rig.host, HugeBuffer::Create(pair.bytes()));
  std::memcpy(rig.host.data().data(), rig.halves[0].bytes.data(), pair.bytes());
  (void)kernels::GpuPin::Create(rig.host.data(), &rig.pin);
  return rig;
}

Status CheckDiff(const Rig& rig, GpuDiffer& differ, size_t from) {
  const Half &before = rig.halves[from], &after = rig.halves[1 - from];
  size_t wrong = 0;
  DW_RETURN_IF_ERROR(FromGpu(
      differ.Diff(before.bytes, after.bytes, rig.all, before.digests,
                  [&](uint32_t i, const kernels::EncodeResult& r, Bytes payload) {
                    wrong += r.digest_after != after.digests[i] ||
                             !std::ranges::equal(payload, Workload::PayloadOf(*before.to_other, i));
                  })));
  if (wrong == 0) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "diff_encode: {} chunks differ from the CPU's", wrong);
}

Status CheckApply(Rig& rig, GpuDiffer& differ, bool resident, size_t from) {
  const Half& after = rig.halves[1 - from];
  auto items = rig.Items(from);
  DW_RETURN_IF_ERROR(FromGpu(differ.Apply(rig.host.data(), items)));
  const auto wrong = std::ranges::count_if(items, [&](const kernels::GpuApplyItem& item) {
    return item.status != kernels::DecodeStatus::kOk ||
           item.digest_after != after.digests[item.chunk];
  });
  if (resident) DW_RETURN_IF_ERROR(FromGpu(differ.ReadBase(rig.host.data(), rig.all)));
  if (wrong == 0 && std::ranges::equal(rig.host.data(), after.bytes)) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "decode_apply: {} chunks differ from the CPU's", wrong);
}

Status CheckAll(Rig& rig) {
  std::vector<uint64_t> digests(rig.all.size());
  DW_RETURN_IF_ERROR(FromGpu(rig.resident->Digest(rig.halves[0].bytes, rig.all, digests)));
  if (digests != rig.halves[0].digests) {
    return Errorf(StatusCode::kInternal, "digest: not the CPU's");
  }
  for (const size_t from : {0, 1}) {
    DW_RETURN_IF_ERROR(CheckDiff(rig, *rig.staged, from));
    DW_RETURN_IF_ERROR(CheckDiff(rig, *rig.resident, from));
  }
  for (const bool resident : {false, true}) {
    GpuDiffer& differ = resident ? *rig.resident : *rig.staged;
    for (const size_t from : {0, 1}) DW_RETURN_IF_ERROR(CheckApply(rig, differ, resident, from));
  }
  return absl::OkStatus();
}

/// The resident base alternates between the versions; `from` is where it stands.
Status OneRound(Rig& rig, size_t from, Series& series) {
  const Half &before = rig.halves[from], &after = rig.halves[1 - from];
  const auto diff = [&](GpuDiffer& differ, const Half& base, Bytes old_half, Bytes new_half) {
    return [&, old_half, new_half] {
      return differ.Diff(old_half, new_half, rig.all, base.digests,
                         [](uint32_t, const kernels::EncodeResult&, Bytes) {});
    };
  };
  const auto device_before = before.on_device->bytes(), device_after = after.on_device->bytes();
  DW_RETURN_IF_ERROR(Time(series, kDeviceCopy,
                          [&] { return kernels::GpuCopy(rig.copy->bytes(), device_before); }));
  DW_RETURN_IF_ERROR(
      Time(series, kLinkCopy, [&] { return kernels::GpuCopy(rig.copy->bytes(), before.bytes); }));
  DW_RETURN_IF_ERROR(Time(series, "diff_encode/host-staged",
                          diff(*rig.staged, before, before.bytes, after.bytes)));
  DW_RETURN_IF_ERROR(
      Time(series, "diff_encode/resident", diff(*rig.resident, before, before.bytes, after.bytes)));
  DW_RETURN_IF_ERROR(Time(series, "diff_encode/on-device",
                          diff(*rig.resident, after, device_after, device_before)));
  auto items = rig.Items(from), again = items;
  DW_RETURN_IF_ERROR(
      Time(series, "decode_apply/resident", [&] { return rig.resident->Apply({}, items); }));
  DW_RETURN_IF_ERROR(Time(series, "decode_apply/host-staged",
                          [&] { return rig.staged->Apply(rig.host.data(), again); }));
  std::vector<uint64_t> digests(rig.all.size());
  return Time(series, "digest/on-device",
              [&] { return rig.staged->Digest(device_before, rig.all, digests); });
}

void AddRow(Bench& bench, const Workload& pair, const Series& series, const std::string& name,
            const char* reference) {
  bench.Add(name + "/" + pair.name, 1, series, {Throughput(name, pair.bytes()).Against(reference)});
}

/// diff_encode and decode_apply, resident and host-staged; diff_encode and digest, with all bytes
/// on the device. The name of each case ends in the name of `pair`.
Status CodecCases(Bench& bench, const Workload& pair, ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(Rig rig, MakeRig(pair, pool));
  DW_RETURN_IF_ERROR(CheckAll(rig));
  size_t from = 0;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) {
    const Status status = OneRound(rig, from, s);
    from = 1 - from;
    return status;
  }));
  for (const auto& [name, reference] : {std::pair("diff_encode/host-staged", kLinkCopy),
                                        {"diff_encode/resident", kLinkCopy},
                                        {"diff_encode/on-device", kDeviceCopy},
                                        {"decode_apply/host-staged", kLinkCopy},
                                        {"decode_apply/resident", kDeviceCopy},
                                        {"digest/on-device", kDeviceCopy}}) {
    AddRow(bench, pair, series, name, reference);
  }
  return absl::OkStatus();
}

/// place, resident and host-staged: two column shards into one matrix.
Status PlaceCases(Bench& bench, const Workload& pair) {
  constexpr size_t kRun = 2048;  // a row of one shard
  const size_t rows = pair.bytes() / (2 * kRun), bytes = rows * 2 * kRun;
  if (rows == 0) return absl::OkStatus();
  const auto shard = static_cast<int64_t>(rows * kRun);
  kernels::StridedCopy copy;
  copy.run_bytes = kRun;
  copy.dims = 2;
  copy.counts[0] = 2, copy.src_strides[0] = shard, copy.dst_strides[0] = kRun;
  copy.counts[1] = rows, copy.src_strides[1] = kRun, copy.dst_strides[1] = 2 * kRun;

  const Bytes src = pair.old_data.data().first(bytes);
  DW_ASSIGN_OR_RETURN(HugeBuffer wanted, HugeBuffer::Create(bytes));
  DW_ASSIGN_OR_RETURN(HugeBuffer placed, HugeBuffer::Create(bytes));
  std::unique_ptr<kernels::GpuPin> pin;
  (void)kernels::GpuPin::Create(placed.data(), &pin);
  kernels::Best().place(copy, src, wanted.data());
  DW_ASSIGN_OR_RETURN(const auto from, OnDevice(src));
  DW_ASSIGN_OR_RETURN(const auto to, OnDevice(src));
  const auto resident = [&] { return kernels::GpuPlace({&copy, 1}, from->bytes(), to->bytes()); };
  const auto staged = [&]() -> kernels::GpuStatus {
    auto status = kernels::GpuCopy(from->bytes(), src);
    if (status.ok()) status = resident();
    if (status.ok()) status = kernels::GpuCopy(placed.data(), to->bytes());
    return status;
  };
  DW_RETURN_IF_ERROR(FromGpu(staged()));
  if (!std::ranges::equal(placed.data(), wanted.data())) {
    return Errorf(StatusCode::kInternal, "place: not the CPU's bytes");
  }
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    DW_RETURN_IF_ERROR(
        Time(s, kDeviceCopy, [&] { return kernels::GpuCopy(to->bytes(), from->bytes()); }));
    DW_RETURN_IF_ERROR(Time(s, kLinkCopy, [&] { return kernels::GpuCopy(from->bytes(), src); }));
    DW_RETURN_IF_ERROR(Time(s, "place/resident", resident));
    return Time(s, "place/host-staged", staged);
  }));
  AddRow(bench, pair, series, "place/resident", kDeviceCopy);
  AddRow(bench, pair, series, "place/host-staged", kLinkCopy);
  return absl::OkStatus();
}

constexpr uint64_t kQuickMib = 16;

struct Options {
  uint64_t mib = 2048;
  std::vector<double> densities = {0.001, 0.01, 0.03, 0.08, 0.5};
  std::vector<std::string> pair;
  unsigned width = 2;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--mib", options.mib, "Size of a half")->check(CLI::Range(1, 1 << 17));
  app.add_option("--density", options.densities, "Shares of elements that change")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--pair", options.pair, "Two raw little-endian files of your own instead: OLD NEW")
      ->expected(2)
      ->default_str("");
  app.add_option("--width", options.width, "Bytes per element of these files")
      ->check(CLI::IsMember({1, 2, 4, 8}));
}

StatusOr<std::vector<Source>> Sources(const Options& options, const Bench& bench) {
  std::vector<Source> out;
  if (!options.pair.empty()) {
    static constexpr DType kTypes[] = {DType::kU8, DType::kU16, DType::kU32, DType::kU64};
    const DType dtype = kTypes[std::countr_zero(options.width)];
    DW_ASSIGN_OR_RETURN(Source pair,
                        PairSource(options.pair[0], options.pair[1], dtype, bench.seed));
    out.push_back(std::move(pair));
    return out;
  }
  const WorkloadOptions workload{bench.quick ? kQuickMib : options.mib, bench.seed};
  for (const double density : options.densities) {
    out.push_back(RandomSource(fmt::format("bf16/d={}", density), density, workload));
  }
  return out;
}

/// Pins the pair's halves for as long as `pins` live. Copies from unpinned memory are slower.
void Pin(const Workload& pair, std::unique_ptr<kernels::GpuPin> (&pins)[2]) {
  if (!kernels::GpuPin::Create(pair.old_data.data(), &pins[0]).ok() ||
      !kernels::GpuPin::Create(pair.new_data.data(), &pins[1]).ok()) {
    fmt::print("the halves could not be pinned: links are slower so\n");
  }
}

Status Run(const Options& options, Bench& bench) {
  kernels::GpuInfo gpu;
  const kernels::GpuStatus found = kernels::FindGpu(0, &gpu);
  if (found.error == kernels::GpuError::kNotBuilt || found.error == kernels::GpuError::kNoDevice) {
    fmt::print("not measured: no CUDA device ({})\n", found.message);
    return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(FromGpu(found));
  fmt::print("     {} ({})\n\n", gpu.name, HumanBytes(gpu.memory_bytes));
  bench.report().Common("gpu", gpu.name);
  DW_ASSIGN_OR_RETURN(const std::vector<Source> sources, Sources(options, bench));
  ThreadPool pool;
  for (const Source& source : sources) {
    DW_ASSIGN_OR_RETURN(const Workload pair, source.make(pool));
    std::unique_ptr<kernels::GpuPin> pins[2];
    Pin(pair, pins);
    DW_RETURN_IF_ERROR(CodecCases(bench, pair, pool));
    if (&source == &sources.front()) DW_RETURN_IF_ERROR(PlaceCases(bench, pair));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain("gpu", "The CUDA kernels, against the device's own copy and the host link's.",
                   Declare, Run, argc, argv);
}
