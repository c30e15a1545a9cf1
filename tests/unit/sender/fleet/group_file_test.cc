// The file of decisions: what is written is read, and anything else is refused.
#include "sender/agent/fleet/group_file.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "tests/support/temp_dir.h"

namespace deltawire::sender::group_file_test {
namespace {

KeptGroups Sample() {
  const Hash128 lineage{0x0807060504030201, 0x100f0e0d0c0b0a09};
  return {lineage,
          {{"canary", false, {"node-c:7710"}, {12, {lineage, {1, 6}, 0xa1, 4}}},
           {"rollout",
            true,
            {"node-a:7710", "node-b:7710"},
            {17, {lineage, {2, 7}, 0x3bb26b8bd0efa3b9, 5}}}}};
}

// The worked example of docs/groups.md.
constexpr std::string_view kText =
    "deltawire groups 1\n"
    "lineage 0807060504030201100f0e0d0c0b0a09\n"
    "group canary named 12 1 6 00000000000000a1 0000000000000004\n"
    "member node-c:7710\n"
    "group rollout standing 17 2 7 3bb26b8bd0efa3b9 0000000000000005\n"
    "member node-a:7710\n"
    "member node-b:7710\n"
    "xxh3 f26525ccca8a7f7c\n";

TEST_CASE("the file of groups is the documented text, and is read back") {
  const std::string text = GroupFileText(Sample());
  CHECK(text == kText);
  const auto parsed = ParseGroupFile(text);
  REQUIRE(parsed.ok());
  CHECK(*parsed == Sample());
  // The attempt is not a part of a state's name, but belongs to it.
  CHECK(parsed->groups[1].decision.state.attempt == 5);

  TempDir dir;
  const auto path = dir.path() / kGroupFileName;
  const auto none = ReadGroupFile(path);
  REQUIRE(none.ok());
  CHECK(none->groups.empty());
  REQUIRE(WriteGroupFile(path, Sample()).ok());
  const auto read = ReadGroupFile(path);
  REQUIRE(read.ok());
  CHECK(*read == Sample());
}

TEST_CASE("a decision that cannot be written leaves the file as it was") {
  TempDir dir;
  const auto path = dir.path() / kGroupFileName;
  REQUIRE(WriteGroupFile(path, Sample()).ok());
  // A directory has the name of the new file.
  std::filesystem::create_directory(path.native() + ".new");
  KeptGroups other = Sample();
  other.groups.clear();
  CHECK_FALSE(WriteGroupFile(path, other).ok());
  CHECK(*ReadGroupFile(path) == Sample());
}

TEST_CASE("a damaged file of groups is refused, whatever bit of it is another") {
  const std::string good = GroupFileText(Sample());
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    CAPTURE(at);
    CHECK(ParseGroupFile(bad).status().code() == StatusCode::kDataLoss);
  }
  for (size_t n = 0; n < good.size(); ++n) {
    CHECK_FALSE(ParseGroupFile(std::string_view(good).substr(0, n)).ok());
  }
}

TEST_CASE("a file of groups with a right checksum and a wrong line is refused") {
  const auto with = [](const std::string& lines) {
    return lines + fmt::format("xxh3 {:016x}\n", Xxh3(AsBytes(lines)));
  };
  const std::string head = "deltawire groups 1\nlineage 0807060504030201100f0e0d0c0b0a09\n";
  CHECK(ParseGroupFile(with(head)).ok());
  for (const char* lines :
       {"", "deltawire groups 2\n", "deltawire groups 1\n", "deltawire groups 1\nlineage 08\n"}) {
    CAPTURE(lines);
    CHECK_FALSE(ParseGroupFile(with(lines)).ok());
  }
  for (const char* line :
       {"member a\n", "group g standing 1 1 1 1\n", "group g other 1 1 1 1 1\n",
        "group g named 1 1 1 1 1 1\n", "group  named 1 1 1 1 1\n", "group g named 1 -1 1 1 1\n",
        "group g named 1 1 1 1 1", "x\n", "\n", "group g named 1 1 1 1 1\nmember \n"}) {
    CAPTURE(line);
    CHECK_FALSE(ParseGroupFile(with(head + line)).ok());
  }
}

}  // namespace
}  // namespace deltawire::sender::group_file_test
