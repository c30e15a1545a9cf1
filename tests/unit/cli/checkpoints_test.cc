#include "cli/checkpoints.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "cli/checkpoint_news.h"
#include "common/layout/safetensors.h"
#include "tests/support/temp_dir.h"

namespace deltawire::cli::checkpoints_test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("the version is the number that a name ends in") {
  CHECK(VersionFromName("step-120") == 120);
  CHECK(VersionFromName("checkpoint-500") == 500);
  CHECK(VersionFromName("global_step_7") == 7);
  CHECK(VersionFromName("12") == 12);
  CHECK(VersionFromName("v1-step0042") == 42);
  CHECK(VersionFromName("step-18446744073709551615") == 18446744073709551615u);
}

TEST_CASE("names without a usable version have none") {
  CHECK_FALSE(VersionFromName(""));
  CHECK_FALSE(VersionFromName("qwen3-0.6b"));
  CHECK_FALSE(VersionFromName("step-"));
  CHECK_FALSE(VersionFromName("step-0"));
  CHECK_FALSE(VersionFromName("000"));
  CHECK_FALSE(VersionFromName("step-18446744073709551616"));
  CHECK_FALSE(VersionFromName("step-1 "));
}

// Writes a safetensors file of one small tensor whose last `missing` bytes are cut off.
void WriteShard(const fs::path& file, const std::string& tensor, size_t missing = 0) {
  const auto layout = Layout::Create({{tensor, DType::kBF16, {16}}});
  REQUIRE(layout.ok());
  std::string content = BuildSafetensorsHeader(*layout) + std::string(32, 'x');
  content.resize(content.size() - missing);
  fs::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out << content;
  REQUIRE(out.flush().good());
}

std::vector<uint64_t> Versions(CheckpointScanner& scanner) {
  const auto found = scanner.Scan();
  REQUIRE(found.ok());
  std::vector<uint64_t> versions;
  for (const Checkpoint& c : found->complete) versions.push_back(c.version);
  return versions;
}

using V = std::vector<uint64_t>;

TEST_CASE("a checkpoint is reported once, when two scans have seen it alike") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path(), "");
  CHECK(Versions(scanner) == V{});
  WriteShard(dir.path() / "step-9" / "model.safetensors", "w");
  CHECK(Versions(scanner) == V{});
  CHECK(Versions(scanner) == V{9});
  CHECK(Versions(scanner) == V{});
}

TEST_CASE("a published checkpoint whose files change later is reported again") {
  const TempDir dir;
  const fs::path step = dir.path() / "step-9";
  CheckpointScanner scanner(dir.path(), "");
  WriteShard(step / "model.safetensors", "w");
  const auto scan = [&] {
    auto found = scanner.Scan();
    REQUIRE(found.ok());
    return found->complete;
  };
  CHECK(scan().empty());
  auto first = scan();
  REQUIRE(first.size() == 1);
  CHECK(first[0].old);
  CHECK_FALSE(first[0].again);
  scanner.Published(first[0]);
  CHECK(scan().empty());
  // Files that are not published, and other names of one that is, are no change.
  std::ofstream(step / "optimizer.pt") << "o";
  fs::create_hard_link(step / "model.safetensors", dir.path() / "kept");
  for (int i = 0; i < 5; ++i) CHECK(scan().empty());
  // Each time it must stay unchanged for twice as many scans.
  for (const int scans : {2, 4}) {
    std::ofstream(step / "config.json", std::ios::app) << "{}";
    for (int i = 0; i < scans; ++i) CHECK(scan().empty());
    const auto again = scan();
    REQUIRE(again.size() == 1);
    CHECK(again[0].version == 9);
    CHECK(again[0].again);
    scanner.Published(again[0]);
  }
  WriteShard(dir.path() / "step-10" / "model.safetensors", "w");
  CHECK(scan().empty());
  const auto next = scan();
  REQUIRE(next.size() == 1);
  CHECK_FALSE(next[0].old);
  scanner.Published(next[0]);
  std::ofstream(step / "config.json", std::ios::app) << "late";  // a newer one is published
  fs::remove_all(dir.path() / "step-10");
  for (int i = 0; i < 9; ++i) {
    const auto found = scanner.Scan();
    REQUIRE(found.ok());
    CHECK(found->complete.empty());
    CHECK(found->pending.empty());
  }
}

TEST_CASE("a published checkpoint that is written again and again is not waited for ever longer") {
  const TempDir dir;
  const fs::path step = dir.path() / "step-9";
  CheckpointScanner scanner(dir.path(), "");
  WriteShard(step / "model.safetensors", "w");
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    int scans = 0;
    std::vector<Checkpoint> complete;
    for (; complete.empty() && scans < 100; ++scans) {
      auto found = scanner.Scan();
      REQUIRE(found.ok());
      complete = found->complete;
    }
    REQUIRE(complete.size() == 1);
    CHECK(scans < 40);
    scanner.Published(complete[0]);
    std::ofstream(step / "config.json", std::ios::app) << "{}";
  }
}

TEST_CASE("checkpoints come by rising version, whatever their names' order") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path(), "");
  for (const char* name : {"step-100", "step-20", "step-3"}) {
    WriteShard(dir.path() / name / "model.safetensors", "w");
  }
  CHECK(Versions(scanner) == V{});
  CHECK(Versions(scanner) == V{3, 20, 100});
}

TEST_CASE("a file that still grows is waited for") {
  const TempDir dir;
  const fs::path file = dir.path() / "step-1" / "model.safetensors";
  CheckpointScanner scanner(dir.path(), "");
  WriteShard(file, "w", 5);
  CHECK(Versions(scanner) == V{});
  // The file does not change any more, but it is still shorter than its header says.
  CHECK(Versions(scanner) == V{});
  WriteShard(file, "w");
  CHECK(Versions(scanner) == V{});
  CHECK(Versions(scanner) == V{1});
}

TEST_CASE("all shards that a name promises must be there") {
  const TempDir dir;
  const fs::path step = dir.path() / "step-1";
  CheckpointScanner scanner(dir.path(), "");
  WriteShard(step / "model-00001-of-00002.safetensors", "a");
  CHECK(Versions(scanner) == V{});
  CHECK(Versions(scanner) == V{});
  WriteShard(step / "model-00002-of-00002.safetensors", "b");
  CHECK(Versions(scanner) == V{});
  CHECK(Versions(scanner) == V{1});
}

TEST_CASE("a directory that was renamed into place counts under its new name") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path(), "");
  WriteShard(dir.path() / "tmp-checkpoint-5" / "model.safetensors", "w");
  CHECK(Versions(scanner) == V{});
  CHECK(Versions(scanner) == V{});
  fs::rename(dir.path() / "tmp-checkpoint-5", dir.path() / "checkpoint-5");
  CHECK(Versions(scanner) == V{});
  CHECK(Versions(scanner) == V{5});
}

TEST_CASE("weights may lie deeper inside a checkpoint") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path(), "actor/huggingface");
  WriteShard(dir.path() / "global_step_4/actor/huggingface/model.safetensors", "w");
  CHECK(Versions(scanner) == V{});
  const auto found = scanner.Scan();
  REQUIRE(found.ok());
  REQUIRE(found->complete.size() == 1);
  CHECK(found->complete[0].path == dir.path() / "global_step_4/actor/huggingface");
  CHECK(found->complete[0].version == 4);
}

TEST_CASE("weights without a version are reported once, other directories are ignored") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path(), "");
  WriteShard(dir.path() / "best" / "model.safetensors", "w");
  fs::create_directories(dir.path() / "logs-1");
  auto found = scanner.Scan();
  REQUIRE(found.ok());
  CHECK(found->unnamed == std::vector<std::string>{"best"});
  found = scanner.Scan();
  REQUIRE(found.ok());
  CHECK(found->unnamed.empty());
  CHECK(found->complete.empty());
}

TEST_CASE("a directory that is no complete checkpoint is pending, with the reason") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path(), "");
  fs::create_directories(dir.path() / "step-1");
  fs::create_directories(dir.path() / "logs");
  WriteShard(dir.path() / "step-2" / "model-00001-of-00003.safetensors", "a");
  WriteShard(dir.path() / "step-3" / "model.safetensors", "w", 5);
  WriteShard(dir.path() / "step-4" / "model.safetensors", "w");
  using Reason = PendingCheckpoint::Reason;
  const auto scan = [&] {
    const auto found = scanner.Scan();
    REQUIRE(found.ok());
    return found->pending;
  };
  CHECK(scan().empty());
  WriteShard(dir.path() / "step-4" / "optimizer.safetensors", "o");
  const auto pending = scan();
  REQUIRE(pending.size() == 4);
  CHECK(pending[0].name == "step-1");
  CHECK(pending[0].reason == Reason::kNoWeights);
  CHECK(pending[1].reason == Reason::kShardsMissing);
  CHECK(pending[1].detail == "1 of 3 shards");
  CHECK(pending[2].reason == Reason::kUnreadable);
  CHECK(pending[2].detail.find("model.safetensors") != std::string::npos);
  CHECK(pending[3].name == "step-4");
  CHECK(pending[3].reason == Reason::kBeingWritten);
  fs::remove(dir.path() / "step-4" / "optimizer.safetensors");
  CHECK(scan().size() == 4);
  CHECK(scan().size() == 3);  // step-4 is complete
}

TEST_CASE("a watch says once what it waits for, and again when that changes") {
  const TempDir dir;
  using Reason = PendingCheckpoint::Reason;
  using Lines = std::vector<std::string>;
  const std::string parent = dir.path().string();
  CheckpointNews news(dir.path(), "");
  const Lines begin = news.Begin("policy");
  REQUIRE(begin.size() == 1);
  CHECK(begin[0].find("watching " + parent + " for new checkpoints of policy") == 0);
  CheckpointScanner::Found found;
  CHECK(news.Of(found).empty());
  CHECK(news.Of(found) == Lines{"waiting for the first checkpoint: " + parent + " has none yet"});
  CHECK(news.Of(found).empty());
  found.pending = {{"step-1", Reason::kNoWeights, ""},
                   {"step-2", Reason::kShardsMissing, "1 of 3 shards"}};
  CHECK(news.Of(found) == Lines{"waiting for step-2: it has 1 of 3 shards",
                                "waiting for step-1: no *.safetensors there yet"});
  CHECK(news.Of(found).empty());
  found.pending[1] = {"step-2", Reason::kBeingWritten, ""};
  CHECK(news.Of(found) == Lines{"waiting for step-2: it is still being written"});
  found.pending[1] = {"step-2", Reason::kShardsMissing, "2 of 3 shards"};
  CHECK(news.Of(found).empty());
  CHECK(CheckpointNews::LeftOut({{"c/step-1", 1}, {"c/step-2", 2}, {"c/step-3", 3}}) ==
        "left out: c/step-1, c/step-2: older than c/step-3, and of the checkpoints at the start "
        "only the newest is published");
}

TEST_CASE("a watch says where the weights are looked for, and that the parent itself is left out") {
  const TempDir dir;
  WriteShard(dir.path() / "model.safetensors", "w");
  CheckpointNews news(dir.path(), "actor/huggingface");
  const auto begin = news.Begin("policy");
  REQUIRE(begin.size() == 2);
  CHECK(begin[0].find("that hold actor/huggingface/*.safetensors") != std::string::npos);
  CHECK(begin[1].find("itself holds *.safetensors") != std::string::npos);
}

TEST_CASE("a parent that is not there is an error that names it") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path() / "gone", "");
  const auto found = scanner.Scan();
  REQUIRE_FALSE(found.ok());
  CHECK(std::string(MessageOf(found.status())).find("gone") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::cli::checkpoints_test
