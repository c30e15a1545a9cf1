// The inspect command: shows the contents of a HF model directory.
#include <cstdio>
#include <map>
#include <memory>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/left_out.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "common/layout/chunks.h"
#include "common/layout/model_dir.h"

namespace deltawire::cli {
namespace {

struct InspectOptions : Common {
  std::string dir;
  size_t limit = 0;
};

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text;
  for (const uint64_t n : shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", n);
  return text.empty() ? "scalar" : text;
}

struct Totals {
  uint64_t elements = 0;
  std::map<std::string, uint64_t> bytes_by_dtype;
};

Totals Sum(const Layout& layout) {
  Totals totals;
  for (size_t i = 0; i < layout.size(); ++i) {
    const DType dtype = layout.tensor(i).dtype;
    totals.elements += layout.bytes(i) / DTypeBytes(dtype);
    totals.bytes_by_dtype[std::string(DTypeName(dtype))] += layout.bytes(i);
  }
  return totals;
}

void ShowJson(const ModelDir& model, const Totals& totals, uint32_t chunks,
              const std::vector<SideFile>& side_files) {
  const Layout& layout = model.layout();
  Json tensors = Json::array();
  for (size_t i = 0; i < layout.size(); ++i) {
    const TensorMeta& t = layout.tensor(i);
    tensors.push_back({{"name", t.name},
                       {"dtype", DTypeName(t.dtype)},
                       {"shape", t.shape},
                       {"bytes", layout.bytes(i)}});
  }
  Json files = Json::array();
  for (const SideFile& f : side_files) {
    files.push_back({{"name", f.name}, {"bytes", f.content.size()}});
  }
  PrintJson({{"directory", model.path().string()},
             {"fingerprint", layout.fingerprint().Hex()},
             {"tensors", layout.size()},
             {"elements", totals.elements},
             {"model_bytes", layout.total_bytes()},
             {"chunks", chunks},
             {"dtypes", totals.bytes_by_dtype},
             {"side_files", files},
             {"tensors_meta", tensors}});
}

void ShowTable(const Layout& layout, size_t limit) {
  Table table({{"TENSOR"}, {"DTYPE"}, {"SHAPE", Align::kRight}, {"SIZE", Align::kRight}});
  const size_t shown = limit == 0 ? layout.size() : std::min(limit, layout.size());
  for (size_t i = 0; i < shown; ++i) {
    const TensorMeta& t = layout.tensor(i);
    table.Add(
        {t.name, std::string(DTypeName(t.dtype)), ShapeText(t.shape), HumanBytes(layout.bytes(i))});
  }
  std::fputs(table.Text().c_str(), stdout);
  if (shown < layout.size()) {
    std::printf("... and %zu more (--limit 0 shows all)\n", layout.size() - shown);
  }
}

StatusOr<Exit> Inspect(const InspectOptions& o) {
  DW_ASSIGN_OR_RETURN(const ModelDir model, ModelDir::Open(o.dir));
  std::vector<std::string> foreign;
  DW_ASSIGN_OR_RETURN(const std::vector<SideFile> side_files, model.ReadSideFiles(&foreign));
  const Layout& layout = model.layout();
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(layout));
  const Totals totals = Sum(layout);
  if (o.json) {
    ShowJson(model, totals, chunks.size(), side_files);
    return Exit::kOk;
  }
  ShowTable(layout, o.limit);
  std::string dtypes, files;
  for (const auto& [name, bytes] : totals.bytes_by_dtype) {
    dtypes += fmt::format("{}{} {}", dtypes.empty() ? "" : ", ", name, HumanBytes(bytes));
  }
  for (const SideFile& f : side_files) files += (files.empty() ? "" : ", ") + f.name;
  std::printf("\n%zu tensors, %s elements, %s (%s)\n", layout.size(),
              Grouped(totals.elements).c_str(), HumanBytes(layout.total_bytes()).c_str(),
              dtypes.c_str());
  std::printf("%s chunks of up to %s; layout fingerprint %s\n", Grouped(chunks.size()).c_str(),
              HumanBytes(kChunkBytes).c_str(), layout.fingerprint().Hex().c_str());
  std::printf("Side files: %s\n", files.empty() ? "none" : files.c_str());
  for (const std::string& line : LeftOutLines(model, foreign)) std::printf("%s\n", line.c_str());
  return Exit::kOk;
}

}  // namespace

void DeclareInspect(CLI::App& app, Run* run) {
  auto o = std::make_shared<InspectOptions>();
  CLI::App* sub = app.add_subcommand("inspect", "List the tensors of a HF model directory");
  NeedDirectory(*sub, "DIR", o->dir, "HF model directory");
  AddWhole(*sub, "--limit", o->limit, "Tensors to list, in stored order; 0: all")
      ->capture_default_str();
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Inspect(*o); }; });
}

}  // namespace deltawire::cli
