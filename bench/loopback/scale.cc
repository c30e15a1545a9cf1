// The case scale/N: times that grow with the number of tensors, not with their bytes.
#include <random>

#include "bench/harness/buffers.h"
#include "bench/loopback/cases.h"
#include "bench/loopback/cluster.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kLastVersion = 4;

/// Returns as many tensors as a model of very many experts has, but tiny ones.
StatusOr<ModelSource> SourceOf(size_t tensors) {
  constexpr const char* kParts[] = {"gate", "up", "down"};
  std::vector<TensorMeta> metas;
  for (size_t i = 0; i < tensors; ++i) {
    metas.push_back({fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", i / 3 / 256,
                                 i / 3 % 256, kParts[i % 3]),
                     DType::kBF16,
                     {8, 8}});
  }
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(std::move(metas)));
  return ModelSource{"scale", std::move(layout), {}, {}};
}

Status OneRound(const ModelSource& source, Series& series) {
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  ThreadPool pool(1);
  std::vector<std::byte> content(source.layout.total_bytes());
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= content.size(); i += 8) StoreLe<uint64_t>(&content[i], random());
  Cluster cluster(scratch->path(), source, {.receiver = false}, pool);
  const auto enroll = [&] { return cluster.Register(); };
  DW_RETURN_IF_ERROR(series.Time("register", enroll));
  for (uint64_t version = 1; version <= kLastVersion; ++version) {
    // One element in a hundred, so that nearly every tensor changes.
    for (size_t i = 0; i < content.size(); i += 100) content[i] ^= std::byte{1};
    DW_ASSIGN_OR_RETURN(const Publication published, cluster.Publish(content));
    if (version == 1) continue;  // the first has no base
    series.Add("publish", published.seconds);
    series.Add("after ready", published.info.publish_seconds);
  }
  DW_RETURN_IF_ERROR(series.Time("register again", enroll));
  DW_RETURN_IF_ERROR(series.Time("first commit", [&] {
    cluster.StartReceiver();
    return cluster.WaitCommitted().status();
  }));
  return series.Time("restart", [&] {
    cluster.sender().Restart();
    return cluster.SenderStatus().newest().id().version() == kLastVersion
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
    DW_ASSIGN_OR_RETURN(const ModelSource source, SourceOf(tensors));
    std::vector<Figure> figures;
    for (const std::string metric :
         {"register", "register again", "publish", "after ready", "first commit", "restart"}) {
      figures.push_back(Value(metric, metric));
      const bool marked = tensors == kLargest && metric == "publish";
      figures.back().wanted.value_at_most = marked ? kPublishSeconds : 0;
    }
    DW_RETURN_IF_ERROR(bench.Run(name, 1, figures, [&](Series& s) { return OneRound(source, s); }));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
