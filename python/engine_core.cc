// The module deltawire.engine._core: the engine's C ABI as Python classes. Memory comes in as
// addresses, which deltawire/engine/_trace.py finds. Long calls release the GIL. One thread at a
// time calls it, as the C ABI requires.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/checked.h"
#include "receiver/engine_client/abi/deltawire_engine.h"

namespace py = pybind11;

namespace {

using Shape = std::vector<uint64_t>;
using Strides = std::vector<int64_t>;
using Identity = dw_engine_identity;
using deltawire::Check;

static_assert(int{DW_ENGINE_OK} == int{DW_OK});

template <typename Call>
void Run(Call call) {
  deltawire::Run(std::move(call), dw_engine_last_error);
}

std::string LineageOf(const Identity& identity) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx",
                static_cast<unsigned long long>(identity.lineage[0]),
                static_cast<unsigned long long>(identity.lineage[1]));
  return text;
}

bool Equal(const Identity& a, const Identity& b) {
  return std::equal(a.lineage, a.lineage + 2, b.lineage) && a.epoch == b.epoch &&
         a.version == b.version && a.root == b.root;
}

std::string Describe(const Identity& identity) {
  std::string text(dw_engine_describe(&identity, nullptr, 0), '\0');
  dw_engine_describe(&identity, text.data(), text.size() + 1);
  return text;
}

struct Comparison {
  Identity identity{};
  uint64_t bytes = 0;
  std::vector<std::string> different;
};

/// (tensor, storage, counts, source offset and strides, place's offset and strides), all in
/// elements: outermost dimension first, at least one.
using ElementBox = std::tuple<uint32_t, uint32_t, Shape, int64_t, Strides, int64_t, Strides>;

/// (chunk, bytes, digest, places): dw_engine_share.
using Share = std::tuple<uint32_t, uint64_t, uint64_t, uint64_t>;

class Weights {
 public:
  Weights(const std::string& directory, uint32_t threads) {
    dw_engine_options o{};
    o.struct_size = sizeof o;
    o.directory = directory.c_str();
    o.threads = threads;
    Run([&] { return dw_engine_open(&o, &engine_); });
  }
  ~Weights() {
    const deltawire::GilReleased released;
    dw_engine_close(engine_);
  }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  std::string Fingerprint() const { return Model().fingerprint; }
  std::vector<std::tuple<std::string, std::string, Shape>> Tensors() const {
    std::vector<std::tuple<std::string, std::string, Shape>> all;
    const uint32_t count = Model().tensors;
    for (uint32_t i = 0; i < count; ++i) {
      const dw_engine_tensor t = Tensor(i);
      all.emplace_back(t.name, t.dtype, Shape(t.shape, t.shape + t.ndim));
    }
    return all;
  }

  Identity Committed() const {
    Identity identity{};
    Run([&] { return dw_engine_committed(engine_, &identity); });
    return identity;
  }
  Identity Held() const {
    Identity identity{};
    Run([&] { return dw_engine_held(engine_, &identity); });
    return identity;
  }
  Identity WaitForOther(const Identity& known, double seconds) const {
    const auto gone = deltawire::IsMainThread() ? &deltawire::SignalRaised : nullptr;
    const auto limit = static_cast<uint64_t>(std::clamp(seconds, 0.0, 1e12) * 1000);
    Identity found{};
    Run([&] { return dw_engine_wait(engine_, &known, limit, gone, nullptr, &found); });
    return found;
  }

  void Bind(const std::vector<std::tuple<std::string, uintptr_t, uint64_t>>& storages,
            const std::vector<ElementBox>& boxes, int32_t device, uintptr_t stream) {
    std::vector<dw_engine_storage> memory;
    for (const auto& [name, address, bytes] : storages) {
      memory.push_back(
          {sizeof(dw_engine_storage), name.c_str(), reinterpret_cast<void*>(address), bytes});
    }
    std::vector<dw_engine_box> list;
    for (const auto& [tensor, storage, counts, src, src_strides, dst, dst_strides] : boxes) {
      if (counts.size() != src_strides.size() || counts.size() != dst_strides.size()) {
        throw py::value_error("a box whose counts and strides differ in number");
      }
      dw_engine_box box{};
      box.struct_size = sizeof box;
      box.tensor = tensor;
      box.storage = storage;
      box.ndim = static_cast<uint32_t>(counts.size());
      box.counts = counts.data();
      box.source_offset = src;
      box.source_strides = src_strides.data();
      box.place_offset = dst;
      box.place_strides = dst_strides.data();
      list.push_back(box);
    }
    const dw_engine_device on{sizeof on, device, reinterpret_cast<void*>(stream)};
    Run([&] {
      return device < 0
                 ? dw_engine_bind(engine_, memory.data(), memory.size(), list.data(), list.size())
                 : dw_engine_bind_device(engine_, memory.data(), memory.size(), list.data(),
                                         list.size(), &on);
    });
    names_.clear();
    for (const auto& storage : storages) names_.push_back(std::get<0>(storage));
  }
  /// Returns (storage's name, bytes that no tensor has), for storages with such bytes.
  std::vector<std::pair<std::string, uint64_t>> Unmapped() const {
    std::vector<std::pair<std::string, uint64_t>> left;
    for (uint32_t s = 0; s < names_.size(); ++s) {
      uint64_t bytes = 0;
      Run([&] { return dw_engine_unmapped(engine_, s, &bytes); });
      if (bytes > 0) left.emplace_back(names_[s], bytes);
    }
    return left;
  }

  Comparison Adopt() {
    dw_engine_comparison found{};
    found.struct_size = sizeof found;
    Run([&] { return dw_engine_adopt(engine_, &found); });
    return Named(found);
  }
  uint32_t Chunks() const { return Model().chunks; }
  std::pair<Comparison, std::vector<Share>> CheckMemory(uint32_t first, uint32_t count) {
    dw_engine_comparison found{};
    found.struct_size = sizeof found;
    Run([&] { return dw_engine_check_chunks(engine_, first, count, &found); });
    std::vector<Share> shares;
    for (size_t i = 0; i < found.share_count; ++i) {
      const dw_engine_share& s = found.shares[i];
      shares.emplace_back(s.chunk, s.bytes, s.digest, s.places);
    }
    return {Named(found), shares};
  }
  Comparison Judge(const std::vector<Share>& shares) {
    std::vector<dw_engine_share> all;
    for (const auto& [chunk, bytes, digest, places] : shares) {
      all.push_back({chunk, bytes, digest, places});
    }
    dw_engine_comparison found{};
    found.struct_size = sizeof found;
    Run([&] { return dw_engine_judge(engine_, all.data(), all.size(), &found); });
    return Named(found);
  }

  dw_engine_update Prepare() {
    dw_engine_update update{};
    update.struct_size = sizeof update;
    Run([&] { return dw_engine_prepare(engine_, &update); });
    return update;
  }
  std::vector<uint32_t> Changed() const {
    const uint32_t* tensors = nullptr;
    size_t count = 0;
    Run([&] { return dw_engine_changed(engine_, &tensors, &count); });
    return {tensors, tensors + count};
  }
  /// Fills `bytes` of memory at `address` with a tensor of the held or the prepared state.
  void Read(bool prepared, uint32_t tensor, uintptr_t address, uint64_t bytes) const {
    const int state = prepared ? DW_ENGINE_STATE_PREPARED : DW_ENGINE_STATE_HELD;
    Run([&] {
      return dw_engine_read(engine_, state, tensor, reinterpret_cast<void*>(address), bytes);
    });
  }
  void Discard() {
    Run([&] { return dw_engine_discard(engine_); });
  }
  void Apply() {
    Run([&] { return dw_engine_apply(engine_); });
  }
  void Rollback() {
    Run([&] { return dw_engine_rollback(engine_); });
  }

 private:
  dw_engine_model Model() const {
    dw_engine_model model{};
    model.struct_size = sizeof model;
    Run([&] { return dw_engine_get_model(engine_, &model); });
    return model;
  }
  dw_engine_tensor Tensor(uint32_t i) const {
    dw_engine_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    const int code = dw_engine_get_tensor(engine_, i, &tensor);
    Check(code, dw_engine_last_error());
    return tensor;
  }
  Comparison Named(const dw_engine_comparison& found) const {
    Comparison named{found.identity, found.bytes, {}};
    for (size_t i = 0; i < found.different_count; ++i) {
      named.different.emplace_back(Tensor(found.different[i]).name);
    }
    return named;
  }

  dw_engine* engine_ = nullptr;
  std::vector<std::string> names_;  // of the bound storages
};

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C ABI of deltawire's engine library; use deltawire.engine instead.";
  py::class_<Identity>(m, "Identity")
      .def(py::init([] { return Identity{}; }))
      .def_property_readonly("lineage", &LineageOf)
      .def_readonly("epoch", &Identity::epoch)
      .def_readonly("version", &Identity::version)
      .def_readonly("root", &Identity::root)
      .def("__bool__", [](const Identity& i) { return i.epoch != 0; })
      .def("__eq__", &Equal)
      .def("__str__", &Describe);
  py::class_<Comparison>(m, "Comparison")
      .def_readonly("identity", &Comparison::identity)
      .def_readonly("bytes", &Comparison::bytes)
      .def_readonly("different", &Comparison::different);
  py::class_<dw_engine_update>(m, "UpdateInfo")
      .def_readonly("from_", &dw_engine_update::from)
      .def_readonly("to", &dw_engine_update::to)
      .def_readonly("deltas", &dw_engine_update::deltas)
      .def_readonly("changes", &dw_engine_update::changes)
      .def_readonly("chunks_by_delta", &dw_engine_update::chunks_by_delta)
      .def_readonly("chunks_whole", &dw_engine_update::chunks_whole)
      .def_readonly("payload_bytes", &dw_engine_update::payload_bytes)
      .def_readonly("chunks_healed", &dw_engine_update::chunks_healed);

  m.def(
      "find_device", [](int32_t device) { Run([&] { return dw_engine_find_device(device); }); },
      py::arg("device"));
  py::class_<Weights>(m, "EngineWeights")
      .def(py::init<const std::string&, uint32_t>(), py::arg("directory"), py::arg("threads"))
      .def_property_readonly("fingerprint", &Weights::Fingerprint)
      .def_property_readonly("tensors", &Weights::Tensors)
      .def_property_readonly("committed", &Weights::Committed)
      .def_property_readonly("held", &Weights::Held)
      .def_property_readonly("unmapped", &Weights::Unmapped)
      .def("wait_for_other", &Weights::WaitForOther, py::arg("known"), py::arg("seconds"))
      .def("bind", &Weights::Bind, py::arg("storages"), py::arg("boxes"), py::arg("device") = -1,
           py::arg("stream") = 0)
      .def("adopt", &Weights::Adopt)
      .def("prepare", &Weights::Prepare)
      .def_property_readonly("changed", &Weights::Changed)
      .def("read", &Weights::Read, py::arg("prepared"), py::arg("tensor"), py::arg("address"),
           py::arg("bytes"))
      .def("discard", &Weights::Discard)
      .def("apply", &Weights::Apply)
      .def("rollback", &Weights::Rollback)
      .def_property_readonly("chunks", &Weights::Chunks)
      .def("check", &Weights::CheckMemory, py::arg("first"), py::arg("count"))
      .def("judge", &Weights::Judge, py::arg("shares"));
}
