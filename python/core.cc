// deltawire._core: the C ABI as Python classes. Memory is passed as addresses with shapes and
// strides, which deltawire/_tensors.py finds in tensors of all kinds. Calls release the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/checked.h"
#include "python/control_core.h"
#include "python/gil.h"
#include "sender/export/abi/deltawire_export.h"
#include "sender/export/abi/published_fields.h"

namespace py = pybind11;

namespace {

using deltawire::Check;
using deltawire::Run;
using Shape = std::vector<uint64_t>;
using Strides = std::vector<int64_t>;

struct TensorMeta {
  std::string name, dtype;
  Shape shape;
};

class Client;
class Megatron;

/// Logs a library's message in the middle of a call. The call goes on even if the logging fails.
void Warn(void*, const char* text) {
  const deltawire::GilHeld held;
  try {
    py::module_::import("logging").attr("getLogger")("deltawire").attr("warning")("%s", text);
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_Exception)) {
      error.discard_as_unraisable("deltawire's notice");
    } else {
      error.restore();  // a Ctrl-C ends the call
    }
  }
}

/// A half's file, mapped until close().
class Mapping {
 public:
  Mapping(dw_mapping* mapping, void* data, uint64_t bytes)
      : mapping_(mapping), address_(reinterpret_cast<uintptr_t>(data)), bytes_(bytes) {}
  ~Mapping() { Close(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uintptr_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  bool in_use() const { return dw_mapping_in_use(mapping_) != 0; }
  void Close() {
    dw_mapping_destroy(mapping_);
    mapping_ = nullptr;
  }

 private:
  dw_mapping* mapping_;
  uintptr_t address_;
  uint64_t bytes_;
};

class Offload {
 public:
  Offload(std::shared_ptr<Client> client, dw_offload* offload)
      : client_(std::move(client)), offload_(offload) {}
  ~Offload() { Close(); }
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  /// A block's tensor, address, bytes of an element, shape, strides in bytes, and start.
  using Block = std::tuple<uint32_t, uintptr_t, uint32_t, Shape, std::optional<Strides>,
                           std::optional<Shape>>;

  void Write(uint32_t tensor, uintptr_t data, uint32_t element_bytes, const Shape& shape,
             const std::optional<Strides>& strides, const std::optional<Shape>& start, int share,
             int32_t device) {
    const dw_block block = BlockOf(data, element_bytes, shape, strides, start);
    Run([&] {
      if (device == DW_HOST_MEMORY) return dw_offload_write(get(), tensor, &block, share);
      return dw_offload_write_device(get(), tensor, &block, device, share);
    });
  }
  void Diff(const std::vector<Block>& blocks, int share, int32_t device) {
    std::vector<uint32_t> tensors;
    std::vector<dw_block> list;
    for (const auto& [tensor, data, element_bytes, shape, strides, start] : blocks) {
      tensors.push_back(tensor);
      list.push_back(BlockOf(data, element_bytes, shape, strides, start));
    }
    Run([&] {
      return dw_offload_diff_device(get(), tensors.data(), list.data(), list.size(), device, share);
    });
  }
  void MarkWritten(const std::vector<uint32_t>& tensors, int share) {
    Run([&] { return dw_offload_mark_written(get(), tensors.data(), tensors.size(), share); });
  }
  void MarkBlock(uint32_t tensor, const std::optional<Shape>& start, const Shape& shape) {
    Run([&] {
      return dw_offload_mark_block(get(), tensor, static_cast<uint32_t>(shape.size()),
                                   start ? start->data() : nullptr, shape.data());
    });
  }
  void MarkUnchanged(const std::vector<uint32_t>& tensors) {
    Run([&] { return dw_offload_mark_unchanged(get(), tensors.data(), tensors.size()); });
  }
  void Ready() {
    Run([&] { return dw_offload_ready(get()); });
  }
  void CheckAlive() {
    Run([&] { return dw_offload_check(get()); });
  }
  void Abandon(const std::string& reason) {
    Run([&] { return dw_offload_abandon(get(), reason.c_str()); });
  }
  std::string DiffedOn() { return dw_offload_diffed_on(offload_); }
  double WaitedSeconds() const { return dw_offload_waited_seconds(offload_); }
  uint64_t Attempt() const { return dw_offload_attempt(offload_); }
  /// Returns the address and size of a tensor's memory, valid until close().
  std::pair<uintptr_t, uint64_t> Memory(uint32_t tensor) {
    void* data = nullptr;
    uint64_t bytes = 0;
    Run([&] { return dw_offload_tensor(get(), tensor, &data, &bytes); });
    return {reinterpret_cast<uintptr_t>(data), bytes};
  }
  std::unique_ptr<Mapping> WholeMapping() {
    dw_mapping* mapping = nullptr;
    void* data = nullptr;
    uint64_t bytes = 0;
    Run([&] { return dw_offload_mapping(get(), &mapping, &data, &bytes); });
    return std::make_unique<Mapping>(mapping, data, bytes);
  }
  void Close() {
    if (offload_ == nullptr) return;
    const deltawire::GilReleased released;
    dw_offload_destroy(offload_);
    offload_ = nullptr;
  }

 private:
  friend class Megatron;
  /// The arguments outlive the block.
  static dw_block BlockOf(uintptr_t data, uint32_t element_bytes, const Shape& shape,
                          const std::optional<Strides>& strides,
                          const std::optional<Shape>& start) {
    dw_block block{};
    block.struct_size = sizeof block;
    block.data = reinterpret_cast<const void*>(data);
    block.element_bytes = element_bytes;
    block.ndim = static_cast<uint32_t>(shape.size());
    block.shape = shape.data();
    if (strides && strides->size() == shape.size()) block.strides = strides->data();
    if (start && start->size() == shape.size()) block.start = start->data();
    return block;
  }
  dw_offload* get() const { return offload_; }  // the library refuses NULL

  std::shared_ptr<Client> client_;  // the client outlives the offload
  dw_offload* offload_ = nullptr;
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  Client(const std::string& endpoint, const std::string& model, uint32_t rank, uint32_t world,
         uint32_t timeout_ms, uint32_t copy_threads) {
    dw_client_options o{};
    o.struct_size = sizeof o;
    o.endpoint = endpoint.c_str();
    o.model = model.c_str();
    o.rank = rank;
    o.world = world;
    o.timeout_ms = timeout_ms;
    o.copy_threads = copy_threads;
    Run([&] { return dw_client_create(&o, &client_); });
    Run([&] { return dw_client_set_gone(client_, &deltawire::SignalRaised, nullptr); });
    Run([&] { return dw_client_set_notice(client_, &Warn, nullptr); });
  }
  ~Client() {
    const deltawire::GilReleased released;
    dw_client_destroy(client_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  py::dict Register(const std::vector<std::tuple<std::string, std::string, Shape>>& tensors,
                    const std::vector<std::pair<std::string, py::bytes>>& side_files,
                    const std::optional<std::string>& hf_dir, bool replace, bool keep_side_files,
                    const std::vector<std::pair<uint32_t, uint32_t>>& owned) {
    std::vector<dw_tensor_meta> metas;
    for (const auto& [name, dtype, shape] : tensors) {
      metas.push_back({sizeof(dw_tensor_meta), name.c_str(), dtype.c_str(), shape.data(),
                       static_cast<uint32_t>(shape.size())});
    }
    std::vector<dw_side_file> sides;
    for (const auto& [name, content] : side_files) {
      sides.push_back({sizeof(dw_side_file), name.c_str(), PyBytes_AS_STRING(content.ptr()),
                       static_cast<uint64_t>(PyBytes_GET_SIZE(content.ptr()))});
    }
    dw_register_options o{};
    o.struct_size = sizeof o;
    o.tensors = metas.data();
    o.tensor_count = metas.size();
    o.side_files = sides.data();
    o.side_file_count = sides.size();
    o.hf_dir = hf_dir ? hf_dir->c_str() : nullptr;
    o.replace = replace;
    o.keep_side_files = keep_side_files;
    std::vector<uint32_t> ends;
    for (const auto& [first, last] : owned) ends.insert(ends.end(), {first, last});
    o.owned = ends.data();
    o.owned_ranges = owned.size();
    dw_registered r{};
    r.struct_size = sizeof r;
    Run([&] { return dw_client_register(client_, &o, &r); });
    py::dict result;
    result["epoch"] = r.epoch;
    result["version"] = r.version;
    result["total_bytes"] = r.total_bytes;
    result["fingerprint"] = r.fingerprint;
    result["lineage"] = r.lineage;
    result["root"] = r.root;
    return result;
  }

  std::unique_ptr<Offload> Begin(uint64_t version, uint64_t attempt, const std::string& job) {
    dw_offload* offload = nullptr;
    Run([&] { return dw_client_set_job(client_, job.c_str()); });
    Run([&] { return dw_offload_begin_attempt(client_, version, attempt, &offload); });
    return std::make_unique<Offload>(shared_from_this(), offload);
  }

  dw_client* get() const { return client_; }

  py::dict WaitPublished(uint64_t version, uint32_t timeout_ms) {
    dw_published p{};
    p.struct_size = sizeof p;
    Run([&] { return dw_wait_published(client_, version, timeout_ms, &p); });
    py::dict result;
    deltawire::ForEachField(p, [&](const char* name, const auto& value) { result[name] = value; });
    return result;
  }

 private:
  dw_client* client_ = nullptr;
};

/// A dw_collective: the group of all ranks of a job.
class Collective {
 public:
  Collective(uint32_t rank, uint32_t size, uint32_t root, const std::string& rendezvous,
             const std::string& job, const std::string& interface, const std::string& address,
             uint32_t timeout_ms, int32_t kind, int32_t device) {
    dw_collective_options o{};
    o.struct_size = sizeof o;
    o.rank = rank;
    o.size = size;
    o.root = root;
    o.rendezvous = rendezvous.c_str();
    o.job = job.c_str();
    o.net_interface = interface.c_str();
    o.address = address.c_str();
    o.timeout_ms = timeout_ms;
    o.kind = kind;
    o.device = device;
    Run([&] { return dw_collective_create(&o, &collective_); });
  }
  ~Collective() { Close(); }
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  void Close() {
    const deltawire::GilReleased released;
    dw_collective_destroy(collective_);
    collective_ = nullptr;
  }
  void Check(const std::optional<std::string>& failure) {
    Run([&] { return dw_collective_check(collective_, failure ? failure->c_str() : nullptr); });
  }
  dw_collective* get() const { return collective_; }

 private:
  dw_collective* collective_ = nullptr;
};

/// (virtual pipeline chunk, name, dtype, shape, address, device as in dw_param, reader or None). A
/// reader gets an offset in bytes and the memory to fill.
using Param = std::tuple<uint32_t, std::string, std::string, Shape, uintptr_t, int32_t, py::object>;

/// Parameters as dw_param structs. It lives during one call, and points into the list given to it.
class ParamList {
 public:
  explicit ParamList(const std::vector<Param>& params) : readings_(params.size()) {
    for (size_t i = 0; i < params.size(); ++i) {
      const auto& [chunk, name, dtype, shape, address, device, reader] = params[i];
      dw_param p{};
      p.struct_size = sizeof p;
      p.chunk = chunk;
      p.name = name.c_str();
      p.dtype = dtype.c_str();
      p.shape = shape.data();
      p.ndim = static_cast<uint32_t>(shape.size());
      p.data = reinterpret_cast<const void*>(address);
      p.device = device;
      if (!reader.is_none()) {
        readings_[i] = {&reader, this};
        p.read = &ParamList::Read;
        p.read_context = &readings_[i];
      }
      list_.push_back(p);
    }
  }
  ParamList(const ParamList&) = delete;
  ParamList& operator=(const ParamList&) = delete;

  const dw_param* data() const { return list_.data(); }
  size_t size() const { return list_.size(); }

  /// Works like the function Run above, but if a reader threw, throws its exception again.
  template <typename Call>
  void Run(Call call) {
    int code = DW_OK;
    std::string text;
    {
      const deltawire::GilReleased released;
      code = call();
      if (code != DW_OK) text = dw_last_error();
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    Check(code, text);
  }

 private:
  struct Reading {
    const py::object* reader = nullptr;
    ParamList* owner = nullptr;
  };

  static int Read(void* context, uint64_t offset, uint64_t bytes, void* to) {
    const auto& reading = *static_cast<Reading*>(context);
    const deltawire::GilHeld held;
    try {
      (*reading.reader)(offset, py::memoryview::from_memory(to, static_cast<py::ssize_t>(bytes)));
      return 0;
    } catch (abi::__forced_unwind&) {
      deltawire::SleepUntilTheEnd();
    } catch (...) {
      reading.owner->failure_ = std::current_exception();
      return 1;
    }
  }

  std::vector<dw_param> list_;
  std::vector<Reading> readings_;
  std::exception_ptr failure_;
};

class Megatron {
 public:
  Megatron(const std::string& hf_dir, const std::string& parallel, const std::string& family,
           const std::vector<std::string>& family_dirs, uint32_t threads) {
    std::vector<const char*> dirs;
    for (const std::string& dir : family_dirs) dirs.push_back(dir.c_str());
    dw_megatron_options o{};
    o.struct_size = sizeof o;
    o.hf_dir = hf_dir.c_str();
    o.parallel = parallel.c_str();
    o.family = family.c_str();
    o.family_dirs = dirs.data();
    o.family_dir_count = dirs.size();
    o.threads = threads;
    Run([&] { return dw_megatron_create(&o, &megatron_); });
  }
  ~Megatron() {
    const deltawire::GilReleased released;
    dw_megatron_destroy(megatron_);
  }
  Megatron(const Megatron&) = delete;
  Megatron& operator=(const Megatron&) = delete;

  std::vector<std::tuple<std::string, std::string, Shape>> TensorsMeta() const {
    std::vector<std::tuple<std::string, std::string, Shape>> out;
    for (size_t i = 0; i < dw_megatron_tensor_count(megatron_); ++i) {
      dw_tensor_meta t{};
      t.struct_size = sizeof t;
      Run([&] { return dw_megatron_tensor(megatron_, i, &t); });
      out.emplace_back(t.name, t.dtype, Shape(t.shape, t.shape + t.ndim));
    }
    return out;
  }
  uint64_t Register(const Client& client, const std::optional<std::vector<uint32_t>>& ranks,
                    bool replace) const {
    dw_registered r{};
    r.struct_size = sizeof r;
    Run([&] {
      return dw_megatron_register(megatron_, client.get(), ranks ? ranks->data() : nullptr,
                                  ranks ? ranks->size() : 0, replace, &r);
    });
    return r.version;
  }
  void Check(uint32_t rank, const std::vector<Param>& params) const {
    ParamList list(params);
    list.Run([&] { return dw_megatron_check(megatron_, rank, list.data(), list.size()); });
  }
  uint64_t Place(Offload& offload, uint32_t rank, const std::vector<Param>& params, bool diff) {
    ParamList list(params);
    uint64_t bytes = 0;
    const auto place = diff ? dw_megatron_diff : dw_megatron_place;
    list.Run(
        [&] { return place(megatron_, offload.get(), rank, list.data(), list.size(), &bytes); });
    return bytes;
  }
  py::dict Gather(Collective& collective, Offload* offload, uint32_t rank,
                  const std::vector<Param>& params, uint64_t bucket_bytes) {
    ParamList list(params);
    dw_gathered g{};
    g.struct_size = sizeof g;
    list.Run([&] {
      return dw_megatron_gather(megatron_, collective.get(),
                                offload == nullptr ? nullptr : offload->get(), rank, list.data(),
                                list.size(), bucket_bytes, &g);
    });
    py::dict result;
    result["buckets"] = g.buckets;
    result["network_bytes"] = g.network_bytes;
    result["peak_buffer_bytes"] = g.peak_buffer_bytes;
    result["wait_seconds"] = g.wait_seconds;
    result["place_seconds"] = g.place_seconds;
    result["bucket_bytes"] = g.bucket_bytes;
    return result;
  }

 private:
  dw_megatron* megatron_ = nullptr;
};

// The memory layout of DLPack, fixed by its specification (version 0, the capsule "dltensor").
struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

/// Returns (address, type code, bits, lanes, shape, strides in elements or None, device type) of a
/// capsule. The caller keeps the capsule while it uses the address.
py::tuple DescribeDlpack(const py::capsule& capsule) {
  const char* name = capsule.name();
  if (name == nullptr || std::string(name) != "dltensor") {
    throw py::type_error(
        "not a DLPack capsule named \"dltensor\" (already consumed, or of another DLPack version)");
  }
  const auto& t = *static_cast<const DlTensor*>(capsule.get_pointer());
  const Strides shape(t.shape, t.shape + t.ndim);
  py::object strides = py::none();
  if (t.strides != nullptr) strides = py::cast(Strides(t.strides, t.strides + t.ndim));
  return py::make_tuple(reinterpret_cast<uintptr_t>(t.data) + t.byte_offset, t.code, t.bits,
                        t.lanes, shape, strides, t.device_type);
}

/// The buffer of a Python object, which is kept as long as this view lives.
class BufferView {
 public:
  explicit BufferView(const py::buffer& buffer) : info_(buffer.request()) {}
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(info_.ptr); }
  const std::string& format() const { return info_.format; }
  int64_t itemsize() const { return info_.itemsize; }
  Strides shape() const { return {info_.shape.begin(), info_.shape.end()}; }
  Strides strides() const { return {info_.strides.begin(), info_.strides.end()}; }

 private:
  py::buffer_info info_;
};

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C ABI of deltawire's trainer library; use the deltawire package instead.";
  m.attr("__version__") = dw_version();
  m.attr("SHARE_NONE") = static_cast<int>(DW_SHARE_NONE);
  m.attr("SHARE_PART") = static_cast<int>(DW_SHARE_PART);
  m.attr("SHARE_WHOLE") = static_cast<int>(DW_SHARE_WHOLE);
  m.attr("SHARE_BLOCK") = static_cast<int>(DW_SHARE_BLOCK);
  m.attr("COLLECTIVE_GLOO") = static_cast<int>(DW_COLLECTIVE_GLOO);
  m.attr("COLLECTIVE_NCCL") = static_cast<int>(DW_COLLECTIVE_NCCL);
  m.attr("HOST_MEMORY") = DW_HOST_MEMORY;
  m.attr("BUCKET_AUTO") = py::int_(DW_BUCKET_AUTO);
  m.def("draw_attempt", &dw_draw_attempt);
  m.def("gpu_available", [] { return dw_gpu_available() != 0; });
  m.def("why_no_gpu",
        [] { return dw_gpu_available() != 0 ? std::string() : std::string(dw_last_error()); });
  m.def("describe_dlpack", &DescribeDlpack);
  py::class_<BufferView>(m, "BufferView")
      .def(py::init<const py::buffer&>())
      .def_property_readonly("address", &BufferView::address)
      .def_property_readonly("format", &BufferView::format)
      .def_property_readonly("itemsize", &BufferView::itemsize)
      .def_property_readonly("shape", &BufferView::shape)
      .def_property_readonly("strides", &BufferView::strides);
  py::class_<Mapping>(m, "Mapping")
      .def_property_readonly("address", &Mapping::address)
      .def_property_readonly("bytes", &Mapping::bytes)
      .def_property_readonly("in_use", &Mapping::in_use)
      .def("close", &Mapping::Close);
  py::class_<Offload>(m, "Offload")
      .def("write", &Offload::Write, py::arg("tensor"), py::arg("address"),
           py::arg("element_bytes"), py::arg("shape"), py::arg("strides").none(true),
           py::arg("start").none(true), py::arg("share"), py::arg("device"))
      .def("diff", &Offload::Diff, py::arg("blocks"), py::arg("share"), py::arg("device"))
      .def("mark_written", &Offload::MarkWritten)
      .def("mark_block", &Offload::MarkBlock)
      .def("mark_unchanged", &Offload::MarkUnchanged)
      .def("ready", &Offload::Ready)
      .def("check", &Offload::CheckAlive)
      .def("abandon", &Offload::Abandon)
      .def("memory", &Offload::Memory)
      .def("mapping", &Offload::WholeMapping)
      .def("close", &Offload::Close)
      .def_property_readonly("attempt", &Offload::Attempt)
      .def_property_readonly("diffed_on", &Offload::DiffedOn)
      .def_property_readonly("waited_seconds", &Offload::WaitedSeconds);
  py::class_<Client, std::shared_ptr<Client>>(m, "Client")
      .def(py::init<const std::string&, const std::string&, uint32_t, uint32_t, uint32_t,
                    uint32_t>())
      .def("register", &Client::Register, py::arg("tensors"), py::arg("side_files"),
           py::arg("hf_dir"), py::arg("replace"), py::arg("keep_side_files"),
           py::arg("owned") = std::vector<std::pair<uint32_t, uint32_t>>())
      .def("begin", &Client::Begin, py::arg("version"), py::arg("attempt"), py::arg("job") = "")
      .def("wait_published", &Client::WaitPublished);
  py::class_<Collective>(m, "Collective")
      .def(py::init<uint32_t, uint32_t, uint32_t, const std::string&, const std::string&,
                    const std::string&, const std::string&, uint32_t, int32_t, int32_t>())
      .def("check", &Collective::Check)
      .def("close", &Collective::Close);
  py::class_<Megatron>(m, "Megatron")
      .def(py::init<const std::string&, const std::string&, const std::string&,
                    const std::vector<std::string>&, uint32_t>())
      .def("tensors_meta", &Megatron::TensorsMeta)
      .def("register", &Megatron::Register)
      .def("check", &Megatron::Check)
      .def("place", &Megatron::Place, py::arg("offload"), py::arg("rank"), py::arg("params"),
           py::arg("diff") = false)
      .def("gather", &Megatron::Gather);
  deltawire::BindControl(m);
}
