// The worked example of docs/model_families.md: its family is loaded, its table is checked.
#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/temp_dir.h"
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::document_test {
namespace {

using testing::Get;

/// The text between the fences of the first block `language` after the heading.
std::string Block(const std::string& heading, const std::string& language) {
  std::ifstream file(DELTAWIRE_FAMILIES_DOC);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t section = text.find("\n## " + heading + "\n");
  INFO(heading);
  REQUIRE(section != std::string::npos);
  const std::string fence = "```" + language + "\n";
  const size_t begin = text.find(fence, section);
  REQUIRE(begin != std::string::npos);
  return text.substr(begin + fence.size(), text.find("```", begin + 3) - begin - fence.size());
}

/// The first row of "3-5" or "3", and how many rows it names.
std::pair<uint64_t, uint64_t> Run(const std::string& rows) {
  const size_t dash = rows.find('-');
  const uint64_t first = std::stoull(rows);
  const uint64_t last = dash == std::string::npos ? first : std::stoull(rows.substr(dash + 1));
  REQUIRE(last >= first);
  return {first, last - first + 1};
}

TEST_CASE("document: the worked example's rows go where its table says") {
  TempDir dir;
  std::ofstream(dir.path() / "example.toml") << Block("A worked example", "toml");
  const std::filesystem::path dirs[] = {dir.path()};
  const FamilySet set = Get(FamilySet::Load(dirs));
  const HfConfig config = Get(HfConfig::Parse(Block("A worked example", "json")));
  const Family& family = *Get(set.Select(config, "example"));
  const Plan plan = Get(Plan::Make(family, config, Get(ParallelConfig::Parse("tp=3"))));
  CHECK(plan.Check().ok());

  // The HF tensor and row of each rank's shard rows, by the programs. Tensors have one column.
  std::map<std::pair<uint64_t, uint64_t>, std::string> places;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (const ShardParam& shard : plan.Rank(rank)) {
      CHECK(shard.names.front() == "decoder.layers.0.self_attention.linear_qkv.weight");
      for (const Box& box : plan.Boxes(shard)) {
        for (uint64_t run = 0; run < box.n[1]; ++run) {
          for (uint64_t row = 0; row < box.n[2]; ++row) {
            const uint64_t local = box.src + run * box.src_stride[1] + row * box.src_stride[2];
            const uint64_t at =
                (box.lo[1] + run) * plan.views()[box.tensor].pitch + box.lo[2] + row;
            const std::string& name = plan.layout().tensor(box.tensor).name;
            places[{rank, local}] = fmt::format("{} {}", name[name.rfind('_') - 1], at);
          }
        }
      }
    }
  }
  // A line of the document's table is a rank and a run of its rows, the same rows of the whole, the
  // HF tensor and its rows.
  std::istringstream table(Block("A worked example", "text"));
  std::string line;
  std::getline(table, line);  // headings
  size_t rows = 0;
  while (std::getline(table, line)) {
    CAPTURE(line);
    std::istringstream fields(line);
    uint64_t rank;
    std::string local_rows, whole_rows, tensor, hf_rows;
    fields >> rank >> local_rows >> whole_rows >> tensor >> hf_rows;
    REQUIRE(fields);
    const auto [local, count] = Run(local_rows);
    const auto [whole, whole_count] = Run(whole_rows);
    const auto [at, hf_count] = Run(hf_rows);
    CHECK(whole_count == count);
    CHECK(hf_count == count);
    for (uint64_t row = 0; row < count; ++row) {
      CHECK(whole + row == rank * 8 + local + row);
      CHECK(places.at({rank, local + row}) == fmt::format("{} {}", tensor, at + row));
      ++rows;
    }
  }
  CHECK(rows == places.size());
  CHECK(rows == 24);
}

TEST_CASE("document: the table of the parallel config names every key") {
  std::ifstream file(DELTAWIRE_FAMILIES_DOC);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The error for an unknown key lists those that are known.
  const std::string known = testing::TextOf(ParallelConfig::Parse("zzz=1"));
  std::istringstream keys(known.substr(known.find("known: ") + 7));
  std::string key;
  size_t count = 0;
  while (keys >> key) {
    if (key.ends_with(',')) key.pop_back();
    CAPTURE(key);
    CHECK(text.find("\n| `" + key + "` |") != std::string::npos);
    ++count;
  }
  CHECK(count > 20);
}

TEST_CASE("document: every family is named") {
  std::ifstream file(DELTAWIRE_FAMILIES_DOC);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const auto& [name, unused] : testing::Families().families()) {
    CAPTURE(name);
    CHECK(text.find("`" + name + "`") != std::string::npos);
  }
}

}  // namespace
}  // namespace deltawire::mcore::document_test
