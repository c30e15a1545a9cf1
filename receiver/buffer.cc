#include "receiver/buffer.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <system_error>

namespace deltawire::receiver {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kPartial = ".model.safetensors.partial";
constexpr const char* kState = ".deltawire.state";

Status RefuseForeignWeights(const fs::path& dir) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    const std::string name = entry.path().filename().string();
    if (name == kWeights || !(name.ends_with(".safetensors") || name.ends_with(".index.json"))) {
      continue;
    }
    if (name.starts_with(".")) continue;
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} holds {}, which deltawire did not write; a loader would mix it with ours: "
                  "choose an empty directory",
                  dir.string(), name);
  }
  return absl::OkStatus();
}

}  // namespace

Buffer::Buffer(fs::path dir, std::shared_ptr<DirLock> lock, Layout layout, ChunkTable chunks,
               StateFile state, BufferFile file)
    : dir_(std::move(dir)),
      lock_(std::move(lock)),
      layout_(std::move(layout)),
      chunks_(std::move(chunks)),
      state_(std::move(state)),
      key_(state_.shape().digest_seed),
      file_(std::move(file)),
      updating_(state_.phase(0) != SlotPhase::kWhole) {}

StatusOr<std::unique_ptr<Buffer>> Buffer::Recover(const fs::path& dir,
                                                  std::shared_ptr<DirLock> lock,
                                                  const BufferOptions& options) {
  std::error_code ec;
  const bool named = fs::exists(dir / kWeights, ec);
  if (!fs::exists(dir / kState, ec) || (!named && !fs::exists(dir / kPartial, ec))) {
    return Errorf(StatusCode::kNotFound, "{} holds no receiver's buffer", dir.string());
  }
  DW_ASSIGN_OR_RETURN(StateFile state, StateFile::Open(dir / kState));
  const fs::path path = dir / (named ? kWeights : kPartial);
  DW_ASSIGN_OR_RETURN(const ModelDir opened, ModelDir::Open(path));
  Layout layout = opened.layout();
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  if (state.shape().slots != 1 || state.shape().chunks != chunks.size() ||
      !(state.shape().fingerprint == layout.fingerprint())) {
    return Errorf(StatusCode::kDataLoss, "{}: state file and {} are of different layouts",
                  dir.string(), path.filename().string());
  }
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Open(path, layout, options));
  std::unique_ptr<Buffer> buffer(new Buffer(dir, std::move(lock), std::move(layout),
                                            std::move(chunks), std::move(state), std::move(file)));
  // The phase is the truth; a kill between it and the rename left only the name behind.
  if (buffer->updating_ && named) DW_RETURN_IF_ERROR(buffer->file_.Rename(dir / kPartial));
  if (!buffer->updating_ && !named) DW_RETURN_IF_ERROR(buffer->file_.Rename(dir / kWeights));
  return buffer;
}

StatusOr<std::unique_ptr<Buffer>> Buffer::Create(const fs::path& dir, std::shared_ptr<DirLock> lock,
                                                 Layout layout, uint64_t digest_seed,
                                                 const BufferOptions& options) {
  DW_RETURN_IF_ERROR(RefuseForeignWeights(dir));
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  std::error_code ignored;
  const bool ours = fs::exists(dir / kState, ignored);
  if (!ours && fs::exists(dir / kWeights, ignored)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} exists and is not a receiver's; choose an empty directory",
                  (dir / kWeights).string());
  }
  // State first: a weight file without one counts as nobody's.
  fs::remove(dir / kWeights, ignored);
  fs::remove(dir / kPartial, ignored);
  fs::remove(dir / kState, ignored);
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Create(dir / kPartial, layout, options));
  DW_ASSIGN_OR_RETURN(StateFile state,
                      StateFile::Create(dir / kState, {.chunks = chunks.size(),
                                                       .slots = 1,
                                                       .fingerprint = layout.fingerprint(),
                                                       .digest_seed = digest_seed}));
  return std::unique_ptr<Buffer>(new Buffer(dir, std::move(lock), std::move(layout),
                                            std::move(chunks), std::move(state), std::move(file)));
}

StateId Buffer::committed() const {
  return state_.phase(0) == SlotPhase::kWhole ? state_.id(0) : StateId{};
}

wire::Have Buffer::have() const {
  wire::Have have;
  // Also while an update is under way: the last whole state is what must not go backwards.
  const StateId id = state_.phase(0) == SlotPhase::kEmpty ? StateId{} : state_.id(0);
  have.epoch = id.epoch;
  have.version = id.version;
  have.chunks.resize(chunks_.size());
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    have.chunks[i] = {state_.chunk_version(0, i), state_.chunk_digest(0, i)};
    if (have.chunks[i].version == kVersionUnknown) have.chunks[i].digest = 0;
  }
  return have;
}

Status Buffer::BeginUpdate() {
  std::lock_guard lock(mu_);
  if (state_.phase(0) != SlotPhase::kWriting) state_.BeginWrite(0);
  if (updating_) return absl::OkStatus();
  DW_RETURN_IF_ERROR(file_.Rename(dir_ / kPartial));
  updating_ = true;
  return absl::OkStatus();
}

Status Buffer::Commit(StateId id) {
  std::lock_guard lock(mu_);
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (!known(i)) {
      return Errorf(StatusCode::kInternal,
                    "{}: chunk {} (tensor {}) is not there, so {} is not whole", dir_.string(), i,
                    layout_.tensor(chunks_[i].tensor).name, ToString(id));
    }
  }
  // First: entries of the new version in a slot that claims the old one would contradict it.
  if (state_.phase(0) != SlotPhase::kWriting) state_.BeginWrite(0);
  for (uint32_t i = 0; i < chunks_.size(); ++i) state_.SetChunk(0, i, id.version, digest(i));
  state_.FinishWrite(0, id);
  if (updating_) DW_RETURN_IF_ERROR(file_.Rename(dir_ / kWeights));
  updating_ = false;
  return absl::OkStatus();
}

Status Buffer::WriteSideFiles(const std::vector<SideFile>& files) {
  for (const SideFile& f : files) {
    // The sender checked too, but a name from the network decides about no path unchecked.
    if (!IsSideFileName(f.name)) {
      return Errorf(StatusCode::kInvalidArgument, "side file \"{}\" has a name that is not allowed",
                    f.name);
    }
    const fs::path to = dir_ / f.name;
    const fs::path temporary = dir_ / ("." + f.name + ".new");
    std::ofstream out(temporary, std::ios::binary);
    out << f.content;
    out.close();
    if (!out) return ErrnoError("write " + temporary.string());
    if (std::rename(temporary.c_str(), to.c_str()) != 0) return ErrnoError("rename " + to.string());
  }
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
