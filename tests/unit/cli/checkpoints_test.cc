#include "cli/checkpoints.h"

#include <catch2/catch.hpp>
#include <fstream>

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

TEST_CASE("a parent that is not there is an error that names it") {
  const TempDir dir;
  CheckpointScanner scanner(dir.path() / "gone", "");
  const auto found = scanner.Scan();
  REQUIRE_FALSE(found.ok());
  CHECK(std::string(MessageOf(found.status())).find("gone") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::cli::checkpoints_test
