// A Megatron job's way into the sender: one plan, and every version's shards to their HF places.
// Owner: one per rank; the checkpoint directory may go once it is open, unless it has tensors that
// are not trained. Threads: one caller. Errors: what a plan refuses, before the first byte; after
// one, abandon the offload.
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
  size_t threads = 0;                           ///< that copy, with their caller; 0: one per core
};

class MegatronExport {
 public:
  /// Plans, and proves that every byte is written exactly once.
  static StatusOr<std::unique_ptr<MegatronExport>> Open(const MegatronOptions& options);

  const mcore::Plan& plan() const { return *plan_; }
  /// Small files of hf_dir, for whoever registers the model.
  const std::vector<SideFile>& side_files() const { return side_files_; }

  /// The chunks that `ranks` of the job write, for the agent that they share. kNotFound: none.
  StatusOr<std::vector<ChunkRange>> PartOf(std::span<const uint32_t> ranks) const;

  /// Whether these are `rank`'s parameters; what Place and Gather look at first.
  Status Check(uint32_t rank, std::span<const LiveTensor> live) const;

  /// Writes this rank's shards straight into the half, and says so. Other ranks do the same.
  /// Shards on devices and behind callbacks go as DevicePlace says. Returns how many bytes it
  /// wrote. REQUIRES: the model is registered with plan().layout().
  StatusOr<uint64_t> Place(TrainerClient::Offload& offload, uint32_t rank,
                           std::span<const LiveTensor> live);

  /// Sends this rank's shards to the collective's root, which writes all into `offload`; null on
  /// the other ranks. Call it on every rank, with the same options; their bucket_bytes may be
  /// kAutoBucketBytes (AgreeBucketBytes).
  StatusOr<GatherStats> Gather(Collective& collective, TrainerClient::Offload* offload,
                               uint32_t rank, std::span<const LiveTensor> live,
                               const GatherOptions& options);

 private:
  explicit MegatronExport(size_t threads) : pool_(threads) {}
  StatusOr<std::vector<mcore::Match>> Matched(uint32_t rank,
                                              std::span<const LiveTensor> live) const;
  /// Tensors that no parameter makes, from the checkpoint.
  Status CarryOver(TrainerClient::Offload& offload) const;

  std::optional<mcore::HfModel> model_;
  std::optional<mcore::Plan> plan_;
  std::vector<SideFile> side_files_;
  /// Shards that `matches` say this rank writes, by how their bytes are reached.
  StatusOr<uint64_t> PlaceShards(TrainerClient::Offload& offload,
                                 std::span<const mcore::Match> matches,
                                 std::span<const LiveTensor> live, std::set<uint32_t>& written);

  std::vector<uint32_t> trained_;  // tensors that parameters make
  ThreadPool pool_;
  DevicePlace device_place_;
  bool warned_ = false;
};

}  // namespace deltawire
