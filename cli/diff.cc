// The diff command: how much two HF directories of one layout differ, and how large a delta between
// them would be.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <numeric>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/model_dir.h"
#include "kernels/kernels.h"

namespace deltawire::cli {
namespace {

struct DiffOptions : Common {
  std::string a, b;
  std::string sort = "bytes";
  size_t limit = 20;
};

struct TensorDiff {
  std::atomic<uint64_t> changed{0};
  std::atomic<uint64_t> delta_bytes{0};
};

std::byte* Scratch(size_t bytes) {
  thread_local std::vector<std::byte> memory;
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

// Encodes the chunk as the sender would. A chunk whose payload is not smaller is sent whole.
void DiffChunk(const kernels::DigestKey& key, const Chunk& chunk, Bytes before, Bytes after,
               TensorDiff& out) {
  const size_t most = kernels::MaxEncodedBytes(chunk.bytes, chunk.width);
  const auto r = kernels::Best().diff_encode(key, before, after, chunk.width,
                                             /*digest_before=*/0,  // the digest is not needed
                                             {Scratch(most), most});
  out.changed += r.changed;
  out.delta_bytes += std::min<uint64_t>(r.bytes, chunk.bytes);
}

struct DiffRow {
  size_t tensor = 0;
  uint64_t elements = 0;
  uint64_t changed = 0;
  uint64_t delta_bytes = 0;
  double density() const {
    return elements == 0 ? 0 : static_cast<double>(changed) / static_cast<double>(elements);
  }
};

StatusOr<std::vector<DiffRow>> DiffAll(const ModelDir& a, const ModelDir& b) {
  const Layout& layout = b.layout();
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(layout));
  std::vector<TensorDiff> diffs(layout.size());
  std::vector<size_t> in_a(layout.size());
  for (size_t i = 0; i < layout.size(); ++i) in_a[i] = *a.layout().Find(layout.tensor(i).name);
  const kernels::DigestKey key(0);
  {
    Progress progress("diff", layout.total_bytes());
    ThreadPool pool;
    pool.ParallelFor(chunks.size(), [&](size_t i) {
      const Chunk& c = chunks[static_cast<uint32_t>(i)];
      const uint64_t at = c.offset - layout.offset(c.tensor);
      DiffChunk(key, c, a.data(in_a[c.tensor]).subspan(at, c.bytes),
                b.data(c.tensor).subspan(at, c.bytes), diffs[c.tensor]);
      progress.Add(c.bytes);
    });
  }
  std::vector<DiffRow> rows(layout.size());
  for (size_t i = 0; i < layout.size(); ++i) {
    rows[i] = {i, layout.bytes(i) / DTypeBytes(layout.tensor(i).dtype), diffs[i].changed,
               diffs[i].delta_bytes};
  }
  return rows;
}

void Sort(std::vector<DiffRow>& rows, const std::string& by) {
  if (by == "stored") return;
  std::stable_sort(rows.begin(), rows.end(), [&](const DiffRow& x, const DiffRow& y) {
    return by == "density" ? x.density() > y.density() : x.delta_bytes > y.delta_bytes;
  });
}

// Compares tensors regardless of their order in the files.
bool SameTensors(const Layout& a, const Layout& b) {
  if (a.size() != b.size()) return false;
  for (const TensorMeta& t : b.tensors()) {
    const auto at = a.Find(t.name);
    if (!at || !(a.tensor(*at) == t)) return false;
  }
  return true;
}

void ShowJson(const DiffOptions& o, const Layout& layout, const std::vector<DiffRow>& rows,
              const DiffRow& sum) {
  Json tensors = Json::array();
  const size_t shown = o.limit == 0 ? rows.size() : std::min(o.limit, rows.size());
  for (size_t i = 0; i < shown; ++i) {
    const DiffRow& r = rows[i];
    tensors.push_back({{"name", layout.tensor(r.tensor).name},
                       {"elements", r.elements},
                       {"changed_elements", r.changed},
                       {"density", r.density()},
                       {"bytes", layout.bytes(r.tensor)},
                       {"delta_bytes", r.delta_bytes}});
  }
  PrintJson({{"a", o.a},
             {"b", o.b},
             {"same_layout", true},
             {"identical", sum.changed == 0},
             {"elements", sum.elements},
             {"changed_elements", sum.changed},
             {"density", sum.density()},
             {"model_bytes", layout.total_bytes()},
             {"delta_bytes", sum.delta_bytes},
             {"tensors", tensors}});
}

void ShowTable(const DiffOptions& o, const Layout& layout, const std::vector<DiffRow>& rows,
               const DiffRow& sum) {
  constexpr Align kRight = Align::kRight;
  Table table({{"TENSOR"},
               {"CHANGED", kRight},
               {"OF ELEMENTS", kRight},
               {"DENSITY", kRight},
               {"FULL", kRight},
               {"DELTA", kRight},
               {"DELTA/FULL", kRight}});
  const auto ratio = [](uint64_t part, uint64_t whole) {
    return Percent(static_cast<double>(part), static_cast<double>(whole));
  };
  size_t changed_tensors = 0;
  for (const DiffRow& r : rows) changed_tensors += r.changed > 0;
  const size_t shown = o.limit == 0 ? rows.size() : std::min(o.limit, rows.size());
  for (size_t i = 0; i < shown && sum.changed > 0; ++i) {
    const DiffRow& r = rows[i];
    const uint64_t full = layout.bytes(r.tensor);
    table.Add({layout.tensor(r.tensor).name, Grouped(r.changed), Grouped(r.elements),
               ratio(r.changed, r.elements), HumanBytes(full), HumanBytes(r.delta_bytes),
               ratio(r.delta_bytes, full)});
  }
  if (table.rows() > 0) {
    std::fputs(table.Text().c_str(), stdout);
    if (shown < rows.size()) {
      std::printf("... and %zu more (--limit 0 shows all)\n", rows.size() - shown);
    }
    std::printf("\n");
  }
  if (sum.changed == 0) {
    std::printf("Identical: %zu tensors, %s elements, %s\n", rows.size(),
                Grouped(sum.elements).c_str(), HumanBytes(layout.total_bytes()).c_str());
    return;
  }
  std::printf("%zu of %zu tensors, %s of %s elements changed (%s)\n", changed_tensors, rows.size(),
              Grouped(sum.changed).c_str(), Grouped(sum.elements).c_str(),
              ratio(sum.changed, sum.elements).c_str());
  std::printf("Delta %s of %s full: %s, %.2f bits per changed element\n",
              HumanBytes(sum.delta_bytes).c_str(), HumanBytes(layout.total_bytes()).c_str(),
              ratio(sum.delta_bytes, layout.total_bytes()).c_str(),
              8.0 * static_cast<double>(sum.delta_bytes) / static_cast<double>(sum.changed));
}

StatusOr<Exit> Diff(const DiffOptions& o) {
  DW_ASSIGN_OR_RETURN(const ModelDir a, ModelDir::Open(o.a));
  DW_ASSIGN_OR_RETURN(const ModelDir b, ModelDir::Open(o.b));
  if (!SameTensors(a.layout(), b.layout())) {
    const std::string difference = DescribeDifference(a.layout(), b.layout());
    if (o.json) {
      PrintJson({{"a", o.a}, {"b", o.b}, {"same_layout", false}, {"difference", difference}});
    } else {
      std::printf("Different layouts, no delta goes between them: %s\n", difference.c_str());
    }
    return Exit::kDiffers;
  }
  DW_ASSIGN_OR_RETURN(std::vector<DiffRow> rows, DiffAll(a, b));
  DiffRow sum;
  for (const DiffRow& r : rows) {
    sum.elements += r.elements;
    sum.changed += r.changed;
    sum.delta_bytes += r.delta_bytes;
  }
  Sort(rows, o.sort);
  o.json ? ShowJson(o, b.layout(), rows, sum) : ShowTable(o, b.layout(), rows, sum);
  return Exit::kOk;
}

}  // namespace

void DeclareDiff(CLI::App& app, Run* run) {
  auto o = std::make_shared<DiffOptions>();
  CLI::App* sub = app.add_subcommand(
      "diff", "Compare two HF directories: changes per tensor, and what a delta would take");
  NeedDirectory(*sub, "DIR_A", o->a, "The version before");
  NeedDirectory(*sub, "DIR_B", o->b, "The version after");
  sub->add_option("--sort", o->sort, "bytes (of the delta), density or stored")
      ->type_name("KEY")
      ->check(Quiet(CLI::IsMember({"bytes", "density", "stored"})))
      ->capture_default_str();
  AddWhole(*sub, "--limit", o->limit, "Tensors to list; 0: all")->capture_default_str();
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Diff(*o); }; });
}

}  // namespace deltawire::cli
