// scale/N: times that grow with the number of tensors rather than with their bytes.
#include <random>

#include "bench/harness/buffers.h"
#include "bench/loopback/cases.h"
#include "tests/support/daemons.h"

namespace deltawire::bench {
namespace {

constexpr const char* kModel = "scale";
constexpr std::chrono::seconds kPatience{120};
constexpr uint64_t kLastVersion = 4;

/// Tensors as a model of very many experts has them, but tiny.
StatusOr<Layout> LayoutOf(size_t tensors) {
  constexpr const char* kParts[] = {"gate", "up", "down"};
  std::vector<TensorMeta> metas;
  for (size_t i = 0; i < tensors; ++i) {
    metas.push_back({fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", i / 3 / 256,
                                 i / 3 % 256, kParts[i % 3]),
                     DType::kBF16,
                     {8, 8}});
  }
  return Layout::Create(std::move(metas));
}

/// Publishes tensor by tensor, as a trainer does.
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
  for (size_t i = 0; i + 8 <= content.size(); i += 8) StoreLe<uint64_t>(&content[i], random());
  TrainerClient client(sender.socket(), kModel, 0, 1, kPatience);
  const auto enroll = [&] { return client.Register(layout, {}).status(); };
  DW_RETURN_IF_ERROR(series.Time("register", enroll));
  for (uint64_t version = 1; version <= kLastVersion; ++version) {
    // One element in a hundred, so that nearly every tensor changes.
    for (size_t i = 0; i < content.size(); i += 100) content[i] ^= std::byte{1};
    const auto start = SteadyClock::now();
    DW_ASSIGN_OR_RETURN(const PublishedVersion published, PublishAll(client, content, version));
    if (version == 1) continue;  // the first has no base
    series.Add("publish", SecondsSince(start));
    series.Add("after ready", published.publish_seconds);
  }
  DW_RETURN_IF_ERROR(series.Time("register again", enroll));

  auto start = SteadyClock::now();
  testing::ReceiverProcess receiver(scratch->path(), "receiver", sender.control(), kModel);
  if (!receiver.WaitCommitted(kLastVersion, kPatience)) {
    return absl::DeadlineExceededError("the receiver has not committed");
  }
  series.Add("first commit", SecondsSince(start));
  return series.Time("restart", [&] {
    sender.Restart();
    return sender.Status(kModel).newest().id().version() == kLastVersion
               ? absl::OkStatus()
               : absl::DataLossError("the sender has lost its version with the restart");
  });
}

}  // namespace

Status ScaleCases(Bench& bench) {
  constexpr size_t kLargest = 200'000;
  constexpr double kPublishSeconds = 1.5;
  for (const size_t tensors : {size_t{10'000}, size_t{50'000}, kLargest}) {
    const std::string name = fmt::format("scale/{}", tensors);
    if (!bench.Asked(name)) continue;
    DW_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(tensors));
    DW_ASSIGN_OR_RETURN(const Series series,
                        bench.Measure([&](Series& s) { return OneRound(layout, s); }));
    for (const std::string metric :
         {"register", "register again", "publish", "after ready", "first commit", "restart"}) {
      Figure figure = Value(metric, metric);
      if (tensors == kLargest && metric == "publish") figure.wanted.value_at_most = kPublishSeconds;
      bench.Add(name, 1, series, {figure});
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
