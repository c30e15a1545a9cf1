#include "common/layout/safetensors.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "common/layout/json_events.h"
#include "common/layout/names.h"

namespace deltawire {
namespace {

constexpr size_t kLengthBytes = 8;

/// Reads the header's JSON. A state is a place where the next value may stand. A value that does
/// not belong there is an error at once, so nesting never gets deeper than three.
class HeaderReader final : public JsonEvents {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  Status StartObject() override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return absl::OkStatus();
      case Place::kMetadata:
        place_ = Place::kMetadataKeys;
        return absl::OkStatus();
      case Place::kTensor:
        place_ = Place::kTensorKeys;
        has_dtype_ = has_shape_ = false;
        offsets_ = 0;
        has_offsets_ = false;
        return absl::OkStatus();
      default:
        return Unexpected("an object");
    }
  }

  Status EndObject() override {
    if (place_ == Place::kTensorKeys) DW_RETURN_IF_ERROR(FinishTensor());
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return absl::OkStatus();
  }

  Status StartArray() override {
    if (place_ == Place::kShape) {
      place_ = Place::kShapeItems;
    } else if (place_ == Place::kOffsets) {
      place_ = Place::kOffsetItems;
    } else {
      return Unexpected("an array");
    }
    return absl::OkStatus();
  }

  Status EndArray() override {
    if (place_ == Place::kOffsetItems && offsets_ != 2) return WrongOffsetCount();
    place_ = Place::kTensorKeys;
    return absl::OkStatus();
  }

  Status Key(std::string& key) override {
    switch (place_) {
      case Place::kTop:
        return TopKey(key);
      case Place::kTensorKeys:
        return TensorKey(key);
      default:
        return MetadataKey(key);
    }
  }

  Status String(std::string& value) override {
    if (place_ == Place::kMetadataValue) {
      header_.metadata[metadata_key_] = std::move(value);
      place_ = Place::kMetadataKeys;
      return absl::OkStatus();
    }
    if (place_ != Place::kDtype) return Unexpected("a string");
    const auto dtype = ParseDType(value);
    if (!dtype.ok()) return Annotate(dtype.status(), Subject());
    tensor().meta.dtype = *dtype;
    place_ = Place::kTensorKeys;
    return absl::OkStatus();
  }

  Status Unsigned(uint64_t value) override {
    if (place_ == Place::kShapeItems) {
      if (tensor().meta.shape.size() == Layout::kMaxRank) {
        return Errorf(StatusCode::kInvalidArgument, "{}: more than {} dimensions", Subject(),
                      Layout::kMaxRank);
      }
      tensor().meta.shape.push_back(value);
      return absl::OkStatus();
    }
    if (place_ != Place::kOffsetItems) return Unexpected("a number");
    if (offsets_ == 2) return WrongOffsetCount();
    (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    return absl::OkStatus();
  }

  Status Other(std::string_view kind) override { return Unexpected(kind); }

 private:
  enum class Place {
    kStart,          // -> kTop
    kTop,            // -> kMetadata, kTensor, kEnd
    kMetadata,       // -> kMetadataKeys
    kMetadataKeys,   // -> kMetadataValue, kTop
    kMetadataValue,  // -> kMetadataKeys
    kTensor,         // -> kTensorKeys
    kTensorKeys,     // -> kDtype, kShape, kOffsets, kTop
    kDtype,          // -> kTensorKeys
    kShape,          // -> kShapeItems
    kShapeItems,     // -> kTensorKeys
    kOffsets,        // -> kOffsetItems
    kOffsetItems,    // -> kTensorKeys
    kEnd,
  };

  StoredTensor& tensor() { return header_.tensors.back(); }

  Status TopKey(std::string& key) {
    in_tensor_ = key != "__metadata__";
    if (!in_tensor_) {
      place_ = Place::kMetadata;
      if (std::exchange(seen_metadata_, true)) return Twice();
      return absl::OkStatus();
    }
    place_ = Place::kTensor;
    if (key.empty()) return Errorf(StatusCode::kInvalidArgument, "a tensor has an empty name");
    if (key.size() > Layout::kMaxNameBytes) {
      return Errorf(StatusCode::kInvalidArgument, "tensor {}: the name has {} bytes, more than {}",
                    Quoted(key), key.size(), Layout::kMaxNameBytes);
    }
    if (header_.tensors.size() == Layout::kMaxTensors) {
      return Errorf(StatusCode::kInvalidArgument, "more than {} tensors", Layout::kMaxTensors);
    }
    const bool added = names_.insert(key).second;
    header_.tensors.emplace_back().meta.name = std::move(key);
    return added ? absl::OkStatus() : Twice();
  }

  Status MetadataKey(std::string& key) {
    if (header_.metadata.contains(key)) {
      return Errorf(StatusCode::kInvalidArgument, "{}: key {} is given twice", Subject(),
                    Quoted(key));
    }
    metadata_key_ = std::move(key);
    place_ = Place::kMetadataValue;
    return absl::OkStatus();
  }

  Status TensorKey(const std::string& key) {
    bool again = false;
    if (key == "dtype") {
      place_ = Place::kDtype;
      again = std::exchange(has_dtype_, true);
    } else if (key == "shape") {
      place_ = Place::kShape;
      again = std::exchange(has_shape_, true);
    } else if (key == "data_offsets") {
      place_ = Place::kOffsets;
      again = std::exchange(has_offsets_, true);
    } else {
      return Errorf(StatusCode::kInvalidArgument, "{}: key {} is not part of the format", Subject(),
                    Quoted(key));
    }
    if (!again) return absl::OkStatus();
    return Errorf(StatusCode::kInvalidArgument, "{}: \"{}\" is given twice", Subject(), key);
  }

  Status FinishTensor() {
    for (const auto& [present, key] :
         {std::pair{has_dtype_, "dtype"}, {has_shape_, "shape"}, {has_offsets_, "data_offsets"}}) {
      if (!present) {
        return Errorf(StatusCode::kInvalidArgument, "{}: \"{}\" is missing", Subject(), key);
      }
    }
    return absl::OkStatus();
  }

  Status Twice() { return Errorf(StatusCode::kInvalidArgument, "{}: listed twice", Subject()); }

  Status WrongOffsetCount() {
    return Errorf(StatusCode::kInvalidArgument, "{}: \"data_offsets\" must be two numbers",
                  Subject());
  }

  Status Unexpected(std::string_view kind) {
    return Errorf(StatusCode::kInvalidArgument, "{}: {} stands where {} belongs", Subject(), kind,
                  Wanted());
  }

  std::string Subject() {
    if (place_ == Place::kStart) return "the header";
    return in_tensor_ ? "tensor " + Quoted(tensor().meta.name) : "\"__metadata__\"";
  }

  std::string_view Wanted() const {
    switch (place_) {
      case Place::kMetadataValue:
        return "a string";
      case Place::kDtype:
        return "the name of a dtype";
      case Place::kShape:
        return "the list of dimensions";
      case Place::kShapeItems:
        return "a dimension";
      case Place::kOffsets:
        return "the pair of data offsets";
      case Place::kOffsetItems:
        return "a data offset";
      default:
        return "an object";
    }
  }

  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  bool in_tensor_ = false;
  bool seen_metadata_ = false;
  std::unordered_set<std::string> names_;
  std::string metadata_key_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  unsigned offsets_ = 0;
};

/// Checks the stated length against the file's size, and returns the header's JSON.
StatusOr<std::string_view> HeaderText(Bytes prefix, uint64_t file_size) {
  if (file_size < kLengthBytes || prefix.size() < kLengthBytes) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "the file has {} bytes, too few for a safetensors header: it is not a safetensors "
        "file or its download is incomplete",
        std::min<uint64_t>(file_size, prefix.size()));
  }
  const auto length = LoadLe<uint64_t>(prefix.data());
  if (length > file_size - kLengthBytes) {
    return Errorf(StatusCode::kInvalidArgument,
                  "the header claims {} bytes, but the file has {} in all: it is not a safetensors "
                  "file or its download is incomplete",
                  length, file_size);
  }
  if (length > kMaxSafetensorsHeader) {
    return Errorf(StatusCode::kInvalidArgument,
                  "the header has {} bytes, more than the limit of {}", length,
                  kMaxSafetensorsHeader);
  }
  if (length > prefix.size() - kLengthBytes) {
    return Errorf(StatusCode::kInvalidArgument,
                  "the header has {} bytes, of which only {} were read", length,
                  prefix.size() - kLengthBytes);
  }
  const std::string_view text = AsChars(prefix.subspan(kLengthBytes, length));
  if (!text.starts_with('{')) {
    return Errorf(StatusCode::kInvalidArgument,
                  "the header does not start with '{{': it is not a safetensors file");
  }
  return text;
}

/// Checks that the tensors fill the data section without overlap or hole. REQUIRES: `tensors` is in
/// rising order of offset.
Status CheckPlaces(const std::vector<StoredTensor>& tensors, uint64_t data_bytes) {
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& t = tensors[i];
    const std::string name = Quoted(t.meta.name);
    if (t.begin > t.end) {
      return Errorf(StatusCode::kInvalidArgument, "tensor {}: data offsets [{}, {}] are reversed",
                    name, t.begin, t.end);
    }
    DW_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(t.meta));
    if (t.end - t.begin != bytes) {
      return Errorf(StatusCode::kInvalidArgument,
                    "tensor {}: data offsets [{}, {}] span {} bytes, but dtype and shape need {}",
                    name, t.begin, t.end, t.end - t.begin, bytes);
    }
    if (t.begin < filled) {
      return Errorf(StatusCode::kInvalidArgument,
                    "tensor {}: data offsets [{}, {}] overlap those of tensor {}", name, t.begin,
                    t.end, Quoted(tensors[i - 1].meta.name));
    }
    if (t.begin > filled) {
      return Errorf(StatusCode::kInvalidArgument,
                    "tensor {}: the {} bytes before its data offset {} belong to no tensor", name,
                    t.begin - filled, t.begin);
    }
    if (t.end > data_bytes) {
      return Errorf(StatusCode::kInvalidArgument,
                    "tensor {}: data offsets [{}, {}] run beyond the {} bytes of data in the file: "
                    "its download is incomplete or it is corrupt",
                    name, t.begin, t.end, data_bytes);
    }
    filled = t.end;
  }
  if (filled != data_bytes) {
    return Errorf(StatusCode::kInvalidArgument,
                  "the file has {} bytes after its last tensor that belong to no tensor",
                  data_bytes - filled);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<SafetensorsHeader> ParseSafetensorsHeader(Bytes prefix, uint64_t file_size,
                                                   std::string_view file) {
  const auto text = HeaderText(prefix, file_size);
  if (!text.ok()) return Annotate(text.status(), file);

  SafetensorsHeader header;
  HeaderReader reader(header);
  DW_RETURN_IF_ERROR(Annotate(ReadJson(*text, reader), file));
  header.data_offset = kLengthBytes + text->size();

  // A tensor of 0 bytes shares its offset with a neighbor. The second key `end` sorts it before
  // that neighbor, and the stable sort keeps several such tensors in the header's order.
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  DW_RETURN_IF_ERROR(Annotate(CheckPlaces(header.tensors, file_size - header.data_offset), file));
  return header;
}

std::string BuildSafetensorsHeader(const Layout& layout,
                                   const std::map<std::string, std::string>& metadata) {
  std::string out(kLengthBytes, '\0');
  out += '{';
  const auto separate = [&out] {
    if (out.back() != '{') out += ',';
  };
  if (!metadata.empty()) {
    out += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      separate();
      AppendJsonString(key, out);
      out += ':';
      AppendJsonString(value, out);
    }
    out += '}';
  }
  for (size_t i = 0; i < layout.size(); ++i) {
    const TensorMeta& t = layout.tensor(i);
    separate();
    AppendJsonString(t.name, out);
    fmt::format_to(std::back_inserter(out),
                   R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", DTypeName(t.dtype),
                   fmt::join(t.shape, ","), layout.offset(i), layout.offset(i) + layout.bytes(i));
  }
  out += '}';
  out.resize((out.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  StoreLe<uint64_t>(reinterpret_cast<std::byte*>(out.data()), out.size() - kLengthBytes);
  return out;
}

}  // namespace deltawire
