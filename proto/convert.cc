#include "proto/convert.h"

#include <algorithm>

namespace deltawire {

grpc::Status ToGrpc(const Status& s) {
  if (s.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(s.code()), std::string(MessageOf(s))};
}

Status FromGrpc(const grpc::Status& s, std::string_view context) {
  if (s.ok()) return absl::OkStatus();
  return Errorf(static_cast<StatusCode>(s.error_code()), "{}: {}", context, s.error_message());
}

void ToProto(const Layout& layout, google::protobuf::RepeatedPtrField<v1::TensorMeta>* out) {
  out->Reserve(static_cast<int>(layout.size()));
  for (const TensorMeta& t : layout.tensors()) {
    v1::TensorMeta* meta = out->Add();
    meta->set_name(t.name);
    meta->set_dtype(std::string(DTypeName(t.dtype)));
    meta->mutable_shape()->Assign(t.shape.begin(), t.shape.end());
  }
}

StatusOr<std::vector<TensorMeta>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::TensorMeta>& in) {
  std::vector<TensorMeta> out;
  out.reserve(in.size());
  for (const v1::TensorMeta& t : in) {
    auto dtype = ParseDType(t.dtype());
    if (!dtype.ok()) return Annotate(dtype.status(), fmt::format("tensor \"{}\"", t.name()));
    out.push_back({t.name(), *dtype, {t.shape().begin(), t.shape().end()}});
  }
  return out;
}

void ToProto(const std::vector<SideFile>& files,
             google::protobuf::RepeatedPtrField<v1::SideFile>* out) {
  for (const SideFile& f : files) {
    v1::SideFile* file = out->Add();
    file->set_name(f.name);
    file->set_content(f.content);
  }
}

std::vector<SideFile> FromProto(const google::protobuf::RepeatedPtrField<v1::SideFile>& in) {
  std::vector<SideFile> out;
  for (const v1::SideFile& f : in) out.push_back({f.name(), f.content()});
  return out;
}

void ToProto(const Coverage& coverage, google::protobuf::RepeatedPtrField<v1::ChunkRange>* out) {
  for (const ChunkRange& r : coverage.ranges()) {
    v1::ChunkRange* range = out->Add();
    range->set_first(r.first);
    range->set_last(r.last);
  }
}

std::vector<ChunkRange> FromProto(const google::protobuf::RepeatedPtrField<v1::ChunkRange>& in) {
  std::vector<ChunkRange> out;
  for (const v1::ChunkRange& r : in) out.push_back({r.first(), r.last()});
  return out;
}

void ToProto(const Identity& identity, v1::Identity* out) {
  out->set_epoch(identity.id.epoch);
  out->set_version(identity.id.version);
  if (identity.lineage != Hash128()) out->set_lineage(identity.lineage.Hex());
  out->set_root(identity.root);
  out->set_attempt(identity.attempt);
}

Identity FromProto(const v1::Identity& in) {
  Identity identity;
  identity.lineage = Hash128::FromHex(in.lineage()).value_or(Hash128());
  identity.id = {in.epoch(), in.version()};
  identity.root = in.root();
  identity.attempt = in.attempt();
  return identity;
}

void ToProto(const PullStats& stats, v1::PullStats* out) {
  out->set_chunks_full(stats.chunks_full);
  out->set_chunks_delta(stats.chunks_delta);
  out->set_chunks_unchanged(stats.chunks_unchanged);
  out->set_payload_bytes(stats.payload_bytes);
  out->set_seconds(stats.seconds);
  out->set_transfer_seconds(stats.transfer_seconds);
  out->set_apply_seconds(stats.apply_seconds);
  out->set_repaired_chunks(stats.repaired_chunks);
  out->set_chunks_tight(stats.forms.chunks[FormCounts::kTight]);
  out->set_chunks_dense(stats.forms.chunks[FormCounts::kDense]);
  out->set_refused_chunks(stats.refused_chunks);
  out->set_history_chunks(stats.history_chunks);
}

PullStats FromProto(const v1::PullStats& in) {
  PullStats stats{.chunks_full = in.chunks_full(),
                  .chunks_delta = in.chunks_delta(),
                  .chunks_unchanged = in.chunks_unchanged(),
                  .payload_bytes = in.payload_bytes(),
                  .seconds = in.seconds(),
                  .transfer_seconds = in.transfer_seconds(),
                  .apply_seconds = in.apply_seconds(),
                  .repaired_chunks = in.repaired_chunks(),
                  .refused_chunks = in.refused_chunks(),
                  .history_chunks = in.history_chunks()};
  // A peer's numbers need not add up.
  const uint64_t by_class = in.chunks_tight() + in.chunks_dense();
  stats.forms.chunks = {in.chunks_full(), in.chunks_delta() - std::min(by_class, in.chunks_delta()),
                        in.chunks_tight(), in.chunks_dense()};
  return stats;
}

}  // namespace deltawire
