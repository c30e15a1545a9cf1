// A pull's figures as the messages have them: in a status, and in a report to the sender.
// Pure; threads: any. Cost: a field each.
#pragma once

#include "proto/deltawire/v1/common.pb.h"
#include "receiver/pull_stats.h"

namespace deltawire::receiver {

inline void ToProto(const PullStats& in, v1::PullStats* out) {
  out->set_chunks_full(in.chunks_full);
  out->set_chunks_delta(in.chunks_delta);
  out->set_chunks_unchanged(in.chunks_unchanged);
  out->set_payload_bytes(in.payload_bytes);
  out->set_seconds(in.seconds);
  out->set_transfer_seconds(in.transfer_seconds);
  out->set_apply_seconds(in.apply_seconds);
  out->set_repaired_chunks(in.repaired_chunks);
  out->set_chunks_tight(in.forms.chunks[2]);
  out->set_chunks_dense(in.forms.chunks[3]);
  out->set_refused_chunks(in.refused_chunks);
  out->set_history_chunks(in.history_chunks);
}

}  // namespace deltawire::receiver
