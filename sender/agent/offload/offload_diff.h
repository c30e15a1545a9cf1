// The diff of one model's current offload: the half that ranks write, the job that diffs it, the
// GPU that may help, and the incoming version whose chunks are sent as they are diffed.
// Thread-safe, with one caller at a time of Prepare to Finish. Errors name the model.
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

  /// Sets the function that cuts the pulls that still read `half` at the end of the grace.
  /// REQUIRES: before any offload.
  void SetCutter(std::function<void(uint32_t half)> cut) { cut_ = std::move(cut); }

  /// Ends the last diff, and drains and fences the half, which may wait and make files. `waited`:
  /// seconds.
  Status Prepare(uint32_t half, double* waited) ABSL_LOCKS_EXCLUDED(mu_);
  /// Begins the diff of the offload of `lease`. `incoming`: its version, if chunks may be sent as
  /// they are diffed; empty: none.
  void Begin(uint32_t half, uint64_t lease, const Identity& incoming);
  /// Whether the chunks of a version may be sent before it is published.
  bool MaySendEarly() const;
  /// Whether the trainer may hand over payloads against the published version.
  bool TakesPayloads() const;
  /// See PublishJob. REQUIRES: no rank can be the last one to be ready meanwhile.
  void AddPayloads(uint64_t lease, std::span<const DiffedChunk> payloads);
  /// Takes no further payloads, since one was wrong.
  void DistrustPayloads() { payloads_trusted_ = false; }
  /// Notes `where` a rank has diffed its part, for people; empty: it has not.
  void NoteTrainerDiff(const std::string& where);
  /// Describes the device that diffs, if it is the trainer's or a GPU was asked for.
  std::string diffs_on() const;
  /// Diffs bytes that are final, unless the options leave that to the publish.
  void MarkWritten(uint64_t lease, const WrittenTally::Final& final);
  /// Cancels the diff unless it belongs to the offload of `lease`.
  void CancelUnless(uint64_t lease);
  /// Has a running publish fail, since no pull could ever take its version.
  void AbortPublish();
  std::shared_ptr<PublishJob> job() const;
  /// Ends the diff of a published version. Returns its incoming version, or null.
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
  std::atomic<bool> payloads_trusted_{true};
  std::function<void(uint32_t)> cut_;
  mutable CheckedMutex mu_;
  std::shared_ptr<PublishJob> job_ ABSL_GUARDED_BY(mu_);  // of the current or the last offload
  uint64_t lease_ ABSL_GUARDED_BY(mu_) = 0;               // of that offload; 0: of a rollback
  std::string trainer_diffs_on_ ABSL_GUARDED_BY(mu_);     // of that offload
};

}  // namespace deltawire::sender
