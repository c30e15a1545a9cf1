#include "proto/convert.h"

#include <algorithm>

#include "common/layout/names.h"

namespace deltawire {

grpc::Status ToGrpc(const Status& s) {
  if (s.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(s.code()), std::string(MessageOf(s))};
}

namespace {

// Returns the remedy that gRPC's message for a failed connection lacks.
std::string_view RemedyOf(const grpc::Status& s) {
  if (s.error_code() != grpc::StatusCode::UNAVAILABLE) return "";
  const auto says = [&s](const char* what) {
    return s.error_message().find(what) != std::string::npos;
  };
  if (says("certificate verify failed")) {
    return "; its certificate is of another authority than `ca` here, or has ended: `deltawire "
           "doctor` with the same --credentials says which";
  }
  if (says("Hostname Verification Check failed")) {
    return "; its certificate is not for the name that was dialled: dial one of its names, or set "
           "`server-name`";
  }
  if (says("ALPN") || says("Failed parsing HTTP/2")) {
    return "; that port speaks no gRPC; pass the control port, not the bulk port";
  }
  if (says("C-ares") || says("DNS resolution failed")) {
    return "; no address is known for that host: check its spelling";
  }
  if (says("failed to connect") && says("Socket closed")) {
    return "; if that port speaks TLS, give this end --credentials";
  }
  return "";
}

}  // namespace

Status FromGrpc(const grpc::Status& s, std::string_view context) {
  if (s.ok()) return absl::OkStatus();
  return Errorf(static_cast<StatusCode>(s.error_code()), "{}: {}{}", context, s.error_message(),
                RemedyOf(s));
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

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using kernels::Codec;

// Returns "" for a text that is too long or not visible ASCII.
std::string Visible(const std::string& text, size_t most) {
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  return text.size() <= most && std::ranges::all_of(text, visible) ? text : std::string();
}

// Returns null for whole and fast chunks, whose counts follow from the other figures.
const FieldDescriptor* ChunksField(size_t form) {
  return v1::PullStats::descriptor()->FindFieldByName(
      fmt::format("chunks_{}", kernels::kFormNames[form]));
}

// Returns null for fast, which needs no decoding.
const FieldDescriptor* DecodeField(size_t form) {
  return v1::OpenPullRequest::descriptor()->FindFieldByName(
      fmt::format("{}_decode_bytes_per_s", kernels::kFormNames[form]));
}

}  // namespace

void ToProto(const PullStats& stats, v1::PullStats* out) {
  ToProto<PullStats>(stats, static_cast<Message*>(out));
  for (size_t form = 0; form < kernels::kForms; ++form) {
    if (const auto* field = ChunksField(form)) {
      out->GetReflection()->SetUInt64(out, field, stats.forms.chunks[form]);
    }
  }
}

PullStats FromProto(const v1::PullStats& in) {
  auto stats = FromProto<PullStats>(static_cast<const Message&>(in));
  stats.forms.chunks[FormCounts::kRaw] = in.chunks_full();
  uint64_t& fast = stats.forms.chunks[kernels::FormOf(Codec::kFast)];
  fast = in.chunks_delta();
  for (size_t form = 0; form < kernels::kForms; ++form) {
    const auto* field = ChunksField(form);
    if (field == nullptr) continue;
    stats.forms.chunks[form] = in.GetReflection()->GetUInt64(in, field);
    fast -= std::min(fast, stats.forms.chunks[form]);  // a peer's figures need not add up
  }
  return stats;
}

void ToProto(const PullRequest& request, v1::OpenPullRequest* out) {
  ToProto<PullRequest>(request, static_cast<Message*>(out));
  for (size_t form = FormCounts::kRaw + 1; form < kernels::kForms; ++form) {
    if (const auto* field = DecodeField(form)) {
      out->GetReflection()->SetDouble(out, field, request.decode[static_cast<Codec>(form)]);
    }
  }
}

PullRequest FromProto(const v1::OpenPullRequest& in) {
  auto request = FromProto<PullRequest>(static_cast<const Message&>(in));
  request.site = Visible(request.site, kMaxSiteName);
  for (size_t form = FormCounts::kRaw + 1; form < kernels::kForms; ++form) {
    if (const auto* field = DecodeField(form)) {
      request.decode[static_cast<Codec>(form)] = in.GetReflection()->GetDouble(in, field);
    }
  }
  return request;
}

void ToProto(const ReceiverReport& report, v1::ReceiverReport* out) {
  ToProto<ReceiverReport>(report, static_cast<Message*>(out));
  out->set_phase(std::string(ToString(report.phase)));
  ToProto(report.last_pull, out->mutable_last_pull());
  ToProto(report.engines.oldest, out->mutable_served());
  if (report.engines.engines) out->set_engines(*report.engines.engines);
}

ReceiverReport FromProto(const v1::ReceiverReport& in) {
  auto report = FromProto<ReceiverReport>(static_cast<const Message&>(in));
  report.phase = ParseReceiverPhase(in.phase());
  report.last_pull = FromProto(in.last_pull());
  report.engines = {.engines = std::nullopt, .oldest = FromProto(in.served())};
  if (in.has_engines()) report.engines.engines = in.engines();
  report.message = FitUtf8(in.message(), kMaxReportMessage);
  report.group.refusal = FitUtf8(in.group().refusal(), kMaxReportMessage);
  report.follows = Visible(in.follows(), kMaxServeAddress);
  return report;
}

SiteOffer OfferOf(const v1::ReceiverReport& in) {
  return {.site = Visible(in.site(), kMaxSiteName),
          .address = Visible(in.serve_address(), kMaxServeAddress)};
}

void ToProto(const SenderEvent& event, v1::SenderEvent* out) {
  out->Clear();
  ToProto<SenderEvent>(event, static_cast<Message*>(out));
  out->set_side_files_hash(event.newest.side_files_hash);
}

SenderEvent FromProto(const v1::SenderEvent& in) {
  constexpr size_t kMostUpstreams = 16;
  auto event = FromProto<SenderEvent>(static_cast<const Message&>(in));
  if (event.assignment) {
    auto& upstreams = event.assignment->upstreams;
    std::erase_if(upstreams, [](const std::string& address) {
      return address.empty() || address.size() > kMaxServeAddress;
    });
    if (upstreams.size() > kMostUpstreams) upstreams.resize(kMostUpstreams);
  }
  return event;
}

}  // namespace deltawire
