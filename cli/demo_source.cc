#include "cli/demo_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "common/layout/safetensors.h"

namespace deltawire::cli {
namespace {

constexpr const char* kTokenizerConfig =
    "{\n  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"model_max_length\": 131072\n}\n";
constexpr const char* kGenerationConfig =
    "{\n  \"do_sample\": true,\n  \"temperature\": 0.6,\n  \"top_p\": 0.95\n}\n";

Status WriteAll(int fd, Bytes data, const std::string& file) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoError("write " + file);
    data = data.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

DemoSource::DemoSource(std::filesystem::path directory, Layout layout, synth::AdamTrace trace)
    : directory_(std::move(directory)), layout_(std::move(layout)), trace_(std::move(trace)) {}

StatusOr<std::unique_ptr<DemoSource>> DemoSource::Create(const synth::ModelShape& shape,
                                                         uint64_t seed,
                                                         std::filesystem::path directory,
                                                         ThreadPool& pool) {
  std::vector<TensorMeta> tensors = synth::MakeTensors(shape);
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(tensors));
  const synth::AdamOptions adam{.seed = seed, .lr = 1e-6f, .master = synth::Master::kFp32};
  DW_ASSIGN_OR_RETURN(auto trace, synth::AdamTrace::Create(std::move(tensors), adam, pool));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Errorf(StatusCode::kInternal, "{}: {}", directory.string(), error.message());
  std::unique_ptr<DemoSource> source(
      new DemoSource(std::move(directory), std::move(layout), std::move(trace)));
  source->side_files_ = {{"config.json", synth::MakeConfigJson(shape)},
                         {"generation_config.json", kGenerationConfig},
                         {"tokenizer_config.json", kTokenizerConfig}};
  for (const SideFile& f : source->side_files_) {
    std::ofstream out(source->directory_ / f.name, std::ios::binary);
    out << f.content;
    if (!out.flush()) return ErrnoError("write " + f.name);
  }
  DW_RETURN_IF_ERROR(source->WriteDirectory());
  return source;
}

Status DemoSource::WriteDirectory() {
  const std::string file = (directory_ / "model.safetensors").string();
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoError("open " + file);
  Status written = WriteAll(fd, AsBytes(BuildSafetensorsHeader(layout_)), file);
  for (size_t i = 0; i < layout_.size() && written.ok(); ++i) {
    written = WriteAll(fd, trace_->tensor(i), file);
  }
  if (close(fd) != 0) written.Update(ErrnoError("close " + file));
  return written;
}

Content DemoSource::content() const {
  const auto read = [this](size_t i, MutableBytes to) {
    std::memcpy(to.data(), trace_->tensor(i).data(), to.size());
    return absl::OkStatus();
  };
  return {&layout_, &side_files_, read};
}

std::vector<WantedTensor> DemoSource::wanted() const {
  std::vector<WantedTensor> out;
  for (size_t i = 0; i < trace_->tensors().size(); ++i) {
    const TensorMeta& t = trace_->tensors()[i];
    out.push_back({t.name, "BF16", t.shape, trace_->tensor(i)});
  }
  return out;
}

}  // namespace deltawire::cli
