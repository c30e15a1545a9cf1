// An exporter of a Megatron job: one plan, by which each version's shards are written to their HF
// places. Each rank has one, with one caller. The checkpoint directory may be removed after Open,
// unless it has untrained tensors. After an error, abandon the offload.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/layout/model_dir.h"
#include "sender/export/client/trainer_client.h"
#include "sender/export/device/device_place.h"
#include "sender/export/device/foreign_collective.h"
#include "sender/export/device/live_tensor.h"
#include "sender/export/gather/bucket_size.h"
#include "sender/export/mcore/hf_model.h"
#include "sender/export/megatron/megatron_gather.h"

namespace deltawire {

struct MegatronOptions {
  std::filesystem::path hf_dir;  ///< config.json; its tensors, where there are any, fix the layout
  std::string parallel;          ///< "tp=4,pp=2,...", or a JSON object
  std::string family;            ///< empty: by config.json
  std::vector<std::filesystem::path> families;  ///< directories of further families
  /// The number of threads that copy, with the caller's; 0: one per core.
  size_t threads = 0;
};

class MegatronExport {
 public:
  /// Plans, and proves that every byte is written exactly once.
  static StatusOr<std::unique_ptr<MegatronExport>> Open(const MegatronOptions& options);

  const mcore::Plan& plan() const { return *plan_; }
  /// Returns the small files of hf_dir, for TrainerClient::Register.
  const std::vector<SideFile>& side_files() const { return side_files_; }

  /// Returns the chunks that `ranks` of the job write, for the agent that they share. kNotFound:
  /// they write none.
  StatusOr<std::vector<ChunkRange>> PartOf(std::span<const uint32_t> ranks) const;

  /// Fails unless `live` are exactly `rank`'s parameters. Place and Gather check this first.
  Status Check(uint32_t rank, std::span<const LiveTensor> live) const;

  /// Writes this rank's shards straight into the half, and marks them as written. Every rank calls
  /// it. Shards on devices and behind callbacks go through DevicePlace; with `diff`, devices hand
  /// over only what has changed (TrainerClient::Offload::DiffOnGpu). Returns the number of bytes of
  /// the shards. REQUIRES: the model is registered with plan().layout().
  StatusOr<uint64_t> Place(TrainerClient::Offload& offload, uint32_t rank,
                           std::span<const LiveTensor> live, bool diff = false);

  /// Sends this rank's shards to the collective's root, which writes them all into `offload` (null
  /// on the other ranks). Call it on every rank, with the same options; bucket_bytes may be
  /// kAutoBucketBytes (see AgreeBucketBytes). A rank's error before it sends aborts the gather for
  /// all, so that they do not wait for it.
  StatusOr<GatherStats> Gather(Collective& collective, TrainerClient::Offload* offload,
                               uint32_t rank, std::span<const LiveTensor> live,
                               const GatherOptions& options);

 private:
  explicit MegatronExport(size_t threads) : pool_(threads) {}
  /// A rank's contribution to a gather, after the checks.
  struct GatherInput {
    std::vector<mcore::Match> matches;
    std::unique_ptr<ForeignCollective> sources;
  };
  StatusOr<std::vector<mcore::Match>> Matched(uint32_t rank,
                                              std::span<const LiveTensor> live) const;
  /// Does the same as Matched, and also fails if some shard cannot be converted from its dtype.
  StatusOr<std::vector<mcore::Match>> Checked(uint32_t rank,
                                              std::span<const LiveTensor> live) const;
  StatusOr<GatherInput> InputOf(Collective& collective, bool has_offload, uint32_t rank,
                                std::span<const LiveTensor> live);
  /// Copies from the checkpoint the tensors that no parameter forms.
  Status CarryOver(TrainerClient::Offload& offload) const;

  std::optional<mcore::HfModel> model_;
  std::optional<mcore::Plan> plan_;
  std::vector<SideFile> side_files_;
  /// Writes this rank's shards from `matches`, by the path that suits the location of their bytes.
  StatusOr<uint64_t> PlaceShards(TrainerClient::Offload& offload,
                                 std::span<const mcore::Match> matches,
                                 std::span<const LiveTensor> live, bool diff,
                                 std::set<uint32_t>& written);
  /// Copies shards that the CPU cannot read to `half`, except for chunks that devices diff.
  Status PlaceElsewhere(TrainerClient::Offload& offload, std::span<const DeviceShard> shards,
                        bool diff, HalfMemory half);

  std::vector<uint32_t> trained_;  // tensors that parameters form
  ThreadPool pool_;
  DevicePlace device_place_;
  bool warned_ = false;
};

}  // namespace deltawire
