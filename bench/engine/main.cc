// The suite `engine`: the time to copy a committed delta into an engine's memory, against applying
// the same payloads to a plain copy of the model and against a copy of the whole model; and the
// time to find the engine's layout. bench/README.md describes the cases.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>

#include "bench/harness/bench.h"
#include "bench/harness/buffers.h"
#include "bench/harness/parallel.h"
#include "bench/harness/python_script.h"
#include "bench/loopback/cluster.h"
#include "kernels/place_pieces.h"
#include "receiver/engine_client/engine_weights.h"
#include "tests/support/eventually.h"

namespace deltawire::bench {
namespace {

// The plug-ins compare all of an engine's memory over so many versions.
constexpr uint32_t kCheckEvery = 64;

using engine::Binding;
using engine::EngineWeights;

struct Options {
  std::string size = "0.6b";
  size_t threads = 1;
  double density = 0.01;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--size", options.size, "Synthetic model: tiny, 0.6b or 1.7b");
  app.add_option("--threads", options.threads, "Of the engine's client and its references")
      ->check(CLI::Range(1, 1024));
  app.add_option("--density", options.density, "Share of elements that a version changes")
      ->check(CLI::Range(0.0, 1.0));
}

/// Lays a rank's tensors out in `memory`, one after the other, each in its own storage. They are
/// whole, or half of the columns of each matrix, as on one of two ranks that cut the input
/// dimension (the hardest usual cut: short runs).
Binding Load(const Layout& layout, bool half_of_columns, Bytes content, MutableBytes memory) {
  Binding binding;
  for (uint32_t t = 0; t < layout.size(); ++t) {
    const TensorMeta& tensor = layout.tensor(t);
    engine::Box box{.tensor = t, .storage = t, .copy = {}};
    box.copy.run_bytes = layout.bytes(t);
    if (half_of_columns && tensor.shape.size() == 2) {
      const uint64_t row = tensor.shape[1] * DTypeBytes(tensor.dtype);
      box.copy.run_bytes = row / 2;
      box.copy.dims = 1;
      box.copy.counts[0] = tensor.shape[0];
      box.copy.src_strides[0] = static_cast<int64_t>(row);
      box.copy.dst_strides[0] = static_cast<int64_t>(row / 2);
    }
    const uint64_t bytes = kernels::CopiedBytes(box.copy);
    kernels::Best().place(box.copy, content.subspan(layout.offset(t), layout.bytes(t)), memory);
    binding.storages.push_back({tensor.name, bytes});
    binding.memory.push_back(memory.data());
    binding.boxes.push_back(box);
    memory = memory.subspan(bytes);
  }
  return binding;
}

/// Opens the delta to a committed version. The receiver writes its file after the commit.
StatusOr<DeltaFile> DeltaTo(uint64_t version, const std::filesystem::path& directory) {
  std::filesystem::path found;
  const auto written = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(directory / kDeltaFolder)) {
      // A file that is still being written has a hidden name.
      if (entry.path().filename().native().starts_with(".")) continue;
      const StatusOr<DeltaFileHead> head = DeltaFile::Peek(entry.path());
      if (head.ok() && head->to.id.version == version) found = entry.path();
    }
    return !found.empty();
  };
  if (testing::Eventually(written)) return DeltaFile::Open(found);
  return Errorf(StatusCode::kDeadlineExceeded, "the receiver has written no delta to version {}",
                version);
}

struct Rank {
  std::string name;
  std::unique_ptr<EngineWeights> weights;
  HugeBuffer memory;
};

StatusOr<Rank> MakeRank(std::string name, bool half_of_columns, const Cluster& cluster,
                        const Layout& layout, Bytes content, size_t threads) {
  DW_ASSIGN_OR_RETURN(auto weights, EngineWeights::Open(cluster.receiver_dir(), threads));
  DW_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::Create(content.size()));
  DW_RETURN_IF_ERROR(weights->Bind(Load(layout, half_of_columns, content, memory.data())));
  DW_ASSIGN_OR_RETURN(const engine::Comparison adopted, weights->Adopt());
  if (!adopted.different.empty()) {
    return Errorf(StatusCode::kDataLoss, "{} differs after the load", adopted.different.front());
  }
  return Rank{std::move(name), std::move(weights), std::move(memory)};
}

Status Applying(const Options& options, Bench& bench) {
  if (!bench.AnyAsked({"apply/whole", "apply/half_of_columns"})) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const ModelSource source,
                      ModelSource::Synthetic(bench.quick ? "tiny" : options.size));
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  ThreadPool pool(0), own(options.threads);
  DW_ASSIGN_OR_RETURN(const auto weights,
                      Weights::Create(source, scratch->path() / "trainer", bench.seed, 0, pool));
  Cluster cluster(scratch->path() / "daemons", source, {.buffers = 1}, pool);
  DW_RETURN_IF_ERROR(cluster.Begin(weights->content()));
  const uint64_t bytes = source.layout.total_bytes();
  fmt::print("          {} ({}), {:.1f} % changed a version, {} threads\n\n", source.name,
             HumanBytes(bytes), 100 * options.density, options.threads);
  bench.Common("model", source.name);
  bench.Common("model_bytes", bytes);

  const Bytes content = weights->content();
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(source.layout));
  DW_ASSIGN_OR_RETURN(HugeBuffer plain, HugeBuffer::Create(bytes));
  DW_ASSIGN_OR_RETURN(HugeBuffer copied, HugeBuffer::Create(bytes));
  std::memcpy(plain.data().data(), content.data(), bytes);
  std::vector<Rank> ranks;
  for (const auto& [name, half] :
       {std::pair("apply/whole", false), {"apply/half_of_columns", true}}) {
    if (!bench.Asked(name)) continue;
    DW_ASSIGN_OR_RETURN(Rank rank,
                        MakeRank(name, half, cluster, source.layout, content, options.threads));
    ranks.push_back(std::move(rank));
  }
  uint32_t version = 0;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    weights->Flip(options.density);
    DW_RETURN_IF_ERROR(cluster.Publish(content).status());
    DW_RETURN_IF_ERROR(cluster.WaitCommitted().status());
    DW_ASSIGN_OR_RETURN(const DeltaFile delta, DeltaTo(cluster.version(), cluster.receiver_dir()));
    const kernels::DigestKey key(delta.head().digest_seed);
    DW_RETURN_IF_ERROR(s.Time("decode + apply", [&] {
      return ApplyAll(key, chunks, delta.entries(), plain.data(), own);
    }));
    for (Rank& rank : ranks) {
      // The plug-ins do this before each prepare. Another part each time would be as cold.
      const auto part = std::max(1u, chunks.size() / kCheckEvery);
      const uint32_t first = part * (version++ % kCheckEvery) % (chunks.size() - part + 1);
      DW_RETURN_IF_ERROR(
          s.Time(rank.name + " check", [&] { return rank.weights->Check(first, part).status(); }));
      DW_RETURN_IF_ERROR(
          s.Time(rank.name + " prepare", [&] { return rank.weights->Prepare().status(); }));
      DW_RETURN_IF_ERROR(s.Time(rank.name, [&] { return rank.weights->Apply(); }));
    }
    return s.Time("memcpy", [&] { std::memcpy(copied.data().data(), plain.data().data(), bytes); });
  }));
  for (const Rank& rank : ranks) {
    bench.Add(
        rank.name, options.threads, series,
        {Value("apply", rank.name).Against("decode + apply", "decode + apply").AtLeast(0.7),
         Value("apply", rank.name).Against("memcpy"), Value("prepare", rank.name + " prepare"),
         Value("check_of_a_part", rank.name + " check")});
    DW_ASSIGN_OR_RETURN(const engine::Comparison checked, rank.weights->Check());
    if (!checked.different.empty()) {
      return Errorf(StatusCode::kDataLoss, "{}: {} is wrong", rank.name, checked.different.front());
    }
  }
  return absl::OkStatus();
}

Status Run(const Options& options, Bench& bench) {
  DW_RETURN_IF_ERROR(Applying(options, bench));
  DW_RETURN_IF_ERROR(RunPythonScript("attach", "engine/attach_python.py", {}, bench));
  // An update in each engine's own model class, if there is a Python for that engine.
  for (const auto& [engine, variable] :
       {std::pair("vllm", "DELTAWIRE_VLLM_PYTHON"), {"sglang", "DELTAWIRE_SGLANG_PYTHON"}}) {
    if (std::getenv(variable) == nullptr) continue;
    DW_RETURN_IF_ERROR(RunPythonScript("attach", "engine/in_engine.py",
                                       {engine, "--threads", std::to_string(options.threads)},
                                       bench, variable));
  }
  if (std::getenv("DELTAWIRE_VLLM_PYTHON") == nullptr) return absl::OkStatus();
  return RunPythonScript("server", "engine/in_server.py", {"vllm"}, bench, "DELTAWIRE_VLLM_PYTHON");
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain("engine", "A committed delta into a running engine's memory.", Declare, Run,
                   argc, argv);
}
