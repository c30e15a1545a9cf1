// deltawire.engine._core: the engine's side of a receiver's directory, for Python. Memory comes in
// as addresses; deltawire/engine/_trace.py finds them. Calls that take long release the GIL.
// Owner: the engine's process. Threads: one at a time, as EngineWeights says. Errors: deltawire's.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "receiver/engine_client/engine_weights.h"

namespace py = pybind11;

namespace {

namespace dw = deltawire;
using dw::engine::EngineWeights;

/// Raises what deltawire/_errors.py makes of the status. REQUIRES: the GIL.
void Check(const dw::Status& status) {
  if (status.ok()) return;
  const py::object error =
      py::module_::import("deltawire._errors")
          .attr("from_status")(static_cast<int>(status.code()), std::string(dw::MessageOf(status)));
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

template <typename T>
T Take(dw::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

/// Runs a call of the library without the GIL.
template <typename Call>
auto WithoutGil(Call call) {
  const py::gil_scoped_release release;
  return call();
}

/// (tensor, storage, counts, source offset and strides, place's offset and strides), all in
/// elements: outermost dimension first, at least one.
using ElementBox = std::tuple<uint32_t, uint32_t, std::vector<uint64_t>, int64_t,
                              std::vector<int64_t>, int64_t, std::vector<int64_t>>;

dw::engine::Box ToBytes(const ElementBox& element, const dw::Layout& layout) {
  const auto& [tensor, storage, counts, src, src_strides, dst, dst_strides] = element;
  if (tensor >= layout.size() || counts.empty() || counts.size() != src_strides.size() ||
      counts.size() != dst_strides.size() || counts.size() > dw::kernels::StridedCopy::kMaxDims) {
    Check(dw::Errorf(dw::StatusCode::kInvalidArgument, "a malformed box of tensor {}", tensor));
  }
  const int64_t width = dw::DTypeBytes(layout.tensor(tensor).dtype);
  dw::engine::Box box{.tensor = tensor, .storage = storage, .copy = {}};
  box.copy.src_offset = src * width;
  box.copy.dst_offset = dst * width;
  box.copy.run_bytes = static_cast<size_t>(width);
  size_t dims = counts.size();
  if (src_strides.back() == 1 && dst_strides.back() == 1) {
    box.copy.run_bytes *= counts.back();
    --dims;
  }
  box.copy.dims = dims;
  for (size_t d = 0; d < dims; ++d) {
    box.copy.counts[d] = counts[d];
    box.copy.src_strides[d] = src_strides[d] * width;
    box.copy.dst_strides[d] = dst_strides[d] * width;
  }
  return box;
}

struct Weights {
  static std::unique_ptr<Weights> Open(const std::string& directory, size_t threads) {
    return std::make_unique<Weights>(
        Weights{Take(WithoutGil([&] { return EngineWeights::Open(directory, threads); }))});
  }
  std::vector<std::tuple<std::string, std::string, std::vector<uint64_t>>> Tensors() const {
    std::vector<std::tuple<std::string, std::string, std::vector<uint64_t>>> all;
    for (const dw::TensorMeta& t : weights->layout().tensors()) {
      all.emplace_back(t.name, std::string(dw::DTypeName(t.dtype)), t.shape);
    }
    return all;
  }
  void Bind(const std::vector<std::tuple<std::string, uintptr_t, uint64_t>>& storages,
            const std::vector<ElementBox>& boxes) {
    dw::engine::Binding binding;
    for (const auto& [name, address, bytes] : storages) {
      binding.storages.push_back({name, bytes});
      binding.memory.push_back(reinterpret_cast<std::byte*>(address));
    }
    for (const ElementBox& box : boxes) {
      binding.boxes.push_back(ToBytes(box, weights->layout()));
    }
    Check(WithoutGil([&] { return weights->Bind(binding); }));
  }
  /// (storage's name, bytes that no tensor has), where there are such.
  std::vector<std::pair<std::string, uint64_t>> Unmapped() const {
    std::vector<std::pair<std::string, uint64_t>> left;
    const auto& program = weights->program();
    for (size_t s = 0; s < program.storages().size(); ++s) {
      if (program.unmapped(s) > 0)
        left.emplace_back(program.storages()[s].name, program.unmapped(s));
    }
    return left;
  }
  dw::Identity WaitForOther(const dw::Identity& known, double seconds) const {
    const auto limit = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    return Take(WithoutGil([&] {
      return weights->WaitForOther(known, limit, [] {
        const py::gil_scoped_acquire acquire;
        return PyErr_CheckSignals() != 0;
      });
    }));
  }

  std::unique_ptr<EngineWeights> weights;
};

}  // namespace

PYBIND11_MODULE(_core, m) {
  using dw::Identity;
  using dw::engine::Comparison;
  using dw::engine::PartialDigest;
  using dw::engine::UpdateInfo;

  py::class_<Identity>(m, "Identity")
      .def(py::init<>())
      .def_property_readonly("lineage", [](const Identity& i) { return i.lineage.Hex(); })
      .def_property_readonly("epoch", [](const Identity& i) { return i.id.epoch; })
      .def_property_readonly("version", [](const Identity& i) { return i.id.version; })
      .def_readonly("root", &Identity::root)
      .def("__bool__", [](const Identity& i) { return !i.empty(); })
      .def("__eq__", [](const Identity& a, const Identity& b) { return a == b; })
      .def("__str__", [](const Identity& i) { return dw::DescribeFully(i); });
  py::class_<Comparison>(m, "Comparison")
      .def_readonly("identity", &Comparison::identity)
      .def_readonly("bytes", &Comparison::bytes)
      .def_readonly("different", &Comparison::different);
  py::class_<UpdateInfo>(m, "UpdateInfo")
      .def_readonly("from_", &UpdateInfo::from)
      .def_readonly("to", &UpdateInfo::to)
      .def_readonly("deltas", &UpdateInfo::deltas)
      .def_readonly("changes", &UpdateInfo::changes)
      .def_readonly("chunks_by_delta", &UpdateInfo::chunks_by_delta)
      .def_readonly("chunks_whole", &UpdateInfo::chunks_whole)
      .def_readonly("payload_bytes", &UpdateInfo::payload_bytes);
  py::class_<PartialDigest>(m, "PartialDigest")
      .def_readonly("chunk", &PartialDigest::chunk)
      .def_readonly("bytes", &PartialDigest::bytes)
      .def_readonly("digest", &PartialDigest::digest);

  py::class_<Weights>(m, "EngineWeights")
      .def(py::init(&Weights::Open), py::arg("directory"), py::arg("threads"))
      .def_property_readonly("tensors", &Weights::Tensors)
      .def_property_readonly("committed", [](const Weights& w) { return w.weights->committed(); })
      .def_property_readonly("held", [](const Weights& w) { return w.weights->held(); })
      .def_property_readonly("unmapped", &Weights::Unmapped)
      .def("wait_for_other", &Weights::WaitForOther, py::arg("known"), py::arg("seconds"))
      .def("bind", &Weights::Bind, py::arg("storages"), py::arg("boxes"))
      .def("adopt", [](Weights& w) { return Take(WithoutGil([&] { return w.weights->Adopt(); })); })
      .def("prepare",
           [](Weights& w) { return Take(WithoutGil([&] { return w.weights->Prepare(); })); })
      .def("apply", [](Weights& w) { Check(WithoutGil([&] { return w.weights->Apply(); })); })
      .def("rollback", [](Weights& w) { Check(WithoutGil([&] { return w.weights->Rollback(); })); })
      .def("check", [](const Weights& w) {
        std::vector<PartialDigest> parts;
        Comparison found = Take(WithoutGil([&] { return w.weights->Check(&parts); }));
        return py::make_tuple(std::move(found), std::move(parts));
      });
}
