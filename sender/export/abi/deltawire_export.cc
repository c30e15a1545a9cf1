#include "sender/export/abi/deltawire_export.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/attempt.h"
#include "common/delta/version_fields.h"
#include "sender/export/abi/c_abi.h"
#include "sender/export/client/half_mapping.h"

using deltawire::Annotate;
using deltawire::Errorf;
using deltawire::Share;
using deltawire::Status;
using deltawire::StatusCode;
using deltawire::StatusOr;
using deltawire::StridedSource;

using namespace deltawire::c_abi;  // NOLINT(google-build-using-namespace): its other half

namespace {

static_assert(DW_ABORTED == static_cast<int>(StatusCode::kAborted));
static_assert(DW_DATA_LOSS == static_cast<int>(StatusCode::kDataLoss));

// The size of each struct in version 1.
constexpr size_t kClientOptionsSize = DW_SIZE_UP_TO(dw_client_options, copy_threads);
constexpr size_t kSideFileSize = DW_SIZE_UP_TO(dw_side_file, bytes);
constexpr size_t kRegisterOptionsSize = DW_SIZE_UP_TO(dw_register_options, keep_side_files);
constexpr size_t kBlockSize = DW_SIZE_UP_TO(dw_block, start);
constexpr size_t kPublishedSize = DW_SIZE_UP_TO(dw_published, ready_unix_nanos);

StatusOr<deltawire::Layout> ReadLayout(const dw_register_options& o) {
  if (o.tensors == nullptr || o.tensor_count == 0) return Invalid("no tensors are given");
  std::vector<deltawire::TensorMeta> tensors;
  for (size_t i = 0; i < o.tensor_count; ++i) {
    DW_ASSIGN_OR_RETURN(const dw_tensor_meta in,
                        Read(At(o.tensors, i), kTensorMetaSize, "dw_tensor_meta"));
    if (in.name == nullptr || in.dtype == nullptr || (in.ndim > 0 && in.shape == nullptr)) {
      return Errorf(StatusCode::kInvalidArgument, "tensor {} has no name, dtype or shape", i);
    }
    auto dtype = deltawire::ParseDType(in.dtype);
    if (!dtype.ok()) return Annotate(dtype.status(), fmt::format("tensor \"{}\"", in.name));
    deltawire::TensorMeta meta{in.name, *dtype, {}};
    if (in.ndim > 0) meta.shape.assign(in.shape, in.shape + in.ndim);
    tensors.push_back(std::move(meta));
  }
  return deltawire::Layout::Create(std::move(tensors));
}

StatusOr<std::vector<deltawire::SideFile>> ReadSideFiles(const dw_register_options& o) {
  std::vector<deltawire::SideFile> files;
  if (o.keep_side_files != 0) return files;
  if (o.hf_dir != nullptr) {
    DW_ASSIGN_OR_RETURN(files, deltawire::SideFilesOf(o.hf_dir));
  }
  for (size_t i = 0; i < o.side_file_count; ++i) {
    DW_ASSIGN_OR_RETURN(const dw_side_file in,
                        Read(At(o.side_files, i), kSideFileSize, "dw_side_file"));
    if (in.name == nullptr || (in.content == nullptr && in.bytes > 0)) {
      return Errorf(StatusCode::kInvalidArgument, "side file {} has no name or content", i);
    }
    const std::string name = in.name;
    std::erase_if(files, [&](const auto& f) { return f.name == name; });  // the caller's file wins
    files.push_back({name, std::string(static_cast<const char*>(in.content), in.bytes)});
  }
  return files;
}

Status CheckTensors(const dw_offload* o, const uint32_t* tensors, size_t count) {
  if (o == nullptr || (tensors == nullptr && count > 0)) return Invalid("an argument is NULL");
  for (size_t i = 0; i < count; ++i) {
    if (tensors[i] < o->tensors) continue;
    return Errorf(StatusCode::kInvalidArgument,
                  "tensor index {} is out of range; {} are registered", tensors[i], o->tensors);
  }
  return {};
}

StatusOr<Share> ToShare(int share) {
  if (share == DW_SHARE_PART) return Share::kPart;
  if (share == DW_SHARE_WHOLE) return Share::kWhole;
  if (share == DW_SHARE_BLOCK) return Share::kCounted;
  return Errorf(StatusCode::kInvalidArgument, "share {} is none of dw_share's", share);
}

Status Finished(const dw_offload& offload, uint32_t tensor, std::span<const uint64_t> start,
                std::span<const uint64_t> shape) {
  DW_RETURN_IF_ERROR(offload.offload->FinishedBlock(tensor, start, shape));
  // A block without elements is no part of the tensor: another rank may write it whole.
  const bool empty = std::ranges::count(shape, 0) > 0;
  if (empty && !offload.offload->tensor(tensor).empty()) return {};
  return offload.offload->Written({&tensor, 1}, Share::kCounted);
}

bool IsEmpty(const StridedSource& source) { return std::ranges::count(source.shape, 0) > 0; }

/// A block of the caller's, and the tensor that it belongs to.
struct Part {
  uint32_t tensor = 0;
  StridedSource source;
};

/// Returns the caller's blocks, whose arrays they keep.
StatusOr<std::vector<Part>> ReadParts(const dw_offload* offload, const uint32_t* tensors,
                                      const dw_block* blocks, size_t count) {
  DW_RETURN_IF_ERROR(CheckTensors(offload, tensors, count));
  std::vector<Part> parts;
  for (size_t i = 0; i < count; ++i) {
    DW_ASSIGN_OR_RETURN(const dw_block b,
                        Read(blocks == nullptr ? nullptr : At(blocks, i), kBlockSize, "dw_block"));
    if (b.ndim > 0 && b.shape == nullptr) return Invalid("dw_block.shape is NULL");
    StridedSource source;
    source.data = static_cast<const std::byte*>(b.data);
    source.element_bytes = b.element_bytes;
    source.shape = {b.shape, b.ndim};
    if (b.strides != nullptr) source.strides = {b.strides, b.ndim};
    if (b.start != nullptr) source.start = {b.start, b.ndim};
    if (b.data == nullptr && !IsEmpty(source)) return Invalid("dw_block.data is NULL");
    parts.push_back({tensors[i], source});
  }
  return parts;
}

/// Reads the arguments, lets `copy` copy the bytes, and marks them.
template <typename Copy>
Status Write(dw_offload* offload, uint32_t tensor, const dw_block* block, int share,
             const Copy& copy) {
  DW_ASSIGN_OR_RETURN(const std::vector<Part> parts, ReadParts(offload, &tensor, block, 1));
  const StridedSource& source = parts[0].source;
  std::optional<Share> said;
  if (share != DW_SHARE_NONE) {
    DW_ASSIGN_OR_RETURN(said, ToShare(share));
  }
  DW_RETURN_IF_ERROR(copy(source));
  if (said == Share::kCounted) return Finished(*offload, tensor, source.start, source.shape);
  return said ? offload->offload->Written({&tensor, 1}, *said) : Status();
}

deltawire::MappedHalf HalfOf(const dw_offload& offload) {
  const auto mapping = offload.offload->whole_mapping();
  if (mapping == nullptr) return {};
  return {mapping->bytes(), mapping};
}

Status CopyFromDevice(dw_offload& offload, uint32_t tensor, const StridedSource& source,
                      int device) {
  if (IsEmpty(source)) return offload.offload->Copy(tensor, source);
  DW_ASSIGN_OR_RETURN(const deltawire::BlockCopy block, offload.offload->CopyFor(tensor, source));
  return offload.client->devices.Place(
      device, {{block.copy, block.from, offload.offload->tensor(tensor)}}, HalfOf(offload));
}

/// Lets the device diff what it can, copies the rest, and marks all of it.
Status DiffOnDevice(dw_offload& offload, std::span<const Part> parts, int device, Share share) {
  deltawire::TrainerClient::Offload& to = *offload.offload;
  std::vector<deltawire::DevicePiece> pieces;
  for (const Part& part : parts) {
    if (IsEmpty(part.source)) continue;
    DW_ASSIGN_OR_RETURN(const deltawire::BlockCopy block, to.CopyFor(part.tensor, part.source));
    pieces.push_back({part.tensor, device, {block.copy, {}, block.from}});
  }
  DW_ASSIGN_OR_RETURN(const std::vector<deltawire::DiffedChunk> diffed,
                      to.DiffOnGpu(pieces, share));
  std::vector<deltawire::DeviceQueues::Placement> rest;
  std::vector<uint32_t> tensors;  // of each of `rest`
  for (const deltawire::DevicePiece& p : pieces) {
    for (const auto& copy : to.OutsideOf(diffed, p.tensor, p.piece.copy, {})) {
      rest.push_back({copy, p.piece.src, to.tensor(p.tensor)});
      tensors.push_back(p.tensor);
    }
  }
  if (!rest.empty()) {
    DW_RETURN_IF_ERROR(offload.client->devices.Place(device, rest, HalfOf(offload)));
  }
  // Marks come last: after an error the caller writes all of it.
  DW_RETURN_IF_ERROR(to.Diffed(diffed));
  for (size_t i = 0; share == Share::kCounted && i < rest.size(); ++i) {
    DW_RETURN_IF_ERROR(to.Finished(tensors[i], deltawire::Destination::Of(rest[i].copy)));
  }
  for (const Part& part : parts) {
    if (IsEmpty(part.source) && share == Share::kCounted) {
      DW_RETURN_IF_ERROR(Finished(offload, part.tensor, part.source.start, part.source.shape));
    } else {
      DW_RETURN_IF_ERROR(to.Written({&part.tensor, 1}, share));
    }
  }
  return {};
}

void Return(deltawire::MutableBytes from, void** data, uint64_t* bytes) {
  if (data != nullptr) *data = from.data();
  if (bytes != nullptr) *bytes = from.size();
}

}  // namespace

extern "C" {

const char* dw_last_error(void) { return LastError().c_str(); }
uint32_t dw_abi_version(void) { return DW_ABI_VERSION; }
const char* dw_version(void) { return DELTAWIRE_VERSION; }

int dw_client_create(const dw_client_options* options, dw_client** client) {
  return Guard([&]() -> Status {
    DW_ASSIGN_OR_RETURN(const dw_client_options o,
                        Read(options, kClientOptionsSize, "dw_client_options"));
    if (client == nullptr || o.endpoint == nullptr || o.model == nullptr) {
      return Invalid("the client, the endpoint or the model is NULL");
    }
    const uint32_t world = std::max(1u, o.world);
    if (o.rank >= world) {
      return Errorf(StatusCode::kInvalidArgument, "rank {} of {}: ranks start at 0", o.rank, world);
    }
    *client = new dw_client(o);
    return {};
  });
}

void dw_client_destroy(dw_client* client) { delete client; }

int dw_client_register(dw_client* client, const dw_register_options* options,
                       dw_registered* result) {
  return Guard([&]() -> Status {
    if (client == nullptr) return Invalid("the client is NULL");
    DW_ASSIGN_OR_RETURN(const dw_register_options o,
                        Read(options, kRegisterOptionsSize, "dw_register_options"));
    DW_ASSIGN_OR_RETURN(const deltawire::Layout layout, ReadLayout(o));
    DW_ASSIGN_OR_RETURN(const auto side_files, ReadSideFiles(o));
    if (o.owned == nullptr && o.owned_ranges > 0) return Invalid("the owned chunks are NULL");
    deltawire::RegisterOptions to{.replace = o.replace != 0,
                                  .keep_side_files = o.keep_side_files != 0};
    for (size_t i = 0; i < o.owned_ranges; ++i) {
      to.owned.push_back({o.owned[2 * i], o.owned[2 * i + 1]});
    }
    DW_ASSIGN_OR_RETURN(const deltawire::Identity published,
                        client->client.Register(layout, side_files, to));
    return Fill(Registered(layout, published), kRegisteredSize, result, "dw_registered");
  });
}

int dw_client_find(const dw_client* client, const char* name, uint32_t* tensor) {
  return Guard([&]() -> Status {
    if (client == nullptr || name == nullptr || tensor == nullptr) {
      return Invalid("an argument is NULL");
    }
    const auto& layout = client->client.layout();
    if (!layout) return absl::FailedPreconditionError("register the model first");
    const auto found = layout->Find(name);
    if (!found) {
      return Errorf(StatusCode::kNotFound, "tensor \"{}\" was not registered", name);
    }
    *tensor = static_cast<uint32_t>(*found);
    return {};
  });
}

uint64_t dw_draw_attempt(void) { return deltawire::DrawAttempt(); }

int dw_offload_begin(dw_client* client, uint64_t version, dw_offload** offload) {
  return dw_offload_begin_attempt(client, version, 0, offload);
}

int dw_offload_begin_attempt(dw_client* client, uint64_t version, uint64_t attempt,
                             dw_offload** offload) {
  return Guard([&]() -> Status {
    if (client == nullptr || offload == nullptr) return Invalid("an argument is NULL");
    auto made = std::make_unique<dw_offload>();
    DW_ASSIGN_OR_RETURN(made->offload, client->client.Begin(version, attempt));
    made->client = client;
    made->tensors = client->client.layout()->size();
    made->fingerprint = client->client.layout()->fingerprint();
    *offload = made.release();
    return {};
  });
}

uint64_t dw_offload_attempt(const dw_offload* offload) {
  return offload == nullptr ? 0 : offload->offload->attempt();
}

void dw_offload_destroy(dw_offload* offload) { delete offload; }

int dw_offload_tensor(dw_offload* offload, uint32_t tensor, void** data, uint64_t* bytes) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, &tensor, 1));
    Return(offload->offload->tensor(tensor), data, bytes);
    return {};
  });
}

int dw_offload_data(dw_offload* offload, void** data, uint64_t* bytes) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, nullptr, 0));
    Return(offload->offload->data(), data, bytes);
    return {};
  });
}

int dw_offload_mapping(dw_offload* offload, dw_mapping** mapping, void** data, uint64_t* bytes) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, nullptr, 0));
    if (mapping == nullptr) return Invalid("the mapping is NULL");
    auto made = std::make_unique<dw_mapping>(offload->offload->whole_mapping());
    if (made->file == nullptr) {
      return absl::FailedPreconditionError(
          "the sender owns a part of the model: its memory cannot be registered as a whole");
    }
    Return(made->file->bytes(), data, bytes);
    *mapping = made.release();
    return {};
  });
}

int dw_mapping_in_use(const dw_mapping* mapping) {
  return mapping != nullptr && mapping->file.use_count() > 1 ? 1 : 0;
}

void dw_mapping_destroy(dw_mapping* mapping) { delete mapping; }

int dw_offload_write(dw_offload* offload, uint32_t tensor, const dw_block* block, int share) {
  return Guard([&]() -> Status {
    return Write(offload, tensor, block, share, [&](const StridedSource& source) {
      return offload->offload->Copy(tensor, source);
    });
  });
}

int dw_offload_write_device(dw_offload* offload, uint32_t tensor, const dw_block* block,
                            int32_t device, int share) {
  return Guard([&]() -> Status {
    return Write(offload, tensor, block, share, [&](const StridedSource& source) {
      return CopyFromDevice(*offload, tensor, source, device);
    });
  });
}

int dw_offload_diff_device(dw_offload* offload, const uint32_t* tensors, const dw_block* blocks,
                           size_t count, int32_t device, int share) {
  return Guard([&]() -> Status {
    DW_ASSIGN_OR_RETURN(const std::vector<Part> parts, ReadParts(offload, tensors, blocks, count));
    DW_ASSIGN_OR_RETURN(const Share said, ToShare(share));
    return DiffOnDevice(*offload, parts, device, said);
  });
}

const char* dw_offload_diffed_on(dw_offload* offload) {
  if (offload == nullptr) return "";
  offload->diffed_on = offload->offload->diffed_on();
  return offload->diffed_on.c_str();
}

int dw_offload_mark_written(dw_offload* offload, const uint32_t* tensors, size_t count, int share) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, tensors, count));
    DW_ASSIGN_OR_RETURN(const Share said, ToShare(share));
    if (said == Share::kCounted) {
      return Invalid("say which bytes: DW_SHARE_BLOCK goes with dw_offload_mark_block");
    }
    return offload->offload->Written({tensors, count}, said);
  });
}

int dw_offload_mark_block(dw_offload* offload, uint32_t tensor, uint32_t ndim,
                          const uint64_t* start, const uint64_t* shape) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, &tensor, 1));
    if (ndim > 0 && shape == nullptr) return Invalid("the shape is NULL");
    std::span<const uint64_t> from;
    if (start != nullptr) from = {start, ndim};
    return Finished(*offload, tensor, from, {shape, ndim});
  });
}

int dw_offload_mark_unchanged(dw_offload* offload, const uint32_t* tensors, size_t count) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, tensors, count));
    for (size_t i = 0; i < count; ++i) offload->offload->Unchanged(tensors[i]);
    return {};
  });
}

int dw_offload_ready(dw_offload* offload) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, nullptr, 0));
    return offload->offload->Ready();
  });
}

int dw_offload_check(const dw_offload* offload) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, nullptr, 0));
    return offload->offload->Check();
  });
}

int dw_offload_abandon(dw_offload* offload, const char* reason) {
  return Guard([&]() -> Status {
    DW_RETURN_IF_ERROR(CheckTensors(offload, nullptr, 0));
    offload->offload->Abandon(reason == nullptr ? "" : reason);
    return {};
  });
}

double dw_offload_waited_seconds(const dw_offload* offload) {
  return offload == nullptr ? 0 : offload->offload->waited_seconds();
}

int dw_client_set_gone(dw_client* client, dw_gone gone, void* context) {
  return Guard([&]() -> Status {
    if (client == nullptr) return Invalid("the client is NULL");
    std::function<bool()> asked;
    if (gone != nullptr) asked = [=] { return gone(context) != 0; };
    client->client.SetGone(std::move(asked));
    return {};
  });
}

int dw_client_set_job(dw_client* client, const char* job) {
  return Guard([&]() -> Status {
    if (client == nullptr || job == nullptr) return Invalid("an argument is NULL");
    client->client.SetJob(job);
    return {};
  });
}

int dw_client_set_notice(dw_client* client, dw_notice notice, void* context) {
  return Guard([&]() -> Status {
    if (client == nullptr) return Invalid("the client is NULL");
    std::function<void(const std::string&)> told;
    if (notice != nullptr) told = [=](const std::string& text) { notice(context, text.c_str()); };
    client->client.SetNotice(std::move(told));
    return {};
  });
}

int dw_wait_published(dw_client* client, uint64_t version, uint32_t timeout_ms,
                      dw_published* result) {
  return Guard([&]() -> Status {
    if (client == nullptr) return Invalid("the client is NULL");
    DW_ASSIGN_OR_RETURN(
        const deltawire::VersionInfo p,
        client->client.WaitPublished(version, std::chrono::milliseconds(timeout_ms)));
    dw_published out{};
    out.epoch = p.identity.id.epoch;
    out.version = p.identity.id.version;
#define DW_FIELD(name) out.name = p.name;
    DW_VERSION_FIELDS(DW_FIELD)
#undef DW_FIELD
    CopyLineage(p.identity, out.lineage);
    out.root = p.identity.root;
    out.attempt = p.identity.attempt;
    return Fill(out, kPublishedSize, result, "dw_published");
  });
}

}  // extern "C"
