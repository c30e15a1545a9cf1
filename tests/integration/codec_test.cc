// Every codec over many versions, with and without history, through what a receiver may live
// through.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "common/config/options.h"
#include "common/delta/coders.h"
#include "common/layout/model_dir.h"
#include "common/shm/mapped_file.h"
#include "proto/convert.h"
#include "tests/support/daemons.h"
#include "tests/support/proxy.h"

namespace deltawire::testing::codec_test {
namespace {

constexpr const char* kModel = "m";

/// Fills the bf16 tensors with normally distributed values, since the codecs use the distribution
/// that real weights have.
void FillLikeWeights(Trainer& trainer, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> weight(0, 0.02f);
  for (size_t t = 0; t < trainer.layout().size(); ++t) {
    if (trainer.layout().tensor(t).dtype != DType::kBF16) continue;
    std::byte* at = trainer.content().data() + trainer.layout().offset(t);
    for (size_t i = 0; i < trainer.layout().bytes(t); i += 2) {
      const float value = weight(random);
      std::memcpy(at + i, reinterpret_cast<const char*>(&value) + 2, 2);
    }
  }
}

/// Changes the bf16 tensors like an optimizer's step: small weights change more often than large
/// ones, and one element in 32, always the same, changes far more often than the rest.
void StepLikeAdam(Trainer& trainer, uint64_t step, double rate) {
  std::mt19937_64 random(step);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (size_t t = 0; t < trainer.layout().size(); ++t) {
    if (trainer.layout().tensor(t).dtype != DType::kBF16) continue;
    std::byte* at = trainer.content().data() + trainer.layout().offset(t);
    for (size_t i = 0; i < trainer.layout().bytes(t); i += 2) {
      uint32_t bits = LoadLe<uint16_t>(at + i);
      const uint32_t wide = bits << 16;
      float value = 0;
      std::memcpy(&value, &wide, 4);
      // A step of `rate` reaches the next bf16 value with the chance rate / gap. Hot elements have
      // 16 times that chance, all others half of it.
      const double gap = std::max(std::abs(static_cast<double>(value)) / 256, 1e-9);
      const double hot = (i / 2) % 32 == 0 ? 16 : 0.5;
      if (uniform(random) > std::min(0.9, hot * rate / gap)) continue;
      bits += (i / 64) % 2 == 0 ? 1 : 0xffff;
      StoreLe<uint16_t>(at + i, static_cast<uint16_t>(bits));
    }
  }
}

/// Returns "" when the receiver's weights equal the sender's active half, else the first tensor
/// that differs, or why a file cannot be opened.
std::string CompareHalf(SenderProcess& sender, const std::filesystem::path& receiver) {
  const auto dir = sender.dir() / kModel;
  const auto state = StateReader::Open(dir / ".deltawire.state");
  if (!state.ok()) return std::string(MessageOf(state.status()));
  const auto half = ModelDir::Open(dir / fmt::format("half-{}.safetensors", state->active()));
  const auto held = ModelDir::Open(receiver);
  if (!half.ok() || !held.ok()) return "cannot open";
  for (size_t t = 0; t < half->layout().size(); ++t) {
    const Bytes a = half->data(t), b = held->data(t);
    if (a.size() != b.size() || (!a.empty() && std::memcmp(a.data(), b.data(), a.size()) != 0)) {
      return half->layout().tensor(t).name;
    }
  }
  return "";
}

struct Setup {
  explicit Setup(std::vector<std::string> sender_args, std::vector<std::string> receiver_args = {},
                 size_t megabytes = 4, uint64_t seed = 61)
      : sender(root.path(), std::move(sender_args)),
        trainer(sender.socket(), kModel, megabytes, seed),
        receiver(root.path(), "r1", sender.control(), kModel, std::move(receiver_args)) {
    FillLikeWeights(trainer, seed);
  }
  void Publish(uint64_t version) {
    StepLikeAdam(trainer, version, rate);
    REQUIRE(trainer.Publish(version).status() == absl::OkStatus());
  }
  v1::PullStats Commit(uint64_t version) {
    Publish(version);
    INFO(ReadText(receiver.log()));
    REQUIRE(receiver.WaitCommitted(version));
    CHECK(trainer.Compare(receiver.dir()) == "");
    CHECK(CompareHalf(sender, receiver.dir()) == "");
    return receiver.Status().last_pull();
  }
  v1::PullStats Sync() {
    REQUIRE(Eventually([&] { return receiver.Status().attached(); }));
    const auto synced = receiver.Sync();
    INFO(ReadText(receiver.log()));
    REQUIRE(synced.status() == absl::OkStatus());
    CHECK(trainer.Compare(receiver.dir()) == "");
    return receiver.Status().last_pull();
  }

  double rate = 1e-6;  // of the optimizer
  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  ReceiverProcess receiver;
};

v1::CodecCount Sent(SenderProcess& sender, const std::string& codec) {
  const v1::SenderModelStatus status = sender.Status(kModel);
  for (const auto& c : status.sent()) {
    if (c.codec() == codec) return c;
  }
  return {};
}

}  // namespace

TEST_CASE("each codec brings every version bit for bit") {
  const size_t form = GENERATE(range(size_t{1}, kernels::kForms));
  const std::string codec = kernels::kFormNames[form];
  CAPTURE(codec);
  const Coder* coder = CoderOf(static_cast<kernels::Codec>(form));
  const bool looks_back = coder != nullptr && coder->read_need != nullptr;
  Setup s({"--codec", codec});
  s.Commit(1);
  for (uint64_t v = 2; v <= 8; ++v) {
    CAPTURE(v);
    const auto pull = s.Commit(v);
    CHECK(pull.chunks_full() == 0);
    CHECK(pull.refused_chunks() == 0);
    REQUIRE(pull.chunks_delta() > 0);
    const FormCounts forms = FromProto(pull).forms;
    // Coders() leaves out fast, which carries the chunks that the codec does not make smaller.
    for (const Coder& other : Coders()) {
      CHECK((forms.chunks[kernels::FormOf(other.codec)] > 0) == (&other == coder));
    }
    CHECK((pull.history_chunks() > 0) == (looks_back && v > 2));
  }
  const auto status = s.receiver.Status();
  CHECK(status.history_deltas() == (looks_back ? SenderOptions().history : 0));
  CHECK(Sent(s.sender, codec).chunks() > 0);
  CHECK(Sent(s.sender, "raw").bytes() == s.trainer.layout().total_bytes());
}

TEST_CASE("tight is smaller than fast, and smaller still with history") {
  const auto bytes_of = [](const std::string& codec) {
    Setup s({"--codec", codec});
    std::vector<double> bytes;
    for (uint64_t v = 1; v <= 6; ++v) {
      bytes.push_back(static_cast<double>(s.Commit(v).payload_bytes()));
    }
    return bytes;
  };
  const std::vector<double> fast = bytes_of("fast"), tight = bytes_of("tight");
  // The first delta, version 2, has nothing to look back to.
  const double without = tight[1] / fast[1], with = tight[5] / fast[5];
  WARN("tight's share of fast's bytes: " << without << ", with history " << with);
  CHECK(without < 1);
  CHECK(with < without);
}

TEST_CASE("a receiver that restarts has no history, and begins anew") {
  Setup s({"--codec", "tight"});
  for (uint64_t v = 1; v <= 4; ++v) s.Commit(v);
  CHECK(s.receiver.Status().last_pull().history_chunks() > 0);
  s.receiver.Restart();
  REQUIRE(s.receiver.WaitCommitted(4));
  const auto after = s.Commit(5);
  CHECK(after.chunks_tight() > 0);
  CHECK(after.history_chunks() == 0);
  CHECK(s.Commit(6).history_chunks() > 0);
}

TEST_CASE("a sender that restarts goes on with deltas, and its history begins anew") {
  Setup s({"--codec", "tight"});
  for (uint64_t v = 1; v <= 4; ++v) s.Commit(v);
  s.sender.Restart();
  const auto first = s.Commit(5);
  CHECK(first.chunks_delta() > 0);
  CHECK(first.history_chunks() == 0);  // the restart emptied the sender's delta log
  CHECK(s.Commit(6).refused_chunks() == 0);
  const auto third = s.Commit(7);
  CHECK(third.chunks_tight() > 0);
  CHECK(third.history_chunks() > 0);
}

TEST_CASE("a rollback is a delta like any other, and later deltas can look back to it") {
  Setup s({"--codec", "tight"});
  std::vector<std::byte> third;
  for (uint64_t v = 1; v <= 5; ++v) {
    s.Commit(v);
    if (v == 3) third = s.trainer.content();
  }
  REQUIRE(s.sender.Rollback(kModel, 3).status() == absl::OkStatus());
  REQUIRE(Eventually([&] { return s.receiver.Status().committed().epoch() == 2; }));
  s.trainer.content() = third;
  CHECK(s.trainer.Compare(s.receiver.dir()) == "");
  CHECK(s.receiver.Status().last_pull().chunks_tight() > 0);
  CHECK(s.receiver.Status().last_pull().history_chunks() > 0);
  CHECK(s.Commit(4).history_chunks() > 0);
  CHECK(s.Commit(5).refused_chunks() == 0);
}

TEST_CASE("skipped versions come as one tight fold, after which history begins anew") {
  Setup s({"--codec", "tight"}, {"--no-follow"});
  for (uint64_t v = 1; v <= 3; ++v) {
    s.Publish(v);
    s.Sync();
  }
  CHECK(s.receiver.Status().last_pull().history_chunks() > 0);
  for (uint64_t v = 4; v <= 7; ++v) s.Publish(v);
  const auto fold = s.Sync();
  CHECK(fold.chunks_tight() > 0);
  CHECK(fold.history_chunks() > 0);  // the deltas that led to 3 are the same at both ends
  s.Publish(8);
  // From 3 to 7 the receiver has one delta and the sender four, so none is common to both.
  CHECK(s.Sync().history_chunks() == 0);
  s.Publish(9);
  const auto again = s.Sync();
  CHECK(again.history_chunks() > 0);
  CHECK(again.refused_chunks() == 0);
  CHECK(again.chunks_full() == 0);
}

TEST_CASE("deltas that look back to another history are refused and fetched whole") {
  Setup s({"--codec", "tight", "--advertise-host", Proxy::kHost}, {"--no-follow"});
  Proxy proxy(s.sender.bulk_port());
  for (const uint64_t v : {1, 2}) {
    s.Publish(v);
    s.Sync();
  }
  s.Publish(3);
  s.Publish(4);
  s.Sync();
  // The receiver has the delta from 2 to 4. The proxy tells the sender that it is the one from 3.
  proxy.set_edit([](wire::Have& have) {
    if (!have.history.empty()) have.history = {{1, 3}};
    for (auto& c : have.chunks) c.depth = std::min<uint8_t>(c.depth, have.history.empty() ? 0 : 1);
  });
  s.Publish(5);
  const auto pull = s.Sync();
  CHECK(pull.history_chunks() > 0);
  CHECK(pull.refused_chunks() > 0);
  CHECK(pull.chunks_full() == pull.refused_chunks());
  CHECK(pull.repaired_chunks() == pull.refused_chunks());
  CHECK(ReadText(s.receiver.log()).find("looks back to") != std::string::npos);
  proxy.set_edit(nullptr);
  for (uint64_t v = 6; v <= 8; ++v) {
    s.Publish(v);
    CHECK(s.Sync().refused_chunks() == 0);
  }
  CHECK(s.receiver.Status().last_pull().history_chunks() > 0);
}

TEST_CASE("tight deltas do not fit bytes that went bad, which are then fetched whole") {
  // With one file: of two, the next delta would go to the hidden one, whose bytes are right.
  Setup s({"--codec", "tight"}, {"--scrub-bytes-per-s", "0", "--buffers", "1"});
  s.Commit(1);
  // Other exponents everywhere in the first chunk: the decoder meets other classes.
  // They are written through a mapping: unlike write(2), that leaves no time by which the
  // receiver's check of its files would notice and mend them before the next version does.
  {
    const auto path = s.receiver.dir() / "model.safetensors";
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const auto file = Mapping::Map(fd.get(), std::filesystem::file_size(path), true, path);
    REQUIRE(file.ok());
    std::memset(file->base() + file->bytes() - s.trainer.layout().total_bytes(), 0, 200'000);
  }
  const auto pull = s.Commit(2);
  CHECK(pull.chunks_full() == 1);
  CHECK(pull.repaired_chunks() == 1);
}

TEST_CASE("publishes overtake a slow pull of tight deltas") {
  Setup s({"--codec", "tight", "--advertise-host", Proxy::kHost});
  Proxy proxy(s.sender.bulk_port());
  s.Commit(1);
  s.Commit(2);
  proxy.set_rate(300'000);
  for (uint64_t v = 3; v <= 9; ++v) s.Publish(v);
  REQUIRE(s.receiver.WaitCommitted(9));
  CHECK(s.trainer.Compare(s.receiver.dir()) == "");
  proxy.set_rate(0);
  CHECK(s.Commit(10).refused_chunks() == 0);
}

TEST_CASE("auto sends fast over loopback") {
  Setup s({"--log-level", "debug"}, {}, 16);
  for (uint64_t v = 1; v <= 4; ++v) s.Commit(v);
  INFO(ReadText(s.sender.log()));
  CHECK(Sent(s.sender, "fast").chunks() > 0);
  CHECK(Sent(s.sender, "tight").chunks() == 0);
  CHECK(s.receiver.Status().history_deltas() == 0);
}

TEST_CASE("auto turns to tight when the link turns slow, and back") {
  // What goes early goes as fast, and how much that is depends on the moment.
  Setup s({"--advertise-host", Proxy::kHost, "--log-level", "debug", "--early", "diff"}, {}, 2);
  s.rate = 2e-5;  // makes the pulls large enough to measure the link's speed by
  Proxy proxy(s.sender.bulk_port());
  for (uint64_t v = 1; v <= 2; ++v) s.Commit(v);
  uint64_t version = 2;
  const auto until = [&](uint64_t versions, auto condition) {
    for (const uint64_t last = version + versions; version < last;) {
      if (condition(s.Commit(++version))) return true;
    }
    return false;
  };
  // After a few slow pulls the sender knows the link's speed and sends tight deltas, which soon
  // have history to look back to.
  proxy.set_rate(200'000);
  CHECK(until(6, [](const v1::PullStats& p) { return p.chunks_tight() == p.chunks_delta(); }));
  CHECK(until(6, [](const v1::PullStats& p) { return p.history_chunks() > 0; }));
  // While the coders are the slowest part of a pull, the estimate of the link's speed rises by only
  // a tenth per pull, so the way back takes many versions.
  proxy.set_rate(0);
  const bool back =
      until(100, [](const v1::PullStats& p) { return p.chunks_tight() < p.chunks_delta(); });
  INFO(ReadText(s.sender.log()));
  CHECK(back);
}

TEST_CASE("what a version changed is told per tensor, and adds up") {
  Setup s({});
  s.Commit(1);
  s.Commit(2);
  v1::SenderStatusRequest request;
  request.set_model(kModel);
  request.set_changes(true);
  v1::SenderStatusResponse response;
  grpc::ClientContext context;
  REQUIRE(s.sender.orchestrator().GetStatus(&context, request, &response).ok());
  const v1::SenderModelStatus& m = response.models(0);
  uint64_t changed = 0, delta = 0;
  for (const v1::TensorChange& t : m.changes()) {
    CHECK(t.changed_elements() > 0);
    CHECK(t.elements() >= t.changed_elements());
    changed += t.changed_elements();
    delta += t.delta_bytes();
  }
  CHECK(m.changes_size() == 7);  // the bf16 tensors
  CHECK(changed == m.newest().changed_elements());
  CHECK(delta == m.newest().delta_bytes());
}

}  // namespace deltawire::testing::codec_test
