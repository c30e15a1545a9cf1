#include <thread>

#include "bench/gpu/suite.h"

namespace deltawire::bench {
namespace {

constexpr size_t kRanks = 8;

/// Pins `memory` in `parts`, each on its own thread, like ranks. Unpins them at the end, which is
/// not timed.
StatusOr<double> PinInParts(MutableBytes memory, size_t parts) {
  std::vector<std::unique_ptr<kernels::GpuPin>> pins(parts);
  std::vector<kernels::GpuStatus> statuses(parts);
  const auto start = SteadyClock::now();
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < parts; ++i) {
      threads.emplace_back([&, i] {
        constexpr size_t kPage = 4096;
        const size_t step = memory.size() / parts / kPage * kPage;
        const size_t first = i * step, last = i + 1 == parts ? memory.size() : first + step;
        statuses[i] = kernels::GpuPin::Create(memory.subspan(first, last - first), &pins[i]);
      });
    }
  }
  const double seconds = SecondsSince(start);
  for (const kernels::GpuStatus& status : statuses) DW_RETURN_IF_ERROR(FromGpu(status));
  return seconds;
}

}  // namespace

void LinkCases(GpuSuite& suite, const std::filesystem::path& dir) {
  if (suite.AnyAsked({"pin/whole", "pin/eighths"})) {
    StatusOr<Mapping> file = MapNewFile(dir / "pinned", suite.pair().bytes());
    if (!file.ok()) return suite.Failed("pin", file.status());
    const MutableBytes memory(file->base(), file->bytes());
    suite.Measure({"pin/whole", [=] { return PinInParts(memory, 1); }});
    suite.Measure({"pin/eighths", [=] { return PinInParts(memory, kRanks); }});
    std::error_code ignored;
    std::filesystem::remove(dir / "pinned", ignored);
  }
  const auto copied = [&suite](MutableBytes to, Bytes from) -> StatusOr<double> {
    const auto start = SteadyClock::now();
    DW_RETURN_IF_ERROR(suite.Copy(to, from));
    return SecondsSince(start);
  };
  suite.Measure({"link/to-device", [&]() -> StatusOr<double> {
                   DW_ASSIGN_OR_RETURN(const MutableBytes to, suite.Spare());
                   return copied(to, suite.host(GpuSuite::kNew));
                 }});
  suite.Measure({"link/to-host", [&]() -> StatusOr<double> {
                   DW_ASSIGN_OR_RETURN(const Bytes from, suite.OnDevice(GpuSuite::kNew));
                   DW_ASSIGN_OR_RETURN(const GpuSuite::Half half, suite.half());
                   DW_ASSIGN_OR_RETURN(const double seconds, copied(half.bytes, from));
                   suite.Expect("link/to-host", suite.Holds(half.bytes, GpuSuite::kNew));
                   return seconds;
                 }});
}

}  // namespace deltawire::bench
