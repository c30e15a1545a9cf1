#include "sender/export/mcore/hf_tensors.h"

#include <algorithm>

namespace deltawire::mcore {

std::vector<uint64_t> HfTensor::Shape() const {
  if (said_shape) return *said_shape;
  std::vector<uint64_t> shape;
  if (packed) shape.push_back(view.packed);
  if (flat) {
    shape.push_back(view.rows);
  } else if (view.transpose) {
    shape.insert(shape.end(), {view.cols, view.rows});
  } else {
    shape.insert(shape.end(), {view.rows, view.cols});
  }
  return shape;
}

StatusOr<uint32_t> HfTensors::Intern(HfTensor tensor) {
  const auto [it, fresh] = index_.try_emplace(tensor.name, static_cast<uint32_t>(tensors_.size()));
  if (fresh) {
    tensors_.push_back(std::move(tensor));
    return it->second;
  }
  HfTensor& known = tensors_[it->second];
  if (known.view.cols != tensor.view.cols || known.view.pitch != tensor.view.pitch ||
      known.view.packed != tensor.view.packed || known.view.transpose != tensor.view.transpose ||
      known.dtype != tensor.dtype) {
    return Errorf(StatusCode::kInvalidArgument,
                  "parts of \"{}\" disagree on its columns, pitch, packing, orientation or dtype",
                  tensor.name);
  }
  known.view.rows = std::max(known.view.rows, tensor.view.rows);
  return it->second;
}

std::vector<std::string> HfTensors::Shrink(size_t count) {
  std::vector<std::string> names;
  for (size_t i = count; i < tensors_.size(); ++i) {
    index_.erase(tensors_[i].name);
    names.push_back(std::move(tensors_[i].name));
  }
  tensors_.resize(count);
  return names;
}

void HfTensors::Finish() {
  for (HfTensor& t : tensors_) {
    if (t.view.pitch == 0) t.view.pitch = std::max<uint64_t>(t.view.rows, 1);
  }
}

HfTensors::Listed HfTensors::Among(const Layout& listing) const {
  Listed listed;
  listed.views.resize(listing.size());
  listed.place.resize(tensors_.size(), 0);
  listed.made.resize(listing.size(), false);
  uint32_t beyond = static_cast<uint32_t>(listing.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const HfTensor& t = tensors_[i];
    const std::optional<size_t> found = listing.Find(t.name);
    if (!found) {
      listed.unlisted.push_back(
          fmt::format("{} is made by the family, but the checkpoint has no such tensor", t.name));
      // The tensor keeps a view, so that programs can be made, and a place outside of the layout.
      listed.place[i] = beyond++;
      listed.views.push_back(t.view);
      continue;
    }
    listed.place[i] = static_cast<uint32_t>(*found);
    listed.made[*found] = true;
    listed.views[*found] = t.view;
    const TensorMeta& meta = listing.tensor(*found);
    const std::vector<uint64_t> want = t.Shape();
    if (meta.shape != want) {
      listed.misshapen.push_back(fmt::format("{} is [{}] in the checkpoint, and [{}] by the family",
                                             t.name, fmt::join(meta.shape, ", "),
                                             fmt::join(want, ", ")));
    }
  }
  return listed;
}

}  // namespace deltawire::mcore
