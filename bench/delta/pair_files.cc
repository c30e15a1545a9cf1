// The user's own pair of versions: PairSource of workload.h.
#include <fstream>

#include "bench/delta/workload.h"
#include "common/layout/model_dir.h"
#include "common/layout/safetensors.h"

namespace deltawire::bench {
namespace {

namespace fs = std::filesystem;

struct Model {
  Layout layout;
  std::function<Status(size_t tensor, MutableBytes to)> read;
};

Status ReadRange(const fs::path& path, uint64_t offset, MutableBytes to) {
  std::ifstream in(path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
  if (in && in.gcount() == static_cast<std::streamsize>(to.size())) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: cannot read {} bytes at {}", path.string(), to.size(),
                offset);
}

StatusOr<uint64_t> FileSize(const fs::path& path) {
  std::error_code ec;
  const uint64_t size = fs::file_size(path, ec);
  if (ec) return Errorf(StatusCode::kNotFound, "{}: {}", path.string(), ec.message());
  return size;
}

StatusOr<Model> OpenSafetensors(const fs::path& path) {
  DW_ASSIGN_OR_RETURN(const uint64_t size, FileSize(path));
  std::vector<std::byte> prefix(std::min<uint64_t>(size, 8));
  DW_RETURN_IF_ERROR(ReadRange(path, 0, prefix));
  const uint64_t json = prefix.size() == 8 ? LoadLe<uint64_t>(prefix.data()) : 0;
  if (json <= std::min(kMaxSafetensorsHeader, size)) {  // else the parser says what is wrong
    prefix.resize(std::min(size, 8 + json));
    DW_RETURN_IF_ERROR(ReadRange(path, 0, prefix));
  }
  DW_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                      ParseSafetensorsHeader(prefix, size, path.string()));
  std::vector<TensorMeta> tensors;
  std::vector<uint64_t> begins;
  for (const StoredTensor& t : header.tensors) {
    tensors.push_back(t.meta);
    begins.push_back(header.data_offset + t.begin);
  }
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(std::move(tensors)));
  return Model{std::move(layout), [path, begins = std::move(begins)](size_t t, MutableBytes to) {
                 return ReadRange(path, begins[t], to);
               }};
}

StatusOr<Model> OpenRaw(const fs::path& path, DType dtype) {
  DW_ASSIGN_OR_RETURN(const uint64_t size, FileSize(path));
  const unsigned width = DTypeBytes(dtype);
  if (size == 0 || size % width != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{} has {} bytes, which are no whole elements of {}: name its type with --dtype",
                  path.string(), size, DTypeName(dtype));
  }
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create({{"raw", dtype, {size / width}}}));
  return Model{std::move(layout),
               [path](size_t, MutableBytes to) { return ReadRange(path, 0, to); }};
}

StatusOr<Model> OpenDirectory(const fs::path& path) {
  DW_ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(path));
  return Model{dir.layout(), [dir](size_t t, MutableBytes to) {
                 std::memcpy(to.data(), dir.data(t).data(), to.size());
                 return absl::OkStatus();
               }};
}

StatusOr<Model> OpenModel(const fs::path& path, DType dtype) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return OpenDirectory(path);
  if (path.extension() == ".safetensors") return OpenSafetensors(path);
  return OpenRaw(path, dtype);
}

Status Read(const Model& model, const Layout& layout, MutableBytes to) {
  for (size_t t = 0; t < layout.size(); ++t) {
    if (layout.bytes(t) == 0) continue;
    // The same tensors may lie in another order in the other version's files.
    const auto at = model.layout.Find(layout.tensor(t).name);
    DW_RETURN_IF_ERROR(model.read(*at, to.subspan(layout.offset(t), layout.bytes(t))));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Source> PairSource(const fs::path& old_path, const fs::path& new_path, DType dtype) {
  DW_ASSIGN_OR_RETURN(Model before, OpenModel(old_path, dtype));
  DW_ASSIGN_OR_RETURN(Model after, OpenModel(new_path, dtype));
  const std::string difference = DescribeDifference(before.layout, after.layout);
  if (!difference.empty()) {
    return Errorf(StatusCode::kInvalidArgument, "{} and {} are no two versions of one model: {}",
                  old_path.string(), new_path.string(), difference);
  }
  const auto make = [before = std::move(before), after = std::move(after)](
                        const kernels::Backend& kernels, const kernels::DigestKey& key,
                        ThreadPool& pool) -> StatusOr<Workload> {
    DW_ASSIGN_OR_RETURN(Workload w, EmptyWorkload("pair", before.layout));
    DW_RETURN_IF_ERROR(Read(before, w.layout, w.old_data.data()));
    DW_RETURN_IF_ERROR(Read(after, w.layout, w.new_data.data()));
    FinishWorkload(w, kernels, key, pool);
    return w;
  };
  return Source{"pair", make};
}

}  // namespace deltawire::bench
