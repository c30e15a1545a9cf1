// The committed state of one model at a receiver, as a source of served pulls: its weight file, and
// the deltas that its own pulls brought. Names and digests are the origin's, so a pull from here
// ends at the same states as one from there. It takes 8 bytes per chunk, and its delta log. A Relay
// and its pulls share it. Every method may be called from any thread, but Install by one at a time.
// Errors name the model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/sync.h"
#include "common/serving/state_source.h"
#include "receiver/buffer/downstream.h"

namespace deltawire::receiver {

class RelayedModel : public StateSource {
 public:
  /// `on_corrupt` is called for a chunk that a receiver reports and that has lost its digest here.
  RelayedModel(std::string name, const Buffer& buffer, ThreadPool& pool, uint64_t log_bytes,
               std::function<void(uint32_t chunk)> on_corrupt);

  /// See Downstream::ServeCommitted. Does nothing if this state is served already. An error when
  /// the side files cannot be read; then the state before is still served.
  Status Install(const Buffer& buffer, std::shared_ptr<ServedFile> file,
                 std::shared_ptr<const Delta> delta, const Identity& from);
  /// Keeps the payloads of `incoming`, which is served now, for receivers that come late.
  void KeepPayloads(const IncomingVersion& incoming) const;
  /// The version whose pulls are served while it comes; null: none.
  void SetIncoming(std::shared_ptr<IncomingVersion> incoming);
  std::shared_ptr<IncomingVersion> incoming() const;
  /// The numbers under which pulls know the file: one for each state that was served from it.
  std::vector<uint32_t> HalvesOf(const ServedFile& file) const;

  LeasedState Lease() override;
  Bytes half(uint32_t i) const override;
  std::shared_ptr<const void> LeaseHalf(uint32_t half, const Identity& id) override;
  /// The newest state, if it has that name. A receiver of several agents, which asks for earlier
  /// ones, follows the agents and no relay.
  StatusOr<std::shared_ptr<const Published>> At(const Identity& id) override;
  std::shared_ptr<const SideFileSet> side_files() const override;
  /// Also finds those of the incoming version, once it is complete.
  std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const override;
  /// Marks a chunk that has lost its digest, so that it is not served until it was fetched anew.
  void Recheck(uint32_t chunk) override {
    if (Mark(chunk)) on_corrupt_(chunk);
  }
  std::string_view healed_by() const override { return "this relay has fetched it anew"; }
  /// Recheck without the call of `on_corrupt`. Returns true if the chunk is corrupt.
  bool Mark(uint32_t chunk);
  /// As store().encoded(), of the versions that SetIncoming was given.
  EncodedCache::Counts early_encoded() const;

 private:
  /// A file's bytes at one state. The buffer keeps the file, and leases do.
  struct Half {
    std::weak_ptr<ServedFile> file;
    Identity id;
  };
  std::shared_ptr<ServedFile> FileOf(uint32_t half, const Identity* id) const;
  /// Whether `file` is served already as `state`, and wholly.
  bool Serves(const Published& state, const std::shared_ptr<ServedFile>& file) const;

  const std::function<void(uint32_t)> on_corrupt_;

  mutable Mutex mu_;
  // By number, from 2 on and rising. A sender's previous state has the number `1 - half`, under
  // which nothing is found here.
  std::map<uint32_t, Half> halves_;
  std::shared_ptr<IncomingVersion> incoming_;
  std::shared_ptr<const EncodedCache::Totals> early_encoded_;  // of the last one; null: none yet
  std::shared_ptr<const SideFileSet> last_come_;  // of the last complete version before incoming_
  uint32_t next_half_ = 2;
};

}  // namespace deltawire::receiver
