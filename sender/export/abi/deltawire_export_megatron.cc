// The Megatron part of the C ABI.
#include "common/base/attempt.h"
#include "common/base/bytes.h"
#include "common/layout/names.h"
#include "sender/export/abi/c_abi.h"
#include "sender/export/abi/nccl_plugin.h"
#include "sender/export/gather/gloo_collective.h"
#include "sender/export/gather/gpu_status.h"
#include "sender/export/megatron/megatron_export.h"

using deltawire::Bytes;
using deltawire::Errorf;
using deltawire::LiveTensor;
using deltawire::Status;
using deltawire::StatusCode;
using deltawire::StatusOr;
using namespace deltawire::c_abi;  // NOLINT(google-build-using-namespace): its other half

struct dw_megatron {
  std::unique_ptr<deltawire::MegatronExport> megatron;
};

struct dw_collective {
  std::unique_ptr<deltawire::Collective> collective;
  std::chrono::milliseconds timeout{};
};

namespace {

// The smallest sizes that were ever valid. Fields that are missing at the end are zero.
constexpr size_t kMegatronOptionsSize = DW_SIZE_UP_TO(dw_megatron_options, threads);
constexpr size_t kParamSize = DW_SIZE_UP_TO(dw_param, read_context);
constexpr size_t kCollectiveOptionsSize = DW_SIZE_UP_TO(dw_collective_options, timeout_ms);
constexpr size_t kGatheredSize = DW_SIZE_UP_TO(dw_gathered, place_seconds);
constexpr size_t kMaxFailure = 1024;
constexpr uint32_t kDefaultTimeoutMs = 120'000;

std::string Text(const char* text) { return text == nullptr ? "" : text; }

deltawire::ByteReader ReaderOf(const dw_param& param, const std::string& name) {
  return [read = param.read, context = param.read_context, name](
             uint64_t offset, deltawire::MutableBytes to) -> Status {
    const int said = read(context, offset, to.size(), to.data());
    if (said == 0) return {};
    return Errorf(StatusCode::kCancelled, "the trainer's callback for bytes {} to {} returned {}",
                  offset, offset + to.size(), said);
  };
}

Status CheckDevice(int32_t device, const std::string& name) {
  deltawire::kernels::GpuInfo info;
  const Status found = deltawire::FromGpu(deltawire::kernels::FindGpu(device, &info));
  if (found.ok()) return found;
  return deltawire::Annotate(
      found, fmt::format("{} is said to lie on device {}; look at dw_gpu_available(), and give "
                         "dw_param.read where it is 0",
                         name, device));
}

/// The plan's offsets apply only to its own layout.
Status CheckLayout(const dw_megatron& megatron, const dw_offload& offload) {
  if (offload.fingerprint == megatron.megatron->plan().layout().fingerprint()) return {};
  return absl::FailedPreconditionError(
      "the client has registered another model than this plan's; register the plan again "
      "(dw_megatron_register) before the offload begins");
}

StatusOr<std::vector<LiveTensor>> ReadParams(const dw_param* params, size_t count) {
  std::vector<LiveTensor> out;
  for (size_t i = 0; i < count; ++i) {
    DW_ASSIGN_OR_RETURN(const dw_param in,
                        Read(params == nullptr ? nullptr : At(params, i), kParamSize, "dw_param"));
    if (in.name == nullptr || in.dtype == nullptr || (in.ndim > 0 && in.shape == nullptr)) {
      return Errorf(StatusCode::kInvalidArgument, "parameter {} has no name, dtype or shape", i);
    }
    LiveTensor live;
    live.param.chunk = in.chunk;
    live.param.name = in.name;
    const auto dtype = deltawire::ParseDType(in.dtype);
    if (!dtype.ok()) return deltawire::Annotate(dtype.status(), live.param.name);
    live.param.dtype = *dtype;
    uint64_t bytes = deltawire::DTypeBytes(*dtype);
    for (uint32_t d = 0; d < in.ndim; ++d) {
      live.param.shape.push_back(in.shape[d]);
      bytes *= in.shape[d];
    }
    const bool there = in.data != nullptr || in.read != nullptr;
    live.data = Bytes(static_cast<const std::byte*>(in.data), there ? bytes : 0);
    if (in.read != nullptr) {
      live.read = ReaderOf(in, live.param.name);
    } else if (in.device != DW_HOST_MEMORY) {
      DW_RETURN_IF_ERROR(CheckDevice(in.device, live.param.name));
      live.device = in.device;
    }
    out.push_back(std::move(live));
  }
  return out;
}

StatusOr<std::vector<LiveTensor>> ReadGather(const dw_megatron* megatron, const dw_offload* offload,
                                             const dw_param* params, size_t count) {
  if (megatron == nullptr) return Invalid("an argument is NULL");
  if (offload != nullptr) DW_RETURN_IF_ERROR(CheckLayout(*megatron, *offload));
  return ReadParams(params, count);
}

Status Place(dw_megatron* megatron, dw_offload* offload, uint32_t rank, const dw_param* params,
             size_t count, bool diff, uint64_t* bytes) {
  if (megatron == nullptr || offload == nullptr) return Invalid("an argument is NULL");
  DW_RETURN_IF_ERROR(CheckLayout(*megatron, *offload));
  DW_ASSIGN_OR_RETURN(const std::vector<LiveTensor> live, ReadParams(params, count));
  DW_ASSIGN_OR_RETURN(const uint64_t placed,
                      megatron->megatron->Place(*offload->offload, rank, live, diff));
  if (bytes != nullptr) *bytes = placed;
  return {};
}

}  // namespace

extern "C" {

int dw_gpu_available(void) {
  return Guard([]() -> Status {
           deltawire::kernels::GpuInfo info;
           return deltawire::FromGpu(deltawire::kernels::FindGpu(0, &info));
         }) == DW_OK
             ? 1
             : 0;
}

int dw_megatron_create(const dw_megatron_options* options, dw_megatron** megatron) {
  return Guard([&]() -> Status {
    DW_ASSIGN_OR_RETURN(const dw_megatron_options o,
                        Read(options, kMegatronOptionsSize, "dw_megatron_options"));
    if (megatron == nullptr || o.hf_dir == nullptr) return Invalid("the handle or hf_dir is NULL");
    deltawire::MegatronOptions to;
    to.hf_dir = o.hf_dir;
    to.parallel = Text(o.parallel);
    to.family = Text(o.family);
    for (size_t i = 0; i < o.family_dir_count; ++i) to.families.emplace_back(o.family_dirs[i]);
    to.threads = o.threads;
    auto made = std::make_unique<dw_megatron>();
    DW_ASSIGN_OR_RETURN(made->megatron, deltawire::MegatronExport::Open(to));
    *megatron = made.release();
    return {};
  });
}

void dw_megatron_destroy(dw_megatron* megatron) { delete megatron; }

size_t dw_megatron_tensor_count(const dw_megatron* megatron) {
  return megatron == nullptr ? 0 : megatron->megatron->plan().layout().size();
}

int dw_megatron_tensor(const dw_megatron* megatron, size_t tensor, dw_tensor_meta* meta) {
  return Guard([&]() -> Status {
    if (meta == nullptr || tensor >= dw_megatron_tensor_count(megatron)) {
      return Invalid("the struct is NULL, or there is no such tensor");
    }
    const deltawire::TensorMeta& t = megatron->megatron->plan().layout().tensor(tensor);
    dw_tensor_meta out{};
    out.name = t.name.c_str();
    out.dtype = deltawire::DTypeName(t.dtype).data();  // a literal
    out.shape = t.shape.data();
    out.ndim = static_cast<uint32_t>(t.shape.size());
    return Fill(out, kTensorMetaSize, meta, "dw_tensor_meta");
  });
}

int dw_megatron_register(const dw_megatron* megatron, dw_client* client, const uint32_t* ranks,
                         size_t rank_count, int replace, dw_registered* result) {
  return Guard([&]() -> Status {
    if (megatron == nullptr || client == nullptr) return Invalid("an argument is NULL");
    const deltawire::MegatronExport& job = *megatron->megatron;
    deltawire::RegisterOptions options;
    options.replace = replace != 0;
    if (ranks != nullptr) {
      DW_ASSIGN_OR_RETURN(options.owned, job.PartOf({ranks, rank_count}));
    }
    const deltawire::Layout& layout = job.plan().layout();
    DW_ASSIGN_OR_RETURN(const deltawire::Identity published,
                        client->client.Register(layout, job.side_files(), options));
    return Fill(Registered(layout, published), kRegisteredSize, result, "dw_registered");
  });
}

int dw_megatron_check(const dw_megatron* megatron, uint32_t rank, const dw_param* params,
                      size_t count) {
  return Guard([&]() -> Status {
    if (megatron == nullptr) return Invalid("the handle is NULL");
    DW_ASSIGN_OR_RETURN(const std::vector<LiveTensor> live, ReadParams(params, count));
    return megatron->megatron->Check(rank, live);
  });
}

int dw_megatron_place(dw_megatron* megatron, dw_offload* offload, uint32_t rank,
                      const dw_param* params, size_t count, uint64_t* bytes) {
  return Guard([&] { return Place(megatron, offload, rank, params, count, false, bytes); });
}

int dw_megatron_diff(dw_megatron* megatron, dw_offload* offload, uint32_t rank,
                     const dw_param* params, size_t count, uint64_t* bytes) {
  return Guard([&] { return Place(megatron, offload, rank, params, count, true, bytes); });
}

int dw_collective_create(const dw_collective_options* options, dw_collective** collective) {
  return Guard([&]() -> Status {
    DW_ASSIGN_OR_RETURN(const dw_collective_options o,
                        Read(options, kCollectiveOptionsSize, "dw_collective_options"));
    if (collective == nullptr) return Invalid("the handle is NULL");
    deltawire::GlooOptions to;
    to.rank = static_cast<int>(o.rank);
    to.size = static_cast<int>(o.size);
    to.root = static_cast<int>(o.root);
    to.rendezvous = Text(o.rendezvous);
    to.job = Text(o.job);
    to.interface = Text(o.net_interface);
    to.address = Text(o.address);
    auto made = std::make_unique<dw_collective>();
    made->timeout = std::chrono::milliseconds(o.timeout_ms == 0 ? kDefaultTimeoutMs : o.timeout_ms);
    const auto deadline = deltawire::Collective::Clock::now() + made->timeout;
    if (o.kind != DW_COLLECTIVE_GLOO && o.kind != DW_COLLECTIVE_NCCL) {
      return Errorf(StatusCode::kInvalidArgument, "there is no collective of kind {}", o.kind);
    }
    DW_ASSIGN_OR_RETURN(made->collective, deltawire::NewGlooCollective(to, deadline));
    if (o.kind == DW_COLLECTIVE_NCCL) {
      DW_ASSIGN_OR_RETURN(made->collective, deltawire::LoadNcclCollective(
                                                std::move(made->collective), o.device, deadline));
    }
    *collective = made.release();
    return {};
  });
}

void dw_collective_destroy(dw_collective* collective) { delete collective; }

int dw_collective_agree_attempt(dw_collective* collective, uint64_t* attempt) {
  return Guard([&]() -> Status {
    if (collective == nullptr || attempt == nullptr) return Invalid("an argument is NULL");
    deltawire::Collective& group = *collective->collective;
    std::vector<std::byte> mine;
    if (group.rank() == group.root()) {
      mine.resize(sizeof(uint64_t));
      deltawire::StoreLe<uint64_t>(mine.data(), deltawire::DrawAttempt());
    }
    const auto deadline = deltawire::Collective::Clock::now() + collective->timeout;
    DW_ASSIGN_OR_RETURN(const auto drawn, group.AllGather(mine, deadline));
    const std::vector<std::byte>& word = drawn[static_cast<size_t>(group.root())];
    if (word.size() != sizeof(uint64_t)) {
      return absl::InternalError("the root gave no attempt: its ranks make different calls");
    }
    *attempt = deltawire::LoadLe<uint64_t>(word.data());
    return {};
  });
}

int dw_collective_check(dw_collective* collective, const char* failure) {
  return Guard([&]() -> Status {
    if (collective == nullptr) return Invalid("the collective is NULL");
    const deltawire::Collective& group = *collective->collective;
    std::string mine = failure == nullptr ? "" : "!";
    if (failure != nullptr) mine += deltawire::FitUtf8(failure, kMaxFailure);
    const auto deadline = deltawire::Collective::Clock::now() + collective->timeout;
    DW_ASSIGN_OR_RETURN(const auto all,
                        collective->collective->AllGather(deltawire::AsBytes(mine), deadline));
    if (failure != nullptr) return {};  // the caller knows its own failure
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].empty()) continue;
      const std::string said(reinterpret_cast<const char*>(all[rank].data()) + 1,
                             all[rank].size() - 1);
      return Errorf(StatusCode::kAborted, "rank {} of {} has failed: {}", rank, group.size(), said);
    }
    return {};
  });
}

int dw_megatron_gather(dw_megatron* megatron, dw_collective* collective, dw_offload* offload,
                       uint32_t rank, const dw_param* params, size_t count, uint64_t bucket_bytes,
                       dw_gathered* result) {
  return Guard([&]() -> Status {
    if (collective == nullptr) return Invalid("an argument is NULL");
    StatusOr<std::vector<LiveTensor>> live = ReadGather(megatron, offload, params, count);
    if (!live.ok()) {
      // The other ranks see no error, and would wait for this one.
      collective->collective->Abort(live.status());
      return live.status();
    }
    deltawire::GatherOptions options;
    if (bucket_bytes != 0) options.bucket_bytes = bucket_bytes;
    options.wait_timeout = collective->timeout;
    DW_ASSIGN_OR_RETURN(
        const deltawire::GatherStats stats,
        megatron->megatron->Gather(*collective->collective,
                                   offload == nullptr ? nullptr : offload->offload.get(), rank,
                                   *live, options));
    dw_gathered out{};
    out.buckets = stats.buckets;
    out.network_bytes = stats.network_bytes;
    out.peak_buffer_bytes = stats.peak_buffer_bytes;
    out.wait_seconds = stats.wait_seconds;
    out.place_seconds = stats.consume_seconds;
    out.bucket_bytes = stats.bucket_bytes;
    return Fill(out, kGatheredSize, result, "dw_gathered");
  });
}

}  // extern "C"
