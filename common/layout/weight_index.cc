#include "common/layout/weight_index.h"

#include <utility>

#include "common/layout/json_events.h"
#include "common/layout/layout.h"
#include "common/layout/names.h"

namespace deltawire {
namespace {

bool IsShardName(std::string_view name) {
  return name.ends_with(".safetensors") && name.front() != '.' && name.size() <= 255 &&
         name.find('/') == name.npos && name.find('\0') == name.npos;
}

class IndexReader final : public JsonEvents {
 public:
  Status StartObject() override {
    ++depth_;
    if (depth_ == 1 || skipping()) return absl::OkStatus();
    if (depth_ == 2) return absl::OkStatus();  // weight_map itself
    return Bad("an object");
  }
  Status EndObject() override { return Leave(); }
  Status StartArray() override {
    if (++depth_ == 1) return Bad("an array");
    return skipping() ? absl::OkStatus() : Bad("an array");
  }
  Status EndArray() override { return Leave(); }

  Status Key(std::string& key) override {
    if (depth_ == 1) {
      in_map_ = key == "weight_map";
      if (in_map_ && std::exchange(seen_map_, true)) {
        return Errorf(StatusCode::kInvalidArgument, "\"weight_map\" is given twice");
      }
    } else if (in_map_) {
      if (map_.size() >= Layout::kMaxTensors) {
        return Errorf(StatusCode::kInvalidArgument, "more than {} tensors", Layout::kMaxTensors);
      }
      const auto [it, added] = map_.try_emplace(std::move(key));
      if (!added) {
        return Errorf(StatusCode::kInvalidArgument, "tensor {} is listed twice", Quoted(it->first));
      }
      entry_ = &*it;  // stays valid: an unordered_map never moves its elements
    }
    return absl::OkStatus();
  }

  Status String(std::string& value) override {
    if (skipping()) return absl::OkStatus();
    if (depth_ != 2) return Bad("a string");
    if (!IsShardName(value)) {
      return Errorf(StatusCode::kInvalidArgument,
                    "tensor {}: shard {} is not a plain *.safetensors file name",
                    Quoted(entry_->first), Quoted(value));
    }
    entry_->second = std::move(value);
    return absl::OkStatus();
  }
  Status Unsigned(uint64_t) override { return Other("a number"); }
  Status Other(std::string_view kind) override { return skipping() ? absl::OkStatus() : Bad(kind); }

  bool seen_map() const { return seen_map_; }
  WeightIndex TakeMap() { return std::move(map_); }

 private:
  bool skipping() const { return depth_ >= 1 && !in_map_; }

  Status Leave() {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return absl::OkStatus();
  }

  Status Bad(std::string_view kind) const {
    if (!in_map_) {
      return Errorf(StatusCode::kInvalidArgument, "the file holds {} instead of an object", kind);
    }
    if (entry_ == nullptr) {
      return Errorf(StatusCode::kInvalidArgument, "\"weight_map\" is {} instead of an object",
                    kind);
    }
    return Errorf(StatusCode::kInvalidArgument, "tensor {}: {} instead of a shard file name",
                  Quoted(entry_->first), kind);
  }

  unsigned depth_ = 0;
  bool in_map_ = false;
  bool seen_map_ = false;
  WeightIndex map_;
  WeightIndex::value_type* entry_ = nullptr;
};

}  // namespace

StatusOr<WeightIndex> ParseWeightIndex(std::string_view json, std::string_view file) {
  IndexReader reader;
  DW_RETURN_IF_ERROR(Annotate(ReadJson(json, reader), file));
  if (!reader.seen_map()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}: there is no \"weight_map\": not an index of safetensors shards", file);
  }
  WeightIndex map = reader.TakeMap();
  if (map.empty()) {
    return Errorf(StatusCode::kInvalidArgument, "{}: \"weight_map\" lists no tensors", file);
  }
  return map;
}

}  // namespace deltawire
