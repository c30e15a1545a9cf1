// The case ready/ranks=N: the agent's work after the last of several ranks is ready, when it diffs
// chunks as soon as all ranks have finished them, and when it does not.
#include "bench/export/cases.h"
#include "bench/harness/buffers.h"
#include "bench/harness/parallel.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/daemons.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kColumns = 4096;

/// A sender and a trainer's ranks, each with its own client. Every rank writes its rows of every
/// tensor.
class Ranks {
 public:
  Ranks(const std::filesystem::path& root, uint32_t world, const Layout& layout,
        std::vector<std::string> sender_options)
      : layout_(layout), sender_(root, std::move(sender_options)), pool_(world) {
    for (uint32_t r = 0; r < world; ++r) {
      clients_.push_back(std::make_unique<TrainerClient>(sender_.socket(), "ranks", r, world));
      clients_.back()->SetJob("bench");
      clients_.back()->SetCopyThreads(1);
    }
  }

  /// Writes from all ranks at once, each on its own thread.
  StatusOr<VersionInfo> Publish(Bytes content) {
    if (version_++ == 0) {
      for (const auto& client : clients_) {
        DW_RETURN_IF_ERROR(client->Register(layout_, {}).status());
      }
    }
    DW_RETURN_IF_ERROR(ForAll(pool_, clients_.size(), [&](size_t r) { return Write(r, content); }));
    return clients_[0]->WaitPublished(version_);
  }

 private:
  Status Write(uint64_t rank, Bytes content) {
    DW_ASSIGN_OR_RETURN(const auto offload, clients_[rank]->Begin(version_));
    const uint64_t world = clients_.size();
    for (uint32_t t = 0; t < layout_.size(); ++t) {
      const uint64_t rows = layout_.tensor(t).shape[0];
      // The ranks' parts begin and end within chunks, as in real jobs.
      const uint64_t begin = rows * rank / world, end = rows * (rank + 1) / world;
      const uint64_t shape[] = {end - begin, kColumns}, start[] = {begin, 0};
      StridedSource source;
      source.data = content.data() + layout_.offset(t) + begin * kColumns * 2;
      source.element_bytes = 2;
      source.shape = shape;
      source.start = start;
      DW_RETURN_IF_ERROR(offload->Copy(t, source));
      DW_RETURN_IF_ERROR(offload->FinishedBlock(t, start, shape));
      DW_RETURN_IF_ERROR(offload->Written({&t, 1}, Share::kCounted));
    }
    return offload->Ready();
  }

  const Layout& layout_;
  testing::SenderProcess sender_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<TrainerClient>> clients_;
  uint64_t version_ = 0;
};

Status OneCase(uint32_t world, const Layout& layout, const std::string& name, Bench& bench) {
  DW_ASSIGN_OR_RETURN(const auto shm, ScratchDir::Create());
  Ranks early(shm->path() / "early", world, layout, {});
  Ranks late(shm->path() / "late", world, layout, {"--early", "off"});
  std::vector<std::byte> content(layout.total_bytes());
  FillByPlace(content);
  DW_RETURN_IF_ERROR(early.Publish(content).status());
  DW_RETURN_IF_ERROR(late.Publish(content).status());
  return bench.Run(
      name, world,
      {Value("ready_to_published", "with").Against("without", "without early diff"),
       Value("offload_publish", "all with").Against("all without", "without early diff")},
      [&](Series& s) -> Status {
        for (size_t i = 0; i < content.size(); i += 200) content[i] ^= std::byte{1};
        DW_ASSIGN_OR_RETURN(const auto with, early.Publish(content));
        DW_ASSIGN_OR_RETURN(const auto without, late.Publish(content));
        if (with.changed_elements != without.changed_elements) {
          return absl::DataLossError("a version that was diffed early has other changes");
        }
        s.Add("with", with.publish_seconds);
        s.Add("without", without.publish_seconds);
        s.Add("all with", with.offload_seconds + with.publish_seconds);
        s.Add("all without", without.offload_seconds + without.publish_seconds);
        return absl::OkStatus();
      });
}

}  // namespace

Status EarlyCases(Bench& bench) {
  std::vector<TensorMeta> metas;
  for (size_t t = 0; t < (bench.quick ? 3 : 32); ++t) {
    metas.push_back({fmt::format("layers.{}.weight", t), DType::kBF16, {2001, kColumns}});
  }
  DW_ASSIGN_OR_RETURN(const Layout layout, Layout::Create(std::move(metas)));
  for (const uint32_t world : {2u, 4u}) {
    const std::string name = fmt::format("ready/ranks={}", world);
    if (bench.Asked(name)) DW_RETURN_IF_ERROR(OneCase(world, layout, name, bench));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
