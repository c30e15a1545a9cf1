#include "sender/export/shards/hf_dir.h"

#include <nlohmann/json.hpp>

namespace deltawire {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace

StatusOr<HfDir> HfDir::Create(const fs::path& dir, const Layout& layout, uint64_t max_file_bytes) {
  std::vector<std::vector<TensorMeta>> cut(1);
  HfDir made;
  made.dir_ = dir;
  uint64_t bytes = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (!cut.back().empty() && bytes + layout.bytes(i) > max_file_bytes) {
      cut.emplace_back();
      bytes = 0;
    }
    made.places_.push_back({cut.size() - 1, cut.back().size()});
    cut.back().push_back(layout.tensor(i));
    bytes += layout.bytes(i);
  }
  for (size_t k = 0; k < cut.size(); ++k) {
    const std::string name =
        cut.size() == 1 ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, cut.size());
    DW_ASSIGN_OR_RETURN(Layout part, Layout::Create(std::move(cut[k])));
    // Some loaders refuse files without this entry.
    DW_ASSIGN_OR_RETURN(WeightFile file,
                        WeightFile::Create(dir / name, std::move(part), {{"format", "pt"}}));
    made.files_.push_back(std::move(file));
  }
  return made;
}

Status HfDir::Finish(ThreadPool& pool) {
  std::vector<Status> sealed(files_.size());
  pool.ParallelFor(files_.size(),
                   [&](size_t k) { sealed[k] = files_[k].Seal(files_[k].Digest()); });
  for (const Status& status : sealed) DW_RETURN_IF_ERROR(status);
  if (files_.size() == 1) return absl::OkStatus();
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  uint64_t total = 0;
  for (const WeightFile& file : files_) {
    total += file.layout().total_bytes();
    for (const TensorMeta& t : file.layout().tensors()) {
      map[t.name] = file.path().filename().string();
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return WriteSealed(dir_ / kIndexFile, index.dump(2) + "\n");
}

}  // namespace deltawire
