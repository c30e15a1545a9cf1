#include "cli/output.h"

#include <catch2/catch.hpp>
#include <limits>

#include "proto/deltawire/v1/receiver.pb.h"

namespace deltawire::cli::output_test {
namespace {

TEST_CASE("a table's columns are as wide as their widest cell") {
  Table table({{"NAME"}, {"SIZE", Align::kRight}, {"NOTE"}});
  table.Add({"a", "7 B", "x"});
  table.Add({"longer", "1.19 GB", ""});
  CHECK(table.Text() ==
        "NAME       SIZE  NOTE\n"
        "a           7 B  x\n"
        "longer  1.19 GB\n");
}

TEST_CASE("a table that is too wide gives up columns by rank, and tells them below their row") {
  Table table({{"NAME"},
               {"SIZE", Align::kRight, 0, 1},
               {"ROOT", Align::kLeft, 0, 3},
               {"NOW"},
               {"LAST FAILURE", Align::kLeft, 0, 2}});
  table.Add({"policy", "1.19 GB", "edbee4f0", "idle", "-"});
  table.Add({"reward", "2 B", "-", "writing 7", "no space left on the device that holds it"});
  CHECK(table.Text(0) == table.Text());
  CHECK(table.Text(200) == table.Text());
  CHECK(table.Text(40) ==
        "NAME       SIZE  NOW\n"
        "policy  1.19 GB  idle\n"
        "    root edbee4f0\n"
        "reward      2 B  writing 7\n"
        "    last failure no space left on the\n"
        "      device that holds it\n");
  CHECK(table.Narrowed(40).Text() ==
        "NAME       SIZE  NOW\n"
        "policy  1.19 GB  idle\n"
        "reward      2 B  writing 7\n");
  // The columns of rank 0 stay, however narrow it is.
  CHECK(table.Narrowed(5).Text() ==
        "NAME    NOW\n"
        "policy  idle\n"
        "reward  writing 7\n");
}

TEST_CASE("long lines are broken at spaces, and what follows is indented") {
  CHECK(Wrapped("one two three\n", 0) == "one two three\n");
  CHECK(Wrapped("one two three\n", 13) == "one two three\n");
  CHECK(Wrapped("one two three four\n", 9) == "one two\n  three\n  four\n");
  CHECK(Wrapped("  m: one two\nx\n", 9) == "  m: one\n    two\nx\n");
  CHECK(Wrapped("a-word-that-is-too-long b\n", 9) == "a-word-that-is-too-long\n  b\n");
  CHECK(Wrapped("", 9).empty());
}

TEST_CASE("a live table's lines keep to the minimal widths") {
  const Table table({{"v", Align::kRight, 4}, {"wait → end", Align::kRight, 12}, {"ok"}});
  CHECK(table.TitleLine() == "   v    wait → end  ok\n");
  CHECK(table.RowLine({"12", "3.0 ms", "yes"}) == "  12        3.0 ms  yes\n");
  CHECK(table.RowLine({"123456", "3.0 ms", "yes"}) == "123456        3.0 ms  yes\n");
}

TEST_CASE("display width counts code points") {
  CHECK(DisplayWidth("") == 0);
  CHECK(DisplayWidth("abc") == 3);
  CHECK(DisplayWidth("a → b · c") == 9);
}

TEST_CASE("a progress line shows the part that is done and fits the terminal") {
  CHECK(ProgressText("sync m", 500'000'000, 1'000'000'000, 2, 200) ==
        "sync m  [############............]  50 %  500 MB of 1.00 GB  250 MB/s");
  CHECK(ProgressText("sync m", 0, 1'000, 0, 200) ==
        "sync m  [........................]   0 %  0 B of 1.00 kB");
  CHECK(ProgressText("step", 0, 0, 0.25, 200) == "step ...  250 ms");
  CHECK(ProgressText("sync", 2'000, 1'000, 0, 200).find("100 %  1.00 kB of 1.00 kB") !=
        std::string::npos);
  CHECK(ProgressText("sync m", 1, 2, 2, 20).size() == 20);
}

TEST_CASE("percentages never round a change away") {
  CHECK(Percent(0, 100) == "0.00 %");
  CHECK(Percent(1, 1e9) == "<0.01 %");
  CHECK(Percent(1.08, 100) == "1.08 %");
  CHECK(Percent(99.99, 100) == "99.99 %");
  CHECK(Percent(1, 1) == "100 %");
  CHECK(Percent(1, 0) == "-");
}

TEST_CASE("large numbers are grouped by thousands") {
  CHECK(Grouped(0) == "0");
  CHECK(Grouped(999) == "999");
  CHECK(Grouped(1000) == "1,000");
  CHECK(Grouped(596'049'920) == "596,049,920");
  CHECK(Grouped(std::numeric_limits<uint64_t>::max()) == "18,446,744,073,709,551,615");
}

TEST_CASE("the epoch is shown only after a rollback") {
  CHECK(VersionText(StateId{0, 0}) == "-");
  CHECK(VersionText(StateId{1, 7}) == "7");
  CHECK(VersionText(StateId{2, 7}) == "7 (epoch 2)");
}

}  // namespace
TEST_CASE("a pull's times name the stage that took most, and what came before the publish") {
  v1::PullStats pull;
  CHECK(PullTimesText(pull).empty());
  pull.set_seconds(0.015);
  pull.set_transfer_seconds(0.012);
  pull.set_apply_seconds(0.003);
  CHECK(PullTimesText(pull) == "transfer 12.0 ms (most), apply+commit 3.0 ms");
  pull.set_apply_seconds(0.02);
  pull.set_ahead_seconds(2);
  pull.set_ahead_bytes(41'000'000);
  CHECK(PullTimesText(pull) ==
        "transfer 12.0 ms, apply+commit 20.0 ms (most); 41.0 MB came in 2.00 s before the publish");
}

}  // namespace deltawire::cli::output_test
