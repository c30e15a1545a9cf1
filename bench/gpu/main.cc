// The CUDA twins of the kernels: diff + encode, decode + apply, digest, place, each beside a copy
// within the device or a copy over the host link. See bench/README.md for what each case is.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>

#include "bench/delta/workload.h"
#include "bench/harness/bench.h"
#include "kernels/gpu.h"

namespace deltawire::bench {
namespace {

using kernels::GpuBuffer;
using kernels::GpuDiffer;
using kernels::GpuMode;
using kernels::GpuStatus;

constexpr const char* kDeviceCopy = "device copy";
constexpr const char* kLinkCopy = "host link copy";

/// OK, or kInternal with CUDA's message.
Status FromGpu(const GpuStatus& status) {
  if (status.ok()) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}", status.message);
}

StatusOr<std::unique_ptr<GpuBuffer>> OnDevice(Bytes bytes) {
  std::unique_ptr<GpuBuffer> buffer;
  DW_RETURN_IF_ERROR(FromGpu(GpuBuffer::Create(bytes.size(), &buffer)));
  DW_RETURN_IF_ERROR(FromGpu(kernels::GpuCopy(buffer->bytes(), bytes)));
  return buffer;
}

StatusOr<double> Timed(const std::function<GpuStatus()>& call) {
  const auto start = SteadyClock::now();
  DW_RETURN_IF_ERROR(FromGpu(call()));
  return SecondsSince(start);
}

Status Same(const char* what, bool same) {
  if (same) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: not the CPU's bytes", what);
}

/// A pair's versions on the device, and what the CPU makes of them. Every operation leads from the
/// old version to the new one, and compares its results with the CPU's; that is not timed.
struct Rig {
  const Workload& pair;
  std::vector<kernels::GpuChunk> chunks = {};
  std::vector<uint32_t> all = {};
  std::vector<uint64_t> old_digests = {}, new_digests = {};
  std::unique_ptr<GpuDiffer> staged = {}, resident = {};
  std::unique_ptr<GpuBuffer> old_data = {}, new_data = {}, copy = {};
  HugeBuffer host = {};
  std::unique_ptr<kernels::GpuPin> pin = {};

  static StatusOr<Rig> Make(const Workload& pair, ThreadPool& pool) {
    Rig rig{pair};
    for (uint32_t i = 0; i < pair.chunks.size(); ++i) {
      const Chunk& c = pair.chunks[i];
      rig.chunks.push_back({c.offset, c.bytes, c.width});
      rig.all.push_back(i);
    }
    rig.old_digests = DigestsOf(pair, pair.old_data.data(), pool);
    rig.new_digests = DigestsOf(pair, pair.new_data.data(), pool);
    for (const auto& [mode, differ] :
         {std::pair(GpuMode::kHostStaged, &rig.staged), {GpuMode::kResident, &rig.resident}}) {
      DW_RETURN_IF_ERROR(FromGpu(GpuDiffer::Create({.mode = mode}, pair.key, rig.chunks, differ)));
    }
    DW_ASSIGN_OR_RETURN(rig.old_data, OnDevice(pair.old_data.data()));
    DW_ASSIGN_OR_RETURN(rig.new_data, OnDevice(pair.new_data.data()));
    DW_ASSIGN_OR_RETURN(rig.copy, OnDevice(pair.old_data.data()));
    DW_ASSIGN_OR_RETURN(rig.host, HugeBuffer::Create(pair.bytes()));
    (void)kernels::GpuPin::Create(rig.host.data(), &rig.pin);
    return rig;
  }

  static std::vector<uint64_t> DigestsOf(const Workload& pair, Bytes half, ThreadPool& pool) {
    std::vector<uint64_t> digests(pair.chunks.size());
    pool.ParallelFor(digests.size(), [&](size_t i) {
      const Chunk& c = pair.chunks[static_cast<uint32_t>(i)];
      digests[i] = kernels::Best().digest(pair.key, half.subspan(c.offset, c.bytes));
    });
    return digests;
  }

  /// Digests the old version on the device, which makes it a resident differ's base.
  StatusOr<double> Digest(GpuDiffer& differ) const {
    std::vector<uint64_t> digests(all.size());
    DW_ASSIGN_OR_RETURN(const double seconds,
                        Timed([&] { return differ.Digest(old_data->bytes(), all, digests); }));
    DW_RETURN_IF_ERROR(Same("digest", digests == old_digests));
    return seconds;
  }
  StatusOr<double> Diff(GpuDiffer& differ, Bytes before, Bytes after) const {
    if (&differ == resident.get()) DW_RETURN_IF_ERROR(Digest(differ).status());
    size_t wrong = 0;
    const auto encoded = [&](uint32_t i, const kernels::EncodeResult& r, Bytes payload) {
      wrong += r.digest_after != new_digests[i] ||
               payload.size() != Workload::PayloadOf(*pair.deltas.back(), i).size();
    };
    DW_ASSIGN_OR_RETURN(const double seconds, Timed([&] {
                          return differ.Diff(before, after, all, old_digests, encoded);
                        }));
    DW_RETURN_IF_ERROR(Same("diff_encode", wrong == 0));
    return seconds;
  }
  StatusOr<double> Apply(GpuDiffer& differ) {
    if (&differ == resident.get()) DW_RETURN_IF_ERROR(Digest(differ).status());
    std::vector<kernels::GpuApplyItem> items;
    for (const ChunkDelta& entry : pair.deltas.back()->chunks()) {
      items.push_back({entry.chunk, entry.payload, entry.digest_before});
    }
    std::ranges::copy(pair.old_data.data(), host.data().begin());
    DW_ASSIGN_OR_RETURN(const double seconds,
                        Timed([&] { return differ.Apply(host.data(), items); }));
    if (&differ == resident.get()) DW_RETURN_IF_ERROR(FromGpu(differ.ReadBase(host.data(), all)));
    const bool decoded = std::ranges::all_of(items, [&](const kernels::GpuApplyItem& item) {
      return item.status == kernels::DecodeStatus::kOk &&
             item.digest_after == new_digests[item.chunk];
    });
    DW_RETURN_IF_ERROR(
        Same("decode_apply", decoded && std::ranges::equal(host.data(), pair.new_data.data())));
    return seconds;
  }
};

/// The cases of one pair: copies to compare with, and what is compared.
class Cases {
 public:
  Cases(const Workload& pair, std::function<GpuStatus()> device_copy,
        std::function<GpuStatus()> link_copy)
      : pair_(pair) {
    cases_.push_back({kDeviceCopy, 1, [=] { return Timed(device_copy); }, {}});
    cases_.push_back({kLinkCopy, 1, [=] { return Timed(link_copy); }, {}});
  }
  /// The case's name ends in the name of the pair.
  void Add(const char* operation, const char* reference, std::function<StatusOr<double>()> run) {
    const std::string name = fmt::format("{}/{}", operation, pair_.name);
    cases_.push_back(
        {name, 1, std::move(run), {Throughput(name, pair_.bytes()).Against(reference)}});
  }
  Status Run(Bench& bench) const { return bench.Run(cases_); }

 private:
  const Workload& pair_;
  std::vector<Case> cases_;
};

Status CodecCases(Bench& bench, const Workload& pair, ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(Rig rig, Rig::Make(pair, pool));
  const Bytes before = pair.old_data.data(), after = pair.new_data.data();
  const auto copy = [&](Bytes from) { return kernels::GpuCopy(rig.copy->bytes(), from); };
  Cases cases(
      pair, [&] { return copy(rig.old_data->bytes()); }, [&] { return copy(before); });
  cases.Add("diff_encode/host-staged", kLinkCopy,
            [&] { return rig.Diff(*rig.staged, before, after); });
  cases.Add("diff_encode/resident", kLinkCopy,
            [&] { return rig.Diff(*rig.resident, before, after); });
  cases.Add("diff_encode/on-device", kDeviceCopy,
            [&] { return rig.Diff(*rig.resident, rig.old_data->bytes(), rig.new_data->bytes()); });
  cases.Add("decode_apply/host-staged", kLinkCopy, [&] { return rig.Apply(*rig.staged); });
  cases.Add("decode_apply/resident", kDeviceCopy, [&] { return rig.Apply(*rig.resident); });
  cases.Add("digest/on-device", kDeviceCopy, [&] { return rig.Digest(*rig.staged); });
  return cases.Run(bench);
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
  const auto staged = [&]() -> GpuStatus {
    auto status = kernels::GpuCopy(from->bytes(), src);
    if (status.ok()) status = resident();
    if (status.ok()) status = kernels::GpuCopy(placed.data(), to->bytes());
    return status;
  };
  DW_RETURN_IF_ERROR(FromGpu(staged()));
  DW_RETURN_IF_ERROR(Same("place", std::ranges::equal(placed.data(), wanted.data())));
  Cases cases(
      pair, [&] { return kernels::GpuCopy(to->bytes(), from->bytes()); },
      [&] { return kernels::GpuCopy(from->bytes(), src); });
  cases.Add("place/resident", kDeviceCopy, [&] { return Timed(resident); });
  cases.Add("place/host-staged", kLinkCopy, [&] { return Timed(staged); });
  return cases.Run(bench);
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
  const GpuStatus found = kernels::FindGpu(0, &gpu);
  if (found.error == kernels::GpuError::kNotBuilt || found.error == kernels::GpuError::kNoDevice) {
    fmt::print("not measured: no CUDA device ({})\n", found.message);
    return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(FromGpu(found));
  fmt::print("     {} ({})\n\n", gpu.name, HumanBytes(gpu.memory_bytes));
  bench.Common("gpu", gpu.name);
  DW_RETURN_IF_ERROR(FromGpu(kernels::GpuSelfTest(0)));
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
