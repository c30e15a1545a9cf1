#include "receiver/engine_client/abi/deltawire_engine.h"

#include <cstring>

#include "common/base/c_abi.h"
#include "receiver/engine_client/device_memory.h"
#include "receiver/engine_client/engine_weights.h"

using deltawire::Errorf;
using deltawire::Identity;
using deltawire::Layout;
using deltawire::MutableBytes;
using deltawire::Status;
using deltawire::StatusCode;
using deltawire::StatusOr;
using deltawire::engine::Binding;
using deltawire::engine::Box;
using deltawire::engine::Comparison;
using deltawire::engine::EngineWeights;
using deltawire::engine::Share;

using namespace deltawire::c_abi;  // NOLINT(google-build-using-namespace): what all of them share

struct dw_engine {
  std::unique_ptr<EngineWeights> weights;
  // What the last comparison handed out.
  std::vector<uint32_t> different;
  std::vector<dw_engine_part> parts;
  std::vector<dw_engine_share> shares;
  mutable std::vector<uint32_t> changed;
};

namespace {

static_assert(DW_ENGINE_ABORTED == static_cast<int>(StatusCode::kAborted));
static_assert(DW_ENGINE_DATA_LOSS == static_cast<int>(StatusCode::kDataLoss));
static_assert(DW_ENGINE_BOX_DIMS <= deltawire::kernels::StridedCopy::kMaxDims);
static_assert(sizeof(dw_engine_identity) == 40 && sizeof(dw_engine_part) == 24);
static_assert(sizeof(dw_engine_share) == 32);

// What version 1 of each struct has.
constexpr size_t kOptionsSize = DW_SIZE_UP_TO(dw_engine_options, threads);
constexpr size_t kModelSize = DW_SIZE_UP_TO(dw_engine_model, fingerprint);
constexpr size_t kTensorSize = DW_SIZE_UP_TO(dw_engine_tensor, bytes);
constexpr size_t kStorageSize = DW_SIZE_UP_TO(dw_engine_storage, bytes);
constexpr size_t kBoxSize = DW_SIZE_UP_TO(dw_engine_box, place_strides);
constexpr size_t kDeviceSize = DW_SIZE_UP_TO(dw_engine_device, stream);
constexpr size_t kComparisonSize = DW_SIZE_UP_TO(dw_engine_comparison, part_count);
constexpr size_t kUpdateSize = DW_SIZE_UP_TO(dw_engine_update, payload_bytes);

dw_engine_identity ToC(const Identity& identity) {
  return {{identity.lineage.hi, identity.lineage.lo},
          identity.id.epoch,
          identity.id.version,
          identity.root};
}

Identity FromC(const dw_engine_identity& identity) {
  Identity out;
  out.lineage = {identity.lineage[0], identity.lineage[1]};
  out.id = {.epoch = identity.epoch, .version = identity.version};
  out.root = identity.root;
  return out;
}

/// The dimensions of a box, in bytes; the innermost becomes the run where it is dense on both
/// sides.
StatusOr<Box> ToBytes(const dw_engine_box& in, const Layout& layout) {
  if (in.tensor >= layout.size() || in.ndim == 0 || in.ndim > DW_ENGINE_BOX_DIMS ||
      in.counts == nullptr || in.source_strides == nullptr || in.place_strides == nullptr) {
    return Errorf(StatusCode::kInvalidArgument, "a malformed box of tensor {}", in.tensor);
  }
  const int64_t width = deltawire::DTypeBytes(layout.tensor(in.tensor).dtype);
  bool overflow = false;
  const auto bytes = [&](int64_t elements) {
    int64_t product = 0;
    overflow |= __builtin_mul_overflow(elements, width, &product);
    return product;
  };
  Box box{.tensor = in.tensor, .storage = in.storage, .copy = {}};
  box.copy.src_offset = bytes(in.source_offset);
  box.copy.dst_offset = bytes(in.place_offset);
  box.copy.run_bytes = static_cast<size_t>(width);
  box.copy.dims = in.ndim;
  const uint32_t last = in.ndim - 1;
  if (in.source_strides[last] == 1 && in.place_strides[last] == 1) {
    overflow |=
        __builtin_mul_overflow(in.counts[last], static_cast<uint64_t>(width), &box.copy.run_bytes);
    --box.copy.dims;
  }
  for (size_t d = 0; d < box.copy.dims; ++d) {
    box.copy.counts[d] = in.counts[d];
    box.copy.src_strides[d] = bytes(in.source_strides[d]);
    box.copy.dst_strides[d] = bytes(in.place_strides[d]);
  }
  if (overflow) {
    return Errorf(StatusCode::kInvalidArgument, "a box of tensor {} beyond all memory", in.tensor);
  }
  return box;
}

StatusOr<Binding> ReadBinding(const Layout& layout, const dw_engine_storage* storages,
                              size_t storage_count, const dw_engine_box* boxes, size_t box_count) {
  if ((storages == nullptr && storage_count > 0) || (boxes == nullptr && box_count > 0)) {
    return Invalid("an array is NULL");
  }
  Binding binding;
  for (size_t i = 0; i < storage_count; ++i) {
    DW_ASSIGN_OR_RETURN(const dw_engine_storage in,
                        Read(At(storages, i), kStorageSize, "dw_engine_storage"));
    if (in.name == nullptr || (in.memory == nullptr && in.bytes > 0)) {
      return Errorf(StatusCode::kInvalidArgument, "storage {} has no name or memory", i);
    }
    binding.storages.push_back({in.name, in.bytes});
    binding.memory.push_back(static_cast<std::byte*>(in.memory));
  }
  binding.boxes.reserve(box_count);
  for (size_t i = 0; i < box_count; ++i) {
    DW_ASSIGN_OR_RETURN(const dw_engine_box in, Read(At(boxes, i), kBoxSize, "dw_engine_box"));
    DW_ASSIGN_OR_RETURN(Box box, ToBytes(in, layout));
    binding.boxes.push_back(box);
  }
  return binding;
}

/// The result of a comparison, whose arrays the handle keeps.
dw_engine_comparison ToC(const Comparison& found, dw_engine* engine) {
  engine->different.clear();
  for (const std::string& name : found.different) {
    engine->different.push_back(static_cast<uint32_t>(*engine->weights->layout().Find(name)));
  }
  engine->parts.clear();
  engine->shares.clear();
  for (const Share& share : found.shares) {
    engine->parts.push_back({share.chunk, share.bytes, share.digest});
    engine->shares.push_back({share.chunk, share.bytes, share.digest, share.places});
  }
  dw_engine_comparison out{};
  out.identity = ToC(found.identity);
  out.bytes = found.bytes;
  out.different = engine->different.data();
  out.different_count = engine->different.size();
  out.parts = engine->parts.data();
  out.part_count = engine->parts.size();
  out.shares = engine->shares.data();
  out.share_count = engine->shares.size();
  return out;
}

Status Null() { return Invalid("an argument is NULL"); }

}  // namespace

extern "C" {

const char* dw_engine_last_error(void) { return LastError().c_str(); }
uint32_t dw_engine_abi_version(void) { return DW_ENGINE_ABI_VERSION; }
const char* dw_engine_version(void) { return DELTAWIRE_VERSION; }

int dw_engine_open(const dw_engine_options* options, dw_engine** engine) {
  return Guard([&]() -> Status {
    DW_ASSIGN_OR_RETURN(const dw_engine_options o,
                        Read(options, kOptionsSize, "dw_engine_options"));
    if (engine == nullptr || o.directory == nullptr) return Null();
    auto made = std::make_unique<dw_engine>();
    DW_ASSIGN_OR_RETURN(made->weights, EngineWeights::Open(o.directory, o.threads));
    *engine = made.release();
    return {};
  });
}

void dw_engine_close(dw_engine* engine) { delete engine; }

int dw_engine_get_model(const dw_engine* engine, dw_engine_model* model) {
  return Guard([&]() -> Status {
    if (engine == nullptr || model == nullptr) return Null();
    const Layout& layout = engine->weights->layout();
    dw_engine_model out{};
    out.tensors = static_cast<uint32_t>(layout.size());
    out.bytes = layout.total_bytes();
    layout.fingerprint().Hex().copy(out.fingerprint, sizeof out.fingerprint - 1);
    out.chunks = static_cast<uint32_t>(engine->weights->chunks().size());
    return Fill(out, kModelSize, model, "dw_engine_model");
  });
}

int dw_engine_get_tensor(const dw_engine* engine, uint32_t tensor, dw_engine_tensor* out) {
  return Guard([&]() -> Status {
    if (engine == nullptr || out == nullptr) return Null();
    const Layout& layout = engine->weights->layout();
    if (tensor >= layout.size()) {
      return Errorf(StatusCode::kInvalidArgument, "tensor {} of {}", tensor, layout.size());
    }
    const deltawire::TensorMeta& meta = layout.tensor(tensor);
    dw_engine_tensor found{};
    found.name = meta.name.c_str();
    found.dtype = deltawire::DTypeName(meta.dtype).data();  // of a literal, so NUL follows
    found.shape = meta.shape.data();
    found.ndim = static_cast<uint32_t>(meta.shape.size());
    found.bytes = layout.bytes(tensor);
    return Fill(found, kTensorSize, out, "dw_engine_tensor");
  });
}

size_t dw_engine_describe(const dw_engine_identity* identity, char* text, size_t bytes) {
  std::string all;
  Guard([&]() -> Status {
    if (identity != nullptr) all = deltawire::DescribeFully(FromC(*identity));
    return {};
  });
  if (text != nullptr && bytes > 0) text[all.copy(text, bytes - 1)] = '\0';
  return all.size();
}

int dw_engine_committed(const dw_engine* engine, dw_engine_identity* identity) {
  return Guard([&]() -> Status {
    if (engine == nullptr || identity == nullptr) return Null();
    *identity = ToC(engine->weights->committed());
    return {};
  });
}

int dw_engine_held(const dw_engine* engine, dw_engine_identity* identity) {
  return Guard([&]() -> Status {
    if (engine == nullptr || identity == nullptr) return Null();
    *identity = ToC(engine->weights->held());
    return {};
  });
}

int dw_engine_wait(const dw_engine* engine, const dw_engine_identity* known, uint64_t timeout_ms,
                   dw_engine_gone gone, void* context, dw_engine_identity* committed) {
  return Guard([&]() -> Status {
    if (engine == nullptr || known == nullptr || committed == nullptr) return Null();
    // A hundred years are for ever, and far from the clock's end.
    constexpr uint64_t kForever = 3'155'760'000'000;
    const std::chrono::milliseconds limit(std::min(timeout_ms, kForever));
    std::function<bool()> asked;
    if (gone != nullptr) asked = [=] { return gone(context) != 0; };
    DW_ASSIGN_OR_RETURN(const Identity found,
                        engine->weights->WaitForOther(FromC(*known), limit, asked));
    *committed = ToC(found);
    return {};
  });
}

int dw_engine_bind(dw_engine* engine, const dw_engine_storage* storages, size_t storage_count,
                   const dw_engine_box* boxes, size_t box_count) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Null();
    DW_ASSIGN_OR_RETURN(const Binding binding, ReadBinding(engine->weights->layout(), storages,
                                                           storage_count, boxes, box_count));
    return engine->weights->Bind(binding);
  });
}

int dw_engine_find_device(int32_t device) {
  return Guard([&]() -> Status { return deltawire::engine::DeviceMemory::Find(device); });
}

int dw_engine_bind_device(dw_engine* engine, const dw_engine_storage* storages,
                          size_t storage_count, const dw_engine_box* boxes, size_t box_count,
                          const dw_engine_device* device) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Null();
    DW_ASSIGN_OR_RETURN(const dw_engine_device on, Read(device, kDeviceSize, "dw_engine_device"));
    if (on.device < 0) return Errorf(StatusCode::kInvalidArgument, "device {}", on.device);
    DW_ASSIGN_OR_RETURN(Binding binding, ReadBinding(engine->weights->layout(), storages,
                                                     storage_count, boxes, box_count));
    binding.device = on.device;
    binding.stream = on.stream;
    return engine->weights->Bind(binding);
  });
}

int dw_engine_unmapped(const dw_engine* engine, uint32_t storage, uint64_t* bytes) {
  return Guard([&]() -> Status {
    if (engine == nullptr || bytes == nullptr) return Null();
    if (storage >= engine->weights->storages()) {
      return Errorf(StatusCode::kInvalidArgument, "storage {} of {}", storage,
                    engine->weights->storages());
    }
    *bytes = engine->weights->program().unmapped(storage);
    return {};
  });
}

int dw_engine_adopt(dw_engine* engine, dw_engine_comparison* result) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Null();
    DW_ASSIGN_OR_RETURN(const Comparison found, engine->weights->Adopt());
    return Fill(ToC(found, engine), kComparisonSize, result, "dw_engine_comparison");
  });
}

int dw_engine_check(dw_engine* engine, dw_engine_comparison* result) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Null();
    DW_ASSIGN_OR_RETURN(const Comparison found, engine->weights->Check());
    return Fill(ToC(found, engine), kComparisonSize, result, "dw_engine_comparison");
  });
}

int dw_engine_check_chunks(dw_engine* engine, uint32_t first, uint32_t count,
                           dw_engine_comparison* result) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Null();
    DW_ASSIGN_OR_RETURN(const Comparison found, engine->weights->Check(first, count));
    return Fill(ToC(found, engine), kComparisonSize, result, "dw_engine_comparison");
  });
}

int dw_engine_judge(dw_engine* engine, const dw_engine_share* shares, size_t share_count,
                    dw_engine_comparison* result) {
  return Guard([&]() -> Status {
    if (engine == nullptr || (shares == nullptr && share_count > 0)) return Null();
    std::vector<Share> all;
    all.reserve(share_count);
    for (size_t i = 0; i < share_count; ++i) {
      all.push_back({shares[i].chunk, shares[i].bytes, shares[i].digest, shares[i].places});
    }
    DW_ASSIGN_OR_RETURN(const Comparison found, engine->weights->Judge(all));
    return Fill(ToC(found, engine), kComparisonSize, result, "dw_engine_comparison");
  });
}

int dw_engine_digest(const dw_engine* engine, uint32_t chunk, uint64_t* digest) {
  return Guard([&]() -> Status {
    if (engine == nullptr || digest == nullptr) return Null();
    DW_ASSIGN_OR_RETURN(*digest, engine->weights->DigestOf(chunk));
    return {};
  });
}

int dw_engine_prepare(dw_engine* engine, dw_engine_update* update) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Null();
    DW_ASSIGN_OR_RETURN(const deltawire::engine::UpdateInfo info, engine->weights->Prepare());
    dw_engine_update out{};
    out.from = ToC(info.from);
    out.to = ToC(info.to);
    out.deltas = info.deltas;
    out.changes = info.changes;
    out.chunks_by_delta = info.chunks_by_delta;
    out.chunks_whole = info.chunks_whole;
    out.payload_bytes = info.payload_bytes;
    out.chunks_healed = info.chunks_healed;
    return Fill(out, kUpdateSize, update, "dw_engine_update");
  });
}

int dw_engine_changed(const dw_engine* engine, const uint32_t** tensors, size_t* count) {
  return Guard([&]() -> Status {
    if (engine == nullptr || tensors == nullptr || count == nullptr) return Null();
    engine->changed = engine->weights->ChangedTensors();
    *tensors = engine->changed.data();
    *count = engine->changed.size();
    return {};
  });
}

int dw_engine_discard(dw_engine* engine) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Null();
    engine->weights->Discard();
    return {};
  });
}

int dw_engine_apply(dw_engine* engine) {
  return Guard([&]() -> Status { return engine == nullptr ? Null() : engine->weights->Apply(); });
}

int dw_engine_rollback(dw_engine* engine) {
  return Guard(
      [&]() -> Status { return engine == nullptr ? Null() : engine->weights->Rollback(); });
}

int dw_engine_read(const dw_engine* engine, int state, uint32_t tensor, void* to, uint64_t bytes) {
  return Guard([&]() -> Status {
    if (engine == nullptr || (to == nullptr && bytes > 0)) return Null();
    if (state != DW_ENGINE_STATE_HELD && state != DW_ENGINE_STATE_PREPARED) {
      return Errorf(StatusCode::kInvalidArgument, "state {} is none of dw_engine_state's", state);
    }
    return engine->weights->ReadTensor(state == DW_ENGINE_STATE_HELD
                                           ? EngineWeights::State::kHeld
                                           : EngineWeights::State::kPrepared,
                                       tensor, MutableBytes(static_cast<std::byte*>(to), bytes));
  });
}

}  // extern "C"
