// scale/N: what grows with the number of tensors, not with their bytes.
#include <chrono>
#include <cstring>
#include <random>

#include "bench/harness/scratch_dir.h"
#include "bench/loopback/cases.h"
#include "tests/support/daemons.h"

namespace deltawire::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kModel = "scale";
constexpr std::chrono::seconds kPatience{120};
constexpr uint64_t kLastVersion = 4;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Tensors as a model of very many experts has them, but tiny.
StatusOr<Layout> LayoutOf(size_t tensors) {
  std::vector<TensorMeta> metas;
  for (size_t i = 0; i < tensors; ++i) {
    metas.push_back(
        {fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", i / 3 / 256, i / 3 % 256,
                     i % 3 == 0   ? "gate"
                     : i % 3 == 1 ? "up"
                                  : "down"),
         DType::kBF16,
         {8, 8}});
  }
  return Layout::Create(std::move(metas));
}

/// As a trainer does it, tensor by tensor.
StatusOr<PublishedVersion> PublishAll(TrainerClient& client, const std::vector<std::byte>& content,
                                      uint64_t version) {
  DW_ASSIGN_OR_RETURN(const auto offload, client.Begin(version));
  const Layout& layout = *client.layout();
  for (size_t t = 0; t < layout.size(); ++t) {
    DW_RETURN_IF_ERROR(
        offload->Write(t, Bytes(content).subspan(layout.offset(t), layout.bytes(t))));
  }
  DW_RETURN_IF_ERROR(offload->Ready());
  return client.WaitPublished(version);
}

Status OneRound(const Layout& layout, Series& series) {
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  testing::SenderProcess sender(scratch->path());
  std::vector<std::byte> content(layout.total_bytes());
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= content.size(); i += 8) {
    StoreLe<uint64_t>(content.data() + i, random());
  }
  TrainerClient client(sender.socket(), kModel, 0, 1, kPatience);
  auto start = Clock::now();
  DW_RETURN_IF_ERROR(client.Register(layout, {}).status());
  series.Add("register", Since(start));
  for (uint64_t version = 1; version <= kLastVersion; ++version) {
    // One element in a hundred, so that nearly every tensor changes.
    for (size_t i = 0; i < content.size(); i += 100) content[i] ^= std::byte{1};
    start = Clock::now();
    DW_ASSIGN_OR_RETURN(const PublishedVersion published, PublishAll(client, content, version));
    if (version == 1) continue;  // the first has no base
    series.Add("publish", Since(start));
    series.Add("after ready", published.publish_seconds);
  }
  start = Clock::now();
  DW_RETURN_IF_ERROR(client.Register(layout, {}).status());
  series.Add("register again", Since(start));

  start = Clock::now();
  testing::ReceiverProcess receiver(scratch->path(), "receiver", sender.control(), kModel);
  if (!receiver.WaitCommitted(kLastVersion, kPatience)) {
    return absl::DeadlineExceededError("the receiver has not committed");
  }
  series.Add("first commit", Since(start));
  start = Clock::now();
  sender.Restart();
  if (sender.Status(kModel).newest().id().version() != kLastVersion) {
    return absl::DataLossError("the sender has lost its version with the restart");
  }
  series.Add("restart", Since(start));
  return absl::OkStatus();
}

}  // namespace

Status Scale(size_t tensors, const Rounds& rounds, Report& report) {
  constexpr size_t kLargest = 200'000;
  constexpr double kPublishSeconds = 1.5;
  DW_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(tensors));
  DW_ASSIGN_OR_RETURN(const Series series,
                      Measure(rounds, [&](Series& s) { return OneRound(layout, s); }));
  for (const char* metric :
       {"register", "register again", "publish", "after ready", "first commit", "restart"}) {
    Row row;
    row.name = fmt::format("scale/{}", tensors);
    row.metric = metric;
    row.value = series.Of(metric);
    row.unit = "s";
    if (tensors == kLargest && row.metric == "publish") row.wanted.value_at_most = kPublishSeconds;
    report.Add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
