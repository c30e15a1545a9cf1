// Layout programs of random cuts, compared with maps of single elements.
#include "sender/export/mcore/program.h"

#include <map>
#include <random>

#include "tests/support/strided_runs.h"
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::program_test {
namespace {

using testing::TextOf;

/// Where each element of a shard goes: a tensor, and the index in its memory.
using Places = std::map<uint64_t, std::pair<uint32_t, uint64_t>>;

/// A row of a part: the number of the part, and the row in it.
using PartRow = std::pair<size_t, uint64_t>;

/// A shard's rows one by one, by the rules of docs/model_families.md, without any code of
/// ShardBoxes.
std::vector<PartRow> RowsOf(const ParamCut& cut, uint32_t t) {
  const bool cut_rows = cut.split == Split::kRows;
  std::vector<PartRow> all;
  const uint64_t shards = cut_rows && cut.per_shard ? cut.world : 1;
  std::vector<uint64_t> share, next;
  for (const RowPart& p : cut.parts) {
    share.push_back(p.rows / shards);
    next.push_back(shards > 1 ? t * share.back() : 0);
  }
  const uint64_t rounds = cut.block ? share[0] / cut.block : cut.groups;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < cut.parts.size(); ++i) {
      for (uint64_t k = 0; k < share[i] / rounds; ++k) all.emplace_back(i, next[i]++);
    }
  }
  if (!cut_rows || shards > 1) return all;
  const uint64_t n = cut.rows / cut.world;
  std::vector<PartRow> mine;
  for (uint64_t r = t * n; r < (t + 1) * n && r < all.size(); ++r) mine.push_back(all[r]);
  return mine;
}

/// `filled`: also of rows that are copied from HF alone.
Places PlacesOf(const ParamCut& cut, const std::vector<TensorView>& views, uint32_t t,
                bool filled = false) {
  Places places;
  const uint64_t cols = cut.split == Split::kColumns ? cut.cols / cut.world : cut.cols;
  const uint64_t first_col = cut.split == Split::kColumns ? t * cols : 0;
  uint64_t local = 0;
  for (auto [index, row] : RowsOf(cut, t)) {
    const RowPart& part = cut.parts[index];
    if (part.zero || (!filled && (part.filled || row % part.repeat != 0))) {
      ++local;
      continue;
    }
    row /= part.repeat;
    const uint64_t at =
        part.pitch == 0 ? part.at + row : row / part.run * part.pitch + part.at + row % part.run;
    const TensorView& view = views[part.tensor];
    for (uint64_t c = 0; c < cols; ++c) {
      const uint64_t column = first_col + c;
      const uint64_t in_matrix = view.transpose ? column * view.rows + at : at * view.cols + column;
      places[local * cols + c] = {part.tensor, part.lead * view.rows * view.cols + in_matrix};
    }
    ++local;
  }
  return places;
}

/// Enters what a strided copy moves into `places`, one element at a time.
void Apply(const kernels::StridedCopy& copy, unsigned src_width, unsigned dst_width,
           uint32_t tensor, Places* places) {
  REQUIRE(copy.run_bytes % dst_width == 0);
  deltawire::testing::ForEachRunOf(copy, [&](uint64_t src, uint64_t dst) {
    for (uint64_t e = 0; e < copy.run_bytes / dst_width; ++e) {
      const bool fresh =
          places->emplace(src / src_width + e, std::pair{tensor, dst / dst_width + e}).second;
      REQUIRE(fresh);
    }
  });
}

struct Case {
  ParamCut cut;
  std::vector<TensorView> views;
};

/// A random cut whose parts have runs and pitches. Every size is a multiple of what cuts it.
Case RandomCase(std::mt19937& random) {
  const auto below = [&](uint64_t n) { return random() % n; };
  Case c;
  ParamCut& cut = c.cut;
  cut.split = static_cast<Split>(below(3));
  cut.world = cut.split == Split::kNone ? 1 : 1 + below(4);
  cut.per_shard = below(2) == 0;
  cut.groups = 1;
  const uint64_t shards = cut.per_shard && cut.split == Split::kRows ? cut.world : 1;
  const bool turns = below(3) == 0;
  if (turns) cut.block = 1 + below(3);
  if (!turns && below(2) == 0) cut.groups = 1 + below(4);
  cut.flat = below(4) == 0;
  cut.cols = cut.flat ? 1 : (1 + below(5)) * (cut.split == Split::kColumns ? cut.world : 1);
  if (cut.flat && cut.split == Split::kColumns) cut.split = Split::kNone, cut.world = 1;
  const size_t count = 1 + below(4);
  // Either all parts go to one tensor, where they take turns (pitched) or stand one behind the
  // other, or each part goes to a tensor of its own.
  const bool shared = below(2) == 0, pitched = below(2) == 0;
  const uint64_t packed = 1 + below(3), lead = below(packed), runs = 1 + below(3);
  const bool transpose = below(2) == 0;
  const uint64_t same = 1 + below(4);
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    RowPart part;
    const uint64_t unit = turns ? cut.block * same : 1 + below(4);
    part.rows = unit * cut.groups * shards * (cut.split == Split::kRows ? cut.world : 1) * runs;
    if (!pitched && below(3) == 0) part.repeat = 1 + below(3);
    part.rows *= part.repeat;
    part.filled = below(6) == 0;
    part.zero = below(9) == 0;
    part.run = pitched ? part.rows / runs : part.rows;
    part.lead = lead;
    part.tensor = shared ? 0 : static_cast<uint32_t>(i);
    part.at = shared ? at : 0;
    at += part.run / part.repeat;
    cut.rows += part.rows;
    cut.parts.push_back(part);
  }
  for (size_t i = 0; i < (shared ? 1 : count); ++i) {
    TensorView view;
    view.packed = packed;
    view.cols = cut.cols;
    view.transpose = transpose;
    const uint64_t room =
        (shared ? at : cut.parts[i].run / cut.parts[i].repeat) + below(2);  // sometimes with a gap
    view.pitch = room;
    view.rows = pitched ? room * runs : room;
    c.views.push_back(view);
  }
  if (pitched) {
    for (RowPart& p : cut.parts) p.pitch = c.views[p.tensor].pitch;
  }
  return c;
}

TEST_CASE("program: boxes and copies go where single elements go") {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Case c = RandomCase(random);
    const Status check = CheckCut(c.cut);
    CAPTURE(TextOf(check));
    REQUIRE(check.ok());
    const unsigned src_width = random() % 2 ? 2 : 4, dst_width = random() % 2 ? 2 : 4;
    const bool filled = random() % 2 == 0;
    for (uint32_t t = 0; t < c.cut.world; ++t) {
      CAPTURE(t);
      Places forth, back;
      for (const Box& box : ShardBoxes(c.cut, c.views, t, {}, filled)) {
        REQUIRE((filled || !box.filled));
        const kernels::StridedCopy copy = CopyOf(box, c.views[box.tensor], src_width, dst_width);
        Apply(copy, src_width, dst_width, box.tensor, &forth);
        // The copy back must move the same elements.
        const kernels::StridedCopy reversed = Reversed(copy, src_width, dst_width);
        Places swapped;
        Apply(reversed, dst_width, src_width, box.tensor, &swapped);
        for (const auto& [hf, live] : swapped) back.emplace(live.second, std::pair{box.tensor, hf});
      }
      const Places wanted = PlacesOf(c.cut, c.views, t, filled);
      REQUIRE(forth == wanted);
      REQUIRE(back == wanted);
    }
  }
}

TEST_CASE("program: some of a shard's rows go where the whole shard has them") {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Case c = RandomCase(random);
    const uint64_t rows = c.cut.local_rows(), cols = c.cut.local_cols();
    const uint64_t begin = random() % rows, end = begin + 1 + random() % (rows - begin);
    Places got, wanted;
    for (const Box& box : ShardBoxes(c.cut, c.views, 0, {begin, end})) {
      Apply(CopyOf(box, c.views[box.tensor], 2, 2), 2, 2, box.tensor, &got);
    }
    for (const auto& [local, place] : PlacesOf(c.cut, c.views, 0)) {
      if (local >= begin * cols && local < end * cols) wanted[local - begin * cols] = place;
    }
    REQUIRE(got == wanted);
  }
}

TEST_CASE("program: windows may begin and end inside of a head") {
  // There are 6 q heads in 2 groups and heads of 4 rows, so 40 rows; each of the 5 ranks has 8.
  ParamCut cut;
  cut.split = Split::kRows;
  cut.world = 5;
  cut.groups = 2;
  cut.cols = 3;
  cut.rows = 40;
  cut.parts = {{0, 24, 0, 24, 0, 0}, {1, 8, 0, 8, 0, 0}, {2, 8, 0, 8, 0, 0}};
  const std::vector<TensorView> views = {
      {1, 24, 24, 3, false}, {1, 8, 8, 3, false}, {1, 8, 8, 3, false}};
  REQUIRE(CheckCut(cut).ok());
  for (uint32_t t = 0; t < 5; ++t) {
    CAPTURE(t);
    Places got;
    for (const Box& box : ShardBoxes(cut, views, t)) {
      Apply(CopyOf(box, views[box.tensor], 2, 2), 2, 2, box.tensor, &got);
    }
    CHECK(got == PlacesOf(cut, views, t));
  }
}

TEST_CASE("program: a cut that does not divide is refused with its numbers") {
  ParamCut cut;
  cut.parts = {{0, 12, 0, 12, 0, 0}};
  cut.rows = 12;
  cut.cols = 6;
  const auto refusal = [&](auto change) {
    ParamCut changed = cut;
    change(changed);
    const Status status = CheckCut(changed);
    REQUIRE_FALSE(status.ok());
    return TextOf(status);
  };
  REQUIRE(CheckCut(cut).ok());
  CHECK(refusal([](ParamCut& c) { c.split = Split::kRows, c.world = 5; }) ==
        "12 rows cannot be cut into 5");
  CHECK(refusal([](ParamCut& c) { c.split = Split::kColumns, c.world = 4; }) ==
        "6 columns cannot be cut into 4");
  CHECK(refusal([](ParamCut& c) { c.groups = 5; }) == "12 rows cannot be cut into 5");
  CHECK(refusal([](ParamCut& c) { c.groups = 0; }) == "12 rows cannot be cut into 0");
  CHECK(refusal([](ParamCut& c) { c.block = 5; }) == "12 rows are no whole number of blocks of 5");
  CHECK(refusal([](ParamCut& c) { c.parts[0].run = 5; }).find("cannot be cut into") !=
        std::string::npos);
  CHECK(refusal([](ParamCut& c) { c.parts[0].run = 0; }).find("cannot be cut into 0") !=
        std::string::npos);
  CHECK(refusal([](ParamCut& c) { c.parts[0].run = 6; }) == "several runs want a pitch");
  CHECK(refusal([](ParamCut& c) { c.parts[0].repeat = 5; }) == "12 rows cannot be cut into 5");
  CHECK(refusal([](ParamCut& c) { c.parts[0].repeat = 2, c.parts[0].pitch = 12; }) ==
        "repeated rows are one run");
  CHECK(refusal([](ParamCut& c) {
          c.parts[0].pitch = 13, c.parts[0].at = 2;
        }).find("do not fit a pitch of 13") != std::string::npos);
  CHECK(refusal([](ParamCut& c) {
          c.split = Split::kRows, c.world = 3, c.per_shard = true;
          c.parts.push_back({0, 6, 0, 6, 0, 0});
          c.parts.push_back({0, 3, 0, 3, 0, 0});
          c.rows = 21;
          c.groups = 2;
        }).find("cannot be cut into 2") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::mcore::program_test
