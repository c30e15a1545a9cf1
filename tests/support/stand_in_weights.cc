#include "tests/support/stand_in_weights.h"

#include <algorithm>

#include "common/layout/model_dir.h"

namespace deltawire::testing {

void StandInWeights::Forget() {
  client_.reset();
  memory_.clear();
  whole_ = false;
}

Status StandInWeights::Load(const std::function<void()>& halfway) {
  whole_ = false;
  DW_ASSIGN_OR_RETURN(const ModelDir model, ModelDir::Open(directory_));
  const Layout& layout = model.layout();
  if (memory_.size() != layout.size()) {
    client_.reset();
    memory_.clear();
    for (size_t t = 0; t < layout.size(); ++t) memory_.emplace_back(layout.bytes(t));
  }
  for (size_t t = 0; t < layout.size(); ++t) {
    if (t == layout.size() / 2) halfway();
    if (memory_[t].size() != layout.bytes(t)) return absl::InvalidArgumentError("another model");
    std::copy(model.data(t).begin(), model.data(t).end(), memory_[t].begin());
  }
  whole_ = true;
  return {};
}

void StandInWeights::Tear() {
  whole_ = false;
  for (size_t t = 0; t < memory_.size() / 2; ++t) {
    std::fill(memory_[t].begin(), memory_[t].end(), std::byte{0x5a});
  }
}

void StandInWeights::Drop() {
  whole_ = false;
  for (auto& tensor : memory_) std::fill(tensor.begin(), tensor.end(), std::byte{0x5a});
}

Status StandInWeights::Attach(const std::string& directory) {
  DW_ASSIGN_OR_RETURN(auto client, engine::EngineWeights::Open(directory, 1));
  const Layout& layout = client->layout();
  if (layout.size() != memory_.size()) return absl::InvalidArgumentError("another model");
  engine::Binding binding;
  for (uint32_t t = 0; t < layout.size(); ++t) {
    binding.storages.push_back({layout.tensor(t).name, memory_[t].size()});
    binding.memory.push_back(memory_[t].data());
    if (memory_[t].empty()) continue;
    engine::Box box{.tensor = t, .storage = t, .copy = {}};
    box.copy.run_bytes = layout.bytes(t);
    binding.boxes.push_back(box);
  }
  DW_RETURN_IF_ERROR(client->Bind(binding));
  DW_ASSIGN_OR_RETURN(const engine::Comparison found, client->Adopt());
  if (!found.different.empty()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "deltawire cannot update this model in place: {} tensors have other bytes: it "
                  "loaded another version",
                  found.different.size());
  }
  client_ = std::move(client);
  return {};
}

Status StandInWeights::Check() {
  DW_ASSIGN_OR_RETURN(const engine::Comparison found, client_->Check());
  told_ = !told_ && !found.different.empty();
  if (!told_) return {};
  return Errorf(StatusCode::kDataLoss, "the engine's memory has drifted in {}; the next update",
                found.different.front());
}

void StandInWeights::Corrupt(size_t byte) {
  for (auto& tensor : memory_) {
    if (byte < tensor.size()) {
      tensor[byte] ^= std::byte{1};
      return;
    }
    byte -= tensor.size();
  }
}

std::vector<std::byte> StandInWeights::all() const {
  std::vector<std::byte> bytes;
  for (const auto& tensor : memory_) bytes.insert(bytes.end(), tensor.begin(), tensor.end());
  return bytes;
}

}  // namespace deltawire::testing
