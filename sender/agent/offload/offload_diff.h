// The diff of one model's present offload: the half that ranks write, the job that diffs it, the
// GPU that may help, and the incoming version whose chunks travel as they are diffed. Offloads owns
// it, and the ModelStates outlive it. Any thread may call any method, but one at a time calls
// Prepare to Finish. Errors name the model.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/config/options.h"
#include "common/serving/incoming_version.h"
#include "sender/agent/diff/gpu_slot.h"
#include "sender/agent/diff/incoming_slot.h"
#include "sender/agent/diff/publish_job.h"
#include "sender/agent/halves/model_states.h"
#include "sender/agent/offload/written_tally.h"

namespace deltawire::sender {

class OffloadDiff {
 public:
  OffloadDiff(ModelStates& states, const SenderOptions& options);
  /// Waits for chunks that are being diffed.
  ~OffloadDiff();

  /// Sets the function that ends the pulls that still read `half`, for a trainer that has waited
  /// out the grace. REQUIRES: before any offload.
  void SetCutter(std::function<void(uint32_t half)> cut) { cut_ = std::move(cut); }

  /// Ends the diff before this one, and drains and fences the half, for which it waits and may make
  /// files. `waited`: seconds.
  Status Prepare(uint32_t half, double* waited) ABSL_LOCKS_EXCLUDED(mu_);
  /// Begins the diff of the offload of `lease`. `incoming`: the version that it makes, if its
  /// chunks may travel as they are diffed; empty: none.
  void Begin(uint32_t half, uint64_t lease, const Identity& incoming);
  /// Whether the chunks of a version may travel before it is published.
  bool MaySendEarly() const;
  /// Whether the trainer may hand over payloads of changes of the published version.
  bool TakesPayloads() const;
  /// See PublishJob. REQUIRES: no rank can be the last one to be ready meanwhile.
  void AddPayloads(uint64_t lease, std::span<const DiffedChunk> payloads);
  /// A payload was wrong: takes no more of them.
  void DistrustPayloads() { payloads_trusted_ = false; }
  /// `where` a rank has diffed its part, for people; empty: it has not.
  void NoteTrainerDiff(const std::string& where);
  /// Describes what versions are diffed on, if the trainer does it or a GPU was asked for.
  std::string diffs_on() const;
  /// These bytes are final: diffs them now, unless the options leave that to the publish.
  void MarkWritten(uint64_t lease, const WrittenTally::Final& final);
  /// Begins no further chunk, unless the diff is that of the offload of `lease`.
  void CancelUnless(uint64_t lease);
  /// Has a publish that is running fail, since no pull could take its version.
  void GiveUp();
  std::shared_ptr<PublishJob> job() const;
  /// The version is published. Returns the incoming version that it was, or null.
  std::shared_ptr<IncomingVersion> Finish();

  /// Null: the CPU alone diffs.
  const GpuSlot& gpu() const { return gpu_; }
  IncomingSlot& incoming() { return incoming_; }
  const IncomingSlot& incoming() const { return incoming_; }

 private:
  std::unique_ptr<GpuDiff> MakeGpu(std::string* where) const;
  std::shared_ptr<PublishJob> MakeJob(uint32_t half,
                                      const std::shared_ptr<IncomingVersion>& incoming);

  ModelStates& states_;
  const SenderOptions options_;
  IncomingSlot incoming_;
  GpuSlot gpu_;  // destroyed before the halves, whose memory it has pinned
  std::atomic<bool> payloads_trusted_{true};  // none of the trainer's was wrong
  std::function<void(uint32_t)> cut_;
  mutable CheckedMutex mu_;
  std::shared_ptr<PublishJob> job_ ABSL_GUARDED_BY(mu_);  // of the present or the last offload
  uint64_t lease_ ABSL_GUARDED_BY(mu_) = 0;               // of that offload; 0: of a rollback
  std::string trainer_diffs_on_ ABSL_GUARDED_BY(mu_);     // of that offload
};

}  // namespace deltawire::sender
