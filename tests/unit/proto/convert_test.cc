#include "proto/convert.h"

#include <google/protobuf/util/message_differencer.h>

#include <catch2/catch.hpp>

namespace deltawire::convert_test {
namespace {

using google::protobuf::util::MessageDifferencer;

/// A message with a different value in every field. The values are set by reflection, so a field
/// that is added to the message later is covered without a change here.
template <typename Message>
Message Numbered(uint64_t first) {
  using google::protobuf::FieldDescriptor;
  Message message;
  const auto* const fields = Message::descriptor();
  const auto* const reflection = message.GetReflection();
  for (int i = 0; i < fields->field_count(); ++i) {
    const auto* const field = fields->field(i);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection->SetDouble(&message, field, static_cast<double>(first + i) / 8);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection->SetUInt32(&message, field, static_cast<uint32_t>(first + i));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(&message, field, static_cast<int64_t>(first + i));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(&message, field, true);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection->SetUInt64(&message, field, first + i);
        break;
      default:
        REQUIRE(field->name() == "id");
        ToProto(Identity{.lineage = {1, 2}, .id = {3, 4}, .root = 5, .attempt = 6},
                static_cast<v1::Identity*>(reflection->MutableMessage(&message, field)));
    }
  }
  return message;
}

TEST_CASE("a pull's figures come back from their struct as they were") {
  for (const uint64_t first : {uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0} - 100}) {
    const v1::PullStats in = Numbered<v1::PullStats>(first);
    v1::PullStats out;
    ToProto(FromProto(in), &out);
    CHECK(MessageDifferencer::Equals(in, out));
  }
}

TEST_CASE("a version's figures come back from their struct as they were") {
  const auto in = Numbered<v1::VersionInfo>(1);
  v1::VersionInfo out;
  ToProto(FromProto<VersionInfo>(in), &out);
  CHECK(MessageDifferencer::Equals(in, out));
}

TEST_CASE("a pull's figures: each of the message is the struct's of that name") {
  v1::PullStats in;
  in.set_chunks_full(1);
  in.set_chunks_delta(20);
  in.set_chunks_unchanged(3);
  in.set_payload_bytes(4);
  in.set_seconds(5.5);
  in.set_transfer_seconds(6.5);
  in.set_apply_seconds(7.5);
  in.set_repaired_chunks(8);
  in.set_chunks_tight(9);
  in.set_chunks_dense(10);
  in.set_refused_chunks(11);
  in.set_history_chunks(12);
  in.set_streams(13);
  in.set_round_trip_seconds(14.5);
  in.set_best_bytes_per_s(15.5);
  in.set_ahead_seconds(16.5);
  in.set_ahead_bytes(3);
  FormCounts forms;
  forms.chunks = {1, 1, 9, 10};
  CHECK(FromProto(in) == PullStats{.chunks_full = 1,
                                   .chunks_delta = 20,
                                   .chunks_unchanged = 3,
                                   .payload_bytes = 4,
                                   .seconds = 5.5,
                                   .transfer_seconds = 6.5,
                                   .apply_seconds = 7.5,
                                   .repaired_chunks = 8,
                                   .refused_chunks = 11,
                                   .history_chunks = 12,
                                   .streams = 13,
                                   .round_trip_seconds = 14.5,
                                   .best_bytes_per_s = 15.5,
                                   .ahead_seconds = 16.5,
                                   .ahead_bytes = 3,
                                   .forms = forms});
}

TEST_CASE("a pull's figures that do not add up count no chunk below zero") {
  v1::PullStats in;
  in.set_chunks_delta(5);
  in.set_chunks_tight(4);
  in.set_chunks_dense(4);
  CHECK(FromProto(in).forms.chunks[kernels::FormOf(kernels::Codec::kFast)] == 0);
}

TEST_CASE("every codec but fast has a field for its chunks, and fast has the rest") {
  PullStats stats{.chunks_full = 2, .chunks_delta = 100};
  stats.forms.chunks[FormCounts::kRaw] = 2;
  for (size_t form = kernels::FormOf(kernels::Codec::kFast) + 1; form < kernels::kForms; ++form) {
    stats.forms.chunks[form] = form;
    stats.forms.chunks[kernels::FormOf(kernels::Codec::kFast)] = 100 - form;
    v1::PullStats message;
    ToProto(stats, &message);
    CHECK(FromProto(message) == stats);
    stats.forms.chunks[form] = 0;
  }
}

const Identity kState{.lineage = {1, 2}, .id = {3, 4}, .root = 5, .attempt = 6};

TEST_CASE("a request to pull arrives as it was sent") {
  PullRequest request{.model = "m",
                      .receiver_id = "r",
                      .site = "west",
                      .fingerprint = {7, 8},
                      .streams = 3,
                      .owned_hash = 9,
                      .at = kState,
                      .incoming = kState,
                      .ahead_bytes = 10,
                      .corrupt = {11, 12}};
  request.decode[kernels::Codec::kTight] = 5;
  request.decode[kernels::Codec::kDense] = 6;
  v1::OpenPullRequest message, again;
  ToProto(request, &message);
  CHECK(message.tight_decode_bytes_per_s() == 5);
  CHECK(message.dense_decode_bytes_per_s() == 6);
  CHECK(message.fingerprint() == request.fingerprint.Hex());
  CHECK(message.at().attempt() == 6);
  CHECK(message.suspects_size() == 2);
  const PullRequest got = FromProto(message);
  ToProto(got, &again);
  CHECK(MessageDifferencer::Equals(message, again));
  CHECK(got.at == kState);
  CHECK(got.corrupt == request.corrupt);
  message.set_fingerprint("no hash");
  CHECK(FromProto(message).fingerprint == Hash128());
}

TEST_CASE("a report arrives as it was sent") {
  const ReceiverReport report{.committed = kState,
                              .phase = ReceiverPhase::kPulling,
                              .bytes_done = 1,
                              .bytes_total = 2,
                              .message = "waits",
                              .event = 3,
                              .sync_request = 4,
                              .last_pull = {.chunks_delta = 5, .forms = {}},
                              .group = {.round = 6, .prepared = true, .refusal = "no"},
                              .follows = "10.0.0.1:7710",
                              .engines = {.engines = 0, .oldest = kState}};
  v1::ReceiverReport message, again;
  ToProto(report, &message);
  CHECK(message.phase() == ToString(ReceiverPhase::kPulling));
  CHECK(message.has_engines());
  const ReceiverReport got = FromProto(message);
  ToProto(got, &again);
  CHECK(MessageDifferencer::Equals(message, again));
  CHECK(got.group == report.group);
  CHECK(got.engines == report.engines);
  CHECK(got.last_pull.chunks_delta == 5);
  CHECK_FALSE(FromProto(v1::ReceiverReport()).engines.engines.has_value());
}

TEST_CASE("an event arrives as it was sent, and without upstreams beyond the limits") {
  SenderEvent event{.number = 1,
                    .newest = {.identity = kState, .delta_bytes = 2},
                    .sync_request = 3,
                    .force_full = true,
                    .relay = {.fetching = kState, .fetched_bytes = 4, .path = {5, 6}},
                    .group = {.name = "g", .round = 7, .prepare = kState, .commit = {}},
                    .assignment = Assignment{.upstreams = {"a:1", "b:2"}},
                    .incoming = {.version = kState, .base = {}}};
  v1::SenderEvent message, again;
  ToProto(event, &message);
  const SenderEvent got = FromProto(message);
  ToProto(got, &again);
  CHECK(MessageDifferencer::Equals(message, again));
  CHECK(got.newest.identity == kState);
  CHECK(got.newest.delta_bytes == 2);
  CHECK(got.relay == event.relay);
  CHECK(got.group == event.group);
  CHECK(got.assignment == event.assignment);
  CHECK(got.incoming == event.incoming);
  event.assignment->upstreams = {"", std::string(kMaxServeAddress + 1, 'a')};
  for (int i = 0; i < 20; ++i) event.assignment->upstreams.push_back("a:1");
  ToProto(event, &message);
  CHECK(FromProto(message).assignment->upstreams.size() == 16);
  CHECK_FALSE(FromProto(v1::SenderEvent()).assignment.has_value());
}

}  // namespace
}  // namespace deltawire::convert_test
